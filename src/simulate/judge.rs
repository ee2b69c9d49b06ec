//! What must hold at a subscriber, whatever the fabric does: each message once and in order, or one
//! event for the gap.

use qcast_proto::addr::Sequence;
use qcast_proto::buf::RxFrame;
use qcast_proto::subscribe::{LossCause, Notice, Reliability, StreamInfo, StreamKey};
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::Messages;

use super::config::SimulationConfig;
use super::traffic;
use crate::engine::outlet::Item;

/// Violations found: all are counted, some are described.
#[derive(Debug, Default)]
pub(super) struct Violations {
    pub(super) count: u64,
    pub(super) described: Vec<String>,
}

/// Violations that are described: the first ones tell what is wrong.
const MAX_DESCRIBED: usize = 20;

impl Violations {
    pub(super) fn add(&mut self, describe: impl FnOnce() -> String) {
        self.count += 1;
        if self.described.len() < MAX_DESCRIBED {
            self.described.push(describe());
        }
    }
}

/// Judges what one subscriber is given.
#[derive(Debug)]
pub(super) struct Judge {
    name: u32,
    reliability: Reliability,
    size: usize,
    publishers: u32,
    streams: Vec<Stream>,
    /// Messages that came, each once.
    pub(super) messages: u64,
    /// Events that told of a loss.
    pub(super) lost_events: u64,
    /// Events that told that a publisher was lost, or let this subscriber go.
    pub(super) partings: u64,
    /// Whether the application takes everything at once.
    prompt: bool,
    /// A stranger, who must be given nothing.
    excluded: bool,
}

/// One publisher's stream, as the subscriber saw it.
#[derive(Debug)]
struct Stream {
    key: StreamKey,
    publisher: Option<u32>,
    /// The next frame.
    sequence: Sequence,
    /// The next message.
    next: u64,
    /// The loss that was told after the last message, and when.
    gap: Option<(Sequence, LossCause, Instant)>,
    /// Its publisher was reported lost, or let this subscriber go.
    parted: bool,
    /// Messages by number, where they may come in any order.
    seen: Vec<u64>,
    ends: u32,
}

impl Judge {
    pub(super) fn new(name: u32, config: &SimulationConfig, excluded: bool) -> Self {
        let prompt = config.slow <= name as usize;
        Self {
            name,
            reliability: config.reliability,
            size: config.size,
            publishers: config.publishers as u32,
            streams: Vec::new(),
            messages: 0,
            lost_events: 0,
            partings: 0,
            prompt,
            excluded,
        }
    }

    /// Takes what the application takes next.
    pub(super) fn take(&mut self, now: Instant, item: &Item, wrong: &mut Violations) {
        if self.excluded {
            wrong.add(|| format!("the stranger was given {item:?}"));
            return;
        }
        match item {
            Item::Frame { key, sequence, frame } => {
                self.reach(*key, *sequence, true, wrong);
                for message in Messages::of_checked(frame.bytes()) {
                    self.message(*key, message, wrong);
                }
            }
            Item::Message { key, sequence, message, .. } => {
                self.reach(*key, *sequence, false, wrong);
                self.message(*key, message, wrong);
            }
            Item::Notice(notice) => self.notice(now, notice, wrong),
        }
    }

    /// Judges what is left at the end, when each publisher has published so many `messages`.
    pub(super) fn end(&self, messages: u64, wrong: &mut Violations) {
        if self.excluded {
            return;
        }
        let name = self.name;
        for publisher in 0..self.publishers {
            let Some(s) = self.streams.iter().find(|s| s.publisher == Some(publisher)) else {
                if self.streams.iter().all(|s| s.gap.is_none() && !s.parted) {
                    wrong.add(|| format!("subscriber {name} got nothing of publisher {publisher}"));
                }
                continue;
            };
            let missing = match self.reliability {
                Reliability::Unordered => {
                    messages - s.seen.iter().map(|w| u64::from(w.count_ones())).sum::<u64>()
                }
                _ => messages - s.next,
            };
            let told = match self.reliability {
                Reliability::Unordered => self.lost_events > 0,
                _ => s.gap.is_some(),
            };
            let told = told || s.parted;
            if missing > 0 && !told {
                wrong.add(|| {
                    format!(
                        "subscriber {name} misses {missing} messages of publisher {publisher} at \
                         the end, {} of {messages} and on, and was not told",
                        s.next
                    )
                });
            }
            if s.ends > 1 {
                wrong.add(|| format!("subscriber {name} was told {} ends of one stream", s.ends));
            }
        }
    }

    /// A frame, or the last fragment of a message, was delivered.
    fn reach(&mut self, key: StreamKey, at: Sequence, whole: bool, wrong: &mut Violations) {
        let (name, reliability) = (self.name, self.reliability);
        let s = self.stream(key);
        let expected = s.sequence;
        let right = match reliability {
            Reliability::Unordered => true,
            Reliability::Latest => at >= expected,
            // What is left of a message that lost a fragment is dropped in silence.
            _ if s.gap.is_some() || !whole => at >= expected,
            _ => at == expected,
        };
        if !right {
            wrong.add(|| format!("subscriber {name} got frame {at} where {expected} was next"));
        }
        s.sequence = s.sequence.max(at.next());
    }

    fn message(&mut self, key: StreamKey, message: &[u8], wrong: &mut Violations) {
        let (name, size) = (self.name, self.size);
        let Some((publisher, number)) = traffic::read(message, size) else {
            wrong.add(|| {
                format!("subscriber {name} got a damaged message of {} bytes", message.len())
            });
            return;
        };
        if publisher >= self.publishers {
            wrong.add(|| format!("subscriber {name} got message {number} of a stranger"));
            return;
        }
        self.messages += 1;
        let reliability = self.reliability;
        let s = self.stream(key);
        if *s.publisher.get_or_insert(publisher) != publisher {
            wrong.add(|| format!("subscriber {name} got two publishers in one stream"));
        }
        let gap = s.gap.take();
        let right = match reliability {
            Reliability::Unordered => s.first_sight_of(number),
            Reliability::Latest => number >= s.next,
            // A frame that is lost for good takes a message at least with it.
            _ if gap.is_some() => number > s.next,
            _ => number == s.next,
        };
        if !right {
            let next = s.next;
            wrong.add(|| {
                let after = if gap.is_some() { " after a loss" } else { "" };
                format!("subscriber {name} got message {number} where {next} was next{after}")
            });
        }
        s.next = s.next.max(number + 1);
    }

    fn notice(&mut self, now: Instant, notice: &Notice, wrong: &mut Violations) {
        let (name, reliability, prompt) = (self.name, self.reliability, self.prompt);
        match notice {
            Notice::Lost { key, first, last, cause } => {
                self.lost_events += 1;
                let s = self.stream(*key);
                let expected = s.sequence;
                // What is given up later, though it follows, is another loss.
                let same = (*cause, now);
                let again =
                    s.gap.is_some_and(|(end, c, at)| end.next() == *first && (c, at) == same);
                if again && prompt {
                    wrong
                        .add(|| format!("subscriber {name} got two events for one gap at {first}"));
                }
                if first > last || (reliability == Reliability::Ordered && *first < expected) {
                    wrong.add(|| {
                        format!("subscriber {name} was told of a loss of {first} to {last} where {expected} was next")
                    });
                }
                s.gap = Some((*last, *cause, now));
                s.sequence = s.sequence.max(last.next());
            }
            Notice::PublisherClosed(info) => self.stream(info.key).ends += 1,
            Notice::PublisherLost(StreamInfo { key, .. }) | Notice::Released { key, .. } => {
                self.partings += 1;
                self.stream(*key).parted = true;
            }
            _ => {}
        }
    }

    fn stream(&mut self, key: StreamKey) -> &mut Stream {
        let at = self.streams.iter().position(|s| s.key == key).unwrap_or_else(|| {
            self.streams.push(Stream {
                key,
                publisher: None,
                sequence: Sequence(0),
                next: 0,
                gap: None,
                parted: false,
                seen: Vec::new(),
                ends: 0,
            });
            self.streams.len() - 1
        });
        &mut self.streams[at]
    }
}

impl Stream {
    fn first_sight_of(&mut self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, number % 64);
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let first = self.seen[word] >> bit & 1 == 0;
        self.seen[word] |= 1 << bit;
        first
    }
}
