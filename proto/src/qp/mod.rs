//! Queue pair states, the kernel's transition tables, and a validator that explains itself.

use core::fmt;

/// A queue pair's state. (Placeholder until the tables land.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// RESET.
    Reset,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The attributes of one modify. (Placeholder until the tables land.)
#[derive(Clone, Debug, Default)]
pub struct QpAttrs {}

/// Why a step is refused. (Placeholder until the tables land.)
#[derive(Debug, thiserror::Error)]
#[error("refused")]
pub struct TransitionError;
