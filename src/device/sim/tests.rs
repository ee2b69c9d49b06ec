//! What a fabric does beyond the device contract, which has its own suite in `tests/conformance`.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use qcast_proto::addr::{Gid, Psn, Qpn};
use qcast_proto::qp::{QpState, RawQKey, UdSetup};
use qcast_proto::time::{Duration, Instant};

use super::*;
use crate::device::impair::Impairment;
use crate::device::{
    AhAttrs, AhId, AhStatus, Completion, Device, DeviceEvent, QpId, RecvBuf, SendBuf, SendWr,
    WcStatus,
};

const KEY: u32 = 0x1234;

fn group() -> Gid {
    Gid::from(Ipv4Addr::new(239, 192, 1, 2))
}

/// A device with a queue pair in RTS, attached to the group.
struct Node {
    device: SimDevice,
    qp: QpId,
    group: AhId,
    sends: Vec<SendBuf>,
    recvs: usize,
    free: Vec<RecvBuf>,
    polled: Vec<Completion>,
    got: Vec<Vec<u8>>,
    done: Vec<WcStatus>,
    events: Vec<DeviceEvent>,
}

impl Node {
    fn new(fabric: &Fabric, config: PortConfig, recvs: usize) -> Self {
        let mut device = fabric.open(config);
        let qp = device.create_qp().unwrap();
        let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(KEY), sq_psn: Psn::new(0) };
        for attrs in [setup.init(), setup.rtr(), setup.rts()] {
            device.modify_qp(qp, &attrs).unwrap();
        }
        device.join(qp, group()).unwrap();
        let Some(DeviceEvent::Joined { ah, .. }) = device.poll_event() else { panic!("no join") };
        let mut free = device.alloc_recv(recvs).unwrap();
        device.post_recv(&mut free).unwrap();
        let sends = device.alloc_send(4).unwrap();
        Self {
            device,
            qp,
            group: ah,
            sends,
            recvs,
            free,
            polled: Vec::new(),
            got: Vec::new(),
            done: Vec::new(),
            events: Vec::new(),
        }
    }

    fn send(&mut self, ah: AhId, qpn: Qpn, payload: &[u8]) {
        let mut buf = self.sends.pop().expect("a send is free");
        buf.room_mut()[..payload.len()].copy_from_slice(payload);
        buf.set_len(payload.len());
        let mut queue = VecDeque::from([SendWr { ah, qpn, qkey: KEY, token: 0, buf }]);
        self.device.post_send(self.qp, &mut queue).unwrap();
        assert!(queue.is_empty());
        self.poll();
    }

    fn multicast(&mut self, payload: &[u8]) {
        self.send(self.group, Qpn::MULTICAST, payload);
    }

    fn ah_to(&mut self, other: &Node) -> AhId {
        let port = other.device.port();
        let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
        let (ah, status) = self.device.create_ah(&to).unwrap();
        assert_eq!(status, AhStatus::Ready);
        ah
    }

    fn qpn(&self) -> Qpn {
        self.device.qpn(self.qp)
    }

    /// Takes everything, and posts the receives again.
    fn poll(&mut self) {
        self.take();
        self.device.post_recv(&mut self.free).unwrap();
    }

    /// Takes everything, and keeps the receives.
    fn take(&mut self) {
        self.device.poll(&mut self.polled, usize::MAX);
        for completion in self.polled.drain(..) {
            match completion {
                Completion::Send { buf, status, .. } => {
                    self.sends.push(buf);
                    self.done.push(status);
                }
                Completion::Recv { buf, .. } => {
                    self.got.push(buf.payload().to_vec());
                    self.free.push(buf);
                }
            }
        }
        self.events.extend(std::iter::from_fn(|| self.device.poll_event()));
        let accounting = self.device.fabric().accounting(self.device.index()).unwrap();
        assert_eq!(accounting.posted + accounting.in_completion + self.free.len(), self.recvs);
    }
}

/// Lets everything happen that was begun.
fn settle(fabric: &Fabric, nodes: &mut [&mut Node]) {
    let mut ready = Vec::new();
    while let Some(at) = fabric.next_event() {
        fabric.step_to(at, &mut ready);
        for index in ready.drain(..) {
            for node in nodes.iter_mut().filter(|node| node.device.index() == index) {
                node.poll();
            }
        }
    }
}

fn pair(seed: u64) -> (Fabric, Node, Node) {
    let fabric = Fabric::new(FabricConfig::default(), seed);
    let a = Node::new(&fabric, PortConfig::default(), 64);
    let b = Node::new(&fabric, PortConfig::default(), 64);
    (fabric, a, b)
}

/// A run with every kind of trouble; what was logged, and the digest.
fn troubled(seed: u64) -> (Vec<Record>, u64) {
    let fabric = Fabric::new(FabricConfig { trace: true, ..Default::default() }, seed);
    let rx = Impairment {
        loss: 0.1,
        burst: 3.0,
        jitter: Duration::from_micros(20),
        reorder: 0.1,
        duplicate: 0.1,
        corrupt: 0.05,
        mangle: 0.05,
        ..Default::default()
    };
    let mut nodes: Vec<_> =
        (0..5).map(|_| Node::new(&fabric, PortConfig { rx, ..Default::default() }, 32)).collect();
    for n in 0..100_u32 {
        let sender = n as usize % nodes.len();
        nodes[sender].multicast(&n.to_be_bytes());
        settle(&fabric, &mut nodes.iter_mut().collect::<Vec<_>>());
    }
    (fabric.take_log(), fabric.digest())
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let (log, digest) = troubled(1);
    assert!(log.len() > 500);
    assert_eq!((log.clone(), digest), troubled(1));
    let (other, other_digest) = troubled(2);
    assert_ne!(log, other);
    assert_ne!(digest, other_digest);
}

#[test]
fn one_multicast_to_ten_thousand_ports_is_one_event_and_one_copy() {
    let fabric = Fabric::new(FabricConfig::default(), 3);
    let (ports, rounds) = (10_000, 20);
    let config = PortConfig { loops_back: false, ..Default::default() };
    let mut nodes: Vec<_> = (0..ports).map(|_| Node::new(&fabric, config.clone(), 4)).collect();
    let mut ready = Vec::new();
    for round in 0..rounds {
        nodes[0].multicast(&[round; 1000]);
        assert_eq!(fabric.pending_events(), 1);
        fabric.step_to(fabric.next_event().unwrap(), &mut ready);
        assert_eq!(ready.len(), ports - 1);
        for index in ready.drain(..) {
            let node = &mut nodes[index];
            node.device.poll(&mut node.polled, 16);
            let Some(Completion::Recv { buf, .. }) = node.polled.pop() else { panic!("nothing") };
            assert_eq!(buf.payload().len(), 1000);
            node.free.push(buf);
            node.device.post_recv(&mut node.free).unwrap();
        }
    }
    assert_eq!(fabric.tally(Outcome::Delivered), (ports as u64 - 1) * u64::from(rounds));
    assert_eq!(fabric.next_event(), None);
}

#[test]
fn receivers_at_different_times_share_one_event_too() {
    let fabric = Fabric::new(FabricConfig::default(), 4);
    let rx = Impairment { jitter: Duration::from_micros(100), ..Default::default() };
    let mut nodes: Vec<_> =
        (0..1000).map(|_| Node::new(&fabric, PortConfig { rx, ..Default::default() }, 4)).collect();
    nodes[0].multicast(b"hello");
    let mut ready = Vec::new();
    let mut steps = 0;
    while let Some(at) = fabric.next_event() {
        assert!(fabric.pending_events() <= 1);
        fabric.step_to(at, &mut ready);
        steps += 1;
        for index in ready.drain(..) {
            nodes[index].poll();
        }
    }
    assert!(steps > 900, "{steps} arrivals");
    assert!(nodes.iter().all(|node| node.got == [b"hello"]));
}

#[test]
fn loss_is_each_receivers_own_unless_it_is_the_senders() {
    let run = |tx, rx| {
        let fabric = Fabric::new(FabricConfig::default(), 5);
        let mut a = Node::new(&fabric, PortConfig { tx, ..Default::default() }, 8);
        let config = PortConfig { rx, ..Default::default() };
        let mut b = Node::new(&fabric, config.clone(), 8);
        let mut c = Node::new(&fabric, config, 8);
        for n in 0..2000_u32 {
            a.multicast(&n.to_be_bytes());
            settle(&fabric, &mut [&mut a, &mut b, &mut c]);
        }
        (b.got, c.got)
    };
    let (clear, lossy) = (Impairment::default(), Impairment::lossy(0.1));
    let (b, c) = run(clear, lossy);
    assert!((1740..1860).contains(&b.len()) && (1740..1860).contains(&c.len()));
    assert_ne!(b, c);
    let (b, c) = run(lossy, clear);
    assert!((1740..1860).contains(&b.len()));
    assert_eq!(b, c);
}

#[test]
fn partitions_hold_and_heal() {
    let (fabric, mut a, mut b) = pair(6);
    let ah = a.ah_to(&b);
    let qpn = b.qpn();
    let both = |a: &mut Node, b: &mut Node| {
        a.multicast(b"m");
        a.send(ah, qpn, b"u");
        settle(&fabric, &mut [a, b]);
        std::mem::take(&mut b.got).concat()
    };
    fabric.partition(&[&[0], &[1]], Traffic::All);
    assert_eq!(both(&mut a, &mut b), b"");
    fabric.heal();
    assert_eq!(both(&mut a, &mut b), b"mu");
    // Case 122: unicast gets through, multicast does not.
    fabric.partition(&[&[0], &[1]], Traffic::Multicast);
    assert_eq!(both(&mut a, &mut b), b"u");
    fabric.heal();
    fabric.set_deaf(1, Traffic::Unicast, true);
    assert_eq!(both(&mut a, &mut b), b"m");
    fabric.set_deaf(1, Traffic::Unicast, false);
    fabric.set_link(1, false);
    assert_eq!(both(&mut a, &mut b), b"");
    assert!(!b.device.port().active);
    fabric.set_link(1, true);
    assert_eq!(both(&mut a, &mut b), b"mu");
    assert_eq!(b.events.len(), 2, "{:?}", b.events);
}

#[test]
fn rules_choose_what_to_drop_and_to_delay() {
    let (fabric, mut a, mut b) = pair(7);
    let rule = fabric.add_rule(|passing| match (passing.to, passing.payload[0]) {
        (1, 1) => Verdict::Drop,
        (1, 2) => Verdict::Delay(Duration::from_millis(1)),
        _ => Verdict::Pass,
    });
    for n in 0..4 {
        a.multicast(&[n]);
    }
    settle(&fabric, &mut [&mut a, &mut b]);
    assert_eq!(b.got.concat(), [0, 3, 2]);
    assert_eq!(a.got.concat(), [0, 1, 2, 3]);
    assert_eq!(fabric.tally(Outcome::Ruled), 1);
    assert!(fabric.remove_rule(rule) && !fabric.remove_rule(rule));
    a.multicast(&[1]);
    settle(&fabric, &mut [&mut a, &mut b]);
    assert_eq!(b.got.concat(), [0, 3, 2, 1]);
}

#[test]
fn damage_is_caught_by_the_icrc_unless_it_is_hostile() {
    let (fabric, mut a, mut b) = pair(8);
    fabric.set_rx(1, Impairment { corrupt: 1.0, ..Default::default() });
    a.multicast(&[7; 100]);
    settle(&fabric, &mut [&mut a, &mut b]);
    assert!(b.got.is_empty());
    assert_eq!(b.device.counters().icrc_errors, 1);
    fabric.set_rx(1, Impairment { mangle: 1.0, ..Default::default() });
    a.multicast(&[7; 100]);
    settle(&fabric, &mut [&mut a, &mut b]);
    assert_eq!(b.got.len(), 1);
    assert_ne!(b.got[0], [7; 100]);
    assert_eq!(a.got, [[7; 100], [7; 100]], "the copy that others share is whole");
}

#[test]
fn strangers_datagrams_pass_the_same_checks() {
    let (fabric, mut a, mut b) = pair(9);
    fabric.inject(Stray::to_port(1, b.qpn(), KEY, &b"right key"[..]));
    fabric.inject(Stray::to_port(1, b.qpn(), KEY + 1, &b"wrong key"[..]));
    fabric.inject(Stray::to_port(1, Qpn::new(0xbad), KEY, &b"no such qp"[..]));
    let mut corrupt = Stray::to_group(group(), KEY, &b"corrupt"[..]);
    corrupt.corrupt = true;
    fabric.inject(corrupt);
    fabric.inject(Stray::to_group(group(), KEY, &b"to all"[..]));
    settle(&fabric, &mut [&mut a, &mut b]);
    assert_eq!(b.got, [&b"right key"[..], b"to all"]);
    assert_eq!(a.got, [b"to all"]);
    let counters = b.device.counters();
    assert_eq!((counters.qkey_violations, counters.malformed, counters.icrc_errors), (1, 1, 1));
}

#[test]
fn a_paused_process_runs_its_srq_dry() {
    let (fabric, mut a, mut b) = pair(10);
    fabric.pause(1);
    for n in 0..100 {
        a.multicast(&[n]);
        settle(&fabric, &mut [&mut a]);
    }
    b.take();
    assert!(b.got.is_empty());
    fabric.resume(1);
    settle(&fabric, &mut [&mut a, &mut b]);
    assert_eq!(b.got.len(), 64);
    assert_eq!(b.device.counters().out_of_buffer, 36);
}

#[test]
fn a_failed_send_moves_the_queue_pair_as_its_device_would() {
    // Case 17: SQE on hardware, ERR on Soft-RoCE, and there no event tells (case 92).
    for (personality, state, events) in
        [(Personality::Hardware, QpState::Sqe, 1), (Personality::SoftRoce, QpState::Err, 0)]
    {
        let fabric = Fabric::new(FabricConfig::default(), 12);
        let config = PortConfig { personality, rate: Some(1_000_000), ..Default::default() };
        let mut a = Node::new(&fabric, config, 8);
        fabric.fail_next_send(0, a.qp, WcStatus::LocProtErr);
        for n in 0..3 {
            a.multicast(&[n]);
        }
        settle(&fabric, &mut [&mut a]);
        assert_eq!(
            a.done,
            [WcStatus::LocProtErr, WcStatus::WrFlushErr, WcStatus::WrFlushErr],
            "case 91: every send in flight is reported"
        );
        assert_eq!(a.device.query_qp(a.qp).unwrap().state, state);
        assert_eq!(a.events.len(), events);
    }
}

#[test]
fn a_rate_spaces_sends_out() {
    let fabric = Fabric::new(FabricConfig::default(), 13);
    // 938 bytes and 62 of headers at a megabyte a second: a millisecond each.
    let config = PortConfig { rate: Some(1_000_000), ..Default::default() };
    let mut a = Node::new(&fabric, config, 8);
    for n in 0..3 {
        a.multicast(&[n; 934]);
    }
    assert_eq!(fabric.accounting(0).unwrap().sends_posted, 3);
    assert_eq!(fabric.next_event(), Some(Instant::from_millis(1)));
    settle(&fabric, &mut [&mut a]);
    assert_eq!(fabric.now(), Instant::from_millis(3) + FabricConfig::default().latency);
    assert_eq!(a.got.len(), 3);
}

#[test]
fn a_restarted_process_takes_the_old_ones_address() {
    let (fabric, mut a, b) = pair(14);
    let ah = a.ah_to(&b);
    let (gid, old) = (b.device.port().gid, b.qpn());
    drop(b);
    a.send(ah, old, b"to nobody");
    settle(&fabric, &mut [&mut a]);
    let config = PortConfig { gid: Some(gid), ..Default::default() };
    let mut c = Node::new(&fabric, config, 8);
    assert_eq!(c.device.index(), 2);
    a.send(ah, old, b"to the old one");
    a.send(ah, c.qpn(), b"to the new one");
    settle(&fabric, &mut [&mut a, &mut c]);
    assert_eq!(c.got, [b"to the new one"]);
    assert_eq!(c.device.counters().malformed, 1);
}

#[test]
fn addresses_resolve_late_or_not_at_all() {
    let config = FabricConfig { ah_delay: Duration::from_millis(2), ..Default::default() };
    let fabric = Fabric::new(config, 15);
    let mut a = Node::new(&fabric, PortConfig::default(), 8);
    let b = Node::new(&fabric, PortConfig::default(), 8);
    let to = AhAttrs { gid: b.device.port().gid, udp_port: 4791 };
    let (late, status) = a.device.create_ah(&to).unwrap();
    assert_eq!(status, AhStatus::Pending);
    fabric.set_unresolvable(to.gid, true);
    let (never, _) = a.device.create_ah(&to).unwrap();
    fabric.set_unresolvable(to.gid, false);
    a.device.advance(Instant::from_millis(2));
    assert!(matches!(a.device.poll_event(), Some(DeviceEvent::AhReady { ah }) if ah == late));
    fabric.set_unresolvable(to.gid, true);
    a.device.advance(Instant::from_millis(1000));
    assert!(matches!(a.device.poll_event(), Some(DeviceEvent::AhFailed { ah, .. }) if ah == never));
}

#[test]
fn a_device_that_is_lost_says_so_and_gives_sends_back() {
    let fabric = Fabric::new(FabricConfig::default(), 16);
    let mut a = Node::new(&fabric, PortConfig { rate: Some(1000), ..Default::default() }, 8);
    a.multicast(b"stuck");
    fabric.lose(0);
    a.take();
    assert_eq!(a.done, [WcStatus::WrFlushErr]);
    assert!(matches!(a.events[..], [DeviceEvent::Lost { .. }]));
    assert!(a.device.create_qp().is_err());
    assert!(a.device.query_qp(a.qp).is_err());
}

#[test]
fn a_refused_modify_changes_nothing() {
    // Case 13: the walk back from ERR fails on some adapters.
    let (fabric, mut a, _b) = pair(17);
    fabric.fault_qp(0, a.qp, QpState::Err, true);
    fabric.refuse_modify(0, a.qp, 1, 22);
    let reset = qcast_proto::qp::QpAttrs::to(QpState::Reset);
    let error = a.device.modify_qp(a.qp, &reset).unwrap_err();
    assert!(error.to_string().contains("ibv_modify_qp"), "{error}");
    assert_eq!(a.device.query_qp(a.qp).unwrap().state, QpState::Err);
    a.device.modify_qp(a.qp, &reset).unwrap();
    assert_eq!(a.device.query_qp(a.qp).unwrap().state, QpState::Reset);
}
