//! The services that this node looks for, as it heard of them.
//!
//! A name of a type belongs to whoever had it first, until he withdraws it or is heard no more. Who
//! else claims it is a *challenger*: the owner is asked, and only if he stays silent does the record
//! change hands. So nobody can take another's service away by speaking for it, and a service that was
//! killed and started elsewhere is there again after a second.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::DiscoveryCounters;
use super::service::{Found, Owner, Service, ttl};
use crate::addr::NodeId;
use crate::time::Instant;
use crate::wire::service::{Record, Services};

/// Records of one node.
pub const MAX_RECORDS_OF_NODE: usize = 64;

/// Records in all.
pub const MAX_RECORDS: usize = 4096;

/// An owner that is challenged has so long to speak.
pub(super) const CHALLENGE: Duration = Duration::from_secs(1);

/// He is asked so often.
const CHALLENGE_ASKS: u32 = 4;

/// Records that have ended are remembered for so long, so that a late word does not bring one back.
const TOMBSTONE: Duration = Duration::from_secs(10);

/// And so many of them.
const MAX_TOMBSTONES: usize = 256;

/// When a record is asked for that was not heard again, as shares of its time.
const RECHECKS: [f64; 3] = [0.7, 0.8, 0.9];

/// Type and name.
type Key = (String, String);

/// What is held of services.
#[derive(Debug, Default)]
pub(super) struct Cache {
    held: BTreeMap<Key, Held>,
    /// By whom, and his clock at the end.
    ended: BTreeMap<Key, (Owner, u64, Instant)>,
    per_node: BTreeMap<Owner, usize>,
    /// The next time to look at all of them.
    look: Option<Instant>,
}

#[derive(Debug)]
struct Held {
    claim: Claim,
    found: Found,
    heard: Instant,
    rechecks: u8,
    challenger: Option<Challenge>,
}

/// An owner's word.
#[derive(Clone, Debug)]
struct Claim {
    owner: Owner,
    at: u64,
    record: Record,
    node_name: String,
}

#[derive(Debug)]
struct Challenge {
    claim: Claim,
    since: Instant,
    asked: u32,
}

/// What happened to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added(Found),
    Updated(Found),
    Removed(Found),
}

/// A record whose owner is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recheck {
    pub(super) kind: String,
    pub(super) name: String,
}

impl Claim {
    fn found(&self) -> Found {
        Found {
            service: Service::of(&self.record),
            owner: self.owner,
            node_name: self.node_name.clone(),
        }
    }
}

impl Held {
    fn new(now: Instant, claim: Claim) -> Self {
        Self { found: claim.found(), claim, heard: now, rechecks: 0, challenger: None }
    }

    fn expires(&self) -> Instant {
        self.heard + ttl(&self.claim.record)
    }

    /// When something is due of it.
    fn due(&self) -> Instant {
        let ttl = ttl(&self.claim.record);
        let recheck = RECHECKS.get(usize::from(self.rechecks));
        let mut due = recheck.map_or(self.expires(), |share| self.heard + ttl.mul_f64(*share));
        if let Some(challenge) = &self.challenger {
            due = due.min(challenge.since + CHALLENGE / CHALLENGE_ASKS * challenge.asked);
        }
        due.min(self.expires())
    }
}

impl Cache {
    /// The records, as they are found.
    pub(super) fn found(&self) -> impl Iterator<Item = &Found> {
        self.held.values().map(|held| &held.found)
    }

    /// Whether a name is held by somebody else.
    pub(super) fn is_taken(&self, kind: &str, name: &str, us: (NodeId, u64)) -> bool {
        let held = self.held.get(&(kind.into(), name.into()));
        held.is_some_and(|held| held.claim.owner.life() != us)
    }

    /// Marks of the records of a type that need not be told again soon, with their names.
    pub(super) fn known(
        &self,
        now: Instant,
        wanted: impl Fn(&Found) -> bool,
    ) -> impl Iterator<Item = u32> {
        let fresh = move |held: &&Held| {
            let half = ttl(&held.claim.record) / 2;
            wanted(&held.found) && held.challenger.is_none() && held.heard + half > now
        };
        self.held.values().filter(fresh).map(|held| {
            let Owner { node, incarnation, .. } = held.claim.owner;
            held.claim.record.mark(node.0, incarnation)
        })
    }

    /// Takes an owner's word, which is wanted and was checked to be sound.
    /// Requirements: `R-SERVICE-5` to `R-SERVICE-8`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        owner: Owner,
        services: &Services,
        record: &Record,
        counters: &mut DiscoveryCounters,
    ) -> Option<Change> {
        let key = (record.kind.clone(), record.name.clone());
        let claim = || Claim {
            owner,
            at: services.at,
            record: record.clone(),
            node_name: services.name.clone(),
        };
        let Some(held) = self.held.get_mut(&key) else {
            if let Some((who, at, _)) = self.ended.get(&key)
                && who.life() == owner.life()
                && services.at <= *at
            {
                counters.stale += 1;
                return None;
            }
            if record.withdrawn {
                self.bury(now, key, owner, services.at);
                return None;
            }
            return self.add(now, key, claim(), counters);
        };
        let theirs = &held.claim;
        if theirs.owner == owner {
            if services.at <= theirs.at {
                counters.stale += 1;
                return None;
            }
            if record.withdrawn {
                return self.end(now, &key, services.at);
            }
            // He is there: whoever challenged him is refuted.
            counters.spoofed += u64::from(held.challenger.take().is_some());
            (held.heard, held.rechecks, held.claim.at) = (now, 0, services.at);
            let same = held.claim.record == *record && held.claim.node_name == services.name;
            if !same {
                held.claim = claim();
                held.found = held.claim.found();
            }
            let (due, found) = (held.due(), held.found.clone());
            self.wake(due);
            return (!same).then_some(Change::Updated(found));
        }
        if theirs.owner.node == owner.node && theirs.owner.incarnation > owner.incarnation {
            counters.stale += 1;
            return None;
        }
        let challenged = held.challenger.as_ref().map(|challenge| challenge.claim.owner);
        if record.withdrawn {
            // Nobody ends what is another's; but a challenger may think better of it.
            if challenged == Some(owner) {
                held.challenger = None;
            } else {
                counters.spoofed += u64::from(theirs.owner.life() == owner.life());
            }
            return None;
        }
        match challenged {
            Some(other) if other != owner => counters.spoofed += 1,
            Some(_) => {
                let challenge = held.challenger.as_mut()?;
                challenge.claim = claim();
            }
            None => held.challenger = Some(Challenge { claim: claim(), since: now, asked: 0 }),
        }
        self.wake(now);
        None
    }

    fn add(
        &mut self,
        now: Instant,
        key: Key,
        claim: Claim,
        counters: &mut DiscoveryCounters,
    ) -> Option<Change> {
        let of_node = self.per_node.get(&claim.owner).copied().unwrap_or(0);
        if self.held.len() >= MAX_RECORDS || of_node >= MAX_RECORDS_OF_NODE {
            counters.refused += 1;
            return None;
        }
        self.ended.remove(&key);
        self.per_node.insert(claim.owner, of_node + 1);
        let held = Held::new(now, claim);
        let (due, found) = (held.due(), held.found.clone());
        self.held.insert(key, held);
        self.wake(due);
        Some(Change::Added(found))
    }

    /// A record's owner has withdrawn it, or is gone; a challenger has it then.
    fn end(&mut self, now: Instant, key: &Key, at: u64) -> Option<Change> {
        let held = self.held.remove(key)?;
        let owner = held.claim.owner;
        if let Some(left) = self.per_node.get_mut(&owner) {
            *left -= 1;
            if *left == 0 {
                self.per_node.remove(&owner);
            }
        }
        self.bury(now, key.clone(), owner, at);
        if let Some(challenge) = held.challenger {
            let mut refused = DiscoveryCounters::default();
            if let Some(Change::Added(found)) =
                self.add(now, key.clone(), challenge.claim, &mut refused)
            {
                return Some(Change::Updated(found));
            }
        }
        Some(Change::Removed(held.found))
    }

    fn bury(&mut self, now: Instant, key: Key, owner: Owner, at: u64) {
        if self.ended.len() >= MAX_TOMBSTONES
            && let Some(oldest) = self.ended.iter().min_by_key(|(_, (_, _, when))| *when)
        {
            let oldest = oldest.0.clone();
            self.ended.remove(&oldest);
        }
        self.ended.insert(key, (owner, at, now));
        self.wake(now + TOMBSTONE);
    }

    /// A node is known to have failed, or to be in a later life: what it offered has ended.
    /// Requirements: `R-SERVICE-7`.
    pub(super) fn fail(
        &mut self,
        now: Instant,
        gone: impl Fn(&Owner) -> bool,
        out: &mut Vec<Change>,
    ) {
        let keys: Vec<(Key, u64)> = self
            .held
            .iter()
            .filter(|(_, held)| gone(&held.claim.owner))
            .map(|(key, held)| (key.clone(), held.claim.at))
            .collect();
        for (key, at) in keys {
            out.extend(self.end(now, &key, at));
        }
    }

    /// Forgets, without a word, what nobody looks for any more.
    pub(super) fn keep(&mut self, wanted: impl Fn(&Found) -> bool) {
        self.held.retain(|_, held| wanted(&held.found));
        self.per_node.clear();
        for held in self.held.values() {
            *self.per_node.entry(held.claim.owner).or_default() += 1;
        }
    }

    /// Another node asked for a record: that is as good as asking oneself.
    pub(super) fn asked(&mut self, now: Instant, is_asked: impl Fn(&Found) -> bool) {
        for held in self.held.values_mut().filter(|held| is_asked(&held.found)) {
            if held.challenger.is_none() && held.due() <= now + CHALLENGE / CHALLENGE_ASKS {
                held.rechecks = held.rechecks.saturating_add(1);
            }
        }
    }

    pub(super) fn forgive(&mut self, pause: Duration) {
        self.held.values_mut().for_each(|held| {
            held.heard += pause;
            if let Some(challenge) = &mut held.challenger {
                challenge.since += pause;
            }
        });
    }

    fn wake(&mut self, at: Instant) {
        self.look = Some(self.look.map_or(at, |look| look.min(at)));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.look
    }

    /// Does what is due: asks for records that were not heard again, and ends those that are over.
    /// Requirements: `R-SERVICE-6`, `R-SERVICE-7`.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        changes: &mut Vec<Change>,
        asks: &mut Vec<Recheck>,
    ) {
        if self.look.is_none_or(|look| look > now) {
            return;
        }
        let mut over = Vec::new();
        for (key, held) in &mut self.held {
            if held.due() > now {
                continue;
            }
            let lost = held.challenger.as_ref().is_some_and(|c| c.since + CHALLENGE <= now);
            if held.expires() <= now || lost {
                over.push((key.clone(), held.claim.at));
                continue;
            }
            match &mut held.challenger {
                Some(challenge)
                    if challenge.since + CHALLENGE / CHALLENGE_ASKS * challenge.asked <= now =>
                {
                    challenge.asked += 1;
                }
                _ => held.rechecks = held.rechecks.saturating_add(1),
            }
            asks.push(Recheck { kind: key.0.clone(), name: key.1.clone() });
        }
        for (key, at) in over {
            changes.extend(self.end(now, &key, at));
        }
        self.ended.retain(|_, (_, _, when)| *when + TOMBSTONE > now);
        let dues = self.held.values().map(Held::due);
        let ended = self.ended.values().map(|(_, _, when)| *when + TOMBSTONE);
        // Looking at all of them takes a while: not more often than is needed to the millisecond.
        self.look = dues.chain(ended).min().map(|at| at.max(now + Duration::from_millis(1)));
    }
}
