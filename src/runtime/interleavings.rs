//! Every interleaving of those who drive, sleep and wake, on a model of this module's protocol.
//!
//! Each thread is a list of steps, one for each access to shared state; all orders of them are walked.
//! No timer ends a sleep in the model, so a state in which nobody can take a step, and something is still
//! to be done, is a lost wake-up. That the walk can find one is shown with faults put in.

use std::collections::HashSet;

/// What is left out of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// A wake-up leaves no mark for whoever is awake, but past its last turn.
    NoMark,
    /// A turn on an application thread does not wake a driver for what it brought.
    NoHandOver,
    /// A driver does not look for what came before it sleeps.
    NoLook,
    /// The progress thread does not look at the seat before it sleeps.
    NoSeat,
    /// A driver that leaves does not look for what was left to it.
    NoLastLook,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    // The progress thread.
    StandBy,
    Parked,
    LockPoller,
    // Whoever drives: a turn, and a sleep.
    Clear,
    Turn,
    LookPending,
    LookEnough,
    Announce,
    LookPendingAgain,
    LookEnoughAgain,
    Asleep,
    Awake,
    // A thread that waits for a message by driving.
    Claim,
    TryPoller,
    CallPending,
    CallSwap,
    WaitPoller,
    Seated,
    Done,
    LeaveAwake,
    LeaveSeat,
    LeaveSwap,
    LeavePending,
    Summon,
    // A thread that publishes.
    Publish,
    Mark,
    IsAwake,
    Inline,
    InlineTurn,
    WakeMark,
    WakeSwap,
    WakePoller,
    End,
}

const PROGRESS: usize = 0;
const DRIVER: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    at: [At; 4],
    /// Messages that a thread has still to publish, or to receive.
    left: [u8; 4],
    awake: bool,
    pending: bool,
    taken: bool,
    /// Who has the poller.
    poller: Option<usize>,
    /// The waker's mark in the poller.
    called: bool,
    /// Messages that no turn has seen, and messages that the driver has not taken.
    unseen: u8,
    brought: u8,
}

impl World {
    fn new(publishers: usize, messages: u8) -> Self {
        let mut at = [At::StandBy, At::Claim, At::End, At::End];
        let mut left = [0, messages * publishers as u8, 0, 0];
        at[2..2 + publishers].fill(At::Publish);
        left[2..2 + publishers].fill(messages);
        Self {
            at,
            left,
            awake: true,
            pending: false,
            taken: false,
            poller: None,
            called: false,
            unseen: 0,
            brought: 0,
        }
    }

    /// Runs a turn. Says whether it brought something.
    fn turn(&mut self) -> bool {
        self.brought += self.unseen;
        std::mem::take(&mut self.unseen) > 0
    }

    fn enough(&mut self, who: usize, fault: Fault) -> bool {
        match who {
            PROGRESS => self.taken && fault != Fault::NoSeat,
            _ => self.take(),
        }
    }

    /// Takes what was brought to the driver.
    fn take(&mut self) -> bool {
        let some = self.brought > 0;
        self.left[DRIVER] -= std::mem::take(&mut self.brought);
        some
    }

    /// The states after the next step of one thread; none if it cannot take one.
    fn step(&self, who: usize, fault: Fault) -> Vec<Self> {
        let mut w = *self;
        let go = |mut w: Self, at: At| {
            w.at[who] = at;
            vec![w]
        };
        // What follows when a driver's step is over.
        let over = |mut w: Self| {
            if who == PROGRESS {
                w.poller = None;
                w.at[who] = At::StandBy;
            } else {
                w.at[who] = At::Seated;
            }
            vec![w]
        };
        match self.at[who] {
            At::StandBy if self.taken => go(w, At::Parked),
            // Nobody called, and the seat was left just now, or long ago.
            At::StandBy if !self.awake => [go(w, At::Parked), go(w, At::LockPoller)].concat(),
            At::StandBy => go(w, At::LockPoller),
            // The park has a timeout, so the call that ends it is left out.
            At::Parked => go(w, At::StandBy),
            At::LockPoller if self.poller.is_some() => vec![],
            At::LockPoller if self.taken => go(w, At::StandBy),
            At::LockPoller => {
                w.poller = Some(who);
                go(w, At::Clear)
            }
            At::Clear => {
                w.pending = false;
                go(w, At::Turn)
            }
            At::Turn => {
                w.turn();
                go(w, At::LookPending)
            }
            At::LookPending if self.pending => over(w),
            At::LookPending => go(w, At::LookEnough),
            At::LookEnough if fault == Fault::NoLook && who != PROGRESS => go(w, At::Announce),
            At::LookEnough => {
                if w.enough(who, fault) {
                    over(w)
                } else {
                    go(w, At::Announce)
                }
            }
            At::Announce => {
                w.awake = false;
                go(w, At::LookPendingAgain)
            }
            At::LookPendingAgain if self.pending => go(w, At::Awake),
            At::LookPendingAgain => go(w, At::LookEnoughAgain),
            At::LookEnoughAgain if fault == Fault::NoLook && who != PROGRESS => go(w, At::Asleep),
            At::LookEnoughAgain => {
                let next = if w.enough(who, fault) { At::Awake } else { At::Asleep };
                go(w, next)
            }
            At::Asleep if !self.called => vec![],
            At::Asleep => {
                w.called = false;
                go(w, At::Awake)
            }
            At::Awake => {
                w.awake = true;
                over(w)
            }

            At::Claim => {
                w.taken = true;
                go(w, At::TryPoller)
            }
            At::TryPoller if self.poller.is_some() => go(w, At::CallPending),
            At::TryPoller => {
                w.poller = Some(who);
                w.awake = true;
                go(w, At::Seated)
            }
            At::CallPending => {
                w.pending = fault != Fault::NoMark || w.pending;
                go(w, At::CallSwap)
            }
            At::CallSwap => {
                w.called |= !w.awake;
                w.awake = true;
                go(w, At::WaitPoller)
            }
            At::WaitPoller if self.poller.is_some() => vec![],
            At::WaitPoller => {
                w.poller = Some(who);
                w.awake = true;
                go(w, At::Seated)
            }
            At::Seated => {
                let before = w.left[who];
                if w.take() || before == 0 {
                    w.poller = None;
                    return go(w, At::LeaveAwake);
                }
                // What was taken in the step is enough, too.
                go(w, At::Clear)
            }
            At::LeaveAwake => {
                w.awake = false;
                go(w, At::LeaveSeat)
            }
            At::LeaveSeat => {
                w.taken = false;
                go(w, if fault == Fault::NoLastLook { At::Done } else { At::LeaveSwap })
            }
            At::LeaveSwap => {
                let called = std::mem::take(&mut w.awake);
                go(w, if called { At::Summon } else { At::LeavePending })
            }
            At::LeavePending => go(w, if self.pending { At::Summon } else { At::Done }),
            At::Summon => {
                w.awake = true;
                w.called = true;
                go(w, At::Done)
            }
            At::Done => go(w, if self.left[who] == 0 { At::End } else { At::Claim }),

            At::Publish if self.left[who] == 0 => go(w, At::End),
            At::Publish => {
                w.left[who] -= 1;
                w.unseen += 1;
                // Through an outbox, or as what is opened and closed: in the engine itself.
                [go(w, At::Mark), go(w, At::WakeMark)].concat()
            }
            At::Mark => {
                w.pending = true;
                go(w, At::IsAwake)
            }
            At::IsAwake if self.awake => go(w, At::Publish),
            // A turn of its own, or, a moment after the last one, a wake-up only.
            At::IsAwake => [go(w, At::Inline), go(w, At::WakeMark)].concat(),
            At::Inline => {
                w.pending = false;
                go(w, At::InlineTurn)
            }
            At::InlineTurn => {
                let handed = w.turn() && w.taken && fault != Fault::NoHandOver;
                go(w, if handed || self.pending { At::WakeMark } else { At::Publish })
            }
            At::WakeMark => {
                w.pending = fault != Fault::NoMark || w.pending;
                go(w, At::WakeSwap)
            }
            At::WakeSwap => {
                let was = std::mem::replace(&mut w.awake, true);
                go(w, if was { At::Publish } else { At::WakePoller })
            }
            At::WakePoller => {
                w.called = true;
                go(w, At::Publish)
            }
            At::End => vec![],
        }
    }

    fn is_lost(&self) -> bool {
        self.unseen > 0 || self.at[DRIVER] != At::End
    }
}

/// Walks everything that can happen. A state in which something is left and nobody goes on, or the number
/// of states.
fn walk(publishers: usize, messages: u8, fault: Fault) -> Result<usize, World> {
    let first = World::new(publishers, messages);
    let mut seen = HashSet::from([first]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let mut stuck = true;
        for who in 0..world.at.len() {
            for next in world.step(who, fault) {
                stuck = false;
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        if stuck && world.is_lost() {
            return Err(world);
        }
    }
    Ok(seen.len())
}

#[test]
fn no_wake_up_is_lost() {
    for (publishers, messages) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
        match walk(publishers, messages, Fault::Nothing) {
            Ok(states) => println!("{publishers} publishers of {messages}: {states} states"),
            Err(world) => panic!("nobody goes on: {world:#?}"),
        }
    }
}

#[test]
fn the_walk_finds_lost_wake_ups() {
    for fault in [Fault::NoMark, Fault::NoHandOver, Fault::NoLook, Fault::NoSeat] {
        assert!(walk(1, 2, fault).is_err(), "{fault:?} was not found");
    }
    // The progress thread's next look, in time, makes up for this one.
    assert!(walk(1, 2, Fault::NoLastLook).is_ok());
}
