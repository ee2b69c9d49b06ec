//! What is wrong with the port, and telling of it once when it begins and once when it is over.

use qcast_proto::time::Instant;

use super::Engine;
use super::event::{NodeEvent, Trouble};
use crate::device::PortInfo;

/// The port as it was last seen, and what is wrong with it, each since when.
#[derive(Clone, Debug)]
pub(super) struct PortWatch {
    seen: PortInfo,
    troubles: Vec<(Trouble, Instant)>,
}

impl PortWatch {
    pub(super) fn new(port: PortInfo) -> Self {
        Self { seen: port, troubles: Vec::new() }
    }
}

impl Engine {
    /// Looks at the port, and tells what has changed.
    pub(super) fn watch_port(&mut self, now: Instant) {
        let port = self.device.port();
        let was = std::mem::replace(&mut self.watch.seen, port);
        if was.gid != port.gid {
            self.tell(&NodeEvent::AddressChanged { was: was.gid, now: port.gid });
        }
        self.note(now, Trouble::PortDown { port: port.port }, !port.active);
        let (mtu, frame) = (port.mtu, self.max_frame);
        self.note(now, Trouble::MtuTooSmall { mtu, frame }, port.active && mtu < frame);
    }

    /// Nothing is wrong with a port that is gone, or has just come.
    pub(super) fn forget_port(&mut self) {
        self.watch = PortWatch::new(self.device.port());
    }

    /// Whether there is this kind of trouble. It is told when that changes.
    fn note(&mut self, now: Instant, trouble: Trouble, is_there: bool) {
        let same =
            |known: &Trouble| std::mem::discriminant(known) == std::mem::discriminant(&trouble);
        let known = self.watch.troubles.iter().position(|(known, _)| same(known));
        match known {
            None if is_there => {
                tracing::warn!(%trouble, "the node is degraded");
                self.tell(&NodeEvent::Degraded { trouble: trouble.clone() });
                self.watch.troubles.push((trouble, now));
            }
            Some(at) if !is_there => {
                let (trouble, since) = self.watch.troubles.remove(at);
                let after = now.saturating_since(since);
                tracing::info!(%trouble, "over");
                self.tell(&NodeEvent::Restored { trouble, after });
            }
            _ => {}
        }
    }
}
