//! Real devices, named by `QCAST_TEST_DEVICES` (`rxe0,rxe1`): those that hear each other. If there are fewer than a
//! case needs, one is opened several times. Counters are the port's, so cases must not run at the same time.

use std::cell::Cell;
use std::env;

use qcast::device::spec::VerbsSpec;
use qcast::device::verbs::{VerbsConfig, VerbsDevice};
use qcast::device::{QpId, WcStatus};
use qcast_proto::time::{Duration, Instant};

use super::watch::Watch;
use crate::bench::{Bench, HANDLES, SENDS, SRQ};
use crate::conformance;

struct Real {
    watch: Watch<VerbsDevice>,
    now: Cell<Instant>,
}

impl Bench for Real {
    type Device = VerbsDevice;

    fn open(mtus: &[usize]) -> Option<Self> {
        let names = env::var("QCAST_TEST_DEVICES").expect("QCAST_TEST_DEVICES names the devices");
        let specs: Vec<VerbsSpec> = names.split(',').map(|name| name.parse().unwrap()).collect();
        let mut devices = Vec::new();
        for (mtu, spec) in mtus.iter().zip(specs.iter().cycle()) {
            let mut config = VerbsConfig::new(spec.clone());
            config.mtu = Some(*mtu);
            (config.srq_depth, config.send_depth, config.max_ah) = (SRQ, SENDS, HANDLES);
            match VerbsDevice::open(&config) {
                Ok(device) => devices.push(device),
                Err(error @ qcast::device::verbs::VerbsOpenError::BadMtu { .. }) => {
                    eprintln!("{error}");
                    return None;
                }
                Err(error) => panic!("{spec}: {error}"),
            }
        }
        Some(Self { watch: Watch::new(devices), now: Cell::new(Instant::ZERO) })
    }

    fn device(&mut self, n: usize) -> &mut VerbsDevice {
        self.watch.device(n)
    }

    /// Each look is a second later, so that a device looks after itself whenever it is told the time.
    fn now(&self) -> Instant {
        self.now.set(self.now.get() + Duration::from_secs(1));
        self.now.get()
    }

    fn step(&mut self) {
        self.watch.step();
    }

    fn wait(&mut self, n: usize) -> bool {
        self.watch.wait(n)
    }

    fn fail_next_send(&mut self, n: usize, qp: QpId, _: WcStatus) -> bool {
        self.watch.device(n).fail_next_send(qp).unwrap();
        true
    }
}

conformance!(
    #[ignore = "needs RDMA devices: scripts/test vm, or make test-device"]
    real,
    Real
);
