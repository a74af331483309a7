//! The engines' plugins speak to the library as its header says; their schedulers are judged by
//! `scripts/engines`.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_proto::v1::{MemoryResult, Role, client_event::Event};
use tidegate_tests::stand_in::{Gate, PATIENCE, StandIn};
use tidegate_tests::{Node, Running, TRUSTING, view, wait_for};
use tidegate_vgpu::history::{self, Kind, Record};

fn says(command: &mut Command, role: &str) -> String {
    runs(command, "engine_abi.py", role)
}

fn app<'a>(command: &'a mut Command, script: &str, argument: &str) -> &'a mut Command {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    command
        .arg(tests.join("apps").join(script))
        .arg(argument)
        .env("PYTHONPATH", tests.join("../interposer/engines"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
}

fn runs(command: &mut Command, script: &str, argument: &str) -> String {
    Running::start(script, app(command, script, argument)).succeed()
}

/// A program that says what its training does, and waits for a line after each word.
fn trainer(node: &Node, job: &str) -> Running {
    let mut command = node.preloaded("python3", "offline");
    command.env("TIDEGATE_JOB", job).stdin(Stdio::piped());
    Running::start("trainer", app(&mut command, "engine_abi.py", "trainer"))
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn an_offline_plugin_registers_polls_and_publishes() {
    let node = Node::new(&[], "");
    assert_eq!(
        says(&mut node.preloaded("python3", "offline"), "offline"),
        "ok\n"
    );
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn an_online_plugin_grows_within_its_headroom() {
    let node = Node::new(&[], &format!("{TRUSTING}[memory]\npool = \"256MiB\"\n"));
    assert_eq!(
        says(&mut node.preloaded("python3", "online"), "online"),
        "ok\n"
    );
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn without_the_library_a_plugin_knows_it() {
    let node = Node::device_only(&[]);
    assert_eq!(says(&mut node.plain("python3"), "none"), "no library\n");
}

/// P-MEMORY-11: a vLLM that the plugin does not know starts, and its own log says that nothing is shared.
#[test]
fn an_unknown_engine_starts_and_its_log_says_what_it_lacks() {
    let node = Node::device_only(&[]);
    let of = |role: &str, case: &str| {
        runs(
            &mut node.preloaded("python3", role),
            "engine_unknown.py",
            case,
        )
    };
    for role in ["online", "offline"] {
        for (case, missing) in [("empty", "is missing"), ("renamed", "schedule")] {
            let said = of(role, case);
            let (log, end) = said.split_once('\n').expect("a line of its log");
            assert!(
                log.starts_with("WARNING Tidegate shares no KV memory of this engine: vLLM 9.9.9")
                    && log.contains(missing),
                "{role} {case}: {said}"
            );
            assert_eq!(end, "vLLM starts\n", "{role} {case}");
        }
    }
    assert!(
        of("ofline", "empty").contains("TIDEGATE_ROLE is 'ofline'; it takes online or offline")
    );
    // Without the library it is none of the plugin's business.
    let plain = runs(&mut node.plain("python3"), "engine_unknown.py", "empty");
    assert_eq!(plain, "vLLM starts\n");
}

/// P-MEMORY-11: without `TIDEGATE_ROLE` a plugin has its role from the agent's rules, and says so where there is none.
#[test]
fn a_plugin_has_the_role_that_a_rule_gives() {
    let ruled = |role: &str| {
        format!(
            "[[identity.rules]]\nuid = {}\nrole = \"{role}\"\n",
            own_uid()
        )
    };
    for role in ["online", "offline"] {
        let node = Node::new(&[], &ruled(role));
        let mut engine = node.preloaded("python3", "");
        assert_eq!(
            runs(&mut engine, "engine_unknown.py", "ruled"),
            format!("shares as {role}\nschedules as {role}\nvLLM starts\n")
        );
        // What the engine asks for itself is not asked of anybody.
        let mut engine = node.preloaded("python3", "offline");
        let said = runs(&mut engine, "engine_unknown.py", "ruled");
        assert!(said.starts_with("shares as offline\n"), "{said}");
    }
    let node = Node::new(&[], "");
    assert_eq!(
        says(&mut node.preloaded("python3", ""), "asked"),
        "neither\n"
    );
    let said = runs(
        &mut node.preloaded("python3", ""),
        "engine_unknown.py",
        "ruled",
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(
        matches!(lines[..], [warning, "allocates", "vLLM starts"]
            if warning.contains("no agent's rule makes it online or offline")),
        "{said}"
    );
    let alone = Node::device_only(&[]);
    let mut engine = alone.preloaded("python3", "");
    assert_eq!(says(&mut engine, "nobody"), "nobody says it\n");
}

/// P-MEMORY-11: the cache of an online engine grows only where its scheduler listens and its agent makes it online. Else,
/// and where it cannot be registered, all of it has memory, or the engine ends.
#[test]
fn a_cache_that_nobody_reserves_from_has_all_of_its_memory() {
    let worker = |node: &Node, words: &[&str]| {
        let mut command = node.preloaded("python3", "online");
        let command = app(&mut command, "engine_worker.py", words[0]).args(&words[1..]);
        Running::start("engine_worker.py", command).succeed()
    };
    let fixed = "fixed, 0 blocks are wrong\n";
    let node = Node::new(&["--memory-mib", "512"], TRUSTING);
    assert!(worker(&node, &["core"]).starts_with("grows, "));
    for case in ["apart", "forked", "shape"] {
        assert_eq!(worker(&node, &[case]), fixed, "{case}");
    }
    for case in ["core", "shape"] {
        let ended = worker(&node, &[case, "taken"]);
        let ended = ended.starts_with("ends: ") || (case == "core" && ended.starts_with("grows, "));
        assert!(ended, "{case}");
    }
    let untrusted = Node::new(&[], "");
    assert_eq!(worker(&untrusted, &["core"]), fixed);
    let nobody = Node::device_only(&[]);
    assert_eq!(worker(&nobody, &["core"]), fixed);
}

/// P-MEMORY-11: nothing is taken of a cache before a scheduler reads what it loses, and what is taken then is told to it.
#[test]
fn nothing_is_taken_before_a_scheduler_reads() {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let mut command = node.preloaded("python3", "offline");
    command.env("TIDEGATE_JOB", format!("early-{}", node.device.pid()));
    command.stdin(Stdio::piped());
    let mut engine = Running::start("early", app(&mut command, "engine_abi.py", "early"));
    agent.let_run(0);
    let kv = agent.cache(0).kv;
    let moves = |agent: &mut StandIn, take: bool| {
        assert_eq!(agent.check(0, PATIENCE).result(), MemoryResult::Ok);
        agent.channels(0, true);
        let (result, seq) = if take {
            let done = agent.reclaim(0, kv, &[3, 4]).remove(0);
            (done.result(), done.log_seq)
        } else {
            (agent.restore(0, kv, &[3, 4]).remove(0).result(), 0)
        };
        agent.channels(0, false);
        agent.gate(0, Gate::Open);
        (result, seq)
    };
    assert_eq!(moves(&mut agent, true), (MemoryResult::Refused, 0));
    let mut pipe = engine.child.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(engine.child.stdout.take().expect("stdout is piped")).lines();
    let mut line = || lines.next().expect("a line").expect("a pipe can be read");
    pipe.write_all(b"read\n").expect("it reads");
    assert_eq!(line(), "reads");
    let (result, seq) = moves(&mut agent, true);
    assert_eq!(result, MemoryResult::Ok);
    agent.hear(0, "the blocks to be withheld", |event| match event {
        Event::Withheld(withheld) if withheld.log_seq >= seq => Some(()),
        _ => None,
    });
    assert_eq!(moves(&mut agent, false).0, MemoryResult::Ok);
    assert_eq!(line(), "ok");
    assert!(engine.finish().status.success());
}

/// P-MEMORY-11: a scheduler that counts its steps from 0 again, in the same process, is told of every loss, at once.
#[test]
fn a_second_scheduler_of_a_process_is_told_what_is_lost() {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let mut command = node.preloaded("python3", "offline");
    command.env("TIDEGATE_JOB", format!("again-{}", node.device.pid()));
    command.stdin(Stdio::piped());
    let mut engine = Running::start("again", app(&mut command, "engine_abi.py", "again"));
    agent.let_run(0);
    let kv = agent.cache(0).kv;
    let mut lines = BufReader::new(engine.child.stdout.take().expect("stdout is piped")).lines();
    let mut line = || lines.next().expect("a line").expect("a pipe can be read");
    let mut pipe = engine.child.stdin.take().expect("stdin is piped");
    for (stripe, told) in [
        (3, "first: [4]"),
        (5, "second: [4, 6]"),
        (9, "second: [10]"),
    ] {
        assert_eq!(line(), "polled");
        assert_eq!(agent.check(0, PATIENCE).result(), MemoryResult::Ok);
        agent.channels(0, true);
        let done = agent.reclaim(0, kv, &[stripe]).remove(0);
        assert_eq!(done.result(), MemoryResult::Ok);
        agent.channels(0, false);
        agent.gate(0, Gate::Open);
        pipe.write_all(b"taken\n").expect("it reads");
        assert_eq!(line(), told);
    }
    assert_eq!(line(), "the first is refused: 116", "ESTALE");
    assert!(engine.finish().status.success());
}

/// P-MEMORY-11: two engines in one job would take each other's steps for their own: the second is told so, and one that
/// starts when the first has died reads, as does one that starts while it dies.
#[test]
fn a_second_engine_in_a_job_is_refused_its_losses() {
    let node = Node::new(&[], TRUSTING);
    let job = format!("shared-{}", std::process::id());
    let mut first = trainer(&node, &job);
    wait_for("its first word", || {
        let status = view::status(&node);
        (status["jobs"][0]["trainer"]["said"]["step"] == 9).then_some(())
    });
    let second = || {
        let mut command = node.preloaded("python3", "offline");
        runs(command.env("TIDEGATE_JOB", &job), "engine_abi.py", "second")
    };
    assert_eq!(second(), format!("refused: {}\n", 16), "EBUSY");
    std::thread::scope(|scope| {
        let next = scope.spawn(second);
        wait_for("the next engine to be in the job", || {
            let status = view::status(&node);
            (status["processes"].as_array()?.len() == 2).then_some(())
        });
        first.child.kill().expect("it lives");
        first.child.wait().expect("a child");
        assert_eq!(next.join().expect("no panic"), "reads\n");
    });
    assert_eq!(second(), "reads\n");
}

/// P-TRAINER-10: what a training says of itself is in status, explain and events while it lives.
#[test]
fn what_a_training_says_is_in_status_explain_and_events() {
    let node = Node::new(&[], TRUSTING);
    let mut trainer = trainer(&node, "tune");
    let mut stdin = trainer.child.stdin.take().expect("piped");
    let job = || view::status(&node)["jobs"][0].clone();
    let shown = |what: &str, holds: &dyn Fn(&Value) -> bool| {
        wait_for(what, || {
            let job = job();
            holds(&job).then_some(job)
        })
    };
    let first = shown("the first word", &|job| job["trainer"]["said"]["step"] == 9);
    assert_eq!(first["units"], 42, "{first}");
    assert_eq!(first["trainer"]["steps"], 5, "{first}");
    assert_eq!(first["trainer"]["said"]["loss"], 1.25, "{first}");
    let pid = trainer.pid().to_string();
    let explained = node.tidegate(&["explain", "pid", &pid]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    let line = "trains: step 9 of 20; 0 of 60 units were done again after 0 reclaims, 2 of 3 layers are resident";
    assert!(explained.contains(line), "{explained}");
    let table = view::table(&node);
    assert!(
        table.contains("9 of 20") && table.contains("1.2500"),
        "{table}"
    );

    let mut say = |line: &str| writeln!(stdin, "{line}").expect("it reads");
    say("robbed");
    shown("units again", &|job| job["trainer"]["units_redone"] == 7);
    say("saved");
    shown("the adapter", &|job| {
        job["trainer"]["said"]["adapter"] == "adapters/support"
    });
    say("served");
    let done = shown("a server", &|job| job["trainer"]["said"]["served"] != "");
    assert_eq!(done["trainer"]["tokens"], 90, "{done}");
    let events = node.tidegate(&["events"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    for told in [
        "7 more of 120 units, after 2 reclaims in all; 2 of 3 layers are resident",
        "adapters/support",
        "http://127.0.0.1:8000 answers as 'support'",
    ] {
        assert!(events.contains(told), "{told}: {events}");
    }
    say("end");
    assert!(trainer.finish().status.success());
    let over = shown("its end", &|job| {
        job["sessions"].as_array().is_none_or(Vec::is_empty)
    });
    assert!(over["trainer"].is_null(), "{over}");
}

/// What the device says of one rank of `engine_ranks.py`: of every kernel, whether its blocks had memory of their own all the
/// while. Growth and release take turns at each address, so that every second mapping there is the page behind what is not
/// reserved, with which a cache is born.
fn uses_without_memory(
    records: &[Record],
    (pid, base, block): (u32, u64, u64),
    steps: &[Vec<u64>],
) -> usize {
    let mut mine: Vec<&Record> = records.iter().filter(|record| record.pid == pid).collect();
    mine.sort_by_key(|record| record.at_ns);
    let mut mapped = std::collections::BTreeMap::<u64, usize>::new();
    let (mut running, mut kernels, mut wrong) = (Vec::new(), 0, 0);
    for record in mine {
        let touched = |blocks: &[u64], has: &dyn Fn(u64) -> bool| {
            blocks.iter().filter(|at| !has(**at)).count()
        };
        match record.kind {
            Kind::Map | Kind::Unmap => {
                let blocks = (record.value.max(base) - base) / block
                    ..(record.value + record.tag).saturating_sub(base) / block;
                wrong += touched(&running, &|at| !blocks.contains(&at));
                if record.kind == Kind::Map {
                    blocks.for_each(|at| *mapped.entry(at).or_default() += 1);
                }
            }
            // Two of each step: the one that stores, the one that folds.
            Kind::KernelStart => {
                running.clone_from(&steps[kernels / 2]);
                kernels += 1;
                wrong += touched(&running, &|at| {
                    mapped.get(&at).is_some_and(|maps| maps % 2 == 0)
                });
            }
            Kind::KernelEnd => running.clear(),
            _ => {}
        }
    }
    assert!(kernels > 10, "{kernels} kernels of a rank");
    wrong
}

/// An online engine of two ranks on two GPUs; what it said at its end.
fn two_ranks(arguments: &[&str]) -> String {
    let pool = "pool = \"96MiB\"\nheadroom_min = \"4MiB\"\nheadroom_max = \"16MiB\"\nrestore_interval = \"100ms\"\n";
    let node = Node::new(&["--gpus", "2"], &format!("{TRUSTING}[memory]\n{pool}"));
    let mut command = node.preloaded("python3", "online");
    command.env("TIDEGATE_JOB", format!("ranks-{}", node.device.pid()));
    let engine = app(&mut command, "engine_ranks.py", "core").args(arguments);
    let said = Running::start("engine_ranks.py", engine).succeed();
    let words = |kind: &'static str| {
        let of_kind = |line: &str| {
            Some(
                line.strip_prefix(kind)?
                    .split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect(),
            )
        };
        said.lines().filter_map(of_kind).collect::<Vec<Vec<u64>>>()
    };
    let steps: Vec<Vec<u64>> = words("step ")
        .into_iter()
        .map(|words| words[1..].to_vec())
        .collect();
    let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
    let ranks = words("rank ");
    assert_eq!(ranks.len(), 2, "{said}");
    for rank in ranks {
        let pid = u32::try_from(rank[0]).expect("a pid");
        let wrong = uses_without_memory(&records, (pid, rank[1], rank[2]), &steps);
        assert_eq!(
            wrong, 0,
            "{arguments:?}: uses of memory that is not reserved, by rank {pid}"
        );
        assert!(
            !records
                .iter()
                .any(|record| record.pid == pid && record.kind == Kind::Fault)
        );
    }
    let last = said.lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("ok "), "{said}");
    last
}

/// P-MEMORY-21: two online ranks, each a process with a GPU, grow and shrink as one.
#[test]
fn two_online_ranks_use_a_block_only_where_both_have_memory() {
    for seed in ["1", "2", "3"] {
        let said = two_ranks(&[seed, "40"]);
        println!("seed {seed}: {said}");
        assert!(said.contains("32 blocks at most"), "{said}");
    }
}

/// P-MEMORY-21: a rank that is killed while blocks are asked for, or given back, leaves the other nothing that is not its own.
#[test]
fn a_rank_killed_in_mid_growth_or_release_leaves_the_other_what_is_reserved() {
    for (when, rank) in [
        ("growing", "0"),
        ("growing", "1"),
        ("leaving", "0"),
        ("leaving", "1"),
    ] {
        let said = two_ranks(&["7", "12", when, rank]);
        println!("rank {rank} killed while {when}: {said}");
    }
}

fn own_uid() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::getuid() }
}
