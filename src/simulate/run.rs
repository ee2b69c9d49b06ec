//! A simulation from beginning to end.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use qcast_proto::addr::{Gid, NodeId, QKey, group_address};
use qcast_proto::membership::Profile;
use qcast_proto::node::NodeConfig;
use qcast_proto::publish::{PublisherConfig, PublisherStats};
use qcast_proto::subscribe::SubscriberConfig;
use qcast_proto::time::{Duration, Instant};

use super::config::{OutageKind, SimulationConfig, SimulationError};
use super::judge::Judge;
use super::losses::Losses;
use super::member::{Listener, Member};
use super::report::SimulationReport;
use super::traffic::{STRANGER, Sender};
use super::world::World;
use crate::device::DeviceError;
use crate::device::impair::mix;
use crate::device::sim::{Fabric, FabricConfig, Outcome, PortConfig, Traffic};
use crate::engine::{Engine, EngineConfig, GroupSetup, RepairTimes};

/// A simulation that has not begun.
#[derive(Debug)]
pub struct Simulation {
    config: SimulationConfig,
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Virtual time.
    pub now: Instant,
    /// Messages delivered, summed over subscribers.
    pub delivered: u64,
    /// How many there will be.
    pub expected: u64,
}

/// What a simulation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Subscribers make themselves known to publishers.
    Joining,
    /// Messages are published, repaired and confirmed.
    Publishing,
    /// Everybody leaves.
    Leaving,
}

/// Turns between two calls for progress.
const PROGRESS_EVERY: u64 = 1 << 12;

/// How long subscribers have to make themselves known.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// After the last stream has ended, it is over when nothing was delivered for so long: longer than a
/// publisher is silent before it counts as lost.
const SETTLE: Duration = Duration::from_secs(5);

/// A stranger publishes so many messages at most.
const STRANGER_MESSAGES: u64 = 16;

/// A port of a publisher takes what thousands of subscribers say at once.
const PUBLISHER_SRQ: usize = 4096;

const GROUP: &str = "simulation";

impl Simulation {
    /// A simulation of what `config` says.
    ///
    /// # Errors
    /// [`SimulationError::OutOfRange`].
    pub fn new(config: SimulationConfig) -> Result<Self, SimulationError> {
        config.check()?;
        Ok(Self { config })
    }

    /// Runs it. `progress` is called every few thousand turns of nodes.
    ///
    /// # Errors
    /// [`SimulationError::Device`]: it could not begin. Everything that goes wrong later is in the report.
    pub fn run(
        self,
        mut progress: impl FnMut(&Progress),
    ) -> Result<SimulationReport, SimulationError> {
        let mut run = Run::set_up(self.config)?;
        run.join(&mut progress);
        run.publish(&mut progress);
        let mut report = run.count();
        run.leave(&mut progress);
        run.account();
        run.check_bounds(&report);
        report.turns = run.world.turns;
        report.digest = format!("{:016x}", run.world.fabric.digest());
        report.violations = run.world.wrong.count;
        report.described = std::mem::take(&mut run.world.wrong.described);
        Ok(report)
    }
}

struct Run {
    config: SimulationConfig,
    world: World,
    losses: Arc<Mutex<Losses>>,
    publishers: Range<usize>,
    began: Instant,
    told: u64,
}

impl Run {
    fn set_up(config: SimulationConfig) -> Result<Self, SimulationError> {
        let fabric_config = FabricConfig { latency: config.latency, ..FabricConfig::default() };
        let fabric = Fabric::new(fabric_config, config.seed);
        let mut world = World::new(fabric, config.turn);
        let publishers = config.subscribers..config.subscribers + config.publishers;
        let members = publishers.end + usize::from(config.stranger);
        let key = QKey::derive(GROUP, b"members");
        for index in 0..members {
            let key = if index < publishers.end { key } else { QKey::derive(GROUP, b"stranger") };
            let member = open(&config, &world.fabric, index, index >= publishers.start, key)?;
            world.members.push(member);
        }
        let losses = Arc::new(Mutex::new(Losses::default()));
        let (noted, subscribers) = (Arc::clone(&losses), 0..config.subscribers);
        world.fabric.watch_losses(move |passing, outcome| {
            noted.lock().note(passing, outcome, key.get(), &subscribers);
        });
        Ok(Self { config, world, losses, publishers, began: Instant::ZERO, told: 0 })
    }

    /// Opens subscriptions and streams, and lets the subscribers become known.
    fn join(&mut self, progress: &mut impl FnMut(&Progress)) {
        let config = &self.config;
        let stranger = config.stranger.then_some(self.publishers.end);
        for index in (0..config.subscribers).chain(stranger) {
            let member = &mut self.world.members[index];
            let mut wanted = SubscriberConfig::default();
            wanted.reliability = config.reliability;
            wanted.queue = wanted.queue.max(config.srq_depth);
            let opened = member
                .engine
                .open_subscriber(Instant::ZERO, member.group, wanted)
                .expect("the group was joined");
            let judge = Judge::new(index as u32, config, Some(index) == stranger);
            let pause = if index < config.slow { config.slow_pause } else { Duration::ZERO };
            member.listener = Some(Box::new(Listener::new(opened, judge, pause)));
        }
        for index in self.publishers.clone().chain(stranger) {
            let member = &mut self.world.members[index];
            let mut stream = PublisherConfig::default();
            stream.topic = "simulated".into();
            stream.window = config.window;
            stream.policy = config.policy;
            stream.linger = config.patience;
            let opened = member
                .engine
                .open_publisher(Instant::ZERO, member.group, stream)
                .expect("the simulator's memory is not limited");
            let (number, messages) = if Some(index) == stranger {
                (STRANGER, config.messages.min(STRANGER_MESSAGES))
            } else {
                ((index - self.publishers.start) as u32, config.messages)
            };
            member.sender = Some(Box::new(Sender::new(opened, number, messages, config)));
        }
        for index in 0..self.world.members.len() {
            self.world.wake(index);
        }
        let wanted = self.config.subscribers;
        while let Some(at) = self.world.next()
            && at < Instant::ZERO + JOIN_PATIENCE
        {
            if self.senders().all(|s| s.receivers >= wanted) {
                break;
            }
            self.step(at, Phase::Joining, progress);
        }
        let fewest = self.senders().map(|s| s.receivers).min().unwrap_or(0);
        if fewest < wanted {
            self.world
                .wrong
                .add(|| format!("only {fewest} of {wanted} subscribers made themselves known"));
        }
        self.began = self.world.now;
        self.world.delivered_at = self.world.now;
    }

    fn publish(&mut self, progress: &mut impl FnMut(&Progress)) {
        let began = self.began;
        let last = self.world.members.len();
        for index in self.publishers.start..last {
            if let Some(sender) = &mut self.world.members[index].sender {
                sender.begin(began);
            }
            self.world.wake(index);
        }
        let mut outages = self.schedule_outages();
        let over = outages.first().map_or(began, |(at, ..)| *at);
        let mut ended = None;
        while let Some(next) = self.world.next() {
            let outage = outages.last().map(|(at, ..)| *at);
            let at = outage.map_or(next, |outage| outage.min(next));
            self.step(at, Phase::Publishing, progress);
            while let Some((_, index, begins)) = outages.pop_if(|(at, ..)| *at <= self.world.now) {
                self.strike(index, begins);
            }
            let now = self.world.now;
            if ended.is_none() && self.all_senders().all(|s| s.closed.is_some()) {
                ended = Some(now);
            }
            if let Some(ended) = ended
                && outages.is_empty()
            {
                let quiet_since = self.world.delivered_at.max(ended).max(over);
                let everything = self.world.delivered >= self.expected();
                if everything || now.saturating_since(quiet_since) > SETTLE {
                    break;
                }
            }
            if now.saturating_since(self.world.delivered_at) > self.config.patience * 2 {
                self.world.wrong.add(|| format!("nothing was delivered any more at {now:?}"));
                break;
            }
        }
    }

    /// Outages in order, the first at the end: when, which, and whether it begins.
    fn schedule_outages(&self) -> Vec<(Instant, usize, bool)> {
        let mut all: Vec<_> = (self.config.outages.iter().enumerate())
            .flat_map(|(index, o)| {
                let from = self.began + o.after;
                [(from, index, true), (from + o.lasts, index, false)]
            })
            .collect();
        all.sort_by_key(|outage| std::cmp::Reverse(outage.0));
        all
    }

    fn strike(&mut self, index: usize, begins: bool) {
        let outage = self.config.outages[index].clone();
        let hit = outage.subscribers.start..outage.subscribers.end.min(self.config.subscribers);
        match outage.kind {
            OutageKind::Partition if begins => {
                let ports: Vec<usize> = hit.collect();
                self.world.fabric.partition(&[&ports], Traffic::All);
            }
            OutageKind::Partition => self.world.fabric.heal(),
            OutageKind::LinkDown => {
                hit.for_each(|port| self.world.fabric.set_link(port, !begins));
            }
            OutageKind::Pause => hit.for_each(|index| self.world.set_paused(index, begins)),
        }
    }

    /// Closes subscriptions and leaves groups, until nothing is on its way.
    fn leave(&mut self, progress: &mut impl FnMut(&Progress)) {
        self.world.fabric.heal();
        for index in 0..self.world.members.len() {
            if self.world.members[index].paused {
                self.world.set_paused(index, false);
            }
            let now = self.world.now;
            let member = &mut self.world.members[index];
            if let Some(listener) = &mut member.listener {
                listener.judge.end(self.config.messages, &mut self.world.wrong);
                member.engine.close_subscriber(now, listener.id);
            }
            // What the application holds, or never took, goes with it.
            member.listener = None;
            member.engine.leave(member.group);
            self.world.wake(index);
        }
        let until = self.world.now + SETTLE;
        while let Some(at) = self.world.next()
            && at <= until
        {
            self.step(at, Phase::Leaving, progress);
        }
        if self.world.fabric.pending_events() > 0 {
            self.world.wrong.add(|| "datagrams are still on their way after all have left".into());
        }
    }

    /// Every buffer must be where it was at the start.
    fn account(&mut self) {
        let World { members, fabric, wrong, .. } = &mut self.world;
        for (index, member) in members.iter().enumerate() {
            let engine = &member.engine;
            let [posted, on_loan, free, capacity] = engine.buffers();
            let port = fabric.accounting(index).unwrap_or_default();
            if posted + on_loan + free + port.in_completion != capacity || on_loan > 0 {
                wrong.add(|| {
                    format!(
                        "node {index} has {posted} receives posted, {on_loan} on loan, {free} free, \
                         {} in completions, of {capacity}",
                        port.in_completion
                    )
                });
            }
            let (kept, sends) =
                (engine.frames_kept(), port.sends_posted + port.sends_in_completion);
            let control = engine.control_frames();
            if kept > 0 || sends > 0 || control != control_frames(index >= self.publishers.start) {
                wrong.add(|| {
                    format!("node {index} keeps {kept} frames and has {sends} sends and {control} control frames at the end")
                });
            }
        }
    }

    fn check_bounds(&mut self, report: &SimulationReport) {
        let World { members, wrong, .. } = &mut self.world;
        if self.config.outages.is_empty() {
            let senders =
                members[self.publishers.clone()].iter().filter_map(|m| m.sender.as_deref());
            for event in senders.flat_map(|s| &s.parted) {
                wrong.add(|| format!("nothing happened to a subscriber, and yet {event:?}"));
            }
        }
        let path = &self.config.path;
        let in_order = path.reorder == 0.0 && path.duplicate == 0.0;
        if in_order && report.lost_frames == 0 && report.naks > 0 {
            wrong.add(|| format!("{} NAKs, though nothing was lost", report.naks));
        }
        // A few losses at the end of a stream may each take all of a group's requests.
        let most = self.config.max_naks_per_loss * (report.lost_frames as f64 + 10.0);
        if in_order && report.naks as f64 > most {
            wrong.add(|| format!("{} NAKs for {} lost frames", report.naks, report.lost_frames));
        }
    }

    fn step(&mut self, at: Instant, phase: Phase, progress: &mut impl FnMut(&Progress)) {
        self.world.step_to(at);
        if self.world.turns >= self.told + PROGRESS_EVERY {
            self.told = self.world.turns;
            progress(&Progress {
                phase,
                now: self.world.now,
                delivered: self.world.delivered,
                expected: self.expected(),
            });
        }
    }

    fn expected(&self) -> u64 {
        let streams = (self.config.subscribers * self.config.publishers) as u64;
        streams.saturating_mul(self.config.messages)
    }

    fn senders(&self) -> impl Iterator<Item = &Sender> {
        self.world.members[self.publishers.clone()].iter().filter_map(|m| m.sender.as_deref())
    }

    fn all_senders(&self) -> impl Iterator<Item = &Sender> {
        self.world.members[self.publishers.start..].iter().filter_map(|m| m.sender.as_deref())
    }

    fn count(&mut self) -> SimulationReport {
        let mut stats = Vec::new();
        for index in self.publishers.clone() {
            let member = &mut self.world.members[index];
            let Some(sender) = &member.sender else { continue };
            let open = member.engine.publisher_stats(sender.id);
            stats.push(open.unwrap_or_else(|| sender.stats.clone()));
        }
        let mut times = RepairTimes::default();
        let (mut suppressed, mut lost_events, mut partings) = (0, 0, 0);
        for member in &self.world.members[..self.config.subscribers] {
            times.merge(member.engine.repair_times());
            suppressed += member.engine.stream_stats(member.group).suppressed;
            if let Some(listener) = &member.listener {
                lost_events += listener.judge.lost_events;
                partings += listener.judge.partings;
            }
        }
        let losses = self.losses.lock();
        let sum = |of: fn(&PublisherStats) -> u64| stats.iter().map(of).sum::<u64>();
        let per_loss = |n: u64| n as f64 / losses.distinct().max(1) as f64;
        let rtt = self.config.rtt();
        let in_rtts = |t: Option<Duration>| t.unwrap_or_default().as_secs_f64() / rtt.as_secs_f64();
        let measured = stats.iter().map(|s| s.rtt).max().unwrap_or_default();
        let fabric = &self.world.fabric;
        SimulationReport {
            subscribers: self.config.subscribers,
            publishers: self.config.publishers,
            messages: self.config.messages,
            size: self.config.size,
            loss: self.config.path.loss,
            seed: self.config.seed,
            lost_events,
            partings,
            delivered: self.world.delivered,
            naks_per_loss: per_loss(sum(|s| s.naks)),
            repairs_per_loss: per_loss(sum(|s| s.repairs)),
            repair_p50_rtt: in_rtts(times.quantile(0.5)),
            repair_p99_rtt: in_rtts(times.quantile(0.99)),
            repair_max_rtt: in_rtts(Some(times.longest())),
            rtt_seconds: rtt.as_secs_f64(),
            measured_rtt_seconds: measured.as_secs_f64(),
            frames: sum(|s| s.frames),
            lost_frames: losses.distinct(),
            lost_datagrams: losses.datagrams,
            unposted: losses.unposted,
            naks: sum(|s| s.naks),
            repairs: sum(|s| s.repairs),
            multicast_repairs: sum(|s| s.multicast_repairs),
            damped: sum(|s| s.damped),
            suppressed,
            statuses: sum(|s| s.statuses),
            heartbeats: sum(|s| s.heartbeats),
            wrong_key: fabric.tally(Outcome::WrongQkey),
            arrivals: fabric.tally(Outcome::Delivered),
            join_seconds: self.began.as_nanos() as f64 / 1e9,
            virtual_seconds: self.world.now.saturating_since(self.began).as_secs_f64(),
            ..SimulationReport::default()
        }
    }
}

/// Opens a port and a node on it, and joins the group.
fn open(
    config: &SimulationConfig,
    fabric: &Fabric,
    index: usize,
    publishes: bool,
    qkey: QKey,
) -> Result<Member, DeviceError> {
    let srq_depth = if publishes { PUBLISHER_SRQ } else { config.srq_depth };
    let port = PortConfig {
        mtu: config.mtu,
        rx: config.path,
        rate: Some(config.bandwidth),
        max_srq_wr: srq_depth,
        ..PortConfig::default()
    };
    let device = fabric.open(port);
    let name = if publishes { format!("publisher {index}") } else { format!("subscriber {index}") };
    let mut node = NodeConfig::new(NodeId(index as u128 + 1), 1, name);
    node.receive_window = config.srq_depth / 2;
    let mut setup = EngineConfig::new(node, mix(config.seed, index as u64));
    setup.srq_depth = srq_depth;
    setup.control_frames = control_frames(publishes);
    let mut engine = Engine::new(Instant::ZERO, Box::new(device), setup)?;
    let mgid = Gid::from(IpAddr::V4(group_address(GROUP)));
    let group = GroupSetup { name: GROUP.into(), mgid, qkey, profile: Profile::default() };
    let ticket = engine.start_join(group, Instant::ZERO + JOIN_PATIENCE)?;
    engine.turn(Instant::ZERO);
    let group = engine
        .take_joined(ticket)
        .expect("joins take no time on this fabric")
        .expect("the fabric refuses no join");
    Ok(Member::new(engine, group))
}

/// Control frames of a node: a subscriber says one thing at a time.
fn control_frames(publishes: bool) -> usize {
    if publishes { 64 } else { 4 }
}
