//! Finetuning beside recorded workloads, in virtual time.
//!
//! The traces are not part of the project: without them every test here says loudly that it was
//! skipped. Three workloads and one seed run by default; `TIDEGATE_EVALUATION=full` runs all ten.

mod recorded;

use recorded::full;
use tidegate_device::sharing::Contention;
use tidegate_policy::lease::slo::Promise;
use tidegate_replay::hardware::Model;
use tidegate_replay::run::beside::{self, Disturbance, Platform, Setting};
use tidegate_replay::run::{self, Alone};
use tidegate_replay::slo::Set;
use tidegate_replay::spec::{Compute, Memory, Spec};
use tidegate_replay::sweep::cores;
use tidegate_replay::trainer::Finetune;
use tidegate_replay::tuning::rows::Row;
use tidegate_replay::tuning::table::{Cell, Ground, csv, evaluate};

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
            after.iterations
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
    vec![Platform::TwoProcess, Platform::OneProcess]
}

/// P-TRAINER-6: beside a trainer the gate and the leases keep their promises.
#[test]
fn ours_keeps_what_was_promised() {
    let grounds = grounds();
    let sets = [Set::Valve, Set::LlmStation, Set::Times(2.0)];
    let sets = if full() { &Set::ALL[..] } else { &sets[..] };
    for platform in platforms() {
        let rows = Row::of(platform);
        let usual = Disturbance::default();
        let cells = evaluate(&grounds, platform, &rows, sets, usual, cores(), || {}).expect("runs");
        print!("{}", csv(&cells));
        for cell in named(&cells, "Tidegate") {
            assert!(cell.keeps != Some(false), "{cell:?}");
        }
    }
}
