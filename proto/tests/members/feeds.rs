//! What the rest of a node makes of its members.

use std::time::Duration;

use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::node::Event;
use qcast_proto::publish::{Outbox, PublisherConfig, PublisherEvent};
use qcast_proto::subscribe::SubscriberConfig;
use qcast_proto::wire::control::{self, Announce};
use qcast_proto::wire::frame::{FRAME_HEADER, Frame, FrameKind};

use crate::net::{MILLI, Net, SECOND};

fn kind(frame: &HeapFrame) -> FrameKind {
    Frame::new_checked(frame.bytes()).expect("a node's own frame").header().kind
}

/// R-MEMBER-7: heartbeats of a stream keep a publisher a member where its beacons are lost, and statuses a subscriber.
#[test]
fn streams_and_statuses_are_signs_of_life() {
    let mut net = Net::settled(1, 0.0, 2);
    let now = net.now;
    let (a, b) = (net.machines[0].group, net.machines[1].group);
    let (publisher, _) =
        net.machines[0].node.open_publisher(now, a, PublisherConfig::default()).unwrap();
    net.machines[1].node.open_subscriber(now, b, SubscriberConfig::default()).unwrap();
    net.run(SECOND);
    // No word between members arrives any more: what else they say is enough.
    net.mute = true;
    net.run(30 * SECOND);
    net.agree();
    assert!(
        net.told(0, 2).iter().chain(&net.told(1, 1)).all(|e| ["updated", "degraded"].contains(e))
    );
    // Without it they would have been gone long ago.
    let (now, m) = (net.now, &mut net.machines[0]);
    m.node.remove_publisher(publisher);
    m.node.handle_timeout(now);
    net.run(6 * SECOND);
    assert!(net.told(1, 1).ends_with(&["failed"]), "{:?}", net.told(1, 1));
}

/// R-MEMBER-20: whoever leaves or fails is not waited for, before its statuses are missed; R-READY-1: a member's
/// own beacon that comes back makes its publishers ready.
#[test]
fn nobody_waits_for_one_that_is_no_member() {
    let mut net = Net::settled(1, 0.0, 3);
    let now = net.now;
    let g = net.machines[0].group;
    let mut config = PublisherConfig::default();
    config.receiver_timeout = Duration::from_secs(60);
    let (publisher, _) = net.machines[0].node.open_publisher(now, g, config).unwrap();
    for at in 1..3 {
        let g = net.machines[at].group;
        net.machines[at].node.open_subscriber(now, g, SubscriberConfig::default()).unwrap();
    }
    net.run_until(3 * SECOND, "subscribers", |net| {
        // `receivers` wants a mutable node; the roles say as much.
        net.view(0).members.iter().filter(|m| m.info.role.subscribes()).count() == 2
    });
    net.run(SECOND);
    assert_eq!(net.machines[0].node.receivers(publisher).len(), 2);
    // Its subscription does not say that it closes, and nothing else of it comes any more.
    net.cut = Box::new(|hop| hop.from == 1 && !hop.in_group);
    let (now, m) = (net.now, &mut net.machines[1]);
    m.node.part(now, m.group);
    net.run(MILLI);
    net.crash(1);
    // A last status of it might still come.
    assert_eq!(net.machines[0].node.receivers(publisher).len(), 2);
    net.run(150 * MILLI);
    assert_eq!(net.machines[0].node.receivers(publisher).len(), 1);
    net.crash(2);
    net.run(5 * SECOND);
    assert_eq!(net.machines[0].node.receivers(publisher).len(), 0);
}

/// R-READY-1.
#[test]
fn an_echo_of_a_beacon_makes_ready() {
    let mut net = Net::new(1, 0.0);
    net.join(1, 1);
    net.run(10 * MILLI);
    let (now, m) = (net.now, &mut net.machines[0]);
    m.node.open_publisher(now, m.group, PublisherConfig::default()).unwrap();
    let own = std::iter::from_fn(|| m.node.poll_transmit(now))
        .find(|t| kind(&t.frame) == FrameKind::Beacon)
        .unwrap();
    let bytes = own.frame.bytes().into();
    m.node.handle_datagram(now, m.group, m.address, true, bytes);
    let ready = std::iter::from_fn(|| m.node.poll_event())
        .any(|e| matches!(e, Event::Publisher { event: PublisherEvent::Ready, .. }));
    assert!(ready);
}

/// R-MEMBER-21: a new publisher's heartbeats speak of as many receivers as there are subscribing members.
#[test]
fn a_new_publisher_expects_the_members_that_subscribe() {
    let mut net = Net::settled(1, 0.0, 5);
    for at in 1..5 {
        let (now, m) = (net.now, &mut net.machines[at]);
        m.node.open_subscriber(now, m.group, SubscriberConfig::default()).unwrap();
    }
    net.run(2 * SECOND);
    let (now, m) = (net.now, &mut net.machines[0]);
    m.node.open_publisher(now, m.group, PublisherConfig::default()).unwrap();
    let mut receivers = None;
    while let Some(t) = m.node.poll_transmit(now) {
        if kind(&t.frame) == FrameKind::Announce {
            let body: Announce = control::decode(&t.frame.bytes()[FRAME_HEADER..]).unwrap();
            receivers = Some(body.heartbeat.receivers);
        }
    }
    assert_eq!(receivers, Some(4));
}

/// R-MEMBER-22: everybody sees how far publishers and subscribers are, also one that neither publishes nor
/// subscribes, and observers say nothing.
#[test]
fn members_say_how_far_they_are() {
    const FRAMES: u64 = 10;
    let mut net = Net::settled(1, 0.0, 3);
    let (now, m) = (net.now, &mut net.machines[1]);
    let mut config = SubscriberConfig::default();
    config.queue = 64;
    let subscriber = m.node.open_subscriber(now, m.group, config).unwrap();
    let (now, m) = (net.now, &mut net.machines[0]);
    let (publisher, header) =
        m.node.open_publisher(now, m.group, PublisherConfig::default()).unwrap();
    net.run(SECOND);
    let free = (0..FRAMES).map(|_| HeapFrame::new(512)).collect();
    let mut outbox = Outbox::new(header, 512, free);
    for _ in 0..FRAMES {
        outbox.push(b"message").unwrap();
        outbox.seal();
        net.machines[0].node.publish(publisher, outbox.take().unwrap());
    }
    net.run(SECOND / 2);
    // The application has taken all but three.
    net.machines[1].node.set_room(subscriber, 61);
    let asked = net.now;
    net.run(2 * SECOND);
    let of = |net: &Net, seen_by: usize, id: u128| {
        let p = net.sees(seen_by, id).unwrap().progress?;
        assert!(p.at > asked, "it is said with every beacon");
        Some((p.sent, p.received, p.lost, p.waiting))
    };
    for seen_by in 0..3 {
        assert_eq!(of(&net, seen_by, 1), Some((FRAMES, 0, 0, 0)), "seen by {seen_by}");
        assert_eq!(of(&net, seen_by, 2), Some((0, FRAMES, 0, 3)), "seen by {seen_by}");
        assert_eq!(of(&net, seen_by, 3), None, "seen by {seen_by}");
    }
    // What was sent stays so when the publisher is closed, and the view's version is not touched by any of it.
    let version = net.view(2).version;
    net.machines[0].node.remove_publisher(publisher);
    net.machines[1].node.set_room(subscriber, 64);
    net.run(2 * SECOND);
    assert_eq!(of(&net, 2, 1), Some((FRAMES, 0, 0, 0)));
    assert_eq!(of(&net, 2, 2), Some((0, FRAMES, 0, 0)));
    assert_eq!(net.view(2).version, version + 1, "only the role of the first changed");
    // A new life of the member has said nothing yet.
    net.crash(0);
    net.join_at(1, 2, Net::host(0));
    net.run(2 * SECOND);
    assert_eq!(of(&net, 2, 1), None);
}
