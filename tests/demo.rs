//! The demo's promises that need no quiet machine: what it measures with, not how well it did. And the two commands of
//! the manual that train, on a machine without a GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::{BUILT, Node, Running, TRUSTING, TempDir, built, compile};
use tidegate_vgpu::history::{self, Kind};

/// Runs the demo with `args`; returns its table and its JSON.
fn demo(args: &[&str]) -> (String, Value) {
    demo_with(args, &[])
}

fn demo_with(args: &[&str], env: &[(&str, &Path)]) -> (String, Value) {
    let dir = TempDir::new();
    let [json, html] = ["figures.json", "page.html"].map(|name| dir.path().join(name));
    let _ = &*BUILT;
    let table = Running::start(
        "demo",
        Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(args)
            .arg("--json")
            .arg(&json)
            .arg("--html")
            .arg(&html)
            .env("TIDEGATE_TESTS_BUILT", "1")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .succeed();
    let page = std::fs::read_to_string(html).expect("the demo wrote its page");
    // Each run's online, and offline in two of them, twice.
    let bars = |class: &str| {
        let group = format!("<g class=\"{class}\">");
        let groups = page.split(&group).skip(1);
        groups.filter(|group| group.starts_with("<rect")).count()
    };
    assert_eq!(bars("own").min(3), 3, "{page}");
    assert!(
        (2..=4).contains(&bars("s1")) && page.contains("VIRTUAL GPU"),
        "{page}"
    );
    let figures = std::fs::read(json).expect("the demo wrote its figures");
    (table, serde_json::from_slice(&figures).expect("JSON"))
}

/// P-REPLAY-2: the demo counts what it says.
#[test]
fn without_a_cooldown_a_request_is_preempted_more_than_once() {
    let (table, figures) = demo(&["--seconds", "4", "--cooldown-fixed-ms", "0"]);
    let per_request = &figures["runs"]["tidegate"]["preemptions_per_request"];
    assert!(
        per_request["mean"].as_f64() > Some(1.0),
        "{table}\n{figures:#}"
    );
    assert!(
        per_request["max"].as_u64() > Some(1),
        "{table}\n{figures:#}"
    );
}

/// P-REPLAY-2: the demo counts what it says.
/// P-OPERATE-27: its page has a time line of each run (`demo_with`).
#[test]
fn every_figure_is_measured_in_a_short_run_too() {
    let (table, figures) = demo(&["--seconds", "4"]);
    let positive = |pointer: &str| {
        let value = figures.pointer(pointer).and_then(Value::as_f64);
        assert!(value > Some(0.0), "{pointer} is {value:?}\n{table}");
    };
    for run in ["alone", "uncontrolled", "tidegate"] {
        for figure in ["mean", "p50", "p99"] {
            positive(&format!("/runs/{run}/ttft_ms/{figure}"));
            positive(&format!("/runs/{run}/tpot_ms/{figure}"));
        }
    }
    for figure in ["p50", "p99", "max"] {
        positive(&format!("/runs/tidegate/preempt_latency_us/{figure}"));
    }
    positive("/runs/uncontrolled/offline_tokens_per_s");
    positive("/runs/tidegate/offline_tokens_per_s");
    positive("/runs/tidegate/preemptions_per_request/max");
    positive("/runs/tidegate/harvest_ratio");
    assert_eq!(figures["runs"]["alone"]["offline_tokens_per_s"], 0.0);
    assert!(table.contains("with offline, Tidegate"), "{table}");
}

/// Replay decides what the agent decided, event by event.
/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn what_the_agent_recorded_of_the_demo_is_decided_again_by_replay() {
    let dir = TempDir::new();
    let recording = dir.path().join("decisions");
    let (table, _) = demo_with(&["--seconds", "4"], &[("TIDEGATE_RECORD", &recording)]);
    let recording = std::fs::read(recording).expect("the agent wrote its decisions");
    match tidegate_record::replay(&recording[..]) {
        Ok(replayed) => assert!(
            replayed.events > 100 && replayed.effects > 50,
            "{replayed:?}\n{table}"
        ),
        Err(error) => panic!("{error}\n{table}"),
    }
}

/// `tidegate try` with these arguments: standard output, standard error, and its exit code.
fn try_it(args: &[&str]) -> (String, String, Option<i32>) {
    let _ = &*BUILT;
    let mut command = Command::new(built("tidegate"));
    command.arg("try").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = Running::start("tidegate try", &mut command).finish();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    (out, said, output.status.code())
}

/// P-OPERATE-29: a program runs as it is, and what is said of it is what the device saw.
#[test]
fn a_program_of_ones_own_runs_gated_on_the_virtual_gpu() {
    let program = compile("offline", &["-lcuda"]);
    let program = program.to_str().expect("UTF-8");
    let (out, said, code) = try_it(&["--limit", "4s", "--", program]);
    assert_eq!(code, Some(0), "{said}");
    // It counts its own kernels, and prints how many it saw finish.
    let own = out.lines().last().and_then(|line| line.parse::<u64>().ok());
    let row = |name: &str| {
        let mut rows = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name));
        rows.next_back().unwrap_or_default().trim().replace(',', "")
    };
    let own = own.expect("it printed a number");
    assert!(own > 10, "{out}");
    let launches = row("launches");
    assert!(
        launches.ends_with(&format!("began {own} of them ended")),
        "{launches}"
    );
    let gates = row("gates");
    let times = gates.split_once("were disabled ").and_then(|(_, rest)| {
        let (times, _) = rest.split_once(" times")?;
        times.parse::<u64>().ok()
    });
    assert!(times > Some(0), "online had requests: {said}");
    assert_eq!(row("processes"), "1", "{said}");
    assert!(said.contains("VIRTUAL GPU"), "{said}");
}

/// P-OPERATE-29: the commands that a user types beside the program see the node, and name no GPU that is not there.
#[test]
fn whatever_shows_the_gpu_of_a_trial_calls_it_virtual() {
    let tidegate = built("tidegate");
    let tidegate = tidegate.to_str().expect("UTF-8");
    let alone = |args: &[&str]| {
        let (out, said, code) = try_it(&[&["--alone", "--", tidegate], args].concat());
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("launched nothing"), "{said}");
        out
    };
    let table = alone(&["status"]);
    assert!(table.contains("VIRTUAL NVIDIA H100"), "{table}");
    let json = alone(&["status", "--output", "json"]);
    let status: Value = serde_json::from_str(&json).expect("JSON");
    let model = status["gpus"][0]["model"].as_str().expect("a name");
    assert!(model.starts_with("VIRTUAL "), "{model}");
    let program = compile("device_name", &["-lcuda"]);
    let (out, said, _) = try_it(&["--alone", "--", program.to_str().expect("UTF-8")]);
    assert!(out.starts_with("VIRTUAL "), "{out}{said}");
}

/// P-OPERATE-29: the exit code is the program's.
#[test]
fn a_trial_ends_as_its_program_does() {
    let (_, said, code) = try_it(&["--alone", "--", "sh", "-c", "exit 7"]);
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("libcudart"), "{said}");
    let (_, said, code) = try_it(&["--alone", "--", "/nowhere/program"]);
    assert_eq!(code, Some(127), "{said}");
    assert!(said.contains("cannot start /nowhere/program"), "{said}");
}

/// The Python of `scripts/finetune`, if that was run here: with torch it takes 5.3 GB.
fn python_that_trains() -> Option<PathBuf> {
    let python = BUILT.parent()?.join("finetune/venv/bin/python");
    python.is_file().then_some(python)
}

/// P-TRAINER-9: `tidegate finetune` and a script under `tidegate run` train where there is no GPU.
#[test]
fn both_commands_train_without_a_gpu() {
    let Some(python) = python_that_trains() else {
        return eprintln!("SKIPPED: no torch under target/finetune (scripts/finetune installs it)");
    };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let node = Node::new(
        &["--set", "poison=0xa5"],
        &format!("{TRUSTING}[memory]\npool = \"64MiB\"\n"),
    );
    let file = |name: &str| node.dir().join(name);
    let start = |what: &str, command: &mut Command| {
        let command = command
            .env("LD_LIBRARY_PATH", &*BUILT)
            .env("LD_PRELOAD", built("libvgpu_rm.so"))
            .env("PYTHONPATH", sources.join("../interposer/engines"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", file("home"))
            .env("OMP_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running::start(what, command)
    };
    let mut made = Command::new(&python);
    let made = made.arg(sources.join("finetune/tiny.py")).arg(node.dir());
    start("tiny.py", made).succeed();
    // Kernels of units are launched by the process that trains, which the command line becomes.
    let launched = |pid: u32| {
        let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
        let own = |record: &&history::Record| record.pid == pid && record.kind == Kind::KernelStart;
        records.iter().filter(own).count()
    };
    let adapter = |out: &str| {
        let read = |name: &str| std::fs::read(file(out).join(name)).expect("an adapter is there");
        let config: Value =
            serde_json::from_slice(&read("adapter_config.json")).expect("PEFT's JSON");
        assert_eq!(config["peft_type"], "LORA");
        read("adapter_model.safetensors")
    };

    let library = built("libtidegate.so");
    let mut command = node.tidegate_command(&["finetune", "--lora", "r=16,alpha=32"]);
    command
        .args(["--device", "virtual", "--steps", "3", "--batch", "2"])
        .args(["--job", &format!("finetune-{}", node.device.pid())])
        .args(["--model".as_ref(), file("model").as_os_str()])
        .args(["--data".as_ref(), file("data.jsonl").as_os_str()])
        .args(["--out".as_ref(), file("support").as_os_str()])
        .args(["--python".as_ref(), python.as_os_str()])
        .args(["--library".as_ref(), library.as_os_str()]);
    let running = start("tidegate finetune", &mut command);
    let pid = running.pid();
    let said = running.succeed();
    assert!(said.contains("step 3/3  loss "), "{said}");
    assert!(said.contains("the adapter is at "), "{said}");
    adapter("support");
    // Three layers, forward and backward, three times.
    assert!(launched(pid) >= 18, "{} kernels", launched(pid));
    let events = node.tidegate(&["events"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    assert!(events.contains("adapter_saved"), "{events}");

    // A job's log is shared memory under its name, and others on this machine may have one.
    let job = format!("tune-{}", node.device.pid());
    let mut command = node.tidegate_command(&["run", "--offline", "--job", &job]);
    command
        .args(["--library".as_ref(), library.as_os_str()])
        .arg("--")
        .arg(&python)
        .arg(sources.join("finetune/scripts/accelerate_loop.py"))
        .args([file("model"), file("data.jsonl"), file("tuned")])
        .arg("2")
        .env("TIDEGATE_FINETUNE_DEVICE", "virtual");
    let running = start("tidegate run", &mut command);
    let pid = running.pid();
    let ended = running.finish();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    adapter("tuned");
    assert!(
        launched(pid) >= 12,
        "{} kernels, and it said: {said}",
        launched(pid)
    );
}
