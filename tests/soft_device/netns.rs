//! Two hosts: network namespaces joined by a veth pair. Needs root; each test says so if it is skipped.
//!
//! A test here sets the hosts up and runs this same program in them, one ignored test each.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};

use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice};
use qcast::device::{AhAttrs, Device, DeviceError, DeviceEvent};
use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::time::Instant;
use qcast_proto::wire::icrc::{Icrc, IcrcCheck};
use qcast_proto::wire::ip::{Ethernet, Ip, Udp};
use socket2::{Domain, Protocol, Socket, Type};

use crate::rig::{Rig, gid, pattern};

/// Two namespaces that are deleted when this is dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None`, with the reason told, if this cannot be had.
    fn new(test: &str) -> Option<Self> {
        let pid = std::process::id();
        let names = ["a", "b"].map(|host| format!("qcast-{pid}-{test}-{host}"));
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("-n {a} link add wire type veth peer name wire netns {b}"));
        if !made {
            skipped("no network namespaces here (root and iproute2 are needed)");
            return None;
        }
        for (host, name) in [(1, a), (2, b)] {
            for set in [
                format!("address add 10.9.0.{host}/24 dev wire"),
                format!("address add fd09::{host}/64 dev wire nodad"),
                // What leaves is cut into datagrams on the sending host, as a cable would show them.
                "link set wire gso_max_segs 1".into(),
                "link set wire up".into(),
                "link set lo up".into(),
            ] {
                assert!(ip(&format!("-n {name} {set}")), "{set}");
            }
        }
        for name in &hosts.names {
            // The kernel notes a carrier, and makes the route for groups, when it comes to it.
            until_shown(&format!("-n {name} link show wire"), "state UP");
            until_shown(&format!("-n {name} -6 route show table all dev wire"), "ff00::/8");
        }
        Some(hosts)
    }

    /// Runs an ignored test of this program in a host.
    fn run(&self, host: usize, test: &str, arguments: &[&str]) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &self.names[host]])
            .arg(std::env::current_exe().unwrap())
            .args([&format!("netns::{test}"), "--exact", "--ignored", "--nocapture"])
            .env("QCAST_TEST_HOST", arguments.join(" "))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns delete {name}"));
        }
    }
}

/// Past the test harness, which would keep it to itself.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn ip(arguments: &str) -> bool {
    let run = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Asks until the answer has `text` in it.
fn until_shown(question: &str, text: &str) {
    for _ in 0..2_000 {
        let answer = Command::new("ip").args(question.split(' ')).output().unwrap();
        if String::from_utf8_lossy(&answer.stdout).contains(text) {
            return;
        }
    }
    panic!("`ip {question}` never showed {text:?}");
}

/// The arguments that [`Hosts::run`] was given.
fn arguments() -> Vec<String> {
    let all = std::env::var("QCAST_TEST_HOST").expect("this test is run by another one");
    all.split(' ').map(str::to_owned).collect()
}

const SENDS: usize = 40;

fn datagrams_over_a_cable(family: &str, addresses: [&str; 2], group: &str) {
    let Some(hosts) = Hosts::new(family) else { return };
    let mut receiver = hosts.run(1, "receiver", &[addresses[1], addresses[0], group]);
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
    let qpn = loop {
        let line = lines.next().expect("the receiver says its number").unwrap();
        if let Some((_, qpn)) = line.split_once("ready ") {
            break qpn.to_owned();
        }
    };
    let mut sender = hosts.run(0, "sender", &[addresses[0], addresses[1], group, &qpn]);
    // Both must be read, or they would block on a full pipe.
    let said: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(receiver.wait().unwrap().success(), "the receiver failed: {said:#?}");
    assert!(sender.wait().unwrap().success(), "the sender failed");
}

#[test]
fn ipv4_datagrams_over_a_cable_are_right_to_the_last_bit() {
    datagrams_over_a_cable("v4", ["10.9.0.1", "10.9.0.2"], "239.193.9.9");
}

#[test]
fn ipv6_datagrams_over_a_cable_are_right_to_the_last_bit() {
    datagrams_over_a_cable("v6", ["fd09::1", "fd09::2"], "ff0e::9:9");
}

#[test]
fn what_the_kernel_has_no_room_for_is_sent_later_and_once() {
    let Some(hosts) = Hosts::new("slow") else { return };
    let name = &hosts.names[0];
    let slow = format!(
        "netns exec {name} tc qdisc add dev wire root tbf rate 20mbit burst 16kb latency 9s"
    );
    if !ip(&slow) {
        skipped("no tbf queueing discipline here (tc, sch_tbf)");
        return;
    }
    let mut receiver = hosts.run(1, "slow_receiver", &["10.9.0.2"]);
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
    let qpn = loop {
        let line = lines.next().expect("the receiver says its number").unwrap();
        if let Some((_, qpn)) = line.split_once("ready ") {
            break qpn.to_owned();
        }
    };
    let sender = hosts.run(0, "slow_sender", &["10.9.0.1", "10.9.0.2", &qpn]);
    let said: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(receiver.wait().unwrap().success(), "the receiver failed: {said:#?}");
    assert!(sender.wait_with_output().unwrap().status.success(), "the sender failed");
}

const SLOW_SENDS: usize = 2_000;

#[test]
#[ignore = "one of two hosts; the test above runs it"]
fn slow_sender() {
    let [me, peer, qpn] = arguments().try_into().unwrap();
    let mut config = at(&me);
    config.send_buffer = 32 << 10;
    let mut rig = Rig::ready(&config);
    let to = AhAttrs { gid: gid(&peer), udp_port: 4791 };
    let (one, _) = rig.device.create_ah(&to).unwrap();
    let qpn = Qpn::new(qpn.parse().unwrap());
    let (mut next, mut full, mut now) = (0, 0, Instant::ZERO);
    let mut wrs = VecDeque::new();
    while next < SLOW_SENDS || !wrs.is_empty() {
        while next < SLOW_SENDS && wrs.len() < 100 {
            wrs.push_back(rig.wr(one, qpn, &pattern(next, 900 + next / 50)));
            next += 1;
        }
        rig.device.advance(now);
        rig.device.post_send(rig.qp, &mut wrs).unwrap();
        rig.turn();
        if let Some(at) = rig.device.next_deadline() {
            assert!(at > now && !wrs.is_empty());
            full += 1;
            now = at;
            std::thread::yield_now();
        } else {
            assert!(wrs.is_empty(), "what is left must have a time to try it again");
        }
    }
    assert!(full > 0, "the wire was meant to be too slow");
    assert_eq!(rig.device.counters().sent, SLOW_SENDS as u64);
}

#[test]
#[ignore = "one of two hosts; the test above runs it"]
fn slow_receiver() {
    let [me] = arguments().try_into().unwrap();
    let mut rig = Rig::ready(&at(&me));
    println!("ready {}", rig.qpn().get());
    rig.until_arrived(SLOW_SENDS);
    for (n, payload) in rig.payloads().into_iter().enumerate() {
        assert!(payload == pattern(n, 900 + n / 50), "datagram {n}");
    }
}

fn at(address: &str) -> SoftConfig {
    SoftConfig::new(SoftAddress::Addr(address.parse().unwrap()))
}

#[test]
#[ignore = "one of two hosts; the tests above run it"]
fn sender() {
    let [me, peer, group, qpn] = arguments().try_into().unwrap();
    let mut rig = Rig::ready(&at(&me));
    assert_eq!(rig.device.caps().max_payload, 1024, "a link MTU of 1500 carries 1024");
    let all = rig.join(&group).unwrap();
    let to = AhAttrs { gid: gid(&peer), udp_port: 4791 };
    let (one, _) = rig.device.create_ah(&to).unwrap();
    let payload: Vec<_> = (0..SENDS).map(|n| pattern(n, 1024)).collect();
    let payload: Vec<_> = payload.iter().map(Vec::as_slice).collect();
    rig.send(all, Qpn::MULTICAST, &payload);
    rig.send(one, Qpn::new(qpn.parse().unwrap()), &payload);
}

#[test]
#[ignore = "one of two hosts; the tests above run it"]
fn receiver() {
    let [me, peer, group] = arguments().try_into().unwrap();
    let all_protocols = Protocol::from(i32::from(3_u16.to_be()));
    let capture = Socket::new(Domain::PACKET, Type::RAW, Some(all_protocols)).unwrap();
    let mut rig = Rig::ready(&at(&me));
    rig.join(&group).unwrap();
    println!("ready {}", rig.qpn().get());
    rig.until_arrived(2 * SENDS);
    let multicasts = rig.arrived.iter().filter(|(_, source, _)| source.multicast).count();
    assert_eq!(multicasts, SENDS);
    assert_eq!(rig.device.counters().icrc_errors, 0);

    // What the wire carried: each datagram a frame of its own, with the identification that its ICRC was made for.
    capture.set_nonblocking(true).unwrap();
    let [me, peer, group] = [me, peer, group].map(|ip| ip.parse::<IpAddr>().unwrap());
    let mut frame = [0; 4096];
    let mut seen = [0, 0];
    while let Ok(len) = (&capture).read(&mut frame) {
        let Ok(packet) = Ethernet::new_checked(&frame[..len]) else { continue };
        let Ok(packet) = Ip::new_checked(packet.payload()) else { continue };
        if packet.src() != peer || !packet.starts_udp() {
            continue;
        }
        let udp = Udp::new_checked(packet.payload()).unwrap();
        let kind = match packet.dst() {
            ip if ip == group => 0,
            ip if ip == me => 1,
            _ => continue,
        };
        let [from, to] = [(packet.src(), udp.src_port()), (packet.dst(), udp.dst_port())];
        let flow = Icrc::new(SocketAddr::from(from), SocketAddr::from(to)).unwrap();
        let id = match packet {
            Ip::V4(packet) => {
                assert!(packet.dont_fragment());
                assert_eq!(usize::from(packet.id()), seen[kind], "counted up from 0");
                packet.id()
            }
            Ip::V6(_) => 0,
        };
        assert_eq!(udp.payload().len(), 1048);
        assert_eq!(flow.verify_with_id(id, udp.payload()), IcrcCheck::Ok, "number {seen:?}");
        seen[kind] += 1;
    }
    assert_eq!(seen, [SENDS, SENDS]);
}

#[test]
fn the_port_follows_its_interface() {
    let Some(hosts) = Hosts::new("port") else { return };
    let output = hosts.run(0, "port", &[]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
}

#[test]
#[ignore = "runs in a host of its own; the test above runs it"]
fn port() {
    let interface = |name: &str| SoftConfig::new(SoftAddress::Interface(name.into()));
    let mut rig = Rig::ready(&interface("wire"));
    let mut second = 0;
    let mut look = |rig: &mut Rig| {
        second += 2;
        rig.device.advance(Instant::from_millis(second * 1000));
        rig.device.poll_event()
    };
    assert_eq!(rig.device.port().gid.ip(), "10.9.0.1".parse::<IpAddr>().unwrap());
    assert_eq!(rig.device.caps().name, "soft:wire");
    assert!(look(&mut rig).is_none());

    // Another process of this host has 4791, so the second device takes another port, and both are reached.
    let mut other = Rig::ready(&interface("wire"));
    assert_eq!((rig.device.port().udp_port, other.device.port().udp_port), (4791, 4792));
    let (to_other, to_rig) = (rig.ah(&other), other.ah(&rig));
    rig.send(to_other, other.qpn(), &[b"there"]);
    other.until_arrived(1);
    other.send(to_rig, rig.qpn(), &[b"back"]);
    rig.until_arrived(1);
    assert_eq!(rig.arrived[0].1.udp_port, 4792);
    let group = "239.193.1.1";
    let all = rig.join(group).unwrap();
    other.join(group).unwrap();
    rig.send(all, Qpn::MULTICAST, &[b"to both"]);
    other.until_arrived(2);

    // The MTU shrinks under it.
    assert!(ip("link set wire mtu 600"));
    assert!(matches!(look(&mut rig), Some(DeviceEvent::PortChanged)));
    assert_eq!((rig.device.port().mtu, rig.device.caps().max_payload), (512, 1024));
    let mut wrs = VecDeque::from([rig.wr(all, Qpn::MULTICAST, &[0; 513])]);
    let error = rig.device.post_send(rig.qp, &mut wrs).unwrap_err();
    assert!(matches!(error, DeviceError::TooLarge { len: 513, max: 512 }), "{error:?}");
    rig.send(all, Qpn::MULTICAST, &[&[0; 512]]);
    assert!(ip("link set wire mtu 9000"));
    assert!(matches!(look(&mut rig), Some(DeviceEvent::PortChanged)));
    assert_eq!(rig.device.port().mtu, 1024, "buffers have the size of the opening");
    assert_eq!(SoftDevice::open(&interface("wire")).unwrap().caps().max_payload, 4096);

    // The link goes down, up, and away.
    assert!(ip("link set wire down"));
    assert!(matches!(look(&mut rig), Some(DeviceEvent::PortChanged)));
    assert!(!rig.device.port().active && look(&mut rig).is_none());
    let down = SoftDevice::open(&interface("wire")).unwrap_err();
    assert!(down.to_string().contains("ip link set wire up"), "{down}");
    let mut wrs = VecDeque::from([rig.wr(all, Qpn::MULTICAST, b"to nobody")]);
    let error = rig.device.post_send(rig.qp, &mut wrs).unwrap_err();
    assert!(matches!(error, DeviceError::Os { call: "sendmsg", .. }), "{error:?}");
    assert_eq!(wrs.len(), 1);
    assert!(ip("link set wire up"));
    until_shown("link show wire", "state UP");
    assert!(matches!(look(&mut rig), Some(DeviceEvent::PortChanged)));
    rig.post(wrs);
    assert!(ip("link delete wire"));
    assert!(matches!(look(&mut rig), Some(DeviceEvent::Lost)));
    assert!(look(&mut rig).is_none());
    let error = rig.join("239.193.1.2").unwrap_err();
    assert!(matches!(error, DeviceError::Os { .. }), "{error:?}");

    // IPv6 groups need a route on loopback, and the error says which.
    let v6 = at("::1");
    let (mut a, mut b) = (Rig::ready(&v6), Rig::ready(&v6));
    let error = a.join("ff0e::1:1").unwrap_err();
    assert!(matches!(error, DeviceError::NoRoute { .. }), "{error:?}");
    let advice = error.to_string();
    let (_, advice) = advice.split_once("as root: ip ").unwrap();
    assert!(ip(advice), "{advice}");
    let all = a.join("ff0e::1:1").unwrap();
    b.join("ff0e::1:1").unwrap();
    a.send(all, Qpn::MULTICAST, &[b"six"]);
    for rig in [&mut a, &mut b] {
        rig.until_arrived(1);
        assert_eq!(rig.arrived[0].1.gid, Gid::from("::1".parse::<IpAddr>().unwrap()));
        assert!(rig.arrived[0].1.multicast);
    }
}
