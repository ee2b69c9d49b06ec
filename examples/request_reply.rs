//! Request and reply over two groups: one carries requests to every server, the other the replies.
//! Each request names itself, so a client that shares the groups with others knows its answer.
//!
//! `cargo run --example request_reply`

use std::error::Error;
use std::thread;
use std::time::Duration;

use qcast::{Delivery, Node, Notice};

const REQUESTS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let server = thread::spawn(|| serve().expect("the server answers"));
    let node = Node::builder().name("client").open()?;
    let mut replies = node.group("replies").join()?.subscriber().open()?;
    let mut requests = node.group("requests").join()?.publisher().open()?;
    requests.wait_for(1, Duration::from_secs(5));

    for id in 0..REQUESTS {
        requests.send(format!("{id} square {}", id + 10).as_bytes())?;
        let answer = loop {
            match replies.recv_timeout(Duration::from_secs(5))?.ok_or("no answer came in time")? {
                Delivery::Message(reply) => {
                    let reply = String::from_utf8(reply.to_vec())?;
                    if reply.starts_with(&format!("{id} ")) {
                        break reply;
                    }
                }
                notice => println!("client: {notice:?}"),
            }
        };
        println!("client: {answer}");
    }
    requests.close();
    server.join().expect("the server does not panic");
    Ok(())
}

/// Answers until the client has ended.
fn serve() -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name("server").open()?;
    let mut requests = node.group("requests").join()?.subscriber().open()?;
    let mut replies = node.group("replies").join()?.publisher().open()?;
    replies.wait_for(1, Duration::from_secs(5));
    loop {
        match requests.recv()? {
            Delivery::Message(request) => {
                let request = String::from_utf8(request.to_vec())?;
                let (id, number) = request.split_once(" square ").ok_or("not a request")?;
                let number: u64 = number.parse()?;
                replies.send(format!("{id} {}", number * number).as_bytes())?;
            }
            Delivery::Notice(Notice::PublisherClosed(_) | Notice::PublisherLost(_)) => break,
            _ => {}
        }
    }
    replies.close();
    Ok(())
}
