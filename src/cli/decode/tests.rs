//! `qcast decode` as a module: real Soft-RoCE traffic, captures of every kind, and broken files.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, TsResolution};
use proptest::prelude::*;
use qcast_proto::addr::{PKey, Psn, Qpn};
use qcast_proto::wire::icrc::Icrc;
use qcast_proto::wire::roce::{HEADERS_LEN, UdHeader, datagram_len, seal};
use serde_json::{Value, json};

use super::{DecodeArgs, DecodeError, Summary};
use crate::cli::exit::Chain;

const CAPTURE: &[u8] = include_bytes!("../../../proto/tests/data/soft-roce-multicast.pcap");

fn args(json: bool) -> DecodeArgs {
    DecodeArgs { file: "capture.pcap".into(), json, ports: vec![4800] }
}

fn lines(capture: &[u8]) -> (String, Summary, Result<(), DecodeError>) {
    let (mut out, mut summary) = (Vec::new(), Summary::default());
    let result = super::decode(capture, &args(false), &mut out, &mut summary);
    (String::from_utf8(out).unwrap(), summary, result)
}

fn objects(capture: &[u8]) -> (Vec<Value>, Summary, Result<(), DecodeError>) {
    let (mut out, mut summary) = (Vec::new(), Summary::default());
    let result = super::decode(capture, &args(true), &mut out, &mut summary);
    let out = String::from_utf8(out).unwrap();
    (out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), summary, result)
}

/// The error and its causes in one line, as a command prints them.
fn told(error: &DecodeError) -> String {
    Chain(error).to_string()
}

/// The packets of the capture.
fn packets() -> Vec<PcapPacket<'static>> {
    let mut reader = PcapReader::new(CAPTURE).unwrap();
    std::iter::from_fn(|| reader.next_packet().map(|packet| packet.unwrap().into_owned())).collect()
}

/// A capture of these packets.
fn pcap_of(link: DataLink, packets: &[Vec<u8>]) -> Vec<u8> {
    let header = PcapHeader { datalink: link, snaplen: 262_144, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (i, data) in packets.iter().enumerate() {
        let time = Duration::new(86_399 + i as u64, 1000);
        writer.write_packet(&PcapPacket::new(time, data.len() as u32, data)).unwrap();
    }
    writer.into_writer()
}

fn sealed(flow: &Icrc, ip_id: u16, psn: u32, payload: &[u8]) -> Vec<u8> {
    let header = UdHeader {
        solicited: false,
        immediate: false,
        pkey: PKey::DEFAULT,
        dest_qpn: Qpn::MULTICAST,
        psn: Psn::new(psn),
        qkey: 0x0bad_cafe,
        src_qpn: Qpn::new(0x42),
    };
    let mut datagram = vec![0xa5; datagram_len(payload.len())];
    datagram[HEADERS_LEN..HEADERS_LEN + payload.len()].copy_from_slice(payload);
    seal(&mut datagram, payload.len(), &header, flow, ip_id);
    datagram
}

/// An IP packet around a UDP payload.
fn ip_packet(src: SocketAddr, dst: SocketAddr, ip_id: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut packet = Vec::new();
    match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            packet.extend([0x45, 0x02]);
            packet.extend((20 + udp_len).to_be_bytes());
            packet.extend(ip_id.to_be_bytes());
            packet.extend([0x40, 0x00, 64, 17, 0x12, 0x34]);
            packet.extend(src.ip().octets());
            packet.extend(dst.ip().octets());
        }
        (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            packet.extend([0x61, 0x23, 0x45, 0x67]);
            packet.extend(udp_len.to_be_bytes());
            packet.extend([17, 64]);
            packet.extend(src.ip().octets());
            packet.extend(dst.ip().octets());
        }
        _ => panic!("mixed families"),
    }
    packet.extend(src.port().to_be_bytes());
    packet.extend(dst.port().to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0x56, 0x78]);
    packet.extend(payload);
    packet
}

fn endpoints(src: &str, dst: &str) -> (SocketAddr, SocketAddr, Icrc) {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    (src, dst, Icrc::new(src, dst).unwrap())
}

fn hello_packet() -> Vec<u8> {
    let (src, dst, flow) = endpoints("127.0.0.8:4791", "239.7.7.7:4791");
    ip_packet(src, dst, 0, &sealed(&flow, 0, 7, b"hello"))
}

#[test]
fn the_command_line() {
    #[derive(clap::Parser)]
    struct Decode {
        #[command(flatten)]
        args: DecodeArgs,
    }
    let parse = |line: &str| {
        <Decode as clap::Parser>::try_parse_from(line.split(' ')).map(|decode| decode.args)
    };
    let args = parse("decode --json --port 4800 --port 4801 a.pcap").unwrap();
    assert!(args.json);
    assert_eq!((args.file.to_str(), &args.ports[..]), (Some("a.pcap"), &[4800, 4801][..]));
    assert_eq!(parse("decode -").unwrap().file.to_str(), Some("-"));
    for wrong in ["decode", "decode a b", "decode --port 65536 a", "decode --jsn a"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn real_traffic_as_lines() {
    let (out, summary, result) = lines(CAPTURE);
    result.unwrap();
    let expected = "\
17:46:46.901909 10.9.0.1:57236 > 239.1.1.1:4791: UD_SEND_ONLY_WITH_IMMEDIATE, qpn 0x000011 > 0xffffff, psn 0, qkey 0x01234567, imm 0x00000011, length 101, icrc ok
17:46:46.905682 10.9.0.1:57236 > 239.1.1.1:4791: UD_SEND_ONLY_WITH_IMMEDIATE, qpn 0x000011 > 0xffffff, psn 1, qkey 0x01234567, imm 0x00000011, length 101, icrc ok
17:46:46.907254 10.9.0.1:57236 > 239.1.1.1:4791: UD_SEND_ONLY_WITH_IMMEDIATE, qpn 0x000011 > 0xffffff, psn 2, qkey 0x01234567, imm 0x00000011, length 101, icrc ok
17:47:04.721166 10.9.0.1:53368 > 239.1.1.1:4791: UD_SEND_ONLY_WITH_IMMEDIATE, qpn 0x000013 > 0xffffff, psn 0, qkey 0x01234567, imm 0x00000013, length 4000, icrc ok
17:47:04.721625 10.9.0.1:53368 > 239.1.1.1:4791: UD_SEND_ONLY_WITH_IMMEDIATE, qpn 0x000013 > 0xffffff, psn 1, qkey 0x01234567, imm 0x00000013, length 4000, icrc ok
";
    assert_eq!(out, expected);
    let expected = Summary { packets: 21, others: 16, datagrams: 5, ..Summary::default() };
    assert_eq!(summary, expected);
}

#[test]
fn real_traffic_as_json() {
    let (out, _, result) = objects(CAPTURE);
    result.unwrap();
    assert_eq!(out.len(), 5);
    assert_eq!(
        out[4],
        json!({
            "packet": 17, "time": 1_795_974_424.721_625, "src": "10.9.0.1:53368",
            "dst": "239.1.1.1:4791", "opcode": "UD_SEND_ONLY_WITH_IMMEDIATE",
            "dest_qpn": 0xff_ffff, "psn": 1, "qkey": 0x0123_4567, "src_qpn": 0x13,
            "payload_bytes": 4000, "icrc": "ok", "immediate": 0x13,
        })
    );
}

#[test]
fn a_changed_byte_makes_the_icrc_bad() {
    let mut capture = CAPTURE.to_vec();
    *capture.iter_mut().rfind(|byte| **byte == 0x79).unwrap() ^= 1; // in the last ICRC but one
    let (out, summary, result) = objects(&capture);
    result.unwrap();
    assert_eq!((summary.datagrams, summary.bad), (5, 1));
    assert_eq!(out.iter().filter(|object| object["icrc"] == "bad").count(), 1);
}

#[test]
fn captures_cut_short_by_a_snapshot_length_tell_what_they_can() {
    // From all but the ICRC down to the middle of the BTH. The snapshot length in the file's header
    // is honest, and so smaller than the packets were on the wire.
    let cut = |snaplen: usize| {
        let mut capture = CAPTURE[..24].to_vec();
        capture[16..20].copy_from_slice(&(snaplen as u32).to_le_bytes());
        for packet in packets() {
            let len = packet.data.len().min(snaplen);
            capture.extend((packet.timestamp.as_secs() as u32).to_le_bytes());
            capture.extend(packet.timestamp.subsec_micros().to_le_bytes());
            capture.extend((len as u32).to_le_bytes());
            capture.extend(packet.orig_len.to_le_bytes());
            capture.extend(&packet.data[..len]);
        }
        objects(&capture)
    };
    for snaplen in [170, 100, 42 + 24, 42 + 20] {
        let (out, summary, result) = cut(snaplen);
        result.unwrap();
        assert_eq!((summary.datagrams, summary.unchecked), (5, 5));
        assert_eq!(out[0]["icrc"], "unchecked");
        assert_eq!(out[0]["payload_bytes"], 101, "at {snaplen} bytes");
        assert_eq!(out[0]["qkey"], 0x0123_4567);
        assert_eq!(out[0]["src_qpn"], 0x11);
        assert_eq!(out[0].get("immediate").is_some(), snaplen >= 42 + 24);
    }
    let (out, _, _) = cut(42 + 19);
    assert_eq!((&out[0]["psn"], &out[0]["qkey"]), (&json!(0), &Value::Null));
    let (out, summary, _) = cut(42 + 11);
    assert_eq!((summary.datagrams, summary.malformed), (0, 5));
    assert_eq!(out[0]["error"], "only 11 of 132 bytes were captured");
    let (out, summary, _) = cut(41);
    assert_eq!((out.len(), summary.others), (0, 21));
}

#[test]
fn pcapng_gives_the_same() {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    for resolution in [None, Some(6), Some(9), Some(0x80 | 20)] {
        let options = resolution.map(InterfaceDescriptionOption::IfTsResol);
        let options = options.into_iter().collect();
        let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        writer.write_block(&block.into_block()).unwrap();
    }
    for (i, packet) in packets().iter().enumerate() {
        // The writer takes all for nanoseconds, so these are ticks.
        let micros = packet.timestamp.as_micros() as u64;
        let ticks = match i % 4 {
            0 | 1 => micros,
            2 => micros * 1000,
            _ => ((u128::from(micros) << 20) / 1_000_000) as u64,
        };
        let block = EnhancedPacketBlock {
            interface_id: (i % 4) as u32,
            timestamp: Duration::from_nanos(ticks),
            original_len: packet.orig_len,
            data: packet.data.clone(),
            options: vec![],
        };
        writer.write_block(&block.into_block()).unwrap();
    }
    let (mut out, summary, result) = objects(&writer.into_inner());
    result.unwrap();
    let (mut expected, expected_summary, _) = objects(CAPTURE);
    assert_eq!(summary, expected_summary);
    for (object, expected) in out.iter_mut().zip(&mut expected) {
        let [time, expected_time] =
            [&mut *object, expected].map(|object| object["time"].take().as_f64().unwrap());
        // 2^-20 s is the coarsest of the resolutions.
        assert!((time - expected_time).abs() < 1.1e-6, "{time} for {expected_time}");
    }
    assert_eq!(out, expected);
}

#[test]
fn simple_packet_blocks_have_no_time() {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let block = InterfaceDescriptionBlock::new(DataLink::IPV4, 0);
    writer.write_block(&block.into_block()).unwrap();
    let hello = hello_packet();
    let block =
        SimplePacketBlock { original_len: hello.len() as u32, data: hello.as_slice().into() };
    writer.write_block(&block.into_block()).unwrap();
    let (out, _, result) = lines(&writer.into_inner());
    result.unwrap();
    assert!(out.starts_with("--:--:--.------ 127.0.0.8:4791 > 239.7.7.7:4791: UD_SEND_ONLY,"));
    assert!(out.ends_with("length 5, icrc ok\n"), "{out}");
}

/// Blocks by hand, in both byte orders: the upper half of a time stamp comes first in either.
#[test]
fn obsolete_packet_blocks_keep_their_time() {
    let hello = hello_packet();
    assert!(hello.len().is_multiple_of(4), "or it would need padding");
    for big in [false, true] {
        let int = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
        let two = |a: u16, b: u16| {
            let [a, b] = if big {
                [a.to_be_bytes(), b.to_be_bytes()]
            } else {
                [a.to_le_bytes(), b.to_le_bytes()]
            };
            [a, b].concat()
        };
        let block = |kind: u32, body: &[u8]| {
            let len = int(12 + body.len() as u32);
            [&int(kind)[..], &len, body, &len].concat()
        };
        let (upper, lower, len) = (int(0x0006_5a0b), int(0x1234_5678), int(hello.len() as u32));
        let packet = [&two(0, 0)[..], &upper, &lower, &len, &len, &hello].concat();
        let section = [&int(0x1a2b_3c4d)[..], &two(1, 0), &[0xff; 8]].concat();
        let file = [
            block(0x0a0d_0d0a, &section),
            block(1, &[two(101, 0), int(0).to_vec()].concat()),
            block(2, &packet),
        ];
        let (out, _, result) = objects(&file.concat());
        result.unwrap();
        let micros = 0x0006_5a0b_1234_5678_u64;
        assert_eq!(out[0]["time"], Duration::from_micros(micros).as_secs_f64(), "big: {big}");
    }
}

#[test]
fn every_link_layer_that_linux_writes() {
    let hello = hello_packet();
    let before = |front: &[u8]| vec![[front, &hello].concat()];
    let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
    let vlan = [&[0; 12][..], &[0x81, 0x00, 0x00, 0x07, 0x08, 0x00]].concat();
    let sll = [&[0; 14][..], &[0x08, 0x00]].concat();
    let sll2 = [&[0x08, 0x00][..], &[0; 18]].concat();
    for (link, front) in [
        (DataLink::ETHERNET, &ethernet[..]),
        (DataLink::ETHERNET, &vlan),
        (DataLink::LINUX_SLL, &sll),
        (DataLink::LINUX_SLL2, &sll2),
        (DataLink::NULL, &[2, 0, 0, 0]),
        (DataLink::LOOP, &[0, 0, 0, 2]),
        (DataLink::RAW, &[]),
        (DataLink::IPV4, &[]),
    ] {
        let (out, _, result) = objects(&pcap_of(link, &before(front)));
        result.unwrap();
        assert_eq!(out.len(), 1, "{link:?}");
        assert_eq!(out[0]["icrc"], "ok", "{link:?}");
    }
    let (out, summary, result) = objects(&pcap_of(DataLink::PRONET, &before(&[])));
    result.unwrap();
    assert_eq!((out.len(), summary.others), (0, 1));
}

#[test]
fn ipv6_and_the_time_of_day() {
    let (src, dst, flow) = endpoints("[fe80::8]:50000", "[ff0e::7]:4791");
    let good = sealed(&flow, 0, 1, b"over six");
    let mut bad = good.clone();
    bad[25] ^= 4;
    let packets = [ip_packet(src, dst, 0, &good), ip_packet(src, dst, 0, &bad)];
    let (out, _, result) = lines(&pcap_of(DataLink::RAW, &packets));
    result.unwrap();
    let expected = "\
23:59:59.000001 [fe80::8]:50000 > [ff0e::7]:4791: UD_SEND_ONLY, qpn 0x000042 > 0xffffff, psn 1, qkey 0x0badcafe, length 8, icrc ok
00:00:00.000001 [fe80::8]:50000 > [ff0e::7]:4791: UD_SEND_ONLY, qpn 0x000042 > 0xffffff, psn 1, qkey 0x0badcafe, length 8, icrc bad
";
    assert_eq!(out, expected);
}

/// What a capture on loopback holds of a batch that the kernel was asked to segment.
#[test]
fn batches_are_taken_apart() {
    let (src, dst, flow) = endpoints("127.0.0.8:4791", "239.7.7.7:4791");
    for payload_len in [0, 100, 1000, 4096] {
        let segments: Vec<_> = (0..5)
            .map(|i| {
                let len = if i == 4 { payload_len.min(37) } else { payload_len };
                sealed(&flow, 0xfffe_u16.wrapping_add(i), i.into(), &vec![0x64; len])
            })
            .collect();
        let mut batch = segments.concat();
        let capture =
            |batch: &[u8]| objects(&pcap_of(DataLink::RAW, &[ip_packet(src, dst, 0xfffe, batch)]));
        let (out, summary, result) = capture(&batch);
        result.unwrap();
        assert_eq!((summary.packets, summary.datagrams, summary.bad), (1, 5, 0), "{payload_len}");
        for (i, object) in out.iter().enumerate() {
            assert_eq!((&object["psn"], &object["packet"]), (&json!(i), &json!(1)));
            let len = if i == 4 { payload_len.min(37) } else { payload_len };
            assert_eq!(object["payload_bytes"], len);
        }
        // One segment damaged: the others are still good.
        batch[segments[0].len() + 14] ^= 1;
        let (out, summary, _) = capture(&batch);
        assert_eq!((summary.datagrams, summary.bad), (5, 1), "{payload_len}");
        assert_eq!(out[1]["icrc"], "bad");
    }
}

#[test]
fn other_services_and_malformed_datagrams_are_told_apart() {
    let (src, dst, flow) = endpoints("127.0.0.8:4791", "127.0.0.9:4800");
    let mut write = sealed(&flow, 0, 7, b"twelve bytes");
    write[0] = 0x2a;
    let end = write.len() - 4;
    let icrc = flow.of_datagram(0, &write);
    write[end..].copy_from_slice(&icrc);
    let packets = [
        ip_packet(src, dst, 0, &write),
        ip_packet(src, dst, 0, b"hello"),
        ip_packet(src, "127.0.0.9:4801".parse().unwrap(), 0, &sealed(&flow, 0, 7, b"")),
    ];
    let (out, summary, result) = lines(&pcap_of(DataLink::RAW, &packets));
    result.unwrap();
    let expected = "\
23:59:59.000001 127.0.0.8:4791 > 127.0.0.9:4800: UC_RDMA_WRITE_ONLY, qpn 0xffffff, psn 7, icrc ok
00:00:00.000001 127.0.0.8:4791 > 127.0.0.9:4800: malformed: a datagram of 5 bytes is not padded to a multiple of four, icrc bad
";
    assert_eq!(out, expected);
    let expected =
        Summary { packets: 3, datagrams: 1, malformed: 1, others: 1, ..Summary::default() };
    assert_eq!(summary, expected);
}

#[test]
fn ip_options_and_fragments_leave_the_icrc_unchecked() {
    let hello = hello_packet();
    let mut options = hello.clone();
    options[0] = 0x46;
    options[3] += 4;
    options.splice(20..20, [1, 1, 1, 0]);
    let mut first = hello.clone();
    first[6] = 0x20;
    let mut second = hello.clone();
    second[7] = 9;
    let (out, summary, result) = objects(&pcap_of(DataLink::RAW, &[options, first, second, hello]));
    result.unwrap();
    let icrcs: Vec<_> = out.iter().map(|object| object["icrc"].as_str().unwrap()).collect();
    assert_eq!(icrcs, ["unchecked", "unchecked", "ok"]);
    assert_eq!(summary.others, 1);
}

#[test]
fn a_file_cut_anywhere_prints_what_precedes_the_cut_and_names_the_packet() {
    let mut ends = vec![24];
    for packet in packets() {
        ends.push(ends.last().unwrap() + 16 + packet.data.len());
    }
    assert_eq!(*ends.last().unwrap(), CAPTURE.len());
    for len in (0..1100).chain(CAPTURE.len() - 60..CAPTURE.len()) {
        let (_, summary, result) = lines(&CAPTURE[..len]);
        let whole = ends.iter().filter(|&&end| end <= len).count();
        let Err(error) = result else {
            assert!(ends.contains(&len), "{len} bytes are no whole capture");
            continue;
        };
        let told = told(&error);
        match len {
            0..4 => assert!(told.contains("not a pcap or pcapng capture"), "{told}"),
            4..24 => assert!(told.contains("file header is damaged or cut short"), "{told}"),
            _ => {
                assert_eq!(summary.packets, whole as u64 - 1);
                assert!(told.contains(&format!("in the middle of packet {whole};")), "{told}");
            }
        }
    }
}

#[test]
fn damaged_lengths_name_the_packet() {
    // The fifth packet, the first of RoCEv2, claims to be longer than any capture keeps.
    let at = 24 + 4 * (16 + 54) + 8;
    let mut capture = CAPTURE.to_vec();
    capture.resize(600_000, 0);
    capture[at..at + 4].copy_from_slice(&500_000_u32.to_le_bytes());
    let (_, summary, result) = lines(&capture);
    assert_eq!(summary.packets, 4);
    let said = told(&result.unwrap_err());
    assert!(said.starts_with("cannot decode capture.pcap: packet 5 is damaged; "), "{said}");

    // A pcapng packet of an interface that was never described.
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let block = SimplePacketBlock { original_len: 4, data: vec![0; 4].into() };
    writer.write_block(&block.into_block()).unwrap();
    let said = told(&lines(&writer.into_inner()).2.unwrap_err());
    assert!(said.contains("packet 1 is damaged") && said.contains("interface id: 0"), "{said}");
}

#[test]
fn files_that_are_no_captures_are_named() {
    let text = b"#!/bin/sh\necho this is no capture\n";
    let told = told(&lines(text).2.unwrap_err());
    assert_eq!(
        told,
        "cannot decode capture.pcap: it is not a pcap or pcapng capture; `tcpdump -w FILE udp port 4791` \
         writes one"
    );
}

#[test]
fn run_opens_files_and_takes_a_closed_output_for_an_end() {
    struct Closed(io::ErrorKind);
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/tests/data/soft-roce-multicast.pcap");
    let mut out = Vec::new();
    super::run_to(&DecodeArgs { file: file.into(), ..args(true) }, None, &mut out).unwrap();
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 5);
    for json in [false, true] {
        let args = DecodeArgs { file: file.into(), ..args(json) };
        super::run_to(&args, None, &mut Closed(io::ErrorKind::BrokenPipe)).unwrap();
        let error =
            super::run_to(&args, None, &mut Closed(io::ErrorKind::StorageFull)).unwrap_err();
        assert!(matches!(error, DecodeError::Write(_)), "{error:?}");
    }

    let missing = DecodeArgs { file: "no/such/file".into(), ..args(false) };
    let error = super::run_to(&missing, None, &mut out).unwrap_err();
    assert!(told(&error).starts_with("cannot open no/such/file: "), "{}", told(&error));
    let folder = DecodeArgs { file: env!("CARGO_MANIFEST_DIR").into(), ..args(false) };
    let error = super::run_to(&folder, None, &mut out).unwrap_err();
    assert!(told(&error).contains(": reading it failed: "), "{}", told(&error));
}

#[test]
fn nanosecond_captures_keep_their_nanoseconds() {
    let header = PcapHeader {
        datalink: DataLink::RAW,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    let hello = hello_packet();
    let packet = PcapPacket::new(Duration::new(3661, 123_456_789), hello.len() as u32, &hello);
    writer.write_packet(&packet).unwrap();
    let (out, ..) = lines(&writer.into_writer());
    assert!(out.starts_with("01:01:01.123456789 "), "{out}");
}

fn pcapng_capture() -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let options = vec![
        InterfaceDescriptionOption::IfName("lo".into()),
        InterfaceDescriptionOption::IfTsResol(9),
        InterfaceDescriptionOption::IfTsOffset(5),
    ];
    let block = InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 300, options };
    writer.write_block(&block.into_block()).unwrap();
    let hello = hello_packet();
    for _ in 0..3 {
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::new(1, 2),
            original_len: hello.len() as u32,
            data: hello.as_slice().into(),
            options: vec![],
        };
        writer.write_block(&block.into_block()).unwrap();
        let block = SimplePacketBlock { original_len: 70, data: hello.as_slice().into() };
        writer.write_block(&block.into_block()).unwrap();
    }
    writer.into_inner()
}

proptest! {
    #[test]
    fn no_file_makes_a_panic(
        magic in prop::sample::select(vec![
            &[0xd4, 0xc3, 0xb2, 0xa1][..], &[0xa1, 0xb2, 0x3c, 0x4d], &[0x0a, 0x0d, 0x0d, 0x0a], &[],
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let file = [magic, &rest].concat();
        let _ = lines(&file);
    }

    /// Captures that are nearly good get further in.
    #[test]
    fn no_damage_makes_a_panic(
        pcapng: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: prop::sample::Index,
    ) {
        let mut file = if pcapng { pcapng_capture() } else { CAPTURE[..2000].to_vec() };
        for (at, value) in damage {
            let at = at.index(file.len());
            file[at] = value;
        }
        file.truncate(file.len() / 2 + cut.index(file.len() / 2 + 1));
        let _ = lines(&file);
        let _ = objects(&file);
    }

    #[test]
    fn no_datagram_makes_a_panic(
        front in prop::sample::select(vec![&[0x64, 0x40, 0xff, 0xff][..], &[0x65, 0x70], &[0x0a], &[]]),
        rest in prop::collection::vec(any::<u8>(), 0..200), ip_id: u16,
    ) {
        let (src, dst, _) = endpoints("127.0.0.8:4791", "239.7.7.7:4791");
        let payload = [front, &rest].concat();
        let (_, summary, result) =
            objects(&pcap_of(DataLink::RAW, &[ip_packet(src, dst, ip_id, &payload)]));
        prop_assert!(result.is_ok());
        prop_assert_eq!(summary.datagrams + summary.malformed, 1);
    }
}
