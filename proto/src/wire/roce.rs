//! RoCEv2 UD datagrams, as they are in the payload of a UDP datagram.
//!
//! Received bytes go through [`RoceDatagram::new_checked`] once; what it accepts can be read without
//! further checks. Its ICRC is checked apart, by [`verify`], since that needs the addresses.
//!
//! Sending is one call of [`seal`] on a buffer that already holds the payload: nothing is copied or
//! allocated, and the payload is read once, by the CRC.

use super::bth::{Bth, Opcode};
use super::deth::Deth;
use super::icrc::{Icrc, IcrcCheck};
use crate::addr::{PKey, Psn, Qpn};

/// The length of what precedes the payload of an [`Opcode::UdSendOnly`] datagram.
pub const HEADERS_LEN: usize = Bth::LEN + Deth::LEN;

/// The length of the ICRC.
pub const ICRC_LEN: usize = 4;

/// The most payload that a UD datagram can have: the largest path MTU there is.
pub const MAX_PAYLOAD_LEN: usize = 4096;

/// The longest datagram: headers, immediate data, payload and ICRC.
pub const MAX_DATAGRAM_LEN: usize = HEADERS_LEN + IMMEDIATE_LEN + MAX_PAYLOAD_LEN + ICRC_LEN;

const IMMEDIATE_LEN: usize = 4;

/// A received RoCEv2 UD datagram whose form is right.
///
/// The ICRC is *not* checked yet: see [`verify`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RoceDatagram<'a> {
    bth: Bth,
    deth: Deth,
    immediate: Option<u32>,
    payload: &'a [u8],
    icrc: [u8; ICRC_LEN],
}

impl<'a> RoceDatagram<'a> {
    /// Checks the form of what a UDP datagram carried.
    ///
    /// # Errors
    /// [`RoceError`] says what is wrong with it. It is not for a UD queue pair of ours, or it was cut or
    /// changed on its way; either way it is to be dropped and counted.
    #[inline]
    pub fn new_checked(datagram: &'a [u8]) -> Result<Self, RoceError> {
        let len = datagram.len();
        if !len.is_multiple_of(4) {
            return Err(RoceError::Unaligned { len });
        }
        if len > MAX_DATAGRAM_LEN {
            return Err(RoceError::TooLong { len });
        }
        let short = RoceError::TooShort { len };
        let (bth, rest) = datagram.split_first_chunk().ok_or(short)?;
        let (body, &icrc) = rest.split_last_chunk().ok_or(short)?;
        let bth = Bth::parse(bth);
        if bth.version != 0 {
            return Err(RoceError::Version(bth.version));
        }
        let with_immediate = match bth.opcode {
            Opcode::UdSendOnly => false,
            Opcode::UdSendOnlyImm => true,
            other @ Opcode::Other(_) => return Err(RoceError::Opcode(other)),
        };
        let (deth, body) = body.split_first_chunk().ok_or(short)?;
        let (immediate, body) = if with_immediate {
            let (immediate, body) = body.split_first_chunk().ok_or(short)?;
            (Some(u32::from_be_bytes(*immediate)), body)
        } else {
            (None, body)
        };
        let payload_len = body
            .len()
            .checked_sub(usize::from(bth.pad))
            .ok_or(RoceError::Padding { pad: bth.pad, len: body.len() })?;
        if payload_len > MAX_PAYLOAD_LEN {
            return Err(RoceError::TooLong { len });
        }
        let (payload, _) = body.split_at(payload_len);
        Ok(Self { bth, deth: Deth::parse(deth), immediate, payload, icrc })
    }

    /// The whole base transport header.
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// [`Opcode::UdSendOnly`] or [`Opcode::UdSendOnlyImm`].
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// Whether the receiver's completion is to raise a solicited event.
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.bth.solicited
    }

    /// The partition key.
    #[must_use]
    pub const fn pkey(&self) -> PKey {
        self.bth.pkey
    }

    /// The queue pair that this is for: [`Qpn::MULTICAST`] in a multicast.
    #[must_use]
    pub const fn dest_qpn(&self) -> Qpn {
        self.bth.dest_qpn
    }

    /// The packet sequence number of the sending queue pair.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.bth.psn
    }

    /// The queue key as it is on the wire: any 32 bits.
    #[must_use]
    pub const fn qkey(&self) -> u32 {
        self.deth.qkey
    }

    /// The queue pair that sent this.
    #[must_use]
    pub const fn src_qpn(&self) -> Qpn {
        self.deth.src_qpn
    }

    /// The immediate data, if the opcode says that there are some.
    #[must_use]
    pub const fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// The payload, without its padding.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The ICRC as it is on the wire.
    #[must_use]
    pub const fn icrc(&self) -> [u8; ICRC_LEN] {
        self.icrc
    }
}

impl core::fmt::Debug for RoceDatagram<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RoceDatagram")
            .field("bth", &self.bth)
            .field("deth", &self.deth)
            .field("immediate", &self.immediate)
            .field("payload_len", &self.payload.len())
            .finish()
    }
}

/// Why the payload of a UDP datagram is not a RoCEv2 UD datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoceError {
    /// It ends before its headers and ICRC do.
    #[error("a datagram of {len} bytes is too short for its headers and ICRC")]
    TooShort {
        /// Its length.
        len: usize,
    },
    /// It is longer than the largest path MTU allows.
    #[error("a datagram of {len} bytes is longer than a path MTU of {MAX_PAYLOAD_LEN} allows")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// Its length is not a multiple of four, which padding makes of every length.
    #[error("a datagram of {len} bytes is not padded to a multiple of four")]
    Unaligned {
        /// Its length.
        len: usize,
    },
    /// The pad count is greater than what there is to be padding.
    #[error("a pad count of {pad} with {len} bytes of padded payload")]
    Padding {
        /// The pad count.
        pad: u8,
        /// The length of payload and padding.
        len: usize,
    },
    /// The transport header has another version than 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// It is not a UD send.
    #[error("{0} is not a UD send")]
    Opcode(Opcode),
}

/// What the sender of a UD datagram chooses. The rest of the headers follows from it and the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UdHeader {
    /// Whether the receiver's completion is to raise a solicited event.
    pub solicited: bool,
    /// Whether the first four bytes of the payload are immediate data in network order, and so reach
    /// the receiver in its completion and not in its buffer.
    pub immediate: bool,
    /// The partition key.
    pub pkey: PKey,
    /// The queue pair to reach: [`Qpn::MULTICAST`] for a group.
    pub dest_qpn: Qpn,
    /// The sending queue pair's next packet sequence number.
    pub psn: Psn,
    /// The queue key.
    pub qkey: u32,
    /// The sending queue pair.
    pub src_qpn: Qpn,
}

/// Only the last byte of the key is shown, as for [`crate::addr::QKey`].
impl core::fmt::Debug for UdHeader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UdHeader")
            .field("solicited", &self.solicited)
            .field("immediate", &self.immediate)
            .field("pkey", &self.pkey)
            .field("dest_qpn", &self.dest_qpn)
            .field("psn", &self.psn)
            .field("deth", &Deth { qkey: self.qkey, src_qpn: self.src_qpn })
            .finish()
    }
}

/// The padding that a payload of this length needs: 0 to 3 bytes.
#[must_use]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() % 4
}

/// The length of the datagram that carries a payload of this length (immediate data included).
#[must_use]
pub const fn datagram_len(payload_len: usize) -> usize {
    HEADERS_LEN + payload_len + pad_len(payload_len) + ICRC_LEN
}

/// Writes BTH and DETH over all twenty bytes, for a payload that is followed by `pad` bytes of padding
/// ([`pad_len`]).
#[inline]
pub fn emit_headers(header: &UdHeader, pad: usize, out: &mut [u8; HEADERS_LEN]) {
    let [bth @ .., _, _, _, _, _, _, _, _] = out;
    Bth {
        opcode: if header.immediate { Opcode::UdSendOnlyImm } else { Opcode::UdSendOnly },
        solicited: header.solicited,
        migrated: true,
        pad: (pad % 4) as u8,
        version: 0,
        pkey: header.pkey,
        fecn: false,
        becn: false,
        dest_qpn: header.dest_qpn,
        ack_req: false,
        psn: header.psn,
    }
    .emit(bth);
    let [_, _, _, _, _, _, _, _, _, _, _, _, deth @ ..] = out;
    Deth { qkey: header.qkey, src_qpn: header.src_qpn }.emit(deth);
}

/// Makes a datagram of `buffer`, which holds `payload_len` bytes of payload from byte [`HEADERS_LEN`] on:
/// writes headers, padding and ICRC around it, and returns the datagram's length,
/// [`datagram_len`]`(payload_len)`. Bytes after that are left alone.
///
/// `ip_id` is the IPv4 identification that the datagram will go with: 0 from an unconnected UDP socket
/// that does path MTU discovery, the place in the batch when the kernel segments one. It means nothing
/// over IPv6.
///
/// Every byte of the payload is read once and none is written.
///
/// # Panics
/// If `buffer` is shorter than the datagram.
#[inline]
pub fn seal(
    buffer: &mut [u8],
    payload_len: usize,
    header: &UdHeader,
    flow: &Icrc,
    ip_id: u16,
) -> usize {
    let len = datagram_len(payload_len);
    let datagram = &mut buffer[..len];
    let pad = pad_len(payload_len);
    let headers = datagram.first_chunk_mut().expect("a datagram is longer than its headers");
    emit_headers(header, pad, headers);
    datagram[HEADERS_LEN + payload_len..len - ICRC_LEN].fill(0);
    let icrc = flow.of_datagram(ip_id, datagram);
    datagram[len - ICRC_LEN..].copy_from_slice(&icrc);
    len
}

/// Checks the ICRC of a received datagram, whose IPv4 identification a UDP socket does not tell.
///
/// See [`icrc`](super::icrc) for what this catches, and [`Icrc::verify_with_id`] for captures.
#[inline]
pub fn verify(datagram: &[u8], flow: &Icrc) -> IcrcCheck {
    flow.verify(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn loopback() -> Icrc {
        Icrc::new("127.0.0.1:4791".parse().unwrap(), "239.7.7.7:4791".parse().unwrap()).unwrap()
    }

    fn to_a_group() -> UdHeader {
        UdHeader {
            solicited: false,
            immediate: false,
            pkey: PKey::DEFAULT,
            dest_qpn: Qpn::MULTICAST,
            psn: Psn::new(7),
            qkey: 0x0123_4567,
            src_qpn: Qpn::new(0x11),
        }
    }

    /// A buffer like the provider's: dirty, longer than the datagram, the payload in its place.
    fn sealed(payload: &[u8], header: &UdHeader) -> Vec<u8> {
        let mut buffer = std::vec![0xa5; HEADERS_LEN + payload.len() + 16];
        buffer[HEADERS_LEN..][..payload.len()].copy_from_slice(payload);
        let len = seal(&mut buffer, payload.len(), header, &loopback(), 0);
        assert_eq!(len, datagram_len(payload.len()));
        assert!(buffer[len..].iter().all(|&byte| byte == 0xa5), "wrote past the datagram");
        buffer.truncate(len);
        buffer
    }

    #[test]
    fn golden_bytes_both_ways() {
        let golden = [
            0x64, 0x70, 0xff, 0xff, 0x00, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x07, // BTH
            0x01, 0x23, 0x45, 0x67, 0x00, 0x00, 0x00, 0x11, // DETH
            b'h', b'e', b'l', b'l', b'o', 0, 0, 0, // payload and padding
            0x02, 0xdb, 0x60, 0xce, // ICRC
        ];
        assert_eq!(sealed(b"hello", &to_a_group()), golden);

        let datagram = RoceDatagram::new_checked(&golden).unwrap();
        assert_eq!(datagram.opcode(), Opcode::UdSendOnly);
        assert_eq!(datagram.pkey(), PKey::DEFAULT);
        assert_eq!(datagram.dest_qpn(), Qpn::MULTICAST);
        assert_eq!(datagram.psn(), Psn::new(7));
        assert_eq!(datagram.qkey(), 0x0123_4567);
        assert_eq!(datagram.src_qpn(), Qpn::new(0x11));
        assert_eq!(datagram.immediate(), None);
        assert_eq!(datagram.payload(), b"hello");
        assert_eq!(datagram.icrc(), [0x02, 0xdb, 0x60, 0xce]);
        assert!(datagram.bth().migrated && !datagram.solicited());
        assert_eq!(verify(&golden, &loopback()), IcrcCheck::Ok);
    }

    #[test]
    fn an_empty_payload_is_a_datagram_too() {
        let golden = [
            0x64, 0x40, 0xff, 0xff, 0x00, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x07, // BTH
            0x01, 0x23, 0x45, 0x67, 0x00, 0x00, 0x00, 0x11, // DETH
            0x94, 0x9b, 0x29, 0x0f, // ICRC
        ];
        assert_eq!(sealed(b"", &to_a_group()), golden);
        assert_eq!(RoceDatagram::new_checked(&golden).unwrap().payload(), b"");
    }

    #[test]
    fn immediate_data_are_the_first_four_bytes() {
        let header = UdHeader { immediate: true, solicited: true, ..to_a_group() };
        let datagram = sealed(&[1, 2, 3, 4, b'h', b'i'], &header);
        let datagram = RoceDatagram::new_checked(&datagram).unwrap();
        assert_eq!(datagram.opcode(), Opcode::UdSendOnlyImm);
        assert_eq!(datagram.immediate(), Some(0x0102_0304));
        assert_eq!(datagram.payload(), b"hi");
        assert!(datagram.solicited());
    }

    #[test]
    fn every_payload_length_comes_back() {
        let payload: Vec<u8> = (0..MAX_PAYLOAD_LEN).map(|i| i as u8 | 1).collect();
        for len in (0..=70).chain([1021, 1024, 4093, 4094, 4095, 4096]) {
            let datagram = sealed(&payload[..len], &to_a_group());
            assert_eq!(RoceDatagram::new_checked(&datagram).unwrap().payload(), &payload[..len]);
            assert_eq!(verify(&datagram, &loopback()), IcrcCheck::Ok);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let check = |bytes: &[u8]| RoceDatagram::new_checked(bytes).map(|_| ());
        let empty = sealed(b"", &to_a_group());
        for len in (0..empty.len()).step_by(4) {
            assert_eq!(check(&empty[..len]), Err(RoceError::TooShort { len }));
        }
        for len in [1, 2, 3, 21, 22, 23] {
            assert_eq!(check(&empty[..len]), Err(RoceError::Unaligned { len }));
        }
        // Opcode 0x65 on a datagram without room for immediate data.
        let mut cut = empty.clone();
        cut[0] = 0x65;
        assert_eq!(check(&cut), Err(RoceError::TooShort { len: 24 }));
        // More padding than payload.
        for pad in 1..=3 {
            let mut padded = empty.clone();
            padded[1] |= pad << 4;
            assert_eq!(check(&padded), Err(RoceError::Padding { pad, len: 0 }));
        }
        // Just inside the limit, and just outside.
        let longest = sealed(&[1; MAX_PAYLOAD_LEN], &to_a_group());
        assert_eq!(check(&longest), Ok(()));
        for payload_len in [MAX_PAYLOAD_LEN + 1, MAX_PAYLOAD_LEN + 4] {
            let too_long = sealed(&std::vec![1; payload_len], &to_a_group());
            assert_eq!(check(&too_long), Err(RoceError::TooLong { len: 4124 }));
        }
        let with_immediate = UdHeader { immediate: true, ..to_a_group() };
        let longest = sealed(&[1; 4 + MAX_PAYLOAD_LEN], &with_immediate);
        assert_eq!(longest.len(), MAX_DATAGRAM_LEN);
        assert_eq!(check(&longest), Ok(()));
        let too_long = sealed(&[1; 5 + MAX_PAYLOAD_LEN], &with_immediate);
        assert_eq!(check(&too_long), Err(RoceError::TooLong { len: 4128 }));
    }

    #[test]
    fn other_versions_and_services_are_refused() {
        let mut datagram = sealed(b"", &to_a_group());
        datagram[1] |= 1;
        assert_eq!(RoceDatagram::new_checked(&datagram), Err(RoceError::Version(1)));
        for opcode in (0..=u8::MAX).filter(|opcode| !matches!(opcode, 0x64 | 0x65)) {
            let mut datagram = sealed(b"", &to_a_group());
            datagram[0] = opcode;
            assert_eq!(
                RoceDatagram::new_checked(&datagram),
                Err(RoceError::Opcode(Opcode::Other(opcode)))
            );
        }
    }

    #[test]
    #[should_panic(expected = "range end index 32 out of range")]
    fn a_buffer_without_room_for_the_icrc_is_a_bug_of_the_caller() {
        seal(&mut [0; 31], 5, &to_a_group(), &loopback(), 0);
    }

    #[test]
    fn a_debug_print_does_not_give_the_key_away() {
        let header = UdHeader { qkey: 0x0bad_cafe, ..to_a_group() };
        let bytes = sealed(b"secret", &header);
        let datagram = RoceDatagram::new_checked(&bytes).unwrap();
        for print in [std::format!("{header:?}"), std::format!("{datagram:?}")] {
            assert!(print.contains("0x......fe") && !print.contains("bad"), "{print}");
        }
    }
}
