//! The journal: every modify of a queue pair that this node asked for, refused ones too.
//!
//! The last [`KEPT`] entries are always in memory; with a file each is also written there, as one JSON object a
//! line. Keys are never shown whole.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};

use qcast_proto::addr::Qpn;
use qcast_proto::qp::{AttrMask, QpAttrs, QpState};
use qcast_proto::time::{Duration, Instant};

use crate::device::{Device, DeviceError, QpId};

/// Entries kept in memory.
pub const KEPT: usize = 256;

/// One modify.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalEntry {
    /// When it was asked for, on the node's clock.
    pub at: Instant,
    /// The same in microseconds since 1970; 0 in virtual time.
    pub unix_micros: u64,
    /// The device.
    pub device: String,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The group that the queue pair is for.
    pub group: String,
    /// The state before it, as the caller knew it.
    pub from: QpState,
    /// The state asked for.
    pub to: QpState,
    /// The attributes that it carried.
    pub mask: AttrMask,
    /// Their values.
    pub attrs: String,
    /// Why it was refused, if it was.
    pub error: Option<String>,
    /// How long it took; 0 in virtual time.
    pub took: Duration,
}

/// `verbs:rxe0/1 0x000012 ticks INIT->RTR STATE=RTR: ok in 41 us`.
impl fmt::Display for JournalEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, qpn, group, from, to, attrs, .. } = self;
        write!(f, "{device} {qpn} {group} {from}->{to} {attrs}: ")?;
        match &self.error {
            None => write!(f, "ok in {} us", self.took.as_micros()),
            Some(error) => write!(f, "refused in {} us: {error}", self.took.as_micros()),
        }
    }
}

impl JournalEntry {
    /// The entry as a JSON object, on one line.
    pub fn to_json(&self) -> String {
        let mask: Vec<&str> = self.mask.iter().filter_map(AttrMask::name).collect();
        serde_json::json!({
            "unix_us": self.unix_micros,
            "at_us": self.at.as_micros(),
            "device": self.device,
            "qpn": self.qpn.get(),
            "group": self.group,
            "from": self.from.name(),
            "to": self.to.name(),
            "mask": mask,
            "attrs": self.attrs,
            "result": if self.error.is_none() { "ok" } else { "refused" },
            "error": self.error,
            "took_us": u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
        })
        .to_string()
    }
}

/// The journal of one engine.
#[derive(Default)]
pub(crate) struct Journal {
    entries: VecDeque<JournalEntry>,
    file: Option<File>,
    clock: Option<Clock>,
    /// The time of the turn, where there is no clock.
    now: Instant,
}

/// A clock that can be read at any time, and microseconds since 1970 at its zero.
struct Clock {
    read: Box<dyn Fn() -> Instant + Send>,
    origin_micros: u64,
}

impl Journal {
    /// Writes entries to a file, too.
    pub(crate) fn write_to(&mut self, file: File) {
        self.file = Some(file);
    }

    /// Measures by this clock, whose zero was `origin_micros` after 1970.
    pub(crate) fn measure_by(
        &mut self,
        read: impl Fn() -> Instant + Send + 'static,
        origin_micros: u64,
    ) {
        self.clock = Some(Clock { read: Box::new(read), origin_micros });
    }

    /// The last entries, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter()
    }

    pub(super) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Changes a queue pair, and notes it.
    pub(super) fn modify(
        &mut self,
        device: &mut dyn Device,
        qp: QpId,
        group: &str,
        from: QpState,
        attrs: &QpAttrs,
    ) -> Result<(), DeviceError> {
        let at = self.time();
        let result = device.modify_qp(qp, attrs);
        let entry = JournalEntry {
            at,
            unix_micros: self.clock.as_ref().map_or(0, |c| c.origin_micros + at.as_micros()),
            device: device.caps().name.clone(),
            qpn: device.qpn(qp),
            group: group.into(),
            from,
            to: attrs.state().unwrap_or(from),
            mask: attrs.mask(),
            attrs: attrs.to_string(),
            error: result.as_ref().err().map(ToString::to_string),
            took: self.time().saturating_since(at),
        };
        match &entry.error {
            None => tracing::debug!(target: "qcast::journal", "{entry}"),
            Some(_) => tracing::warn!(target: "qcast::journal", "{entry}"),
        }
        self.add(entry);
        result
    }

    fn add(&mut self, entry: JournalEntry) {
        if let Some(file) = &mut self.file
            && let Err(error) = write_line(file, &entry)
        {
            tracing::error!(%error, "the journal's file cannot be written to; it ends here");
            self.file = None;
        }
        if self.entries.len() >= KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    fn time(&self) -> Instant {
        self.clock.as_ref().map_or(self.now, |clock| (clock.read)())
    }
}

/// One write for each line, so that lines of several processes do not mix.
fn write_line(file: &mut File, entry: &JournalEntry) -> io::Result<()> {
    let mut line = entry.to_json();
    line.push('\n');
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{Fabric, FabricConfig, PortConfig};
    use qcast_proto::addr::Psn;
    use qcast_proto::qp::{RawQKey, UdSetup};

    #[test]
    fn refusals_are_noted_and_keys_are_not() {
        let fabric = Fabric::new(FabricConfig::default(), 1);
        let mut device = fabric.open(PortConfig::default());
        let qp = device.create_qp().unwrap();
        let setup =
            UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(0x0bad_cafe), sq_psn: Psn::new(0) };
        let mut journal = Journal::default();
        journal.modify(&mut device, qp, "ticks", QpState::Reset, &setup.init()).unwrap();
        journal.modify(&mut device, qp, "ticks", QpState::Init, &setup.rts()).unwrap_err();
        let lines: Vec<serde_json::Value> =
            journal.entries().map(|e| serde_json::from_str(&e.to_json()).unwrap()).collect();
        assert_eq!(lines[0]["mask"], serde_json::json!(["STATE", "PKEY_INDEX", "PORT", "QKEY"]));
        assert_eq!((&lines[0]["from"], &lines[0]["to"]), (&"RESET".into(), &"INIT".into()));
        assert_eq!((&lines[0]["result"], &lines[0]["error"]), (&"ok".into(), &().into()));
        assert_eq!(lines[1]["result"], "refused");
        assert!(lines[1]["error"].as_str().unwrap().contains("it skips RTR"));
        assert!(!format!("{lines:?}").contains("cafe"));
    }

    #[test]
    fn the_ring_is_bounded() {
        let fabric = Fabric::new(FabricConfig::default(), 1);
        let mut device = fabric.open(PortConfig::default());
        let qp = device.create_qp().unwrap();
        let mut journal = Journal::default();
        for _ in 0..KEPT + 10 {
            let attrs = QpAttrs::to(QpState::Reset);
            journal.modify(&mut device, qp, "g", QpState::Reset, &attrs).unwrap();
        }
        assert_eq!(journal.entries().count(), KEPT);
    }
}
