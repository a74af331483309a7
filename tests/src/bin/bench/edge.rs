//! From an online launch to the last disable.
//!
//! One online program works on GPU 0; one offline job, or several, run on every GPU of the node, so each
//! busy edge disables them on all of them. The start is the online program's own clock just before its
//! launch, which is a little before the doorbell; the end is the device's history. The gRPC lane is
//! measured with a peer that has no page, from just before it sends its edge.

use crate::floor::{ONE, Relay, TWO};
use crate::methods;
use crate::row::{Row, quantile};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_tests::peer::Peer;
use tidegate_tests::watch::status;
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, monotonic_ns, wait_until};
use tidegate_vgpu::history::{self, Kind, Record};

struct Edges {
    /// The agent's threads run under SCHED_FIFO.
    fifo: bool,
    entered_us: Vec<f64>,
    /// Of those edges before which nobody's channels were being switched.
    calm_us: Vec<f64>,
    returned_us: Vec<f64>,
    /// One wake-up, in the same pauses.
    floor_us: Vec<f64>,
    /// Two wake-ups in a row, likewise.
    two_us: Vec<f64>,
    /// Connections of strangers a second.
    flood_rate: f64,
}

fn history(node: &Node) -> Vec<Record> {
    history::read(&node.vgpu_dir()).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

/// How an edge reaches the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// The doorbell in the page, rung by a launch.
    Page,
    /// As the page, while strangers connect to the agent's socket as often as [`Flood`] says.
    Flooded,
    /// A message on the stream, as of a client that gets no descriptors.
    Stream,
}

/// A stranger who connects and hangs up, again and again, until it is dropped.
struct Flood {
    enough: Arc<AtomicBool>,
    connected: Arc<AtomicU64>,
    begun: u64,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Connections a millisecond.
    const RATE: u64 = 10;

    fn start(node: &Node) -> Self {
        let (enough, connected) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (end, count) = (Arc::clone(&enough), Arc::clone(&connected));
        let socket = node.run_dir().join("hook.sock");
        let begun = monotonic_ns();
        let thread = std::thread::spawn(move || {
            let mut tried = 0;
            while !end.load(Ordering::Relaxed) {
                // An agent that takes fewer is not flooded less by what it is late.
                while tried < (monotonic_ns() - begun) / 1_000_000 * Self::RATE
                    && !end.load(Ordering::Relaxed)
                {
                    tried += 1;
                    if UnixStream::connect(&socket).is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                wait_until(Duration::from_millis(1), || None::<()>);
            }
        });
        Self {
            enough,
            connected,
            begun,
            thread: Some(thread),
        }
    }

    /// Connections a second so far.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn rate(&self) -> f64 {
        self.connected.load(Ordering::Relaxed) as f64 * 1e9 / (monotonic_ns() - self.begun) as f64
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes one busy edge and the idle edge after it; when it began.
type Edge = Box<dyn FnMut() -> u64>;

fn edge(node: &Node, lane: Lane) -> Edge {
    match lane {
        Lane::Page | Lane::Flooded => {
            let mut online = Online::start(node, 0);
            Box::new(move || online.request(0, 25_000, 0).start_ns)
        }
        Lane::Stream => {
            let mut peer = Peer::start(node);
            for command in ["connect otherpage", "hello online", "device 0 0", "idle 0"] {
                peer.ask(command);
            }
            Box::new(move || {
                let busy = peer.ask("busy 0");
                peer.ask("idle 0");
                let at = busy.strip_prefix("edge ").and_then(|at| at.parse().ok());
                at.unwrap_or_else(|| panic!("the peer answered {busy:?}"))
            })
        }
    }
}

/// Microseconds a disable takes on each of the 8 GPUs: as in the paper, and so long that the wake-ups of
/// this machine hardly count.
const FIXED_US: [u32; 2] = [300, 2300];

/// An edge so soon after a call that switched channels meets what is left of a swap: on 8 GPUs one takes about 2 ms.
const SWITCHED_NS: u64 = 2_000_000;

/// How long online is idle before offline runs.
const COOLDOWN: Duration = Duration::from_millis(3);

/// The offline jobs of a run: each is on every GPU.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    jobs: usize,
    /// All run at once, instead of one after the other.
    together: bool,
}

const ALONE: Crowd = Crowd {
    jobs: 1,
    together: false,
};

/// Whether an edge at `start` has to stop this process on this GPU: its channels run, or are about to, and no call
/// that disables them was entered before.
fn runs(records: &[Record], (pid, gpu): (u32, u32), start: u64) -> bool {
    let own = || records.iter().filter(|r| (r.pid, r.gpu) == (pid, gpu));
    let calls = |kind| own().filter(move |r| r.kind == kind).map(|r| r.value);
    let last = |kind| calls(kind).filter(|entry| *entry < start).max();
    last(Kind::DisableBegin).is_none_or(|disabled| last(Kind::EnableEnd) > Some(disabled))
}

/// `fixed`: the kind of locks, and microseconds a disable takes.
fn run(gpus: u32, fixed: Option<(&str, u32)>, lane: Lane, edges: u32) -> Edges {
    run_with(gpus, ALONE, fixed, lane, edges)
}

fn run_with(gpus: u32, crowd: Crowd, fixed: Option<(&str, u32)>, lane: Lane, edges: u32) -> Edges {
    let mut args = vec!["--gpus".to_owned(), gpus.to_string()];
    let mut settle = Duration::from_millis(8);
    if let Some((patch, disable_us)) = fixed {
        let with = ["--patch", patch, "--disable-fixed-us"].map(str::to_owned);
        args.extend(with.into_iter().chain([disable_us.to_string()]));
        // Disables and enables, at worst one after the other.
        settle += 2 * gpus * Duration::from_micros(disable_us.into());
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let gpus = gpus as usize;
    let mode = if crowd.together { "together" } else { "turns" };
    let cooldown = COOLDOWN.as_millis();
    let settings = format!("[gate]\ncooldown = \"{cooldown}ms\"\n[fair]\nmode = \"{mode}\"\n");
    let node = Node::new(&args, &format!("{TRUSTING}\n{settings}"));
    let ordinals: Vec<usize> = (0..gpus).collect();
    let offline: Vec<Offline> = (0..crowd.jobs)
        .map(|nth| {
            // Without a name all that are started here are one job.
            let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
            command
                .arg("400000")
                .args(ordinals.iter().map(ToString::to_string))
                .env("TIDEGATE_JOB", format!("job-{nth}"));
            let mut job = Offline::from_command(&mut command);
            job.running();
            job
        })
        .collect();
    let pids: Vec<u32> = offline.iter().map(|job| job.process.pid()).collect();
    let mut edge = edge(&node, lane);
    let fifo = status(&node)["scheduling"] == "SCHED_FIFO";
    let mut starts = Vec::new();
    let (mut floor_us, mut two_us) = (Vec::new(), Vec::new());
    let flood = (lane == Lane::Flooded).then(|| Flood::start(&node));
    let (one, two) = (Relay::start(ONE), Relay::start(TWO));
    for number in 0..edges {
        starts.push(edge());
        // The next edge must find the job running again on every GPU.
        let pause = settle + Duration::from_millis(u64::from(number % 3));
        wait_until(pause, || None::<()>);
        for (relay, found) in [(&one, &mut floor_us), (&two, &mut two_us)] {
            found.push(micros(0, relay.run()));
            wait_until(Duration::from_millis(2), || None::<()>);
        }
    }
    let flood_rate = flood.map(|flood| flood.rate()).unwrap_or_default();
    floor_us.sort_by(f64::total_cmp);
    two_us.sort_by(f64::total_cmp);
    let records = history(&node);
    let mut found = Edges {
        fifo,
        entered_us: Vec::new(),
        calm_us: Vec::new(),
        returned_us: Vec::new(),
        floor_us,
        two_us,
        flood_rate,
    };
    for (number, start) in starts.iter().enumerate() {
        // What is disabled after the next enable gives way to another job.
        let cooled = start + COOLDOWN.as_nanos() as u64;
        let enables = records
            .iter()
            .filter(|r| r.kind == Kind::EnableEnd && pids.contains(&r.pid));
        let enabled = enables.map(|r| r.value).filter(|at| *at >= cooled).min();
        let next = starts.get(number + 1).copied();
        let end = next.into_iter().chain(enabled).min().unwrap_or(u64::MAX);
        let begun: Vec<&Record> = records
            .iter()
            .filter(|r| r.kind == Kind::DisableBegin && pids.contains(&r.pid))
            .filter(|r| r.value >= *start && r.value < end)
            .collect();
        let lanes = pids
            .iter()
            .flat_map(|pid| (0..gpus as u32).map(|gpu| (*pid, gpu)));
        let mut running = lanes
            .filter(|lane| runs(&records, *lane, *start))
            .peekable();
        let is_reached = |lane| begun.iter().any(|r| (r.pid, r.gpu) == lane);
        if running.peek().is_none() || !running.all(is_reached) {
            continue;
        }
        let entered = begun.iter().map(|r| r.value).max().unwrap_or_default();
        let returned = records
            .iter()
            .filter(|r| r.kind == Kind::DisableReturn)
            .filter(|r| begun.iter().any(|b| b.value == r.value))
            .map(|r| r.at_ns)
            .max()
            .unwrap_or_default();
        let switched = |r: &&Record| {
            matches!(r.kind, Kind::EnableEnd | Kind::DisableReturn)
                && (start.saturating_sub(SWITCHED_NS)..*start).contains(&r.at_ns)
        };
        if !records.iter().any(|r| switched(&r)) {
            found.calm_us.push(micros(*start, entered));
        }
        found.entered_us.push(micros(*start, entered));
        found.returned_us.push(micros(*start, returned));
    }
    found.entered_us.sort_by(f64::total_cmp);
    found.calm_us.sort_by(f64::total_cmp);
    found.returned_us.sort_by(f64::total_cmp);
    found
}

/// The two rows of a distribution.
fn rows(key: &str, sorted: &[f64]) -> [Row; 2] {
    [50, 99].map(|percent| {
        Row::new(
            format!("{key}.p{percent}_us"),
            quantile(sorted, percent),
            "us",
        )
    })
}

/// Edges with so many jobs on each of 8 GPUs: in turns, and all at once. Beside them edges with
/// one job, on the same machine in the same minute.
#[expect(clippy::cast_precision_loss, reason = "small counts")]
pub fn measure_jobs(jobs: usize, edges: u32) -> Vec<Row> {
    let mut out = Vec::new();
    let mut alone = f64::NAN;
    let together = [false, true].map(|together| Crowd { jobs, together });
    for crowd in [ALONE].into_iter().chain(together) {
        let found = run_with(8, crowd, None, Lane::Page, edges);
        let how = if crowd.together { ".together" } else { "" };
        let key = format!("edge.gpus_8_jobs_{}{how}", crowd.jobs);
        let [p50, p99] = rows(&key, &found.entered_us);
        let (is_alone, ratio) = (crowd.jobs == 1, p50.value / alone);
        alone = if is_alone { p50.value } else { alone };
        out.extend([
            p50,
            if crowd.together {
                p99
            } else {
                p99.at_most(EIGHT_GPUS_US)
            },
        ]);
        if !is_alone {
            out.push(Row::new(format!("{key}.p50_ratio"), ratio, "of 1"));
        }
        out.extend(rows(&format!("{key}.calm"), &found.calm_us));
        out.extend(floors(&key, &found));
        for (name, found) in [("edges", &found.entered_us), ("calm.edges", &found.calm_us)] {
            out.push(Row::new(format!("{key}.{name}"), found.len() as f64, ""));
        }
    }
    out
}

/// The bound on the 99th percentile with 8 GPUs.
const EIGHT_GPUS_US: f64 = 250.0;

/// What one wake-up and two in a row took in the pauses of the same run.
fn floors(key: &str, found: &Edges) -> Vec<Row> {
    let one = rows(&format!("{key}.floor"), &found.floor_us);
    let two = rows(&format!("{key}.two_wakes"), &found.two_us);
    one.into_iter().chain(two).collect()
}

/// At most so many times what one wake-up takes: the median, and the 99th percentile, with one GPU.
const OF_FLOOR: [f64; 2] = [1.5, 2.5];

/// From a doorbell to the entry of the last disable, on a quiet machine and beside two programs that use all of two
/// processors.
#[expect(clippy::cast_precision_loss, reason = "small counts")]
pub fn measure_entry(edges: u32) -> Vec<Row> {
    let mut out = Vec::new();
    for loaded in [false, true] {
        let _spinning = loaded.then(Spinning::start);
        for gpus in [1, 8] {
            let found = run(gpus, None, Lane::Page, edges);
            let key = format!("edge.gpus_{gpus}{}", if loaded { "_loaded" } else { "" });
            let [p50, p99] = rows(&key, &found.entered_us);
            let floor = rows("edge.floor", &found.floor_us);
            if gpus == 1 {
                let ratio = |row: &Row, floor: &Row, name: &str, most: f64| {
                    let key = format!("{key}.{name}_of_floor");
                    Row::new(key, row.value / floor.value, "x").at_most(most)
                };
                let ratios = [
                    ratio(&p50, &floor[0], "p50", OF_FLOOR[0]),
                    ratio(&p99, &floor[1], "p99", OF_FLOOR[1]),
                ];
                out.extend([p50, p99]);
                out.extend(ratios);
            } else {
                let bar = if loaded {
                    p99
                } else {
                    p99.at_most(EIGHT_GPUS_US)
                };
                out.extend([p50, bar]);
            }
            out.extend(floors(&key, &found));
            if gpus == 1 && !loaded {
                out.extend(floor);
            }
            let returned = quantile(&found.returned_us, 50);
            out.push(Row::new(format!("{key}.return_p50_us"), returned, "us"));
            let count = found.entered_us.len() as f64;
            out.push(Row::new(format!("{key}.edges"), count, ""));
            let fifo = f64::from(u8::from(found.fifo));
            out.push(Row::new(format!("{key}.sched_fifo"), fifo, ""));
        }
    }
    out
}

/// Two programs that do nothing but use a processor, for as long as this lives.
struct Spinning([std::process::Child; 2]);

impl Spinning {
    fn start() -> Self {
        Self([(); 2].map(|()| {
            let mut shell = std::process::Command::new("sh");
            let shell = shell.args(["-c", "while :; do :; done"]);
            shell.spawn().expect("there is a shell")
        }))
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn measure(edges: u32) -> Vec<Row> {
    let mut out = measure_entry(edges);
    let idle = out.iter().find(|row| row.key == "edge.gpus_1.p99_us");
    let idle = idle.map_or(f64::NAN, |row| row.value);
    let found = run(1, None, Lane::Flooded, edges);
    let [p50, p99] = rows("edge.gpus_1_flooded", &found.entered_us);
    let ratio = p99.value / idle;
    out.extend([
        Row::new(
            "edge.gpus_1_flooded.connections_per_s",
            found.flood_rate,
            "",
        ),
        p50,
        p99,
        Row::new("edge.gpus_1_flooded.p99_ratio", ratio, "of idle").at_most(1.2),
    ]);
    let found = run(1, None, Lane::Stream, edges);
    out.extend(rows("edge.gpus_1_grpc_lane", &found.entered_us));
    for patch in ["none", "A", "B"] {
        let key = format!("edge.gpus_8_patch.{patch}");
        let [short, long] = FIXED_US
            .map(|disable_us| run(8, Some((patch, disable_us)), Lane::Page, edges / 4).returned_us);
        out.extend(rows(&key, &short));
        // What does not grow with the time a disable takes is this machine's wake-ups.
        let grows =
            (quantile(&long, 50) - quantile(&short, 50)) / f64::from(FIXED_US[1] - FIXED_US[0]);
        out.push(Row::new(format!("{key}.disables_in_a_row"), grows, ""));
    }
    out.extend(methods::measure(edges / 2));
    out.extend(crate::contexts::measure(edges / 2));
    out
}
