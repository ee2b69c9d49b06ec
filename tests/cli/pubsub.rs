//! `qcast pub` and `qcast sub`.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Folder, Run, group, noise, qcast, run};

/// Publishes lines to a subscriber that is there.
fn publish(group: &str, lines: &str) {
    let mut publisher = Run::start(&["pub", "-g", group, "--wait-for", "1"]);
    publisher.input(lines.as_bytes());
    publisher.end().expect(0);
}

#[test]
fn lines_arrive_as_they_were() {
    let group = group("lines");
    let subscriber = Run::listening(&["sub", "-g", &group, "--until-closed"]);
    publish(&group, "one\n\nthree é\nlast");
    let ended = subscriber.end().expect(0);
    assert_eq!(ended.stdout, ["one", "", "three é", "last"]);
    assert!(ended.said().contains("4 messages in "), "{ended:#?}");
}

#[test]
fn json_has_the_keys_that_tools_rely_on() {
    let group = group("json");
    let subscriber = Run::listening(&["sub", "-g", &group, "--until-closed", "--json"]);
    let mut publisher = Run::start(&[
        "pub",
        "-g",
        &group,
        "--wait-for",
        "1",
        "--topic",
        "sensor/7",
        "--name",
        "me",
        "--json",
    ]);
    publisher.input(b"text\n\xff\x00\n");
    let ended = publisher.end().expect(0);
    let summary = ended.objects().pop().unwrap();
    assert_eq!((&summary["event"], &summary["messages"]), (&"summary".into(), &2.into()));

    let ended = subscriber.end().expect(0);
    let objects = ended.objects();
    let events: Vec<_> = objects.iter().filter_map(|object| object["event"].as_str()).collect();
    assert_eq!(events, ["joined", "closed", "summary"]);
    let messages: Vec<&Value> = objects.iter().filter(|o| o["event"].is_null()).collect();
    assert_eq!(messages.len(), 2);
    for message in &messages {
        assert_eq!((&message["topic"], &message["publisher"]), (&"sensor/7".into(), &"me".into()));
        assert!(message["sequence"].is_u64());
    }
    assert_eq!(messages[0]["data"], "text");
    assert_eq!(messages[1]["data_hex"], "ff00");
}

#[test]
fn a_file_arrives_whole_and_raw_through_loss() {
    let folder = Folder::new("raw");
    let (group, bytes) = (group("raw"), noise(1_000_003));
    let file = folder.file("f", &bytes);
    let out = folder.join("out");
    let mut command = qcast(&["sub", "-g", &group, "--until-closed", "--raw"]);
    let fault = "loss=0.05,dup=0.02,reorder=0.02,reorder-by=1ms,seed=5";
    let script = format!("exec \"$0\" \"$@\" > '{out}'");
    let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
    command = std::process::Command::new("sh");
    command.arg("-c").arg(script).arg(crate::harness::QCAST).args(args).env("QCAST_FAULT", fault);
    let mut subscriber = Run::of(&mut command);
    subscriber.says("listens to group");
    let publisher =
        run(&["pub", "-g", &group, "--wait-for", "1", "--file", &file, "--size", "10007"])
            .expect(0);
    assert!(publisher.said().contains("published 100 messages"), "{publisher:#?}");
    let ended = subscriber.end().expect(0);
    assert!(std::fs::read(&out).unwrap() == bytes, "the bytes differ");
    assert!(ended.said().contains(" 0 frames lost"), "{ended:#?}");
}

#[test]
fn topics_are_chosen_by_pattern() {
    let group = group("topics");
    let subscriber = Run::listening(&["sub", "-g", &group, "--topics", "a/*", "--count", "1"]);
    let other = Run::listening(&["sub", "-g", &group, "--count", "2"]);
    for (topic, line) in [("b/1", "no\n"), ("a/1", "yes\n")] {
        let mut publisher = Run::start(&["pub", "-g", &group, "--topic", topic, "--wait-for", "1"]);
        publisher.input(line.as_bytes());
        publisher.end().expect(0);
    }
    assert_eq!(subscriber.end().expect(0).stdout, ["yes"]);
    assert_eq!(other.end().expect(0).stdout, ["no", "yes"]);
}

#[test]
fn another_secret_hears_nothing_and_says_why() {
    let folder = Folder::new("secret");
    let group = group("secret");
    let (right, wrong) = (folder.file("right", b"s3cret\n"), folder.file("wrong", b"other"));
    let friend = Run::listening(&["sub", "-g", &group, "--secret-file", &right, "--until-closed"]);
    let stranger =
        Run::listening(&["sub", "-g", &group, "--secret-file", &wrong, "--timeout", "3", "--json"]);
    let mut publisher =
        Run::of(qcast(&["pub", "-g", &group, "--wait-for", "1"]).env("QCAST_SECRET", "s3cret"));
    publisher.input(b"for friends\n");
    publisher.end().expect(0);
    assert_eq!(friend.end().expect(0).stdout, ["for friends"]);

    let ended = stranger.end().expect(1);
    let objects = ended.objects();
    let find = |event: &str| objects.iter().find(|object| object["event"] == event).unwrap();
    let why = "QKey differs from yours: the sender uses another --qkey or secret";
    assert!(find("rejected")["reason"].as_str().unwrap().contains(why));
    assert!(find("rejected")["datagrams"].as_u64().unwrap() > 0);
    assert_eq!(find("summary")["messages"], 0);
    assert!(find("summary")["rejected_datagrams"].as_u64().unwrap() > 0);
}

#[test]
fn a_subscriber_that_hears_nothing_says_what_to_check() {
    // Case 56.
    let ended = run(&["sub", "-g", &group("silence"), "--timeout", "2.5"]).expect(1);
    for says in ["nothing heard for 2 s", "--qkey or secret", "--domain", "loopback"] {
        assert!(ended.said().contains(says), "{says}: {ended:#?}");
    }
}

#[test]
fn a_publisher_does_not_wait_for_ever_if_told_so() {
    let ended =
        run(&["pub", "-g", &group("alone"), "--wait-for", "2", "--wait-timeout", "0.3"]).expect(1);
    assert!(ended.said().contains("only 0 of 2 subscribers came"), "{ended:#?}");
}

#[test]
fn signals_end_both_in_good_order() {
    let group = group("signals");
    let mut subscriber = Run::listening(&["sub", "-g", &group]);
    let mut publisher = Run::start(&["pub", "-g", &group, "--wait-for", "1"]);
    // Its input stays open: only the signal ends it.
    publisher.feed(b"before\n");
    assert_eq!(subscriber.line(), "before");
    publisher.signal(Signal::SIGTERM);
    publisher.says("published 1 message (6 bytes)");
    let status = publisher.end();
    assert_eq!(status.code, Some(0), "{status:#?}");
    subscriber.says("has ended");
    subscriber.signal(Signal::SIGINT);
    let ended = subscriber.end().expect(0);
    assert!(ended.said().contains("1 message in"), "{ended:#?}");
}

#[test]
fn a_file_that_a_signal_cuts_short_was_not_published() {
    let folder = Folder::new("cut short");
    let file = folder.file("f", &noise(1 << 20));
    let group = group("cut short");
    let mut publisher = Run::start(&["pub", "-g", &group, "--file", &file, "--wait-for", "1"]);
    publisher.says("waiting for subscribers");
    publisher.signal(Signal::SIGINT);
    let ended = publisher.end().expect(1);
    assert!(ended.said().contains("interrupted after 0 bytes of "), "{ended:#?}");
}

#[test]
fn a_publisher_goes_on_when_a_subscriber_is_killed() {
    let group = group("kill sub");
    let killed = Run::listening(&["sub", "-g", &group]);
    let mut other = Run::listening(&["sub", "-g", &group, "--until-closed"]);
    let mut publisher = Run::start(&["pub", "-g", &group, "--wait-for", "2", "--json"]);
    publisher.feed(b"first\n");
    assert_eq!(other.line(), "first");
    killed.signal(Signal::SIGKILL);
    drop(killed);
    publisher.event("subscriber_lost");
    publisher.input(b"second\n");
    let ended = publisher.end().expect(0);
    assert_eq!(ended.objects().pop().unwrap()["unconfirmed"], serde_json::json!([]));
    assert_eq!(other.end().expect(0).stdout, ["second"]);
}

#[test]
fn subscribers_are_told_when_a_publisher_is_killed() {
    let group = group("kill pub");
    let mut subscriber = Run::listening(&["sub", "-g", &group, "--json", "--until-closed"]);
    let mut publisher = Run::start(&["pub", "-g", &group, "--wait-for", "1", "--name", "victim"]);
    publisher.feed(b"last words\n");
    while !subscriber.line().contains("last words") {}
    publisher.signal(Signal::SIGKILL);
    let lost = subscriber.event("publisher_lost");
    assert_eq!(lost["publisher"], "victim");
    // Nothing is known to be missing, so nothing is said to be lost.
    let summary = subscriber.end().expect(0).objects().pop().unwrap();
    assert_eq!(summary["messages"], 1);
}

#[test]
fn a_rate_is_kept() {
    let group = group("rate");
    let subscriber = Run::listening(&["sub", "-g", &group, "--until-closed"]);
    let mut publisher = Run::start(&[
        "pub",
        "-g",
        &group,
        "--wait-for",
        "1",
        "--rate",
        "50",
        "--count",
        "20",
        "--json",
    ]);
    publisher.input("x\n".repeat(100).as_bytes());
    let summary = publisher.end().expect(0).objects().pop().unwrap();
    assert_eq!(summary["messages"], 20);
    // The first goes at once, so the last of 20 goes after 19 pauses.
    assert!(summary["seconds"].as_f64().unwrap() >= 19.0 / 50.0, "{summary}");
    assert_eq!(subscriber.end().expect(0).stdout.len(), 20);
}
