//! Waiting for devices as the runtime does it: by the descriptors that they name.

use std::collections::BTreeSet;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use qcast::device::Device;

/// Devices of one process, and a way to wait that is the runtime's.
pub(crate) struct Watch<D> {
    devices: Vec<Watched<D>>,
}

struct Watched<D> {
    device: D,
    poll: Poll,
    fds: Vec<i32>,
    epoch: Option<u64>,
}

impl<D: Device> Watch<D> {
    pub(crate) fn new(devices: impl IntoIterator<Item = D>) -> Self {
        let watched =
            |device| Watched { device, poll: Poll::new().unwrap(), fds: Vec::new(), epoch: None };
        Self { devices: devices.into_iter().map(watched).collect() }
    }

    pub(crate) fn device(&mut self, n: usize) -> &mut D {
        // Edges count from here on, so this comes before whatever is done to the device.
        self.devices[n].watch();
        &mut self.devices[n].device
    }

    pub(crate) fn step(&mut self) {
        let mut poll = Poll::new().unwrap();
        // Devices of one process may share a descriptor.
        let fds = self.devices.iter().flat_map(|watched| watched.device.sources().fds);
        for fd in fds.collect::<BTreeSet<_>>() {
            let token = Token(usize::try_from(*fd).unwrap());
            poll.registry().register(&mut SourceFd(fd), token, Interest::READABLE).unwrap();
        }
        poll.poll(&mut Events::with_capacity(8), Some(Duration::from_millis(5))).unwrap();
    }

    pub(crate) fn wait(&mut self, n: usize) -> bool {
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
