//! Nodes in this process, and waits that end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use qcast::{
    Delivery, FaultPlan, Group, Message, Node, NodeBuilder, Notice, Progress, Publisher, Subscriber,
};

/// After this a test has failed: far above what a loaded machine takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "these tests are in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A group name that no other test has.
pub(crate) fn unique(test: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("api {} {} {test}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A node, smaller than the default so that many fit.
pub(crate) fn small() -> NodeBuilder {
    Node::builder().srq_depth(1024).receive_window(256)
}

pub(crate) fn node() -> Node {
    small().open().unwrap()
}

pub(crate) fn manual() -> Node {
    small().progress(Progress::Manual).open().unwrap()
}

/// A node that loses, reorders or doubles what comes in.
pub(crate) fn disturbed(plan: &str) -> Node {
    let plan: FaultPlan = plan.parse().unwrap();
    println!("faults: {plan}");
    small().fault(Some(plan)).open().unwrap()
}

/// A publisher and a subscriber on two nodes that have found each other.
pub(crate) struct Pair {
    pub(crate) publisher: Publisher,
    pub(crate) subscriber: Subscriber,
}

pub(crate) fn join(node: &Node, group: &str) -> Group {
    node.group(group).join().unwrap()
}

/// Two nodes, a publisher on the first and a subscriber on the second.
pub(crate) fn pair(test: &str) -> Pair {
    pair_on(&node(), &node(), test)
}

pub(crate) fn pair_on(ours: &Node, theirs: &Node, test: &str) -> Pair {
    let group = unique(test);
    let subscriber = join(theirs, &group).subscriber().open().unwrap();
    let publisher = join(ours, &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1, "{test}: no subscriber came");
    Pair { publisher, subscriber }
}

/// The next message or notice.
pub(crate) fn next(subscriber: &mut Subscriber) -> Delivery {
    subscriber.recv_timeout(DEADLINE).unwrap().expect("something comes before the deadline")
}

/// The next message; notices of a publisher that came are passed over, others are not expected.
pub(crate) fn message(subscriber: &mut Subscriber) -> Message {
    loop {
        match next(subscriber) {
            Delivery::Message(message) => return message,
            Delivery::Notice(Notice::Joined(_)) => {}
            other => panic!("{other:?} came instead of a message"),
        }
    }
}

/// The next notice; a message is not expected.
pub(crate) fn notice(subscriber: &mut Subscriber) -> Notice {
    match next(subscriber) {
        Delivery::Notice(notice) => notice,
        Delivery::Message(m) => panic!("a message of {} bytes came instead of a notice", m.len()),
        other => panic!("{other:?}"),
    }
}

/// Waits until `done`, and says what was waited for if it does not come.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = now() + DEADLINE;
    while !done() {
        assert!(now() < deadline, "{what} did not come");
        std::thread::yield_now();
    }
}

/// Waits until a node has read from its socket all that the members of a group on another have sent so
/// far: what a socket holds when a subscriber opens counts as sent after it.
pub(crate) fn read_all(from: &Group, at: &Group) {
    let mut marker = at.subscriber().topics("marker").open().unwrap();
    let mut publisher = from.publisher().topic("marker").open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1, "nobody marks the end");
    publisher.send(b"the end").unwrap();
    assert_eq!(&*message(&mut marker), b"the end");
}

/// Nothing but notices of publishers that came is there for this long.
pub(crate) fn silence(subscriber: &mut Subscriber, time: Duration) {
    let deadline = now() + time;
    loop {
        let left = deadline.saturating_duration_since(now());
        match subscriber.recv_timeout(left).unwrap() {
            None => return,
            Some(Delivery::Notice(Notice::Joined(_))) => {}
            Some(other) => panic!("{other:?} came, and nothing should"),
        }
    }
}

/// A message whose first bytes are its number.
pub(crate) fn numbered(n: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![n as u8; len.max(8)];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    bytes
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// Exactly the messages `from..to` come, once and in order.
pub(crate) fn expect_run(subscriber: &mut Subscriber, from: u64, to: u64) {
    for n in from..to {
        assert_eq!(number(&message(subscriber)), n);
    }
}
