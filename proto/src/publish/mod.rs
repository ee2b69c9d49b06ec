//! The publisher's half of the protocol.
//!
//! Messages become frames in an [`Outbox`]; a [`PublishStream`] sends them as far as flow control
//! allows, retains them in a window, repairs what subscribers ask for, and tells them how far it is.

mod company;
mod config;
mod flow;
mod outbox;
mod repair;
mod report;
mod stream;
mod table;
mod window;

pub use config::PublisherConfig;
pub use flow::{FlowPolicy, Hold};
pub use outbox::{Outbox, PushError};
pub use report::{Closed, PublisherEvent, PublisherStats};
pub(crate) use stream::Outgoing;
pub use stream::PublishStream;
pub use table::Receiver;
