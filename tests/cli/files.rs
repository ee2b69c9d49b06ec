//! `qcast send`, `qcast receive` and `qcast demo`.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use qcast::{Node, Publisher};

use crate::harness::{DEADLINE, Folder, QCAST, Run, expect_keys, group, names, noise, qcast, run};

/// A sender that does as it likes.
fn sender(group: &str) -> Publisher {
    let node = Node::builder().name("a stranger").open().unwrap();
    let publisher =
        node.group(group).join().unwrap().publisher().topic("qcast/file").open().unwrap();
    assert_eq!(publisher.wait_for(1, DEADLINE), 1);
    publisher
}

fn begin(size: u64, name: &str) -> Vec<u8> {
    [b"B\x01", &size.to_be_bytes()[..], name.as_bytes()].concat()
}

fn piece(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [b"P", &offset.to_be_bytes()[..], bytes].concat()
}

fn end(size: u64, hash: &[u8; 32]) -> Vec<u8> {
    [b"E", &size.to_be_bytes()[..], hash].concat()
}

/// The SHA-256 of nothing.
const NOTHING: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

#[test]
fn a_file_reaches_all_through_loss() {
    let folder = Folder::new("all");
    let (group, bytes) = (group("all"), noise(700_001));
    let file = folder.file("data.bin", &bytes);
    let receivers: Vec<_> = (0..3)
        .map(|n| {
            let dir = folder.dir(&n.to_string());
            let mut command = qcast(&["receive", "-g", &group, "--dir", &dir, "--json"]);
            let mut run = Run::of(command.env("QCAST_FAULT", format!("loss=0.05,seed={n}")));
            run.event("listening");
            (dir, run)
        })
        .collect();
    let sent = run(&["send", &file, "-g", &group, "--wait-for", "3", "--json"]).expect(0);
    let sent = sent.objects().pop().unwrap();
    expect_keys(
        &sent,
        &["file", "bytes", "sha256", "seconds", "megabytes_per_second", "naks", "repairs"],
    );
    assert_eq!(sent["receivers"].as_array().unwrap().len(), 3);
    assert_eq!(sent["unconfirmed"], serde_json::json!([]));
    for (dir, mut run) in receivers {
        let report = run.event("file");
        assert_eq!((&report["sha256"], &report["bytes"]), (&sent["sha256"], &700_001.into()));
        assert_eq!((&report["verified"], &report["lost"]), (&true.into(), &0.into()));
        assert!(report["repairs"].as_u64().unwrap() > 0, "5 % of some 170 frames: {report}");
        run.end().expect(0);
        assert_eq!(names(&dir), ["data.bin"]);
        assert!(fs::read(format!("{dir}/data.bin")).unwrap() == bytes, "the bytes differ");
    }
}

#[test]
fn an_empty_file_is_one_too() {
    let folder = Folder::new("empty");
    let (group, dir) = (group("empty"), folder.dir("in"));
    let file = folder.file("nothing", b"");
    let receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir]);
    run(&["send", &file, "-g", &group]).expect(0);
    let ended = receiver.end().expect(0);
    assert!(ended.stdout.iter().any(|line| line.ends_with("(verified)")), "{ended:#?}");
    assert_eq!(fs::read(format!("{dir}/nothing")).unwrap(), b"");
}

#[test]
fn what_exists_is_not_replaced_unless_it_is_said() {
    let folder = Folder::new("replace");
    let (group, dir) = (group("replace"), folder.dir("in"));
    let (file, old) = (folder.file("f", b"new"), folder.file("in/f", b"old"));
    // A peer must not be able to end a receiver that is to go on.
    let other = folder.file("g", b"other");
    let receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir, "--count", "2"]);
    run(&["send", &file, "-g", &group]).expect(0);
    run(&["send", &other, "-g", &group]).expect(0);
    let ended = receiver.end().expect(1);
    assert!(ended.said().contains("--force"), "{ended:#?}");
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(names(&dir), ["f", "g"]);

    let receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir, "--force"]);
    run(&["send", &file, "-g", &group]).expect(0);
    receiver.end().expect(0);
    assert_eq!(fs::read(&old).unwrap(), b"new");
}

#[test]
fn a_name_leads_nowhere_else() {
    let folder = Folder::new("names");
    let (group, dir) = (group("names"), folder.dir("in"));
    let mut receiver =
        Run::listening(&["receive", "-g", &group, "--dir", &dir, "--json", "--count", "3"]);
    let mut sender = sender(&group);
    for name in ["../../escaped", "/abs/olute", ".hidden"] {
        sender.send(&begin(0, name)).unwrap();
        sender.send(&end(0, &NOTHING)).unwrap();
        assert_eq!(receiver.event("file")["verified"], true);
    }
    receiver.end().expect(0);
    assert_eq!(names(&dir), ["_hidden", "escaped", "olute"]);
    assert_eq!(names(folder.path().to_str().unwrap()), ["in"]);
}

#[test]
fn a_wrong_hash_or_a_hole_is_not_kept() {
    let folder = Folder::new("wrong");
    let (group, dir) = (group("wrong"), folder.dir("in"));
    let mut receiver =
        Run::listening(&["receive", "-g", &group, "--dir", &dir, "--json", "--count", "3"]);
    let mut sender = sender(&group);
    let mut reason = |messages: &[Vec<u8>]| {
        for message in messages {
            sender.send(message).unwrap();
        }
        let report = receiver.event("file");
        assert_eq!(report["verified"], false);
        report["reason"].as_str().unwrap().to_owned()
    };
    // The rest of a transfer that began earlier, and messages that are none, are passed over.
    let hash = reason(&[
        piece(9, b"late"),
        end(0, &NOTHING),
        b"nonsense".to_vec(),
        begin(1, "a"),
        piece(0, b"x"),
        end(1, &NOTHING),
    ]);
    assert!(hash.contains("SHA-256"), "{hash}");
    let hole = reason(&[begin(9, "b"), piece(0, b"x"), piece(2, b"x")]);
    assert!(hole.contains("fit together"), "{hole}");
    let again = reason(&[begin(9, "c"), begin(9, "d")]);
    assert!(again.contains("another one"), "{again}");
    receiver.end().expect(1);
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn a_sender_that_ends_early_leaves_nothing_behind() {
    let folder = Folder::new("early");
    let (group, dir) = (group("early"), folder.dir("in"));
    let mut receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir, "--json"]);
    let mut sender = sender(&group);
    sender.send(&begin(1 << 40, "huge")).unwrap();
    sender.send(&piece(0, &[7; 5000])).unwrap();
    receiver.event("begin");
    sender.close();
    let report = receiver.event("file");
    assert!(report["reason"].as_str().unwrap().contains("ended before"), "{report}");
    receiver.end().expect(1);
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn a_sender_that_is_killed_leaves_nothing_behind() {
    let folder = Folder::new("killed");
    let (group, dir) = (group("killed"), folder.dir("in"));
    // Sparse, and far more than can be sent before the signal.
    let file = folder.file("big", b"");
    fs::File::options().write(true).open(&file).unwrap().set_len(1 << 36).unwrap();
    let mut receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir, "--json"]);
    let sender = Run::start(&["send", &file, "-g", &group]);
    receiver.event("begin");
    sender.signal(Signal::SIGKILL);
    let report = receiver.event("file");
    assert_eq!(report["verified"], false);
    let ended = receiver.end();
    // What was on its way may be known to be lost, or not.
    assert!(matches!(ended.code, Some(1 | 4)), "{ended:#?}");
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn signals_end_both_sides_with_1_and_leave_nothing_behind() {
    let folder = Folder::new("stopped");
    let (group, dir) = (group("stopped"), folder.dir("in"));
    let file = folder.file("big", b"");
    fs::File::options().write(true).open(&file).unwrap().set_len(1 << 36).unwrap();
    let mut receiver = Run::listening(&["receive", "-g", &group, "--dir", &dir, "--json"]);
    let sender = Run::start(&["send", &file, "-g", &group]);
    receiver.event("begin");
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.end().expect(1);
    let objects = ended.objects();
    let report = objects.iter().find(|object| object["event"] == "file").unwrap();
    assert!(report["reason"].as_str().unwrap().contains("receiver ended"), "{report}");
    assert_eq!(names(&dir), [""; 0]);
    sender.signal(Signal::SIGINT);
    let ended = sender.end().expect(1);
    assert!(ended.said().contains("interrupted after"), "{ended:#?}");
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left_of_the_file() {
    let folder = Folder::new("full");
    let (group, dir) = (group("full"), folder.dir("in"));
    let file = folder.file("f", &noise(1 << 20));
    // A small file system of its own, which ends with the process. Without root a namespace for users
    // gives the right to mount it.
    let script = "mount -t tmpfs -o size=256k tmpfs \"$1\" && \
                  { \"$0\" receive -g \"$2\" --dir \"$1\" --json; code=$?; ls -A \"$1\" >&2; exit $code; }";
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, QCAST, &dir, &group]);
    let probe = {
        let mut probe = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            probe.args(["--user", "--map-root-user"]);
        }
        probe.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs \"$0\"", &dir]).output()
    };
    if !probe.is_ok_and(|output| output.status.success()) {
        let why = "SKIPPED: this system lets no test mount a small file system";
        assert!(std::env::var_os("QCAST_NO_SKIP").is_none(), "{why}");
        eprintln!("{why}");
        return;
    }
    let mut receiver = Run::of(&mut command);
    receiver.event("listening");
    let sender = Run::start(&["send", &file, "-g", &group, "--linger", "1"]);
    let ended = receiver.end().expect(1);
    let objects = ended.objects();
    let report = objects.iter().find(|object| object["event"] == "file").unwrap();
    assert!(report["reason"].as_str().unwrap().contains("No space left"), "{report}");
    let said = ended.said();
    assert!(said.contains("cannot write") && said.contains("No space left"), "{said}");
    // The listing of what is left comes after the error, and is empty.
    assert!(said.ends_with("send it again"), "{said}");
    sender.end();
}

#[test]
fn a_receiver_gives_up_when_told_how_long_to_wait() {
    let folder = Folder::new("wait");
    let dir = folder.dir("in");
    let ended =
        run(&["receive", "-g", &group("wait"), "--dir", &dir, "--timeout", "0.5"]).expect(1);
    assert!(ended.said().contains("no file was received: nothing came"), "{ended:#?}");
}

#[test]
fn the_demonstration_holds() {
    let ended = run(&["demo", "--size", "1", "--loss", "0.05", "--json"]).expect(0);
    let [result] = &ended.objects()[..] else { panic!("{ended:#?}") };
    assert_eq!((&result["passed"], &result["bytes"]), (&true.into(), &(1 << 20).into()));
    let rows = result["subscribers"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in &rows[..3] {
        assert_eq!(row["sha256"], result["sha256"]);
        expect_keys(row, &["bytes", "naks", "repairs", "megabytes_per_second"]);
    }
    assert!(rows[3]["rejected_datagrams"].as_u64().unwrap() > 0);
    assert!(rows[3]["reason"].as_str().unwrap().contains("QKey"), "{result}");
}

#[test]
fn the_demonstration_fails_when_it_cannot_be_true() {
    // Hardly anything arrives, so the file cannot be there in time.
    let ended = run(&["demo", "--size", "1", "--loss", "0.99", "--timeout", "3"]).expect(1);
    assert!(ended.stdout.is_empty(), "{ended:#?}");
    assert!(ended.said().contains("in time"), "{ended:#?}");
}
