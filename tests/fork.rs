//! Case 80: a process that forks after it has opened a node. The child is refused, and the parent is not disturbed.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use qcast::{Delivery, Node, Progress, Publisher, Subscriber};

/// Everything that a child can call on what it has inherited; the first call that was not refused.
fn use_it_all(
    node: Node,
    mut publisher: Publisher,
    mut subscriber: Subscriber,
) -> Result<(), &'static str> {
    let must = |refused: bool, what| if refused { Ok(()) } else { Err(what) };
    let is_fork = |error: &dyn std::error::Error| error.to_string().contains("forked");
    let soon = Duration::from_millis(10);
    must(publisher.send(b"x").is_err_and(|e| is_fork(&e)), "send")?;
    must(publisher.try_send(b"x").is_err_and(|e| is_fork(&e)), "try_send")?;
    must(publisher.claim(8).is_err_and(|e| is_fork(&e)), "claim")?;
    publisher.flush();
    must(!publisher.ready(soon) && !publisher.wait_confirmed(soon), "waiting")?;
    must(publisher.subscribers().is_empty() && publisher.hold().is_none(), "subscribers")?;
    must(subscriber.recv().is_err_and(|e| is_fork(&e)), "recv")?;
    must(subscriber.try_recv().is_err_and(|e| is_fork(&e)), "try_recv")?;
    must(subscriber.poll(9, |_| ()) == 0, "poll of a subscriber")?;
    must(node.poll(soon).is_err_and(|e| is_fork(&e)), "poll of a node")?;
    must(node.group("another").join().is_err_and(|e| is_fork(&e)), "join")?;
    must(node.events().recv().is_err_and(|e| is_fork(&e)), "events")?;
    let group = subscriber.group().clone();
    must(group.publisher().open().is_err_and(|e| is_fork(&e)), "opening a publisher")?;
    must(group.subscriber().open().is_err_and(|e| is_fork(&e)), "opening a subscriber")?;
    must(group.drain(soon).is_err_and(|e| is_fork(&e)), "drain")?;
    must(node.counters() == qcast::PortCounters::default(), "counters")?;
    must(node.device().mtu > 0 && node.journal().is_empty(), "the device")?;
    // Nor do they disturb the parent when they go.
    drop((publisher, subscriber, group));
    must(!node.close(), "close")?;
    let own = Node::builder().open().map_err(|_| "a node of its own")?;
    must(own.close(), "closing it")
}

fn try_it_all(
    node: Node,
    publisher: Publisher,
    subscriber: Subscriber,
) -> Result<(), &'static str> {
    // A lock that never comes free must not hang the test.
    nix::unistd::alarm::set(60);
    use_it_all(node, publisher, subscriber)
}

fn exit_without_cleaning_up(code: i32) -> ! {
    // SAFETY: it ends the process, which is the child that this test made, and returns never.
    unsafe { nix::libc::_exit(code) }
}

fn next(subscriber: &mut Subscriber) -> Vec<u8> {
    for _ in 0..30 {
        if let Some(Delivery::Message(message)) =
            subscriber.recv_timeout(Duration::from_secs(1)).unwrap()
        {
            return message.to_vec();
        }
    }
    panic!("no message");
}

#[test]
fn a_forked_child_is_refused_and_the_parent_goes_on() {
    for progress in [Progress::Thread, Progress::Manual] {
        let node = Node::builder().progress(progress).open().unwrap();
        let other = Node::builder().open().unwrap();
        let name = format!("fork {}", std::process::id());
        let mut publisher = node.group(&name).join().unwrap().publisher().open().unwrap();
        let mut subscriber = other.group(&name).join().unwrap().subscriber().open().unwrap();
        assert_eq!(publisher.wait_for(1, Duration::from_secs(30)), 1);
        publisher.send(b"before").unwrap();
        publisher.flush();
        assert_eq!(next(&mut subscriber), b"before");
        // SAFETY: this test is the only one of its program. The child has the node's locks and not its threads, which is
        // what it is there to try; it does nothing else but ask for memory, and ends by _exit.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => match try_it_all(node, publisher, subscriber) {
                Ok(()) => exit_without_cleaning_up(0),
                Err(what) => {
                    eprintln!("{what} was not refused");
                    exit_without_cleaning_up(1)
                }
            },
            ForkResult::Parent { child } => {
                for n in 0..200_u32 {
                    publisher.send(&n.to_le_bytes()).unwrap();
                    publisher.flush();
                    assert_eq!(next(&mut subscriber), n.to_le_bytes());
                }
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
                publisher.send(b"after").unwrap();
                publisher.flush();
                assert_eq!(next(&mut subscriber), b"after");
            }
        }
    }
}
