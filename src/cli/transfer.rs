//! How a file travels: the messages that `send` publishes and `receive` understands.
//!
//! A transfer is a run of messages of one stream: a beginning with the file's name and size, pieces
//! with their offsets, and an end with the SHA-256 of the whole. Each begins with a byte that says
//! which it is. A receiver that joins in the middle waits for the next beginning.
//!
//! What a peer says about a file is not believed: its name loses everything that could lead out of the
//! folder, its size sets nothing aside, and the hash is computed over what was written.

use sha2::{Digest, Sha256};

/// The topic of transfers, so that they share a group with anything else.
pub(crate) const TOPIC: &str = "qcast/file";

/// Bytes of a file in one message.
pub(crate) const PIECE: usize = 64 << 10;

/// The longest name that is sent: what Linux takes.
const MAX_FILE_NAME: usize = 255;

/// The version of these messages.
const VERSION: u8 = 1;

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

/// One message of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// A file begins.
    Begin {
        /// Its name, without folders. A peer's word: see [`safe_name`].
        name: &'a str,
        /// Its size in bytes.
        size: u64,
    },
    /// A piece of it.
    Piece {
        /// Bytes of the file before it.
        offset: u64,
        /// The piece; never empty.
        bytes: &'a [u8],
    },
    /// It ends.
    End {
        /// Bytes of the whole file.
        size: u64,
        /// The hash of the whole file.
        hash: Hash,
    },
}

impl<'a> Part<'a> {
    /// Replaces `out` with the message.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Begin { name, size } => {
                out.extend([b'B', VERSION]);
                out.extend(size.to_be_bytes());
                out.extend(name.as_bytes());
            }
            Self::Piece { offset, bytes } => {
                out.push(b'P');
                out.extend(offset.to_be_bytes());
                out.extend(*bytes);
            }
            Self::End { size, hash } => {
                out.push(b'E');
                out.extend(size.to_be_bytes());
                out.extend(hash);
            }
        }
    }

    /// Reads a message; `None` if it is none of these.
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        let (kind, rest) = message.split_first()?;
        match kind {
            b'B' => {
                let rest = rest.strip_prefix(&[VERSION])?;
                let (size, name) = number(rest)?;
                let name = std::str::from_utf8(name).ok()?;
                (name.len() <= MAX_FILE_NAME).then_some(Self::Begin { name, size })
            }
            b'P' => {
                let (offset, bytes) = number(rest)?;
                offset.checked_add(bytes.len() as u64)?;
                (!bytes.is_empty()).then_some(Self::Piece { offset, bytes })
            }
            b'E' => {
                let (size, hash) = number(rest)?;
                Some(Self::End { size, hash: hash.try_into().ok()? })
            }
            _ => None,
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

/// A hash over what goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

/// The name under which a peer's file is kept: the last component of what it says, without what a
/// terminal obeys, and not hidden.
pub(crate) fn safe_name(said: &str) -> String {
    let last = said.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or_default();
    let shown: String =
        last.chars().map(|c| if c.is_control() || is_invisible(c) { '_' } else { c }).collect();
    let mut name = match shown.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => shown,
    };
    while name.len() > MAX_FILE_NAME {
        name.pop();
    }
    if name.trim().is_empty() { "file".into() } else { name }
}

/// Characters that make a name look like another one.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_back() {
        let parts = [
            Part::Begin { name: "a é.bin", size: u64::MAX },
            Part::Begin { name: "", size: 0 },
            Part::Piece { offset: 7, bytes: b"x" },
            Part::End { size: 8, hash: [0xa5; 32] },
        ];
        let mut message = vec![1, 2, 3];
        for part in parts {
            part.emit(&mut message);
            assert_eq!(Part::parse(&message), Some(part));
        }
    }

    #[test]
    fn messages_that_are_none() {
        let mut whole = Vec::new();
        Part::End { size: 8, hash: [1; 32] }.emit(&mut whole);
        for len in 0..whole.len() {
            assert_eq!(Part::parse(&whole[..len]), None);
        }
        whole.push(0);
        assert_eq!(Part::parse(&whole), None);
        for bad in [
            &b"X"[..],
            b"B\x01\0\0",
            b"B\x02\0\0\0\0\0\0\0\0name",
            b"B\x01\0\0\0\0\0\0\0\0\xff",
            b"P\0\0\0\0\0\0\0\0",
            b"P\xff\xff\xff\xff\xff\xff\xff\xff1",
        ] {
            assert_eq!(Part::parse(bad), None, "{bad:?}");
        }
        let mut long = b"B\x01\0\0\0\0\0\0\0\0".to_vec();
        long.extend([b'n'; MAX_FILE_NAME + 1]);
        assert_eq!(Part::parse(&long), None);
    }

    #[test]
    fn names_lead_nowhere_else() {
        for (said, kept) in [
            ("a.bin", "a.bin"),
            ("../../etc/passwd", "passwd"),
            ("/etc/passwd", "passwd"),
            ("dir/", "dir"),
            ("..\\x", "x"),
            ("..", "_."),
            (".", "_"),
            (".bashrc", "_bashrc"),
            ("", "file"),
            ("///", "file"),
            ("  ", "file"),
            ("a\nb\u{1b}[2J\0", "a_b_[2J_"),
            ("gnp.\u{202e}exe", "gnp._exe"),
            ("-rf", "-rf"),
        ] {
            let name = safe_name(said);
            assert_eq!(name, kept, "{said:?}");
            let mut path = std::path::Path::new(&name).components();
            assert!(matches!(path.next(), Some(std::path::Component::Normal(_))), "{said:?}");
            assert_eq!(path.next(), None);
        }
        assert_eq!(safe_name(&"é".repeat(200)).len(), 254);
    }
}
