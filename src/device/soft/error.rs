//! Why a software device cannot be opened.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::device::DeviceError;

/// Why a [`SoftDevice`](super::SoftDevice) was not opened. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftOpenError {
    /// No interface has this name.
    #[error("there is no interface {name:?}; this host has {}", list(.have))]
    NoSuchInterface {
        /// The name asked for.
        name: String,
        /// The names there are.
        have: Vec<String>,
    },
    /// No interface has this address.
    #[error("{address} is not an address of this host; it has {}", list(.have))]
    NoSuchAddress {
        /// The address asked for.
        address: IpAddr,
        /// The addresses there are.
        have: Vec<IpAddr>,
    },
    /// The interface has no IP address to be reached by.
    #[error("interface {0} has no IP address; give it one with `ip address add`")]
    NoAddress(String),
    /// The interface is down.
    #[error("interface {0} is down; bring it up with `ip link set {0} up`")]
    Down(String),
    /// Another process has this address's RoCE port, and the address was asked for by number.
    #[error("{0} is taken: another process has this UDP port; stop it, or choose another address")]
    PortTaken(SocketAddr),
    /// Every port that a software device may use on this address is taken.
    #[error(
        "UDP ports 4791 to 4855 of {0} are all taken; close some processes, or use another address"
    )]
    NoFreePort(IpAddr),
    /// The MTU asked for is not one of the five.
    #[error("a path MTU is 256, 512, 1024, 2048 or 4096 bytes, not {0}")]
    BadMtu(usize),
    /// The MTU asked for does not fit the interface.
    #[error(
        "a path MTU of {asked} bytes does not fit {interface}, whose link MTU is {link}; the most is {most}"
    )]
    MtuTooLarge {
        /// The path MTU asked for.
        asked: usize,
        /// The interface.
        interface: String,
        /// The interface's MTU.
        link: usize,
        /// The largest path MTU that fits.
        most: usize,
    },
    /// Not even the smallest path MTU fits the interface.
    #[error("interface {interface} has a link MTU of {link} bytes; the least that works is 336")]
    LinkTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        link: usize,
    },
    /// The operating system refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".into();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// Names the call in an error of the operating system.
pub(super) trait Call<T> {
    fn call(self, call: &'static str) -> Result<T, DeviceError>;
}

impl<T, E: Into<io::Error>> Call<T> for Result<T, E> {
    fn call(self, call: &'static str) -> Result<T, DeviceError> {
        self.map_err(|source| DeviceError::Os { call, source: source.into() })
    }
}
