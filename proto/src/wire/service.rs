//! Services as they are announced and asked for on the control group.

use alloc::string::String;

use bincode::{Decode, Encode};

use super::control::{MAX_BODY, MAX_NAME, encode, is_sound_name};
use super::list::List;

/// The longest service type in bytes.
pub const MAX_TYPE: usize = 32;

/// The longest instance name of a service in bytes.
pub const MAX_INSTANCE: usize = 64;

/// The most metadata of a service in bytes: keys and values, and two more for each pair. With it the
/// largest record still fits a control body.
pub const MAX_METADATA: usize = 220;

/// The most pairs of metadata.
pub const MAX_PAIRS: usize = MAX_METADATA / 3;

/// The most records in one frame.
pub const MAX_RECORDS: usize = 48;

/// The most records that a query says are known.
pub const MAX_KNOWN: usize = 60;

/// Records of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Services {
    /// The node's identity.
    pub node: u128,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// Its clock in microseconds: of two records of a service, the one with the greater is newer.
    pub at: u64,
    /// Its name.
    pub name: String,
    /// The records.
    pub records: List<Record, MAX_RECORDS>,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Record {
    /// Its type.
    pub kind: String,
    /// Its instance name: one of each in a type.
    pub name: String,
    /// The IP address that it is reached at, as a GID.
    pub address: [u8; 16],
    /// The port there.
    pub port: u16,
    /// For how long it may be believed in, in milliseconds.
    pub ttl_ms: u32,
    /// Whether it has ended.
    pub withdrawn: bool,
    /// What else is to be known, as keys and values.
    pub metadata: List<(String, String), MAX_PAIRS>,
}

/// A question for services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ServiceQuery {
    /// Who asks.
    pub node: u128,
    /// Its life.
    pub incarnation: u64,
    /// Of this type; empty for all.
    pub kind: String,
    /// With this instance name; empty for all.
    pub name: String,
    /// Whether the asker is about to take the name itself.
    pub probe: bool,
    /// [Marks](Record::mark) of records that it knows: they need not be told again.
    pub known: List<u32, MAX_KNOWN>,
}

impl Services {
    /// Whether the texts in it may be kept and shown.
    pub fn is_sound(&self) -> bool {
        is_sound_name(&self.name) && self.records.iter().all(Record::is_sound)
    }
}

impl Record {
    /// Whether its texts may be kept and shown, and are within their bounds.
    pub fn is_sound(&self) -> bool {
        let texts = self.metadata.iter().flat_map(|(k, v)| [k, v]);
        let sum: usize = texts.clone().map(|t| t.len() + 1).sum();
        is_name(&self.kind, MAX_TYPE)
            && is_name(&self.name, MAX_INSTANCE)
            && sum <= MAX_METADATA
            && !texts.flat_map(|t| t.chars()).any(char::is_control)
            && self.metadata.iter().all(|(key, _)| !key.is_empty())
    }

    /// A check value of all of it and its owner: equal ones are the same record.
    pub fn mark(&self, node: u128, incarnation: u64) -> u32 {
        let mut out = [0; MAX_BODY];
        let len = encode(self, &mut out).unwrap_or(0);
        let mut hash = crc32fast::Hasher::new();
        hash.update(&node.to_be_bytes());
        hash.update(&incarnation.to_be_bytes());
        hash.update(&out[..len]);
        hash.finalize()
    }

    /// Bytes of it in a frame, at most.
    pub(crate) fn room(&self) -> usize {
        let metadata: usize = self.metadata.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
        2 + self.kind.len() + self.name.len() + 16 + 3 + 5 + 1 + 1 + metadata
    }
}

impl ServiceQuery {
    /// Whether the texts in it are within their bounds.
    pub fn is_sound(&self) -> bool {
        let fits = |text: &str, max| text.is_empty() || is_name(text, max);
        fits(&self.kind, MAX_TYPE) && fits(&self.name, MAX_INSTANCE)
    }

    /// Whether it asks for a service of this type and name.
    pub fn asks_for(&self, kind: &str, name: &str) -> bool {
        (self.kind.is_empty() || self.kind == kind) && (self.name.is_empty() || self.name == name)
    }
}

/// Whether a text can be a type or an instance name.
pub(crate) fn is_name(text: &str, max: usize) -> bool {
    !text.is_empty() && text.len() <= max && !text.chars().any(char::is_control)
}

/// Bytes of a frame of records without records, at most.
pub(crate) const SERVICES_ROOM: usize = 17 + 9 + 9 + 1 + MAX_NAME + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::decode;
    use crate::wire::frame::FrameError;
    use crate::wire::notice::{Checks, GroupEntry, GroupNotice, NOTICE_ROOM};
    use std::vec::Vec;

    fn largest() -> Record {
        Record {
            kind: "k".repeat(MAX_TYPE),
            name: "n".repeat(MAX_INSTANCE),
            address: [0xff; 16],
            port: u16::MAX,
            ttl_ms: u32::MAX,
            withdrawn: true,
            metadata: [("a".repeat(100), "b".repeat(118))].into_iter().collect(),
        }
    }

    /// R-CONTROL-2, R-CONTROL-5, R-SERVICE-1.
    #[test]
    fn the_largest_bodies_fit() {
        let mut out = [0; MAX_BODY];
        let mut services = Services {
            node: u128::MAX,
            incarnation: u64::MAX,
            at: u64::MAX,
            name: "n".repeat(MAX_NAME),
            ..Services::default()
        };
        let empty = encode(&services, &mut out).unwrap();
        assert_eq!(empty, SERVICES_ROOM);
        let record = largest();
        assert!(record.is_sound());
        let room = record.room();
        services.records.push(record).unwrap();
        assert_eq!(encode(&services, &mut out), Ok(empty + room));
        // As many pairs as there may be take no more.
        let mut record = largest();
        record.metadata = (0..MAX_PAIRS).map(|_| ("k".into(), "".into())).collect();
        assert!(record.is_sound() && record.room() <= room);

        let query = ServiceQuery {
            node: u128::MAX,
            incarnation: u64::MAX,
            kind: "k".repeat(MAX_TYPE),
            name: "n".repeat(MAX_INSTANCE),
            probe: true,
            known: (0..MAX_KNOWN as u32).map(|n| u32::MAX - n).collect(),
        };
        assert!(encode(&query, &mut out).is_ok());

        let mut notice = GroupNotice {
            node: u128::MAX,
            incarnation: u64::MAX,
            at: u64::MAX,
            name: "n".repeat(MAX_NAME),
            period_ms: u32::MAX,
            asks: true,
            ..GroupNotice::default()
        };
        assert_eq!(encode(&notice, &mut out), Ok(NOTICE_ROOM));
        let entry = GroupEntry {
            name: "g".repeat(MAX_NAME),
            checks: Checks { key: 255, partition: 255, address: 255, mtu: u32::MAX },
            members: u32::MAX,
            left: true,
        };
        let room = entry.room();
        notice.groups.push(entry).unwrap();
        assert_eq!(encode(&notice, &mut out), Ok(NOTICE_ROOM + room));
        let len = NOTICE_ROOM + room;
        assert_eq!(decode::<GroupNotice>(&out[..len]), Ok(notice));
    }

    /// R-SERVICE-1, R-CONTROLGROUP-5.
    #[test]
    fn texts_beyond_their_bounds_are_not_sound() {
        let sound = Record { kind: "k".into(), name: "n".into(), ..Record::default() };
        assert!(sound.is_sound());
        let with = |change: &dyn Fn(&mut Record)| {
            let mut record = sound.clone();
            change(&mut record);
            record.is_sound()
        };
        assert!(!with(&|r| r.kind = "".into()));
        assert!(!with(&|r| r.name = "a\u{1b}[2J".into()));
        assert!(!with(&|r| r.name = "n".repeat(MAX_INSTANCE + 1)));
        assert!(!with(&|r| r.kind = "n".repeat(MAX_TYPE + 1)));
        assert!(!with(&|r| r.metadata.push(("".into(), "v".into())).unwrap()));
        assert!(!with(&|r| r.metadata.push(("k".into(), "\n".into())).unwrap()));
        assert!(!with(&|r| r.metadata.push(("k".into(), "v".repeat(MAX_METADATA))).unwrap()));
        let mut out = [0; MAX_BODY];
        let long = Record { name: "x".repeat(10_000), ..sound.clone() };
        assert_eq!(encode(&long, &mut out), Err(FrameError::Body));
        let notice = |name: &str| GroupNotice {
            groups: [GroupEntry { name: name.into(), ..GroupEntry::default() }]
                .into_iter()
                .collect(),
            ..GroupNotice::default()
        };
        assert!(notice("g").is_sound());
        assert!(!notice("").is_sound() && !notice("a\nb").is_sound());
    }

    #[test]
    fn marks_tell_records_and_owners_apart() {
        let record = largest();
        let mut other = record.clone();
        other.port = 1;
        let marks: Vec<u32> =
            [record.mark(1, 1), record.mark(2, 1), record.mark(1, 2), other.mark(1, 1)].into();
        for (i, mark) in marks.iter().enumerate() {
            assert!(!marks[..i].contains(mark));
        }
        assert_eq!(record.mark(1, 1), largest().mark(1, 1));
    }
}
