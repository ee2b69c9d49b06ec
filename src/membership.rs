//! Who is in a group: the view, and its changes as they come.

use std::time::Duration;

use qcast_proto::membership::{Profile, ProfileError, View};

use crate::engine::members::ViewChange;
use crate::group::Group;
use crate::listener::Listener;
use crate::subscriber::RecvError;

impl Group {
    /// Who is in the group now, as this node sees it, itself among them.
    ///
    /// Right after a join that is this node alone: the others are there within some hundred milliseconds.
    /// A member is there from its join on, whether it publishes, subscribes or does neither, and ends
    /// when it leaves or fails; one that is [suspected](crate::MemberState::Suspect) still counts.
    ///
    /// # Examples
    /// ```
    /// use qcast::Node;
    ///
    /// let node = Node::builder().name("worker-1").open()?;
    /// let group = node.group("who is here").metadata("rack", "7").join()?;
    /// let view = group.members();
    /// for member in &view.members {
    ///     let heard = node.now().saturating_since(member.heard);
    ///     println!("{} ({}) is {}, heard {heard:?} ago", member.info.name, member.info.role, member.state);
    /// }
    /// let own = view.members.iter().find(|member| member.own).expect("a node is in its own group");
    /// assert_eq!(own.info.metadata, [("rack".to_owned(), "7".to_owned())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn members(&self) -> View {
        self.node().runtime().engine().view(self.id())
    }

    /// Listens to what changes in the group's view from now on. [`ViewChanges::start`] is the view that
    /// the first change is a change of.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use qcast::{MemberEvent, Node, ViewChange};
    ///
    /// let (ours, theirs) = (Node::builder().open()?, Node::builder().name("worker-2").open()?);
    /// let group = ours.group("comings and goings").join()?;
    /// let changes = group.view_changes();
    /// let _theirs = theirs.group("comings and goings").join()?;
    /// while let Some(change) = changes.recv_timeout(Duration::from_secs(5))? {
    ///     match change {
    ///         ViewChange::Member { event: MemberEvent::Joined(info), version } => {
    ///             println!("view {version}: {} has joined", info.name);
    ///             break;
    ///         }
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view_changes(&self) -> ViewChanges {
        let (start, queue) = self.node().runtime().engine().listen_members(self.id());
        let listener = Listener::new(self.node().clone(), queue);
        ViewChanges { listener, start, group: self.clone() }
    }

    /// Replaces what this node wants known of itself in the group, as keys and values. The others are told
    /// by a [`MemberEvent::Updated`](crate::MemberEvent::Updated).
    ///
    /// # Errors
    /// [`ProfileError`] says which bound is broken. Nothing was changed.
    pub fn set_metadata<K: Into<String>, V: Into<String>>(
        &self,
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), ProfileError> {
        let metadata =
            metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        let runtime = self.node().runtime();
        runtime.engine().set_profile(self.id(), Profile { metadata })?;
        runtime.kick();
        Ok(())
    }
}

/// The changes of a group's view: who joined, left, failed, is suspected, or is well again.
///
/// Any number may listen, and each gets everything. One that is slow loses the oldest of more than 2048 changes
/// and is [told how many](ViewChange::Missed). It keeps the group joined, as a subscriber does. With
/// [`Progress::Manual`](crate::Progress::Manual) waiting for a change drives the node. With the feature
/// `async` it is a stream.
///
/// # Examples
/// ```
/// use qcast::{MemberEvent, Node, ViewChange};
///
/// let node = Node::builder().open()?;
/// let changes = node.group("in order").join()?.view_changes();
/// assert_eq!(changes.start().members.len(), 1);
/// while let Some(change) = changes.try_recv()? {
///     if let ViewChange::Member { event: MemberEvent::Failed(info), .. } = change {
///         eprintln!("{} on {} has failed", info.name, info.host);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ViewChanges {
    listener: Listener<ViewChange>,
    start: View,
    group: Group,
}

impl ViewChanges {
    /// The view as it was when the listening began: each change is one of this view, or of what the changes
    /// before have made of it.
    pub fn start(&self) -> &View {
        &self.start
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv(&self) -> Result<ViewChange, RecvError> {
        self.listener.recv()
    }

    /// Waits up to `timeout` for the next change; `None` when nothing changed.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<ViewChange>, RecvError> {
        self.listener.recv_timeout(timeout)
    }

    /// The next change, if one is there.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn try_recv(&self) -> Result<Option<ViewChange>, RecvError> {
        self.listener.try_recv()
    }

    /// The changes as they come, until the node stops. Each step waits.
    pub fn iter(&self) -> impl Iterator<Item = ViewChange> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for ViewChanges {
    type Item = Result<ViewChange, RecvError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.listener.poll_next(cx)
    }
}
