//! The way from state to state: breadth-first search over the table.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::{QpState, QpType, Transition, successors, transition};

/// A legal walk: the states from start to end, each one modify after the one before it.
///
/// A walk of one state has no steps: the queue pair is there already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    // Never empty.
    states: Vec<QpState>,
}

impl Path {
    /// The states, the start included.
    pub fn states(&self) -> &[QpState] {
        &self.states
    }

    /// How many modifies it takes.
    pub fn steps(&self) -> usize {
        self.states.len() - 1
    }

    /// Where it starts.
    pub fn from(&self) -> QpState {
        self.states[0]
    }

    /// Where it ends.
    pub fn to(&self) -> QpState {
        self.states[self.states.len() - 1]
    }

    /// The steps, each with what it must and may carry for `qp_type`; its smallest mask is
    /// [`Transition::mask`].
    pub fn hops(&self, qp_type: QpType) -> impl Iterator<Item = Hop> {
        self.states.windows(2).map(move |pair| Hop {
            from: pair[0],
            to: pair[1],
            transition: transition(qp_type, pair[0], pair[1]).expect("a path follows the table"),
        })
    }

    /// The states between start and end.
    pub(super) fn skipped(&self) -> &[QpState] {
        self.states.get(1..self.steps()).unwrap_or_default()
    }
}

/// `INIT->RTR->RTS`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from())?;
        self.states[1..].iter().try_for_each(|state| write!(f, "->{state}"))
    }
}

/// One step of a [`Path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The state before it.
    pub from: QpState,
    /// The state after it.
    pub to: QpState,
    /// What it must and may carry.
    pub transition: Transition,
}

/// The shortest legal walk from `from` to `to`, the same for every queue pair type; `None` if there
/// is none: no modify leads to SQE.
///
/// From a state to itself there are no steps, except that SQE has no walk even from itself: asking
/// for it is always a mistake.
pub fn path(from: QpState, to: QpState) -> Option<Path> {
    if to == QpState::Sqe {
        return None;
    }
    let mut came_from = [None; QpState::ALL.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(state) = queue.pop_front() {
        if state == to {
            let mut states = vec![to];
            let mut at = to;
            while let Some(before) = came_from[at as usize] {
                states.push(before);
                at = before;
            }
            states.reverse();
            return Some(Path { states });
        }
        for next in successors(state) {
            if next != from && came_from[next as usize].is_none() {
                came_from[next as usize] = Some(state);
                queue.push_back(next);
            }
        }
    }
    None
}

/// The cheapest legal walk that brings a queue pair in `from` to RTS.
///
/// From SQE and SQD that is one step and keeps the keys; from ERR it is
/// `ERR->RESET->INIT->RTR->RTS`; from RTS there is nothing to do.
pub fn walk_to_rts(from: QpState) -> Path {
    path(from, QpState::Rts).expect("every state leads to RTS, through RESET if by nothing else")
}

/// The walk to RTS that starts anew: through RESET from wherever the queue pair is.
///
/// What to try when [`walk_to_rts`] failed half-way, or when what the queue pair holds is not
/// trusted. From RESET there is no redundant `RESET->RESET`: some adapters refuse INIT after one.
pub fn reset_walk(from: QpState) -> Path {
    let mut states = Vec::new();
    if from != QpState::Reset {
        states.push(from);
    }
    states.extend_from_slice(walk_to_rts(QpState::Reset).states());
    Path { states }
}
