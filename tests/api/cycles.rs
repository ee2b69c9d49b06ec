//! Nodes that come and go: nothing of them stays, and they go quickly.

use std::fs;
use std::time::{Duration, Instant};

use qcast::Node;

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

#[test]
fn nodes_with_ten_groups_leave_nothing_behind() {
    let cycles = std::env::var(VARIABLE).map_or(60, |n| n.parse().unwrap());
    let mut closes = Vec::new();
    let mut settled = None;
    for cycle in 0..cycles {
        let node = Node::builder().srq_depth(256).open().unwrap();
        let groups: Vec<_> = (0..10)
            .map(|n| {
                let name = format!("cycle {} {n}", std::process::id());
                let group = node.group(name).join().unwrap();
                let subscriber = group.subscriber().open().unwrap();
                (group.publisher().window(16).open().unwrap(), subscriber)
            })
            .collect();
        let begun = Instant::now();
        drop(groups);
        assert!(node.close(), "cycle {cycle}: the node was not closed");
        closes.push(begun.elapsed());
        // The first cycles load what is loaded once.
        if cycle == cycles / 2 {
            settled = Some(resident());
        }
    }
    let after = resident();
    closes.sort();
    let (p50, max) = (closes[closes.len() / 2], closes[closes.len() - 1]);
    println!("{cycles} cycles: close p50 {p50:?}, max {max:?}; {after} KiB resident");
    let before = settled.unwrap();
    assert!(after < before + 4096, "{before} KiB resident, {after} KiB later");
    // A busy machine may hold up one or the other.
    assert!(p50 < Duration::from_millis(100), "closing takes {p50:?}");
}

/// Descriptors and threads are counted by a process of its own: other tests open some meanwhile.
#[test]
fn a_closed_node_has_no_descriptors_and_no_threads() {
    const INNER: &str = "QCAST_TEST_INNER";
    if std::env::var_os(INNER).is_none() {
        let exe = std::env::current_exe().unwrap();
        let name = "cycles::a_closed_node_has_no_descriptors_and_no_threads";
        let status = std::process::Command::new(exe)
            .args([name, "--exact", "--test-threads=1"])
            .env(INNER, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let now = || (count("/proc/self/fd"), count("/proc/self/task"));
    assert!(Node::builder().open().unwrap().close());
    let before = now();
    for _ in 0..10 {
        let node = Node::builder().open().unwrap();
        let group = node.group(format!("descriptors {}", std::process::id())).join().unwrap();
        let publisher = group.publisher().open().unwrap();
        let message = b"x".to_vec();
        let mut publisher = publisher;
        publisher.send(&message).unwrap();
        drop((publisher, group));
        assert!(node.close());
    }
    assert_eq!(now(), before);
}

/// A handle that is left keeps the node open, and can go on.
#[test]
fn a_node_in_use_is_not_closed() {
    let node = Node::builder().open().unwrap();
    let group = node.group(format!("in use {}", std::process::id())).join().unwrap();
    assert!(!node.close());
    assert!(group.publisher().open().is_ok());
}
