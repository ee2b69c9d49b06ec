//! A run from the first join to the last look.

use std::collections::BTreeMap;
use std::num::NonZero;

use qcast_proto::node::To;
use qcast_proto::time::{Duration, Instant};

use super::super::SimulationError;
use super::judge::{Check, Findings};
use super::script::{Change, Script};
use super::seat::{Multicast, Parcel, Seat, Step, Turns};
use super::truth::Truth;
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
    multicast: Vec<Multicast>,
    unicast: Vec<Parcel>,
    /// Seats whose next life begins then.
    restarts: BTreeMap<Instant, Vec<usize>>,
    script: Script,
    truth: Truth,
    found: Findings,
    changes: u64,
    /// Threads that the members take their turns in, where they hear as many words in a step or more.
    threads: (usize, usize),
    sent_bytes: u64,
    sent: u64,
    /// Steps of all members' lives.
    member_steps: u64,
}

/// Words that members hear in a step, all together, that are worth more than one thread.
const MANY: usize = 2000;

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
            truth: Truth::new(&config),
            found: Findings::default(),
            changes: 0,
            threads: (std::thread::available_parallelism().map_or(1, NonZero::get), MANY),
            config,
            rng,
            now: Instant::ZERO,
            seats,
            multicast: Vec::new(),
            unicast: Vec::new(),
            restarts: BTreeMap::new(),
            sent_bytes: 0,
            sent: 0,
            member_steps: 0,
        })
    }

    /// Runs it. `progress` is told how far it is, a few times a virtual second.
    pub fn run(mut self, mut progress: impl FnMut(&MembershipProgress)) -> MembershipReport {
        let end = Instant::ZERO + self.config.duration;
        let mut told = Instant::ZERO;
        while self.now < end {
            self.change();
            self.turn();
            if self.now.saturating_since(told) >= Duration::from_millis(250) {
                told = self.now;
                let members = self.seats.iter().filter(|s| s.is_up()).count();
                let violations = self.found.violations;
                progress(&MembershipProgress { now: self.now, members, violations });
            }
        }
        self.finish()
    }

    /// All members take their turn, and time goes on.
    fn turn(&mut self) {
        let turns = self.step();
        for turns in turns {
            self.member_steps += turns.lives as u64;
            self.found.add(turns.found);
            self.deliver(turns.said);
        }
        self.pass_on();
        self.now += self.config.step;
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
                self.truth.is_cut(now);
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
        s.start(self.now, &mut self.truth);
    }

    fn apply(&mut self, change: Change) {
        let now = self.now;
        let calm = |s: &Seat| s.is_up() && s.paused_until.is_none();
        let up: Vec<usize> = self.seats.iter().filter(|s| calm(s)).map(|s| s.index).collect();
        if up.len() <= 2 && change != Change::Join {
            return;
        }
        self.changes += 1;
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
                self.truth.ends(now, s.address.qpn);
            }
            Change::Crash | Change::Restart(_) => {
                s.crash();
                self.truth.ends(now, s.address.qpn);
                if let Change::Restart(pause) = change {
                    self.restarts.entry(now + pause).or_default().push(s.index);
                }
            }
            Change::Pause(span) => {
                s.paused_until = Some(now + span);
                self.truth.pauses(s.index, now + span);
            }
        }
    }

    /// Each member does what it does in a step. They do not depend on each other within it, nor on how many threads there are.
    fn step(&mut self) -> Vec<Turns> {
        let multicast = std::mem::take(&mut self.multicast);
        let step = Step {
            now: self.now,
            cut: self.script.is_cut(self.now),
            loss: self.config.loss,
            multicast: &multicast,
            truth: &self.truth,
        };
        let is_worth_it = self.seats.len() * multicast.len() >= self.threads.1;
        let threads = if is_worth_it { self.threads.0 } else { 1 };
        let share = self.seats.len().div_ceil(threads).max(1);
        let take = |seats: &mut [Seat]| {
            let mut turns = Turns::default();
            for seat in seats {
                seat.step(&step, &mut turns);
                turns.lives += usize::from(seat.life.is_some());
            }
            turns
        };
        std::thread::scope(|scope| {
            let mut shares = self.seats.chunks_mut(share);
            let own = shares.next();
            let others: Vec<_> = shares.map(|seats| scope.spawn(|| take(seats))).collect();
            let own = own.map(take);
            let others = others.into_iter().map(|t| t.join().expect("a member's turn ends"));
            own.into_iter().chain(others).collect()
        })
    }

    /// What was said to all goes on its way.
    fn deliver(&mut self, said: Vec<Parcel>) {
        for parcel in said {
            self.sent += 1;
            self.sent_bytes += parcel.bytes as u64;
            match parcel.to {
                To::Group => {
                    let Seat { node, half, .. } = self.seats[parcel.seat];
                    self.multicast.push(Multicast { parcel, node, half });
                }
                To::Peer(_) => self.unicast.push(parcel),
            }
        }
    }

    /// What was said to one goes where it is to go.
    fn pass_on(&mut self) {
        let cut = self.script.is_cut(self.now + self.config.step);
        for parcel in self.unicast.drain(..) {
            let To::Peer(to) = parcel.to else { continue };
            let Some(life) = self.truth.at(to.qpn) else { continue };
            let half = self.seats[parcel.seat].half;
            let s = &mut self.seats[life.seat];
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
                self.found.disagrees(s.index, life.count(), group.len());
            }
        }
        let received: u64 = self.seats.iter().map(|s| s.received).sum();
        let mut check = Check::default();
        self.seats.iter().for_each(|s| check.absorb(s.witness.digest.0));
        let mut report = MembershipReport {
            members: self.config.members,
            loss: self.config.loss,
            seed: self.config.seed,
            changes: self.changes,
            digest: format!("{:016x}", check.0),
            ..MembershipReport::default()
        };
        self.found.tell(&mut report);
        let member_seconds = self.config.step.as_secs_f64() * self.member_steps as f64;
        let per = |n: u64| n as f64 / member_seconds.max(1e-9);
        report.virtual_seconds = self.now.saturating_since(Instant::ZERO).as_secs_f64();
        report.bytes_per_member_per_second = per(self.sent_bytes);
        report.received_bytes_per_member_per_second = per(received);
        report.datagrams_per_member_per_second = per(self.sent);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_the_same_on_any_number_of_threads() {
        let run = |threads| {
            let mut config = MembershipSimulationConfig::new(40, 11);
            (config.loss, config.churn) = (0.05, 240.0);
            config.duration = Duration::from_secs(40);
            let mut simulation = MembershipSimulation::new(config).unwrap();
            simulation.threads = (threads, 0);
            simulation.run(|_| {})
        };
        let one = run(1);
        assert!(one.is_sound() && one.changes > 20, "{one:?}");
        for threads in [2, 3, 7] {
            assert_eq!(run(threads), one, "{threads} threads");
        }
    }

    /// A group of 20 in which one crashes after two seconds, which all have seen well before the tenth.
    fn crash_at_two_seconds(pause_first: bool) -> MembershipReport {
        let mut config = MembershipSimulationConfig::new(20, 3);
        config.duration = Duration::from_millis(9500);
        assert!(config.duration < config.failure_bound() * 2);
        let end = Instant::ZERO + config.duration;
        let mut simulation = MembershipSimulation::new(config).unwrap();
        while simulation.now < end {
            simulation.change();
            if pause_first && simulation.now == Instant::from_millis(500) {
                (0..200).for_each(|_| simulation.apply(Change::Pause(Duration::from_millis(300))));
            }
            if simulation.now == Instant::from_millis(2000) {
                simulation.apply(Change::Crash);
            }
            simulation.turn();
        }
        simulation.finish()
    }

    #[test]
    fn a_crash_in_a_short_run_is_judged() {
        let report = crash_at_two_seconds(false);
        assert!(report.is_sound(), "{:?}", report.described);
        assert!((2000..=5000).contains(&report.failure_detect_p99_ms), "{report:?}");
        assert!((2000..=5000).contains(&report.failure_detect_max_ms), "{report:?}");
    }

    #[test]
    fn what_comes_after_a_pause_is_not_judged() {
        let report = crash_at_two_seconds(true);
        assert!(report.is_sound(), "{:?}", report.described);
        assert_eq!(report.failure_detect_max_ms, 0, "{report:?}");
    }
}
