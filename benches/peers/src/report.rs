//! Tables in Markdown, and cells in JSON.

use serde_json::{Value, json};

use crate::bench::median;
use crate::cell::{Cell, Frame, Run};
use crate::loss::Unit;

/// A cell and its runs that count.
pub struct Row {
    pub cell: Cell,
    pub runs: Vec<Run>,
}

/// One line per peer and number of subscribers, for a page that is read.
pub fn summary(rows: &[Row], peers: &[String], numbers: &[usize], sizes: &[usize], losses: &[f64]) {
    let matrix = Matrix { rows, peers, numbers, sizes, losses };
    println!("\n### Messages/s at the slowest subscriber, nothing lost\n");
    matrix.print(|run| run.messages_per_second, count);
    println!("\n### CPU seconds of all processes per million messages\n");
    matrix.print(|run| run.cpu_per_million, figures);
    // One size is enough: at this rate latency depends on it little.
    let size = if sizes.contains(&1024) { 1024 } else { sizes[0] };
    println!("\n### One-way latency at 2000 messages/s of {size} B, worst subscriber: p50, us\n");
    let matrix = Matrix { sizes: &[size], ..matrix };
    matrix.print(|run| run.p50_us, micros);
    println!("\n### The same: p99, us\n");
    matrix.print(|run| run.p99_us, micros);
    println!("\n### The same: CPU cores in use by all processes\n");
    matrix.print(|run| run.cores, figures);
}

/// Everything, a line per cell.
pub fn full(rows: &[Row], reps: usize) {
    type Column = (&'static str, fn(&Run) -> f64);
    let columns: [Column; 9] = [
        ("datagram", |r| r.datagram),
        ("msg/s", |r| r.messages_per_second),
        ("CPU s/M", |r| r.cpu_per_million),
        ("sends/msg", |r| r.sends_per_message),
        ("mcast%", |r| r.multicast_percent),
        ("ovf/M", |r| r.overflows_per_million),
        ("p50 us", |r| r.p50_us),
        ("p99 us", |r| r.p99_us),
        ("cores", |r| r.cores),
    ];
    println!("\n### All cells\n");
    let names = columns.map(|(name, _)| name).join(" | ");
    println!("| peer | N | size | loss % | {names} | spread % | runs |");
    println!("|---|{}", "--:|".repeat(columns.len() + 5));
    for Row { cell, runs } in rows {
        let mut line =
            format!("| {} | {} | {} | {} |", cell.peer, cell.subscribers, cell.size, cell.loss);
        for (_, of) in columns {
            line += &format!(" {} |", median(runs, of).map_or("-".into(), figures));
        }
        println!("{line} {:.0} | {}/{reps} |", spread(runs), runs.len());
    }
}

/// An array of cells, for programs; `loss` is in percent, as it was asked for. A cell without a run that counts has null for its numbers.
pub fn json(rows: &[Row], frame: &Frame) -> String {
    let cells = rows.iter().map(|Row { cell, runs }| {
        json!({
            "peer": cell.peer,
            "subscribers": cell.subscribers,
            "size": cell.size,
            "loss": cell.loss,
            "loss_unit": if frame.unit == Unit::Packet { "packet" } else { "datagram" },
            "datagram": median(runs, |r| r.datagram).map(|d| d as u64),
            "messages_per_second": median(runs, |r| r.messages_per_second),
            "cpu_seconds_per_million_messages": median(runs, |r| r.cpu_per_million),
            "p50_us": median(runs, |r| r.p50_us),
            "p99_us": median(runs, |r| r.p99_us),
            "cores": median(runs, |r| r.cores),
            "spread": spread(runs) / 100.0,
            "runs": runs.len(),
        })
    });
    format!("{:#}\n", Value::Array(cells.collect()))
}

/// Of messages/s: the largest less the smallest, in percent of the median.
fn spread(runs: &[Run]) -> f64 {
    let rates = runs.iter().map(|r| r.messages_per_second);
    let (least, most) = rates.fold((f64::MAX, 0.0), |(l, m): (f64, f64), r| (l.min(r), m.max(r)));
    median(runs, |r| r.messages_per_second).map_or(0.0, |middle| (most - least) / middle * 100.0)
}

/// Peers and numbers of subscribers downwards, sizes and losses across.
struct Matrix<'a> {
    rows: &'a [Row],
    peers: &'a [String],
    numbers: &'a [usize],
    sizes: &'a [usize],
    losses: &'a [f64],
}

impl Matrix<'_> {
    fn print(&self, of: impl Fn(&Run) -> f64, show: impl Fn(f64) -> String) {
        let points = || self.sizes.iter().flat_map(|s| self.losses.iter().map(move |l| (*s, *l)));
        let head: Vec<String> = points()
            .map(|(size, loss)| match loss == self.losses[0] {
                true => format!("{size} B: {loss} %"),
                false => format!("{loss} %"),
            })
            .collect();
        println!("| peer | N | {} |", head.join(" | "));
        println!("|---|--:|{}", "--:|".repeat(head.len()));
        for &n in self.numbers {
            for peer in self.peers {
                let value = |(size, loss): (usize, f64)| {
                    let at = |row: &&Row| {
                        let Cell { peer: p, subscribers, size: s, loss: l } = &row.cell;
                        p == peer && *subscribers == n && *s == size && *l == loss
                    };
                    let middle = median(&self.rows.iter().find(at)?.runs, &of)?;
                    Some(show(middle))
                };
                let values = points().map(|p| value(p).unwrap_or("-".into()));
                println!("| {peer} | {n} | {} |", values.collect::<Vec<_>>().join(" | "));
            }
        }
    }
}

fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 1e4 => format!("{:.0} k", v / 1e3),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn micros(value: f64) -> String {
    if value < 5000.0 { format!("{value:.0}") } else { format!("{:.1} ms", value / 1e3) }
}

fn figures(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 1.0 => format!("{v:.3}"),
        v if v < 10.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}
