//! Who holds whom back, and for how long.

use std::time::Duration;

use qcast::{Delivery, FlowPolicy, Hold, LossCause, Notice, Progress, PublishError, Reliability};

use crate::rig::{
    DEADLINE, expect_run, join, message, next, node, now, number, numbered, small, unique, until,
};

fn fill(publisher: &mut qcast::Publisher, len: usize) -> (u64, PublishError) {
    let deadline = now() + DEADLINE;
    let mut sent = 0;
    loop {
        // A burst outruns the link, which is no hold; somebody who holds stays.
        match publisher.send_timeout(&numbered(sent, len), Duration::from_millis(300)) {
            Ok(()) => sent += 1,
            Err(error) => return (sent, error),
        }
        assert!(now() < deadline, "nobody holds the publisher back");
    }
}

#[test]
fn a_full_subscriber_is_named() {
    let slow = small().name(unique("slow")).open().unwrap();
    let group = unique("slow subscriber");
    let mut subscriber = join(&slow, &group).subscriber().queue(4).open().unwrap();
    let mut publisher = join(&node(), &group).publisher().window(16).open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let (sent, error) = fill(&mut publisher, 3000);
    let text = error.to_string();
    assert!(text.contains(slow.name()), "{text}");
    match error {
        PublishError::WouldBlock(Some(Hold::Subscriber { name, node, .. })) => {
            assert_eq!((name.as_str(), node), (slow.name(), slow.id()));
        }
        other => panic!("{other:?}"),
    }
    match publisher.try_send(&numbered(sent, 3000)) {
        Err(PublishError::WouldBlock(Some(Hold::Subscriber { name, .. }))) => {
            assert_eq!(name, slow.name());
        }
        other => panic!("{other:?}"),
    }
    assert!(publisher.claim(3000).is_err());
    assert!(publisher.hold().is_some());
    assert!(!publisher.wait_confirmed(Duration::from_millis(50)));
    expect_run(&mut subscriber, 0, sent);
    assert!(publisher.wait_confirmed(DEADLINE));
    assert!(publisher.hold().is_none());
    // The timeout is kept.
    let start = now();
    publisher.send_timeout(b"more", DEADLINE).unwrap();
    assert!(start.elapsed() < DEADLINE / 2, "there was room");
}

#[test]
fn a_blocked_send_goes_on_when_the_subscriber_does() {
    let group = unique("blocked send");
    let mut subscriber = join(&node(), &group).subscriber().queue(4).open().unwrap();
    let mut publisher = join(&node(), &group).publisher().window(16).open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let total = 2000;
    let sending = std::thread::spawn(move || {
        for n in 0..total {
            publisher.send(&numbered(n, 3000)).unwrap();
        }
        publisher.close()
    });
    expect_run(&mut subscriber, 0, total);
    assert!(sending.join().unwrap().unconfirmed.is_empty());
}

#[test]
fn close_names_who_did_not_confirm() {
    // Nobody drives it once it has said that it is there.
    let asleep = small().name(unique("asleep")).progress(Progress::Manual).open().unwrap();
    let group = unique("unconfirmed");
    let _subscriber = join(&asleep, &group).subscriber().open().unwrap();
    let awake = node();
    let mut other = join(&awake, &group).subscriber().open().unwrap();
    let linger = Duration::from_millis(300);
    let mut publisher = join(&node(), &group).publisher().linger(linger).open().unwrap();
    until("both subscribers", || {
        asleep.poll(Duration::from_millis(1)).unwrap();
        publisher.subscribers().len() == 2
    });
    for n in 0..40 {
        publisher.send(&numbered(n, 3000)).unwrap();
    }
    let closed = publisher.close();
    assert_eq!(closed.unconfirmed, [asleep.name()]);
    // It did wait for those who listen.
    expect_run(&mut other, 0, 40);
}

#[test]
fn one_that_stays_behind_is_released_and_told() {
    let group = unique("released");
    let asleep = node();
    let mut subscriber = join(&asleep, &group).subscriber().queue(4).open().unwrap();
    let grace = Duration::from_millis(200);
    let mut publisher = join(&node(), &group).publisher().window(16).grace(grace).open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let total = 20_000;
    for n in 0..total {
        publisher.send_timeout(&numbered(n, 3000), DEADLINE).unwrap();
    }
    let mut released = false;
    let (mut lost, mut all_lost) = (0, 0);
    let mut expected = 0;
    publisher.send(&numbered(total, 3000)).unwrap();
    let mut kept = 0;
    while expected <= total {
        match next(&mut subscriber) {
            Delivery::Message(m) => {
                assert_eq!(number(&m), expected + lost);
                kept += 1;
                lost = 0;
                expected = number(&m) + 1;
            }
            Delivery::Notice(Notice::Released { .. }) => released = true,
            Delivery::Notice(Notice::Lost { first, last, cause, .. }) => {
                assert!(
                    matches!(cause, LossCause::QueueFull | LossCause::NotRetained),
                    "{cause:?}"
                );
                all_lost += last.since(first) + 1;
                lost += last.since(first) + 1;
            }
            Delivery::Notice(Notice::Joined(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    println!("{kept} kept, {all_lost} lost");
    assert!(released && all_lost > 0 && kept < 15_000, "{released}, {kept} kept");
    assert_eq!(kept + all_lost, total + 1);
}

#[test]
fn a_quorum_that_is_not_there_holds() {
    let group = unique("quorum");
    let mut publisher =
        join(&node(), &group).publisher().window(16).policy(FlowPolicy::Quorum(2)).open().unwrap();
    let mut one = join(&node(), &group).subscriber().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let (sent, error) = fill(&mut publisher, 3000);
    assert!(
        matches!(error, PublishError::WouldBlock(Some(Hold::Quorum { have: 1, want: 2 }))),
        "{error:?}"
    );
    assert!(error.to_string().contains("1 subscribers of a quorum of 2"), "{error}");
    let mut two = join(&node(), &group).subscriber().open().unwrap();
    publisher.send_timeout(&numbered(sent, 3000), DEADLINE).unwrap();
    assert!(publisher.wait_confirmed(DEADLINE));
    expect_run(&mut one, 0, sent + 1);
    expect_run(&mut two, 0, sent + 1);
}

#[test]
fn only_the_tagged_hold() {
    let group = unique("tagged");
    let _lazy = join(&node(), &group).subscriber().queue(2).open().unwrap();
    let mut tagged = join(&node(), &group).subscriber().tag(7).open().unwrap();
    let mut publisher =
        join(&node(), &group).publisher().window(64).policy(FlowPolicy::Tagged(7)).open().unwrap();
    assert_eq!(publisher.wait_for(2, DEADLINE), 2);
    let total = 1000;
    let sending = std::thread::spawn(move || {
        for n in 0..total {
            publisher.send_timeout(&numbered(n, 3000), DEADLINE).unwrap();
        }
        publisher
    });
    expect_run(&mut tagged, 0, total);
    sending.join().unwrap();
}

#[test]
fn subscribers_of_one_node_differ_in_reliability_and_speed() {
    // Cases 53 and 106: one receive for the node; who does not hold back loses alone, and is told.
    let theirs = node();
    let group = unique("fan-out");
    let g = join(&theirs, &group);
    let mut ordered = g.subscriber().open().unwrap();
    let mut unordered = g.subscriber().reliability(Reliability::Unordered).open().unwrap();
    let mut best = g.subscriber().reliability(Reliability::BestEffort).queue(4).open().unwrap();
    let mut latest = g.subscriber().reliability(Reliability::Latest).open().unwrap();
    let mut publisher = join(&node(), &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let total = 1000;
    let sending = std::thread::spawn(move || {
        for n in 0..total {
            publisher.send(&numbered(n, 1800)).unwrap();
        }
        publisher.wait_confirmed(DEADLINE);
        publisher
    });
    let reading = std::thread::spawn(move || {
        let mut seen = vec![false; total as usize];
        for _ in 0..total {
            let n = number(&message(&mut unordered)) as usize;
            assert!(!std::mem::replace(&mut seen[n], true), "{n} came twice");
        }
    });
    expect_run(&mut ordered, 0, total);
    reading.join().unwrap();
    let publisher = sending.join().unwrap();
    let frames = publisher.stats().head.0;
    // The slow ones did not read yet.
    let (mut dropped, mut got, mut next_frame) = (0, 0, 0);
    while let Some(delivery) = best.try_recv().unwrap() {
        match delivery {
            Delivery::Message(m) => {
                got += 1;
                assert!(m.sequence().0 + 1 >= next_frame);
                next_frame = m.sequence().0 + 1;
            }
            Delivery::Notice(Notice::Lost { first, last, cause, .. }) => {
                assert_eq!((first.0, cause), (next_frame, LossCause::QueueFull));
                next_frame = last.0 + 1;
                dropped += last.since(first) + 1;
            }
            Delivery::Notice(Notice::Joined(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next_frame, frames, "every frame was handed over or reported");
    assert!(got > 0 && dropped > 0 && dropped <= frames - 4, "{got} messages, {dropped} dropped");
    let m = message(&mut latest);
    assert_eq!(number(&m), total - 1, "the newest message");
    assert!(latest.try_recv().unwrap().is_none());
    assert_eq!(theirs.counters().out_of_buffer, 0);
}

#[test]
fn only_the_newest_message_of_a_frame_is_the_latest() {
    let group = unique("latest");
    let latest = Reliability::Latest;
    let mut subscriber = join(&node(), &group).subscriber().reliability(latest).open().unwrap();
    let mut publisher = join(&node(), &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let mut last = 0;
    for n in 0..500u64 {
        publisher.send(&n.to_be_bytes()).unwrap();
    }
    let mut taken = 0;
    until("the newest", || {
        if let Some(Delivery::Message(m)) = subscriber.try_recv().unwrap() {
            assert!(number(&m) >= last);
            last = number(&m);
            taken += 1;
        }
        last == 499
    });
    // As many as frames at most.
    assert!(taken <= publisher.stats().head.0, "{taken} messages of {:?}", publisher.stats().head);
}
