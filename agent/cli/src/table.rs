//! Status, hooks and events for people.

mod budget;
mod figures;
mod head;
mod leases;
mod memory;
mod trainer;

use super::json;
use figures::or_dash;
pub use figures::{bytes, gpu_ranges, held, in_use};
use std::fmt::Write;
pub use tidegate_agent::span::time;
use tidegate_proto::v1;
use tidegate_text::screen::Shown;
pub use tidegate_text::screen::{Grid, long, number, word};
pub use trainer::line as trains;

/// The whole status.
pub fn status(report: &v1::GetStatusResponse, width: Option<u16>) -> String {
    let mut text = String::new();
    head::lines(report, &mut text);
    text.push('\n');
    of_gpus(report, width, &mut text);
    budget::status(report, width, &mut text);
    memory::status(report, width, &mut text);
    leases::status(report, width, &mut text);
    text.push('\n');
    of_jobs(report, width, &mut text);
    text.push('\n');
    if report.processes.is_empty() {
        text.push_str("no process is attached\n");
    } else {
        text.push_str(&processes(report, width));
    }
    of_counters(report, width, &mut text);
    text
}

/// Each GPU: its gate, and what it is.
fn of_gpus(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    if report.gpus.is_empty() {
        text.push_str("no GPU is known\n");
        return;
    }
    let shown = gpus(report, width, text);
    let unit = report.gpus.iter();
    if let Some(unit) = unit
        .filter_map(|gpu| gpu.preemptions_per_unit.as_ref())
        .next()
        .filter(|_| shown.has("PER UNIT"))
    {
        let _ = writeln!(
            text,
            "(PER UNIT: preemptions per {}, mean / max)",
            unit.unit.replace('_', " ")
        );
    }
    let known = |gpu: &v1::GpuStatus| gpu.memory_total_bytes != 0 || gpu.stop.is_some();
    if report.gpus.iter().any(known) {
        text.push('\n');
        models(report).show(width, text);
    }
}

/// Each offline job, and how far its training is.
fn of_jobs(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    if report.jobs.is_empty() {
        text.push_str("no offline job is attached\n");
    } else {
        if jobs(report).show(width, text).has("SHARE") {
            text.push_str("(SHARE: of the time in which the job could run: got / deserved.)\n");
            let of_timeslices =
                |job: &v1::JobStatus| job.share.as_ref().is_some_and(|own| own.at_once);
            if report.jobs.iter().any(of_timeslices) {
                text.push_str(
                    "(By timeslices: what they give the job, not what the GPU measured.)\n",
                );
            }
        }
        trainer::status(report, width, text);
    }
}

/// What was counted.
fn of_counters(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    let counted: Vec<_> = report
        .counters
        .iter()
        .filter(|counter| counter.value != 0)
        .collect();
    if !counted.is_empty() {
        text.push('\n');
        let mut rows = Grid::new(&[word("COUNTER"), number("VALUE"), long("MEANING", 20)]);
        for counter in counted {
            rows.add([
                counter.name.clone(),
                counter.value.to_string(),
                counter.help.clone(),
            ]);
        }
        rows.show(width, text);
    }
}

/// The gate of a GPU, and what holds its jobs where the gate does not.
fn gate(report: &v1::GetStatusResponse, gpu: &v1::GpuStatus) -> String {
    let state = json::gate(gpu);
    let mut here = report
        .jobs
        .iter()
        .filter(|job| job.gpus.contains(&gpu.index))
        .peekable();
    if report.ungated_ns > 0 && !report.drained {
        format!("{state}, ungated")
    } else if gpu.gate() != v1::GateState::Open {
        state
    } else if report.drained {
        format!("{state}, drained")
    } else if here.peek().is_none() {
        state
    } else if here.clone().all(|job| job.state() == v1::JobState::Paused) {
        format!("{state}, jobs paused")
    } else if here.all(|job| matches!(job.state(), v1::JobState::Gated | v1::JobState::Paused)) {
        format!("{state}, jobs wait")
    } else {
        state
    }
}

/// What each GPU is, and how full.
fn models(report: &v1::GetStatusResponse) -> Grid {
    let mut rows = Grid::new(&[
        word("GPU"),
        long("MODEL", 16),
        word("MEMORY IN USE"),
        number("OFF THE GPU").spare(2),
        number("CALL RETURNED").spare(1),
    ]);
    for gpu in &report.gpus {
        rows.add([
            gpu.index.to_string(),
            or_dash(&gpu.model).to_owned(),
            in_use(gpu),
            took(gpu, |stop| stop.off_gpu_us),
            took(gpu, |stop| stop.call_us),
        ]);
    }
    rows
}

/// How long the self-test's stops took on a GPU.
pub fn took(gpu: &v1::GpuStatus, figure: fn(&v1::StopTimes) -> Option<u64>) -> String {
    let us = gpu.stop.as_ref().and_then(figure);
    us.map_or_else(|| "not measured".to_owned(), |us| time(us * 1000))
}

fn gpus(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) -> Shown {
    let mut rows = Grid::new(&[
        word("GPU"),
        long("GATE", 13),
        number("FOR"),
        word("ONLINE"),
        number("COOLDOWN").spare(1),
        number("LONGEST GAP").spare(5),
        number("PREEMPTIONS"),
        word("PER UNIT").spare(4),
        number("WAKES").spare(6),
        number("PREEMPT p50").spare(3),
        number("PREEMPT p99"),
        number("PREEMPT max").spare(2),
        number("CHANNELS OFF"),
    ]);
    for gpu in &report.gpus {
        let latency = gpu
            .preempt_latency
            .as_ref()
            .filter(|latency| latency.count != 0);
        let latency = |of: fn(&v1::Latency) -> u64| {
            latency.map_or_else(|| "-".to_owned(), |latency| time(of(latency)))
        };
        let per_unit = gpu
            .preemptions_per_unit
            .as_ref()
            .filter(|per| per.units != 0)
            .map_or_else(
                || "-".to_owned(),
                |per| format!("{:.2} / {}", per.mean, per.max),
            );
        rows.add([
            gpu.index.to_string(),
            gate(report, gpu),
            time(gpu.state_ns),
            if gpu.online_busy { "busy" } else { "idle" }.to_owned(),
            time(gpu.cooldown_ns),
            time(gpu.longest_gap_ns),
            gpu.preemptions.to_string(),
            per_unit,
            gpu.wakes.to_string(),
            latency(|latency| latency.p50_ns),
            latency(|latency| latency.p99_ns),
            latency(|latency| latency.max_ns),
            format!("{} of {}", gpu.channels_disabled, gpu.channels),
        ]);
    }
    rows.show(width, text)
}

/// What a job that takes turns got and deserved of its time.
pub fn share(job: &v1::JobStatus) -> String {
    let percent = |part: f64| (part * 100.0).round();
    job.share.as_ref().map_or_else(
        || "-".to_owned(),
        |share| format!("{}/{} %", percent(share.got), percent(share.deserved)),
    )
}

/// Whether a job takes turns with another.
pub fn any_turns(report: &v1::GetStatusResponse) -> bool {
    report.jobs.iter().any(|job| job.share.is_some())
}

/// The jobs, with their shares where they take turns.
fn jobs(report: &v1::GetStatusResponse) -> Grid {
    let mut rows = Grid::new(&[
        long("JOB", 16),
        long("STATE", 9),
        number("FOR"),
        long("GPUS", 8),
        number("PROCESSES").spare(2),
        number("CHANNELS").spare(3),
        number("PREEMPTIONS").spare(1),
        number("SHARE"),
        long("WHY", 24),
    ]);
    for job in &report.jobs {
        rows.add([
            job.name.clone(),
            json::job_state(job),
            time(job.state_ns),
            gpu_ranges(&job.gpus),
            job.sessions.len().to_string(),
            job.channels.to_string(),
            job.preemptions.to_string(),
            share(job),
            job.reason.clone(),
        ]);
    }
    let shares = any_turns(report);
    rows.retain(|head, _| head != "SHARE" || shares);
    rows
}

/// Cells of the column of an event's kind.
const KIND: usize = 20;
/// Width from which that is a column: a usual event fits in one line then.
const EVENTS_ALIGNED: u16 = 100;
/// Width from which rules, notes and places stand in the table; in a narrower one each has lines of its own below.
const ROOMY: u16 = 130;

/// The processes, without columns that would be empty.
fn processes(report: &v1::GetStatusResponse, width: Option<u16>) -> String {
    let mut rows = Grid::new(&[
        number("PID"),
        long("NAME", 12),
        long("ROLE", 8),
        long("JOB", 14),
        long("WHERE", 16),
        long("GPU", 16),
        number("MEMORY"),
        number("LAUNCHES").spare(1),
        number("CHANNELS").spare(2),
        long("RULE", 20),
        long("NOTE", 20),
    ]);
    for process in &report.processes {
        rows.add(process_cells(process));
    }
    let roomy = width.is_none_or(|width| width >= ROOMY);
    rows.retain(|head, cells| {
        let wordy = matches!(head, "WHERE" | "RULE" | "NOTE");
        (roomy || !wordy) && cells.iter().any(|cell| !matches!(*cell, "" | "-"))
    });
    let mut text = String::new();
    rows.show(width, &mut text);
    if !roomy {
        remarks(&report.processes, &mut text);
    }
    text
}

/// What there is no column for, those of whom the same is to be said together.
fn remarks(processes: &[v1::ProcessStatus], text: &mut String) {
    let mut said = Vec::<(String, Vec<String>)>::new();
    for process in processes {
        let parts = [place(process), &process.rule, &process.note];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let (remark, pid) = (parts.join("; "), process.pid.to_string());
        match said.iter_mut().find(|(known, _)| *known == remark) {
            Some((_, pids)) => pids.push(pid),
            None => said.push((remark, vec![pid])),
        }
    }
    for (remark, pids) in said.iter().filter(|(remark, _)| !remark.is_empty()) {
        let _ = writeln!(text, "  {}: {remark}", pids.join(", "));
    }
}

/// The GPUs of a process, those of which the same is to be said together: `0-3 busy, 4 idle`.
fn devices(process: &v1::ProcessStatus) -> String {
    let mut said = Vec::<(String, Vec<u32>)>::new();
    for device in &process.devices {
        let mut state = if device.busy { "busy" } else { "idle" }.to_owned();
        if device.suspect != 0 {
            let _ = write!(state, " ({})", json::suspect(device).replace('_', " "));
        }
        match said.iter_mut().find(|(known, _)| *known == state) {
            Some((_, gpus)) => gpus.push(device.gpu),
            None => said.push((state, vec![device.gpu])),
        }
    }
    let said = said.iter();
    let said = said.map(|(state, gpus)| format!("{} {state}", gpu_ranges(gpus)));
    or_dash(&said.collect::<Vec<_>>().join(", ")).to_owned()
}

/// Launches of a process on all its GPUs. Each is what the process says, which may be any number.
pub fn launches(process: &v1::ProcessStatus) -> u64 {
    let each = process.devices.iter().map(|device| device.launches);
    each.fold(0, u64::saturating_add)
}

fn process_cells(process: &v1::ProcessStatus) -> [String; 11] {
    let launches = launches(process);
    let channels = if process.channels == 0 || process.proven {
        process.channels.to_string()
    } else {
        format!("{} (not proven)", process.channels)
    };
    [
        process.pid.to_string(),
        process.name.clone(),
        json::role(process),
        or_dash(&process.job).to_owned(),
        or_dash(place(process)).to_owned(),
        devices(process),
        bytes(held(process)),
        launches.to_string(),
        channels,
        process.rule.clone(),
        process.note.clone(),
    ]
}

/// Where a process runs; an agent of an earlier version does not say.
pub fn place(process: &v1::ProcessStatus) -> &str {
    let place = process.whereabouts.as_ref();
    place.map_or("", |place| &place.text)
}

/// The hooks of each process; rows that were never asked for are only counted.
pub fn hooks(processes: &[v1::ProcessStatus], width: Option<u16>) -> String {
    let mut text = String::new();
    if processes.is_empty() {
        text.push_str("no process is attached\n");
    }
    for process in processes {
        let _ = writeln!(text, "{} (pid {})", process.name, process.pid);
        if process.hooks.is_empty() {
            text.push_str("  no report yet\n\n");
            continue;
        }
        let mut rows = Grid::new(&[
            word("SYMBOL"),
            word("INSTALLED"),
            word("RESOLVED"),
            number("CALLS"),
        ]);
        let yes = |yes| if yes { "yes" } else { "no" }.to_owned();
        let mut silent = 0;
        for hook in &process.hooks {
            if hook.installed || hook.resolved || hook.calls != 0 {
                rows.add([
                    hook.symbol.clone(),
                    yes(hook.installed),
                    yes(hook.resolved),
                    hook.calls.to_string(),
                ]);
            } else {
                silent += 1;
            }
        }
        rows.show(width, &mut text);
        if silent != 0 {
            let _ = writeln!(text, "and {silent} that the program never asked for");
        }
        for abi in &process.unhooked {
            let _ = writeln!(
                text,
                "UNHOOKED: {} version {} flags {:#x}, asked for {} times",
                abi.name, abi.version, abi.flags, abi.count
            );
        }
        text.push('\n');
    }
    text
}

/// One event on one line. On a narrow terminal its kind takes no more room than its name.
pub fn event(event: &v1::Event, width: Option<u16>) -> String {
    let kind = if width.is_none_or(|width| width >= EVENTS_ALIGNED) {
        KIND
    } else {
        0
    };
    let mut line = format!(
        "{:>6}  {}  {:<kind$}",
        event.seq,
        tidegate_agent::clock::stamp(event.unix_ns),
        event.kind
    );
    if event.gpu >= 0 {
        let _ = write!(line, "  gpu {}", event.gpu);
    }
    if !event.job.is_empty() {
        let _ = write!(line, "  job {}", event.job);
    }
    if event.pid != 0 {
        let _ = write!(line, "  pid {}", event.pid);
    } else if event.session != 0 {
        let _ = write!(line, "  session {}", event.session);
    }
    if event.value_ns != 0 {
        let _ = write!(line, "  {}", time(event.value_ns));
    }
    // Its process stands before it already.
    let process = format!("pid {} ", event.pid);
    let text = event.text.strip_prefix(&process).unwrap_or(&event.text);
    if !text.is_empty() {
        let _ = write!(line, "  {text}");
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests;
