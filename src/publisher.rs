//! The sending end of a stream.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use qcast_proto::node::PublisherId;
use qcast_proto::publish::{
    Closed, FlowPolicy, Hold, Outbox, PublisherConfig, PublisherEvent, PublisherStats, PushError,
    Receiver,
};
use qcast_proto::wire::control::{MAX_NAME, is_sound_name};

use crate::device::{DeviceError, SendBuf};
use crate::engine::outlet::{PublisherOutlet, PublisherReport};
use crate::group::Group;
use crate::runtime::{self, ForkedChild, Progress};

/// Publishes one stream of messages to a group.
///
/// Small messages share datagrams: on an idle link each is sent at once, on a busy one they fill
/// frames. Large ones, up to 16 MiB, are cut. What was published is retained until subscribers have it,
/// as far as the window and the [`FlowPolicy`] go.
///
/// Dropping a publisher closes it in the background: the node's thread lingers until subscribers have
/// everything. [`Publisher::close`] waits for that, and says who did not. (With
/// [`Progress::Manual`] nobody drives the node in the background: close what has to arrive.)
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use qcast::{FlowPolicy, Node, PublishError};
///
/// let node = Node::builder().open()?;
/// let group = node.group("telemetry").secret("between us").join()?;
/// let mut publisher = group.publisher().topic("rack/7").policy(FlowPolicy::Slowest).open()?;
///
/// match publisher.try_send(b"21.5 C") {
///     Ok(()) => {}
///     // Says by whom: the slowest subscriber, by name.
///     Err(error @ PublishError::WouldBlock(_)) => eprintln!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// // Written where it is sent from.
/// let mut claim = publisher.claim(8)?;
/// claim.copy_from_slice(&42u64.to_be_bytes());
/// claim.commit();
///
/// assert!(publisher.wait_confirmed(Duration::from_secs(5)));
/// assert!(publisher.close().unconfirmed.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Publisher {
    group: Group,
    id: PublisherId,
    outlet: Arc<PublisherOutlet>,
    closed: bool,
    linger: Duration,
}

impl Publisher {
    /// Publishes a message. Blocks while the publisher is held back; [`Publisher::hold`] tells by whom.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`]; the message was not taken.
    pub fn send(&mut self, message: &[u8]) -> Result<(), PublishError> {
        self.push_until(message, None)
    }

    /// Publishes a message, and waits up to `timeout` while the publisher is held back.
    ///
    /// # Errors
    /// [`PublishError::WouldBlock`] names who holds it back, [`PublishError::TooLarge`]; the message was
    /// not taken.
    pub fn send_timeout(&mut self, message: &[u8], timeout: Duration) -> Result<(), PublishError> {
        self.push_until(message, Some(runtime::instant() + timeout))
    }

    /// Publishes a message if that needs no waiting.
    ///
    /// # Errors
    /// [`PublishError::WouldBlock`] names who holds the publisher back, [`PublishError::TooLarge`]; the
    /// message was not taken.
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), PublishError> {
        self.runtime().check()?;
        let pushed = self.outlet.outbox.lock().push(message);
        match pushed {
            Ok(()) => {
                self.pushed();
                Ok(())
            }
            Err(error) => Err(self.refusal(error)),
        }
    }

    /// Room for a message of `len` bytes in the frame it will be sent in: what is written there is
    /// published by [`Claim::commit`] without a copy. Such a message must fit a frame.
    ///
    /// Nothing of this publisher is sent for the first time while a claim is held, so hold it for a moment only.
    ///
    /// # Errors
    /// [`PublishError::WouldBlock`], [`PublishError::TooLarge`]; nothing was claimed.
    pub fn claim(&mut self, len: usize) -> Result<Claim<'_>, PublishError> {
        self.runtime().check()?;
        let mut outbox = self.outlet.outbox.lock();
        if let Err(error) = outbox.claim(len) {
            drop(outbox);
            return Err(self.refusal(error));
        }
        self.outlet.claimed.store(true, Ordering::SeqCst);
        Ok(Claim { outbox: Some(outbox), publisher: self, len })
    }

    /// Sends what waits in a frame that is not full, now.
    pub fn flush(&mut self) {
        if self.runtime().check().is_err() {
            return;
        }
        self.outlet.dirty.store(true, Ordering::Release);
        if !self.runtime().try_turn(self.runtime().now()) {
            self.runtime().kick();
        }
    }

    /// Waits until the publisher is known to be heard: its own join works, or a subscriber is there. Says
    /// whether it is.
    pub fn ready(&self, timeout: Duration) -> bool {
        self.wait(timeout, |r| r.ready)
    }

    /// Waits until `n` subscribers are there, for `timeout` at most, and says how many are.
    pub fn wait_for(&self, n: usize, timeout: Duration) -> usize {
        if self.runtime().check().is_err() {
            return 0;
        }
        self.wait(timeout, |r| r.stats.receivers >= n);
        self.outlet.report.lock().stats.receivers
    }

    /// Waits until everything published so far is sent, and confirmed by all subscribers that the policy
    /// waits for. Says whether it is.
    pub fn wait_confirmed(&mut self, timeout: Duration) -> bool {
        if self.runtime().check().is_err() {
            return false;
        }
        self.outlet.report.lock().confirmed = false;
        self.flush();
        self.wait(timeout, |r| r.confirmed)
    }

    /// Live subscribers, as of their last word.
    pub fn subscribers(&self) -> Vec<Receiver> {
        let receivers = self.runtime().look(|engine| engine.receivers(self.id));
        receivers.unwrap_or_default().into_iter().map(|(_, r)| r).collect()
    }

    /// Who holds the publisher back now, if somebody does.
    pub fn hold(&self) -> Option<Hold> {
        self.runtime().look(|engine| engine.hold(self.id)).flatten()
    }

    /// The publisher's numbers, now.
    pub fn stats(&self) -> PublisherStats {
        match self.runtime().look(|engine| engine.publisher_stats(self.id)) {
            Some(stats) => stats.unwrap_or_else(|| self.outlet.report.lock().stats.clone()),
            None => PublisherStats::default(),
        }
    }

    /// The next thing that happened, if one did. At most 1024 wait; older ones are dropped.
    pub fn next_event(&self) -> Option<PublisherEvent> {
        self.runtime().check().ok()?;
        self.outlet.report.lock().events.pop_front()
    }

    /// The group that it is in.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Ends the stream: everything published is sent, and this waits until subscribers have it or the
    /// linger time is over. Says who did not confirm.
    pub fn close(mut self) -> Closed {
        self.start_close();
        if self.runtime().check().is_err() {
            return Closed::default();
        }
        // The protocol's own deadline ends the wait; the extra second is for a node that nobody drives.
        self.wait(self.linger + Duration::from_secs(1), |r| r.closed.is_some());
        self.outlet.report.lock().closed.clone().unwrap_or_default()
    }

    fn push_until(
        &mut self,
        message: &[u8],
        deadline: Option<std::time::Instant>,
    ) -> Result<(), PublishError> {
        self.runtime().check()?;
        loop {
            let mut outbox = self.outlet.outbox.lock();
            match outbox.push(message) {
                Ok(()) => {
                    drop(outbox);
                    self.pushed();
                    return Ok(());
                }
                Err(PushError::Full) => {}
                Err(error) => {
                    drop(outbox);
                    return Err(self.refusal(error));
                }
            }
            let left = match deadline {
                None => WAIT,
                Some(at) => {
                    let left = at.saturating_duration_since(runtime::instant());
                    if left.is_zero() {
                        drop(outbox);
                        return Err(self.refusal(PushError::Full));
                    }
                    left.min(WAIT)
                }
            };
            self.wait_for_room(outbox, left)?;
        }
    }

    /// Waits until the engine has given frames back. The engine is helped if nobody drives it just now.
    fn wait_for_room(
        &self,
        mut outbox: MutexGuard<'_, Outbox<SendBuf>>,
        patience: Duration,
    ) -> Result<(), PublishError> {
        let runtime = self.runtime();
        if runtime.progress() == Progress::Manual {
            drop(outbox);
            self.outlet.dirty.store(true, Ordering::Release);
            return runtime.poll(patience).map_err(PublishError::System);
        }
        if !self.outlet.dirty.swap(true, Ordering::AcqRel) {
            drop(outbox);
            runtime.kick();
            return Ok(());
        }
        self.outlet.room.wait_for(&mut outbox, patience);
        if runtime.has_failed() { Err(PublishError::Stopped) } else { Ok(()) }
    }

    /// A message was put into the outbox: somebody has to take it from there.
    fn pushed(&self) {
        // If the mark is still there, whoever set it has seen to that.
        if !self.outlet.dirty.load(Ordering::Acquire) {
            self.outlet.dirty.store(true, Ordering::Release);
            self.runtime().kick();
        }
    }

    fn refusal(&self, error: PushError) -> PublishError {
        match error {
            PushError::TooLarge { len, max } => PublishError::TooLarge { len, max },
            _ => PublishError::WouldBlock(self.hold()),
        }
    }

    /// Waits until the report satisfies `done`.
    fn wait(&self, timeout: Duration, done: impl Fn(&PublisherReport) -> bool) -> bool {
        let runtime = self.runtime();
        if runtime.check().is_err() {
            return false;
        }
        let deadline = runtime::instant() + timeout;
        let mut report = self.outlet.report.lock();
        while !done(&report) {
            let left = deadline.saturating_duration_since(runtime::instant());
            if left.is_zero() {
                return false;
            }
            if runtime.progress() == Progress::Manual {
                drop(report);
                if runtime.poll(left.min(WAIT)).is_err() {
                    return false;
                }
                report = self.outlet.report.lock();
            } else {
                self.outlet.changed.wait_for(&mut report, left.min(WAIT));
            }
        }
        true
    }

    fn start_close(&mut self) {
        if !std::mem::replace(&mut self.closed, true)
            && self.runtime().look(|engine| engine.close_publisher(self.id)).is_some()
        {
            self.runtime().wake();
        }
    }

    fn runtime(&self) -> &Arc<runtime::Runtime> {
        self.group.node().runtime()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.start_close();
    }
}

/// How long one wait is before the state is looked at again.
const WAIT: Duration = Duration::from_millis(20);

/// Room for a message in the frame it will be sent in. Dropping it publishes nothing.
#[must_use = "a claim publishes nothing until it is committed"]
pub struct Claim<'a> {
    publisher: &'a Publisher,
    outbox: Option<MutexGuard<'a, Outbox<SendBuf>>>,
    len: usize,
}

impl Claim<'_> {
    /// Publishes the message.
    pub fn commit(mut self) {
        if let Some(outbox) = &mut self.outbox {
            outbox.commit(self.len);
        }
        self.end();
        self.publisher.pushed();
    }

    /// Gives the outbox back, and makes good for a turn that passed by meanwhile.
    fn end(&mut self) {
        let Some(outbox) = self.outbox.take() else { return };
        drop(outbox);
        let outlet = &self.publisher.outlet;
        outlet.claimed.store(false, Ordering::SeqCst);
        if outlet.passed_by.swap(false, Ordering::SeqCst) {
            self.publisher.runtime().kick();
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for Claim<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.outbox.as_ref().and_then(|o| o.claimed(self.len)).unwrap_or(&[])
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.outbox.as_mut().and_then(|o| o.claimed_mut(self.len)).unwrap_or(&mut [])
    }
}

/// Sets a publisher up.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open`"]
pub struct PublisherBuilder {
    group: Group,
    config: PublisherConfig,
}

impl PublisherBuilder {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, config: PublisherConfig::default() }
    }

    /// The stream's name, by which subscribers choose; empty if it is not said.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.config.topic = topic.into();
        self
    }

    /// Frames retained for repairs and history, 1024 if it is not said. Memory: as many path MTUs.
    pub fn window(mut self, frames: usize) -> Self {
        self.config.window = frames;
        self
    }

    /// Whom the publisher waits for.
    pub fn policy(mut self, policy: FlowPolicy) -> Self {
        self.config.policy = policy;
        self
    }

    /// How long one subscriber may hold the publisher back without a step before it is let go; 10 s if it
    /// is not said.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// How long a closing publisher waits for subscribers; 5 s if it is not said.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.config.linger = linger;
        self
    }

    /// How long a silent subscriber counts as alive; 2 s if it is not said.
    pub fn receiver_timeout(mut self, timeout: Duration) -> Self {
        self.config.receiver_timeout = timeout;
        self
    }

    /// Opens the stream.
    ///
    /// # Errors
    /// [`OpenPublisherError`]; nothing was opened.
    pub fn open(self) -> Result<Publisher, OpenPublisherError> {
        let Self { group, config } = self;
        if !is_sound_name(&config.topic) {
            return Err(OpenPublisherError::Topic(config.topic));
        }
        if !(1..=MAX_WINDOW).contains(&config.window) {
            return Err(OpenPublisherError::Window(config.window));
        }
        group.node().runtime().check()?;
        let linger = config.linger;
        let (id, outlet) = {
            let runtime = group.node().runtime();
            let now = runtime.now();
            runtime
                .engine()
                .open_publisher(now, group.id(), config)
                .map_err(OpenPublisherError::Device)?
        };
        group.node().runtime().wake();
        Ok(Publisher { group, id, outlet, closed: false, linger })
    }
}

/// The greatest window in frames: 4 GiB at the largest path MTU.
const MAX_WINDOW: usize = 1 << 20;

/// Why a message was not taken. Nothing of it was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The publisher is held back: all its frames wait to be sent or confirmed. Try again later, or find
    /// out about who is named.
    #[error("held back{}", held_by(.0.as_ref()))]
    WouldBlock(Option<Hold>),
    /// The message is too large.
    #[error("a message of {len} bytes is too large; {max} bytes is the most")]
    TooLarge {
        /// The message.
        len: usize,
        /// The most.
        max: usize,
    },
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

fn held_by(hold: Option<&Hold>) -> String {
    match hold {
        Some(Hold::Subscriber { name, behind, headroom, .. }) => {
            let dry = if *headroom == 0 { ", its receive queue is dry" } else { "" };
            format!(" by subscriber {name}, which is {behind} frames behind{dry}")
        }
        Some(Hold::Own) => " by a subscription of this very node, which is full".into(),
        Some(Hold::Quorum { have, want }) => format!(": {have} subscribers of a quorum of {want}"),
        _ => ": more was published than the link has taken".into(),
    }
}

/// Why a publisher was not opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPublisherError {
    /// The topic is too long or has control characters.
    #[error("{0:?} cannot be a topic; give at most {MAX_NAME} bytes without control characters")]
    Topic(String),
    /// The window is out of range.
    #[error("a window of {0} frames is out of range; give 1 to {MAX_WINDOW}")]
    Window(usize),
    /// The device refused the memory.
    #[error(transparent)]
    Device(DeviceError),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}
