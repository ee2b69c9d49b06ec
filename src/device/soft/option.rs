//! Socket options that nix does not name.

use nix::libc;
use nix::sys::socket::sockopt::{GetStruct, SetStruct};
use nix::{getsockopt_impl, setsockopt_impl};

/// `IP_MTU_DISCOVER`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv4MtuDiscover;
setsockopt_impl!(
    Ipv4MtuDiscover,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int,
    SetStruct<libc::c_int>
);

/// `IPV6_MTU_DISCOVER`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6MtuDiscover;
setsockopt_impl!(
    Ipv6MtuDiscover,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int,
    SetStruct<libc::c_int>
);

/// `IPV6_MTU`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Mtu;
getsockopt_impl!(Ipv6Mtu, libc::IPPROTO_IPV6, libc::IPV6_MTU, libc::c_int, GetStruct<libc::c_int>);

/// The value of the two `MTU_DISCOVER` options that sets "don't fragment" on every datagram.
pub(super) const PMTUDISC_DO: libc::c_int = libc::IP_PMTUDISC_DO;
