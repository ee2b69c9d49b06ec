//! The receiving end of a group.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use qcast_proto::addr::Sequence;
use qcast_proto::node::{StreamStats, SubscriberId};
use qcast_proto::subscribe::{
    Notice, Reliability, Start, StreamInfo, StreamKey, SubscriberConfig, TopicPattern,
};

use crate::engine::outlet::{Item, Patience, SubscriberOutlet};
use crate::group::Group;
use crate::message::{Current, Message};
use crate::runtime::{self, Driven, ForkedChild, Progress};

/// Receives the messages of a group's publishers, each publisher's in its [`Reliability`].
///
/// Three ways to read: [`Subscriber::recv`] and its kin give one message at a time, which can be kept;
/// [`Subscriber::poll`] hands messages to a closure without a copy or a reference count; with the
/// feature `async` a subscriber is a stream.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use qcast::{Delivery, Incoming, Node, Notice, Reliability};
///
/// let node = Node::builder().open()?;
/// let group = node.group("prices").join()?;
/// let mut prices = group.subscriber().topics("stocks/*").queue(4096).open()?;
/// let mut last = group.subscriber().reliability(Reliability::Latest).open()?;
///
/// // One at a time, to be kept:
/// match prices.recv_timeout(Duration::from_millis(1))? {
///     Some(Delivery::Message(message)) => println!("{} bytes", message.len()),
///     Some(Delivery::Notice(Notice::Lost { first, last, cause, .. })) => {
///         eprintln!("frames {} to {}: {}", first.0, last.0, cause.as_str());
///     }
///     Some(_) | None => {}
/// }
/// // Many at once, where they lie:
/// last.poll(64, |incoming| {
///     if let Incoming::Message { bytes, .. } = incoming {
///         println!("{bytes:?}");
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subscriber {
    group: Group,
    id: SubscriberId,
    outlet: Arc<SubscriberOutlet>,
    batch: VecDeque<Item>,
    current: Option<Current>,
    streams: BTreeMap<StreamKey, StreamInfo>,
}

/// Something received.
#[derive(Debug)]
#[non_exhaustive]
pub enum Delivery {
    /// A message.
    Message(Message),
    /// Something beside messages, in its place between them: a loss, a publisher that came or went.
    Notice(Notice),
}

/// Something received, as [`Subscriber::poll`] shows it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming<'a> {
    /// A message.
    Message {
        /// Its bytes.
        bytes: &'a [u8],
        /// The stream that it is of.
        key: StreamKey,
        /// The frame that it came in.
        sequence: Sequence,
    },
    /// Something beside messages.
    Notice(&'a Notice),
}

impl Subscriber {
    /// Waits for the next message or notice.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv(&mut self) -> Result<Delivery, RecvError> {
        self.check()?;
        loop {
            if let Some(delivery) = self.next() {
                return Ok(delivery);
            }
            self.refill(Patience::Forever)?;
        }
    }

    /// Waits up to `timeout` for the next message or notice; `None` when nothing came.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Delivery>, RecvError> {
        self.check()?;
        if let Some(delivery) = self.next() {
            return Ok(Some(delivery));
        }
        let deadline = runtime::instant() + timeout;
        while self.refill(Patience::Until(deadline))? {
            if let Some(delivery) = self.next() {
                return Ok(Some(delivery));
            }
        }
        Ok(None)
    }

    /// The next message or notice, if one is there.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn try_recv(&mut self) -> Result<Option<Delivery>, RecvError> {
        self.check()?;
        loop {
            if let Some(delivery) = self.next() {
                return Ok(Some(delivery));
            }
            if !self.refill(Patience::None)? {
                return Ok(None);
            }
        }
    }

    /// Hands up to `limit` messages and notices that are there to `on`, without a copy, and says how
    /// many it were. Never waits. With [`Progress::Manual`] it drives the node too.
    pub fn poll(&mut self, limit: usize, mut on: impl FnMut(Incoming<'_>)) -> usize {
        let mut handed = 0;
        if self.check().is_err() {
            return 0;
        }
        while handed < limit {
            if let Some(current) = &mut self.current {
                handed += current.hand_over(limit - handed, &mut on);
                if current.is_read() {
                    self.current = None;
                    self.done(1);
                }
                continue;
            }
            match self.batch.pop_front() {
                Some(Item::Frame { key, sequence, frame }) => {
                    self.current =
                        Some(Current::new(key, sequence, frame, self.outlet.reliability));
                }
                Some(Item::Message { key, sequence, message, weight }) => {
                    on(Incoming::Message { bytes: &message, key, sequence });
                    handed += 1;
                    self.done(weight);
                }
                Some(Item::Notice(notice)) => {
                    self.note(&notice);
                    on(Incoming::Notice(&notice));
                    handed += 1;
                }
                None => match self.refill(Patience::None) {
                    Ok(true) => {}
                    _ => break,
                },
            }
        }
        handed
    }

    /// What is known of a stream that a message named.
    pub fn stream_info(&self, key: StreamKey) -> Option<&StreamInfo> {
        self.streams.get(&key)
    }

    /// The numbers of the streams that the group follows, as of some milliseconds ago.
    pub fn streams(&self) -> Vec<(StreamInfo, StreamStats)> {
        if self.check().is_err() {
            return Vec::new();
        }
        self.outlet.report.lock().streams.clone()
    }

    /// The numbers of all streams that the group ever followed, together, now.
    pub fn stats(&self) -> StreamStats {
        let id = self.group.id();
        self.group.node().runtime().look(|engine| engine.stream_stats(id)).unwrap_or_default()
    }

    /// The group that it is in.
    pub fn group(&self) -> &Group {
        &self.group
    }

    fn check(&self) -> Result<(), ForkedChild> {
        self.group.node().runtime().check()
    }

    /// The next delivery of what has been taken from the queue.
    fn next(&mut self) -> Option<Delivery> {
        loop {
            if let Some(current) = &mut self.current {
                let message = current.next_message();
                if current.is_read() {
                    self.current = None;
                    self.done(1);
                }
                if let Some(message) = message {
                    return Some(Delivery::Message(message));
                }
                continue;
            }
            match self.batch.pop_front()? {
                Item::Frame { key, sequence, frame } => {
                    self.current =
                        Some(Current::new(key, sequence, frame, self.outlet.reliability));
                }
                Item::Message { key, sequence, message, weight } => {
                    self.done(weight);
                    return Some(Delivery::Message(Message::whole(key, sequence, message)));
                }
                Item::Notice(notice) => {
                    self.note(&notice);
                    return Some(Delivery::Notice(notice));
                }
            }
        }
    }

    /// Takes what waits in the queue. Says whether there was something.
    fn refill(&mut self, patience: Patience) -> Result<bool, RecvError> {
        let runtime = self.group.node().runtime();
        if runtime.progress() == Progress::Manual {
            let wait = match patience {
                Patience::None => Duration::ZERO,
                Patience::Until(at) => at.saturating_duration_since(runtime::instant()),
                Patience::Forever => Duration::from_millis(100),
            };
            if self.outlet.take(&mut self.batch, Patience::None) {
                return Ok(true);
            }
            runtime.poll(wait).map_err(RecvError::System)?;
            let some = self.outlet.take(&mut self.batch, Patience::None);
            // A turn that brought nothing for this subscriber is no reason to give up early.
            return Ok(some || !matches!(patience, Patience::None) && !wait.is_zero());
        }
        if self.outlet.take(&mut self.batch, Patience::None) {
            return Ok(true);
        }
        let deadline = match patience {
            Patience::None if runtime.has_failed() => return Err(RecvError::Stopped),
            Patience::None => return Ok(false),
            Patience::Until(deadline) => Some(deadline),
            Patience::Forever => None,
        };
        let (outlet, batch) = (&self.outlet, &mut self.batch);
        let some = loop {
            let driven = runtime.drive(deadline, &mut || outlet.take(batch, Patience::None));
            let beside = match driven.map_err(RecvError::System)? {
                Driven::Done => Some(true),
                Driven::TimedOut => Some(false),
                Driven::Occupied => runtime.seat().wait_beside(|| outlet.take(batch, patience)),
            };
            if let Some(some) = beside {
                break some;
            }
        };
        if !some && runtime.has_failed() {
            return Err(RecvError::Stopped);
        }
        Ok(some || matches!(patience, Patience::Forever))
    }

    /// The application is done with something that took this much of the queue.
    fn done(&self, weight: u64) {
        if self.outlet.done(weight, self.batch.len()) {
            self.group.node().runtime().kick();
        }
    }

    fn note(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined(info) | Notice::PublisherRestarted(info) => {
                self.streams.insert(info.key, info.clone());
            }
            _ => {}
        }
        // Publishers come and go: what is known of those of long ago is forgotten.
        while self.streams.len() > MAX_STREAMS {
            self.streams.pop_first();
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let runtime = self.group.node().runtime();
        let (now, id) = (runtime.now(), self.id);
        if runtime.look(|engine| engine.close_subscriber(now, id)).is_none() {
            // Dropping them would wait for a lock that a thread of the parent may hold.
            std::mem::forget((std::mem::take(&mut self.batch), self.current.take()));
            return;
        }
        // The farewell leaves before this returns: the process may end with it.
        runtime.turn_now();
    }
}

/// Streams whose names are remembered.
const MAX_STREAMS: usize = 4096;

#[cfg(feature = "async")]
impl futures_core::Stream for Subscriber {
    type Item = Result<Delivery, RecvError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        use std::task::Poll;
        loop {
            if let Some(delivery) = self.next() {
                return Poll::Ready(Some(Ok(delivery)));
            }
            match self.refill(Patience::None) {
                Ok(true) => {}
                Ok(false) => {
                    if !self.outlet.wake_when_ready(cx.waker()) {
                        return Poll::Pending;
                    }
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

/// Sets a subscriber up.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open`"]
pub struct SubscriberBuilder {
    group: Group,
    config: SubscriberConfig,
}

impl SubscriberBuilder {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, config: SubscriberConfig::default() }
    }

    /// Which topics are wanted, `*` standing for any run of characters; all if it is not said.
    pub fn topics(mut self, pattern: impl Into<String>) -> Self {
        self.config.topics = TopicPattern::new(pattern);
        self
    }

    /// How loss is treated. Of a frame of many messages a latest-only subscription gets the last.
    pub fn reliability(mut self, reliability: Reliability) -> Self {
        self.config.reliability = reliability;
        self
    }

    /// Begins with up to `frames` frames of what publishers still retain, instead of with what comes next.
    /// A stream that another subscriber of the node's group follows already is joined where that one is.
    pub fn history(mut self, frames: u64) -> Self {
        self.config.start = Start::History(frames);
        self
    }

    /// Frames that may wait for the application, 1024 if it is not said.
    pub fn queue(mut self, frames: usize) -> Self {
        self.config.queue = frames.max(1);
        self
    }

    /// Whether the node's own messages are delivered too.
    pub fn own_messages(mut self, wanted: bool) -> Self {
        self.config.own_messages = wanted;
        self
    }

    /// A number that publishers with [`FlowPolicy::Tagged`](crate::FlowPolicy::Tagged) wait for.
    pub fn tag(mut self, tag: u32) -> Self {
        self.config.tag = Some(tag);
        self
    }

    /// Opens the subscription.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was opened.
    pub fn open(self) -> Result<Subscriber, SubscribeError> {
        let Self { group, config } = self;
        let (id, outlet) = {
            let runtime = group.node().runtime();
            runtime.check()?;
            let now = runtime.now();
            let opened = runtime.engine().open_subscriber(now, group.id(), config);
            opened.ok_or(SubscribeError::NoGroup)?
        };
        group.node().runtime().wake();
        let (batch, streams) = (VecDeque::new(), BTreeMap::new());
        Ok(Subscriber { group, id, outlet, batch, current: None, streams })
    }
}

/// Why nothing can be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The operating system refused to poll.
    #[error("polling failed")]
    System(#[source] std::io::Error),
    /// The node's thread has ended on an error, which it logged. Open a new node.
    #[error("the node has stopped")]
    Stopped,
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}

/// Why a subscription was not opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The group has been left.
    #[error("the group has been left")]
    NoGroup,
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}
