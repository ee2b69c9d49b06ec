//! Processes that a command starts: other runs of this program, that report in JSON, one object a line.
//!
//! Dropping a [`Process`] kills it, by its own number, and waits for its end: a command that fails
//! leaves nothing behind. A process that this one cannot kill any more, since it was killed itself,
//! finds its standard input closed ([`end_with_parent`]).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::Value;

use super::clock::now;
use super::exit::{Exit, Failure};
use super::signals::Interrupt;

/// A running process of this program.
#[derive(Debug)]
pub(crate) struct Process {
    role: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    interrupt: Interrupt,
}

/// What becomes of a process's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// The user sees it.
    Shown,
    /// It is kept for [`Process::stderr`].
    Kept,
}

/// How long one wait is before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

impl Process {
    /// Starts this program with `args`. `role` names it in errors.
    pub(crate) fn start(
        role: impl Into<String>,
        args: &[&str],
        environment: &[(&str, String)],
        stderr: Stderr,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let role = role.into();
        let cannot = |error: io::Error| {
            Failure::environment(format_args!("cannot start a process for {role}: {error}"))
        };
        let program = std::env::current_exe().map_err(cannot)?;
        let mut child = Command::new(program)
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if stderr == Stderr::Kept { Stdio::piped() } else { Stdio::inherit() })
            .spawn()
            .map_err(cannot)?;
        let (to, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            // It ends with the process, or when nobody listens.
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if to.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stderr = child.stderr.take().map(|stderr| {
            thread::spawn(move || {
                let mut text = String::new();
                // What is not text is of no use here.
                let _ = stderr.take(64 << 10).read_to_string(&mut text);
                text
            })
        });
        let stdin = child.stdin.take();
        Ok(Self { role, child, stdin, lines, stderr, interrupt: interrupt.clone() })
    }

    /// Hands the process a line.
    pub(crate) fn tell(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let told = self.stdin.as_mut().map_or(Ok(()), |stdin| {
            serde_json::to_writer(&mut *stdin, value)?;
            stdin.write_all(b"\n")
        });
        told.map_err(|error| {
            Failure::failed(format_args!("{} does not listen: {error}", self.role))
        })
    }

    /// The next object that the process reports; `None` when it has ended.
    ///
    /// # Errors
    /// Nothing came before `deadline`, a signal asked for an end, or it is not JSON.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Option<Value>, Failure> {
        loop {
            if self.interrupt.is_asked() {
                return Err(Failure::failed("interrupted"));
            }
            let left = deadline.saturating_duration_since(now());
            match self.lines.recv_timeout(left.min(SLICE)) {
                Ok(line) => {
                    return serde_json::from_str(&line).map(Some).map_err(|error| {
                        Failure::failed(format_args!("{} reported {line:?}: {error}", self.role))
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(Failure::failed(format_args!(
                        "{} did not report in time",
                        self.role
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The next object that the process has reported, if there is one. Never waits.
    ///
    /// # Errors
    /// As [`Process::next`].
    pub(crate) fn try_next(&mut self) -> Result<Option<Value>, Failure> {
        if self.interrupt.is_asked() {
            return Err(Failure::failed("interrupted"));
        }
        let Ok(line) = self.lines.try_recv() else { return Ok(None) };
        serde_json::from_str(&line).map(Some).map_err(|error| {
            Failure::failed(format_args!("{} reported {line:?}: {error}", self.role))
        })
    }

    /// The next report with this `event`; others are passed over.
    ///
    /// # Errors
    /// As [`Process::next`]; and the process ended without it.
    pub(crate) fn wait_for(&mut self, event: &str, deadline: Instant) -> Result<Value, Failure> {
        while let Some(report) = self.next(deadline)? {
            if report["event"] == event {
                return Ok(report);
            }
        }
        let status = self.wait(deadline)?;
        let said = self.stderr();
        Err(Failure::failed(format_args!(
            "{} ended early ({status}){}{}",
            self.role,
            if said.is_empty() { "" } else { ": " },
            said.trim_end()
        )))
    }

    /// Asks the process to end in good order.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end before `deadline`, or a signal asked for an end.
    pub(crate) fn wait(&mut self, deadline: Instant) -> Result<ExitStatus, Failure> {
        self.stdin = None;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if now() < deadline && !self.interrupt.is_asked() => {
                    thread::sleep(Duration::from_millis(2));
                }
                Ok(None) => {
                    return Err(Failure::failed(format_args!("{} did not end in time", self.role)));
                }
                Err(error) => {
                    return Err(Failure::failed(format_args!("{} is gone: {error}", self.role)));
                }
            }
        }
    }

    /// What it wrote to standard error, once it has ended; empty if that was shown.
    pub(crate) fn stderr(&mut self) -> String {
        self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It has not been waited for, so the number is still its own; it may have ended already.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing to do about a process that is not there any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends this process when its standard input, a pipe from its parent, is closed: the parent has ended,
/// however that came.
pub(crate) fn end_with_parent(stdin: impl Read + Send + 'static) {
    thread::spawn(move || {
        let mut stdin = stdin;
        let mut byte = [0];
        while matches!(stdin.read(&mut byte), Ok(1..)) {}
        std::process::exit(Exit::Failed as i32);
    });
}
