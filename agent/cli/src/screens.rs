//! Every screen of the command line on terminals of 80, 100 and 200 columns, with values as they come and as they
//! never should.

use super::report::{By, text as report_text};
use super::{command, table};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_agent::watch::history::summary::summarise;
use tidegate_agent::watch::history::{GpuSlice, JobSlice, Slice, Span, Subject};
use tidegate_proto::v1;
use tidegate_text::screen::fold;
use unicode_width::UnicodeWidthStr;

const WIDTHS: [u16; 3] = [80, 100, 200];
const S: u64 = 1_000_000_000;
/// A word longer than this may be broken; a shorter one is there whole or not at all.
const BROKEN_FROM: usize = 12;

/// What may follow a word or not.
const POINTS: [char; 6] = [',', ';', ':', '.', '(', ')'];

/// How large names and figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Usual,
    Extreme,
}

impl Size {
    fn of<T>(self, usual: T, extreme: T) -> T {
        match self {
            Self::Usual => usual,
            Self::Extreme => extreme,
        }
    }

    fn name(self, usual: &str) -> String {
        let long =
            "finetune_of_a_name_without_a_blank_as_long_as_slurm_allows-0123456789 and then some";
        self.of(usual, long).to_owned()
    }
}

fn gpu(size: Size, index: u32) -> v1::GpuStatus {
    let large = size.of(1_234, 123_456_789_012);
    let day = 86_400 * S;
    let mut gpu = v1::GpuStatus {
        index,
        state_ns: size.of(3 * S, 99 * day),
        model: size
            .of(
                "NVIDIA H100 80GB HBM3",
                "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            )
            .to_owned(),
        memory_total_bytes: size.of(80 << 30, 16 << 40),
        memory_used_bytes: size.of(10 << 30, 15 << 40),
        cooldown_ns: size.of(6_690_000, 119 * S),
        longest_gap_ns: size.of(3_345_000, 59 * S),
        preemptions: large,
        wakes: large,
        channels: size.of(40, 65_536),
        channels_disabled: size.of(40, 65_536),
        preempt_latency: Some(v1::Latency {
            count: 9,
            p50_ns: size.of(512_345, 118 * S),
            p99_ns: size.of(812_345, 119 * S),
            max_ns: size.of(2_812_345, day),
            ..v1::Latency::default()
        }),
        stop: Some(v1::StopTimes {
            off_gpu_us: Some(size.of(410, 90_000_000)),
            call_us: Some(size.of(1_080, 99_000_000)),
            off_gpu_longest_us: Some(size.of(610, 90_000_000)),
            call_longest_us: Some(size.of(1_230, 99_000_000)),
            stops: 15,
        }),
        preemptions_per_unit: Some(v1::PreemptionsPerUnit {
            unit: "busy_period".to_owned(),
            units: 7,
            mean: size.of(0.17, 123_456.78),
            max: size.of(2, 1_234_567),
            ..v1::PreemptionsPerUnit::default()
        }),
        budget: Some(v1::Budget {
            prompts_ns: 10 * S,
            busy_ns: 50 * S,
            preempted_ns: size.of(S / 50, 1_000 * S),
            short_ns: size.of(S / 25, 1_000 * S),
            short_tpot_ns: size.of(S / 20, 1_000 * S),
            shortages: large,
            ttft_allowed: 100,
            tpot_allowed: 50,
        }),
        memory: Some(v1::GpuMemory {
            pool_bytes: size.of(60 << 30, 15 << 40),
            offline_bytes: size.of(30 << 30, 14 << 40),
            owners: vec![v1::MemoryOwner {
                session: 1,
                in_flight_bytes: 6 << 20,
                headroom_bytes: 5 << 20,
                offline_bytes: size.of(30 << 30, 14 << 40),
                quarantined_bytes: 3 << 20,
                handles: size.of(64, 1_000_000),
                handles_taken: size.of(9, 1_000_000),
                ..v1::MemoryOwner::default()
            }],
            caches: vec![v1::ElasticCache {
                session: 1,
                used_bytes: size.of(20 << 30, 14 << 40),
                ..v1::ElasticCache::default()
            }],
            ..v1::GpuMemory::default()
        }),
        ..v1::GpuStatus::default()
    };
    gpu.set_gate(v1::GateState::Open);
    gpu
}

fn job(size: Size, number: u32, gpus: u32) -> v1::JobStatus {
    let large = size.of(12, 123_456_789_012);
    let mut job = v1::JobStatus {
        number,
        name: size.name("nightly"),
        gpus: (0..gpus).filter(|gpu| gpu % 3 != 2).collect(),
        sessions: vec![1],
        channels: size.of(40, 65_536),
        preemptions: large,
        state_ns: size.of(3 * S, 99 * 86_400 * S),
        share: Some(v1::JobShare {
            deserved: 0.5,
            got: size.of(0.5, 1.0),
            ..v1::JobShare::default()
        }),
        reason: format!(
            "waits for its turn: {} runs, 40 ms left",
            size.name("index")
        ),
        trainer: Some(v1::TrainerStatus {
            tokens_per_s: size.of(22_487.0, 9e9),
            said: Some(v1::Training {
                step: size.of(120, 123_456_789),
                steps: size.of(1_000, 987_654_321),
                loss: Some(1.234_5),
                units: large,
                units_redone: large,
                reclaims: large,
                layers: 80,
                resident_layers: 80,
                adapter: size.name("support"),
                ..v1::Training::default()
            }),
            ..v1::TrainerStatus::default()
        }),
        ..v1::JobStatus::default()
    };
    job.set_state(v1::JobState::Gated);
    job
}

fn process(size: Size, pid: i32, gpus: u32) -> v1::ProcessStatus {
    let device = |gpu| v1::DeviceStatus {
        gpu,
        busy: gpu % 2 == 0,
        launches: size.of(22_487, 123_456_789_012),
        memory_bytes: size.of(10 << 30, 16 << 40),
        ..v1::DeviceStatus::default()
    };
    let mut process = v1::ProcessStatus {
        session: 1,
        pid,
        // The kernel's names have 15 characters.
        name: size.of("python3", "a 15-wide name!").to_owned(),
        job: size.name("nightly"),
        rule: "rule 1: cgroup /online.slice".to_owned(),
        note: size
            .of(
                "",
                "asked to be online: refused, no rule lets this user give itself a role",
            )
            .to_owned(),
        channels: size.of(40, 65_536),
        devices: (0..gpus).map(device).collect(),
        whereabouts: Some(v1::Whereabouts {
            text: size.name("team-a/batch-0"),
            ..v1::Whereabouts::default()
        }),
        hooks: vec![v1::HookRow {
            symbol: size
                .of(
                    "cuLaunchKernel",
                    "cuMulticastGetGranularity_v2_ptsz_of_a_driver_to_come",
                )
                .to_owned(),
            installed: true,
            resolved: true,
            calls: size.of(22_487, u64::MAX),
        }],
        ..v1::ProcessStatus::default()
    };
    process.set_role(v1::Role::Offline);
    process
}

fn status(size: Size) -> v1::GetStatusResponse {
    let gpus = size.of(2, 16);
    v1::GetStatusResponse {
        version: "0.1.0".to_owned(),
        driver_version: "580.95.05".to_owned(),
        scheduling: "SCHED_FIFO".to_owned(),
        driver_note: size.name("").repeat(2),
        drained: true,
        gpus: (0..gpus).map(|index| gpu(size, index)).collect(),
        jobs: (0..2).map(|number| job(size, number, gpus)).collect(),
        processes: vec![process(size, 4_711, gpus), process(size, 4_194_304, gpus)],
        counters: vec![v1::Counter {
            name: "tidegate_launches_held_without_a_channel_total".to_owned(),
            value: size.of(12, u64::MAX),
            help: "Launches that waited in the library since its channels could not be disabled."
                .to_owned(),
        }],
        ..v1::GetStatusResponse::default()
    }
}

fn slices(size: Size) -> Vec<Slice> {
    let length_ns = size.of(60, 9_000_000) * S;
    let of = |subject| Slice {
        span: Span {
            end_unix_ms: 20_000_000_000,
            length_ns,
        },
        subject,
    };
    let gpu = |gpu| {
        let mut slice = GpuSlice {
            gpu,
            busy: length_ns / 3,
            running: length_ns / 2,
            preemptions: size.of(12, u32::MAX),
            ..GpuSlice::default()
        };
        slice.gaps[5] = size.of(9, u32::MAX);
        slice.gaps[16] = 1;
        of(Subject::Gpu(slice))
    };
    let job = |uid| {
        of(Subject::Job(JobSlice {
            name: size.name("nightly"),
            uid: Some(uid),
            gpus: size.of(1, u64::from(u16::MAX)),
            attached: length_ns,
            running: length_ns / 2,
            launches: size.of(22_487, 123_456_789_012),
            units: 12,
            lost: 0,
            paused: 0,
            held: 0,
            undisturbed: true,
        }))
    };
    let gpus = (0..size.of(2, 16)).map(gpu);
    gpus.chain([job(1_000), job(4_294_967_000)]).collect()
}

/// What each command says, for a terminal of that width or for none.
fn screens(size: Size, width: Option<u16>) -> Vec<(&'static str, String)> {
    let status = status(size);
    let event = v1::Event {
        seq: size.of(7, u64::MAX),
        unix_ns: 1_795_219_199_012_345_678,
        kind: "preempted".to_owned(),
        job: size.name("nightly"),
        value_ns: 380_000,
        text: size.name("by online"),
        ..v1::Event::default()
    };
    let summary = summarise(&slices(size), &BTreeMap::new());
    let screens = [
        ("status", table::status(&status, width)),
        ("hooks", table::hooks(&status.processes, width)),
        ("events", table::event(&event, width)),
        ("report", report_text(&summary, By::Job, width)),
        ("report --by user", report_text(&summary, By::User, width)),
    ];
    let folded = |text: String| width.map_or(text.clone(), |width| fold(&text, usize::from(width)));
    screens
        .into_iter()
        .map(|(name, text)| (name, folded(text)))
        .collect()
}

/// P-OPERATE-16: on every screen no line is wider than the terminal. No head, figure or word that is not longer than
/// [`BROKEN_FROM`] is cut, and what is left out is named. At 200 columns nothing is left out.
#[test]
fn every_screen_fits_and_cuts_nothing() {
    for size in [Size::Usual, Size::Extreme] {
        let full = screens(size, None);
        for width in WIDTHS {
            for ((name, text), (_, full)) in screens(size, Some(width)).iter().zip(&full) {
                println!("---- {name}, {width} columns, {size:?}\n{text}");
                for line in text.lines() {
                    assert!(
                        line.width() <= usize::from(width),
                        "{name}, {width}: {line}"
                    );
                }
                let left: BTreeSet<&str> = text
                    .split("(left out: ")
                    .skip(1)
                    .filter_map(|rest| rest.split_once('.'))
                    .flat_map(|(heads, _)| heads.split(|c: char| c == ',' || c.is_whitespace()))
                    .filter(|word| !word.is_empty())
                    .collect();
                let words: BTreeSet<&str> = text.split_whitespace().collect();
                let known: BTreeSet<&str> = full.split_whitespace().collect();
                let heads = known.iter().filter(|word| {
                    let is_head = |c: char| c.is_ascii_uppercase() || c == '/';
                    // On a narrow terminal these three stand below the processes, without a head.
                    let below = width < 130 && matches!(**word, "WHERE" | "RULE" | "NOTE");
                    word.len() > 2 && word.chars().all(is_head) && !below
                });
                for head in heads {
                    let whole = words.contains(head) || left.contains(head);
                    assert!(
                        whole,
                        "{name}, {width}: {head} is cut or not named:\n{text}"
                    );
                }
                // A piece of a word is no word of the full screen.
                let table = text
                    .lines()
                    .filter(|line| !line.contains("left out:") && !line.contains("--output json"));
                for word in table.flat_map(str::split_whitespace) {
                    let bare = word.trim_matches(POINTS);
                    let whole = known.iter().any(|full| full.trim_matches(POINTS) == bare);
                    let piece = |full: &&str| full.len() > BROKEN_FROM && full.contains(bare);
                    assert!(
                        whole || known.iter().any(piece) || left.contains(bare),
                        "{name}, {width}: {word:?} is a piece of something:\n{text}"
                    );
                }
                if width == 200 && size == Size::Usual {
                    assert!(
                        left.is_empty(),
                        "{name}: {left:?} are left out at 200 columns:\n{text}"
                    );
                }
            }
        }
    }
}

/// P-OPERATE-16: with usual values a GPU, a job and a process have one line each at 80 columns, and what explains a
/// column stands below its own table.
#[test]
fn a_narrow_terminal_has_one_line_for_each_gpu_and_its_notes_in_place() {
    let narrow = table::status(&status(Size::Usual), Some(80));
    let rows: Vec<_> = narrow
        .lines()
        .skip_while(|line| !line.contains("GATE"))
        .take_while(|line| !line.is_empty())
        .collect();
    let of_gpus = rows.iter().filter(|row| row.contains("open")).count();
    assert_eq!(of_gpus, 2, "{narrow}");
    assert!(
        rows.last()
            .is_some_and(|row| row.starts_with("(left out: ")),
        "{narrow}"
    );
    assert!(!narrow.contains("(PER UNIT"), "{narrow}");
    let wide = table::status(&status(Size::Usual), Some(200));
    let (before, _) = wide.split_once("(PER UNIT").expect("explained");
    assert!(!before.contains("MODEL"), "{wide}");
}

fn help(command: &clap::Command, width: u16, path: &str) {
    let path = format!("{path} {}", command.get_name());
    let mut whole = command.clone().term_width(usize::from(width));
    for text in [whole.render_help(), whole.render_long_help()] {
        for line in text.to_string().lines() {
            assert!(
                line.width() <= usize::from(width),
                "{path}, {width}: {line}"
            );
        }
    }
    for sub in command.get_subcommands() {
        help(sub, width, &path);
    }
}

/// P-OPERATE-16: the help of every command is as wide as the terminal at most.
#[test]
fn every_help_fits() {
    for width in WIDTHS {
        help(&command(), width, "");
    }
}
