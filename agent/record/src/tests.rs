use proptest::prelude::*;

use tidegate_policy::config::{FairMode, Slo};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::Bytes;
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::LeaseEvent;
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;

use super::settings::config_of;
use super::settings::{FIELDS_BEFORE_SLO, FIELDS_BEFORE_TURNS};
use super::*;

/// Events of every kind, from numbers.
fn event(kind: usize, f: [u64; 8]) -> Event<'static> {
    const NAMES: [&str; 24] = [
        "online_attached",
        "online_gone",
        "activity",
        "progress",
        "suspected",
        "request_started",
        "request_ended",
        "offline_attached",
        "offline_gone",
        "channels_changed",
        "disabled",
        "disable_failed",
        "enabled",
        "enable_failed",
        "enable_skipped",
        "issue_stalled",
        "pause",
        "resume",
        "reissue",
        "tick",
        "works",
        "terms",
        "drain",
        "ungate",
    ];
    gate::read(NAMES[kind % NAMES.len()], &f).expect("every name is known")
}

/// Name and fields of events about memory of every kind, from numbers.
fn memory_event(kind: usize, f: [u64; 8]) -> (&'static str, Vec<u64>) {
    let [a, b, c, d, e, ..] = f;
    let (gpu, mib) = (b % 2, |n: u64| n << 20);
    let stripe = |backed, nth| vec![backed, 2, 2 * nth, 2 * nth + 1, 2, nth, nth + 1];
    let kv = [
        vec![a, b, gpu, c, mib(d), e % 2, 0, mib(2), 3],
        stripe(1, 0),
        stripe(d % 2, 1),
        stripe(e % 2, 2),
    ];
    match kind % 14 {
        0 => ("pool", vec![gpu, mib(16)]),
        1 => ("kv_registered", kv.concat()),
        2 => (
            "elastic_registered",
            vec![a, gpu, c, 0, mib(d), mib(64), mib(2), mib(4)],
        ),
        3 => ("kv_gone", vec![a, c]),
        4 => ("published", vec![a, b, c, 2, d, e]),
        5 => ("forgotten", if c > 0 { vec![a, 1, c] } else { vec![a, 0] }),
        6 => ("withheld", vec![a, b]),
        7 => ("checked", vec![a, b, c]),
        8 => ("moved", vec![a, b, c, d, 1, e]),
        9 => ("usage", vec![a, c, mib(d)]),
        10 => ("mapped", vec![a, c, mib(d), e % 2]),
        11 => ("counted", vec![a, gpu, mib(d)]),
        12 => {
            let ahead = if b % 2 == 1 { &[1][..] } else { &[] };
            ("asked", [&[a, c, gpu, mib(d), 1, e, 0], ahead].concat())
        }
        _ => ("withdrawn", vec![a, c]),
    }
}

/// Events about leases of every kind, from numbers.
fn lease_event(kind: usize, f: [u64; 8]) -> LeaseEvent {
    const NAMES: [&str; 11] = [
        "lease_arrived",
        "lease_first",
        "lease_ended",
        "lease_beat",
        "lease_back",
        "lease_unit",
        "lease_used",
        "lease_offered",
        "lease_next",
        "lease_returned",
        "lease_known",
    ];
    lease::read(NAMES[kind % NAMES.len()], &f).expect("every name is known")
}

/// A promise that leaves a trainer 30 ms beside an iteration of 4.
const LEASED: Leasing = Leasing {
    promise: Promise::Each {
        decode_ns: 40_000_000,
    },
    margin_permille: 50,
    switch_ns: 40_000,
    gate_ns: 1_000_000,
    grace_ns: 500_000,
};

/// Events about timeslices of every kind, from numbers.
fn slice_event(kind: usize, f: [u64; 8]) -> Event<'static> {
    let name = ["groups", "slice_refused"][kind % 2];
    gate::read(name, &f).expect("every name is known")
}

fn leasing(leases: Option<Leasing>) -> Config {
    Config {
        leases,
        ..Config::default()
    }
}

fn sharing_by(mode: FairMode) -> Config {
    let mut config = Config::default();
    config.fair.mode = mode;
    config
}

fn record(events: &[(usize, [u64; 8], u64)], mut config: Config) -> Vec<u8> {
    let (mut now, mut out, mut effects) = (0, Vec::new(), Vec::new());
    config.sharing.reserving.min = Bytes::mib(2);
    write_start(&mut out, &config, 2, Instant::default()).expect("memory");
    let mut node = Node::new(config, 2, Instant::default());
    for (kind, fields, after) in events {
        now += after;
        let now = Instant::from_nanos(now);
        effects.clear();
        if !(24..48).contains(kind) {
            let event = match kind {
                0..24 => event(*kind, *fields),
                24..59 => Event::Lease(lease_event(*kind - 48, *fields)),
                _ => slice_event(*kind - 59, *fields),
            };
            node.step(event, now, &mut effects);
            write_event(&mut out, &EventLine::of(&event, now)).expect("memory");
        } else {
            let (name, fields) = memory_event(*kind, *fields);
            let step = |event: MemoryEvent<'_>| {
                let event = Event::Memory(event);
                write_event(&mut out, &EventLine::of(&event, now)).expect("memory");
                node.step(event, now, &mut effects);
            };
            memory::read(name, &fields, step).expect("every name is known");
            let line = out.split(|byte| *byte == b'\n').rev().nth(1);
            let fields: Vec<String> = fields.iter().map(u64::to_string).collect();
            let end = format!("{name} {}", fields.join(" "));
            assert!(line.expect("one").ends_with(end.as_bytes()), "{end}");
        }
        for effect in &effects {
            write_effect(&mut out, effect).expect("memory");
        }
    }
    out
}

/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn settings_are_read_as_they_are_written_and_earlier_ones_have_neither_turns_nor_an_slo() {
    let slo = Some(Slo {
        ttft: 0,
        tpot: 10_000,
    });
    for (slo, leases) in [(None, None), (slo, None), (slo, Some(LEASED))] {
        let config = Config {
            slo,
            leases,
            ..Config::default()
        };
        assert_eq!(config_of(&config_fields(&config)), Some(config));
    }
    let fields = config_fields(&Config::default());
    let mut together = Config::default();
    together.fair.mode = FairMode::Together;
    let earlier = [
        (FIELDS_BEFORE_TURNS, together),
        (FIELDS_BEFORE_SLO, Config::default()),
    ];
    for (count, config) in earlier {
        assert_eq!(config_of(&fields[..count]), Some(config));
        assert_eq!(config_of(&fields[..=count]), None);
    }
}

proptest! {
    /// P-REPLAY-3: replay decides again what the agent recorded.
    #[test]
    fn what_was_recorded_is_decided_again_and_a_changed_line_is_noticed(
        events in prop::collection::vec(
            (0usize..61, prop::array::uniform8(0u64..4), 0u64..300_000_000), 1..90,
        ),
        cut: prop::sample::Index,
        leases: bool,
        slices: bool,
    ) {
        let mut config = leasing(leases.then_some(LEASED));
        if slices {
            config.fair.mode = FairMode::Slices;
        }
        let recording = record(&events, config);
        let replayed = replay(&recording[..]).expect("the same decisions");
        prop_assert_eq!(replayed.events, events.len() as u64);
        let text = String::from_utf8(recording).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        let effects: Vec<usize> = (0..lines.len())
            .filter(|at| lines[*at].starts_with("effect ")).collect();
        if !effects.is_empty() {
            let mut changed = lines.clone();
            changed[effects[cut.index(effects.len())]] = "effect Nothing";
            let changed = changed.join("\n");
            let differs = matches!(replay(changed.as_bytes()), Err(DecisionsError::Differs { .. }));
            prop_assert!(differs);
        }
    }
}

/// P-REPLAY-3: replay is told of turns what the agent was told; a line of before has none, and half of them is an error.
#[test]
fn turns_are_read_as_they_are_written() {
    let fields = [1, 0, 7, 1, 30, 20, 40, 9, 12, 3, 600_000];
    let event = gate::read("activity", &fields).expect("all are there");
    let line = EventLine::of(&event, Instant::from_nanos(5)).to_string();
    assert_eq!(line, "event 5 activity 1 0 7 1 30 20 40 9 12 3 600000");
    let Event::Activity { reading, .. } = event else {
        panic!("{event:?}")
    };
    let Turns {
        count,
        first,
        apart,
    } = reading.turns;
    assert_eq!((count, first.0, apart.as_micros()), (12, 3, 600));
    let earlier = gate::read("activity", &fields[..8]).expect("all that there were");
    let line = EventLine::of(&earlier, Instant::from_nanos(5)).to_string();
    assert_eq!(line, "event 5 activity 1 0 7 1 30 20 40 9");
    for count in [9, 10] {
        assert_eq!(gate::read("activity", &fields[..count]), None);
    }
}

/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn what_is_no_recording_or_has_holes_is_one_error() {
    for bad in [
        "",
        "hello",
        "event 1 tick",
        "tidegate-decisions 1 1 0\n",
        "tidegate-decisions 4 1 0\n",
    ] {
        let told = replay(bad.as_bytes()).expect_err("not a recording");
        assert!(matches!(told, DecisionsError::Format { .. }), "{told}");
    }
    let start = String::from_utf8(record(&[], Config::default())).expect("text");
    for bad in [
        "memory_pool 0",
        "memory_pool 0 1 2",
        "memory_published 1 1 1 2 3",
        "memory_x",
        "lease_next 0 1 2 3",
        "lease_unit 0 1 9 5",
        "lease_x",
    ] {
        let told = replay(format!("{start}event 1 {bad}\n").as_bytes()).expect_err("too few");
        assert!(
            matches!(told, DecisionsError::Format { line: 3, .. }),
            "{told}"
        );
    }
    let mut recording = record(&[(19, [0; 8], 5)], Config::default());
    write_lost(&mut recording, 7).expect("memory");
    let told = replay(&recording[..]).expect_err("a hole").to_string();
    assert!(told.contains("7 lines were not written"), "{told}");
}

/// P-REPLAY-3: what an agent recorded in the words of format 2 is decided again.
#[test]
fn a_recording_of_the_format_before_is_decided_again() {
    // Online asks, memory is reclaimed and restored, and a process refuses.
    let recording = include_str!("../tests/recordings/format-2.txt");
    let replayed = replay(recording.as_bytes()).expect("the same decisions");
    let count = |kind: &str| {
        recording
            .lines()
            .filter(|line| line.starts_with(kind))
            .count() as u64
    };
    assert_eq!(replayed.events, count("event "));
    assert_eq!(replayed.effects, count("effect "));
    // Its words are none of format 3.
    let claimed = recording.replacen("decisions 2", "decisions 3", 1);
    let told = replay(claimed.as_bytes()).expect_err("other words");
    assert!(matches!(told, DecisionsError::Differs { .. }), "{told}");
}

/// P-REPLAY-3: each event that earlier agents wrote is written again as it was read, to the last digit.
#[test]
fn an_event_is_written_as_earlier_agents_wrote_it() {
    let recordings = [
        include_str!("../tests/recordings/format-2.txt"),
        include_str!("../tests/recordings/one-job.txt"),
    ];
    let mut names = std::collections::BTreeSet::new();
    for line in recordings.iter().flat_map(|recording| recording.lines()) {
        let mut words = line.split(' ');
        let (Some("event"), Some(now), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let now = Instant::from_nanos(now.parse().expect("a number"));
        let fields: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let written = match name.strip_prefix(memory::PREFIX) {
            Some(own) => memory::read(former::memory_event(own), &fields, |event| {
                EventLine::of(&event.into(), now).to_string()
            }),
            None => gate::read(name, &fields).map(|event| EventLine::of(&event, now).to_string()),
        };
        let expected = line.replace("memory_prepared", "memory_checked");
        assert_eq!(written, Some(expected));
        names.insert(name);
    }
    assert!(names.len() >= 16, "{names:?}");
}

/// P-FAIR-4: what an agent without turns decided about one job, under real load, is decided again to the last byte:
/// with its settings, and with jobs that run together or take turns.
#[test]
fn one_job_is_decided_about_as_before_there_were_turns() {
    const CONFIG: &str = "config ";
    let turns = ["", " 1 100000000", " 0 100000000"];
    let recording = include_str!("../tests/recordings/one-job.txt");
    let count = |kind: &str| {
        let lines = recording.lines().filter(|line| line.starts_with(kind));
        lines.count() as u64
    };
    let [disables, enables] = ["effect Disable", "effect Enable"].map(count);
    assert!(disables > 10 && enables > 10, "{disables}, {enables}");
    for fair in turns {
        let with_turns = |line: &str| {
            let more = if line.starts_with(CONFIG) { fair } else { "" };
            format!("{line}{more}\n")
        };
        let text: String = recording.lines().map(with_turns).collect();
        let replayed = replay(text.as_bytes()).expect("the same decisions");
        assert_eq!(replayed.events, count("event "));
        assert_eq!(replayed.effects, count("effect "));
    }
}

/// P-REPLAY-3: replay decides again what the agent recorded: a trainer is leased beside online, returns, and
/// overstays; where leases are off the same events change nothing.
#[test]
fn recorded_leases_are_decided_again() {
    let iteration = [0, 7, 4, 2_000];
    let fields = |own: &[u64]| {
        let mut all = [0; 8];
        all[..own.len()].copy_from_slice(own);
        all
    };
    let mut events = vec![
        (0, fields(&[1]), 1),
        (7, fields(&[10, 0, 1, 0]), 1),
        (9, fields(&[10, 0, 1, 1]), 1),
        (2, fields(&[1, 0, 1, 1]), 1_000_000_000),
        (10, fields(&[0, 0, 1, 0, 0]), 1_000),
        (48 + 7, fields(&[0, 0, 1, 1, 1_000, 500_000]), 1_000),
    ];
    let [gpu, fingerprint, batch, cached] = iteration;
    let beat = [gpu, fingerprint, batch, cached, 0, 4_000_000, 5_000_000, 0];
    events.extend([(48 + 3, beat, 5_000_000); 80]);
    // Each is enabled for its lease, and disabled after it.
    for lease in 1..4 {
        events.push((48 + 8, fields(&iteration), 1_000_000));
        events.push((12, fields(&[0, 0, 2 * lease]), 1_000));
        events.push((48 + 9, fields(&[0, lease, 6]), 5_000_000));
        events.push((48 + 3, beat, 5_000_000));
        events.push((10, fields(&[0, 0, 2 * lease + 1, 0, 0]), 1_000));
    }
    events.push((48 + 8, fields(&iteration), 1_000_000));
    events.push((12, fields(&[0, 0, 8]), 1_000));
    events.push((19, [0; 8], 90_000_000));
    for leases in [Some(LEASED), None] {
        let recording = record(&events, leasing(leases));
        let replayed = replay(&recording[..]).expect("the same decisions");
        assert_eq!(replayed.events, events.len() as u64);
        let text = String::from_utf8(recording).expect("text");
        let told = |what: &str| text.matches(what).count();
        let expected = if leases.is_some() { (4, 1) } else { (0, 0) };
        assert_eq!(
            (told("effect Lease"), told("LeaseOverrun")),
            expected,
            "{text}"
        );
    }
}

/// P-REPLAY-3: replay decides again what the agent recorded: two jobs share by timeslices until the driver refuses one,
/// and take turns from then on; where nobody asked for timeslices the same events set none.
#[test]
fn recorded_timeslices_are_decided_again() {
    let [attached, changed, disabled, enabled, tick] = [7, 9, 10, 12, 19];
    let [groups, refused] = [59, 60];
    let fields = |own: &[u64]| {
        let mut all = [0; 8];
        all[..own.len()].copy_from_slice(own);
        all
    };
    let mut events = Vec::new();
    for (session, job) in [(10, 0), (11, 1)] {
        events.push((attached, fields(&[session, job, 1, 0]), 1));
        events.push((groups, fields(&[session, 0, 2 + job, 0]), 1));
        events.push((changed, fields(&[session, 0, 3, 1]), 1));
        events.push((disabled, fields(&[0, job, 1 + job]), 1));
    }
    let ticks = [(tick, [0; 8], 60_000_000); 12];
    events.extend(ticks);
    for job in [0, 1] {
        events.push((enabled, fields(&[0, job, 3 + job]), 1));
    }
    events.extend(ticks);
    let before = events.clone();
    events.push((refused, fields(&[1, 0x1f]), 1_000));
    events.extend(ticks);
    for mode in [FairMode::Slices, FairMode::Turns] {
        let decided = |events: &[_]| {
            let recording = record(events, sharing_by(mode));
            let replayed = replay(&recording[..]).expect("the same decisions");
            assert_eq!(replayed.events, events.len() as u64);
            let text = String::from_utf8(recording).expect("text");
            let of = |what: &str| text.matches(what).count();
            ["Timeslice", "TurnsInstead", "Disable(", "Enable"].map(of)
        };
        let [slices, turns, disables, enables] = decided(&before);
        let [_, turns_after, disables_after, _] = decided(&events);
        if mode == FairMode::Slices {
            assert!(slices >= 2);
            // Each was disabled as it came, and nobody gave way to the other.
            assert_eq!((turns, disables, enables), (0, 2, 2));
            assert_eq!(turns_after, 1);
            assert!(disables_after > 2);
        } else {
            assert_eq!((slices, turns, turns_after), (0, 0, 0));
            assert!(disables > 2 && enables > 0);
        }
    }
}
