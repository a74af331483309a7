//! The real agent takes KV memory from a running offline engine for an online one, and gives it back.

use serde_json::Value;
use std::time::Duration;
use tidegate_tests::elastic::Elastic;
use tidegate_tests::engine::{Engine, Wrong, judge};
use tidegate_tests::{Node, Running, compile, monotonic_ns, view, wait_for, wait_until};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind};

/// What online and offline share is smaller than what both could use: beside 64 MiB of the engine's, 24 blocks of 2 MiB
/// do not fit.
const SHARED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"96MiB\"\nheadroom_min = \"4MiB\"\n\
                      headroom_max = \"16MiB\"\nrestore_interval = \"100ms\"\n";

const HANDLE: u64 = 2 << 20;

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// What a process has of the pool.
#[derive(Debug)]
struct Owned(Value);

impl Owned {
    /// Bytes in one place.
    fn bytes(&self, place: &str) -> u64 {
        number(&self.0[format!("{place}_bytes")])
    }

    /// Handles that back it, are being taken, are promised, and were taken.
    fn handles(&self) -> [u64; 4] {
        let names = [
            "handles",
            "handles_quarantined",
            "handles_in_flight",
            "handles_taken",
        ];
        names.map(|name| number(&self.0[name]))
    }
}

/// A node on which online has taken from a running engine.
struct Stage {
    engine: Engine,
    online: Elastic,
    /// Blocks online holds.
    held: u64,
    node: Node,
}

impl Stage {
    fn new() -> Self {
        let mut node = Node::device_only(&["--set", "poison=0xa5"]);
        let recording = node.dir().join("decisions");
        node.start_agent_by(SHARED, |mut agent| {
            agent.arg("--record").arg(recording);
            agent
        });
        let job = format!("shared-{}", node.device.pid());
        let mut engine = Engine::start(&node, &job, &["--requests", "2"]);
        engine.goes_on(64);
        let online = Elastic::start(&node);
        let mut stage = Self {
            engine,
            online,
            held: 0,
            node,
        };
        stage.take();
        stage
    }

    /// Asks for what lacks of 24 blocks.
    fn reserve(&mut self) {
        let answer = self.online.ask(&format!("reserve {}", 24 - self.held));
        let granted = answer.split(' ').next().and_then(|n| n.parse::<u64>().ok());
        self.held += granted.unwrap_or_else(|| panic!("the online program answered {answer:?}"));
    }

    fn take(&mut self) {
        wait_for("24 blocks for online", || {
            self.reserve();
            (self.held == 24).then_some(())
        });
        assert_eq!(self.online.ask("check"), "ok");
        wait_for("the engine to be told", || {
            (self.engine.told().0 > 0).then_some(())
        });
        self.engine.goes_on(64);
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held).to_string();
        assert_eq!(self.online.ask(&format!("release {held}")), held);
        wait_for("every lost block to be back", || {
            let (lost, back) = self.engine.told();
            (lost == back).then_some(())
        });
        self.engine.goes_on(64);
    }

    /// What status says that a process has of the pool. All owners together have in each place what the pool has there.
    fn owned(&self, pid: u32) -> Owned {
        let status = view::status(&self.node);
        let memory = &status["gpus"][0]["memory"];
        let owners = memory["owners"].as_array().expect("a list");
        for place in ["in_flight", "headroom", "online", "offline", "quarantined"] {
            let field = format!("{place}_bytes");
            let owned = owners.iter().map(|owner| number(&owner[&field]));
            assert_eq!(owned.sum::<u64>(), number(&memory[&field]), "{memory}");
        }
        let session = |list: &Value, key: &str, value: &Value| {
            let row = list.as_array()?.iter().find(|row| row[key] == *value);
            row.cloned()
        };
        let process = session(&status["processes"], "pid", &pid.into()).expect("it is attached");
        let owner = session(&memory["owners"], "session", &process["session"]);
        Owned(owner.unwrap_or_else(|| panic!("{pid} owns nothing: {memory}")))
    }

    /// Whether the device has a record of the engine of this kind, later than `after`.
    fn has(&self, kind: Kind, after: u64) -> bool {
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        let pid = self.engine.process.pid();
        let mut late = records.iter().rev().take_while(|r| r.at_ns > after);
        late.any(|r| r.kind == kind && r.pid == pid)
    }

    /// Waits until the engine has taken a mapping away and put nothing in its place, which takes it so
    /// long; when that was.
    fn in_a_move(&mut self, lasting_us: u64) -> u64 {
        let control = Control::connect(&self.node.vgpu_dir()).expect("the device listens");
        // The mapping goes at once; the call returns so much later.
        control.set("unmap_us", lasting_us).expect("a knob");
        let begun = monotonic_ns();
        wait_for("the engine to take a mapping away", || {
            self.reserve();
            self.has(Kind::Unmap, begun).then_some(())
        });
        control.set("unmap_us", 0).expect("a knob");
        monotonic_ns()
    }

    fn end_agent(&mut self, by: i32) {
        let agent = self.node.agent.take().expect("there is an agent");
        agent.signal(by);
        agent.finish();
    }

    /// The engine runs again, and online has what it was granted.
    fn goes_on(&mut self) {
        self.engine.goes_on(64);
        assert_eq!(self.online.ask("check"), "ok");
        self.release();
    }

    fn end(self) {
        let (range, pid) = (self.engine.ready(), self.engine.process.pid());
        self.engine.stop();
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        assert_eq!(judge(&records, pid, &range), Wrong::default());
    }
}

/// P-MEMORY-4: the real agent moves memory, whoever dies.
/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn the_agent_takes_memory_for_online_from_a_running_engine_and_gives_it_back() {
    let mut stage = Stage::new();
    stage.release();
    stage.end_agent(libc::SIGTERM);
    // What it decided is decided again from what it was told.
    let recording = std::fs::read(stage.node.dir().join("decisions")).expect("it was recorded");
    let replayed = tidegate_record::replay(&recording[..]).expect("the same decisions");
    assert!(
        replayed.events > 50 && replayed.effects > 20,
        "{replayed:?}"
    );
    let text = String::from_utf8(recording).expect("text");
    for kind in [
        "kv_registered",
        "elastic_registered",
        "published",
        "checked",
        "moved",
        "withheld",
        "asked",
    ] {
        assert!(
            text.contains(&format!(" memory_{kind} ")),
            "{kind} is not in the recording"
        );
    }
    stage.node.start_agent(SHARED);
    stage.goes_on();
    stage.end();
}

/// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
#[test]
fn status_says_whose_handles_they_are() {
    let mut stage = Stage::new();
    let (offline, online) = (stage.engine.process.pid(), stage.online.process.pid());
    let range = stage.engine.ready();
    // The first holds block 0, which stays.
    let all = (range.end - range.start) / HANDLE - 1;
    // Status says whose handles they are now.
    wait_for("status to show what online has", || {
        let owned = stage.owned(online);
        let bytes = owned.bytes("headroom") + owned.bytes("online");
        let [held, ..] = owned.handles();
        (held >= 24 && bytes >= held * HANDLE).then_some(())
    });
    let owned = stage.owned(offline);
    let [.., taken] = owned.handles();
    assert!(taken > 0, "{owned:?}");
    assert_eq!(owned.handles().iter().sum::<u64>(), all, "{owned:?}");
    for (pid, role) in [(offline, "offline"), (online, "online")] {
        let (table, pid) = (view::table(&stage.node), pid.to_string());
        let (_, owners) = table.split_once("HANDLES").expect("a table of owners");
        let row = owners
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&pid));
        let row = row.unwrap_or_else(|| panic!("{pid} is missing:\n{table}"));
        assert!(row.contains(role), "{row}");
    }
    let status = view::status(&stage.node);
    let cache = &status["gpus"][0]["memory"]["caches"][0];
    assert_eq!(cache["pressure_target_per_minute"], 4.0, "{cache}");
    // 96 MiB are shared.
    let job = &status["jobs"][0];
    let number = |name: &str| job[name].as_u64().expect("a number");
    let (held, seconds) = (
        number("held_byte_seconds"),
        number("attached_ns") / 1_000_000_000,
    );
    assert!(
        held > 0 && held <= (96 << 20) * (seconds + 1),
        "{held} over {seconds} s: {job}"
    );
    let table = view::table(&stage.node);
    assert!(
        table.contains(" pressure events per minute (target 4.0)\n"),
        "{table}"
    );
    stage.release();
    wait_for("status to show that all came back", || {
        (stage.owned(offline).handles() == [all, 0, 0, 0]).then_some(())
    });
    stage.end();
}

/// P-MEMORY-7: an offline process sees its share and gets no more.
#[test]
fn an_offline_process_is_shown_what_the_pool_leaves_it_beside_the_least_headroom_and_other_jobs() {
    let config = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"72MiB\"\n\
                  headroom_min = \"8MiB\"\nheadroom_max = \"16MiB\"\n";
    let node = Node::new(&[], config);
    let shown = |job: &str| {
        let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
        command.arg("share").env("TIDEGATE_JOB", job);
        let program = Running::start("share", &mut command);
        assert_eq!(program.succeed().trim(), "ok");
    };
    // It ends when it is shown 64 MiB and gets so much and no more.
    shown("share-alone");
    // Another job's cache is no one else's, and is again when that job is gone.
    let other = format!("share-{}", node.device.pid());
    let mut engine = Engine::start(&node, &other, &["--blocks", "8"]);
    engine.goes_on(8);
    let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
    command.arg("less").env("TIDEGATE_JOB", "share-beside");
    assert_eq!(Running::start("less", &mut command).succeed().trim(), "ok");
    engine.stop();
    shown("share-after");
}

/// P-FAIR-12: who comes second has the memory that it deserves, from who has more, and both engines go on.
#[test]
fn two_engines_have_what_they_deserve_of_memory_and_make_no_wrong_token() {
    let mut node = Node::device_only(&["--set", "poison=0xa5"]);
    node.start_agent(SHARED);
    let starts = |name: &str| {
        let job = format!("{name}-{}", node.device.pid());
        Engine::start(&node, &job, &["--requests", "2"])
    };
    let mut first = starts("first");
    first.goes_on(64);
    // The second allocates before it hears what its share is, so that together they are born with more than there is.
    let agent = node.agent.as_ref().expect("it was started");
    agent.freeze();
    let mut second = starts("second");
    second.line("allocated", 1);
    agent.signal(libc::SIGCONT);
    second.goes_on(64);
    let engines = [first, second];
    let found = wait_for("each to have what it deserves", || settled(&node));
    let all: u64 = found.iter().map(|part| part.1).sum();
    assert_eq!(all, 96 << 20, "{found:?}");
    assert_eq!(found[0].1, found[1].1, "{found:?}");
    let owned = |node: &Node| {
        let status = view::status(node);
        let owners = status["gpus"][0]["memory"]["owners"].clone();
        let owners = owners.as_array().expect("a list").clone();
        let of = |owner: &Value, place: &str| number(&owner[&format!("{place}_bytes")]);
        let each = owners.iter().map(|o| of(o, "offline") + of(o, "excess"));
        each.collect::<Vec<u64>>()
    };
    wait_for("the owners to have it", || {
        let owned = owned(&node);
        (owned.iter().all(|has| has.abs_diff(48 << 20) <= 2 * HANDLE)).then_some(())
    });
    assert!(
        view::table(&node).contains("; has 4"),
        "{}",
        view::table(&node)
    );
    // Online takes a half of it, and each pays as much.
    let mut online = Elastic::start(&node);
    online.take(24);
    let found = wait_for("each to have what it deserves again", || settled(&node));
    assert!(found.iter().all(|part| part.1 <= 24 << 20), "{found:?}");
    go_on_and_are_right(&node, engines);
}

/// P-FAIR-12: who comes where another has all of a GPU's memory starts, as that gives up what it has too much.
#[test]
fn an_engine_starts_on_a_gpu_that_another_has_filled() {
    // 88 MiB of the first one's cache leave less than the 44 MiB of the second's.
    let mut node = Node::device_only(&["--memory-mib", "120", "--set", "poison=0xa5"]);
    node.start_agent(SHARED);
    let starts = |name: &str, blocks: &str| {
        let job = format!("{name}-{}", node.device.pid());
        let mut engine = Engine::start(&node, &job, &["--requests", "2", "--blocks", blocks]);
        engine.goes_on(64);
        engine
    };
    let first = starts("fills", "44");
    // All that a newcomer deserves counts as free for it, though the driver has less.
    let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
    command.arg("less").env("TIDEGATE_JOB", "looks");
    assert_eq!(Running::start("less", &mut command).succeed().trim(), "ok");
    let engines = [first, starts("comes", "22")];
    let found = wait_for("each to have what it deserves", || settled(&node));
    assert!(found.iter().all(|part| part.1 >= 44 << 20), "{found:?}");
    go_on_and_are_right(&node, engines);
}

/// What each of two jobs has of the memory and deserves, once that is the same.
fn settled(node: &Node) -> Option<Vec<(u64, u64)>> {
    let status = view::status(node);
    let part = |job: &Value| {
        let memory = &job["memory"];
        Some((
            memory["has_bytes"].as_u64()?,
            memory["deserves_bytes"].as_u64()?,
        ))
    };
    let jobs = status["jobs"].as_array().expect("a list");
    let parts: Vec<_> = jobs.iter().map(part).collect::<Option<_>>()?;
    let even =
        |(has, deserves): &(u64, u64)| has.abs_diff(*deserves) <= (deserves / 20).max(HANDLE);
    (parts.len() == 2 && parts.iter().all(even)).then_some(parts)
}

/// They make tokens until they are stopped, and no wrong one.
fn go_on_and_are_right<const N: usize>(node: &Node, mut engines: [Engine; N]) {
    for engine in &mut engines {
        engine.goes_on(64);
    }
    let ran = engines.map(|engine| {
        let known = (engine.process.pid(), engine.ready());
        engine.stop();
        known
    });
    let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
    for (pid, range) in ran {
        assert_eq!(judge(&records, pid, &range), Wrong::default());
    }
}

/// P-MEMORY-8: a guessed or second cache is not taken from.
#[test]
fn a_second_cache_in_a_process_keeps_its_job_from_being_reclaimed_as_long_as_it_stands() {
    let mut stage = Stage::new();
    stage.release();
    let before = stage.engine.told();
    stage.engine.tell("second 1");
    stage.engine.line("second 1", 1);
    let reclaimable =
        |stage: &Stage| view::status(&stage.node)["jobs"][0]["memory"]["reclaimable"].as_bool();
    wait_for("the agent to hear of the second cache", || {
        (reclaimable(&stage) == Some(false)).then_some(())
    });
    let said = stage
        .node
        .tidegate(&["events", "--kind", "kv_not_reclaimable"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("the process has another cache"), "{said}");
    // Online gets what is free, and is told that there is no more.
    wait_for("a demand to be denied", || {
        stage.reserve();
        let denied = stage.node.tidegate(&["events", "--kind", "denied"]);
        (!denied.stdout.is_empty()).then_some(())
    });
    assert!(stage.held < 24, "{} blocks", stage.held);
    stage.engine.goes_on(64);
    assert_eq!(stage.engine.told(), before, "nothing was taken");
    stage.engine.tell("second 0");
    stage.engine.line("second 0", 1);
    wait_for("24 blocks for online", || {
        stage.reserve();
        (stage.held == 24).then_some(())
    });
    stage.release();
    stage.end();
}

/// P-MEMORY-4: the real agent moves memory, whoever dies.
#[test]
fn an_agent_that_comes_later_knows_what_stands_and_gives_back_what_it_did_not_take() {
    let mut stage = Stage::new();
    stage.end_agent(libc::SIGKILL);
    stage.node.start_agent(SHARED);
    stage.goes_on();
    stage.end();
}

/// P-MEMORY-4: the real agent moves memory, whoever dies.
#[test]
fn a_process_stopped_in_the_middle_of_a_move_is_enabled_by_nobody_before_it_has_ended_it() {
    let mut stage = Stage::new();
    stage.release();
    for end in [libc::SIGKILL, libc::SIGTERM] {
        let moving = stage.in_a_move(3_000_000);
        stage.engine.process.signal(libc::SIGSTOP);
        assert!(!stage.has(Kind::Map, moving), "it was stopped too late");
        let owned = stage.owned(stage.engine.process.pid());
        let [_, quarantined, ..] = owned.handles();
        assert!(
            quarantined > 0,
            "it is in the middle of losing some: {owned:?}"
        );
        assert_eq!(owned.bytes("quarantined"), quarantined * HANDLE);
        stage.end_agent(end);
        let released = stage.node.tidegate(&["release"]);
        let said = String::from_utf8_lossy(&released.stdout).into_owned();
        assert!(said.contains("wait for their process"), "{said}");
        stage.node.start_agent(SHARED);
        // Longer than an agent waits for those who have something to claim.
        let enabled = wait_until(Duration::from_secs(2), || {
            stage.has(Kind::EnableEnd, moving).then_some(())
        });
        assert!(enabled.is_none(), "channels were enabled over a hole");
        stage.engine.process.signal(libc::SIGCONT);
        stage.goes_on();
    }
    stage.take();
    stage.release();
    stage.end();
}

/// P-MEMORY-4: the real agent moves memory, whoever dies.
#[test]
fn an_agent_that_comes_in_the_middle_of_a_move_enables_nothing_before_it_has_ended() {
    let mut stage = Stage::new();
    stage.release();
    // Shorter than its own patience with an agent that is gone.
    let moving = stage.in_a_move(600_000);
    stage.end_agent(libc::SIGKILL);
    stage.node.start_agent(SHARED);
    wait_for("the engine to run", || {
        stage.has(Kind::EnableEnd, moving).then_some(())
    });
    let records = history::read(&stage.node.vgpu_dir()).expect("the device keeps a history");
    let pid = stage.engine.process.pid();
    let mut since = records.iter().filter(|r| r.at_ns > moving && r.pid == pid);
    let first = since.find(|r| matches!(r.kind, Kind::Map | Kind::EnableEnd));
    assert_eq!(first.map(|record| record.kind), Some(Kind::Map));
    stage.goes_on();
    stage.end();
}

/// P-MEMORY-5: nobody gets more than there is, and events name what blocks a reclaim.
#[test]
fn events_say_why_nothing_can_be_taken_from_a_job() {
    let mut stage = Stage::new();
    stage.release();
    let pid = stage.engine.process.pid();
    let told = |stage: &mut Stage, why: &str| {
        wait_for(&format!("an event that says {why:?}"), || {
            stage.reserve();
            let events = stage
                .node
                .tidegate(&["events", "--kind", "unreclaimable"])
                .stdout;
            let events = String::from_utf8(events).expect("text");
            events
                .contains(&format!("process {pid}: {why}"))
                .then_some(())
        });
    };
    stage.engine.calls("copy");
    told(&mut stage, "one of its threads is inside cuMemcpyDtoH_v2");
    stage.engine.line("called copy", 1);
    stage.take();
    stage.release();
    stage.engine.process.signal(libc::SIGSTOP);
    told(&mut stage, "it has not answered in time");
    stage.engine.process.signal(libc::SIGCONT);
    stage.take();
    stage.release();
    stage.end();
}

/// P-MEMORY-5: nobody gets more than there is, and events name what blocks a reclaim.
#[test]
fn pressure_that_is_over_when_the_agent_hears_of_it_keeps_no_memory() {
    let node = Node::new(&[], SHARED);
    let mut online = Elastic::start(&node);
    let mut held = 0;
    wait_for("two blocks for online", || {
        let answer = online.ask(&format!("reserve {}", 2 - held));
        held += answer.split(' ').next()?.parse::<u64>().ok()?;
        (held == 2).then_some(())
    });
    let agent = node.agent.as_ref().expect("it runs");
    agent.signal(libc::SIGSTOP);
    for (what, answer) in [("use 2", "0"), ("use 0", "0"), ("release 2", "2")] {
        assert_eq!(online.ask(what), answer);
    }
    agent.signal(libc::SIGCONT);
    wait_for("the agent to hear of the pressure", || {
        let events = node.tidegate(&["events", "--output", "json"]).stdout;
        let events = String::from_utf8(events).expect("JSON");
        events.contains("\"pressure\"").then_some(())
    });
    wait_for("the agent to see that it is over", || {
        let status = view::status(&node);
        let cache = &status["gpus"][0]["memory"]["caches"][0];
        (number(&cache["used_bytes"]) == 0).then_some(())
    });
}

/// P-MEMORY-20: a wait for memory is one that the engine waits: what it asks for ahead and has when it comes to it is none.
#[test]
fn what_is_asked_for_ahead_is_no_wait_for_memory() {
    let node = Node::new(&[], SHARED);
    let mut online = Elastic::start(&node);
    let gpu = || view::status(&node)["gpus"][0].clone();
    let budget = || {
        let budget = &gpu()["budget"];
        (number(&budget["shortages"]), number(&budget["short_ns"]))
    };
    wait_for("its headroom", || {
        (number(&gpu()["memory"]["caches"][0]["mapped_bytes"]) >= 2 * HANDLE).then_some(())
    });
    let before = budget();
    // More than the headroom ever is.
    assert_eq!(online.ask("expect 24"), "0");
    let ahead = wait_for("a shortage that is over", || {
        Some(budget()).filter(|seen| seen.0 > before.0)
    });
    assert_eq!(ahead, (before.0 + 1, before.1));
    online.take(32);
    wait_for("one that it waited for", || {
        Some(budget()).filter(|seen| seen.0 > ahead.0 && seen.1 > ahead.1)
    });
}

/// P-MEMORY-27: where nothing is shared, an elastic cache has all of its memory and an offline one keeps all of its own.
#[test]
fn without_a_pool_each_engine_has_the_memory_that_it_allocated() {
    let node = Node::new(&["--set", "poison=0xa5"], tidegate_tests::TRUSTING);
    let job = format!("alone-{}", node.device.pid());
    let mut engine = Engine::start(&node, &job, &["--requests", "2"]);
    engine.goes_on(64);
    let mut online = Elastic::start(&node);
    online.take(24);
    assert_eq!(online.ask("check"), "ok");
    online.take(8);
    assert_eq!(online.ask("check"), "ok");
    assert_eq!(online.ask("release 30").split(' ').next(), Some("30"));
    engine.goes_on(64);
    online.take(30);
    assert_eq!(online.ask("check"), "ok");
    let events = node.tidegate(&["events", "--output", "json"]);
    let events = String::from_utf8(events.stdout).expect("JSON is UTF-8");
    for kind in ["\"reclaimed\"", "\"denied\""] {
        assert!(!events.contains(kind), "{events}");
    }
    assert!(events.contains("\"attached\""), "{events}");
}

/// P-MEMORY-28: an engine that needs workspace where the pool is full has it, and pays with blocks of its own cache, in
/// handles of any size. One that it cannot pay for is refused, and costs nothing.
#[test]
fn an_engine_pays_for_its_workspace_with_its_own_cache() {
    for handle in ["2", "8"] {
        let mut node = Node::device_only(&["--set", "poison=0xa5"]);
        node.start_agent(SHARED);
        let job = format!("works-{}", node.device.pid());
        let args = ["--requests", "2", "--blocks", "40", "--handle", handle];
        let mut engine = Engine::start(&node, &job, &args);
        engine.goes_on(64);
        let mut asked = 0;
        let mut allocates = |engine: &mut Engine, mib: u64| {
            asked += 1;
            engine.tell(&format!("plain {mib}"));
            engine.line("plain ", asked)[0]
        };
        const OUT_OF_MEMORY: u64 = 2;
        assert_eq!(allocates(&mut engine, 400), OUT_OF_MEMORY);
        assert_eq!(engine.told().0, 0, "nothing was taken for it");
        assert_eq!(allocates(&mut engine, 24), 0, "handles of {handle} MiB");
        wait_for("blocks of its own that it paid with", || {
            (engine.told().0 >= 4).then_some(())
        });
        // Online comes first, and the next is paid from what is left.
        let mut online = Elastic::start(&node);
        online.take(8);
        assert_eq!(allocates(&mut engine, 8), 0, "beside online");
        assert_eq!(online.ask("check"), "ok");
        go_on_and_are_right(&node, [engine]);
    }
}
