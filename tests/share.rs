//! A share is a limit of every way to allocate, an online allocation is paid for by who has a cache, and an engine that
//! starts beside another sizes itself from what that leaves.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use tidegate_tests::elastic::Elastic;
use tidegate_tests::engine::Engine;
use tidegate_tests::{Node, Running, compile, view, wait_for};

const MIB: u64 = 1 << 20;

/// A program that is told what to do by lines, and answers each with one.
struct Program {
    process: Running,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(node: &Node, role: &str, name: &str, args: &[&str]) -> Self {
        let mut command = node.preloaded(compile(name, &["-lcuda"]), role);
        command.args(args);
        if role == "offline" {
            command.env("SHARED", "1");
        }
        Self::from_command(name, &mut command)
    }

    fn from_command(name: &str, command: &mut Command) -> Self {
        let mut process = Running::start(name, command.stdin(Stdio::piped()));
        let stdin = process.child.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(process.child.stdout.take().expect("stdout is piped"));
        Self {
            process,
            stdin,
            lines,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a pipe can be read");
        line.trim().to_owned()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").expect("the program lives");
        self.line()
    }

    /// Its standard input ends, and it with that.
    fn end(self) {
        drop(self.stdin);
        self.process.succeed();
    }
}

/// What status says that offline has of the pool.
fn offline_mib(node: &Node) -> u64 {
    let status = view::status(node);
    let bytes = &status["gpus"][0]["memory"]["offline_bytes"];
    bytes.as_u64().expect("a number") / MIB
}

/// P-MEMORY-7: whichever function an offline process allocates by, it gets its share and no more.
#[test]
fn each_way_to_allocate_ends_at_the_share_and_online_grows_beside_it() {
    let config = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"128MiB\"\n\
                  headroom_min = \"56MiB\"\nheadroom_max = \"64MiB\"\n";
    let node = Node::new(&["--memory-mib", "256"], config);
    for way in [
        "alloc",
        "async",
        "async_ptsz",
        "pool",
        "pool_ptsz",
        "pitch",
        "managed",
        "create",
    ] {
        let mut program = Program::start(&node, "offline", "share", &[way, "250"]);
        assert_eq!(program.line(), "got 72 of 72", "{way}");
        wait_for("status to count it", || {
            (offline_mib(&node) == 72).then_some(())
        });
        let mut online = Elastic::start(&node);
        online.take(24);
        assert_eq!(online.ask("check"), "ok", "{way}");
        assert_eq!(program.ask("free"), "freed");
        wait_for("status to count it no more", || {
            (offline_mib(&node) == 0).then_some(())
        });
        program.end();
    }
}

/// P-MEMORY-7: a share of nothing is a share.
#[test]
fn an_offline_process_gets_nothing_where_online_has_the_whole_pool() {
    let config = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"128MiB\"\n";
    let node = Node::new(&["--memory-mib", "256"], config);
    let mut online = Program::start(&node, "online", "share", &["alloc", "140"]);
    assert_eq!(online.line(), "got 140 of 256");
    wait_for("the books to know that nothing is left", || {
        let free = view::status(&node)["gpus"][0]["memory"]["free_bytes"].as_u64();
        (free == Some(0)).then_some(())
    });
    for way in ["alloc", "async", "pitch", "create"] {
        let mut offline = Program::start(&node, "offline", "share", &[way, "100"]);
        // A device is never shown with less than 2 MiB.
        assert_eq!(offline.line(), "got 0 of 2", "{way}");
        offline.end();
    }
    online.end();
}

/// Functions of the driver that make memory, or seem to, and have no gate: what the name begins with, and why.
const UNGATED: [(&str, &str); 14] = [
    ("cuMemAllocHost", "memory of the host"),
    ("cuMemHostAlloc", "memory of the host"),
    ("cuMemGetAllocation", "asks only"),
    (
        "cuGraphAddMemAllocNode",
        "a graph's memory is there from its launch on, which never waits",
    ),
    ("cuGraphMemAllocNode", "asks only"),
    (
        "cuMemRetainAllocationHandle",
        "one reference more to memory that is there",
    ),
    ("cuMemPoolCreate", "an empty pool"),
    (
        "cuMemPoolImport",
        "another process' memory, which is counted there",
    ),
    (
        "cuMemImport",
        "another process' memory, which is counted there",
    ),
    ("cuImportExternal", "another library's memory"),
    (
        "cuMulticastCreate",
        "addresses of memory that is made by handle",
    ),
    (
        "cuLogicalEndpoint",
        "addresses of memory that is made by handle",
    ),
    (
        "cuIpcOpenMemHandle",
        "another process' memory, which is counted there",
    ),
    ("cuTensorMapSetAllocationClass", "a description"),
];

/// P-MEMORY-7: whichever function an offline process allocates by, it gets its share and no more.
#[test]
fn every_function_of_the_driver_that_makes_memory_has_a_gate_or_a_reason() {
    let table = include_str!("../interposer/src/hook/table.rs");
    let gated = |symbol: &str| {
        let base = symbol.strip_suffix("_ptsz");
        table.lines().any(|line| {
            let gate = [
                "answers::alloc",
                "answers::plain",
                "answers::pitched",
                "grant::",
                "arrays::",
            ];
            let twin = base.is_none() || line.contains("+ ptsz");
            let named = line.contains(&format!(" fn {}(", base.unwrap_or(symbol)));
            named && twin && gate.iter().any(|gate| line.contains(gate))
        })
    };
    let makes = |symbol: &str| {
        ["Alloc", "Import", "ArrayCreate", "Array3DCreate"]
            .iter()
            .any(|part| symbol.contains(part))
            || [
                "cuMemCreate",
                "cuMemPoolCreate",
                "cuMulticastCreate",
                "cuLogicalEndpointCreate",
            ]
            .contains(&symbol)
            || symbol.starts_with("cuIpcOpenMemHandle")
    };
    let list = include_str!("vgpu/cuda/symbols.txt");
    let (mut seen, mut used) = (0, BTreeSet::new());
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let since: u32 = words[2].parse().expect("a version");
        // Names from before CUDA 3.2 that have a second version carry 32-bit addresses.
        let replaced = since < 3020 && list.contains(&format!(" {}_v2 ", words[1]));
        if !makes(words[1]) || replaced {
            continue;
        }
        seen += 1;
        let reason = UNGATED
            .iter()
            .find(|(begin, _)| words[1].starts_with(begin));
        used.extend(reason.map(|reason| reason.0));
        assert_eq!(gated(words[1]), reason.is_none(), "{line}: {reason:?}");
    }
    assert!(seen >= 20, "only {seen} in the list");
    assert_eq!(used.len(), UNGATED.len(), "only {used:?} are in the list");
}

/// An engine sleeps and wakes 20 times.
fn wakes(way: &str) {
    let config = "[identity]\ntrust_env_uids = [\"self\"]\n[memory]\npool = \"240MiB\"\n\
                  headroom_min = \"4MiB\"\nrestore_interval = \"100ms\"\n";
    let node = Node::new(&["--memory-mib", "264"], config);
    let mut online = Program::start(&node, "online", "sleeper", &[way, "100"]);
    assert_eq!(online.line(), "0");
    assert_eq!(online.ask("sleep"), "0");
    wait_for("the books to know that it sleeps", || {
        let memory = view::status(&node)["gpus"][0]["memory"]["free_bytes"].as_u64();
        (memory >= Some(230 * MIB)).then_some(())
    });
    let job = format!("wakes-{}", node.device.pid());
    let mut engine = Engine::start(&node, &job, &["--blocks", "100", "--requests", "8"]);
    engine.goes_on(64);
    for nth in 0..20 {
        let lost = engine.told().0;
        assert_eq!(online.ask("wake"), "0", "{way}, wake {nth}");
        wait_for("the engine to be told", || {
            (engine.told().0 > lost).then_some(())
        });
        assert_eq!(online.ask("sleep"), "0");
        wait_for("every lost block to be back", || {
            let (lost, back) = engine.told();
            (lost == back).then_some(())
        });
        engine.goes_on(8);
    }
    online.end();
    engine.stop();
}

/// P-MEMORY-32: an online engine that wakes has its memory from the offline cache that had it.
#[test]
fn an_online_engine_wakes_beside_a_full_offline_cache_by_alloc() {
    wakes("alloc");
}

/// P-MEMORY-32: an online engine that wakes has its memory from the offline cache that had it.
#[test]
fn an_online_engine_wakes_beside_a_full_offline_cache_by_create() {
    wakes("create");
}

/// What an engine that starts has to do, in this order (`apps/starter.c`).
const STEPS: [&str; 6] = ["look", "load", "load", "load", "size", "make"];
/// At how many of them the other may come in between. An offline engine makes the cache that it has sized before online takes
/// that memory: else it ends, as without a pool.
const TURNS: [usize; 2] = [STEPS.len(), STEPS.len() - 1];
/// Of each third of the weights of an online and of an offline engine.
const THIRD_MIB: [i64; 2] = [60, 20];
/// What an online and an offline engine are to use of the memory that they see, in hundredths.
const USES: [&str; 2] = ["70", "90"];
const GPU_MIB: i64 = 512;
const POOL_MIB: i64 = 492;
const HEADROOM_MIB: i64 = 8;
/// The size of an engine's cache that has none: it did not come to that.
const DIED: i64 = i64::MIN;

/// In which order two that start at once come to their steps: 0 is the online one, 1 the offline one.
fn order_of(start: u64) -> Vec<usize> {
    let mut left = TURNS;
    let mut drawn = start.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut order = Vec::new();
    while left != [0, 0] {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let who = usize::from(drawn >> 40 & 1 == 1);
        let who = if left[who] > 0 { who } else { 1 - who };
        left[who] -= 1;
        order.push(who);
    }
    order
}

/// How many thirds of its weights one has loaded in an order.
fn thirds(order: &[usize], who: usize) -> i64 {
    let steps = STEPS.iter().zip(order.iter().filter(|at| **at == who));
    steps.map(|(step, _)| i64::from(*step == "load")).sum()
}

/// What became of an engine.
#[derive(Clone, Copy, Debug, Default)]
struct Started {
    steps: usize,
    /// It has so much, MiB.
    has: i64,
    /// The cache that it sized.
    cache: i64,
    /// What the other had by then.
    other: i64,
    made: bool,
}

impl Started {
    /// One step of `who`, when the other has so much.
    fn take(&mut self, engine: &mut Program, step: &str, (who, other): (usize, i64)) {
        let says = if step == "load" {
            engine.ask(&format!("load {}", THIRD_MIB[who]))
        } else {
            engine.ask(step)
        };
        match (step, says.as_str()) {
            ("look", "0") => self.cache = DIED,
            ("load", "0") => self.has += THIRD_MIB[who],
            ("load", _) => self.cache = DIED,
            ("size", says) => {
                (self.cache, self.other) = (says.parse().expect("a number"), other);
            }
            ("make", "0") => (self.made, self.has) = (true, self.has + self.cache / 2 * 2),
            _ => {}
        }
    }
}

/// Two engines start at once.
fn start_at_once(node: &Node, start: u64, shared: bool) -> [Started; 2] {
    let mut engines = [0, 1].map(|who| {
        let role = ["online", "offline"][who];
        let mut command = node.preloaded(compile("starter", &["-lcuda"]), role);
        let job = format!("starts-{}-{start}", node.device.pid());
        command.env("TIDEGATE_JOB", job).arg(USES[who]);
        if shared && role == "offline" {
            command.env("SHARED", GPU_MIB.to_string());
        }
        let mut engine = Program::from_command("starter", &mut command);
        assert_eq!(engine.ask(role), "0");
        engine
    });
    let mut all = [Started::default(); 2];
    let order = order_of(start);
    for (nth, who) in order.iter().copied().enumerate() {
        let (engine, other) = (&mut engines[who], all[1 - who].has);
        let own = &mut all[who];
        let step = STEPS[own.steps];
        own.steps += 1;
        if own.cache == DIED {
            continue;
        }
        // Engines take longer from one step to the next than it takes the agent to hear of it and to answer.
        if shared && matches!(step, "look" | "size") {
            let free = if who == 0 {
                // What the offline one has in its cache is free.
                GPU_MIB - own.has - THIRD_MIB[1] * thirds(&order[..nth], 1)
            } else {
                POOL_MIB - HEADROOM_MIB - other - own.has
            };
            // Contexts have some memory themselves, and block 0 of a cache is never taken.
            let about = free - 8..=free;
            wait_for(
                &format!("{free} MiB to be shown to {who}, start {start}"),
                || {
                    let shown = engine.ask("free").parse().expect("a number");
                    about.contains(&shown).then_some(())
                },
            );
        }
        own.take(engine, step, (who, other));
        if own.steps == TURNS[who] && who == 1 {
            own.take(engine, STEPS[own.steps], (who, other));
        }
    }
    engines.into_iter().for_each(Program::end);
    all
}

/// P-MEMORY-33: of two engines that start at once both start, and the online one has what it has without a pool.
#[test]
fn two_engines_that_start_at_once_both_start() {
    let trusted = "[identity]\ntrust_env_uids = [\"self\"]\n";
    let pool = format!(
        "{trusted}[memory]\npool = \"{POOL_MIB}MiB\"\nheadroom_min = \"{HEADROOM_MIB}MiB\"\n"
    );
    let gpu = GPU_MIB.to_string();
    let node = |config: &str| Node::new(&["--memory-mib", &gpu], config);
    let (apart, shared) = (node(trusted), node(&pool));
    let mut alike = 0;
    for start in 0..20 {
        let without = start_at_once(&apart, start, false);
        let [online, offline] = start_at_once(&shared, start, true);
        let order = order_of(start);
        let words = format!(
            "start {start}, {order:?}: {online:?} and {offline:?}, without a pool {without:?}"
        );
        assert!(online.made && offline.made, "{words}");
        let own = 3 * THIRD_MIB[1];
        assert!(offline.cache <= GPU_MIB - own - offline.other, "{words}");
        // Where the other comes as far without a pool, which it does not in each order.
        if without[1].made {
            alike += 1;
            assert!(online.cache >= without[0].cache, "{words}");
        }
    }
    assert!(
        (1..20).contains(&alike),
        "{alike} of 20 start without a pool"
    );
}
