//! What online may pay is kept to, whatever its traffic does.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::budget::{Budget, LONGEST, SHORTEST, Short, WINDOW, Worked};
use tidegate_policy::config::{Config, Slo};
use tidegate_policy::event::{Event, Reading};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{AskId, Bytes, GpuId, GraphId, KvId, Launches, SessionId};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

const SLO: Slo = Slo {
    ttft: 200,
    tpot: 50,
};
const USUAL: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

fn at(second: u64) -> Instant {
    Instant::from_nanos(second * 1_000_000_000)
}

fn prompts(ms: u64) -> Worked {
    Worked {
        span: Duration::from_millis(ms),
        decoded: false,
    }
}

#[derive(Clone, Copy, Debug)]
enum Did {
    Prompts(u64),
    Decodes(u64),
    Preempted(u64),
    Short(u64, u64),
    Nothing,
}

fn did() -> impl Strategy<Value = Did> {
    prop_oneof![
        (0u64..2_000).prop_map(Did::Prompts),
        (0u64..2_000).prop_map(Did::Decodes),
        (0u64..20).prop_map(Did::Preempted),
        (0u64..1_000, 0u64..1_000).prop_map(|(whole, still)| Did::Short(whole, still)),
        Just(Did::Nothing),
    ]
}

fn take(budget: &mut Budget, did: Did, now: Instant) {
    let ms = Duration::from_millis;
    match did {
        Did::Prompts(span) => budget.worked(prompts(span), now),
        Did::Decodes(span) => budget.worked(
            Worked {
                span: ms(span),
                decoded: true,
            },
            now,
        ),
        Did::Preempted(span) => budget.preempted(ms(span), ms(span), now),
        Did::Short(whole, still) => budget.fell_short(
            Short {
                whole: ms(whole),
                still: ms(still.min(whole)),
                parts: 1,
            },
            now,
        ),
        Did::Nothing => {}
    }
}

proptest! {
    /// P-MEMORY-20: what online may pay is kept to.
    #[test]
    fn a_looser_slo_never_accepts_less_and_a_preemption_never_more(
        steps in prop::collection::vec((did(), 0u64..200), 1..120),
        more in 0u32..1_000,
        cost in 1u64..1_000,
    ) {
        let mut budget = Budget::new(at(0));
        let mut now = 0;
        for (step, after) in steps {
            now += after;
            take(&mut budget, step, at(now));
            let every = budget.accepts(SLO, at(now));
            prop_assert!((SHORTEST..=LONGEST).contains(&every));
            let looser = Slo { ttft: SLO.ttft + more, tpot: SLO.tpot + more };
            prop_assert!(budget.accepts(looser, at(now)) <= every);
            let mut preempted = budget.clone();
            preempted.preempted(Duration::from_millis(cost), Duration::from_millis(cost), at(now));
            prop_assert!(preempted.accepts(SLO, at(now)) >= every);
        }
    }

    /// P-MEMORY-20: what online may pay is kept to.
    #[test]
    fn what_is_spent_beyond_the_budget_keeps_the_headroom_until_it_is_made_good(
        rate in 1u64..500,
        over in 1u64..500,
    ) {
        // Each second online reads prompts for so long; a shortage costs more than all that ever earns.
        let mut budget = Budget::new(at(0));
        for second in 1..=60 {
            budget.worked(prompts(rate), at(second));
        }
        // Four times what is left counts beside what was earned: a quarter more than that is too much.
        let earns_us = rate * 1_000 * u64::from(SLO.ttft) / 10_000;
        let spent = Duration::from_micros(660 * earns_us * 5 / 4) + Duration::from_millis(over);
        budget.fell_short(Short::still(spent), at(60));
        for second in 61..=600 {
            budget.worked(prompts(rate), at(second));
            prop_assert_eq!(budget.every(SLO, USUAL, at(second)), LONGEST);
        }
        // A whole window later it is forgotten.
        for second in 601..=700 {
            budget.worked(prompts(rate), at(second));
        }
        budget.fell_short(Short::still(Duration::from_micros(1)), at(700));
        for _ in 0..100 {
            budget.fell_short(Short::default(), at(700));
        }
        prop_assert!(budget.every(SLO, USUAL, at(700)) < LONGEST);
    }
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn it_begins_carefully_and_does_not_starve_offline_where_online_is_idle() {
    let mut budget = Budget::new(at(0));
    assert_eq!(budget.every(SLO, USUAL, at(0)), LONGEST);
    budget.worked(prompts(100), at(1));
    budget.fell_short(Short::still(SECOND), at(1));
    assert_eq!(budget.every(SLO, USUAL, at(2)), LONGEST);
    // Nobody is delayed any more.
    let idle = at(1).after(WINDOW);
    assert_eq!(budget.every(SLO, USUAL, idle), USUAL);
}

/// P-MEMORY-20: what online may pay is kept to. No shortage is accepted that could not be paid for.
#[test]
fn one_shortage_is_earned_before_any_is_accepted() {
    // What the worst of a hundred costs, and when: of late, or so long ago that only the mean still knows of it.
    for (worst_ms, late) in [(10, false), (50, false), (250, false), (250, true)] {
        let mut budget = Budget::new(at(0));
        for shortage in 0..100 {
            let cost = if late && shortage != 50 { 2 } else { worst_ms };
            budget.fell_short(Short::still(Duration::from_millis(cost)), at(0));
        }
        let begin = if late { 0 } else { WINDOW.as_secs() };
        let spent = if late { 99 * 2 + worst_ms } else { 0 };
        // 0.5 % of 400 ms: 2 ms earned in a second.
        let mut accepted = None;
        for second in begin + 1..begin + WINDOW.as_secs() {
            budget.worked(prompts(400), at(second));
            if accepted.is_none() && budget.accepts(SLO, at(second)) < LONGEST {
                accepted = Some(2 * (second - begin));
            }
        }
        // What is earned counts once beside four times what is left of it.
        let least = (spent + worst_ms) * 4 / 5;
        let earned = accepted.expect("shortages are accepted in the end");
        assert!(
            (least..=least + worst_ms / 20 + 4).contains(&earned),
            "{earned} ms for {least}"
        );
    }
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn shortages_at_the_accepted_rate_cost_what_the_slo_allows() {
    // A source of shortages that obeys: one each time the accepted interval has passed.
    let mut budget = Budget::new(at(0));
    let (mut last, mut spent) = (0, 0);
    let cost = Duration::from_millis(40);
    for second in 1..=3_600 {
        // A quarter of the time goes into prompts; two decodes for each of those.
        budget.worked(prompts(250), at(second));
        let decodes = Duration::from_millis(500);
        budget.worked(
            Worked {
                span: decodes,
                decoded: true,
            },
            at(second),
        );
        if at(second).since(at(last)) >= budget.every(SLO, USUAL, at(second)) {
            budget.fell_short(Short::still(cost), at(second));
            last = second;
            spent += 40;
        }
    }
    // 0.5 % of 750 ms a second is less than 2 % of 250 ms.
    let allowed = 3_600 * 750 * 5 / 1_000;
    assert!(spent <= allowed, "{spent} ms of {allowed}");
    assert!(spent * 10 >= allowed * 8, "{spent} ms of {allowed}");
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn a_change_of_traffic_is_followed_without_swinging() {
    // Online's rate grows fourfold in mid-run, its prompts eightfold; so does what a shortage costs.
    let mut budget = Budget::new(at(0));
    let (mut last, mut rising, mut before) = (0, None, Duration::ZERO);
    let mut turns = Vec::new();
    for second in 1..=2_400u64 {
        let (read, cost) = if second <= 1_200 {
            (20, 20)
        } else {
            (640, 160)
        };
        budget.worked(prompts(read), at(second));
        let every = budget.every(SLO, USUAL, at(second));
        if at(second).since(at(last)) >= every {
            budget.fell_short(Short::still(Duration::from_millis(cost)), at(second));
            last = second;
        }
        if every != before {
            let rises = every > before;
            if rising.is_some_and(|rising| rising != rises) {
                turns.push(second);
            }
            (rising, before) = (Some(rises), every);
        }
    }
    assert!(turns.len() > 3, "it follows");
    for three in turns.windows(3) {
        assert!(
            three[2] - three[0] >= 60,
            "three turns in a minute: {three:?}"
        );
    }
}

const ONLINE: SessionId = SessionId(1);
const GPU: GpuId = GpuId(0);
const CACHE: KvId = KvId(1);

/// A node that shares a GPU's memory, with an online process that has a cache; at its sixtieth second.
fn node(config: Config) -> Node {
    let mut node = Node::new(config, 1, at(0));
    let mut step = |event: Event<'_>| node.step(event, at(60), &mut Vec::new());
    step(Event::OnlineAttached { session: ONLINE });
    let bytes = Bytes::mib(4_096);
    step(MemoryEvent::Pool { gpu: GPU, bytes }.into());
    step(
        MemoryEvent::ElasticRegistered {
            session: ONLINE,
            gpu: GPU,
            kv: CACHE,
            mapped: Bytes::ZERO,
            fixed: Bytes::ZERO,
            most: Bytes::mib(4_096),
            handle: Bytes::mib(2),
            stripe: Bytes::mib(2),
        }
        .into(),
    );
    node
}

fn demand(node: &mut Node, ask: u64, bytes: Bytes, ahead: bool, now: Instant) {
    let asked = MemoryEvent::Asked {
        session: ONLINE,
        ask: AskId(ask),
        gpu: GPU,
        kv: Some(CACHE),
        bytes,
        mapped: Some(Bytes::ZERO),
        ahead,
    };
    node.step(asked.into(), now, &mut Vec::new());
}

fn activity(node: &mut Node, generation: u64, times: (Instant, Instant), now: Instant) {
    let reading = Reading {
        generation,
        busy: generation % 2 == 1,
        busy_since: times.0,
        idle_since: times.1,
        launches: Launches(1_000),
        graph: GraphId(0),
        turns: Turns::default(),
    };
    let session = ONLINE;
    let gpu = GPU;
    let event = Event::Activity {
        session,
        gpu,
        reading,
    };
    node.step(event, now, &mut Vec::new());
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn a_shortage_lasts_until_the_iteration_after_it() {
    let ms = |ms: u64| at(60).after(Duration::from_millis(ms));
    let mut node = node(Config::default());
    activity(&mut node, 0, (at(0), at(0)), ms(0));
    activity(&mut node, 1, (ms(10), at(0)), ms(10));
    demand(&mut node, 1, Bytes::mib(512), false, ms(20));
    // Asked for again, it is the same shortage.
    demand(&mut node, 2, Bytes::mib(512), false, ms(30));
    let mapped = MemoryEvent::Mapped {
        session: ONLINE,
        kv: CACHE,
        mapped: Bytes::mib(512),
        last: true,
    };
    node.step(mapped.into(), ms(50), &mut Vec::new());
    let budget = |node: &Node| node.gpu(GPU, ms(200)).expect("there is one").budget;
    assert_eq!(
        budget(&node).shortages,
        0,
        "the iteration that runs still runs"
    );
    activity(&mut node, 2, (ms(10), ms(110)), ms(110));
    let seen = budget(&node);
    assert_eq!((seen.shortages, seen.short), (1, Duration::from_millis(90)));
    let worked = Duration::from_millis(100);
    assert_eq!((seen.busy, seen.prompts), (worked, worked));
}

/// Milliseconds after the sixtieth second.
fn ms(ms: u64) -> Instant {
    at(60).after(Duration::from_millis(ms))
}

/// The engine asks for 512 MiB in all.
fn ask(node: &mut Node, ahead: bool, at: u64) {
    demand(node, at, Bytes::mib(512), ahead, ms(at));
}

fn maps(node: &mut Node, mib: u64, at: u64) {
    let mapped = MemoryEvent::Mapped {
        session: ONLINE,
        kv: CACHE,
        mapped: Bytes::mib(mib),
        last: true,
    };
    node.step(mapped.into(), ms(at), &mut Vec::new());
}

fn uses(node: &mut Node, mib: u64, at: u64) {
    let usage = MemoryEvent::Usage {
        session: ONLINE,
        kv: CACHE,
        used: Bytes::mib(mib),
    };
    node.step(usage.into(), ms(at), &mut Vec::new());
}

/// A node whose online works.
fn started() -> Node {
    let mut node = node(Config::default());
    activity(&mut node, 0, (at(0), at(0)), ms(0));
    activity(&mut node, 1, (ms(10), at(0)), ms(10));
    maps(&mut node, 0, 11);
    node
}

/// Shortages, and what they cost, ms: first tokens, further ones.
fn seen(node: &Node) -> (u64, u128, u128) {
    let budget = node.gpu(GPU, ms(900)).expect("there is one").budget;
    let ms = |span: Duration| span.as_millis();
    (budget.shortages, ms(budget.short), ms(budget.short_tpot))
}

/// P-MEMORY-20: what online may pay is what its users wait for.
#[test]
fn memory_that_comes_before_the_engine_needs_it_delays_nobody() {
    // A request on its way, during an iteration; its memory is there before the next.
    let mut came = started();
    ask(&mut came, true, 20);
    maps(&mut came, 512, 40);
    uses(&mut came, 500, 60);
    assert_eq!(seen(&came), (1, 0, 0));

    // The next iteration comes to it first: from then on it waits.
    let mut late = started();
    ask(&mut late, true, 20);
    ask(&mut late, false, 30);
    ask(&mut late, false, 40);
    maps(&mut late, 512, 50);
    uses(&mut late, 500, 55);
    assert_eq!(seen(&late), (1, 25, 25));
}

/// P-MEMORY-20: what online may pay is what its users wait for.
#[test]
fn who_reads_a_part_of_a_prompt_meanwhile_waits_for_a_step() {
    // It comes to what it lacks, and 3 ms later has the memory for a part; the rest is there before the next step.
    let mut part = started();
    ask(&mut part, false, 30);
    ask(&mut part, true, 33);
    maps(&mut part, 512, 50);
    uses(&mut part, 500, 70);
    // 3 ms, and 5 for the step that it takes beside those that it would have taken.
    assert_eq!(seen(&part), (1, 8, 40));

    // The next step lacks some, too, and reads no part: it waits again.
    let mut again = started();
    ask(&mut again, false, 30);
    ask(&mut again, true, 33);
    ask(&mut again, false, 60);
    maps(&mut again, 512, 70);
    uses(&mut again, 500, 80);
    assert_eq!(seen(&again), (1, 3 + 5 + 20, 50));

    // Steps so short that the whole took less than they would.
    let mut short = started();
    for at in [30, 32, 34] {
        ask(&mut short, false, at);
        ask(&mut short, true, at);
    }
    maps(&mut short, 512, 35);
    uses(&mut short, 500, 36);
    assert_eq!(seen(&short), (1, 6, 6));

    // More is on its way while it waits: nothing is read for that.
    let mut more = started();
    ask(&mut more, false, 30);
    demand(&mut more, 40, Bytes::mib(600), true, ms(40));
    maps(&mut more, 600, 50);
    uses(&mut more, 500, 60);
    assert_eq!(seen(&more), (1, 30, 30));
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn only_an_slo_steers_and_what_follows_from_it_replaces_the_usual_rate() {
    let target = |node: &Node| {
        node.elastics(at(63))
            .next()
            .and_then(|e| e.target_per_minute)
    };
    for slo in [None, Some(SLO)] {
        let config = Config {
            slo,
            ..Config::default()
        };
        let mut node = node(config);
        node.step(Event::Tick, at(61), &mut Vec::new());
        let least = if slo.is_some() { 60.0 / 3_600.0 } else { 4.0 };
        assert_eq!(target(&node), Some(least));
        // Taken back, the usual rate counts again.
        node.configure(Config::default(), at(62), &mut Vec::new());
        assert_eq!(target(&node), Some(4.0));
    }
}
