//! What a member says, and when.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::roll::Slot;
use super::{Beacon, MAX_INTERVAL_MS, MemberInfo, MemberProgress, Membership, Word};
use super::{Profile, ProfileError, Role};
use crate::addr::{NodeId, PeerAddr};
use crate::node::To;
use crate::time::Instant;
use crate::wire::member::{Digest, Probe, Progress, Roster};

/// Something that is to be said to one peer as soon as there is a frame for it.
#[derive(Debug)]
pub(super) enum Said {
    Answer { to: PeerAddr, echo: u32, detail: bool },
    Probe { to: PeerAddr, node: NodeId, suspect: bool, unheard: bool, detail: bool },
    Roster { to: PeerAddr, roster: Roster },
    Digest { to: PeerAddr },
}

/// Beacons that say "new" after a join, counting the first.
pub(super) const FRESH: u8 = 5;

/// The pauses between them in milliseconds. All five are lost to a member once in three million joins at 5 %
/// loss, and the last is out after some 1.3 s.
const FRESH_PAUSES: [u64; FRESH as usize] = [0, 600, 400, 200, 100];

/// The pause in groups that are larger than steady, where there are two of them.
const FRESH_PAUSE_LARGE: u64 = 500;

/// Beacons with all details after something changed, or somebody came; else every fourth has them.
pub(super) const DETAILED: u8 = 4;

/// Beacons that say "leaving", and the pause between them.
const LEAVING: u8 = 3;
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// Members that are told of a new address one by one.
const MAX_TOLD: usize = 256;

/// Words that may wait.
const MAX_SAID: usize = 4096;

/// Refutations follow each other no sooner.
const REFUTE_PAUSE: Duration = Duration::from_millis(200);

/// How long a group's members take to make themselves known to one that is new, for each of them.
const WELCOME: Duration = Duration::from_millis(1);
const WELCOME_MIN: Duration = Duration::from_millis(20);

impl Membership {
    /// What to send next: ask until it is `None`, after every input and timeout.
    /// `progress` says how far this node is, if it publishes or subscribes; it is asked only for a beacon.
    /// Requirements: `R-MEMBER-22`.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        progress: &mut dyn FnMut() -> Option<Progress>,
    ) -> Option<(To, Word)> {
        self.now = now;
        if let Some(left) = self.leaving_left {
            if left == 0 || self.next_beacon > now {
                return None;
            }
            self.leaving_left = Some(left - 1);
            self.next_beacon = now + LEAVING_PAUSE;
            let beacon = self.beacon(now, None, false, true, progress());
            return Some((To::Group, Word::Beacon(beacon)));
        }
        if let Some(said) = self.said.pop_front() {
            return Some(self.word(now, said, progress));
        }
        if self.next_beacon > now {
            return None;
        }
        let detail = self.detail_left > 0 || self.counters.beacons.is_multiple_of(4);
        self.detail_left = self.detail_left.saturating_sub(1);
        let beacon = self.beacon(now, None, detail, false, progress());
        self.counters.beacons += 1;
        self.last_beacon = now;
        self.welcoming = false;
        self.schedule(now);
        self.patrol();
        Some((To::Group, Word::Beacon(beacon)))
    }

    /// Begins to leave: the others are told three times, some 20 ms apart. Nothing else is said any more.
    /// Requirements: `R-MEMBER-4`.
    pub fn part(&mut self, now: Instant) {
        if self.leaving_left.is_none() {
            self.said.clear();
            self.leaving_left = Some(LEAVING);
            self.next_beacon = now;
        }
    }

    /// Whether everything was said about leaving.
    pub fn has_parted(&self) -> bool {
        self.leaving_left == Some(0)
    }

    /// Sets what this node wants known of itself. Members are told at once if it is something else.
    ///
    /// # Errors
    /// The profile breaks a bound.
    pub fn set_profile(&mut self, now: Instant, profile: &Profile) -> Result<(), ProfileError> {
        profile.check()?;
        if self.own.metadata != profile.metadata {
            let metadata = profile.metadata.clone();
            self.change_own(now, |own| own.metadata = metadata);
        }
        Ok(())
    }

    /// Sets what this node does in the group. Members are told at once if it is something else.
    pub fn set_role(&mut self, now: Instant, role: Role) {
        if self.own.role != role {
            self.change_own(now, |own| own.role = role);
        }
    }

    /// This node is reached elsewhere now. Members are told at once.
    pub fn readdress(&mut self, now: Instant, address: PeerAddr) {
        if self.own.address != address {
            self.change_own(now, |own| own.address = address);
            // It may be that multicast does not reach them: then a question from the new address does.
            let members = (0..self.roll.entries.len() as Slot).take(MAX_TOLD);
            for slot in members.filter(|slot| self.roll.live(*slot).is_some()).collect::<Vec<_>>() {
                self.probe(slot);
            }
        }
    }

    fn change_own(&mut self, now: Instant, change: impl FnOnce(&mut MemberInfo)) {
        let mut own = MemberInfo::clone(&self.own);
        change(&mut own);
        self.own = Arc::new(own);
        self.now = self.now.max(now);
        self.detail_left = DETAILED;
        self.fresh_left = self.fresh_left.max(2);
        self.next_beacon = self.next_beacon.min(now);
        self.tell(super::MemberEvent::Updated(self.own.clone()));
    }

    pub(super) fn say(&mut self, said: Said) {
        self.stirred = true;
        if self.said.len() >= MAX_SAID {
            self.counters.dropped += 1;
            return;
        }
        self.said.push_back(said);
    }

    /// Asks a member whether it lives.
    pub(super) fn probe(&mut self, slot: Slot) {
        let ms = self.ms(self.now) as u32;
        let e = &mut self.roll.entries[slot as usize];
        e.tries = e.tries.saturating_add(1);
        let silent = ms.wrapping_sub(e.heard_in_group);
        let said = Said::Probe {
            to: e.info.address,
            node: e.info.node,
            suspect: e.is_suspect(),
            unheard: silent >= super::doubt::unheard_after(e.interval_ms),
            detail: false,
        };
        self.say(said);
    }

    /// Makes this node known to one that is new: soon, but not all at once.
    /// Requirements: `R-MEMBER-4`.
    pub(super) fn welcome(&mut self, now: Instant, is_fresh: bool) {
        self.detail_left = self.detail_left.max(DETAILED);
        // Drawing again for each of many that come would make all speak at once; the one beacon is for all of them.
        if is_fresh && !self.welcoming {
            self.welcoming = true;
            let members = u32::try_from(self.count()).unwrap_or(u32::MAX);
            let spread = (WELCOME * members).max(WELCOME_MIN);
            let soon = self.within(now, spread).max(self.last_beacon + spread);
            self.next_beacon = self.next_beacon.min(soon);
        }
    }

    /// A member suspects this node: all that do hear better at once.
    pub(super) fn refute(&mut self, now: Instant) {
        self.counters.refuted += 1;
        let soon = now.max(self.last_beacon + REFUTE_PAUSE);
        self.next_beacon = self.next_beacon.min(soon);
    }

    fn beacon(
        &mut self,
        now: Instant,
        echo: Option<u32>,
        detail: bool,
        leaving: bool,
        progress: Option<Progress>,
    ) -> Beacon {
        self.own_progress = progress.map(|said| MemberProgress::new(said, now));
        // Two words of one clock reading are still one after the other.
        self.last_at = now.as_micros().max(self.last_at + 1);
        Beacon {
            node: self.own.node,
            incarnation: self.own.incarnation,
            at: self.last_at,
            interval_ms: self.interval().as_millis() as u32,
            members: self.count() as u32,
            sum: self.sum(),
            fresh: echo.is_none() && self.fresh_left > 0 && !leaving,
            leaving,
            echo,
            progress,
            info: detail.then(|| self.own.clone()),
        }
    }

    fn word(
        &mut self,
        now: Instant,
        said: Said,
        progress: &mut dyn FnMut() -> Option<Progress>,
    ) -> (To, Word) {
        match said {
            Said::Answer { to, echo, detail } => {
                self.counters.answers += 1;
                let beacon = self.beacon(now, Some(echo), detail, false, progress());
                (To::Peer(to), Word::Beacon(beacon))
            }
            Said::Probe { to, node, suspect, unheard, detail } => {
                self.counters.probes += 1;
                let probe = Probe {
                    node: self.own.node.0,
                    incarnation: self.own.incarnation,
                    to: node.0,
                    stamp: now.as_micros() as u32,
                    suspect,
                    unheard,
                    detail,
                };
                (To::Peer(to), Word::Probe(probe))
            }
            Said::Roster { to, roster } => (To::Peer(to), Word::Roster(roster)),
            Said::Digest { to } => {
                let sums = self.roll.sums().to_vec();
                (To::Peer(to), Word::Digest(Digest { node: self.own.node.0, sums }))
            }
        }
    }

    /// When the next beacon is due.
    /// Requirements: `R-MEMBER-3`, `R-MEMBER-4`.
    fn schedule(&mut self, now: Instant) {
        let interval = self.interval();
        let is_large = interval > self.config.interval;
        if is_large {
            self.fresh_left = self.fresh_left.min(2);
        }
        self.fresh_left = self.fresh_left.saturating_sub(1);
        let regular = {
            let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
            Duration::from_micros(self.rng.u64(micros * 4 / 5..=micros))
        };
        let wait = if self.fresh_left == 0 {
            regular
        } else {
            let pauses = FRESH_PAUSES[usize::from(self.fresh_left)];
            let millis = if is_large { FRESH_PAUSE_LARGE } else { pauses };
            Duration::from_micros(self.rng.u64(millis * 750..=millis * 1250)).min(regular)
        };
        self.next_beacon = now + wait;
    }

    /// Asks one member after the other, one with each beacon: how far it is, and whether it is there at all.
    fn patrol(&mut self) {
        let places = self.roll.entries.len() as Slot;
        // Free places are few; if not, this round asks nobody.
        for _ in 0..8.min(places) {
            self.patrol = (self.patrol + 1) % places;
            if self.roll.live(self.patrol).is_some() {
                let tries = self.roll.entries[self.patrol as usize].tries;
                self.probe(self.patrol);
                self.roll.entries[self.patrol as usize].tries = tries;
                return;
            }
        }
    }
}

/// A promise, within what is believed.
pub(super) fn promised_ms(interval_ms: u32) -> u16 {
    u16::try_from(interval_ms).unwrap_or(u16::MAX).clamp(MIN_INTERVAL_MS, MAX_INTERVAL_MS)
}

/// The shortest interval that a member may promise: nobody is made to look at it all the time.
const MIN_INTERVAL_MS: u16 = 100;
