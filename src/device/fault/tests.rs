//! That an empty plan changes nothing is shown by the conformance suite in `tests/conformance`.

use std::collections::VecDeque;

use qcast_proto::addr::Psn;
use qcast_proto::qp::{QpAttrs, QpState, RawQKey, UdSetup};
use qcast_proto::time::{Duration, Instant};

use super::*;
use crate::device::sim::{Fabric, FabricConfig, PortConfig, SimDevice};
use crate::device::{
    AhAttrs, AhId, Armed, Completion, Device, DeviceError, QpId, RecvBuf, SendBuf, SendWr, WcStatus,
};

const SEED: u64 = 42;
const RECVS: usize = 16;

/// A sender and a receiver, each behind a plan of its own.
struct Pair {
    fabric: Fabric,
    a: FaultDevice<SimDevice>,
    b: FaultDevice<SimDevice>,
    qp: QpId,
    ah: AhId,
    qpn: qcast_proto::addr::Qpn,
    sends: Vec<SendBuf>,
    /// Receives of `b` that are not posted.
    free: Vec<RecvBuf>,
    got: Vec<Vec<u8>>,
    done: Vec<WcStatus>,
}

impl Pair {
    fn new(tx: &str, rx: &str) -> Self {
        Self::with_memory(tx, rx, false)
    }

    fn with_memory(tx: &str, rx: &str, own_memory: bool) -> Self {
        let fabric = Fabric::new(FabricConfig::default(), SEED);
        let open = |plan: &str| {
            let config = PortConfig { own_memory, ..Default::default() };
            let mut device = FaultDevice::new(fabric.open(config), plan.parse().unwrap());
            let qp = device.create_qp().unwrap();
            let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(5), sq_psn: Psn::new(0) };
            for attrs in [setup.init(), setup.rtr(), setup.rts()] {
                device.modify_qp(qp, &attrs).unwrap();
            }
            (device, qp)
        };
        let ((mut a, qp), (mut b, b_qp)) = (open(tx), open(rx));
        let to = AhAttrs { gid: b.port().gid, udp_port: b.port().udp_port };
        let (ah, _) = a.create_ah(&to).unwrap();
        let qpn = b.qpn(b_qp);
        let sends = a.alloc_send(RECVS).unwrap();
        let mut free = b.alloc_recv(RECVS).unwrap();
        b.post_recv(&mut free).unwrap();
        assert!(free.is_empty());
        Self { fabric, a, b, qp, ah, qpn, sends, free, got: Vec::new(), done: Vec::new() }
    }

    fn post(&mut self, n: u8) -> Result<(), DeviceError> {
        let mut buf = self.sends.pop().expect("a send is free");
        buf.room_mut()[0] = n;
        buf.set_len(1);
        let wr = SendWr { ah: self.ah, qpn: self.qpn, qkey: 5, token: n.into(), buf };
        let mut queue = VecDeque::from([wr]);
        let posted = self.a.post_send(self.qp, &mut queue);
        self.sends.extend(queue.into_iter().map(|wr| wr.buf));
        posted
    }

    /// Moves time on and takes what there is, without posting receives again.
    fn turn(&mut self, by: Duration) {
        let now = self.fabric.now() + by;
        let mut out = Vec::new();
        self.a.advance(now);
        self.a.poll(&mut out, 64);
        self.b.advance(now);
        self.b.poll(&mut out, 64);
        for completion in out {
            match completion {
                Completion::Send { buf, status, .. } => {
                    self.sends.push(buf);
                    self.done.push(status);
                }
                Completion::Recv { buf, status, .. } => {
                    assert_eq!(status, WcStatus::Success);
                    self.got.push(buf.payload().to_vec());
                    self.free.push(buf);
                }
            }
        }
    }

    /// Sends `count` datagrams, one a turn, with receives posted again, then waits for stragglers.
    fn stream(&mut self, count: u32) {
        for n in 0..count {
            self.post(n as u8).unwrap();
            self.turn(Duration::from_micros(10));
            self.b.post_recv(&mut self.free).unwrap();
            assert_eq!(self.free.len(), 0);
        }
        for _ in 0..200 {
            self.turn(Duration::from_micros(100));
            self.b.post_recv(&mut self.free).unwrap();
        }
        assert_eq!(self.b.posted_recvs(), RECVS, "no receive was lost or made");
        assert_eq!(self.sends.len(), RECVS, "no send was lost or made");
    }
}

#[test]
fn losses_are_counted_and_their_receives_posted_again() {
    let mut pair = Pair::new("", "loss=0.2");
    pair.stream(2000);
    let counters = pair.b.counters();
    assert!((320..480).contains(&counters.injected_drops), "{counters:?}");
    assert_eq!(counters.received + counters.injected_drops, 2000);
    assert_eq!(pair.got.len() as u64, counters.received);
    assert_eq!(pair.a.counters().injected_drops, 0);
}

#[test]
fn the_same_endpoint_has_the_same_luck_and_others_have_their_own() {
    let run = |tx: &str, rx: &str| {
        let mut pair = Pair::new(tx, rx);
        pair.stream(200);
        pair.got
    };
    let first = run("", "loss=0.5,seed=7");
    assert_eq!(first, run("", "loss=0.5,seed=7"));
    assert_ne!(first, run("", "loss=0.5,seed=8"));
    assert_ne!(first, run("loss=0.5,seed=7,side=tx", ""));
}

#[test]
fn delayed_datagrams_come_when_they_are_due() {
    let mut pair = Pair::new("", "delay=1ms");
    pair.post(1).unwrap();
    pair.turn(Duration::from_micros(10));
    assert!(pair.got.is_empty());
    let due = pair.fabric.now() + Duration::from_millis(1);
    assert_eq!(pair.b.next_deadline(), Some(due));
    assert_eq!(pair.b.arm(), Armed::Sleep);
    pair.b.advance(due);
    assert_eq!(pair.b.arm(), Armed::Again);
    pair.turn(Duration::ZERO);
    assert_eq!(pair.got, [[1]]);
    assert_eq!(pair.b.next_deadline(), None);
}

#[test]
fn reordered_datagrams_all_come() {
    let mut pair = Pair::new("", "reorder=0.1,reorder-by=35us");
    pair.stream(250);
    assert_eq!(pair.got.len(), 250);
    assert!(!pair.got.is_sorted());
    pair.got.sort();
    assert!(pair.got.iter().zip(0..).all(|(got, n)| *got == [n]));
}

#[test]
fn second_copies_come_in_receives_that_are_posted_anyway() {
    for own_memory in [false, true] {
        let mut pair = Pair::with_memory("", "dup=1", own_memory);
        pair.stream(100);
        assert_eq!(pair.got.len(), 200);
        pair.got.sort();
        assert!(pair.got.chunks(2).zip(0..).all(|(two, n)| two == [[n], [n]]));
    }
}

#[test]
fn damage_stays_within_the_payload() {
    for own_memory in [false, true] {
        let mut pair = Pair::with_memory("", "mangle=1", own_memory);
        pair.stream(100);
        assert_eq!(pair.got.len(), 100);
        assert!(pair.got.iter().zip(0..).all(|(got, n)| *got != [n] && got.len() <= 1));
    }
}

#[test]
fn a_starved_device_drops_what_comes_in_bursts() {
    // Case 70: the SRQ runs dry.
    let mut pair = Pair::new("", "starve=4");
    assert_eq!(pair.b.posted_recvs(), RECVS);
    for n in 0..10 {
        pair.post(n).unwrap();
    }
    pair.turn(Duration::from_millis(1));
    assert_eq!(pair.got.concat(), [0, 1, 2, 3]);
    assert_eq!(pair.b.counters().out_of_buffer, 6);
    pair.stream(100);
    assert_eq!(pair.b.counters().out_of_buffer, 6);
}

#[test]
fn what_is_lost_on_the_way_out_completes_all_the_same() {
    let mut pair = Pair::new("loss=1,side=tx", "");
    pair.stream(10);
    assert!(pair.got.is_empty());
    assert_eq!(pair.done, [WcStatus::Success; 10]);
    assert_eq!(pair.a.counters().injected_drops, 10);
}

#[test]
fn a_send_that_goes_out_twice_completes_once() {
    let mut pair = Pair::new("dup=1,side=tx", "");
    pair.stream(10);
    assert_eq!(pair.got.len(), 20);
    assert_eq!(pair.done, [WcStatus::Success; 10]);
}

#[test]
fn a_held_send_uses_its_address_handle_and_is_flushed_with_its_queue_pair() {
    let mut pair = Pair::new("delay=1ms,side=tx", "");
    pair.post(1).unwrap();
    assert!(matches!(pair.a.destroy_ah(pair.ah), Err(DeviceError::Busy(_))));
    assert_eq!(pair.a.next_deadline(), Some(Instant::from_millis(1)));
    pair.a.modify_qp(pair.qp, &QpAttrs::to(QpState::Err)).unwrap();
    pair.turn(Duration::from_millis(2));
    assert_eq!(pair.done, [WcStatus::WrFlushErr]);
    assert!(pair.got.is_empty());
    pair.a.destroy_ah(pair.ah).unwrap();
    assert!(matches!(pair.post(2), Err(DeviceError::NotReady(QpState::Err))));
    assert_eq!(pair.sends.len(), RECVS);
}
