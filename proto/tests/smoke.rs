//! One publisher and a few subscribers over a lossy medium in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{Gid, NodeId, PeerAddr, Qpn};
use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::node::{Event, GroupId, Node, NodeConfig, To};
use qcast_proto::publish::{Outbox, PublisherConfig, PushError};
use qcast_proto::subscribe::SubscriberConfig;
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::Messages;

type N = Node<HeapFrame, Rc<[u8]>>;

const LATENCY: Duration = Duration::from_micros(20);

#[test]
fn five_thousand_messages_reach_three_subscribers_through_loss() {
    for seed in 0..20 {
        println!("seed {seed}");
        run(seed, 3, 5_000, 0.05);
    }
}

fn run(seed: u64, subscribers: usize, messages: u32, loss: f64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let addr = |i: usize| PeerAddr { gid: Gid::default(), qpn: Qpn::new(i as u32), udp_port: 4791 };
    let mut now = Instant::ZERO;
    let mut nodes: Vec<(N, GroupId)> = (0..=subscribers)
        .map(|i| {
            let config = NodeConfig::new(NodeId(i as u128 + 1), 1, format!("n{i}"));
            let mut node = N::new(now, config, seed * 100 + i as u64);
            node.supply((0..8).map(|_| HeapFrame::new(1024)));
            let group = node.join("g", addr(i));
            (node, group)
        })
        .collect();
    for (node, group) in &mut nodes[1..] {
        node.open_subscriber(now, *group, SubscriberConfig::default()).expect("joined");
    }
    let group = nodes[0].1;
    let (publisher, header) =
        nodes[0].0.open_publisher(now, group, PublisherConfig::default()).expect("joined");
    let frames = (0..1100).map(|_| HeapFrame::new(1024)).collect();
    let mut outbox = Outbox::new(header, 1024, frames);
    let mut sent = 0u32;
    let mut got = vec![Vec::new(); subscribers + 1];
    type Flight = (Instant, u64, usize, usize, bool, Vec<u8>);
    let mut medium: BinaryHeap<Reverse<Flight>> = BinaryHeap::new();
    let mut order = 0;
    for _ in 0..2_000_000 {
        while sent < messages {
            let m = [&sent.to_be_bytes()[..], &[7; 100]].concat();
            match outbox.push(&m) {
                Ok(()) => sent += 1,
                Err(PushError::Full) => break,
                Err(e) => panic!("{e}"),
            }
        }
        outbox.seal();
        while nodes[0].0.publisher_room(publisher) > 0
            && let Some(frame) = outbox.take()
        {
            nodes[0].0.publish(publisher, frame);
        }
        let mut freed = Vec::new();
        nodes[0].0.take_freed(publisher, &mut freed);
        outbox.refill(freed);
        for (i, (node, _)) in nodes.iter_mut().enumerate() {
            while let Some(t) = node.poll_transmit(now) {
                let bytes = t.frame.bytes().to_vec();
                let to: Vec<usize> = match t.to {
                    To::Group => (0..=subscribers).collect(),
                    To::Peer(p) => vec![p.qpn.get() as usize],
                };
                for j in to {
                    if j != i && rng.f64() < loss {
                        continue;
                    }
                    order += 1;
                    let multicast = t.to == To::Group;
                    medium.push(Reverse((now + LATENCY, order, i, j, multicast, bytes.clone())));
                }
                node.handle_sent(t.token, t.frame);
            }
            while let Some(e) = node.poll_event() {
                if let Event::Frame { frame, .. } = e {
                    got[i].extend(Messages::of_checked(&frame).map(<[u8]>::to_vec));
                }
            }
        }
        if got[1..].iter().all(|g| g.len() as u32 >= messages) {
            break;
        }
        let timers = nodes.iter().filter_map(|(n, _)| n.poll_timeout()).min();
        let next = medium.peek().map(|Reverse(m)| m.0).into_iter().chain(timers).min();
        now = now.max(next.expect("heartbeats never end"));
        while medium.peek().is_some_and(|Reverse(m)| m.0 <= now) {
            let Reverse((_, _, from, to, multicast, bytes)) = medium.pop().expect("peeked");
            let (node, group) = &mut nodes[to];
            node.handle_datagram(now, *group, addr(from), multicast, bytes.into());
        }
        for (node, _) in &mut nodes {
            node.handle_timeout(now);
        }
    }
    for (i, g) in got.iter().enumerate().skip(1) {
        assert_eq!(
            g.len() as u32,
            messages,
            "subscriber {i} at {now:?}: {:?}",
            nodes[0].0.publisher_stats(publisher)
        );
        for (n, m) in g.iter().enumerate() {
            assert_eq!(m[..4], (n as u32).to_be_bytes());
        }
    }
    println!("{now:?} {:?}", nodes[0].0.publisher_stats(publisher));
}
