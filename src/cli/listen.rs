//! What a subscriber's command tells beside messages: who publishes, what was lost, and why nothing
//! comes.

use std::time::{Duration, Instant};

use qcast::{Group, Node, Notice, StreamInfo, StreamKey, Subscriber};
use serde_json::{Value, json};

use super::clock::{Every, now};
use super::exit::Failure;
use super::happenings::Happenings;
use super::output::{Notes, Output, Seconds, count};

/// Tells what happens: as sentences on standard error, or as objects with an `event` among the results.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) notes: Notes,
    json: bool,
}

impl Teller {
    pub(crate) fn new(json: bool) -> Self {
        Self { notes: Notes::default(), json }
    }

    /// Whether objects are wanted instead of sentences.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Tells one thing, in whichever form is wanted.
    pub(crate) fn tell(
        &self,
        out: &mut Output,
        event: impl FnOnce() -> Value,
        sentence: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.json {
            out.json(&event())?;
            out.flush()
        } else {
            self.notes.say(sentence());
            Ok(())
        }
    }

    /// Says where this node listens.
    pub(crate) fn listening(
        &self,
        out: &mut Output,
        node: &Node,
        group: &Group,
    ) -> Result<(), Failure> {
        let device = node.device();
        self.tell(
            out,
            || {
                json!({
                    "event": "listening", "group": group.name(), "mgid": group.mgid(),
                    "name": node.name(), "device": device.name, "address": device.gid.ip(),
                })
            },
            || {
                format!(
                    "{} listens to group {} ({}) on {}",
                    node.name(),
                    group.name(),
                    group.mgid(),
                    device.name
                )
            },
        )
    }

    /// Tells a notice of a subscription.
    pub(crate) fn notice(
        &self,
        out: &mut Output,
        notice: &Notice,
        names: &mut Names,
        subscriber: &Subscriber,
    ) -> Result<(), Failure> {
        if let Notice::Joined(info) | Notice::PublisherBack(info) = notice {
            names.note(info);
        }
        let stream = match notice {
            Notice::Joined(info)
            | Notice::PublisherLost(info)
            | Notice::PublisherBack(info)
            | Notice::PublisherRestarted(info)
            | Notice::PublisherClosed(info) => Stream::of(info),
            Notice::Lost { key, .. } | Notice::Released { key, .. } => {
                names.find(*key, subscriber).clone()
            }
            _ => return Ok(()),
        };
        let (event, sentence, more) = told(notice, &stream);
        self.tell(
            out,
            || {
                let mut object = json!({
                    "event": event, "publisher": stream.publisher, "topic": stream.topic,
                    "session": stream.session,
                });
                if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
                    object.extend(more);
                }
                object
            },
            || sentence,
        )
    }
}

/// The event, the sentence and the further fields of a notice.
fn told(notice: &Notice, stream: &Stream) -> (&'static str, String, Value) {
    let who = stream.described();
    match notice {
        Notice::Joined(_) => ("joined", format!("{who} is here"), Value::Null),
        Notice::Lost { first, last, cause, .. } => {
            let frames = last.since(*first) + 1;
            (
                "lost",
                format!(
                    "{} of {who} lost for good ({first} to {last}): {}",
                    count(frames, "frame"),
                    cause.as_str()
                ),
                json!({ "first": first.0, "last": last.0, "frames": frames, "cause": cause.as_str() }),
            )
        }
        Notice::PublisherLost(_) => {
            ("publisher_lost", format!("{who} is not heard any more"), Value::Null)
        }
        Notice::PublisherBack(_) => {
            ("publisher_back", format!("{who} is heard again"), Value::Null)
        }
        Notice::PublisherRestarted(_) => {
            ("publisher_restarted", format!("{who} was restarted"), Value::Null)
        }
        Notice::PublisherClosed(_) => ("closed", format!("{who} has ended"), Value::Null),
        Notice::Released { waited, .. } => (
            "released",
            format!(
                "{who} waited {} for this subscriber, and waits no longer: messages may be lost from \
                 here on",
                Seconds(*waited)
            ),
            json!({ "waited_seconds": waited.as_secs_f64() }),
        ),
        _ => ("notice", format!("{who}: {notice:?}"), Value::Null),
    }
}

/// A stream as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) publisher: String,
    pub(crate) topic: String,
    pub(crate) session: String,
}

impl Stream {
    fn of(info: &StreamInfo) -> Self {
        Self {
            publisher: info.name.clone(),
            topic: info.topic.clone(),
            session: info.key.session.to_string(),
        }
    }

    fn described(&self) -> String {
        if self.topic.is_empty() {
            self.publisher.clone()
        } else {
            format!("{} (topic {})", self.publisher, self.topic)
        }
    }
}

/// Names of streams: messages of one come in runs, so the last one is kept at hand.
#[derive(Debug, Default)]
pub(crate) struct Names {
    last: Option<(StreamKey, Stream)>,
}

impl Names {
    fn note(&mut self, info: &StreamInfo) {
        self.last = Some((info.key, Stream::of(info)));
    }

    /// The names of a stream; its key if it is not known any more.
    pub(crate) fn find(&mut self, key: StreamKey, subscriber: &Subscriber) -> &Stream {
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            let stream = subscriber.stream_info(key).map_or_else(
                || Stream {
                    publisher: format!("session {}", key.session),
                    session: key.session.to_string(),
                    topic: String::new(),
                },
                Stream::of,
            );
            self.last = Some((key, stream));
        }
        &self.last.as_ref().expect("it was set just now").1
    }
}

/// Notices that nothing is heard, and that datagrams are rejected.
#[derive(Debug)]
pub(crate) struct Watch {
    happenings: Happenings,
    since: Instant,
    last_heard: Instant,
    ever_heard: bool,
    hinted: bool,
    look: Every,
    rejected_told: u64,
}

/// How often counters are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// After hearing nothing for so long, a hint is due.
const SILENCE: Duration = Duration::from_secs(2);

impl Watch {
    pub(crate) fn new(happenings: Happenings) -> Self {
        let now = now();
        Self {
            happenings,
            since: now,
            last_heard: now,
            ever_heard: false,
            hinted: false,
            look: Every::new(LOOK_EVERY),
            rejected_told: 0,
        }
    }

    /// Something came. What is new of the members is told even while messages come and come.
    pub(crate) fn heard(&mut self, out: &mut Output, teller: &Teller) -> Result<(), Failure> {
        self.ever_heard = true;
        self.last_heard = now();
        self.happenings.look(self.last_heard, out, teller)
    }

    /// For how long nothing came.
    pub(crate) fn silent_for(&self) -> Duration {
        now().saturating_duration_since(self.last_heard)
    }

    /// Whether anything ever came.
    pub(crate) fn ever_heard(&self) -> bool {
        self.ever_heard
    }

    /// Looks at what there is to say. Call it whenever nothing came for a moment.
    pub(crate) fn look(
        &mut self,
        out: &mut Output,
        teller: &Teller,
        node: &Node,
        group: &Group,
    ) -> Result<(), Failure> {
        self.happenings.look(now(), out, teller)?;
        if !self.look.is_due() {
            return Ok(());
        }
        let rejected = node.counters().qkey_violations;
        // Told at the first one, and then each time there are ten times as many.
        if rejected > 0 && rejected >= self.rejected_told.saturating_mul(10) {
            self.rejected_told = rejected;
            tell_rejected(out, teller, rejected)?;
        }
        if !self.hinted && !self.ever_heard && self.since.elapsed() >= SILENCE {
            self.hinted = true;
            self.tell_silence(out, teller, node, group, rejected)?;
        }
        Ok(())
    }

    fn tell_silence(
        &self,
        out: &mut Output,
        teller: &Teller,
        node: &Node,
        group: &Group,
        rejected: u64,
    ) -> Result<(), Failure> {
        let device = node.device();
        let mut checks = Vec::new();
        if rejected == 0 {
            checks.push(format!(
                "a publisher runs in a group of this name ({}) and this address ({})",
                group.name(),
                group.mgid()
            ));
            checks.push("it was given the same --domain and the same --qkey or secret".to_owned());
            if device.gid.ip().is_loopback() {
                checks.push(format!(
                    "it runs on this host: {} is the loopback device, and --device soft:IFACE (here and \
                     there) reaches other hosts",
                    device.name
                ));
            } else {
                checks.push(format!(
                    "its network and that of {} ({}) are one, UDP port {} may pass the firewalls, and the \
                     switches forward multicast (IGMP snooping needs a querier)",
                    device.name,
                    device.gid.ip(),
                    device.udp_port
                ));
            }
        } else {
            checks
                .push("all use the same --qkey or secret: see the rejected datagrams above".into());
        }
        let counters = group.counters();
        if counters.wrong_domain > 0 {
            checks.insert(
                0,
                format!("--domain: {} frames of another domain came", counters.wrong_domain),
            );
        }
        teller.tell(
            out,
            || json!({ "event": "silent", "seconds": SILENCE.as_secs(), "check": checks }),
            || {
                let list: Vec<_> = checks.iter().map(|check| format!("\n  - {check}")).collect();
                format!("nothing heard for {} s; check that{}", SILENCE.as_secs(), list.concat())
            },
        )
    }
}

/// Why datagrams were rejected, for people.
pub(crate) fn rejection(rejected: u64) -> Option<String> {
    (rejected > 0).then(|| {
        let were = if rejected == 1 {
            "datagram was rejected because its"
        } else {
            "datagrams were rejected because their"
        };
        format!(
            "{rejected} {were} QKey differs from yours: the sender uses another --qkey or secret"
        )
    })
}

fn tell_rejected(out: &mut Output, teller: &Teller, rejected: u64) -> Result<(), Failure> {
    let Some(reason) = rejection(rejected) else { return Ok(()) };
    teller.tell(
        out,
        || json!({ "event": "rejected", "datagrams": rejected, "reason": reason }),
        || reason.clone(),
    )
}
