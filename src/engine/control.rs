//! The engine's place in the control group, and whom it hands what comes of it.
//!
//! The group is joined in the background, once somebody wants it, and is a group like any other from then on: its queue
//! pair recovers, and it outlives the device. That it cannot be joined holds nothing up: it is said once, and tried
//! again ever more slowly.
//! Requirements: `R-CONTROLGROUP-1`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use qcast_proto::addr::{Gid, group_address, group_address_v6};
use qcast_proto::diagnosis::{DiagnosisCounters, DiagnosisEvent, SeenGroup};
use qcast_proto::discovery::{
    BrowseId, DiscoveryCounters, DiscoveryEvent, Filter, Found, Owner, Service, ServiceError,
    ServiceId,
};
use qcast_proto::node::{CONTROL_GROUP, GroupId, control_qkey};
use qcast_proto::time::{Duration, Instant};
use qcast_proto::wire::notice::Checks;

use super::event::NodeEvent;
use super::feed::{Entry, Feed, FeedQueue};
use super::recovery::JOIN_PATIENCE;
use super::{Engine, GroupSetup};

/// The control group of an engine.
#[derive(Default)]
pub(super) struct Control {
    wanted: bool,
    joined: Option<GroupId>,
    /// The join that is on its way.
    ticket: Option<u64>,
    next_try: Option<Instant>,
    pause: Duration,
    told: bool,
    browses: BTreeMap<BrowseId, Feed<ServiceEvent>>,
    announced: BTreeMap<ServiceId, Announced>,
}

/// A service that the application announces.
struct Announced {
    standing: Standing,
    feed: Feed<AnnouncementEvent>,
}

/// How an announcement stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum Standing {
    /// It is being found out whether its name is free.
    Asking,
    /// It is announced, under this name.
    Announced(String),
    /// No name was free; it is not announced.
    Refused,
}

/// What happens to an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnnouncementEvent {
    /// It has this name, and others can find it.
    Announced(String),
    /// Another service has the name, and it tries the next.
    Renamed {
        /// The name that it had, or wanted.
        from: String,
        /// The one that it tries.
        to: String,
        /// Who has the first.
        by: Owner,
    },
    /// Another node claims its name, which stays its own.
    Contested {
        /// Who.
        by: Owner,
    },
    /// No name was free; it is not announced.
    Refused,
    /// The listener was slow: this many events were dropped, the oldest first.
    Missed(u64),
}

/// What happens to services that are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceEvent {
    /// A service was found.
    Added(Found),
    /// What is said of it has changed, or another node offers it now.
    Updated(Found),
    /// It has ended, or its node is gone.
    Removed(Found),
    /// The listener was slow: this many events were dropped, the oldest first. Browse anew to know what there is.
    Missed(u64),
}

impl Entry for ServiceEvent {
    fn missed(count: u64) -> Self {
        Self::Missed(count)
    }
}

impl Entry for AnnouncementEvent {
    fn missed(count: u64) -> Self {
        Self::Missed(count)
    }
}

/// The pause after a first join that failed, and after many: each is twice as long as the one before.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Events of a search that wait: twice as many as there can be services.
const MAX_SERVICE_EVENTS: usize = 2 * qcast_proto::discovery::MAX_RECORDS;

/// Events of an announcement that wait.
const MAX_ANNOUNCEMENT_EVENTS: usize = 64;

impl Engine {
    /// Has the control group joined, with the next turn.
    pub(crate) fn want_control(&mut self) {
        self.control.wanted = true;
    }

    /// Joins the control group, if that is wanted and due.
    pub(super) fn tend_control(&mut self, now: Instant) {
        if !self.control.wanted || self.control.joined.is_some() {
            return;
        }
        if let Some(ticket) = self.control.ticket {
            match self.take_joined(ticket) {
                None => {}
                Some(Ok(id)) => {
                    tracing::debug!("the control group is joined");
                    self.control.joined = Some(id);
                    self.control.ticket = None;
                }
                Some(Err(error)) => {
                    self.control.ticket = None;
                    self.control_failed(now, &error.to_string());
                }
            }
            return;
        }
        if self.control.next_try.is_some_and(|at| at > now) || self.absence.is_some() {
            return;
        }
        let mgid = match self.device.port().gid.ip() {
            IpAddr::V4(_) => IpAddr::V4(group_address(CONTROL_GROUP)),
            IpAddr::V6(_) => IpAddr::V6(group_address_v6(CONTROL_GROUP)),
        };
        let setup = GroupSetup {
            name: CONTROL_GROUP.into(),
            mgid: Gid::from(mgid),
            qkey: control_qkey(),
            profile: qcast_proto::membership::Profile::default(),
        };
        match self.start_join(setup, now + JOIN_PATIENCE) {
            Ok(ticket) => self.control.ticket = Some(ticket),
            Err(error) => self.control_failed(now, &error.to_string()),
        }
    }

    fn control_failed(&mut self, now: Instant, error: &str) {
        let control = &mut self.control;
        control.pause = (control.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
        control.next_try = Some(now + control.pause);
        if std::mem::replace(&mut control.told, true) {
            tracing::debug!(error, "the control group cannot be joined yet");
        } else {
            tracing::warn!(
                error,
                "the control group cannot be joined yet: keys are not compared, and services not found"
            );
        }
    }

    /// When the control group is to be tried again.
    pub(super) fn next_control(&self) -> Option<Instant> {
        let control = &self.control;
        let idle = control.wanted && control.joined.is_none() && control.ticket.is_none();
        control.next_try.filter(|_| idle && self.absence.is_none())
    }

    /// Whether the control group is joined.
    pub(crate) fn has_control(&self) -> bool {
        self.control.joined.is_some()
    }

    /// Tells others what this node uses in a group that it has joined.
    pub(super) fn describe(&mut self, now: Instant, id: GroupId, setup: &GroupSetup) {
        let mtu = self.device.port().mtu;
        let pkey = self.device.pkey();
        let checks = Checks::of(&setup.name, setup.qkey, pkey, setup.mgid.ip(), mtu);
        self.node.describe(now, id, &setup.name, checks);
    }

    /// Announces a service.
    ///
    /// # Errors
    /// It breaks a bound.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        service: Service,
    ) -> Result<(ServiceId, Arc<FeedQueue<AnnouncementEvent>>), ServiceError> {
        let id = self.node.announce(now, service)?;
        let mut feed = Feed::new(MAX_ANNOUNCEMENT_EVENTS);
        let queue = feed.listen();
        self.control.announced.insert(id, Announced { standing: Standing::Asking, feed });
        self.want_control();
        Ok((id, queue))
    }

    /// Changes what is said of a service.
    ///
    /// # Errors
    /// It breaks a bound.
    pub(crate) fn update_service(
        &mut self,
        now: Instant,
        id: ServiceId,
        service: Service,
    ) -> Result<(), ServiceError> {
        self.node.update(now, id, service)
    }

    /// How an announcement stands.
    pub(crate) fn standing(&self, id: ServiceId) -> Standing {
        self.control.announced.get(&id).map_or(Standing::Refused, |a| a.standing.clone())
    }

    /// Ends an announcement.
    pub(crate) fn withdraw(&mut self, now: Instant, id: ServiceId) {
        self.node.withdraw(now, id);
        self.control.announced.remove(&id);
    }

    /// Whether it is still being said that a service has ended.
    pub(crate) fn is_parting(&self) -> bool {
        self.node.is_parting() && self.absence.is_none()
    }

    /// Looks for services.
    pub(crate) fn browse(
        &mut self,
        now: Instant,
        filter: Filter,
    ) -> (BrowseId, Arc<FeedQueue<ServiceEvent>>) {
        let id = self.node.browse(now, filter);
        let mut feed = Feed::new(MAX_SERVICE_EVENTS);
        let queue = feed.listen();
        self.control.browses.insert(id, feed);
        self.want_control();
        (id, queue)
    }

    /// Looks for them no longer.
    pub(crate) fn stop_browse(&mut self, id: BrowseId) {
        self.node.stop_browse(id);
        self.control.browses.remove(&id);
    }

    /// Asks all nodes which groups they are in.
    pub(crate) fn ask_groups(&mut self, now: Instant) {
        self.node.ask_groups(now);
        self.want_control();
    }

    /// The groups that nodes said they are in.
    pub(crate) fn seen_groups(&self) -> Vec<SeenGroup> {
        self.node.seen_groups()
    }

    /// What the control group dropped and refused.
    pub(crate) fn control_counters(&self) -> (DiagnosisCounters, DiscoveryCounters) {
        self.node.control_counters()
    }

    /// Nothing more will come.
    pub(super) fn close_control(&mut self) {
        let control = &mut self.control;
        control.browses.values_mut().for_each(|feed| feed.close(&mut self.wakers));
        control.announced.values_mut().for_each(|a| a.feed.close(&mut self.wakers));
    }

    /// Hands what happened to services to whom it is for.
    pub(super) fn tell_discovery(&mut self, event: DiscoveryEvent) {
        let found = match event {
            DiscoveryEvent::Added { browse, found } => (browse, ServiceEvent::Added(found)),
            DiscoveryEvent::Updated { browse, found } => (browse, ServiceEvent::Updated(found)),
            DiscoveryEvent::Removed { browse, found } => (browse, ServiceEvent::Removed(found)),
            own => return self.tell_announcement(own),
        };
        let (browse, event) = found;
        if let Some(feed) = self.control.browses.get_mut(&browse) {
            feed.put(&event, &mut self.wakers);
        }
    }

    fn tell_announcement(&mut self, event: DiscoveryEvent) {
        let (service, standing, event) = match event {
            DiscoveryEvent::Announced { service, name } => {
                let standing = Standing::Announced(name.clone());
                (service, Some(standing), AnnouncementEvent::Announced(name))
            }
            DiscoveryEvent::Renamed { service, from, to, by } => {
                let event = AnnouncementEvent::Renamed { from, to, by };
                (service, Some(Standing::Asking), event)
            }
            DiscoveryEvent::Contested { service, by } => {
                (service, None, AnnouncementEvent::Contested { by })
            }
            DiscoveryEvent::Refused { service } => {
                (service, Some(Standing::Refused), AnnouncementEvent::Refused)
            }
            _ => return,
        };
        if let Some(announced) = self.control.announced.get_mut(&service) {
            announced.standing = standing.unwrap_or(announced.standing.clone());
            announced.feed.put(&event, &mut self.wakers);
        }
    }

    /// Hands what was found out about members to whoever listens to the node; if nobody does, it is logged.
    /// Requirements: `R-KEY-2`, `R-KEY-4`, `R-CONTROLGROUP-6`.
    pub(super) fn tell_diagnosis(&mut self, event: DiagnosisEvent) {
        let event = match event {
            DiagnosisEvent::KeyMismatch { name: group, members, theirs, ours, .. } => {
                // A port's own counter is looked at once a second otherwise.
                self.device.refresh_counters();
                let rejected = self.counters().qkey_violations;
                NodeEvent::KeyMismatch { group, members, theirs, ours, rejected }
            }
            DiagnosisEvent::PathMismatch { name: group, member, what, .. } => {
                NodeEvent::PathMismatch { group, member, what }
            }
            DiagnosisEvent::Corrected { name: group, member, .. } => {
                NodeEvent::MismatchOver { group, member }
            }
            DiagnosisEvent::IdentityConflict { other } => NodeEvent::IdentityConflict { other },
            _ => return,
        };
        if self.events.has_listeners() {
            tracing::debug!("{event}");
        } else {
            tracing::warn!("{event}");
        }
        self.tell(&event);
    }
}
