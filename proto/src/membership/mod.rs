//! Who is in a group: members, their lives and deaths, and the view that all come to share.
//!
//! Every member sends a small *beacon* to the group about once a second; beyond a thousand members so much less
//! often that all together send about a thousand a second. Hearing a member renews it. One that was silent for
//! three intervals is suspected and asked by unicast whether it lives; one that does not answer is failed.
//! Nobody is failed on another's word: what members tell each other about third ones
//! (rosters) only makes them ask for themselves. So there is no gossip to poison and no agreement to stall,
//! and the cost of a member does not depend on how many there are.
//!
//! * A multicast fabric makes a join, a parting and a refutation one datagram each. SWIM's rounds
//!   of gossip would be slower and, for a thousand members, more. What is kept of SWIM and Lifeguard
//!   is the suspicion that can be refuted, that the suspect is told first, and that a node
//!   that was slow itself forgives the others the time.
//! * Probes are unicast on purpose: they test the peer's own receive path, and tell "dead" from "its multicast
//!   does not arrive" ([`Degraded`](MemberState::Degraded)).
//! * Two views differ for long only where multicast is one-sided. Beacons carry a sum of the view; whoever
//!   finds itself in disagreement compares parts of it with one peer and asks those that it did not know.
//! * A forged member costs a forger one address each: a beacon counts only from the address that it names. It is
//!   admitted at once all the same, because a probe before every admission would be N² of them when a job of N
//!   ranks starts; but one that never answers is out again within some ten seconds and stays barred for a while,
//!   and what one host and all can make of it is bounded.
//!
//! A [`Membership`] is fed and drained like everything here: after each call ask
//! [`poll_transmit`](Membership::poll_transmit) and [`poll_event`](Membership::poll_event) until they are `None`, then
//! [`poll_timeout`](Membership::poll_timeout).
//! Requirements: `R-MEMBER-1` to `R-MEMBER-22` of `docs/protocol.md`.

mod agree;
mod departed;
mod doubt;
mod entry;
mod event;
mod hear;
mod introduce;
mod member;
mod progress;
mod rivals;
mod roll;
mod speak;
mod state;
mod view;
mod wheel;
mod word;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;

pub use event::MemberEvent;
pub(crate) use member::sound_prefix;
pub use member::{
    MAX_HOST, MAX_METADATA, MAX_PAIRS, Member, MemberInfo, MemberState, Profile, ProfileError, Role,
};
pub use progress::MemberProgress;
pub use roll::Hint;
pub use view::View;
pub use word::{Beacon, MAX_WORD, Word};

use departed::Departed;
use entry::Entry;
use introduce::Candidates;
use rivals::{Double, Rivals};
use roll::{Roll, Slot};
use speak::Said;
use state::{Sign, Told};
use wheel::Wheel;

/// The pace and the bounds of a group's membership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MembershipConfig {
    /// The longest time between two beacons in a group of up to [`steady`](Self::steady) members.
    pub interval: Duration,
    /// In larger groups the interval grows with their size.
    pub steady: usize,
    /// How long a suspect may take to answer.
    pub patience: Duration,
    /// Members of a group; more are refused and counted.
    pub max_members: usize,
    /// Of those, members of one host.
    pub max_per_host: usize,
    /// Nodes that were heard of and are asked who they are, at once.
    pub max_candidates: usize,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            steady: 1000,
            patience: Duration::from_millis(1500),
            max_members: 16_384,
            max_per_host: 512,
            max_candidates: 256,
        }
    }
}

/// What members said, and what of it did not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MembershipCounters {
    /// Beacons sent to the group.
    pub beacons: u64,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
    /// Times that a member suspected this node and was told better.
    pub refuted: u64,
    /// Words from the past, or meant for another.
    pub stale: u64,
    /// Words in another's name.
    pub spoofed: u64,
    /// Members and candidates that were refused because there are too many.
    pub refused: u64,
    /// Words that were not said because too many waited.
    pub dropped: u64,
    /// Comparisons of views that were begun.
    pub digests: u64,
}

/// That a member was heard otherwise than by a word of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Instant,
    /// Whether through the group.
    pub in_group: bool,
}

/// A group's members, as one of them sees them. See the [module](self).
#[derive(Debug)]
pub struct Membership {
    config: MembershipConfig,
    own: Arc<MemberInfo>,
    rng: fastrand::Rng,
    /// Where this node's milliseconds begin.
    origin: Instant,
    /// The last time that was given.
    now: Instant,
    roll: Roll,
    progress: progress::Said,
    /// How far this node is, as it last said.
    own_progress: Option<MemberProgress>,
    wheel: Wheel,
    version: u64,
    events: VecDeque<(MemberEvent, u64)>,
    said: VecDeque<Said>,
    /// The own clock of the last word.
    last_at: u64,
    next_beacon: Instant,
    last_beacon: Instant,
    /// Beacons that say "new", or "leaving", still to be sent; and those that say everything.
    fresh_left: u8,
    leaving_left: Option<u8>,
    detail_left: u8,
    /// The next beacon is for one that is new.
    welcoming: bool,
    /// The size of the group, as others say while this node is new.
    hint: (usize, Instant),
    patrol: Slot,
    departed: Departed,
    candidates: Candidates,
    rivals: Rivals,
    double: Option<Double>,
    /// Beacons in a row that came with another view, when this one last changed and when it was last compared.
    disagreed: u8,
    changed: Instant,
    compared: Instant,
    /// When anybody was last heard through the group, and when anybody last answered.
    heard_in_group: Instant,
    answered: Instant,
    /// Who does not hear this node through the group, and since when they are collected.
    unheard_by: (BTreeSet<NodeId>, Instant),
    rejoin: Rejoin,
    /// Something came of the last word but a renewal.
    stirred: bool,
    counters: MembershipCounters,
}

/// Whether the group should be joined anew.
#[derive(Clone, Copy, Debug, Default)]
struct Rejoin {
    wanted: bool,
    not_before: Instant,
}

impl Membership {
    /// Takes part in a group as `own`. The first beacon is due at once.
    pub fn new(now: Instant, own: MemberInfo, config: MembershipConfig, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut roll = Roll::new(rng.u64(..));
        roll.count_in(&own);
        Self {
            config,
            own: Arc::new(own),
            rng,
            origin: now,
            now,
            roll,
            progress: progress::Said::default(),
            own_progress: None,
            wheel: Wheel::new(0),
            version: 1,
            events: VecDeque::new(),
            said: VecDeque::new(),
            last_at: 0,
            next_beacon: now,
            last_beacon: now,
            fresh_left: speak::FRESH,
            leaving_left: None,
            detail_left: speak::DETAILED,
            welcoming: false,
            hint: (0, now),
            patrol: 0,
            departed: Departed::default(),
            candidates: Candidates::default(),
            rivals: Rivals::default(),
            double: None,
            disagreed: 0,
            changed: now,
            compared: now,
            heard_in_group: now,
            answered: now,
            unheard_by: (BTreeSet::new(), now),
            rejoin: Rejoin::default(),
            stirred: false,
            counters: MembershipCounters::default(),
        }
    }

    /// What this node says of itself.
    pub fn own(&self) -> &Arc<MemberInfo> {
        &self.own
    }

    /// How many members there are, this node among them.
    pub fn count(&self) -> usize {
        self.roll.count() + 1
    }

    /// The version of the view.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A sum of who is in the view: two that see the same members, in the same lives, have the same.
    pub fn sum(&self) -> u32 {
        self.roll.total()
    }

    /// The counters.
    pub fn counters(&self) -> MembershipCounters {
        self.counters
    }

    /// How many other members subscribe. Costs their number.
    pub fn subscribing(&self) -> usize {
        self.roll.iter().filter(|e| e.info.role.subscribes()).count()
    }

    /// Whether a node is a member in this life.
    pub fn contains(&self, node: NodeId, incarnation: u64) -> bool {
        let is = |info: &MemberInfo| info.incarnation == incarnation;
        (node == self.own.node && is(&self.own))
            || self.roll.find(node).is_some_and(|slot| is(&self.roll.entries[slot as usize].info))
    }

    /// Looks for many nodes at once, before their words are handled one after the other, and says for each where
    /// [`handle_at`](Self::handle_at) finds it. This saves time only: what a node keeps of each of thousands is
    /// somewhere in its memory, and a processor that is asked for all of it waits for all of it at once.
    pub fn look_up(&self, nodes: impl Iterator<Item = NodeId>, hints: &mut Vec<Hint>) {
        self.roll.look_up(nodes, hints);
    }

    /// Nodes that were heard of and are asked who they are; members that left and are remembered; and nodes that
    /// claim a member's identity. Each is bounded.
    pub fn side_tables(&self) -> [usize; 3] {
        [self.candidates.len(), self.departed.len(), self.rivals.len()]
    }

    /// Who is in the group. Costs its size.
    pub fn view(&self) -> View {
        let member = |(slot, e): (Slot, &Entry)| {
            let progress = self.progress.get(slot);
            Some(Member {
                info: e.info.clone(),
                state: e.state?,
                heard: self.instant(e.heard),
                rtt: e.proof.rtt_us().map(|rtt_us| Duration::from_micros(rtt_us.into())),
                progress: progress.map(|(said, ms)| MemberProgress::new(said, self.instant(ms))),
                own: false,
            })
        };
        let mut members: Vec<Member> = self.roll.places().filter_map(member).collect();
        members.push(Member {
            info: self.own.clone(),
            state: MemberState::Alive,
            heard: self.now,
            rtt: None,
            progress: self.own_progress,
            own: true,
        });
        members.sort_by_key(|m| m.info.node);
        View { version: self.version, members }
    }

    /// A change, with the version that the view has with it. Ask until it is `None`, after every input and
    /// timeout.
    pub fn poll_event(&mut self) -> Option<(MemberEvent, u64)> {
        self.events.pop_front()
    }

    /// Whether the group should be joined anew on the device: multicast does not reach this node, or not from
    /// it, and unicast does. Says so once.
    /// Requirements: `R-MEMBER-12`.
    pub fn take_rejoin(&mut self) -> bool {
        core::mem::take(&mut self.rejoin.wanted)
    }

    /// This node slept, or could not send, for so long: the others are forgiven the time.
    /// Requirements: `R-MEMBER-13`.
    pub fn forgive(&mut self, now: Instant, pause: Duration) {
        let latest = self.ms(now) as u32;
        let pause_ms = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX);
        let later = |ms: u32| ms.wrapping_add(pause_ms.min(latest.wrapping_sub(ms)));
        for e in self.roll.entries.iter_mut() {
            (e.heard, e.heard_in_group) = (later(e.heard), later(e.heard_in_group));
        }
        let later = |t: Instant| (t + pause).min(now);
        self.heard_in_group = later(self.heard_in_group);
        self.answered = later(self.answered);
        self.rivals.forgive(pause);
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.said.is_empty() {
            return Some(self.now);
        }
        let beacon = (self.leaving_left != Some(0)).then_some(self.next_beacon);
        if self.leaving_left.is_some() {
            return beacon;
        }
        let looks = self.wheel.next_ms().map(|ms| self.origin + Duration::from_millis(ms));
        [beacon, looks, self.candidates.next(), self.rivals.next()].into_iter().flatten().min()
    }

    /// Does what is due by now. `signs` says when a member was last heard otherwise, if it was; it is
    /// asked only about those that are silent.
    /// Requirements: `R-MEMBER-7`.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        signs: &mut dyn FnMut(&MemberInfo) -> Option<Heard>,
    ) {
        self.now = now;
        if self.leaving_left.is_some() {
            return;
        }
        self.look_around(now, signs);
        self.ask_candidates(now);
        self.settle_rivals(now);
        self.check_hearing(now);
    }

    /// The view changed.
    fn tell(&mut self, event: MemberEvent) {
        self.version += 1;
        self.changed = self.now;
        self.disagreed = 0;
        self.stirred = true;
        self.events.push_back((event, self.version));
    }

    /// Takes a sign of a member, and tells what it changes. Says whether it still is one.
    fn sign(&mut self, slot: Slot, sign: Sign) -> bool {
        let e = &mut self.roll.entries[slot as usize];
        let Some(state) = e.state else { return false };
        let (to, told) = state::step(state, sign);
        let info = e.info.clone();
        match to {
            Some(_) => e.state = to,
            None => self.roll.remove(slot),
        }
        match told {
            None => {}
            Some(Told::Suspected) => self.tell(MemberEvent::Suspected(info)),
            Some(Told::Refuted) => self.tell(MemberEvent::Refuted(info)),
            Some(Told::Degraded) => self.tell(MemberEvent::Degraded(info)),
            Some(Told::Restored) => self.tell(MemberEvent::Restored(info)),
            Some(Told::Failed) => self.tell(MemberEvent::Failed(info)),
            Some(Told::Left) => self.tell(MemberEvent::Left(info)),
        }
        to.is_some()
    }

    /// This node's milliseconds.
    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }

    /// The time of an entry: its milliseconds wrap after seven weeks, and none is as old.
    fn instant(&self, ms: u32) -> Instant {
        let ago = (self.ms(self.now) as u32).wrapping_sub(ms);
        // Whole milliseconds of now: what was heard in this one was not heard before it.
        self.origin + Duration::from_millis(self.ms(self.now).saturating_sub(ago.into()))
    }

    /// The longest time between two of this node's beacons.
    /// Requirements: `R-MEMBER-3`.
    fn interval(&self) -> Duration {
        let new = self.now.saturating_since(self.origin) < self.config.interval * 3;
        let size = self.count().max(if new { self.hint.0 } else { 0 });
        let steady = self.config.steady.max(1);
        if size <= steady {
            return self.config.interval;
        }
        let long = self.config.interval.as_micros() as u64 * size as u64 / steady as u64;
        Duration::from_micros(long).min(Duration::from_millis(MAX_INTERVAL_MS.into()))
    }

    /// A moment within so much from now.
    fn within(&mut self, now: Instant, spread: Duration) -> Instant {
        let micros = u64::try_from(spread.as_micros()).unwrap_or(u64::MAX).max(1);
        now + Duration::from_micros(self.rng.u64(..micros))
    }
}

/// The longest interval that a member may promise.
const MAX_INTERVAL_MS: u16 = 60_000;

/// Where a member's address came from and what it names agree.
fn names_its_sender(info: Option<&Arc<MemberInfo>>, from: PeerAddr) -> bool {
    info.is_none_or(|info| info.address == from)
}
