//! The fault wrapper, with nothing to do: with it the contract holds as without.

use qcast::device::fault::{FaultDevice, FaultPlan};
use qcast::device::sim::{FabricConfig, SimDevice};
use qcast::device::{QpId, WcStatus};
use qcast_proto::time::Instant;

use super::sim::Ports;
use crate::bench::Bench;
use crate::conformance;

struct Faultless(Ports<FaultDevice<SimDevice>>);

impl Bench for Faultless {
    type Device = FaultDevice<SimDevice>;

    fn open(mtus: &[usize]) -> Option<Self> {
        let wrap = |device| FaultDevice::new(device, FaultPlan::default());
        Some(Self(Ports::open(mtus, FabricConfig::default(), |_| {}, wrap)))
    }

    fn device(&mut self, n: usize) -> &mut Self::Device {
        &mut self.0.devices[n]
    }

    fn now(&self) -> Instant {
        self.0.fabric.now()
    }

    fn step(&mut self) {
        self.0.step();
    }

    fn wait(&mut self, n: usize) -> bool {
        self.0.wait(n)
    }

    fn fail_next_send(&mut self, n: usize, qp: QpId, status: WcStatus) -> bool {
        self.0.fabric.fail_next_send(n, qp, status);
        true
    }
}

conformance!(faultless, Faultless);
