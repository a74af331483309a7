//! What users read of leases, where all parts meet: the agent and the library that ship, an online program and a trainer. What
//! is read is compared with the agent's recording, the device's history, and the programs' own arguments.

use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tidegate_policy::event::Event;
use tidegate_policy::lease::event::{Event as Learnt, LeaseEvent};
use tidegate_record::{Entry, replay_with};
use tidegate_tests::exposition::Exposition;
use tidegate_tests::pair::{ITERATION_NS, Lease, Pair};
use tidegate_tests::view::status;
use tidegate_tests::{Node, wait_for};

/// Leases that the trainer ended itself.
fn returned(leases: &[Lease]) -> Vec<Lease> {
    let mut all = leases.to_vec();
    all.retain(|lease| lease.over.is_some_and(|(_, said)| said));
    all
}

fn told(node: &Node, args: &[&str]) -> String {
    let output = node.tidegate(args);
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    String::from_utf8_lossy(out).into_owned()
}

fn explained(node: &Node) -> Value {
    let text = told(node, &["explain", "lease", "--output", "json"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    json["gpus"][0].clone()
}

fn events(node: &Node, kind: &str) -> Vec<Value> {
    let text = told(node, &["events", "--kind", kind, "--output", "json"]);
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a time: {value}"))
}

fn socket(node: &Node) -> PathBuf {
    node.dir().join("metrics.sock")
}

/// Status and a scrape have the figures that were explained a moment before.
#[track_caller]
fn shows_the_same(pair: &Pair, explained: &Value) {
    // Beside a prompt there may be none for a moment.
    let leases = wait_for("slack", || {
        let leases = status(&pair.node)["gpus"][0]["leases"].clone();
        (leases["slack_ns"].as_u64() > Some(0)).then_some(leases)
    });
    assert!(ns(&leases["granted"]) >= ns(&explained["leases"]["granted"]));
    assert_eq!(leases["tpot_ns"], 400_000_000);
    let mut stream = UnixStream::connect(socket(&pair.node)).expect("the endpoint listens");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let read = Exposition::read(body).unwrap_or_else(|wrong| panic!("{wrong}\n{body}"));
    let figure = |name: &str| {
        let found = read.sum(name, &[]);
        found.unwrap_or_else(|| panic!("{name} is missing: {body}"))
    };
    let last = pair.leases();
    let units = figure("tidegate_lease_units_total");
    assert!(units >= explained["leases"]["units"].as_f64().expect("a count"));
    assert!(units <= last.iter().map(|lease| f64::from(lease.ran)).sum());
    assert!(figure("tidegate_leases_total") <= last.len() as f64);
    assert!((0.0..=0.8).contains(&figure("tidegate_lease_slack_seconds")));
    assert!((0.0..1.0).contains(&figure("tidegate_lease_prediction_error_ratio")));
    assert!(figure("tidegate_lease_overruns_total") >= 0.0);
}

/// P-LEASE-7: each lease that is explained is one of the agent's recording, with what was granted and what ran.
#[test]
fn explained_leases_are_those_of_the_recording() {
    let metrics =
        |node: &Node| format!("[metrics]\nlisten = \"unix:{}\"\n", socket(node).display());
    let pair = Pair::with(metrics, 1_000_000, &["obedient", "2000000"]);
    wait_for("leases", || {
        (returned(&pair.leases()).len() >= 12).then_some(())
    });
    let before = pair.leases();
    let explained = explained(&pair.node);
    let after = pair.leases();
    let decisions = explained["decisions"].as_array().expect("a list");
    assert!(decisions.len() >= 12, "{explained:#}");
    let mut compared = 0;
    for decision in decisions {
        let known = after
            .iter()
            .find(|lease| Some(lease.number) == decision["lease"].as_u64());
        let known = known.unwrap_or_else(|| panic!("not in the recording: {decision}"));
        assert_eq!(ns(&decision["granted_ns"]), known.granted_ns, "{decision}");
        assert_eq!(decision["units"], known.units, "{decision}");
        let Some(ran) = decision["ran"].as_u64() else {
            continue;
        };
        let (over, said) = known.over.expect("it is over");
        assert_eq!(decision["overran"], !said, "{decision}");
        if said {
            assert_eq!(ran, u64::from(known.ran), "{decision}");
            let used = ns(&decision["used_ns"]);
            assert!(used <= over - known.given_ns, "{decision} {known:?}");
            compared += 1;
        }
    }
    assert!(compared >= 8, "{explained:#}");
    let between = |value: &Value, of: &dyn Fn(&[Lease]) -> u64| {
        let said = value.as_u64().expect("a count");
        assert!((of(&before)..=of(&after)).contains(&said), "{said}");
    };
    let units = |leases: &[Lease]| leases.iter().map(|lease| u64::from(lease.ran)).sum();
    let count = |leases: &[Lease]| leases.len() as u64;
    between(&explained["leases"]["granted"], &count);
    between(&explained["leases"]["units"], &units);
    // What an iteration is said to take is at least what the program's kernel takes.
    let shapes = explained["iterations"].as_array().expect("a list");
    assert!(!shapes.is_empty(), "{explained:#}");
    for shape in shapes {
        assert!(ns(&shape["mean_ns"]) >= ITERATION_NS, "{shape}");
    }
    let trainer = &explained["trainers"][0];
    assert_eq!(trainer["job"], "offline");
    // One less between the end of a unit and the next offer.
    let most = trainer["most"].as_u64().expect("a count");
    assert!((999..=1_000).contains(&most), "{trainer}");
    assert_eq!(trainer["claimed_ns"], 2_000_000);
    assert_eq!(explained["online"][0]["pid"], pair.online.pid());
    assert_eq!(explained["online"][0]["says_batch"], true);
    let text = told(&pair.node, &["explain", "lease", "offline"]);
    for said in [
        "has reported",
        "units ran within them",
        "EXPECTED",
        "returned",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let none = pair.node.tidegate(&["explain", "lease", "nobody"]);
    let err = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        !none.status.success() && err.contains("no job `nobody`"),
        "{err}"
    );

    shows_the_same(&pair, &explained);
}

/// P-LEASE-8: a promise that online alone does not keep is told with both figures in event, status and explain, and nothing is
/// lent from then on.
#[test]
fn a_promise_that_online_alone_does_not_keep_is_told() {
    let pair = Pair::new(&["obedient", "100000"]);
    wait_for("leases", || (!pair.leases().is_empty()).then_some(()));
    told(&pair.node, &["set", "lease.grace=1ms"]);
    told(&pair.node, &["set", "lease.tpot=2ms"]);
    let told_of = wait_for("an event", || {
        events(&pair.node, "lease_tpot_too_low").pop()
    });
    let text = told_of["text"].as_str().expect("a text");
    assert!(text.contains("lease.tpot is 2.0 ms"), "{text}");
    assert!(text.contains("set lease.tpot above"), "{text}");
    let alone = ns(&told_of["value_ns"]);
    assert!(alone >= ITERATION_NS, "{told_of}");
    let stands = status(&pair.node);
    let leases = &stands["gpus"][0]["leases"];
    assert_eq!(leases["tpot_too_low"], true, "{leases}");
    assert_eq!(leases["tpot_ns"], 2_000_000);
    assert!(ns(&leases["alone_ns"]) >= ITERATION_NS, "{leases}");
    let granted = ns(&leases["granted"]);
    let reason = wait_for("the reason", || {
        let none = status(&pair.node)["jobs"][0]["no_lease"].clone();
        (none["kind"] == "tpot_too_low").then_some(none)
    });
    assert!(reason["remedy"].is_string(), "{reason}");
    let (_, beats) = pair.arrivals_and_beats();
    wait_for("more iterations", || {
        (pair.arrivals_and_beats().1.len() > beats.len() + 50).then_some(())
    });
    let explained = explained(&pair.node);
    assert_eq!(explained["leases"]["granted"], granted, "{explained:#}");
}

/// P-LEASE-8: a unit that never fits is named once, with what would fit.
#[test]
fn a_unit_that_never_fits_is_named_once() {
    let pair = Pair::new(&["obedient", "900000000"]);
    let named = wait_for("an event", || {
        events(&pair.node, "lease_unit_too_long").pop()
    });
    assert_eq!(named["job"], "offline", "{named}");
    assert_eq!(ns(&named["value_ns"]), 900_000_000, "{named}");
    let text = named["text"].as_str().expect("a text");
    assert!(
        text.contains("a unit takes 900.0 ms") && text.contains("shorter windows"),
        "{text}"
    );
    let (_, beats) = pair.arrivals_and_beats();
    wait_for("more iterations", || {
        (pair.arrivals_and_beats().1.len() > beats.len() + 300).then_some(())
    });
    assert_eq!(events(&pair.node, "lease_unit_too_long").len(), 1);
    assert!(pair.leases().is_empty());
    let refused = &explained(&pair.node)["refused"];
    assert!(ns(&refused["unit_too_long"]) > 256, "{refused}");
}

/// P-LEASE-10: a request that comes between two iterations of others withdraws the lease that stands, before the next one is
/// over.
#[test]
fn a_request_beside_decodes_withdraws_the_lease_that_stands() {
    // Each pause is long enough for the lease to stand at its middle, when the next request comes.
    let pair = Pair::with(|_| String::new(), 60_000_000, &["obedient", "2000000"]);
    let withdrawn = wait_for("a lease to be withdrawn for a request", || {
        let (arrivals, beats) = pair.arrivals_and_beats();
        let leases = pair.leases();
        let mut between = arrivals.iter().filter(|at| !beats.contains(at));
        between.find_map(|at| {
            let stood = |lease: &&Lease| lease.withdrawn_ns == Some(*at);
            leases.iter().find(stood).copied()
        })
    });
    let (at, given) = (withdrawn.withdrawn_ns.expect("it is"), withdrawn.given_ns);
    assert!(at > given, "{withdrawn:?}");
}

/// Shapes that an agent was told of as learnt by an earlier one: what they take, ns.
fn known(node: &Node, agent: usize) -> Vec<(u64, u64)> {
    let file = File::open(node.recording(agent)).expect("the agent records");
    let mut known = Vec::new();
    let replayed = replay_with(BufReader::new(file), |_, entry| {
        if let Entry::Event(Event::Lease(LeaseEvent::Seen {
            event: Learnt::Known { key, mean_ns, .. },
            ..
        })) = entry
        {
            known.push((key.fingerprint, *mean_ns));
        }
    });
    drop(replayed);
    known
}

/// P-LEASE-9: what an agent learnt of iterations and units is what the next one begins with. A file of another version is
/// dropped, and the log says so.
#[test]
fn what_an_agent_learnt_is_known_to_the_next() {
    let mut pair = Pair::new(&["obedient", "2000000"]);
    wait_for("leases", || {
        (returned(&pair.leases()).len() >= 4).then_some(())
    });
    assert_eq!(known(&pair.node, 0), [], "the first knows nothing");
    // Online is gone first, so that nothing more is learnt.
    pair.online.signal(libc::SIGKILL);
    let shapes = wait_for("online to be gone", || {
        let gone = explained(&pair.node);
        let nobody = gone["online"].as_array()?.is_empty();
        nobody.then(|| gone["iterations"].as_array().cloned())?
    });
    assert!(!shapes.is_empty());
    let first = pair.node.agent.take().expect("it runs");
    first.signal(libc::SIGTERM);
    first.succeed();
    pair.start_agent(1);
    let found = known(&pair.node, 1);
    for shape in &shapes {
        let fingerprint = shape["fingerprint"].as_str().expect("a name");
        let fingerprint = u64::from_str_radix(fingerprint, 16).expect("a number");
        let same = found.contains(&(fingerprint, ns(&shape["mean_ns"])));
        assert!(same, "{shape} is not in {found:?}");
    }
    assert!(found.len() > shapes.len(), "units as well: {found:?}");
    let file = pair.node.run_dir().join("leases.json");
    let kept = std::fs::read_to_string(&file).expect("it is kept");
    std::fs::write(&file, kept.replace("\"version\":1", "\"version\":7")).expect("own file");
    // The agent that runs writes it anew as it ends; one that is killed does not.
    let killed = pair.node.agent.take().expect("it runs");
    killed.signal(libc::SIGKILL);
    drop(killed);
    pair.start_agent(2);
    assert_eq!(known(&pair.node, 2), []);
    let log = std::fs::read_to_string(pair.node.agent_log()).expect("it logs");
    assert!(log.contains("version 7, expected 1"), "{log}");
}
