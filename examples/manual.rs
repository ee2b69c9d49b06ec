//! Manual progress: no thread, no hand-off. The application drives its nodes by polling, as those do
//! who spin on a core for the lowest latency.
//!
//! `cargo run --release --example manual`

use std::error::Error;
use std::time::{Duration, Instant};

use qcast::{Incoming, Node, Progress};

const ROUNDS: u32 = 10_000;

#[expect(clippy::disallowed_methods, reason = "an application reads the clock where it likes")]
fn main() -> Result<(), Box<dyn Error>> {
    let open = |name: &str| Node::builder().name(name).progress(Progress::Manual).open();
    let (ours, theirs) = (open("ours")?, open("theirs")?);
    let mut subscriber = theirs.group("manual").join()?.subscriber().open()?;
    let mut publisher = ours.group("manual").join()?.publisher().open()?;

    let mut received = 0;
    let mut sent = 0;
    let start = Instant::now();
    while received < ROUNDS {
        // A message at a time; nothing here ever waits.
        if sent == received && sent < ROUNDS && publisher.stats().receivers == 1 {
            publisher.try_send(&sent.to_be_bytes())?;
            sent += 1;
        }
        ours.poll(Duration::ZERO)?;
        theirs.poll(Duration::ZERO)?;
        subscriber.poll(16, |incoming| {
            if let Incoming::Message { bytes, .. } = incoming {
                assert_eq!(bytes, received.to_be_bytes());
                received += 1;
            }
        });
    }
    println!("{ROUNDS} messages one by one, {:?} each", start.elapsed() / ROUNDS);
    Ok(())
}
