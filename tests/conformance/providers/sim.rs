//! The simulator: in both personalities, with shared payloads and with memory of its own.

use qcast::device::sim::{Fabric, FabricConfig, Personality, PortConfig, SimDevice};
use qcast::device::{Device, QpId, WcStatus};
use qcast_proto::time::{Duration, Instant};

use crate::bench::{Bench, HANDLES, SENDS, SRQ};
use crate::conformance;

/// Ports of a fabric.
pub(crate) struct Ports<D> {
    pub(crate) fabric: Fabric,
    pub(crate) devices: Vec<D>,
    ready: Vec<usize>,
}

impl<D: Device> Ports<D> {
    /// Opens ports that differ in what `choose` sets, each as `wrap` makes it.
    pub(crate) fn open(
        mtus: &[usize],
        config: FabricConfig,
        choose: impl Fn(&mut PortConfig),
        wrap: impl Fn(SimDevice) -> D,
    ) -> Self {
        let fabric = Fabric::new(config, 1);
        let open = |&mtu| {
            let mut config = PortConfig::default();
            (config.mtu, config.max_srq_wr) = (mtu, SRQ);
            (config.max_send_wr, config.max_ah) = (SENDS, HANDLES);
            choose(&mut config);
            wrap(fabric.open(config))
        };
        let devices = mtus.iter().map(open).collect();
        Self { fabric, devices, ready: Vec::new() }
    }

    pub(crate) fn step(&mut self) {
        let to = self.fabric.now() + Duration::from_millis(10);
        self.fabric.step_to(to, &mut self.ready);
        self.ready.clear();
    }

    pub(crate) fn wait(&mut self, n: usize) -> bool {
        let end = self.fabric.now() + Duration::from_secs(1);
        while let Some(at) = self.fabric.next_event().filter(|at| *at <= end) {
            self.fabric.step_to(at, &mut self.ready);
            let woken = self.ready.contains(&n);
            self.ready.clear();
            if woken {
                return true;
            }
        }
        false
    }
}

macro_rules! sim_bench {
    ($name:ident, $provider:ident, $fabric:expr, $choose:expr) => {
        struct $name(Ports<SimDevice>);

        impl Bench for $name {
            type Device = SimDevice;

            fn open(mtus: &[usize]) -> Option<Self> {
                Some(Self(Ports::open(mtus, $fabric, $choose, |device| device)))
            }

            fn device(&mut self, n: usize) -> &mut SimDevice {
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

            fn lose(&mut self, n: usize) -> bool {
                self.0.fabric.lose(n);
                true
            }
        }

        conformance!($provider, $name);
    };
}

sim_bench!(Plain, plain, FabricConfig::default(), |_| {});

// As slow as a real device: joins and addresses take time, sends stay in their queue for a while, and
// receives have memory of their own.
sim_bench!(Slow, slow, slow_fabric(), |config: &mut PortConfig| {
    config.rate = Some(10_000_000);
    config.own_memory = true;
    config.personality = Personality::SoftRoce;
    config.loops_back = false;
});

fn slow_fabric() -> FabricConfig {
    let mut config = FabricConfig::default();
    config.join_delay = Duration::from_millis(3);
    config.ah_delay = Duration::from_millis(1);
    config
}
