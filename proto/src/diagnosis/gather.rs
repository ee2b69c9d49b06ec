//! Members with another key, gathered: whoever comes into a group of many with a wrong key finds that all of them
//! differ, one after the other, and is told so once, not once for each.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{DiagnosisEvent, Noticed};
use crate::node::GroupId;
use crate::time::Instant;

/// Who else is found within this time of the first is told of with it: most members answer within 50 ms.
const MOMENT: Duration = Duration::from_millis(100);

/// The least time between two such events, so that thousands who come one by one are a few lines. What is found
/// is told well within the 2 s of `R-KEY-3` all the same.
const PAUSE: Duration = Duration::from_millis(500);

/// So many are told of at once: a flood of notices does not pile up here.
const MAX: usize = 256;

/// What was found out and not told yet.
/// Requirements: `R-KEY-2`.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    found: BTreeMap<Difference, (String, Vec<Noticed>)>,
    due: Option<Instant>,
    told: Option<Instant>,
}

/// A group of this node's, and the check values of their key and of its own.
type Difference = (GroupId, u8, u8);

impl Gathered {
    /// Takes what is found out: a difference of keys waits a moment for others, whatever else is told at once,
    /// and after what was found before it.
    pub(super) fn take(
        &mut self,
        now: Instant,
        event: DiagnosisEvent,
        events: &mut VecDeque<DiagnosisEvent>,
    ) {
        let DiagnosisEvent::KeyMismatch { group, name, members, theirs, ours } = event else {
            if matches!(event, DiagnosisEvent::Corrected { .. }) {
                self.tell(now, events);
            }
            return events.push_back(event);
        };
        let (_, all) =
            self.found.entry((group, theirs, ours)).or_insert_with(|| (name, Vec::new()));
        all.extend(members);
        let soonest = self.told.map_or(now, |told| told + PAUSE);
        self.due.get_or_insert(soonest.max(now + MOMENT));
        if self.found.values().map(|(_, members)| members.len()).sum::<usize>() >= MAX {
            self.tell(now, events);
        }
    }

    /// This node has left a group: who differs there is nobody's concern.
    pub(super) fn leave(&mut self, left: GroupId) {
        self.found.retain(|(group, ..), _| *group != left);
    }

    /// When there is something to be told.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Tells what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<DiagnosisEvent>) {
        if self.due.is_some_and(|due| due <= now) {
            self.tell(now, events);
        }
    }

    fn tell(&mut self, now: Instant, events: &mut VecDeque<DiagnosisEvent>) {
        self.due = None;
        if self.found.is_empty() {
            return;
        }
        self.told = Some(now);
        let found = core::mem::take(&mut self.found).into_iter();
        events.extend(found.map(|((group, theirs, ours), (name, members))| {
            DiagnosisEvent::KeyMismatch { group, name, members, theirs, ours }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{NodeId, PeerAddr, Qpn};

    fn differs(group: u32, node: u128, theirs: u8) -> DiagnosisEvent {
        let address = PeerAddr { gid: Default::default(), qpn: Qpn::new(1), udp_port: 4791 };
        let member = Noticed { node: NodeId(node), name: "n".into(), address };
        let (group, name) = (GroupId(group), "g".into());
        DiagnosisEvent::KeyMismatch { group, name, members: alloc::vec![member], theirs, ours: 0 }
    }

    fn sizes(events: &mut VecDeque<DiagnosisEvent>) -> Vec<usize> {
        let size = |event: DiagnosisEvent| match event {
            DiagnosisEvent::KeyMismatch { members, .. } => members.len(),
            _ => 0,
        };
        events.drain(..).map(size).collect()
    }

    /// R-KEY-2.
    #[test]
    fn those_with_one_key_are_told_of_together_and_the_next_half_a_second_later() {
        let (mut gathered, mut events) = (Gathered::default(), VecDeque::new());
        let start = Instant::from_millis(7);
        for node in 0..5 {
            gathered.take(start, differs(1, node, 9), &mut events);
        }
        gathered.take(start, differs(1, 5, 8), &mut events);
        let due = gathered.poll_timeout().unwrap();
        assert_eq!(due, start + MOMENT);
        gathered.handle_timeout(start, &mut events);
        assert!(events.is_empty());
        gathered.handle_timeout(due, &mut events);
        assert_eq!(sizes(&mut events), [1, 5]);
        gathered.take(due, differs(1, 6, 9), &mut events);
        assert_eq!(gathered.poll_timeout(), Some(due + PAUSE));
        // That it is over is told after it.
        let DiagnosisEvent::KeyMismatch { group, name, members, .. } = differs(1, 6, 9) else {
            unreachable!()
        };
        let member = members[0].clone();
        gathered.take(due, DiagnosisEvent::Corrected { group, name, member }, &mut events);
        assert_eq!(sizes(&mut events), [1, 0]);
        assert_eq!(gathered.poll_timeout(), None);
        // A group that was left is nobody's concern.
        gathered.take(due, differs(1, 7, 9), &mut events);
        gathered.leave(GroupId(1));
        gathered.handle_timeout(due + PAUSE, &mut events);
        assert!(events.is_empty());
    }

    #[test]
    fn a_flood_does_not_pile_up() {
        let (mut gathered, mut events) = (Gathered::default(), VecDeque::new());
        for node in 0..1000 {
            gathered.take(Instant::ZERO, differs(1, node, node as u8), &mut events);
            let held: usize = gathered.found.values().map(|(_, members)| members.len()).sum();
            assert!(held < MAX);
        }
        assert_eq!(sizes(&mut events).into_iter().sum::<usize>(), 768);
    }
}
