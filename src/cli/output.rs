//! Standard output and standard error.
//!
//! Results go to standard output, as text or as JSON, one object a line. What is said about the work
//! goes to standard error, and never mixes with a progress bar there.

use std::fmt;
use std::io::{self, BufWriter, Stdout, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde::Serialize;

use super::exit::Failure;

/// A label, and its value.
pub(crate) type Row = (&'static str, String);

/// Standard output, buffered: [`Output::flush`] when there is nothing more to write for now.
#[derive(Debug)]
pub(crate) struct Output(BufWriter<Stdout>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout()))
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Writes bytes and an end of line.
    pub(crate) fn line(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.raw(bytes)?;
        self.raw(b"\n")
    }

    /// Writes labels and values, a line each, the values one below the other.
    pub(crate) fn rows(&mut self, rows: &[Row]) -> Result<(), Failure> {
        let widest = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        for (label, value) in rows {
            self.line(format!("{label:<widest$}  {value}").as_bytes())?;
        }
        Ok(())
    }

    /// Writes an object and an end of line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value)
            .map_err(|error| Failure::output(&error.into()))?;
        self.raw(b"\n")
    }

    /// Hands everything to the reader.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| Failure::output(&error))
    }
}

/// What is said to a person, on standard error.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    bar: Option<ProgressBar>,
}

impl Notes {
    /// Says one sentence.
    pub(crate) fn say(&self, text: impl fmt::Display) {
        let write = || {
            // Nobody can be told that standard error is closed.
            let _ = writeln!(io::stderr(), "{text}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Shows a bar for `bytes` bytes from here on, if standard error is a terminal.
    pub(crate) fn show_bar(&mut self, bytes: u64, name: &str) {
        let bar =
            ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(
            "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        );
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_owned());
        self.bar = Some(bar);
    }

    /// Moves the bar to `bytes`.
    pub(crate) fn progress(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    /// Takes the bar away.
    pub(crate) fn hide_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Where traces go: standard error, unless a screen is shown there; then they wait for its end.
#[derive(Debug, Default)]
pub(crate) struct Traces(());

/// What waits, while it does.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// The most that waits.
const MAX_HELD: usize = 64 << 10;

impl Traces {
    /// From here on traces wait.
    pub(crate) fn hold() {
        HELD.lock().get_or_insert_default();
    }

    /// Writes what has waited; from here on nothing does.
    pub(crate) fn release() {
        if let Some(held) = HELD.lock().take() {
            // Nobody can be told that standard error is closed.
            let _ = io::stderr().write_all(&held);
        }
    }
}

impl Write for Traces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *HELD.lock() {
            Some(held) => {
                if held.len() + bytes.len() <= MAX_HELD {
                    held.extend_from_slice(bytes);
                }
                Ok(bytes.len())
            }
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A duration as a person reads it.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 { write!(f, "{seconds:.2} s") } else { write!(f, "{seconds:.0} s") }
    }
}

/// Megabytes (10^6 bytes) a second; 0 for no time at all.
pub(crate) fn megabytes_per_second(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { bytes as f64 / 1e6 / time.as_secs_f64() }
}

/// A count and its noun: "1 message", "2 messages".
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
