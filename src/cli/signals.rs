//! `SIGINT` and `SIGTERM`: the first asks for an end in good order, the second ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use super::exit::{Exit, Failure};

/// Whether the user wants an end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    pub(crate) fn install() -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set by the first.
            flag::register_conditional_shutdown(signal, Exit::Failed as i32, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .map_err(|error| {
                    Failure::environment(format_args!("cannot handle signals: {error}"))
                })?;
        }
        Ok(Self(asked))
    }

    /// `SIGHUP` and `SIGQUIT` ask for the same: a screen is to be put right again, whatever ends it.
    pub(crate) fn by_any(&self) -> Result<(), Failure> {
        for signal in [SIGHUP, SIGQUIT] {
            flag::register(signal, Arc::clone(&self.0)).map_err(|error| {
                Failure::environment(format_args!("cannot handle signals: {error}"))
            })?;
        }
        Ok(())
    }

    /// Asks for an end as a signal does.
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a signal came.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
