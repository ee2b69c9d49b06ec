//! Subscribers and feeds as streams, on an executor of a few lines.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use futures_core::Stream;
use qcast::{
    AnnouncementEvent, Delivery, MemberEvent, NodeEvent, Notice, QKey, Service, ServiceEvent,
    Subscriber, ViewChange,
};

use crate::rig::{DEADLINE, Pair, node, now, number, numbered, pair, unique};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread. Nothing but its waker ends a wait before the deadline.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let deadline = now() + DEADLINE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park_timeout(deadline.saturating_duration_since(now()));
        assert!(now() < deadline, "the task was not woken");
    }
}

async fn next(subscriber: &mut Subscriber) -> Delivery {
    let next = poll_fn(|cx| Pin::new(&mut *subscriber).poll_next(cx)).await;
    next.expect("a subscriber's stream does not end").unwrap()
}

#[test]
fn a_stream_wakes_its_task() {
    let Pair { mut publisher, mut subscriber } = pair("stream");
    let rounds = 2000;
    let (ask, asked) = std::sync::mpsc::sync_channel(1);
    let sending = thread::spawn(move || {
        for n in 0..rounds {
            asked.recv().unwrap();
            publisher.send(&numbered(n, 50)).unwrap();
        }
        publisher.close()
    });
    block_on(async {
        for n in 0..rounds {
            ask.send(()).unwrap();
            loop {
                match next(&mut subscriber).await {
                    Delivery::Message(m) => {
                        assert_eq!(number(&m), n);
                        break;
                    }
                    Delivery::Notice(Notice::Joined(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        match next(&mut subscriber).await {
            Delivery::Notice(Notice::PublisherClosed(_)) => {}
            other => panic!("{other:?}"),
        }
    });
    assert!(sending.join().unwrap().unconfirmed.is_empty());
}

/// The first item that is wanted.
async fn first<T>(
    stream: &mut (impl Stream<Item = Result<T, qcast::RecvError>> + Unpin),
    wanted: impl Fn(&T) -> bool,
) -> T {
    loop {
        let item = poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await;
        let item = item.expect("a feed does not end while its node runs").unwrap();
        if wanted(&item) {
            return item;
        }
    }
}

/// What happens in a group, to a node and to services wakes the tasks that await it.
#[test]
fn feeds_wake_their_tasks() {
    let (ours, theirs) = (node(), node());
    let (group, mut kind) = (unique("feeds"), unique("f").replace("api ", ""));
    kind.truncate(32);
    let mut changes = ours.group(&group).join().unwrap().view_changes();
    let (mut events, mut browser) = (ours.events(), ours.browse_for(&kind, "web").unwrap());
    let (id, of) = (theirs.id(), kind.clone());
    let owner = thread::spawn(move || {
        let _other = theirs.announce(Service::new(&of, "other", 81)).unwrap();
        let mut announcement = theirs.announce(Service::new(&of, "web", 80)).unwrap();
        let is_announced =
            |event: &AnnouncementEvent| *event == AnnouncementEvent::Announced("web".into());
        block_on(first(&mut announcement, is_announced));
        let joined = theirs.group(&group).join().unwrap();
        (theirs, joined, announcement)
    });
    block_on(async {
        let added = first(&mut browser, |event| matches!(event, ServiceEvent::Added(_))).await;
        let ServiceEvent::Added(found) = added else { unreachable!() };
        assert_eq!((&*found.service.name, found.service.port), ("web", 80));
        let joined = |change: &ViewChange| matches!(change, ViewChange::Member { event: MemberEvent::Joined(info), .. } if info.node == id);
        first(&mut changes, joined).await;
    });
    let _theirs = owner.join().unwrap();
    let stranger = node();
    let _wrong = stranger.group(changes.group().name()).qkey(QKey::new_checked(9).unwrap()).join();
    let is_stranger = |event: &NodeEvent| matches!(event, NodeEvent::KeyMismatch { members, .. } if members.iter().any(|m| m.node == stranger.id()));
    block_on(first(&mut events, is_stranger));
}

/// A task that owns its subscriber, and that its waker alone keeps alive.
struct Task(parking::Slot);

mod parking {
    pub(super) type Slot = std::sync::Mutex<Option<qcast::Subscriber>>;
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // The executor has dropped the task: this is the last of it, and the subscriber ends here, on the node's own
        // thread.
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_waker_may_drop_the_subscriber() {
    let Pair { mut publisher, subscriber } = pair("dropping waker");
    let task = Arc::new(Task(std::sync::Mutex::new(Some(subscriber))));
    let waker = Arc::clone(&task).into();
    let mut cx = Context::from_waker(&waker);
    loop {
        let mut slot = task.0.lock().unwrap();
        let subscriber = slot.as_mut().unwrap();
        if Pin::new(subscriber).poll_next(&mut cx).is_pending() {
            break;
        }
    }
    publisher.send(b"wake up").unwrap();
    crate::rig::until("the end of the subscriber", || publisher.subscribers().is_empty());
    assert!(task.0.lock().unwrap().is_none());
}
