//! A process's endpoint.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use qcast_proto::addr::{Domain, Gid, NodeId};
use qcast_proto::membership::MembershipConfig;
use qcast_proto::node::NodeConfig;
use qcast_proto::wire::control::is_sound_name;

use crate::device::fault::FaultPlan;
use crate::device::open::{self, DeviceOptions, OpenDeviceError};
use crate::device::spec::DeviceSpec;
use crate::device::{DeviceError, PortCounters};
use crate::engine::journal::JournalEntry;
use crate::engine::{AhStats, Engine, EngineConfig};
use crate::group::GroupBuilder;
use crate::runtime::{self, Progress, Runtime, StartError};

/// One process's endpoint on a device: groups are joined through it.
///
/// A clone is another handle to the same node, which ends when the last handle, group, publisher and
/// subscriber is gone. Handles may be used from any thread.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Arc<Runtime>,
    name: String,
    id: NodeId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.runtime.stop();
    }
}

impl Node {
    /// Starts to set a node up. Without further ado it runs on the loopback interface.
    ///
    /// # Examples
    /// ```
    /// let node = qcast::Node::builder().name("telemetry-1").open()?;
    /// assert_eq!(node.name(), "telemetry-1");
    /// # Ok::<(), qcast::OpenError>(())
    /// ```
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Starts to join a group by name.
    pub fn group(&self, name: impl Into<String>) -> GroupBuilder {
        GroupBuilder::new(self.clone(), name.into())
    }

    /// The name that peers show.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The node's identity.
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    /// The device that the node is on.
    pub fn device(&self) -> DeviceSummary {
        let engine = self.runtime().engine();
        let device = engine.device();
        let port = device.port();
        let name = device.caps().name.clone();
        DeviceSummary { name, gid: port.gid, udp_port: port.udp_port, mtu: port.mtu }
    }

    /// The port's counters since the node was opened.
    pub fn counters(&self) -> PortCounters {
        self.runtime().engine().device().counters()
    }

    /// Numbers of the cache of address handles.
    pub fn ah_stats(&self) -> AhStats {
        self.runtime().engine().ah_stats()
    }

    /// The last modifies of the node's queue pairs, oldest first: bring-ups, recoveries, and what was refused.
    pub fn journal(&self) -> Vec<JournalEntry> {
        self.runtime().engine().journal().entries().cloned().collect()
    }

    /// Drives the node with [`Progress::Manual`]: does what there is to do in one bounded turn, and if there is
    /// nothing, waits up to `timeout` for something. With [`Progress::Thread`] it waits, too, until something
    /// has come for a subscriber.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use qcast::{Node, Progress};
    ///
    /// let node = Node::builder().progress(Progress::Manual).open()?;
    /// let mut subscriber = node.group("spin").join()?.subscriber().open()?;
    /// for _ in 0..10 {
    ///     node.poll(Duration::from_micros(50))?;
    ///     subscriber.poll(64, |incoming| println!("{incoming:?}"));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The operating system refused to poll.
    pub fn poll(&self, timeout: Duration) -> Result<(), PollError> {
        self.runtime().poll(timeout).map_err(PollError)
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.inner.runtime
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.name()).field("id", &self.id()).finish()
    }
}

/// What a node runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSummary {
    /// The device's name.
    pub name: String,
    /// The GID that peers reach the node by.
    pub gid: Gid,
    /// The UDP port that it is reached by.
    pub udp_port: u16,
    /// The path MTU in bytes.
    pub mtu: usize,
}

/// Sets a node up.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open`"]
pub struct NodeBuilder {
    device: DeviceSpec,
    name: Option<String>,
    domain: Domain,
    progress: Progress,
    fault: Option<FaultPlan>,
    receive_window: Option<usize>,
    max_kept: Option<usize>,
    srq_depth: Option<usize>,
    mtu: Option<usize>,
    journal: Option<PathBuf>,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            device: DeviceSpec::default(),
            name: None,
            domain: Domain(0),
            progress: Progress::Thread,
            fault: None,
            receive_window: None,
            max_kept: None,
            srq_depth: None,
            mtu: None,
            journal: None,
        }
    }
}

impl NodeBuilder {
    /// The device to run on; loopback if it is not said.
    pub fn device(mut self, device: DeviceSpec) -> Self {
        self.device = device;
        self
    }

    /// The name that peers show, at most 96 bytes; host name and process number if it is not said.
    ///
    /// A node with a name of its own is known by it: one that starts under the same name later is
    /// taken for its next life.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The deployment that the node belongs to: nodes of other domains are not heard.
    pub fn domain(mut self, domain: u16) -> Self {
        self.domain = Domain(domain);
        self
    }

    /// Who drives the node.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Disturbs the device on purpose: loss, reordering, duplication.
    pub fn fault(mut self, plan: Option<FaultPlan>) -> Self {
        self.fault = plan;
        self
    }

    /// Frames of each stream that the node has room for, 1024 if it is not said. Memory: as many path MTUs.
    pub fn receive_window(mut self, frames: usize) -> Self {
        self.receive_window = Some(frames);
        self
    }

    /// Bytes that all streams together may keep, 256 MiB if it is not said: frames behind a gap, and pieces of messages
    /// that are not whole yet. Beyond it, streams that keep more than their share lose unfinished messages
    /// ([`LossCause::NoMemory`](crate::LossCause::NoMemory)). Raise it where many publishers send large messages at once.
    pub fn max_kept(mut self, bytes: usize) -> Self {
        self.max_kept = Some(bytes);
        self
    }

    /// Receives posted to the SRQ, 4096 if it is not said. Memory: as many path MTUs.
    pub fn srq_depth(mut self, receives: usize) -> Self {
        self.srq_depth = Some(receives);
        self
    }

    /// Appends every modify of a queue pair to this file, as one JSON object a line.
    pub fn journal(mut self, file: impl Into<PathBuf>) -> Self {
        self.journal = Some(file.into());
        self
    }

    /// A path MTU below the port's, in bytes: 512, 1024, 2048 or 4096.
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Opens the device and starts the node.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open(self) -> Result<Node, OpenError> {
        let explicit = self.name.is_some();
        let name = self.name.unwrap_or_else(default_name);
        if name.is_empty() || !is_sound_name(&name) {
            return Err(OpenError::Name(name));
        }
        let mut rng = runtime::system_rng();
        let id = if explicit { NodeId::of_name(&name) } else { NodeId(rng.u128(..)) };
        let mut node = NodeConfig::new(id, runtime::incarnation(), name.clone());
        node.domain = self.domain;
        node.host = host_name();
        node.membership = Some(MembershipConfig::default());
        if let Some(frames) = self.receive_window {
            node.receive_window = frames.max(1);
        }
        if let Some(bytes) = self.max_kept {
            node.max_kept = bytes;
        }
        let mut config = EngineConfig::new(node, rng.u64(..));
        if let Some(depth) = self.srq_depth {
            config.srq_depth = depth;
        }
        let options =
            DeviceOptions { mtu: self.mtu, srq_depth: config.srq_depth, fault: self.fault };
        let device = open::open(&self.device, options).map_err(OpenError::Device)?;
        let journal = self.journal.map(|path| {
            let file = File::options().create(true).append(true).open(&path);
            file.map_err(|source| OpenError::Journal { path, source })
        });
        let journal = journal.transpose()?;
        let (runtime, _thread) =
            Runtime::start(self.progress, |now| Engine::new(now, device, config))?;
        if let Some(file) = journal {
            runtime.engine().journal_mut().write_to(file);
        }
        Ok(Node { inner: Arc::new(Inner { runtime, name, id }) })
    }
}

/// Why a node could not be opened. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The journal's file cannot be opened. Nothing is left open.
    #[error("the journal {} cannot be opened: {source}", .path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The name is empty, too long, or has control characters.
    #[error("{0:?} cannot be a node's name; give 1 to 96 bytes without control characters")]
    Name(String),
    /// The device could not be opened.
    #[error(transparent)]
    Device(OpenDeviceError),
    /// The device refused memory or receives.
    #[error(transparent)]
    Memory(DeviceError),
    /// The operating system refused what the runtime needs.
    #[error("the node could not be started")]
    System(#[source] io::Error),
}

impl From<StartError> for OpenError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Device(error) => Self::Memory(error),
            StartError::Poll(error) | StartError::Thread(error) => Self::System(error),
        }
    }
}

/// The operating system refused to poll.
#[derive(Debug, thiserror::Error)]
#[error("polling failed")]
pub struct PollError(#[source] io::Error);

/// This host's name, or `node` if it has none.
fn host_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok());
    host.filter(|h| !h.is_empty()).unwrap_or_else(|| "node".into())
}

fn default_name() -> String {
    let host = host_name();
    // A host name has at most 64 bytes; with the process number that is below the limit of a name.
    let name: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{name}:{}", std::process::id())
}
