//! Groups: joined through rdma_cm, or by IP membership and a plain attach.
//!
//! rdma_cm is asked for the way to the group and nothing else: it makes the fabric send us the group's
//! datagrams (the subnet administrator's join on InfiniBand, IGMP on RoCE) for as long as its id lives. The
//! queue pair that is attached is our own, with a key of our own; rdma_cm's would have 0x01234567.
//!
//! On Soft-RoCE an attach without a membership of the host hears nothing: its traffic passes through the
//! host's IP stack, which drops what the host is no member of.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};

use nix::libc;
use qcast_proto::addr::Gid;
use rdma_sys as sys;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};

use super::device::{Borrowed, set_nonblocking};
use super::gid;
use super::qp::Qp;
use super::ret;
use crate::device::{AhId, DeviceError, QpId};

/// How groups are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinBy {
    /// Through rdma_cm.
    #[default]
    RdmaCm,
    /// By the host's IP membership of the group and a plain attach, where there is no rdma_cm. RoCE only.
    Membership,
}

/// What rdma_cm tells of an id.
pub(super) enum CmEvent {
    /// Its join has ended well; the way leads to the group.
    Joined(sys::ibv_ah_attr),
    /// Its join has failed.
    Failed(DeviceError),
    /// Its device is being removed, and that waits until everything on it is closed.
    Removed,
}

/// An event channel of rdma_cm, non-blocking.
#[derive(Debug)]
pub(super) struct CmChannel {
    raw: NonNull<sys::rdma_event_channel>,
    fd: RawFd,
}

// SAFETY: librdmacm allows the calls on a channel from every thread.
unsafe impl Send for CmChannel {}

impl CmChannel {
    pub(super) fn create() -> Result<Self, DeviceError> {
        // SAFETY: it takes nothing.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw = ret::pointer("rdma_create_event_channel", raw)?;
        // SAFETY: the channel was just made; its descriptor is set once and for all.
        let fd = unsafe { raw.as_ref() }.fd;
        let channel = Self { raw, fd };
        set_nonblocking(&Borrowed(fd), "fcntl of an event channel")?;
        Ok(channel)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Takes one event and acknowledges it: the id's address, and what it tells.
    pub(super) fn event(&self) -> Option<(usize, CmEvent)> {
        loop {
            let mut event = null_mut();
            // SAFETY: the channel lives while `self` does; `event` outlives the call.
            let code = unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &mut event) };
            let event = NonNull::new(event).filter(|_| code == 0)?;
            // SAFETY: the event was just taken and not acknowledged, so it is there.
            let seen = unsafe { event.as_ref() };
            let (id, kind, status) = (seen.id.addr(), seen.event, seen.status);
            // The type decides: an error can come with status 0.
            let result = match kind {
                sys::rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN => {
                    // SAFETY: as above; the event of a UD id has this member.
                    Some(CmEvent::Joined(unsafe { seen.param.ud.ah_attr }))
                }
                sys::rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR => {
                    Some(CmEvent::Failed(refusal(status)))
                }
                sys::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => Some(CmEvent::Removed),
                other => {
                    tracing::debug!(
                        event = other,
                        status,
                        "an rdma_cm event without a meaning here"
                    );
                    None
                }
            };
            // SAFETY: the event was taken above, is acknowledged once and not used afterwards.
            unsafe { sys::rdma_ack_cm_event(event.as_ptr()) };
            if let Some(result) = result {
                return Some((id, result));
            }
        }
    }
}

/// What a failed join says: a status can be 0, and 524 has no name outside the kernel.
fn refusal(status: i32) -> DeviceError {
    const ENOTSUPP: i32 = 524;
    match status.saturating_abs() {
        ENOTSUPP => DeviceError::Unsupported("IPv6 groups through rdma_cm; use an IPv4 group"),
        0 => DeviceError::Os {
            call: "rdma_join_multicast (no reason given)",
            source: io::Error::from_raw_os_error(libc::EIO),
        },
        status => {
            let source = io::Error::from_raw_os_error(status);
            DeviceError::Os { call: "rdma_join_multicast", source }
        }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: its ids are destroyed before it: the device drops its groups first.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// A group that a queue pair is attached to, or is about to be.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) qp: QpId,
    pub(super) mgid: Gid,
    pub(super) state: State,
    route: Route,
}

/// How far a join is.
#[derive(Debug)]
pub(super) enum State {
    /// So many answers are owed.
    Joining { answers: usize },
    /// Attached; the group's handle, and its LID on InfiniBand.
    Joined { ah: AhId, mlid: u16 },
}

/// What makes the fabric send us the group's datagrams.
#[derive(Debug)]
enum Route {
    Cm(CmId),
    /// Closing it ends the membership.
    Socket(#[expect(dead_code, reason = "it holds the membership")] Socket),
}

impl Membership {
    /// Begins to join through rdma_cm. `local` is the address of the port, which also names the interface.
    pub(super) fn begin(
        channel: &CmChannel,
        qp: QpId,
        mgid: Gid,
        local: SocketAddr,
    ) -> Result<Self, DeviceError> {
        let mut id = CmId::create(channel)?;
        id.bind(local)?;
        id.join(group_address(mgid, local))?;
        Ok(Self { qp, mgid, state: State::Joining { answers: 1 }, route: Route::Cm(id) })
    }

    /// Becomes a member as a host.
    pub(super) fn of_host(qp: QpId, mgid: Gid, interface: u32) -> Result<Self, DeviceError> {
        let os = |call| move |source| DeviceError::Os { call, source };
        let domain = if mgid.ip().is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(os("socket"))?;
        match mgid.ip() {
            IpAddr::V4(group) => socket
                .join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
                .map_err(os("setsockopt(IP_ADD_MEMBERSHIP)"))?,
            IpAddr::V6(group) => socket
                .join_multicast_v6(&group, interface)
                .map_err(os("setsockopt(IPV6_ADD_MEMBERSHIP)"))?,
        }
        Ok(Self { qp, mgid, state: State::Joining { answers: 1 }, route: Route::Socket(socket) })
    }

    /// Whether this is the id at that address.
    pub(super) fn is(&self, id: usize) -> bool {
        matches!(&self.route, Route::Cm(cm) if cm.raw.as_ptr().addr() == id)
    }
}

/// An id of rdma_cm with at most one join. Dropping it leaves exactly what was joined.
#[derive(Debug)]
struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    joined: Option<SocketAddr>,
}

// SAFETY: librdmacm allows the calls on an id from every thread.
unsafe impl Send for CmId {}

impl CmId {
    fn create(channel: &CmChannel) -> Result<Self, DeviceError> {
        let mut id = null_mut();
        let space = sys::rdma_port_space::RDMA_PS_UDP;
        // SAFETY: the channel lives on: the device drops its ids first. `id` outlives the call.
        let code = unsafe { sys::rdma_create_id(channel.raw.as_ptr(), &mut id, null_mut(), space) };
        ret::minus_one("rdma_create_id", code)?;
        Ok(Self { raw: ret::pointer("rdma_create_id", id)?, joined: None })
    }

    /// Chooses the device and the interface. It must come before a join, and no route must be resolved.
    fn bind(&self, local: SocketAddr) -> Result<(), DeviceError> {
        let address = SockAddr::from(local);
        // SAFETY: the id lives while `self` does, and the address, which is not written to, outlives the call.
        let code =
            unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_ptr().cast_mut().cast()) };
        ret::minus_one("rdma_bind_addr", code)
    }

    fn join(&mut self, group: SocketAddr) -> Result<(), DeviceError> {
        let address = SockAddr::from(group);
        // SAFETY: as for `bind`; no context is given.
        let code = unsafe {
            sys::rdma_join_multicast(
                self.raw.as_ptr(),
                address.as_ptr().cast_mut().cast(),
                null_mut(),
            )
        };
        ret::minus_one("rdma_join_multicast", code)?;
        self.joined = Some(group);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), DeviceError> {
        let Some(group) = self.joined.take() else { return Ok(()) };
        let address = SockAddr::from(group);
        // SAFETY: as for `bind`. All events of the id that were taken are acknowledged, so that this does not wait.
        let code = unsafe {
            sys::rdma_leave_multicast(self.raw.as_ptr(), address.as_ptr().cast_mut().cast())
        };
        ret::minus_one("rdma_leave_multicast", code)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            // What did not come about is not there to be left.
            tracing::debug!(%error, "a group was not left");
        }
        // SAFETY: the id is destroyed here only, and all events that were taken are acknowledged, so that this does not
        // wait.
        let code = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if let Err(error) = ret::minus_one("rdma_destroy_id", code) {
            tracing::warn!(%error, "an rdma_cm id was not destroyed");
        }
    }
}

fn group_address(mgid: Gid, local: SocketAddr) -> SocketAddr {
    match (mgid.ip(), local) {
        (IpAddr::V6(group), SocketAddr::V6(local)) => {
            SocketAddrV6::new(group, 0, 0, local.scope_id()).into()
        }
        (group, _) => SocketAddr::new(group, 0),
    }
}

/// Attaches a queue pair to a group. Twice is as good as once.
pub(super) fn attach(qp: &Qp, mgid: Gid, mlid: u16) -> Result<(), DeviceError> {
    let raw = gid::to_raw(mgid);
    // SAFETY: the queue pair lives while `qp` does; `raw` outlives the call.
    let code = unsafe { sys::ibv_attach_mcast(qp.as_ptr(), &raw, mlid) };
    ret::returned("ibv_attach_mcast", code)
}

/// Detaches a queue pair from a group.
pub(super) fn detach(qp: &Qp, mgid: Gid, mlid: u16) -> Result<(), DeviceError> {
    let raw = gid::to_raw(mgid);
    // SAFETY: as for `attach`.
    let code = unsafe { sys::ibv_detach_mcast(qp.as_ptr(), &raw, mlid) };
    ret::returned("ibv_detach_mcast", code)
}
