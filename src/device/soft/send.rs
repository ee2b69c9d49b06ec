//! The send path.
//!
//! Consecutive sends to one destination whose datagrams have one size (the last may be shorter) go through the kernel
//! as one packet of up to 64 KiB that is cut into datagrams at the last moment (UDP GSO), or on loopback
//! not at all. Others go by `sendmmsg`. The kernel gives the datagrams of a batch the IPv4 identifications
//! 0, 1, 2, …, and a single one 0, so the ICRC of each is computed for its place.

use std::collections::VecDeque;
use std::io::IoSlice;

use nix::errno::Errno;
use qcast_proto::addr::{PKey, Psn};
use qcast_proto::qp::QpState;
use qcast_proto::time::Duration;
use qcast_proto::wire::roce::{self, HEADERS_LEN, UdHeader};

use super::SoftDevice;
use super::qp::{AhTable, Qp};
use super::socket::{self, MANY, SEGMENTED_BYTES, SEGMENTS};
use crate::device::{AhId, Completion, DeviceError, DeviceEvent, QpId, SendBuf, SendWr, WcStatus};

/// Whether the kernel is asked to cut batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gso {
    On,
    /// It refused once; datagrams go one by one until that has been seen to work.
    Doubted,
    Off,
}

/// What goes out with one system call.
#[derive(Clone, Copy, Debug)]
enum Batch {
    /// This many sends, to be cut by the kernel into `segment` bytes each.
    Segmented { count: usize, segment: u16 },
    /// This many sends, each its own datagram.
    Singles { count: usize },
}

impl SoftDevice {
    pub(super) fn send(
        &mut self,
        id: QpId,
        sends: &mut VecDeque<SendWr>,
    ) -> Result<(), DeviceError> {
        let qp = self.qps.get_mut(id)?;
        if !qp.state.sends() {
            return Err(DeviceError::NotReady(qp.state));
        }
        if qp.fault.is_some() && !sends.is_empty() {
            self.fail(id, sends);
            return Ok(());
        }
        let mut interrupted = 0;
        while let Some(batch) = self.plan(id, sends)? {
            match self.transmit(id, sends, batch) {
                Ok(sent) => {
                    self.sent(id, sends, sent);
                    interrupted = 0;
                }
                // The kernel has no room now. Nothing of this batch went out.
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    self.retry_at = Some(self.now + RETRY_AFTER);
                    break;
                }
                // A cable that cannot cut, a route whose MTU is too small, an old kernel.
                Err(Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE)
                    if matches!(batch, Batch::Segmented { .. }) =>
                {
                    self.gso = Gso::Doubted;
                }
                // Errors of datagrams sent before, told by ICMP, come up here: they say nothing of this one.
                Err(Errno::EINTR | Errno::ECONNREFUSED | Errno::EHOSTUNREACH)
                    if interrupted < INTERRUPTIONS =>
                {
                    interrupted += 1;
                }
                Err(error) => {
                    if self.gso == Gso::Doubted {
                        self.gso = Gso::On;
                    }
                    return Err(DeviceError::Os { call: "sendmsg", source: error.into() });
                }
            }
        }
        Ok(())
    }

    /// Chooses what goes out next: `None` if there is nothing, or no room.
    fn plan(&self, id: QpId, sends: &VecDeque<SendWr>) -> Result<Option<Batch>, DeviceError> {
        let room = self.config.send_depth.saturating_sub(self.qps.get(id)?.unpolled);
        let Some(first) = sends.front().filter(|_| room > 0) else { return Ok(None) };
        let size = self.check(first)?;
        if self.gso == Gso::On {
            let (mut count, mut bytes) = (1, size);
            for next in sends.iter().skip(1).take(SEGMENTS.min(room) - 1) {
                let Ok(len) = self.check(next) else { break };
                if next.ah != first.ah || len > size || bytes + len > SEGMENTED_BYTES {
                    break;
                }
                count += 1;
                bytes += len;
                if len < size {
                    break;
                }
            }
            if count > 1 {
                let segment = u16::try_from(size).expect("a datagram is smaller than 64 KiB");
                return Ok(Some(Batch::Segmented { count, segment }));
            }
        }
        let mut count = 1;
        for (at, next) in sends.iter().enumerate().skip(1).take(MANY.min(room) - 1) {
            // What could go as a batch with the one after it is left for that.
            let batched = || {
                let (Some(after), Ok(len)) = (sends.get(at + 1), self.check(next)) else {
                    return false;
                };
                after.ah == next.ah && roce::datagram_len(after.buf.payload().len()) <= len
            };
            if self.check(next).is_err() || (self.gso == Gso::On && batched()) {
                break;
            }
            count += 1;
        }
        Ok(Some(Batch::Singles { count }))
    }

    /// The size of a send's datagram, if it can be sent.
    fn check(&self, send: &SendWr) -> Result<usize, DeviceError> {
        self.ahs.get(send.ah)?;
        let len = send.buf.payload().len();
        if len > self.mtu {
            return Err(DeviceError::TooLarge { len, max: self.mtu });
        }
        Ok(roce::datagram_len(len))
    }

    /// Writes the headers of a batch and hands it to the kernel; how many went out.
    fn transmit(
        &self,
        id: QpId,
        sends: &mut VecDeque<SendWr>,
        batch: Batch,
    ) -> Result<usize, Errno> {
        let qp = self.qps.get(id).map_err(|_| Errno::EINVAL)?;
        let (count, segmented) = match batch {
            Batch::Segmented { count, .. } => (count, true),
            Batch::Singles { count } => (count, false),
        };
        for (at, send) in sends.iter_mut().take(count).enumerate() {
            let place = u16::try_from(at).expect("a batch is small");
            seal(qp, &self.ahs, send, place, if segmented { place } else { 0 });
        }
        let socket = &self.unicast.socket;
        let first = sends.front().ok_or(Errno::EINVAL)?;
        let ah = |id: AhId| self.ahs.get(id).map_err(|_| Errno::EINVAL);
        let result = match batch {
            Batch::Segmented { segment, .. } => {
                let mut iov = [IoSlice::new(&[]); SEGMENTS];
                for (slot, send) in iov.iter_mut().zip(sends.iter().take(count)) {
                    *slot = IoSlice::new(sealed(&send.buf));
                }
                socket::send_segmented(socket, &iov[..count], segment, &ah(first.ah)?.raw)
                    .map(|()| count)
            }
            Batch::Singles { count: 1 } => {
                socket::send_one(socket, sealed(&first.buf), &ah(first.ah)?.raw).map(|()| 1)
            }
            Batch::Singles { count } => {
                let mut iov = [[IoSlice::new(&[])]; MANY];
                let mut to = [None; MANY];
                for ((slot, to), send) in iov.iter_mut().zip(&mut to).zip(sends.iter().take(count))
                {
                    *slot = [IoSlice::new(sealed(&send.buf))];
                    *to = Some(ah(send.ah)?.raw);
                }
                socket::send_many(socket, &iov[..count], &to[..count])
            }
        };
        result.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }

    /// Completes the first `count` sends.
    fn sent(&mut self, id: QpId, sends: &mut VecDeque<SendWr>, count: usize) {
        if self.gso == Gso::Doubted {
            tracing::info!(
                device = %self.caps.name,
                "the kernel does not segment UDP here: datagrams are handed to it one by one"
            );
            self.gso = Gso::Off;
        }
        self.inbox.counters.sent += count as u64;
        if let Ok(qp) = self.qps.get_mut(id) {
            qp.psn = advanced(qp.psn, count as u32);
        }
        for send in sends.drain(..count) {
            self.complete(id, send, WcStatus::Success);
        }
    }

    /// Fails the front send and flushes the others, as [`SoftDevice::fail_next_send`] asked.
    fn fail(&mut self, id: QpId, sends: &mut VecDeque<SendWr>) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        let Some((mut status, state)) = qp.fault.take() else { return };
        qp.state = state;
        for send in sends.drain(..) {
            self.complete(id, send, status);
            status = WcStatus::WrFlushErr;
        }
    }

    fn complete(&mut self, id: QpId, send: SendWr, status: WcStatus) {
        if let Ok(qp) = self.qps.get_mut(id) {
            qp.unpolled += 1;
        }
        self.ahs.posted(send.ah, 1);
        self.inbox.done.push_back(Completion::Send {
            qp: id,
            ah: send.ah,
            token: send.token,
            buf: send.buf,
            status,
        });
    }

    /// Moves a queue pair to SQE or ERR as hardware would by itself: for tests of recovery. With `told` a
    /// [`DeviceEvent::QpFault`] follows; without, only a query or a refused send shows it, as on Soft-RoCE.
    ///
    /// # Errors
    /// There is no such queue pair. Nothing was changed.
    pub fn fault_qp(&mut self, id: QpId, state: QpState, told: bool) -> Result<(), DeviceError> {
        self.qps.get_mut(id)?.state = state;
        if told {
            self.inbox.events.push_back(DeviceEvent::QpFault { qp: id, state });
        }
        Ok(())
    }

    /// Makes the next send of a queue pair end with `status`, those posted behind it be flushed, and the queue pair go
    /// to `state` (SQE on hardware, ERR on Soft-RoCE), with no event: for tests of recovery.
    ///
    /// # Errors
    /// There is no such queue pair. Nothing was changed.
    pub fn fail_next_send(
        &mut self,
        id: QpId,
        status: WcStatus,
        state: QpState,
    ) -> Result<(), DeviceError> {
        self.qps.get_mut(id)?.fault = Some((status, state));
        Ok(())
    }
}

/// Writes headers and ICRC around a send's payload.
#[inline]
fn seal(qp: &Qp, ahs: &AhTable, send: &mut SendWr, place: u16, ip_id: u16) {
    let Ok(ah) = ahs.get(send.ah) else { return };
    let header = UdHeader {
        solicited: false,
        immediate: false,
        pkey: PKey::DEFAULT,
        dest_qpn: send.qpn,
        psn: advanced(qp.psn, place.into()),
        // The specification's rule; Soft-RoCE sends such a key as it is.
        qkey: if send.qkey >> 31 == 1 { qp.qkey } else { send.qkey },
        src_qpn: qp.number,
    };
    let payload = send.buf.payload().len();
    let trailer = roce::datagram_len(payload) - HEADERS_LEN - payload;
    roce::seal(send.buf.datagram_mut(HEADERS_LEN, trailer), payload, &header, &ah.flow, ip_id);
}

/// The datagram that [`seal`] made.
#[inline]
fn sealed(buf: &SendBuf) -> &[u8] {
    let payload = buf.payload().len();
    buf.datagram(HEADERS_LEN, roce::datagram_len(payload) - HEADERS_LEN - payload)
}

fn advanced(psn: Psn, by: u32) -> Psn {
    Psn::new(psn.get().wrapping_add(by))
}

/// When to try again after the kernel had no room: the time that 1 MiB takes at 100 Gbit/s.
const RETRY_AFTER: Duration = Duration::from_micros(100);

/// How often one send is tried again after an error that was not its own.
const INTERRUPTIONS: u32 = 4;
