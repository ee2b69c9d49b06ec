//! Which interface and address a device lives at, and how large a datagram its link carries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::IpMtu;
use qcast_proto::addr::ROCE_PORT;
use socket2::{Domain, Protocol, Socket, Type};

use super::error::{Call, SoftOpenError};
use super::option::Ipv6Mtu;
use crate::device::DeviceError;
use crate::device::spec::SoftAddress;

/// An address of an interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) interface: String,
    pub(super) index: u32,
    pub(super) address: IpAddr,
    pub(super) loopback: bool,
}

impl Place {
    /// Finds the interface and the address that `wanted` means.
    pub(super) fn find(wanted: &SoftAddress) -> Result<Self, SoftOpenError> {
        let all = entries()?;
        let entry = match wanted {
            SoftAddress::Loopback => all
                .iter()
                .find(|e| e.loopback() && e.address.is_some_and(|ip| ip.is_ipv4()))
                .or_else(|| all.iter().find(|e| e.loopback()))
                .ok_or_else(|| SoftOpenError::NoSuchInterface {
                    name: "lo".into(),
                    have: names(&all),
                })?,
            SoftAddress::Interface(name) => {
                let of_it = || all.iter().filter(|e| e.interface == *name);
                of_it().min_by_key(|e| preference(e.address)).ok_or_else(|| {
                    SoftOpenError::NoSuchInterface { name: name.clone(), have: names(&all) }
                })?
            }
            SoftAddress::Addr(ip) => {
                let own = all.iter().find(|e| e.address == Some(*ip));
                // Every address of 127.0.0.0/8 is one of loopback's, though only the first is listed.
                let looped = || ip.is_loopback().then(|| all.iter().find(|e| e.loopback()))?;
                own.or_else(looped).ok_or_else(|| SoftOpenError::NoSuchAddress {
                    address: *ip,
                    have: all.iter().filter_map(|e| e.address).collect(),
                })?
            }
        };
        let up = entry.flags.contains(InterfaceFlags::IFF_UP);
        let address = match wanted {
            _ if !up => return Err(SoftOpenError::Down(entry.interface.clone())),
            SoftAddress::Addr(ip) => *ip,
            _ => entry.address.ok_or_else(|| SoftOpenError::NoAddress(entry.interface.clone()))?,
        };
        let index = if_nametoindex(entry.interface.as_str()).call("if_nametoindex")?;
        let loopback = entry.loopback();
        Ok(Self { interface: entry.interface.clone(), index, address, loopback })
    }

    /// Whether the link is up and still has the address; `None` if the interface is gone.
    pub(super) fn active(&self) -> Result<Option<bool>, DeviceError> {
        let all = entries()?;
        let mut of_it = all.iter().filter(|e| e.interface == self.interface).peekable();
        if of_it.peek().is_none() {
            return Ok(None);
        }
        let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        Ok(Some(of_it.any(|e| {
            e.flags.contains(running)
                && (e.address == Some(self.address)
                    || (self.loopback && self.address.is_loopback()))
        })))
    }

    /// The MTU of the link, asked of the kernel in this network namespace: that of the route to a group on
    /// the link.
    pub(super) fn link_mtu(&self) -> Result<usize, DeviceError> {
        let probe =
            Socket::new(Domain::for_address(self.socket_addr(0)), Type::DGRAM, Some(Protocol::UDP))
                .call("socket")?;
        let to = match self.address {
            IpAddr::V4(ip) => {
                probe.set_multicast_if_v4(&ip).call("setsockopt(IP_MULTICAST_IF)")?;
                IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1))
            }
            // IPv6 has no route for groups on loopback unless root made one.
            IpAddr::V6(ip) if ip.is_loopback() => IpAddr::V6(ip),
            IpAddr::V6(_) => {
                probe.set_multicast_if_v6(self.index).call("setsockopt(IPV6_MULTICAST_IF)")?;
                IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1))
            }
        };
        self.reaches(&probe, to)?;
        let mtu = match self.address {
            IpAddr::V4(_) => getsockopt(&probe, IpMtu).call("getsockopt(IP_MTU)")?,
            IpAddr::V6(_) => getsockopt(&probe, Ipv6Mtu).call("getsockopt(IPV6_MTU)")?,
        };
        Ok(usize::try_from(mtu).unwrap_or(0))
    }

    /// Finds out, with a socket that leaves by this interface, whether there is a route to `to`. Nothing is sent.
    pub(super) fn reaches(&self, probe: &Socket, to: IpAddr) -> Result<(), DeviceError> {
        match probe.connect(&self.scoped(to, ROCE_PORT).into()) {
            Err(error) if error.raw_os_error() == Some(Errno::ENETUNREACH as i32) => {
                // With a route of the other kind loopback takes datagrams, but does not deliver them.
                let kind = if self.loopback { "local" } else { "multicast" };
                Err(DeviceError::NoRoute { group: to, interface: self.interface.clone(), kind })
            }
            other => other.call("connect"),
        }
    }

    /// The address with a port, and with the interface as its scope.
    pub(super) fn socket_addr(&self, port: u16) -> SocketAddr {
        self.scoped(self.address, port)
    }

    /// `ip` as seen from this interface: IPv6 addresses get it as their scope, which the kernel looks at
    /// only where it matters.
    pub(super) fn scoped(&self, ip: IpAddr, port: u16) -> SocketAddr {
        let mut addr = SocketAddr::new(ip, port);
        if let SocketAddr::V6(v6) = &mut addr {
            v6.set_scope_id(self.index);
        }
        addr
    }
}

/// The largest path MTU that a link carries, by Soft-RoCE's rule: the link's MTU less 80 bytes for headers. 1500
/// bytes carry 1024.
pub(super) fn path_mtu(link: usize) -> Option<usize> {
    PATH_MTUS.into_iter().rev().find(|mtu| mtu + HEADERS <= link)
}

/// The path MTUs there are.
pub(super) const PATH_MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];

/// IPv6, UDP, BTH, DETH, immediate and ICRC take 80 bytes; Soft-RoCE counts the same for IPv4.
const HEADERS: usize = 80;

/// One address of one interface; an interface without any has one entry too.
struct Entry {
    interface: String,
    flags: InterfaceFlags,
    address: Option<IpAddr>,
}

impl Entry {
    fn loopback(&self) -> bool {
        self.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    }
}

fn entries() -> Result<Vec<Entry>, DeviceError> {
    Ok(getifaddrs()
        .call("getifaddrs")?
        .map(|entry| Entry {
            address: entry.address.as_ref().and_then(ip_of),
            // An address may have a label of its own, which begins with the interface's name and a colon.
            interface: entry.interface_name.split(':').next().unwrap_or_default().to_owned(),
            flags: entry.flags,
        })
        .collect())
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    }
}

fn names(all: &[Entry]) -> Vec<String> {
    let mut names: Vec<_> = all.iter().map(|e| e.interface.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Lower is better: IPv4, then IPv6 that routes, then link-local IPv6.
fn preference(address: Option<IpAddr>) -> u8 {
    match address {
        Some(IpAddr::V4(_)) => 0,
        Some(IpAddr::V6(ip)) if !ip.is_unicast_link_local() => 1,
        Some(IpAddr::V6(_)) => 2,
        None => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_follow_soft_roces_rule() {
        for (link, path) in [
            (335, None),
            (336, Some(256)),
            (1103, Some(512)),
            (1104, Some(1024)),
            (1500, Some(1024)),
            (2128, Some(2048)),
            (4175, Some(2048)),
            (4176, Some(4096)),
            (9000, Some(4096)),
            (65536, Some(4096)),
        ] {
            assert_eq!(path_mtu(link), path, "link MTU {link}");
        }
    }

    #[test]
    fn loopback_is_found_and_carries_whole_pages() {
        let place = Place::find(&SoftAddress::Loopback).unwrap();
        assert!(place.loopback);
        assert_eq!(place.active().unwrap(), Some(true));
        assert!(place.link_mtu().unwrap() >= 4176);
        let other = Place::find(&SoftAddress::Addr("127.8.9.10".parse().unwrap())).unwrap();
        assert_eq!((other.index, other.address), (place.index, "127.8.9.10".parse().unwrap()));
    }

    #[test]
    fn what_does_not_exist_is_named_with_what_does() {
        let error = Place::find(&SoftAddress::Interface("nope0".into())).unwrap_err().to_string();
        assert!(error.contains("nope0") && error.contains("lo"), "{error}");
        let error = Place::find(&SoftAddress::Addr("203.0.113.77".parse().unwrap()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("203.0.113.77") && error.contains("127.0.0.1"), "{error}");
    }
}
