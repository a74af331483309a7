//! Judges a run of real processes from the device's own history.
//!
//! Real time decides nothing here but deadlines: a machine with two noisy cores may stretch every
//! step. What must hold is order. Between the return of a busy edge's last disable and the next
//! enable nothing offline runs; every busy edge that met offline work is followed by the disables
//! of all its channels; no enable comes before the online program has been idle for twice the
//! longest decode gap of the schedule (200 ms before 32 gaps); a request whose gaps are stationary
//! is preempted at most once.
//!
//! A wake may be decided before a request and take effect inside it. The agent reads the clock, reads online's word,
//! reads the clock again and enables, and a busy machine may hold it up in between, for as long as it likes; meanwhile
//! a request begins, whose own edge then takes the wake back. Such a wake is late. It is excused if the caller had read
//! the clock, the last time but one, before the device had anything of that request: the shim says so, not the agent.

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
    /// When, and one line each.
    pub violations: Vec<(u64, String)>,
    /// Busy edges that met enabled offline channels.
    pub edges: u64,
    /// Enables after a disable.
    pub wakes: u64,
    /// Disables while offline was enabled.
    pub preemptions: u64,
    /// Times that a job was enabled after another, where jobs take turns.
    pub swaps: u64,
    /// Longest time a channel stayed disabled with no live agent.
    pub worst_stuck_ns: u64,
    /// From each of those busy edges to the stop of all offline channels.
    pub stops_ns: Vec<u64>,
    /// Time offline was on the engine.
    pub offline_ran_ns: u64,
    /// Wakes that were held up into a request, whose edge then shut the gate.
    pub late: u64,
}

impl Verdict {
    fn broken(&mut self, at_ns: u64, what: String) {
        self.violations.push((at_ns, what));
    }
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
    /// Nobody had woken since the one before: a channel came up, or the last of a wake took effect that its request's
    /// edge had met half done. Neither makes a preemption of its own.
    renewed: bool,
    /// It ended with another process than it began with: a turn was over.
    swapped: bool,
}

/// An enable: when the caller entered the driver, and when it took effect. A request that begins in between finds
/// offline work, which its own busy edge stops; the wake was none of its time.
#[derive(Clone, Copy, Debug)]
struct Wake {
    /// What the caller had read off the clock before, the last time but one; 0: nothing.
    read: u64,
    asked: u64,
    at: u64,
}

fn within(spans: &[Range<u64>], at: u64) -> bool {
    spans.iter().any(|span| span.contains(&at))
}

fn overlaps(spans: &[Range<u64>], from: u64, to: u64) -> bool {
    spans.iter().any(|span| span.start < to && from < span.end)
}

/// What the offline processes did, taken from the history record by record.
#[derive(Debug, Default)]
struct Offline {
    channels: Channels,
    /// Stretches that are over, and the beginning of one that is not.
    shut: Vec<Shut>,
    /// Since when, by whose channel, and [`Shut::renewed`].
    shut_since: Option<(u64, u32, bool)>,
    /// Nobody has woken since the last stretch.
    renewed: bool,
    /// Groups on the engine, and since when.
    running: BTreeMap<(u32, u32, u32), u64>,
    ran: Vec<(u64, u64)>,
    enables: Vec<Wake>,
    last_enable: u64,
    /// Dead processes whose channels were enabled for the driver to take them down.
    let_go: BTreeSet<u32>,
}

impl Offline {
    fn take(&mut self, schedule: &Schedule, record: &Record, verdict: &mut Verdict) {
        let dead = schedule
            .killed
            .get(&record.pid)
            .is_some_and(|at| *at <= record.at_ns);
        let channel = (record.client, record.object);
        let group = (record.gpu, record.client, record.object);
        self.channels.owner.insert(channel, record.pid);
        let mut woke = false;
        match record.kind {
            Kind::EnableEnd if dead => {
                self.let_go.insert(record.pid);
            }
            Kind::ChannelUp | Kind::ChannelDown | Kind::DisableEnd if dead => {}
            Kind::TsgRun if self.let_go.contains(&record.pid) => {}
            Kind::ChannelUp => {
                self.channels.known.insert(channel, None);
            }
            Kind::ChannelDown => {
                self.channels.known.remove(&channel);
            }
            Kind::DisableEnd => {
                let state = self.channels.known.entry(channel).or_default();
                if state.is_none() {
                    *state = Some(record.at_ns);
                }
            }
            Kind::EnableEnd => woke = self.enabled(schedule, record, verdict),
            Kind::TsgRun if record.value == GRAPHICS => {
                self.running.insert(group, record.at_ns);
            }
            Kind::TsgStop if record.value == GRAPHICS => {
                if let Some(from) = self.running.remove(&group) {
                    self.ran.push((from, record.at_ns));
                }
            }
            _ => {}
        }
        self.note_shut(record, woke);
    }

    /// An enable took effect. Whether it was the first of a wake.
    fn enabled(&mut self, schedule: &Schedule, record: &Record, verdict: &mut Verdict) -> bool {
        let channel = (record.client, record.object);
        let state = self.channels.known.entry(channel).or_default();
        let Some(since) = state.take() else {
            return false;
        };
        for span in &schedule.agentless {
            let from = since.max(span.start);
            let to = record.at_ns.min(span.end);
            verdict.worst_stuck_ns = verdict.worst_stuck_ns.max(to.saturating_sub(from));
        }
        // One wake enables many channels within a moment.
        let woke = record.at_ns > self.last_enable + 1_000_000;
        if woke {
            self.renewed = false;
            if record.at_ns >= schedule.start_ns {
                self.enables.push(Wake {
                    read: record.tag,
                    asked: record.value,
                    at: record.at_ns,
                });
            }
        }
        self.last_enable = record.at_ns;
        woke
    }

    /// Whether all channels are disabled may have changed.
    fn note_shut(&mut self, record: &Record, woke: bool) {
        let known = &self.channels.known;
        let all = !known.is_empty() && known.values().all(Option::is_some);
        match (all, self.shut_since) {
            // What is said of it is so when it begins: the wake that ends it is not of its time.
            (true, None) => self.shut_since = Some((record.at_ns, record.pid, self.renewed)),
            (false, Some((from, stopped, renewed))) => {
                self.shut.push(Shut {
                    from,
                    to: record.at_ns,
                    renewed,
                    swapped: woke && stopped != record.pid,
                });
                self.shut_since = None;
                self.renewed = !woke;
            }
            _ => {}
        }
    }

    /// The history is over: what goes on went on until then.
    fn end(&mut self, schedule: &Schedule, end_ns: u64, verdict: &mut Verdict) {
        let running = core::mem::take(&mut self.running);
        self.ran
            .extend(running.into_values().map(|from| (from, end_ns)));
        let Some((from, _, renewed)) = self.shut_since.take() else {
            return;
        };
        self.shut.push(Shut {
            from,
            to: end_ns,
            renewed,
            swapped: false,
        });
        for span in &schedule.agentless {
            let stuck = end_ns.min(span.end).saturating_sub(from.max(span.start));
            verdict.worst_stuck_ns = verdict.worst_stuck_ns.max(stuck);
        }
    }

    /// Nothing begins to run while all channels are disabled.
    fn judge_runs(&self, verdict: &mut Verdict) {
        for stretch in &self.shut {
            for (from, to) in &self.ran {
                if *from > stretch.from && *from < stretch.to {
                    verdict.broken(
                        *from,
                        format!(
                            "offline ran at {from} for {} ns while all its channels were disabled ({}..{})",
                            to.saturating_sub(*from),
                            stretch.from,
                            stretch.to
                        ),
                    );
                }
            }
        }
    }
}

/// Judges `records`, the device's history from the start of the schedule to `end_ns`.
#[must_use]
pub fn judge(schedule: &Schedule, records: &[Record], end_ns: u64) -> Verdict {
    let mut verdict = Verdict::default();
    let mut offline = Offline::default();
    let killed = schedule.killed.iter();
    let mut deaths: Vec<(u64, u32)> = killed.map(|(pid, at)| (*at, *pid)).collect();
    deaths.sort_unstable();
    let mut deaths = deaths.into_iter().peekable();
    for record in records.iter().filter(|r| schedule.offline.contains(&r.pid)) {
        while let Some((_, pid)) = deaths.next_if(|(at, _)| *at <= record.at_ns) {
            offline.channels.bury(pid);
        }
        offline.take(schedule, record, &mut verdict);
    }
    offline.end(schedule, end_ns, &mut verdict);
    let Offline {
        shut, ran, enables, ..
    } = &offline;
    verdict.offline_ran_ns = ran.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
    offline.judge_runs(&mut verdict);
    let late = judge_wakes(schedule, records, enables, shut, &mut verdict);
    judge_edges(schedule, records, (shut, &late), ran, end_ns, &mut verdict);
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
    (shut, late): (&[Shut], &BTreeSet<usize>),
    ran: &[(u64, u64)],
    end_ns: u64,
    verdict: &mut Verdict,
) {
    for (number, request) in schedule.requests.iter().enumerate() {
        // A wake that was under way makes no difference to what it found.
        let already = !late.contains(&number)
            && shut
                .iter()
                .any(|s| s.from <= request.start_ns && request.start_ns < s.to);
        let begun = shut
            .iter()
            .filter(|s| s.from > request.start_ns && s.from < request.end_ns + EDGE_DEADLINE_NS)
            .collect::<Vec<_>>();
        // A swap that the agent began blindly is no preemption; see `judge_wakes`.
        let blind = |s: &Shut| number == 0 && late.contains(&0) && s.swapped;
        let anew = |s: &&&Shut| s.from <= request.end_ns && !s.renewed && !blind(s);
        let inside = begun.iter().filter(anew).count() as u64;
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
            let last = begun.iter().filter(anew).map(|s| s.from).max();
            verdict.broken(
                last.unwrap_or(request.end_ns),
                format!(
                    "request {number} ({}..{}) was preempted {inside} times, the gate was {} before it",
                    request.start_ns,
                    request.end_ns,
                    if already { "shut" } else { "open" }
                ),
            );
        }
        let met = ran
            .iter()
            .any(|(from, to)| *from < request.end_ns && *to > request.start_ns);
        if already || !met {
            continue;
        }
        verdict.edges += 1;
        let stop = begun.first().map(|s| s.from - request.start_ns);
        verdict.stops_ns.extend(stop);
        let answered = begun
            .iter()
            .any(|s| s.from < request.start_ns + EDGE_DEADLINE_NS);
        if !answered && end_ns > request.start_ns + EDGE_DEADLINE_NS {
            verdict.broken(
                request.start_ns,
                format!(
                    "the busy edge of request {number} at {} was never followed by its disables",
                    request.start_ns
                ),
            );
        }
    }
}

/// When the device had the first kernel of a request.
fn first_kernel(schedule: &Schedule, records: &[Record], request: &Request) -> u64 {
    let kernel = records.iter().find(|r| {
        r.kind == Kind::KernelStart && r.pid == schedule.online && r.at_ns >= request.start_ns
    });
    kernel.map_or(request.end_ns, |kernel| kernel.at_ns)
}

/// No wake before the online program was idle for the cooldown its own gaps ask for. Returns the requests that a
/// wake came late into.
fn judge_wakes(
    schedule: &Schedule,
    records: &[Record],
    enables: &[Wake],
    shut: &[Shut],
    verdict: &mut Verdict,
) -> BTreeSet<usize> {
    let mut requests = BTreeSet::new();
    for wake in enables {
        let Wake { read, asked, at } = *wake;
        if within(&schedule.excused, at) {
            continue;
        }
        let begun = schedule.requests.iter().filter(|r| r.start_ns < at).count();
        let Some(last) = begun.checked_sub(1) else {
            continue;
        };
        let request = schedule.requests[last];
        let inside = at < request.end_ns;
        if inside && !stationary(schedule, records, last) {
            continue;
        }
        // Of a wake inside a request: its first event, after a whole cooldown, and taken back. Where the agent does not
        // know yet on which GPU a process computes, it may be the second half of a swap, too.
        let blind = |s: &Shut| last == 0 && s.swapped && s.to == at;
        let first = |s: &Shut| !(request.start_ns..at).contains(&s.from) || blind(s);
        let back = |s: &Shut| (at..request.end_ns + EDGE_DEADLINE_NS).contains(&s.from);
        if inside && shut.iter().all(first) && shut.iter().any(back) {
            requests.insert(last);
            if asked >= request.start_ns {
                verdict.late += 1;
                // A process' first request tells the agent on which GPU it computes, and online never waits for that.
                let rung_by = first_kernel(schedule, records, &request);
                if last != 0 && (read == 0 || read >= rung_by) {
                    verdict.broken(
                        at,
                        format!(
                            "woken at {at} (asked for at {asked}) inside request {last} ({}..{}); the device had its \
                             first kernel at {rung_by}, the caller had read the clock at {read}",
                            request.start_ns, request.end_ns
                        ),
                    );
                }
            }
        } else if inside {
            verdict.broken(
                at,
                format!(
                    "woken at {at} (asked for at {asked}) inside request {last} ({}..{}), neither held up on its way \
                     there nor taken back",
                    request.start_ns, request.end_ns
                ),
            );
            continue;
        }
        // The request before the wake was decided on.
        let begun = begun - usize::from(inside);
        let Some(last) = begun.checked_sub(1) else {
            continue;
        };
        let request = schedule.requests[last];
        let cooldown = cooldown_after(schedule, begun);
        // The device's own time: the program may learn of its end long after it, on a busy machine.
        let idle = records
            .iter()
            .filter(|r| r.kind == Kind::KernelEnd && r.pid == schedule.online)
            .map(|r| r.at_ns)
            .filter(|at| *at <= request.end_ns)
            .max()
            .unwrap_or(request.end_ns);
        if at < idle + cooldown {
            verdict.broken(
                at,
                format!(
                    "woken {} ns after request {last}, before 2 x its longest gap ({cooldown} ns)",
                    at - idle
                ),
            );
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const ONLINE: u32 = 1;
    const OFFLINE: u32 = 2;
    const OTHER: u32 = 3;

    fn record(at_ms: u64, kind: Kind, pid: u32, asked_ms: u64) -> Record {
        let mut record = Record::new(at_ms * MS, kind);
        record.pid = pid;
        record.client = 7;
        record.object = 9;
        record.value = asked_ms * MS;
        record
    }

    /// Two requests, 10..20 ms and 400..420 ms, that one offline channel is disabled for; the device has the first
    /// kernel of the second one 1 ms after its beginning. `wakes`: when the caller of an enable had read
    /// the clock, when it asked, when it took effect, and when it was taken back.
    fn judged(wakes: &[(u64, u64, u64, Option<u64>)]) -> Verdict {
        let request = |from: u64, to: u64| Request {
            start_ns: from * MS,
            end_ns: to * MS,
            longest_gap_ns: MS,
        };
        let schedule = Schedule {
            requests: vec![request(10, 20), request(400, 420)],
            gaps_per_request: vec![5, 5],
            offline: [OFFLINE].into(),
            online: ONLINE,
            ..Schedule::default()
        };
        let mut records = vec![
            record(1, Kind::ChannelUp, OFFLINE, 0),
            record(11, Kind::KernelStart, ONLINE, 0),
            record(12, Kind::DisableEnd, OFFLINE, 0),
            record(20, Kind::KernelEnd, ONLINE, 0),
            record(401, Kind::KernelStart, ONLINE, 0),
            record(420, Kind::KernelEnd, ONLINE, 0),
        ];
        for (read, asked, at, back) in wakes {
            let mut woken = record(*at, Kind::EnableEnd, OFFLINE, *asked);
            woken.tag = read * MS;
            records.push(woken);
            records.extend(back.map(|back| record(back, Kind::DisableEnd, OFFLINE, 0)));
        }
        records.sort_by_key(|record| record.at_ns);
        judge(&schedule, &records, 4_000 * MS)
    }

    #[test]
    fn a_wake_that_was_held_up_into_a_request_is_excused_by_what_its_caller_read_before() {
        let verdict = judged(&[(399, 402, 403, Some(404))]);
        assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
        assert_eq!(verdict.late, 1);
    }

    #[test]
    fn a_wake_that_was_decided_inside_a_request_is_a_violation() {
        for read in [402, 401, 0] {
            let verdict = judged(&[(read, 402, 403, Some(404))]);
            assert_eq!(verdict.violations.len(), 1, "{read}");
        }
    }

    #[test]
    fn a_first_request_tells_the_agent_on_which_gpu_to_look() {
        // Asked for as late as the first kernel, and taken back by the edge.
        let verdict = judged(&[(1, 2, 2, Some(3)), (11, 11, 11, None)]);
        assert_eq!(verdict.late, 1, "{verdict:?}");
        assert!(verdict.violations.is_empty(), "{verdict:?}");
    }

    /// Requests as in [`judged`]; of two processes one is stopped and another woken inside of one, at these times in
    /// milliseconds, and then stopped.
    fn swapped(at: u64, other: u32) -> Verdict {
        let request = |from: u64, to: u64| Request {
            start_ns: from * MS,
            end_ns: to * MS,
            longest_gap_ns: MS,
        };
        let schedule = Schedule {
            requests: vec![request(10, 20), request(400, 420)],
            gaps_per_request: vec![5, 5],
            offline: [OFFLINE, OTHER].into(),
            online: ONLINE,
            ..Schedule::default()
        };
        let of = |pid: u32, at_ms: u64, kind: Kind, asked_ms: u64| {
            let mut record = record(at_ms, kind, pid, asked_ms);
            record.object = pid;
            record
        };
        let mut records = vec![
            of(OFFLINE, 1, Kind::ChannelUp, 0),
            of(OTHER, 2, Kind::ChannelUp, 0),
            of(OTHER, 3, Kind::DisableEnd, 0),
            of(OFFLINE, at, Kind::DisableEnd, 0),
            of(other, at + 1, Kind::EnableEnd, at + 1),
            of(other, at + 2, Kind::DisableEnd, 0),
        ];
        if at > 20 {
            records.push(of(OFFLINE, 11, Kind::DisableEnd, 0));
            records.push(of(OFFLINE, 390, Kind::EnableEnd, 390));
        }
        for (from, to) in [(12, 20), (401, 420)] {
            records.push(record(from, Kind::KernelStart, ONLINE, 0));
            records.push(record(to, Kind::KernelEnd, ONLINE, 0));
        }
        records.sort_by_key(|record| record.at_ns);
        judge(&schedule, &records, 4_000 * MS)
    }

    #[test]
    fn only_a_first_request_may_meet_a_swap_half_done() {
        let first = swapped(11, OTHER);
        assert!(first.violations.is_empty(), "{first:?}");
        assert_eq!(first.preemptions, 1);
        let again = swapped(11, OFFLINE);
        assert_eq!(again.violations.len(), 2, "no swap: {again:?}");
        let later = swapped(402, OTHER);
        assert!(later.violations.len() >= 2, "{later:?}");
    }

    #[test]
    fn a_wake_inside_a_request_is_taken_back_and_comes_once() {
        let stays = judged(&[(398, 399, 403, None)]);
        assert!(
            stays.violations[0].1.contains("nor taken back"),
            "{stays:?}"
        );
        let twice = judged(&[(398, 399, 403, Some(404)), (405, 406, 407, Some(408))]);
        assert!(twice.violations.len() >= 2, "{twice:?}");
    }

    /// A request of 400..420 ms that begins when one of two channels has been woken, with the other's records, and a wake
    /// long after it.
    fn met_half_done(others: &[(u64, Kind)]) -> Verdict {
        let schedule = Schedule {
            requests: vec![Request {
                start_ns: 400 * MS,
                end_ns: 420 * MS,
                longest_gap_ns: MS,
            }],
            gaps_per_request: vec![5],
            offline: [OFFLINE].into(),
            online: ONLINE,
            ..Schedule::default()
        };
        let of = |object: u32, at_us: u64, kind: Kind| {
            let mut record = record(0, kind, OFFLINE, 0);
            (record.object, record.at_ns) = (object, at_us * 1_000);
            record
        };
        let mut records = vec![
            of(1, 1_000, Kind::ChannelUp),
            of(1, 2_000, Kind::DisableEnd),
            of(1, 399_900, Kind::EnableEnd),
            of(1, 400_100, Kind::DisableEnd),
            of(1, 1_000_000, Kind::EnableEnd),
        ];
        records.extend(others.iter().map(|(at_us, kind)| of(2, *at_us, *kind)));
        records.sort_by_key(|record| record.at_ns);
        judge(&schedule, &records, 4_000 * MS)
    }

    #[test]
    fn the_rest_of_a_wake_and_a_channel_that_comes_up_are_no_preemptions() {
        let (up, down) = (Kind::ChannelUp, Kind::DisableEnd);
        let begun = [(1_000, up), (2_000, down)];
        let rest = [begun, [(400_200, Kind::EnableEnd), (400_300, down)]].concat();
        let fresh = [(405_000, up), (405_100, down)];
        for others in [&rest[..], &fresh] {
            let verdict = met_half_done(others);
            assert!(verdict.violations.is_empty(), "{verdict:?}");
            assert_eq!(verdict.preemptions, 1, "{verdict:?}");
        }
        let again = [begun, [(405_000, Kind::EnableEnd), (405_100, down)]].concat();
        let verdict = met_half_done(&again);
        assert_eq!(verdict.preemptions, 2, "{verdict:?}");
        assert!(!verdict.violations.is_empty());
    }

    #[test]
    fn a_late_wake_has_waited_for_its_cooldown() {
        let soon = judged(&[(398, 399, 403, Some(404))]);
        assert!(soon.violations.is_empty(), "{soon:?}");
        let early = judged(&[(99, 100, 110, Some(411))]);
        assert!(early.violations[0].1.contains("before 2 x"), "{early:?}");
    }
}
