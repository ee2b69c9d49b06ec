//! Why devices refuse.

use std::io;

use qcast_proto::addr::Gid;
use qcast_proto::qp::QpState;

/// Why a device did not do something. Unless a variant says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The step breaks the transition table or a check beside it.
    #[error(transparent)]
    Modify(#[from] qcast_proto::qp::ModifyError),
    /// The queue pair is not in RTS, so nothing may be posted to its send queue.
    #[error("the QP is in {0}, and sends can be posted in RTS only")]
    NotReady(QpState),
    /// The address handle is still being resolved.
    #[error("the address handle is not resolved yet; send after its AhReady event")]
    AhPending,
    /// The payload is larger than the path MTU. A real device would report success and send nothing.
    #[error("a payload of {len} bytes does not fit the path MTU of {max}")]
    TooLarge {
        /// The payload.
        len: usize,
        /// The most that can be sent.
        max: usize,
    },
    /// A limit of the device is reached.
    #[error("the device has no more {what} (limit {limit})")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The object is in use.
    #[error("{0} is still in use")]
    Busy(&'static str),
    /// There is no such object (any more).
    #[error("there is no such {0}")]
    NoSuch(&'static str),
    /// The address is not a multicast address.
    #[error("{0} is not a multicast address; use one such as 239.192.1.2")]
    NotMulticast(std::net::IpAddr),
    /// The address is reserved for routing protocols (224.0.0.0/24, ff00::/16 to ff02::/16).
    #[error("{0} is reserved for the link's own protocols; use one such as 239.192.1.2")]
    ReservedMulticast(std::net::IpAddr),
    /// The peer's address and ours are of different families.
    #[error("no way from {ours} to {theirs}: one is IPv4 and the other IPv6")]
    FamilyMismatch {
        /// Our GID.
        ours: Gid,
        /// The peer's.
        theirs: Gid,
    },
    /// The interface has no route for groups, so that nothing could be sent to one.
    #[error(
        "no route to {group} on {interface}; make one, as root: \
         ip -6 route add {kind} ff00::/8 dev {interface} table local"
    )]
    NoRoute {
        /// The group.
        group: std::net::IpAddr,
        /// The interface.
        interface: String,
        /// The kind of route that is needed: `local` on loopback, `multicast` elsewhere.
        kind: &'static str,
    },
    /// The device takes no more queue pairs into groups: one of its three limits is reached, and it does not say which.
    #[error(
        "the device attaches no more queue pairs to groups: {attached} are attached by this node, and it takes \
         {groups} groups, {of_group} queue pairs in one group and {in_all} attachments in all, by all programs together; \
         leave groups, or let programs of this host share a node"
    )]
    AttachLimit {
        /// Attachments of this node.
        attached: usize,
        /// `max_mcast_grp`.
        groups: u32,
        /// `max_mcast_qp_attach`.
        of_group: u32,
        /// `max_total_mcast_qp_attach`.
        in_all: u32,
    },
    /// The port has no IPoIB interface with an address, by which rdma_cm could find it.
    #[error(
        "{device}: groups on InfiniBand are joined through an IPoIB interface of the port, and none with an IP address is \
         in its partition {pkey:#06x}; bring it up (ip link set ib0 up) and give it an address (ip address add ... dev ib0)"
    )]
    NoIpoib {
        /// The device and port.
        device: String,
        /// The partition of queue pairs.
        pkey: u16,
    },
    /// The peer's address did not resolve.
    #[error("the address {0} does not answer")]
    Unresolved(Gid),
    /// The device was taken away, and is not there again yet.
    #[error("the device is gone; the node waits for it to come back (its events tell)")]
    Gone,
    /// The device does not offer this.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// The device refused a modify that the table allows: something that is not checked beforehand, or a fault
    /// of the driver.
    #[error(
        "{attempt}: the device refused it ({source}), though the table allows it; checked beforehand: {}",
        list(.passed)
    )]
    ModifyRefused {
        /// What was asked.
        attempt: qcast_proto::qp::Attempt,
        /// The checks that it passed.
        passed: Vec<qcast_proto::qp::Precheck>,
        /// The device's answer.
        #[source]
        source: io::Error,
    },
    /// The buffer is not of this device's memory.
    #[error("the buffer was not allocated by this device")]
    Unregistered,
    /// The limit on locked memory is too low for the buffers asked for.
    #[error(
        "{need} bytes of buffers cannot be locked in memory, with a limit of {limit} in all; raise it with \
         `ulimit -l` (LimitMEMLOCK= of a systemd unit)"
    )]
    Memlock {
        /// What was to be locked.
        need: u64,
        /// The limit on all that is locked.
        limit: u64,
    },
    /// The operating system refused a call.
    #[error("{call} failed: {source}")]
    Os {
        /// The call: a verb or a system call by name.
        call: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

fn list(checks: &[qcast_proto::qp::Precheck]) -> String {
    checks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
