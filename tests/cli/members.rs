//! `qcast members`, `qcast join`, `qcast chat` and `qcast demo members`.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Run, expect_keys, group, now, qcast, run};

/// A member of the group, which has joined.
fn member(group: &str, name: &str, more: &[&str]) -> Run {
    let mut member = Run::start(&[&["join", group, "--name", name, "--json"], more].concat());
    member.event("listening");
    member
}

/// A name that no other test's member has: names are identities.
fn named(group: &str, name: &str) -> String {
    format!("{name} of {group}")
}

/// The next change of this kind that is about this member.
fn change(watcher: &mut Run, change: &str, name: &str) -> Value {
    loop {
        let object = watcher.event("member");
        if object["change"] == change && object["member"]["name"] == name {
            return object;
        }
    }
}

#[test]
fn one_look_shows_everybody() {
    let group = group("look");
    let (ann, bob) = (named(&group, "ann"), named(&group, "bob"));
    let _ann = member(&group, &ann, &["--meta", "rack=7", "--meta", "note=a=b"]);
    let _bob = member(&group, &bob, &[]);
    let ended =
        run(&["members", &group, "--name", &named(&group, "me"), "--settle", "3"]).expect(0);
    assert!(ended.stdout[0].starts_with("MEMBER "), "{ended:#?}");
    let line = |name: &str| ended.stdout.iter().find(|line| line.starts_with(name)).unwrap();
    assert!(line(&ann).contains(" alive ") && line(&ann).contains("rack=7 note=a=b"), "{ended:#?}");
    assert!(line(&bob).contains(" observer "), "{ended:#?}");
    assert!(line(&named(&group, "me")).contains(" * "), "{ended:#?}");
    assert_eq!(ended.stdout.len(), 4);

    let ended = run(&["members", &group, "--json", "--settle", "3"]).expect(0);
    let [object] = &ended.objects()[..] else { panic!("{ended:#?}") };
    expect_keys(object, &["event", "time", "group", "mgid", "version", "members", "events"]);
    let members = object["members"].as_array().unwrap();
    assert_eq!(members.len(), 3, "{object}");
    for member in members {
        let keys = ["name", "id", "incarnation", "host", "address", "udp_port", "role", "state"];
        expect_keys(member, &keys);
    }
    let found = members.iter().find(|member| member["name"] == ann.as_str()).unwrap();
    assert_eq!((&found["metadata"]["rack"], &found["own"]), (&"7".into(), &false.into()));
}

#[test]
fn a_look_shows_how_far_publishers_and_subscribers_are() {
    let group = group("progress");
    let _subscriber = Run::listening(&["sub", "-g", &group, "--name", &named(&group, "sub")]);
    let name = named(&group, "pub");
    let mut publisher = Run::start(&["pub", "-g", &group, "--wait-for", "1", "--name", &name]);
    publisher.feed(b"one\n");
    publisher.feed(b"two\n");
    // Both say it about once a second.
    let deadline = now() + Duration::from_secs(60);
    let (sent, received) = loop {
        let ended = run(&["members", &group, "--json", "--settle", "2"]).expect(0);
        let object = ended.objects().remove(0);
        let of = |name: &str| {
            let members = object["members"].as_array().unwrap();
            members.iter().find(|m| m["name"] == named(&group, name).as_str()).unwrap().clone()
        };
        let (publisher, subscriber) = (of("pub"), of("sub"));
        let (sent, received) =
            (publisher["progress"]["sent"].clone(), subscriber["progress"]["received"].clone());
        if sent == received && sent.as_u64() > Some(0) {
            assert_eq!(subscriber["progress"]["lost"], 0, "{subscriber}");
            break (sent, received);
        }
        assert!(now() < deadline, "{object}");
    };
    let ended = run(&["members", &group, "--settle", "2"]).expect(0);
    let line = |name: &str| ended.stdout.iter().find(|line| line.starts_with(name)).unwrap();
    assert!(line(&named(&group, "pub")).contains(&format!(" out {sent} ")), "{ended:#?}");
    assert!(line(&named(&group, "sub")).contains(&format!(" in {received} ")), "{ended:#?}");
}

#[test]
fn a_group_of_one_says_what_may_be_wrong() {
    let ended = run(&["members", &group("alone"), "--settle", "0.2"]).expect(0);
    assert_eq!(ended.stdout.len(), 2);
    assert!(ended.said().contains("nobody else was heard"), "{ended:#?}");
}

#[test]
fn a_watch_tells_who_comes_and_goes() {
    let group = group("watch");
    let (ann, bob) = (named(&group, "ann"), named(&group, "bob"));
    let mut lines = Run::start(&["members", &group, "--watch"]);
    lines.says("listens to group");
    let mut watcher = Run::start(&["members", &group, "--watch", "--json"]);
    watcher.event("members");
    // A mark of direction is no control character, and still nothing for a terminal.
    let bent = format!("{bob}\u{202e}");
    let mut first = member(&group, &ann, &["--meta", "k=v"]);
    let joined = change(&mut watcher, "joined", &ann);
    assert_eq!(joined["member"]["metadata"]["k"], "v");
    assert!(joined["version"].is_u64() && joined["time"].is_f64());
    let second = member(&group, &bent, &[]);
    change(&mut watcher, "joined", &bent);
    change(&mut first, "joined", &bent);

    second.signal(Signal::SIGTERM);
    let ended = second.end().expect(0);
    assert_eq!(ended.objects().pop().unwrap()["event"], "summary");
    change(&mut watcher, "left", &bent);
    first.signal(Signal::SIGKILL);
    change(&mut watcher, "suspected", &ann);
    change(&mut watcher, "failed", &ann);
    // Its next life.
    let again = member(&group, &ann, &[]);
    let later = change(&mut watcher, "joined", &ann);
    assert!(later["member"]["incarnation"].as_u64() > joined["member"]["incarnation"].as_u64());
    drop(again);

    watcher.signal(Signal::SIGINT);
    watcher.end().expect(0);
    lines.signal(Signal::SIGINT);
    let ended = lines.end().expect(0);
    let all = ended.stdout.join("\n");
    for text in [format!("{ann} joined: observer on "), format!("{bob}\\u{{202e}} left")] {
        assert!(all.contains(&text), "{text:?} is not in {all}");
    }
    assert!(!all.contains('\u{202e}'), "{all}");
}

#[test]
fn the_group_may_stand_in_the_environment() {
    let group = group("environment");
    let mut command = qcast(&["join", "--json", "--until-eof"]);
    let mut member = Run::of(command.env("QCAST_GROUP", &group).env("QCAST_SECRET", "s"));
    assert_eq!(member.event("listening")["group"], group.as_str());
    // The harness closes standard input, and that is the end.
    member.end().expect(0);
}

#[test]
fn a_chat_is_heard_by_all_and_ends_with_its_input() {
    let group = group("chat");
    let (ann, bob, eve) = (named(&group, "ann"), named(&group, "bob"), named(&group, "eve"));
    let mut chats = [&ann, &bob].map(|name| Run::start(&["chat", &group, "--name", name]));
    for chat in &mut chats {
        chat.says("listens to group");
    }
    let [mut first, mut second] = chats;
    first.says(&format!("* {bob} joined"));
    second.feed("good morning \u{1b}[2J\n".as_bytes());
    assert_eq!(first.line(), format!("{bob}: good morning \\u{{1b}}[2J"));
    let mut third = Run::start(&["chat", &group, "--name", &eve, "--json"]);
    third.event("listening");
    // One that ends at once may be gone before it has heard who is there.
    assert_eq!(third.event("member")["change"], "joined");
    third.feed(b"back at two\n");
    assert_eq!(first.line(), format!("{eve}: back at two"));
    assert_eq!(second.line(), format!("{eve}: back at two"));
    third.end().expect(0);
    first.says(&format!("* {eve} left"));
    second.end().expect(0);
    first.end().expect(0);
}

/// Sixteen processes see everything that happens to five of them. The bounds are those of a quiet machine, and
/// this one may be busy: what is tested is that all of it is seen, and nothing else.
#[test]
fn sixteen_members_see_all_that_happens() {
    let ended = run(&["demo", "members", "--members", "16", "--allow", "6", "--json"]);
    let said = ended.said();
    let objects = ended.objects();
    let steps: Vec<_> = objects.iter().filter(|object| object["event"] == "step").collect();
    assert_eq!(ended.code, Some(0), "{steps:#?}\n{said}");
    assert!(steps.len() >= 7, "{steps:#?}");
    assert_eq!(steps[1]["seen"], 14);
    let last = objects.last().unwrap();
    assert_eq!((&last["event"], &last["passed"]), (&"demo".into(), &true.into()));
}

#[test]
fn a_demonstration_that_cannot_run_leaves_nothing_behind() {
    let device = ["--device", "soft:nosuch0"];
    let ended = run(&[&["demo", "members"][..], &device].concat());
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.said().contains("no interface"), "{ended:#?}");
}
