//! The orchestrator: runs every cell the given number of times, and reports medians.

use std::str::FromStr;
use std::time::Duration;

use crate::cell::{Cell, Frame, Run};
use crate::loss::Unit;
use crate::report::{self, Row};
use crate::role::HEADER;

const PEERS: &str = "raw raw-pack aeron aeron-lan aeron-yield norm dds dds-lan qcast qcast-manual";

/// The peers of one point run one after the other, and the whole is repeated: what else the machine does then
/// touches all of them alike.
pub fn run() {
    let peers: Vec<String> = list("PEERS", PEERS);
    let numbers: Vec<usize> = list("N", "1 3");
    let sizes: Vec<usize> = list("SIZES", "64 1024 8192");
    let losses: Vec<f64> = list("LOSS", "0 1 5");
    let reps: usize = one("REPS", "1");
    assert!(sizes.iter().all(|&size| size >= HEADER), "a message has {HEADER} bytes at least");
    let frame = Frame {
        dgram: one("DGRAM", "8960"),
        unit: match one::<String>("LOSS_UNIT", "packet").as_str() {
            "packet" => Unit::Packet,
            "datagram" => Unit::Datagram,
            other => panic!("LOSS_UNIT={other}: give packet or datagram"),
        },
        patience: Duration::from_millis(one("CELL_MS", "15000")),
    };
    let mut rows = Vec::new();
    for &subscribers in &numbers {
        for &size in &sizes {
            for &loss in &losses {
                for peer in &peers {
                    // Plain UDP repairs nothing.
                    if loss == 0.0 || !peer.starts_with("raw") {
                        let cell = Cell { peer: peer.clone(), subscribers, size, loss };
                        rows.push(Row { cell, runs: Vec::new() });
                    }
                }
            }
        }
    }
    for rep in 1..=reps {
        for row in &mut rows {
            match row.cell.run(&frame) {
                Ok(run) => row.runs.push(run),
                Err(error) => {
                    let Cell { peer, subscribers, size, loss } = &row.cell;
                    eprintln!("{rep}: {peer} N={subscribers} size={size} loss={loss}%: {error}");
                }
            }
        }
    }
    report::summary(&rows, &peers, &numbers, &sizes, &losses);
    report::full(&rows, reps);
    if let Ok(file) = std::env::var("JSON") {
        let text = report::json(&rows, &frame);
        std::fs::write(&file, text).unwrap_or_else(|e| panic!("{file} cannot be written: {e}"));
    }
}

/// The median of what the runs showed.
pub fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn one<T: FromStr>(key: &str, default: &str) -> T {
    list(key, default).pop().unwrap_or_else(|| panic!("{key} is empty"))
}

fn list<T: FromStr>(key: &str, default: &str) -> Vec<T> {
    let value = std::env::var(key).unwrap_or(default.into());
    let parse = |word: &str| word.parse().unwrap_or_else(|_| panic!("{key}: {word} is not valid"));
    value.split_whitespace().map(parse).collect()
}
