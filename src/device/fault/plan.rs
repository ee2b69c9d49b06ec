//! Which faults are asked for: `loss=0.02,reorder=0.01,seed=7`.

use std::fmt;
use std::str::FromStr;

use qcast_proto::time::Duration;

use crate::device::impair::Impairment;

/// What a [`FaultDevice`](super::FaultDevice) does. The default is nothing.
///
/// As text it is a list of `key=value`, in any order, each key once:
///
/// | key | value | meaning |
/// | --- | --- | --- |
/// | `loss` | 0 to 1, or a percentage | how often a datagram is lost |
/// | `burst` | 1 or more | how many in a row are lost, on average |
/// | `dup` | as `loss` | how often it comes twice |
/// | `delay` | a time such as `250us` | how long each is held |
/// | `jitter` | a time | up to how much longer |
/// | `reorder` | as `loss` | how often one is held until others have overtaken it |
/// | `reorder-by` | a time | for how long it is |
/// | `mangle` | as `loss` | how often its bytes are damaged (only of what comes in) |
/// | `starve` | a number | never more receives than this are posted to the device |
/// | `side` | `rx`, `tx` or `both` | what comes in (default), what goes out, or both |
/// | `seed` | a number | what the draws come from |
///
/// Endpoints with the same seed and other addresses draw other numbers; the same endpoint draws the
/// same again.
///
/// # Examples
/// ```
/// use qcast::device::fault::FaultPlan;
///
/// let plan: FaultPlan = "loss=2%,delay=250us,seed=7".parse()?;
/// assert_eq!(plan.to_string(), "loss=0.02,delay=250us,seed=7");
/// # Ok::<(), qcast::device::fault::FaultPlanError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FaultPlan {
    /// What happens to each datagram.
    pub path: Impairment,
    /// To which datagrams.
    pub side: Side,
    /// The most receives that are posted to the device at once.
    pub starve: Option<usize>,
    /// What the draws come from, together with the endpoint's address.
    pub seed: u64,
}

/// Which datagrams a [`FaultPlan`] is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Those that come in: each receiver has its own luck.
    #[default]
    Rx,
    /// Those that go out: what one receiver misses all miss.
    Tx,
    /// Both.
    Both,
}

impl FaultPlan {
    /// The environment variable that [`FaultPlan::from_env`] reads.
    pub const VARIABLE: &str = "QCAST_FAULT";

    /// The plan in `QCAST_FAULT`; `None` if it is not set or empty.
    ///
    /// # Errors
    /// The variable's value is not a plan.
    pub fn from_env() -> Result<Option<Self>, FaultPlanError> {
        match std::env::var(Self::VARIABLE) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(text)) => {
                Err(FaultPlanError::NotAPair(text.to_string_lossy().into_owned()))
            }
        }
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.path.is_clear() && self.starve.is_none()
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), FaultPlanError> {
        let path = &mut self.path;
        match key {
            "loss" => path.loss = share(key, value)?,
            "burst" => path.burst = number(key, value, "1 or more", |&n: &f64| n >= 1.0)?,
            "dup" => path.duplicate = share(key, value)?,
            "delay" => path.delay = time(key, value)?,
            "jitter" => path.jitter = time(key, value)?,
            "reorder" => path.reorder = share(key, value)?,
            "reorder-by" => path.reorder_by = time(key, value)?,
            "mangle" => path.mangle = share(key, value)?,
            "starve" => self.starve = Some(number(key, value, "a count", |_| true)?),
            "side" => self.side = value.parse()?,
            "seed" => self.seed = number(key, value, "a whole number", |_| true)?,
            other => unreachable!("{other} is in KEYS and not here"),
        }
        Ok(())
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        let mut seen = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| FaultPlanError::NotAPair(pair.to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            let Some(&key) = KEYS.iter().find(|&&known| known == key) else {
                return Err(FaultPlanError::UnknownKey(key.to_owned()));
            };
            if seen.contains(&key) {
                return Err(FaultPlanError::Twice(key));
            }
            seen.push(key);
            plan.set(key, value)?;
        }
        Ok(plan)
    }
}

/// The shortest text that reads back as this plan.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, plain) = (&self.path, Self::default());
        let mut pairs = Vec::new();
        let mut pair = |key, differs: bool, value: &dyn fmt::Display| {
            if differs {
                pairs.push(format!("{key}={value}"));
            }
        };
        pair("loss", path.loss != plain.path.loss, &path.loss);
        pair("burst", path.burst != plain.path.burst, &path.burst);
        pair("dup", path.duplicate != plain.path.duplicate, &path.duplicate);
        pair("delay", path.delay != plain.path.delay, &Time(path.delay));
        pair("jitter", path.jitter != plain.path.jitter, &Time(path.jitter));
        pair("reorder", path.reorder != plain.path.reorder, &path.reorder);
        pair("reorder-by", path.reorder_by != plain.path.reorder_by, &Time(path.reorder_by));
        pair("mangle", path.mangle != plain.path.mangle, &path.mangle);
        pair("starve", self.starve.is_some(), &self.starve.unwrap_or_default());
        pair("side", self.side != plain.side, &self.side);
        pair("seed", self.seed != plain.seed, &self.seed);
        f.write_str(&pairs.join(","))
    }
}

impl FromStr for Side {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        match text {
            "rx" => Ok(Self::Rx),
            "tx" => Ok(Self::Tx),
            "both" => Ok(Self::Both),
            other => {
                let wants = "rx, tx or both";
                Err(FaultPlanError::Value { key: "side", value: other.to_owned(), wants })
            }
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Both => "both",
        })
    }
}

/// Why a text is not a [`FaultPlan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// A part has no `=`.
    #[error("{0:?} is not a fault; write key=value pairs with commas, such as loss=0.02,seed=7")]
    NotAPair(String),
    /// There is no such key.
    #[error("there is no fault {0:?}; there are {keys}", keys = KEYS.join(", "))]
    UnknownKey(String),
    /// A key is there twice.
    #[error("fault {0} is given twice; give it once")]
    Twice(&'static str),
    /// A value does not fit its key.
    #[error("fault {key} cannot be {value:?}; give {wants}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What would fit.
        wants: &'static str,
    },
}

/// A time as it is read and written: a whole number of the greatest unit that divides it.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let fits = |&&(_, unit): &&(&str, u64)| nanos.is_multiple_of(u128::from(unit));
        let &(name, unit) = UNITS.iter().find(fits).expect("one nanosecond divides all");
        write!(f, "{}{name}", nanos / u128::from(unit))
    }
}

fn share(key: &'static str, text: &str) -> Result<f64, FaultPlanError> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let wants = "a share from 0 to 1, or a percentage such as 2%";
    let bad = || FaultPlanError::Value { key, value: text.to_owned(), wants };
    let share = digits.trim().parse::<f64>().map_err(|_| bad())? / scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(bad()) }
}

fn time(key: &'static str, text: &str) -> Result<Duration, FaultPlanError> {
    let wants = "a time with its unit: ns, us, ms or s, such as 250us";
    let bad = || FaultPlanError::Value { key, value: text.to_owned(), wants };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let unit = text[digits.len()..].replace('µ', "u");
    let &(_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
    let count = digits.trim().parse::<u64>().map_err(|_| bad())?;
    count.checked_mul(nanos).map(Duration::from_nanos).ok_or_else(bad)
}

fn number<N: FromStr>(
    key: &'static str,
    text: &str,
    wants: &'static str,
    fits: impl FnOnce(&N) -> bool,
) -> Result<N, FaultPlanError> {
    let parsed = text.parse().ok().filter(fits);
    parsed.ok_or_else(|| FaultPlanError::Value { key, value: text.to_owned(), wants })
}

const KEYS: [&str; 11] = [
    "loss",
    "burst",
    "dup",
    "delay",
    "jitter",
    "reorder",
    "reorder-by",
    "mangle",
    "starve",
    "side",
    "seed",
];

/// Units of time in nanoseconds, the greatest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_round() {
        for text in [
            "",
            "loss=0.02,reorder=0.01,seed=7",
            "loss=0.1,burst=4.5,dup=0.01,delay=1ms,jitter=50us,reorder=0.25,reorder-by=2s,\
             mangle=0.001,starve=16,side=both,seed=18446744073709551615",
            "delay=1500ns,side=tx",
            "starve=0",
        ] {
            let plan: FaultPlan = text.parse().unwrap();
            assert_eq!(plan.to_string(), text);
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }

    #[test]
    fn percentages_spaces_and_micro_signs_are_understood() {
        let plan: FaultPlan = " loss = 2% , delay = 250µs ,".parse().unwrap();
        assert_eq!(plan.to_string(), "loss=0.02,delay=250us");
        assert!(!plan.is_empty());
        assert!("seed=3,side=tx".parse::<FaultPlan>().unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_told_with_what_would_be_right() {
        for (text, says) in [
            ("loss", "key=value"),
            ("lost=0.1", "there are loss, burst"),
            ("loss=0.1,loss=0.2", "twice"),
            ("loss=1.5", "from 0 to 1"),
            ("loss=-0.1", "from 0 to 1"),
            ("loss=NaN", "from 0 to 1"),
            ("loss=200%", "from 0 to 1"),
            ("burst=0.5", "1 or more"),
            ("burst=NaN", "1 or more"),
            ("delay=5", "250us"),
            ("delay=us", "250us"),
            ("delay=5h", "250us"),
            ("delay=99999999999999s", "250us"),
            ("side=up", "rx, tx or both"),
            ("starve=-1", "a count"),
            ("seed=seven", "whole number"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
