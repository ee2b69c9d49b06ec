//! Nodes that come and go: nothing of them stays, and they go quickly.

use std::fs;
use std::time::Duration;

use qcast::Node;

use crate::rig::now;

/// How often: 1,000 is what a release is tried with.
const VARIABLE: &str = "QCAST_TEST_CYCLES";

fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// In a process of its own: other tests open nodes meanwhile.
#[test]
fn nodes_with_ten_groups_leave_nothing_behind() {
    const INNER: &str = "QCAST_TEST_INNER";
    if std::env::var_os(INNER).is_none() {
        let exe = std::env::current_exe().unwrap();
        let name = "cycles::nodes_with_ten_groups_leave_nothing_behind";
        let mut inner = std::process::Command::new(exe);
        inner.args([name, "--exact", "--nocapture"]).env(INNER, "1");
        assert!(inner.status().unwrap().success());
        return;
    }
    let cycles = std::env::var(VARIABLE).map_or(60, |n| n.parse().unwrap());
    let held = || (count("/proc/self/fd"), count("/proc/self/task"));
    let (mut closes, mut before) = (Vec::new(), None);
    for cycle in 0..cycles {
        let node = Node::builder().srq_depth(256).open().unwrap();
        let groups: Vec<_> = (0..10)
            .map(|n| {
                let name = format!("cycle {} {n}", std::process::id());
                let group = node.group(name).join().unwrap();
                let subscriber = group.subscriber().open().unwrap();
                let mut publisher = group.publisher().window(16).open().unwrap();
                publisher.send(b"x").unwrap();
                (publisher, subscriber)
            })
            .collect();
        let begun = now();
        drop(groups);
        assert!(node.close(), "cycle {cycle}: the node was not closed");
        closes.push(begun.elapsed());
        // The first cycles load what is loaded once.
        if cycle == cycles / 2 {
            before = Some((held(), resident()));
        }
    }
    closes.sort();
    let (p50, max) = (closes[closes.len() / 2], closes[closes.len() - 1]);
    let (held_before, resident_before) = before.unwrap();
    println!(
        "{cycles} cycles: close p50 {p50:?}, max {max:?}; {resident_before} KiB resident half-way, {} at the end",
        resident()
    );
    assert_eq!(held(), held_before);
    assert!(resident() < resident_before + 4096);
    // Under 100 ms on a quiet machine, most of which are the last words of streams, said several times.
    assert!(p50 < Duration::from_millis(500), "closing takes {p50:?}");
}

/// A handle that is left keeps the node open, and can go on.
#[test]
fn a_node_in_use_is_not_closed() {
    let node = Node::builder().open().unwrap();
    let group = node.group(format!("in use {}", std::process::id())).join().unwrap();
    assert!(!node.close());
    assert!(group.publisher().open().is_ok());
}
