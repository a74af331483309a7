use super::keys::{Pressed, press};
use super::model::{Action, Heard, Model, Sort};
use super::{frame, room};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tidegate_proto::v1;

const S: u64 = 1_000_000_000;

fn gpu(index: u32, observed: u64, busy: u64) -> v1::GpuStatus {
    let closed = index % 2 == 1;
    let mut status = v1::GpuStatus {
        index,
        uuid: format!("GPU-{index}"),
        state_ns: 3 * S,
        preemptions: 12,
        usage: Some(v1::GpuUsage {
            observed_ns: observed,
            online_busy_ns: busy,
            offline_running_ns: observed - busy,
            ..v1::GpuUsage::default()
        }),
        preempt_latency: Some(v1::Latency {
            count: 12,
            p99_ns: 420_000,
            ..v1::Latency::default()
        }),
        memory: Some(v1::GpuMemory {
            pool_bytes: 100,
            headroom_bytes: 50,
            ..v1::GpuMemory::default()
        }),
        ..v1::GpuStatus::default()
    };
    status.set_gate(if closed {
        v1::GateState::Closed
    } else {
        v1::GateState::Open
    });
    status
}

fn process(pid: i32, role: v1::Role, name: &str, launches: u64) -> v1::ProcessStatus {
    let mut status = v1::ProcessStatus {
        session: u64::from(pid.unsigned_abs()),
        pid,
        name: name.to_owned(),
        devices: vec![v1::DeviceStatus {
            launches,
            ..v1::DeviceStatus::default()
        }],
        ..v1::ProcessStatus::default()
    };
    status.set_role(role);
    status
}

fn status(gpus: u32, at: u64) -> v1::GetStatusResponse {
    let mut job = v1::JobStatus {
        name: "batch".to_owned(),
        gpus: (0..gpus).collect(),
        preemptions: 12,
        state_ns: 3 * S,
        reason: "online is idle".to_owned(),
        ..v1::JobStatus::default()
    };
    job.set_state(v1::JobState::Running);
    let mut status = v1::GetStatusResponse {
        version: "0.1.0".to_owned(),
        agent_generation: 1,
        driver_version: "580.95.05".to_owned(),
        gpus: (0..gpus).map(|index| gpu(index, at, at / 4)).collect(),
        jobs: vec![job],
        processes: vec![
            process(20, v1::Role::Offline, "python", at / S * 100),
            process(30, v1::Role::Online, "vllm", at / S * 10),
        ],
        ..v1::GetStatusResponse::default()
    };
    status.set_level(v1::ChannelLevel::L1Agent);
    status
}

fn model(gpus: u32) -> Model {
    let mut model = Model::new(Sort::Role, false);
    for (seq, value_ns) in [(1, 125_000), (2, 500_000), (3, 2_000_000)] {
        let event = v1::Event {
            seq,
            kind: "preempted".to_owned(),
            value_ns,
            ..v1::Event::default()
        };
        // Events of the past may come before the first status.
        model.hear(Heard::Event(event), 99 * S);
    }
    model.hear(Heard::Status(Box::new(status(gpus, 100 * S))), 100 * S);
    model.hear(Heard::Status(Box::new(status(gpus, 104 * S))), 104 * S);
    model
}

fn shown(model: &Model, width: u16, height: u16) -> String {
    frame(model, width, height, 105 * S).expect("a frame")
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn one_gpu_in_a_small_terminal_is_told_in_one_frame() {
    let found = shown(&model(1), 80, 24);
    let expected = "\
Tidegate 0.1.0 up 0   driver 580.95.05   channel control L1
GPU GATE           ONLINE     OFFLINE    PREEMPT.    p99 LATENCY ≤1ms HEADROOM
0   open 3.0 s     █░░░░  25% ████░  75%       12 420 us ▂▅█          ███░░  50%
open: offline runs   closed: online has the GPU   cooling: online just stopped

OFFLINE JOB          STATE          GPUS     PREEMPT. WHY
batch                running 3.0 s  0              12 online is idle

PID      PROCESS        ROLE     GPU      LAUNCHES/s   MEMORY NOTE
30       vllm           online   0 idle           10        -
20       python         offline  0               100        -
";
    assert!(
        found.starts_with(expected),
        "{found}\n--- expected\n{expected}"
    );
    assert!(
        found
            .trim_end()
            .ends_with("q quit  h help  s sort (by role)  / filter  p pause  r resume  d drain"),
        "{found}"
    );
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn eight_gpus_fit_and_what_does_not_is_counted() {
    let mut crowded = status(8, 105 * S);
    for pid in 100..140 {
        crowded
            .processes
            .push(process(pid, v1::Role::Ignore, "other", 0));
    }
    let mut model = model(8);
    model.hear(Heard::Status(Box::new(crowded)), 105 * S);
    let found = shown(&model, 120, 40);
    assert!(found.contains("\n7   closed 3.0 s"), "{found}");
    let listed = found.lines().filter(|line| line.contains("other")).count();
    assert!(
        found.contains(&format!("and {} more", 40 - listed)),
        "{found}"
    );
    let all = shown(&model, 120, room::height(&model));
    assert!(!all.contains(" more") && all.contains("\n139"), "{all}");
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn processes_are_sorted_as_asked() {
    let mut model = model(1);
    let order = |model: &Model| -> Vec<i32> {
        model
            .processes()
            .iter()
            .map(|process| process.pid)
            .collect()
    };
    assert_eq!(order(&model), [30, 20]);
    model.sort = model.sort.next();
    assert_eq!(order(&model), [20, 30]);
    model.sort = model.sort.next();
    assert_eq!(order(&model), [20, 30], "100 launches a second before 10");
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn an_absent_agent_and_a_lost_one_are_told_apart() {
    let mut absent = Model::new(Sort::Role, false);
    assert!(shown(&absent, 80, 24).contains("asking the agent"));
    absent.hear(Heard::Lost("no agent listens on /run/x".to_owned()), S);
    let found = shown(&absent, 80, 24);
    assert!(
        found.contains("/run/x") && found.contains("systemctl start"),
        "{found}"
    );
    let mut lost = model(1);
    lost.hear(Heard::Lost("the agent ended".to_owned()), 105 * S);
    let found = shown(&lost, 80, 24);
    assert!(
        found.contains("THE AGENT IS GONE for 0 s: online runs on"),
        "{found}"
    );
    assert!(
        found.contains("batch"),
        "what it said last is still there: {found}"
    );
    assert!(lost.latencies(0, 12).is_empty(), "they are told again");
    lost.hear(Heard::Status(Box::new(status(1, 106 * S))), 106 * S);
    assert!(!shown(&lost, 80, 24).contains("GONE"));
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn names_that_would_steer_the_terminal_do_not() {
    let mut evil = status(1, 105 * S);
    evil.processes[0].name = "\u{1b}[2Jgone".to_owned();
    evil.jobs[0].name = "a\nb".to_owned();
    let mut model = model(1);
    model.hear(Heard::Status(Box::new(evil)), 105 * S);
    let found = shown(&model, 80, 24);
    assert!(
        found.contains("?[2Jgone") && found.contains("a?b"),
        "{found}"
    );
}

/// P-OPERATE-13: nothing is done to the node before it was confirmed, and then to the job that was chosen.
#[test]
fn keys_choose_a_job_and_do_what_is_confirmed_only() {
    let mut two = status(1, 105 * S);
    let mut second = two.jobs[0].clone();
    second.name = "index".to_owned();
    two.jobs.push(second);
    let mut model = model(1);
    model.hear(Heard::Status(Box::new(two.clone())), 105 * S);
    let key = |model: &mut Model, code| press(model, KeyEvent::new(code, KeyModifiers::NONE));
    let letter = |model: &mut Model, c| key(model, KeyCode::Char(c));
    let last = |model: &Model| shown(model, 80, 24).lines().last().map(str::to_owned);
    assert_eq!(letter(&mut model, 'p'), Pressed::Nothing);
    let asked = last(&model).expect("a line");
    assert!(asked.starts_with("pause job batch? y: yes"), "{asked}");
    assert_eq!(letter(&mut model, 'n'), Pressed::Nothing);
    assert_eq!(
        letter(&mut model, 'y'),
        Pressed::Nothing,
        "nothing is asked any more"
    );
    // A job that comes before the chosen one moves it, not the choice.
    assert_eq!(key(&mut model, KeyCode::Down), Pressed::Nothing);
    let mut third = two.clone();
    third.jobs.insert(
        0,
        v1::JobStatus {
            name: "a".to_owned(),
            ..v1::JobStatus::default()
        },
    );
    model.hear(Heard::Status(Box::new(third)), 106 * S);
    letter(&mut model, 'p');
    let paused = letter(&mut model, 'y');
    assert_eq!(paused, Pressed::Do(Action::Pause("index".to_owned())));
    model.hear(Heard::Done("paused: index".to_owned()), 106 * S);
    assert_eq!(last(&model).as_deref(), Some("paused: index"));
    letter(&mut model, 'r');
    let resumed = letter(&mut model, 'y');
    assert_eq!(resumed, Pressed::Do(Action::Resume("index".to_owned())));
    for (drained, action) in [(false, Action::Drain), (true, Action::Undrain)] {
        two.drained = drained;
        model.hear(Heard::Status(Box::new(two.clone())), 107 * S);
        assert_eq!(shown(&model, 80, 24).contains("DRAINED"), drained);
        letter(&mut model, 'd');
        assert_eq!(letter(&mut model, 'y'), Pressed::Do(action));
    }
    two.jobs.clear();
    model.hear(Heard::Status(Box::new(two)), 108 * S);
    letter(&mut model, 'p');
    assert_eq!(model.asking, None);
    assert_eq!(last(&model).as_deref(), Some("no offline job is attached"));
    assert_eq!(letter(&mut model, 'q'), Pressed::Quit);
}

/// P-OPERATE-13: a filter shows the processes of one pod, name or role, and is taken back.
#[test]
fn a_filter_is_typed_kept_and_taken_back() {
    let mut placed = status(1, 105 * S);
    placed.processes[0].whereabouts = Some(v1::Whereabouts {
        text: "team-a/batch-0".to_owned(),
        container: "abc123".to_owned(),
        ..v1::Whereabouts::default()
    });
    let mut model = model(1);
    model.hear(Heard::Status(Box::new(placed)), 105 * S);
    let wide = shown(&model, 140, 24);
    assert!(
        wide.contains("WHERE") && wide.contains("team-a/batch-0"),
        "{wide}"
    );
    assert!(
        !shown(&model, 80, 24).contains("WHERE"),
        "80 columns have no room for it"
    );
    let pids = |model: &Model| -> Vec<i32> {
        let processes = model.processes();
        processes.iter().map(|process| process.pid).collect()
    };
    let key = |model: &mut Model, code| press(model, KeyEvent::new(code, KeyModifiers::NONE));
    let word = |model: &mut Model, text: &str| {
        for c in text.chars() {
            assert_eq!(
                key(model, KeyCode::Char(c)),
                Pressed::Nothing,
                "q is a letter too"
            );
        }
    };
    word(&mut model, "/Team-q");
    assert_eq!(pids(&model), [0_i32; 0], "what is typed counts at once");
    key(&mut model, KeyCode::Backspace);
    assert_eq!(pids(&model), [20]);
    key(&mut model, KeyCode::Enter);
    assert!(shown(&model, 80, 24).contains("/ \"Team-\""));
    assert_eq!(pids(&model), [20]);
    for (text, found) in [("vllm", [30]), ("online", [30]), ("abc1", [20])] {
        model.filter.clear();
        word(&mut model, &format!("/{text}"));
        assert_eq!(pids(&model), found, "{text}");
        key(&mut model, KeyCode::Esc);
        assert_eq!(pids(&model), [30, 20]);
    }
}

/// P-OPERATE-13: what a GPU is and how full it is has its place as far as the terminal has room.
#[test]
fn memory_and_model_are_shown_where_there_is_room() {
    let mut known = status(1, 105 * S);
    let gpu = &mut known.gpus[0];
    gpu.memory = None;
    gpu.model = "NVIDIA H100 80GB HBM3".to_owned();
    (gpu.memory_used_bytes, gpu.memory_total_bytes) = (10 << 30, 80 << 30);
    known.processes[0].devices[0].memory_bytes = 3 << 29;
    let mut model = model(1);
    model.hear(Heard::Status(Box::new(known.clone())), 105 * S);
    let narrow = shown(&model, 80, 24);
    assert!(narrow.contains("10.0/80 G"), "{narrow}");
    assert!(
        narrow.contains("1.5 GiB") && !narrow.contains("H100"),
        "{narrow}"
    );
    let wide = shown(&model, 140, 24);
    for text in ["10.0 GiB of 80.0 GiB", "NVIDIA H100 80GB HBM3", "1.5 GiB"] {
        assert!(wide.contains(text), "no {text} in {wide}");
    }
    assert!(!wide.contains("HEADROOM"), "nothing is shared");
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn no_terminal_is_too_small() {
    let mut model = model(8);
    model.help = true;
    for (width, height) in [(1, 1), (10, 3), (20, 10), (300, 100)] {
        let _ = shown(&model, width, height);
    }
}

/// P-OPERATE-21: what a job got and deserved has its place beside whose turn it is, and no place where no job shares.
#[test]
fn shares_stand_beside_the_turn() {
    let mut model = model(1);
    let mut two = status(1, 106 * S);
    assert!(!shown(&model, 80, 24).contains("SHARE"));
    let share = |deserved, got| {
        Some(v1::JobShare {
            deserved,
            got,
            ..v1::JobShare::default()
        })
    };
    two.jobs[0].share = share(0.8, 0.81);
    two.jobs.push(v1::JobStatus {
        name: "embed".to_owned(),
        share: share(0.2, 0.19),
        reason: "waits for its turn: batch runs, 40 ms left".to_owned(),
        ..two.jobs[0].clone()
    });
    model.hear(Heard::Status(Box::new(two)), 106 * S);
    for width in [80, 120] {
        let text = shown(&model, width, 24);
        let row = text.lines().find(|line| line.contains("embed"));
        let row = row.unwrap_or_default();
        assert!(row.contains("19/20 %"), "{text}");
        assert!(row.contains("waits for its turn: batch runs"), "{text}");
    }
    assert!(shown(&model, 120, 24).contains("40 ms left"));
}

/// P-OPERATE-16: at 80, 100 and 200 columns no line of top is wider than the terminal, and each word in it is one of
/// the whole picture or ends with an ellipsis; the model and the memory of a GPU are where there is room.
#[test]
fn nothing_is_cut_without_an_ellipsis() {
    let long = "finetune_of_a_name_without_a_blank_as_long-as_slurm_allows and then some";
    let mut model = model(16);
    {
        let status = model.status.as_mut().expect("a status");
        status.jobs[0].name = long.to_owned();
        status.jobs[0].reason = format!("waits for its turn: {long} runs, 40 ms left");
        status.jobs[0].preemptions = 123_456_789_012;
        for gpu in &mut status.gpus {
            gpu.state_ns = 119 * 60 * S;
            gpu.preemptions = 123_456_789_012;
            gpu.memory = None;
            gpu.model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition".to_owned();
            (gpu.memory_used_bytes, gpu.memory_total_bytes) = (15 << 40, 16 << 40);
        }
        let process = &mut status.processes[0];
        process.name = "fifteen_letters".to_owned();
        process.note = format!("asked to be online, refused: {long}");
        process.devices = (0..16)
            .map(|gpu| v1::DeviceStatus {
                gpu,
                memory_bytes: 16 << 40,
                ..v1::DeviceStatus::default()
            })
            .collect();
    }
    let full = shown(&model, 600, 60);
    let known: Vec<&str> = full.split_whitespace().collect();
    for width in [80, 100, 200] {
        let text = shown(&model, width, 60);
        println!("---- top, {width} columns\n{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(width), "{line}");
        }
        for word in text.split_whitespace() {
            // In a narrow terminal memory is said briefly.
            let brief = matches!(word, "15.0/16" | "T");
            let whole = known.contains(&word) || brief;
            let cut = word.strip_suffix('…');
            let marked = cut.is_some_and(|part| known.iter().any(|whole| whole.starts_with(part)));
            assert!(
                whole || marked,
                "{width}: {word:?} is a piece of something:\n{text}"
            );
        }
        assert!(text.contains("fifteen_letters"), "{text}");
        assert!(text.contains("0-15"), "{text}");
        assert_eq!(text.contains("Workstation Edition"), width == 200, "{text}");
    }
}

/// P-OPERATE-16: a terminal of less than 80 columns has whole columns, and names those that it has no room for.
#[test]
fn a_narrow_terminal_hides_whole_columns_and_names_them() {
    let model = model(1);
    let full = shown(&model, 200, 24);
    let heads = |text: &str, first: &str| {
        let line = text.lines().find(|line| line.starts_with(first));
        line.unwrap_or_default().to_owned()
    };
    assert!(!full.contains("Hidden: "), "{full}");
    assert!(!shown(&model, 80, 24).contains("Hidden: "));
    for width in [45, 50, 60, 70] {
        let text = shown(&model, width, 24);
        let hidden = heads(&text, "Hidden: ");
        for first in ["GPU", "OFFLINE JOB", "PID"] {
            let (whole, here) = (heads(&full, first), heads(&text, first));
            for head in here.split_whitespace() {
                assert!(
                    whole.split_whitespace().any(|word| word == head),
                    "{width}: {head}:\n{text}"
                );
            }
            for head in whole.split_whitespace() {
                let stands = here.split_whitespace().any(|word| word == head);
                let named = hidden.contains(head) || hidden.ends_with('…');
                assert!(stands || named, "{width}: {head} is gone:\n{text}");
            }
        }
        assert!(
            text.contains("GATE") && text.contains("WHY") && text.contains("NOTE"),
            "{text}"
        );
    }
    assert!(
        shown(&model, 60, 24)
            .contains("Hidden: LATENCY ≤1ms, HEADROOM, PREEMPT., MEMORY, LAUNCHES/s")
    );
}

/// P-OPERATE-16: with more of everything than there is room for, title and keys are there, of each part as much as
/// fits, and how many are left out. The job that keys are about is never one of these.
#[test]
fn what_a_low_terminal_has_no_room_for_is_counted() {
    let mut crowded = status(16, 105 * S);
    let batch = crowded.jobs[0].clone();
    crowded.jobs = (10..30)
        .map(|nth| v1::JobStatus {
            number: nth,
            name: format!("job-{nth}"),
            ..batch.clone()
        })
        .collect();
    for pid in 100..140 {
        let other = process(pid, v1::Role::Offline, "other", 0);
        crowded.processes.push(other);
    }
    let mut model = model(16);
    model.hear(Heard::Status(Box::new(crowded)), 105 * S);
    for (width, height) in [(80, 24), (200, 50), (80, 16)] {
        for chosen in [0, 19] {
            model.select(-100);
            model.select(chosen);
            let text = shown(&model, width, height);
            println!("---- top, {width}x{height}\n{text}");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("Tidegate "), "{text}");
            assert!(
                lines[usize::from(height) - 1].starts_with("q quit "),
                "{text}"
            );
            // Rows that say a state are of GPUs, then of jobs; a row with a rate is a process.
            let count =
                |what: &dyn Fn(&str) -> bool| lines.iter().filter(|line| what(line)).count();
            let shown = [
                count(&|line| line.contains("open 3.0 s") || line.contains("closed 3.0 s")),
                count(&|line| line.starts_with("job-")),
                count(&|line| {
                    [" other ", " vllm ", " python "]
                        .iter()
                        .any(|name| line.contains(name))
                }),
            ];
            let parts = text.split("\n\n").map(|part| {
                let said = part
                    .split("and ")
                    .nth(1)
                    .and_then(|rest| rest.split_once(" more"));
                said.map_or(0, |(count, _)| count.parse::<usize>().expect("a number"))
            });
            let left: Vec<usize> = parts.take(3).collect();
            for (at, all) in [16, 20, 42].into_iter().enumerate() {
                assert_eq!(
                    shown[at] + left[at],
                    all,
                    "part {at}, {height} rows:\n{text}"
                );
                assert!(shown[at] > 0 || height < 24, "part {at}:\n{text}");
            }
            let name = format!("\njob-{}", 10 + chosen);
            assert!(text.contains(&name), "{name} is chosen:\n{text}");
        }
    }
}

/// P-LEASE-7: where leases are on the screen shows the slack and why a trainer has none, at 80 columns as well.
#[test]
fn slack_is_shown_where_leases_are_on() {
    assert!(!shown(&model(1), 120, 24).contains("SLACK"));
    let mut node = status(1, 104 * S);
    node.gpus[0].memory = None;
    node.gpus[0].leases = Some(v1::LeaseStatus {
        slack_ns: Some(11_000_000),
        units: 4_120,
        ..v1::LeaseStatus::default()
    });
    node.jobs[0].no_lease = Some(v1::NoLease {
        text: "a prompt waits".to_owned(),
        ..v1::NoLease::default()
    });
    let mut model = model(1);
    model.hear(Heard::Status(Box::new(node)), 104 * S);
    for width in [80, 120] {
        let found = shown(&model, width, 24);
        assert!(
            found.contains("SLACK") && found.contains("11 ms"),
            "{found}"
        );
        // What does not fit is cut, as every reason is.
        let reason = if width == 80 {
            "no lease"
        } else {
            "no lease: a prompt waits"
        };
        assert!(found.contains(reason), "{found}");
        assert_eq!(found.contains("4120 units"), width == 120, "{found}");
    }
}
