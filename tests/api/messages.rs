//! What can be sent, and how.

use std::time::Duration;

use qcast::{Delivery, Incoming, Notice, PublishError};

use crate::rig::{
    DEADLINE, Pair, disturbed, expect_run, message, node, now, number, numbered, pair, pair_on,
    silence,
};

/// The largest message that shares a frame: the path MTU without the headers of qcast.
fn whole(pair: &mut Pair) -> usize {
    match pair.publisher.claim(1 << 20) {
        Err(PublishError::TooLarge { max, .. }) => max,
        other => panic!("a claim of 1 MiB: {:?}", other.map(drop)),
    }
}

#[test]
fn a_message_arrives_with_who_sent_it() {
    let Pair { mut publisher, mut subscriber } = pair("basic");
    publisher.send(b"hello").unwrap();
    let m = message(&mut subscriber);
    assert_eq!((&m[..], m.as_ref()), (&b"hello"[..], &b"hello"[..]));
    let info = subscriber.stream_info(m.key()).unwrap();
    assert_eq!(info.topic, "");
    assert_eq!(m.sequence().0, 0);
}

#[test]
fn every_size_arrives_whole() {
    let mut pair = pair("sizes");
    let whole = whole(&mut pair);
    let most = 16 << 20;
    let sizes = [0, 1, whole - 1, whole, whole + 1, 2 * whole, 100_000, most, 0, 3];
    let Pair { mut publisher, mut subscriber } = pair;
    let bytes: Vec<u8> = (0..most + 1).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let sending = std::thread::spawn(move || {
        for len in sizes {
            publisher.send(&bytes[..len]).unwrap();
        }
        match publisher.send(&bytes) {
            Err(PublishError::TooLarge { len, max }) => assert_eq!((len, max), (most + 1, most)),
            other => panic!("{other:?}"),
        }
        assert!(publisher.wait_confirmed(DEADLINE));
        publisher
    });
    for len in sizes {
        let m = message(&mut subscriber);
        assert_eq!(m.len(), len);
        assert!(m.iter().enumerate().all(|(i, b)| *b == (i ^ (i >> 8) ^ (i >> 16)) as u8));
    }
    sending.join().unwrap();
}

#[test]
fn a_claim_is_published_by_its_commit_only() {
    let mut pair = pair("claims");
    let whole = whole(&mut pair);
    let Pair { mut publisher, mut subscriber } = pair;
    for (n, len) in [8, 100, whole].into_iter().enumerate() {
        let mut claim = publisher.claim(len).unwrap();
        assert_eq!(claim.len(), len);
        claim.fill(0xee);
        drop(claim);
        let mut claim = publisher.claim(len).unwrap();
        claim.copy_from_slice(&numbered(n as u64, len));
        claim.commit();
        let m = message(&mut subscriber);
        assert_eq!(&m[..], numbered(n as u64, len));
    }
    let claim = publisher.claim(0).unwrap();
    claim.commit();
    assert!(message(&mut subscriber).is_empty());
    assert!(publisher.claim(whole + 1).is_err());
    silence(&mut subscriber, Duration::from_millis(50));
}

#[test]
fn a_claim_that_is_held_stops_no_other_call() {
    let Pair { mut publisher, mut subscriber } = pair("claim held");
    let node = subscriber.group().node().clone();
    let own = crate::rig::join(&node, "claim held elsewhere");
    let mut other = own.publisher().open().unwrap();
    publisher.send(b"before").unwrap();
    let claim = publisher.claim(5);
    let mut claim = claim.unwrap();
    // The engine of the publisher's own node goes on, too: it answers the subscriber's node.
    for _ in 0..100 {
        let _ = node.counters();
        other.send(b"x").unwrap();
    }
    claim.copy_from_slice(b"after");
    claim.commit();
    assert_eq!(&message(&mut subscriber)[..], b"before");
    assert_eq!(&message(&mut subscriber)[..], b"after");
}

#[test]
fn a_node_answers_while_its_publisher_is_claimed() {
    let ours = node();
    let Pair { mut publisher, mut subscriber } = pair_on(&ours, &node(), "claim and node");
    for round in 0..50u64 {
        let mut claim = publisher.claim(8).unwrap();
        // Each takes the engine, whose thread may have come by the claimed outbox.
        for _ in 0..20 {
            let _ = (ours.counters(), ours.ah_stats());
            std::thread::yield_now();
        }
        claim.copy_from_slice(&round.to_be_bytes());
        if round % 5 == 4 {
            drop(claim);
        } else {
            claim.commit();
        }
    }
    for round in (0..50).filter(|r| r % 5 != 4) {
        assert_eq!(number(&message(&mut subscriber)), round);
    }
}

#[test]
fn flush_sends_a_frame_that_is_not_full() {
    let Pair { mut publisher, mut subscriber } = pair("flush");
    for n in 0..50 {
        publisher.send(&numbered(n, 16)).unwrap();
    }
    publisher.flush();
    expect_run(&mut subscriber, 0, 50);
    assert!(publisher.wait_confirmed(DEADLINE));
    let stats = publisher.stats();
    assert_eq!(stats.confirmed, stats.head);
}

#[test]
fn recv_timeout_waits_as_long_as_it_says_and_no_less() {
    let Pair { mut publisher, mut subscriber } = pair("timeouts");
    publisher.send(b"one").unwrap();
    message(&mut subscriber);
    let mut late = Vec::new();
    for ms in [0, 1, 5, 30, 1, 5, 30, 60] {
        let asked = Duration::from_millis(ms);
        let start = now();
        assert!(subscriber.recv_timeout(asked).unwrap().is_none());
        let took = start.elapsed();
        assert!(took >= asked, "{took:?} instead of {asked:?}");
        late.push(took - asked);
    }
    assert!(subscriber.try_recv().unwrap().is_none());
    // A busy machine explains some that are late; a sleep that nothing ends makes all of them so.
    late.sort_unstable();
    assert!(late[late.len() / 2] < Duration::from_millis(400), "{late:?}: sleeps were not ended");
}

#[test]
fn a_first_recv_timeout_on_a_silent_node_ends_in_time() {
    // The progress thread sleeps in the poller with nothing due: a driver has to get it out.
    let mut times = Vec::new();
    for _ in 0..20 {
        let group = crate::rig::unique("silent");
        let mut subscriber = crate::rig::join(&node(), &group).subscriber().open().unwrap();
        let start = now();
        assert!(subscriber.recv_timeout(Duration::from_millis(10)).unwrap().is_none());
        times.push(start.elapsed());
    }
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_millis(300), "{times:?} instead of 10 ms");
}

#[test]
fn poll_resumes_inside_a_frame_and_mixes_with_recv() {
    let Pair { mut publisher, mut subscriber } = pair("poll");
    let total = 1000u64;
    for n in 0..total {
        publisher.send(&numbered(n, 20)).unwrap();
    }
    publisher.flush();
    let mut next = 0;
    let deadline = now() + DEADLINE;
    let mut round = 0;
    while next < total {
        assert!(now() < deadline, "{next} of {total} came");
        round += 1;
        if round % 3 == 0 {
            match subscriber.try_recv().unwrap() {
                Some(Delivery::Message(m)) => {
                    assert_eq!(number(&m), next);
                    next += 1;
                }
                Some(Delivery::Notice(Notice::Joined(_))) | None => {}
                other => panic!("{other:?}"),
            }
            continue;
        }
        let limit = 1 + round % 7;
        let before = next;
        let mut notices = 0;
        let handed = subscriber.poll(limit, |incoming| match incoming {
            Incoming::Message { bytes, .. } => {
                assert_eq!(number(bytes), next);
                next += 1;
            }
            Incoming::Notice(notice) => {
                assert!(matches!(notice, Notice::Joined(_)), "{notice:?}");
                notices += 1;
            }
            _ => {}
        });
        assert_eq!(handed, (next - before) as usize + notices);
        assert!(handed <= limit);
        if handed == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(subscriber.poll(10, |i| panic!("{i:?} is too much")), 0);
    assert_eq!(subscriber.poll(0, |i| panic!("{i:?} is too much")), 0);
}

#[test]
fn loss_reorder_and_duplicates_are_made_good() {
    for plan in [
        "loss=0.05,seed=1",
        "loss=0.05,burst=4,reorder=0.05,dup=0.05,seed=2",
        "dup=0.5,seed=3",
        "reorder=0.2,seed=4",
        "loss=0.02,side=both,seed=5",
    ] {
        let Pair { mut publisher, mut subscriber } = pair_on(&node(), &disturbed(plan), "faults");
        let total = 5000;
        let sending = std::thread::spawn(move || {
            for n in 0..total {
                let len = if n % 100 == 0 { 20_000 } else { 8 + (n as usize * 37) % 900 };
                publisher.send(&numbered(n, len)).unwrap();
            }
            publisher.close()
        });
        for n in 0..total {
            let len = if n % 100 == 0 { 20_000 } else { 8 + (n as usize * 37) % 900 };
            assert_eq!(&message(&mut subscriber)[..], numbered(n, len), "{plan}");
        }
        let closed = sending.join().unwrap();
        assert!(closed.unconfirmed.is_empty(), "{plan}: {closed:?}");
        println!("{plan}: {:?}", subscriber.stats());
    }
}
