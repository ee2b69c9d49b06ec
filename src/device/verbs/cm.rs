//! rdma_cm: its event channel, its ids, and the devices that it opened.
//!
//! librdmacm opens each device once for the whole process and keeps it open. A queue pair that it makes must be on that
//! context, with all that the queue pair uses; so a device whose queue pairs rdma_cm makes is that very context, which
//! several devices of one process then share ([`Context::of_rdma_cm`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::raw::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Weak};

use nix::libc;
use parking_lot::Mutex;
use rdma_sys as sys;
use socket2::SockAddr;

use super::device::{Borrowed, Context, set_nonblocking};
use super::error::VerbsOpenError;
use super::mcast::GroupAddress;
use super::pd::Pd;
use super::ret;
use crate::device::DeviceError;

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

/// An id of rdma_cm with at most one queue pair or one join. Dropping it leaves exactly what was joined; its queue pair is
/// destroyed before, by [`Qp`](super::qp::Qp).
#[derive(Debug)]
pub(super) struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    joined: Option<GroupAddress>,
    /// Its device is gone, and nothing that matters is on rdma_cm's own context of it.
    is_orphan: bool,
}

// SAFETY: librdmacm allows the calls on an id from every thread.
unsafe impl Send for CmId {}

impl CmId {
    pub(super) fn create(channel: &CmChannel) -> Result<Self, DeviceError> {
        let mut id = null_mut();
        let space = sys::rdma_port_space::RDMA_PS_UDP;
        // SAFETY: the channel lives on: the device drops its ids first. `id` outlives the call.
        let code = unsafe { sys::rdma_create_id(channel.raw.as_ptr(), &mut id, null_mut(), space) };
        ret::minus_one("rdma_create_id", code)?;
        Ok(Self { raw: ret::pointer("rdma_create_id", id)?, joined: None, is_orphan: false })
    }

    /// The id's address, by which events name it.
    pub(super) fn addr(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Chooses the device and the interface. It must come before a join, and no route must be resolved.
    pub(super) fn bind(&self, local: SocketAddr) -> Result<(), DeviceError> {
        let address = SockAddr::from(local);
        // SAFETY: the id lives while `self` does, and the address, which is not written to, outlives the call.
        let code =
            unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_ptr().cast_mut().cast()) };
        ret::minus_one("rdma_bind_addr", code)
    }

    /// Makes a queue pair, which rdma_cm walks to RTS with its own key. The id is bound, and on `pd`'s context.
    ///
    /// The caller destroys it, and then says so by [`CmId::forget_qp`].
    pub(super) fn create_qp(
        &self,
        pd: &Pd,
        init: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, DeviceError> {
        // SAFETY: the id lives while `self` does; PD, and the queues that `init` names, live on as the caller, who holds
        // them with the queue pair, sees to. `init` outlives the call.
        let code = unsafe { sys::rdma_create_qp(self.raw.as_ptr(), pd.as_ptr(), init) };
        ret::minus_one("rdma_create_qp", code)?;
        // SAFETY: the id is there; the call has set the field.
        ret::pointer("rdma_create_qp", unsafe { (*self.raw.as_ptr()).qp })
    }

    /// The port that it was bound to.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: the id lives while `self` does; the field was set by the bind.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// Its device is gone: when this is dropped, rdma_cm's own context of the device is let go too.
    pub(super) fn orphan(&mut self) {
        self.is_orphan = true;
    }

    /// Its queue pair was destroyed. (`rdma_destroy_qp` would do both, but keeps to itself that the kernel refused.)
    pub(super) fn forget_qp(&mut self) {
        // SAFETY: the id lives while `self` does. librdmacm reads the field only in calls on the id, and there is none now.
        unsafe { (*self.raw.as_ptr()).qp = null_mut() };
    }

    pub(super) fn join(&mut self, group: GroupAddress) -> Result<(), DeviceError> {
        // SAFETY: as for `bind`; no context is given.
        let code = unsafe {
            sys::rdma_join_multicast(self.raw.as_ptr(), group.as_ptr().cast_mut(), null_mut())
        };
        ret::minus_one("rdma_join_multicast", code)?;
        self.joined = Some(group);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), DeviceError> {
        let Some(group) = self.joined.take() else { return Ok(()) };
        // SAFETY: as for `bind`. All events of the id that were taken are acknowledged, so that this does not wait.
        let code =
            unsafe { sys::rdma_leave_multicast(self.raw.as_ptr(), group.as_ptr().cast_mut()) };
        ret::minus_one("rdma_leave_multicast", code)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            // What did not come about is not there to be left.
            tracing::debug!(%error, "a group was not left");
        }
        // SAFETY: the id lives until it is destroyed below; the field was set when it was bound.
        let context = NonNull::new(unsafe { self.raw.as_ref() }.verbs);
        if let (true, Some(context)) = (self.is_orphan, context)
            && !is_in_use(context)
        {
            sever(context);
        }
        // SAFETY: the id is destroyed here only, and all events that were taken are acknowledged, so that this does not
        // wait.
        let code = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if let Err(error) = ret::minus_one("rdma_destroy_id", code) {
            tracing::warn!(%error, "an rdma_cm id was not destroyed");
        }
    }
}

/// The devices that rdma_cm has opened, as a list that keeps them.
#[derive(Debug)]
pub(super) struct CmDevices(NonNull<*mut sys::ibv_context>);

// SAFETY: the list is only read, and freed by its one owner; librdmacm allows that from every thread.
unsafe impl Send for CmDevices {}
// SAFETY: as above.
unsafe impl Sync for CmDevices {}

impl CmDevices {
    fn list() -> Result<(Self, Vec<NonNull<sys::ibv_context>>), DeviceError> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        let raw = unsafe { sys::rdma_get_devices(&mut count) };
        let list = Self(ret::pointer("rdma_get_devices", raw)?);
        let count = usize::try_from(count).unwrap_or(0);
        let contexts = (0..count).filter_map(|at| {
            // SAFETY: the list has as many entries as was said.
            NonNull::new(unsafe { *list.0.as_ptr().add(at) })
        });
        let contexts = contexts.collect();
        Ok((list, contexts))
    }
}

impl Drop for CmDevices {
    fn drop(&mut self) {
        // SAFETY: the list came from rdma_get_devices and is freed here only.
        unsafe { sys::rdma_free_devices(self.0.as_ptr()) };
    }
}

/// Takes the kernel's device out from under a context that librdmacm has opened and goes on to keep.
///
/// It opens each device once, and closes one that is gone only when it next looks for another; whoever takes the device
/// away waits for that. So the context's descriptors are made to stand for nothing. The context itself stays whole, and
/// librdmacm can close it when it likes. The caller holds an id or a list that keeps the context from being closed now.
pub(super) fn sever(context: NonNull<sys::ibv_context>) {
    let nothing = match File::open("/dev/null") {
        Ok(nothing) => nothing,
        Err(error) => return tracing::warn!(%error, "rdma_cm keeps a device that is gone"),
    };
    // SAFETY: the context is not closed, as the caller sees to; both fields are set when it is opened, and never changed.
    let fds = unsafe { [context.as_ref().cmd_fd, context.as_ref().async_fd] };
    for fd in fds {
        // SAFETY: the descriptor is the context's, which is not closed, so it is nobody else's; what it stood for is a
        // device that is gone, of which nothing is used any more. No memory of ours is touched.
        let code = unsafe { libc::dup3(nothing.as_raw_fd(), fd, libc::O_CLOEXEC) };
        if code < 0 {
            let error = io::Error::last_os_error();
            tracing::warn!(%error, "rdma_cm keeps a device that is gone");
        }
    }
}

/// Whether a device of this process is on this context.
fn is_in_use(context: NonNull<sys::ibv_context>) -> bool {
    let in_use = IN_USE.lock();
    in_use.values().filter_map(Weak::upgrade).any(|known| known.as_ptr() == context.as_ptr())
}

/// The contexts of rdma_cm that are in use, by the names of their devices.
static IN_USE: Mutex<BTreeMap<String, Weak<Context>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// The context that rdma_cm has of the device of this name, the same for all who ask for it.
    pub(super) fn of_rdma_cm(name: &str) -> Result<Arc<Self>, VerbsOpenError> {
        // Whether there is such a device at all is told best by libibverbs.
        let (_list, device) = Self::find(name)?;
        let mut in_use = IN_USE.lock();
        let known = in_use.get(name).and_then(Weak::upgrade);
        // Not one whose device was taken away, though there is another of its name now.
        if let Some(context) = known.filter(|context| context.is_listed()) {
            return Ok(context);
        }
        let failed = |source| VerbsOpenError::Open { name: name.into(), source };
        let (list, contexts) = CmDevices::list().map_err(failed)?;
        let found = contexts.into_iter().find(|raw| Self::device_name(*raw) == name);
        let Some(raw) = found else {
            return Err(failed(DeviceError::NoSuch(
                "device of rdma_cm (see /dev/infiniband/rdma_cm)",
            )));
        };
        let context = Arc::new(Self::kept_by(raw, device, list));
        in_use.insert(name.into(), Arc::downgrade(&context));
        Ok(context)
    }
}
