//! Frames and control bodies: what is written is read, and what is not sound is refused.
//!
//! Requirements: `R-FRAME-1` to `R-FRAME-4`, `R-FRAG-1`, `R-CONTROL-1`, `R-CONTROL-2`.

use std::fmt::Debug;

use bincode::{Decode, Encode};
use proptest::prelude::*;
use qcast_proto::addr::{Domain, Gid, GroupTag, PeerAddr, Qpn, Sequence, SessionId, StreamId};
use qcast_proto::wire::control::{
    Announce, Gone, Heartbeat, MAX_BODY, MAX_RANGES, Nak, Released, Status, decode, encode,
};
use qcast_proto::wire::frame::{
    FRAGMENT_HEADER, FRAME_HEADER, FragmentHeader, Frame, FrameHeader, FrameKind, MAX_MESSAGE,
    MESSAGE_HEADER, Messages, fragment_of_checked,
};

/// Cases that leave no file behind; `PROPTEST_CASES` asks for more.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn header() -> impl Strategy<Value = FrameHeader> {
    (1..=9u8, any::<u16>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(kind, domain, group, stream, session, sequence)| FrameHeader {
            kind: FrameKind::from_number(kind).expect("there are nine"),
            domain: Domain(domain),
            group: GroupTag(group),
            stream: StreamId(stream),
            session: SessionId(session),
            sequence: Sequence(sequence),
        },
    )
}

fn frame(header: FrameHeader, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; FRAME_HEADER];
    header.emit(&mut out);
    out.extend_from_slice(body);
    out
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<bool>());
    (numbers, counts).prop_map(
        |((next, oldest, stamp, rtt_us), (receivers, losers, window, wanted, end))| Heartbeat {
            next,
            oldest,
            stamp,
            rtt_us,
            receivers,
            losers,
            window,
            wanted,
            end,
        },
    )
}

fn name() -> impl Strategy<Value = String> {
    "[a-zé/*0-9 ]{0,40}"
}

fn announce() -> impl Strategy<Value = Announce> {
    let who = (any::<u128>(), any::<u64>(), name(), name());
    let place = (any::<[u8; 16]>(), any::<u32>(), any::<u16>());
    (who, place, any::<u64>(), heartbeat(), any::<bool>()).prop_map(
        |((node, incarnation, name, topic), (gid, qpn, udp_port), age_us, heartbeat, first)| {
            let gid = Gid::from_bytes(gid);
            let address = PeerAddr { gid, qpn: Qpn::new(qpn), udp_port }.into();
            Announce { node, incarnation, name, topic, address, age_us, heartbeat, first }
        },
    )
}

fn status() -> impl Strategy<Value = Status> {
    let who = (any::<u128>(), any::<u64>(), any::<u64>(), name());
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let words = (any::<Option<u32>>(), any::<u32>(), any::<u32>(), any::<Option<u32>>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (who, numbers, words, flags).prop_map(|(who, numbers, words, flags)| Status {
        node: who.0,
        incarnation: who.1,
        at: who.2,
        name: who.3,
        next: numbers.0,
        edge: numbers.1,
        lost: numbers.2,
        missing: numbers.3,
        echo: words.0,
        held_us: words.1,
        headroom: words.2,
        tag: words.3,
        reliable: flags.0,
        leaving: flags.1,
        ended: flags.2,
    })
}

fn nak() -> impl Strategy<Value = Nak> {
    let runs = prop::collection::vec((any::<u32>(), any::<u32>()), 0..MAX_RANGES);
    (any::<u64>(), runs, any::<bool>()).prop_map(|(base, runs, local)| Nak { base, runs, local })
}

/// A body comes back, in every prefix of it nothing does, and nothing may follow it.
fn comes_back<B: Encode + Decode<()> + PartialEq + Debug>(body: &B) -> Result<(), TestCaseError> {
    let mut out = [0; MAX_BODY];
    let len = encode(body, &mut out).expect("it fits");
    prop_assert_eq!(&decode::<B>(&out[..len]).expect("it was written"), body);
    for n in 0..len {
        prop_assert!(decode::<B>(&out[..n]).is_err(), "prefix of {} bytes", n);
    }
    if len < MAX_BODY {
        prop_assert!(decode::<B>(&out[..=len]).is_err(), "a byte follows");
    }
    // One byte too few to write it to.
    prop_assert!(encode(body, &mut out[..len - 1]).is_err());
    Ok(())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn headers_come_back(header in header(), flags in any::<u16>()) {
        let body: &[u8] = match header.kind {
            FrameKind::Data => &[0, 0],
            FrameKind::Fragment => &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7],
            _ => &[],
        };
        let mut bytes = frame(header, body);
        // R-FRAME-3: flags of later versions are not looked at.
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        let read = Frame::new_checked(&bytes).expect("it was written");
        prop_assert_eq!(*read.header(), header);
        prop_assert_eq!(read.body(), body);
        for n in 0..FRAME_HEADER {
            prop_assert!(Frame::new_checked(&bytes[..n]).is_err());
        }
    }

    /// R-FRAME-4.
    #[test]
    fn messages_come_back(
        header in header(),
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
    ) {
        let header = FrameHeader { kind: FrameKind::Data, ..header };
        let mut body = Vec::new();
        let mut ends = vec![0];
        for m in &messages {
            body.extend(u16::try_from(m.len()).expect("short").to_be_bytes());
            body.extend(m);
            ends.push(body.len());
        }
        let bytes = frame(header, &body);
        let read = Frame::new_checked(&bytes).expect("it was written");
        let got: Vec<_> = read.messages().map(<[u8]>::to_vec).collect();
        prop_assert_eq!(&got, &messages);
        prop_assert!(fragment_of_checked(&bytes).is_none());
        // Cut anywhere but between messages it is refused, and never misread.
        for n in 0..body.len() {
            let cut = Frame::new_checked(&bytes[..FRAME_HEADER + n]);
            prop_assert_eq!(cut.is_ok(), n > 0 && ends.contains(&n), "{} of {}", n, body.len());
            let unchecked = Messages::of_checked(&bytes[..FRAME_HEADER + n]).count();
            prop_assert!(unchecked <= messages.len());
        }
        prop_assert!(MESSAGE_HEADER * messages.len() <= body.len());
    }

    /// R-FRAG-1.
    #[test]
    fn fragments_come_back_or_contradict_themselves(
        header in header(),
        message_len in prop_oneof![0..70_000u32, any::<u32>()],
        offset in prop_oneof![0..70_000u32, any::<u32>()],
        index in prop_oneof![0..100u32, any::<u32>()],
        piece in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let header = FrameHeader { kind: FrameKind::Fragment, ..header };
        let fragment = FragmentHeader { message_len, offset, index };
        let mut body = vec![0; FRAGMENT_HEADER];
        fragment.emit(&mut body);
        body.extend(&piece);
        let bytes = frame(header, &body);
        let end = u64::from(offset) + piece.len() as u64;
        let sound = !piece.is_empty()
            && message_len as usize <= MAX_MESSAGE
            && end <= u64::from(message_len)
            && index <= offset
            && (index == 0) == (offset == 0);
        let read = Frame::new_checked(&bytes);
        prop_assert_eq!(read.is_ok(), sound);
        if let Ok(read) = read {
            prop_assert_eq!(read.fragment(), Some((fragment, &piece[..])));
            prop_assert_eq!(fragment_of_checked(&bytes), Some((fragment, &piece[..])));
            prop_assert_eq!(read.messages().count(), 0);
        }
    }

    /// R-FRAME-1, R-FRAME-2.
    #[test]
    fn any_bytes_are_a_frame_or_are_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(frame) = Frame::new_checked(&bytes) {
            prop_assert!(bytes.len() >= FRAME_HEADER && bytes[..3] == *b"qc\x01");
            prop_assert!(frame.messages().all(|m| m.len() < bytes.len()));
        }
        let _ = Messages::of_checked(&bytes).count();
        let _ = fragment_of_checked(&bytes);
    }

    /// R-FRAME-1: a frame of any kind with any byte changed.
    #[test]
    fn changed_frames_are_read_or_refused(
        header in header(),
        mut body in prop::collection::vec(any::<u8>(), 0..100),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        body.push(0);
        let mut bytes = frame(header, &body);
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(frame) = Frame::new_checked(&bytes) {
            let _ = frame.messages().count();
            let _ = frame.fragment();
        }
    }

    /// R-CONTROL-1, R-CONTROL-2.
    #[test]
    fn bodies_come_back(
        beat in heartbeat(),
        announce in announce(),
        status in status(),
        nak in nak(),
        number in any::<u64>(),
        node in any::<u128>(),
    ) {
        comes_back(&beat)?;
        comes_back(&announce)?;
        comes_back(&status)?;
        comes_back(&nak)?;
        comes_back(&Gone { oldest: number })?;
        comes_back(&Released { node, waited_ms: number })?;
    }

    /// R-CONTROL-2: no bytes make a decoder panic, or set aside more than they are.
    #[test]
    fn any_bytes_are_a_body_or_are_not(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = decode::<Heartbeat>(&bytes);
        let _ = decode::<Status>(&bytes);
        if let Ok(announce) = decode::<Announce>(&bytes) {
            prop_assert!(announce.name.len() + announce.topic.len() <= bytes.len());
        }
        if let Ok(nak) = decode::<Nak>(&bytes) {
            prop_assert!(nak.runs.len() * 2 <= bytes.len());
            prop_assert!(nak.runs.capacity() <= MAX_BODY);
            let mut end = 0;
            for (first, count) in nak.ranges() {
                prop_assert!(first >= end && count > 0);
                end = first.checked_add(u64::from(count)).expect("within the number space");
            }
        }
    }

    /// What is missing is what a NAK says, or the first part of it.
    #[test]
    fn naks_say_what_is_missing(missing in prop::collection::btree_set(0..3000u64, 1..600)) {
        let nak = Nak::of(missing.iter().copied(), false).expect("something is missing");
        let said: Vec<u64> = nak.ranges().flat_map(|(s, n)| s..s + u64::from(n)).collect();
        let whole: Vec<u64> = missing.iter().copied().take(said.len()).collect();
        prop_assert_eq!(&said, &whole);
        prop_assert!(said.len() == missing.len() || nak.runs.len() == MAX_RANGES);
        comes_back(&nak)?;
    }
}

/// R-CONTROL-2: lengths that are only claimed.
#[test]
fn claimed_lengths_set_nothing_aside() {
    let mut bytes = vec![7];
    // A varint of 2^60 runs, then of 2^31.
    for claim in [&[253, 0, 0, 0, 0, 0, 0, 0, 16][..], &[252, 0, 0, 0, 128]] {
        bytes.truncate(1);
        bytes.extend(claim);
        bytes.resize(MAX_BODY, 0);
        assert!(decode::<Nak>(&bytes).is_err());
    }
    // A body at the limit is read, one byte more is not.
    let long = Status { name: "x".repeat(MAX_BODY * 2), ..Status::default() };
    assert!(encode(&long, &mut [0; 4096]).is_err());
}
