//! `qcast announce`, `browse`, `resolve` and `groups`, and what members with another key are told.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Folder, Run, expect_keys, group, now, run};

/// A type that no other test has.
fn kind(test: &str) -> String {
    format!("{} {test}", std::process::id())
}

/// Starts to announce a service, and waits until it is.
fn announce(kind: &str, name: &str, more: &[&str]) -> Run {
    let mut args = vec!["announce", kind, name, "--port", "8080", "--json"];
    args.extend(more);
    let mut run = Run::start(&args);
    expect_keys(&run.event("announced"), &["type", "name", "address", "port", "ttl_seconds"]);
    run
}

/// R-SERVICE-2, R-SERVICE-7.
#[test]
fn a_service_is_announced_found_and_withdrawn() {
    let kind = kind("life");
    let mut watcher = Run::start(&["browse", &kind, "--watch", "--json"]);
    let owner = announce(&kind, "front", &["--meta", "path=/x", "--meta", "a=b=c"]);
    let added = watcher.event("added");
    expect_keys(&added, &["type", "name", "address", "port", "metadata", "node", "node_id"]);
    assert_eq!((&added["name"], &added["port"]), (&"front".into(), &8080.into()));
    assert_eq!(added["metadata"]["a"], "b=c");

    let table = run(&["browse", &kind]).expect(0).stdout;
    assert!(table[0].starts_with("TYPE"), "{table:?}");
    assert!(table[1].contains("front") && table[1].contains("path=/x"), "{table:?}");
    let found = run(&["resolve", "front", "--type", &kind]).expect(0).stdout;
    assert!(found[0].ends_with("8080 path=/x a=b=c"), "{found:?}");

    owner.signal(Signal::SIGTERM);
    let start = now();
    assert_eq!(watcher.event("removed")["name"], "front");
    println!("the end was seen after {:?}", start.elapsed());
    owner.end().expect(0);
    watcher.signal(Signal::SIGINT);
    watcher.end().expect(0);
}

/// R-SERVICE-7: what was killed is gone within its time, and stays gone.
#[test]
fn a_killed_service_is_gone_within_its_time() {
    let kind = kind("killed");
    let mut watcher = Run::start(&["browse", &kind, "--watch", "--json"]);
    let owner = announce(&kind, "victim", &["--ttl", "2"]);
    assert_eq!(watcher.event("added")["ttl_seconds"], 2.0);
    owner.signal(Signal::SIGKILL);
    let start = now();
    watcher.event("removed");
    let took = start.elapsed();
    println!("a killed service was gone after {took:?}");
    let ended = run(&["browse", &kind, "--timeout", "0.5"]).expect(1);
    assert!(ended.said().contains("no service of type"), "{ended:#?}");
}

/// R-SERVICE-3.
#[test]
fn a_name_that_is_taken_is_numbered_and_told() {
    let kind = kind("names");
    let _first = announce(&kind, "web", &[]);
    let mut second = Run::start(&["announce", &kind, "web", "--port", "81"]);
    second.says("has the name 'web'; trying 'web (2)'");
    second.says("'web (2)' is announced at");
    let found = run(&["resolve", "web (2)", "--json"]).expect(0);
    assert_eq!(found.objects()[0]["port"], 81);
}

#[test]
fn what_is_not_there_ends_with_1() {
    let nobody = kind("nobody");
    let ended = run(&["resolve", &nobody, "--timeout", "0.3"]).expect(1);
    assert!(ended.said().contains("no service"), "{ended:#?}");
}

/// R-KEY-2, R-KEY-3, case 21: real processes, a wrong key named by both sides.
#[test]
fn a_wrong_secret_is_named_by_both_sides() {
    let folder = Folder::new("named");
    let group = group("named");
    let (right, wrong) = (folder.file("right", b"s3cret\n"), folder.file("wrong", b"other"));
    let sub = |name: &str, file: &str, more: &[&str]| {
        let mut args = vec!["sub", "-g", &group, "--secret-file", file, "--name", name];
        args.extend(more);
        Run::listening(&args)
    };
    let names = ["a", "b", "c", "p"].map(|n| format!("{n}-{}", std::process::id()));
    let mut friends = [sub(&names[0], &right, &["--json"]), sub(&names[1], &right, &["--json"])];
    let mut args = vec!["pub", "-g", &group, "--secret-file", &right, "--name", &names[3]];
    args.extend(["--wait-for", "2", "--json"]);
    let mut publisher = Run::start(&args);
    publisher.feed(b"one\n");
    for friend in &mut friends {
        friend.event("joined");
    }
    let start = now();
    let mut stranger = sub(&names[2], &wrong, &[]);
    for run in friends.iter_mut().chain([&mut publisher]) {
        let told = run.event("key_mismatch");
        expect_keys(&told, &["group", "members", "theirs", "ours", "reason"]);
        assert_eq!(told["members"][0]["name"], names[2].as_str());
        println!("a member knew after {:?}", start.elapsed());
    }
    // All three in one sentence, or a few.
    let mut others = vec![&names[0], &names[1], &names[3]];
    let sentence = format!("group '{group}': member");
    while !others.is_empty() {
        let line = stranger.says("another key");
        assert!(line.starts_with(&sentence) && line.contains("give all the same --secret-file"));
        let before = others.len();
        others.retain(|name| !line.contains(&format!("'{name}' (")));
        assert!(others.len() < before, "nobody new in {line:?}");
    }
    println!("the stranger knew all three after {:?}", start.elapsed());

    // Whoever looks from outside sees both keys, and which is his.
    let listed = run(&["groups", "--secret-file", &right, "--json"]).expect(0);
    let of_group = |fits: bool| -> Vec<Value> {
        let is = |o: &Value| o["group"] == group.as_str() && o["key_fits"] == fits;
        listed.objects().into_iter().filter(is).collect()
    };
    assert_eq!((of_group(true).len(), of_group(false).len()), (1, 1), "{listed:#?}");
    assert_eq!(of_group(true)[0]["members"], 3);
    assert_eq!(of_group(false)[0]["names"][0], names[2].as_str());
    let table = run(&["groups"]).expect(0).stdout;
    assert!(table.iter().any(|line| line.starts_with(&group) && line.contains("no")), "{table:?}");

    publisher.signal(Signal::SIGINT);
    publisher.end().expect(0);
}

/// R-KEY-2: who talks into the void is told why.
#[test]
fn a_chat_with_another_key_is_told() {
    let group = group("chat keys");
    let mut member = Run::listening(&["join", &group, "--qkey", "7"]);
    let mut chat = Run::start(&["chat", &group, "--qkey", "8", "--name", &format!("c {group}")]);
    chat.says("has another key");
    let told = format!("member 'c {group}' (");
    assert!((0..20).any(|_| member.line().contains(&told)), "the member was not told");
    chat.end().expect(0);
}

#[test]
fn whoever_stays_out_of_the_control_group_is_told_nothing() {
    let group = group("out");
    let a = Run::listening(&["sub", "-g", &group, "--qkey", "7", "--timeout", "2"]);
    let b = run(&["sub", "-g", &group, "--qkey", "8", "--no-control", "--timeout", "1"]).expect(1);
    assert!(!b.said().contains("another key"), "{b:#?}");
    let a = a.end().expect(1);
    assert!(!a.said().contains("another key"), "{a:#?}");
}

/// An idle member costs little: R-CONTROLGROUP-1.
#[test]
fn an_idle_subscriber_stays_small() {
    let group = group("small");
    let subscriber = Run::listening(&["sub", "-g", &group]);
    std::thread::sleep(Duration::from_millis(500));
    let status = std::fs::read_to_string(format!("/proc/{}/status", subscriber.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("an idle subscriber takes {kilobytes} kB");
    assert!(kilobytes < 32 << 10, "{line}");
}
