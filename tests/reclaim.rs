//! The real agent takes KV memory from a running offline engine for an online one, and gives it back.

use tidegate_tests::elastic::Elastic;
use tidegate_tests::engine::{Engine, Wrong, judge};
use tidegate_tests::{Node, Running, compile, view, wait_for};
use tidegate_vgpu::history;

/// What online and offline share is smaller than what both could use: beside 64 MiB of the engine's, 24 blocks of 2 MiB
/// do not fit.
const SHARED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"96MiB\"\nheadroom_min = \"4MiB\"\n\
                      headroom_max = \"16MiB\"\nrestore_interval = \"100ms\"\n";

/// A node on which online has taken from a running engine.
struct Stage {
    engine: Engine,
    online: Elastic,
    node: Node,
}

impl Stage {
    fn new() -> Self {
        let node = Node::new(&["--set", "poison=0xa5"], SHARED);
        let job = format!("shared-{}", node.device.pid());
        let mut engine = Engine::start(&node, &job, &["--requests", "2"]);
        engine.goes_on(64);
        let online = Elastic::start(&node);
        let mut stage = Self {
            engine,
            online,
            node,
        };
        stage.take();
        stage
    }

    fn take(&mut self) {
        let mut held = 0;
        wait_for("24 blocks for online", || {
            let answer = self.online.ask(&format!("reserve {}", 24 - held));
            held += answer.split(' ').next()?.parse::<u64>().ok()?;
            (held == 24).then_some(())
        });
        assert_eq!(self.online.ask("check"), "ok");
        wait_for("the engine to be told", || {
            (self.engine.told().0 > 0).then_some(())
        });
        self.engine.goes_on(64);
    }

    fn release(&mut self) {
        assert_eq!(self.online.ask("release 24"), "24");
        wait_for("every lost block to be back", || {
            let (lost, back) = self.engine.told();
            (lost == back).then_some(())
        });
        self.engine.goes_on(64);
    }

    fn end(self) {
        let (range, pid) = (self.engine.ready(), self.engine.process.pid());
        self.engine.stop();
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        assert_eq!(judge(&records, pid, &range), Wrong::default());
    }
}

#[test]
fn the_agent_takes_memory_for_online_from_a_running_engine_and_gives_it_back() {
    let mut stage = Stage::new();
    stage.release();
    stage.end();
}

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
    let mut held = 0;
    wait_for("a demand to be denied", || {
        let answer = stage.online.ask(&format!("reserve {}", 24 - held));
        held += answer.split(' ').next()?.parse::<u64>().ok()?;
        let denied = stage.node.tidegate(&["events", "--kind", "denied"]);
        (!denied.stdout.is_empty()).then_some(())
    });
    assert!(held < 24, "{held} blocks");
    stage.engine.goes_on(64);
    assert_eq!(stage.engine.told(), before, "nothing was taken");
    stage.engine.tell("second 0");
    stage.engine.line("second 0", 1);
    wait_for("24 blocks for online", || {
        let answer = stage.online.ask(&format!("reserve {}", 24 - held));
        held += answer.split(' ').next()?.parse::<u64>().ok()?;
        (held == 24).then_some(())
    });
    stage.release();
    stage.end();
}

#[test]
fn an_agent_that_comes_later_knows_what_stands_and_gives_back_what_it_did_not_take() {
    let mut stage = Stage::new();
    let agent = stage.node.agent.take().expect("there is an agent");
    agent.signal(libc::SIGKILL);
    drop(agent);
    stage.node.start_agent(SHARED);
    stage.engine.goes_on(64);
    assert_eq!(stage.online.ask("check"), "ok");
    stage.release();
    stage.end();
}
