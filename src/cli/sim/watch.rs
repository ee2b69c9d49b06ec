//! A simulation that a user watches: it is said how far it is, and a signal ends it.
//!
//! Simulations compute for seconds between two places where they could be asked to stop: ten thousand nodes are
//! set up, or one turn's datagrams reach them all. So a simulation has a thread of its own, which is left behind when a
//! signal comes: it holds nothing but memory, and the process ends with the command.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::cli::clock::Every;
use crate::cli::exit::Failure;
use crate::cli::output::Notes;
use crate::cli::signals::Interrupt;

/// Where a simulation says how far it is.
#[derive(Debug)]
pub(super) struct Place<P>(Arc<Mutex<Option<P>>>);

impl<P> Place<P> {
    /// It is here now.
    pub(super) fn is(&self, progress: P) {
        *self.0.lock() = Some(progress);
    }
}

/// How long one wait is before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Does `work` on a thread, and tells in `words` how far it is.
///
/// # Errors
/// A signal asked for an end; the error says how far it was.
pub(super) fn watch<P, R>(
    notes: &Notes,
    words: fn(&P) -> String,
    work: impl FnOnce(&Place<P>) -> R + Send + 'static,
) -> Result<R, Failure>
where
    P: Send + 'static,
    R: Send + 'static,
{
    let interrupt = Interrupt::install()?;
    let place = Place(Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&place.0);
    let (done, ended) = channel();
    let worker = thread::Builder::new()
        .name("simulation".into())
        .spawn(move || {
            // Nobody waits for it any more if the command was interrupted.
            let _ = done.send(work(&place));
        })
        .map_err(|error| Failure::environment(format_args!("cannot start a thread: {error}")))?;
    let often = if std::io::stderr().is_terminal() { 200 } else { 2000 };
    let mut due = Every::new(Duration::from_millis(often));
    loop {
        match ended.recv_timeout(SLICE) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let panic = worker.join().expect_err("it ended without a result");
                std::panic::resume_unwind(panic);
            }
        }
        let words = || seen.lock().as_ref().map(words);
        if interrupt.is_asked() {
            let far = words().map_or("while nodes were set up".into(), |at| format!("at {at}"));
            return Err(Failure::failed(format_args!("interrupted {far}")));
        }
        if due.is_due()
            && let Some(words) = words()
        {
            notes.say(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_gives_its_result() {
        let sum = watch(
            &Notes::default(),
            |_: &u32| unreachable!("it takes no time"),
            |place| {
                place.is(1);
                2
            },
        );
        assert_eq!(sum.map_err(|failure| failure.to_string()), Ok(2));
    }

    #[test]
    #[should_panic(expected = "as it did there")]
    fn a_panic_is_not_swallowed() {
        let _ = watch(&Notes::default(), |_: &()| String::new(), |_| panic!("as it did there"));
    }
}
