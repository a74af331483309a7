//! A table of finetuning runs: every ground, every set, every row of its class.
//!
//! A *ground* is a scenario on a GPU with a seed. On each, online runs alone first: that is what its sets
//! are made from and what increases are compared with. Rows that read no promise are run once. A
//! set that online breaks alone is marked, and nothing is compared in it.

use std::num::NonZeroUsize;

use serde_json::{Value, json};
use tidegate_device::sharing::Contention;
use tidegate_policy::lease::slo::Promise;

use super::rows::Row;
use crate::plan::Alone;
use crate::record::Span;
use crate::run;
use crate::run::beside::{self, Disturbance, Platform, Setting, Tuned, Way};
use crate::slo::{Latencies, Set};
use crate::spec::{Compute, Memory, Spec, SpecError};
use crate::sweep::in_parallel;
use crate::trainer::Finetune;

/// Where rows are compared.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Its name.
    pub scenario: String,
    /// Online and the GPU.
    pub spec: Spec,
    /// What is trained.
    pub finetune: Finetune,
}

/// One row in one cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What the two are to each other.
    pub platform: Platform,
    /// The GPU's name.
    pub gpu: &'static str,
    /// The set.
    pub set: Set,
    /// The ground's name.
    pub scenario: String,
    /// Its seed.
    pub seed: u64,
    /// The row's name.
    pub policy: String,
    /// The setting that was best, where it has one.
    pub tried: u32,
    /// Whether it kept the set; nothing where online alone does not.
    pub keeps: Option<bool>,
    /// Tokens trained a second, each once.
    pub trained_per_s: f64,
    /// Of a GPU of its own.
    pub of_dedicated: f64,
    /// Optimizer steps a day.
    pub steps_per_day: f64,
    /// Parts of its training by the way that each was run: see [`Way`].
    pub ways: [f64; Way::COUNT],
    /// 99th percentile to the first token, ms.
    pub ttft_p99_ms: f64,
    /// Mean to the first token, ms.
    pub ttft_mean_ms: f64,
    /// 99th percentile of the time per further token, ms.
    pub tpot_p99_ms: f64,
    /// Mean of it, ms.
    pub tpot_mean_ms: f64,
    /// Mean time per further token above online alone, percent.
    pub tpot_mean_increase_pct: f64,
    /// Against the best other row that keeps the set, the oracle, the bound and the gate left out.
    pub vs_best_keeping: Option<f64>,
    /// Against the oracle.
    pub vs_oracle: Option<f64>,
}

/// The name of a class in the table.
#[must_use]
pub const fn class(platform: Platform) -> &'static str {
    match platform {
        Platform::TwoProcess => "two-process",
        Platform::OneProcess => "one-process",
        Platform::TimeSliced => "time-sliced",
    }
}

/// What is above every row.
const BOUND: &str = "Bound";

/// The cells of `grounds`, each with every set and the rows of `platform` that `rows` names, in that
/// order. `done` hears of each ground.
///
/// # Errors
/// With the first ground that cannot be run.
pub fn evaluate(
    grounds: &[Ground],
    platform: Platform,
    rows: &[Row],
    sets: &[Set],
    disturbance: Disturbance,
    threads: NonZeroUsize,
    done: impl Fn() + Sync,
) -> Result<Vec<Cell>, SpecError> {
    let all = in_parallel(
        threads,
        grounds,
        |ground| of_ground(ground, platform, rows, sets, disturbance),
        |_| done(),
    )?;
    Ok(all.into_iter().flatten().collect())
}

struct Played {
    ground: Ground,
    platform: Platform,
    disturbance: Disturbance,
    gate: Alone,
    dedicated: f64,
}

impl Played {
    /// With online as it is alone.
    fn new(
        ground: &Ground,
        platform: Platform,
        disturbance: Disturbance,
    ) -> Result<Self, SpecError> {
        let spec = Spec {
            compute: Compute::Tidegate,
            memory: Memory::Bound,
            ..ground.spec.clone()
        };
        Ok(Self {
            platform,
            disturbance,
            gate: run::alone(&spec)?,
            dedicated: ground.finetune.dedicated(&spec.gpu),
            ground: Ground {
                spec,
                ..ground.clone()
            },
        })
    }

    fn run(
        &self,
        row: Row,
        set: Set,
        users: Option<&Latencies>,
        tried: u32,
    ) -> Result<Tuned, SpecError> {
        let mut finetune = self.ground.finetune.clone();
        if row == Row::Chunked {
            finetune.window = tried.min(finetune.length);
        }
        let bare = row == Row::Alone;
        let setting = Setting {
            spec: &self.ground.spec,
            finetune: &finetune,
            platform: self.platform,
            contention: Contention::default(),
            disturbance: if bare {
                Disturbance::default()
            } else {
                self.disturbance
            },
            decode_limit_ns: 40_000_000,
            online_peak_bytes: self.gate.kv_peak_bytes,
        };
        let nobody = Latencies::default();
        let promise = set.promise(users.unwrap_or(&nobody));
        let mut policy = row.make(&setting, &self.gate, promise, tried);
        beside::run(&setting, policy.as_mut())
    }

    fn cell(
        &self,
        set: Set,
        policy: String,
        tried: u32,
        alone: &Latencies,
        keeps: Option<bool>,
        with: (&Tuned, &Latencies),
    ) -> Cell {
        let (run, users) = with;
        let seconds = run.length.as_secs_f64().max(f64::MIN_POSITIVE);
        Cell {
            platform: self.platform,
            gpu: self.ground.spec.gpu.name,
            set,
            scenario: self.ground.scenario.clone(),
            seed: self.ground.spec.seed,
            policy,
            tried,
            keeps,
            trained_per_s: run.trained_per_s(),
            of_dedicated: run.trained_per_s() / self.dedicated,
            steps_per_day: run.steps as f64 / seconds * 86_400.0,
            ways: {
                let all = run.ways.iter().sum::<u64>().max(1);
                run.ways.map(|ns| ns as f64 / all as f64)
            },
            ttft_p99_ms: users.ttft.p99,
            ttft_mean_ms: users.ttft.mean,
            tpot_p99_ms: users.tpot.p99,
            tpot_mean_ms: users.tpot.mean,
            tpot_mean_increase_pct: 100.0 * (users.tpot.mean / alone.tpot.mean.max(1e-9) - 1.0),
            vs_best_keeping: None,
            vs_oracle: None,
        }
    }
}

fn of_ground(
    ground: &Ground,
    platform: Platform,
    rows: &[Row],
    sets: &[Set],
    disturbance: Disturbance,
) -> Result<Vec<Cell>, SpecError> {
    let played = Played::new(ground, platform, disturbance)?;
    let alone = played.run(Row::Alone, Set::Valve, None, 0)?;
    let alone_users = Latencies::of(&alone);
    let mut ran: Vec<Ran> = Vec::new();
    let mut cells = Vec::new();
    for set in sets {
        let promise = set.promise(&alone_users);
        let possible = set.kept(&alone_users, &alone_users);
        let judge = |users: &Latencies| possible.then(|| set.kept(&alone_users, users));
        let mut own = Vec::new();
        for row in rows {
            for tried in row.tried() {
                // A margin of no budget is none.
                if row.reads_the_budget() && promise.tpot_ns().is_none() && tried > 0 {
                    continue;
                }
                if !ran.iter().any(|one| one.is(*row, tried, &promise)) {
                    let run = played.run(*row, *set, Some(&alone_users), tried)?;
                    let users = Latencies::of(&run);
                    ran.push(Ran {
                        row: *row,
                        tried,
                        promise,
                        run,
                        users,
                    });
                }
            }
            let tried = row.tried();
            let known = ran.iter().filter(|one| {
                let asked = tried.contains(&one.tried);
                asked && one.is(*row, one.tried, &promise)
            });
            // The most trained of those that keep it, else the least late.
            let best = known.max_by(|a, b| {
                let key = |one: &Ran| match judge(&one.users) {
                    Some(true) => (true, one.run.trained_per_s()),
                    _ => (false, -one.users.tpot.p99),
                };
                let (a, b) = (key(a), key(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            let Some(best) = best else { continue };
            let with = (&best.run, &best.users);
            let keeps = judge(&best.users);
            own.push(played.cell(*set, row.name(), best.tried, &alone_users, keeps, with));
            if *row == Row::Oracle {
                own.push(bound(&played, *set, &alone_users, with)?);
            }
        }
        compare(&mut own);
        cells.extend(own);
    }
    Ok(cells)
}

/// A row that ran, with one of its settings under one promise.
struct Ran {
    row: Row,
    tried: u32,
    promise: Promise,
    run: Tuned,
    users: Latencies,
}

impl Ran {
    /// Whether it is what `row` does with that setting under `promise`: who reads nothing of a promise, or nothing but
    /// its budget, does the same under others.
    fn is(&self, row: Row, tried: u32, promise: &Promise) -> bool {
        let budget = self.promise.tpot_ns() == promise.tpot_ns();
        let reads = row.reads_the_promise();
        let same = !reads || self.promise == *promise || row.reads_the_budget() && budget;
        (self.row, self.tried) == (row, tried) && same
    }
}

/// What would be trained if all that online leaves were the trainer's: online as slow as the oracle lets
/// it be, with no switch. `oracle` is how it ran where this is.
fn bound(
    played: &Played,
    set: Set,
    alone: &Latencies,
    oracle: (&Tuned, &Latencies),
) -> Result<Cell, SpecError> {
    let free = Played {
        platform: Platform::OneProcess,
        ground: played.ground.clone(),
        disturbance: Disturbance::default(),
        gate: played.gate.clone(),
        dedicated: played.dedicated,
    };
    let cell = |run: &Tuned, users: &Latencies| {
        let share = 1.0 - run.online_ns as f64 / 1e9 / run.length.as_secs_f64();
        let mut cell = played.cell(set, BOUND.to_owned(), 0, alone, None, (run, users));
        (cell.of_dedicated, cell.trained_per_s) = (share, share * played.dedicated);
        cell
    };
    if (free.platform, free.disturbance) == (played.platform, played.disturbance) {
        return Ok(cell(oracle.0, oracle.1));
    }
    let run = free.run(Row::Oracle, set, Some(alone), 0)?;
    let users = Latencies::of(&run);
    Ok(cell(&run, &users))
}

fn compare(cells: &mut [Cell]) {
    let apart = |cell: &Cell| {
        [
            Row::Gate.name(),
            Row::Oracle.name(),
            Row::Tidegate.name(),
            BOUND.to_owned(),
        ]
        .contains(&cell.policy)
    };
    let others = cells
        .iter()
        .filter(|cell| cell.keeps == Some(true) && !apart(cell));
    let best = others.map(|cell| cell.trained_per_s).reduce(f64::max);
    let oracle = cells.iter().find(|cell| cell.policy == Row::Oracle.name());
    let oracle = oracle
        .map(|cell| cell.trained_per_s)
        .filter(|tokens| *tokens > 0.0);
    for cell in cells {
        cell.vs_best_keeping = best
            .filter(|best| *best > 0.0)
            .map(|best| cell.trained_per_s / best);
        cell.vs_oracle = oracle.map(|oracle| cell.trained_per_s / oracle);
    }
}

/// The columns of [`csv`].
pub const COLUMNS: &str = "class,gpu,slo_set,scenario,seed,policy,keeps,trained_tokens_per_s,ttft_p99_ms,\
tpot_p99_ms,tpot_mean_increase_pct,vs_best_keeping,vs_oracle";

/// The cells as CSV.
#[must_use]
pub fn csv(cells: &[Cell]) -> String {
    let mut table = format!("{COLUMNS}\n");
    for cell in cells {
        let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.4}"));
        let keeps = match cell.keeps {
            Some(true) => "yes",
            Some(false) => "no",
            None if cell.policy == BOUND => "",
            None => "alone-breaks-it",
        };
        let scenario = &cell.scenario;
        let scenario = if scenario.contains([',', '"', '\n']) {
            format!("\"{}\"", scenario.replace('"', "\"\""))
        } else {
            scenario.clone()
        };
        let line = format!(
            "{},{},{},{scenario},{},{},{keeps},{:.3},{:.4},{:.4},{:.4},{},{}\n",
            class(cell.platform),
            cell.gpu,
            cell.set.name(),
            cell.seed,
            cell.policy,
            cell.trained_per_s,
            cell.ttft_p99_ms,
            cell.tpot_p99_ms,
            // Minus zero is a difference of nothing.
            cell.tpot_mean_increase_pct + 0.0,
            ratio(cell.vs_best_keeping),
            ratio(cell.vs_oracle),
        );
        table += &line;
    }
    table
}

/// Whether cells of one row keep their set, in a word: `-` where online alone does not.
pub fn keeps<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> &'static str {
    if cells.clone().any(|cell| cell.keeps == Some(false)) {
        return "no";
    }
    let mut all = cells;
    if all.any(|cell| cell.keeps.is_none()) {
        "-"
    } else {
        "yes"
    }
}

impl Cell {
    /// All figures of it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "class": class(self.platform),
            "gpu": self.gpu,
            "slo_set": self.set.name(),
            "scenario": self.scenario,
            "seed": self.seed,
            "policy": self.policy,
            "setting": self.tried,
            "keeps": self.keeps,
            "trained_tokens_per_s": self.trained_per_s,
            "of_dedicated": self.of_dedicated,
            "steps_per_day": self.steps_per_day,
            "ways": Way::ALL
                .iter()
                .map(|way| (way.name().to_owned(), json!(self.ways[*way as usize])))
                .collect::<serde_json::Map<_, _>>(),
            "ttft_p99_ms": self.ttft_p99_ms,
            "ttft_mean_ms": self.ttft_mean_ms,
            "tpot_p99_ms": self.tpot_p99_ms,
            "tpot_mean_ms": self.tpot_mean_ms,
            "tpot_mean_increase_pct": self.tpot_mean_increase_pct,
            "vs_best_keeping": self.vs_best_keeping,
            "vs_oracle": self.vs_oracle,
        })
    }
}

/// What happened under `row` with `set` promised: who had the GPU, and when.
///
/// # Errors
/// When the ground cannot be run.
pub fn timeline(
    ground: &Ground,
    platform: Platform,
    row: Row,
    set: Set,
) -> Result<Vec<Span>, SpecError> {
    let mut kept = ground.clone();
    kept.spec.timeline = true;
    let played = Played::new(&kept, platform, Disturbance::default())?;
    let alone = Latencies::of(&played.run(Row::Alone, Set::Valve, None, 0)?);
    let tried = row.tried().first().copied().unwrap_or_default();
    Ok(played.run(row, set, Some(&alone), tried)?.timeline)
}
