//! Real Soft-RoCE traffic: every field and every ICRC of the capture, and every bit of it flipped.
//!
//! The capture is of two runs of `mckey` to 239.1.1.1 between two Soft-RoCE devices: three datagrams
//! of 101 bytes, two of 4000, all with immediate data, among the IGMP reports of the joins.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::net::Ipv4Addr;

use pcap_file::pcap::PcapReader;
use qcast_proto::addr::{PKey, Psn, Qpn, ROCE_PORT};
use qcast_proto::wire::bth::Opcode;
use qcast_proto::wire::icrc::{Icrc, IcrcCheck, IcrcV4};
use qcast_proto::wire::ip::{ETHERTYPE_IPV4, Ethernet, Ip, Ipv4, Udp};
use qcast_proto::wire::roce::{RoceDatagram, UdHeader, seal, verify};

const CAPTURE: &[u8] = include_bytes!("data/soft-roce-multicast.pcap");

struct Captured {
    ip_id: u16,
    flow: Icrc,
    src_port: u16,
    datagram: Vec<u8>,
}

fn captured() -> (Vec<Captured>, usize) {
    let mut reader = PcapReader::new(CAPTURE).unwrap();
    let (mut datagrams, mut others) = (Vec::new(), 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let ethernet = Ethernet::new_checked(&packet.data).unwrap();
        assert_eq!(ethernet.ethertype(), ETHERTYPE_IPV4);
        let Ip::V4(ip) = Ip::new_checked(ethernet.payload()).unwrap() else { panic!("not IPv4") };
        if !Ip::V4(ip).starts_udp() {
            others += 1;
            continue;
        }
        let udp = Udp::new_checked(ip.payload()).unwrap();
        assert_eq!(udp.dst_port(), ROCE_PORT);
        assert_eq!(ip.src(), Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(ip.dst(), Ipv4Addr::new(239, 1, 1, 1));
        datagrams.push(Captured {
            ip_id: ip.id(),
            flow: flow(&ip, &udp),
            src_port: udp.src_port(),
            datagram: udp.payload().to_vec(),
        });
    }
    (datagrams, others)
}

fn flow(ip: &Ipv4<'_>, udp: &Udp<'_>) -> Icrc {
    Icrc::V4(IcrcV4::of_captured(ip, udp.src_port(), udp.dst_port()))
}

#[test]
fn every_field_is_right() {
    let (datagrams, others) = captured();
    assert_eq!(others, 16, "the IGMP reports");
    let ids: Vec<_> = datagrams.iter().map(|d| d.ip_id).collect();
    assert_eq!(ids, [0xba76, 0xba78, 0xba79, 0xc536, 0xc537]);

    let expected =
        [(0, 0x11, 101), (1, 0x11, 101), (2, 0x11, 101), (0, 0x13, 4000), (1, 0x13, 4000)];
    assert_eq!(datagrams.len(), expected.len());
    for (captured, (psn, qpn, payload_len)) in datagrams.iter().zip(expected) {
        let datagram = RoceDatagram::new_checked(&captured.datagram).unwrap();
        assert_eq!(datagram.opcode(), Opcode::UdSendOnlyImm);
        assert_eq!(datagram.pkey(), PKey::DEFAULT);
        assert_eq!(datagram.dest_qpn(), Qpn::MULTICAST);
        assert_eq!(datagram.psn(), Psn::new(psn));
        assert_eq!(datagram.qkey(), 0x0123_4567);
        assert_eq!(datagram.src_qpn(), Qpn::new(qpn));
        assert_eq!(datagram.immediate(), Some(qpn), "mckey sends its queue pair's number");
        assert_eq!(datagram.payload().len(), payload_len);
        assert!(!datagram.solicited() && !datagram.bth().migrated && !datagram.bth().ack_req);
    }
}

#[test]
fn every_icrc_is_right() {
    for captured in captured().0 {
        let Captured { ip_id, flow, datagram, .. } = &captured;
        assert_eq!(flow.verify_with_id(*ip_id, datagram), IcrcCheck::Ok);
        assert_eq!(flow.verify_with_id(ip_id ^ 1, datagram), IcrcCheck::Bad);
        // As a UDP socket sees it: without the identification, which the check finds.
        let socket = Icrc::new(
            (Ipv4Addr::new(10, 9, 0, 1), captured.src_port).into(),
            (Ipv4Addr::new(239, 1, 1, 1), ROCE_PORT).into(),
        )
        .unwrap();
        assert_eq!(verify(datagram, &socket), IcrcCheck::OkWithId(*ip_id));
    }
}

/// What we send for the same fields is what Soft-RoCE sent, but for the migration bit.
#[test]
fn sealing_gives_soft_roces_bytes() {
    for Captured { ip_id, flow, datagram, .. } in captured().0 {
        let parsed = RoceDatagram::new_checked(&datagram).unwrap();
        let header = UdHeader {
            solicited: parsed.solicited(),
            immediate: true,
            pkey: parsed.pkey(),
            dest_qpn: parsed.dest_qpn(),
            psn: parsed.psn(),
            qkey: parsed.qkey(),
            src_qpn: parsed.src_qpn(),
        };
        let body_len = 4 + parsed.payload().len();
        let mut ours = vec![0xa5; datagram.len()];
        ours[20..20 + body_len].copy_from_slice(&datagram[20..20 + body_len]);
        assert_eq!(seal(&mut ours, body_len, &header, &flow, ip_id), datagram.len());
        assert_eq!(ours[1], datagram[1] | 0x40);
        assert_eq!(flow.verify_with_id(ip_id, &ours), IcrcCheck::Ok);
        ours[1] = datagram[1];
        let end = datagram.len() - 4;
        assert_eq!(ours[..end], datagram[..end]);
        assert_eq!(flow.of_datagram(ip_id, &ours), datagram[end..]);
    }
}

/// Every bit of every captured datagram, both with the identification known and without. Byte 4 of the
/// BTH is the exception that RoCEv2 makes: switches may change it, so the ICRC does not cover it, and
/// nothing that is delivered depends on it.
#[test]
fn every_flipped_bit_is_caught() {
    for Captured { ip_id, flow, mut datagram, .. } in captured().0 {
        let intact = datagram.clone();
        for bit in 0..8 * datagram.len() {
            datagram[bit / 8] ^= 1 << (bit % 8);
            let known = flow.verify_with_id(ip_id, &datagram);
            let unknown = verify(&datagram, &flow);
            if bit / 8 == 4 {
                assert_eq!((known, unknown), (IcrcCheck::Ok, IcrcCheck::OkWithId(ip_id)));
                let [before, after] = [&intact, &datagram].map(|d| {
                    let d = RoceDatagram::new_checked(d).unwrap();
                    (d.opcode(), d.dest_qpn(), d.psn(), d.qkey(), d.src_qpn(), d.payload())
                });
                assert_eq!(before, after, "nothing that is delivered depends on bit {bit}");
            } else {
                assert_eq!((known, unknown), (IcrcCheck::Bad, IcrcCheck::Bad), "bit {bit}");
            }
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(datagram, intact);
    }
}
