//! Processes with deadlines.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The command.
pub(crate) const QCAST: &str = env!("CARGO_BIN_EXE_qcast");

/// After this a test has failed: far above what a loaded machine takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "deadlines of processes are in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A group that no other test has.
pub(crate) fn group(test: &str) -> String {
    format!("cli {} {test}", std::process::id())
}

/// The command with these arguments, and nothing of this environment that it would heed.
pub(crate) fn qcast(args: &[&str]) -> Command {
    let mut command = Command::new(QCAST);
    command.args(args);
    for name in ["QCAST_DEVICE", "QCAST_FAULT", "QCAST_GROUP", "QCAST_SECRET", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

/// A process whose output is read as it comes.
pub(crate) struct Run {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    deadline: Instant,
}

/// What is left of a process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// What was not read before.
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
}

impl Run {
    /// Starts `qcast` with these arguments.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::of(&mut qcast(args))
    }

    /// Starts a command.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = Lines::of(child.stdout.take().unwrap());
        let stderr = Lines::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr, deadline: now() + DEADLINE }
    }

    /// Starts a subscriber or receiver, and waits until it listens.
    pub(crate) fn listening(args: &[&str]) -> Self {
        let mut run = Self::start(args);
        if args.contains(&"--json") {
            run.event("listening");
        } else {
            run.says("listens to group");
        }
        run
    }

    /// Writes to its standard input and closes it.
    pub(crate) fn input(&mut self, bytes: &[u8]) {
        self.child.stdin.take().unwrap().write_all(bytes).unwrap();
    }

    /// Writes to its standard input, which stays open.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// The next line of its standard output.
    pub(crate) fn line(&mut self) -> String {
        let stderr = &mut self.stderr;
        self.stdout
            .next(self.deadline)
            .unwrap_or_else(|| panic!("no line came; standard error: {:?}", stderr.so_far()))
    }

    /// The next object of its standard output with this `event`.
    pub(crate) fn event(&mut self, event: &str) -> Value {
        loop {
            let line = self.line();
            let object: Value = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{line:?} is not JSON: {error}"));
            if object["event"] == event {
                return object;
            }
        }
    }

    /// The next line of its standard error that holds `text`.
    pub(crate) fn says(&mut self, text: &str) -> String {
        loop {
            match self.stderr.next(self.deadline) {
                Some(line) if line.contains(text) => return line,
                Some(_) => {}
                None => panic!("standard error never said {text:?}"),
            }
        }
    }

    /// Nobody reads its standard output any more.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout.close();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// The process's number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.id()).unwrap())
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        // It may write more than a pipe holds.
        self.stdout.lines();
        self.stderr.lines();
        let status = self.wait();
        let deadline = self.deadline;
        Ended {
            code: status.code(),
            stdout: self.stdout.rest(deadline),
            stderr: self.stderr.rest(deadline),
        }
    }

    fn wait(&mut self) -> ExitStatus {
        while now() < self.deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("it did not end; standard error: {:?}", self.stderr.so_far());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines that a thread reads.
struct Lines {
    lines: Option<Receiver<String>>,
    pipe: Option<Box<dyn Read + Send>>,
}

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        Self { lines: None, pipe: Some(Box::new(pipe)) }
    }

    fn lines(&mut self) -> Option<&Receiver<String>> {
        if let Some(pipe) = self.pipe.take() {
            let (to, lines) = channel();
            thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while matches!(pipe.read_until(b'\n', &mut line), Ok(1..)) {
                    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
                    if to.send(text.into_owned()).is_err() {
                        break;
                    }
                    line.clear();
                }
            });
            self.lines = Some(lines);
        }
        self.lines.as_ref()
    }

    fn next(&mut self, deadline: Instant) -> Option<String> {
        let left = deadline.saturating_duration_since(now());
        self.lines()?.recv_timeout(left).ok()
    }

    /// All lines to the end.
    fn rest(&mut self, deadline: Instant) -> Vec<String> {
        let mut rest = Vec::new();
        let Some(lines) = self.lines() else { return rest };
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(now())) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("a process that it started is still there; it said {rest:?}")
                }
            }
        }
    }

    /// The lines that have come.
    fn so_far(&mut self) -> Vec<String> {
        self.lines().map(|lines| lines.try_iter().collect()).unwrap_or_default()
    }

    /// Closes the pipe; it must not have been read.
    fn close(&mut self) {
        self.pipe.take().unwrap();
    }
}

impl Ended {
    /// Panics unless it ended with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// The objects of its standard output.
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.stdout.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Standard error as one text.
    pub(crate) fn said(&self) -> String {
        self.stderr.join("\n")
    }
}

/// Runs `qcast` to its end, with nothing on standard input.
pub(crate) fn run(args: &[&str]) -> Ended {
    Run::start(args).end()
}

/// A folder that is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("qcast-cli-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it, as an argument.
    pub(crate) fn join(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    /// A folder in it.
    pub(crate) fn dir(&self, name: &str) -> String {
        fs::create_dir_all(self.0.join(name)).unwrap();
        self.join(name)
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The names in a folder, sorted.
pub(crate) fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Bytes that do not repeat.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Panics unless an object has all these keys.
#[track_caller]
pub(crate) fn expect_keys(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(!object[key].is_null(), "{key} is missing in {object}");
    }
}
