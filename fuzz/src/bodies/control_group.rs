//! One node in the control group that hears frames which can be read and lie, and others.

use std::rc::Rc;
use std::time::Duration;

use qcast::proto::addr::{
    Domain, Gid, GroupTag, NodeId, PKey, PeerAddr, QKey, Qpn, ROCE_PORT, Sequence, SessionId,
    StreamId,
};
use qcast::proto::buf::{HeapFrame, TxFrame};
use qcast::proto::discovery::{Filter, MAX_RECORDS, Service};
use qcast::proto::node::{CONTROL_GROUP, Node, NodeConfig};
use qcast::proto::time::Instant;
use qcast::proto::wire::control::MAX_BODY;
use qcast::proto::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind};
use qcast::proto::wire::notice::Checks;

type Hears = Node<HeapFrame, Rc<[u8]>>;

/// Takes the bytes for frames, each behind a byte for its kind and sender, one for its length and one for the time
/// that passes before it.
pub(super) fn hear(mut bytes: &[u8]) {
    let mut now = Instant::from_millis(1);
    let mut node: Hears = Node::new(now, NodeConfig::new(NodeId(7), 7, "node"), 1);
    node.supply((0..4).map(|_| HeapFrame::new(FRAME_HEADER + MAX_BODY)));
    let control = node.join_control(now, address(0));
    let group = node.join(now, "g", address(0));
    let key = QKey::new_checked(5).expect("it is one");
    let mgid = [239, 192, 0, 1].into();
    node.describe(now, group, "g", Checks::of("g", key, PKey::DEFAULT, mgid, 4096));
    node.browse(now, Filter::default());
    node.announce(now, Service::new("http", "web", 80)).expect("it is sound");
    let mut found = 0i64;
    while let [what, len, pause, rest @ ..] = bytes {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        bytes = rest;
        let kind = match what % 4 {
            0 => FrameKind::GroupNotice,
            1 => FrameKind::Service,
            2 => FrameKind::ServiceQuery,
            _ => FrameKind::Status,
        };
        let header = FrameHeader {
            kind,
            domain: Domain(0),
            group: GroupTag::of(CONTROL_GROUP),
            stream: StreamId(0),
            session: SessionId(9),
            sequence: Sequence(0),
        };
        let mut frame = vec![0; FRAME_HEADER];
        header.emit(&mut frame);
        frame.extend_from_slice(body);
        node.handle_datagram(now, control, address(what >> 4), true, frame.into());
        found += drain(&mut node, now);
        // Up to ten minutes, mostly much less.
        let until = now + Duration::from_millis(u64::from(*pause).pow(2) * u64::from(*pause % 9));
        for _ in 0..1000 {
            let Some(due) = node.poll_timeout().filter(|due| *due <= until) else { break };
            assert!(due.saturating_since(until).is_zero());
            now = now.max(due);
            node.handle_timeout(now);
            found += drain(&mut node, now);
        }
        now = now.max(until);
        assert!((0..=MAX_RECORDS as i64).contains(&found), "{found} services");
    }
    let seen = node.seen_groups();
    assert!(seen.iter().map(|group| group.members.len()).sum::<usize>() <= 8192);
}

/// Sends and tells what there is; how many services are known more than before.
fn drain(node: &mut Hears, now: Instant) -> i64 {
    use qcast::proto::discovery::DiscoveryEvent;
    use qcast::proto::node::Event;
    let mut sent = 0;
    while let Some(transmit) = node.poll_transmit(now) {
        assert!(transmit.frame.bytes().len() <= FRAME_HEADER + MAX_BODY);
        node.handle_sent(transmit.token, transmit.frame);
        sent += 1;
        assert!(sent < 1000, "a node sends without end");
    }
    let mut more = 0;
    while let Some(event) = node.poll_event() {
        match event {
            Event::Discovery(DiscoveryEvent::Added { .. }) => more += 1,
            Event::Discovery(DiscoveryEvent::Removed { .. }) => more -= 1,
            _ => {}
        }
    }
    more
}

fn address(n: u8) -> PeerAddr {
    let gid = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, n));
    PeerAddr { gid, qpn: Qpn::new(1), udp_port: ROCE_PORT }
}
