//! The transition table, as data.
//!
//! One row per legal pair of states, with what each transport type must and may carry. The pairs are
//! the same for the three types; the attributes are not. STATE is in no row: it is always allowed.
//! The rows were compared with the kernel's own table in Linux 4.4, 6.1 and 6.12, which agree.

use super::QpState::{self, Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use super::{AttrMask, QpType};

/// What a modify from one state to another carries besides STATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// The attributes that must be present.
    pub required: AttrMask,
    /// The attributes that may be present.
    pub optional: AttrMask,
}

impl Transition {
    /// The smallest mask that makes this step: the required attributes and STATE.
    pub const fn mask(self) -> AttrMask {
        self.required.union(AttrMask::STATE)
    }

    /// Everything that a mask for this step may hold.
    pub const fn allowed(self) -> AttrMask {
        self.mask().union(self.optional)
    }
}

/// What a modify of a `qp_type` queue pair from `from` to `to` must and may carry; `None` if it is
/// not a legal step.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    let row = ROWS.iter().find(|row| row.from == from && row.to == to)?;
    Some(match qp_type {
        QpType::Ud => row.ud,
        QpType::Uc => row.uc,
        QpType::Rc => row.rc,
    })
}

/// The states that a modify can reach from `from` in one step, in the kernel's order.
pub fn successors(from: QpState) -> impl Iterator<Item = QpState> {
    ROWS.iter().filter(move |row| row.from == from).map(|row| row.to)
}

/// Every legal pair of states, by rising `from`, then `to`.
pub fn pairs() -> impl Iterator<Item = (QpState, QpState)> {
    ROWS.iter().map(|row| (row.from, row.to))
}

struct Row {
    from: QpState,
    to: QpState,
    ud: Transition,
    uc: Transition,
    rc: Transition,
}

/// A row whose step takes no attribute whatever the type.
const fn bare(from: QpState, to: QpState) -> Row {
    Row { from, to, ud: NOTHING, uc: NOTHING, rc: NOTHING }
}

const NOTHING: Transition = Transition { required: AttrMask::NONE, optional: AttrMask::NONE };

macro_rules! mask {
    ($($name:ident)*) => { AttrMask::NONE$(.union(AttrMask::$name))* };
}

/// `must!(A B; may C D)`: requires A and B, allows C and D.
macro_rules! must {
    ($($required:ident)*; may $($optional:ident)*) => {
        Transition { required: mask!($($required)*), optional: mask!($($optional)*) }
    };
}

const ROWS: &[Row] = &[
    bare(Reset, Reset),
    Row {
        from: Reset,
        to: Init,
        ud: must!(PKEY_INDEX PORT QKEY; may),
        uc: must!(PKEY_INDEX PORT ACCESS_FLAGS; may),
        rc: must!(PKEY_INDEX PORT ACCESS_FLAGS; may),
    },
    bare(Init, Reset),
    Row {
        from: Init,
        to: Init,
        ud: must!(; may PKEY_INDEX PORT QKEY),
        uc: must!(; may PKEY_INDEX PORT ACCESS_FLAGS),
        rc: must!(; may PKEY_INDEX PORT ACCESS_FLAGS),
    },
    Row {
        from: Init,
        to: Rtr,
        ud: must!(; may PKEY_INDEX QKEY),
        uc: must!(AV PATH_MTU DEST_QPN RQ_PSN; may ALT_PATH ACCESS_FLAGS PKEY_INDEX),
        rc: must!(
            AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER;
            may ALT_PATH ACCESS_FLAGS PKEY_INDEX
        ),
    },
    bare(Init, Err),
    bare(Rtr, Reset),
    Row {
        from: Rtr,
        to: Rts,
        ud: must!(SQ_PSN; may CUR_STATE QKEY),
        uc: must!(SQ_PSN; may CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE),
        rc: must!(
            TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC;
            may CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
        ),
    },
    bare(Rtr, Err),
    bare(Rts, Reset),
    Row {
        from: Rts,
        to: Rts,
        ud: must!(; may CUR_STATE QKEY),
        uc: must!(; may CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE),
        rc: must!(; may CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER),
    },
    Row {
        from: Rts,
        to: Sqd,
        ud: must!(; may EN_SQD_ASYNC_NOTIFY),
        uc: must!(; may EN_SQD_ASYNC_NOTIFY),
        rc: must!(; may EN_SQD_ASYNC_NOTIFY),
    },
    bare(Rts, Err),
    bare(Sqd, Reset),
    Row {
        from: Sqd,
        to: Rts,
        ud: must!(; may CUR_STATE QKEY),
        uc: must!(; may CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE),
        rc: must!(; may CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE),
    },
    Row {
        from: Sqd,
        to: Sqd,
        ud: must!(; may PKEY_INDEX QKEY),
        uc: must!(; may AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE),
        rc: must!(
            ;
            may PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH
                ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
        ),
    },
    bare(Sqd, Err),
    bare(Sqe, Reset),
    Row {
        from: Sqe,
        to: Rts,
        ud: must!(; may CUR_STATE QKEY),
        uc: must!(; may CUR_STATE ACCESS_FLAGS),
        // Legal, though an RC queue pair never enters SQE by itself.
        rc: NOTHING,
    },
    bare(Sqe, Err),
    bare(Err, Reset),
    bare(Err, Err),
];
