//! What the application keeps, and what the node does about it.

use std::time::Duration;

use qcast::{Delivery, Notice};

use crate::rig::{
    DEADLINE, Pair, expect_run, join, message, node, number, numbered, pair_on, unique,
};

#[test]
fn messages_that_are_kept_do_not_starve_the_node() {
    let theirs = node();
    let Pair { mut publisher, mut subscriber } = pair_on(&node(), &theirs, "kept");
    let total = 10_000;
    let sending = std::thread::spawn(move || {
        for n in 0..total {
            // One in a frame: each keeps a receive buffer of its own.
            publisher.send(&numbered(n, 2500)).unwrap();
        }
        publisher.close()
    });
    let kept: Vec<_> = (0..total).map(|_| message(&mut subscriber)).collect();
    assert_eq!(theirs.counters().out_of_buffer, 0);
    assert!(sending.join().unwrap().unconfirmed.is_empty());
    drop((subscriber, theirs));
    // They outlive the subscriber and its node.
    for (n, m) in kept.iter().enumerate() {
        assert_eq!(&m[..], numbered(n as u64, 2500));
    }
}

#[test]
fn many_publishers_in_many_threads() {
    let (ours, also, theirs) = (node(), node(), node());
    let group = unique("many publishers");
    let mut subscriber = join(&theirs, &group).subscriber().open().unwrap();
    let (senders, each) = (8u64, 400u64);
    let threads: Vec<_> = (0..senders)
        .map(|at| {
            let g = join(if at % 2 == 0 { &ours } else { &also }, &group);
            std::thread::spawn(move || {
                let topic = format!("t{at}");
                let mut publisher = g.publisher().topic(topic).window(64).open().unwrap();
                assert_eq!(publisher.wait_for(1, DEADLINE), 1);
                for n in 0..each {
                    publisher.send(&numbered(at << 32 | n, 200)).unwrap();
                }
                publisher.close()
            })
        })
        .collect();
    let mut next = vec![0; senders as usize];
    let mut left = senders * each;
    let mut ended = 0;
    while left > 0 || ended < senders {
        match crate::rig::next(&mut subscriber) {
            Delivery::Message(m) => {
                let (at, n) = ((number(&m) >> 32) as usize, number(&m) & 0xffff_ffff);
                assert_eq!(n, next[at], "publisher {at}");
                next[at] += 1;
                left -= 1;
            }
            Delivery::Notice(Notice::PublisherClosed(_)) => ended += 1,
            Delivery::Notice(Notice::Joined(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    for t in threads {
        assert!(t.join().unwrap().unconfirmed.is_empty());
    }
}

#[test]
fn two_joins_of_one_group_by_one_node_are_two_members() {
    let (ours, theirs) = (node(), node());
    let group = unique("twice");
    let (a, b) = (join(&theirs, &group), join(&theirs, &group));
    let (mut sa, mut sb) = (a.subscriber().open().unwrap(), b.subscriber().open().unwrap());
    let mut publisher = join(&ours, &group).publisher().open().unwrap();
    assert!(publisher.wait_for(1, DEADLINE) >= 1);
    for n in 0..100 {
        publisher.send(&numbered(n, 500)).unwrap();
    }
    expect_run(&mut sa, 0, 100);
    expect_run(&mut sb, 0, 100);
    drop((sa, a));
    publisher.send(&numbered(100, 500)).unwrap();
    expect_run(&mut sb, 100, 101);
    assert!(sb.recv_timeout(Duration::from_millis(20)).unwrap().is_none());
}
