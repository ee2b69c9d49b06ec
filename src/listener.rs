//! An application's end of a feed of the engine: waiting for the next entry, and driving the node
//! meanwhile if nobody else does.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::feed::{Entry, FeedQueue};
use crate::engine::outlet::Patience;
use crate::node::Node;
use crate::runtime::{self, Progress};
use crate::subscriber::RecvError;

/// Listens to a feed. It keeps the node alive, as a subscriber does.
#[derive(Debug)]
pub(crate) struct Listener<T> {
    node: Node,
    queue: Arc<FeedQueue<T>>,
}

/// How long one wait is before it is looked whether the node still runs, and how long one drive is.
const WAIT: Duration = Duration::from_millis(100);

impl<T: Entry> Listener<T> {
    pub(crate) fn new(node: Node, queue: Arc<FeedQueue<T>>) -> Self {
        Self { node, queue }
    }

    /// Waits for the next entry.
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        loop {
            if let Some(entry) = self.wait(WAIT)? {
                return Ok(entry);
            }
        }
    }

    /// Waits up to `timeout` for the next entry.
    pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<Option<T>, RecvError> {
        let deadline = runtime::instant() + timeout;
        loop {
            let left = deadline.saturating_duration_since(runtime::instant());
            match self.wait(left.min(WAIT))? {
                None if !left.is_zero() => {}
                other => return Ok(other),
            }
        }
    }

    /// The next entry, if one is there.
    pub(crate) fn try_recv(&self) -> Result<Option<T>, RecvError> {
        self.wait(Duration::ZERO)
    }

    /// One wait. A manual node is driven by it.
    fn wait(&self, at_most: Duration) -> Result<Option<T>, RecvError> {
        let found = self.queue.take(Patience::None);
        if found.is_some() {
            return Ok(found);
        }
        let runtime = self.node.runtime();
        let found = if runtime.progress() == Progress::Manual {
            runtime.poll(at_most).map_err(RecvError::System)?;
            self.queue.take(Patience::None)
        } else if at_most.is_zero() {
            None
        } else {
            self.queue.take(Patience::Until(runtime::instant() + at_most))
        };
        if found.is_none() && (runtime.has_failed() || self.queue.is_closed()) {
            return Err(RecvError::Stopped);
        }
        Ok(found)
    }

    /// The next entry for a task.
    #[cfg(feature = "async")]
    pub(crate) fn poll_next(
        &self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<T, RecvError>>> {
        use std::task::Poll;
        loop {
            match self.try_recv() {
                Ok(Some(entry)) => return Poll::Ready(Some(Ok(entry))),
                Ok(None) if !self.queue.wake_when_ready(cx.waker()) => return Poll::Pending,
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}
