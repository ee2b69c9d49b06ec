//! What `pub` publishes: the lines of standard input, or a file cut into pieces.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::ahead::{self, Chunks};
use super::exit::Failure;

/// How the bytes become messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Each line is one, without its end.
    Lines,
    /// Each is so long, but for the last.
    Pieces(usize),
}

/// Messages out of a file or standard input.
#[derive(Debug)]
pub(crate) struct Input {
    /// What it is called in errors.
    name: String,
    chunks: Chunks,
    cutter: Cutter,
    ended: bool,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Message(Vec<u8>),
    /// Nothing yet.
    Pending,
    /// There is no more.
    End,
}

impl Input {
    /// Standard input.
    pub(crate) fn stdin(cut: Cut, max: usize) -> Self {
        Self::of("standard input".into(), io::stdin(), cut, max)
    }

    /// A file.
    pub(crate) fn file(path: &Path, cut: Cut, max: usize) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let readable = File::open(path).and_then(|file| {
            if file.metadata()?.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok(file)
        });
        let file = readable
            .map_err(|error| Failure::failed(format_args!("cannot read {name}: {error}")))?;
        Ok(Self::of(name, file, cut, max))
    }

    fn of(name: String, from: impl Read + Send + 'static, cut: Cut, max: usize) -> Self {
        Self { name, chunks: ahead::read(from), cutter: Cutter::new(cut, max), ended: false }
    }

    /// The next message. Waits for it for up to `wait`.
    pub(crate) fn next(&mut self, wait: Duration) -> Result<Next, Failure> {
        loop {
            if let Some(message) = self.cutter.pop() {
                return Ok(Next::Message(message));
            }
            if self.ended {
                return Ok(Next::End);
            }
            match self.chunks.recv_timeout(wait) {
                Ok(Ok(chunk)) => self.cutter.push(&chunk).map_err(|error| self.failed(error))?,
                Ok(Err(error)) => return Err(self.failed(error)),
                Err(RecvTimeoutError::Timeout) => return Ok(Next::Pending),
                Err(RecvTimeoutError::Disconnected) => {
                    self.ended = true;
                    self.cutter.finish();
                }
            }
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> Failure {
        Failure::failed(format_args!("cannot read {}: {error}", self.name))
    }
}

/// Cuts a run of bytes into messages.
#[derive(Debug)]
struct Cutter {
    cut: Cut,
    max: usize,
    ready: VecDeque<Vec<u8>>,
    /// The beginning of the next message.
    begun: Vec<u8>,
    lines: u64,
}

/// A line is longer than a message may be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} is longer than a message may be ({max} bytes); --file with --size cuts it into pieces"
)]
struct LongLine {
    line: u64,
    max: usize,
}

impl Cutter {
    fn new(cut: Cut, max: usize) -> Self {
        Self { cut, max, ready: VecDeque::new(), begun: Vec::new(), lines: 0 }
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<(), LongLine> {
        match self.cut {
            Cut::Lines => {
                while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
                    self.add(&bytes[..end])?;
                    self.ready.push_back(std::mem::take(&mut self.begun));
                    self.lines += 1;
                    bytes = &bytes[end + 1..];
                }
                self.add(bytes)
            }
            Cut::Pieces(size) => {
                while self.begun.len() + bytes.len() >= size {
                    let (head, rest) = bytes.split_at(size - self.begun.len());
                    self.begun.extend(head);
                    self.ready.push_back(std::mem::take(&mut self.begun));
                    bytes = rest;
                }
                self.begun.extend(bytes);
                Ok(())
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), LongLine> {
        if self.begun.len() + bytes.len() > self.max {
            return Err(LongLine { line: self.lines + 1, max: self.max });
        }
        self.begun.extend(bytes);
        Ok(())
    }

    /// What has begun is the last message; an empty one is none.
    fn finish(&mut self) {
        if !self.begun.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.begun));
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(cut: Cut, chunks: &[&str]) -> Vec<String> {
        let mut cutter = Cutter::new(cut, 8);
        for chunk in chunks {
            cutter.push(chunk.as_bytes()).unwrap();
        }
        cutter.finish();
        std::iter::from_fn(|| cutter.pop()).map(|m| String::from_utf8(m).unwrap()).collect()
    }

    #[test]
    fn lines_do_not_depend_on_how_they_were_read() {
        for chunks in [&["a\n\nbc\nd"][..], &["a", "\n", "\nb", "c\n", "d"], &["a\n\nbc\nd", ""]] {
            assert_eq!(cut(Cut::Lines, chunks), ["a", "", "bc", "d"]);
        }
        assert_eq!(cut(Cut::Lines, &["a\n"]), ["a"]);
        assert_eq!(cut(Cut::Lines, &[]), [""; 0]);
    }

    #[test]
    fn pieces_fill_up() {
        for chunks in [&["abcdefg"][..], &["a", "bcdef", "g"]] {
            assert_eq!(cut(Cut::Pieces(3), chunks), ["abc", "def", "g"]);
        }
        assert_eq!(cut(Cut::Pieces(3), &["abcdef"]), ["abc", "def"]);
    }

    #[test]
    fn a_long_line_is_named() {
        let mut cutter = Cutter::new(Cut::Lines, 4);
        cutter.push(b"abcd\nab").unwrap();
        let error = cutter.push(b"cde").unwrap_err();
        assert_eq!(error, LongLine { line: 2, max: 4 });
    }

    #[test]
    fn a_file_that_is_none() {
        let error = Input::file(Path::new("/"), Cut::Lines, 4).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /: "), "{error}");
    }
}
