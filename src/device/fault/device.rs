//! The wrapper itself.

use std::collections::VecDeque;

use bytes::Bytes;
use qcast_proto::addr::{Gid, PKey, Qpn};
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::Instant;

use super::plan::{FaultPlan, Side};
use crate::device::agenda::Agenda;
use crate::device::buf::{GRH_BYTES, RecvBuf, SendBuf};
use crate::device::impair::{Channel, Fate, mix};
use crate::device::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, SendWr, Source, Sources, WcStatus,
};

/// A device with the faults that a [`FaultPlan`] asks for. See the [module](super).
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    plan: FaultPlan,
    now: Instant,
    incoming: Incoming,
    outgoing: Outgoing,
}

/// What is between the inner device's receives and its owner.
#[derive(Debug)]
struct Incoming {
    faulty: bool,
    channel: Channel,
    /// Datagrams that come later.
    held: Agenda<Completion>,
    /// Datagrams that come once more, as soon as there is a receive for them.
    twins: VecDeque<Twin>,
    /// Receives that the owner has posted and the inner device has not got.
    stock: Vec<RecvBuf>,
    /// Receives on their way from the stock to the inner device.
    feed: Vec<RecvBuf>,
    scratch: Vec<Completion>,
    drops: u64,
}

#[derive(Debug)]
struct Twin {
    at: Instant,
    qp: Option<QpId>,
    source: Source,
    payload: Bytes,
}

/// What is between the owner's sends and the inner device.
#[derive(Debug)]
struct Outgoing {
    faulty: bool,
    channel: Channel,
    /// Sends that leave later.
    held: Agenda<(QpId, SendWr)>,
    /// Sends to be posted once more when they complete: queue pair, mark, and where to.
    again: Vec<(QpId, u64, Qpn, u32)>,
    /// Completions that the inner device does not know of.
    done: VecDeque<Completion>,
    /// A send on its way to the inner device.
    one: VecDeque<SendWr>,
    drops: u64,
}

impl<D: Device> FaultDevice<D> {
    /// Puts the faults of `plan` around `inner`.
    pub fn new(inner: D, plan: FaultPlan) -> Self {
        let faulty = !plan.path.is_clear();
        let seed = endpoint_seed(plan.seed, &inner.port());
        Self {
            plan,
            now: Instant::ZERO,
            incoming: Incoming {
                faulty: faulty && plan.side != Side::Tx,
                channel: Channel::new(mix(seed, 0)),
                held: Agenda::new(),
                twins: VecDeque::new(),
                stock: Vec::new(),
                feed: Vec::new(),
                scratch: Vec::new(),
                drops: 0,
            },
            outgoing: Outgoing {
                faulty: faulty && plan.side != Side::Rx,
                channel: Channel::new(mix(seed, 1)),
                held: Agenda::new(),
                again: Vec::new(),
                done: VecDeque::new(),
                one: VecDeque::new(),
                drops: 0,
            },
            inner,
        }
    }

    /// The plan.
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// The device within.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device within. What is posted or taken there passes the faults by.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Gives the inner device as many of the stocked receives as it may have.
    fn feed(&mut self) {
        let Incoming { stock, feed, .. } = &mut self.incoming;
        let most = self.plan.starve.unwrap_or(usize::MAX);
        let count = most.saturating_sub(self.inner.posted_recvs()).min(stock.len());
        if count == 0 {
            return;
        }
        feed.extend(stock.drain(stock.len() - count..));
        // What a device refuses now is offered again in the next turn.
        if let Err(error) = self.inner.post_recv(feed) {
            tracing::debug!(%error, "receives of dropped datagrams could not be posted");
        }
        stock.append(feed);
    }

    /// A completion of the inner device goes to `out`, or is held, or is over.
    fn pass_on(&mut self, completion: Completion, out: &mut Vec<Completion>) {
        match completion {
            Completion::Recv { qp, buf, source, status: WcStatus::Success }
                if self.incoming.faulty =>
            {
                self.incoming.receive(&self.plan, self.now, (qp, source, buf), out);
            }
            Completion::Send { qp, ah, token, buf, status: WcStatus::Success } => {
                match self.outgoing.take_again(qp, token) {
                    Some((qpn, qkey)) => {
                        let wr = SendWr { ah, qpn, qkey, token, buf };
                        self.outgoing.held.push(self.now, (qp, wr));
                    }
                    None => {
                        out.push(Completion::Send { qp, ah, token, buf, status: WcStatus::Success })
                    }
                }
            }
            other => out.push(other),
        }
    }

    /// Posts the held sends that are due.
    fn post_due(&mut self) {
        while let Some((_, _, (qp, wr))) = self.outgoing.held.pop_due(self.now) {
            self.outgoing.one.push_back(wr);
            let posted = self.inner.post_send(qp, &mut self.outgoing.one);
            let Some(wr) = self.outgoing.one.pop_front() else { continue };
            if posted.is_ok() {
                // The queue is full: sends that complete make room.
                self.outgoing.held.push(self.now + FULL_QUEUE_RETRY, (qp, wr));
                break;
            }
            self.outgoing.flush(qp, wr);
        }
    }
}

impl Incoming {
    fn receive(
        &mut self,
        plan: &FaultPlan,
        now: Instant,
        (qp, source, mut buf): (Option<QpId>, Source, RecvBuf),
        out: &mut Vec<Completion>,
    ) {
        let (at, again) = match self.channel.pass(&plan.path, now) {
            Fate::Lost | Fate::Corrupted => {
                self.drops += 1;
                self.stock.push(buf);
                return;
            }
            Fate::Arrives { at, again, mangled } => {
                if mangled {
                    mangle(&mut self.channel, &mut buf);
                }
                (at, again)
            }
        };
        if let Some(at) = again.filter(|_| self.twins.len() < MAX_TWINS) {
            let payload = Bytes::copy_from_slice(buf.payload());
            self.twins.push_back(Twin { at, qp, source, payload });
        }
        let completion = Completion::Recv { qp, buf, source, status: WcStatus::Success };
        if at > now {
            self.held.push(at, completion);
        } else {
            out.push(completion);
        }
    }

    /// Delivers second copies into receives that are being posted.
    fn deliver_twins(&mut self, bufs: &mut Vec<RecvBuf>) {
        while !self.twins.is_empty() {
            let Some(mut buf) = bufs.pop() else { break };
            let Some(Twin { at, qp, source, payload }) = self.twins.pop_front() else { break };
            if buf.capacity() == 0 {
                buf.share(payload);
            } else if !buf.fill(&payload) {
                bufs.push(buf);
                continue;
            }
            self.held.push(at, Completion::Recv { qp, buf, source, status: WcStatus::Success });
        }
    }
}

impl Outgoing {
    /// Whether a send that completed is to be posted once more, and where to.
    fn take_again(&mut self, qp: QpId, token: u64) -> Option<(Qpn, u32)> {
        let place = self.again.iter().position(|&(q, t, ..)| q == qp && t == token)?;
        let (_, _, qpn, qkey) = self.again.swap_remove(place);
        Some((qpn, qkey))
    }

    fn flush(&mut self, qp: QpId, wr: SendWr) {
        let SendWr { ah, token, buf, .. } = wr;
        let status = WcStatus::WrFlushErr;
        self.done.push_back(Completion::Send { qp, ah, token, buf, status });
    }

    /// Ends what is held for a queue pair that will send no more.
    fn flush_all(&mut self, qp: QpId) {
        self.again.retain(|&(other, ..)| other != qp);
        for (qp, wr) in self.held.extract(|&(other, _)| other == qp) {
            self.flush(qp, wr);
        }
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn caps(&self) -> &DeviceCaps {
        self.inner.caps()
    }

    fn port(&self) -> PortInfo {
        self.inner.port()
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.inner.advance(now);
        self.post_due();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let held = [self.incoming.held.next_at(), self.outgoing.held.next_at()];
        held.into_iter().chain([self.inner.next_deadline()]).flatten().min()
    }

    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError> {
        self.inner.alloc_send(count)
    }

    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        self.inner.alloc_recv(count)
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        self.inner.create_qp()
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        self.inner.qpn(qp)
    }

    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
        self.inner.modify_qp(qp, attrs)?;
        if matches!(attrs.state(), Some(QpState::Reset | QpState::Err)) {
            self.outgoing.flush_all(qp);
        }
        Ok(())
    }

    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError> {
        self.inner.query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        self.inner.destroy_qp(qp)?;
        self.outgoing.flush_all(qp);
        Ok(())
    }

    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.inner.join(qp, mgid)
    }

    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.inner.leave(qp, mgid)
    }

    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        self.inner.create_ah(to)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError> {
        if self.outgoing.held.iter().any(|(_, wr)| wr.ah == ah) {
            return Err(DeviceError::Busy("the address handle"));
        }
        self.inner.destroy_ah(ah)
    }

    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        self.incoming.deliver_twins(bufs);
        if self.plan.starve.is_none() {
            return self.inner.post_recv(bufs);
        }
        let room = self.inner.caps().max_srq_wr.saturating_sub(self.posted_recvs());
        let keep = bufs.len().saturating_sub(room);
        self.incoming.stock.extend(bufs.drain(keep..));
        self.feed();
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        if !self.outgoing.faulty {
            return self.inner.post_send(qp, sends);
        }
        let state = self.inner.query_qp(qp)?.state;
        if !state.sends() {
            return Err(DeviceError::NotReady(state));
        }
        let (most, max) = (self.inner.caps().max_send_wr, self.inner.port().mtu);
        while let Some(wr) = sends.pop_front() {
            let out = &mut self.outgoing;
            if out.held.len() >= most {
                sends.push_front(wr);
                break;
            }
            let len = wr.buf.payload().len();
            if len > max {
                sends.push_front(wr);
                return Err(DeviceError::TooLarge { len, max });
            }
            let again = match out.channel.pass(&self.plan.path, self.now) {
                Fate::Lost | Fate::Corrupted => {
                    let (status, SendWr { ah, token, buf, .. }) = (WcStatus::Success, wr);
                    out.done.push_back(Completion::Send { qp, ah, token, buf, status });
                    out.drops += 1;
                    continue;
                }
                Fate::Arrives { at, again, .. } => {
                    let again = again.map(|_| (qp, wr.token, wr.qpn, wr.qkey));
                    if at > self.now {
                        out.held.push(at, (qp, wr));
                        out.again.extend(again);
                        continue;
                    }
                    again
                }
            };
            out.one.push_back(wr);
            let posted = self.inner.post_send(qp, &mut out.one);
            if let Some(wr) = out.one.pop_front() {
                sends.push_front(wr);
                return posted;
            }
            out.again.extend(again);
        }
        Ok(())
    }

    fn arm_srq_limit(&mut self, limit: usize) -> Result<(), DeviceError> {
        self.inner.arm_srq_limit(limit)
    }

    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        let end = out.len().saturating_add(budget);
        let room = |out: &Vec<Completion>| end.saturating_sub(out.len());
        while room(out) > 0
            && let Some(completion) = self.outgoing.done.pop_front()
        {
            out.push(completion);
        }
        while room(out) > 0
            && let Some((_, _, completion)) = self.incoming.held.pop_due(self.now)
        {
            out.push(completion);
        }
        if !self.incoming.faulty && self.outgoing.again.is_empty() {
            self.inner.poll(out, room(out));
        } else {
            // Ends: what is dropped is not posted again before the loop is over.
            while room(out) > 0 {
                let mut scratch = std::mem::take(&mut self.incoming.scratch);
                let asked = room(out);
                self.inner.poll(&mut scratch, asked);
                let full = scratch.len() == asked;
                for completion in scratch.drain(..) {
                    self.pass_on(completion, out);
                }
                self.incoming.scratch = scratch;
                if !full {
                    break;
                }
            }
        }
        if !self.incoming.stock.is_empty() {
            self.feed();
        }
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.inner.poll_event()
    }

    fn pkey(&self) -> PKey {
        self.inner.pkey()
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.inner.counters();
        counters.received = counters.received.saturating_sub(self.incoming.drops);
        counters.injected_drops += self.incoming.drops + self.outgoing.drops;
        counters
    }

    fn posted_recvs(&self) -> usize {
        self.inner.posted_recvs() + self.incoming.stock.len()
    }

    fn sources(&self) -> Sources<'_> {
        self.inner.sources()
    }

    fn arm(&mut self) -> Armed {
        let due = self.incoming.held.next_at().is_some_and(|at| at <= self.now);
        if due || !self.outgoing.done.is_empty() { Armed::Again } else { self.inner.arm() }
    }
}

/// A seed for this endpoint: others that were given the same number draw other ones.
fn endpoint_seed(seed: u64, port: &PortInfo) -> u64 {
    let gid = u128::from_be_bytes(port.gid.to_bytes());
    let words = [(gid >> 64) as u64, gid as u64, u64::from(port.udp_port)];
    words.into_iter().fold(seed, mix)
}

fn mangle(channel: &mut Channel, buf: &mut RecvBuf) {
    let len = buf.payload().len();
    if buf.capacity() > 0 {
        let left = channel.mangle(&mut buf.slot_mut()[GRH_BYTES..GRH_BYTES + len]);
        buf.set_len(left);
    } else {
        let mut bytes = buf.payload().to_vec();
        let left = channel.mangle(&mut bytes);
        bytes.truncate(left);
        buf.share(bytes.into());
    }
}

/// Second copies that may wait for a receive; beyond it datagrams come only once.
const MAX_TWINS: usize = 64;

/// How soon a send that was held is tried again when the queue is full.
const FULL_QUEUE_RETRY: std::time::Duration = std::time::Duration::from_micros(50);
