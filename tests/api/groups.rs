//! Groups, keys, domains, topics and names.

use std::time::Duration;

use qcast::{Delivery, JoinError, Node, Notice, OpenError, OpenPublisherError, QKey};

use crate::rig::{
    DEADLINE, expect_run, join, message, next, node, numbered, read_all, silence, small, unique,
    until,
};

#[test]
fn another_key_hears_nothing_and_counts_it() {
    // Out of the control group, so that everything that is counted is of this one.
    let open = || small().control(false).open().unwrap();
    let (ours, friend, stranger) = (open(), open(), open());
    let group = unique("keys");
    let key = |n| QKey::new_checked(n).unwrap();
    let mut publisher =
        ours.group(&group).qkey(key(0x1234)).join().unwrap().publisher().open().unwrap();
    let inside = friend.group(&group).qkey(key(0x1234)).join().unwrap();
    let outside = stranger.group(&group).qkey(key(0x1235)).join().unwrap();
    let mut subscriber = inside.subscriber().open().unwrap();
    let mut deaf = outside.subscriber().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let before = stranger.counters().qkey_violations;
    let heard = friend.counters().received;
    for n in 0..100 {
        publisher.send(&numbered(n, 2000)).unwrap();
    }
    expect_run(&mut subscriber, 0, 100);
    assert!(publisher.close().unconfirmed.is_empty());
    silence(&mut deaf, Duration::from_millis(100));
    // What went to the group; what went to the friend alone it has not seen.
    let rejected = stranger.counters().qkey_violations - before;
    let received = friend.counters().received - heard;
    assert!(rejected >= 50, "{rejected} of at least 50 frames were rejected and counted");
    // The end is told a few times more than the friend stays to hear it.
    assert!(rejected <= received + 20, "{rejected} rejected of {received} that the friend had");
    // What the stranger received is what it said itself, as a member: nothing of others.
    let heard = outside.counters();
    assert_eq!((heard.frames, outside.members().members.len()), (heard.own, 1), "{heard:?}");
    // And that is rejected by the others.
    let strange = friend.counters().qkey_violations;
    assert!(strange <= 50, "{strange} datagrams of one that publishes nothing");
}

#[test]
fn two_groups_of_one_node_have_their_own_keys() {
    let (ours, theirs) = (node(), node());
    let (a, b) = (unique("first"), unique("second"));
    let open = |name: &str, secret: &str| {
        let subscriber =
            theirs.group(name).secret(secret).join().unwrap().subscriber().open().unwrap();
        let publisher = ours.group(name).secret(secret).join().unwrap().publisher().open().unwrap();
        assert_eq!(publisher.wait_for(1, DEADLINE), 1);
        (publisher, subscriber)
    };
    let (mut pa, mut sa) = open(&a, "one");
    let (mut pb, mut sb) = open(&b, "two");
    assert_ne!(pa_key(&sa), pa_key(&sb));
    for n in 0..200 {
        pa.send(&numbered(2 * n, 500)).unwrap();
        pb.send(&numbered(2 * n + 1, 500)).unwrap();
    }
    for n in 0..200 {
        assert_eq!(crate::rig::number(&message(&mut sa)), 2 * n);
        assert_eq!(crate::rig::number(&message(&mut sb)), 2 * n + 1);
    }
    assert_eq!((ours.counters().qkey_violations, theirs.counters().qkey_violations), (0, 0));
}

fn pa_key(subscriber: &qcast::Subscriber) -> QKey {
    subscriber.group().qkey()
}

/// R-ID-1.
#[test]
fn domains_do_not_hear_each_other() {
    let group = unique("domains");
    let other = small().domain(2).open().unwrap();
    let same = small().domain(1).open().unwrap();
    let ours = small().domain(1).open().unwrap();
    let there = join(&other, &group);
    let mut deaf = there.subscriber().open().unwrap();
    let mut subscriber = join(&same, &group).subscriber().open().unwrap();
    let mut publisher = join(&ours, &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    for n in 0..10 {
        publisher.send(&numbered(n, 100)).unwrap();
    }
    expect_run(&mut subscriber, 0, 10);
    silence(&mut deaf, Duration::from_millis(100));
    assert!(there.counters().wrong_domain > 0);
    assert_eq!(publisher.subscribers().len(), 1);
}

#[test]
fn topics_are_chosen_by_pattern() {
    let (ours, theirs) = (node(), node());
    let group = unique("topics");
    let (g, h) = (join(&theirs, &group), join(&ours, &group));
    let mut rooms = g.subscriber().topics("room/*").open().unwrap();
    let mut one = g.subscriber().topics("room/1").open().unwrap();
    let mut all = g.subscriber().open().unwrap();
    let mut nothing = g.subscriber().topics("attic").open().unwrap();
    let mut publishers: Vec<_> = ["room/1", "room/2", "hall"]
        .iter()
        .map(|t| h.publisher().topic(*t).open().unwrap())
        .collect();
    for p in &publishers {
        assert_eq!(p.wait_for(1, DEADLINE), 1);
    }
    for (n, p) in publishers.iter_mut().enumerate() {
        p.send(&numbered(n as u64, 9)).unwrap();
    }
    for (subscriber, wanted) in
        [(&mut rooms, vec![0, 1]), (&mut one, vec![0]), (&mut all, vec![0, 1, 2])]
    {
        let mut got: Vec<u64> = Vec::new();
        for _ in &wanted {
            let m = message(subscriber);
            let topic = subscriber.stream_info(m.key()).unwrap().topic.clone();
            assert_eq!(topic, ["room/1", "room/2", "hall"][crate::rig::number(&m) as usize]);
            got.push(crate::rig::number(&m));
        }
        got.sort_unstable();
        assert_eq!(got, wanted);
        silence(subscriber, Duration::from_millis(20));
    }
    silence(&mut nothing, Duration::from_millis(20));
}

#[test]
fn names_are_checked() {
    let n = node();
    for bad in ["", "a\nb", "\u{7}", &"x".repeat(97)] {
        assert!(matches!(n.group(bad).join(), Err(JoinError::Name(_))), "group {bad:?}");
        assert!(matches!(Node::builder().name(bad).open(), Err(OpenError::Name(_))), "{bad:?}");
    }
    let g = join(&n, &unique("names"));
    for bad in ["a\tb", &"x".repeat(97)] {
        let opened = g.publisher().topic(bad).open();
        assert!(matches!(opened, Err(OpenPublisherError::Topic(_))), "topic {bad:?}");
    }
    for bad in [0, (1 << 20) + 1] {
        let opened = g.publisher().window(bad).open();
        assert!(matches!(opened, Err(OpenPublisherError::Window(_))), "window {bad}");
    }
    for bad in ["10.0.0.1", "224.0.0.5", "::1"] {
        let joined = n.group(unique("mgid")).mgid(bad.parse().unwrap()).join();
        let Err(error) = joined else { panic!("{bad} was joined") };
        assert!(!error.to_string().is_empty());
        println!("{bad}: {error}");
    }
    let longest = "x".repeat(96);
    let named = small().name(&longest).open().unwrap();
    assert_eq!(named.name(), longest);
    named.group(&longest).join().unwrap().publisher().topic(&longest).window(1).open().unwrap();
}

#[test]
fn own_messages_come_once_or_not_at_all() {
    // Case 52.
    let n = node();
    let g = join(&n, &unique("own"));
    let mut with = g.subscriber().own_messages(true).open().unwrap();
    let mut without = g.subscriber().open().unwrap();
    let mut publisher = g.publisher().open().unwrap();
    assert!(publisher.ready(DEADLINE));
    for k in 0..500 {
        publisher.send(&numbered(k, if k % 50 == 0 { 10_000 } else { 100 })).unwrap();
    }
    expect_run(&mut with, 0, 500);
    silence(&mut with, Duration::from_millis(100));
    silence(&mut without, Duration::from_millis(20));
    until("every echo", || g.counters().own > 0);
    assert_eq!(publisher.wait_for(1, Duration::from_millis(50)), 0, "oneself is no subscriber");
}

#[test]
fn an_own_subscription_that_is_full_is_named() {
    for reliability in [qcast::Reliability::Ordered, qcast::Reliability::Unordered] {
        let n = small().name(unique("self")).open().unwrap();
        let g = join(&n, &unique("own full"));
        let sub = g.subscriber().own_messages(true).reliability(reliability).queue(4);
        let mut subscriber = sub.open().unwrap();
        let mut publisher = g.publisher().window(8).open().unwrap();
        let mut sent = 0;
        let error = loop {
            match publisher.send_timeout(&numbered(sent, 3000), Duration::from_millis(200)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 10_000, "{reliability:?}: nothing holds the publisher back");
        };
        assert!(error.to_string().contains("of this very node"), "{reliability:?}: {error}");
        expect_run(&mut subscriber, 0, sent);
    }
}

#[test]
fn many_groups_on_one_node() {
    let (ours, theirs) = (node(), node());
    let names: Vec<String> = (0..50).map(|_| unique("one of 50")).collect();
    let mut pairs: Vec<_> = names
        .iter()
        .map(|name| {
            let subscriber = join(&theirs, name).subscriber().open().unwrap();
            (join(&ours, name).publisher().window(16).open().unwrap(), subscriber)
        })
        .collect();
    for (publisher, _) in &pairs {
        assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    }
    for round in 0..20 {
        for (n, (publisher, _)) in pairs.iter_mut().enumerate() {
            publisher.send(&numbered(round * 50 + n as u64, 64)).unwrap();
        }
    }
    for (n, (_, subscriber)) in pairs.iter_mut().enumerate() {
        for round in 0..20 {
            assert_eq!(crate::rig::number(&message(subscriber)), round * 50 + n as u64);
        }
    }
}

#[test]
fn a_late_joiner_starts_live_or_with_history() {
    let group = unique("late");
    let mut publisher = join(&node(), &group).publisher().window(64).open().unwrap();
    assert!(publisher.ready(DEADLINE));
    for n in 0..30 {
        publisher.send(&numbered(n, 3000)).unwrap();
    }
    assert!(publisher.wait_confirmed(DEADLINE));
    let mut live = join(&node(), &group).subscriber().open().unwrap();
    let mut past = join(&node(), &group).subscriber().history(10).open().unwrap();
    assert_eq!(publisher.wait_for(2, DEADLINE), 2);
    publisher.send(&numbered(30, 3000)).unwrap();
    expect_run(&mut live, 30, 31);
    expect_run(&mut past, 20, 31);
}

#[test]
fn a_subscriber_that_comes_back_starts_live_too() {
    let (ours, theirs) = (node(), node());
    let group = unique("again");
    let (source, g) = (join(&ours, &group), join(&theirs, &group));
    let mut publisher = source.publisher().topic("some").window(64).open().unwrap();
    let mut first = g.subscriber().topics("some").open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(&numbered(0, 3000)).unwrap();
    expect_run(&mut first, 0, 1);
    drop(first);
    until("the farewell", || publisher.subscribers().is_empty());
    for n in 1..200 {
        publisher.send(&numbered(n, 3000)).unwrap();
    }
    assert!(publisher.wait_confirmed(DEADLINE));
    read_all(&source, &g);
    let mut second = g.subscriber().topics("some").open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(&numbered(200, 3000)).unwrap();
    assert!(matches!(next(&mut second), Delivery::Notice(Notice::Joined(_))));
    expect_run(&mut second, 200, 201);
    drop(second);
    until("the farewell", || publisher.subscribers().is_empty());
    let mut third = g.subscriber().topics("some").history(5).open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(&numbered(201, 3000)).unwrap();
    expect_run(&mut third, 196, 202);
}

#[test]
fn a_topic_that_nobody_wanted_is_joined_live() {
    let (ours, theirs) = (node(), node());
    let group = unique("unwanted");
    let (source, g) = (join(&ours, &group), join(&theirs, &group));
    let _other = g.subscriber().topics("nothing").open().unwrap();
    let mut publisher = source.publisher().topic("some").window(64).open().unwrap();
    assert!(publisher.ready(DEADLINE));
    for n in 0..200 {
        publisher.send(&numbered(n, 3000)).unwrap();
    }
    assert!(publisher.wait_confirmed(DEADLINE));
    read_all(&source, &g);
    let mut subscriber = g.subscriber().topics("some").open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher.send(&numbered(200, 3000)).unwrap();
    expect_run(&mut subscriber, 200, 201);
}
