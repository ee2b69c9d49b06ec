//! The publisher's half of the protocol.
//!
//! Messages become frames in an [`Outbox`]; a [`PublishStream`] sends them as far as flow control
//! allows, retains them in a window, repairs what subscribers ask for, and tells them how far it is.

mod company;
mod flow;
mod outbox;
mod repair;
mod stream;
mod window;

pub use flow::{FlowPolicy, Hold, Receiver};
pub use outbox::{Outbox, PushError};
pub(crate) use stream::Outgoing;
pub use stream::{Closed, PublishStream, PublisherConfig, PublisherEvent, PublisherStats};
