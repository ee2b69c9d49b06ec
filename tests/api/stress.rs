//! Who drives, who sleeps and who wakes whom: a lost wake-up shows as a stall.

use std::time::Duration;

use qcast::{Delivery, Publisher, Subscriber};

use crate::rig::{DEADLINE, join, message, node, now, number, numbered, unique};

/// Above this a wait was ended by a timer, not by what was waited for; or the machine had no time for us.
const STALL: Duration = Duration::from_millis(400);

/// So many rounds may have a stall that a busy machine explains. Which interleavings can lose a wake-up is
/// tried exhaustively beside the runtime; here one that is lost now and then would show by their number.
const ROUNDS_PER_STALL: usize = 200;

/// Times between a send and what it causes.
#[derive(Default)]
struct Gaps(Vec<Duration>);

impl Gaps {
    fn add(&mut self, gap: Duration) {
        self.0.push(gap);
    }

    fn report(mut self, what: &str) {
        let stalls: Vec<_> = self.0.iter().enumerate().filter(|(_, gap)| **gap >= STALL).collect();
        let most = (self.0.len() / ROUNDS_PER_STALL).max(1);
        assert!(stalls.len() <= most, "{what}: wake-ups were lost, (round, gap): {stalls:?}");
        self.0.sort_unstable();
        let n = self.0.len();
        let (p50, p99, max) = (self.0[n / 2], self.0[n * 99 / 100], self.0[n - 1]);
        println!("{what}: {n} rounds, p50 {p50:?}, p99 {p99:?}, max {max:?}");
    }
}

/// Two nodes that answer each other over two groups.
struct PingPong {
    ours: (Publisher, Subscriber),
    theirs: (Publisher, Subscriber),
}

fn ping_pong(test: &str) -> PingPong {
    let (a, b) = (node(), node());
    let (there, back) = (unique(test), unique(test));
    let (a_there, b_there) = (join(&a, &there), join(&b, &there));
    let (a_back, b_back) = (join(&a, &back), join(&b, &back));
    let ours = (a_there.publisher().open().unwrap(), a_back.subscriber().open().unwrap());
    let theirs = (b_back.publisher().open().unwrap(), b_there.subscriber().open().unwrap());
    assert_eq!(ours.0.wait_for(1, DEADLINE), 1);
    assert_eq!(theirs.0.wait_for(1, DEADLINE), 1);
    PingPong { ours, theirs }
}

#[test]
fn answers_never_stall() {
    let rounds = 20_000;
    let PingPong { ours: (mut publisher, mut subscriber), theirs } = ping_pong("ping-pong");
    let (mut echo, mut heard) = theirs;
    let answering = std::thread::spawn(move || {
        for _ in 0..rounds {
            let m = message(&mut heard);
            echo.send(&m).unwrap();
        }
        echo.close()
    });
    let mut gaps = Gaps::default();
    for n in 0..rounds {
        let start = now();
        publisher.send(&numbered(n, 8)).unwrap();
        assert_eq!(number(&message(&mut subscriber)), n);
        gaps.add(start.elapsed());
    }
    gaps.report("ping-pong");
    while let Some(Delivery::Notice(_)) =
        subscriber.recv_timeout(Duration::from_millis(100)).unwrap()
    {}
    assert!(answering.join().unwrap().unconfirmed.is_empty());
}

/// A subscriber that is waited on in a thread of its own while its node has other things to do.
#[test]
fn a_driver_hears_what_its_own_node_publishes() {
    // Own messages reach a driver that sleeps only through whoever sends them.
    let n = node();
    let group = join(&n, &unique("own driver"));
    let mut subscriber = group.subscriber().own_messages(true).open().unwrap();
    let mut publisher = group.publisher().open().unwrap();
    assert!(publisher.ready(DEADLINE));
    let rounds = 3000;
    let (tell, told) = std::sync::mpsc::sync_channel(0);
    let hearing = std::thread::spawn(move || {
        for n in 0..rounds {
            assert_eq!(number(&message(&mut subscriber)), n);
            tell.send(now()).unwrap();
        }
    });
    let mut gaps = Gaps::default();
    for n in 0..rounds {
        let start = now();
        publisher.send(&numbered(n, 8)).unwrap();
        gaps.add(told.recv_timeout(DEADLINE).unwrap() - start);
        yields(n);
    }
    hearing.join().unwrap();
    gaps.report("own messages");
}

/// Gives the processor away a few times, as the round's number says.
fn yields(n: u64) {
    for _ in 0..n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 {
        std::thread::yield_now();
    }
}

#[test]
fn a_driver_hears_through_the_turns_of_its_nodes_publishers() {
    // Publishers of the driver's node run turns of their own, which take what it sleeps for.
    let (ours, theirs) = (node(), node());
    let group = unique("driven");
    let mut subscriber = join(&ours, &group).subscriber().open().unwrap();
    let mut publisher = join(&theirs, &group).publisher().open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rounds = 3000;
    std::thread::scope(|scope| {
        let busy = join(&ours, &unique("busy"));
        let stop = &stop;
        scope.spawn(move || {
            let mut noise = busy.publisher().window(16).open().unwrap();
            for n in 0.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                noise.send(&numbered(n, 64)).unwrap();
                yields(n);
            }
        });
        let (tell, told) = std::sync::mpsc::sync_channel(0);
        scope.spawn(move || {
            for n in 0..rounds {
                let m = loop {
                    match subscriber.recv_timeout(Duration::from_secs(1 + n % 2)).unwrap() {
                        Some(Delivery::Message(m)) => break m,
                        Some(_) => {}
                        None => panic!("{n} did not come"),
                    }
                };
                assert_eq!(number(&m), n);
                tell.send(now()).unwrap();
            }
        });
        let mut gaps = Gaps::default();
        for n in 0..rounds {
            let start = now();
            publisher.send(&numbered(n, 8)).unwrap();
            gaps.add(told.recv_timeout(DEADLINE).unwrap() - start);
            yields(n);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        gaps.report("beside a busy publisher");
    });
}

#[test]
fn several_subscribers_of_a_node_wait_at_once() {
    // One drives, the others wait beside it; each leaves after every message.
    let (ours, theirs) = (node(), node());
    let rounds = 1500;
    let waiting = 4;
    let mut publishers = Vec::new();
    let (tell, told) = std::sync::mpsc::sync_channel(waiting);
    let mut threads = Vec::new();
    for at in 0..waiting {
        let group = unique("beside");
        let mut subscriber = join(&ours, &group).subscriber().open().unwrap();
        let publisher = join(&theirs, &group).publisher().window(64).open().unwrap();
        assert_eq!(publisher.wait_for(1, DEADLINE), 1);
        publishers.push(publisher);
        let tell = tell.clone();
        threads.push(std::thread::spawn(move || {
            for n in 0..rounds {
                assert_eq!(number(&message(&mut subscriber)), n);
                tell.send((at, now())).unwrap();
            }
        }));
    }
    let mut gaps = Gaps::default();
    for n in 0..rounds {
        let start = now();
        for publisher in &mut publishers {
            publisher.send(&numbered(n, 8)).unwrap();
            yields(n);
        }
        for _ in 0..waiting {
            gaps.add(told.recv_timeout(DEADLINE).unwrap().1 - start);
        }
    }
    for t in threads {
        t.join().unwrap();
    }
    gaps.report("four subscribers of one node");
}

#[test]
fn a_full_window_and_a_driver_on_one_node() {
    let (ours, theirs) = (node(), node());
    let (out, back) = (unique("out"), unique("back"));
    let (ours_out, theirs_out) = (join(&ours, &out), join(&theirs, &out));
    let (ours_back, theirs_back) = (join(&ours, &back), join(&theirs, &back));
    let mut sink = theirs_out.subscriber().queue(8).open().unwrap();
    let mut source = ours_out.publisher().window(8).open().unwrap();
    let mut heard = ours_back.subscriber().open().unwrap();
    let mut echo = theirs_back.publisher().open().unwrap();
    assert_eq!(source.wait_for(1, DEADLINE), 1);
    assert_eq!(echo.wait_for(1, DEADLINE), 1);
    let total = 3000;
    let sending = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        for n in 0..total {
            let start = now();
            source.send(&numbered(n, 3000)).unwrap();
            longest = longest.max(start.elapsed());
        }
        assert!(source.close().unconfirmed.is_empty());
        longest
    });
    let answering = std::thread::spawn(move || {
        for n in 0..total {
            assert_eq!(number(&message(&mut sink)), n);
            echo.send(&n.to_be_bytes()).unwrap();
        }
        // Answers the end of the stream.
        while !matches!(sink.recv().unwrap(), Delivery::Notice(qcast::Notice::PublisherClosed(_))) {
        }
        echo.close()
    });
    for n in 0..total {
        assert_eq!(number(&message(&mut heard)), n);
    }
    while !answering.is_finished() {
        let _ = heard.recv_timeout(Duration::from_millis(5)).unwrap();
    }
    assert!(answering.join().unwrap().unconfirmed.is_empty());
    let longest = sending.join().unwrap();
    println!("longest send {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}
