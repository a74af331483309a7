//! What Prometheus scrapes of a running node is complete, well-formed and true, and what dashboard and
//! alerts ask for is there.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use tidegate_place::metrics::NAMES;
use tidegate_tests::exposition::{Exposition, named};
use tidegate_tests::slurm::PROFILE;
use tidegate_tests::view::{status, table};
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, wait_for, watch};

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/monitoring");

fn socket(node: &Node) -> std::path::PathBuf {
    node.dir().join("metrics.sock")
}

fn config(node: &Node) -> String {
    format!(
        "{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n[slo]\nttft = \"+1%\"\n[memory]\npool = \"256MiB\"\n\
         [metrics]\nlisten = \"unix:{}\"\n",
        socket(node).display()
    )
}

/// Head and body of the answer to `request`.
fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    write!(stream, "{request}\r\nHost: x\r\n\r\n").expect("the endpoint listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn scrape(node: &Node) -> (String, Exposition) {
    let stream = UnixStream::connect(socket(node)).expect("the endpoint listens");
    let (head, body) = ask(stream, "GET /metrics HTTP/1.1");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let read = Exposition::read(&body).unwrap_or_else(|wrong| panic!("{wrong}\n{body}"));
    (body, read)
}

/// Names that a dashboard or an alert asks for, without those of other exporters.
fn asked_for() -> BTreeSet<String> {
    let read = |file: &str| {
        std::fs::read_to_string(Path::new(MONITORING).join(file)).expect("it is shipped")
    };
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let mut expressions: Vec<String> = targets
        .map(|target| target["expr"].as_str().expect("an expression").to_owned())
        .collect();
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let queries = variables
        .iter()
        .filter_map(|of| of["query"]["query"].as_str());
    expressions.extend(queries.map(str::to_owned));
    let alerts = read("alerts.yml");
    let rules = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    expressions.extend(rules.map(str::to_owned));
    assert!(expressions.len() > 40, "{expressions:?}");
    let names = expressions.iter().flat_map(|expression| named(expression));
    names.filter(|name| name.starts_with("tidegate_")).collect()
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn a_scrape_of_a_working_node_is_well_formed_true_and_all_that_dashboard_and_alerts_need() {
    let mut node = Node::device_only(&["--gpus", "2"]);
    node.start_agent(&config(&node));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    for _ in 0..3 {
        online.say("burst 5 2000000");
        watch::wait_open(&node, 0, online.process.pid());
    }
    let gpu: &[(&str, &str)] = &[("gpu", "0")];
    let (text, seen) = wait_for("the last minute's shares, with work in them", || {
        let (text, seen) = scrape(&node);
        let busy = seen.sum("tidegate_online_busy_ratio", gpu)?;
        let ran = seen.sum("tidegate_offline_running_ratio", gpu)?;
        // A process says what it launched about once a second.
        let launches = seen.sum("tidegate_job_launches_total", &[])?;
        (busy > 0.0 && ran > 0.0 && launches > 0.0).then_some((text, seen))
    });
    // Those of placement come from files of its commands.
    let own = asked_for();
    for name in own.iter().filter(|name| !NAMES.contains(&name.as_str())) {
        assert!(
            seen.series.iter().any(|series| series.name == *name),
            "{name} is asked for and not there:\n{text}"
        );
    }
    let status = watch::status(&node);
    let uuid = status["gpus"][0]["uuid"].as_str().expect("a UUID");
    let own = [("gpu", "0"), ("UUID", uuid)];
    let preemptions = status["gpus"][0]["preemptions"].as_f64().expect("a count");
    assert!(preemptions >= 3.0);
    assert_eq!(
        seen.sum("tidegate_preemptions_total", &own),
        Some(preemptions)
    );
    assert_eq!(
        seen.sum("tidegate_preempt_latency_seconds_count", &own),
        Some(preemptions)
    );
    let latency = seen.sum("tidegate_preempt_latency_seconds_sum", &own);
    assert!(
        latency.is_some_and(|sum| sum > 0.0 && sum < 60.0),
        "{latency:?}"
    );
    let part = |name: &str| seen.sum(name, &own).unwrap_or_else(|| panic!("no {name}"));
    let observed = part("tidegate_observed_seconds_total");
    for name in ["online_busy", "gate_open", "offline_running"] {
        let time = part(&format!("tidegate_{name}_seconds_total"));
        assert!(
            time > 0.0 && time <= observed,
            "{name}: {time} of {observed}"
        );
    }
    let idle = part("tidegate_idle_compute_ratio") + part("tidegate_online_busy_ratio");
    assert!((idle - 1.0).abs() < 1e-9, "{idle}");
    // agent.toml(5): where [slo] is set, a second while little is known of when online comes back.
    assert!((part("tidegate_cooldown_seconds") - 1.0).abs() < 1e-9);
    assert!(part("tidegate_online_idle_gap_seconds_count") >= 2.0);
    assert_eq!(part("tidegate_gate_state"), 1.0, "one state holds");
    let channels = seen.sum("tidegate_channels", gpu).expect("channels");
    assert_eq!(
        channels,
        status["gpus"][0]["channels"].as_f64().expect("a count")
    );
    assert_eq!(
        seen.sum("tidegate_pool_bytes", &own),
        Some(f64::from(256 << 20)),
        "every byte of the pool is in one state"
    );
    assert_eq!(
        seen.sum("tidegate_clients", &[("role", "online")]),
        Some(1.0)
    );
    assert_eq!(
        seen.sum("tidegate_clients", &[("role", "offline")]),
        Some(1.0)
    );
    assert_eq!(seen.sum("tidegate_unmanaged_clients", &[]), Some(0.0));
    let launches = seen.all("tidegate_job_launches_total", &[]);
    assert!(
        launches.len() == 1 && launches[0].value > 0.0,
        "{launches:?}"
    );
    assert_eq!(
        seen.all("tidegate_pair_alignment", &[("a", "0"), ("b", "1")])
            .len(),
        1
    );
    promtool(&["check", "metrics"], Some(&text));
    offline.stop();
}

/// P-OPERATE-12: what an operator did or left undone is in the metrics.
#[test]
fn a_drain_a_pause_a_refused_configuration_and_an_ignored_process_are_counted() {
    let mut node = Node::device_only(&[]);
    node.start_agent(&config(&node));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let of = |name: &str, labels: &[(&str, &str)]| {
        let (text, seen) = scrape(&node);
        seen.sum(name, labels)
            .unwrap_or_else(|| panic!("no {name} {labels:?} in\n{text}"))
    };
    let paused = || of("tidegate_jobs", &[("state", "paused")]);
    let ignored = || of("tidegate_clients", &[("role", "ignore")]);
    let until = |what: &str, holds: &dyn Fn() -> bool| wait_for(what, || holds().then_some(()));
    let told = |args: &[&str]| assert!(node.tidegate(args).status.success(), "{args:?}");
    assert_eq!(of("tidegate_drained", &[]), 0.0);
    assert_eq!(of("tidegate_config_refused", &[]), 0.0);
    assert_eq!((paused(), ignored()), (0.0, 0.0));
    let job = watch::status(&node)["jobs"][0]["name"].clone();
    let job = job.as_str().expect("a name");
    told(&["pause", job]);
    until("the pause", &|| paused() == 1.0);
    assert_eq!(of("tidegate_drained", &[]), 0.0, "a pause is no drain");
    told(&["resume", job]);
    until("the resume", &|| paused() == 0.0);
    let of_job = |name: &str| of(name, &[("offline_job", job)]);
    let (for_how_long, attached) = (
        of_job("tidegate_job_paused_seconds_total"),
        of_job("tidegate_job_attached_seconds_total"),
    );
    assert!(for_how_long > 0.0 && for_how_long < attached);
    told(&["drain"]);
    until("the drain", &|| {
        of("tidegate_drained", &[]) == 1.0 && paused() == 1.0
    });
    told(&["undrain"]);
    until("its end", &|| {
        of("tidegate_drained", &[]) == 0.0 && paused() == 0.0
    });
    let file = node.dir().join("agent.toml");
    let good = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, "[gate]\ncooldown = \"soon\"\n").expect("it is writable");
    assert!(!node.tidegate(&["reload"]).status.success());
    until("the refusal", &|| of("tidegate_config_refused", &[]) == 1.0);
    std::fs::write(&file, good).expect("it is writable");
    told(&["reload"]);
    until("the good one", &|| {
        of("tidegate_config_refused", &[]) == 0.0
    });
    // No role is asked for and no rule gives one.
    let mut nobody = node.preloaded(compile("offline", &["-lcuda"]), "");
    let mut nobody = Offline::from_command(nobody.args(["1000000", "0"]));
    until("the ignored process", &|| ignored() == 1.0);
    nobody.running();
    nobody.stop();
    offline.stop();
}

/// P-CLUSTER-15: the file that `place publish` leaves for Prometheus is well-formed and says what the engine is told. When
/// the agent is gone it says nothing.
#[test]
fn what_is_published_is_left_for_prometheus() {
    let mut node = Node::device_only(&[]);
    let dir = node.dir().to_owned();
    let history = dir.join("history.ring");
    let every = format!(
        "[history]\nfile = \"{}\"\nevery = \"1s\"\n",
        history.display()
    );
    node.start_agent(&format!(
        "{TRUSTING}\n[memory]\npool = \"96MiB\"\nheadroom_min = \"4MiB\"\n{every}"
    ));
    std::fs::create_dir_all(dir.join("profiles")).expect("writable");
    std::fs::write(dir.join("profiles/summarise.toml"), PROFILE).expect("writable");
    let path = |name: &str| dir.join(name).display().to_string();
    let publish = |node: &Node| {
        let mut args = vec!["place", "publish", "--engine", "nfd", "--window", "1s"];
        args.extend(["--least", "1s", "--since", "1h"]);
        let own = ["profiles", "history.ring", "place.json", "features", ""].map(path);
        for (option, value) in ["--profiles", "--history", "--memo", "--file", "--metrics"]
            .iter()
            .zip(&own)
        {
            args.extend([option, value.as_str()]);
        }
        let output = format!("{:?}", node.tidegate(&args));
        let text = std::fs::read_to_string(path("tidegate-publish.prom")).expect("it is left");
        promtool(&["check", "metrics"], Some(&text));
        let seen = Exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        let features = std::fs::read_to_string(path("features")).expect("it is written");
        let said = features
            .lines()
            .find_map(|line| line.strip_prefix("tidegate.dev/summarise.1=")?.parse().ok());
        let labels = [("profile", "summarise"), ("gpus", "1")];
        let left = seen.sum(NAMES[0], &labels);
        (said, left, output)
    };
    let (said, left) = wait_for("the node gives something", || {
        let (said, left, _): (Option<f64>, _, _) = publish(&node);
        Some((said?, left?))
    });
    assert!(
        said > 0.0 && (left * 100.0 + 1e-9).floor() == said,
        "{said} {left}"
    );
    node.agent = None;
    let (said, left, told) = publish(&node);
    assert_eq!((said, left), (None::<f64>, None), "{told}");
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn alert_rules_are_rules() {
    let rules = Path::new(MONITORING).join("alerts.yml");
    promtool(&["check", "rules", rules.to_str().expect("a path")], None);
}

/// Runs promtool, if this machine has it.
fn promtool(args: &[&str], input: Option<&str>) {
    let mut command = Command::new("promtool");
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("SKIPPED: promtool {args:?}: not installed (Debian: prometheus)");
        return;
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(input.unwrap_or_default().as_bytes())
        .expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn the_endpoint_answers_what_it_has_refuses_the_rest_and_is_off_unless_asked_for() {
    let mut node = Node::device_only(&[]);
    node.start_agent(TRUSTING);
    let log = || std::fs::read_to_string(node.agent_log()).unwrap_or_default();
    assert!(!log().contains("metrics are served"), "{}", log());
    node.agent.take();
    node.start_agent(&format!(
        "{TRUSTING}\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
    ));
    // It may stand there a little after the agent is ready.
    let address = wait_for("an address in the log", || {
        let log = std::fs::read_to_string(node.agent_log()).ok()?;
        let rest = log.split("metrics are served at http://").nth(1)?;
        rest.split_once('/').map(|(address, _)| address.to_owned())
    });
    let get = |request: &str| {
        ask(
            std::net::TcpStream::connect(&address).expect("it listens"),
            request,
        )
    };
    let (head, body) =
        get("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    assert!(get("GET / HTTP/1.1").0.starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1").0.starts_with("HTTP/1.1 405"));
    // Scrapers that say nothing hold no more than their own places: the gate's services go on.
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.extend(
            (0..64).map(|_| std::net::TcpStream::connect(&address).expect("the queue takes them")),
        );
        assert!(node.tidegate(&["status"]).status.success());
        // Nor do they keep one out that asks.
        let (head, _) = get("GET /metrics HTTP/1.1");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    let sent_away = |stream: &mut std::net::TcpStream| stream.read(&mut [0]).is_ok_and(|n| n == 0);
    assert!(sent_away(&mut idle[0]), "the oldest gave way");
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn an_address_that_cannot_be_had_is_said_with_its_setting() {
    let node = Node::device_only(&[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let output = node
        .agent_command()
        .env("TIDEGATE_METRICS__LISTEN", &address)
        .output()
        .expect("the agent starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("metrics.listen") && said.contains(&address),
        "{said}"
    );
}

/// P-OPERATE-12: a process that uses a GPU and is not attached is in status, events and metrics until it ends.
#[test]
fn a_process_that_is_not_attached_is_reported_until_it_ends() {
    let mut node = Node::device_only(&[]);
    node.start_agent(&config(&node));
    let mut attached = Offline::start(&node, 1_000_000, &[0]);
    attached.running();
    let program = compile("offline", &["-lcuda"]);
    let mut stranger = Offline::from_command(&mut node.plain(&program));
    stranger.running();
    let mut aside = node.preloaded(&program, "offline");
    let mut aside = Offline::from_command(aside.env("TIDEGATE_DISABLE", "1"));
    aside.running();
    let is_reported = |wanted: &[(u32, bool)]| {
        let status = status(&node);
        let rows = status["unattached"].as_array().cloned().unwrap_or_default();
        let found = rows.iter().map(|row| {
            let pid = row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            (pid.expect("a pid"), row["has_library"] == true)
        });
        let found: BTreeSet<_> = found.collect();
        (found == wanted.iter().copied().collect()).then_some(())
    };
    let counted = || scrape(&node).1.sum("tidegate_unattached_processes", &[]);
    let pids = [(stranger.process.pid(), false), (aside.process.pid(), true)];
    wait_for("status to name both", || is_reported(&pids));
    assert_eq!(counted(), Some(2.0));
    let events = node.tidegate(&["events", "--kind", "unattached", "--output", "json"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    for (pid, _) in pids {
        let of_it = |line: &&str| line.contains(&format!("(process {pid})"));
        assert_eq!(events.lines().filter(of_it).count(), 1, "{events}");
    }
    let table = table(&node);
    assert!(table.contains("uses a GPU without the library"), "{table}");
    assert!(table.contains("uses a GPU with the library"), "{table}");
    stranger.stop();
    aside.stop();
    wait_for("status to name nobody", || is_reported(&[]));
    assert_eq!(counted(), Some(0.0));
}
