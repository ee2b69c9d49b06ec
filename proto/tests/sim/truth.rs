//! What was really published: subscribers are judged by it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use qcast_proto::subscribe::StreamKey;
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::Frame;

/// What a stream's frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Whole messages: the first one's number, and how many.
    Messages { first: u64, count: u64 },
    /// A piece of a message that lies in the frames `first` to `last`.
    Fragment { message: u64, first: u64, last: u64 },
}

/// How large the messages of a stream are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes {
    /// All of this many bytes.
    Fixed(usize),
    /// Small ones, and one in sixteen that needs a few frames.
    Mixed,
}

impl Sizes {
    fn of(self, label: u64, number: u64) -> usize {
        let dice = mix(label ^ number.wrapping_mul(0x9e37_79b9)) as usize;
        match self {
            Self::Fixed(n) => n,
            Self::Mixed if dice.is_multiple_of(16) => 1_000 + dice / 16 % 3_000,
            Self::Mixed => dice / 16 % 200,
        }
    }
}

/// One stream as it was published.
#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) topic: String,
    /// When it was opened.
    pub(crate) born: Instant,
    /// Frames that have been sent, or are to be.
    contents: Vec<Content>,
    /// Frames that were sent at least once.
    pub(crate) sent: u64,
    /// The machine that publishes it.
    pub(crate) machine: usize,
    label: u64,
    sizes: Sizes,
    messages: u64,
    open: Option<(u64, u64)>,
}

impl Truth {
    pub(crate) fn new(born: Instant, machine: usize, topic: String, sizes: Sizes) -> Self {
        let label = mix(born.as_nanos() ^ ((machine as u64) << 48) ^ topic.len() as u64);
        Self {
            topic,
            born,
            contents: Vec::new(),
            sent: 0,
            machine,
            label,
            sizes,
            messages: 0,
            open: None,
        }
    }

    /// The bytes of message `number`.
    pub(crate) fn message(&self, number: u64) -> Vec<u8> {
        let mut out = vec![0; self.sizes.of(self.label, number)];
        let mut state = mix(self.label.wrapping_add(number));
        for chunk in out.chunks_mut(8) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let bytes = (state ^ (state >> 29)).to_be_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        out
    }

    /// Notes a frame as it leaves the outbox.
    pub(crate) fn note_sealed(&mut self, bytes: &[u8]) {
        let frame = Frame::new_checked(bytes).expect("an outbox seals sound frames");
        let at = self.contents.len() as u64;
        assert_eq!(frame.header().sequence.0, at, "frames are sealed in order");
        let content = match frame.fragment() {
            None => {
                let count = frame.messages().count() as u64;
                let first = self.messages;
                self.messages += count;
                Content::Messages { first, count }
            }
            Some((header, piece)) => {
                let (first, last) = *self.open.get_or_insert_with(|| {
                    let pieces = u64::from(header.message_len).div_ceil(piece.len() as u64);
                    (at, at + pieces - 1)
                });
                let message = self.messages;
                if at == last {
                    self.messages += 1;
                    self.open = None;
                }
                Content::Fragment { message, first, last }
            }
        };
        self.contents.push(content);
    }

    /// Whether every frame that left the outbox was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.contents.len() as u64
    }

    /// What frame `at` holds, if there is such a frame.
    pub(crate) fn content(&self, at: u64) -> Option<Content> {
        self.contents.get(usize::try_from(at).expect("a test is short")).copied()
    }
}

/// A good scramble of 64 bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// All streams of a run.
pub(crate) type Library = Rc<RefCell<BTreeMap<StreamKey, Rc<RefCell<Truth>>>>>;
