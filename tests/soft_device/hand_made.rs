//! Datagrams made by hand, by an encoder that shares nothing with the crate: what is on the wire is RoCEv2.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use qcast::device::soft::{SoftAddress, SoftConfig};
use qcast::device::{AhAttrs, Device};
use qcast_proto::addr::{Gid, Psn, Qpn};

use crate::rig::{QKEY, Rig, gid, own_group, pattern};

/// What a hand-made datagram says.
#[derive(Clone)]
struct Made {
    opcode: u8,
    pkey: u16,
    qpn: u32,
    psn: u32,
    qkey: u32,
    src_qpn: u32,
    /// What follows the headers, immediate data included.
    body: Vec<u8>,
    ip_id: u16,
}

impl Made {
    fn to(qpn: Qpn, body: &[u8]) -> Self {
        let (body, qpn) = (body.to_vec(), qpn.get());
        Self { opcode: 0x64, pkey: 0xffff, qpn, psn: 5, qkey: QKEY, src_qpn: 0x77, body, ip_id: 0 }
    }

    fn bytes(&self, src: SocketAddrV4, dst: SocketAddrV4) -> Vec<u8> {
        let pad = (4 - self.body.len() % 4) % 4;
        let mut d = vec![self.opcode, 0x40 | (pad as u8) << 4];
        d.extend(self.pkey.to_be_bytes());
        d.extend(self.qpn.to_be_bytes());
        d.extend(self.psn.to_be_bytes());
        d.extend(self.qkey.to_be_bytes());
        d.extend(self.src_qpn.to_be_bytes());
        d.extend(&self.body);
        d.resize(d.len() + pad, 0);
        let icrc = icrc(src, dst, self.ip_id, &d);
        d.extend(icrc);
        d
    }
}

/// The ICRC of an IPv4 datagram that is whole but for its ICRC.
fn icrc(src: SocketAddrV4, dst: SocketAddrV4, ip_id: u16, datagram: &[u8]) -> [u8; 4] {
    let mut covered = vec![0xff; 8];
    covered.extend([0x45, 0xff]);
    covered.extend((20 + 8 + datagram.len() as u16 + 4).to_be_bytes());
    covered.extend(ip_id.to_be_bytes());
    covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
    covered.extend(src.ip().octets());
    covered.extend(dst.ip().octets());
    covered.extend(src.port().to_be_bytes());
    covered.extend(dst.port().to_be_bytes());
    covered.extend((8 + datagram.len() as u16 + 4).to_be_bytes());
    covered.extend([0xff, 0xff]);
    let bth = covered.len();
    covered.extend(datagram);
    covered[bth + 4] = 0xff;
    let mut crc = u32::MAX;
    for byte in covered {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// A plain UDP socket and what it sends to, a device.
struct Hand {
    socket: UdpSocket,
    from: SocketAddrV4,
    to: SocketAddrV4,
}

impl Hand {
    fn reaching(rig: &Rig, port: u16) -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let SocketAddr::V4(from) = socket.local_addr().unwrap() else { unreachable!() };
        let std::net::IpAddr::V4(ip) = rig.device.port().gid.ip() else { unreachable!() };
        Self { socket, from, to: SocketAddrV4::new(ip, rig.device.port().udp_port) }
    }

    fn send(&self, made: &Made) {
        self.raw(&made.bytes(self.from, self.to));
    }

    fn raw(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.to).unwrap();
    }
}

#[test]
fn hand_made_datagrams_are_received() {
    let mut rig = Rig::new();
    let hand = Hand::reaching(&rig, 0);
    let plain = Made::to(rig.qpn(), b"by hand");
    hand.send(&plain);
    // Soft-RoCE's: a random identification, and immediate data before the payload.
    hand.send(&Made { ip_id: 51767, ..plain.clone() });
    let mut body = vec![0, 0, 0, 1];
    body.extend(pattern(1, 100));
    hand.send(&Made { opcode: 0x65, ip_id: 7, body, ..plain.clone() });
    // A limited member of the default partition.
    hand.send(&Made { pkey: 0x7fff, ..plain });
    rig.until_arrived(4);
    assert_eq!(rig.payloads(), [b"by hand".as_slice(), b"by hand", &pattern(1, 100), b"by hand"]);
    let (_, source, _) = rig.arrived[0];
    assert_eq!(source.gid, gid("127.0.0.1"));
    assert_eq!((source.qpn, source.udp_port), (Qpn::new(0x77), 4791), "a random port is not told");
}

#[test]
fn a_source_port_of_a_shared_host_is_where_to_answer() {
    let mut rig = Rig::new();
    let hand = Hand::reaching(&rig, 4800);
    hand.send(&Made::to(rig.qpn(), b"x"));
    rig.until_arrived(1);
    assert_eq!(rig.arrived[0].1.udp_port, 4800);
}

#[test]
fn what_is_damaged_or_not_ours_is_dropped_and_counted() {
    let mut rig = Rig::new();
    let hand = Hand::reaching(&rig, 0);
    let good = Made::to(rig.qpn(), b"good");
    let bytes = good.bytes(hand.from, hand.to);
    // Every byte but the masked one and those of the form (opcode, flags), which count as malformed.
    let damaged: Vec<_> = (2..bytes.len()).filter(|&at| at != 4).collect();
    for &at in &damaged {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        hand.raw(&bytes);
    }
    // Right for other addresses than it came from.
    let elsewhere = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), hand.from.port());
    hand.raw(&good.bytes(elsewhere, hand.to));
    let bad_icrc = damaged.len() as u64 + 1;

    let malformed = [
        Made { opcode: 0x04, ..good.clone() },     // RC SEND-only
        Made { qpn: 0x00ff_ffff, ..good.clone() }, // a group's, by unicast
        Made { qpn: rig.qpn().get() ^ 1, ..good.clone() }, // no queue pair
        Made { pkey: 0x8001, ..good.clone() },     // another partition
        Made { body: vec![0; 4100], ..good.clone() }, // more than any path MTU
    ];
    for made in &malformed {
        hand.send(made);
    }
    for bytes in [&[][..], &[0x64], &bytes[..20], &bytes[..23]] {
        hand.raw(bytes);
    }
    hand.send(&Made { qkey: 1, ..good.clone() });
    hand.send(&good);
    rig.until_arrived(1);
    assert_eq!(rig.payloads(), [b"good"]);
    let counters = rig.device.counters();
    assert_eq!(counters.icrc_errors, bad_icrc);
    assert_eq!(counters.malformed, malformed.len() as u64 + 4);
    assert_eq!(counters.qkey_violations, 1);
    assert_eq!(rig.device.posted_recvs(), 1024);
}

#[test]
fn a_multicast_that_names_a_queue_pair_is_dropped() {
    let mut rig = Rig::new();
    let group = own_group();
    rig.join(&group).unwrap();
    let mut hand = Hand::reaching(&rig, 0);
    hand.to = SocketAddrV4::new(group.parse().unwrap(), 4791);
    let socket = socket2::SockRef::from(&hand.socket);
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    hand.send(&Made::to(rig.qpn(), b"to one"));
    hand.send(&Made::to(Qpn::MULTICAST, b"to all"));
    rig.until_arrived(1);
    assert_eq!(rig.payloads(), [b"to all"]);
    assert_eq!(rig.device.counters().malformed, 1);
    assert_eq!(rig.arrived[0].1.gid, gid("127.0.0.1"));
}

#[test]
fn what_a_device_sends_is_what_a_hand_would_have_made() {
    for offload in [true, false] {
        let mut config = SoftConfig::new(SoftAddress::Loopback);
        config.offload = offload;
        let mut rig = Rig::ready(&config);
        let hand = UdpSocket::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(to) = hand.local_addr().unwrap() else { unreachable!() };
        let std::net::IpAddr::V4(ip) = rig.device.port().gid.ip() else { unreachable!() };
        let from = SocketAddrV4::new(ip, 4791);
        let attrs = AhAttrs { gid: Gid::from(*to.ip()), udp_port: to.port() };
        let (ah, _) = rig.device.create_ah(&attrs).unwrap();
        let sizes = [1024, 1024, 1024, 7, 0, 4096, 4096, 3, 2, 1];
        let wrs =
            (0..).zip(sizes).map(|(n, len)| rig.wr(ah, Qpn::new(42), &pattern(n, len))).collect();
        rig.post(wrs);
        // Runs that the kernel cuts count their identifications up from 0; a single has 0. Payloads of 3, 2
        // and 1 bytes make datagrams of one size, but a shorter one ends its run.
        let ids = if offload { [0, 1, 2, 3, 0, 0, 1, 2, 0, 1] } else { [0; 10] };
        let mut buffer = [0; 5000];
        for (n, (len, ip_id)) in sizes.into_iter().zip(ids).enumerate() {
            let (got, source) = hand.recv_from(&mut buffer).unwrap();
            assert_eq!(source, SocketAddr::V4(from));
            let made = Made {
                psn: Psn::new(9 + n as u32).get(),
                src_qpn: rig.qpn().get(),
                ip_id,
                ..Made::to(Qpn::new(42), &pattern(n, len))
            };
            assert_eq!(buffer[..got], made.bytes(from, to), "datagram {n}, offload {offload}");
        }
    }
}
