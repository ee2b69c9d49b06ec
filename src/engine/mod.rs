//! Joins one device and one protocol node.
//!
//! [`Engine::turn`] is the whole of it: completions in, protocol, sends out, in bounded steps, at a
//! time that the caller gives. The runtime calls it from a thread or for the application; tests call
//! it in virtual time.

mod ah_cache;
pub(crate) mod control;
mod drain;
pub(crate) mod event;
pub(crate) mod feed;
mod group;
mod handles;
pub mod journal;
pub(crate) mod lease;
mod leave;
pub(crate) mod loss;
pub(crate) mod members;
pub(crate) mod outlet;
mod recovery;
mod repair_times;
mod signs;
#[cfg(test)]
mod tests;
mod trouble;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use qcast_proto::addr::{PeerAddr, Qpn};
use qcast_proto::buf::{RxFrame, TxFrame};
use qcast_proto::node::{
    FrameToken, GroupCounters, GroupId, Node, NodeConfig, PublisherId, SubscriberId, To,
};
use qcast_proto::time::{Duration, Instant};

use crate::device::{
    AhId, Armed, Completion, Device, DeviceError, PortCounters, QpId, RecvBuf, SendBuf, SendWr,
    WcStatus,
};
pub use ah_cache::AhStats;
use ah_cache::{AhCache, Lookup};
use event::NodeEvent;
use feed::{Feed, FeedQueue};
use group::{EngineGroup, Joining};
pub(crate) use group::{GroupSetup, JoinFailure, JoinOutcome};
use handles::{Publisher, Subscriber};
use journal::Journal;
use lease::{Lease, RecvPool};
use leave::Leaving;
use loss::{Absence, Reopen};
use members::MemberFeeds;
pub use recovery::RecoveryStats;
pub use repair_times::RepairTimes;
use trouble::{KeyWatch, PortWatch};
use waiting::{Waiter, Waiting};

/// How an engine is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The node.
    pub node: NodeConfig,
    /// Seed of the node's random numbers.
    pub seed: u64,
    /// Receives that are posted at most.
    pub srq_depth: usize,
    /// Address handles kept at most.
    pub max_ah: usize,
    /// Control frames in flight at once: heartbeats, statuses, requests. Memory: as many path MTUs.
    pub control_frames: usize,
}

impl EngineConfig {
    /// An engine for `node` with the default bounds.
    pub fn new(node: NodeConfig, seed: u64) -> Self {
        Self { node, seed, srq_depth: 4096, max_ah: 1024, control_frames: 64 }
    }
}

/// What a turn says.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Whether there is more to do at once: the turn ended because its budget did.
    pub more: bool,
    /// Whether it brought something for a subscriber.
    pub handed: bool,
    /// When the next turn is due, if nothing happens before.
    pub next: Option<Instant>,
}

/// One node on one device. See the [module](self).
pub struct Engine {
    device: Box<dyn Device>,
    node: Node<SendBuf, Lease>,
    recv: RecvPool,
    ah: AhCache,
    groups: BTreeMap<GroupId, EngineGroup>,
    joining: Vec<Joining>,
    control: control::Control,
    joined: Vec<(u64, JoinOutcome)>,
    leaving: Leaving,
    /// Groups to be joined anew.
    rejoining: Vec<GroupId>,
    publishers: BTreeMap<PublisherId, Publisher>,
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    /// Frames for peers whose address is being resolved.
    waiting: Waiting,
    completions: Vec<Completion>,
    /// Tasks to be woken after the turn.
    wakers: Vec<Waker>,
    events: Feed<NodeEvent>,
    member_feeds: MemberFeeds,
    freed: Vec<SendBuf>,
    next_ticket: u64,
    drops_seen: u64,
    reported: Instant,
    repair_times: RepairTimes,
    recovery: RecoveryStats,
    /// Sends that were flushed, to be posted again.
    flushed: Vec<(GroupId, SendWr)>,
    max_frame: usize,
    srq_depth: usize,
    max_ah: usize,
    journal: Journal,
    watch: PortWatch,
    keys: KeyWatch,
    /// Devices that the node had, placeholders included.
    devices: u64,
    /// The counters of those before this one.
    counters_before: PortCounters,
    absence: Option<Absence>,
    reopen: Option<Reopen>,
}

/// What no queue pair and no address handle is called: a group's while there is no device.
const NO_QP: QpId = QpId(usize::MAX);
const NO_AH: AhId = AhId(usize::MAX);

/// Completions handled in one turn at most; after as many the engine looks at timers and sends too.
const RECV_BUDGET: usize = 256;

/// Frames sent in one turn.
const SEND_BUDGET: usize = 256;

/// How often a node that is out of control frames looks for one.
const NO_CONTROL: Duration = Duration::from_millis(1);

/// Events that wait for each listener of the node.
const MAX_EVENTS: usize = 256;

/// Receives are posted in lots of at least this many.
const REFILL: usize = 16;

impl TxFrame for SendBuf {
    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn bytes(&self) -> &[u8] {
        self.payload()
    }

    fn room(&self) -> &[u8] {
        self.room()
    }

    fn room_mut(&mut self) -> &mut [u8] {
        self.room_mut()
    }

    fn set_len(&mut self, len: usize) {
        self.set_len(len);
    }
}

impl Engine {
    /// Sets a node up on a device: receives are posted, no group is joined yet.
    ///
    /// # Errors
    /// The device refused memory or receives.
    pub fn new(
        now: Instant,
        mut device: Box<dyn Device>,
        config: EngineConfig,
    ) -> Result<Self, DeviceError> {
        let caps = device.caps();
        let max_frame = caps.max_payload;
        if max_frame < qcast_proto::wire::frame::MIN_MTU {
            return Err(DeviceError::Unsupported("a path MTU below 512 bytes"));
        }
        let depth = config.srq_depth.min(caps.max_srq_wr).max(2);
        let max_ah = config.max_ah.min(caps.max_ah);
        let watch = PortWatch::new(device.port());
        let mut node_config = config.node;
        // What the device may have to hold before it is polled, and what can be posted, bound
        // what may be under way.
        node_config.receive_window = node_config.receive_window.min(depth / 2).max(1);
        node_config.backlog = node_config.backlog.min(caps.backlog / 2).min(depth / 4).max(1);
        let mut recv = RecvPool::new(device.alloc_recv(depth)?);
        device.post_recv(&mut recv.free)?;
        let mut node = Node::new(now, node_config, config.seed);
        node.supply(device.alloc_send(config.control_frames.max(1))?);
        Ok(Self {
            device,
            node,
            recv,
            ah: AhCache::new(max_ah),
            groups: BTreeMap::new(),
            joining: Vec::new(),
            control: control::Control::default(),
            joined: Vec::new(),
            leaving: Leaving::new(),
            rejoining: Vec::new(),
            publishers: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            waiting: Waiting::new(config.control_frames / 2),
            completions: Vec::with_capacity(RECV_BUDGET),
            wakers: Vec::new(),
            events: Feed::new(MAX_EVENTS),
            member_feeds: MemberFeeds::new(),
            freed: Vec::new(),
            next_ticket: 0,
            drops_seen: 0,
            reported: now,
            repair_times: RepairTimes::default(),
            recovery: RecoveryStats::default(),
            flushed: Vec::new(),
            max_frame,
            srq_depth: config.srq_depth,
            max_ah: config.max_ah,
            journal: Journal::default(),
            watch,
            keys: KeyWatch::default(),
            devices: 0,
            counters_before: PortCounters::default(),
            absence: None,
            reopen: None,
        })
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The device, to be configured or disturbed.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// The journal of queue pairs.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The journal, to be set up.
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The node's description.
    pub fn node_config(&self) -> &NodeConfig {
        self.node.config()
    }

    /// The address cache's numbers.
    pub fn ah_stats(&self) -> AhStats {
        self.ah.stats
    }

    /// Where every receive buffer is: posted, on loan, waiting to be posted, and how many there are. What is missing
    /// from the sum is in completions that were not polled yet.
    pub fn buffers(&self) -> [usize; 4] {
        let free = self.recv.free.len();
        [self.device.posted_recvs(), self.recv.on_loan(), free, self.recv.capacity()]
    }

    /// Received frames that the protocol itself keeps, because a gap before them is not closed yet.
    pub fn frames_kept(&self) -> usize {
        self.node.frames_kept()
    }

    /// Control frames that are neither posted nor waiting to be: all of them, when nothing is said.
    pub fn control_frames(&self) -> usize {
        self.node.control_frames()
    }

    /// How long frames were missing that were asked for and came.
    pub fn repair_times(&self) -> &RepairTimes {
        &self.repair_times
    }

    /// Listens to what happens to the node.
    pub(crate) fn listen(&mut self) -> Arc<FeedQueue<NodeEvent>> {
        self.events.listen()
    }

    /// Tells whoever listens.
    pub(crate) fn tell(&mut self, event: &NodeEvent) {
        self.events.put(event, &mut self.wakers);
    }

    /// Whether nothing is open or on its way out any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.publishers.is_empty() && self.leaving.is_empty() && !self.is_parting()
    }

    /// A group's counters.
    pub(crate) fn group_counters(&self, group: GroupId) -> GroupCounters {
        let mut counters = self.node.group_counters(group);
        counters.qkey_violations = self.groups.get(&group).map_or(0, |g| g.violations);
        counters
    }

    /// Does what there is to do, in bounded steps.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.journal.set_now(now);
        self.device.advance(now);
        self.take_device_events(now);
        self.come_back(now);
        self.tend_control(now);
        // Half of what stays posted when most buffers are on loan: one poll must not run the SRQ dry.
        let mut more = self.take_completions(now, RECV_BUDGET.min(self.recv.capacity() / 8).max(1));
        self.recover(now);
        self.refill();
        self.take_room();
        more |= self.take_outboxes(now);
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
        }
        more |= self.send(now);
        let handed = self.hand_out(now);
        self.report(now);
        self.watch_keys(now);
        self.drain();
        self.join_anew(now);
        self.leave_groups(now);
        more |= self.device.arm() == Armed::Again;
        Turn { more, handed, next: self.next_deadline(now) }
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let joining = self.joining.iter().map(|j| j.deadline).min();
        let mut protocol = self.node.poll_timeout();
        if self.node.control_frames() == 0 {
            // What is due cannot be said until a completion brings a frame back, and that wakes the node.
            protocol = protocol.map(|due| due.max(now + NO_CONTROL));
        }
        let own = [
            self.device.next_deadline(),
            self.next_recovery(),
            self.next_return(),
            self.next_control(),
            self.next_word(),
            self.next_drain(now),
        ];
        own.into_iter().chain([protocol, joining, self.next_leave()]).flatten().min()
    }

    fn take_completions(&mut self, now: Instant, budget: usize) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.device.poll(&mut completions, budget);
        let full = completions.len() >= budget;
        for completion in completions.drain(..) {
            match completion {
                Completion::Send { qp, ah, token, buf, status } => {
                    if let Some(g) = self.groups.values_mut().find(|g| g.qp == qp) {
                        g.posted = g.posted.saturating_sub(1);
                        if status != WcStatus::Success {
                            tracing::debug!(?status, "a send failed");
                            g.recovery.blame(now, status);
                        }
                    }
                    if status == WcStatus::WrFlushErr
                        && let Some(id) = self.flushed_for(qp, ah)
                    {
                        let qkey = self.groups[&id].setup.qkey.get();
                        let wr = SendWr { ah, qpn: Qpn::MULTICAST, qkey, token, buf };
                        self.flushed.push((id, wr));
                        continue;
                    }
                    self.ah.unpin(ah);
                    self.node.handle_sent(FrameToken::from_bits(token), buf);
                }
                Completion::Recv { qp, buf, source, status } => {
                    let group = qp.and_then(|qp| self.group_of(qp));
                    let (Some(group), WcStatus::Success) = (group, status) else {
                        self.recv.free.push(buf);
                        continue;
                    };
                    let from =
                        PeerAddr { gid: source.gid, qpn: source.qpn, udp_port: source.udp_port };
                    self.receive(now, group, from, source.multicast, buf);
                }
            }
        }
        self.completions = completions;
        // They were to leave before what waits.
        while let Some((id, wr)) = self.flushed.pop() {
            if let Some(g) = self.groups.get_mut(&id) {
                g.queue.push_front(wr);
            }
        }
        full
    }

    /// The group that a flushed send was for: it was never sent, and will be. What was for one peer the
    /// protocol says again when it is missed.
    fn flushed_for(&self, qp: QpId, ah: AhId) -> Option<GroupId> {
        self.groups.iter().find(|(_, g)| g.qp == qp && g.ah == ah).map(|(id, _)| *id)
    }

    fn receive(
        &mut self,
        now: Instant,
        group: GroupId,
        from: PeerAddr,
        multicast: bool,
        buf: RecvBuf,
    ) {
        let counters = self.device.counters();
        let drops = counters.out_of_buffer + counters.overruns;
        if drops != self.drops_seen {
            self.drops_seen = drops;
            self.node.handle_starvation(now);
        }
        let lease = self.recv.lend(buf);
        tracing::trace!(%from.gid, bytes = lease.bytes().len(), multicast, "received");
        self.node.handle_datagram(now, group, from, multicast, lease);
    }

    fn group_of(&self, qp: QpId) -> Option<GroupId> {
        self.groups.iter().find(|(_, g)| g.qp == qp).map(|(id, _)| *id)
    }

    fn refill(&mut self) {
        self.recv.collect();
        let posted = self.device.posted_recvs();
        let due = self.recv.free.len() >= REFILL || posted < self.recv.capacity() / 2;
        if due && let Err(error) = self.device.post_recv(&mut self.recv.free) {
            tracing::warn!(%error, "receives could not be posted");
        }
        self.node.set_headroom(self.device.posted_recvs());
    }

    fn send(&mut self, now: Instant) -> bool {
        let active = self.device.port().active;
        for (id, g) in &mut self.groups {
            let blocked = !active
                || g.is_draining()
                || g.recovery.is_under_way()
                || g.queue.len() >= SEND_BUDGET;
            if std::mem::replace(&mut g.blocked, blocked) != blocked {
                self.node.set_blocked(now, *id, blocked);
            }
        }
        let mut budget = SEND_BUDGET;
        while budget > 0 {
            let Some(t) = self.node.poll_transmit(now) else { break };
            budget -= 1;
            self.route(now, t.group, t.to, t.frame, t.token);
        }
        if !active {
            return false;
        }
        let mut stuck = false;
        for g in self.groups.values_mut() {
            if g.queue.is_empty() || g.recovery.is_under_way() {
                continue;
            }
            let before = g.queue.len();
            let result = self.device.post_send(g.qp, &mut g.queue);
            g.posted += before - g.queue.len();
            match result {
                Ok(()) => g.refused = false,
                Err(DeviceError::NotReady(state)) => {
                    g.recovery.suspect(now, || format!("a send was refused in {state}"));
                }
                Err(error) => {
                    g.refuse_front(&error, &mut self.ah, &mut self.node);
                    stuck = true;
                }
            }
        }
        budget == 0 || stuck
    }

    /// Sends what waited for an address.
    fn send_waiting(&mut self, now: Instant, waiters: Vec<Waiter>) {
        for Waiter { group, peer, frame, token } in waiters {
            self.route(now, group, To::Peer(peer), frame, token);
        }
    }

    /// Finds the way for a frame and queues it.
    fn route(&mut self, now: Instant, group: GroupId, to: To, frame: SendBuf, token: FrameToken) {
        let Some(g) = self.groups.get_mut(&group) else {
            self.node.handle_sent(token, frame);
            return;
        };
        let (ah, qpn) = match to {
            To::Group => (g.ah, Qpn::MULTICAST),
            To::Peer(peer) => {
                let way = crate::device::AhAttrs { gid: peer.gid, udp_port: peer.udp_port };
                match self.ah.pin(now, &mut *self.device, way) {
                    Lookup::Ready(ah) => (ah, peer.qpn),
                    Lookup::Pending => {
                        let waiter = Waiter { group, peer, frame, token };
                        if let Err(Waiter { frame, .. }) = self.waiting.add(way, waiter) {
                            self.node.handle_sent(token, frame);
                        }
                        return;
                    }
                    Lookup::Failed => {
                        self.node.handle_sent(token, frame);
                        return;
                    }
                }
            }
        };
        let qkey = g.setup.qkey.get();
        g.queue.push_back(SendWr { ah, qpn, qkey, token: token.to_bits(), buf: frame });
    }
}
