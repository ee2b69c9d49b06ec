//! A member as it is shown: safe text, and how long ago things were.

use std::cmp::Ordering;
use std::time::Duration;

/// A member of the group. All its text may be shown as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The node's identity, in hexadecimal digits.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) address: String,
    pub(crate) incarnation: u64,
    pub(crate) role: &'static str,
    pub(crate) state: State,
    pub(crate) rtt: Option<Duration>,
    /// How long ago it was heard.
    pub(crate) heard: Duration,
    /// How far it is with what it publishes and subscribes to; empty if it does neither.
    pub(crate) progress: String,
    /// Frames that wait in it, and that it lost.
    pub(crate) behind: u64,
    /// Key and value pairs, in one line.
    pub(crate) metadata: String,
    /// Whether it is this very process.
    pub(crate) own: bool,
}

/// How a member is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Alive,
    Degraded,
    Suspect,
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Degraded => "degraded",
            Self::Suspect => "suspect",
        }
    }
}

/// What members are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Name,
    /// The worst first.
    State,
    /// The one that was heard longest ago first.
    Heard,
    /// The slowest first.
    Rtt,
    /// The one with the most waiting and lost first.
    Behind,
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Name => Self::State,
            Self::State => Self::Heard,
            Self::Heard => Self::Rtt,
            Self::Rtt => Self::Behind,
            Self::Behind => Self::Name,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::State => "state",
            Self::Heard => "heard",
            Self::Rtt => "rtt",
            Self::Behind => "behind",
        }
    }

    /// Names and identities decide where the rest is equal, so that rows do not jump.
    pub(crate) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let first = match self {
            Self::Name => Ordering::Equal,
            Self::State => b.state.cmp(&a.state),
            Self::Heard => b.heard.cmp(&a.heard),
            Self::Rtt => b.rtt.cmp(&a.rtt),
            Self::Behind => b.behind.cmp(&a.behind),
        };
        first.then_with(|| natural(&a.name, &b.name)).then_with(|| a.id.cmp(&b.id))
    }
}

/// Names with their numbers by value: `worker-9` before `worker-10`. Peers choose the names: whatever they
/// are, this is an order.
fn natural(a: &str, b: &str) -> Ordering {
    parts(a).cmp(parts(b))
}

/// A name as a run of characters and numbers. A number is its digits without leading zeros: of two, the
/// longer is the greater.
fn parts(name: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let number = rest[..digits].trim_start_matches('0');
            rest = &rest[digits..];
            return Some(Part::Number(number.len(), number));
        }
        let c = rest.chars().next()?;
        rest = &rest[c.len_utf8()..];
        Some(Part::Char(c))
    })
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number(usize, &'a str),
    Char(char),
}

/// A time as a few characters: `87us`, `1.2ms`, `340ms`, `2.1s`, `5m`, `3h`, `9d`.
pub(crate) fn brief(time: Duration) -> String {
    let micros = time.as_micros();
    let seconds = time.as_secs();
    match micros {
        0..1_000 => format!("{micros}us"),
        1_000..10_000 => format!("{:.1}ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{}ms", micros / 1_000),
        1_000_000..10_000_000 => format!("{:.1}s", micros as f64 / 1e6),
        _ if seconds < 100 => format!("{seconds}s"),
        _ if seconds < 100 * 60 => format!("{}m", seconds / 60),
        _ if seconds < 100 * 3600 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fit_their_column() {
        for (micros, text) in [
            (0, "0us"),
            (87, "87us"),
            (1_234, "1.2ms"),
            (9_999, "10.0ms"),
            (340_000, "340ms"),
            (2_100_000, "2.1s"),
            (65_000_000, "65s"),
            (300_000_000, "5m"),
            (3 * 3600 * 1_000_000, "3h"),
            (9 * 86400 * 1_000_000, "9d"),
        ] {
            let text_of = brief(Duration::from_micros(micros));
            if micros < 6_000_000_000 {
                assert_eq!(text_of, text);
            }
            assert!(text_of.len() <= 6, "{text_of}");
        }
    }

    #[test]
    fn names_sort_by_their_numbers() {
        let sorted = [
            "2x",
            "10",
            "v11a",
            "w",
            "w9",
            "w09",
            "w9a",
            "w9b",
            "w10",
            "w0000000000000000000000011",
            "w100000000000000000000000",
            "wa",
            "é",
        ];
        // Every pair, so that it is an order: a peer must not be able to upset a sort.
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                let equal = a.replace("w09", "w9") == b.replace("w09", "w9");
                let expected = if equal { Ordering::Equal } else { i.cmp(&j) };
                assert_eq!(natural(a, b), expected, "{a} {b}");
            }
        }
    }
}
