//! The software provider on IPv4 loopback, by itself and within the fault wrapper.

use std::time::Duration;

use qcast::device::fault::{FaultDevice, FaultPlan};
use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice};
use qcast::device::{Device, QpId, WcStatus};
use qcast_proto::qp::QpState;
use qcast_proto::time::Instant;

use super::watch::Watch;
use crate::bench::{Bench, HANDLES, SENDS, SRQ};
use crate::conformance;

/// Devices that each have an address of their own.
struct Loopback<D> {
    watch: Watch<D>,
    now: Instant,
}

impl<D: Device> Loopback<D> {
    fn open(mtus: &[usize], wrap: impl Fn(SoftDevice) -> D) -> Self {
        let open = |&mtu| {
            let mut config = SoftConfig::new(SoftAddress::Loopback).mtu(mtu).srq_depth(SRQ);
            (config.send_depth, config.max_ah) = (SENDS, HANDLES);
            wrap(SoftDevice::open(&config).unwrap())
        };
        Self { watch: Watch::new(mtus.iter().map(open)), now: Instant::ZERO }
    }

    /// Devices keep their own time; this one only moves for the fault wrapper's sake.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        self.watch.step();
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
                self.0.watch.device(n)
            }

            fn now(&self) -> Instant {
                self.0.now
            }

            fn step(&mut self) {
                self.0.step();
            }

            fn wait(&mut self, n: usize) -> bool {
                self.0.watch.wait(n)
            }

            fn fail_next_send(&mut self, n: usize, qp: QpId, status: WcStatus) -> bool {
                let device: &mut SoftDevice = $inner(self.0.watch.device(n));
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
