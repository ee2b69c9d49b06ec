//! `qcast bench` and `qcast decode`: the keys that other tools rely on, and that counting is right.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Run, expect_keys, qcast, run};

fn object(args: &[&str]) -> Value {
    let ended = run(args).expect(0);
    let [object] = &ended.objects()[..] else { panic!("{ended:#?}") };
    object.clone()
}

const KEYS: [&str; 12] = [
    "subscribers",
    "size",
    "seconds",
    "loss",
    "sent_messages",
    "received_messages",
    "lost_messages",
    "duplicate_messages",
    "out_of_order_messages",
    "messages_per_second",
    "megabytes_per_second",
    "cpu_seconds_per_million_messages",
];

fn list(report: &Value, key: &str) -> Vec<u64> {
    report[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn throughput_counts_every_message() {
    for more in [
        &["--subscribers", "3", "--size", "64", "--loss", "0.05"][..],
        &["--size", "8", "--progress", "manual"],
        &["--size", "8192", "--loss", "0.01"],
    ] {
        let report =
            object(&[&["bench", "throughput", "--seconds", "0.2", "--json"], more].concat());
        expect_keys(&report, &KEYS);
        expect_keys(&report, &["naks", "repairs"]);
        let sent = report["sent_messages"].as_u64().unwrap();
        let n = report["subscribers"].as_u64().unwrap() as usize;
        assert!(sent > 0, "{report}");
        assert_eq!(list(&report, "received_messages"), vec![sent; n], "{report}");
        for key in ["lost_messages", "duplicate_messages", "out_of_order_messages"] {
            assert_eq!(list(&report, key), vec![0; n], "{key}: {report}");
        }
        assert!(report["messages_per_second"].as_f64().unwrap() > 0.0, "{report}");
        let lossy = report["loss"].as_f64().unwrap() > 0.0;
        assert_eq!(report["naks"].as_u64().unwrap() > 0, lossy, "{report}");
    }
}

#[test]
fn plain_udp_has_the_same_keys() {
    let report = object(&["bench", "raw", "--subscribers", "2", "--seconds", "0.2", "--json"]);
    expect_keys(&report, &KEYS);
    let sent = report["sent_messages"].as_u64().unwrap();
    assert!(sent > 0, "{report}");
    for (received, lost) in
        list(&report, "received_messages").iter().zip(list(&report, "lost_messages"))
    {
        assert_eq!(received + lost, sent, "{report}");
    }
    let report = object(&["bench", "raw", "--loss", "0.5", "--seconds", "0.2", "--json"]);
    let (sent, lost) =
        (report["sent_messages"].as_f64().unwrap(), list(&report, "lost_messages")[0]);
    assert!((0.4..0.6).contains(&(lost as f64 / sent)), "{report}");
}

#[test]
fn latency_answers_every_request() {
    for more in [&[][..], &["--progress", "manual"], &["--raw"]] {
        let args =
            ["bench", "latency", "--size", "64", "--rate", "500", "--seconds", "0.4", "--json"];
        let report = object(&[&args, more].concat());
        expect_keys(&report, &["rtt_p50_us", "rtt_p99_us", "rtt_p999_us", "samples"]);
        assert_eq!(report["samples"], 200, "{report}");
        let [p50, p99, p999] =
            ["rtt_p50_us", "rtt_p99_us", "rtt_p999_us"].map(|key| report[key].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{report}");
    }
}

#[test]
fn recovery_is_measured_and_loses_nothing() {
    let report = object(&["bench", "recovery", "--samples", "20", "--seconds", "0.5", "--json"]);
    expect_keys(
        &report,
        &["device", "samples", "reset_walk_p50_us", "recreate_p50_us", "ratio", "stream_gap_ms"],
    );
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!(number("reset_walk_p50_us") > 0.0 && number("ratio") > 0.0, "{report}");
    assert!(number("stream_gap_ms") > 0.0 && number("subscriber_gap_ms") > 0.0, "{report}");
    assert_eq!((&report["lost_messages"], &report["duplicate_messages"]), (&0.into(), &0.into()));
}

#[test]
fn a_measurement_that_is_interrupted_leaves_no_process() {
    let mut command = qcast(&["bench", "throughput", "--seconds", "600"]);
    let mut bench = Run::of(command.env("RUST_LOG", "info"));
    // The workers share its standard error: all have ended when that ends.
    bench.says("opened");
    bench.signal(Signal::SIGTERM);
    let ended = bench.end().expect(1);
    assert!(ended.said().contains("interrupted"), "{ended:#?}");
}

#[test]
fn a_capture_is_decoded_as_it_comes_and_a_signal_ends_it_with_a_summary() {
    let capture = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/proto/tests/data/soft-roce-multicast.pcap"
    ));
    let mut decode = Run::start(&["decode", "-", "--json"]);
    // Its input stays open.
    decode.feed(capture);
    for psn in [0, 1, 2, 0, 1] {
        let datagram: Value = serde_json::from_str(&decode.line()).unwrap();
        assert_eq!(datagram["psn"], psn, "{datagram}");
    }
    decode.signal(Signal::SIGINT);
    decode.says("21 packets: 5 RoCEv2 datagrams");
    decode.end().expect(0);
}

#[test]
fn decode_has_the_keys_that_tools_rely_on() {
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/tests/data/soft-roce-multicast.pcap");
    let ended = run(&["decode", capture, "--json"]).expect(0);
    let objects = ended.objects();
    assert!(!objects.is_empty());
    for object in &objects {
        let keys = ["opcode", "dest_qpn", "psn", "qkey", "src_qpn", "payload_bytes", "icrc"];
        expect_keys(object, &keys);
        assert_eq!(object["icrc"], "ok");
    }
    // The traffic is another program's.
    assert!(objects.iter().all(|object| object["qcast"].is_null()));
    assert!(run(&["decode", capture]).expect(0).stdout.iter().all(|line| line.contains("icrc ok")));
}
