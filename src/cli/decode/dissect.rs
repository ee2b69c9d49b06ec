//! From a captured packet down to its RoCEv2 datagrams.
//!
//! One packet can hold several: when a program hands the kernel a batch to segment (UDP GSO) and
//! the batch stays on the machine, or when the kernel has joined what arrived (GRO), a capture
//! shows the batch as one long UDP datagram. Such a batch is taken apart again: its segments have
//! one length but for the last, and the right length is the one at which the first segment's ICRC
//! is right.

use std::net::SocketAddr;

use pcap_file::DataLink;
use qcast_proto::wire::bth::{Bth, Opcode};
use qcast_proto::wire::deth::Deth;
use qcast_proto::wire::icrc::{Icrc, IcrcV4, IcrcV6};
use qcast_proto::wire::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Ip, Udp};
use qcast_proto::wire::roce::{
    HEADERS_LEN, ICRC_LEN, MAX_DATAGRAM_LEN, RoceDatagram, RoceError, datagram_len,
};

use super::capture::Packet;
use super::frame;
use super::record::{IcrcVerdict, Record};

/// Finds RoCEv2 in packets.
pub(super) struct Dissector {
    ports: Vec<u16>,
}

impl Dissector {
    /// What is sent to these UDP ports is taken for RoCEv2.
    pub(super) fn new(ports: Vec<u16>) -> Self {
        Self { ports }
    }

    /// The packet's datagrams; none if it is of another kind.
    pub(super) fn records(&self, packet: &Packet) -> Vec<Record> {
        let ip = match network_layer(packet.link, &packet.data).map(Ip::new_checked) {
            Some(Ok(ip)) if ip.starts_udp() => ip,
            _ => return Vec::new(),
        };
        let Ok(udp) = Udp::new_checked(ip.payload()) else { return Vec::new() };
        if !self.ports.contains(&udp.dst_port()) {
            return Vec::new();
        }
        let endpoints = Endpoints {
            packet: packet.number,
            time: packet.time,
            src: (ip.src(), udp.src_port()).into(),
            dst: (ip.dst(), udp.dst_port()).into(),
        };
        let bytes = udp.payload();
        let missing = udp.payload_len() - bytes.len();
        let Some(flow) = Flow::of(&ip, &udp).filter(|_| missing == 0) else {
            return vec![endpoints.record(bytes, missing, IcrcVerdict::Unchecked)];
        };
        if flow.is_right(0, bytes) {
            return vec![endpoints.record(bytes, 0, IcrcVerdict::Ok)];
        }
        let Some(segment_len) = flow.segment_len(bytes) else {
            return vec![endpoints.record(bytes, 0, IcrcVerdict::Bad)];
        };
        let segments = bytes.chunks(segment_len).enumerate();
        segments
            .map(|(place, segment)| {
                let right = flow.is_right(place, segment);
                let icrc = if right { IcrcVerdict::Ok } else { IcrcVerdict::Bad };
                endpoints.record(segment, 0, icrc)
            })
            .collect()
    }
}

/// The IP packet in a captured one, if there is one and the kind of capture is known.
fn network_layer(link: DataLink, data: &[u8]) -> Option<&[u8]> {
    match link {
        DataLink::ETHERNET => {
            let frame = Ethernet::new_checked(data).ok()?;
            ip_if(frame.ethertype(), frame.payload())
        }
        // What `tcpdump -i any` writes: the protocol is at the end of the older header, and at the
        // beginning of the newer one.
        DataLink::LINUX_SLL => {
            let (header, payload) = data.split_first_chunk::<16>()?;
            ip_if(u16::from_be_bytes([header[14], header[15]]), payload)
        }
        DataLink::LINUX_SLL2 => {
            let (header, payload) = data.split_first_chunk::<20>()?;
            ip_if(u16::from_be_bytes([header[0], header[1]]), payload)
        }
        // Four bytes of address family, in some order; the packet itself tells its version.
        DataLink::NULL | DataLink::LOOP => data.get(4..),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(data),
        _ => None,
    }
}

fn ip_if(ethertype: u16, payload: &[u8]) -> Option<&[u8]> {
    matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6).then_some(payload)
}

/// What the ICRCs of a packet's datagrams depend on besides themselves.
struct Flow {
    icrc: Icrc,
    first_ip_id: u16,
}

impl Flow {
    /// `None` if the IP header is of a kind that the ICRC is not defined for.
    fn of(ip: &Ip<'_>, udp: &Udp<'_>) -> Option<Self> {
        let (src_port, dst_port) = (udp.src_port(), udp.dst_port());
        match ip {
            Ip::V4(ip) if ip.header_len() != 20 || ip.more_fragments() => None,
            Ip::V4(ip) => Some(Self {
                icrc: Icrc::V4(IcrcV4::of_captured(ip, src_port, dst_port)),
                first_ip_id: ip.id(),
            }),
            Ip::V6(ip) => Some(Self {
                icrc: Icrc::V6(IcrcV6::of_captured(ip, src_port, dst_port)),
                first_ip_id: 0,
            }),
        }
    }

    /// Whether the ICRC of the segment at this place of a batch is right. The kernel counts the
    /// identification up from segment to segment.
    fn is_right(&self, place: usize, segment: &[u8]) -> bool {
        let ip_id = self.first_ip_id.wrapping_add(place as u16);
        self.icrc.verify_with_id(ip_id, segment).is_ok()
    }

    /// The length of the segments, if this is a batch. Another datagram's front has to be where the
    /// first one ends; the ICRC decides.
    fn segment_len(&self, batch: &[u8]) -> Option<usize> {
        let longest = MAX_DATAGRAM_LEN.min(batch.len().saturating_sub(datagram_len(0)));
        (datagram_len(0)..=longest).step_by(4).find(|&len| {
            let (segment, rest) = batch.split_at(len);
            starts_like_ud(rest) && self.is_right(0, segment)
        })
    }
}

fn starts_like_ud(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|front| {
        let bth = Bth::parse(front);
        bth.version == 0 && matches!(bth.opcode, Opcode::UdSendOnly | Opcode::UdSendOnlyImm)
    })
}

/// What all records of a packet have in common.
struct Endpoints {
    packet: u64,
    time: Option<std::time::Duration>,
    src: SocketAddr,
    dst: SocketAddr,
}

impl Endpoints {
    /// The record of a datagram of which the last `missing` bytes were not captured.
    fn record(&self, bytes: &[u8], missing: usize, icrc: IcrcVerdict) -> Record {
        let mut record = Record {
            packet: self.packet,
            time: self.time,
            src: self.src,
            dst: self.dst,
            opcode: None,
            dest_qpn: None,
            psn: None,
            qkey: None,
            src_qpn: None,
            payload_bytes: None,
            icrc,
            immediate: None,
            error: None,
            qcast: None,
        };
        if missing == 0 {
            whole(&mut record, bytes);
        } else {
            beginning(&mut record, bytes, bytes.len() + missing);
        }
        record
    }
}

fn whole(record: &mut Record, bytes: &[u8]) {
    match RoceDatagram::new_checked(bytes) {
        Ok(datagram) => {
            transport(record, datagram.bth());
            record.qkey = Some(datagram.qkey());
            record.src_qpn = Some(datagram.src_qpn().get());
            record.immediate = datagram.immediate();
            record.payload_bytes = Some(datagram.payload().len());
            record.qcast = frame::fields(datagram.payload());
        }
        Err(error) => match (error, bytes.first_chunk()) {
            // Other services have other headers behind the first.
            (RoceError::Opcode(_), Some(bth)) => transport(record, &Bth::parse(bth)),
            _ => record.error = Some(error.to_string()),
        },
    }
}

/// What the beginning of a datagram that was `len` bytes long on the wire tells.
fn beginning(record: &mut Record, bytes: &[u8], len: usize) {
    let Some((bth, rest)) = bytes.split_first_chunk() else {
        record.error = Some(format!("only {} of {len} bytes were captured", bytes.len()));
        return;
    };
    let bth = Bth::parse(bth);
    transport(record, &bth);
    let immediate_len = match bth.opcode {
        Opcode::UdSendOnly => 0,
        Opcode::UdSendOnlyImm => 4,
        Opcode::Other(_) => return,
    };
    record.payload_bytes =
        len.checked_sub(HEADERS_LEN + immediate_len + usize::from(bth.pad) + ICRC_LEN);
    let Some((deth, rest)) = rest.split_first_chunk() else { return };
    let deth = Deth::parse(deth);
    record.qkey = Some(deth.qkey);
    record.src_qpn = Some(deth.src_qpn.get());
    if immediate_len > 0 {
        record.immediate = rest.first_chunk().copied().map(u32::from_be_bytes);
    }
}

fn transport(record: &mut Record, bth: &Bth) {
    record.opcode = Some(bth.opcode.to_string());
    record.dest_qpn = Some(bth.dest_qpn.get());
    record.psn = Some(bth.psn.get());
}
