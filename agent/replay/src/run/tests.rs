use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_policy::config::Slo;

use super::*;
use crate::clock::Time;
use crate::costs::Costs;
use crate::engine::Limits;
use crate::gap::VLLM;
use crate::generator::CALLER;
use crate::hardware::{H200, Model};
use crate::pair::interference;
use crate::record::SpanKind;
use crate::spec::{Batching, Offline, Online};
use crate::trace::{Lengths, Trace};

/// Two minutes of bursty callers beside a batch job, in a pool that both press against.
fn spec(compute: Compute, memory: Memory) -> Spec {
    let model = Model::named(&H200, "llama-3.1-8b").expect("a known model");
    let lengths = |input_tokens, output_tokens| Lengths {
        input_tokens,
        output_tokens,
    };
    Spec {
        scenario: "callers".to_owned(),
        seed: 1,
        gpu: H200,
        online: Online {
            model: model.clone(),
            trace: Arc::new(CALLER.generate(1, Duration::from_secs(120))),
            gaps: VLLM,
            limits: Limits::default(),
            batching: Batching::Mixed,
        },
        offline: Offline {
            model,
            lengths: vec![lengths(2_000, 300), lengths(700, 50), lengths(3_500, 900)].into(),
            limits: Limits {
                prefill_tokens: 2_048,
                running: 256,
            },
            batching: Batching::Mixed,
        },
        kv_pool_bytes: 8 << 30,
        compute,
        memory,
        costs: Costs::default(),
        slo: None,
        timeline: false,
    }
}

fn every_compute() -> impl Iterator<Item = Compute> {
    Compute::NAMES.into_iter().map(|known| known.1)
}

#[test]
fn the_same_spec_gives_the_same_outcome_to_the_byte() {
    for compute in every_compute() {
        let mut spec = spec(compute, Memory::Prism);
        spec.timeline = true;
        let once = run(&spec).expect("a run");
        assert_eq!(once, run(&spec).expect("a run"), "{compute:?}");
        spec.seed = 2;
        assert_ne!(once, run(&spec).expect("a run"), "{compute:?}");
    }
}

/// P-REPLAY-4: time adds up, and every request gets its tokens.
#[test]
fn every_online_request_gets_its_tokens_under_every_pair_of_policies() {
    for compute in every_compute() {
        for (_, memory) in Memory::NAMES {
            // Without reclamation a gate that waits for requests and a request that waits for
            // memory wait for each other.
            let waits = matches!(compute, Compute::LayerPreempt | Compute::TidegateHints);
            // The oracle's memory goes with its own gate.
            let oracles = matches!(compute, Compute::Oracle | Compute::OracleUnlimited);
            if waits && memory == Memory::Prism || memory == Memory::Oracle && !oracles {
                continue;
            }
            let spec = spec(compute, memory);
            let outcome = run(&spec).expect("a run");
            for (got, asked) in outcome.requests.iter().zip(spec.online.trace.requests()) {
                assert_eq!(got.tokens, asked.output_tokens, "{compute:?} {memory:?}");
                assert!(got.arrival < got.first_token && got.first_token <= got.last_token);
            }
            assert_eq!(outcome.faults, 0);
        }
    }
}

/// P-REPLAY-4: time adds up, and every request gets its tokens.
#[test]
fn time_is_worked_switched_or_idle_once() {
    for compute in every_compute() {
        let mut spec = spec(compute, Memory::Bound);
        spec.timeline = true;
        let outcome = run(&spec).expect("a run");
        let used = outcome.gpu.online + outcome.gpu.offline + outcome.gpu.switching;
        assert!(used <= outcome.length, "{compute:?}: {:?}", outcome.gpu);
        if compute == Compute::NoControl {
            continue; // Its iterations interleave.
        }
        for two in outcome.timeline.windows(2) {
            assert!(two[0].to <= two[1].from, "{compute:?}: {two:?}");
        }
        let offline: Duration = outcome
            .timeline
            .iter()
            .filter(|span| span.kind == SpanKind::Offline)
            .map(|span| span.to.since(span.from))
            .sum();
        assert_eq!(offline, outcome.gpu.offline, "{compute:?}");
    }
}

/// P-REPLAY-4: an engine's own time before its first launch is in everybody's first token; who hears of requests has it to
/// clear the GPU, so that nobody waits.
#[test]
fn an_engine_that_says_that_requests_come_waits_for_no_switch_shorter_than_its_lead() {
    let with = |compute, lead_ms| {
        let mut spec = spec(compute, Memory::StaticMem);
        spec.costs = Costs {
            lead: Duration::from_millis(lead_ms),
            ..Costs::default().with_switch(Duration::from_millis(1))
        };
        run(&spec).expect("a run")
    };
    let ttft = |outcome: &Outcome| {
        let requests = outcome.requests.iter();
        let all: Duration = requests.map(|r| r.first_token.since(r.arrival)).sum();
        all / u32::try_from(outcome.requests.len()).expect("few")
    };
    let [none, alone, hints, edges] = [
        with(Compute::Standalone, 0),
        with(Compute::Standalone, 2),
        with(Compute::TidegateHints, 2),
        with(Compute::Tidegate, 2),
    ];
    let first = |outcome: &Outcome| outcome.requests[0].first_token;
    let lead = first(&alone).since(first(&none));
    assert_eq!(
        lead,
        Duration::from_millis(2),
        "of one that comes to an idle engine"
    );
    assert_eq!(ttft(&hints), ttft(&alone), "nobody waits");
    let preempted = |outcome: &Outcome| outcome.requests.iter().any(|r| r.preemptions > 0);
    assert!(preempted(&hints) && preempted(&edges));
    assert!(ttft(&edges) > ttft(&alone));
}

/// P-REPLAY-4: time adds up, and every request gets its tokens.
#[test]
fn the_oracles_delay_nobody_and_keep_their_rule() {
    let spec = spec(Compute::Oracle, Memory::Bound);
    let alone = alone(&spec).expect("a run");
    let once = paired(&spec, &alone).expect("a run");
    let paying = Spec {
        memory: Memory::Oracle,
        ..spec.clone()
    };
    let paying = paired(&paying, &alone).expect("a run");
    for oracle in [&once, &paying] {
        for (with, without) in oracle.requests.iter().zip(&alone.outcome.requests) {
            assert_eq!(with.first_token, without.first_token);
            assert_eq!(with.last_token, without.last_token);
        }
        assert_eq!(oracle.preemptions_per_request_max(), 1);
    }
    assert!(paying.offline_tokens_per_s() > 0.0);
    assert!(paying.offline_tokens_per_s() <= once.offline_tokens_per_s());
    let spec = Spec {
        compute: Compute::OracleUnlimited,
        ..spec
    };
    let unlimited = paired(&spec, &alone).expect("a run");
    assert!(unlimited.preemptions_per_request_max() > 1);
    assert!(unlimited.gpu.offline > once.gpu.offline);
}

#[test]
fn no_policy_that_keeps_the_bounds_harvests_more_gpu_time_than_the_oracle() {
    let spec = spec(Compute::Oracle, Memory::Bound);
    let alone = alone(&spec).expect("a run");
    let limit = paired(&spec, &alone).expect("a run");
    for compute in every_compute().filter(|compute| *compute != Compute::OracleUnlimited) {
        let with = paired(
            &Spec {
                compute,
                ..spec.clone()
            },
            &alone,
        )
        .expect("a run");
        let paid = interference(&alone.outcome, &with);
        let bounds = paid.ttft.mean_pct <= 2.0 && paid.tpot.mean_pct <= 0.5;
        if bounds && with.preemptions_per_request_max() <= 1 {
            let allowance = 0.02 * limit.gpu.online.as_secs_f64();
            let (most, has) = (
                limit.gpu.offline.as_secs_f64(),
                with.gpu.offline.as_secs_f64(),
            );
            assert!(has <= most + allowance, "{compute:?}: {has} of {most}");
        }
    }
}

#[test]
fn a_cooldown_of_twice_the_longest_gap_preempts_each_request_at_most_once() {
    let outcome = run(&spec(Compute::Channel, Memory::Bound)).expect("a run");
    assert_eq!(outcome.preemptions_per_request_max(), 1);
    assert_eq!(outcome.cooldown.woken_in_gap, 0);
    let without = run(&spec(Compute::ChannelNoCooldown, Memory::Bound)).expect("a run");
    assert!(without.preemptions_per_request_max() > 10);
}

#[test]
fn a_preemption_takes_what_its_mechanism_takes() {
    let longest = |compute| {
        let outcome = run(&spec(compute, Memory::Bound)).expect("a run");
        let latencies = outcome
            .preemptions
            .iter()
            .map(|preemption| preemption.latency());
        latencies.max().unwrap_or_default()
    };
    let costs = Costs::default();
    assert_eq!(longest(Compute::Channel), costs.edge + costs.disable_save);
    assert_eq!(longest(Compute::GPreempt), costs.timeslice_switch);
    // A layer of a chunk of 2,048 tokens beside decodes; a whole iteration of it.
    let (layer, iteration) = (
        longest(Compute::LayerPreempt),
        longest(Compute::TemporalShare(64)),
    );
    assert!(
        (Duration::from_millis(1)..Duration::from_millis(4)).contains(&layer),
        "{layer:?}"
    );
    assert!(iteration > 10 * layer, "{iteration:?}");
}

#[test]
fn what_cannot_be_run_is_one_error_that_says_why() {
    let good = spec(Compute::Tidegate, Memory::Prism);
    let mut bad = good.clone();
    bad.online.trace = Arc::default();
    assert_eq!(run(&bad), Err(SpecError::NoRequests));
    let mut bad = good.clone();
    bad.offline.lengths = Arc::new([]);
    assert_eq!(run(&bad), Err(SpecError::NoOffline));
    let mut bad = good.clone();
    bad.offline.lengths = vec![Lengths {
        input_tokens: 5,
        output_tokens: 0,
    }]
    .into();
    let zero = SpecError::ZeroTokens {
        index: 0,
        what: "output",
    };
    assert_eq!(run(&bad), Err(zero));
    let mut bad = good;
    bad.kv_pool_bytes = 64 << 20;
    let told = run(&bad).expect_err("too small").to_string();
    assert!(told.contains("enlarge kv_pool_gib"), "{told}");
}

#[test]
fn a_delay_does_not_change_the_gaps_of_later_requests() {
    let slow = |each| {
        let mut spec = spec(Compute::Channel, Memory::Bound);
        spec.costs = spec.costs.with_switch(each);
        run(&spec).expect("a run")
    };
    let (fast, slow) = (
        slow(Duration::from_micros(50)),
        slow(Duration::from_millis(1)),
    );
    assert_eq!(fast.cooldown.longest_gap, slow.cooldown.longest_gap);
    let late = |(a, b): (&crate::record::Request, &crate::record::Request)| {
        Time(a.last_token.0.abs_diff(b.last_token.0)).0 > 10_000_000
    };
    let apart = fast
        .requests
        .iter()
        .zip(&slow.requests)
        .filter(|two| late(*two));
    assert!(apart.count() * 10 < fast.requests.len());
}

/// P-REPLAY-4: everybody was there before the trace begins, so offline runs while the first request is still to come.
#[test]
fn offline_runs_before_the_first_request() {
    let first = Duration::from_secs(30);
    for compute in [Compute::Tidegate, Compute::TidegateHints] {
        for slo in [
            None,
            Some(Slo {
                ttft: 200,
                tpot: 50,
            }),
        ] {
            let mut spec = spec(compute, Memory::Tidegate);
            let mut late = spec.online.trace.requests().to_vec();
            for request in &mut late {
                request.arrival = request.arrival + first;
            }
            spec.online.trace = Arc::new(Trace::new(late));
            (spec.slo, spec.timeline) = (slo, true);
            let outcome = run(&spec).expect("a run");
            let spans = outcome.timeline.iter();
            let before =
                spans.filter(|span| span.kind == SpanKind::Offline && span.to.0 < 30_000_000_000);
            let ran: Duration = before.map(|span| span.to.since(span.from)).sum();
            let unused = first.saturating_sub(ran);
            assert!(
                unused < Duration::from_secs(2),
                "{compute:?} {slo:?}: {ran:?} of {first:?}"
            );
            assert_eq!(outcome.faults, 0);
        }
    }
}

/// The variants of the agent's memory.
const AGENTS: [Memory; 6] = [
    Memory::Tidegate,
    Memory::TidegateNoMiad,
    Memory::TidegateFifo,
    Memory::TidegateLifo,
    Memory::TidegateRandom,
    Memory::TidegateLayerBoundary,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// P-REPLAY-4: by the processes' own books, what online has mapped, what is on its way, and what backs
    /// offline never exceeds the pool.
    #[test]
    fn no_pair_of_workloads_is_given_more_memory_than_there_is(
        seed in 1u64..1_000,
        gib in 4u64..12,
        rate in 1u32..6,
        memory in prop::sample::select(&AGENTS[..]),
        compute in prop::sample::select(&[
            Compute::Tidegate, Compute::TidegateHints, Compute::Channel, Compute::GPreempt,
            Compute::TemporalShare(64),
        ][..]),
        slo in prop::option::of((20u32..500, 10u32..100)),
        models in prop::sample::select(&[
            ("llama-3.1-8b", "qwen2.5-7b"), ("qwen2.5-7b", "llama-3.1-8b"),
        ][..]),
    ) {
        let model = |name| Model::named(&H200, name).expect("a known model");
        let mut spec = spec(compute, memory);
        let trace = CALLER.at_rate(f64::from(rate)).generate(seed, Duration::from_secs(15));
        (spec.seed, spec.kv_pool_bytes) = (seed, gib << 30);
        (spec.online.model, spec.online.trace) = (model(models.0), Arc::new(trace));
        spec.offline.model = model(models.1);
        spec.slo = slo.map(|(ttft, tpot)| Slo { ttft, tpot });
        prop_assume!(check(&spec).is_ok());
        let outcome = run(&spec).expect("a run");
        prop_assert_eq!(outcome.faults, 0);
        for (got, asked) in outcome.requests.iter().zip(spec.online.trace.requests()) {
            prop_assert_eq!(got.tokens, asked.output_tokens);
        }
    }
}

/// P-REPLAY-4: a request that is larger than the engine's whole cache is refused, and keeps nobody waiting.
#[test]
fn what_no_cache_holds_is_refused_and_keeps_nobody_waiting() {
    for (compute, memory, whole) in [
        (Compute::Tidegate, Memory::Tidegate, false),
        (Compute::Channel, Memory::Tidegate, false),
        (Compute::Channel, Memory::Prism, false),
        (Compute::Channel, Memory::StaticSplit, false),
        (Compute::Channel, Memory::StaticMem, false),
        (Compute::Channel, Memory::Uvm, true),
        (Compute::Oracle, Memory::Oracle, true),
    ] {
        let mut spec = spec(compute, memory);
        // Of the pool's 65,536 tokens the last of four takes all but a few.
        let mut lengths = spec.offline.lengths.to_vec();
        lengths.push(Lengths {
            input_tokens: 65_000,
            output_tokens: 500,
        });
        spec.offline.lengths = lengths.into();
        let offline = run(&spec).expect("a run").offline;
        let name = format!("{compute:?} {memory:?}: {offline:?}");
        let refused = if whole { 0 } else { offline.offered / 4 };
        assert!(offline.refused.abs_diff(refused) <= 1, "{name}");
        assert!(whole || offline.finished > 20, "{name}");
    }
}

/// P-REPLAY-4: what is computed again is so for a reason, and reasons show.
#[test]
fn only_what_was_taken_or_did_not_fit_is_computed_again() {
    let offline = |compute, memory, running| {
        let mut spec = spec(compute, memory);
        spec.offline.limits.running = running;
        let outcome = run(&spec).expect("a run");
        (outcome.offline, outcome.reclaims.len())
    };
    // Half of the pool holds four of the longest requests, and not 256.
    for (running, short) in [(4, false), (256, true)] {
        let (fixed, reclaims) = offline(Compute::Channel, Memory::StaticSplit, running);
        assert_eq!((reclaims, fixed.kills), (0, 0));
        assert!(fixed.generated_tokens > 0);
        assert_eq!(fixed.capacity_preemptions > 0, short);
        assert_eq!(fixed.recompute_tax() > Some(0.0), short);
    }
    for memory in AGENTS {
        let (ours, reclaims) = offline(Compute::Tidegate, memory, 256);
        assert!(
            reclaims > 0 && ours.lost_tokens > 0,
            "{memory:?}: nothing was taken"
        );
        assert!(ours.again_tokens > 0, "{memory:?}");
        assert!(
            ours.computed_tokens > ours.again_tokens + ours.generated_tokens,
            "{memory:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// P-REPLAY-4: what is computed again is so for a reason, and reasons show.
    #[test]
    fn where_nothing_is_taken_and_all_fits_nothing_is_computed_again(
        seed in 1u64..1_000,
        gib in 4u64..40,
        memory in prop::sample::select(&[
            Memory::StaticSplit, Memory::StaticMem, Memory::Prism, Memory::Bound, Memory::Tidegate,
        ][..]),
        compute in prop::sample::select(&[
            Compute::Tidegate, Compute::Channel, Compute::NoControl,
        ][..]),
    ) {
        let mut spec = spec(compute, memory);
        let trace = CALLER.generate(seed, Duration::from_secs(15));
        (spec.seed, spec.kv_pool_bytes) = (seed, gib << 30);
        spec.online.trace = Arc::new(trace);
        prop_assume!(check(&spec).is_ok());
        let Outcome { offline, reclaims, .. } = run(&spec).expect("a run");
        let none = reclaims.is_empty() && offline.kills == 0 && offline.capacity_preemptions == 0;
        prop_assert!(!none || offline.again_tokens == 0, "{offline:?}");
        prop_assert!(offline.again_tokens <= offline.computed_tokens);
    }
}

/// P-REPLAY-8: one engine with priorities gives batch requests what users pay for: more of them, a later first token.
#[test]
fn in_one_engine_users_pay_for_each_batch_request_in_flight() {
    let run = |compute| run(&spec(compute, Memory::Prism)).expect("a run");
    let mean = |outcome: &Outcome| {
        let waits = outcome.requests.iter();
        let waits = waits.map(|request| request.first_token.since(request.arrival).as_secs_f64());
        waits.sum::<f64>() / outcome.requests.len() as f64
    };
    let alone = run(Compute::Standalone);
    let capped = [1, 4, 16].map(|cap| run(Compute::OneEngine(cap)));
    let mut last = (mean(&alone), 0);
    for outcome in &capped {
        let now = (mean(outcome), outcome.offline.tokens());
        assert!(now.0 > last.0 && now.1 > last.1, "{last:?} {now:?}");
        last = now;
    }
    // The requests are the same ones, and end as they did: with all of their tokens.
    for (got, asked) in capped[2].requests.iter().zip(&alone.requests) {
        assert_eq!((got.arrival, got.tokens), (asked.arrival, asked.tokens));
    }
}
