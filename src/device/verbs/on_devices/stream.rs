//! Whole nodes on devices: what happens to a stream when queue pairs and links fail under it.

use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::subscribe::Notice;

use super::super::QpId;
use crate::device::spec::DeviceSpec;
use crate::{
    Delivery, FlowPolicy, Node, NodeBuilder, NodeEvent, NodeEvents, Publisher, Subscriber,
};

/// A node on the first or the last of the devices.
fn node(at: usize) -> Node {
    builder(at).open().unwrap()
}

/// A node that is in no group but those that are tested: the journal is about them alone.
fn builder(at: usize) -> NodeBuilder {
    // RUST_LOG=qcast=debug shows what happens.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let spec = super::config(at).spec;
    Node::builder().device(DeviceSpec::Verbs(spec)).control(false)
}

/// A publisher and a subscriber of one group on two nodes.
pub(super) fn pair(group: &str) -> (Node, Publisher, Node, Subscriber) {
    let (ours, theirs) = (node(0), node(1));
    let subscriber = theirs.group(group).join().unwrap().subscriber().open().unwrap();
    let publisher = ours.group(group).join().unwrap().publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, Duration::from_secs(10)), 1);
    (ours, publisher, theirs, subscriber)
}

/// The same of a publisher that waits for a subscriber however long it is silent, and a subscriber's node made by `build`.
fn patient_pair(
    group: &str,
    build: fn(NodeBuilder) -> NodeBuilder,
) -> (Node, Publisher, Node, Subscriber) {
    let (ours, theirs) = (node(0), build(builder(1)).open().unwrap());
    let subscriber = theirs.group(group).join().unwrap().subscriber().open().unwrap();
    let minute = Duration::from_secs(60);
    let publisher = ours.group(group).join().unwrap().publisher();
    let publisher = publisher.receiver_timeout(minute).grace(minute).open().unwrap();
    assert_eq!(publisher.wait_for(1, Duration::from_secs(10)), 1);
    (ours, publisher, theirs, subscriber)
}

/// Publishes `count` numbered messages, calls `disturb` after each, and checks that all arrive once and in order.
pub(super) fn stream(
    publisher: &mut Publisher,
    subscriber: &mut Subscriber,
    count: u32,
    mut disturb: impl FnMut(u32),
) {
    let mut next = 0;
    let take = |delivery: Delivery, next: &mut u32| match delivery {
        Delivery::Message(message) => {
            let n = u32::from_le_bytes(message[..4].try_into().unwrap());
            assert_eq!(n, *next, "lost, twice or out of order");
            *next += 1;
        }
        Delivery::Notice(Notice::Lost { first, last, cause, .. }) => {
            panic!("lost {first} to {last}: {cause:?}")
        }
        Delivery::Notice(notice) => eprintln!("{notice:?}"),
    };
    let mut message = [0; 700];
    for n in 0..count {
        message[..4].copy_from_slice(&n.to_le_bytes());
        publisher.send_timeout(&message, Duration::from_secs(20)).unwrap();
        disturb(n);
        while let Some(delivery) = subscriber.try_recv().unwrap() {
            take(delivery, &mut next);
        }
    }
    publisher.flush();
    while next < count {
        match subscriber.recv_timeout(Duration::from_secs(20)).unwrap() {
            Some(delivery) => take(delivery, &mut next),
            None => panic!("{next} of {count} messages came"),
        }
    }
}

/// Moves a node's first queue pair to ERR, past its engine.
fn break_qp(node: &Node) {
    let mut engine = node.runtime().engine();
    let device = engine.device_mut();
    device.modify_qp(QpId(0), &QpAttrs::to(QpState::Err)).unwrap();
}

/// Case 17: the publisher's queue pair, then the subscriber's, three times each.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_stream_goes_on_when_queue_pairs_go_to_err() {
    let (ours, mut publisher, theirs, mut subscriber) = pair("err");
    stream(&mut publisher, &mut subscriber, 3500, |n| match n {
        500 | 1500 | 2500 => break_qp(&ours),
        1000 | 2000 | 3000 => break_qp(&theirs),
        _ => {}
    });
    // Each fault is mended by the walk from ERR; some may fall together.
    let resets = |node: &Node| {
        let journal = node.journal();
        assert!(journal.iter().all(|entry| entry.error.is_none()), "{journal:?}");
        journal.iter().filter(|entry| entry.from == QpState::Err).count()
    };
    assert!((1..=3).contains(&resets(&ours)));
    assert!((1..=3).contains(&resets(&theirs)));
    for node in [&ours, &theirs] {
        let state = node.runtime().engine().device_mut().query_qp(QpId(0)).unwrap().state;
        assert_eq!(state, QpState::Rts);
    }
}

/// The link of the publisher is down for three seconds while it publishes. Only in the machine of tests/vm/run.
#[test]
#[ignore = "needs the virtual machine: scripts/test vm"]
fn a_stream_goes_on_when_the_link_was_down() {
    let (_ours, mut publisher, _theirs, mut subscriber) = pair("link");
    stream(&mut publisher, &mut subscriber, 3000, |n| {
        if n != 1000 {
            return;
        }
        ip("link set veth0 down");
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            ip("link set veth0 up");
            // The kernel has dropped them with the link.
            ip("route replace 10.9.0.2 dev veth0 src 10.9.0.1 table 101");
            ip("route replace 10.9.0.1 dev veth1 src 10.9.0.2 table 102");
        });
    });
}

/// The MTU of the wire changes while messages travel: 1024, 4096, 1024 bytes of payload.
#[test]
#[ignore = "needs the virtual machine: scripts/test vm"]
fn a_stream_goes_on_when_the_mtu_changes() {
    let mtu = |bytes: u32| {
        ip(&format!("link set veth0 mtu {bytes}"));
        ip(&format!("link set veth1 mtu {bytes}"));
    };
    mtu(1500);
    let (_ours, mut publisher, _theirs, mut subscriber) = pair("mtu");
    stream(&mut publisher, &mut subscriber, 3000, |n| match n {
        1000 => mtu(4200),
        2000 => mtu(1500),
        _ => {}
    });
    mtu(4200);
}

/// Case 90: the publisher's device is taken away while it publishes, then the subscriber's, each for a second. What the
/// application holds of it stays whole, and nothing keeps the device from going.
#[test]
#[ignore = "needs the virtual machine: scripts/test vm"]
fn a_stream_goes_on_when_devices_are_taken_away() {
    let (ours, mut publisher, theirs, mut subscriber) = patient_pair("removal", |builder| builder);
    let events = [ours.events(), theirs.events()];
    publisher.send(b"to be kept").unwrap();
    publisher.flush();
    let kept = loop {
        match subscriber.recv_timeout(Duration::from_secs(20)).unwrap().expect("it comes") {
            Delivery::Message(message) => break message,
            Delivery::Notice(_) => {}
        }
    };
    let removals = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let take_away = |name: &'static str, link: &'static str| {
            scope.spawn({
                let removals = &removals;
                move || {
                    let begun = crate::runtime::instant();
                    run("rdma", &format!("link delete {name}"));
                    removals.lock().push((name, begun.elapsed()));
                    std::thread::sleep(Duration::from_secs(1));
                    run("rdma", &format!("link add {name} type rxe netdev {link}"));
                }
            });
        };
        stream(&mut publisher, &mut subscriber, 6000, |n| {
            match n {
                1000 => take_away("rxe0", "veth0"),
                // Messages are held back while the first is away.
                4000 => take_away("rxe1", "veth1"),
                _ => {}
            }
            std::thread::sleep(Duration::from_micros(500));
        });
    });
    assert_eq!(&kept[..], b"to be kept");
    let removals = removals.into_inner();
    eprintln!("removals took {removals:?}");
    for (name, took) in removals {
        assert!(took < Duration::from_secs(5), "{name} was held for {took:?}");
    }
    for events in events {
        let told = all(&events);
        eprintln!("{told:?}");
        let lost = told.iter().filter(|e| matches!(e, NodeEvent::DeviceLost { .. })).count();
        let back = told.iter().filter(|e| matches!(e, NodeEvent::DeviceReturned { .. })).count();
        assert_eq!((lost, back), (1, 1), "{told:?}");
    }
}

fn all(events: &NodeEvents) -> Vec<NodeEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).collect()
}

/// A receive queue that runs dry for a second, because the node is not driven while a publisher waits for nobody, costs
/// repairs and no message.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_stream_goes_on_when_the_receive_queue_was_dry() {
    let (ours, theirs) = (node(0), builder(1).srq_depth(64).open().unwrap());
    let mut subscriber = theirs.group("dry").join().unwrap().subscriber().open().unwrap();
    let publisher = ours.group("dry").join().unwrap().publisher().window(8192);
    let mut publisher = publisher.policy(FlowPolicy::Unlimited).open().unwrap();
    assert_eq!(publisher.wait_for(1, Duration::from_secs(10)), 1);
    let starved = std::sync::Arc::new(Mutex::new(None));
    stream(&mut publisher, &mut subscriber, 4000, |n| {
        std::thread::sleep(Duration::from_micros(300));
        if n == 1000 {
            let (theirs, starved) = (theirs.clone(), std::sync::Arc::clone(&starved));
            std::thread::spawn(move || {
                let engine = theirs.runtime().engine();
                std::thread::sleep(Duration::from_secs(1));
                // Nothing is left of what was posted: all that came since is lost.
                *starved.lock() = Some(engine.device().posted_recvs());
            });
        }
    });
    let (repaired, lost) = (subscriber.stats().repaired, subscriber.stats().lost);
    eprintln!("{repaired} repaired, {lost} lost");
    assert!(starved.lock().is_some() && repaired > 0 && lost == 0);
}

/// A group is drained while messages are published: they come when it is resumed.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_drained_group_is_in_sqd_and_goes_on_when_it_is_resumed() {
    let (ours, mut publisher, _theirs, mut subscriber) = pair("drain");
    let group = publisher.group().clone();
    stream(&mut publisher, &mut subscriber, 500, |n| {
        if n % 100 != 50 {
            return;
        }
        let drained = group.drain(Duration::from_secs(5)).unwrap();
        let state = ours.runtime().engine().device_mut().query_qp(QpId(0)).unwrap().state;
        assert_eq!(state, QpState::Sqd);
        drained.resume().unwrap();
    });
    let journal = ours.journal();
    assert!(journal.iter().all(|entry| entry.error.is_none()), "{journal:?}");
    let sqd = journal.iter().filter(|entry| entry.to == QpState::Sqd).count();
    assert_eq!(sqd, 5);
}

/// Cases 74 and 87: nodes with ten groups that come and go leave nothing, and go within a tenth of a second. 1,000 are
/// what a release is tried with (QCAST_TEST_CYCLES).
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn nodes_with_ten_groups_leave_nothing_behind() {
    let cycles = std::env::var("QCAST_TEST_CYCLES").map_or(20, |n| n.parse().unwrap());
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let held = || (count("/proc/self/fd"), count("/proc/self/task"));
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let objects = || {
        let shown = Command::new("rdma").args(["resource", "show"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let (mut closes, mut before) = (Vec::new(), None);
    for cycle in 0..cycles {
        let node = builder(cycle % 2).srq_depth(256).open().unwrap();
        let groups: Vec<_> = (0..10)
            .map(|n| {
                let group = node.group(format!("cycle {n}")).join().unwrap();
                let subscriber = group.subscriber().open().unwrap();
                (group.publisher().window(16).open().unwrap(), subscriber)
            })
            .collect();
        let begun = crate::runtime::instant();
        drop(groups);
        assert!(node.close(), "cycle {cycle}: the node was not closed");
        closes.push(begun.elapsed());
        // The first cycles load what is loaded once.
        if cycle == cycles / 2 {
            before = Some((held(), objects(), resident()));
        }
    }
    let (held_before, objects_before, resident_before) = before.unwrap();
    closes.sort();
    let (p50, max) = (closes[closes.len() / 2], closes[closes.len() - 1]);
    eprintln!(
        "{cycles} cycles: close p50 {p50:?}, max {max:?}; {resident_before} KiB resident half-way, {} KiB at the end",
        resident()
    );
    assert_eq!((held(), objects()), (held_before, objects_before));
    assert!(resident() < resident_before + 4096);
    // An emulated processor takes its time.
    let emulated = std::fs::read_to_string("/proc/cpuinfo").unwrap().contains("QEMU TCG");
    let limit = Duration::from_millis(if emulated { 2000 } else { 100 });
    assert!(p50 < limit, "closing takes {p50:?}");
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program).args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "{program} {arguments}");
}
