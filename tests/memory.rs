//! KV memory is taken from a running offline engine and given back without a fault or a wrong token.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, MemoryResult, Role};
use tidegate_tests::clock::Stalls;
use tidegate_tests::engine::{Engine, Wrong, judge};
use tidegate_tests::stand_in::{Gate, PATIENCE, StandIn};
use tidegate_tests::{Node, Running, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind};

/// What the agent gives a reclaim by default.
const DEADLINE: Duration = Duration::from_millis(20);

/// A node with a stand-in for the agent, and an engine that runs.
struct Stage {
    engine: Engine,
    agent: StandIn,
    node: Node,
}

impl Stage {
    fn new(device: &[&str], engine: &[&str], env: &[(&str, &str)]) -> Self {
        let node = Node::device_only(device);
        let agent = StandIn::start(&node, Role::Offline);
        let job = format!("memory-{}", node.device.pid());
        let engine = Engine::start_with(&node, &job, engine, env);
        agent.let_run(0);
        let mut stage = Self {
            engine,
            agent,
            node,
        };
        stage.agent.cache(0);
        stage.engine.goes_on(64);
        stage
    }

    fn kv(&self) -> u32 {
        self.agent.cache(0).kv
    }

    fn set(&self, knob: &str, value: &str) {
        let control = Control::connect(&self.node.vgpu_dir()).expect("the device listens");
        control.set(knob, value).expect("a knob of the device");
    }

    /// Holds the gate, sees that nobody is inside a call that may hold locks, and disables the channels.
    fn shut(&mut self) {
        let checked = self.agent.check(0, PATIENCE);
        assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
        self.agent.channels(0, true);
    }

    fn open(&mut self) {
        self.agent.channels(0, false);
        self.agent.gate(0, Gate::Open);
    }

    /// Reclaims while the engine runs, and lets it go on.
    fn take(&mut self, stripes: &[u32]) -> v1::Reclaimed {
        self.shut();
        let answers = self.agent.reclaim(0, self.kv(), stripes);
        self.open();
        let [done] = &answers[..] else {
            panic!("one answer, not {answers:?}")
        };
        done.clone()
    }

    /// As [`Self::take`], and all of it is taken.
    fn take_all(&mut self, stripes: &[u32]) -> v1::Reclaimed {
        let done = self.take(stripes);
        assert_eq!(done.result(), MemoryResult::Ok, "{done:?}");
        assert_eq!(done.stripes, stripes);
        done
    }

    fn withheld(&self, seq: u64) {
        self.agent
            .hear(0, "the blocks to be withheld", |event| match event {
                Event::Withheld(withheld) if withheld.log_seq >= seq => Some(()),
                _ => None,
            });
    }

    fn give(&mut self, stripes: &[u32]) -> v1::Restored {
        self.shut();
        let answers = self.agent.restore(0, self.kv(), stripes);
        self.open();
        let [done] = &answers[..] else {
            panic!("one answer, not {answers:?}")
        };
        done.clone()
    }

    fn give_all(&mut self, stripes: &[u32]) {
        let done = self.give(stripes);
        assert_eq!(done.result(), MemoryResult::Ok, "{done:?}");
        assert_eq!(done.stripes, stripes);
    }

    /// Ends the engine; it must have seen no wrong token, and the device nothing wrong.
    fn end(self) {
        let (range, pid) = (self.engine.ready(), self.engine.process.pid());
        self.engine.stop();
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        assert_eq!(judge(&records, pid, &range), Wrong::default());
    }
}

/// P-MEMORY-3: memory goes and comes back without a fault or a wrong token.
/// P-MEMORY-14: no fault, no wrong token, no lost request.
#[test]
fn an_engine_whose_memory_is_taken_and_given_back_makes_the_same_tokens() {
    for (layout, stripes) in [("blocks", 31), ("layers", 7)] {
        let mut stage = Stage::new(&["--set", "poison=0xa5"], &["--layout", layout], &[]);
        let cache = stage.agent.cache(0);
        assert_eq!(cache.first_block.len(), stripes, "{layout}");
        assert_eq!(cache.refused, "");
        let blocks: u64 = cache.blocks[..3].iter().copied().map(u64::from).sum();
        let taken = stage.take_all(&[0, 1, 2]);
        assert_eq!(
            taken.released_bytes,
            cache.handles[..3]
                .iter()
                .map(|n| u64::from(*n))
                .sum::<u64>()
                * cache.handle_bytes
        );
        stage.engine.goes_on(128);
        assert_eq!(stage.engine.told(), (blocks, 0), "{layout}");
        stage.withheld(taken.log_seq);
        stage.give_all(&[0, 1, 2]);
        stage.engine.goes_on(256);
        assert_eq!(stage.engine.told(), (blocks, blocks), "{layout}");
        stage.end();
    }
}

/// P-MEMORY-3: memory goes and comes back without a fault or a wrong token.
#[test]
fn an_engine_that_does_not_heed_what_it_lost_makes_a_wrong_token() {
    let mut stage = Stage::new(&[], &["--ignore-lost"], &[]);
    stage.take_all(&(0..31).collect::<Vec<u32>>());
    let status = wait_for("the engine's end", || {
        stage
            .engine
            .process
            .child
            .try_wait()
            .expect("a child of ours")
    });
    assert_eq!(status.code(), Some(3), "it found a wrong token");
}

/// P-MEMORY-3: memory goes and comes back without a fault or a wrong token.
#[test]
fn nothing_is_given_back_before_the_engine_withholds_it() {
    let mut stage = Stage::new(&[], &[], &[]);
    stage.shut();
    let taken = stage.agent.reclaim(0, stage.kv(), &[4, 5]);
    // The engine is gated, so it has not polled yet.
    let early = stage.agent.restore(0, stage.kv(), &[4, 5]);
    assert_eq!(early[0].result(), MemoryResult::NotWithheld, "{early:?}");
    stage.open();
    stage.withheld(taken[0].log_seq);
    stage.give_all(&[4, 5]);
    stage.engine.goes_on(64);
    stage.end();
}

/// P-MEMORY-3: memory goes and comes back without a fault or a wrong token.
#[test]
fn without_a_held_gate_nothing_is_taken() {
    let mut stage = Stage::new(&[], &[], &[]);
    let answers = stage.agent.reclaim(0, stage.kv(), &[1]);
    assert_eq!(answers[0].result(), MemoryResult::Refused, "{answers:?}");
    stage.engine.goes_on(64);
    assert_eq!(stage.engine.told(), (0, 0));
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_thread_inside_a_call_that_holds_the_drivers_locks_puts_a_reclaim_off_and_nothing_hangs() {
    let mut stage = Stage::new(
        &[],
        &["--ns", "100000"],
        &[("TIDEGATE_VGPU_LOCKS", "calls")],
    );
    let calls = [
        ("copy", "cuMemcpyDtoH_v2"),
        ("free", "cuMemFree_v2"),
        ("host_free", "cuMemFreeHost"),
        ("load", "cuModuleLoadData"),
        ("unload", "cuModuleUnload"),
        ("stream", "cuStreamDestroy_v2"),
        ("event", "cuEventDestroy_v2"),
        ("sync", "cuCtxSynchronize"),
        ("context", "cuCtxDestroy_v2"),
        ("launch", "a launch"),
    ];
    for (stripe, (call, name)) in (0..).zip(calls) {
        stage.engine.calls(call);
        // The gate shuts because online is busy, and online wants memory.
        stage.agent.channels(0, true);
        // On a busy machine an order may come too late to be begun: then it is given again.
        let begun = |result| (result != MemoryResult::Cancelled).then_some(());
        let checked = wait_for("an answer to a question that came in time", || {
            let (stalls, asked) = (Stalls::watch(), monotonic_ns());
            let checked = stage.agent.check(0, DEADLINE);
            let took = Duration::from_nanos(monotonic_ns() - asked);
            assert!(
                took < Duration::from_secs(1) + Duration::from_nanos(stalls.ns()),
                "{call}: answered after {took:?}"
            );
            begun(checked.result()).map(|()| checked)
        });
        assert_eq!(
            checked.result(),
            MemoryResult::ThreadInside,
            "{call}: {checked:?}"
        );
        assert_eq!(checked.inside, name, "{call}");
        let last = wait_for("an answer to an order that came in time", || {
            let refused = stage
                .agent
                .order_reclaim(0, stage.kv(), &[stripe], DEADLINE);
            let last = stage.agent.reclaimed(0, refused).pop()?;
            begun(last.result()).map(|()| last)
        });
        assert_eq!(
            last.result(),
            MemoryResult::ThreadInside,
            "{call}: {last:?}"
        );
        assert!(last.stripes.is_empty());
        stage.open();
        stage.engine.line(&format!("called {call}"), 1);
        stage.engine.goes_on(16);
        stage.take_all(&[stripe]);
        stage.engine.goes_on(16);
    }
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_thread_that_ended_inside_a_launch_is_inside_no_more() {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let mut command = node.preloaded(compile("ends_inside", &["-lcuda"]), "offline");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running::start("ends_inside", &mut command);
    agent.let_run(0);
    let mut line = String::new();
    let pipe = program.child.stdout.as_mut().expect("stdout is piped");
    let read = BufReader::new(pipe).read_line(&mut line);
    assert_eq!((read.ok(), line.as_str()), (Some(5), "gone\n"));
    let checked = agent.check(0, PATIENCE);
    assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
    drop(program.child.stdin.take());
    program.succeed();
}

/// A step of a move of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The gate word orders calls to wait.
    Held,
    /// Nobody is inside.
    Checked,
    /// The channels are disabled.
    Disabled,
    /// A mapping is gone, and nothing is in its place.
    Moving,
    /// The process has answered.
    Moved,
}

impl Stage {
    /// Has the `nth` such call made while the agent is at `step` of taking a stripe, and the agent die there.
    fn dies_at(&mut self, step: Step, stripe: u32, call: &str, nth: usize) {
        self.engine.tell(&format!("prepare {call}"));
        self.engine.line(&format!("prepared {call}"), nth);
        self.agent.gate(0, Gate::Held);
        if step != Step::Held {
            let checked = self.agent.check(0, PATIENCE);
            assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
        }
        if !matches!(step, Step::Held | Step::Checked) {
            self.agent.channels(0, true);
        }
        let begun = monotonic_ns();
        let kv = self.kv();
        match step {
            Step::Moving => {
                // The mapping goes at once; the call returns so much later.
                self.set("unmap_us", "300000");
                self.agent.order_reclaim(0, kv, &[stripe], PATIENCE);
                self.wait_record("a mapping to go", begun, Kind::Unmap);
            }
            Step::Moved => {
                let answers = self.agent.reclaim(0, kv, &[stripe]);
                assert_eq!(answers[0].result(), MemoryResult::Ok, "{answers:?}");
            }
            Step::Held | Step::Checked | Step::Disabled => {}
        }
        self.engine.tell("go");
        self.engine.line(&format!("calling {call} "), nth);
        self.agent.die();
        let dead = monotonic_ns();
        if !matches!(step, Step::Held | Step::Checked) {
            self.wait_record("the channels to be enabled", dead, Kind::EnableEnd);
        }
        self.set("unmap_us", "0");
        self.agent = StandIn::start(&self.node, Role::Offline);
        self.agent.let_run(0);
        self.engine.line(&format!("called {call}"), nth);
        self.engine.goes_on(16);
        if step == Step::Moving {
            let after = self.records_after(begun);
            let first = after
                .iter()
                .find(|r| matches!(r.kind, Kind::Map | Kind::EnableEnd));
            let first = first.map(|record| record.kind);
            assert_eq!(
                first,
                Some(Kind::Map),
                "{call}: nothing is enabled over a hole"
            );
        }
    }

    /// What the device did for the engine after `from`.
    fn records_after(&self, from: u64) -> Vec<history::Record> {
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        let pid = self.engine.process.pid();
        let mine = records.into_iter();
        mine.filter(|r| r.at_ns > from && r.pid == pid).collect()
    }

    #[track_caller]
    fn wait_record(&self, what: &str, from: u64, kind: Kind) {
        wait_for(what, || {
            let mut after = self.records_after(from).into_iter();
            after.any(|record| record.kind == kind).then_some(())
        });
    }
}

/// P-MEMORY-4: memory is moved, whoever dies, also in the middle of a move.
/// P-LIFECYCLE-2: without an agent no channel stays disabled.
#[test]
fn an_agent_that_dies_in_a_move_lets_no_call_in_before_the_move_has_ended() {
    let env = [("TIDEGATE_VGPU_LOCKS", "calls")];
    let mut stage = Stage::new(&[], &["--ns", "100000"], &env);
    let calls = [
        "copy",
        "free",
        "host_free",
        "load",
        "unload",
        "stream",
        "event",
        "sync",
        "context",
        "launch",
    ];
    for (stripe, call) in (0..).zip(calls) {
        stage.dies_at(Step::Moving, stripe, call, 1);
    }
    stage.end();
}

/// P-MEMORY-4: memory is moved, whoever dies, also in the middle of a move.
/// P-LIFECYCLE-2: without an agent no channel stays disabled.
#[test]
fn an_agent_may_die_at_each_step_of_a_move_while_a_thread_enters_the_driver() {
    let env = [("TIDEGATE_VGPU_LOCKS", "calls")];
    let mut stage = Stage::new(&[], &["--ns", "100000"], &env);
    let steps = [
        Step::Held,
        Step::Checked,
        Step::Disabled,
        Step::Moving,
        Step::Moved,
    ];
    for (at, step) in (0..).zip(steps) {
        stage.dies_at(step, 2 * at, "copy", at as usize + 1);
        stage.dies_at(step, 2 * at + 1, "launch", at as usize + 1);
    }
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_reclaim_waits_for_a_call_that_goes_on() {
    let mut stage = Stage::new(&[], &[], &[("TIDEGATE_VGPU_LOCKS", "calls")]);
    for (stripe, call) in [(0, "copy"), (1, "launch")] {
        stage.engine.calls(call);
        stage.take_all(&[stripe]);
        stage.engine.line(&format!("called {call}"), 1);
    }
    stage.engine.goes_on(64);
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_mapping_that_fails_half_way_is_undone_and_the_engine_goes_on() {
    let mut stage = Stage::new(&[], &[], &[]);
    stage.set("fail_map", "1:3");
    let done = stage.take(&[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(done.result(), MemoryResult::OutOfMemory, "{done:?}");
    assert!(done.stripes.is_empty(), "{done:?}");
    stage.engine.goes_on(64);
    let (lost, back) = stage.engine.told();
    assert_eq!(lost, back, "what was not taken is back");
    let taken = stage.take_all(&[0, 1, 2, 3]);
    stage.withheld(taken.log_seq);
    stage.engine.goes_on(64);
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn what_cannot_even_be_undone_is_mended_before_anything_runs() {
    let mut stage = Stage::new(&[], &[], &[]);
    // The way there fails, the way back, and the first turns of the mending.
    stage.set("fail_map", "6");
    stage.shut();
    let done = stage.agent.reclaim(0, stage.kv(), &[0, 1, 2, 3]);
    let last = done.last().expect("an answer");
    assert_eq!(last.result(), MemoryResult::OutOfMemory, "{done:?}");
    assert!(last.stripes.is_empty(), "{done:?}");
    stage.open();
    stage.engine.goes_on(64);
    let (lost, back) = stage.engine.told();
    assert_eq!(lost, back, "what was not taken is back");
    stage.take_all(&[0, 1, 2, 3]);
    stage.engine.goes_on(64);
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn out_of_handles_nothing_is_given_back_and_nothing_leaks() {
    let mut stage = Stage::new(&[], &[], &[]);
    let taken = stage.take_all(&[2, 3, 4]);
    stage.withheld(taken.log_seq);
    stage.set("fail_create", "1:2");
    let done = stage.give(&[2, 3, 4]);
    assert_eq!(done.result(), MemoryResult::OutOfMemory, "{done:?}");
    assert!(done.stripes.is_empty());
    stage.give_all(&[2, 3, 4]);
    stage.engine.goes_on(64);
    let pid = stage.engine.process.pid();
    let records = history::read(&stage.node.vgpu_dir()).expect("the device keeps a history");
    let count = |kind| {
        records
            .iter()
            .filter(|r| r.pid == pid && r.kind == kind)
            .count()
    };
    let failed = 2;
    assert_eq!(
        count(Kind::MemoryDown),
        3 + failed,
        "taken, and made in vain"
    );
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_victim_that_dies_in_the_middle_leaves_nothing_behind() {
    let mut stage = Stage::new(&["--set", "unmap_us=20000"], &[], &[]);
    stage.shut();
    let kv = stage.kv();
    stage
        .agent
        .order_reclaim(0, kv, &(0..20).collect::<Vec<u32>>(), PATIENCE);
    let pid = stage.engine.process.pid();
    let records = || history::read(&stage.node.vgpu_dir()).expect("the device keeps a history");
    wait_for("the first mapping to go", || {
        records()
            .iter()
            .find(|r| r.pid == pid && r.kind == Kind::Unmap)
            .map(|_| ())
    });
    stage.engine.process.signal(libc::SIGKILL);
    wait_for("the session's end", || {
        stage.agent.with(0, |s| s.ended().then_some(()))?
    });
    wait_for("all of its memory to be free", || {
        let records = records();
        let count = |kind| {
            records
                .iter()
                .filter(|r| r.pid == pid && r.kind == kind)
                .count()
        };
        (count(Kind::MemoryUp) == count(Kind::MemoryDown)).then_some(())
    });
    // Its job's memory is begun anew by the next engine of that name.
    let next = Engine::start(
        &stage.node,
        &format!("memory-{}", stage.node.device.pid()),
        &[],
    );
    stage.agent.let_run(1);
    wait_for("the next engine's tokens", || {
        (next.tokens() >= 64).then_some(())
    });
    assert_eq!(next.told(), (0, 0));
    next.stop();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn what_an_engine_lost_ends_with_it_for_the_others_of_its_job() {
    let mut stage = Stage::new(&[], &[], &[]);
    stage.take_all(&[0]);
    let job = format!("memory-{}", stage.node.device.pid());
    // It is in the wrong job: its losses are told to the first.
    let mut other = Engine::start(&stage.node, &job, &["--requests", "1", "--unread"]);
    stage.agent.let_run(1);
    let kv = stage.agent.cache(1).kv;
    let checked = stage.agent.check(1, PATIENCE);
    assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
    stage.agent.channels(1, true);
    let answers = stage.agent.reclaim(1, kv, &[0, 1]);
    assert_eq!(answers[0].result(), MemoryResult::Ok, "{answers:?}");
    let told = |engine: &Engine, what: (u64, u64)| (engine.told() == what).then_some(());
    wait_for("both to be lost", || told(&stage.engine, (2, 0)));
    other.process.child.kill().expect("it lives");
    other.process.child.wait().expect("a child");
    wait_for("what only it missed to be back", || {
        told(&stage.engine, (2, 1))
    });
    stage.engine.goes_on(16);
    assert_eq!(stage.engine.told(), (2, 1), "its own is taken still");
    stage.give_all(&[0]);
    wait_for("its own to be back", || told(&stage.engine, (2, 2)));
    stage.end();
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_stopped_victim_answers_when_it_runs_again_and_nothing_was_done() {
    let mut stage = Stage::new(&[], &[], &[]);
    stage.shut();
    stage.engine.process.freeze();
    let kv = stage.kv();
    let seq = stage.agent.order_reclaim(0, kv, &[1, 2], DEADLINE);
    std::thread::sleep(DEADLINE * 3);
    let answered = |event: &Event| matches!(event, Event::Reclaimed(done) if done.seq == seq);
    let early = stage
        .agent
        .with(0, |session| session.heard().iter().any(answered));
    assert_eq!(early, Some(false), "a stopped process says nothing");
    stage.engine.process.signal(libc::SIGCONT);
    let answers = stage.agent.reclaimed(0, seq);
    let last = answers.last().expect("an answer");
    assert_eq!(last.result(), MemoryResult::Cancelled, "{answers:?}");
    assert!(last.stripes.is_empty());
    stage.open();
    stage.engine.goes_on(64);
    assert_eq!(stage.engine.told(), (0, 0));
    stage.end();
}

#[test]
fn a_cancelled_reclaim_stops_between_groups_and_says_what_it_took() {
    let mut stage = Stage::new(&["--set", "unmap_us=5000"], &["--blocks", "256"], &[]);
    stage.shut();
    let all: Vec<u32> = (0..255).collect();
    let kv = stage.kv();
    let seq = stage.agent.order_reclaim(0, kv, &all, PATIENCE);
    stage
        .agent
        .say(0, Command::CancelReclaim(v1::CancelReclaim { seq }));
    let answers = stage.agent.reclaimed(0, seq);
    let last = answers.last().expect("an answer");
    assert_eq!(last.result(), MemoryResult::Cancelled, "{answers:?}");
    assert!(
        last.stripes.len() < all.len(),
        "{} stripes",
        last.stripes.len()
    );
    let taken = last.stripes.len() as u64;
    stage.open();
    stage.engine.goes_on(128);
    assert_eq!(stage.engine.told(), (taken, 0));
    stage.end();
}

/// P-MEMORY-9: a KV scope answers like the driver.
#[test]
fn a_backed_allocation_answers_like_the_drivers_own() {
    let node = Node::device_only(&["--gpus", "2"]);
    let program = compile("kv_answers", &["-lcuda"]);
    for what in [
        "range",
        "attributes",
        "free",
        "free_waits",
        "context",
        "peers",
        "rdma",
        "retain",
    ] {
        let mut command = node.preloaded(&program, "");
        command.arg(what);
        let out = Running::start(what, &mut command).succeed();
        assert_eq!(out.trim(), "ok", "{what}");
    }
}

#[test]
fn memory_that_others_hold_is_never_taken_and_said_so_once() {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
    command.arg("shared").stdin(Stdio::piped());
    let program = Running::start("kv_answers", &mut command);
    agent.let_run(0);
    let kv = agent.hear(0, "the refusal", |event| match event {
        Event::KvRegistered(kv) if !kv.refused.is_empty() => Some(kv.kv),
        _ => None,
    });
    let checked = agent.check(0, PATIENCE);
    assert_eq!(checked.result(), MemoryResult::Ok);
    let answers = agent.reclaim(0, kv, &[0]);
    assert_eq!(answers[0].result(), MemoryResult::Refused, "{answers:?}");
    agent.gate(0, Gate::Open);
    let notes = agent.with(0, |session| {
        let notes = session.heard().iter();
        notes
            .filter(|event| matches!(event, Event::Note(note) if note.kind == "kv_shared"))
            .count()
    });
    assert_eq!(notes, Some(1));
    drop(program);
}

/// What a process says of its memory before it describes its cache, bytes outside any cache that the agent knows.
fn said_before_its_cache(agent: &StandIn) -> u64 {
    agent.cache(0);
    let said = agent.with(0, |session| {
        let heard = session.heard().iter();
        let before = heard.take_while(|event| !matches!(event, Event::KvRegistered(_)));
        let usage = before.filter_map(|event| match event {
            Event::Usage(usage) => Some(usage.plain_bytes + usage.unregistered_bytes),
            _ => None,
        });
        usage.last()
    });
    said.flatten().unwrap_or(0)
}

/// P-MEMORY-5: what an engine holds besides its cache is known before the cache is, so that none of it counts as free. A
/// later agent hears of all of it at once.
#[test]
fn an_agent_knows_of_all_other_memory_before_it_hears_of_a_cache() {
    // The driver cuts small allocations out of chunks of this; the library counts what was asked for.
    const CHUNK: u64 = 2 << 20;
    let mut stage = Stage::new(&[], &[], &[]);
    for nth in 0..2 {
        if nth == 1 {
            stage.agent = StandIn::start(&stage.node, Role::Offline);
        }
        let said = said_before_its_cache(&stage.agent);
        let held = stage.records_after(0).into_iter();
        let held = held.filter(|record| record.kind == Kind::MemoryUp);
        let held: u64 = held.map(|record| record.tag).sum();
        assert!(
            said <= held && said + CHUNK >= held,
            "agent {nth}: {said} bytes were said, {held} are held"
        );
    }
    stage.agent.let_run(0);
    stage.end();
}

/// P-MEMORY-8: a guessed or second cache is not taken from.
#[test]
fn a_guessed_cache_is_refused_where_its_job_has_more_than_one_rank() {
    for (what, refused) in [("guessed", false), ("guessed_of_two", true)] {
        let node = Node::device_only(&[]);
        let mut agent = StandIn::start(&node, Role::Offline);
        let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
        let job = format!("{what}-{}", node.device.pid());
        command
            .arg(what)
            .env("TIDEGATE_KV_GUESS", "4")
            .env("TIDEGATE_JOB", job)
            .stdin(Stdio::piped());
        let program = Running::start(what, &mut command);
        agent.let_run(0);
        let cache = agent.cache(0);
        assert_eq!(!cache.refused.is_empty(), refused, "{}", cache.refused);
        let checked = agent.check(0, PATIENCE);
        assert_eq!(checked.result(), MemoryResult::Ok);
        agent.channels(0, true);
        let answers = agent.reclaim(0, cache.kv, &[1]);
        let taken = answers.last().expect("an answer").stripes.len();
        assert_eq!(taken, usize::from(!refused), "{answers:?}");
        agent.channels(0, false);
        agent.gate(0, Gate::Open);
        drop(program);
    }
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_job_whose_file_is_removed_goes_on_and_who_comes_later_begins_anew() {
    let mut stage = Stage::new(&[], &[], &[]);
    let job = format!("memory-{}", stage.node.device.pid());
    // SAFETY: no arguments, cannot fail.
    let uid = unsafe { libc::geteuid() };
    let file = std::path::PathBuf::from(format!("/dev/shm/tidegate-{uid}-{job}"));
    std::fs::remove_file(&file).expect("the job's file stands while the job lives");
    let taken = stage.take_all(&[2, 3, 4]);
    stage.engine.goes_on(64);
    stage.withheld(taken.log_seq);
    let next = Engine::start(&stage.node, &job, &[]);
    stage.agent.let_run(1);
    wait_for("the next engine's tokens", || {
        (next.tokens() >= 64).then_some(())
    });
    stage.give_all(&[2, 3, 4]);
    stage.engine.goes_on(64);
    assert_eq!(stage.engine.told(), (3, 3));
    assert_eq!(next.told(), (0, 0), "nothing of it is the other's");
    assert!(file.exists(), "the later engine's file");
    next.stop();
    stage.end();
}

/// P-MEMORY-7: an offline process sees its share and gets no more.
#[test]
fn an_offline_program_sees_its_share_and_gets_no_more() {
    let node = Node::device_only(&[]);
    let agent = StandIn::start(&node, Role::Offline);
    let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
    command.arg("share");
    let program = Running::start("kv_answers", &mut command);
    agent.let_run(0);
    agent.say(
        0,
        Command::Share(v1::Share {
            slot: 0,
            total_bytes: 64 << 20,
            yields_bytes: 0,
            limited: false,
        }),
    );
    assert_eq!(program.succeed().trim(), "ok");
}

#[test]
fn the_c_interface_does_nothing_without_the_library() {
    let node = Node::device_only(&[]);
    let mut command = node.plain(compile("kv_absent", &["-lcuda"]));
    assert_eq!(
        Running::start("kv_absent", &mut command).succeed().trim(),
        "ok"
    );
}
