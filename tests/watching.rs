//! What a node did can be followed, summed up over days, and looked at in a terminal.

use serde_json::Value;
use std::process::Command;
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, monotonic_ns, wait_for, watch};
use tidegate_vgpu::history::{self, Kind};

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn said(node: &Node, args: &[&str]) -> String {
    let output = node.tidegate(args);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {why}");
    String::from_utf8(output.stdout).expect("text")
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn events_are_chosen_by_kind_process_and_time_and_name_their_process() {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let asked = |args: &str| {
        let words = ["events", "--output", "json"].into_iter();
        let words: Vec<_> = words.chain(args.split_whitespace()).collect();
        json_lines(&said(&node, &words))
    };
    let attached = asked("--kind attached");
    assert_eq!(attached.len(), 1, "{attached:?}");
    assert_eq!(attached[0]["pid"], pid);
    let own = asked(&format!("--pid {pid}"));
    assert!(
        !own.is_empty() && own.iter().all(|event| event["pid"] == pid),
        "{own:?}"
    );
    assert!(asked("--kind preempted,woken --pid 1").is_empty());
    assert_eq!(asked("--kind attached --since 1h"), attached);
    let after = attached[0]["seq"].as_u64().expect("a number") + 1;
    assert!(asked(&format!("--kind attached --since {after}")).is_empty());
    // A kind that is none is wrong usage, not a quiet node, and the kinds are listed.
    let bogus = node.tidegate(&["events", "--kind", "bogus"]);
    assert_eq!(bogus.status.code(), Some(2), "{bogus:?}");
    let why = String::from_utf8_lossy(&bogus.stderr);
    assert!(why.contains("bogus") && why.contains("preempted"), "{why}");
    let help = said(&node, &["events", "--help"]);
    assert!(help.contains("- wake_overtaken:"), "{help}");
    offline.stop();
}

/// P-OPERATE-13: an event and its line in the log name the same moment of the same calendar.
#[test]
fn an_event_has_the_time_that_its_line_in_the_log_has() {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let line = said(&node, &["events", "--kind", "attached"]);
    let shown = line.split_whitespace().nth(1).expect("a time").to_owned();
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    let logged = log
        .lines()
        .find(|line| line.contains("attached: pid"))
        .and_then(|line| line.split_whitespace().next())
        .expect("the attach is logged");
    // Seconds since the day's midnight: the day may end between the two.
    let of_day = |stamp: &str| {
        let time = stamp.split(['T', 'Z']).nth(1).expect("a time of day");
        time.split(':')
            .map(|part| part.parse::<f64>().expect("a number"))
            .fold(0.0, |sum, part| sum * 60.0 + part)
    };
    let apart = (of_day(logged) - of_day(&shown)).rem_euclid(86_400.0);
    assert!(
        shown.len() == logged.len() && apart < 5.0,
        "{shown} in events, {logged} in the log"
    );
    let json = json_lines(&said(
        &node,
        &["events", "--kind", "attached", "-o", "json"],
    ));
    let unix_s = json[0]["unix_ns"].as_u64().expect("a time") / 1_000_000_000;
    let now_s = std::time::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs();
    assert!(now_s - unix_s < 600, "{unix_s}, and it is {now_s}");
    offline.stop();
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn logs_are_json_when_asked_and_their_level_changes_while_the_agent_runs() {
    let config = format!("{TRUSTING}\n[log]\nformat = \"json\"\nlevel = \"warn\"\n");
    let node = Node::new(&[], &config);
    let log = || std::fs::read_to_string(node.agent_log()).expect("a log");
    assert!(
        !log().contains("\"attached"),
        "info is not logged: {}",
        log()
    );
    let answer = said(&node, &["log-level", "info"]);
    assert_eq!(answer, "info (before: warn)\n");
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    wait_for("the attach in the log", || {
        log().contains("attached: pid").then_some(())
    });
    let bad = node.tidegate(&["log-level", "verbose"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("`verbose` is not a log level"));
    assert_eq!(said(&node, &["log-level"]), "warn (before: info)\n");
    let before = log().lines().count();
    offline.running();
    offline.stop();
    wait_for("its end", || {
        said(&node, &["events"]).contains("exited").then_some(())
    });
    assert_eq!(log().lines().count(), before, "{}", log());
    for line in json_lines(&log()) {
        assert!(
            line["level"].is_string() && line["timestamp"].is_string(),
            "{line}"
        );
        assert!(line["message"].is_string(), "{line}");
    }
}

fn keeping(file: &std::path::Path) -> String {
    format!(
        "{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n[history]\nfile = \"{}\"\nsize = \"1MiB\"\nevery = \"1s\"\n",
        file.display()
    )
}

/// P-OPERATE-14: a history survives and never grows, a report adds up.
#[test]
fn a_report_tells_what_was_harvested_and_survives_a_killed_agent() {
    let mut node = Node::device_only(&["--gpus", "2"]);
    let file = node.dir().join("history.ring");
    let config = keeping(&file);
    node.start_agent(&config);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let name = file.to_str().expect("a path");
    let report = |node: &Node| {
        let output = node.tidegate(&["report", "--file", name, "--output", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).ok()
    };
    let found = wait_for("a slice with both at work", || {
        online.say("burst 5 2000000");
        watch::wait_open(&node, 0, online.process.pid());
        report(&node).filter(|report| {
            let gpu = &report["gpus"][0];
            let counted = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
            counted(&gpu["online_busy"])
                && counted(&gpu["preemptions"])
                && counted(&gpu["gaps"]["count"])
                && counted(&report["jobs"][0]["throughput_fraction"])
        })
    });
    let gpu = &found["gpus"][0];
    let share = |name: &str| gpu[name].as_f64().expect("a share");
    assert!(
        share("harvested") > 0.0 && share("harvested") <= 1.0,
        "{found:#}"
    );
    assert!(
        share("online_busy") + share("gate_open") <= 1.0 + 1e-9,
        "{found:#}"
    );
    let job = &found["jobs"][0];
    assert!(
        job["launches"].as_u64() > Some(0) && job["gpus"] == 1,
        "{found:#}"
    );
    assert!(
        job["gpus_saved"].as_f64().expect("known") > 0.0,
        "{found:#}"
    );
    assert_eq!(
        found["pairs"].as_array().map(Vec::len),
        Some(1),
        "{found:#}"
    );
    assert_eq!(found["gpus"][1]["online_busy"], 0.0, "{found:#}");
    let observed = |report: &Value| report["gpus"][0]["observed_ns"].as_u64().expect("a time");
    // Killed at any moment, it leaves what it had written, and its successor goes on behind it.
    node.agent.take().expect("an agent").signal(libc::SIGKILL);
    let known = observed(&report(&node).expect("still readable"));
    node.start_agent(&config);
    wait_for("the successor's slices", || {
        report(&node).filter(|report| observed(report) > known)
    });
    let agent = node.agent.take().expect("an agent");
    agent.signal(libc::SIGTERM);
    agent.succeed();
    let text = said(&node, &["report", "--file", name]);
    assert!(
        text.contains("HARVESTED") && text.contains("GPUs saved in all"),
        "{text}"
    );
    let csv = said(&node, &["report", "--file", name, "--output", "csv"]);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert!(
        rows.len() > 2 && rows.iter().all(|row| row.len() == rows[0].len()),
        "{csv}"
    );
    assert_eq!(
        std::fs::metadata(&file).expect("a file").len() / (1 << 10),
        1_023
    );
}

/// P-OPERATE-14: the time of short jobs is in the report whole, until they left or were killed.
#[test]
fn a_report_has_the_whole_time_of_jobs_that_came_and_left() {
    let mut node = Node::device_only(&[]);
    let file = node.dir().join("history.ring");
    node.start_agent(&keeping(&file));
    let launched = |node: &Node, pid: u32| {
        let records = history::read(&node.vgpu_dir()).expect("the device writes its history");
        let own = |record: &&history::Record| record.kind == Kind::KernelEnd && record.pid == pid;
        records.iter().filter(own).count() as u64
    };
    let mut jobs = Vec::new();
    for nth in 1..=6_u64 {
        let begin = monotonic_ns();
        let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
        let name = format!("job-{nth}");
        command.args(["1000000", "0"]).env("TIDEGATE_JOB", &name);
        let mut offline = Offline::from_command(&mut command);
        offline.running();
        let pid = offline.process.pid();
        wait_for("its kernels", || {
            (launched(&node, pid) >= 20 * nth).then_some(())
        });
        let killed = nth % 2 == 0;
        if killed {
            offline.process.signal(libc::SIGKILL);
            drop(offline);
        } else {
            offline.stop();
        }
        // Kernels of a millisecond, one after the other, none before it was attached.
        jobs.push((name, 20_000_000 * nth, monotonic_ns() - begin));
    }
    let agent = node.agent.take().expect("an agent");
    agent.signal(libc::SIGTERM);
    agent.succeed();
    let file = file.to_str().expect("a path");
    let report = said(&node, &["report", "--file", file, "--output", "json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["jobs"].as_array().expect("a list");
    for (name, least, most) in jobs {
        let row = rows.iter().find(|row| row["job"] == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not in {report:#}"));
        let attached = row["attached_ns"].as_u64().expect("a time");
        assert!(
            (least..=most).contains(&attached),
            "{name}: attached for {attached} ns, by the device {least} at least, {most} at most"
        );
    }
}

/// P-OPERATE-14: a history survives and never grows, a report adds up.
#[test]
fn a_history_that_cannot_be_kept_stops_nothing_and_is_kept_again_when_it_can() {
    let mut node = Node::device_only(&[]);
    let place = node.dir().join("missing");
    node.start_agent(&keeping(&place.join("history.ring")));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let log = || std::fs::read_to_string(node.agent_log()).expect("a log");
    wait_for("a complaint", || {
        log()
            .contains("cannot write the history for now")
            .then_some(())
    });
    online.say("burst 5 2000000");
    wait_for("the preemption all the same", || {
        (watch::status(&node)["gpus"][0]["preemptions"].as_u64() > Some(0)).then_some(())
    });
    std::fs::create_dir(&place).expect("the directory");
    wait_for("the history", || {
        log()
            .contains("the history is being written again")
            .then_some(())
    });
    assert_eq!(
        log().matches("cannot write the history for now").count(),
        1,
        "said once"
    );
    offline.stop();
}

/// A file system in memory that this thread and what it starts see, and nobody else.
struct Small(std::path::PathBuf);

impl Small {
    /// Mounts one of `kib` KiB; None where nobody may.
    fn mount(at: &std::path::Path, kib: u32) -> Option<Self> {
        // SAFETY: plain system call; what it parts is this thread's, which starts no other before it ends.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return None;
        }
        let options = format!("size={kib}k");
        let small = Self(at.to_owned());
        let private = small.run("mount", &["--make-rprivate", "/"], None);
        let mounted =
            private && small.run("mount", &["-t", "tmpfs", "-o", &options, "none"], Some(at));
        mounted.then_some(small)
    }

    fn run(&self, program: &str, arguments: &[&str], at: Option<&std::path::Path>) -> bool {
        let mut command = std::process::Command::new(program);
        let status = command.args(arguments).args(at).status();
        status.is_ok_and(|status| status.success())
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("full")).expect("room for a name");
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    }

    fn grow(&self, kib: u32) {
        let options = format!("remount,size={kib}k");
        assert!(
            self.run("mount", &["-o", &options], Some(&self.0)),
            "it grows"
        );
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.run("umount", &["-l"], Some(&self.0));
    }
}

/// P-OPERATE-14: a history survives and never grows, a report adds up.
#[test]
fn a_full_file_system_under_the_run_directory_and_the_history_stops_nothing_and_is_said_once() {
    let mut node = Node::device_only(&[]);
    let run_dir = node.run_dir();
    // Room for the journal, which an agent makes before anything else, and not for the history.
    let Some(small) = Small::mount(&run_dir, 512) else {
        eprintln!("SKIPPED: no file system may be mounted here");
        return;
    };
    let config = keeping(&run_dir.join("history.ring"));
    let complaints = |node: &Node| {
        let log = std::fs::read_to_string(node.agent_log()).expect("a log");
        log.matches("cannot write the history for now: No space left")
            .count()
    };
    node.start_agent(&config);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    let turn = |node: &Node, online: &mut Online| {
        watch::wait_open(node, 0, online.process.pid());
        online.say("burst 5 2000000");
        wait_for("a preemption", || {
            (watch::status(node)["gpus"][0]["preemptions"].as_u64() > Some(0)).then_some(())
        });
    };
    wait_for("a complaint", || (complaints(&node) == 1).then_some(()));
    small.fill();
    turn(&node, &mut online);
    // The next agent finds not a byte left, but for the journal of this one.
    node.agent = None;
    node.start_agent(&config);
    turn(&node, &mut online);
    wait_for("a complaint", || (complaints(&node) == 2).then_some(()));
    small.grow(16 << 10);
    wait_for("the history", || {
        let log = std::fs::read_to_string(node.agent_log()).expect("a log");
        log.contains("the history is being written again")
            .then_some(())
    });
    assert_eq!(complaints(&node), 2, "said once in each life");
    offline.stop();
}

/// A terminal with a program in it.
struct Terminal(String);

impl Terminal {
    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.0, "-f", "/dev/null"])
            .args(args)
            .output()
            .expect("tmux starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn wait(&self, what: &str, shown: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = tidegate_tests::wait_until(tidegate_tests::clock::DEADLINE, || {
            last = self.tmux(&["capture-pane", "-p", "-t", "top"]);
            shown(&last).then(|| last.clone())
        });
        // For whoever wants to look at what was shown.
        if let Some(dir) = std::env::var_os("TIDEGATE_TESTS_FRAMES") {
            let painted = self.tmux(&["capture-pane", "-e", "-p", "-t", "top"]);
            let file = std::path::Path::new(&dir).join(format!("{}.ansi", what.replace(' ', "-")));
            std::fs::write(file, painted).expect("the directory is there");
        }
        found.unwrap_or_else(|| panic!("no {what} in\n{last}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Pauses and resumes the only job, drains the node and takes it back, each by its key and its confirmation; what the
/// node is then comes from status.
fn act_from_the_terminal(node: &Node, terminal: &Terminal) {
    let key = |key: &str| {
        terminal.tmux(&["send-keys", "-t", "top", key]);
    };
    let state = || watch::status(node)["jobs"][0]["state"].clone();
    let drained = || watch::status(node)["drained"].is_object();
    key("p");
    let asked = terminal.wait("question", |text| text.contains("y: yes"));
    assert!(asked.contains("pause job "), "{asked}");
    key("n");
    terminal.wait("no question", |text| !text.contains("y: yes"));
    assert_ne!(state(), "paused", "nothing was confirmed");
    for (word, held) in [("p", true), ("r", false)] {
        key(word);
        terminal.wait("question", |text| text.contains("y: yes"));
        key("y");
        let done = if held { "paused: " } else { "resumed: " };
        terminal.wait("what came of it", |text| text.contains(done));
        assert_eq!(state() == "paused", held);
    }
    for held in [true, false] {
        key("d");
        terminal.wait("question", |text| text.contains("y: yes"));
        key("y");
        terminal.wait("DRAINED or not", |text| {
            text.contains("   DRAINED") == held && !text.contains(" ...")
        });
        assert_eq!(drained(), held);
    }
}

/// P-OPERATE-13: events, log level and terminal show the node.
#[test]
fn top_shows_a_node_in_a_real_terminal_obeys_its_keys_and_says_that_the_agent_is_gone() {
    if Command::new("tmux").arg("-V").output().is_err() {
        eprintln!("SKIPPED: tmux is not installed");
        return;
    }
    let mut node = Node::new(&["--gpus", "2"], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let terminal = Terminal(format!("tg-{}", std::process::id()));
    let tidegate = tidegate_tests::built("tidegate");
    let line = format!(
        "{} --run-dir {} top; echo ended with $?; sleep 1000",
        tidegate.display(),
        node.run_dir().display()
    );
    terminal.tmux(&[
        "new-session",
        "-d",
        "-s",
        "top",
        "-x",
        "80",
        "-y",
        "24",
        &line,
    ]);
    let pids = [offline.process.pid(), online.process.pid()];
    let first = terminal.wait("node with its processes", |text| {
        pids.iter().all(|pid| text.contains(&pid.to_string())) && text.contains("open")
    });
    assert!(
        first.contains("MEMORY") && first.contains("sort (by role)"),
        "{first}"
    );
    terminal.tmux(&["send-keys", "-t", "top", "s"]);
    terminal.wait("other order", |text| text.contains("sort (by pid)"));
    terminal.tmux(&["send-keys", "-t", "top", "h"]);
    terminal.wait("help", |text| text.contains("what this shows"));
    terminal.tmux(&["send-keys", "-t", "top", "h"]);
    terminal.wait("no help", |text| !text.contains("what this shows"));
    act_from_the_terminal(&node, &terminal);
    node.agent.take().expect("an agent").signal(libc::SIGKILL);
    let gone = terminal.wait("lost agent", |text| text.contains("THE AGENT IS GONE"));
    assert!(
        gone.contains(&pids[0].to_string()),
        "what it said last stays: {gone}"
    );
    node.start_agent(TRUSTING);
    terminal.wait("agent that is back", |text| {
        !text.contains("GONE") && text.contains("up ")
    });
    terminal.tmux(&["send-keys", "-t", "top", "q"]);
    terminal.wait("end", |text| text.contains("ended with 0"));
    let once = said(&node, &["top", "--once"]);
    assert!(once.contains("GATE") && once.contains("MEMORY"), "{once}");
    let absent = Terminal(format!("tg-absent-{}", std::process::id()));
    let line = format!("{} --run-dir /nonexistent top", tidegate.display());
    absent.tmux(&[
        "new-session",
        "-d",
        "-s",
        "top",
        "-x",
        "80",
        "-y",
        "24",
        &line,
    ]);
    absent.wait("absent agent", |text| {
        text.contains("systemctl start tidegate-agent")
    });
}
