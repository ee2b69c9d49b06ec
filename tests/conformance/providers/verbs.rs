//! Real devices, named by `QCAST_TEST_DEVICES` (`rxe0,rxe1`): those that hear each other. If there are fewer than a
//! case needs, one is opened several times. Counters are the port's, so cases must not run at the same time.

use std::cell::Cell;
use std::env;

use qcast::device::spec::VerbsSpec;
use qcast::device::verbs::{QpBy, VerbsConfig, VerbsDevice};
use qcast::device::{QpId, WcStatus};
use qcast_proto::time::{Duration, Instant};

use super::watch::Watch;
use crate::bench::{Bench, HANDLES, SENDS, SRQ};
use crate::conformance;

struct Real {
    watch: Watch<VerbsDevice>,
    now: Cell<Instant>,
}

impl Real {
    fn open_by(qp: QpBy, mtus: &[usize]) -> Option<Self> {
        let names = env::var("QCAST_TEST_DEVICES").expect("QCAST_TEST_DEVICES names the devices");
        let specs: Vec<VerbsSpec> = names.split(',').map(|name| name.parse().unwrap()).collect();
        let mut devices = Vec::new();
        for (mtu, spec) in mtus.iter().zip(specs.iter().cycle()) {
            let mut config = VerbsConfig::new(spec.clone());
            config.spec.qp = qp;
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
}

macro_rules! real_bench {
    ($name:ident, $provider:ident, $qp:expr) => {
        struct $name(Real);

        impl Bench for $name {
            type Device = VerbsDevice;

            fn open(mtus: &[usize]) -> Option<Self> {
                Real::open_by($qp, mtus).map(Self)
            }

            fn device(&mut self, n: usize) -> &mut VerbsDevice {
                self.0.watch.device(n)
            }

            /// Each look is a second later, so that a device looks after itself whenever it is told the time.
            fn now(&self) -> Instant {
                self.0.now.set(self.0.now.get() + Duration::from_secs(1));
                self.0.now.get()
            }

            fn step(&mut self) {
                self.0.watch.step();
            }

            fn wait(&mut self, n: usize) -> bool {
                self.0.watch.wait(n)
            }

            fn fail_next_send(&mut self, n: usize, qp: QpId, _: WcStatus) -> bool {
                self.0.watch.device(n).fail_next_send(qp).unwrap();
                true
            }
        }

        conformance!(
            #[ignore = "needs RDMA devices: scripts/test vm, or make test-device"]
            $provider,
            $name
        );
    };
}

real_bench!(ByVerbs, real, QpBy::Verbs);
// Queue pairs that rdma_cm made, and took to RTS with its own key.
real_bench!(ByRdmaCm, made_by_rdma_cm, QpBy::RdmaCm);
