//! The base transport header: twelve bytes at the front of every RoCEv2 datagram.
//!
//! ```text
//! byte 0      opcode
//! byte 1      solicited event | migrated | pad count (2 bits) | transport version (4 bits)
//! bytes 2-3   partition key
//! byte 4      FECN | BECN | six reserved bits    (not covered by the ICRC)
//! bytes 5-7   destination queue pair
//! byte 8      acknowledge request | seven reserved bits
//! bytes 9-11  packet sequence number
//! ```
//!
//! Reserved bits are emitted as zero and not looked at when read.

use core::fmt;

use crate::addr::{PKey, Psn, Qpn};

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the datagram is.
    pub opcode: Opcode,
    /// Whether the receiver's completion is to raise a solicited event.
    pub solicited: bool,
    /// The path migration state. Adapters set it; Soft-RoCE leaves it clear; nobody looks at it.
    pub migrated: bool,
    /// How many bytes follow the payload to make it a multiple of four: 0 to 3. More is cut.
    pub pad: u8,
    /// The transport header version: 0. It has four bits; more is cut.
    pub version: u8,
    /// The partition key.
    pub pkey: PKey,
    /// Forward congestion notification. A switch may set it, so the ICRC does not cover it.
    pub fecn: bool,
    /// Backward congestion notification; as `fecn`.
    pub becn: bool,
    /// The queue pair that this is for.
    pub dest_qpn: Qpn,
    /// Whether an acknowledgement is asked for: never in UD.
    pub ack_req: bool,
    /// The packet sequence number of the sending queue pair.
    pub psn: Psn,
}

impl Bth {
    /// How many bytes it takes.
    pub const LEN: usize = 12;

    /// Reads the header. Every value of the twelve bytes is one.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [opcode, flags, k0, k1, cn, q0, q1, q2, ack, p0, p1, p2] = *bytes;
        Self {
            opcode: Opcode::from_byte(opcode),
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pad: (flags >> PAD_SHIFT) & 0b11,
            version: flags & VERSION,
            pkey: PKey(u16::from_be_bytes([k0, k1])),
            fecn: cn & FECN != 0,
            becn: cn & BECN != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_req: ack & ACK_REQ != 0,
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        }
    }

    /// Writes the header over all twelve bytes.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [k0, k1] = self.pkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qpn.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        let mut flags = ((self.pad & 0b11) << PAD_SHIFT) | (self.version & VERSION);
        if self.solicited {
            flags |= SOLICITED;
        }
        if self.migrated {
            flags |= MIGRATED;
        }
        let fecn = if self.fecn { FECN } else { 0 };
        let becn = if self.becn { BECN } else { 0 };
        let ack = if self.ack_req { ACK_REQ } else { 0 };
        *out = [self.opcode.to_byte(), flags, k0, k1, fecn | becn, q0, q1, q2, ack, p0, p1, p2];
    }
}

/// The first byte of a datagram: the service in its upper three bits, the operation in the rest.
///
/// It prints as libibverbs names it: `UD_SEND_ONLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A whole message in one datagram: the only kind that qcast sends.
    UdSendOnly,
    /// The same with four bytes of immediate data between the DETH and the payload.
    UdSendOnlyImm,
    /// Anything else: other services, or a number without a meaning.
    Other(u8),
}

impl Opcode {
    /// The opcode with this number.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0x64 => Self::UdSendOnly,
            0x65 => Self::UdSendOnlyImm,
            other => Self::Other(other),
        }
    }

    /// The number.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::UdSendOnly => 0x64,
            Self::UdSendOnlyImm => 0x65,
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let byte = self.to_byte();
        if byte == CNP {
            return f.write_str("CNP");
        }
        let service = match byte >> 5 {
            0 => "RC",
            1 => "UC",
            2 => "RD",
            3 => "UD",
            5 => "XRC",
            _ => return write!(f, "OPCODE_{byte:#04x}"),
        };
        match OPERATIONS.get(usize::from(byte & 0x1f)) {
            Some(operation) => write!(f, "{service}_{operation}"),
            None => write!(f, "{service}_OPCODE_{byte:#04x}"),
        }
    }
}

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;
/// A congestion notification packet: a whole opcode of its own.
const CNP: u8 = 0x81;

/// The operations in the order of their numbers, under the names that libibverbs uses.
const OPERATIONS: [&str; 24] = [
    "SEND_FIRST",
    "SEND_MIDDLE",
    "SEND_LAST",
    "SEND_LAST_WITH_IMMEDIATE",
    "SEND_ONLY",
    "SEND_ONLY_WITH_IMMEDIATE",
    "RDMA_WRITE_FIRST",
    "RDMA_WRITE_MIDDLE",
    "RDMA_WRITE_LAST",
    "RDMA_WRITE_LAST_WITH_IMMEDIATE",
    "RDMA_WRITE_ONLY",
    "RDMA_WRITE_ONLY_WITH_IMMEDIATE",
    "RDMA_READ_REQUEST",
    "RDMA_READ_RESPONSE_FIRST",
    "RDMA_READ_RESPONSE_MIDDLE",
    "RDMA_READ_RESPONSE_LAST",
    "RDMA_READ_RESPONSE_ONLY",
    "ACKNOWLEDGE",
    "ATOMIC_ACKNOWLEDGE",
    "COMPARE_SWAP",
    "FETCH_ADD",
    "RESYNC",
    "SEND_LAST_WITH_INVALIDATE",
    "SEND_ONLY_WITH_INVALIDATE",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// The first UD datagram of the Soft-RoCE capture: three bytes of padding, no migration bit.
    const SOFT_ROCE: [u8; 12] = [0x65, 0x30, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0x02];

    fn soft_roce() -> Bth {
        Bth {
            opcode: Opcode::UdSendOnlyImm,
            solicited: false,
            migrated: false,
            pad: 3,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: Qpn::MULTICAST,
            ack_req: false,
            psn: Psn::new(2),
        }
    }

    /// Every field differs from its neighbours and from zero.
    const BUSY: [u8; 12] = [0x64, 0xea, 0x12, 0x34, 0xc0, 0x56, 0x78, 0x9a, 0x80, 0xbc, 0xde, 0xf0];

    fn busy() -> Bth {
        Bth {
            opcode: Opcode::UdSendOnly,
            solicited: true,
            migrated: true,
            pad: 2,
            version: 10,
            pkey: PKey(0x1234),
            fecn: true,
            becn: true,
            dest_qpn: Qpn::new(0x0056_789a),
            ack_req: true,
            psn: Psn::new(0x00bc_def0),
        }
    }

    #[test]
    fn golden_bytes_both_ways() {
        for (bytes, bth) in [(SOFT_ROCE, soft_roce()), (BUSY, busy())] {
            assert_eq!(Bth::parse(&bytes), bth);
            let mut out = [0xa5; 12];
            bth.emit(&mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn each_flag_is_its_own_bit() {
        let base = Bth::parse(&[0; 12]);
        let flag = |byte: usize, bit: u8| {
            let mut bytes = [0; 12];
            bytes[byte] = bit;
            Bth::parse(&bytes)
        };
        assert_eq!(flag(1, 0x80), Bth { solicited: true, ..base });
        assert_eq!(flag(1, 0x40), Bth { migrated: true, ..base });
        assert_eq!(flag(1, 0x30), Bth { pad: 3, ..base });
        assert_eq!(flag(1, 0x0f), Bth { version: 15, ..base });
        assert_eq!(flag(4, 0x80), Bth { fecn: true, ..base });
        assert_eq!(flag(4, 0x40), Bth { becn: true, ..base });
        assert_eq!(flag(8, 0x80), Bth { ack_req: true, ..base });
        assert_eq!(flag(4, 0x3f), base, "reserved bits are not looked at");
        assert_eq!(flag(8, 0x7f), base, "reserved bits are not looked at");
    }

    #[test]
    fn values_too_wide_for_their_field_do_not_spill_into_the_next() {
        let mut out = [0xa5; 12];
        Bth { pad: 0xff, version: 0xff, ..Bth::parse(&[0; 12]) }.emit(&mut out);
        assert_eq!(out, [0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_opcode_survives_and_has_a_name() {
        for byte in 0..=u8::MAX {
            assert_eq!(Opcode::from_byte(byte).to_byte(), byte);
            assert!(!Opcode::from_byte(byte).to_string().is_empty());
        }
        assert_eq!(Opcode::UdSendOnly.to_string(), "UD_SEND_ONLY");
        assert_eq!(Opcode::UdSendOnlyImm.to_string(), "UD_SEND_ONLY_WITH_IMMEDIATE");
        assert_eq!(Opcode::Other(0x11).to_string(), "RC_ACKNOWLEDGE");
        assert_eq!(Opcode::Other(0x2a).to_string(), "UC_RDMA_WRITE_ONLY");
        assert_eq!(Opcode::Other(0x81).to_string(), "CNP");
        assert_eq!(Opcode::Other(0x7f).to_string(), "UD_OPCODE_0x7f");
        assert_eq!(Opcode::Other(0xff).to_string(), "OPCODE_0xff");
    }
}
