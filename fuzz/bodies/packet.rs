//! Takes any bytes apart as a packet of a network, down to RoCEv2.

use qcast_proto::wire::ip::{Ethernet, Ip};
use qcast_proto::wire::roce::RoceDatagram;

/// Panics if a decoder does, or says something that cannot be.
pub(crate) fn run(data: &[u8]) {
    if let Ok(ethernet) = Ethernet::new_checked(data) {
        let _ = ethernet.ethertype();
        ip(ethernet.payload());
    }
    ip(data);
    roce(data);
}

fn ip(data: &[u8]) {
    let Ok(ip) = Ip::new_checked(data) else { return };
    let _ = (ip.src(), ip.dst());
    assert!(ip.payload().len() <= data.len());
    if ip.starts_udp() && ip.payload().len() > 8 {
        roce(&ip.payload()[8..]);
    }
}

fn roce(data: &[u8]) {
    let Ok(datagram) = RoceDatagram::new_checked(data) else { return };
    assert!(datagram.payload().len() < data.len());
    let _ = (datagram.bth(), datagram.opcode(), datagram.immediate(), datagram.icrc());
    let _ = (datagram.dest_qpn(), datagram.src_qpn(), datagram.psn(), datagram.qkey());
}
