//! Whole nodes on devices: what happens to a stream when queue pairs and links fail under it.

use std::process::Command;
use std::time::Duration;

use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::subscribe::Notice;

use super::super::QpId;
use crate::device::spec::DeviceSpec;
use crate::{Delivery, Node, Publisher, Subscriber};

/// A node on the first or the last of the devices.
fn node(at: usize) -> Node {
    // RUST_LOG=qcast=debug shows what happens.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let spec = super::config(at).spec;
    Node::builder().device(DeviceSpec::Verbs(spec)).open().unwrap()
}

/// A publisher and a subscriber of one group on two nodes.
fn pair(group: &str) -> (Node, Publisher, Node, Subscriber) {
    let (ours, theirs) = (node(0), node(1));
    let subscriber = theirs.group(group).join().unwrap().subscriber().open().unwrap();
    let publisher = ours.group(group).join().unwrap().publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, Duration::from_secs(10)), 1);
    (ours, publisher, theirs, subscriber)
}

/// Publishes `count` numbered messages, calls `disturb` after each, and checks that all arrive once and in order.
fn stream(
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

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}
