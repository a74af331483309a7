//! A schedule of real processes on one time line: what it did, what the device has of it, and what each agent decided.
//!
//! Device, programs and agents read one clock. An agent's decisions are its recording (`--record`), made again here.

use crate::Node;
use crate::judge::{Schedule, Verdict};
use std::fs::File;
use std::io::BufReader;
use tidegate_record::{Entry, replay_with};
use tidegate_sim::timeline::{Timeline, Who};
use tidegate_vgpu::history::{Kind, Record};

/// What a schedule of the gate did, and what was broken.
pub fn gate(timeline: &Timeline, schedule: &Schedule, verdict: &Verdict) {
    let told = |at, what: String| timeline.put(at, Who::Schedule, what);
    let online = schedule.online;
    told(schedule.start_ns, "the schedule begins".to_owned());
    for (number, request) in schedule.requests.iter().enumerate() {
        let gap = request.longest_gap_ns / 1_000;
        told(
            request.start_ns,
            format!("process {online} (online) begins request {number}"),
        );
        told(
            request.end_ns,
            format!("request {number} has ended; its longest gap was {gap} us"),
        );
    }
    for (pid, at) in &schedule.killed {
        told(*at, format!("fault: process {pid} (offline) is killed"));
    }
    for span in &schedule.agentless {
        told(span.start, "fault: the agent is killed".to_owned());
        told(span.end, "another agent is started".to_owned());
    }
    for span in &schedule.excused {
        let why = "from here order is not judged: the schedule strikes the agent or a process";
        told(span.start, why.to_owned());
        told(span.end, "from here order is judged again".to_owned());
    }
    for (at, what) in &verdict.violations {
        timeline.put(*at, Who::Judge, what.as_str());
    }
}

/// What the device did. `name` says of a process what it is.
pub fn device(timeline: &Timeline, records: &[Record], name: impl Fn(u32) -> String) {
    for record in records {
        let Record {
            at_ns, gpu, object, ..
        } = *record;
        let what = name(record.pid);
        let whom = match (record.pid, what.as_str()) {
            (0, _) => format!("GPU {gpu}"),
            (pid, "") => format!("GPU {gpu}, process {pid}"),
            (pid, what) => format!("GPU {gpu}, process {pid} ({what})"),
        };
        let often = match record.kind {
            Kind::KernelStart => "a kernel begins",
            Kind::KernelEnd => "a kernel ends",
            Kind::TsgRun => "gets on the engine",
            Kind::TsgStop => "gets off the engine",
            _ => "",
        };
        if !often.is_empty() {
            timeline.put_often(at_ns, Who::Device, whom, often);
            continue;
        }
        let line = match record.kind {
            Kind::DisableEnd => format!("channel {object:#x} is disabled"),
            Kind::EnableEnd => format!("channel {object:#x} is enabled"),
            Kind::DisableBegin => format!("a disable of channel {object:#x} arrives"),
            Kind::MemoryUp => format!("{} KiB are allocated", record.tag >> 10),
            Kind::MemoryDown => format!("{} KiB are freed", record.tag >> 10),
            Kind::Map | Kind::Unmap => format!(
                "{:?} of {} KiB at {:#x}",
                record.kind,
                record.tag >> 10,
                record.value
            ),
            kind => format!(
                "{kind:?}, object {object:#x}, value {:#x}, tag {:#x}",
                record.value, record.tag
            ),
        };
        timeline.put(at_ns, Who::Device, format!("{whom}: {line}"));
    }
}

/// What the node's agents were told and decided.
pub fn decisions(timeline: &Timeline, node: &Node) {
    for agent in 0..node.recordings() {
        let Ok(file) = File::open(node.recording(agent)) else {
            continue;
        };
        let mut last = 0;
        let replayed = replay_with(BufReader::new(file), |now, entry| {
            last = now.as_nanos();
            match entry {
                Entry::Event(event) => timeline.put_event(now, event),
                Entry::Effect(effect) => timeline.put_effect(now, effect),
                Entry::Configured => timeline.put(last, Who::Event, "configured anew"),
            }
        });
        // One that was killed may leave half a line.
        if let Err(end) = replayed {
            let what = format!("the recording of agent {agent} ends here: {end}");
            timeline.put(last, Who::Agent, what);
        }
    }
}
