//! Processes of a cell, and what a process knows of itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// The monotonic clock in nanoseconds, which all processes of the machine share.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec of this frame, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time of this process so far.
pub fn cpu_seconds() -> f64 {
    // SAFETY: an rusage is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is an rusage of this frame, which the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Has the kernel end this process when the orchestrator is gone, however that ended.
pub fn end_with_parent() {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Ends this process without running what is registered for its exit.
pub fn exit_now() -> ! {
    // SAFETY: takes a number only, and does not return.
    unsafe { libc::_exit(0) }
}

/// A child process, whose lines come through a channel.
pub struct Proc {
    child: Child,
    lines: Receiver<String>,
}

impl Proc {
    /// Starts a publisher (`id` 0) or subscriber.
    pub fn start(peer: &str, id: usize, n: usize, size: usize, dgram: usize, dir: &str) -> Self {
        let role = if id == 0 { "pub" } else { "sub" };
        let mut child = Command::new(std::env::current_exe().expect("this binary has a path"))
            .args([role, peer])
            .args([id, n, size, dgram].map(|v| v.to_string()))
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts");
        let (tx, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| tx.send(l)));
        Self { child, lines }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The numbers of the next line that begins with `word`.
    pub fn wait(&self, word: &str, until: Instant) -> Result<Vec<f64>, String> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|e| format!("no {word}: {e}"))?;
            if let Some(rest) = line.strip_prefix(word) {
                let numbers = rest.split_whitespace().map(str::parse);
                return numbers.collect::<Result<_, _>>().map_err(|e| format!("{line}: {e}"));
            }
        }
    }

    /// Lets a publisher begin the next phase.
    pub fn order(&mut self) {
        // One that is gone shows when its line is waited for.
        let _ = self.child.stdin.as_mut().expect("it is piped").write_all(b"go\n");
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
