//! What is wrong with the port, and telling of it once when it begins and once when it is over.

use qcast_proto::node::CONTROL_GROUP;
use qcast_proto::time::{Duration, Instant};

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

/// Datagrams with another key, as far as they were told of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyWatch {
    counted: u64,
    untold: u64,
    next_word: Instant,
    /// How long it is until the word after the next.
    pause: Duration,
}

/// How often strangers are told of at most; while they go on, each word is twice as long after the last, so that one
/// who stays does not fill everybody's log.
const BETWEEN_WORDS: Duration = Duration::from_secs(1);
const MAX_BETWEEN_WORDS: Duration = Duration::from_secs(60);

impl Engine {
    /// Looks for datagrams that were dropped for their key, and tells.
    pub(super) fn watch_keys(&mut self, now: Instant) {
        let counted = self.counters().qkey_violations;
        let more = counted - std::mem::replace(&mut self.keys.counted, counted);
        self.keys.untold += more;
        // Everybody has the key of the control group.
        let mut keyed = self.groups.values_mut().filter(|g| g.setup.name != CONTROL_GROUP);
        if let (Some(only), None) = (keyed.next(), keyed.next()) {
            only.violations += more;
        }
        if self.keys.untold > 0 && now >= self.keys.next_word {
            let keys = &mut self.keys;
            let is_calm = now >= keys.next_word + keys.pause;
            keys.pause = if is_calm { BETWEEN_WORDS } else { keys.pause * 2 };
            keys.pause = keys.pause.clamp(BETWEEN_WORDS, MAX_BETWEEN_WORDS);
            keys.next_word = now + keys.pause;
            let datagrams = std::mem::take(&mut self.keys.untold);
            let names = self.groups.values().map(|g| &g.setup.name);
            let groups: Vec<_> = names.filter(|name| *name != CONTROL_GROUP).cloned().collect();
            tracing::debug!(datagrams, ?groups, "datagrams had another QKey");
            self.tell(&NodeEvent::QKeyViolations { datagrams, groups });
        }
    }

    /// When strangers that were not told of yet are to be.
    pub(super) fn next_word(&self) -> Option<Instant> {
        (self.keys.untold > 0).then_some(self.keys.next_word)
    }

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
