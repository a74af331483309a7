//! Judges a run of real processes from the device's own history.
//!
//! Real time decides nothing here but deadlines: a machine with two noisy cores may stretch every
//! step. What must hold is order. Between the return of a busy edge's last disable and the next
//! enable nothing offline runs; every busy edge that met offline work is followed by the disables
//! of all its channels; no enable comes before the online program has been idle for twice the
//! longest decode gap of the schedule (200 ms before 32 gaps); a request whose gaps are stationary
//! is preempted at most once.

use crate::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tidegate_vgpu::history::{Kind, Record};

/// The engine that runs kernels, as the history names it.
const GRAPHICS: u64 = tidegate_abi::class::ENGINE_TYPE_GR0 as u64;
/// Longest that a busy edge may wait for its disables before it counts as lost.
pub const EDGE_DEADLINE_NS: u64 = 2_000_000_000;
/// Decode gaps before which the cooldown is [`FIRST_COOLDOWN_NS`].
pub const GAPS_BEFORE_LEARNING: usize = 32;
/// See [`GAPS_BEFORE_LEARNING`].
pub const FIRST_COOLDOWN_NS: u64 = 200_000_000;
/// Shortest cooldown the policy uses.
pub const SHORTEST_COOLDOWN_NS: u64 = 2_000_000;
/// Longest cooldown the policy uses.
pub const LONGEST_COOLDOWN_NS: u64 = 200_000_000;

/// What the online program did, as it saw it itself.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// When it began; what the history says of earlier times is only its starting state.
    pub start_ns: u64,
    /// Requests in order.
    pub requests: Vec<Request>,
    /// Decode gaps each request adds.
    pub gaps_per_request: Vec<usize>,
    /// Spans in which the schedule had killed or stopped the agent, or was killing an offline
    /// process; order is judged outside them.
    pub excused: Vec<Range<u64>>,
    /// Spans without a live agent.
    pub agentless: Vec<Range<u64>>,
    /// Offline processes.
    pub offline: BTreeSet<u32>,
    /// When each of those that were killed was.
    pub killed: BTreeMap<u32, u64>,
    /// The process of the requests.
    pub online: u32,
}

/// What a judged schedule amounts to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// One line each.
    pub violations: Vec<String>,
    /// Busy edges that met enabled offline channels.
    pub edges: u64,
    /// Enables after a disable.
    pub wakes: u64,
    /// Disables while offline was enabled.
    pub preemptions: u64,
    /// Longest time a channel stayed disabled with no live agent.
    pub worst_stuck_ns: u64,
    /// Time offline was on the engine.
    pub offline_ran_ns: u64,
}

/// State of the offline channels over time, rebuilt from the history.
#[derive(Debug, Default)]
struct Channels {
    /// (client, channel) -> disabled since.
    known: BTreeMap<(u32, u32), Option<u64>>,
    /// (client, channel) -> its process.
    owner: BTreeMap<(u32, u32), u32>,
}

impl Channels {
    /// The process is dead: its channels are the gate's no more. The agent drops their queue and enables
    /// them, so that the driver can take them down; what was on the GPU then ends beside online, and
    /// nothing of them may run before.
    fn bury(&mut self, pid: u32) {
        let owner = &self.owner;
        self.known
            .retain(|channel, _| owner.get(channel) != Some(&pid));
    }
}

/// One contiguous stretch in which every offline channel was disabled.
#[derive(Clone, Copy, Debug)]
struct Shut {
    from: u64,
    to: u64,
}

/// An enable: when the caller entered the driver, and when it took effect. A request that begins in between finds
/// offline work, which its own busy edge stops; the wake was none of its time.
#[derive(Clone, Copy, Debug)]
struct Wake {
    asked: u64,
    at: u64,
}

fn within(spans: &[Range<u64>], at: u64) -> bool {
    spans.iter().any(|span| span.contains(&at))
}

fn overlaps(spans: &[Range<u64>], from: u64, to: u64) -> bool {
    spans.iter().any(|span| span.start < to && from < span.end)
}

/// Judges `records`, the device's history from the start of the schedule to `end_ns`.
#[must_use]
pub fn judge(schedule: &Schedule, records: &[Record], end_ns: u64) -> Verdict {
    let mut verdict = Verdict::default();
    let mut channels = Channels::default();
    let mut shut: Vec<Shut> = Vec::new();
    let mut open_shut: Option<u64> = None;
    let mut running: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    let mut ran: Vec<(u64, u64)> = Vec::new();
    let mut enables: Vec<Wake> = Vec::new();
    let mut last_enable = 0;

    let mut deaths: Vec<(u64, u32)> = schedule
        .killed
        .iter()
        .map(|(pid, at)| (*at, *pid))
        .collect();
    deaths.sort_unstable();
    let mut deaths = deaths.into_iter().peekable();
    let mut let_go: BTreeSet<u32> = BTreeSet::new();

    for record in records.iter().filter(|r| schedule.offline.contains(&r.pid)) {
        while let Some((_, pid)) = deaths.next_if(|(at, _)| *at <= record.at_ns) {
            channels.bury(pid);
        }
        let dead = schedule
            .killed
            .get(&record.pid)
            .is_some_and(|at| *at <= record.at_ns);
        let channel = (record.client, record.object);
        channels.owner.insert(channel, record.pid);
        match record.kind {
            Kind::EnableEnd if dead => {
                let_go.insert(record.pid);
            }
            Kind::ChannelUp | Kind::ChannelDown | Kind::DisableEnd if dead => {}
            Kind::TsgRun if let_go.contains(&record.pid) => {}
            Kind::ChannelUp => {
                channels.known.insert(channel, None);
            }
            Kind::ChannelDown => {
                channels.known.remove(&channel);
            }
            Kind::DisableEnd => {
                let state = channels.known.entry(channel).or_default();
                if state.is_none() {
                    *state = Some(record.at_ns);
                }
            }
            Kind::EnableEnd => {
                let state = channels.known.entry(channel).or_default();
                if let Some(since) = state.take() {
                    for span in &schedule.agentless {
                        let from = since.max(span.start);
                        let to = record.at_ns.min(span.end);
                        verdict.worst_stuck_ns =
                            verdict.worst_stuck_ns.max(to.saturating_sub(from));
                    }
                    // One wake enables many channels within a moment.
                    if record.at_ns > last_enable + 1_000_000 && record.at_ns >= schedule.start_ns {
                        enables.push(Wake {
                            asked: record.value,
                            at: record.at_ns,
                        });
                    }
                    last_enable = record.at_ns;
                }
            }
            Kind::TsgRun if record.value == GRAPHICS => {
                running.insert((record.gpu, record.client, record.object), record.at_ns);
            }
            Kind::TsgStop if record.value == GRAPHICS => {
                if let Some(from) = running.remove(&(record.gpu, record.client, record.object)) {
                    ran.push((from, record.at_ns));
                }
            }
            _ => {}
        }
        let all = !channels.known.is_empty() && channels.known.values().all(Option::is_some);
        match (all, open_shut) {
            (true, None) => open_shut = Some(record.at_ns),
            (false, Some(from)) => {
                shut.push(Shut {
                    from,
                    to: record.at_ns,
                });
                open_shut = None;
            }
            _ => {}
        }
    }
    for (_, from) in running {
        ran.push((from, end_ns));
    }
    if let Some(from) = open_shut {
        shut.push(Shut { from, to: end_ns });
        for span in &schedule.agentless {
            let stuck = end_ns.min(span.end).saturating_sub(from.max(span.start));
            verdict.worst_stuck_ns = verdict.worst_stuck_ns.max(stuck);
        }
    }
    verdict.offline_ran_ns = ran.iter().map(|(from, to)| to.saturating_sub(*from)).sum();

    for stretch in &shut {
        for (from, to) in &ran {
            if *from > stretch.from && *from < stretch.to {
                verdict.violations.push(format!(
                    "offline ran at {from} for {} ns while all its channels were disabled ({}..{})",
                    to.saturating_sub(*from),
                    stretch.from,
                    stretch.to
                ));
            }
        }
    }
    judge_edges(schedule, records, &shut, &ran, end_ns, &mut verdict);
    judge_wakes(schedule, records, &enables, &mut verdict);
    verdict.wakes = enables.len() as u64;
    verdict
}

/// The cooldown that the first `requests` requests of the schedule ask for.
fn cooldown_after(schedule: &Schedule, requests: usize) -> u64 {
    let gaps: usize = schedule.gaps_per_request[..requests].iter().sum();
    if gaps < GAPS_BEFORE_LEARNING {
        return FIRST_COOLDOWN_NS;
    }
    let longest = schedule.requests[..requests]
        .iter()
        .map(|r| r.longest_gap_ns)
        .max();
    (2 * longest.unwrap_or_default()).clamp(SHORTEST_COOLDOWN_NS, LONGEST_COOLDOWN_NS)
}

/// Whether request `number` kept to the gaps before it: a machine that stretched one of its gaps
/// beyond the cooldown made it a return after a pause, which nobody can tell from a new request.
/// The device's gaps count: a program that is scheduled late sees its own gap shorter than it was.
fn stationary(schedule: &Schedule, records: &[Record], number: usize) -> bool {
    let request = schedule.requests[number];
    let (mut ended, mut longest) = (None, request.longest_gap_ns);
    for record in records.iter().filter(|r| r.pid == schedule.online) {
        if record.at_ns < request.start_ns || record.at_ns > request.end_ns {
            continue;
        }
        match record.kind {
            Kind::KernelEnd => ended = Some(record.at_ns),
            Kind::KernelStart => {
                let gap = ended.map_or(0, |end| record.at_ns.saturating_sub(end));
                longest = longest.max(gap);
            }
            _ => {}
        }
    }
    longest < cooldown_after(schedule, number)
}

/// Every request that met enabled offline work is followed by a shut gate, once.
fn judge_edges(
    schedule: &Schedule,
    records: &[Record],
    shut: &[Shut],
    ran: &[(u64, u64)],
    end_ns: u64,
    verdict: &mut Verdict,
) {
    for (number, request) in schedule.requests.iter().enumerate() {
        let already = shut
            .iter()
            .any(|s| s.from <= request.start_ns && request.start_ns < s.to);
        let begun = shut
            .iter()
            .filter(|s| s.from > request.start_ns && s.from < request.end_ns + EDGE_DEADLINE_NS)
            .collect::<Vec<_>>();
        let inside = begun.iter().filter(|s| s.from <= request.end_ns).count() as u64;
        verdict.preemptions += inside;
        let excused = overlaps(
            &schedule.excused,
            request.start_ns,
            request.end_ns.max(request.start_ns + EDGE_DEADLINE_NS),
        );
        if excused {
            continue;
        }
        if inside + u64::from(already) > 1 && stationary(schedule, records, number) {
            verdict.violations.push(format!(
                "request {number} ({}..{}) was preempted {inside} times, the gate was {} before it",
                request.start_ns,
                request.end_ns,
                if already { "shut" } else { "open" }
            ));
        }
        let met = ran
            .iter()
            .any(|(from, to)| *from < request.end_ns && *to > request.start_ns);
        if already || !met {
            continue;
        }
        verdict.edges += 1;
        let answered = begun
            .iter()
            .any(|s| s.from < request.start_ns + EDGE_DEADLINE_NS);
        if !answered && end_ns > request.start_ns + EDGE_DEADLINE_NS {
            verdict.violations.push(format!(
                "the busy edge of request {number} at {} was never followed by its disables",
                request.start_ns
            ));
        }
    }
}

/// No wake before the online program was idle for the cooldown its own gaps ask for.
fn judge_wakes(schedule: &Schedule, records: &[Record], enables: &[Wake], verdict: &mut Verdict) {
    for Wake { asked, at: wake } in enables {
        if within(&schedule.excused, *wake) {
            continue;
        }
        let begun = schedule
            .requests
            .iter()
            .filter(|r| r.start_ns < *asked)
            .count();
        let Some(last) = begun.checked_sub(1) else {
            continue;
        };
        let request = schedule.requests[last];
        if *wake < request.end_ns {
            if stationary(schedule, records, last) {
                verdict.violations.push(format!(
                    "woken at {wake} inside request {last} ({}..{})",
                    request.start_ns, request.end_ns
                ));
            }
            continue;
        }
        let cooldown = cooldown_after(schedule, begun);
        // The device's own time: the program may learn of its end long after it, on a busy machine.
        let idle = records
            .iter()
            .filter(|r| r.kind == Kind::KernelEnd && r.pid == schedule.online)
            .map(|r| r.at_ns)
            .filter(|at| *at <= request.end_ns)
            .max()
            .unwrap_or(request.end_ns);
        if *wake < idle + cooldown {
            verdict.violations.push(format!(
                "woken {} ns after request {last}, before 2 x its longest gap ({cooldown} ns)",
                wake - idle
            ));
        }
    }
}
