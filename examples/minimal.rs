//! The smallest pair: a publisher and a subscriber, here in one process.
//!
//! `cargo run --example minimal`

use std::error::Error;
use std::time::Duration;

use qcast::{Delivery, Node};

fn main() -> Result<(), Box<dyn Error>> {
    let (ours, theirs) = (Node::builder().open()?, Node::builder().open()?);
    let mut subscriber = theirs.group("minimal").join()?.subscriber().open()?;
    let mut publisher = ours.group("minimal").join()?.publisher().open()?;

    publisher.wait_for(1, Duration::from_secs(5));
    for n in 0..5 {
        publisher.send(format!("message {n}").as_bytes())?;
    }
    let mut received = 0;
    while received < 5 {
        match subscriber.recv()? {
            Delivery::Message(message) => {
                println!("{}", String::from_utf8_lossy(&message));
                received += 1;
            }
            Delivery::Notice(notice) => println!("({notice:?})"),
            _ => {}
        }
    }
    let closed = publisher.close();
    println!("unconfirmed: {:?}", closed.unconfirmed);
    Ok(())
}
