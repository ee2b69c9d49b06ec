//! A capture that comes while it is decoded, by standard input.
//!
//! Ctrl-C reaches both ends of `tcpdump -w - | qcast decode -`. The other end then writes what it still has, so a signal
//! only says that the end is near: it is where nothing comes any more.

use std::io::{self, Read};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::cli::ahead::{self, Chunks};
use crate::cli::exit::Failure;
use crate::cli::signals::Interrupt;

/// Standard input, until its end or a signal.
#[derive(Debug)]
pub(super) struct Live {
    chunks: Chunks,
    chunk: io::Cursor<Vec<u8>>,
    interrupt: Interrupt,
}

/// How long one wait is before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// After a signal it is over when nothing came for so long.
const SILENCE: Duration = Duration::from_millis(500);

impl Live {
    /// Takes standard input and the signals over.
    pub(super) fn open() -> Result<Self, Failure> {
        let interrupt = Interrupt::install()?;
        Ok(Self { chunks: ahead::read(io::stdin()), chunk: io::Cursor::default(), interrupt })
    }

    /// The next chunk; empty at the end.
    fn next(&self) -> io::Result<Vec<u8>> {
        loop {
            let asked = self.interrupt.is_asked();
            match self.chunks.recv_timeout(if asked { SILENCE } else { SLICE }) {
                Ok(chunk) => return chunk,
                Err(RecvTimeoutError::Timeout) if !asked => {}
                Err(_) => return Ok(Vec::new()),
            }
        }
    }
}

impl Read for Live {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.chunk.read(into)?;
        if read > 0 || into.is_empty() {
            return Ok(read);
        }
        self.chunk = io::Cursor::new(self.next()?);
        self.chunk.read(into)
    }
}
