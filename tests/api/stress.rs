//! Who drives, who sleeps and who wakes whom: a lost wake-up shows as a stall.

use std::time::Duration;

use qcast::{Delivery, Publisher, Subscriber};

use crate::rig::{DEADLINE, join, message, node, now, number, numbered, unique};

/// Above this a wait was ended by a timer, not by what was waited for.
const STALL: Duration = Duration::from_millis(400);

/// Times between a send and what it causes.
#[derive(Default)]
struct Gaps(Vec<Duration>);

impl Gaps {
    fn add(&mut self, gap: Duration) {
        assert!(gap < STALL, "{gap:?} after {} rounds: a wake-up was lost", self.0.len());
        self.0.push(gap);
    }

    fn report(mut self, what: &str) {
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
