//! Three devices, what they own, and what came out of them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use qcast::device::{
    AhAttrs, AhId, AhStatus, Completion, Device, DeviceError, DeviceEvent, PortCounters, QpId,
    RecvBuf, SendBuf, SendWr, Source, WcStatus,
};
use qcast_proto::addr::{Gid, Psn, Qpn};
use qcast_proto::qp::{Attr, QpAttrs, QpState, QpType, RawQKey, UdSetup, path};

use crate::bench::{Bench, MTU, PATIENCE, SENDS, SRQ};

/// Runs a case on devices of its own, and checks afterwards that no buffer was lost or made.
pub(crate) fn run<B: Bench>(case: fn(&mut Rig<B>)) {
    let mut rig = Rig::open(&[MTU; 3]).expect("devices that are all alike can be had");
    case(&mut rig);
    rig.check_buffers();
}

/// Devices and what they own. Devices, and all that is theirs, are named by number.
pub(crate) struct Rig<B> {
    pub(crate) bench: B,
    pub(crate) ends: Vec<End>,
}

/// What belongs to one device.
#[derive(Default)]
pub(crate) struct End {
    pub(crate) sends: Vec<SendBuf>,
    pub(crate) recvs: Vec<RecvBuf>,
    pub(crate) got: Vec<Got>,
    pub(crate) done: Vec<Done>,
    pub(crate) events: Vec<DeviceEvent>,
    allocated_recvs: usize,
    allocated_sends: usize,
}

/// A receive that ended.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) qp: Option<QpId>,
    pub(crate) payload: Vec<u8>,
    pub(crate) source: Source,
    pub(crate) status: WcStatus,
}

/// A send that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) qp: QpId,
    pub(crate) ah: AhId,
    pub(crate) token: u64,
    pub(crate) status: WcStatus,
}

impl<B: Bench> Rig<B> {
    /// Devices with these path MTUs, all with buffers and none posted; `None` if they cannot be had.
    pub(crate) fn open(mtus: &[usize]) -> Option<Self> {
        let mut bench = B::open(mtus)?;
        let ends = (0..mtus.len())
            .map(|n| {
                let device = bench.device(n);
                let sends = device.alloc_send(2 * SENDS).expect("send buffers");
                let recvs = device.alloc_recv(SRQ + 8).expect("receive buffers");
                let (allocated_sends, allocated_recvs) = (sends.len(), recvs.len());
                End { sends, recvs, allocated_sends, allocated_recvs, ..End::default() }
            })
            .collect();
        Some(Self { bench, ends })
    }

    pub(crate) fn device(&mut self, n: usize) -> &mut B::Device {
        self.bench.device(n)
    }

    /// A new queue pair in RESET. One that rdma_cm made is in RTS, and is taken back to RESET.
    pub(crate) fn create(&mut self, n: usize) -> QpId {
        let qp = self.device(n).create_qp().expect("a queue pair");
        let born = self.device(n).caps().new_qp;
        assert_eq!(self.state(n, qp), born, "C-STATE-1");
        if born != QpState::Reset {
            let reset = QpAttrs::to(QpState::Reset);
            self.device(n).modify_qp(qp, &reset).expect("a way back to RESET");
        }
        qp
    }

    /// A new queue pair, in RTS with this key: walked there, or, if it was born there, given the key.
    pub(crate) fn qp(&mut self, n: usize, qkey: u32) -> QpId {
        if self.device(n).caps().new_qp == QpState::Reset {
            let qp = self.create(n);
            self.walk(n, qp, QpState::Rts, qkey);
            return qp;
        }
        let qp = self.device(n).create_qp().expect("a queue pair");
        let key = QpAttrs::new().with(Attr::QKey(RawQKey(qkey)));
        self.device(n).modify_qp(qp, &key).expect("the key can change in RTS");
        let info = self.device(n).query_qp(qp).expect("the device answers");
        assert_eq!((info.state, info.qkey), (QpState::Rts, qkey));
        qp
    }

    /// Walks a queue pair to a state the shortest legal way.
    pub(crate) fn walk(&mut self, n: usize, qp: QpId, to: QpState, qkey: u32) {
        let from = self.state(n, qp);
        let path = path(from, to).unwrap_or_else(|| panic!("no way from {from} to {to}"));
        for hop in path.hops(QpType::Ud) {
            let attrs = setup(qkey).attrs(hop.from, hop.to).expect("a hop is a legal step");
            self.device(n).modify_qp(qp, &attrs).unwrap_or_else(|e| panic!("{hop:?}: {e}"));
            if hop.to == QpState::Sqd {
                self.until("the end of sends that were begun (C-STATE-8)", |rig| {
                    !rig.device(n).query_qp(qp).expect("the device answers").draining
                });
            }
        }
    }

    pub(crate) fn state(&mut self, n: usize, qp: QpId) -> QpState {
        self.device(n).query_qp(qp).expect("the device answers").state
    }

    /// Posts `count` receives.
    pub(crate) fn post(&mut self, n: usize, count: usize) {
        let recvs = &mut self.ends[n].recvs;
        let mut bufs = recvs.split_off(recvs.len() - count);
        self.bench.device(n).post_recv(&mut bufs).expect("receives can be posted");
        assert!(bufs.is_empty(), "{} of {count} receives were not taken", bufs.len());
    }

    /// An address handle of device `n` that leads to device `to`, ready to be used.
    pub(crate) fn ah(&mut self, n: usize, to: usize) -> AhId {
        let port = self.device(to).port();
        let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
        let (ah, status) = self.device(n).create_ah(&to).expect("an address handle");
        if status == AhStatus::Pending {
            self.event(n, |event| match event {
                DeviceEvent::AhReady { ah: ready } if *ready == ah => Some(()),
                _ => None,
            });
        }
        ah
    }

    /// Joins a group and waits until that has ended well; the group's address handle.
    pub(crate) fn join(&mut self, n: usize, qp: QpId, mgid: Gid) -> AhId {
        self.device(n).join(qp, mgid).expect("the join is begun");
        self.event(n, |event| match event {
            DeviceEvent::Joined { qp: q, mgid: m, ah } if *q == qp && *m == mgid => Some(*ah),
            DeviceEvent::JoinFailed { error, .. } => panic!("the join failed: {error}"),
            _ => None,
        })
    }

    /// Waits for an event and takes it.
    pub(crate) fn event<T>(&mut self, n: usize, is_it: impl Fn(&DeviceEvent) -> Option<T>) -> T {
        let mut found = None;
        self.until("an event", |rig| {
            let events = &mut rig.ends[n].events;
            let place = events.iter().position(|event| is_it(event).is_some());
            found = place.and_then(|place| is_it(&events.remove(place)));
            found.is_some()
        });
        found.expect("the loop ends when it is found")
    }

    /// A send request with a payload.
    pub(crate) fn request(&mut self, n: usize, to: To, token: u64, payload: &[u8]) -> SendWr {
        let mut buf = self.ends[n].sends.pop().expect("a send buffer is free");
        buf.room_mut()[..payload.len()].copy_from_slice(payload);
        buf.set_len(payload.len());
        SendWr { ah: to.ah, qpn: to.qpn, qkey: to.qkey, token, buf }
    }

    /// Posts requests; those that were not taken stay.
    pub(crate) fn try_post(
        &mut self,
        n: usize,
        qp: QpId,
        requests: &mut VecDeque<SendWr>,
    ) -> Result<(), DeviceError> {
        self.device(n).post_send(qp, requests)
    }

    /// Takes the buffers of requests that are not wanted any more.
    pub(crate) fn give_back(&mut self, n: usize, requests: impl IntoIterator<Item = SendWr>) {
        self.ends[n].sends.extend(requests.into_iter().map(|request| request.buf));
    }

    /// Posts one send, and waits for nothing.
    pub(crate) fn send(&mut self, n: usize, qp: QpId, to: To, payload: &[u8]) {
        let token = u64::from(payload.first().copied().unwrap_or_default());
        let mut requests = VecDeque::from([self.request(n, to, token, payload)]);
        self.try_post(n, qp, &mut requests).expect("the send can be posted");
        assert!(requests.is_empty(), "the send queue is full");
    }

    /// Where a queue pair of device `n` is, for device `from`.
    pub(crate) fn to(&mut self, from: usize, n: usize, qp: QpId, qkey: u32) -> To {
        let qpn = self.device(n).qpn(qp);
        To { ah: self.ah(from, n), qpn, qkey }
    }

    /// Takes all there is from all devices.
    pub(crate) fn drain(&mut self) {
        let now = self.bench.now();
        let mut completions = Vec::new();
        for (n, end) in self.ends.iter_mut().enumerate() {
            let device = self.bench.device(n);
            device.advance(now);
            device.poll(&mut completions, 4 * SRQ);
            completions.drain(..).for_each(|completion| end.take(completion));
            end.events.extend(std::iter::from_fn(|| device.poll_event()));
        }
    }

    /// Lets time pass until `holds`, and fails if that takes too long.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..PATIENCE {
            self.drain();
            if holds(self) {
                return;
            }
            self.bench.step();
        }
        let ends: Vec<_> = self.ends.iter().map(|end| (&end.got, &end.done, &end.events)).collect();
        panic!("waited in vain for {what}; got, done, events: {ends:#?}");
    }

    /// Waits until device `n` has dropped `count` datagrams, as `counter` tells. On devices that do not count
    /// them, waits for as long as datagrams need to arrive, many times over.
    pub(crate) fn until_dropped(
        &mut self,
        n: usize,
        counter: fn(&PortCounters) -> u64,
        count: u64,
    ) {
        if self.device(n).caps().counts_drops {
            let what = format!("{count} datagrams to be dropped");
            return self.until(&what, |rig| counter(&rig.device(n).counters()) == count);
        }
        for _ in 0..20 {
            self.drain();
            self.bench.step();
        }
    }

    /// Waits until device `n` has got `count` datagrams since the last call, and takes their payloads.
    pub(crate) fn payloads(&mut self, n: usize, count: usize) -> Vec<Vec<u8>> {
        let what = format!("{count} datagrams at device {n}");
        self.until(&what, |rig| rig.ends[n].got.len() >= count);
        let got = std::mem::take(&mut self.ends[n].got);
        assert!(got.iter().all(|got| got.status == WcStatus::Success), "{got:?}");
        got.into_iter().map(|got| got.payload).collect()
    }

    /// Waits until `count` sends of device `n` have ended since the last call, and takes how.
    pub(crate) fn done(&mut self, n: usize, count: usize) -> Vec<Done> {
        let what = format!("{count} ended sends at device {n}");
        self.until(&what, |rig| rig.ends[n].done.len() >= count);
        std::mem::take(&mut self.ends[n].done)
    }

    /// Waits until every buffer is its owner's or posted, and checks that all are there.
    pub(crate) fn check_buffers(&mut self) {
        for n in 0..self.ends.len() {
            self.until("all sends to end (C-BUF-1)", |rig| {
                rig.ends[n].sends.len() == rig.ends[n].allocated_sends
            });
            let posted = self.device(n).posted_recvs();
            let End { recvs, sends, allocated_recvs, .. } = &self.ends[n];
            assert_eq!(
                posted + recvs.len(),
                *allocated_recvs,
                "posted + leased = allocated (C-BUF-1), device {n}"
            );
            let mut slots: Vec<_> = sends.iter().map(SendBuf::slot).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), sends.len(), "a slot has two owners (C-BUF-1)");
        }
    }
}

impl End {
    /// Takes completions that a case polled for itself.
    pub(crate) fn take_all(&mut self, completions: Vec<Completion>) {
        completions.into_iter().for_each(|completion| self.take(completion));
    }

    fn take(&mut self, completion: Completion) {
        match completion {
            Completion::Send { qp, ah, token, buf, status } => {
                self.sends.push(buf);
                self.done.push(Done { qp, ah, token, status });
            }
            Completion::Recv { qp, buf, source, status } => {
                let payload = buf.payload().to_vec();
                self.recvs.push(buf);
                self.got.push(Got { qp, payload, source, status });
            }
        }
    }
}

/// Where a send goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) ah: AhId,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: u32,
}

impl To {
    /// To a group.
    pub(crate) fn group(ah: AhId, qkey: u32) -> Self {
        Self { ah, qpn: Qpn::MULTICAST, qkey }
    }

    pub(crate) fn with_key(self, qkey: u32) -> Self {
        Self { qkey, ..self }
    }
}

/// The values for a UD queue pair's walk.
pub(crate) fn setup(qkey: u32) -> UdSetup {
    UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(qkey), sq_psn: Psn::new(0x00ff_fffe) }
}

/// A key that no other case of this process uses, so that cases which share a host do not meet.
pub(crate) fn fresh_key() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    (std::process::id() << 12 ^ NEXT.fetch_add(1, Ordering::Relaxed)) & 0x7fff_fff0 | 1
}

/// A group that no other case of this process uses, in `like`'s address family.
pub(crate) fn fresh_group(like: Gid) -> Gid {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = std::process::id() << 8 ^ NEXT.fetch_add(1, Ordering::Relaxed);
    match like.ip() {
        IpAddr::V4(_) => Ipv4Addr::from(0xefc0_0000 | (n & 0x0003_ffff)).into(),
        IpAddr::V6(_) => {
            let [a, b] = [(n >> 16) as u16, n as u16];
            IpAddr::from(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0x7163, a, b)).into()
        }
    }
}

/// Says in the test's output what this provider cannot show.
pub(crate) fn skip(why: &str) {
    eprintln!("skip: {why}");
}
