//! Services: announced, looked for, and found. And the groups that others are in.

use std::time::Duration;

use qcast_proto::diagnosis::SeenGroup;
use qcast_proto::discovery::{BrowseId, Filter, Found, Service, ServiceError, ServiceId};
use qcast_proto::wire::service::{MAX_INSTANCE, MAX_TYPE};

use crate::engine::control::{AnnouncementEvent, ServiceEvent, Standing};
use crate::listener::Listener;
use crate::node::Node;
use crate::runtime::{self, ForkedChild, Progress};
use crate::subscriber::RecvError;

/// How long one wait is before the node is looked at again.
const STEP: Duration = Duration::from_millis(1);

impl Node {
    /// Announces a service to all nodes of the domain, until the announcement is dropped or
    /// [withdrawn](Announcement::withdraw). Does not block: [`Announcement::wait`] does.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use qcast::{Node, Service};
    ///
    /// let node = Node::builder().open()?;
    /// let kind = format!("http of job {}", std::process::id());
    /// let service = Service::new(&kind, "front", 8080).meta("path", "/status");
    /// let announcement = node.announce(service)?;
    /// println!("announced as {}", announcement.wait(Duration::from_secs(5))?);
    ///
    /// let other = Node::builder().open()?;
    /// let found = other.resolve_of(&kind, "front", Duration::from_secs(5))?;
    /// assert_eq!((found.service.port, found.service.value("path")), (8080, Some("/status")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AnnounceError`]; nothing is announced.
    pub fn announce(&self, service: Service) -> Result<Announcement, AnnounceError> {
        if !self.has_control() {
            return Err(AnnounceError::NoControlGroup);
        }
        let runtime = self.runtime();
        runtime.check()?;
        let (id, queue) = runtime.engine().announce(runtime.now(), service)?;
        runtime.turn_now();
        Ok(Announcement { listener: Listener::new(self.clone(), queue), node: self.clone(), id })
    }

    /// Looks for services of a type, all types if it is empty: those that there are, and what happens to them from
    /// now on.
    ///
    /// # Errors
    /// [`BrowseError`]; nothing is looked for.
    pub fn browse(&self, kind: impl Into<String>) -> Result<Browser, BrowseError> {
        self.look_for(Filter { kind: kind.into(), name: String::new() })
    }

    /// Looks for a service by its type (any, if it is empty) and instance name, and goes on: what
    /// [`resolve_of`](Node::resolve_of) does once, as an iterator and, with the feature `async`, a stream.
    ///
    /// # Errors
    /// [`BrowseError`]; nothing is looked for.
    pub fn browse_for(
        &self,
        kind: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<Browser, BrowseError> {
        let name = name.into();
        if name.is_empty() {
            return Err(BrowseError::Name(name));
        }
        self.look_for(Filter { kind: kind.into(), name })
    }

    /// Finds a service by its instance name, of whatever type: the first that answers. Blocks up to `timeout`; a task
    /// awaits the first event of [`browse_for`](Node::browse_for) instead.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve(&self, name: &str, timeout: Duration) -> Result<Found, ResolveError> {
        self.resolve_of("", name, timeout)
    }

    /// Finds a service by its type and instance name. Blocks up to `timeout`.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve_of(
        &self,
        kind: &str,
        name: &str,
        timeout: Duration,
    ) -> Result<Found, ResolveError> {
        let browser = self.browse_for(kind, name).map_err(ResolveError::Browse)?;
        let deadline = runtime::instant() + timeout;
        loop {
            let left = deadline.saturating_duration_since(runtime::instant());
            match browser.recv_timeout(left).map_err(ResolveError::Stopped)? {
                Some(ServiceEvent::Added(found) | ServiceEvent::Updated(found)) => {
                    return Ok(found);
                }
                Some(_) => {}
                None => return Err(ResolveError::NotFound { name: name.into(), timeout }),
            }
        }
    }

    /// The groups that nodes of the domain are in, with what their members agree in and who they are. Asks all, and
    /// blocks for `listen`: half a second is enough for some hundred nodes.
    ///
    /// Whether a key fits is seen by its [check value](crate::proto::diagnosis::key_check).
    ///
    /// # Errors
    /// [`BrowseError::NoControlGroup`], or the operating system refused to poll.
    pub fn seen_groups(&self, listen: Duration) -> Result<Vec<SeenGroup>, ResolveError> {
        if !self.has_control() {
            return Err(ResolveError::Browse(BrowseError::NoControlGroup));
        }
        let runtime = self.runtime();
        runtime.check().map_err(BrowseError::from).map_err(ResolveError::Browse)?;
        runtime.engine().ask_groups(runtime.now());
        runtime.turn_now();
        let deadline = runtime::instant() + listen;
        while runtime::instant() < deadline {
            self.rest(deadline).map_err(ResolveError::Stopped)?;
        }
        Ok(runtime.engine().seen_groups())
    }

    fn look_for(&self, filter: Filter) -> Result<Browser, BrowseError> {
        if !self.has_control() {
            return Err(BrowseError::NoControlGroup);
        }
        let bad = |text: &str, max| text.len() > max || text.chars().any(char::is_control);
        if bad(&filter.kind, MAX_TYPE) {
            return Err(BrowseError::Type(filter.kind.chars().take(40).collect()));
        }
        if bad(&filter.name, MAX_INSTANCE) {
            return Err(BrowseError::Name(filter.name.chars().take(40).collect()));
        }
        let runtime = self.runtime();
        runtime.check()?;
        let (id, queue) = runtime.engine().browse(runtime.now(), filter);
        runtime.turn_now();
        Ok(Browser { listener: Listener::new(self.clone(), queue), node: self.clone(), id })
    }

    /// Lets a moment pass, and drives a manual node meanwhile.
    fn rest(&self, deadline: std::time::Instant) -> Result<(), RecvError> {
        let left = deadline.saturating_duration_since(runtime::instant()).min(STEP);
        if self.runtime().progress() == Progress::Manual {
            return self.runtime().poll(left).map_err(RecvError::System);
        }
        if self.runtime().has_failed() {
            return Err(RecvError::Stopped);
        }
        std::thread::sleep(left);
        Ok(())
    }
}

/// A service that this node announces. It is withdrawn when this is dropped. It keeps the node alive.
#[derive(Debug)]
#[must_use = "the service is withdrawn when this is dropped"]
pub struct Announcement {
    node: Node,
    id: ServiceId,
    listener: Listener<AnnouncementEvent>,
}

/// How long [`Announcement::withdraw`] waits for its words to leave: three, within a fifth of a second.
const FAREWELL: Duration = Duration::from_secs(1);

impl Announcement {
    /// The name that others find it under; `None` while it is being found out whether it is free, or if none was.
    /// Another service of the name that was asked for makes it "name (2)"; this may happen at any time, when two
    /// parts of a network become one.
    pub fn name(&self) -> Option<String> {
        match self.node.runtime().look(|engine| engine.standing(self.id)) {
            Some(Standing::Announced(name)) => Some(name),
            _ => None,
        }
    }

    /// Waits up to `timeout` until it has a name, and others can find it: mostly some 200 ms.
    ///
    /// # Errors
    /// [`AnnounceError`]: it has none, or not yet. It is still being tried with [`AnnounceError::Timeout`].
    pub fn wait(&self, timeout: Duration) -> Result<String, AnnounceError> {
        self.node.runtime().check()?;
        let deadline = runtime::instant() + timeout;
        loop {
            let (standing, has_control) = {
                let engine = self.node.runtime().engine();
                (engine.standing(self.id), engine.has_control())
            };
            match standing {
                Standing::Announced(name) => return Ok(name),
                Standing::Refused => return Err(AnnounceError::NoNameIsFree),
                Standing::Asking if runtime::instant() >= deadline => {
                    return Err(AnnounceError::Timeout { timeout, has_control });
                }
                Standing::Asking => self.node.rest(deadline).map_err(AnnounceError::Stopped)?,
            }
        }
    }

    /// Waits for what happens to it next.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv(&self) -> Result<AnnouncementEvent, RecvError> {
        self.listener.recv()
    }

    /// What happens to it: waits up to `timeout`; `None` when nothing did.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<AnnouncementEvent>, RecvError> {
        self.listener.recv_timeout(timeout)
    }

    /// What has happened to it, if anything.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn try_recv(&self) -> Result<Option<AnnouncementEvent>, RecvError> {
        self.listener.try_recv()
    }

    /// Changes what is said of it: address, port, metadata and TTL. Its type and name stay.
    ///
    /// # Errors
    /// [`ServiceError`]; what is said is what it was.
    pub fn update(&self, service: Service) -> Result<(), ServiceError> {
        let runtime = self.node.runtime();
        let now = runtime.now();
        // A forked child's copy announces nothing, so there is nothing to change.
        if let Some(updated) = runtime.look(|engine| engine.update_service(now, self.id, service)) {
            updated?;
            runtime.turn_now();
        }
        Ok(())
    }

    /// Ends it, and waits (less than a second) until that was said as often as it is. Dropping it says it once,
    /// and goes on in the background.
    pub fn withdraw(self) {
        let node = self.node.clone();
        drop(self);
        let deadline = runtime::instant() + FAREWELL;
        while node.runtime().look(|engine| engine.is_parting()) == Some(true)
            && runtime::instant() < deadline
        {
            if node.rest(deadline).is_err() {
                return;
            }
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let runtime = self.node.runtime();
        let now = runtime.now();
        // The word leaves before this returns: the process may end with it.
        if runtime.look(|engine| engine.withdraw(now, self.id)).is_some() {
            runtime.turn_now();
        }
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for Announcement {
    type Item = Result<AnnouncementEvent, RecvError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.listener.poll_next(cx)
    }
}

/// Looks for services: an iterator of what there is and what happens to it, that waits for the next, and ends
/// when the node has stopped. It keeps the node alive. With the feature `async` it is a stream.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use qcast::{Node, Service, ServiceEvent};
///
/// # let kind = format!("docs {}", std::process::id());
/// let (ours, theirs) = (Node::builder().open()?, Node::builder().open()?);
/// let browser = theirs.browse(&kind)?;
/// let announcement = ours.announce(Service::new(&kind, "front", 8080))?;
/// match browser.recv_timeout(Duration::from_secs(5))?.expect("it is found") {
///     ServiceEvent::Added(found) => assert_eq!(found.service.name, "front"),
///     event => panic!("{event:?}"),
/// }
/// announcement.withdraw();
/// let event = browser.recv_timeout(Duration::from_secs(5))?;
/// assert!(matches!(event, Some(ServiceEvent::Removed(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Browser {
    node: Node,
    id: BrowseId,
    listener: Listener<ServiceEvent>,
}

impl Browser {
    /// Waits for the next event.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv(&self) -> Result<ServiceEvent, RecvError> {
        self.listener.recv()
    }

    /// Waits up to `timeout` for the next event; `None` when nothing happened.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<ServiceEvent>, RecvError> {
        self.listener.recv_timeout(timeout)
    }

    /// The next event, if one is there.
    ///
    /// # Errors
    /// [`RecvError`]: the node has stopped.
    pub fn try_recv(&self) -> Result<Option<ServiceEvent>, RecvError> {
        self.listener.try_recv()
    }
}

impl Iterator for Browser {
    type Item = ServiceEvent;

    fn next(&mut self) -> Option<ServiceEvent> {
        self.recv().ok()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.node.runtime().look(|engine| engine.stop_browse(self.id));
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for Browser {
    type Item = Result<ServiceEvent, RecvError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.listener.poll_next(cx)
    }
}

/// Why a service is not announced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The service breaks a bound. Nothing was announced.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The node was opened without the control group. Nothing was announced.
    #[error(
        "the node is not in the control group; open it with control(true) to announce services"
    )]
    NoControlGroup,
    /// Every name that was tried is another's. It is not announced.
    #[error("no name like it is free; give it another name")]
    NoNameIsFree,
    /// It is not announced yet, and still being tried.
    #[error(
        "the service was not announced within {timeout:?}{}",
        if *.has_control { "" } else { ": the control group cannot be joined" }
    )]
    Timeout {
        /// How long was waited.
        timeout: Duration,
        /// Whether the control group is joined.
        has_control: bool,
    },
    /// The node has stopped.
    #[error(transparent)]
    Stopped(RecvError),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}

/// Why nothing is looked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowseError {
    /// The node was opened without the control group.
    #[error("the node is not in the control group; open it with control(true) to find services")]
    NoControlGroup,
    /// The type is too long, or has control characters.
    #[error(
        "{0:?} cannot be a service's type; give 1 to {MAX_TYPE} bytes without control characters"
    )]
    Type(String),
    /// The name is empty, too long, or has control characters.
    #[error(
        "{0:?} cannot be a service's name; give 1 to {MAX_INSTANCE} bytes without control characters"
    )]
    Name(String),
    /// The node is another process's.
    #[error(transparent)]
    ForkedChild(#[from] ForkedChild),
}

/// Why a service was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// It cannot be looked for.
    #[error(transparent)]
    Browse(BrowseError),
    /// Nobody announced it.
    #[error("no service {name:?} was found within {timeout:?}")]
    NotFound {
        /// Its name.
        name: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// The node has stopped.
    #[error(transparent)]
    Stopped(RecvError),
}
