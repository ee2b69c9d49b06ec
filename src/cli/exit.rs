//! How a command ends: the exit code, and what is said on standard error.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed |
//! | 2 | the command line is wrong; nothing was started |
//! | 3 | the environment: device, permission, limits |
//! | 4 | messages were lost |
//!
//! A reader that closes standard output, as `head` does, has seen enough: the command ends with 0 and
//! says nothing.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit code of a command that ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what it was asked to.
    Done = 0,
    /// It did not.
    Failed = 1,
    /// It was asked for something that makes no sense.
    Usage = 2,
    /// The machine does not let it.
    Environment = 3,
    /// It ran to its end, and messages were lost for good on the way.
    Lost = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What every command gives.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Why a command could not go on.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    /// Empty when there is nothing to say.
    text: String,
}

impl Failure {
    /// The work failed.
    pub(crate) fn failed(text: impl fmt::Display) -> Self {
        Self { exit: Exit::Failed, text: text.to_string() }
    }

    /// The command line is wrong in a way that only shows once it is put together.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self { exit: Exit::Usage, text: text.to_string() }
    }

    /// The machine does not let the command do its work.
    pub(crate) fn environment(text: impl fmt::Display) -> Self {
        Self { exit: Exit::Environment, text: text.to_string() }
    }

    /// The work failed because of `error`; `what` says which step.
    pub(crate) fn because(what: impl fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::failed(format_args!("{what}: {}", Chain(error)))
    }

    /// Standard output cannot be written. When nobody reads it any more that is the end, not an error.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self { exit: Exit::Done, text: String::new() }
        } else {
            Self::failed(format_args!("cannot write standard output: {error}"))
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error and its causes in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            // Many errors say at their end what their source says, and transparent ones say nothing else.
            let next = error.to_string();
            if !said.ends_with(&next) {
                write!(f, ": {next}")?;
            }
            said = next;
            source = error.source();
        }
        Ok(())
    }
}

/// Ends the process's `main`: says what is to be said, and gives the code.
pub(crate) fn end(outcome: &Outcome) -> ExitCode {
    match outcome {
        Ok(exit) => (*exit).into(),
        Err(failure) => {
            if !failure.text.is_empty() {
                // Nobody can be told that standard error is closed.
                let _ = writeln!(io::stderr(), "qcast: {failure}");
            }
            failure.exit.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Inner(#[from] io::Error);

    #[test]
    fn causes_are_told_once_each() {
        let error = Outer(Inner(io::Error::from(io::ErrorKind::NotFound)));
        assert_eq!(Chain(&error).to_string(), "outer: entity not found");
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let left = Failure::output(&io::ErrorKind::BrokenPipe.into());
        assert_eq!((left.exit, left.to_string()), (Exit::Done, String::new()));
        let full = Failure::output(&io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit, Exit::Failed);
    }
}
