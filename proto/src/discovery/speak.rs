//! What is said of services, and when.

use alloc::vec::Vec;
use core::time::Duration;

use super::cache::Recheck;
use super::own::{Own, PARTING_GAP, PARTINGS, State};
use super::service::Owner;
use super::{Discovery, DiscoveryEvent};
use crate::addr::PeerAddr;
use crate::diagnosis::Identity;
use crate::time::Instant;
use crate::wire::control::MAX_BODY;
use crate::wire::service::{Record, SERVICES_ROOM, ServiceQuery, Services};

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Word {
    Services(Services),
    Query(ServiceQuery),
}

/// The time between two of them.
const RECHECK_GAP: Duration = Duration::from_millis(5);

/// A record is sent with others when it would be due within this share of its time.
const EARLY: u32 = 6;

impl Discovery {
    /// What is to be said now, if anything.
    pub(crate) fn poll_word(
        &mut self,
        now: Instant,
        us: Identity<'_>,
        here: PeerAddr,
        rng: &mut fastrand::Rng,
    ) -> Option<Word> {
        for (id, own) in &mut self.own {
            if own.establish(now) {
                let name = own.name.clone();
                self.events.push_back(DiscoveryEvent::Announced { service: *id, name });
            }
        }
        let query = |kind: &str, name: &str, probe| ServiceQuery {
            node: us.node.0,
            incarnation: us.incarnation,
            kind: kind.into(),
            name: name.into(),
            probe,
            known: Default::default(),
        };
        let probing = |own: &&mut Own| matches!(own.state, State::Probing(1..)) && own.next <= now;
        if let Some(own) = self.own.values_mut().find(probing) {
            own.probed(now);
            self.counters.queries += 1;
            return Some(Word::Query(query(&own.service.kind, &own.name, true)));
        }
        if let Some(services) = self.poll_services(now, us, here, rng) {
            return Some(Word::Services(services));
        }
        if let Some(browse) = self.browses.values_mut().find(|browse| browse.next <= now) {
            browse.asked(now, rng);
            let filter = &browse.filter;
            let mut query = query(&filter.kind, &filter.name, false);
            query.known = self.cache.known(now, |found| filter.wants_found(found)).collect();
            self.counters.queries += 1;
            return Some(Word::Query(query));
        }
        if self.next_recheck > now {
            return None;
        }
        let Recheck { kind, name } = self.rechecks.pop_front()?;
        self.next_recheck = now + RECHECK_GAP;
        self.counters.queries += 1;
        Some(Word::Query(query(&kind, &name, false)))
    }

    /// The records that are due, and as many others as fit that soon would be.
    /// Requirements: `R-CONTROLGROUP-3`.
    fn poll_services(
        &mut self,
        now: Instant,
        us: Identity<'_>,
        here: PeerAddr,
        rng: &mut fastrand::Rng,
    ) -> Option<Services> {
        let announced = |own: &&mut Own| matches!(own.state, State::Announced(_));
        let mut own: Vec<&mut Own> = self.own.values_mut().filter(announced).collect();
        own.sort_by_key(|own| own.next);
        let due = own.first().is_some_and(|own| own.next <= now)
            || self.partings.iter().any(|(_, parting)| parting.next <= now);
        if !due {
            return None;
        }
        self.last_at = now.as_micros().max(self.last_at + 1);
        let mut services = Services {
            node: us.node.0,
            incarnation: us.incarnation,
            at: self.last_at,
            name: us.name.into(),
            records: Default::default(),
        };
        let mut room = MAX_BODY - SERVICES_ROOM;
        let mut put = |record: Record| {
            let takes = record.room();
            let fits = takes <= room && services.records.push(record).is_ok();
            room -= if fits { takes } else { 0 };
            fits
        };
        for (_, parting) in self.partings.iter_mut().filter(|(_, parting)| parting.next <= now) {
            if put(parting.record.clone()) {
                parting.left -= 1;
                parting.next = now + PARTING_GAP * u32::from(PARTINGS - parting.left);
            }
        }
        for own in own {
            let early = own.service.ttl / EARLY;
            let steady = own.state == State::Announced(0);
            let wanted = own.next <= now || steady && own.next <= now + early;
            if !wanted || !put(own.record(here.gid)) {
                break;
            }
            own.told(now, rng);
        }
        let events = &mut self.events;
        let own = &self.own;
        self.partings.retain(|(id, parting)| {
            if parting.left == 0 && !own.contains_key(id) {
                events.push_back(DiscoveryEvent::Withdrawn { service: *id });
            }
            parting.left > 0
        });
        self.counters.sent += services.records.len() as u64;
        let owner = Owner { node: us.node, incarnation: us.incarnation, address: here };
        self.take_own(now, &owner, &services);
        Some(services)
    }

    /// Own services are found by this node's own searches, too.
    pub(super) fn tell_own(
        &mut self,
        now: Instant,
        here: &Owner,
        name: &str,
        records: Vec<Record>,
    ) {
        for record in records {
            self.last_at = now.as_micros().max(self.last_at + 1);
            let services = Services {
                node: here.node.0,
                incarnation: here.incarnation,
                at: self.last_at,
                name: name.into(),
                records: [record].into_iter().collect(),
            };
            self.take_own(now, here, &services);
        }
    }

    fn take_own(&mut self, now: Instant, here: &Owner, services: &Services) {
        for record in services.records.iter() {
            if self.browses.values().any(|b| b.filter.wants(&record.kind, &record.name)) {
                let change = self.cache.take(now, *here, services, record, &mut self.counters);
                self.report(change);
            }
        }
    }
}
