//! Judges what one subscription was given of one stream.

use std::cell::RefCell;
use std::rc::Rc;

use qcast_proto::subscribe::{LossCause, Reliability};
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::Messages;

use crate::truth::{Content, Truth};

/// A loss that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) at: Instant,
    /// The input of the node that it is an answer to.
    pub(crate) input: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) cause: LossCause,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mark {
    #[default]
    None,
    Delivered,
    Lost,
}

/// A stream as a subscription saw it. Panics at once when the subscription was given something wrong.
#[derive(Debug)]
pub(crate) struct Follow {
    pub(crate) reliability: Reliability,
    pub(crate) truth: Rc<RefCell<Truth>>,
    /// Messages delivered.
    pub(crate) messages: u64,
    /// The newest message delivered.
    pub(crate) newest: Option<u64>,
    pub(crate) lost: Vec<Lost>,
    pub(crate) closed: bool,
    /// The first frame that it answers for.
    pub(crate) start: Option<u64>,
    /// It must begin here or earlier: what was sent when it was told of the stream.
    latest_start: u64,
    marks: Vec<Mark>,
    /// Everything before this is accounted for.
    next: u64,
    /// Whether the last thing told was a loss.
    after_loss: bool,
}

impl Follow {
    /// A stream that is older than the subscription begins anywhere up to what has been sent by now; a
    /// younger one with its first frame.
    pub(crate) fn new(reliability: Reliability, truth: Rc<RefCell<Truth>>, young: bool) -> Self {
        let latest_start = if young { 0 } else { truth.borrow().sent };
        Self {
            reliability,
            truth,
            messages: 0,
            newest: None,
            lost: Vec::new(),
            closed: false,
            start: None,
            latest_start,
            marks: Vec::new(),
            next: 0,
            after_loss: false,
        }
    }

    /// A frame of whole messages.
    pub(crate) fn take_frame(&mut self, at: u64, bytes: &[u8]) {
        let truth = self.truth.clone();
        let truth = truth.borrow();
        let Some(Content::Messages { first, count }) = truth.content(at) else {
            panic!("frame {at} holds no whole messages: {:?}", truth.content(at));
        };
        self.place(&truth, at, at);
        let mut seen = 0;
        for message in Messages::of_checked(bytes) {
            assert!(message == truth.message(first + seen), "message {} differs", first + seen);
            seen += 1;
        }
        assert_eq!(seen, count, "messages of frame {at}");
        self.messages += seen;
        self.newest = Some(first + seen - 1).max(self.newest);
    }

    /// A message that came in fragments, the last of which is frame `at`.
    pub(crate) fn take_message(&mut self, at: u64, bytes: &[u8]) {
        let truth = self.truth.clone();
        let truth = truth.borrow();
        let Some(Content::Fragment { message, first, last }) = truth.content(at) else {
            panic!("frame {at} holds no fragment");
        };
        if self.reliability == Reliability::Unordered {
            assert!((first..=last).contains(&at));
        } else {
            assert_eq!(at, last, "the place of a large message is its last fragment's");
        }
        self.place(&truth, first, last);
        assert!(bytes == truth.message(message), "message {message} differs");
        self.messages += 1;
        self.newest = Some(message).max(self.newest);
    }

    pub(crate) fn take_lost(&mut self, lost: Lost) {
        let Lost { input, first, last, cause, .. } = lost;
        let truth = self.truth.clone();
        let truth = truth.borrow();
        assert!(first <= last && last < truth.sent, "{first}..={last} of {} lost", truth.sent);
        assert_ne!(
            self.reliability,
            Reliability::Latest,
            "a latest-only subscription hears no gaps"
        );
        self.begin(first);
        self.mark(first, last, Mark::Lost);
        if let Some(previous) = self.lost.last()
            && (self.after_loss || self.reliability == Reliability::Unordered)
        {
            let adjoins = previous.last + 1 == first && previous.input == input;
            assert!(
                !adjoins || previous.cause != cause,
                "one gap told in two: {previous:?} {first}"
            );
        }
        self.lost.push(lost);
        self.pass(&truth, first, last);
        self.after_loss = true;
    }

    /// Everything before `end` must have been delivered or told as lost.
    pub(crate) fn finish(&mut self, end: u64) {
        if let Some(lack) = self.lacks(end) {
            panic!("{lack}");
        }
    }

    /// What is neither delivered nor told as lost of the frames before `end`.
    pub(crate) fn lacks(&self, end: u64) -> Option<String> {
        let truth = self.truth.borrow();
        if self.reliability == Reliability::Latest {
            let newest = end.checked_sub(1).and_then(|last| truth.content(last));
            let newest = newest.map(|c| match c {
                Content::Messages { first, count } => first + count - 1,
                Content::Fragment { message, .. } => message,
            });
            return (self.newest != newest)
                .then(|| format!("the newest message, {newest:?}; it has {:?}", self.newest));
        }
        let start = self.start.unwrap_or(self.latest_start);
        (self.next.max(start)..end).find_map(|at| {
            let mark = self.marks.get(at as usize).copied().unwrap_or_default();
            (mark == Mark::None && !self.is_excused(&truth, at)).then(|| {
                format!(
                    "silent gap at frame {at} of {end} ({:?}, start {start}, next {}), lost {:?}",
                    truth.content(at),
                    self.next,
                    self.lost
                )
            })
        })
    }

    /// Frames reported as lost.
    pub(crate) fn lost_frames(&self) -> u64 {
        self.lost.iter().map(|l| l.last - l.first + 1).sum()
    }

    fn begin(&mut self, first: u64) {
        if self.start.is_none() {
            self.start = Some(first.min(self.latest_start));
            self.next = first.min(self.latest_start);
        }
    }

    fn place(&mut self, truth: &Truth, first: u64, last: u64) {
        assert!(last < truth.sent, "frame {last} before it was sent");
        self.begin(first);
        self.mark(first, last, Mark::Delivered);
        self.pass(truth, first, last);
        self.after_loss = false;
    }

    /// Moves on over `first` to `last`; what is skipped must have an excuse.
    fn pass(&mut self, truth: &Truth, first: u64, last: u64) {
        if self.reliability == Reliability::Unordered {
            while self.marks.get(self.next as usize).is_some_and(|m| *m != Mark::None) {
                self.next += 1;
            }
            return;
        }
        assert!(first >= self.next, "frame {first} after frame {}", self.next - 1);
        if self.reliability != Reliability::Latest {
            for at in self.next..first {
                assert!(
                    self.is_excused(truth, at),
                    "silent gap at frame {at} before {first}; lost {:?}",
                    self.lost
                );
            }
        }
        self.next = last + 1;
    }

    fn mark(&mut self, first: u64, last: u64, mark: Mark) {
        let end = last as usize + 1;
        if self.marks.len() < end {
            self.marks.resize(end, Mark::None);
        }
        for at in first..=last {
            let slot = &mut self.marks[at as usize];
            assert_eq!(*slot, Mark::None, "frame {at} twice ({mark:?})");
            *slot = mark;
        }
    }

    /// A fragment needs no word of its own when another one of its message was lost, or came before the
    /// subscription began.
    fn is_excused(&self, truth: &Truth, at: u64) -> bool {
        let Some(Content::Fragment { first, last, .. }) = truth.content(at) else { return false };
        let lost = |at| self.marks.get(at as usize) == Some(&Mark::Lost);
        first < self.start.unwrap_or(0) || (first..=last).any(lost)
    }
}
