//! One cell: a peer, a number of subscribers, a message size and a loss, run once.

use std::time::{Duration, Instant};

use crate::loss::{Unit, lose};
use crate::process::Proc;
use crate::role::RATE;

/// What is run.
#[derive(Clone, Debug)]
pub struct Cell {
    pub peer: String,
    pub subscribers: usize,
    pub size: usize,
    /// Percent.
    pub loss: f64,
}

/// What all cells have in common.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub dgram: usize,
    pub unit: Unit,
    pub patience: Duration,
}

/// What one run showed. Latency is one way, at the worst subscriber, at [`RATE`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// The most bytes of UDP payload in a datagram.
    pub datagram: f64,
    /// At the slowest subscriber.
    pub messages_per_second: f64,
    /// Of all processes.
    pub cpu_per_million: f64,
    /// Sends per message; a batch that the kernel cuts (UDP GSO) counts once.
    pub sends_per_message: f64,
    /// The share of them that is multicast.
    pub multicast_percent: f64,
    /// Receive-buffer overflows per million messages.
    pub overflows_per_million: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU of all processes at [`RATE`].
    pub cores: f64,
}

impl Cell {
    /// Runs it. An error tells why the run does not count.
    pub fn run(&self, frame: &Frame) -> Result<Run, String> {
        let dir = std::env::temp_dir().join(format!("peers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let result = self.run_in(frame, &dir.to_string_lossy());
        let _ = std::fs::remove_dir_all(&dir);
        result
    }

    fn run_in(&self, frame: &Frame, dir: &str) -> Result<Run, String> {
        let (peer, n, size) = (&self.peer, self.subscribers, self.size);
        let until = Instant::now() + frame.patience;
        let start = |id| Proc::start(peer, id, n, size, frame.dgram, dir);
        let subscribers: Vec<Proc> = (1..=n).map(start).collect();
        for subscriber in &subscribers {
            subscriber.wait("READY", until)?;
        }
        let mut publisher = start(0);
        let datagram = publisher.wait("READY", until)?[0];
        if self.loss > 0.0 {
            subscribers.iter().for_each(|s| lose(s.id(), self.loss, frame.unit));
        }
        let before = Udp::read();
        publisher.order();
        let mut phase = |word: &str| {
            let got: Result<Vec<_>, _> = subscribers.iter().map(|s| s.wait(word, until)).collect();
            publisher.order();
            let got = got?;
            let sent = publisher.wait(word, until)?;
            match got.iter().find(|g| g[0] != sent[0] || g[3] != 0.0) {
                Some(g) => {
                    Err(format!("{word}: sent {}, got {}, {} out of order", sent[0], g[0], g[3]))
                }
                None => Ok((got.iter().map(|g| g[2]).sum::<f64>() + sent[2], sent, got)),
            }
        };
        let (cpu, sent, got) = phase("LOAD")?;
        let udp = Udp::read().since(&before);
        let slowest = got.iter().map(|g| g[0] / g[1]).fold(f64::MAX, f64::min);
        let (count, total) = (sent[0], sent[1]);
        let (paced_cpu, sent, got) = phase("PACED")?;
        let worst = |i: usize| got.iter().map(|g| g[i]).fold(0.0, f64::max) / 1e3;
        Ok(Run {
            datagram,
            messages_per_second: slowest,
            cpu_per_million: cpu / count * 1e6,
            sends_per_message: udp.sends / total,
            multicast_percent: udp.multicast / udp.sends * 100.0,
            overflows_per_million: udp.overflows / total * 1e6,
            p50_us: worst(1),
            p99_us: worst(4),
            cores: paced_cpu / (sent[0] / RATE as f64),
        })
    }
}

/// Counters of this network namespace.
struct Udp {
    sends: f64,
    overflows: f64,
    multicast: f64,
}

impl Udp {
    fn read() -> Self {
        Self {
            sends: counter("/proc/net/snmp", "Udp:", "OutDatagrams"),
            overflows: counter("/proc/net/snmp", "Udp:", "RcvbufErrors"),
            multicast: counter("/proc/net/netstat", "IpExt:", "OutMcastPkts"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            sends: self.sends - before.sends,
            overflows: self.overflows - before.overflows,
            multicast: self.multicast - before.multicast,
        }
    }
}

fn counter(file: &str, protocol: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(file).expect("procfs is there");
    let mut rows = text.lines().filter(|l| l.starts_with(protocol)).map(|l| l.split_whitespace());
    let at = rows.next().and_then(|mut names| names.position(|w| w == name));
    let value = rows.next().zip(at).and_then(|(mut values, at)| values.nth(at)?.parse().ok());
    value.expect("the kernel counts this")
}
