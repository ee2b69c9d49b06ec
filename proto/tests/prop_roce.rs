//! RoCEv2 datagrams by property: what is emitted is parsed, and no bytes at all make a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use qcast_proto::addr::{PKey, Psn, Qpn};
use qcast_proto::wire::bth::{Bth, Opcode};
use qcast_proto::wire::deth::Deth;
use qcast_proto::wire::icrc::{Icrc, IcrcCheck};
use qcast_proto::wire::ip::{Ethernet, Ip, Udp};
use qcast_proto::wire::roce::{
    HEADERS_LEN, MAX_PAYLOAD_LEN, RoceDatagram, UdHeader, datagram_len, emit_headers, pad_len,
    seal, verify,
};

prop_compose! {
    fn bth()(
        opcode: u8, solicited: bool, migrated: bool, pad in 0u8..4, version in 0u8..16, pkey: u16,
        fecn: bool, becn: bool, qpn: u32, ack_req: bool, psn: u32,
    ) -> Bth {
        Bth {
            opcode: Opcode::from_byte(opcode), solicited, migrated, pad, version, pkey: PKey(pkey),
            fecn, becn, dest_qpn: Qpn::new(qpn), ack_req, psn: Psn::new(psn),
        }
    }
}

prop_compose! {
    fn ud_header()(
        solicited: bool, immediate: bool, pkey: u16, dest: u32, psn: u32, qkey: u32, src: u32,
    ) -> UdHeader {
        UdHeader {
            solicited, immediate, pkey: PKey(pkey), dest_qpn: Qpn::new(dest), psn: Psn::new(psn),
            qkey, src_qpn: Qpn::new(src),
        }
    }
}

fn flow() -> impl Strategy<Value = Icrc> {
    let v4 = any::<([u8; 4], [u8; 4])>()
        .prop_map(|(src, dst)| [core::net::IpAddr::from(src), core::net::IpAddr::from(dst)]);
    // 2000::/3, so that none is an IPv4 address in disguise.
    let v6 = any::<([u8; 15], [u8; 15])>().prop_map(|ips| {
        let ip = |rest: [u8; 15]| {
            let mut octets = [0x20; 16];
            octets[1..].copy_from_slice(&rest);
            core::net::IpAddr::from(octets)
        };
        [ip(ips.0), ip(ips.1)]
    });
    (prop_oneof![v4, v6], any::<[u16; 2]>()).prop_map(|(ips, ports)| {
        Icrc::new((ips[0], ports[0]).into(), (ips[1], ports[1]).into()).expect("one family")
    })
}

proptest! {
    #[test]
    fn headers_come_back(bth in bth(), qkey: u32, src: u32) {
        let mut bytes = [0xa5; Bth::LEN];
        bth.emit(&mut bytes);
        prop_assert_eq!(Bth::parse(&bytes), bth);

        let deth = Deth { qkey, src_qpn: Qpn::new(src) };
        let mut bytes = [0xa5; Deth::LEN];
        deth.emit(&mut bytes);
        prop_assert_eq!(Deth::parse(&bytes), deth);
    }

    #[test]
    fn datagrams_come_back(
        header in ud_header(), flow in flow(), ip_id: u16,
        payload in vec(any::<u8>(), 4..=MAX_PAYLOAD_LEN), tail in 0usize..9,
    ) {
        let mut buffer = vec![0xa5; datagram_len(payload.len()) + tail];
        buffer[HEADERS_LEN..HEADERS_LEN + payload.len()].copy_from_slice(&payload);
        let len = seal(&mut buffer, payload.len(), &header, &flow, ip_id);
        prop_assert!(buffer[len..].iter().all(|&byte| byte == 0xa5));

        let bytes = &buffer[..len];
        let datagram = RoceDatagram::new_checked(bytes).expect("what is emitted is parsed");
        prop_assert_eq!(datagram.solicited(), header.solicited);
        prop_assert_eq!(datagram.pkey(), header.pkey);
        prop_assert_eq!(datagram.dest_qpn(), header.dest_qpn);
        prop_assert_eq!(datagram.psn(), header.psn);
        prop_assert_eq!(datagram.qkey(), header.qkey);
        prop_assert_eq!(datagram.src_qpn(), header.src_qpn);
        let (immediate, rest) = payload.split_first_chunk().expect("at least four bytes");
        if header.immediate {
            prop_assert_eq!(datagram.immediate(), Some(u32::from_be_bytes(*immediate)));
            prop_assert_eq!(datagram.payload(), rest);
        } else {
            prop_assert_eq!(datagram.immediate(), None);
            prop_assert_eq!(datagram.payload(), &payload[..]);
        }
        prop_assert_eq!(flow.verify_with_id(ip_id, bytes), IcrcCheck::Ok);
        let expected = match flow {
            Icrc::V4(_) if ip_id != 0 => IcrcCheck::OkWithId(ip_id),
            _ => IcrcCheck::Ok,
        };
        prop_assert_eq!(verify(bytes, &flow), expected);
    }

    #[test]
    fn the_icrc_of_parts_is_that_of_the_whole(
        header in ud_header(), flow in flow(), ip_id: u16, payload in vec(any::<u8>(), 0..300),
    ) {
        let mut buffer = vec![0xa5; datagram_len(payload.len())];
        buffer[HEADERS_LEN..HEADERS_LEN + payload.len()].copy_from_slice(&payload);
        seal(&mut buffer, payload.len(), &header, &flow, ip_id);
        let pad = pad_len(payload.len());
        let mut headers = [0xa5; HEADERS_LEN];
        emit_headers(&header, pad, &mut headers);
        let of_parts = match flow {
            Icrc::V4(flow) => flow.icrc(ip_id, &headers, &payload, &[0; 3][..pad]),
            Icrc::V6(flow) => flow.icrc(&headers, &payload, &[0; 3][..pad]),
        };
        prop_assert_eq!(&buffer[buffer.len() - 4..], of_parts);
    }

    #[test]
    fn one_flipped_bit_is_caught(
        header in ud_header(), flow in flow(), ip_id: u16, payload in vec(any::<u8>(), 4..400),
        bit: prop::sample::Index,
    ) {
        let mut buffer = vec![0xa5; datagram_len(payload.len())];
        buffer[HEADERS_LEN..HEADERS_LEN + payload.len()].copy_from_slice(&payload);
        seal(&mut buffer, payload.len(), &header, &flow, ip_id);
        let bit = bit.index(8 * buffer.len());
        buffer[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(verify(&buffer, &flow).is_ok(), bit / 8 == 4, "bit {}", bit);
        prop_assert_eq!(flow.verify_with_id(ip_id, &buffer).is_ok(), bit / 8 == 4, "bit {}", bit);
    }

    #[test]
    fn no_bytes_make_a_panic(bytes in vec(any::<u8>(), 0..5000), flow in flow(), ip_id: u16) {
        if let Ok(datagram) = RoceDatagram::new_checked(&bytes) {
            prop_assert!(datagram.payload().len() <= bytes.len());
        }
        let _ = verify(&bytes, &flow);
        let _ = flow.verify_with_id(ip_id, &bytes);
        let _ = Ethernet::new_checked(&bytes).map(|frame| frame.payload().len());
        let _ = Udp::new_checked(&bytes).map(|udp| (udp.payload_len(), udp.payload().len()));
        if let Ok(ip) = Ip::new_checked(&bytes) {
            let _ = (ip.src(), ip.dst(), ip.starts_udp(), ip.payload().len());
        }
    }

    /// Random bytes seldom get past the version and opcode: these do.
    #[test]
    fn no_bytes_behind_a_good_front_make_a_panic(
        opcode in 0x64u8..=0x65, flags: u8, rest in vec(any::<u8>(), 0..100),
    ) {
        let bytes = [&[opcode, flags & 0xf0][..], &rest].concat();
        match RoceDatagram::new_checked(&bytes) {
            Ok(datagram) => {
                let front = if datagram.immediate().is_some() { 24 } else { 20 };
                let pad = usize::from(datagram.bth().pad);
                prop_assert_eq!(front + datagram.payload().len() + pad + 4, bytes.len());
            }
            Err(_) => prop_assert!(bytes.len() < 32 || bytes.len() % 4 != 0),
        }
    }

    #[test]
    fn no_ip_packet_makes_a_panic(version in prop_oneof![0x40u8..=0x4f, 0x60u8..=0x6f], rest in vec(any::<u8>(), 0..100)) {
        let bytes = [&[version][..], &rest].concat();
        if let Ok(ip) = Ip::new_checked(&bytes) {
            prop_assert!(ip.payload().len() < bytes.len());
            let claimed = match &ip { Ip::V4(ip) => ip.payload_len(), Ip::V6(ip) => ip.payload_len() };
            prop_assert!(ip.payload().len() <= claimed);
            let _ = Udp::new_checked(ip.payload());
        }
    }
}
