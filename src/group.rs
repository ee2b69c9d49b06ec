//! A group of nodes that hear each other's messages.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use qcast_proto::addr::{Gid, QKey, group_address, group_address_v6};
use qcast_proto::membership::{Profile, ProfileError};
use qcast_proto::node::{CONTROL_GROUP, GroupCounters, GroupId};
use qcast_proto::wire::control::{MAX_NAME, is_sound_name};

use crate::device::DeviceError;
use crate::engine::{GroupSetup, JoinFailure};
use crate::node::Node;
use crate::publisher::PublisherBuilder;
use crate::runtime::{self, ForkedChild};
use crate::subscriber::SubscriberBuilder;

/// A joined group.
///
/// A clone is another handle. The group is left when its last handle, publisher and subscriber is gone.
/// Joining a group once more gives another member, with its own queue pair, that does not hear the first.
///
/// # Examples
/// ```
/// use qcast::{Node, QKey};
///
/// let node = Node::builder().open()?;
/// let by_secret = node.group("inside").secret("between us").join()?;
/// let by_key = node.group("outside").qkey(QKey::new_checked(0x1234)?).join()?;
/// assert_ne!(by_secret.qkey(), by_key.qkey());
/// println!("{} is at {}", by_secret.name(), by_secret.mgid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: Node,
    id: GroupId,
    name: String,
    mgid: IpAddr,
    qkey: QKey,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.node.runtime().look(|engine| engine.leave(self.id)).is_some() {
            // The farewell leaves before this returns: the process may end with it. It is due once what was said
            // before has been sent.
            self.node.runtime().turn_now();
            self.node.runtime().turn_now();
        }
    }
}

impl Group {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The group's multicast address.
    pub fn mgid(&self) -> IpAddr {
        self.inner.mgid
    }

    /// The group's queue key.
    pub fn qkey(&self) -> QKey {
        self.inner.qkey
    }

    /// The node that joined it.
    pub fn node(&self) -> &Node {
        &self.inner.node
    }

    /// Starts to set a publisher up.
    pub fn publisher(&self) -> PublisherBuilder {
        PublisherBuilder::new(self.clone())
    }

    /// Starts to set a subscriber up.
    pub fn subscriber(&self) -> SubscriberBuilder {
        SubscriberBuilder::new(self.clone())
    }

    /// What the group received and dropped.
    pub fn counters(&self) -> GroupCounters {
        let id = self.inner.id;
        self.inner.node.runtime().look(|engine| engine.group_counters(id)).unwrap_or_default()
    }

    /// Leaves the group, and waits until the other members were told: some 50 ms. Dropping the last handle leaves
    /// it too, without the wait; a process that ends right after it may be taken for failed if that first
    /// word is lost.
    ///
    /// Says whether the group was left: while another handle, a publisher, a subscriber or a listener of it is
    /// there, it is not.
    pub fn leave(self) -> bool {
        let (node, id) = (self.inner.node.clone(), self.inner.id);
        let Some(inner) = Arc::into_inner(self.inner) else { return false };
        drop(inner);
        let deadline = runtime::instant() + LEAVING;
        while node.runtime().engine().has_group(id) && runtime::instant() < deadline {
            // A manual node is driven by this.
            node.runtime().turn_now();
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Moves the group's queue pair to ERR behind the node's back, as an adapter does that fails: for tests and
    /// measurements of recovery. The node finds out when it next sends, and brings it back; streams go on.
    ///
    /// # Errors
    /// The device refused. Nothing was changed.
    pub fn break_qp(&self) -> Result<(), DeviceError> {
        self.inner.node.runtime().engine().break_qp(self.inner.id)
    }

    /// Lets everything out that is to be sent to the group, and then nothing more until the guard is dropped: for a
    /// planned change of the fabric, say. The queue pair is then in SQD: it goes on to receive. What is published
    /// meanwhile is held back, and so is all that this node would say to its peers, who take it for gone after some
    /// seconds. Waits up to `timeout`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let node = qcast::Node::builder().open()?;
    /// let group = node.group("planned").join()?;
    /// let drained = group.drain(Duration::from_secs(1))?;
    /// // Nothing is sent to the group now.
    /// drained.resume()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DrainError`]; the group sends as before.
    pub fn drain(&self, timeout: Duration) -> Result<Drained, DrainError> {
        let runtime = self.inner.node.runtime();
        runtime.check()?;
        if !runtime.engine().start_drain(self.inner.id) {
            return Err(DrainError::Device(DeviceError::NoSuch("group")));
        }
        let drained = Drained { group: Some(self.clone()) };
        let deadline = runtime::instant() + timeout;
        loop {
            runtime.turn_now();
            if runtime.engine().is_drained(self.inner.id) {
                return Ok(drained);
            }
            if runtime::instant() >= deadline {
                return Err(DrainError::Timeout);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn resume(&self) -> Result<(), DrainError> {
        let runtime = self.inner.node.runtime();
        runtime.check()?;
        let resumed = runtime.engine().end_drain(runtime.now(), self.inner.id);
        runtime.turn_now();
        resumed.map_err(DrainError::Device)
    }

    pub(crate) fn id(&self) -> GroupId {
        self.inner.id
    }
}

/// How long [`Group::leave`] waits at most.
const LEAVING: Duration = Duration::from_secs(1);

/// A group that sends nothing. See [`Group::drain`].
#[derive(Debug)]
#[must_use = "the group sends again when this is dropped"]
pub struct Drained {
    group: Option<Group>,
}

impl Drained {
    /// Lets the group send again.
    ///
    /// # Errors
    /// The device refused. The node goes on trying, as after a fault.
    pub fn resume(mut self) -> Result<(), DrainError> {
        self.group.take().map_or(Ok(()), |group| group.resume())
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.group.take().map(|group| group.resume()) {
            tracing::warn!(%error, "a group was not resumed yet");
        }
    }
}

/// Why a group was not drained, or not resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// There was still something to be sent when the time was up. The group sends as before.
    #[error(
        "there is still something to be sent; give it more time, or see whether the link is up"
    )]
    Timeout,
    /// The device refused.
    #[error(transparent)]
    Device(DeviceError),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}

/// Sets a group up.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `join`"]
pub struct GroupBuilder {
    node: Node,
    name: String,
    qkey: Option<QKey>,
    secret: Vec<u8>,
    mgid: Option<IpAddr>,
    timeout: Duration,
    profile: Profile,
}

impl GroupBuilder {
    pub(crate) fn new(node: Node, name: String) -> Self {
        let timeout = Duration::from_secs(5);
        let (secret, profile) = (Vec::new(), Profile::default());
        Self { node, name, qkey: None, secret, mgid: None, timeout, profile }
    }

    /// The group's queue key, instead of one that follows from its name and secret.
    pub fn qkey(mut self, qkey: QKey) -> Self {
        self.qkey = Some(qkey);
        self
    }

    /// The secret that members share: the queue key follows from it and the name.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// The group's multicast address, instead of one that follows from its name: in 239.192.0.0/14, or in
    /// ff15::/16 on a device with an IPv6 address.
    pub fn mgid(mut self, mgid: IpAddr) -> Self {
        self.mgid = Some(mgid);
        self
    }

    /// How long the join may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Something that members are to know of this one, as a key and a value: at most
    /// [`MAX_PAIRS`](qcast_proto::membership::MAX_PAIRS) of [`MAX_METADATA`](qcast_proto::membership::MAX_METADATA) bytes in
    /// all. Who it is they know from the node's name.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.profile.metadata.push((key.into(), value.into()));
        self
    }

    /// Joins the group. Blocks until the join has ended.
    ///
    /// # Errors
    /// [`JoinError`]; nothing is left of the join.
    pub fn join(self) -> Result<Group, JoinError> {
        if self.name.is_empty() || !is_sound_name(&self.name) {
            return Err(JoinError::Name(self.name));
        }
        self.profile.check().map_err(JoinError::Metadata)?;
        if self.name == CONTROL_GROUP {
            return Err(JoinError::Reserved);
        }
        let mgid = self.mgid.unwrap_or_else(|| match self.node.device().gid.ip() {
            IpAddr::V4(_) => IpAddr::V4(group_address(&self.name)),
            IpAddr::V6(_) => IpAddr::V6(group_address_v6(&self.name)),
        });
        let qkey = self.qkey.unwrap_or_else(|| QKey::derive(&self.name, &self.secret));
        let (name, profile) = (self.name.clone(), self.profile);
        let setup = GroupSetup { name, mgid: Gid::from(mgid), qkey, profile };
        let runtime = self.node.runtime();
        runtime.check()?;
        let ticket = {
            let deadline = runtime.now() + self.timeout;
            runtime.engine().start_join(setup, deadline).map_err(JoinError::Device)?
        };
        let outcome = loop {
            runtime.turn_now();
            if let Some(outcome) = runtime.engine().take_joined(ticket) {
                break outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let id = outcome.map_err(|failure| match failure {
            JoinFailure::Device(error) => JoinError::Device(error),
            JoinFailure::Timeout => JoinError::Timeout(mgid),
        })?;
        if self.node.has_control() {
            // In the background, and after the group that was asked for.
            runtime.engine().want_control();
            runtime.wake();
        }
        let inner = Inner { node: self.node.clone(), id, name: self.name, mgid, qkey };
        Ok(Group { inner: Arc::new(inner) })
    }
}

/// Why a group was not joined. Nothing is left of the join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The name is empty, too long, or has control characters.
    #[error(
        "{0:?} cannot be a group's name; give 1 to {MAX_NAME} bytes without control characters"
    )]
    Name(String),
    /// The metadata breaks a bound.
    #[error(transparent)]
    Metadata(ProfileError),
    /// The name is the control group's.
    #[error(
        "{CONTROL_GROUP:?} is the name of the control group, which every node is in; use another"
    )]
    Reserved,
    /// The device refused.
    #[error(transparent)]
    Device(DeviceError),
    /// The fabric did not answer in time.
    #[error(
        "joining {0} got no answer in time; on InfiniBand members with different QKeys look like this"
    )]
    Timeout(IpAddr),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}
