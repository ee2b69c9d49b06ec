//! Telemetry fan-out: three sensors publish their readings as topics of one group, and whoever is
//! interested takes what it needs of them, as it needs it: a logger every reading in order, a display only the
//! newest, an alarm as soon as something arrives.
//!
//! `cargo run --example telemetry`

use std::error::Error;
use std::thread;
use std::time::Duration;

use qcast::{Delivery, Group, Node, Notice, Reliability, Subscriber};

const SENSORS: usize = 3;
const READINGS: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let observer = Node::builder().name("observer").open()?;
    let group = observer.group("telemetry").join()?;
    let logger = group.subscriber().topics("sensor/*").open()?;
    let display =
        group.subscriber().topics("sensor/1/*").reliability(Reliability::Latest).open()?;
    let alarm = group.subscriber().reliability(Reliability::Unordered).open()?;
    let readers = [("logger", logger), ("display", display), ("alarm", alarm)]
        .map(|(name, subscriber)| thread::spawn(move || read(name, subscriber)));

    let sensors = (0..SENSORS).map(|n| thread::spawn(move || measure(n)));
    for sensor in sensors.collect::<Vec<_>>() {
        sensor.join().expect("a sensor does not panic").expect("a sensor publishes");
    }
    for reader in readers {
        reader.join().expect("a reader does not panic");
    }
    Ok(())
}

/// A sensor: a node of its own, as it would be a process of its own.
fn measure(n: usize) -> Result<(), String> {
    let publish = |group: Group| -> Result<(), Box<dyn Error>> {
        let mut publisher = group.publisher().topic(format!("sensor/{n}/load")).open()?;
        publisher.wait_for(1, Duration::from_secs(5));
        for reading in 0..READINGS {
            publisher.send(format!("{n} {reading}").as_bytes())?;
        }
        publisher.close();
        Ok(())
    };
    let node = Node::builder().name(format!("sensor-{n}")).open().map_err(|e| e.to_string())?;
    let group = node.group("telemetry").join().map_err(|e| e.to_string())?;
    publish(group).map_err(|e| e.to_string())
}

/// Counts what comes until every sensor that was heard has ended.
fn read(name: &str, mut subscriber: Subscriber) {
    let (mut messages, mut last, mut open, mut ended) = (0, String::new(), 0, 0);
    while let Ok(Some(delivery)) = subscriber.recv_timeout(Duration::from_secs(3)) {
        match delivery {
            Delivery::Message(message) => {
                messages += 1;
                last = String::from_utf8_lossy(&message).into_owned();
            }
            Delivery::Notice(Notice::Joined(_)) => open += 1,
            Delivery::Notice(Notice::PublisherClosed(_)) => ended += 1,
            Delivery::Notice(notice) => println!("{name}: {notice:?}"),
            _ => {}
        }
        let all = if name == "display" { 1 } else { SENSORS };
        if ended == open && ended == all {
            break;
        }
    }
    println!("{name}: {messages} messages of {open} sensors, the last one {last:?}");
}
