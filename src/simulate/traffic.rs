//! What simulated publishers publish: numbered messages that show if they are damaged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use qcast_proto::node::PublisherId;
use qcast_proto::publish::{Closed, PublisherEvent, PublisherStats, PushError};
use qcast_proto::time::{Duration, Instant};

use super::config::SimulationConfig;
use crate::device::impair::mix;
use crate::engine::Engine;
use crate::engine::outlet::PublisherOutlet;

/// Bytes of a message that say which it is.
pub(super) const MARK: usize = 16;

/// The publisher number in a stranger's messages.
pub(super) const STRANGER: u32 = u32::MAX;

/// Messages given to an outbox before the engine gets a turn.
const LOT: usize = 256;

/// Writes message `number` of a publisher into `message`.
pub(super) fn write(message: &mut [u8], publisher: u32, number: u64) {
    message[..8].copy_from_slice(&number.to_be_bytes());
    message[8..12].copy_from_slice(&publisher.to_be_bytes());
    message[12..MARK].copy_from_slice(&check(publisher, number));
    if let Some(last) = message[MARK..].last_mut() {
        *last = number as u8;
    }
}

/// The publisher and number of a message; `None` if it is damaged or not of this size.
pub(super) fn read(message: &[u8], size: usize) -> Option<(u32, u64)> {
    let number = u64::from_be_bytes(message.get(..8)?.try_into().ok()?);
    let publisher = u32::from_be_bytes(message.get(8..12)?.try_into().ok()?);
    let whole = message.len() == size
        && message[12..MARK] == check(publisher, number)
        && message[MARK..].last().is_none_or(|last| *last == number as u8);
    whole.then_some((publisher, number))
}

fn check(publisher: u32, number: u64) -> [u8; 4] {
    (mix(u64::from(publisher), number) as u32).to_be_bytes()
}

/// An application that publishes.
pub(super) struct Sender {
    pub(super) id: PublisherId,
    outlet: Arc<PublisherOutlet>,
    number: u32,
    messages: u64,
    rate: Option<f64>,
    message: Vec<u8>,
    /// When the first message was published.
    began: Option<Instant>,
    sent: u64,
    closing: bool,
    /// Live subscribers, by the publisher's events.
    pub(super) receivers: usize,
    /// What became of subscribers that were let go, or not heard of any more.
    pub(super) parted: Vec<PublisherEvent>,
    pub(super) closed: Option<Closed>,
    /// Its numbers, as of its end.
    pub(super) stats: PublisherStats,
}

impl Sender {
    pub(super) fn new(
        (id, outlet): (PublisherId, Arc<PublisherOutlet>),
        number: u32,
        messages: u64,
        config: &SimulationConfig,
    ) -> Self {
        Self {
            id,
            outlet,
            number,
            messages,
            rate: config.rate,
            message: vec![0; config.size],
            began: None,
            sent: 0,
            closing: false,
            receivers: 0,
            parted: Vec::new(),
            closed: None,
            stats: PublisherStats::default(),
        }
    }

    /// From now on it publishes.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Does what the application does after a turn of its node. Gives when it wants to run again:
    /// `now` if the engine has something new to do.
    pub(super) fn run(&mut self, now: Instant, engine: &mut Engine) -> Option<Instant> {
        self.take_events();
        let began = self.began?;
        if self.closing {
            return None;
        }
        let due = match self.rate {
            None => self.messages,
            Some(rate) => {
                let elapsed = now.saturating_since(began).as_secs_f64();
                ((elapsed * rate) as u64).saturating_add(1).min(self.messages)
            }
        };
        let before = self.sent;
        let full = self.push(due);
        if self.sent == self.messages {
            self.closing = true;
            engine.close_publisher(self.id);
        }
        if self.sent > before || self.closing {
            self.outlet.dirty.store(true, Ordering::Release);
            return Some(now);
        }
        match self.rate {
            Some(rate) if !full => Some(began + Duration::from_secs_f64(self.sent as f64 / rate)),
            // Held back: the statuses that let it go on give the node a turn.
            _ => None,
        }
    }

    /// Publishes up to message `due`, not included. Says whether it was held back.
    fn push(&mut self, due: u64) -> bool {
        let mut outbox = self.outlet.outbox.lock();
        for _ in 0..LOT {
            if self.sent >= due {
                break;
            }
            write(&mut self.message, self.number, self.sent);
            match outbox.push(&self.message) {
                Ok(()) => self.sent += 1,
                Err(PushError::Full) => return true,
                Err(error) => unreachable!("the size of messages was checked: {error}"),
            }
        }
        false
    }

    fn take_events(&mut self) {
        let mut report = self.outlet.report.lock();
        while let Some(event) = report.events.pop_front() {
            match event {
                PublisherEvent::SubscriberJoined { .. } => self.receivers += 1,
                PublisherEvent::SubscriberLeft { .. } => self.receivers -= 1,
                PublisherEvent::SubscriberLost { .. } => {
                    self.receivers -= 1;
                    self.parted.push(event);
                }
                PublisherEvent::SubscriberReleased { .. } => self.parted.push(event),
                PublisherEvent::Closed(closed) => {
                    self.closed = Some(closed);
                    self.stats = report.stats.clone();
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_which_it_is_and_if_it_is_damaged() {
        for size in [MARK, MARK + 1, 1000] {
            let mut message = vec![0; size];
            write(&mut message, 3, 77);
            assert_eq!(read(&message, size), Some((3, 77)));
            assert_eq!(read(&message, size + 1), None);
            assert_eq!(read(&message[..size - 1], size), None);
            message[7] ^= 1;
            assert_eq!(read(&message, size), None);
        }
    }
}
