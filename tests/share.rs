//! A share is a limit of every way to allocate, and an online allocation is paid for by who has a cache.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

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
        command.args(args).stdin(Stdio::piped());
        if role == "offline" {
            command.env("SHARED", "1");
        }
        let mut process = Running::start(name, &mut command);
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

/// Functions of the driver that make memory, or seem to, and have no gate: what the name begins with, and why.
const UNGATED: [(&str, &str); 11] = [
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
            || ["cuMemCreate", "cuMemPoolCreate", "cuMulticastCreate"].contains(&symbol)
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
