//! The transport types whose state tables are known here.

use core::fmt;

/// The transport type of a queue pair. qcast's data path is UD; its modify wrapper serves all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::Ud, Self::Uc, Self::Rc];

    /// The number that libibverbs gives it (`enum ibv_qp_type`).
    pub const fn raw(self) -> u32 {
        match self {
            Self::Rc => 2,
            Self::Uc => 3,
            Self::Ud => 4,
        }
    }

    /// The type with this number in `enum ibv_qp_type`, if it is one of the three.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            2 => Some(Self::Rc),
            3 => Some(Self::Uc),
            4 => Some(Self::Ud),
            _ => None,
        }
    }

    /// `UD`, `UC` or `RC`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_numbers_map_both_ways() {
        for qp_type in QpType::ALL {
            assert_eq!(QpType::from_raw(qp_type.raw()), Some(qp_type));
        }
        assert_eq!(QpType::from_raw(8), None, "RAW_PACKET has another table");
    }
}
