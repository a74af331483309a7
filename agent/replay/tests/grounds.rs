//! The published schedulers' own grounds: their load, their promise, and what they say that they train there.
//!
//! HARLI's trace is the one that it used (Azure 2023, conversation). FlexLLM's and LLMStation's (BurstGPT) is not
//! public in full: a ServeGen client at their rates stands in. Every figure is for one process on an H200 and on an
//! A100, of llama-3.1-8b beside a LoRA of it. `--nocapture` prints them; docs/results/2026-11-24-trainers.md says which are missed,
//! and why.

#[allow(dead_code, reason = "each test file uses a part")]
mod recorded;

use std::sync::Arc;

use tidegate_device::sharing::Contention;
use tidegate_replay::comparison::rows::Row;
use tidegate_replay::costs::Costs;
use tidegate_replay::engine::Limits;
use tidegate_replay::gap::VLLM;
use tidegate_replay::hardware::{A100, Gpu, H200, Model};
use tidegate_replay::plan::Alone;
use tidegate_replay::run;
use tidegate_replay::run::beside::{self, Disturbance, Platform, Setting, Tuned};
use tidegate_replay::slo::{Latencies, Set};
use tidegate_replay::spec::{Batching, Compute, Memory, Offline, Online, Spec};
use tidegate_replay::trace::{Lengths, Trace, read};
use tidegate_replay::trainer::Finetune;

/// Chat of medium length, many single tokens among it (ServeGen, the client with the highest rate of those had).
const CLIENT: &str = "servegen_mmid_c90_a.csv.gz";
const CONVERSATION: &str = "azure23_conv_a.csv.gz";

/// A service on one GPU, and a trainer in its process.
struct Ground {
    spec: Spec,
    job: Finetune,
    alone: Alone,
    users: Latencies,
}

fn trace(name: &str) -> Option<Trace> {
    let file = recorded::data()?.join("traces").join(name);
    Some(read(&file).expect("the shared trace can be read"))
}

/// At so many requests a second.
fn at_rate(trace: &Trace, rate: f64) -> Trace {
    let own = trace.len() as f64 / (trace.end().0 as f64 / 1e9);
    trace.stretch(own / rate)
}

impl Ground {
    fn new(gpu: Gpu, trace: Trace, batching: Batching) -> Self {
        let model = Model::named(&gpu, "llama-3.1-8b").expect("a fit");
        let job = Finetune::new(model.clone(), 16, 2_048).expect("a job");
        let limits = Limits::default();
        let spec = Spec {
            scenario: String::new(),
            seed: 1,
            gpu,
            kv_pool_bytes: gpu.left(&[&model]).expect("one copy of the model fits"),
            online: Online {
                model: model.clone(),
                trace: Arc::new(trace),
                gaps: VLLM,
                limits,
                batching,
            },
            offline: Offline {
                model,
                // Nobody asks for it, and a run wants one.
                lengths: vec![Lengths {
                    input_tokens: 1,
                    output_tokens: 1,
                }]
                .into(),
                limits,
                batching: Batching::default(),
            },
            compute: Compute::Tidegate,
            memory: Memory::Bound,
            costs: Costs::default(),
            slo: None,
            timeline: false,
        };
        let alone = run::alone(&spec).expect("a run");
        let mut ground = Self {
            spec,
            job,
            alone,
            users: Latencies::default(),
        };
        ground.users = Latencies::of(&ground.run(Row::Alone, Set::Valve, 0));
        ground
    }

    fn dedicated(&self) -> f64 {
        self.job.dedicated(&self.spec.gpu)
    }

    fn run(&self, row: Row, set: Set, tried: u32) -> Tuned {
        let mut job = self.job.clone();
        if row == Row::Chunked {
            job.window = tried.min(job.length);
        }
        let setting = Setting {
            spec: &self.spec,
            finetune: &job,
            platform: Platform::OneProcess,
            contention: Contention::default(),
            disturbance: Disturbance::default(),
            decode_limit_ns: 40_000_000,
            online_peak_bytes: self.alone.kv_peak_bytes,
        };
        let promise = set.promise(&self.users);
        let mut policy = row.make(&setting, &self.alone, promise, tried);
        beside::run(&setting, policy.as_mut()).expect("a run")
    }

    /// What it trains a second, and whether it kept `set`.
    fn trained(&self, row: Row, set: Set, tried: u32) -> (f64, bool) {
        let ran = self.run(row, set, tried);
        let users = Latencies::of(&ran);
        (ran.trained_per_s(), set.kept(&self.users, &users))
    }

    /// How `row` ran with the setting that trains the most and keeps `set`; with the last where none does.
    fn tuned(&self, row: Row, set: Set) -> (Tuned, Latencies, bool) {
        let ran = row.tried().into_iter().map(|tried| {
            let ran = self.run(row, set, tried);
            let users = Latencies::of(&ran);
            let kept = set.kept(&self.users, &users);
            (ran, users, kept)
        });
        let best = ran.max_by(|a, b| {
            let key = |one: &(Tuned, Latencies, bool)| (one.2, one.0.trained_per_s());
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(if a.0 {
                a.1.total_cmp(&b.1)
            } else {
                std::cmp::Ordering::Equal
            })
        });
        best.expect("a setting")
    }

    fn keeps_alone(&self, set: Set) -> bool {
        set.kept(&self.users, &self.users)
    }
}

/// What ours does not do on a ground although its paper says so, by name. Of the paper's own scheduler the same is
/// printed: it runs here on another GPU, other requests, and a model of how both share them.
struct Missed(Vec<String>);

impl Missed {
    /// `figure` must be `least` at least.
    fn least(&mut self, what: &str, figure: f64, least: f64) {
        let met = figure >= least;
        println!(
            "  {what}: {figure:.3}, at least {least}{}",
            if met { "" } else { "  MISSED" }
        );
        if !met && what.starts_with("Tidegate") {
            self.0.push(what.to_owned());
        }
    }

    /// Only what is known is missed, and all of it.
    fn are(&self, known: &[&str]) {
        assert_eq!(
            self.0, known,
            "docs/results/2026-11-24-trainers.md says which are missed"
        );
    }
}

fn gpus() -> [Gpu; 2] {
    [H200, A100]
}

/// Both schedulers: the paper's, and ours.
fn both(paper: Row) -> [(String, Row); 2] {
    [
        (paper.name(), paper),
        ("Tidegate".to_owned(), Row::Tidegate),
    ]
}

/// P-TRAINER-13: on each published scheduler's own ground, ours trains what that one says that it does.
/// Two GPUs that decode half of 5.5 requests a second each, prompts read elsewhere (HARLI, section 8.2).
#[test]
fn on_harlis_ground() {
    let Some(all) = trace(CONVERSATION) else {
        return;
    };
    let half = at_rate(&all.thin(2), 2.75);
    let mut missed = Missed(Vec::new());
    for gpu in gpus() {
        let ground = Ground::new(gpu, half.clone(), Batching::DecodeOnly);
        let (fixed, kept) = ground.trained(Row::StaticMps, Set::Harli, 40);
        println!(
            "HARLI's ground, {}: {:.0} tokens/s on a GPU of its own, {fixed:.0} with 40 % of one, which {} each \
             decode within 40 ms",
            gpu.name,
            ground.dedicated(),
            if kept { "keeps" } else { "does not keep" },
        );
        for (name, row) in both(Row::Harli) {
            let (ran, users, _) = ground.tuned(row, Set::Harli);
            let name = format!("{name}, {}", gpu.name);
            let (trained, late) = (ran.trained_per_s(), users.late_decodes);
            let separate = 2.0 * trained / ground.dedicated();
            missed.least(&format!("{name}, over SeparateMode"), separate, 1.462);
            missed.least(&format!("{name}, over StaticMode"), trained / fixed, 1.751);
            missed.least(&format!("{name}, decodes in time"), 1.0 - late, 0.999);
        }
    }
    missed.are(&[]);
}

/// P-TRAINER-13: four GPUs at 20 and at 4 requests a second (FlexLLM, sections 8.1 and 8.2).
#[test]
fn on_flexllms_ground() {
    let Some(all) = trace(CLIENT) else {
        return;
    };
    let set = Set::FlexLlm;
    let mut missed = Missed(Vec::new());
    for gpu in gpus() {
        let grounds = [5.0, 1.0].map(|rate| {
            let trace = at_rate(&all, rate);
            (rate, Ground::new(gpu, trace, Batching::default()))
        });
        let dedicated = grounds[0].1.dedicated();
        println!(
            "FlexLLM's ground, {}: {dedicated:.0} tokens/s on a GPU of its own",
            gpu.name
        );
        for (name, row) in both(Row::FlexLlm) {
            let name = format!("{name}, {}", gpu.name);
            let [heavy, light] = [0, 1].map(|at| {
                let (rate, ground) = &grounds[at];
                let (ran, users, _) = ground.tuned(row, set);
                let late = users.late(5_000.0, 50.0);
                let alone = 1.0 - ground.users.late(5_000.0, 50.0);
                let what = format!("{name}, in time at {rate}/s, alone {alone:.3}");
                missed.least(&what, 1.0 - late, 0.9);
                let trained = ran.trained_per_s();
                let shared = ground.trained(Row::TemporalShare(128), set, 0).0;
                let what = format!("{name}, over TemporalShare at {rate}/s");
                missed.least(&what, trained / shared, 1.2);
                trained
            });
            missed.least(&format!("{name}, heavy over light"), heavy / light, 0.76);
            let split = |trained: f64| 4.0 * trained / dedicated;
            missed.least(&format!("{name}, over the split, heavy"), split(heavy), 1.9);
            missed.least(&format!("{name}, over the split, light"), split(light), 2.5);
        }
    }
    missed.are(&["Tidegate, a100, heavy over light"]);
}

/// P-TRAINER-13: one GPU at 0.88 and at 4.15 requests a second (LLMStation, section 6.2).
#[test]
fn on_llmstations_ground() {
    let Some(all) = trace(CLIENT) else {
        return;
    };
    let set = Set::LlmStation;
    let mut missed = Missed(Vec::new());
    for gpu in gpus() {
        for rate in [0.88, 4.15] {
            let ground = Ground::new(gpu, at_rate(&all, rate), Batching::default());
            let alone = ground.keeps_alone(set);
            println!(
                "LLMStation's ground, {} at {rate}/s: alone {:.0} ms and {:.1} ms for one request in a hundred{}",
                gpu.name,
                ground.users.ttft.p99,
                ground.users.tpot.p99,
                if alone {
                    ""
                } else {
                    ", which breaks 500 and 50: not compared"
                },
            );
            if !alone {
                continue;
            }
            let rivals = [
                ("static MPS", Row::StaticMps, 1.38),
                ("deferral", Row::FineInfer, 1.38),
                ("chunks", Row::Chunked, 1.0),
            ];
            let rivals = rivals.map(|(name, row, least)| {
                let (ran, _, kept) = ground.tuned(row, set);
                (name, if kept { ran.trained_per_s() } else { 0.0 }, least)
            });
            for (name, row) in both(Row::LlmStation) {
                let (ran, _, kept) = ground.tuned(row, set);
                let trained = ran.trained_per_s();
                let name = format!("{name}, {} at {rate}/s", gpu.name);
                missed.least(&format!("{name}, kept"), f64::from(u8::from(kept)), 1.0);
                for (rival, theirs, least) in &rivals {
                    if *theirs > 0.0 {
                        missed.least(&format!("{name}, over {rival}"), trained / theirs, *least);
                    } else {
                        println!("  {name}: {rival} does not keep it; {trained:.0} tokens/s");
                    }
                }
            }
        }
    }
    missed.are(&[]);
}

/// P-TRAINER-13: four GPUs, against each way to give some to the service and the rest to the trainer (McGill's slides),
/// at every rate at which those keep 90 % of requests within 5 s and 50 ms.
#[test]
fn on_mcgills_ground() {
    let Some(all) = trace(CLIENT) else {
        return;
    };
    let set = Set::FlexLlm;
    let mut missed = Missed(Vec::new());
    for gpu in gpus() {
        for rate in [2.0, 4.0, 8.0, 16.0] {
            let shared = Ground::new(gpu, at_rate(&all, rate / 4.0), Batching::default());
            let dedicated = shared.dedicated();
            let splits = [1.0, 2.0, 3.0].into_iter().filter(|serve| {
                let own = Ground::new(gpu, at_rate(&all, rate / serve), Batching::default());
                own.keeps_alone(set)
            });
            let splits: Vec<f64> = splits.collect();
            println!("McGill's ground, {} at {rate}/s on four", gpu.name);
            for (name, row) in both(Row::McGill) {
                let (ran, _, kept) = shared.tuned(row, set);
                let trained = ran.trained_per_s();
                let name = format!("{name}, {} at {rate}/s", gpu.name);
                missed.least(&format!("{name}, kept"), f64::from(u8::from(kept)), 1.0);
                for serve in &splits {
                    let theirs = (4.0 - serve) * dedicated;
                    let what = format!("{name}, over {serve}/{}", 4.0 - serve);
                    missed.least(&what, 4.0 * trained / theirs, 1.0);
                }
            }
        }
    }
    missed.are(&[]);
}
