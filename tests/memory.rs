//! KV memory is taken from a running offline engine and given back without a fault or a wrong token.

use std::time::Duration;

use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{MemoryResult, Role};
use tidegate_tests::engine::{Engine, Wrong, judge};
use tidegate_tests::stand_in::{Gate, StandIn};
use tidegate_tests::{Node, wait_for};
use tidegate_vgpu::history;

const PATIENCE: Duration = Duration::from_millis(500);

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

    /// Reclaims while the engine runs, and lets it go on.
    fn take(&mut self, stripes: &[u32]) -> u64 {
        let kv = self.agent.cache(0).kv;
        let prepared = self.agent.prepare(0, PATIENCE);
        assert_eq!(prepared.result(), MemoryResult::Ok, "{prepared:?}");
        self.agent.channels(0, true);
        let answers = self.agent.reclaim(0, kv, stripes);
        let [done] = &answers[..] else {
            panic!("one answer, not {answers:?}")
        };
        assert_eq!(done.result(), MemoryResult::Ok, "{done:?}");
        assert_eq!(done.stripes, stripes);
        self.agent.channels(0, false);
        self.agent.gate(0, Gate::Open);
        done.log_seq
    }

    fn withheld(&self, seq: u64) {
        self.agent
            .hear(0, "the blocks to be withheld", |event| match event {
                Event::Withheld(withheld) if withheld.log_seq >= seq => Some(()),
                _ => None,
            });
    }

    fn give(&mut self, stripes: &[u32]) {
        let kv = self.agent.cache(0).kv;
        let prepared = self.agent.prepare(0, PATIENCE);
        assert_eq!(prepared.result(), MemoryResult::Ok, "{prepared:?}");
        self.agent.channels(0, true);
        let answers = self.agent.restore(0, kv, stripes);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(answers[0].result(), MemoryResult::Ok, "{answers:?}");
        assert_eq!(answers[0].stripes, stripes);
        self.agent.channels(0, false);
        self.agent.gate(0, Gate::Open);
    }

    /// Ends the engine; it must have seen no wrong token, and the device nothing wrong.
    fn end(self) {
        let (range, pid) = (self.engine.ready(), self.engine.process.pid());
        self.engine.stop();
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        assert_eq!(judge(&records, pid, &range), Wrong::default());
    }
}

#[test]
fn an_engine_whose_memory_is_taken_and_given_back_makes_the_same_tokens() {
    for (layout, stripes) in [("blocks", 31), ("layers", 7)] {
        let mut stage = Stage::new(&["--set", "poison=0xa5"], &["--layout", layout], &[]);
        let cache = stage.agent.cache(0);
        assert_eq!(cache.first_block.len(), stripes, "{layout}");
        assert_eq!(cache.refused, "");
        let blocks: u64 = cache.blocks[..3].iter().copied().map(u64::from).sum();
        let seq = stage.take(&[0, 1, 2]);
        stage.engine.goes_on(128);
        assert_eq!(stage.engine.told(), (blocks, 0), "{layout}");
        stage.withheld(seq);
        stage.give(&[0, 1, 2]);
        stage.engine.goes_on(256);
        assert_eq!(stage.engine.told(), (blocks, blocks), "{layout}");
        stage.end();
    }
}

#[test]
fn an_engine_that_does_not_heed_what_it_lost_makes_a_wrong_token() {
    let mut stage = Stage::new(&[], &["--ignore-lost"], &[]);
    stage.take(&(0..31).collect::<Vec<u32>>());
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
