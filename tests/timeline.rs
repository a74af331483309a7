//! A live node's timeline opens in a trace viewer and says what the agent's events say.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use tidegate_replay::timeline::check;
use tidegate_tests::online::Request;
use tidegate_tests::watch::Testimony;
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, monotonic_ns, wait_for, watch};
use tidegate_vgpu::history::Kind;

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

/// What the lanes of a GPU may differ from the device's history by.
const APART: u64 = 1_000_000;

/// Slices of a lane of GPU 0, in order: name, begin and end by `CLOCK_MONOTONIC`.
fn lane(trace: &Value, lane: &str) -> Vec<(String, u64, u64)> {
    let zero = trace["otherData"]["begin_monotonic_ns"].as_u64();
    let zero = zero.expect("a time");
    let ns = |us: &Value| (us.as_f64().expect("a time") * 1e3).round() as u64;
    let drawn = trace["traceEvents"].as_array().expect("a list");
    let own = drawn
        .iter()
        .filter(|event| event["ph"] == "X" && event["cat"] == lane && event["pid"] == 1);
    let mut slices: Vec<_> = own
        .map(|slice| {
            let begin = zero + ns(&slice["ts"]);
            let name = slice["name"].as_str().expect("a name").to_owned();
            (name, begin, begin + ns(&slice["dur"]))
        })
        .collect();
    slices.sort_by_key(|slice| slice.1);
    slices
}

/// How far what the lanes show of a request is from what the device did, ns, if all is there and in order.
fn compared(
    request: &Request,
    history: &Testimony,
    (on, off): (&[u32], &[u32]),
    channels: usize,
    [busy, gate, ran]: [&Vec<(String, u64, u64)>; 3],
) -> Result<Vec<u64>, String> {
    let within = |at: u64| (request.start_ns..=request.end_ns).contains(&at);
    let of = |kind| history.all(on, kind).filter(|record| within(record.at_ns));
    let lacks = |what: &str| format!("{what}: {request:?}");
    let begun = of(Kind::KernelStart)
        .next()
        .ok_or(lacks("no kernel"))?
        .at_ns;
    let ended = of(Kind::KernelEnd).last().ok_or(lacks("no end"))?.at_ns;
    let slice = busy.iter().find(|slice| within(slice.1));
    let &(_, begin, end) = slice.ok_or(lacks("no slice"))?;
    if !((request.start_ns..=begun).contains(&begin) && end >= ended) {
        return Err(lacks(&format!(
            "busy from {begin} to {end}; the device ran it from {begun} to {ended}"
        )));
    }
    let shut = history.shut(off, channels, request.start_ns);
    let (stopped, woken) = shut.ok_or(lacks("offline made no room"))?;
    let closed = gate
        .iter()
        .find(|slice| slice.0 == "closed" && slice.1 > request.start_ns);
    let &(_, shut, opened) = closed.ok_or(lacks("no slice of a stop"))?;
    let pause = ran.windows(2).find(|pair| pair[0].2 > request.start_ns);
    let pause = pause.ok_or(lacks("offline does not stop"))?;
    let (left, back) = (pause[0].2, pause[1].1);
    if shut < stopped || left < stopped {
        return Err(lacks(&format!(
            "shut at {shut}, left at {left}; the device stopped offline at {stopped}"
        )));
    }
    let pairs = [
        (end, ended),
        (shut, stopped),
        (opened, woken),
        (left, stopped),
        (back, woken),
    ];
    Ok(pairs.map(|(drawn, device)| drawn.abs_diff(device)).to_vec())
}

/// P-OPERATE-11: lanes online, gate and offline agree with the device's history to a millisecond, and show no overlap
/// that the device did not see.
///
/// Of each request the slices are held to order: online's begins after the program began to launch and before the device
/// ran that, and ends after the device had done it; gate and offline stop after the device had stopped offline. Three
/// quarters of the requests and of the times have to be so: on a busy machine the program, the device's process or the
/// agent is stopped now and then between a deed and its stamp.
#[test]
fn lanes_agree_with_the_history_of_the_device_to_a_millisecond() {
    const REQUESTS: usize = 20;
    let node = Node::new(&[], &format!("{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n"));
    let mut offline = Offline::start(&node, 2_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let file = node.dir().join("lanes.json");
    let mut command = node.tidegate_command(&["trace", "--seconds", "3600", "--output"]);
    let mut recording = Running::start("tidegate trace", command.arg(&file).stdout(Stdio::piped()));
    let mut said = BufReader::new(recording.child.stdout.take().expect("a pipe"));
    let mut told = String::new();
    said.read_line(&mut told).expect("it says that it records");
    let requests: Vec<Request> = (0..REQUESTS)
        .map(|_| {
            let request = online.request(0, 2_000_000, 0);
            watch::wait_open(&node, 0, online.process.pid());
            request
        })
        .collect();
    recording.signal(libc::SIGINT);
    said.read_to_string(&mut told)
        .expect("it says what it recorded");
    recording.succeed();
    let trace = std::fs::read(&file).expect("the recording is written");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    let history = Testimony::of(&node);
    let (busy, gate) = (lane(&trace, "online"), lane(&trace, "gate"));
    let ran = lane(&trace, "offline");
    let (on, off) = ([online.process.pid()], [offline.process.pid()]);
    let channels = watch::channels(&node, &off).len();
    // How far the ends and begins are from the device's own.
    let mut apart = Vec::new();
    let mut disturbed = Vec::new();
    for request in &requests {
        let found = compared(
            request,
            &history,
            (&on, &off),
            channels,
            [&busy, &gate, &ran],
        );
        match found {
            Ok(found) => apart.extend(found),
            Err(why) => disturbed.push(why),
        }
    }
    assert!(disturbed.len() <= REQUESTS / 4, "{disturbed:#?}");
    apart.sort_unstable();
    println!(
        "apart, us: {:?}",
        apart.iter().map(|ns| ns / 1_000).collect::<Vec<_>>()
    );
    if watch::status(&node)["scheduling"] != "SCHED_FIFO" {
        eprintln!("SKIPPED: the agent may not go ahead of other programs here, and hears late");
        return;
    }
    let most = apart[apart.len() * 3 / 4];
    assert!(
        most <= APART,
        "a quarter is more than {most} ns from the device's history"
    );
    offline.stop();
}
