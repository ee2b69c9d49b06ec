//! What most scenarios begin with: one publisher and a few subscribers that know each other.

use std::time::Duration;

use qcast_proto::publish::PublisherConfig;
use qcast_proto::subscribe::{Notice, Reliability, SubscriberConfig, TopicPattern};

use crate::fabric::Fabric;
use crate::publisher::{Plan, Publisher};
use crate::subscriber::Subscriber;
use crate::world::World;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Machine 0 publishes to machines 1 to `subscribers`, which have one subscription each. All are known
/// to the publisher, and nothing has been sent.
pub(crate) fn scene(
    seed: u64,
    fabric: Fabric,
    subscribers: usize,
    publisher: PublisherConfig,
    subscriber: SubscriberConfig,
    plan: Plan,
) -> World {
    let mut w = World::new(seed, fabric);
    w.add();
    for _ in 0..subscribers {
        let machine = w.add();
        w.subscribe(machine, subscriber.clone());
    }
    w.publish(0, publisher, Plan { total: 0, ..plan });
    w.run_until(5 * SECOND, "all join", |w| {
        w.machines[0].publishers[0].stats.receivers == subscribers
    });
    w
}

/// [`scene`] with defaults.
pub(crate) fn plain(seed: u64, fabric: Fabric, subscribers: usize, plan: Plan) -> World {
    let (publisher, subscriber) = (PublisherConfig::default(), SubscriberConfig::default());
    scene(seed, fabric, subscribers, publisher, subscriber, plan)
}

impl World {
    /// The first publisher of machine 0.
    pub(crate) fn publisher(&self) -> &Publisher {
        &self.machines[0].publishers[0]
    }

    /// Machine 0 publishes so many more messages.
    pub(crate) fn more(&mut self, messages: u64) {
        let now = self.now;
        self.machines[0].publishers[0].more(now, messages);
        self.touch(0);
    }

    /// The first subscription of a machine.
    pub(crate) fn subscriber(&self, machine: usize) -> &Subscriber {
        &self.machines[machine].subscribers[0]
    }

    pub(crate) fn subscribers(&self) -> impl Iterator<Item = &Subscriber> {
        self.machines[1..].iter().flat_map(|m| &m.subscribers)
    }

    /// Every subscription got so many messages, and lost nothing.
    pub(crate) fn assert_all_got(&self, messages: u64) {
        for s in self.subscribers() {
            assert_eq!((s.messages(), s.lost_frames(), s.overflows), (messages, 0, 0));
        }
    }
}

pub(crate) fn reliability(reliability: Reliability) -> SubscriberConfig {
    with(|c| c.reliability = reliability)
}

pub(crate) fn topic(pattern: &str) -> SubscriberConfig {
    with(|c| c.topics = TopicPattern::new(pattern))
}

pub(crate) fn with(change: impl FnOnce(&mut SubscriberConfig)) -> SubscriberConfig {
    let mut config = SubscriberConfig::default();
    change(&mut config);
    config
}

pub(crate) fn publishing(change: impl FnOnce(&mut PublisherConfig)) -> PublisherConfig {
    let mut config = PublisherConfig::default();
    change(&mut config);
    config
}

pub(crate) fn on_topic(topic: &str) -> PublisherConfig {
    publishing(|c| c.topic = topic.into())
}

pub(crate) fn is_lost(n: &Notice) -> bool {
    matches!(n, Notice::Lost { .. })
}

pub(crate) fn is_publisher_lost(n: &Notice) -> bool {
    matches!(n, Notice::PublisherLost(_))
}

pub(crate) fn is_publisher_back(n: &Notice) -> bool {
    matches!(n, Notice::PublisherBack(_))
}

pub(crate) fn is_publisher_closed(n: &Notice) -> bool {
    matches!(n, Notice::PublisherClosed(_))
}

pub(crate) fn is_restarted(n: &Notice) -> bool {
    matches!(n, Notice::PublisherRestarted(_))
}

pub(crate) fn is_joined(n: &Notice) -> bool {
    matches!(n, Notice::Joined(_))
}
