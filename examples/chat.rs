//! A chat: everybody in a group publishes and subscribes, and sees who comes and goes. Ends with the end of
//! standard input, when all have what was said.
//!
//! `cargo run --example chat -- lunch ann`, and the same with another name in another terminal.

use std::error::Error;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use qcast::{
    Delivery, MemberEvent, Node, NodeEvents, Publisher, Subscriber, ViewChange, ViewChanges,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let group = arguments.next().unwrap_or_else(|| "lunch".into());
    let mut node = Node::builder();
    if let Some(name) = arguments.next() {
        node = node.name(name);
    }
    let node = node.open()?;
    let events = node.events();
    let group = node.group(group).join()?;
    let (changes, mut subscriber) = (group.view_changes(), group.subscriber().open()?);
    let publisher = group.publisher().open()?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| listen(&mut subscriber, &changes, &events, &ended));
        let talked = talk(publisher);
        ended.store(true, Ordering::Relaxed);
        talked
    })
    // With the last handle of it the group is left, and the others are told.
}

/// Says each line of standard input.
fn talk(mut publisher: Publisher) -> Result<(), Box<dyn Error>> {
    // Those that are there have a moment to answer; what is said sooner does not reach them.
    publisher.wait_for(1, Duration::from_millis(500));
    for line in std::io::stdin().lock().lines() {
        publisher.send(line?.as_bytes())?;
        publisher.flush();
    }
    for name in publisher.close().unconfirmed {
        eprintln!("* {} did not hear all of it", plain(&name));
    }
    Ok(())
}

/// Prints what others say, who comes and goes, and who has another key.
fn listen(said: &mut Subscriber, changes: &ViewChanges, events: &NodeEvents, ended: &AtomicBool) {
    for member in changes.start().members.iter().filter(|member| !member.own) {
        eprintln!("* {} is here", plain(&member.info.name));
    }
    while !ended.load(Ordering::Relaxed) {
        while let Ok(Some(ViewChange::Member { event, .. })) = changes.try_recv() {
            match &event {
                MemberEvent::Joined(info) => eprintln!("* {} is here", plain(&info.name)),
                MemberEvent::Left(info) => eprintln!("* {} has left", plain(&info.name)),
                MemberEvent::Failed(info) => eprintln!("* {} is gone", plain(&info.name)),
                _ => {}
            }
        }
        while let Ok(Some(event)) = events.try_recv() {
            eprintln!("* {}", plain(&event.to_string()));
        }
        if let Ok(Some(Delivery::Message(message))) = said.recv_timeout(Duration::from_millis(50)) {
            let name = said.stream_info(message.key()).map_or("?", |info| &info.name);
            println!("{}: {}", plain(name), plain(&String::from_utf8_lossy(&message)));
        }
    }
}

/// Text of others without anything that a terminal obeys.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
