//! An application that subscribes: its queue, its appetite, and the judge of what it gets.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::Sequence;
use qcast_proto::buf::RxFrame;
use qcast_proto::node::{Node, SubscriberId};
use qcast_proto::subscribe::{LossCause, Notice, Reliability, StreamKey, SubscriberConfig};
use qcast_proto::time::Instant;

use crate::buffers::{Received, Slot};
use crate::follow::{Follow, Lost};
use crate::truth::{Library, Truth};

/// How fast an application takes what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appetite {
    /// Everything at once.
    Eager,
    /// One thing, then a pause.
    Every(Duration),
    /// Nothing.
    None,
}

#[derive(Debug)]
enum Item {
    Frame(StreamKey, Sequence, Received),
    Message(StreamKey, Sequence, Vec<u8>),
    /// And the number of the input that it is an answer to.
    Notice(Notice, u64),
}

/// A subscription and its application.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) id: SubscriberId,
    pub(crate) config: SubscriberConfig,
    pub(crate) appetite: Appetite,
    pub(crate) follows: BTreeMap<StreamKey, Follow>,
    /// What it was told, and when it took it.
    pub(crate) notices: Vec<(Instant, Notice)>,
    /// Frames that did not fit its queue.
    pub(crate) overflows: u64,
    pub(crate) open: bool,
    machine: usize,
    opened: Instant,
    library: Library,
    queue: VecDeque<Item>,
    frames: usize,
    due: Instant,
}

impl Subscriber {
    pub(crate) fn new(
        now: Instant,
        machine: usize,
        id: SubscriberId,
        config: SubscriberConfig,
        library: Library,
    ) -> Self {
        Self {
            id,
            config,
            appetite: Appetite::Eager,
            follows: BTreeMap::new(),
            notices: Vec::new(),
            overflows: 0,
            open: true,
            machine,
            opened: now,
            library,
            queue: VecDeque::new(),
            frames: 0,
            due: now,
        }
    }

    pub(crate) fn push_frame(&mut self, key: StreamKey, sequence: Sequence, frame: Received) {
        self.make_room();
        self.frames += 1;
        self.queue.push_back(Item::Frame(key, sequence, frame));
    }

    pub(crate) fn push_message(&mut self, key: StreamKey, sequence: Sequence, message: Vec<u8>) {
        self.make_room();
        self.frames += 1;
        self.queue.push_back(Item::Message(key, sequence, message));
    }

    pub(crate) fn push_notice(&mut self, notice: Notice, input: u64) {
        self.queue.push_back(Item::Notice(notice, input));
    }

    /// A full queue drops its oldest frame, and says so; a latest-only one keeps the newest alone.
    fn make_room(&mut self) {
        // Each stream has room for one frame at least, whatever the others were promised.
        let reliable = self.config.reliability.wants_repair();
        let more = if reliable { self.follows.len().saturating_sub(1) } else { 0 };
        if self.frames < self.config.queue + more {
            return;
        }
        self.overflows += 1;
        let oldest = self.queue.iter().position(|i| !matches!(i, Item::Notice(..)));
        let at = oldest.expect("frames wait");
        let (key, first, last) = match &self.queue[at] {
            Item::Frame(key, s, _) => (*key, *s, *s),
            Item::Message(key, s, m) => (*key, self.first_of(*key, *s, m), *s),
            Item::Notice(..) => unreachable!("it was no notice"),
        };
        self.frames -= 1;
        let cause = LossCause::QueueFull;
        if self.config.reliability == Reliability::Latest {
            self.queue.remove(at);
            return;
        }
        // Neighbours make one event.
        if let Some(Item::Notice(Notice::Lost { key: k, last: l, cause: c, .. }, _)) =
            at.checked_sub(1).and_then(|at| self.queue.get_mut(at))
            && (*k, l.next(), *c) == (key, first, cause)
        {
            *l = last;
            self.queue.remove(at);
            return;
        }
        let dropped = self.overflows | 1 << 63;
        self.queue[at] = Item::Notice(Notice::Lost { key, first, last, cause }, dropped);
    }

    fn first_of(&self, key: StreamKey, last: Sequence, message: &[u8]) -> Sequence {
        let library = self.library.borrow();
        let truth = library[&key].borrow();
        match truth.content(last.0) {
            Some(crate::truth::Content::Fragment { first, .. }) => Sequence(first),
            _ => panic!("a message of {} bytes at {last} was not cut", message.len()),
        }
    }

    /// How many frames it still takes.
    pub(crate) fn room(&self) -> usize {
        self.config.queue.saturating_sub(self.frames)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.iter().filter(|i| matches!(i, Item::Frame(..))).count()
    }

    /// Takes what its appetite allows; says whether it took anything.
    pub(crate) fn run(&mut self, now: Instant, node: &mut Node<Slot, Received>) -> bool {
        let mut acted = false;
        while self.due <= now && self.appetite != Appetite::None {
            let Some(item) = self.queue.pop_front() else { break };
            acted = true;
            match item {
                Item::Frame(key, sequence, frame) => {
                    self.frames -= 1;
                    self.follow(key).take_frame(sequence.0, frame.bytes());
                }
                Item::Message(key, sequence, message) => {
                    self.frames -= 1;
                    self.follow(key).take_message(sequence.0, &message);
                }
                Item::Notice(notice, input) => {
                    self.take_notice(now, notice, input);
                    continue;
                }
            }
            if let Appetite::Every(pause) = self.appetite {
                self.due = now + pause;
            }
        }
        if self.open {
            node.set_room(self.id, self.room());
        }
        acted
    }

    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let waits = !self.queue.is_empty() && matches!(self.appetite, Appetite::Every(_));
        (waits && self.due > now).then_some(self.due)
    }

    /// The newest stream that it was told of.
    pub(crate) fn newest(&self) -> Option<&Follow> {
        let key = self.notices.iter().rev().find_map(|(_, n)| match n {
            Notice::Joined(info) => Some(info.key),
            _ => None,
        })?;
        self.follows.get(&key)
    }

    /// Messages that were delivered, of all streams.
    pub(crate) fn messages(&self) -> u64 {
        self.follows.values().map(|f| f.messages).sum()
    }

    pub(crate) fn lost_frames(&self) -> u64 {
        self.follows.values().map(Follow::lost_frames).sum()
    }

    /// How often something was told.
    pub(crate) fn count(&self, wanted: impl Fn(&Notice) -> bool) -> usize {
        self.notices.iter().filter(|(_, n)| wanted(n)).count()
    }

    fn follow(&mut self, key: StreamKey) -> &mut Follow {
        let own = self.library.borrow()[&key].borrow().machine == self.machine;
        if own && !self.follows.contains_key(&key) {
            // One's own streams are not announced to oneself.
            self.join(key);
        }
        self.follows.get_mut(&key).unwrap_or_else(|| panic!("{key:?} was not announced"))
    }

    fn join(&mut self, key: StreamKey) {
        let truth: Rc<RefCell<Truth>> =
            self.library.borrow().get(&key).expect("only real streams are followed").clone();
        let young = truth.borrow().born >= self.opened;
        assert!(
            self.config.topics.matches(&truth.borrow().topic),
            "{} was not asked for",
            truth.borrow().topic
        );
        let follow = Follow::new(self.config.reliability, truth, young);
        assert!(self.follows.insert(key, follow).is_none(), "{key:?} joined twice");
    }

    fn take_notice(&mut self, now: Instant, notice: Notice, input: u64) {
        match &notice {
            Notice::Joined(info) => {
                self.join(info.key);
                let follow = &self.follows[&info.key];
                assert_eq!(follow.truth.borrow().topic, info.topic);
            }
            Notice::Lost { key, first, last, cause } => {
                let lost = Lost { at: now, input, first: first.0, last: last.0, cause: *cause };
                self.follow(*key).take_lost(lost);
            }
            Notice::PublisherClosed(info) => {
                let follow = self.follow(info.key);
                let end = follow.truth.borrow().sent;
                follow.finish(end);
                assert!(!follow.closed, "closed twice");
                follow.closed = true;
            }
            _ => {}
        }
        self.notices.push((now, notice));
    }
}
