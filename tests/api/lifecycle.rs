//! Coming, going, and coming back.

use std::time::Duration;

use qcast::{Delivery, Group, Node, Notice, Progress, Publisher, PublisherEvent, Subscriber};

use crate::rig::{
    DEADLINE, Pair, expect_run, join, manual, message, next, node, notice, now, numbered, pair,
    small, unique, until,
};

#[test]
fn the_events_of_both_ends_come_in_order() {
    let (ours, theirs) = (node(), node());
    let group = unique("events");
    let publisher = join(&ours, &group).publisher().topic("t").open().unwrap();
    let mut subscriber = join(&theirs, &group).subscriber().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    match notice(&mut subscriber) {
        Notice::Joined(info) => {
            assert_eq!((info.topic.as_str(), info.node), ("t", ours.id()));
            assert_eq!(info.name, ours.name());
        }
        other => panic!("{other:?}"),
    }
    drop(subscriber);
    let mut events = Vec::new();
    until("the subscriber's farewell", || {
        events.extend(publisher.next_event());
        matches!(events.last(), Some(PublisherEvent::SubscriberLeft { .. }))
    });
    match events.as_slice() {
        [
            PublisherEvent::Ready,
            PublisherEvent::SubscriberJoined { node: joined, name },
            PublisherEvent::SubscriberLeft { node: left, .. },
        ] => {
            assert_eq!((*joined, *left), (theirs.id(), theirs.id()));
            assert_eq!(name, theirs.name());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_end_of_a_stream_comes_after_its_last_message() {
    let Pair { mut publisher, mut subscriber } = pair("end");
    for n in 0..100 {
        publisher.send(&numbered(n, 1000)).unwrap();
    }
    let closing = std::thread::spawn(move || publisher.close());
    expect_run(&mut subscriber, 0, 100);
    assert!(matches!(notice(&mut subscriber), Notice::PublisherClosed(_)));
    assert!(closing.join().unwrap().unconfirmed.is_empty());
}

#[test]
fn a_dropped_publisher_lingers_in_the_background() {
    let Pair { mut publisher, mut subscriber } = pair("background");
    for n in 0..300 {
        publisher.send(&numbered(n, 3000)).unwrap();
    }
    let start = now();
    // With it goes the last handle of its group and of its node.
    drop(publisher);
    assert!(start.elapsed() < Duration::from_secs(5), "it lingered in the foreground");
    expect_run(&mut subscriber, 0, 300);
    assert!(matches!(notice(&mut subscriber), Notice::PublisherClosed(_)));
}

#[test]
fn handles_go_in_any_order() {
    enum Handle {
        Node(#[allow(dead_code)] Node),
        Group(#[allow(dead_code)] Group),
        Publisher(#[allow(dead_code)] Publisher),
        Subscriber(#[allow(dead_code)] Subscriber),
    }
    let mut orders = vec![vec![]];
    for handle in 0..4 {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, handle);
                    order
                })
            })
            .collect();
    }
    assert_eq!(orders.len(), 24);
    for order in orders {
        for manually in [false, true] {
            let peer = node();
            let name = unique("orders");
            let mut listener = join(&peer, &name).subscriber().open().unwrap();
            let n = if manually { manual() } else { node() };
            let g = join(&n, &name);
            let mut p = g.publisher().open().unwrap();
            let s = g.subscriber().own_messages(true).open().unwrap();
            assert_eq!(p.wait_for(1, DEADLINE), 1);
            p.send(b"last words").unwrap();
            let mut handles = [
                Some(Handle::Node(n)),
                Some(Handle::Group(g)),
                Some(Handle::Publisher(p)),
                Some(Handle::Subscriber(s)),
            ];
            let start = now();
            for at in &order {
                drop(handles[*at].take());
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(5), "{order:?}, manual {manually}: {took:?}");
            assert_eq!(&message(&mut listener)[..], b"last words");
        }
    }
}

/// R-ID-3.
#[test]
fn a_named_node_that_comes_back_is_a_restart() {
    // Case 110. A node that nobody drives any more is as silent as one that was killed.
    let group = unique("restart");
    let name = unique("reborn");
    let mut subscriber = join(&node(), &group).subscriber().open().unwrap();
    let first = small().name(&name).progress(Progress::Manual).open().unwrap();
    let mut publisher = join(&first, &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(b"first life").unwrap();
    publisher.flush();
    assert_eq!(&message(&mut subscriber)[..], b"first life");
    let id = first.id();
    let second = small().name(&name).open().unwrap();
    assert_eq!(second.id(), id);
    let mut reborn = join(&second, &group).publisher().open().unwrap();
    assert_eq!(reborn.wait_for(1, DEADLINE), 1);
    reborn.send(b"second life").unwrap();
    let (mut restarted, mut heard) = (false, false);
    while !(restarted && heard) {
        match next(&mut subscriber) {
            Delivery::Notice(Notice::PublisherRestarted(info)) => {
                assert_eq!(info.node, id);
                restarted = true;
            }
            Delivery::Notice(Notice::Joined(info)) => assert_eq!(info.node, id),
            Delivery::Message(m) => {
                assert_eq!(&m[..], b"second life");
                heard = true;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_publisher_that_is_gone_without_a_word_is_lost() {
    let group = unique("lost");
    let mut subscriber = join(&node(), &group).subscriber().open().unwrap();
    let ours = manual();
    let mut publisher = join(&ours, &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(b"x").unwrap();
    assert_eq!(&message(&mut subscriber)[..], b"x");
    // Nobody drives it any more.
    assert!(matches!(notice(&mut subscriber), Notice::PublisherLost(_)));
    publisher.send(b"y").unwrap();
    assert!(matches!(notice(&mut subscriber), Notice::PublisherBack(_)));
    assert_eq!(&message(&mut subscriber)[..], b"y");
}

#[test]
fn a_subscriber_that_is_gone_without_a_word_holds_nobody() {
    let ours = node();
    let theirs = manual();
    let group = unique("gone");
    let mut subscriber = join(&theirs, &group).subscriber().open().unwrap();
    let timeout = Duration::from_millis(500);
    let builder = join(&ours, &group).publisher().window(16).receiver_timeout(timeout);
    let mut publisher = builder.open().unwrap();
    until("the subscriber", || {
        let _ = subscriber.try_recv().unwrap();
        publisher.subscribers().len() == 1
    });
    for n in 0..2000 {
        publisher.send_timeout(&numbered(n, 3000), DEADLINE).unwrap();
    }
    let mut lost = false;
    until("its loss", || {
        lost |= matches!(publisher.next_event(), Some(PublisherEvent::SubscriberLost { .. }));
        lost
    });
}
