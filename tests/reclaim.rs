//! The real agent takes KV memory from a running offline engine for an online one, and gives it back.

use tidegate_tests::elastic::Elastic;
use tidegate_tests::engine::{Engine, Wrong, judge};
use tidegate_tests::{Node, wait_for};
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
