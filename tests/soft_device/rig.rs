//! A device with one queue pair, and a way to wait that is the runtime's: edge-triggered, and only after `arm`.

use std::collections::VecDeque;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice};
use qcast::device::{
    AhAttrs, AhId, Armed, Completion, Device, DeviceError, DeviceEvent, QpId, SendBuf, SendWr,
    Source, WcStatus,
};
use qcast_proto::addr::{Gid, Psn, Qpn};
use qcast_proto::qp::{QpState, RawQKey, UdSetup};

pub(crate) const QKEY: u32 = 0x0bad_cafe;

pub(crate) struct Rig {
    pub(crate) device: SoftDevice,
    pub(crate) qp: QpId,
    pub(crate) spare: Vec<SendBuf>,
    /// What arrived: payload, source, queue pair.
    pub(crate) arrived: Vec<(Vec<u8>, Source, QpId)>,
    /// Receives that failed.
    pub(crate) failed: Vec<WcStatus>,
    /// Sends that ended: token and status.
    pub(crate) sent: Vec<(u64, WcStatus)>,
    pub(crate) events: Vec<DeviceEvent>,
    poll: Poll,
    registered: (u64, Vec<i32>),
    /// Whether receives are posted again when they come back.
    pub(crate) repost: bool,
}

impl Rig {
    /// On an address of loopback that is its own, in RTS, with 1024 receives posted.
    pub(crate) fn new() -> Self {
        Self::ready(&SoftConfig::new(SoftAddress::Loopback))
    }

    pub(crate) fn ready(config: &SoftConfig) -> Self {
        let mut rig = Self::bare(config);
        rig.walk(rig.qp, QpState::Rts, QKEY);
        rig.post_recvs(1024);
        rig
    }

    /// In RESET, with nothing posted.
    pub(crate) fn bare(config: &SoftConfig) -> Self {
        let mut device = SoftDevice::open(config).unwrap();
        let qp = device.create_qp().unwrap();
        let spare = device.alloc_send(1024).unwrap();
        let poll = Poll::new().unwrap();
        Self {
            device,
            qp,
            spare,
            arrived: Vec::new(),
            failed: Vec::new(),
            sent: Vec::new(),
            events: Vec::new(),
            poll,
            registered: (0, Vec::new()),
            repost: true,
        }
    }

    /// Walks a queue pair from RESET as far as `to`.
    pub(crate) fn walk(&mut self, qp: QpId, to: QpState, qkey: u32) {
        let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(qkey), sq_psn: Psn::new(9) };
        for (state, attrs) in [
            (QpState::Init, setup.init()),
            (QpState::Rtr, setup.rtr()),
            (QpState::Rts, setup.rts()),
        ] {
            self.device.modify_qp(qp, &attrs).unwrap();
            if state == to {
                return;
            }
        }
    }

    pub(crate) fn post_recvs(&mut self, count: usize) {
        let mut bufs = self.device.alloc_recv(count).unwrap();
        self.device.post_recv(&mut bufs).unwrap();
        assert!(bufs.is_empty());
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.device.qpn(self.qp)
    }

    /// A handle that leads to `peer`.
    pub(crate) fn ah(&mut self, peer: &Rig) -> AhId {
        let port = peer.device.port();
        let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
        self.device.create_ah(&to).unwrap().0
    }

    /// Joins a group and waits for the answer.
    pub(crate) fn join(&mut self, group: &str) -> Result<AhId, DeviceError> {
        let (qp, mgid) = (self.qp, gid(group));
        self.device.join(qp, mgid)?;
        loop {
            match self.device.poll_event().expect("a join is answered at once") {
                DeviceEvent::Joined { qp: q, mgid: m, ah } if (q, m) == (qp, mgid) => {
                    return Ok(ah);
                }
                DeviceEvent::JoinFailed { qp: q, mgid: m, error } if (q, m) == (qp, mgid) => {
                    return Err(error);
                }
                other => self.events.push(other),
            }
        }
    }

    /// One send of `payload`, not posted yet.
    pub(crate) fn wr(&mut self, ah: AhId, qpn: Qpn, payload: &[u8]) -> SendWr {
        let mut buf = self.spare.pop().expect("enough buffers for the test");
        buf.room_mut()[..payload.len()].copy_from_slice(payload);
        buf.set_len(payload.len());
        SendWr { ah, qpn, qkey: QKEY, token: payload.len() as u64, buf }
    }

    /// Posts payloads and polls their completions.
    pub(crate) fn send(&mut self, ah: AhId, qpn: Qpn, payloads: &[&[u8]]) {
        let wrs: VecDeque<_> = payloads.iter().map(|payload| self.wr(ah, qpn, payload)).collect();
        self.post(wrs);
    }

    /// Posts sends, all of them, and polls their completions.
    pub(crate) fn post(&mut self, mut wrs: VecDeque<SendWr>) {
        while !wrs.is_empty() {
            let before = wrs.len();
            self.device.post_send(self.qp, &mut wrs).unwrap();
            self.turn();
            assert!(wrs.len() < before, "the kernel has no room on loopback");
        }
    }

    /// Polls once, for all there is.
    pub(crate) fn turn(&mut self) {
        let mut out = Vec::new();
        loop {
            self.device.poll(&mut out, 64);
            let more = out.len() == 64;
            let mut back = Vec::new();
            for completion in out.drain(..) {
                match completion {
                    Completion::Send { token, buf, status, .. } => {
                        self.sent.push((token, status));
                        self.spare.push(buf);
                    }
                    Completion::Recv { qp, buf, source, status } => {
                        match qp {
                            Some(qp) => self.arrived.push((buf.payload().to_vec(), source, qp)),
                            None => self.failed.push(status),
                        }
                        back.push(buf);
                    }
                }
            }
            if self.repost {
                self.device.post_recv(&mut back).unwrap();
            }
            if !more {
                break;
            }
        }
        while let Some(event) = self.device.poll_event() {
            self.events.push(event);
        }
    }

    /// Turns and sleeps as a runtime does until `done`; panics if a wake-up does not come.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let mut ready = Events::with_capacity(16);
        loop {
            self.register();
            self.turn();
            if done(self) {
                return;
            }
            if self.device.arm() == Armed::Sleep {
                self.poll.poll(&mut ready, Some(Duration::from_secs(10))).unwrap();
                assert!(
                    !ready.is_empty(),
                    "no wake-up while waiting for {what}; {} arrived, {:?}",
                    self.arrived.len(),
                    self.device.counters()
                );
            }
        }
    }

    pub(crate) fn until_arrived(&mut self, count: usize) {
        self.until("datagrams", |rig| rig.arrived.len() >= count);
        assert_eq!(self.arrived.len(), count);
    }

    pub(crate) fn payloads(&self) -> Vec<&[u8]> {
        self.arrived.iter().map(|(payload, ..)| payload.as_slice()).collect()
    }

    fn register(&mut self) {
        let sources = self.device.sources();
        if sources.epoch == self.registered.0 {
            return;
        }
        for fd in self.registered.1.drain(..) {
            // A socket that was closed has left by itself.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in sources.fds {
            self.poll.registry().register(&mut SourceFd(fd), Token(0), Interest::READABLE).unwrap();
        }
        self.registered = (sources.epoch, sources.fds.to_vec());
    }
}

pub(crate) fn gid(ip: &str) -> Gid {
    Gid::from(ip.parse::<std::net::IpAddr>().unwrap())
}

/// Bytes that differ from place to place and from one `salt` to the next.
pub(crate) fn pattern(salt: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ salt.wrapping_mul(157)) as u8).collect()
}

/// A group of this test's own: tests run at the same time and hear each other's groups.
pub(crate) fn own_group() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let [a, b, ..] = std::process::id().to_le_bytes();
    format!("239.{}.{}.{}", 193 + n / 200, a ^ b.rotate_left(3), 1 + n % 200)
}

/// Seeded random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % bound as u64) as usize
    }
}
