//! The software provider on IPv4 loopback, by itself and within the fault wrapper.

use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use qcast::device::fault::{FaultDevice, FaultPlan};
use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice};
use qcast::device::{Device, QpId, WcStatus};
use qcast_proto::qp::QpState;
use qcast_proto::time::Instant;

use crate::bench::{Bench, HANDLES, SENDS, SRQ};
use crate::conformance;

/// Devices of one process, each on an address of its own, and a way to wait that is the runtime's.
struct Loopback<D> {
    devices: Vec<Watched<D>>,
    now: Instant,
}

struct Watched<D> {
    device: D,
    poll: Poll,
    fds: Vec<i32>,
    epoch: Option<u64>,
}

impl<D: Device> Loopback<D> {
    fn open(mtus: &[usize], wrap: impl Fn(SoftDevice) -> D) -> Self {
        let open = |&mtu| {
            let mut config = SoftConfig::new(SoftAddress::Loopback).mtu(mtu).srq_depth(SRQ);
            (config.send_depth, config.max_ah) = (SENDS, HANDLES);
            let device = wrap(SoftDevice::open(&config).unwrap());
            Watched { device, poll: Poll::new().unwrap(), fds: Vec::new(), epoch: None }
        };
        Self { devices: mtus.iter().map(open).collect(), now: Instant::ZERO }
    }

    fn device(&mut self, n: usize) -> &mut D {
        // Edges count from here on, so this comes before whatever is done to the device.
        self.devices[n].watch();
        &mut self.devices[n].device
    }

    /// Devices keep their own time; this one only moves for the fault wrapper's sake.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        let mut poll = Poll::new().unwrap();
        for watched in &self.devices {
            for fd in watched.device.sources().fds {
                let token = Token(usize::try_from(*fd).unwrap());
                poll.registry().register(&mut SourceFd(fd), token, Interest::READABLE).unwrap();
            }
        }
        poll.poll(&mut Events::with_capacity(8), Some(Duration::from_millis(5))).unwrap();
    }

    fn wait(&mut self, n: usize) -> bool {
        let mut events = Events::with_capacity(8);
        let poll = &mut self.devices[n].poll;
        poll.poll(&mut events, Some(Duration::from_secs(1))).unwrap();
        !events.is_empty()
    }
}

impl<D: Device> Watched<D> {
    fn watch(&mut self) {
        let sources = self.device.sources();
        if self.epoch == Some(sources.epoch) {
            return;
        }
        for fd in self.fds.drain(..) {
            // One that was closed is gone by itself.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in sources.fds {
            let token = Token(usize::try_from(*fd).unwrap());
            self.poll.registry().register(&mut SourceFd(fd), token, Interest::READABLE).unwrap();
        }
        self.fds.extend(sources.fds);
        self.epoch = Some(sources.epoch);
    }
}

macro_rules! soft_bench {
    ($name:ident, $provider:ident, $device:ty, $wrap:expr, $inner:expr) => {
        struct $name(Loopback<$device>);

        impl Bench for $name {
            type Device = $device;

            fn open(mtus: &[usize]) -> Option<Self> {
                Some(Self(Loopback::open(mtus, $wrap)))
            }

            fn device(&mut self, n: usize) -> &mut $device {
                self.0.device(n)
            }

            fn now(&self) -> Instant {
                self.0.now
            }

            fn step(&mut self) {
                self.0.step();
            }

            fn wait(&mut self, n: usize) -> bool {
                self.0.wait(n)
            }

            fn fail_next_send(&mut self, n: usize, qp: QpId, status: WcStatus) -> bool {
                let device: &mut SoftDevice = $inner(self.0.device(n));
                device.fail_next_send(qp, status, QpState::Sqe).unwrap();
                true
            }
        }

        conformance!($provider, $name);
    };
}

soft_bench!(Plain, plain, SoftDevice, |device| device, |device| device);

soft_bench!(
    Faultless,
    faultless,
    FaultDevice<SoftDevice>,
    |device| FaultDevice::new(device, FaultPlan::default()),
    FaultDevice::inner_mut
);
