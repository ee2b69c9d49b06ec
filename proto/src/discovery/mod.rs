//! Services: announced, looked for, and found.
//!
//! A service is a type, an instance name, where it is reached, and a few words about it. Its *owner*, the
//! node that announces it, is the only one that speaks of it: a question is answered by the owners of what
//! it asks for, once for all who ask at the same time, and what the asker knows is not told again.
//!
//! A new service first asks whether its name is free. Who has it says so at once, and the newcomer takes
//! "name (2)". When two that have the same name meet all the same (two halves of a network become one), the
//! one with the lesser identity keeps it.
//!
//! Nodes keep what they look for, and nothing else.
//! Requirements: `R-SERVICE-1` to `R-SERVICE-9`.

mod browse;
mod cache;
mod own;
mod service;
mod speak;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{Gid, NodeId, PeerAddr};
use crate::diagnosis::Identity;
use crate::time::Instant;
use crate::wire::service::{Record, ServiceQuery, Services};

use browse::Browse;
pub use browse::Filter;
use cache::{Cache, Change, Recheck};
pub use cache::{MAX_RECORDS, MAX_RECORDS_OF_NODE};
use own::{Own, PARTINGS, Parting, State};
pub use service::{DEFAULT_TTL, Found, MAX_TTL, MIN_TTL, Owner, Service, ServiceError};
pub(crate) use speak::Word;

/// A service that this node announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(u32);

/// A search of this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrowseId(u32);

/// What happens to services.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscoveryEvent {
    /// One's own service has a name, and others can find it.
    Announced {
        /// Which.
        service: ServiceId,
        /// The name.
        name: String,
    },
    /// One's own service gave its name up, because another has it, and tries the next.
    Renamed {
        /// Which.
        service: ServiceId,
        /// The name that it had, or wanted.
        from: String,
        /// The one that it tries.
        to: String,
        /// Who has the first.
        by: Owner,
    },
    /// One's own service found no name that is free, and is not announced.
    Refused {
        /// Which.
        service: ServiceId,
    },
    /// Another node claims the name of one's own service, which keeps it.
    Contested {
        /// Which.
        service: ServiceId,
        /// Who.
        by: Owner,
    },
    /// One's own service has ended, and that was said as often as it is.
    Withdrawn {
        /// Which.
        service: ServiceId,
    },
    /// A service was found that is looked for.
    Added {
        /// Who looks for it.
        browse: BrowseId,
        /// The service.
        found: Found,
    },
    /// It has changed, or another node offers it now.
    Updated {
        /// Who looks for it.
        browse: BrowseId,
        /// The service as it is now.
        found: Found,
    },
    /// It has ended, or its node is gone.
    Removed {
        /// Who looks for it.
        browse: BrowseId,
        /// The service as it was.
        found: Found,
    },
}

/// What was dropped or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoveryCounters {
    /// Records taken.
    pub records: u64,
    /// Records older than what is known.
    pub stale: u64,
    /// Records in another's name, and challenges that were refuted.
    pub spoofed: u64,
    /// Records beyond the bounds.
    pub refused: u64,
    /// Questions sent.
    pub queries: u64,
    /// Records sent.
    pub sent: u64,
}

/// Services of this node, and those that it looks for.
#[derive(Debug, Default)]
pub struct Discovery {
    own: BTreeMap<ServiceId, Own>,
    partings: VecDeque<(ServiceId, Parting)>,
    browses: BTreeMap<BrowseId, Browse>,
    cache: Cache,
    /// Owners that are to be asked, and when the next question may go out.
    rechecks: VecDeque<Recheck>,
    next_recheck: Instant,
    /// The last rival that was reported of each service.
    rivals: BTreeMap<ServiceId, (NodeId, u64)>,
    next_id: u32,
    last_at: u64,
    events: VecDeque<DiscoveryEvent>,
    counters: DiscoveryCounters,
}

/// Questions for single records that wait; what does not fit is not asked for.
const MAX_RECHECKS: usize = 256;

/// An answer waits for so long, at most, for others who ask the same.
const ANSWER_WITHIN: Duration = Duration::from_millis(20);

impl Discovery {
    /// Announces a service, which was [checked](Service::check).
    pub(crate) fn announce(&mut self, now: Instant, service: Service) -> ServiceId {
        self.next_id += 1;
        let id = ServiceId(self.next_id);
        let mut own = Own::new(now, service);
        // This node's own names are known without asking.
        let (kind, name) = (own.service.kind.clone(), own.name.clone());
        if self.own.values().any(|other| other.is(&kind, &name)) {
            let taken = |name: &str| self.own.values().any(|other| other.is(&kind, name));
            own.rename(now, taken);
        }
        self.own.insert(id, own);
        id
    }

    /// Changes what is said of a service; its type and name stay.
    pub(crate) fn update(&mut self, now: Instant, id: ServiceId, service: Service) {
        let Some(own) = self.own.get_mut(&id) else { return };
        let (kind, name) = (own.service.kind.clone(), own.service.name.clone());
        own.service = Service { kind, name, ..service };
        own.announce(now);
    }

    /// Ends a service.
    /// Requirements: `R-SERVICE-7`.
    pub(crate) fn withdraw(&mut self, now: Instant, id: ServiceId, here: Gid) {
        self.rivals.remove(&id);
        let Some(own) = self.own.remove(&id) else { return };
        if matches!(own.state, State::Announced(_)) {
            self.part(now, id, own.record(here));
        } else {
            self.events.push_back(DiscoveryEvent::Withdrawn { service: id });
        }
    }

    fn part(&mut self, now: Instant, id: ServiceId, mut record: Record) {
        record.withdrawn = true;
        self.partings.push_back((id, Parting { record, next: now, left: PARTINGS }));
    }

    /// Whether a service's end is still being said.
    pub(crate) fn is_parting(&self) -> bool {
        !self.partings.is_empty()
    }

    /// Looks for services.
    pub(crate) fn browse(
        &mut self,
        now: Instant,
        filter: Filter,
        here: &Owner,
        name: &str,
    ) -> BrowseId {
        self.next_id += 1;
        let id = BrowseId(self.next_id);
        for found in self.cache.found().filter(|found| filter.wants_found(found)) {
            self.events.push_back(DiscoveryEvent::Added { browse: id, found: found.clone() });
        }
        self.browses.insert(id, Browse::new(now, filter));
        let own: Vec<Record> = self
            .own
            .values()
            .filter(|own| matches!(own.state, State::Announced(_)))
            .map(|own| own.record(here.address.gid))
            .collect();
        self.tell_own(now, here, name, own);
        id
    }

    /// Looks for them no longer.
    pub(crate) fn stop(&mut self, id: BrowseId) {
        self.browses.remove(&id);
        let browses = &self.browses;
        self.cache.keep(|found| browses.values().any(|b| b.filter.wants_found(found)));
    }

    /// The control group is joined, or this node is reached elsewhere: whatever was said before counts no more.
    /// Requirements: `R-SERVICE-9`.
    pub(crate) fn start(&mut self, now: Instant) {
        self.own.values_mut().for_each(|own| own.restart(now));
        self.browses.values_mut().for_each(|browse| browse.restart(now));
    }

    pub(crate) fn forgive(&mut self, pause: Duration) {
        self.cache.forgive(pause);
    }

    pub(crate) fn counters(&self) -> DiscoveryCounters {
        self.counters
    }

    /// A node is known to have failed or left: what it offered has ended.
    pub(crate) fn handle_failure(&mut self, now: Instant, node: NodeId, incarnation: u64) {
        let mut changes = Vec::new();
        self.cache.fail(now, |owner| owner.life() == (node, incarnation), &mut changes);
        self.report(changes);
    }

    /// Takes a node's records, checked to be sound.
    /// Requirements: `R-SERVICE-3`, `R-SERVICE-5` to `R-SERVICE-8`.
    pub(crate) fn handle_services(
        &mut self,
        now: Instant,
        from: PeerAddr,
        services: &Services,
        us: Identity<'_>,
        here: Gid,
    ) {
        let (node, incarnation) = (NodeId(services.node), services.incarnation);
        let owner = Owner { node, incarnation, address: from };
        if owner.life() == us.life() {
            self.counters.spoofed += 1;
            return;
        }
        for record in services.records.iter() {
            if !record.withdrawn {
                self.meet(now, &owner, record, us, here);
            }
            let wanted = |b: &Browse| b.filter.wants(&record.kind, &record.name);
            if self.browses.values().any(wanted) {
                self.counters.records += 1;
                let change = self.cache.take(now, owner, services, record, &mut self.counters);
                self.report(change);
            }
        }
    }

    /// Somebody announces a service: it may have the name of one's own.
    fn meet(&mut self, now: Instant, owner: &Owner, record: &Record, us: Identity<'_>, here: Gid) {
        let same = |own: &Own| own.is(&record.kind, &record.name);
        let Some((id, own)) = self.own.iter_mut().find(|(_, own)| same(own)) else { return };
        let id = *id;
        match own.state {
            State::Announced(_) if owner.life() > us.life() => {
                own.defend(now);
                self.contested(id, owner);
            }
            State::Announced(_) => {
                let lost = own.record(here);
                self.part(now, id, lost);
                self.rename(now, id, owner, us);
            }
            _ => self.rename(now, id, owner, us),
        }
    }

    fn contested(&mut self, id: ServiceId, by: &Owner) {
        if self.rivals.insert(id, by.life()) != Some(by.life()) {
            self.events.push_back(DiscoveryEvent::Contested { service: id, by: *by });
        }
    }

    fn rename(&mut self, now: Instant, id: ServiceId, by: &Owner, us: Identity<'_>) {
        let Some(mut own) = self.own.remove(&id) else { return };
        let from = own.name.clone();
        let kind = own.service.kind.clone();
        let taken = |name: &str| {
            self.own.values().any(|other| other.is(&kind, name))
                || self.cache.is_taken(&kind, name, us.life())
        };
        let event = if own.rename(now, taken) {
            DiscoveryEvent::Renamed { service: id, from, to: own.name.clone(), by: *by }
        } else {
            DiscoveryEvent::Refused { service: id }
        };
        self.events.push_back(event);
        self.own.insert(id, own);
    }

    /// Takes a question, checked to be sound.
    /// Requirements: `R-SERVICE-2`, `R-SERVICE-4`.
    pub(crate) fn handle_query(
        &mut self,
        now: Instant,
        from: PeerAddr,
        query: &ServiceQuery,
        us: Identity<'_>,
        here: Gid,
        rng: &mut fastrand::Rng,
    ) {
        let asker =
            Owner { node: NodeId(query.node), incarnation: query.incarnation, address: from };
        if asker.life() == us.life() {
            return;
        }
        if query.probe {
            let own = self.own.iter_mut().find(|(_, own)| own.is(&query.kind, &query.name));
            match own.map(|(id, own)| (*id, own.state, own)) {
                Some((id, State::Announced(_), own)) => {
                    own.defend(now);
                    self.contested(id, &asker);
                }
                // Both ask for it at once: the lesser one has it.
                Some((id, State::Probing(_), _)) if asker.life() < us.life() => {
                    self.rename(now, id, &asker, us);
                }
                _ => {}
            }
            return;
        }
        for own in self.own.values_mut() {
            let asked = query.asks_for(&own.service.kind, &own.name);
            if !asked || !matches!(own.state, State::Announced(_)) {
                continue;
            }
            let mark = own.record(here).mark(us.node.0, us.incarnation);
            if !query.known.contains(&mark) {
                let within = if query.name.is_empty() { ANSWER_WITHIN } else { Duration::ZERO };
                own.answer(now, within, rng);
            }
        }
        let cache = &self.cache;
        for browse in self.browses.values_mut().filter(|b| b.is(query)) {
            let filter = &browse.filter;
            let known: Vec<u32> = cache.known(now, |found| filter.wants_found(found)).collect();
            // Its answers are answers to this node, too, if it knows no more than this node does.
            if browse.next <= now + browse::SOON && query.known.iter().all(|k| known.contains(k)) {
                browse.asked(now, rng);
            }
        }
        self.cache.asked(now, |f| query.asks_for(&f.service.kind, &f.service.name));
    }

    fn report(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let (Change::Added(found) | Change::Updated(found) | Change::Removed(found)) = &change;
            for (browse, b) in &self.browses {
                if !b.filter.wants_found(found) {
                    continue;
                }
                let (browse, found) = (*browse, found.clone());
                self.events.push_back(match change {
                    Change::Added(_) => DiscoveryEvent::Added { browse, found },
                    Change::Updated(_) => DiscoveryEvent::Updated { browse, found },
                    Change::Removed(_) => DiscoveryEvent::Removed { browse, found },
                });
            }
        }
    }

    /// When there is something to say or to forget.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let own = self.own.values().filter(|own| own.state != State::Refused).map(|own| own.next);
        let partings = self.partings.iter().map(|(_, parting)| parting.next);
        let browses = self.browses.values().map(|browse| browse.next);
        let recheck = (!self.rechecks.is_empty()).then_some(self.next_recheck);
        own.chain(partings).chain(browses).chain(recheck).chain(self.cache.poll_timeout()).min()
    }

    /// Forgets what is over, and asks for what was not heard again.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let (mut changes, mut asks) = (Vec::new(), Vec::new());
        self.cache.handle_timeout(now, &mut changes, &mut asks);
        self.report(changes);
        for ask in asks {
            if self.rechecks.len() < MAX_RECHECKS && !self.rechecks.contains(&ask) {
                self.rechecks.push_back(ask);
            }
        }
    }

    /// What happened.
    pub(crate) fn poll_event(&mut self) -> Option<DiscoveryEvent> {
        self.events.pop_front()
    }
}
