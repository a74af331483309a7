//! Measures what messages cost the agent, and generates the price list in `agent/src/grpc/budget/prices.rs`.
//!
//! The unit is the dearest message that lists nothing. A message costs the processor time of the thread that it keeps
//! busier: the one that reads its bytes, or the control thread until it has nothing more to do for the message. Each message
//! has turns of its own. A price is a part of what the unit takes in the same run, so a slower machine has the same prices.
//! The least of many rounds counts, because other programs can only add to a round.
//!
//! The node has eight processes of one tenant, each with a cache of many stripes. A price is that of the dearest message
//! that it is charged for.

use crate::node::{Node, UUID, client_of};
use crate::spent;
use prost::Message as _;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use tidegate_agent::config::Role;
use tidegate_agent::grpc::budget::cost;
use tidegate_agent::grpc::heard::parts;
use tidegate_node::kinds::Tenant;
use tidegate_proto::v1::{self, ClientEvent, client_event::Event};

/// A price, in thousandths of a message that lists nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Its name in the price list.
    pub name: &'static str,
    /// What it is paid for.
    pub meaning: &'static str,
    /// As measured.
    pub measured: f64,
    /// What is paid with it for the message itself. Such a price is small beside that, and is compared with it together.
    pub beside: u64,
}

/// Messages, and what they take.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// What they are.
    pub name: &'static str,
    /// In units.
    pub takes: f64,
    /// What the budget charges for them, in units.
    pub charged: f64,
}

/// How many bytes cost one thousandth, by the budget: what HTTP/2 does with them is not measured here.
const BYTES: f64 = tidegate_agent::grpc::budget::BYTES as f64;
const UID: u32 = 70_000;
const SESSIONS: u64 = 8;
/// The processes with a large cache; the first has small ones, too.
const FIRST: u64 = 10;
/// One whose clients are its own, if their numbers begin with its own.
const PROVEN: u64 = FIRST + 2;
/// One without a cache.
const BARE: u64 = FIRST + SESSIONS;
/// An online one, whose cache grows.
const ONLINE: u64 = crate::node::HOSTILE;

/// Stripes of a large cache, and items of other long lists.
const STRIPES: u32 = 16_384;
const ITEMS: u32 = 2_048;
const CHANGES: u32 = 512;
/// How much longer than the control thread the one that reads may be kept busy.
const READS: f64 = 8.0;
/// Rounds of which the least counts, and calls in a round.
const ROUNDS: u64 = 12;
const CALLS: u64 = 8;
/// The messages that list nothing, of which the dearest is the unit.
const SMALL: [&str; 10] = [
    "note",
    "gate wait",
    "edge",
    "edge of an online process",
    "withheld",
    "pressure",
    "usage",
    "demand",
    "usage of an online process",
    "demand of an online process",
];

/// Messages that are said together, and what the dearest of them costs.
struct Load {
    name: &'static str,
    session: u64,
    /// The messages of a call; no two are alike.
    events: fn(u64) -> Vec<Event>,
    /// What the agent asks about a message is answered before the next one.
    settles: bool,
    /// ns of the thread that reads them, and of the control thread.
    reads: f64,
    acts: f64,
    messages: f64,
    bytes: f64,
    charged: u64,
}

impl Load {
    /// ns of the control thread, or of the thread that reads if that is kept busier. No preemption waits for the one that
    /// reads, so it may be kept busy [`READS`] times as long.
    fn ns(&self) -> f64 {
        self.acts.max(self.reads / READS)
    }
}

const fn load(name: &'static str, session: u64, events: fn(u64) -> Vec<Event>) -> Load {
    Load {
        name,
        session,
        events,
        settles: false,
        reads: f64::MAX,
        acts: f64::MAX,
        messages: 0.0,
        bytes: 0.0,
        charged: 0,
    }
}

fn note(text: String) -> Event {
    Event::Note(v1::Note {
        kind: "note".to_owned(),
        text,
    })
}

fn changes(events: impl Iterator<Item = v1::rm_event::Event>) -> Event {
    Event::Rm(v1::RmEvents {
        snapshot: false,
        events: events
            .map(|event| v1::RmEvent { event: Some(event) })
            .collect(),
    })
}

fn client_down(client: u32) -> v1::rm_event::Event {
    v1::rm_event::Event::ClientDown(v1::ClientDown { client })
}

fn channel(client: u32, channel: u32) -> v1::rm_event::Event {
    v1::rm_event::Event::ChannelUp(v1::ChannelUp {
        client,
        channel,
        tsg: channel,
        engine: v1::Engine::Graphics.into(),
        ..v1::ChannelUp::default()
    })
}

fn requests(set: Vec<(u64, Vec<u32>)>, forgotten: Vec<u64>) -> Event {
    let set = set.into_iter().map(|(request, blocks)| v1::RequestBlocks {
        request,
        tokens: 16,
        blocks,
    });
    Event::Requests(v1::Requests {
        snapshot: false,
        set: set.collect(),
        forgotten,
    })
}

/// A cache of so many stripes, of which each second one lacks memory in every second call, with so many kinds.
fn cache(kv: u32, (stripes, kinds): (u32, u32), nth: u64) -> v1::KvRegistered {
    let backed = if nth.is_multiple_of(2) { 0xff } else { 0x55 };
    // Neighbours share a block.
    let kind = |step| v1::StripeKind {
        step,
        blocks: 2,
        handles: 1,
    };
    v1::KvRegistered {
        kv,
        world: 1,
        handle_bytes: 2 << 20,
        block_count: stripes + 1,
        stripe_kinds: (0..kinds.max(2)).map(|nth| kind(nth.min(1))).collect(),
        stripe_kind: (0..stripes).map(|nth| u32::from(nth != 0)).collect(),
        backed: vec![backed; stripes.div_ceil(8) as usize],
        ..v1::KvRegistered::default()
    }
}

/// Blocks in no order.
fn mixed(blocks: u32) -> Vec<u32> {
    (0..blocks)
        .map(|nth| nth.wrapping_mul(2_654_435_761) % STRIPES)
        .collect()
}

fn edge(nth: u64) -> Event {
    Event::Edge(v1::Edge {
        slot: 0,
        busy: nth.is_multiple_of(2),
        activity: 2 * nth + nth % 2,
        ..v1::Edge::default()
    })
}

fn usage(nth: u64) -> Event {
    Event::Usage(v1::MemoryUsage {
        slot: 0,
        plain_bytes: (1 + nth % 64) << 21,
        ..v1::MemoryUsage::default()
    })
}

fn demand(nth: u64) -> Event {
    Event::Demand(v1::Demand {
        ticket: nth + 1,
        slot: 0,
        bytes: (1 + nth % 64) << 21,
        ..v1::Demand::default()
    })
}

/// What is measured.
fn loads() -> Vec<Load> {
    vec![
        load("note", BARE, |nth| vec![note(format!("{nth}"))]),
        load("gate wait", BARE, |nth| {
            let waiting = nth.is_multiple_of(2);
            vec![Event::GateWait(v1::GateWait { waiting })]
        }),
        load("edge", BARE, |nth| vec![edge(nth)]),
        load("edge of an online process", ONLINE, |nth| vec![edge(nth)]),
        load("withheld", FIRST, |nth| {
            vec![Event::Withheld(v1::Withheld { log_seq: nth })]
        }),
        load("pressure", ONLINE, |nth| {
            vec![Event::Pressure(v1::Pressure {
                kv: 1,
                used_bytes: (nth % 64) << 21,
                ..v1::Pressure::default()
            })]
        }),
        load("ends", BARE, |nth| {
            let from = nth as u32 * CHANGES;
            vec![changes((0..CHANGES).map(|at| client_down(from + at)))]
        }),
        load("channels", BARE, |_| {
            let up = v1::rm_event::Event::ClientUp(v1::ClientUp { client: 7 });
            let ups = (1..CHANGES).map(|at| channel(7, at));
            vec![
                changes(std::iter::once(up).chain(ups)),
                changes(std::iter::once(client_down(7))),
            ]
        }),
        // Of a client that is its own: what it has is journaled, and calls for it are made ready.
        Load {
            settles: true,
            ..load("own channels", PROVEN, |nth| {
                let client = client_of(PROVEN) + nth as u32;
                let up = v1::rm_event::Event::ClientUp(v1::ClientUp { client });
                let ups = (1..CHANGES).map(|at| channel(client, at));
                vec![
                    changes(std::iter::once(up).chain(ups)),
                    changes(std::iter::once(client_down(client))),
                ]
            })
        },
        load("short lists", FIRST, |nth| {
            let ids = || (0..u64::from(ITEMS)).map(|at| nth * u64::from(ITEMS) + at);
            vec![
                requests(
                    ids().map(|id| (id, vec![id as u32 % STRIPES])).collect(),
                    vec![],
                ),
                requests(vec![], ids().collect()),
            ]
        }),
        load("forgotten", FIRST, |nth| {
            vec![requests(
                vec![],
                (0..u64::from(ITEMS)).map(|at| !(nth + at)).collect(),
            )]
        }),
        load("long list", FIRST, |nth| {
            vec![
                requests(vec![(nth, mixed(ITEMS))], vec![]),
                requests(vec![], vec![nth]),
            ]
        }),
        load("small cache", FIRST, |nth| {
            vec![Event::KvRegistered(cache(2, (1, 2), nth))]
        }),
        load("small cache of one process", BARE, |nth| {
            vec![Event::KvRegistered(cache(2, (1, 2), nth))]
        }),
        load("cache gone", FIRST + 1, |nth| {
            vec![
                Event::KvRegistered(cache(2, (1, 2), nth)),
                Event::KvGone(v1::KvGone { kv: 2 }),
            ]
        }),
        load("kinds", BARE, |nth| {
            vec![Event::KvRegistered(cache(3, (1, ITEMS), nth))]
        }),
        load("large cache", FIRST + 2, |nth| {
            vec![Event::KvRegistered(cache(1, (STRIPES, 2), nth))]
        }),
        load("large cache beside another", FIRST + 3, |nth| {
            vec![Event::KvRegistered(cache(2, (STRIPES - 1, 2), nth))]
        }),
        load("moved", FIRST + 4, |_| {
            vec![Event::Restored(v1::Restored {
                stripes: (0..STRIPES).collect(),
                ..v1::Restored::default()
            })]
        }),
        load("usage", FIRST + 5, |nth| vec![usage(nth)]),
        load("demand", FIRST + 6, |nth| vec![demand(nth)]),
        load("usage of an online process", ONLINE, |nth| vec![usage(nth)]),
        load("demand of an online process", ONLINE, |nth| {
            vec![demand(nth)]
        }),
    ]
}

fn node() -> Node {
    let mut node = Node::new(Role::Online, false);
    let tenant = Tenant::User(UID);
    for session in FIRST..=BARE {
        node.attach(session, &tenant, UID);
        if session != BARE {
            let large = cache(1, (STRIPES, 2), 0);
            for said in parts(Event::KvRegistered(large)) {
                node.say(session, said);
            }
        }
    }
    let slot = Event::DeviceSeen(v1::DeviceSeen {
        slot: 0,
        uuid: UUID.to_vec(),
    });
    let elastic = v1::KvRegistered {
        elastic: true,
        ..cache(1, (STRIPES, 2), 0)
    };
    for event in [slot, Event::KvRegistered(elastic)] {
        for said in parts(event) {
            node.say(ONLINE, said);
        }
    }
    node.settle();
    node
}

/// One round of a load.
fn once(node: &mut Node, load: &mut Load, round: u64) {
    let calls = (0..CALLS).flat_map(|call| (load.events)(1 + round * CALLS + call));
    let calls: Vec<Event> = calls.collect();
    load.charged = calls.iter().map(cost).sum::<u64>() / CALLS;
    let messages: Vec<Vec<u8>> = calls
        .into_iter()
        .map(|event| ClientEvent { event: Some(event) }.encode_to_vec())
        .collect();
    // The two threads that have to do with a message: one reads it, the other acts on it.
    let (mut reads, acted) = (Duration::ZERO, node.acted());
    for message in &messages {
        let begun = spent::time();
        let said = ClientEvent::decode(&**message).expect("it was encoded");
        let said = said.event.map(parts).unwrap_or_default();
        reads += spent::time() - begun;
        for said in said {
            node.say(load.session, said);
        }
        node.turn();
        if load.settles {
            node.settle();
        }
    }
    let each = |took: Duration| took.as_nanos() as f64 / CALLS as f64;
    load.reads = load.reads.min(each(reads));
    load.acts = load.acts.min(each(node.acted() - acted));
    load.messages = messages.len() as f64 / CALLS as f64;
    load.bytes = messages.iter().map(Vec::len).sum::<usize>() as f64 / CALLS as f64;
    node.settle();
}

/// Measures all prices, in the order of the list, and what the messages took by which that was done.
#[must_use]
pub fn measured() -> (Vec<Price>, Vec<Taken>) {
    let (mut node, mut loads) = (node(), loads());
    for round in 0..ROUNDS {
        for load in &mut loads {
            once(&mut node, load, round);
        }
    }
    let by_name: BTreeMap<&str, &Load> = loads.iter().map(|load| (load.name, load)).collect();
    let small = SMALL.iter().map(|name| by_name[name].ns());
    let unit = small.fold(0.0, f64::max);
    for load in &loads {
        let (name, reads, acts) = (load.name, load.reads, load.acts);
        let units = load.ns() / unit;
        let charged = load.charged as f64 / 1_000.0;
        println!(
            "{name:28} {reads:9.0} ns to read, {acts:9.0} ns to act on, {units:7.2} units, {charged:7.2} charged"
        );
    }
    // What a call costs beside its messages and their bytes.
    let rest = |name: &str| {
        let load = by_name[name];
        let paid = load.messages * 1_000.0 + load.bytes / BYTES;
        (load.ns() / unit * 1_000.0 - paid).max(0.0)
    };
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let (changes, items, stripes) = (f64::from(CHANGES), f64::from(ITEMS), f64::from(STRIPES));
    let change = most(&["ends", "channels", "own channels"].map(rest)) / changes;
    let run = most(&[
        rest("forgotten") / items,
        rest("short lists") / (2.0 * items),
        rest("kinds") / items,
    ]);
    let block = rest("long list") / items;
    let cached = most(&[
        rest("small cache"),
        rest("small cache of one process"),
        // It comes and goes.
        rest("cache gone") / 2.0,
    ]);
    let large = most(&["large cache", "large cache beside another"].map(rest));
    let stripe = most(&[large - cached, rest("moved")]) / stripes;
    let price = |name, meaning, measured| Price {
        name,
        meaning,
        measured,
        beside: if name == "CACHED" { 1_000 } else { 0 },
    };
    let taken = loads.iter().map(|load| Taken {
        name: load.name,
        takes: load.ns() / unit,
        charged: load.charged as f64 / 1_000.0,
    });
    let prices = vec![
        price("CHANGE", "Of a change to a process' RM objects.", change),
        price(
            "RUN",
            "Of a request with blocks or one that is forgotten, and of a kind of stripes or a stripe that is described by itself.",
            run,
        ),
        price(
            "BLOCK",
            "Of a block that a request holds, beside its bytes.",
            block,
        ),
        price(
            "CACHED",
            "Of a cache that comes or goes, beside what it lists.",
            cached,
        ),
        price(
            "STRIPE",
            "Of a stripe of a cache, or one that was moved.",
            stripe,
        ),
    ];
    (prices, taken.collect())
}

/// A price as the list has it: two digits, and never less than was measured.
#[must_use]
pub fn rounded(price: &Price) -> u64 {
    let mut scale = 1.0;
    while price.measured / scale >= 100.0 {
        scale *= 10.0;
    }
    ((price.measured / scale).ceil() * scale).max(1.0) as u64
}

/// The file of the price list.
#[must_use]
pub fn list(prices: &[Price]) -> String {
    let mut text = String::from(
        "//! Prices of what messages list, in thousandths of one that lists nothing.\n\
         //!\n\
         //! Measured on the agent's threads, not written by hand: `TIDEGATE_REGENERATE=1 cargo test -p tidegate-fuzz --test prices`\n\
         //! writes this file, and the same test without that variable compares it with what it measures.\n",
    );
    for price in prices {
        let (name, value) = (price.name, rounded(price));
        let _ = write!(
            text,
            "\n/// {}\npub const {name}: u64 = {};\n",
            price.meaning,
            thousands(value)
        );
    }
    let _ = write!(
        text,
        "\n/// All of them, by name.\npub const ALL: [(&str, u64); {}] = [\n",
        prices.len()
    );
    for price in prices {
        let _ = writeln!(text, "    (\"{0}\", {0}),", price.name);
    }
    text.push_str("];\n");
    text
}

/// A number as clippy wants it.
fn thousands(value: u64) -> String {
    let mut text = value.to_string();
    let mut at = text.len();
    while at > 3 {
        at -= 3;
        text.insert(at, '_');
    }
    text
}
