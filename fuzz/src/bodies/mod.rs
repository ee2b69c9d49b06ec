//! What each fuzz target does with its bytes: functions of `&[u8]` that panic when something is wrong.
//!
//! Decoders must take any bytes, read only what they checked, and give what is written again. The node
//! must do what `docs/protocol.md` says it does at the least: not panic, end, and keep its bounds.

#[allow(dead_code, reason = "the command reads more of a packet than is looked at here")]
#[path = "../../../src/cli/decode/capture.rs"]
mod capture_file;
mod control_group;
mod operations;
mod pair;

use std::net::SocketAddr;

use qcast::device::fault::FaultPlan;
use qcast::device::spec::DeviceSpec;
use qcast::proto::addr::QKey;
use qcast::proto::membership::{MAX_METADATA, MAX_PAIRS, MAX_WORD, Word};
use qcast::proto::subscribe::TopicPattern;
use qcast::proto::wire::control::{
    self, Announce, Gone, Heartbeat, MAX_RANGES, Nak, Released, Status,
};
use qcast::proto::wire::frame::{FRAME_HEADER, Frame, FrameKind, MAX_MESSAGE, Messages};
use qcast::proto::wire::icrc::Icrc;
use qcast::proto::wire::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Ip, Udp};
use qcast::proto::wire::member;
use qcast::proto::wire::notice::GroupNotice;
use qcast::proto::wire::roce::{self, RoceDatagram};
use qcast::proto::wire::service::{ServiceQuery, Services};

/// A qcast frame.
pub fn frame(bytes: &[u8]) {
    let Ok(frame) = Frame::new_checked(bytes) else { return };
    let mut again = [0; FRAME_HEADER];
    frame.header().emit(&mut again);
    // Flags are ignored.
    assert_eq!((&again[..4], &again[6..]), (&bytes[..4], &bytes[6..FRAME_HEADER]));
    let messages: Vec<&[u8]> = frame.messages().collect();
    match frame.header().kind {
        FrameKind::Data => {
            let whole: usize = messages.iter().map(|m| m.len() + 2).sum();
            assert!(!messages.is_empty() && whole == frame.body().len());
            assert!(Messages::of_checked(bytes).eq(messages.iter().copied()));
        }
        FrameKind::Fragment => {
            let (header, piece) = frame.fragment().expect("it was checked");
            let end = header.offset as usize + piece.len();
            assert!(!piece.is_empty() && end <= header.message_len as usize);
            assert!(header.message_len as usize <= MAX_MESSAGE);
            assert_eq!(header.is_last(piece.len()), end == header.message_len as usize);
        }
        _ => assert!(messages.is_empty() && frame.fragment().is_none()),
    }
}

/// Whether a decoded body is the same after it was written and read again.
macro_rules! again {
    ($kind:ty, $bytes:expr) => {
        control::decode::<$kind>($bytes).ok().inspect(|body| {
            let mut out = [0; control::MAX_BODY];
            let len = control::encode(body, &mut out).expect("it came from a body that fits");
            assert!(len <= $bytes.len(), "the shortest form is written");
            assert_eq!(control::decode::<$kind>(&out[..len]).as_ref(), Ok(body));
        })
    };
}

/// The body of every control frame.
pub fn control(bytes: &[u8]) {
    again!(Heartbeat, bytes);
    if let Some(announce) = again!(Announce, bytes) {
        let _ = (control::is_sound_name(&announce.name), control::is_sound_name(&announce.topic));
    }
    again!(Status, bytes);
    again!(Gone, bytes);
    again!(Released, bytes);
    if let Some(notice) = again!(GroupNotice, bytes) {
        let _ = notice.is_sound();
    }
    if let Some(services) = again!(Services, bytes) {
        let marks = services.records.iter().map(|r| r.mark(services.node, services.incarnation));
        assert_eq!(marks.count(), services.records.len());
        let _ = services.is_sound();
    }
    if let Some(query) = again!(ServiceQuery, bytes) {
        let _ = (query.is_sound(), query.asks_for("http", "web"));
    }
    if let Some(nak) = again!(Nak, bytes) {
        let ranges: Vec<_> = nak.ranges().collect();
        assert!(ranges.len() <= MAX_RANGES);
        let mut end = nak.base;
        for (first, count) in ranges {
            assert!(first >= end && count > 0);
            end = first.checked_add(count.into()).expect("none leaves the numbers");
        }
    }
    again!(member::Beacon, bytes);
    again!(member::Probe, bytes);
    again!(member::Roster, bytes);
    again!(member::Digest, bytes);
    for kind in [FrameKind::Beacon, FrameKind::Probe, FrameKind::Roster, FrameKind::Digest] {
        word(kind, bytes);
    }
}

/// What a member says: it is sound, and comes back when it is written and read again.
fn word(kind: FrameKind, bytes: &[u8]) {
    let Ok(word) = Word::decode(kind, bytes) else { return };
    if let Word::Beacon(beacon) = &word
        && let Some(info) = &beacon.info
    {
        assert!(control::is_sound_name(&info.name) && control::is_sound_name(&info.host));
        let bytes: usize = info.metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
        assert!(info.metadata.len() <= MAX_PAIRS && bytes <= MAX_METADATA);
    }
    let mut out = [0; MAX_WORD];
    let len = word.encode(&mut out).expect("it came from a body that fits");
    assert_eq!(Word::decode(kind, &out[..len]).as_ref(), Ok(&word));
}

/// What a UDP datagram to the RoCEv2 port carries.
pub fn roce(bytes: &[u8]) {
    let flow = |a: &str, b: &str| {
        let read = |s: &str| s.parse::<SocketAddr>().expect("an address");
        Icrc::new(read(a), read(b)).expect("of one family")
    };
    for flow in [flow("127.0.0.1:4791", "239.7.7.7:4791"), flow("[::1]:4791", "[ff15::1]:4791")] {
        let _ = (roce::verify(bytes, &flow), flow.verify_with_id(7, bytes));
    }
    if let Ok(datagram) = RoceDatagram::new_checked(bytes) {
        assert!(datagram.payload().len() < bytes.len());
        frame(datagram.payload());
    }
}

/// A captured Ethernet frame: each header that it has, and the RoCEv2 datagram in it.
pub fn ip(bytes: &[u8]) {
    let of_ip = |packet: &[u8]| {
        let Ok(ip) = Ip::new_checked(packet) else { return };
        assert!(ip.payload().len() <= packet.len());
        if !ip.starts_udp() {
            return;
        }
        let Ok(udp) = Udp::new_checked(ip.payload()) else { return };
        assert!(udp.payload().len() <= udp.payload_len());
        let flow = Icrc::new((ip.src(), udp.src_port()).into(), (ip.dst(), udp.dst_port()).into());
        // An IPv6 packet may name a mapped IPv4 address, and one that is none.
        let _ = flow.map(|flow| flow.verify(udp.payload()));
        roce(udp.payload());
    };
    of_ip(bytes);
    if let Ok(ethernet) = Ethernet::new_checked(bytes)
        && matches!(ethernet.ethertype(), ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
    {
        of_ip(ethernet.payload());
    }
}

/// A capture file.
pub fn capture(bytes: &[u8]) {
    let Ok(mut file) = capture_file::Capture::open(bytes) else { return };
    let mut number = 0;
    while let Ok(Some(packet)) = file.next_packet() {
        number += 1;
        assert_eq!(packet.number, number);
        assert!(packet.data.len() <= bytes.len(), "no byte more than the file has");
        ip(&packet.data);
    }
}

/// What users write: device specs, fault plans, keys, and patterns with the topics they are matched with.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(spec) = text.parse::<DeviceSpec>() {
        assert_eq!(spec.to_string().parse::<DeviceSpec>().as_ref(), Ok(&spec));
    }
    if let Ok(plan) = text.parse::<FaultPlan>() {
        assert_eq!(plan.to_string().parse::<FaultPlan>().as_ref(), Ok(&plan), "{plan}");
    }
    if let Ok(key) = text.parse::<QKey>() {
        assert!(key.get() != 0 && key.get() >> 31 == 0);
        assert_eq!(key.to_string().parse::<QKey>(), Ok(key));
    }
    let (pattern, topic) = text.split_once('\n').unwrap_or((text, text));
    TopicPattern::new(pattern).matches(topic);
    assert!(TopicPattern::new("*").matches(topic));
}

/// A node that hears what the bytes say on the control group, and looks for everything.
pub fn control_group(bytes: &[u8]) {
    control_group::hear(bytes);
}

/// Two nodes of a group on a medium that loses, repeats, damages and lies, as the bytes say.
pub fn node(bytes: &[u8]) {
    let mut input = operations::Input::new(bytes);
    let mut pair = pair::Pair::new(&mut input);
    while let Some(operation) = input.operation() {
        pair.apply(operation, &mut input);
    }
    pair.end();
}
