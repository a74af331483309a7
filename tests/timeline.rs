//! A live node's timeline opens in a trace viewer and says what the agent's events say.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use tidegate_replay::timeline::check;
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, monotonic_ns, wait_for, watch};

/// P-OPERATE-11: a timeline tells what happened.
#[test]
fn a_recording_of_a_live_node_opens_in_a_viewer_and_tells_its_preemptions() {
    let node = Node::new(&[], &format!("{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n"));
    let mut offline = Offline::start(&node, 2_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let file = node.dir().join("live.json");
    let mut command = node.tidegate_command(&["trace", "--seconds", "3600", "--output"]);
    let mut recording = Running::start("tidegate trace", command.arg(&file).stdout(Stdio::piped()));
    let mut said = BufReader::new(recording.child.stdout.take().expect("a pipe"));
    let mut told = String::new();
    said.read_line(&mut told).expect("it says that it records");
    assert!(told.starts_with("recording"), "{told}");
    let known = || {
        let output = node.tidegate(&["events", "--output", "json"]);
        let events = String::from_utf8(output.stdout).expect("JSON");
        let events: Vec<Value> = events
            .lines()
            .map(|line| serde_json::from_str(line).expect("an event"))
            .collect();
        events
    };
    let preempted = |events: &[Value]| {
        events
            .iter()
            .filter(|event| event["kind"] == "preempted")
            .count()
    };
    let mut asked = Vec::new();
    for _ in 0..3 {
        let before = preempted(&known());
        let begin = monotonic_ns();
        online.say("hold");
        wait_for("the preemption", || {
            (preempted(&known()) > before).then_some(())
        });
        asked.push((begin, monotonic_ns()));
        online.say("release");
        watch::wait_open(&node, 0, online.process.pid());
    }
    recording.signal(libc::SIGINT);
    said.read_to_string(&mut told)
        .expect("it says what it recorded");
    recording.succeed();
    let written = std::fs::read(&file).expect("the recording is written");
    check(&written).expect("a viewer reads it");
    let trace: Value = serde_json::from_slice(&written).expect("JSON");
    let drawn = trace["traceEvents"].as_array().expect("a list");
    let named = |name: &str, ph: &str| {
        drawn
            .iter()
            .filter(|event| event["name"] == name && event["ph"] == ph)
            .collect::<Vec<_>>()
    };
    let marks = named("preempted", "i");
    assert_eq!(marks.len(), 3, "{told}");
    assert!(
        told.contains(&format!("{} of them preemptions", marks.len())),
        "{told}"
    );
    for mark in &marks {
        let seq = &mark["args"]["seq"];
        let events = known();
        let event = events
            .iter()
            .find(|event| event["seq"] == *seq)
            .expect("the agent has it too");
        assert_eq!(event["kind"], "preempted");
        let latency = event["value_ns"].as_f64().expect("a latency") / 1e3;
        let closing = named("closing", "X");
        let own = closing.iter().find(|slice| {
            let end =
                slice["ts"].as_f64().expect("a time") + slice["dur"].as_f64().expect("a length");
            (end - mark["ts"].as_f64().expect("a time")).abs() < 0.01
        });
        let dur = own.expect("each preemption closes the gate")["dur"].as_f64();
        assert!(
            (dur.expect("a length") - latency).abs() < 0.01,
            "{dur:?} {latency}"
        );
    }
    // Lane online has its edges, not what a sample saw: each began after it was asked for and before the
    // preemption it asked for was over, and ended after the release and before offline was woken.
    let start = trace["otherData"]["begin_monotonic_ns"].as_u64();
    let start = start.expect("a time");
    let stamp = |of: &Value| {
        let us = of["ts"].as_f64().expect("a time");
        start + (us * 1e3) as u64
    };
    let busy = named("busy", "X");
    assert_eq!(busy.len(), 3, "{busy:?}");
    let woken = named("woken", "i");
    for (nth, (begin, released)) in asked.iter().enumerate() {
        let began = stamp(busy[nth]);
        let ended = began + (busy[nth]["dur"].as_f64().expect("a length") * 1e3) as u64;
        let preempted = stamp(marks[nth]);
        assert!(
            (*begin..=preempted).contains(&began),
            "asked at {begin}, busy at {began}, preempted at {preempted}"
        );
        let next = woken
            .iter()
            .map(|mark| stamp(mark))
            .find(|at| at > released);
        assert!(
            ended >= *released && next.is_none_or(|next| ended <= next),
            "released at {released}, idle at {ended}, woken at {next:?}"
        );
    }
    assert!(!named("closed", "X").is_empty() && !named("open", "X").is_empty());
    offline.stop();
}
