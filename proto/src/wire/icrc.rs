//! The invariant CRC: what a RoCEv2 datagram ends with.
//!
//! It is the CRC-32 of Ethernet (and zlib), stored little-endian, over
//!
//! ```text
//! [eight bytes of 0xff][IP header][UDP header][BTH][the rest of the datagram up to the ICRC]
//! ```
//!
//! where every field that a router may change reads as all ones: the IPv4 type of service, time to live
//! and header checksum; the IPv6 traffic class, flow label and hop limit; the UDP checksum; and byte 4
//! of the BTH (FECN, BECN and six reserved bits). A flip there changes nothing that a receiver acts on,
//! and is not seen. Lengths, addresses, ports and the IPv4 identification are covered.
//!
//! # The identification that nobody tells
//!
//! Over IPv4 the 16-bit identification is covered too, and a receiving UDP socket is not told it. qcast's
//! own datagrams carry 0, or count up from 0 in a batch that the kernel segments; Soft-RoCE draws the
//! first one at random. A CRC is linear: a different identification changes it by the exclusive or of
//! what each changed bit contributes, and those contributions depend on the datagram's length alone. So
//! the sixteen of them span 65,536 of the 2^32 differences, and a datagram is accepted if the
//! difference between its ICRC and the one computed for identification 0 is among them. That is a
//! membership test, not a search: dividing the difference by a power of x takes the bytes after the
//! identification back out of the CRC, and what is left must be a polynomial of degree below 16. Those
//! sixteen bits *are* the identification ([`IcrcCheck::OkWithId`]).
//!
//! # What it catches, and the odds
//!
//! * With the identification known (a capture, or IPv6, which has none): every error of up to 32 bits in a
//!   row, and all but one in 2^32 of random corruptions.
//! * With the identification unknown: all but one in 2^16 of random corruptions, and **every single
//!   flipped bit** that the ICRC covers, itself included, in any datagram of up to
//!   [`SINGLE_FLIPS_CAUGHT_UP_TO`] bytes. A flip k bits after the identification escapes if x^-k modulo the
//!   generator has a degree below 16. That does not depend on the datagram's length, so the places
//!   where it happens can be counted for all lengths at once: there are five in the longest datagram that UDP can carry, bit 6
//!   of byte 26,744, bit 2 of byte 28,451, bits 6 and 7 of byte 36,245 and bit 0 of byte 37,980 (from the
//!   BTH's first byte; bit 0 is the lowest). RoCE's longest datagram has
//!   [`MAX_DATAGRAM_LEN`](super::roce::MAX_DATAGRAM_LEN) bytes, so in what
//!   [`RoceDatagram`](super::roce::RoceDatagram) accepts there is none.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crc32fast::Hasher;

use super::bth::Bth;
use super::deth::Deth;
use super::gf2;
use super::ip::{Ipv4, Ipv6};

/// Up to this length no single flipped bit gets past the check for an unknown identification.
pub const SINGLE_FLIPS_CAUGHT_UP_TO: usize = 26_744;

/// The verdict on a datagram's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum IcrcCheck {
    /// It is right: for the identification that was given, for identification 0, or over IPv6.
    Ok,
    /// It is right if the IPv4 identification was this one.
    OkWithId(u16),
    /// It is wrong: the datagram was changed on its way, or is of another flow.
    Bad,
}

impl IcrcCheck {
    /// Whether the datagram may be used.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        !matches!(self, Self::Bad)
    }
}

/// The ICRC of one flow: what of its input is the same for every datagram between two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// Over IPv4.
    V4(IcrcV4),
    /// Over IPv6.
    V6(IcrcV6),
}

impl Icrc {
    /// The flow from `src` to `dst`; `None` if one is IPv4 and the other is not. An IPv4 address mapped
    /// into IPv6 is taken as what it is on the wire, IPv4.
    #[must_use]
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Option<Self> {
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src_ip), IpAddr::V4(dst_ip)) => {
                Some(Self::V4(IcrcV4::new(src_ip, dst_ip, src.port(), dst.port())))
            }
            (IpAddr::V6(src_ip), IpAddr::V6(dst_ip)) => {
                Some(Self::V6(IcrcV6::new(src_ip, dst_ip, src.port(), dst.port())))
            }
            _ => None,
        }
    }

    /// The four bytes that `datagram` ends with if it went with IPv4 identification `ip_id`. Its own last
    /// four bytes are not looked at. One shorter than a BTH and an ICRC has none: it gets zeros.
    ///
    /// `ip_id` means nothing over IPv6.
    #[must_use]
    #[inline]
    pub fn of_datagram(&self, ip_id: u16, datagram: &[u8]) -> [u8; 4] {
        match split(datagram) {
            Some((bth, rest, _)) => {
                self.over(ip_id, bth, datagram.len(), |crc| crc.update(rest)).to_le_bytes()
            }
            None => [0; 4],
        }
    }

    /// Checks the ICRC of a datagram whose IPv4 identification is not known.
    #[inline]
    pub fn verify(&self, datagram: &[u8]) -> IcrcCheck {
        let Some((bth, rest, icrc)) = split(datagram) else {
            return IcrcCheck::Bad;
        };
        let difference =
            self.over(0, bth, datagram.len(), |crc| crc.update(rest)) ^ u32::from_le_bytes(*icrc);
        match self {
            _ if difference == 0 => IcrcCheck::Ok,
            Self::V4(_) => {
                id_behind(difference, datagram.len()).map_or(IcrcCheck::Bad, IcrcCheck::OkWithId)
            }
            Self::V6(_) => IcrcCheck::Bad,
        }
    }

    /// Checks the ICRC of a datagram whose IPv4 identification is known, as in a capture. Over IPv6 this
    /// is [`Self::verify`].
    pub fn verify_with_id(&self, ip_id: u16, datagram: &[u8]) -> IcrcCheck {
        match split(datagram) {
            Some((_, _, icrc)) if self.of_datagram(ip_id, datagram) == *icrc => IcrcCheck::Ok,
            _ => IcrcCheck::Bad,
        }
    }

    #[inline]
    fn over(
        &self,
        ip_id: u16,
        bth: &[u8; Bth::LEN],
        datagram_len: usize,
        rest: impl FnOnce(&mut Hasher),
    ) -> u32 {
        match self {
            Self::V4(flow) => flow.over(ip_id, bth, datagram_len, rest),
            Self::V6(flow) => flow.over(bth, datagram_len, rest),
        }
    }
}

/// The ICRC of one flow over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcV4 {
    /// Eight bytes of ones, the IP and UDP headers, and room for the BTH; lengths and identification 0.
    front: [u8; 48],
}

impl IcrcV4 {
    /// The flow between these endpoints, of datagrams with "don't fragment" set and no IP options.
    #[must_use]
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dst_port: u16) -> Self {
        let mut front = [0; 48];
        front[..8].fill(0xff);
        let [ip, udp] = [8, 28];
        front[ip] = 0x45;
        front[ip + 1] = 0xff; // type of service
        front[ip + 6] = 0x40; // don't fragment
        front[ip + 8] = 0xff; // time to live
        front[ip + 9] = super::ip::UDP;
        front[ip + 10..ip + 12].fill(0xff); // header checksum
        front[ip + 12..ip + 16].copy_from_slice(&src.octets());
        front[ip + 16..ip + 20].copy_from_slice(&dst.octets());
        front[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
        front[udp + 2..udp + 4].copy_from_slice(&dst_port.to_be_bytes());
        front[udp + 6..udp + 8].fill(0xff); // checksum
        Self { front }
    }

    /// The flow of a captured datagram: as [`Self::new`], with the fragment field as it was sent.
    #[must_use]
    pub fn of_captured(ip: &Ipv4<'_>, src_port: u16, dst_port: u16) -> Self {
        let mut flow = Self::new(ip.src(), ip.dst(), src_port, dst_port);
        flow.front[14..16].copy_from_slice(&ip.fragment_field().to_be_bytes());
        flow
    }

    /// The ICRC of a datagram made of these parts, for IPv4 identification `ip_id`.
    #[must_use]
    pub fn icrc(
        &self,
        ip_id: u16,
        bth_deth: &[u8; Bth::LEN + Deth::LEN],
        payload: &[u8],
        pad: &[u8],
    ) -> [u8; 4] {
        let (bth, deth) = split_headers(bth_deth);
        self.over(ip_id, bth, len_of_parts(payload, pad), |crc| update(crc, deth, payload, pad))
            .to_le_bytes()
    }

    #[inline]
    fn over(
        &self,
        ip_id: u16,
        bth: &[u8; Bth::LEN],
        datagram_len: usize,
        rest: impl FnOnce(&mut Hasher),
    ) -> u32 {
        let mut front = self.front;
        front[10..12].copy_from_slice(&length_field(28 + datagram_len));
        front[12..14].copy_from_slice(&ip_id.to_be_bytes());
        front[32..34].copy_from_slice(&length_field(8 + datagram_len));
        front[36..].copy_from_slice(bth);
        front[36 + CONGESTION_BYTE] = 0xff;
        let mut crc = Hasher::new();
        crc.update(&front);
        rest(&mut crc);
        crc.finalize()
    }
}

/// The ICRC of one flow over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcV6 {
    /// Eight bytes of ones, the IP and UDP headers, and room for the BTH; lengths 0.
    front: [u8; 68],
}

impl IcrcV6 {
    /// The flow between these endpoints, of datagrams without extension headers.
    #[must_use]
    pub fn new(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16, dst_port: u16) -> Self {
        let mut front = [0; 68];
        front[..8].fill(0xff);
        let [ip, udp] = [8, 48];
        front[ip] = 0x6f; // version; traffic class
        front[ip + 1..ip + 4].fill(0xff); // traffic class; flow label
        front[ip + 6] = super::ip::UDP;
        front[ip + 7] = 0xff; // hop limit
        front[ip + 8..ip + 24].copy_from_slice(&src.octets());
        front[ip + 24..ip + 40].copy_from_slice(&dst.octets());
        front[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
        front[udp + 2..udp + 4].copy_from_slice(&dst_port.to_be_bytes());
        front[udp + 6..udp + 8].fill(0xff); // checksum
        Self { front }
    }

    /// The flow of a captured datagram.
    #[must_use]
    pub fn of_captured(ip: &Ipv6<'_>, src_port: u16, dst_port: u16) -> Self {
        Self::new(ip.src(), ip.dst(), src_port, dst_port)
    }

    /// The ICRC of a datagram made of these parts.
    #[must_use]
    pub fn icrc(
        &self,
        bth_deth: &[u8; Bth::LEN + Deth::LEN],
        payload: &[u8],
        pad: &[u8],
    ) -> [u8; 4] {
        let (bth, deth) = split_headers(bth_deth);
        self.over(bth, len_of_parts(payload, pad), |crc| update(crc, deth, payload, pad))
            .to_le_bytes()
    }

    #[inline]
    fn over(
        &self,
        bth: &[u8; Bth::LEN],
        datagram_len: usize,
        rest: impl FnOnce(&mut Hasher),
    ) -> u32 {
        let mut front = self.front;
        let length = length_field(8 + datagram_len);
        front[12..14].copy_from_slice(&length);
        front[52..54].copy_from_slice(&length);
        front[56..].copy_from_slice(bth);
        front[56 + CONGESTION_BYTE] = 0xff;
        let mut crc = Hasher::new();
        crc.update(&front);
        rest(&mut crc);
        crc.finalize()
    }
}

/// The identification that changes the ICRC of a datagram of this length by `difference`, if one does.
#[inline]
fn id_behind(difference: u32, datagram_len: usize) -> Option<u16> {
    let words = datagram_len / 4;
    if !datagram_len.is_multiple_of(4) {
        return None;
    }
    let leap = *LEAPS.get(words / STEPS.len())?;
    let id = gf2::mul(gf2::mul(difference, STEPS[words % STEPS.len()]), leap);
    // Degrees 0 to 15 are the upper half, and the first bit that went into the CRC, the lowest of the
    // first byte, has degree 15.
    let [degree_24, degree_16, first, second] = id.to_le_bytes();
    ((degree_24 | degree_16) == 0).then_some(u16::from_be_bytes([first, second]))
}

/// Takes `i` words of the datagram out of the CRC.
static STEPS: [u32; 64] = gf2::negative_powers(0, 32);

/// Takes 64 · `i` words of the datagram out of the CRC, and what is there whatever its length is: the 14
/// bytes of IP header after the identification, the 8 bytes of UDP header, less the 4 bytes of ICRC, and
/// the 32 places that a CRC puts its input up by. 256 of them are enough for any UDP datagram.
static LEAPS: [u32; 256] = gf2::negative_powers(8 * (14 + 8 - 4) + 32, 64 * 32);

/// The byte of the BTH that switches may change.
const CONGESTION_BYTE: usize = 4;

/// The datagram as BTH, rest and ICRC.
#[inline]
fn split(datagram: &[u8]) -> Option<(&[u8; Bth::LEN], &[u8], &[u8; 4])> {
    let (bth, rest) = datagram.split_first_chunk()?;
    let (rest, icrc) = rest.split_last_chunk()?;
    Some((bth, rest, icrc))
}

#[inline]
fn split_headers(bth_deth: &[u8; Bth::LEN + Deth::LEN]) -> (&[u8; Bth::LEN], &[u8]) {
    bth_deth.split_first_chunk().expect("the headers are longer than the BTH")
}

#[inline]
fn len_of_parts(payload: &[u8], pad: &[u8]) -> usize {
    Bth::LEN + Deth::LEN + payload.len() + pad.len() + 4
}

#[inline]
fn update(crc: &mut Hasher, deth: &[u8], payload: &[u8], pad: &[u8]) {
    crc.update(deth);
    crc.update(payload);
    crc.update(pad);
}

/// A 16-bit length field. What does not fit cannot be a UDP datagram either; its upper bits are cut.
#[inline]
fn length_field(len: usize) -> [u8; 2] {
    (len as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::roce::{MAX_DATAGRAM_LEN, datagram_len};
    use std::vec::Vec;

    /// "hello" to a group, as zlib sees it from another language.
    const HELLO: [u8; 32] = [
        0x64, 0x70, 0xff, 0xff, 0x00, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x07, // BTH
        0x01, 0x23, 0x45, 0x67, 0x00, 0x00, 0x00, 0x11, // DETH
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0, // payload and padding
        0xa5, 0xa5, 0xa5, 0xa5, // room for the ICRC
    ];

    fn loopback() -> Icrc {
        Icrc::new("127.0.0.1:4791".parse().unwrap(), "239.7.7.7:4791".parse().unwrap()).unwrap()
    }

    fn six() -> Icrc {
        Icrc::new("[fe80::1]:49152".parse().unwrap(), "[ff0e::7]:4791".parse().unwrap()).unwrap()
    }

    fn sealed(flow: &Icrc, ip_id: u16, mut datagram: Vec<u8>) -> Vec<u8> {
        let icrc = flow.of_datagram(ip_id, &datagram);
        let at = datagram.len() - 4;
        datagram[at..].copy_from_slice(&icrc);
        datagram
    }

    fn random_datagram(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
        (0..len).map(|_| rng.u8(..)).collect()
    }

    #[test]
    fn golden_icrcs() {
        assert_eq!(loopback().of_datagram(0, &HELLO), [0x02, 0xdb, 0x60, 0xce]);
        assert_eq!(loopback().of_datagram(1, &HELLO), [0x91, 0x28, 0x5e, 0x04]);
        assert_eq!(loopback().of_datagram(0xca37, &HELLO), [0x78, 0x99, 0x07, 0xe1]);
        assert_eq!(six().of_datagram(0, &HELLO), [0xc9, 0xda, 0x88, 0xa3]);
        assert_eq!(six().of_datagram(9, &HELLO), [0xc9, 0xda, 0x88, 0xa3], "IPv6 has no id");
    }

    #[test]
    fn parts_give_the_same_as_the_whole() {
        let (headers, rest) = HELLO.split_first_chunk::<20>().unwrap();
        let (payload, pad) = (&rest[..5], &rest[5..8]);
        let [Icrc::V4(v4), Icrc::V6(v6)] = [loopback(), six()] else {
            panic!("the flows' families")
        };
        assert_eq!(v4.icrc(0xca37, headers, payload, pad), loopback().of_datagram(0xca37, &HELLO));
        assert_eq!(v6.icrc(headers, payload, pad), six().of_datagram(0, &HELLO));
    }

    #[test]
    fn flows_of_mixed_families_are_refused_and_mapped_ones_are_ipv4() {
        let flow = |src: &str, dst: &str| Icrc::new(src.parse().unwrap(), dst.parse().unwrap());
        assert_eq!(flow("[fe80::1]:1", "10.0.0.1:2"), None);
        assert_eq!(flow("10.0.0.1:1", "[fe80::1]:2"), None);
        assert_eq!(flow("[::ffff:127.0.0.1]:4791", "[::ffff:239.7.7.7]:4791"), Some(loopback()));
    }

    #[test]
    fn what_switches_may_change_is_not_covered() {
        for bit in 0..8 {
            let mut datagram = HELLO;
            datagram[4] ^= 1 << bit;
            assert_eq!(loopback().of_datagram(5, &datagram), loopback().of_datagram(5, &HELLO));
        }
    }

    /// The membership test against the search that it stands for: all ids, several lengths.
    #[test]
    fn every_identification_is_recovered() {
        let mut rng = fastrand::Rng::with_seed(11);
        for len in [24, 28, 32, 276, 280, 1048, MAX_DATAGRAM_LEN, 8 * 1024, 65_504] {
            let base = random_datagram(&mut rng, len);
            // The CRC is linear, so the long ones need not be hashed 65,536 times in a debug build.
            let icrc_0 = u32::from_le_bytes(loopback().of_datagram(0, &base));
            let bits: Vec<u32> = (0..16)
                .map(|bit| u32::from_le_bytes(loopback().of_datagram(1 << bit, &base)) ^ icrc_0)
                .collect();
            for id in 0..=u16::MAX {
                let difference =
                    (0..16).filter(|bit| id >> bit & 1 != 0).fold(0, |d, bit| d ^ bits[bit]);
                assert_eq!(id_behind(difference, len), Some(id), "length {len}");
            }
            for id in [0, 1, 0x00ff, 0xff00, 0x1234, 0xffff] {
                let datagram = sealed(&loopback(), id, base.clone());
                let expected = if id == 0 { IcrcCheck::Ok } else { IcrcCheck::OkWithId(id) };
                assert_eq!(loopback().verify(&datagram), expected);
                assert_eq!(loopback().verify_with_id(id, &datagram), IcrcCheck::Ok);
                assert_eq!(loopback().verify_with_id(!id, &datagram), IcrcCheck::Bad);
            }
        }
    }

    /// The same test against a plain search that shares nothing with it, on every possible difference of a
    /// kind: those of one id, those next to it, and random ones.
    #[test]
    fn what_no_identification_explains_is_refused() {
        let mut rng = fastrand::Rng::with_seed(12);
        for len in [24, 36, 300] {
            let datagram = random_datagram(&mut rng, len);
            let icrc_of = |id| u32::from_le_bytes(loopback().of_datagram(id, &datagram));
            let icrcs: Vec<u32> = (0..=u16::MAX).map(icrc_of).collect();
            let search =
                |icrc: u32| icrcs.iter().position(|&of_id| of_id == icrc).map(|id| id as u16);
            let near = (0..32).map(|bit| icrcs[0x4321] ^ (1 << bit));
            let random = core::iter::repeat_with(|| rng.u32(..)).take(100);
            for icrc in near.chain(random.collect::<Vec<_>>()) {
                assert_eq!(id_behind(icrc ^ icrcs[0], len), search(icrc), "length {len}");
            }
        }
    }

    /// The odds over IPv4 are what the module says: one in 2^16, neither more nor fewer.
    #[test]
    fn random_corruption_passes_once_in_65536() {
        let mut rng = fastrand::Rng::with_seed(13);
        let draws = 1 << 20;
        let passed = (0..draws).filter(|_| id_behind(rng.u32(..), 4120).is_some()).count();
        assert!((4..40).contains(&passed), "{passed} of {draws} passed; 16 are expected");
    }

    /// The distances, in bits after the identification, at which one flipped bit looks like another
    /// identification: for every datagram that UDP can carry, the ICRC itself included.
    fn distances_that_escape() -> Vec<usize> {
        let longest = 65_507 / 4 * 4;
        let mut power = gf2::ONE;
        (1..=8 * (14 + 8 + longest))
            .filter(|_| {
                power = gf2::over_x(power);
                power & 0xffff == 0
            })
            .collect()
    }

    #[test]
    fn single_flips_escape_in_exactly_five_places_none_of_them_in_a_roce_datagram() {
        let places: Vec<_> = distances_that_escape()
            .into_iter()
            .map(|k| ((k - 1) / 8 - (14 + 8), (k - 1) % 8))
            .collect();
        assert_eq!(
            places,
            [(26_744, 6), (28_451, 2), (36_245, 6), (36_245, 7), (37_980, 0)],
            "(byte of the datagram, bit)"
        );
        assert_eq!(places[0].0, SINGLE_FLIPS_CAUGHT_UP_TO);
        const { assert!(MAX_DATAGRAM_LEN < SINGLE_FLIPS_CAUGHT_UP_TO) };
    }

    /// The count above is about powers of x; this is about bytes. In datagrams long enough, exactly those
    /// flips get through, and the ones next to them do not.
    #[test]
    fn the_places_that_escape_are_these_bytes_and_bits() {
        let mut rng = fastrand::Rng::with_seed(14);
        let mut datagram = sealed(&loopback(), 0x1234, random_datagram(&mut rng, 38_400));
        for (byte, bits) in
            [(26_744, 1 << 6), (28_451, 1 << 2), (36_245, 0b1100_0000), (37_980, 1 << 0)]
        {
            for bit in 0..8 {
                datagram[byte] ^= 1 << bit;
                let check = loopback().verify(&datagram);
                assert_eq!(
                    check.is_ok(),
                    bits >> bit & 1 != 0,
                    "byte {byte}, bit {bit}: {check:?}"
                );
                datagram[byte] ^= 1 << bit;
            }
        }
        // Cut to the length that is promised, the last bits are caught too.
        datagram.truncate(SINGLE_FLIPS_CAUGHT_UP_TO);
        let datagram = sealed(&loopback(), 0x1234, datagram);
        for bit in 8 * (SINGLE_FLIPS_CAUGHT_UP_TO - 16)..8 * SINGLE_FLIPS_CAUGHT_UP_TO {
            let mut datagram = datagram.clone();
            datagram[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(loopback().verify(&datagram), IcrcCheck::Bad, "bit {bit}");
        }
    }

    /// With the count above, this is the proof for all lengths: the divisor of each is the right one.
    #[test]
    fn every_length_divides_by_its_own_power_of_x() {
        let mut power = gf2::ONE;
        for _ in 0..8 * (14 + 8 - 4) + 32 {
            power = gf2::over_x(power);
        }
        for words in 0..65_536 / 4 {
            assert_eq!(gf2::mul(STEPS[words % 64], LEAPS[words / 64]), power, "{words} words");
            for _ in 0..32 {
                power = gf2::over_x(power);
            }
        }
    }

    /// And this is the proof by trial, on every bit of frames of many lengths. One CRC would be the same
    /// for all: a flip changes the ICRC by a power of x, whatever the bytes are.
    #[test]
    fn every_single_flip_is_caught() {
        let short = (0..=64).step_by(4);
        let long = [1020, 1024, 2044, 4092, 4096, 4100];
        for payload_len in short.chain(long) {
            let len = datagram_len(payload_len);
            let mut difference = gf2::ONE;
            for bit_from_end in 0..8 * len {
                assert_eq!(id_behind(difference, len), None, "{len} bytes, bit -{bit_from_end}");
                difference = gf2::times_x(difference);
            }
        }
    }

    #[test]
    fn the_addresses_and_ports_are_covered() {
        let datagram = sealed(&loopback(), 0, HELLO.to_vec());
        for (src, dst) in [
            ("127.0.0.2:4791", "239.7.7.7:4791"),
            ("127.0.0.1:4790", "239.7.7.7:4791"),
            ("127.0.0.1:4791", "239.7.7.6:4791"),
            ("127.0.0.1:4791", "239.7.7.7:4789"),
        ] {
            let other = Icrc::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap();
            assert_eq!(other.verify(&datagram), IcrcCheck::Bad, "{src} to {dst}");
        }
    }

    #[test]
    fn what_is_too_short_for_an_icrc_has_none() {
        for len in 0..16 {
            assert_eq!(loopback().verify(&HELLO[..len]), IcrcCheck::Bad);
            assert_eq!(loopback().verify_with_id(0, &HELLO[..len]), IcrcCheck::Bad);
            assert_eq!(loopback().of_datagram(0, &HELLO[..len]), [0; 4]);
        }
        assert_eq!(six().verify(&HELLO), IcrcCheck::Bad);
        assert!(six().verify(&sealed(&six(), 0, HELLO.to_vec())).is_ok());
    }
}
