//! Nodes that the application drives.

use std::time::Duration;

use qcast::{Delivery, Incoming, Notice};

use crate::rig::{
    DEADLINE, Pair, expect_run, join, manual, message, node, now, number, numbered, pair_on, unique,
};

#[test]
fn one_thread_drives_both_ends() {
    let (ours, theirs) = (manual(), manual());
    let group = unique("manual");
    let mut subscriber = join(&theirs, &group).subscriber().open().unwrap();
    let mut publisher = join(&ours, &group).publisher().open().unwrap();
    let deadline = now() + DEADLINE;
    let (mut sent, mut received) = (0u64, 0u64);
    while received < 2000 {
        assert!(now() < deadline, "{received} of {sent}");
        let may_send = publisher.stats().receivers == 1 && sent < 2000;
        if may_send && publisher.try_send(&numbered(sent, 700)).is_ok() {
            sent += 1;
        }
        ours.poll(Duration::ZERO).unwrap();
        subscriber.poll(64, |incoming| {
            if let Incoming::Message { bytes, .. } = incoming {
                assert_eq!(number(bytes), received);
                received += 1;
            }
        });
    }
    assert_eq!(theirs.counters().out_of_buffer, 0);
}

#[test]
fn blocking_calls_drive_their_node() {
    let (ours, theirs) = (manual(), manual());
    let group = unique("manual blocking");
    let mut subscriber = join(&theirs, &group).subscriber().queue(8).open().unwrap();
    let mut publisher = join(&ours, &group).publisher().window(16).open().unwrap();
    let sending = std::thread::spawn(move || {
        assert!(publisher.ready(DEADLINE));
        assert_eq!(publisher.wait_for(1, DEADLINE), 1);
        for n in 0..1000 {
            publisher.send(&numbered(n, 3000)).unwrap();
        }
        publisher.flush();
        publisher.close()
    });
    expect_run(&mut subscriber, 0, 1000);
    loop {
        if let Delivery::Notice(Notice::PublisherClosed(_)) = crate::rig::next(&mut subscriber) {
            break;
        }
    }
    // The end has to be answered; who drives no more says nothing.
    let deadline = now() + DEADLINE;
    while !sending.is_finished() && now() < deadline {
        let _ = subscriber.recv_timeout(Duration::from_millis(5)).unwrap();
    }
    assert!(sending.join().unwrap().unconfirmed.is_empty());
}

#[test]
fn a_manual_end_talks_to_a_threaded_one() {
    for (ours, theirs) in [(manual(), node()), (node(), manual())] {
        let group = unique("mixed");
        let mut subscriber = join(&theirs, &group).subscriber().open().unwrap();
        let mut publisher = join(&ours, &group).publisher().open().unwrap();
        let sending = std::thread::spawn(move || {
            assert_eq!(publisher.wait_for(1, DEADLINE), 1);
            for n in 0..500 {
                publisher.send(&numbered(n, 1000)).unwrap();
            }
            assert!(publisher.wait_confirmed(DEADLINE));
            publisher
        });
        expect_run(&mut subscriber, 0, 500);
        while !sending.is_finished() {
            let _ = subscriber.recv_timeout(Duration::from_millis(5)).unwrap();
        }
        sending.join().unwrap();
    }
}

#[test]
fn a_poll_sees_what_another_thread_publishes() {
    let ours = manual();
    let Pair { mut publisher, mut subscriber } = pair_on(&ours, &node(), "manual and threads");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let driving = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                ours.poll(Duration::from_secs(10)).unwrap();
            }
        });
        let start = now();
        for n in 0..200 {
            publisher.send(&numbered(2 * n, 100)).unwrap();
            publisher.send(&numbered(2 * n + 1, 100)).unwrap();
            assert_eq!(number(&message(&mut subscriber)), 2 * n);
            assert_eq!(number(&message(&mut subscriber)), 2 * n + 1);
        }
        println!("{:?} for 200 rounds", start.elapsed());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        publisher.flush();
        while !driving.is_finished() {
            publisher.send(b"wake").unwrap();
            std::thread::yield_now();
        }
    });
}

#[test]
fn two_threads_of_a_manual_node_do_not_sleep_over_each_others_messages() {
    let theirs = manual();
    let (a, b) = (unique("manual a"), unique("manual b"));
    let ours = node();
    let mut first = pair_with(&ours, &theirs, &a);
    let mut second = pair_with(&ours, &theirs, &b);
    let one = std::thread::spawn(move || expect_run(&mut first.subscriber, 0, 300));
    let two = std::thread::spawn(move || expect_run(&mut second.subscriber, 0, 300));
    let start = now();
    for n in 0..300 {
        first.publisher.send(&numbered(n, 100)).unwrap();
        second.publisher.send(&numbered(n, 100)).unwrap();
        if n % 10 == 0 {
            std::thread::yield_now();
        }
    }
    one.join().unwrap();
    two.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

fn pair_with(ours: &qcast::Node, theirs: &qcast::Node, group: &str) -> Pair {
    let subscriber = join(theirs, group).subscriber().open().unwrap();
    let publisher = join(ours, group).publisher().open().unwrap();
    crate::rig::until("the subscriber", || {
        theirs.poll(Duration::from_millis(1)).unwrap();
        publisher.subscribers().len() == 1
    });
    Pair { publisher, subscriber }
}
