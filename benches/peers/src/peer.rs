//! What a peer has to do to be measured.

use std::time::Duration;

use crate::{aeron, dds, norm, qcast_peer, raw};

/// Takes one received message.
pub type OnMessage<'a> = &'a mut dyn FnMut(&[u8]);

/// The publisher's side of a peer.
pub trait Tx {
    /// The most bytes of UDP payload that it puts into a datagram, as it is set up.
    fn datagram(&self) -> usize;

    /// Whether all subscribers are known to be there.
    fn ready(&mut self) -> bool {
        true
    }

    /// Queues one message; false: not taken yet, call again with the same message.
    fn send(&mut self, message: &[u8]) -> bool;

    /// Pushes out what is queued; false: call again.
    fn flush(&mut self) -> bool {
        true
    }

    /// Makes sure that everything sent is delivered even if nothing follows; false: call again.
    fn drain(&mut self) -> bool {
        self.flush()
    }

    /// Called while there is nothing to send, for `left`.
    fn idle(&mut self, left: Duration) {
        std::thread::sleep(left);
    }
}

/// A subscriber's side of a peer.
pub trait Rx {
    /// Hands over the messages that are there, waiting up to about 10 ms for some.
    fn poll(&mut self, on: OnMessage);
}

/// One publisher or subscriber process.
pub struct Setup {
    /// What stands after the first dash of the peer's name.
    pub variant: String,
    /// 0: the publisher, 1 to `n`: subscribers.
    pub id: usize,
    /// Subscribers.
    pub n: usize,
    /// Bytes of a message.
    pub size: usize,
    /// The most bytes of UDP payload that a peer may put into a datagram.
    pub dgram: usize,
    /// A folder that the processes of a cell share.
    pub dir: String,
}

impl Setup {
    /// A setting from the environment.
    pub fn env(&self, key: &str, default: &str) -> String {
        std::env::var(key).unwrap_or(default.into())
    }

    /// A number from the environment.
    pub fn number<T: std::str::FromStr>(&self, key: &str, default: T) -> T {
        let parse = |v: String| v.parse().unwrap_or_else(|_| panic!("{key}={v} is no number"));
        std::env::var(key).map_or(default, parse)
    }
}

pub fn open_tx(peer: &str, setup: &Setup) -> Box<dyn Tx> {
    match peer {
        "raw" => Box::new(raw::tx(setup)),
        "aeron" => Box::new(aeron::tx(setup)),
        "norm" => Box::new(norm::tx(setup)),
        "dds" => Box::new(dds::tx(setup)),
        "qcast" => Box::new(qcast_peer::tx(setup)),
        _ => panic!("no peer {peer}"),
    }
}

pub fn open_rx(peer: &str, setup: &Setup) -> Box<dyn Rx> {
    match peer {
        "raw" => Box::new(raw::rx(setup)),
        "aeron" => Box::new(aeron::rx(setup)),
        "norm" => Box::new(norm::rx(setup)),
        "dds" => Box::new(dds::rx(setup)),
        "qcast" => Box::new(qcast_peer::rx(setup)),
        _ => panic!("no peer {peer}"),
    }
}

/// Aeron's idle strategies, for peers whose application thread polls: yield, or spin, yield and
/// then sleep for 1 us, 2 us, ... 1 ms.
pub struct Backoff {
    yields: bool,
    idle: u32,
}

impl Backoff {
    pub fn new(yields: bool) -> Self {
        Self { yields, idle: 0 }
    }

    pub fn idle(&mut self, worked: bool) {
        self.idle = if worked { 0 } else { self.idle.saturating_add(1) };
        match self.idle {
            0 => {}
            1..=10 if !self.yields => std::hint::spin_loop(),
            31.. if !self.yields => {
                std::thread::sleep(Duration::from_micros(1 << (self.idle - 31).min(10)));
            }
            _ => std::thread::yield_now(),
        }
    }
}
