//! The seven states, and the numbers the kernel gives them.

use core::fmt;

/// The state of a queue pair.
///
/// The numbers are those of the kernel and of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QpState {
    /// New, or wiped: it holds no work and takes none.
    Reset = 0,
    /// It has its partition, port and key; receives may be posted, nothing arrives yet.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send (and to receive): the working state.
    Rts = 3,
    /// Send queue drained: what was begun is finished, what was posted later waits.
    Sqd = 4,
    /// Send queue error: later sends are flushed, receiving goes on. Only UD and UC get here, and
    /// only by a failed send.
    Sqe = 5,
    /// Error: everything that is or will be posted is flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the kernel's order.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state with the kernel's number `raw`.
    ///
    /// # Errors
    /// [`UnknownQpState`] keeps a number that is none of the seven. libibverbs has one such itself:
    /// `IBV_QPS_UNKNOWN`, 7.
    pub const fn from_raw(raw: u32) -> Result<Self, UnknownQpState> {
        match raw {
            0 => Ok(Self::Reset),
            1 => Ok(Self::Init),
            2 => Ok(Self::Rtr),
            3 => Ok(Self::Rts),
            4 => Ok(Self::Sqd),
            5 => Ok(Self::Sqe),
            6 => Ok(Self::Err),
            other => Err(UnknownQpState(other)),
        }
    }

    /// The kernel's number.
    pub const fn raw(self) -> u32 {
        self as u32
    }

    /// The name used by man pages and the specification: `RESET`, `INIT`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }

    /// Whether receives may be posted: in every state but RESET (in ERR they are flushed at once).
    pub const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether datagrams that arrive are delivered: RTR, RTS, SQD and SQE.
    pub const fn delivers(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether a posted send goes out: RTS alone.
    ///
    /// A send posted earlier is refused by Soft-RoCE and yet goes out once the queue pair reaches
    /// RTS, so ask this before posting and do not rely on the refusal.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts)
    }

    /// Whether a modify may claim this as the current state (CUR_STATE): RTR, RTS, SQD and SQE,
    /// the states between which a queue pair can move without being told.
    pub const fn can_be_claimed(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl TryFrom<u32> for QpState {
    type Error = UnknownQpState;

    fn try_from(raw: u32) -> Result<Self, UnknownQpState> {
        Self::from_raw(raw)
    }
}

/// A state number that names none of the seven states, kept as it came.
///
/// Whatever it means, a queue pair in it can still be moved to RESET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0} is no QP state (they are 0 to 6, RESET to ERR); move the QP to RESET to start anew")]
pub struct UnknownQpState(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_numbers_map_both_ways() {
        for (raw, state) in (0..).zip(QpState::ALL) {
            assert_eq!(state.raw(), raw);
            assert_eq!(QpState::from_raw(raw), Ok(state));
        }
        for raw in [7, 8, u32::MAX] {
            assert_eq!(QpState::from_raw(raw), Err(UnknownQpState(raw)));
        }
    }
}
