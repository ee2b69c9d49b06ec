//! Waking up: C-EVT.

use qcast::device::{Armed, Device};

use crate::bench::{Bench, PATIENCE, SRQ};
use crate::rig::{Rig, fresh_group, fresh_key};

/// C-EVT-1.
pub(crate) fn arm_says_again_while_there_is_something<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let mgid = fresh_group(rig.device(0).port().gid);
    rig.post(1, 2);
    sleeps(rig, 0);
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, to, b"x");
    rig.done(0, 1);
    sleeps(rig, 0);
    rig.join(0, ours, mgid);
    sleeps(rig, 0);
    // Completions of which only one was taken.
    for n in 0..3 {
        rig.send(0, ours, to, &[n]);
    }
    let mut taken = Vec::new();
    for _ in 0..PATIENCE {
        let now = rig.bench.now();
        rig.device(0).advance(now);
        rig.device(0).poll(&mut taken, 1);
        if !taken.is_empty() {
            break;
        }
        rig.bench.step();
    }
    assert_eq!(taken.len(), 1);
    rig.ends[0].take_all(taken);
    // Sends that are still under way on a real device end in a moment.
    let mut again = false;
    for _ in 0..PATIENCE {
        again = rig.device(0).arm() == Armed::Again;
        if again {
            break;
        }
        rig.bench.step();
    }
    assert!(again, "two completions are there");
    rig.done(0, 2);
    sleeps(rig, 0);
}

/// C-EVT-2, case 84.
pub(crate) fn what_arrives_after_arming_wakes_up<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let to = rig.to(0, 1, theirs, key);
    for n in 0..10 {
        rig.post(1, 1);
        sleeps(rig, 1);
        rig.send(0, ours, to, &[n]);
        assert!(rig.bench.wait(1), "datagram {n} woke nobody up");
        assert_eq!(rig.payloads(1, 1), [[n]]);
    }
}

/// C-EVT-2, C-EVT-1, C-BUF-6, cases 84 and 85.
pub(crate) fn no_wake_up_is_missed_however_polls_fall<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let to = rig.to(0, 1, theirs, key);
    rig.post(1, SRQ);
    // Sends, single polls and steps of time fall in an order that looks random and is always the same.
    let mut dice = 12345_u32;
    for round in 0..100_u8 {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        rig.send(0, ours, to, &[round]);
        for bit in 24..28 {
            let now = rig.bench.now();
            let mut out = Vec::new();
            match dice >> bit & 3 {
                0 => rig.bench.step(),
                1 => rig.device(1).advance(now),
                2 => rig.device(1).poll(&mut out, 1),
                _ => drop(rig.device(1).arm()),
            }
            rig.ends[1].take_all(out);
        }
        // Now as an engine does it: poll until armed, then sleep until woken up, until it is there.
        let arrived = |rig: &Rig<B>| rig.ends[1].got.iter().any(|got| got.payload == [round]);
        let mut naps = 0;
        while !arrived(rig) {
            let (now, mut out) = (rig.bench.now(), Vec::new());
            rig.device(1).advance(now);
            rig.device(1).poll(&mut out, 1);
            let nothing = out.is_empty();
            rig.ends[1].take_all(out);
            if nothing && rig.device(1).arm() == Armed::Sleep {
                assert!(rig.bench.wait(1), "round {round}: asleep, and the datagram is there");
                naps += 1;
                assert!(naps < 10, "round {round}: woken up for nothing again and again");
            }
        }
        rig.done(0, 1);
        rig.ends[1].got.clear();
        let free = rig.ends[1].recvs.len() - 8;
        rig.post(1, free);
    }
}

/// Device `n` has nothing more to say.
fn sleeps<B: Bench>(rig: &mut Rig<B>, n: usize) {
    for _ in 0..PATIENCE {
        rig.drain();
        if rig.device(n).arm() == Armed::Sleep {
            return;
        }
    }
    panic!("device {n} always has something, but nothing comes out");
}
