//! What loss looks like: one publisher, three subscriptions on a node that drops a fifth of what it
//! receives. The ordered one gets all, the best-effort one is told at once what it missed.
//!
//! `cargo run --example lossy`

use std::error::Error;
use std::time::Duration;

use qcast::{Delivery, Node, Notice, Reliability};

const MESSAGES: u32 = 5_000;

fn main() -> Result<(), Box<dyn Error>> {
    let lossy = Node::builder().name("lossy").fault(Some("loss=0.2,seed=7".parse()?)).open()?;
    let group = lossy.group("lossy").join()?;
    let ordered = group.subscriber().open()?;
    let best_effort = group.subscriber().reliability(Reliability::BestEffort).open()?;

    let node = Node::builder().name("source").open()?;
    let mut publisher = node.group("lossy").join()?.publisher().open()?;
    publisher.wait_for(1, Duration::from_secs(5));
    for n in 0..MESSAGES {
        publisher.send(&[&n.to_be_bytes()[..], &[0; 500]].concat())?;
    }
    let closed = publisher.close();
    println!("not confirmed by: {:?}", closed.unconfirmed);

    for (name, mut subscriber) in [("ordered", ordered), ("best effort", best_effort)] {
        let (mut messages, mut losses, mut frames) = (0, 0, 0);
        while let Some(delivery) = subscriber.recv_timeout(Duration::from_secs(1))? {
            match delivery {
                Delivery::Message(_) => messages += 1,
                Delivery::Notice(Notice::Lost { first, last, .. }) => {
                    losses += 1;
                    frames += last.since(first) + 1;
                }
                Delivery::Notice(Notice::PublisherClosed(_)) => break,
                _ => {}
            }
        }
        println!("{name}: {messages} of {MESSAGES} messages; {losses} losses of {frames} frames");
    }
    println!("frames dropped on purpose: {}", lossy.counters().injected_drops);
    Ok(())
}
