//! A trainer's arena over memory that is taken: what several addresses show of one block is one thing.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{MemoryResult, Role};
use tidegate_tests::schedules::Rng;
use tidegate_tests::stand_in::{Gate, PATIENCE, StandIn};
use tidegate_tests::tensors::place;
use tidegate_tests::{Node, Running, compile};
use tidegate_vgpu::history::{self, Kind};

const BLOCK: u64 = 2 << 20;
const BLOCKS: u64 = 16;
/// What `-ENOMEM` is.
const NO_ROOM: i64 = -12;

/// A program with an arena, and a stand-in for the agent.
struct Stage {
    program: Running,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    base: u64,
    agent: StandIn,
    node: Node,
}

impl Stage {
    fn new() -> Self {
        let node = Node::device_only(&["--set", "poison=0xa5"]);
        let agent = StandIn::start(&node, Role::Offline);
        let mut command = node.preloaded(compile("arena", &["-lcuda"]), "offline");
        command
            .env("TIDEGATE_JOB", format!("arena-{}", node.device.pid()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut program = Running::start("arena", &mut command);
        let stdin = program.child.stdin.take().expect("piped");
        let stdout = BufReader::new(program.child.stdout.take().expect("piped"));
        let mut stage = Self {
            program,
            stdin,
            stdout,
            base: 0,
            agent,
            node,
        };
        stage.agent.let_run(0);
        let ready = stage.line();
        stage.base = ready
            .trim_start_matches("ready ")
            .parse()
            .expect("a number");
        stage.agent.cache(0);
        stage
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").expect("it lives");
        self.line()
    }

    fn number(&mut self, what: &str) -> i64 {
        let answer = self.ask(what);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{what}: {answer:?}"))
    }

    fn take(&mut self, bytes: u64) -> Result<u64, i64> {
        let at = self.number(&format!("take {bytes}"));
        u64::try_from(at).map_err(|_| at)
    }

    fn blocks(&mut self, at: u64) -> Vec<u64> {
        let ids = self.ask(&format!("blocks {at}"));
        ids.split_whitespace()
            .map(|id| id.parse().expect("an id"))
            .collect()
    }

    fn read(&mut self, at: u64) -> u64 {
        self.ask(&format!("read {at}")).parse().expect("a word")
    }

    fn write(&mut self, at: u64, value: u64) {
        assert_eq!(self.number(&format!("write {at} {value}")), 0);
    }

    fn poll(&mut self) -> (Vec<u64>, Vec<u64>) {
        let said = self.ask("poll");
        let (lost, back) = said.split_once('|').expect("both");
        let ids = |text: &str| {
            text.split_whitespace()
                .map(|id| id.parse().expect("an id"))
                .collect()
        };
        (ids(lost), ids(back))
    }

    /// Takes the memory of blocks, or gives it back, as the agent does.
    fn change(&mut self, blocks: &[u64], back: bool) {
        let checked = self.agent.check(0, PATIENCE);
        assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
        self.agent.channels(0, true);
        let kv = self.agent.cache(0).kv;
        let stripes: Vec<u32> = blocks
            .iter()
            .map(|id| u32::try_from(*id).expect("small"))
            .collect();
        if back {
            let done = self.agent.restore(0, kv, &stripes);
            assert_eq!(done[0].stripes, stripes, "{done:?}");
        } else {
            let done = self.agent.reclaim(0, kv, &stripes);
            assert_eq!(done[0].stripes, stripes, "{done:?}");
            assert_eq!(done[0].released_bytes, blocks.len() as u64 * BLOCK);
        }
        self.agent.channels(0, false);
        self.agent.gate(0, Gate::Open);
    }

    fn withheld(&self) {
        self.agent
            .hear(0, "the blocks to be withheld", |event| match event {
                Event::Withheld(_) => Some(()),
                _ => None,
            });
    }

    fn count(&self, kind: Kind) -> usize {
        let records = history::read(&self.node.vgpu_dir()).expect("the device keeps a history");
        let mine =
            |record: &&history::Record| record.pid == self.program.pid() && record.kind == kind;
        records.iter().filter(mine).count()
    }

    fn end(self) {
        let pid = self.program.pid();
        let dir = self.node.vgpu_dir();
        drop(self.stdin);
        self.program.succeed();
        let records = history::read(&dir).expect("the device keeps a history");
        let faults = records
            .iter()
            .filter(|r| r.pid == pid && r.kind == Kind::Fault);
        assert_eq!(faults.count(), 0);
    }
}

/// P-TRAINER-5: a block is lost, and back, at all the addresses where it is seen.
#[test]
fn a_block_is_lost_and_back_at_both_of_its_addresses() {
    let mut stage = Stage::new();
    let tensor = stage.take(5 << 20).expect("room");
    let blocks = stage.blocks(tensor);
    assert_eq!(blocks.len(), 3);
    let first = |stage: &Stage, nth: usize| stage.base + blocks[nth] * BLOCK + 64;
    let second = |nth: u64| tensor + nth * BLOCK + 64;
    for nth in 0..3 {
        stage.write(second(nth), 100 + nth);
        let at = first(&stage, nth as usize);
        assert_eq!(stage.read(at), 100 + nth, "one block, two addresses");
    }
    let calls = stage.count(Kind::Map) + stage.count(Kind::Unmap);
    let small = stage.take(1_000).expect("room");
    let whole = stage.take(BLOCK).expect("room");
    assert_eq!(stage.number(&format!("give {whole}")), 0);
    assert_eq!(stage.number(&format!("give {small}")), 0);
    assert_eq!(stage.number(&format!("give {small}")), -22);
    assert_eq!(
        stage.count(Kind::Map) + stage.count(Kind::Unmap),
        calls,
        "no call of the driver"
    );

    let gone = blocks[1];
    let freed = stage.count(Kind::MemoryDown);
    stage.change(&[gone], false);
    assert_eq!(
        stage.count(Kind::MemoryDown),
        freed + 1,
        "no address kept the memory"
    );
    assert_eq!(stage.poll(), (vec![gone], vec![]));
    let at = first(&stage, 1);
    assert_ne!(stage.read(at), 101);
    assert_eq!(stage.read(second(1)), stage.read(at));
    assert_eq!((stage.read(second(0)), stage.read(second(2))), (100, 102));

    // What is lost is given to nobody, whoever gives it up.
    assert_eq!(stage.number(&format!("give {tensor}")), 0);
    let all = (BLOCKS - 1) * BLOCK;
    assert_eq!(stage.take(all + 1), Err(NO_ROOM));
    let most = stage.take(all).expect("room for all others");
    assert!(!stage.blocks(most).contains(&gone));
    stage.withheld();
    stage.change(&[gone], true);
    assert_eq!(stage.poll(), (vec![], vec![gone]));
    let last = stage.take(BLOCK).expect("it is back");
    assert_eq!(stage.blocks(last), [gone]);
    stage.write(last + 8, 7);
    assert_eq!(stage.read(last + 8), 7);
    stage.end();
}

/// P-TRAINER-5: the tensors of a real training step leave less than 100 MB of their blocks unused (HARLI, arXiv
/// 2511.11729, section 8.8), and those of a block and less cost no call of the driver.
#[test]
fn the_tensors_of_a_step_of_an_8b_model_waste_less_than_100_mb() {
    let placed = place().expect("the recording fits");
    assert!(placed.tensors > 5_000 && placed.small > 1_000, "{placed:?}");
    assert!(placed.asked_bytes > 30 << 30, "{placed:?}");
    assert!(placed.waste_bytes < 100_000_000, "{placed:?}");
    assert_eq!(placed.small_calls, 0, "{placed:?}");
}

/// P-TRAINER-5: in any order of takes, gives, losses and returns every tensor has what was written to it, but for what
/// it lost, and all addresses of a block show the same.
#[test]
fn in_random_orders_tensors_keep_what_they_did_not_lose() {
    let mut stage = Stage::new();
    let mut rng = Rng(5);
    // By address: what each of its blocks holds, if it was not lost since.
    let mut tensors = BTreeMap::<u64, Vec<Option<u64>>>::new();
    let (mut gone, mut refused, mut changes) = (Vec::<u64>::new(), 0, 0);
    for round in 0..160 {
        match rng.between(0, 10) {
            0..4 => {
                let count = rng.between(1, 7);
                match stage.take(count * BLOCK - rng.between(0, BLOCK / 4)) {
                    Ok(at) => {
                        let words = (0..count).map(|nth| round * 100 + nth);
                        words
                            .clone()
                            .zip(0..)
                            .for_each(|(word, nth)| stage.write(at + nth * BLOCK, word));
                        assert!(
                            tensors.insert(at, words.map(Some).collect()).is_none(),
                            "it is held"
                        );
                    }
                    Err(code) => {
                        assert_eq!(code, NO_ROOM);
                        refused += 1;
                    }
                }
            }
            4..6 => {
                let chosen = tensors
                    .keys()
                    .nth(rng.between(0, 1 + tensors.len() as u64) as usize);
                if let Some(at) = chosen.copied() {
                    tensors.remove(&at);
                    assert_eq!(stage.number(&format!("give {at}")), 0);
                }
            }
            6..8 => {
                let id = rng.between(0, BLOCKS);
                if !gone.contains(&id) {
                    stage.change(&[id], false);
                    gone.push(id);
                    changes += 1;
                    assert_eq!(stage.poll().0, [id]);
                    for (at, words) in &mut tensors {
                        let blocks = stage.blocks(*at);
                        for (word, _) in words
                            .iter_mut()
                            .zip(blocks)
                            .filter(|(_, block)| *block == id)
                        {
                            *word = None;
                        }
                    }
                }
            }
            _ if !gone.is_empty() => {
                let id = gone.remove(0);
                stage.change(&[id], true);
                assert_eq!(stage.poll().1, [id]);
            }
            _ => {}
        }
        for (at, words) in &tensors {
            let blocks = stage.blocks(*at);
            assert_eq!(blocks.len(), words.len());
            for ((word, block), nth) in words.iter().zip(blocks).zip(0..) {
                let (here, there) = (
                    stage.read(at + nth * BLOCK),
                    stage.read(stage.base + block * BLOCK),
                );
                assert_eq!(here, there, "round {round}: one block at two addresses");
                if let Some(word) = word {
                    assert_eq!(here, *word, "round {round}");
                }
            }
        }
    }
    assert!(
        changes > 15 && refused > 3,
        "{changes} losses, {refused} refusals"
    );
    stage.end();
}
