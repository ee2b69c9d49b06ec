//! Wrong command lines, missing devices, unreadable files, closed and full outputs.

use std::fs::File;
use std::process::Stdio;

use crate::harness::{Folder, Run, group, qcast, run};

const COMMANDS: [&str; 16] = [
    "pub",
    "sub",
    "send",
    "receive",
    "announce",
    "browse",
    "resolve",
    "groups",
    "members",
    "join",
    "chat",
    "bench",
    "sim",
    "demo",
    "decode",
    "completions",
];

#[test]
fn help_is_for_newcomers() {
    let help = run(&["--help"]).expect(0);
    for command in COMMANDS {
        assert!(help.stdout.iter().any(|line| line.trim().starts_with(command)), "{command}");
        let help = run(&[command, "--help"]).expect(0);
        assert!(help.stdout.iter().any(|line| line == "Examples:"), "{command} shows no examples");
        assert!(help.stderr.is_empty());
    }
    for command in ["throughput", "latency", "raw", "floors"] {
        run(&["bench", command, "--help"]).expect(0);
    }
    run(&["demo", "members", "--help"]).expect(0);
    let version = run(&["--version"]).expect(0);
    assert_eq!(version.stdout, [concat!("qcast ", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_right() {
    let (long, huge) = ("x".repeat(97), "x".repeat(10_240));
    for (line, says) in [
        (&[][..], "Usage"),
        (&["publish"], "unrecognized subcommand"),
        (&["pub"], "--group"),
        (&["sub", "-g", "x", "--qkey", "0"], "cannot be 0"),
        (&["sub", "-g", "x", "--qkey", "0x80000001"], "CAP_NET_RAW"),
        (&["sub", "-g", "x", "--qkey", "secret"], "not a QKey"),
        (&["sub", "-g", ""], "empty"),
        (&["sub", "-g", &long], "at most 96 bytes"),
        (&["sub", "-g", "a\nb"], "control characters"),
        (&["sub", "-g", "x", "--name", "\u{1b}[2J"], "control characters"),
        (&["sub", "-g", "x", "--domain", "65536"], "65536"),
        // Case 45.
        (&["sub", "-g", "x", "--mgid", "192.168.3.146"], "239.192.7.7"),
        (&["sub", "-g", "x", "--mgid", "224.0.0.5"], "reserved"),
        (&["sub", "-g", "x", "--mgid", "ff02::1"], "reserved"),
        (&["sub", "-g", "x", "--device", "rdma:mlx5_0"], "verbs:NAME"),
        (&["sub", "-g", "x", "--device", "verbs"], "ibv_devices"),
        (&["sub", "-g", "x", "--fault", "loss=2"], "from 0 to 1"),
        (&["sub", "-g", "x", "--fault", "lost=0.1"], "there are loss"),
        (&["sub", "-g", "x", "--qkey", "1", "--secret-file", "f"], "cannot be used with"),
        (&["sub", "-g", "x", "--json", "--raw"], "cannot be used with"),
        (&["sub", "-g", "x", "--reliability", "best"], "best-effort"),
        (&["sub", "-g", "x", "--count", "0"], "--count"),
        (&["sub", "-g", "x", "--queue", "-1"], "-1 is not in 1..=1048576"),
        (&["pub", "-g", "x", "--rate", "-3"], "from 0.001 to"),
        (&["sub", "-g", "x", "--timeout", "0"], "seconds"),
        (&["sub", "-g", "qcast"], "control group"),
        (&["announce", "t", "n"], "--port"),
        (&["announce", "t", "n", "--port", "0"], "1..="),
        (&["announce", "t", "", "--port", "1"], "service's name"),
        (&["announce", "t", &long, "--port", "1"], "1 to 64 bytes"),
        (&["announce", &long, "n", "--port", "1"], "1 to 32 bytes"),
        (&["announce", "t", "a\u{1b}[2J", "--port", "1"], "control characters"),
        (&["announce", "t", "n", "--port", "1", "--ttl", "0"], "seconds"),
        (&["announce", "t", "n", "--port", "1", "--ttl", "0.5"], "TTL"),
        (&["announce", "t", "n", "--port", "1", "--meta", "novalue"], "KEY=VALUE"),
        (
            &["announce", "t", "n", "--port", "1", "--meta", &format!("k={}", "v".repeat(300))],
            "too much",
        ),
        (&["announce", "t", "n", "--port", "1", "--no-control"], "leave --no-control out"),
        (&["browse", &long], "1 to 32 bytes"),
        (&["resolve", ""], "service's name"),
        (&["groups", "--qkey", "0"], "cannot be 0"),
        (&["sim", "--loss", "1"], "such as 0.02"),
        (&["sim", "--subscribers", "0"], "1 to 16384"),
        (&["sim", "--size", "15"], "16 to"),
        (&["sim", "--latency", "50"], "50us"),
        (&["sim", "--latency", "0us"], "more than 0"),
        (&["sim", "--burst", "0"], "1 or more"),
        (&["pub", "-g", "x", "--policy", "quorum:0"], "quorum:N"),
        (&["pub", "-g", "x", "--policy", "fastest"], "unlimited"),
        (&["pub", "-g", "x", "--rate", "0"], "per second"),
        (&["pub", "-g", "x", "--rate", "1e10"], "per second"),
        (&["pub", "-g", "x", "--topic", "a\u{7}"], "control characters"),
        (&["pub", "-g", "x", "--file", "f", "--size", "0"], "--size"),
        (&["pub", "-g", "x", "--file", "f", "--size", "16777217"], "16777216"),
        (&["pub", "-g", "x", "--size", "5"], "--file"),
        (&["send", "-g", "x"], "FILE"),
        (&["bench", "throughput", "--size", "7"], "8..="),
        (&["bench", "throughput", "--size", "16777217"], "16777216"),
        (&["bench", "throughput", "--subscribers", "0"], "1..="),
        (&["bench", "throughput", "--loss", "1"], "below 1"),
        (&["bench", "throughput", "--seconds=-1"], "give seconds"),
        (&["bench", "raw", "--size", "65508"], "65507"),
        (&["bench", "latency", "--rate", "1e9", "--seconds", "100"], "requests"),
        (&["demo", "--loss", "110%"], "below 1"),
        (&["demo", "members", "--members", "4"], "5..=64"),
        (&["demo", "--loss", "0.1", "members"], "cannot be used with"),
        (&["members"], "GROUP"),
        (&["members", "x", "--settle", "1", "--watch"], "cannot be used with"),
        (&["join", "a\nb"], "control characters"),
        (&["join", "x", "--meta", "rack"], "KEY=VALUE"),
        (&["join", "x", "--meta", "=7"], "KEY=VALUE"),
        (&["join", "x", "--meta", "k=1", "--meta", "k=2"], "given twice"),
        (&["join", "x", "--meta", "k=\u{1b}[2J"], "control character"),
        (&["join", "x", "--meta", &format!("k={long}{long}{long}")], "at most"),
        (&["chat", "x", "--name", ""], "empty"),
        (&["join", &huge], "bytes"),
        (&["members", "x", "--name", &huge], "bytes"),
        (&["announce", "t", &huge, "--port", "1"], "1 to 64 bytes"),
        (&["announce", "t", "n", "--port", "1", "--meta", "k=1", "--meta", "k=2"], "given twice"),
        (&["resolve", &huge], "1 to 64 bytes"),
        (&["decode"], "FILE"),
        (&["completions", "cmd"], "bash"),
    ] {
        let ended = run(line);
        assert_eq!(ended.code, Some(2), "{line:?}: {ended:#?}");
        assert!(ended.said().contains(says), "{line:?} does not say {says:?}: {ended:#?}");
        assert!(ended.stdout.is_empty(), "{line:?}: {ended:#?}");
        // What was wrong is repeated as far as it helps, and cannot write to the terminal.
        assert!(ended.said().len() < 2000, "{ended:#?}");
        assert!(!ended.said().contains(|c: char| c.is_control() && c != '\n'), "{ended:#?}");
    }
}

#[test]
fn wrong_variables_end_with_2() {
    let group = group("variables");
    for (name, value, says) in [
        ("QCAST_SECRET", "", "QCAST_SECRET"),
        ("QCAST_FAULT", "loss", "key=value"),
        ("QCAST_DEVICE", "rdma", "there is no provider"),
        ("RUST_LOG", "qcast=nonsense=1", "RUST_LOG"),
    ] {
        let ended = Run::of(qcast(&["sub", "-g", &group]).env(name, value)).end().expect(2);
        assert!(ended.said().contains(says), "{name}={value}: {ended:#?}");
    }
}

#[test]
fn a_device_that_is_not_there_ends_with_3() {
    let folder = Folder::new("nodevice");
    let (group, file) = (group("nodevice"), folder.file("f", b"x"));
    let dir = folder.dir("in");
    for (device, says) in [
        ("soft:nosuch0", "there is no interface \"nosuch0\""),
        ("soft:192.0.2.7", "192.0.2.7 is not an address of this host"),
        ("verbs:nosuch_9", "verbs:nosuch_9"),
    ] {
        for command in [&["pub"][..], &["sub"], &["send", &file], &["receive", "--dir", &dir]] {
            let ended = run(&[command, &["-g", &group, "--device", device]].concat()).expect(3);
            assert!(ended.said().contains(says), "{command:?} {device}: {ended:#?}");
        }
    }
}

#[test]
fn a_group_of_another_family_ends_with_3_and_says_which_would_do() {
    let group = group("family");
    let ended = run(&["sub", "-g", &group, "--device", "soft:::1"]);
    // Where there is no IPv6 at all, that is what is said.
    assert_eq!(ended.code, Some(3), "{ended:#?}");
    let said = ended.said();
    assert!(said.contains("--mgid, such as ff15::7") || said.contains("not an address"), "{said}");
    let ended = run(&["sub", "-g", &group, "--mgid", "ff15::7"]).expect(3);
    assert!(ended.said().contains("IPv6"), "{ended:#?}");
}

#[test]
fn a_port_that_is_taken_ends_with_3() {
    let group = group("taken");
    let [_, a, b, _] = std::process::id().to_be_bytes();
    let device = format!("soft:127.200.{a}.{}", b.max(1));
    let _first = Run::listening(&["sub", "-g", &group, "--device", &device]);
    let ended = run(&["sub", "-g", &group, "--device", &device]).expect(3);
    assert!(ended.said().contains("taken"), "{ended:#?}");
}

#[test]
fn files_that_cannot_be_read_end_with_1_and_are_named() {
    let folder = Folder::new("unreadable");
    let group = group("unreadable");
    let missing = folder.join("missing");
    let empty = folder.file("empty", b"\n");
    let dir = folder.dir("dir");
    for (line, says) in [
        (&["send", &missing, "-g", &group][..], &missing),
        (&["send", &dir, "-g", &group], &dir),
        (&["pub", "-g", &group, "--file", &missing], &missing),
        (&["pub", "-g", &group, "--file", &dir], &dir),
        (&["sub", "-g", &group, "--secret-file", &missing], &missing),
        (&["sub", "-g", &group, "--secret-file", &empty], &empty),
        (&["receive", "-g", &group, "--dir", &missing], &missing),
        (&["decode", &missing], &missing),
        (&["decode", &empty], &empty),
    ] {
        let ended = run(line).expect(1);
        assert!(ended.said().contains(says.as_str()), "{line:?}: {ended:#?}");
    }
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).expect(0).stdout.join("\n");
        for word in ["qcast", "receive", "secret-file"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut completions = Run::start(&["completions", "bash"]);
    completions.close_stdout();
    let ended = completions.end().expect(0);
    assert_eq!(ended.said(), "");

    let group = group("leaves");
    let mut subscriber = Run::start(&["sub", "-g", &group]);
    subscriber.close_stdout();
    subscriber.says("listens to group");
    let mut publisher = Run::start(&["pub", "-g", &group, "--wait-for", "1"]);
    publisher.input(b"one\ntwo\n");
    publisher.end().expect(0);
    let ended = subscriber.end().expect(0);
    assert!(!ended.said().contains("standard output"), "{ended:#?}");
}

#[test]
fn a_full_output_is_an_error() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let mut command = qcast(&["completions", "bash"]);
    let output = command.stdout(full()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write standard output"), "{said}");
}
