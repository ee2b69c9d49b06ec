//! A publisher with a person watching: waits that say what for, and that a signal ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use qcast::{Hold, PublishError, Publisher, PublisherEvent};
use serde_json::{Value, json};

use super::clock::{Every, now};
use super::exit::{Chain, Failure};
use super::happenings::Happenings;
use super::listen::Teller;
use super::output::{Output, Seconds, count};
use super::signals::Interrupt;

/// How long a wait may last before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// After waiting for so long, it is said what for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A publisher, and what is told about it.
pub(crate) struct Outgoing<'a> {
    pub(crate) publisher: Publisher,
    happenings: Happenings,
    pub(crate) teller: Teller,
    pub(crate) out: Output,
    /// Names of all subscribers that were ever there.
    pub(crate) joined: BTreeSet<String>,
    interrupt: &'a Interrupt,
    look: Every,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Go {
    On,
    /// A signal asked for an end.
    Stop,
}

impl<'a> Outgoing<'a> {
    pub(crate) fn new(
        publisher: Publisher,
        happenings: Happenings,
        teller: Teller,
        out: Output,
        interrupt: &'a Interrupt,
    ) -> Self {
        let look = Every::new(SLICE);
        Self { publisher, happenings, teller, out, joined: BTreeSet::new(), interrupt, look }
    }

    /// Waits until `wanted` subscribers are there, or for `timeout`.
    ///
    /// # Errors
    /// They did not come in time.
    pub(crate) fn wait_for(
        &mut self,
        wanted: usize,
        timeout: Option<Duration>,
    ) -> Result<Go, Failure> {
        let (start, mut remind) = (now(), Every::new(PATIENCE));
        loop {
            let have = self.publisher.wait_for(wanted, SLICE);
            self.tell_events()?;
            if have >= wanted {
                return Ok(Go::On);
            }
            if self.interrupt.is_asked() {
                return Ok(Go::Stop);
            }
            if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(Failure::failed(format_args!(
                    "only {have} of {} came in {}; check their --group, --qkey or secret, --domain and \
                     --device",
                    count(wanted as u64, "subscriber"),
                    Seconds(start.elapsed()),
                )));
            }
            if remind.is_due() {
                self.teller.tell(
                    &mut self.out,
                    || json!({ "event": "waiting", "subscribers": have, "wanted": wanted }),
                    || format!("waiting for subscribers: {have} of {wanted} are here"),
                )?;
            }
        }
    }

    /// Sends a message, for however long it is held back. What it waits for is told after a while.
    ///
    /// # Errors
    /// It cannot be sent at all.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<Go, Failure> {
        if self.look.is_due() {
            self.tell_events()?;
            if self.interrupt.is_asked() {
                return Ok(Go::Stop);
            }
        }
        // What is not held back is not timed either.
        let mut since: Option<Instant> = None;
        let mut told = false;
        loop {
            let hold = match self.publisher.send_timeout(message, SLICE) {
                Ok(()) => return Ok(Go::On),
                Err(PublishError::WouldBlock(hold)) => hold,
                Err(error) => return Err(Failure::failed(Chain(&error))),
            };
            self.tell_events()?;
            if self.interrupt.is_asked() {
                return Ok(Go::Stop);
            }
            let since = *since.get_or_insert_with(now);
            if !told && since.elapsed() >= PATIENCE {
                told = true;
                self.tell_hold(hold.as_ref())?;
            }
        }
    }

    /// Tells what happened, and whether to go on.
    pub(crate) fn look(&mut self) -> Result<Go, Failure> {
        self.tell_events()?;
        Ok(if self.interrupt.is_asked() { Go::Stop } else { Go::On })
    }

    /// Waits until `due`.
    pub(crate) fn sleep_until(&mut self, due: Instant) -> Result<Go, Failure> {
        loop {
            let left = due.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(Go::On);
            }
            if self.interrupt.is_asked() {
                return Ok(Go::Stop);
            }
            if left >= SLICE {
                self.tell_events()?;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Tells who came and went, and who has another key.
    pub(crate) fn tell_events(&mut self) -> Result<(), Failure> {
        self.happenings.tell(&mut self.out, &self.teller)?;
        while let Some(event) = self.publisher.next_event() {
            if let PublisherEvent::SubscriberJoined { name, .. } = &event {
                self.joined.insert(name.clone());
            }
            let Some((kind, name, sentence, more)) = told(&event) else { continue };
            self.teller.tell(
                &mut self.out,
                || {
                    let mut object = json!({ "event": kind, "subscriber": name });
                    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
                        object.extend(more);
                    }
                    object
                },
                || sentence,
            )?;
        }
        Ok(())
    }

    fn tell_hold(&mut self, hold: Option<&Hold>) -> Result<(), Failure> {
        let (sentence, details) = match hold {
            Some(Hold::Subscriber { name, behind, headroom, .. }) => (
                format!(
                    "held back by {name}: it is {} behind{}",
                    count(*behind, "frame"),
                    if *headroom == 0 { ", and its receive queue is dry" } else { "" }
                ),
                json!({ "subscriber": name, "behind": behind, "headroom": headroom }),
            ),
            Some(Hold::Quorum { have, want }) => (
                format!("held back: {have} of the {want} subscribers of the quorum are here"),
                json!({ "subscribers": have, "wanted": want }),
            ),
            Some(Hold::Own) => {
                ("held back by a subscription of this very node".to_owned(), json!({}))
            }
            _ => ("held back: the device takes no more for now".to_owned(), json!({})),
        };
        self.teller.tell(
            &mut self.out,
            || {
                let mut object = json!({ "event": "held" });
                if let (Some(object), Value::Object(more)) = (object.as_object_mut(), details) {
                    object.extend(more);
                }
                object
            },
            || sentence,
        )
    }
}

/// The kind, subscriber, sentence and further fields of an event, if it is worth telling.
fn told(event: &PublisherEvent) -> Option<(&'static str, &str, String, Value)> {
    Some(match event {
        PublisherEvent::SubscriberJoined { name, .. } => {
            ("subscriber_joined", name, format!("{name} subscribes"), Value::Null)
        }
        PublisherEvent::SubscriberLeft { name, .. } => {
            ("subscriber_left", name, format!("{name} has left"), Value::Null)
        }
        PublisherEvent::SubscriberLost { name, .. } => (
            "subscriber_lost",
            name,
            format!("{name} is not heard any more, and not waited for"),
            Value::Null,
        ),
        PublisherEvent::SubscriberReleased { name, waited, .. } => (
            "subscriber_released",
            name,
            format!(
                "{name} stayed behind for {}, and is not waited for any more",
                Seconds(*waited)
            ),
            json!({ "waited_seconds": waited.as_secs_f64() }),
        ),
        _ => return None,
    })
}
