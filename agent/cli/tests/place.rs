//! `tidegate place` as an engine's hooks run it: what goes wrong is one line, and no hook fails for it.

#[path = "replay/dir.rs"]
mod dir;

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use dir::Dir;
use tidegate_agent::clock::unix_ms;
use tidegate_agent::watch::history::ring::Ring;
use tidegate_agent::watch::history::{
    GpuSlice, JobSlice, MemorySlice, OpenSlice, Slice, Span, Subject,
};

const MINUTE: u64 = 60_000_000_000;
const PROFILE: &str = "unit = \"tokens\"\nrate = 2400\nfull = \"24GiB\"\nhalf = \"6GiB\"\n";
const GIB: u64 = 1 << 30;

/// A minute of a GPU that was open for half of it, in the parts that are asked for.
struct Minute {
    /// With the sets of open gates, as agents write that know of them.
    sets: bool,
    /// Memory that online left, GiB of 24; none: it is not shared.
    left: Option<u64>,
    /// What "nightly" did, and what it lost.
    job: Option<(u64, u64)>,
}

fn history(dir: &Dir, minutes: &[Minute]) {
    let file = dir.0.join("history.ring");
    let _ = std::fs::remove_file(&file);
    let mut ring = Ring::open(&file, 4 << 20).expect("writable");
    let now = unix_ms();
    for (at, minute) in (1u64..).zip(minutes) {
        let span = Span {
            end_unix_ms: now - (minutes.len() as u64 - at) * 60_000,
            length_ns: MINUTE,
        };
        let mut subjects = vec![Subject::Gpu(GpuSlice {
            open: MINUTE / 2,
            running: MINUTE / 2,
            ..GpuSlice::default()
        })];
        subjects.extend(minute.job.map(|(units, lost)| {
            Subject::Job(JobSlice {
                name: "nightly".to_owned(),
                gpus: 1,
                attached: MINUTE,
                running: MINUTE / 2,
                launches: 10 * units,
                units,
                lost,
                ..JobSlice::default()
            })
        }));
        if minute.sets {
            subjects.push(Subject::Open(OpenSlice {
                sets: vec![(1, MINUTE / 2)],
                ..OpenSlice::default()
            }));
        }
        subjects.extend(minute.left.map(|left| {
            let mut memory = MemorySlice {
                pool: 24 * GIB,
                ..MemorySlice::default()
            };
            let level = usize::try_from(left * 8 / 24).expect("few").min(7);
            memory.open[level] = MINUTE / 2;
            memory.mean[level] = left * GIB;
            Subject::Memory(memory)
        }));
        for subject in subjects {
            ring.append(&Slice { span, subject }).expect("writable");
        }
    }
}

/// So many minutes, all the same.
fn minutes(count: usize, sets: bool, left: Option<u64>) -> Vec<Minute> {
    let minute = |_| Minute {
        sets,
        left,
        job: None,
    };
    (0..count).map(minute).collect()
}

fn command(dir: &Dir, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(words.split(' '))
        .args(["--history", "history.ring"])
        .env("TIDEGATE_RUN_DIR", dir.0.join("run"))
        .current_dir(&dir.0);
    command
}

fn place(dir: &Dir, words: &str) -> Output {
    let words = format!("place {words} --profiles profiles --memo memo.json");
    command(dir, &words).output().expect("tidegate runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory with one profile.
fn profiled() -> Dir {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.0.join("profiles")).expect("writable");
    std::fs::create_dir_all(dir.0.join("run")).expect("writable");
    dir.write("profiles/summarise.toml", PROFILE);
    dir
}

/// P-CLUSTER-22: of what nothing can be said `show` says why, and nothing is published.
#[test]
fn what_cannot_be_said_is_named_and_not_published() {
    let dir = profiled();
    let why = [
        (
            minutes(59, true, Some(20)),
            "the history is of 59 min; nothing is said before 60 min",
        ),
        (
            minutes(90, true, None),
            "memory of GPU 0 is not shared: set [memory] pool",
        ),
        // An agent that does not know of open sets wrote it.
        (
            minutes(90, false, Some(20)),
            "the history has no slice with open gates: is the agent of this version running?",
        ),
    ];
    for (told, why) in why {
        history(&dir, &told);
        let shown = text(&place(&dir, "show").stdout).replace('\n', " ");
        assert!(shown.contains(why), "{why}: {shown}");
        let said = place(&dir, "publish --engine nfd --dry-run");
        assert!(
            said.status.success() && !text(&said.stdout).contains("tidegate.dev/"),
            "{said:?}"
        );
    }
    history(&dir, &minutes(90, true, Some(20)));
    let shown = text(&place(&dir, "show -o json").stdout);
    assert!(
        shown.contains("\"percent\": 4"),
        "half of the time, for most of the memory: {shown}"
    );
    // One that is wrong does not hide the other.
    dir.write("profiles/bad.toml", "rate = 1\n");
    let shown = place(&dir, "show -o json");
    assert!(text(&shown.stdout).contains("\"percent\": 4"), "{shown:?}");
    assert!(
        text(&shown.stderr).contains("profiles/bad.toml:1: unit: missing"),
        "{shown:?}"
    );
    std::fs::remove_dir_all(dir.0.join("profiles")).expect("there");
    let shown = text(&place(&dir, "show").stdout).replace('\n', " ");
    assert!(shown.contains("no profile in profiles"), "{shown}");
}

/// P-CLUSTER-23: a prolog that fails drains its node, so `claim` exits with 0 whatever it is told.
#[test]
fn a_claim_never_fails() {
    let dir = profiled();
    let asks = "tidegate: profile=summarise sla=0.40";
    let claim = |job: Option<&str>, comment: &[u8], more: &str| {
        let words = format!("place claim --profiles profiles --memo memo.json{more}");
        let mut command = command(&dir, &words);
        command.env_remove("SLURM_JOB_ID");
        command.envs(job.map(|job| ("SLURM_JOB_ID", job)));
        command.env("SLURM_JOB_COMMENT", std::ffi::OsStr::from_bytes(comment));
        let output = command.output().expect("tidegate runs");
        assert!(
            output.status.success(),
            "{job:?} {comment:?} {more}: {output:?}"
        );
        (text(&output.stdout), text(&output.stderr))
    };
    // Without a history, and with none that is understood.
    for content in [None, Some("no history")] {
        if let Some(content) = content {
            dir.write("history.ring", content);
        }
        assert!(
            claim(Some("7"), asks.as_bytes(), "")
                .1
                .contains("job 7 gets no GPU of its own")
        );
    }
    history(&dir, &minutes(90, true, Some(20)));
    for job in [None, Some(""), Some("../7"), Some("seven")] {
        assert!(
            claim(job, asks.as_bytes(), "")
                .1
                .contains("SLURM_JOB_ID is no job")
        );
    }
    for comment in [
        &b"tidegate: profile=\xff\xfe sla=0.4"[..],
        b"tidegate: profile=$(reboot) sla=0.4",
        b"tidegate: %s%n",
    ] {
        let (said, _) = claim(Some("7"), comment, "");
        assert_eq!(said, "", "{comment:?}");
    }
    assert!(
        claim(Some("7"), b"tidegate: profile=none sla=0.4", "")
            .1
            .contains("no profile none")
    );
    assert_eq!(
        claim(Some("7"), asks.as_bytes(), ""),
        ("0\n".to_owned(), String::new())
    );
    // The only GPU is taken.
    assert!(
        claim(Some("8"), asks.as_bytes(), "")
            .1
            .contains("0 of 1 are free")
    );
    claim(Some("7"), b"", " --release");
    // A disk that takes nothing: a file stands where the claims would.
    std::fs::remove_dir_all(dir.0.join("run/claims")).expect("there");
    dir.write("run/claims", "");
    let (said, why) = claim(Some("9"), asks.as_bytes(), "");
    assert!(said.is_empty() && !why.is_empty(), "{said} {why}");
}

/// P-CLUSTER-8: an engine whose command hangs has the hook give up, with 0 and one line, and nothing is said again
/// while that is so.
#[test]
fn an_engine_that_hangs_is_one_line() {
    let dir = profiled();
    history(&dir, &minutes(90, true, Some(20)));
    let engine = dir.0.join("scontrol");
    std::fs::write(&engine, "#!/bin/sh\nsleep 600\n").expect("writable");
    std::fs::set_permissions(&engine, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let words = format!(
        "publish --engine slurm --node n1 --scontrol {}",
        engine.display()
    );
    let first = place(&dir, &words);
    assert!(first.status.success(), "{first:?}");
    let said = text(&first.stderr);
    assert!(
        said.contains("did not answer within 5 s") && said.lines().count() == 1,
        "{said}"
    );
    let second = place(&dir, &words);
    assert_eq!(
        (second.status.code(), text(&second.stderr)),
        (Some(0), String::new())
    );
    // It answers: a change, and a line.
    std::fs::write(&engine, "#!/bin/sh\necho NodeName=n1 State=IDLE Weight=1\n").expect("writable");
    let third = place(&dir, &words);
    let said = text(&third.stderr);
    assert!(
        third.status.success() && said.lines().count() == 1,
        "{said}"
    );
    assert!(
        said.contains("publishes nothing: "),
        "no agent runs here: {said}"
    );
}

/// P-CLUSTER-24: where the disk is full, what was said last stays as it was, until it lapses.
#[test]
fn a_full_disk_leaves_what_was_said_to_lapse() {
    let dir = profiled();
    history(&dir, &minutes(90, true, Some(20)));
    dir.write(
        "features",
        "# +expiry-time=2026-01-01T00:00:00Z\ntidegate.dev/summarise.1=40\n",
    );
    let before = dir.read("features");
    // No file may get longer than 0 bytes: a write fails as on a full disk, but for the number of the error.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tidegate")])
        .args("place publish --engine nfd --profiles profiles --memo memo.json --history history.ring".split(' '))
        .args(["--file", "features"])
        .env("TIDEGATE_RUN_DIR", dir.0.join("run"))
        .current_dir(&dir.0);
    let output = command.output().expect("sh is there");
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains("publishes nothing new: features: "),
        "{output:?}"
    );
    assert_eq!(dir.read("features"), before);
    let entries = std::fs::read_dir(&dir.0).expect("there").flatten();
    let left: Vec<_> = entries
        .filter(|entry| text(entry.file_name().as_bytes()).starts_with(".features"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// P-PLACE-8: a profile of what a job did is printed as the node reads it, and what its history does not tell is
/// refused in one line.
#[test]
fn a_profile_is_fitted_to_what_a_job_did() {
    let dir = profiled();
    // 30 s of each minute, by a curve of half a rate at 6 GiB.
    let minute = |at: u64| {
        let left = 3 + at * 7 % 21;
        let share = left as f64 * 1.25 / (left as f64 + 6.0);
        Minute {
            sets: true,
            left: Some(left),
            job: Some(((30.0 * 2_400.0 * share) as u64, 0)),
        }
    };
    let all: Vec<_> = (0..60).map(minute).collect();
    history(&dir, &all);
    let fit = |words: &str| {
        command(&dir, &format!("place profile fit {words}"))
            .output()
            .expect("tidegate runs")
    };
    let output = fit("nightly");
    assert!(output.status.success(), "{output:?}");
    dir.write("nightly.toml", &text(&output.stdout));
    let profile = tidegate_place::profiles::one(&dir.0.join("nightly.toml")).expect("a profile");
    for gib in [4.0, 8.0, 16.0] {
        let (said, is) = (
            profile.rate() * profile.memory_share(gib),
            2_400.0 * gib * 1.25 / (gib + 6.0),
        );
        assert!(
            (said / is - 1.0).abs() < 0.05,
            "{gib} GiB: {said} is not {is}\n{}",
            text(&output.stdout)
        );
    }
    assert_eq!(profile.unit(), "tokens");
    let same: Vec<_> = (0..60)
        .map(|_| Minute {
            sets: true,
            left: Some(20),
            job: Some((9_000, 0)),
        })
        .collect();
    for (told, words, part) in [
        (&all[..], "daily", "has no job \"daily\""),
        (&all[..9], "nightly", "9 slices of the history"),
        (
            &all[..],
            "nightly --name Nightly",
            "name: \"Nightly\" is not 1 to 32",
        ),
        (&same[..], "nightly", "give its half memory"),
    ] {
        history(&dir, told);
        let output = fit(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            said.contains(part) && output.stdout.is_empty(),
            "{words}: {said}"
        );
    }
    history(&dir, &same);
    let output = fit("nightly --half 6GiB");
    assert!(
        text(&output.stdout).contains("half = \"6144MiB\""),
        "{output:?}"
    );
}
