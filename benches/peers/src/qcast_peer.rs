//! qcast on its software device: `qcast` with the node's own thread, `qcast-manual` driven by the application's
//! thread, which sleeps in `Node::poll` and does not spin.
//!
//! Defaults throughout, unless `QCAST_*` says otherwise. Its datagrams carry a path MTU and 24 bytes of RoCEv2 headers and ICRC, so the path MTU
//! is the largest whose datagrams keep the limit.

use std::time::Duration;

use qcast::{Delivery, Incoming, Node, Notice, Progress, Publisher, Subscriber};

use crate::peer::{OnMessage, Rx, Setup, Tx};

/// BTH, DETH and ICRC.
const HEADERS: usize = 24;

/// How long a wait is before the harness looks again.
const WAIT: Duration = Duration::from_millis(10);

/// Messages between two looks at the clock and the node.
const BATCH: usize = 4096;

pub struct QcastTx {
    node: Node,
    publisher: Publisher,
    subscribers: usize,
    datagram: usize,
    manual: bool,
    /// Whether it tells its numbers at the end of each phase.
    tells: bool,
}

pub fn tx(setup: &Setup) -> QcastTx {
    let node = node(setup);
    let group = node.group("peers").join().expect("the group can be joined");
    let window = setup.number("QCAST_WINDOW", 1024);
    let publisher = group.publisher().window(window).open().expect("a stream can be opened");
    let datagram = node.device().mtu + HEADERS;
    let (manual, tells) = (is_manual(setup), setup.number("QCAST_STATS", 0) > 0);
    QcastTx { node, publisher, subscribers: setup.n, datagram, manual, tells }
}

impl Tx for QcastTx {
    fn datagram(&self) -> usize {
        self.datagram
    }

    fn ready(&mut self) -> bool {
        self.publisher.wait_for(self.subscribers, WAIT) >= self.subscribers
    }

    fn send(&mut self, message: &[u8]) -> bool {
        self.publisher.send(message).expect("the message is not too large");
        true
    }

    fn flush(&mut self) -> bool {
        self.publisher.flush();
        true
    }

    fn drain(&mut self) -> bool {
        let confirmed = self.publisher.wait_confirmed(WAIT);
        if confirmed && self.tells {
            eprintln!("{:?}", self.publisher.stats());
        }
        confirmed
    }

    fn idle(&mut self, left: Duration) {
        match self.manual {
            true => self.node.poll(left).expect("the node polls"),
            false => std::thread::sleep(left),
        }
    }
}

pub struct QcastRx {
    node: Node,
    subscriber: Subscriber,
    manual: bool,
}

pub fn rx(setup: &Setup) -> QcastRx {
    let node = node(setup);
    let group = node.group("peers").join().expect("the group can be joined");
    let subscriber = group.subscriber().open().expect("the group can be subscribed to");
    QcastRx { node, subscriber, manual: is_manual(setup) }
}

impl Rx for QcastRx {
    fn poll(&mut self, on: OnMessage) {
        let mut handle = |incoming: Incoming<'_>| match incoming {
            Incoming::Message { bytes, .. } => on(bytes),
            // Shows as a number that was skipped, too; this names the cause.
            Incoming::Notice(Notice::Lost { first, last, cause, .. }) => {
                eprintln!("qcast: frames {first:?} to {last:?} lost: {}", cause.as_str());
            }
            _ => {}
        };
        if self.subscriber.poll(BATCH, &mut handle) > 0 {
            return;
        }
        if self.manual {
            self.node.poll(WAIT).expect("the node polls");
            return;
        }
        let delivery = self.subscriber.recv_timeout(WAIT).expect("the node is there");
        match delivery {
            Some(Delivery::Message(message)) => on(&message),
            Some(Delivery::Notice(notice)) => handle(Incoming::Notice(&notice)),
            _ => {}
        }
    }
}

fn node(setup: &Setup) -> Node {
    let mtu = [4096, 2048, 1024, 512].into_iter().find(|mtu| mtu + HEADERS <= setup.dgram);
    let mtu = mtu.unwrap_or_else(|| panic!("qcast needs a DGRAM of {} at least", 512 + HEADERS));
    let progress = if is_manual(setup) { Progress::Manual } else { Progress::Thread };
    let builder = Node::builder().progress(progress).mtu(mtu);
    let builder = builder.receive_window(setup.number("QCAST_RECEIVE_WINDOW", 512));
    let builder = builder.srq_depth(setup.number("QCAST_SRQ", 2048));
    builder.open().expect("a node can be opened")
}

fn is_manual(setup: &Setup) -> bool {
    match setup.variant.as_str() {
        "" => false,
        "manual" => true,
        other => panic!("no variant {other} of qcast"),
    }
}
