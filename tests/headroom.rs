//! Online's KV cache grows inside its headroom without a call, and asks for more beyond it.

use std::sync::atomic::Ordering;

use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, MemoryResult, Role};
use tidegate_tests::Node;
use tidegate_tests::elastic::Elastic;
use tidegate_tests::stand_in::StandIn;
use tidegate_vgpu::history::{self, Kind};

const BLOCK: u64 = 2 << 20;

fn map(agent: &mut StandIn, kv: u32, bytes: u64) -> v1::Mapped {
    let seq = agent.seq();
    agent.say(0, Command::MapTarget(v1::MapTarget { seq, kv, bytes }));
    agent.hear(0, "Mapped", |event| match event {
        Event::Mapped(mapped) if mapped.seq == seq => Some(*mapped),
        _ => None,
    })
}

/// P-MEMORY-15: growth inside the headroom calls nobody.
#[test]
fn online_grows_inside_its_headroom_without_a_call_and_asks_for_more_beyond_it() {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Online);
    let mut online = Elastic::start(&node);
    let cache = agent.cache(0);
    assert!(cache.elastic);
    assert_eq!(cache.fixed_bytes, BLOCK, "block 0 always has memory");
    assert_eq!(online.ask("reserve 4"), "0 0 0", "nothing is mapped yet");
    let demand = |least: u64| {
        agent.hear(0, "a demand", |event| match event {
            Event::Demand(demand) if demand.kv == cache.kv && demand.bytes >= least => {
                Some((demand.bytes, demand.ahead))
            }
            _ => None,
        })
    };
    assert_eq!(demand(1), (4 * BLOCK, false));
    // Said ahead, by requests on their way.
    assert_eq!(online.ask("expect 6"), "0");
    assert_eq!(demand(5 * BLOCK), (6 * BLOCK, true));
    let mapped = map(&mut agent, cache.kv, 8 * BLOCK);
    assert_eq!(
        (mapped.result(), mapped.mapped_bytes),
        (MemoryResult::Ok, 8 * BLOCK)
    );

    let mappings = || {
        let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
        records
            .iter()
            .filter(|r| matches!(r.kind, Kind::Map | Kind::MemoryUp))
            .count()
    };
    let before = mappings();
    assert_eq!(online.ask("expect 8"), "0");
    assert_eq!(
        online.ask("reserve 8"),
        "8 1 8",
        "what is expected is reserved by nobody"
    );
    assert_eq!(
        mappings(),
        before,
        "growth inside the headroom calls nobody"
    );
    assert_eq!(online.ask("check"), "ok", "blocks have memory of their own");
    assert_eq!(
        online.ask("stray"),
        "ok",
        "the rest takes writes, and keeps them to itself"
    );
    assert_eq!(online.ask("use 7"), "0");
    let words = agent.with(0, |session| {
        let words = &session.page().memory[0];
        let of = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Acquire);
        (of(&words.used), of(&words.reserved), of(&words.mapped))
    });
    assert_eq!(words, Some((7 * BLOCK, 8 * BLOCK, 8 * BLOCK)));
    let pressed = |session: &tidegate_tests::stand_in::Session| {
        let heard = session.heard().iter();
        heard
            .filter(|event| matches!(event, Event::Pressure(_)))
            .count()
    };
    assert_eq!(agent.with(0, pressed), Some(0), "7 of 8 are no pressure");
    assert_eq!(online.ask("use 8"), "0");
    agent.hear(0, "pressure", |event| match event {
        Event::Pressure(pressure) => Some(pressure.used_bytes),
        _ => None,
    });

    // What is reserved is never taken, what is free is given up from the top.
    assert_eq!(map(&mut agent, cache.kv, 0).mapped_bytes, 8 * BLOCK);
    assert_eq!(online.ask("release 5"), "5");
    assert_eq!(map(&mut agent, cache.kv, 4 * BLOCK).mapped_bytes, 4 * BLOCK);
    assert_eq!(map(&mut agent, cache.kv, 0).mapped_bytes, 3 * BLOCK);
    assert_eq!(online.ask("check"), "ok");
    let released = history::read(&node.vgpu_dir()).expect("the device keeps a history");
    let pid = online.process.pid();
    let freed = released
        .iter()
        .filter(|r| r.pid == pid && r.kind == Kind::MemoryDown);
    assert_eq!(freed.count(), 5, "memory was really given back");
}

#[test]
fn online_that_gets_less_than_it_wants_keeps_what_it_got() {
    let node = Node::device_only(&["--set", "fail_create=1:6"]);
    let mut agent = StandIn::start(&node, Role::Online);
    let mut online = Elastic::start(&node);
    let kv = agent.cache(0).kv;
    let mapped = map(&mut agent, kv, 8 * BLOCK);
    assert_eq!(mapped.result(), MemoryResult::OutOfMemory, "{mapped:?}");
    let got = mapped.mapped_bytes / BLOCK;
    assert!((1..8).contains(&got), "{mapped:?}");
    assert_eq!(online.ask("reserve 8"), format!("{got} 1 {got}"));
    assert_eq!(online.ask("check"), "ok");
    assert_eq!(map(&mut agent, kv, 8 * BLOCK).mapped_bytes, 8 * BLOCK);
}

#[test]
fn requests_in_flight_reach_the_agents_page() {
    let node = Node::device_only(&[]);
    let agent = StandIn::start(&node, Role::Online);
    let mut online = Elastic::start(&node);
    agent.cache(0);
    let word = || {
        let load = |s: &tidegate_tests::stand_in::Session| {
            let page = &s.page().process;
            (
                page.in_flight.load(Ordering::Acquire),
                page.doorbell.load(Ordering::Acquire),
            )
        };
        agent.with(0, load).expect("attached")
    };
    assert_eq!(word().0, 0, "no hints so far");
    let silent = word().1;
    online.ask("flight 2");
    let (count, rung) = word();
    assert_eq!(count, 3);
    assert!(rung > silent);
    online.ask("flight 1");
    assert_eq!(word().0, 2);
    online.ask("flight 0");
    assert_eq!(word().0, 1);
}
