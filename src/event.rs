//! The events of a node.

use std::time::Duration;

use crate::engine::event::NodeEvent;
use crate::listener::Listener;
use crate::node::Node;
use crate::subscriber::RecvError;

/// Listens to what happens to a node: to its port, its device, its queue pairs.
///
/// Any number may listen, each gets everything from [`Node::events`](crate::Node::events) on. A listener
/// that is slow loses the oldest of more than 256 events and is told how many. It keeps the node alive.
/// With [`Progress::Manual`](crate::Progress::Manual) waiting for an event drives the node. With the
/// feature `async` it is a stream.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use qcast::{Node, NodeEvent};
///
/// let node = Node::builder().open()?;
/// let events = node.events();
/// match events.recv_timeout(Duration::from_millis(1))? {
///     Some(NodeEvent::DeviceLost { device, .. }) => eprintln!("{device} is gone"),
///     Some(event) => eprintln!("{event}"),
///     None => {}
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NodeEvents {
    listener: Listener<NodeEvent>,
}

impl NodeEvents {
    pub(crate) fn new(listener: Listener<NodeEvent>) -> Self {
        Self { listener }
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv(&self) -> Result<NodeEvent, RecvError> {
        self.listener.recv()
    }

    /// Waits up to `timeout` for the next event; `None` when nothing happened.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<NodeEvent>, RecvError> {
        self.listener.recv_timeout(timeout)
    }

    /// The next event, if one is there.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn try_recv(&self) -> Result<Option<NodeEvent>, RecvError> {
        self.listener.try_recv()
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for NodeEvents {
    type Item = Result<NodeEvent, RecvError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.listener.poll_next(cx)
    }
}

impl Node {
    /// Listens to what happens to the node from now on.
    pub fn events(&self) -> NodeEvents {
        let queue = self.runtime().engine().listen();
        NodeEvents::new(Listener::new(self.clone(), queue))
    }
}
