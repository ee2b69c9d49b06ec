//! Why a real device cannot be opened.

use crate::device::DeviceError;

/// Why a [`VerbsDevice`](super::VerbsDevice) was not opened. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsOpenError {
    /// The kernel has no RDMA.
    #[error(
        "this system has no RDMA: no kernel module of an adapter is loaded; load it, or as root for Soft-RoCE: \
         modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
    )]
    NoRdma,
    /// A module is loaded, but it has no device.
    #[error(
        "no RDMA device: a kernel module is loaded, but it drives none; as root for Soft-RoCE: \
         rdma link add rxe0 type rxe netdev eth0"
    )]
    NoLink,
    /// There are devices, but programs cannot reach them.
    #[error(
        "the kernel has {}, but gives programs no access: load its module ib_uverbs (as root: modprobe ib_uverbs)",
        .devices.join(", ")
    )]
    NoUverbs {
        /// The devices.
        devices: Vec<String>,
    },
    /// The device's file cannot be opened.
    #[error(
        "{node} cannot be opened for reading and writing; give this user access to it (a udev rule, or in a \
         container: --device=/dev/infiniband)"
    )]
    Unreadable {
        /// The file.
        node: String,
    },
    /// libibverbs has no driver for the devices that there are.
    #[error(
        "libibverbs has no provider for {}: install the package ibverbs-providers; it looks in \
         /etc/libibverbs.d and in the folder libibverbs/ beside itself",
        .devices.join(", ")
    )]
    NoProvider {
        /// The devices.
        devices: Vec<String>,
    },
    /// rdma_cm cannot be used.
    #[error(
        "rdma_cm cannot be used ({0}): load its module rdma_ucm (as root: modprobe rdma_ucm) and give this user access to \
         /dev/infiniband/rdma_cm, or join groups without it by ?join=ip after the device's name"
    )]
    NoRdmaCm(#[source] DeviceError),
    /// There is no device of this name.
    #[error("there is no RDMA device {name:?}; this host has {}", .have.join(", "))]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        have: Vec<String>,
    },
    /// The device did not open.
    #[error("{name} cannot be opened: {source}")]
    Open {
        /// The device.
        name: String,
        /// Why.
        #[source]
        source: DeviceError,
    },
    /// The device has no such port.
    #[error("{name} has no port {port}; it has ports 1..={ports}")]
    NoSuchPort {
        /// The device.
        name: String,
        /// The port asked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// No port is up.
    #[error("no port of {name} is active; bring its link up (for Soft-RoCE: ip link set DEV up)")]
    NoActivePort {
        /// The device.
        name: String,
    },
    /// The GID table has nothing that can be used.
    #[error(
        "port {port} of {name} has no usable GID: on RoCE its network interface must be in this network \
         namespace, be up and have an IP address"
    )]
    NoUsableGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
    },
    /// The GID that was asked for cannot be used.
    #[error(
        "GID index {index} of {name} is {what}; leave @{index} out to have one chosen, or see `rdma link` and \
         `ibv_devinfo -v`"
    )]
    BadGidIndex {
        /// The device.
        name: String,
        /// The index.
        index: u8,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The device cannot do what qcast needs.
    #[error("{name} does not support {what}, which qcast cannot do without")]
    Incapable {
        /// The device.
        name: String,
        /// What it lacks.
        what: &'static str,
    },
    /// The MTU asked for is not one of the five, or more than the port's.
    #[error(
        "a path MTU of {asked} bytes cannot be had on {name}, whose active MTU is {active}; \
             256, 512, 1024, 2048 and 4096 are those there are"
    )]
    BadMtu {
        /// The device.
        name: String,
        /// The MTU asked for.
        asked: usize,
        /// The port's.
        active: usize,
    },
    /// The limit on locked memory is too low.
    #[error(
        "buffers need {need} bytes of locked memory, and the limit is {limit}: raise it with `ulimit -l` \
         (LimitMEMLOCK= of a systemd unit, or /etc/security/limits.conf), or ask for fewer receives"
    )]
    MemlockTooLow {
        /// What is needed.
        need: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A verb failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
