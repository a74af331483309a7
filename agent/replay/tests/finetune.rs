//! Finetuning beside recorded workloads, in virtual time.
//!
//! The traces are not part of the project: without them every test here says loudly that it was
//! skipped. Three workloads and one seed run by default; `TIDEGATE_EVALUATION=full` runs all ten.

mod recorded;
#[path = "../../policy/tests/promises/returns.rs"]
mod returns;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use recorded::full;
use returns::mean_delay;
use tidegate_device::sharing::Contention;
use tidegate_policy::lease::slo::Promise;
use tidegate_replay::comparison::rows::Row;
use tidegate_replay::comparison::table::{Cell, Ground, csv, evaluate};
use tidegate_replay::costs::Costs;
use tidegate_replay::engine::Limits;
use tidegate_replay::gap::VLLM;
use tidegate_replay::generator::CONVERSATION;
use tidegate_replay::hardware::{H200, Model};
use tidegate_replay::plan::Alone;
use tidegate_replay::record::SpanKind;
use tidegate_replay::run;
use tidegate_replay::run::beside::{self, Disturbance, Platform, Setting};
use tidegate_replay::slo::Set;
use tidegate_replay::spec::{Batching, Compute, Memory, Offline, Online, Spec};
use tidegate_replay::sweep::cores;
use tidegate_replay::trace::{self, Lengths};
use tidegate_replay::trainer::Finetune;

fn specs() -> Vec<Spec> {
    recorded::workloads()
        .into_iter()
        .map(|spec| Spec {
            compute: Compute::Tidegate,
            memory: Memory::Bound,
            ..spec
        })
        .collect()
}

fn finetune(spec: &Spec) -> Finetune {
    let model = Model::named(&spec.gpu, "llama-3.1-8b").expect("a fit");
    Finetune::new(model, 16, 2_048).expect("a job")
}

fn setting<'a>(spec: &'a Spec, finetune: &'a Finetune, alone: &Alone) -> Setting<'a> {
    Setting {
        spec,
        finetune,
        platform: Platform::TwoProcess,
        contention: Contention::default(),
        disturbance: Disturbance::default(),
        decode_limit_ns: 40_000_000,
        online_peak_bytes: alone.kv_peak_bytes,
    }
}

/// The world in which a trainer runs beside online is, for a gate, the world there was.
/// P-TRAINER-6: beside a trainer the gate and the leases keep their promises.
#[test]
fn a_gate_alone_harvests_what_it_did() {
    for spec in specs() {
        let alone = run::alone(&spec).expect("a run");
        let before = run::paired(&spec, &alone).expect("a run");
        let job = finetune(&spec);
        let setting = setting(&spec, &job, &alone);
        let promise = Promise::Mean {
            ttft: 200,
            tpot: 50,
        };
        let mut gate = Row::Gate.make(&setting, &alone, promise, 0);
        let after = beside::run(&setting, gate.as_mut()).expect("a run");
        let (old, new) = (
            before.gpu.offline.as_nanos() as f64,
            after.trainer_ns as f64,
        );
        println!(
            "{}: {:.3} s before, {:.3} s now, of {:.1} s; {} iterations",
            spec.scenario,
            old / 1e9,
            new / 1e9,
            after.length.as_secs_f64(),
            after.iterations.all
        );
        assert!(
            (new / old - 1.0).abs() <= 0.001,
            "{}: {old} and {new}",
            spec.scenario
        );
        let tokens = after.trainer_ns as f64 / 1e9 * job.dedicated(&spec.gpu);
        let trained = after.trained as f64;
        let loose = f64::from(job.length * job.samples);
        assert!(
            (trained - tokens).abs() <= loose + 0.01 * tokens,
            "{trained} of {tokens}"
        );
        // And online's users waited as they did, request by request.
        for (old, new) in before.requests.iter().zip(&after.requests) {
            let apart = old.last_token.0.abs_diff(new.last_token.0);
            assert!(apart < 2_000_000, "{old:?} {new:?}");
        }
        let mut nobody = Row::Alone.make(&setting, &alone, promise, 0);
        let bare = beside::run(&setting, nobody.as_mut()).expect("a run");
        for (old, new) in alone.outcome.requests.iter().zip(&bare.requests) {
            assert_eq!(
                (old.first_token, old.last_token),
                (new.first_token, new.last_token)
            );
        }
    }
}

/// P-TRAINER-7: time adds up. What the trainer did is what it had the GPU for, each way by itself and all together; in
/// turns nothing of its time is online's; and a sample counts once, whatever is done again.
#[test]
fn the_time_of_both_adds_up() {
    let spec = conversation();
    let mut job = finetune(&spec);
    let promise = Promise::Tail {
        ttft_ns: 500_000_000,
        tpot_ns: 20_000_000,
        late_permille: 10,
    };
    let mut reclaims = 0;
    // A roomy cache; and one where the trainer thinks that all of it is its own.
    for (pool, length) in [(40u64 << 30, 2_048), (3 << 29, 1_024)] {
        let spec = Spec {
            kv_pool_bytes: pool,
            ..spec.clone()
        };
        job.length = length;
        let alone = run::alone(&spec).expect("a run");
        for platform in platforms() {
            for row in Row::of(platform).into_iter().chain([Row::Alone]) {
                let setting = Setting {
                    platform,
                    online_peak_bytes: if length == 2_048 {
                        alone.kv_peak_bytes
                    } else {
                        0
                    },
                    ..setting(&spec, &job, &alone)
                };
                let tried = row.tried()[0];
                let mut policy = row.make(&setting, &alone, promise, tried);
                let ran = beside::run(&setting, policy.as_mut()).expect("a run");
                let name = format!("{} on {platform:?}, {length}", row.name());
                let spans = |online: bool| {
                    let own = ran
                        .timeline
                        .iter()
                        .filter(move |span| (span.kind == SpanKind::Offline) != online);
                    own.map(|span| (span.from.0, span.to.0))
                };
                let sum = |online| spans(online).map(|(from, to)| to - from).sum::<u64>();
                assert_eq!(sum(true), ran.online_ns, "{name}");
                assert!(sum(true) <= ran.length.as_nanos() as u64, "{name}");
                reclaims += ran.reclaims;
                let done = ran.ways.iter().sum::<u64>() as f64;
                // Each sample takes what it takes, and so does what was done again; what is under way is not counted.
                let sample = f64::from(length) / job.dedicated(&spec.gpu) * 1e9;
                let samples = ran.trained as f64 / f64::from(length);
                let again = ran.redone as f64 / f64::from(length) * sample;
                let loose = 4.0 * sample + 0.02 * done;
                assert!(
                    done + loose >= samples * sample,
                    "{name}: {samples} of {sample} ns in {done}"
                );
                assert!(
                    done <= samples * sample + again + loose,
                    "{name}: {samples}, {again}, {done}"
                );
                assert_eq!(ran.trained % u64::from(length), 0, "{name}");
                if platform != Platform::TwoProcess {
                    continue;
                }
                // In turns: none of the trainer's spans is inside one of online's.
                let mut all: Vec<_> = spans(true).chain(spans(false)).collect();
                all.sort_unstable();
                for pair in all.windows(2) {
                    assert!(pair[0].1 <= pair[1].0, "{name}: {pair:?}");
                }
                let had = ran.trainer_ns as f64;
                assert!(
                    (had - done).abs() <= 0.02 * had + sample,
                    "{name}: {had} and {done}"
                );
            }
        }
    }
    println!("{reclaims} reclaims");
    assert!(reclaims > 100, "nothing was taken: {reclaims}");
}

/// Idle times as the recorded clients leave them: between one request of theirs and the next, and between the
/// iterations of an engine that serves them.
fn recorded_idle_times() -> Vec<(String, Vec<u64>)> {
    let Some(data) = recorded::data() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let files = std::fs::read_dir(data.join("traces")).expect("the traces can be listed");
    for file in files {
        let file = file.expect("an entry").path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".csv.gz").to_owned();
        if !["azure", "servegen"].iter().any(|of| name.starts_with(of)) {
            continue;
        }
        let trace = trace::read(&file).expect("a trace");
        let arrivals = trace.requests().iter().map(|request| request.arrival.0);
        let arrivals: Vec<u64> = arrivals.collect();
        let between = arrivals.windows(2).map(|pair| pair[1] - pair[0]);
        found.push((format!("{name}, between requests"), between.collect()));
    }
    for mut spec in specs() {
        spec.timeline = true;
        let alone = run::alone(&spec).expect("a run");
        let job = finetune(&spec);
        let setting = setting(&spec, &job, &alone);
        let promise = Promise::Mean {
            ttft: 200,
            tpot: 50,
        };
        let mut policy = Row::Alone.make(&setting, &alone, promise, 0);
        let ran = beside::run(&setting, policy.as_mut()).expect("a run");
        let online = ran.timeline.iter();
        let online: Vec<_> = online
            .filter(|span| span.kind != SpanKind::Offline)
            .map(|span| (span.from.0, span.to.0))
            .collect();
        let idle = online.windows(2).map(|pair| pair[1].0 - pair[0].1);
        let idle = idle.filter(|ns| *ns > 0).collect();
        found.push((format!("{}, between iterations", spec.scenario), idle));
    }
    found.sort();
    found
}

/// P-TRAINER-2: fits are exact, forecasts keep the mean delay, turns go by weight.
#[test]
fn a_forecast_keeps_the_mean_delay_of_recorded_idle_times() {
    // 2 % of a first token after 28 ms, which is the least of the workloads, beside a gate, a unit and a long unit.
    let budget = 560_000;
    let (mut ran, mut over) = (Vec::new(), Vec::new());
    for (name, idle) in recorded_idle_times() {
        assert!(idle.len() > 100, "{name}: {} idle times", idle.len());
        for delay in [2_000_000, 10_000_000, 40_000_000] {
            let (cost, share) = mean_delay(&idle, delay, budget);
            println!(
                "{name}: {} returns of {} ms, mean delay {cost:.0} ns of {budget}, {:.1} % of the idle time",
                idle.len(),
                delay / 1_000_000,
                100.0 * share
            );
            let most = budget as f64 * 1.05 + delay as f64 / idle.len() as f64;
            if cost > most {
                over.push(format!("{name}, {delay} ns: {cost:.0}"));
            }
            ran.push(share);
        }
    }
    assert!(over.is_empty(), "{over:#?}");
    assert!(
        ran.is_empty() || ran.iter().any(|share| *share > 0.5),
        "nothing is ever run: {ran:?}"
    );
}

/// Every ground of the subset (of all ten with `TIDEGATE_EVALUATION=full`) on the H200.
fn grounds() -> Vec<Ground> {
    let ground = |spec: Spec| Ground {
        scenario: spec.scenario.clone(),
        finetune: finetune(&spec),
        spec,
    };
    specs().into_iter().map(ground).collect()
}

fn named<'a>(cells: &'a [Cell], policy: &str) -> impl Iterator<Item = &'a Cell> {
    cells.iter().filter(move |cell| cell.policy == policy)
}

fn platforms() -> Vec<Platform> {
    vec![Platform::OneProcess, Platform::TwoProcess]
}

/// P-TRAINER-6: beside a trainer the gate and the leases keep their promises, and train what the best of the published
/// schedulers does that keeps them too.
#[test]
fn ours_keeps_what_was_promised() {
    let grounds = grounds();
    let sets = [Set::Valve, Set::LlmStation, Set::Times(2.0)];
    let sets = if full() { &Set::ALL[..] } else { &sets[..] };
    let mut missed = Vec::new();
    for platform in platforms() {
        let rows = Row::of(platform);
        let usual = Disturbance::default();
        let cells = evaluate(&grounds, platform, &rows, sets, usual, cores(), || {}).expect("runs");
        print!("{}", csv(&cells));
        for cell in named(&cells, "Tidegate") {
            // Of what online breaks alone nothing is compared.
            assert!(cell.keeps.is_some() || cell.vs_best_keeping.is_none());
            let less = cell.vs_best_keeping.is_some_and(|ratio| ratio < 0.99);
            if cell.keeps == Some(false) || less {
                missed.push(cell.clone());
            }
        }
    }
    // What all ten with all seven promises miss, and why, stands in docs/results/2026-11-24-trainers.md.
    let known = [
        ("harli", "P01"),
        ("harli", "P07"),
        ("harli", "P08"),
        ("harli", "P10"),
        ("flexllm", "P08"),
        ("x1.5", "P01"),
        ("x4", "P09"),
        ("valve", "P10"),
    ];
    let known = |cell: &Cell| known.contains(&(&*cell.set.name(), &*cell.scenario));
    missed.retain(|cell| !known(cell));
    assert!(missed.is_empty(), "{missed:#?}");
}

/// P-TRAINER-6: also with times that are not what was predicted, and a trainer that takes three times what it was lent.
#[test]
fn ours_keeps_it_whatever_predictions_and_trainers_do() {
    let grounds = grounds();
    let noisy = |off| Disturbance {
        sigma: 0.2,
        off,
        ..Disturbance::default()
    };
    let overruns = Disturbance {
        overrun_every: 10,
        ..Disturbance::default()
    };
    let mut broken = Vec::new();
    for platform in platforms() {
        for disturbance in [noisy(0.7), noisy(1.3), overruns] {
            let rows = [Row::FlexLlm, Row::LlmStation, Row::Tidegate];
            let rows: Vec<Row> = rows
                .into_iter()
                .filter(|row| row.cannot(platform).is_none())
                .collect();
            let sets = [Set::LlmStation, Set::Times(2.0)];
            let cells = evaluate(
                &grounds,
                platform,
                &rows,
                &sets,
                disturbance,
                cores(),
                || {},
            );
            for cell in cells
                .expect("runs")
                .iter()
                .filter(|cell| cell.keeps == Some(false))
            {
                println!(
                    "{disturbance:?}: {} breaks {} on {}",
                    cell.policy,
                    cell.set.name(),
                    cell.scenario
                );
                if cell.policy == "Tidegate" {
                    broken.push(cell.clone());
                }
            }
        }
    }
    broken.retain(|cell| !full() || cell.scenario != "P09");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A conversation on an H200, of the built-in generator.
fn conversation() -> Spec {
    let model = Model::named(&H200, "llama-3.1-8b").expect("a fit");
    let trace = CONVERSATION
        .at_rate(2.5)
        .generate(1, Duration::from_secs(200));
    Spec {
        scenario: "a conversation".to_owned(),
        seed: 1,
        gpu: H200,
        online: Online {
            model: model.clone(),
            trace: Arc::new(trace),
            gaps: VLLM,
            limits: Limits::default(),
            batching: Batching::default(),
        },
        offline: Offline {
            model,
            // Nobody asks for it, and a run wants one.
            lengths: vec![Lengths {
                input_tokens: 1,
                output_tokens: 1,
            }]
            .into(),
            limits: Limits::default(),
            batching: Batching::default(),
        },
        kv_pool_bytes: 40 << 30,
        compute: Compute::Tidegate,
        memory: Memory::Bound,
        costs: Costs::default(),
        slo: None,
        timeline: true,
    }
}

/// P-TRAINER-6: nothing of the model of a GPU is known to the policy: when the share of the multiprocessors that can
/// ask for all of the bandwidth changes in mid-run, the promise is broken in the hundred iterations after it at most.
#[test]
fn a_gpu_that_changes_is_learnt_within_a_hundred_iterations() {
    let spec = conversation();
    let job = finetune(&spec);
    let alone = run::alone(&spec).expect("a run");
    let at = alone.outcome.length.as_nanos() as u64 / 2;
    for (before, after) in [(0.5, 0.3), (0.5, 0.7), (0.3, 0.7)] {
        let setting = Setting {
            platform: Platform::OneProcess,
            contention: Contention { saturation: before },
            disturbance: Disturbance {
                later: Some((at, after)),
                ..Disturbance::default()
            },
            decode_limit_ns: 20_000_000,
            ..setting(&spec, &job, &alone)
        };
        let promise = Promise::Each {
            decode_ns: 20_000_000,
        };
        let mut ours = Row::Tidegate.make(&setting, &alone, promise, 0);
        let ran = beside::run(&setting, ours.as_mut()).expect("a run");
        let decodes = ran
            .timeline
            .iter()
            .filter(|span| span.kind == SpanKind::OnlineDecode && span.to.0 > at);
        let hundredth = decodes
            .map(|span| span.to.0)
            .nth(100)
            .expect("more than a hundred");
        let (early, late): (Vec<u64>, Vec<u64>) = ran
            .iterations
            .late_at
            .iter()
            .filter(|late| **late > at)
            .partition(|late| **late <= hundredth);
        let allowed = ran.iterations.decodes as usize / 1_000;
        println!(
            "{before} to {after}: {} of {} decodes late, {} in the hundred after it, {} later; {:.0} tokens/s",
            ran.iterations.late,
            ran.iterations.decodes,
            early.len(),
            late.len(),
            ran.trained_per_s()
        );
        assert!(
            ran.trained > 0 && ran.iterations.shared > 1_000,
            "an empty run: {} shared",
            ran.iterations.shared
        );
        assert!(
            late.len() <= allowed,
            "{} of {}",
            late.len(),
            ran.iterations.decodes
        );
    }
}

/// P-TRAINER-7: equal seeds give equal bytes, in as many threads as there are.
#[test]
fn equal_seeds_give_equal_tables() {
    let spec = conversation();
    let grounds = [Ground {
        scenario: spec.scenario.clone(),
        finetune: finetune(&spec),
        spec,
    }];
    let table = |threads: usize| {
        let threads = NonZeroUsize::new(threads).expect("some");
        let rows = Row::of(Platform::OneProcess);
        let sets = [Set::Times(2.0)];
        let usual = Disturbance::default();
        csv(&evaluate(
            &grounds,
            Platform::OneProcess,
            &rows,
            &sets,
            usual,
            threads,
            || {},
        )
        .expect("runs"))
    };
    assert_eq!(table(1), table(2));
}
