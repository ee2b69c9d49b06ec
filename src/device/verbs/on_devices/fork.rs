//! A child of a process that has a node on a real device: it shares the queues, and must touch none of them.

use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::stream::{pair, stream};
use crate::PublishError;

/// Case 80: the child is refused, writes to all memory that it shares with its parent, and drops what it has of the node.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_forked_child_leaves_the_parents_queues_alone() {
    let (ours, mut publisher, theirs, mut subscriber) = pair("fork");
    stream(&mut publisher, &mut subscriber, 200, |_| {});
    // SAFETY: the child does what this test is there to try, asks for memory, which the C library allows, and ends by
    // _exit; it waits for no lock of a thread that it does not have, or the alarm ends it.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(60);
            let refused = matches!(publisher.send(b"x"), Err(PublishError::ForkedChild(_)));
            drop((publisher, subscriber));
            let closed = ours.close() || theirs.close();
            // SAFETY: it ends the child.
            unsafe { nix::libc::_exit(i32::from(!refused || closed)) }
        }
        ForkResult::Parent { child } => {
            stream(&mut publisher, &mut subscriber, 2000, |_| {});
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            stream(&mut publisher, &mut subscriber, 200, |n| {
                if n == 100 {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let journal = [ours.journal(), theirs.journal()].concat();
            let walks = journal.iter().filter(|entry| entry.error.is_some()).count();
            assert_eq!((walks, journal.len()), (0, 6), "{journal:?}");
        }
    }
}
