//! The headers below RoCEv2, as far as its ICRC and a capture need them: Ethernet II with VLAN tags,
//! IPv4, IPv6 and UDP.
//!
//! Captures are often cut short, so a packet may hold less than its length field says. `new_checked`
//! wants whole headers; `payload` gives what is there, and `payload_len` what there was on the wire.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The IP protocol number of UDP.
pub const UDP: u8 = 17;

/// An Ethernet II frame, with its VLAN tags taken off.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    ethertype: u16,
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Reads the addresses, up to four VLAN tags and the type.
    ///
    /// # Errors
    /// [`HeaderError::Truncated`] if the frame ends before its type does.
    pub fn new_checked(frame: &'a [u8]) -> Result<Self, HeaderError> {
        let truncated = HeaderError::Truncated { what: "Ethernet", len: frame.len() };
        let mut rest = frame.get(12..).ok_or(truncated)?;
        for _ in 0..=MAX_VLAN_TAGS {
            let (ethertype, after) = rest.split_first_chunk().ok_or(truncated)?;
            let ethertype = u16::from_be_bytes(*ethertype);
            if !matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) {
                return Ok(Self { ethertype, payload: after });
            }
            rest = after.get(2..).ok_or(truncated)?;
        }
        Ok(Self { ethertype: ETHERTYPE_VLAN, payload: rest })
    }

    /// What the payload is: [`ETHERTYPE_IPV4`], [`ETHERTYPE_IPV6`] or something else.
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        self.ethertype
    }

    /// What follows the type, with any trailing padding.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The Ethernet type of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The Ethernet type of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// An IP packet of either version.
#[derive(Clone, Copy, Debug)]
pub enum Ip<'a> {
    /// IPv4.
    V4(Ipv4<'a>),
    /// IPv6.
    V6(Ipv6<'a>),
}

impl<'a> Ip<'a> {
    /// Reads the header of the version that the first four bits name.
    ///
    /// # Errors
    /// As [`Ipv4::new_checked`] and [`Ipv6::new_checked`].
    pub fn new_checked(packet: &'a [u8]) -> Result<Self, HeaderError> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4::new_checked(packet).map(Self::V4),
            Some(6) => Ipv6::new_checked(packet).map(Self::V6),
            Some(version) => Err(HeaderError::Version { what: "IP", version }),
            None => Err(HeaderError::Truncated { what: "IP", len: 0 }),
        }
    }

    /// Where it comes from.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip) => ip.src().into(),
            Self::V6(ip) => ip.src().into(),
        }
    }

    /// Where it goes.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip) => ip.dst().into(),
            Self::V6(ip) => ip.dst().into(),
        }
    }

    /// Whether it is a whole UDP datagram or the first fragment of one.
    #[must_use]
    pub fn starts_udp(&self) -> bool {
        match self {
            Self::V4(ip) => ip.protocol() == UDP && ip.fragment_offset() == 0,
            Self::V6(ip) => ip.next_header() == UDP,
        }
    }

    /// What follows the header, as far as it is there.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        match self {
            Self::V4(ip) => ip.payload(),
            Self::V6(ip) => ip.payload(),
        }
    }
}

/// An IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: &'a [u8; 20],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Reads the header, and cuts off what follows the packet (Ethernet pads short ones).
    ///
    /// # Errors
    /// Each variant of [`HeaderError`]: the version is not 4, the packet ends within its header or
    /// options, or a length field is smaller than the header.
    pub fn new_checked(packet: &'a [u8]) -> Result<Self, HeaderError> {
        let what = "IPv4";
        let truncated = HeaderError::Truncated { what, len: packet.len() };
        let (header, rest) = packet.split_first_chunk::<20>().ok_or(truncated)?;
        let version = header[0] >> 4;
        if version != 4 {
            return Err(HeaderError::Version { what, version });
        }
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header_len < 20 || total_len < header_len {
            return Err(HeaderError::Length { what, claimed: header_len.min(total_len) });
        }
        let payload = rest.get(header_len - 20..).ok_or(truncated)?;
        let payload = payload.get(..total_len - header_len).unwrap_or(payload);
        Ok(Self { header, payload })
    }

    /// The length of the header with its options.
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.header[0] & 0x0f) * 4
    }

    /// The length of the packet on the wire.
    #[must_use]
    pub fn total_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[2], self.header[3]]))
    }

    /// The identification.
    #[must_use]
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The flags and the fragment offset as they are on the wire.
    #[must_use]
    pub fn fragment_field(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Whether routers must not fragment it.
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        self.fragment_field() & 0x4000 != 0
    }

    /// Whether more fragments follow.
    #[must_use]
    pub fn more_fragments(&self) -> bool {
        self.fragment_field() & 0x2000 != 0
    }

    /// Where in the original packet this fragment starts, in bytes.
    #[must_use]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.fragment_field() & 0x1fff) * 8
    }

    /// What the payload is: [`UDP`] or something else.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Where it comes from.
    #[must_use]
    pub fn src(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Where it goes.
    #[must_use]
    pub fn dst(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// What follows the header, as far as it is there.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The length of the payload on the wire.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.total_len() - self.header_len()
    }
}

/// An IPv6 packet. Extension headers are not followed: RoCEv2 has none.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    header: &'a [u8; 40],
    payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Reads the header, and cuts off what follows the packet.
    ///
    /// # Errors
    /// The version is not 6, or the packet ends within its header.
    pub fn new_checked(packet: &'a [u8]) -> Result<Self, HeaderError> {
        let what = "IPv6";
        let truncated = HeaderError::Truncated { what, len: packet.len() };
        let (header, payload) = packet.split_first_chunk::<40>().ok_or(truncated)?;
        let version = header[0] >> 4;
        if version != 6 {
            return Err(HeaderError::Version { what, version });
        }
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Ok(Self { header, payload: payload.get(..len).unwrap_or(payload) })
    }

    /// The length of what follows the header, on the wire.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[4], self.header[5]]))
    }

    /// What the payload is: [`UDP`] or something else.
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.header[6]
    }

    /// Where it comes from.
    #[must_use]
    pub fn src(&self) -> Ipv6Addr {
        self.address_at(8)
    }

    /// Where it goes.
    #[must_use]
    pub fn dst(&self) -> Ipv6Addr {
        self.address_at(24)
    }

    /// What follows the header, as far as it is there.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn address_at(&self, offset: usize) -> Ipv6Addr {
        let octets: [u8; 16] = core::array::from_fn(|i| self.header[offset + i]);
        octets.into()
    }
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; 8],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Reads the header, and cuts off what follows the datagram.
    ///
    /// # Errors
    /// The datagram ends within its header, or its length field is smaller than the header.
    pub fn new_checked(datagram: &'a [u8]) -> Result<Self, HeaderError> {
        let what = "UDP";
        let truncated = HeaderError::Truncated { what, len: datagram.len() };
        let (header, payload) = datagram.split_first_chunk::<8>().ok_or(truncated)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let len = len.checked_sub(8).ok_or(HeaderError::Length { what, claimed: len })?;
        Ok(Self { header, payload: payload.get(..len).unwrap_or(payload) })
    }

    /// The sender's port.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// The receiver's port.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// The length of the payload on the wire.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[4], self.header[5]])) - 8
    }

    /// The payload, as far as it is there.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Why bytes are not the header that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The bytes end before the header does.
    #[error("{len} bytes end within the {what} header")]
    Truncated {
        /// Which header.
        what: &'static str,
        /// How many bytes there are.
        len: usize,
    },
    /// The version field has another value.
    #[error("{version} is not a version of {what}")]
    Version {
        /// Which header.
        what: &'static str,
        /// The version field.
        version: u8,
    },
    /// A length field is smaller than the header itself.
    #[error("the {what} header claims a length of {claimed} bytes, less than itself")]
    Length {
        /// Which header.
        what: &'static str,
        /// What the field says.
        claimed: usize,
    },
}

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Two are usual; a frame made of nothing but tags is not followed to its end.
const MAX_VLAN_TAGS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const IPV4_UDP: [u8; 32] = [
        0x45, 0x00, 0x00, 0x20, 0xba, 0x76, 0x40, 0x00, 0x40, 0x11, 0x12,
        0x34, // to the checksum
        10, 9, 0, 1, 239, 1, 1, 2, // addresses
        0xdf, 0x94, 0x12, 0xb7, 0x00, 0x0c, 0x00, 0x00, // UDP
        b'q', b'c', b's', b't',
    ];

    #[test]
    fn ipv4_and_udp_golden_bytes() {
        let ip = Ipv4::new_checked(&IPV4_UDP).unwrap();
        assert_eq!((ip.header_len(), ip.total_len(), ip.payload_len()), (20, 32, 12));
        assert_eq!((ip.id(), ip.protocol()), (0xba76, UDP));
        assert!(ip.dont_fragment() && !ip.more_fragments());
        assert_eq!((ip.fragment_field(), ip.fragment_offset()), (0x4000, 0));
        assert_eq!(ip.src(), Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(ip.dst(), Ipv4Addr::new(239, 1, 1, 2));
        let udp = Udp::new_checked(ip.payload()).unwrap();
        assert_eq!((udp.src_port(), udp.dst_port(), udp.payload_len()), (0xdf94, 4791, 4));
        assert_eq!(udp.payload(), b"qcst");
    }

    #[test]
    fn fragments_are_told() {
        let mut bytes = IPV4_UDP;
        bytes[6..8].copy_from_slice(&[0x20, 0x03]);
        let ip = Ip::new_checked(&bytes).unwrap();
        assert!(!ip.starts_udp());
        let Ip::V4(ip) = ip else { panic!("the version") };
        assert!(ip.more_fragments() && !ip.dont_fragment());
        assert_eq!(ip.fragment_offset(), 24);
    }

    #[test]
    fn options_are_skipped_and_trailing_padding_is_cut() {
        let mut bytes = Vec::from(IPV4_UDP);
        bytes[0] = 0x46;
        bytes[3] = 36;
        bytes.splice(20..20, [1, 1, 1, 0]);
        bytes.extend([0xa5; 14]);
        let ip = Ipv4::new_checked(&bytes).unwrap();
        assert_eq!((ip.header_len(), ip.payload_len()), (24, 12));
        assert_eq!(ip.payload(), &IPV4_UDP[20..]);
    }

    #[test]
    fn a_capture_cut_short_still_tells_the_lengths() {
        let ip = Ipv4::new_checked(&IPV4_UDP[..30]).unwrap();
        assert_eq!((ip.payload_len(), ip.payload().len()), (12, 10));
        let udp = Udp::new_checked(ip.payload()).unwrap();
        assert_eq!((udp.payload_len(), udp.payload()), (4, &b"qc"[..]));
    }

    #[test]
    fn ipv6_golden_bytes() {
        let mut bytes = std::vec![0x60, 0x0a, 0xbc, 0xde, 0, 4, 17, 64];
        let [src, dst]: [Ipv6Addr; 2] = ["fe80::1".parse().unwrap(), "ff0e::7".parse().unwrap()];
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        bytes.extend(b"qcst and trailing bytes");
        let ip = Ip::new_checked(&bytes).unwrap();
        assert!(ip.starts_udp());
        assert_eq!((ip.src(), ip.dst()), (src.into(), dst.into()));
        assert_eq!(ip.payload(), b"qcst");
        let Ip::V6(ip) = ip else { panic!("the version") };
        assert_eq!((ip.payload_len(), ip.next_header()), (4, 17));
        assert_eq!(
            Ipv6::new_checked(&bytes[..39]).map(|_| ()),
            Err(HeaderError::Truncated { what: "IPv6", len: 39 })
        );
    }

    #[test]
    fn vlan_tags_are_taken_off() {
        let plain: Vec<u8> = [&[0; 12][..], &[0x08, 0x00], b"ip"].concat();
        let tagged = [&[0; 12][..], &[0x81, 0x00, 0x00, 0x07, 0x86, 0xdd], b"ip"].concat();
        let twice =
            [&[0; 12][..], &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0x00, 0x07, 0x08, 0x00], b"ip"].concat();
        for (frame, ethertype) in
            [(&plain, ETHERTYPE_IPV4), (&tagged, ETHERTYPE_IPV6), (&twice, ETHERTYPE_IPV4)]
        {
            let ethernet = Ethernet::new_checked(frame).unwrap();
            assert_eq!((ethernet.ethertype(), ethernet.payload()), (ethertype, &b"ip"[..]));
            let header = frame.len() - 2;
            for len in 0..header {
                assert!(Ethernet::new_checked(&frame[..len]).is_err(), "{len} of {header} bytes");
            }
        }
        // Nothing but tags: given up as a VLAN frame, not followed to its end.
        let tags = [0x81, 0x00].repeat(1000);
        let ethernet = Ethernet::new_checked(&tags).unwrap();
        assert_eq!(ethernet.ethertype(), 0x8100);
    }

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let change = |byte: usize, value: u8| {
            let mut bytes = IPV4_UDP;
            bytes[byte] = value;
            Ipv4::new_checked(&bytes).map(|_| ())
        };
        assert_eq!(change(0, 0x55), Err(HeaderError::Version { what: "IPv4", version: 5 }));
        assert_eq!(change(0, 0x44), Err(HeaderError::Length { what: "IPv4", claimed: 16 }));
        assert_eq!(change(3, 19), Err(HeaderError::Length { what: "IPv4", claimed: 19 }));
        // The header claims 60 bytes, and the packet 64, of which 32 are there.
        let mut bytes = IPV4_UDP;
        (bytes[0], bytes[3]) = (0x4f, 64);
        assert_eq!(
            Ipv4::new_checked(&bytes).map(|_| ()),
            Err(HeaderError::Truncated { what: "IPv4", len: 32 })
        );
        let udp = [0, 1, 0, 2, 0, 7, 0, 0];
        assert_eq!(
            Udp::new_checked(&udp).map(|_| ()),
            Err(HeaderError::Length { what: "UDP", claimed: 7 })
        );
        assert_eq!(
            Udp::new_checked(&udp[..7]).map(|_| ()),
            Err(HeaderError::Truncated { what: "UDP", len: 7 })
        );
        assert!(matches!(Ip::new_checked(&[]), Err(HeaderError::Truncated { .. })));
        assert!(matches!(Ip::new_checked(&[0x50]), Err(HeaderError::Version { version: 5, .. })));
    }
}
