//! What is printed for a datagram: a line in tcpdump's manner, or a JSON object.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A datagram to a RoCEv2 port.
///
/// All keys but the last three are always in the JSON object: fields that the datagram does not
/// have, or that were not captured, are null.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// Which packet of the capture it was in, from 1. One packet can hold several datagrams.
    pub(super) packet: u64,
    /// When it was captured: in JSON the seconds since 1970.
    #[serde(serialize_with = "seconds")]
    pub(super) time: Option<Duration>,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    /// The opcode as libibverbs names it.
    pub(super) opcode: Option<String>,
    pub(super) dest_qpn: Option<u32>,
    pub(super) psn: Option<u32>,
    pub(super) qkey: Option<u32>,
    pub(super) src_qpn: Option<u32>,
    /// How much payload it had on the wire, without padding.
    pub(super) payload_bytes: Option<usize>,
    pub(super) icrc: IcrcVerdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) immediate: Option<u32>,
    /// Why it is not a RoCEv2 datagram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The fields of the qcast frame in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) qcast: Option<serde_json::Value>,
}

/// What is known about a datagram's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum IcrcVerdict {
    Ok,
    Bad,
    /// Not all that it covers was captured.
    Unchecked,
}

impl fmt::Display for IcrcVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Bad => "bad",
            Self::Unchecked => "unchecked",
        })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} > {}: ", Clock(self.time), self.src, self.dst)?;
        if let Some(error) = &self.error {
            return write!(f, "malformed: {error}, icrc {}", self.icrc);
        }
        f.write_str(self.opcode.as_deref().unwrap_or("RoCEv2"))?;
        match (self.src_qpn, self.dest_qpn) {
            (Some(src), Some(dest)) => write!(f, ", qpn {src:#08x} > {dest:#08x}")?,
            (None, Some(dest)) => write!(f, ", qpn {dest:#08x}")?,
            _ => {}
        }
        if let Some(psn) = self.psn {
            write!(f, ", psn {psn}")?;
        }
        if let Some(qkey) = self.qkey {
            write!(f, ", qkey {qkey:#010x}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, ", imm {immediate:#010x}")?;
        }
        if let Some(len) = self.payload_bytes {
            write!(f, ", length {len}")?;
        }
        write!(f, ", icrc {}", self.icrc)?;
        match &self.qcast {
            Some(qcast) => write!(f, ", qcast {qcast}"),
            None => Ok(()),
        }
    }
}

/// The time of day in UTC, to the microsecond, or to the nanosecond if the capture is that fine.
struct Clock(Option<Duration>);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(time) = self.0 else { return f.write_str("--:--:--.------") };
        let second = time.as_secs() % (24 * 60 * 60);
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.")?;
        match time.subsec_nanos() {
            nanos if nanos.is_multiple_of(1000) => write!(f, "{:06}", nanos / 1000),
            nanos => write!(f, "{nanos:09}"),
        }
    }
}

fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}
