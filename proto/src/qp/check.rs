//! The verdict on one modify, before any device sees it.
//!
//! The same rules as the kernel's, in the same order, with the reason kept. Some providers are lax
//! (Soft-RoCE of Linux 6.12 looks at the table only if STATE is in the mask; some adapters do with
//! less than the required set). What is refused here is refused on all of them: a program that
//! passes on the lax one would fail on the next.

use alloc::boxed::Box;
use core::fmt;

use super::{AttrMask, Path, QpAttrs, QpState, QpType, Transition, path, successors, transition};

/// What a modify asks of the table: the two states it may name, and a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    state: Option<QpState>,
    cur_state: Option<QpState>,
    others: AttrMask,
}

impl Request {
    /// A request for `state`, claiming `cur_state`, that carries `others` too.
    ///
    /// STATE and CUR_STATE in `others` count for nothing: whether they are in the mask follows from
    /// the first two arguments.
    pub const fn new(state: Option<QpState>, cur_state: Option<QpState>, others: AttrMask) -> Self {
        let others = others.without(AttrMask::STATE.union(AttrMask::CUR_STATE));
        Self { state, cur_state, others }
    }

    /// The whole mask.
    pub const fn mask(self) -> AttrMask {
        let mut mask = self.others;
        if self.state.is_some() {
            mask = mask.union(AttrMask::STATE);
        }
        if self.cur_state.is_some() {
            mask = mask.union(AttrMask::CUR_STATE);
        }
        mask
    }

    /// The attempt that this request amounts to on a queue pair held to be in `held`.
    pub fn attempt(self, qp_type: QpType, held: QpState) -> Attempt {
        let from = self.cur_state.unwrap_or(held);
        Attempt { qp_type, from, to: self.state.unwrap_or(from), mask: self.mask() }
    }
}

/// One try at a step: `UD INIT->RTR with STATE|QKEY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The queue pair's type.
    pub qp_type: QpType,
    /// The state it is in, or is claimed by CUR_STATE to be in.
    pub from: QpState,
    /// The state it is to be in; the same as `from` when the mask has no STATE.
    pub to: QpState,
    /// Everything the modify carries.
    pub mask: AttrMask,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}->{} with {}", self.qp_type, self.from, self.to, self.mask)
    }
}

/// A step that the table allows. Only [`check`] and [`check_request`] make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    attempt: Attempt,
}

impl Step {
    /// What was asked.
    pub const fn attempt(self) -> Attempt {
        self.attempt
    }

    /// The state before it.
    pub const fn from(self) -> QpState {
        self.attempt.from
    }

    /// The state after it, once the device has taken it.
    pub const fn to(self) -> QpState {
        self.attempt.to
    }

    /// Everything it carries.
    pub const fn mask(self) -> AttrMask {
        self.attempt.mask
    }

    /// Whether it changes nothing, so that it is better left out: it stays where the queue pair
    /// is and carries no attribute but STATE.
    ///
    /// `RESET->RESET` is the one to care about: legal, but there are adapters that refuse INIT after
    /// it. A modify with CUR_STATE is never a no-op, since the claim may correct what is held.
    pub fn is_noop(self) -> bool {
        self.from() == self.to() && (self.mask() - AttrMask::STATE).is_empty()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attempt.fmt(f)
    }
}

/// Judges a modify with `attrs` of a `qp_type` queue pair that is held to be in `held`.
///
/// # Errors
/// [`TransitionError`] says what is wrong and what would be right. Nothing was changed.
///
/// # Examples
/// ```
/// use qcast_proto::qp::{QpAttrs, QpState, QpType, check};
///
/// let error = check(QpType::Ud, QpState::Init, &QpAttrs::to(QpState::Rts)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "UD INIT->RTS with STATE: not a legal step, it skips RTR; go INIT->RTR->RTS",
/// );
/// ```
pub fn check(qp_type: QpType, held: QpState, attrs: &QpAttrs) -> Result<Step, TransitionError> {
    check_request(qp_type, held, attrs.request())
}

/// Judges a modify by its mask and states alone: [`check`] for masks that come from elsewhere and may
/// hold bits that [`QpAttrs`] cannot.
///
/// # Errors
/// [`TransitionError`] says what is wrong and what would be right. Nothing was changed.
pub fn check_request(
    qp_type: QpType,
    held: QpState,
    request: Request,
) -> Result<Step, TransitionError> {
    let attempt = request.attempt(qp_type, held);
    if request.cur_state.is_some_and(|claimed| !claimed.can_be_claimed()) {
        let unclaimed = Request { cur_state: None, ..request };
        let otherwise = check_request(qp_type, held, unclaimed).err().map(Box::new);
        return Err(TransitionError::CurStateMisuse { attempt, otherwise });
    }
    let Some(row) = transition(qp_type, attempt.from, attempt.to) else {
        return Err(TransitionError::IllegalTransition { attempt });
    };
    let missing = row.required - attempt.mask;
    let foreign = attempt.mask - row.allowed();
    if missing.is_empty() && foreign.is_empty() {
        Ok(Step { attempt })
    } else {
        Err(TransitionError::Attributes { attempt, row, missing, foreign })
    }
}

/// Why the table does not allow a modify. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// There is no such step, whatever it carries. [`path`](Self::path) has the legal way.
    #[error("{attempt}: not a legal step{}", Instead(*attempt))]
    IllegalTransition {
        /// What was asked.
        attempt: Attempt,
    },
    /// The step is legal, but attributes are missing, or do not belong to it, or both.
    #[error("{attempt}: {}", Misfit { row: *row, missing: *missing, foreign: *foreign })]
    Attributes {
        /// What was asked.
        attempt: Attempt,
        /// What the step must and may carry.
        row: Transition,
        /// The attributes to add; may be empty.
        missing: AttrMask,
        /// The attributes to leave out; may be empty.
        foreign: AttrMask,
    },
    /// CUR_STATE claims a state that cannot be claimed. Leave CUR_STATE out.
    #[error(
        "{attempt}: CUR_STATE can claim RTR, RTS, SQD or SQE, not {}; leave it out{}",
        attempt.from,
        Otherwise(otherwise.as_deref())
    )]
    CurStateMisuse {
        /// What was asked; its `from` is the claim.
        attempt: Attempt,
        /// What would still be wrong without CUR_STATE.
        otherwise: Option<Box<TransitionError>>,
    },
}

impl TransitionError {
    /// What was asked.
    pub const fn attempt(&self) -> Attempt {
        match self {
            Self::IllegalTransition { attempt }
            | Self::Attributes { attempt, .. }
            | Self::CurStateMisuse { attempt, .. } => *attempt,
        }
    }

    /// The attributes that the step requires and the mask lacks.
    pub fn missing(&self) -> AttrMask {
        match self {
            Self::Attributes { missing, .. } => *missing,
            Self::CurStateMisuse { otherwise: Some(error), .. } => error.missing(),
            _ => AttrMask::NONE,
        }
    }

    /// The attributes in the mask that the step does not take.
    pub fn foreign(&self) -> AttrMask {
        match self {
            Self::IllegalTransition { .. } => AttrMask::NONE,
            Self::Attributes { foreign, .. } => *foreign,
            Self::CurStateMisuse { otherwise, .. } => {
                let others = otherwise.as_ref().map_or(AttrMask::NONE, |error| error.foreign());
                others | AttrMask::CUR_STATE
            }
        }
    }

    /// The legal walk that ends where the refused step was to end, when that is not the step itself.
    ///
    /// `None` if the step is legal but for its attributes, if no modify leads there (SQE), or if the
    /// queue pair is there already (`RTR->RTR`).
    pub fn path(&self) -> Option<Path> {
        match self {
            Self::IllegalTransition { attempt } => {
                path(attempt.from, attempt.to).filter(|path| path.steps() > 1)
            }
            Self::Attributes { .. } => None,
            Self::CurStateMisuse { otherwise, .. } => otherwise.as_ref()?.path(),
        }
    }
}

/// What to do in place of a step that is not legal.
struct Instead(Attempt);

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attempt { qp_type, from, to, mask } = self.0;
        if to == QpState::Sqe && mask.contains(AttrMask::STATE) {
            return f.write_str(
                ", no modify can target SQE; a failed send of a UD or UC QP is all that leads there",
            );
        }
        if from == to {
            return Self::stay(f, qp_type, from, mask);
        }
        let path = path(from, to).expect("every state but SQE can be reached from every other");
        write!(f, ", it skips ")?;
        for (n, state) in path.skipped().iter().enumerate() {
            write!(f, "{}{state}", if n > 0 { ", " } else { "" })?;
        }
        if path.skipped().first() == Some(&QpState::Reset) {
            write!(f, "; go to RESET first: {path}")
        } else {
            write!(f, "; go {path}")
        }
    }
}

impl Instead {
    /// The advice for a modify that stays in a state in which nothing can be changed.
    fn stay(
        f: &mut fmt::Formatter<'_>,
        qp_type: QpType,
        state: QpState,
        mask: AttrMask,
    ) -> fmt::Result {
        write!(f, ", nothing can be changed while staying in {state}")?;
        let wanted = mask - AttrMask::STATE - AttrMask::CUR_STATE;
        let takes = |to: &QpState| {
            transition(qp_type, state, *to).is_some_and(|row| row.allowed().contains(wanted))
        };
        match successors(state).find(takes) {
            Some(to) if !wanted.is_empty() => {
                write!(f, "; set {} by {state}->{to}", wanted.listed())
            }
            _ => Ok(()),
        }
    }
}

/// How a mask differs from what its step takes.
struct Misfit {
    row: Transition,
    missing: AttrMask,
    foreign: AttrMask,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.missing.is_empty() {
            write!(f, "missing {}", self.missing.listed())?;
        }
        if !self.missing.is_empty() && !self.foreign.is_empty() {
            f.write_str(", and ")?;
        }
        if !self.foreign.is_empty() {
            let (foreign, allowed) = (self.foreign.listed(), self.row.allowed().listed());
            write!(f, "foreign {foreign}; the step takes only {allowed}")?;
        }
        Ok(())
    }
}

struct Otherwise<'a>(Option<&'a TransitionError>);

impl fmt::Display for Otherwise<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |error| write!(f, "; and without it, {error}"))
    }
}
