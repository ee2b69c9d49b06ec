//! A run from the first join to the last look.

use std::collections::BTreeMap;
use std::num::NonZero;

use qcast_proto::addr::Qpn;
use qcast_proto::node::To;
use qcast_proto::time::{Duration, Instant};

use super::super::SimulationError;
use super::judge::Judge;
use super::script::{Change, Script};
use super::seat::{Multicast, Parcel, Seat};
use super::{MembershipReport, MembershipSimulationConfig};

/// How far a run is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MembershipProgress {
    /// Virtual time.
    pub now: Instant,
    /// Members that are there.
    pub members: usize,
    /// What does not hold so far.
    pub violations: u64,
}

/// Members of a group in virtual time. See [`MembershipSimulationConfig`].
#[derive(Debug)]
pub struct MembershipSimulation {
    config: MembershipSimulationConfig,
    rng: fastrand::Rng,
    now: Instant,
    seats: Vec<Seat>,
    /// Where each address leads to.
    by_qpn: BTreeMap<Qpn, usize>,
    next_qpn: u32,
    multicast: Vec<Multicast>,
    unicast: Vec<Parcel>,
    /// Seats whose next life begins then.
    restarts: BTreeMap<Instant, Vec<usize>>,
    script: Script,
    judge: Judge,
    sent_bytes: u64,
    sent: u64,
    member_seconds: f64,
}

impl MembershipSimulation {
    /// Sets a run up.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn new(config: MembershipSimulationConfig) -> Result<Self, SimulationError> {
        config.check()?;
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let seats = (0..config.members).map(|index| Seat::new(index, rng.u64(..))).collect();
        Ok(Self {
            script: Script::new(&config),
            judge: Judge::new(&config),
            config,
            rng,
            now: Instant::ZERO,
            seats,
            by_qpn: BTreeMap::new(),
            next_qpn: 1,
            multicast: Vec::new(),
            unicast: Vec::new(),
            restarts: BTreeMap::new(),
            sent_bytes: 0,
            sent: 0,
            member_seconds: 0.0,
        })
    }

    /// Runs it. `progress` is told how far it is, a few times a virtual second.
    pub fn run(mut self, mut progress: impl FnMut(&MembershipProgress)) -> MembershipReport {
        let end = Instant::ZERO + self.config.duration;
        let mut told = Instant::ZERO;
        while self.now < end {
            self.change();
            self.step();
            self.deliver();
            self.now += self.config.step;
            if self.now.saturating_since(told) >= Duration::from_millis(250) {
                told = self.now;
                let members = self.seats.iter().filter(|s| s.is_up()).count();
                let violations = self.judge.report.violations;
                progress(&MembershipProgress { now: self.now, members, violations });
            }
        }
        self.finish()
    }

    /// Members come and go.
    fn change(&mut self) {
        let now = self.now;
        let joining = self.config.joining();
        let due = now.saturating_since(Instant::ZERO).as_secs_f64() / joining.as_secs_f64();
        let due = (due * self.config.members as f64).ceil().max(1.0) as usize;
        while self.next_first() < due.min(self.config.members) {
            self.start(self.next_first());
        }
        while let Some((at, _)) = self.restarts.first_key_value()
            && *at <= now
        {
            let (_, seats) = self.restarts.pop_first().expect("it was there a moment ago");
            seats.into_iter().for_each(|seat| self.start(seat));
        }
        if let Some((from, to)) = self.script.cut {
            if now >= from && now < from + self.config.step {
                self.seats.iter_mut().for_each(|s| s.half = self.rng.bool());
            }
            if now >= from && now < to + Duration::from_secs(1) {
                self.seats.iter_mut().for_each(|s| s.excused = now);
            }
        }
        while let Some(change) = self.script.next(now, &mut self.rng) {
            self.apply(change);
        }
    }

    /// The first seat that has not been taken; seats are first taken in order.
    fn next_first(&self) -> usize {
        self.seats.partition_point(|s| s.incarnation > 0)
    }

    fn start(&mut self, seat: usize) {
        let s = &mut self.seats[seat];
        if s.life.is_some() {
            return;
        }
        s.start(self.now, self.next_qpn);
        self.by_qpn.insert(s.address.qpn, seat);
        self.next_qpn += 1;
        self.judge.began(self.now, s);
    }

    fn apply(&mut self, change: Change) {
        let now = self.now;
        let calm = |s: &Seat| s.is_up() && s.paused_until.is_none();
        let up: Vec<usize> = self.seats.iter().filter(|s| calm(s)).map(|s| s.index).collect();
        if up.len() <= 2 && change != Change::Join {
            return;
        }
        self.judge.report.changes += 1;
        if change == Change::Join {
            let index = self.seats.len();
            let waits = |s: &&Seat| {
                s.life.is_none() && !self.restarts.values().flatten().any(|w| *w == s.index)
            };
            // Whoever is gone comes back as another node would: in a new life.
            let gone = self.seats.iter().filter(waits).map(|s| s.index).next();
            let seat = gone.unwrap_or(index);
            if seat == index {
                self.seats.push(Seat::new(index, self.rng.u64(..)));
            }
            return self.start(seat);
        }
        let s = &mut self.seats[up[self.rng.usize(..up.len())]];
        match change {
            Change::Join => {}
            Change::Leave => {
                s.leave(now);
                self.judge.ended(now, s, true);
            }
            Change::Crash | Change::Restart(_) => {
                s.crash();
                self.judge.ended(now, s, false);
                if let Change::Restart(pause) = change {
                    self.restarts.entry(now + pause).or_default().push(s.index);
                }
            }
            Change::Pause(span) => {
                s.paused_until = Some(now + span);
                s.excused = now + span;
            }
        }
    }

    /// All members take their turn; they do not depend on each other within a step.
    fn step(&mut self) {
        let (now, loss) = (self.now, self.config.loss);
        let cut = self.script.is_cut(now);
        let multicast = std::mem::take(&mut self.multicast);
        let work = self.seats.len() * multicast.len();
        let threads = if work < 2000 {
            1
        } else {
            std::thread::available_parallelism().map_or(1, NonZero::get)
        };
        let share = self.seats.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut shares = self.seats.chunks_mut(share);
            let own = shares.next();
            for seats in shares {
                let multicast = &multicast;
                scope.spawn(move || {
                    seats.iter_mut().for_each(|s| s.step(now, cut, loss, multicast))
                });
            }
            for s in own.into_iter().flatten() {
                s.step(now, cut, loss, &multicast);
            }
        });
        self.member_seconds += self.config.step.as_secs_f64()
            * self.seats.iter().filter(|s| s.life.is_some()).count() as f64;
    }

    /// What was said goes on its way, and what was told is judged.
    fn deliver(&mut self) {
        let arrives = self.now + self.config.step;
        for at in 0..self.seats.len() {
            let told = std::mem::take(&mut self.seats[at].told);
            for event in &told {
                self.judge.told(self.now, at, &self.seats, event);
            }
            let Seat { half, incarnation, .. } = self.seats[at];
            let out = std::mem::take(&mut self.seats[at].out);
            for parcel in out {
                self.sent += 1;
                self.sent_bytes += parcel.bytes as u64;
                match parcel.to {
                    To::Group => {
                        let node = self.seats[at].node;
                        self.multicast.push(Multicast { parcel, node, incarnation, half });
                    }
                    To::Peer(_) => self.unicast.push(parcel),
                }
            }
        }
        let cut = self.script.is_cut(arrives);
        for parcel in self.unicast.drain(..) {
            let To::Peer(to) = parcel.to else { continue };
            let Some(&seat) = self.by_qpn.get(&to.qpn) else { continue };
            let half = self.seats[parcel.seat].half;
            let s = &mut self.seats[seat];
            if s.address != to || (cut && s.half != half) || self.rng.f64() < self.config.loss {
                continue;
            }
            s.received += parcel.bytes as u64;
            s.inbox.push((parcel.from, parcel.word));
        }
    }

    fn finish(mut self) -> MembershipReport {
        let up = self.seats.iter().filter(|s| s.is_up());
        let group: Vec<_> = up.map(|s| (s.node, s.incarnation)).collect();
        for s in self.seats.iter().filter(|s| s.is_up()) {
            let life = s.life.as_ref().expect("it is up");
            let complete = life.count() == group.len()
                && group.iter().all(|(node, incarnation)| life.contains(*node, *incarnation));
            if !complete {
                self.judge.disagrees(s, life.count(), group.len());
            }
        }
        let received: u64 = self.seats.iter().map(|s| s.received).sum();
        let mut report = self.judge.into_report();
        let per = |n: u64| n as f64 / self.member_seconds.max(1e-9);
        report.virtual_seconds = self.now.saturating_since(Instant::ZERO).as_secs_f64();
        report.bytes_per_member_per_second = per(self.sent_bytes);
        report.received_bytes_per_member_per_second = per(received);
        report.datagrams_per_member_per_second = per(self.sent);
        report
    }
}
