//! Sockets: how they are set up, and the batched calls on them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{
    Ipv6DontFrag, RcvBuf, RcvBufForce, RxqOvfl, SndBuf, SndBufForce, UdpGroSegment,
};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, getsockopt,
    recvmsg, sendmmsg, sendmsg, setsockopt,
};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::config::SoftConfig;
use super::error::Call;
use super::interface::Place;
use super::option::{Ipv4MtuDiscover, Ipv6MtuDiscover, PMTUDISC_DO};
use crate::device::DeviceError;

/// The most datagrams that one [`send_many`] takes.
pub(super) const MANY: usize = 32;

/// The most datagrams that one [`send_segmented`] takes: the kernel's own limit (`UDP_MAX_SEGMENTS`, before 6.9).
pub(super) const SEGMENTS: usize = 64;

/// The most bytes that one [`send_segmented`] takes: what fits the length fields of IPv4 and UDP.
pub(super) const SEGMENTED_BYTES: usize = 65_507;

/// A socket for what is sent, and for what is sent to this device alone.
pub(super) fn unicast(place: &Place, config: &SoftConfig) -> Result<Socket, DeviceError> {
    let socket = udp(place.address)?;
    let ttl = u32::from(config.multicast_ttl);
    match place.address {
        IpAddr::V4(ip) => {
            // "Don't fragment", and no connect: so the kernel gives every datagram the identification 0,
            // which the ICRC can be computed for.
            setsockopt(&socket, Ipv4MtuDiscover, &PMTUDISC_DO)
                .call("setsockopt(IP_MTU_DISCOVER)")?;
            socket.set_multicast_if_v4(&ip).call("setsockopt(IP_MULTICAST_IF)")?;
            socket.set_multicast_loop_v4(true).call("setsockopt(IP_MULTICAST_LOOP)")?;
            socket.set_multicast_ttl_v4(ttl).call("setsockopt(IP_MULTICAST_TTL)")?;
        }
        IpAddr::V6(_) => {
            setsockopt(&socket, Ipv6MtuDiscover, &PMTUDISC_DO)
                .call("setsockopt(IPV6_MTU_DISCOVER)")?;
            setsockopt(&socket, Ipv6DontFrag, &true).call("setsockopt(IPV6_DONTFRAG)")?;
            socket.set_multicast_if_v6(place.index).call("setsockopt(IPV6_MULTICAST_IF)")?;
            socket.set_multicast_loop_v6(true).call("setsockopt(IPV6_MULTICAST_LOOP)")?;
            socket.set_multicast_hops_v6(ttl).call("setsockopt(IPV6_MULTICAST_HOPS)")?;
        }
    }
    if setsockopt(&socket, SndBufForce, &config.send_buffer).is_err() {
        setsockopt(&socket, SndBuf, &config.send_buffer).call("setsockopt(SO_SNDBUF)")?;
    }
    receiving(&socket, config)?;
    Ok(socket)
}

/// A socket that hears a group on the device's interface. Every process, and every device in it, has its own.
pub(super) fn multicast(
    place: &Place,
    group: SocketAddr,
    config: &SoftConfig,
) -> Result<Socket, DeviceError> {
    let socket = udp(group.ip())?;
    socket.set_reuse_address(true).call("setsockopt(SO_REUSEADDR)")?;
    receiving(&socket, config)?;
    // Only what this socket joined, not what others of this host did.
    match group.ip() {
        IpAddr::V4(_) => {
            socket.set_multicast_all_v4(false).call("setsockopt(IP_MULTICAST_ALL)")?;
        }
        IpAddr::V6(_) => {
            socket.set_multicast_all_v6(false).call("setsockopt(IPV6_MULTICAST_ALL)")?;
        }
    }
    socket.bind(&group.into()).call(BIND_TO_GROUP)?;
    match group.ip() {
        IpAddr::V4(ip) => {
            let interface = InterfaceIndexOrAddress::Index(place.index);
            socket.join_multicast_v4_n(&ip, &interface).call("setsockopt(IP_ADD_MEMBERSHIP)")?;
        }
        IpAddr::V6(ip) => {
            socket.join_multicast_v6(&ip, place.index).call("setsockopt(IPV6_ADD_MEMBERSHIP)")?;
        }
    }
    Ok(socket)
}

/// Why this fails is not the group's doing, so the call's name says where to look.
const BIND_TO_GROUP: &str = "bind to UDP port 4791 of the group (rdma_rxe, or a program that does not share it, may have it)";

/// The bytes that the kernel keeps for a socket until it is read.
pub(super) fn recv_buffer(socket: &Socket) -> Result<usize, DeviceError> {
    getsockopt(socket, RcvBuf).call("getsockopt(SO_RCVBUF)")
}

fn udp(ip: IpAddr) -> Result<Socket, DeviceError> {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).call("socket")?;
    socket.set_nonblocking(true).call("fcntl(O_NONBLOCK)")?;
    if ip.is_ipv6() {
        socket.set_only_v6(true).call("setsockopt(IPV6_V6ONLY)")?;
    }
    Ok(socket)
}

fn receiving(socket: &Socket, config: &SoftConfig) -> Result<(), DeviceError> {
    // Beyond net.core.rmem_max if we may (CAP_NET_ADMIN), else as far as that.
    if setsockopt(socket, RcvBufForce, &config.recv_buffer).is_err() {
        setsockopt(socket, RcvBuf, &config.recv_buffer).call("setsockopt(SO_RCVBUF)")?;
    }
    setsockopt(socket, RxqOvfl, &1).call("setsockopt(SO_RXQ_OVFL)")?;
    if config.offload && setsockopt(socket, UdpGroSegment, &true).is_err() {
        tracing::debug!("the kernel has no UDP_GRO: datagrams are taken one by one");
    }
    Ok(())
}

/// What one [`receive`] brought: `len` bytes, to be cut into datagrams of `segment` bytes (the last may be shorter).
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) len: usize,
    pub(super) segment: usize,
    pub(super) source: SocketAddr,
    /// How many datagrams the socket has dropped so far, if it ever did.
    pub(super) dropped: Option<u32>,
}

/// Space for the control messages of [`receive`].
pub(super) fn control_space() -> Vec<u8> {
    nix::cmsg_space!(i32, u32)
}

/// Takes one datagram, or several of one sender that the kernel put together.
#[inline]
pub(super) fn receive(
    socket: &Socket,
    staging: &mut [u8],
    control: &mut [u8],
) -> io::Result<Incoming> {
    let mut iov = [IoSliceMut::new(staging)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut iov,
        Some(control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let source = message.address.as_ref().and_then(socket_addr).ok_or(Errno::EAFNOSUPPORT)?;
    let len = message.bytes;
    let mut incoming = Incoming { len, segment: len, source, dropped: None };
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::UdpGroSegments(bytes) => {
                incoming.segment = usize::try_from(bytes).unwrap_or(len);
            }
            ControlMessageOwned::RxqOvfl(total) => incoming.dropped = Some(total),
            _ => {}
        }
    }
    incoming.segment = incoming.segment.max(1);
    Ok(incoming)
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::new(IpAddr::V4(v4.ip()), v4.port())),
        (_, Some(v6)) => Some(SocketAddr::new(IpAddr::V6(v6.ip()), v6.port())),
        _ => None,
    }
}

/// Sends one datagram.
#[inline]
pub(super) fn send_one(socket: &Socket, datagram: &[u8], to: &SockaddrStorage) -> io::Result<()> {
    let iov = [IoSlice::new(datagram)];
    sendmsg(socket.as_raw_fd(), &iov, &[], MsgFlags::MSG_DONTWAIT, Some(to))?;
    Ok(())
}

/// Sends all of `datagrams` to one destination with one pass through the kernel's network stack. Each is `segment`
/// bytes long, but the last may be shorter.
#[inline]
pub(super) fn send_segmented(
    socket: &Socket,
    datagrams: &[IoSlice<'_>],
    segment: u16,
    to: &SockaddrStorage,
) -> io::Result<()> {
    let control = [ControlMessage::UdpGsoSegments(&segment)];
    sendmsg(socket.as_raw_fd(), datagrams, &control, MsgFlags::MSG_DONTWAIT, Some(to))?;
    Ok(())
}

/// Sends datagrams to any destinations with one system call; how many were sent. At most [`MANY`] of them.
///
/// It allocates, since nix's headers hold pointers and could not be kept in a device that moves between threads.
pub(super) fn send_many<'a>(
    socket: &Socket,
    datagrams: &'a [[IoSlice<'a>; 1]],
    to: &[Option<SockaddrStorage>],
) -> io::Result<usize> {
    let mut headers = MultiHeaders::preallocate(datagrams.len(), None);
    let sent =
        sendmmsg(socket.as_raw_fd(), &mut headers, datagrams, to, [], MsgFlags::MSG_DONTWAIT)?;
    Ok(sent.count())
}
