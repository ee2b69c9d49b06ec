//! qcast: reliable publish/subscribe over RDMA unreliable datagrams.
//!
//! One multicast send reaches every subscriber of a [`Group`]; a small sequencing and retransmit layer
//! makes it reliable; a queue key for each group keeps strangers out. On a machine without an RDMA NIC
//! the software provider speaks the same RoCEv2 datagrams over UDP sockets, with no root and no kernel
//! module: that is what the example below runs on.
//!
//! # Quick start
//! ```
//! use std::time::Duration;
//! use qcast::{Delivery, Node};
//!
//! let (ours, theirs) = (Node::builder().open()?, Node::builder().open()?);
//! let mut subscriber = theirs.group("quick start").secret("between us").join()?.subscriber().open()?;
//! let mut publisher = ours.group("quick start").secret("between us").join()?.publisher().open()?;
//!
//! assert_eq!(publisher.wait_for(1, Duration::from_secs(5)), 1);
//! publisher.send(b"hello")?;
//! loop {
//!     match subscriber.recv_timeout(Duration::from_secs(5))?.expect("a message comes") {
//!         Delivery::Message(message) => break assert_eq!(&message[..], b"hello"),
//!         notice => println!("{notice:?}"),
//!     }
//! }
//! assert!(publisher.close().unconfirmed.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//! * `verbs` (default): real RDMA devices, through libibverbs and librdmacm.
//! * `async`: [`Subscriber`], [`ViewChanges`] and the like are `futures_core::Stream`s.
//!
//! # Threads
//! Handles may be used from any thread. A [`Publisher`] and a [`Subscriber`] are each for one thread at
//! a time. With [`Progress::Thread`] the node has one thread of its own; with [`Progress::Manual`] the
//! application drives it.
//!
//! # Cleaning up
//! Everything ends when it is dropped. [`Publisher::close`] waits until subscribers have what was
//! published; a publisher that is only dropped lingers in the background, which the end of the process
//! cuts short.
//!
//! # Not supported
//! Encryption (a queue key is sent in the clear), routing between fabrics, messages above 16 MiB.
#![deny(unsafe_code)]

pub mod device;
mod discovery;
pub mod engine;
mod event;
mod group;
mod listener;
mod membership;
mod message;
mod node;
mod publisher;
mod runtime;
pub mod simulate;
mod subscriber;

pub use device::PortCounters;
pub use device::fault::{FaultPlan, FaultPlanError};
pub use device::open::OpenDeviceError;
pub use device::spec::{DeviceSpec, SoftAddress, SpecError, VerbsSpec};
pub use discovery::{AnnounceError, Announcement, BrowseError, Browser, ResolveError};
pub use engine::control::{AnnouncementEvent, ServiceEvent};
pub use engine::event::{NodeEvent, Trouble};
pub use engine::journal::JournalEntry;
pub use engine::members::ViewChange;
pub use event::NodeEvents;
pub use group::{DrainError, Drained, Group, GroupBuilder, JoinError};
pub use membership::ViewChanges;
pub use message::Message;
pub use node::{DeviceSummary, Node, NodeBuilder, OpenError, PollError};
pub use publisher::{Claim, OpenPublisherError, PublishError, Publisher, PublisherBuilder};
pub use qcast_proto as proto;
pub use qcast_proto::addr::{NodeId, QKey, QKeyError, Sequence};
pub use qcast_proto::diagnosis::{DiagnosisCounters, Noticed, PathDifference, SeenGroup};
pub use qcast_proto::discovery::{
    DiscoveryCounters, Found as FoundService, Owner as ServiceOwner, Service, ServiceError,
};
pub use qcast_proto::membership::{
    Member, MemberEvent, MemberInfo, MemberProgress, MemberState, ProfileError, Role, View,
};
pub use qcast_proto::node::{GroupCounters, StreamStats};
pub use qcast_proto::publish::{
    Closed, FlowPolicy, Hold, PublisherEvent, PublisherStats, Receiver,
};
pub use qcast_proto::subscribe::{LossCause, Notice, Reliability, StreamInfo, StreamKey};
pub use runtime::{ForkedChild, Progress};
pub use subscriber::{
    Delivery, Incoming, RecvError, SubscribeError, Subscriber, SubscriberBuilder,
};
