//! The publisher's and the subscriber's process of a cell: what they send, check and tell the orchestrator.
//!
//! A message begins with its number, a time stamp (ns) and its [`Kind`]; the rest is padding. The publisher waits for a
//! line on its standard input before each phase; both tell what a phase showed by a line of numbers.

use std::io::Write;
use std::time::Duration;

use crate::peer::{Setup, Tx, open_rx, open_tx};
use crate::process::{cpu_seconds, now};

/// Messages per second while latency is measured.
pub const RATE: u64 = 2000;

/// The bytes that a message needs at least.
pub const HEADER: usize = 24;

type Kind = u64;
const WARM: Kind = 0;
/// As fast as it goes.
const LOAD: Kind = 1;
const LOAD_END: Kind = 2;
/// At [`RATE`].
const PACED: Kind = 3;
const PACED_END: Kind = 4;

pub fn publish(peer: &str, setup: &Setup) {
    let mut tx = open_tx(peer, setup);
    while !tx.ready() {
        tx.idle(Duration::from_millis(1));
    }
    say(&format!("READY {}", tx.datagram()));
    let mut hear = std::io::stdin().lines();
    let mut order = || hear.next().expect("the orchestrator is there").expect("a line");
    order();
    let mut message = vec![0u8; setup.size];
    let mut number = 0u64;
    let mut send = |tx: &mut dyn Tx, kind: Kind, at: u64| {
        for (word, value) in message.chunks_exact_mut(8).zip([number, at, kind]) {
            word.copy_from_slice(&value.to_ne_bytes());
        }
        number += 1;
        while !tx.send(&message) {}
    };
    let nanos = |key, default: u64| setup.number(key, default) * 1_000_000;
    let (warm, load) = (nanos("WARM_MS", 200), nanos("LOAD_MS", 600));
    let (start, mut kind, mut cpu, mut count, mut total) = (now(), WARM, 0.0, 0u64, 0u64);
    loop {
        let t = now() - start;
        if t > warm && kind == WARM {
            (kind, cpu) = (LOAD, cpu_seconds());
        }
        if t > warm + load {
            break;
        }
        for _ in 0..16 {
            send(&mut *tx, kind, 0);
        }
        count += if kind == LOAD { 16 } else { 0 };
        total += 16;
    }
    send(&mut *tx, LOAD_END, 0);
    while !tx.drain() {}
    order();
    say(&format!("LOAD {count} {total} {} 0", cpu_seconds() - cpu));

    let (start, cpu) = (now(), cpu_seconds());
    let paced = RATE * nanos("PACED_MS", 500) / 1_000_000_000;
    for i in 0..paced {
        let at = start + i * 1_000_000_000 / RATE;
        loop {
            let left = at.saturating_sub(now());
            if left == 0 {
                break;
            }
            tx.idle(Duration::from_nanos(left));
        }
        send(&mut *tx, PACED, now());
        while !tx.flush() {}
    }
    send(&mut *tx, PACED_END, 0);
    while !tx.drain() {}
    order();
    say(&format!("PACED {paced} 0 {} 0", cpu_seconds() - cpu));
}

pub fn subscribe(peer: &str, setup: &Setup) {
    let mut rx = open_rx(peer, setup);
    say("READY");
    let (mut next, mut bad, mut count, mut start, mut cpu) = (0u64, 0u64, 0u64, 0, 0.0);
    let mut latencies = Vec::new();
    let mut done = false;
    while !done {
        rx.poll(&mut |message| {
            let word = |i: usize| {
                u64::from_ne_bytes(message[i * 8..][..8].try_into().expect("eight bytes"))
            };
            bad += u64::from(word(0) != next || message.len() != setup.size);
            next = word(0) + 1;
            match word(2) {
                LOAD => {
                    if count == 0 {
                        (start, cpu) = (now(), cpu_seconds());
                    }
                    count += 1;
                }
                LOAD_END => {
                    let seconds = (now() - start) as f64 / 1e9;
                    say(&format!("LOAD {count} {seconds} {} {bad}", cpu_seconds() - cpu));
                }
                PACED => {
                    if latencies.is_empty() {
                        cpu = cpu_seconds();
                    }
                    latencies.push(now() - word(1));
                }
                PACED_END => {
                    latencies.sort_unstable();
                    let len = latencies.len();
                    let q = |p: usize| latencies[(len * p / 100).min(len - 1)];
                    let cpu = cpu_seconds() - cpu;
                    say(&format!("PACED {len} {} {cpu} {bad} {}", q(50), q(99)));
                    done = true;
                }
                _ => {}
            }
        });
    }
    // The publisher may still need this side's confirmation: go on until the orchestrator ends this.
    loop {
        rx.poll(&mut |_| {});
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("the orchestrator listens");
}
