//! Address handles: made by helper threads, since `ibv_create_ah` waits for the peer's address to be resolved, for a
//! second if it does not answer.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::libc;
use parking_lot::Mutex;
use qcast_proto::addr::Gid;
use rdma_sys as sys;
use slab::Slab;

use super::device::event_fd;
use super::pd::Pd;
use super::ret;
use crate::device::{AhId, DeviceError};

/// An address handle.
#[derive(Debug)]
pub(super) struct Ah {
    raw: NonNull<sys::ibv_ah>,
    #[expect(dead_code, reason = "it must outlive the handle")]
    pd: Arc<Pd>,
}

// SAFETY: libibverbs allows the calls on an AH from every thread.
unsafe impl Send for Ah {}

impl Ah {
    /// Makes a handle. May take a second.
    pub(super) fn create(pd: &Arc<Pd>, mut to: sys::ibv_ah_attr) -> Result<Self, DeviceError> {
        // SAFETY: the PD lives on, since the handle holds it; `to` outlives the call.
        let raw = unsafe { sys::ibv_create_ah(pd.as_ptr(), &mut to) };
        let raw = ret::pointer("ibv_create_ah", raw)?;
        Ok(Self { raw, pd: Arc::clone(pd) })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed here only, and no posted send uses it: the table counts them.
        let code = unsafe { sys::ibv_destroy_ah(self.raw.as_ptr()) };
        if code != libc::EIO
            && let Err(error) = ret::returned("ibv_destroy_ah", code)
        {
            tracing::warn!(%error, "an AH was not destroyed");
        }
    }
}

/// The address handles of a device.
pub(super) struct AhTable {
    slots: Slab<Slot>,
    limit: usize,
    resolver: Resolver,
}

struct Slot {
    state: State,
    /// Sends that use it and whose completions were not polled yet.
    in_use: usize,
    /// To be destroyed when nothing uses it any more.
    retired: bool,
    /// Those whose place it took while sends used them.
    replaced: Vec<Ah>,
}

impl Slot {
    fn new(state: State) -> Self {
        Self { state, in_use: 0, retired: false, replaced: Vec::new() }
    }
}

enum State {
    /// A helper is at it.
    Pending,
    Ready(Ah),
}

impl AhTable {
    pub(super) fn new(pd: &Arc<Pd>, limit: usize) -> Result<Self, DeviceError> {
        Ok(Self { slots: Slab::new(), limit, resolver: Resolver::new(pd)? })
    }

    /// The descriptor that becomes readable when a pending handle is ready or has failed.
    pub(super) fn fd(&self) -> RawFd {
        self.resolver.done.as_raw_fd()
    }

    /// Takes a handle that is ready.
    pub(super) fn insert(&mut self, ah: Ah) -> Result<AhId, DeviceError> {
        self.make_room()?;
        Ok(AhId(self.slots.insert(Slot::new(State::Ready(ah)))))
    }

    /// Begins to make a handle.
    pub(super) fn begin(&mut self, gid: Gid, to: sys::ibv_ah_attr) -> Result<AhId, DeviceError> {
        self.make_room()?;
        let slot = self.slots.vacant_key();
        self.resolver.resolve(Job { slot, gid, to })?;
        self.slots.insert(Slot::new(State::Pending));
        Ok(AhId(slot))
    }

    /// Puts another handle in the place of one. Sends that were posted with the old one keep it until they are polled.
    pub(super) fn replace(&mut self, id: AhId, ah: Ah) {
        let Some(slot) = self.slots.get_mut(id.0) else { return };
        let old = std::mem::replace(&mut slot.state, State::Ready(ah));
        if let (State::Ready(old), 1..) = (old, slot.in_use) {
            slot.replaced.push(old);
        }
    }

    fn make_room(&self) -> Result<(), DeviceError> {
        if self.slots.len() < self.limit {
            return Ok(());
        }
        Err(DeviceError::Exhausted { what: "address handles", limit: self.limit })
    }

    /// Takes the end of a pending handle.
    pub(super) fn poll(&mut self) -> Option<(AhId, Result<(), DeviceError>)> {
        loop {
            let Answer { slot, result } = self.resolver.answer()?;
            let Some(entry) = self.slots.get_mut(slot) else { continue };
            match result {
                // Destroyed in the meantime.
                _ if entry.retired => drop(self.slots.remove(slot)),
                Ok(ah) => {
                    entry.state = State::Ready(ah);
                    return Some((AhId(slot), Ok(())));
                }
                Err(error) => {
                    self.slots.remove(slot);
                    return Some((AhId(slot), Err(error)));
                }
            }
        }
    }

    /// The handle for a send.
    pub(super) fn usable(&self, id: AhId) -> Result<*mut sys::ibv_ah, DeviceError> {
        match self.slots.get(id.0) {
            Some(Slot { state: State::Ready(ah), retired: false, .. }) => Ok(ah.raw.as_ptr()),
            Some(Slot { state: State::Pending, retired: false, .. }) => Err(DeviceError::AhPending),
            _ => Err(DeviceError::NoSuch("address handle")),
        }
    }

    pub(super) fn posted(&mut self, id: AhId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.in_use += 1;
        }
    }

    pub(super) fn polled(&mut self, id: AhId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.in_use -= 1;
            if slot.in_use == 0 {
                slot.replaced.clear();
            }
            self.sweep(id);
        }
    }

    pub(super) fn destroy(&mut self, id: AhId) -> Result<(), DeviceError> {
        let slot = self.slots.get(id.0).filter(|slot| !slot.retired);
        if slot.ok_or(DeviceError::NoSuch("address handle"))?.in_use > 0 {
            return Err(DeviceError::Busy("an address handle that posted sends use"));
        }
        self.retire(id);
        Ok(())
    }

    /// Destroys a handle now, or when the last send that uses it has been polled.
    pub(super) fn retire(&mut self, id: AhId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.retired = true;
            self.sweep(id);
        }
    }

    fn sweep(&mut self, id: AhId) {
        let idle =
            |slot: &Slot| slot.retired && slot.in_use == 0 && matches!(slot.state, State::Ready(_));
        if self.slots.get(id.0).is_some_and(idle) {
            self.slots.remove(id.0);
        }
    }
}

/// Helper threads that make handles. They end when it is dropped, each after what it is at.
struct Resolver {
    pd: Arc<Pd>,
    jobs: Option<Sender<Job>>,
    queue: Arc<Mutex<Receiver<Job>>>,
    answers: Receiver<Answer>,
    answer_to: Sender<Answer>,
    done: Arc<OwnedFd>,
    helpers: usize,
    /// Jobs without an answer yet.
    open: usize,
}

struct Job {
    slot: usize,
    gid: Gid,
    to: sys::ibv_ah_attr,
}

struct Answer {
    slot: usize,
    result: Result<Ah, DeviceError>,
}

/// Addresses that are resolved at once: one that does not answer holds up a helper for a second.
const HELPERS: usize = 4;

impl Resolver {
    fn new(pd: &Arc<Pd>) -> Result<Self, DeviceError> {
        let (jobs, queue) = channel();
        let (answer_to, answers) = channel();
        Ok(Self {
            pd: Arc::clone(pd),
            jobs: Some(jobs),
            queue: Arc::new(Mutex::new(queue)),
            answers,
            answer_to,
            done: Arc::new(event_fd()?),
            helpers: 0,
            open: 0,
        })
    }

    fn resolve(&mut self, job: Job) -> Result<(), DeviceError> {
        if self.helpers < HELPERS && self.helpers <= self.open {
            let (pd, queue) = (Arc::clone(&self.pd), Arc::clone(&self.queue));
            let (answer_to, done) = (self.answer_to.clone(), Arc::clone(&self.done));
            std::thread::Builder::new()
                .name("qcast-ah".into())
                .spawn(move || help(&pd, &queue, &answer_to, &done))
                .map_err(|source| DeviceError::Os { call: "starting a thread", source })?;
            self.helpers += 1;
        }
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.open += 1;
        if sent { Ok(()) } else { Err(DeviceError::Unsupported("resolving addresses any more")) }
    }

    fn answer(&mut self) -> Option<Answer> {
        if self.open == 0 {
            return None;
        }
        let mut count = [0; 8];
        // Empty or not, what is there to be taken is in the channel.
        let _ = nix::unistd::read(self.done.as_ref(), &mut count);
        let answer = self.answers.try_recv().ok()?;
        self.open -= 1;
        Some(answer)
    }
}

fn help(pd: &Arc<Pd>, queue: &Mutex<Receiver<Job>>, answer_to: &Sender<Answer>, done: &OwnedFd) {
    loop {
        // The lock is held while waiting, so that one helper waits here and the others for the lock.
        let Ok(Job { slot, gid, to }) = queue.lock().recv() else { return };
        let result = Ah::create(pd, to).map_err(|error| match ret::errno(&error) {
            Some(
                libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EADDRNOTAVAIL,
            ) => DeviceError::Unresolved(gid),
            _ => error,
        });
        if answer_to.send(Answer { slot, result }).is_err() {
            return;
        }
        if let Err(error) = nix::unistd::write(done, &1_u64.to_ne_bytes()) {
            tracing::warn!(%error, "a resolved address could not be told");
        }
    }
}

impl fmt::Debug for AhTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AhTable").field("handles", &self.slots.len()).finish_non_exhaustive()
    }
}
