//! A table of what loss costs, kept so that a change of it is seen.

use std::fmt::Write;
use std::path::Path;

use qcast_proto::wire::frame::FrameKind;

use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, plain};

const LOSSES: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.2];
const GROUPS: [usize; 4] = [1, 3, 10, 100];

/// One run: a stream of whole frames at full rate, 1 µs a frame, round trip 42 µs.
fn row(loss: f64, group: usize) -> String {
    let frames = if group < 100 { 8_000 } else { 1_000 };
    let mut w = plain(1, Fabric::losing(loss), group, Plan::of(0).whole_frames());
    // The round trip is known, and who loses with whom is about to be.
    w.run_for(SECOND);
    let before = w.traffic.clone();
    let start = w.now;
    w.more(frames);
    w.settle(60 * SECOND);
    w.assert_all_got(frames);
    let took = w.now.saturating_since(start).as_secs_f64();
    let lost = (w.traffic.data_lost() - before.data_lost()) as f64;
    let asked = w.publisher().stats.frames_asked.max(1) as f64;
    let naks = w.traffic.delivered(FrameKind::Nak) as f64;
    let repairs = w.traffic.repairs as f64;
    let mut waits: Vec<_> = w.machines.iter().flat_map(|m| &m.repaired).collect();
    waits.sort();
    let wait = |share: f64| {
        let at = (waits.len() as f64 * share) as usize;
        waits.get(at).map_or(0, |w| w.as_micros())
    };
    format!(
        "{loss:>6} {group:>6} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>8} {:>8}",
        frames as f64 / took / 1000.0,
        naks / asked,
        repairs / asked,
        lost / asked,
        wait(0.5),
        wait(0.99),
    )
}

/// What it takes to carry frames through loss to so many subscribers. It is compared with
/// `tests/snapshots/goodput.txt`; `QCAST_BLESS=1` writes it anew.
#[test]
fn goodput() {
    let mut table = String::from(
        "  loss  group  frames/ms   per distinct frame asked for    repair waited, µs\n\
         \x20                             NAKs  repairs     lost   median      99%\n",
    );
    for group in GROUPS {
        for loss in LOSSES {
            writeln!(table, "{}", row(loss, group)).expect("strings grow");
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/goodput.txt");
    if std::env::var_os("QCAST_BLESS").is_some() {
        std::fs::write(&path, &table).expect("the snapshot can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == table,
        "the table has changed; if that is meant, write it anew with\n  \
         QCAST_BLESS=1 cargo test -p qcast-proto --test sim goodput::goodput\nkept:\n{kept}\nnow:\n{table}"
    );
}
