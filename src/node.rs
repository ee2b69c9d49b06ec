//! A process's endpoint.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use qcast_proto::addr::{Domain, Gid, NodeId};
use qcast_proto::diagnosis::DiagnosisCounters;
use qcast_proto::discovery::DiscoveryCounters;
use qcast_proto::membership::{MAX_HOST, MembershipConfig};
use qcast_proto::node::NodeConfig;
use qcast_proto::time::Instant;
use qcast_proto::wire::control::is_sound_name;

use crate::device::fault::FaultPlan;
use crate::device::open::{self, DeviceOptions, OpenDeviceError};
use crate::device::spec::DeviceSpec;
use crate::device::{Device, DeviceError, PortCounters};
use crate::engine::journal::JournalEntry;
use crate::engine::{AhStats, Engine, EngineConfig};
use crate::group::GroupBuilder;
use crate::runtime::{self, ForkedChild, Progress, Runtime, StartError};

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
    control: bool,
    opened_on: DeviceSummary,
    /// The progress thread, if there is one.
    thread: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.runtime.check().is_err() {
            // What it would close is the parent's.
            std::mem::forget(Arc::clone(&self.runtime));
            return;
        }
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
        let summary = self.runtime().look(|engine| DeviceSummary::of(engine.device()));
        summary.unwrap_or_else(|| self.inner.opened_on.clone())
    }

    /// The port's counters since the node was opened.
    pub fn counters(&self) -> PortCounters {
        let counters = |engine: &mut Engine| {
            engine.device_mut().refresh_counters();
            engine.counters()
        };
        self.runtime().look(counters).unwrap_or_default()
    }

    /// What the control group dropped and refused: notices of keys, and services.
    pub fn control_counters(&self) -> (DiagnosisCounters, DiscoveryCounters) {
        self.runtime().look(|engine| engine.control_counters()).unwrap_or_default()
    }

    /// Whether the node takes part in the control group.
    pub(crate) fn has_control(&self) -> bool {
        self.inner.control
    }

    /// Numbers of the cache of address handles.
    pub fn ah_stats(&self) -> AhStats {
        self.runtime().look(|engine| engine.ah_stats()).unwrap_or_default()
    }

    /// The last modifies of the node's queue pairs, oldest first: bring-ups, recoveries, and what was refused.
    pub fn journal(&self) -> Vec<JournalEntry> {
        let entries = |engine: &mut Engine| engine.journal().entries().cloned().collect();
        self.runtime().look(entries).unwrap_or_default()
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
    /// [`PollError`]
    pub fn poll(&self, timeout: Duration) -> Result<(), PollError> {
        self.runtime().check()?;
        self.runtime().poll(timeout).map_err(PollError::System)
    }

    /// Ends the node, and waits until its device is closed and nothing of it is left in the kernel. (A node that is only
    /// dropped ends in the background.) Publishers that were dropped linger meanwhile, as ever.
    ///
    /// Says whether it did: not while there are other handles to the node, groups, publishers or subscribers of it, nor
    /// in a forked child.
    pub fn close(self) -> bool {
        let Ok(mut inner) = Arc::try_unwrap(self.inner).map_err(drop) else { return false };
        if inner.runtime.check().is_err() {
            return false;
        }
        let thread = inner.thread.take();
        inner.runtime.stop();
        let ended = thread.is_none_or(|thread| thread.join().is_ok());
        // The last handle of the runtime: the device goes with it.
        drop(inner);
        ended
    }

    /// The time on the node's clock, which is what times such as
    /// [`Member::heard`](crate::Member::heard) are told by. It starts with the node.
    pub fn now(&self) -> Instant {
        self.runtime().now()
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

impl DeviceSummary {
    fn of(device: &dyn Device) -> Self {
        let port = device.port();
        let name = device.caps().name.clone();
        Self { name, gid: port.gid, udp_port: port.udp_port, mtu: port.mtu }
    }
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
    control: bool,
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
            control: true,
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

    /// Whether the node joins the control group, in the background, when it joins its first group: there members with
    /// other keys are [found out](crate::NodeEvent::KeyMismatch), and services announced and found. It does if it is
    /// not said. It costs a queue pair, and at most some 50 small datagrams a second of all nodes together.
    pub fn control(mut self, control: bool) -> Self {
        self.control = control;
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
        let device = open::open(&self.device, options.clone()).map_err(OpenError::Device)?;
        let opened_on = DeviceSummary::of(&*device);
        let reopen = open::reopener(&self.device, options, &*device);
        let journal = self.journal.map(|path| {
            let file = File::options().create(true).append(true).open(&path);
            file.map_err(|source| OpenError::Journal { path, source })
        });
        let journal = journal.transpose()?;
        let (runtime, thread) =
            Runtime::start(self.progress, |now| Engine::new(now, device, config))?;
        runtime.engine().reopen_by(reopen);
        if let Some(file) = journal {
            runtime.engine().journal_mut().write_to(file);
        }
        let control = self.control;
        Ok(Node { inner: Arc::new(Inner { runtime, name, id, control, opened_on, thread }) })
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

/// Why a node could not be driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The operating system refused to poll.
    #[error("polling failed")]
    System(#[source] io::Error),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}

/// With the process number this is below the limit of a name.
fn default_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

fn host_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok());
    let host = host.unwrap_or_else(|| "node".into());
    let mut name: String = host.chars().filter(|c| !c.is_control()).collect();
    // Linux has none that is longer.
    while name.len() > MAX_HOST {
        name.pop();
    }
    name
}
