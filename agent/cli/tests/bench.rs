//! `tidegate bench` against a server whose latencies are known, over real HTTP, and with other tools' files.

#[path = "bench/fake.rs"]
mod fake;
#[path = "bench/tls.rs"]
mod tls;

use fake::{Behaviour, Fake, Fault};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_agent::clock::now_ns;

/// A directory of one test's own.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("tidegate-bench-{}-{name}", std::process::id());
        let dir = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&dir.0).expect("a temporary directory");
        dir
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command in a place without an agent.
fn command(dir: &Dir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["bench", "--run-dir"])
        .arg(dir.path())
        .args(args)
        .arg("--json")
        .arg(dir.path().join("figures.json"))
        .env_remove("OPENAI_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn bench(dir: &Dir, args: &[&str]) -> Output {
    command(dir, args).output().expect("tidegate runs")
}

fn figures(dir: &Dir, output: &Output) -> Value {
    let file = std::fs::read(dir.path().join("figures.json"))
        .unwrap_or_else(|error| panic!("{error}: {}", said(output)));
    serde_json::from_slice(&file).expect("JSON")
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{:?}\n{}\n{}",
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// What the command said of each kind of failure while it ran.
fn failure_lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = text.lines().filter(|line| line.contains("failed: "));
    lines.map(str::to_owned).collect()
}

/// Blocks of so many seconds with nothing cut away, there and back, 15 requests a second.
fn blocks<'a>(url: &'a str, seconds: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = [
        "--target",
        url,
        "--seconds",
        seconds,
        "--rate",
        "15",
        "--warm-up",
        "0",
        "--cool-down",
        "0",
        "--cycles",
        "1",
        "--output-tokens",
        "8",
    ];
    [&all[..], more].concat()
}

/// How late this machine wakes who sleeps, beside what else runs on it.
struct Lateness {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Lateness {
    fn begin() -> Self {
        const STEP: Duration = Duration::from_millis(5);
        let ends = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let slept = now_ns();
                std::thread::sleep(STEP);
                late.push(Duration::from_nanos(now_ns() - slept).saturating_sub(STEP));
            }
            late
        });
        Self { ends, thread }
    }

    fn mean_ms(self) -> f64 {
        self.ends.store(true, Ordering::Relaxed);
        let late = self.thread.join().expect("it sleeps");
        late.iter().sum::<Duration>().as_secs_f64() * 1e3 / late.len() as f64
    }
}

/// P-BENCH-3: over real HTTP the means are within 1 % of what the server did, and what the machine itself is late by;
/// nothing is compared without an agent.
#[test]
fn means_are_those_of_the_server() {
    for endpoint in ["completions", "chat"] {
        let fake = Fake::start(Behaviour {
            ttft: Duration::from_millis(150),
            tpot: Duration::from_millis(12),
            ..Behaviour::default()
        });
        let dir = Dir::new("means");
        let machine = Lateness::begin();
        let output = bench(
            &dir,
            &blocks(
                &fake.url,
                "3",
                &[
                    "--seed",
                    "7",
                    "--endpoint",
                    endpoint,
                    "--input-tokens",
                    "20",
                ],
            ),
        );
        assert!(output.status.success(), "{}", said(&output));
        // A request is late once on its way to the server, and once its answer.
        let late_ms = 2.0 * machine.mean_ms();
        let figures = figures(&dir, &output);
        let did = fake.did();
        let truth = |of: fn(&fake::Did) -> f64| did.iter().map(of).sum::<f64>() / did.len() as f64;
        let blocks = figures["blocks"].as_array().expect("blocks");
        assert_eq!(blocks.len(), 2, "there and back");
        let mean = |name: &str| {
            let weighed = blocks.iter().map(|block| {
                let count = block["requests"].as_f64().expect("a count");
                (block[name]["mean"].as_f64().expect("a mean") * count, count)
            });
            let (sum, count) = weighed.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            assert_eq!(
                count as usize,
                did.len(),
                "every request counts: {}",
                said(&output)
            );
            sum / count
        };
        for (name, truth) in [
            ("ttft_ms", truth(|did| did.ttft_ms)),
            ("tpot_ms", truth(|did| did.tpot_ms)),
        ] {
            let mean = mean(name);
            let of = format!("{endpoint}, seed 7: {name} {mean:.3}, the server {truth:.3}");
            println!("{of}, the machine {late_ms:.3} ms late");
            assert!((mean - truth).abs() < 0.01 * truth + late_ms, "{of}");
        }
        assert!(
            blocks
                .iter()
                .all(|block| block["mode"] == "alone" && block["partial"].is_null())
        );
        assert!(figures["paired"].is_null());
        assert!(
            said(&output).contains("no agent listens"),
            "{}",
            said(&output)
        );
        assert!(
            figures["about"]["Versions"]
                .as_str()
                .is_some_and(|said| said.contains("0.0-fake"))
        );
        // No answer may come of what a server kept of an earlier prompt.
        let prompts = fake.prompts();
        assert_eq!(prompts.iter().collect::<BTreeSet<_>>().len(), prompts.len());
        assert!(prompts.iter().all(|prompt| prompt.split(' ').count() == 20));
    }
}

/// P-BENCH-4: a server that refuses, fails, cuts or falls over in an answer costs a line for each kind, and the rest counts.
#[test]
fn failures_are_a_line_each_and_the_rest_counts() {
    for (fault, words) in [
        (
            Fault::Status(429),
            "the server answers 429 (too many requests",
        ),
        (
            Fault::Status(500),
            "the server answers 500 (the server's own failure: see its log): no room",
        ),
        (Fault::Cut, "the answer was cut: "),
        (Fault::Short, "the answer was cut: it ended without [DONE]"),
        (
            Fault::Error,
            "the server reports an error in its answer: engine dead",
        ),
    ] {
        let fake = Fake::start(Behaviour {
            ttft: Duration::from_millis(20),
            tpot: Duration::from_millis(2),
            fault: Some((5, fault)),
            ..Behaviour::default()
        });
        let dir = Dir::new("faults");
        let output = bench(&dir, &blocks(&fake.url, "3", &["--slo", "ttft=1s"]));
        let text = said(&output);
        assert!(output.status.success(), "{fault:?}: {text}");
        let figures = figures(&dir, &output);
        let sum = |name: &str| -> u64 {
            let blocks = figures["blocks"].as_array().expect("blocks").iter();
            blocks
                .map(|block| block[name].as_u64().expect("a count"))
                .sum()
        };
        let (served, failed) = (sum("requests"), sum("failed"));
        assert_eq!(failed, (served + failed) / 5, "{fault:?}: {text}");
        assert_eq!(served as usize, fake.did().len(), "{fault:?}: {text}");
        assert!(
            sum("good") <= served && sum("good") > 0,
            "{fault:?}: {text}"
        );
        let lines = failure_lines(&output);
        // One for each of the two blocks.
        assert_eq!(lines.len(), 2, "{fault:?}: {text}");
        assert!(
            lines.iter().all(|line| line.contains(words)),
            "{fault:?}: {text}"
        );
    }
}

/// P-BENCH-4: of a server that dies what was measured is kept and marked, and the command fails.
#[test]
fn what_was_measured_before_the_server_died_is_kept() {
    let fake = Fake::start(Behaviour {
        ttft: Duration::from_millis(5),
        tpot: Duration::from_millis(1),
        fault: Some((12, Fault::Die)),
        ..Behaviour::default()
    });
    let dir = Dir::new("dies");
    let output = bench(&dir, &blocks(&fake.url, "600", &[]));
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let figures = figures(&dir, &output);
    let blocks = figures["blocks"].as_array().expect("blocks");
    assert_eq!(blocks.len(), 1, "{text}");
    assert!(blocks[0]["requests"].as_u64() >= Some(5), "{text}");
    let partial = blocks[0]["partial"].as_str().unwrap_or_default();
    assert!(partial.contains("the server is gone"), "{text}");
    // A line for each kind, among them one for all the connections that were refused.
    let lines = failure_lines(&output);
    let kinds = lines.iter().filter_map(|line| line.split_once(" failed: "));
    let kinds: BTreeSet<&str> = kinds.map(|(_, kind)| kind).collect();
    assert_eq!(kinds.len(), lines.len(), "{text}");
    let refused = kinds
        .iter()
        .filter(|kind| kind.starts_with("no connection: "));
    assert_eq!(refused.count(), 1, "{text}");
    assert!(
        kinds
            .iter()
            .any(|kind| kind.starts_with("the answer was cut: ")),
        "{text}"
    );
    assert_eq!(figures["whole"], false);
    assert!(text.contains("Only 1 of 2 blocks"), "{text}");
}

/// P-BENCH-4: an interrupted bench keeps what it has, and says that it is not all.
#[test]
fn an_interrupted_bench_keeps_what_it_has() {
    let fake = Fake::start(Behaviour {
        ttft: Duration::from_millis(5),
        ..Behaviour::default()
    });
    let dir = Dir::new("interrupted");
    let child = command(&dir, &blocks(&fake.url, "600", &[]))
        .spawn()
        .expect("tidegate runs");
    let begin = tidegate_agent::clock::now_ns();
    while fake.did().len() < 10 {
        assert!(
            tidegate_agent::clock::now_ns() - begin < 60_000_000_000,
            "ten requests"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let block = &figures(&dir, &output)["blocks"][0];
    assert_eq!(block["partial"], "interrupted", "{text}");
    assert!(block["requests"].as_u64() >= Some(9), "{text}");
}

/// P-BENCH-4: what is no such server, and what is wrongly asked, is refused before anything is sent.
#[test]
fn wrong_targets_and_questions_are_refused() {
    let dir = Dir::new("refused");
    let fake = Fake::start(Behaviour::default());
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = format!("http://{}", nobody.local_addr().expect("bound"));
    let elsewhere = format!("{}/elsewhere", fake.url);
    let missing = dir.path().join("missing.csv");
    let missing = missing.to_str().expect("text");
    for (args, code, why) in [
        (
            vec!["--target", &nobody, "--rate", "1"],
            2,
            "/v1/models does not answer: no answer in 10 s",
        ),
        (
            vec!["--target", &elsewhere, "--rate", "1"],
            2,
            "it answers 404 instead of a list of models",
        ),
        (
            vec!["--target", "ftp://h", "--rate", "1"],
            2,
            "it does not begin with http:// or https://",
        ),
        (
            vec!["--target", &fake.url, "--rate", "1", "--model", "b"],
            2,
            "the server has fake",
        ),
        (
            vec!["--target", &fake.url, "--rate", "1", "--seconds", "5"],
            2,
            "--warm-up and --cool-down leave nothing",
        ),
        (
            vec!["--target", &fake.url, "--rate", "0"],
            2,
            "requests per second",
        ),
        (
            vec!["--target", &fake.url, "--rate", "1", "--slo", "ttft=+0%"],
            2,
            "no measurement can show",
        ),
        (
            vec![
                "--target",
                &fake.url,
                "--rate",
                "1",
                "--slo",
                "ttft=+1%,tpot=1ms",
            ],
            2,
            "do not mix",
        ),
        (vec!["--target", &fake.url], 2, "--rate"),
        (vec!["--rate", "1"], 2, "--target"),
        (
            vec!["--target", &fake.url, "--requests", missing],
            1,
            "missing.csv",
        ),
        (vec!["--import", missing], 1, "cannot read"),
    ] {
        let output = bench(&dir, &args);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    }
    assert!(fake.prompts().is_empty(), "nothing was sent");
}

/// P-BENCH-5: files of other tools are compared as blocks, in the order given.
#[test]
fn imported_files_are_compared() {
    let dir = Dir::new("import");
    let write = |name: &str, slower: f64| {
        let ttfts: Vec<f64> = (0..100)
            .map(|i| slower * 0.1 * (1.0 + 0.3 * f64::from(i % 7)))
            .collect();
        let file = dir.path().join(name);
        let result = serde_json::json!({
            "model_id": "m", "completed": 100, "duration": 50.0, "ttfts": ttfts, "output_lens": vec![2; 100],
            "itls": vec![vec![0.01 * slower]; 100], "errors": vec![""; 100],
        });
        std::fs::write(&file, result.to_string()).expect("writable");
        file.display().to_string()
    };
    let (a, b) = (write("a.json", 1.0), write("b.json", 1.25));
    let list = format!("drained={a},gated={b},gated={b},drained={a}");
    let html = dir.path().join("page.html");
    let output = bench(
        &dir,
        &[
            "--import",
            &list,
            "--html",
            html.to_str().expect("text"),
            "--slo",
            "ttft=+1%,tpot=+30%",
        ],
    );
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let figures = figures(&dir, &output);
    let modes: Vec<&str> = figures["blocks"]
        .as_array()
        .expect("blocks")
        .iter()
        .filter_map(|b| b["mode"].as_str())
        .collect();
    assert_eq!(modes, ["drained", "gated", "gated", "drained"]);
    let paired = &figures["paired"];
    assert!(
        (paired["ttft_pct"].as_f64().expect("a mean") - 25.0).abs() < 1e-6,
        "{paired}"
    );
    assert!(
        (paired["tpot_pct"].as_f64().expect("a mean") - 25.0).abs() < 1e-6,
        "{paired}"
    );
    assert!(paired["ci95"]["ttft_pct"].is_array(), "{paired}");
    assert!(
        text.contains("promised ttft +1 %: broken") && text.contains("promised tpot +30 %: kept"),
        "{text}"
    );
    let page = std::fs::read_to_string(html).expect("a page");
    assert!(page.contains("Time to first token") && !page.contains("<script"));
}

/// P-BENCH-9: what one engine with priorities would cost is measured on the same server, in blocks of their own.
#[test]
fn a_batch_at_low_priority_is_kept_in_flight_in_its_own_blocks_and_in_no_other() {
    const IN_FLIGHT: u32 = 4;
    let ttft = Duration::from_millis(10);
    let slower = Duration::from_millis(40);
    let fake = Fake::start(Behaviour {
        ttft,
        tpot: Duration::from_millis(2),
        priorities: Some(slower),
        ..Behaviour::default()
    });
    let dir = Dir::new("batch");
    let more = [
        "--batch",
        "4",
        "--batch-input-tokens",
        "8",
        "--batch-output-tokens",
        "200",
    ];
    let output = bench(&dir, &blocks(&fake.url, "3", &more));
    assert!(output.status.success(), "{}", said(&output));
    let figures = figures(&dir, &output);
    let blocks = figures["blocks"].as_array().expect("blocks");
    let modes: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block["mode"].as_str())
        .collect();
    assert_eq!(modes, ["alone", "one-engine", "one-engine", "alone"]);
    let low = fake.low();
    // Two of the blocks follow each other, and the server learns late that a client is gone.
    let most = IN_FLIGHT..=2 * IN_FLIGHT;
    assert!(most.contains(&low.most), "{low:?} {}", said(&output));
    let mut counted = 0;
    for block in blocks {
        let tokens = block["offline"]["tokens"].as_u64();
        assert_eq!(tokens.is_some(), block["mode"] == "one-engine", "{block:#}");
        counted += tokens.unwrap_or(0);
        // The server makes online's requests wait for each of the batch that it has.
        let least = (ttft + slower * (IN_FLIGHT - 1)).as_secs_f64() * 1e3;
        let mean = block["ttft_ms"]["p50"].as_f64().expect("a median");
        assert!(tokens.is_none() || mean > least, "{block:#}");
    }
    // What was on its way as a block ended is counted by neither or by the server alone.
    assert!(counted > 0 && counted <= low.tokens, "{counted} of {low:?}");
    assert!(
        figures["paired_one_engine"]["ttft_pct"].is_number(),
        "{figures:#}"
    );
    assert!(
        said(&output).contains("one engine, batch at low priority"),
        "{}",
        said(&output)
    );
}

/// P-BENCH-9: a server that takes no priorities is said to be one.
#[test]
fn a_server_without_priorities_refuses_the_batch_and_the_block_says_what_to_do() {
    let fake = Fake::start(Behaviour {
        ttft: Duration::from_millis(5),
        tpot: Duration::from_millis(1),
        ..Behaviour::default()
    });
    let dir = Dir::new("no-priorities");
    let output = bench(&dir, &blocks(&fake.url, "1", &["--batch", "2"]));
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let words = [
        "Priority scheduling is not enabled",
        "--scheduling-policy priority",
    ];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(fake.low(), fake::Low::default());
    for wrong in [&["--batch", "0"][..], &["--batch-output-tokens", "9"]] {
        let output = bench(&dir, &blocks(&fake.url, "1", wrong));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
}
