//! A fleet of nodes and a queue of offline jobs, placed by one rule or another.
//!
//! What a job of a kind gets on a node is measured, minute by minute, by a run of both in virtual time; here the
//! minutes go round. Decisions are the agent's own code: what a node says is `placement`, and whether a job goes is
//! `tend`.
//!
//! ```text
//!   every minute   jobs arrive and end; who waits is placed, first come first, on the node that the rule likes best
//!   every window   each resident is judged; who is evicted goes to the end of the queue, and loses a minute's work
//! ```
//!
//! *Violating* is the time of a job in which its mean over the last hour, or since it began on that node, is below its
//! SLA; of its first window the mean is that window's, for nothing is promised of a minute. Rules that know no value of
//! a node are told nothing of a better one: they evict after enough strikes, and that job does not come back there.

mod file;
mod rules;
mod tables;

pub use file::{FleetFile, read};
pub use rules::Rule;
pub use tables::{NodeKind, Table, Tables};

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_policy::ids::{GpuId, GpuSet};
use tidegate_policy::tend::{Case, Correction, Hold, Tending, Verdict, judge, strikes};
use tidegate_policy::time::Instant;

use tidegate_text::rng::Rng;

/// Minutes over which an SLA holds.
const OVER: usize = 60;

/// What is played.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// How long.
    pub minutes: usize,
    /// SLAs of the jobs, one of which each job has.
    pub slas: Vec<f64>,
    /// Shortest and longest job, in minutes with its GPUs to itself.
    pub alone: (f64, f64),
    /// Nodes of each kind.
    pub counts: Vec<u32>,
    /// How jobs are looked after.
    pub tending: Tending,
}

/// What came of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Throughput of all jobs over what each has with its GPUs to itself, times its GPUs.
    pub gpus_saved: f64,
    /// Of the time that jobs ran, percent.
    pub violating_pct: f64,
    /// Jobs that were told to go.
    pub evictions: u64,
    /// Of the jobs that ended, those that had their SLA over their life, percent.
    pub met_pct: f64,
    /// Share of all GPUs' time in which offline ran.
    pub harvested: f64,
    /// Most evictions of one job.
    pub most: u32,
    /// Jobs that ended.
    pub ended: u64,
    /// GPUs of the fleet.
    pub gpus: f64,
}

#[derive(Clone, Debug)]
struct Job {
    kind: usize,
    sla: f64,
    left: f64,
    ran: u64,
    got: f64,
    evictions: u32,
    holds: BTreeMap<usize, Hold>,
}

#[derive(Clone, Debug)]
struct Stay {
    job: Job,
    gpus: GpuSet,
    minutes: Vec<f64>,
    windows: Vec<Option<f64>>,
}

struct Place {
    kind: usize,
    /// Where in its minutes it begins.
    phase: usize,
    stays: Vec<Stay>,
    corrections: Vec<Correction>,
    last: Option<Instant>,
}

impl Place {
    fn free(&self, table: &Tables) -> GpuSet {
        let all = GpuSet::first(table.gpus(self.kind));
        self.stays
            .iter()
            .fold(all, |free, stay| free.minus(stay.gpus))
    }
}

fn at(minute: usize) -> Instant {
    Instant::from_nanos(0).after(Duration::from_secs(60 * minute as u64))
}

struct World<'a> {
    fleet: &'a Fleet,
    tables: &'a Tables,
    rule: Rule,
    places: Vec<Place>,
    queue: Vec<Job>,
    draw: Rng,
    outcome: Outcome,
    running: u64,
    violating: u64,
    saved: f64,
    harvested: f64,
    met: u64,
}

/// Plays `rule` on `fleet` with as much work as `load` times what the fleet would harvest.
#[must_use]
pub fn play(fleet: &Fleet, tables: &Tables, rule: Rule, load: f64, seed: u64) -> Outcome {
    let mut phases = Rng::stream(seed, 3);
    let kinds = fleet.counts.iter().enumerate();
    let kinds = kinds.flat_map(|(kind, count)| (0..*count).map(move |_| kind));
    let places: Vec<Place> = kinds
        .map(|kind| Place {
            kind,
            phase: (phases.uniform() * tables.minutes(kind) as f64) as usize,
            stays: Vec::new(),
            corrections: vec![Correction::NONE; tables.jobs()],
            last: None,
        })
        .collect();
    let capacity: f64 = places.iter().map(|place| tables.capacity(place.kind)).sum();
    let mut world = World {
        fleet,
        tables,
        rule,
        places,
        queue: Vec::new(),
        draw: Rng::stream(seed, 2),
        outcome: Outcome::default(),
        running: 0,
        violating: 0,
        saved: 0.0,
        harvested: 0.0,
        met: 0,
    };
    if rule == Rule::ModelKnown {
        world.learn_before();
    }
    world.run(load * capacity, seed)
}

impl World<'_> {
    fn run(&mut self, work_per_minute: f64, seed: u64) -> Outcome {
        let mut arrivals = Rng::stream(seed, 1);
        let (shortest, longest) = self.fleet.alone;
        let gpus: f64 = (0..self.tables.jobs())
            .map(|kind| f64::from(self.tables.needs(kind)))
            .sum();
        let mean = (shortest + longest) / 2.0 * gpus / self.tables.jobs().max(1) as f64;
        let rate = work_per_minute / mean.max(f64::MIN_POSITIVE);
        let mut next = -arrivals.uniform().ln() / rate;
        for minute in 0..self.fleet.minutes {
            while next < (minute + 1) as f64 {
                let pick = |draw: f64, of: usize| ((draw * of as f64) as usize).min(of - 1);
                let kind = pick(arrivals.uniform(), self.tables.jobs());
                let sla = self.fleet.slas[pick(arrivals.uniform(), self.fleet.slas.len())];
                let left = shortest + (longest - shortest) * arrivals.uniform();
                self.queue.push(Job {
                    kind,
                    sla,
                    left,
                    ran: 0,
                    got: 0.0,
                    evictions: 0,
                    holds: BTreeMap::new(),
                });
                next -= arrivals.uniform().ln() / rate;
            }
            self.place(minute);
            for place in 0..self.places.len() {
                self.advance(place, minute);
            }
            let window = (self.fleet.tending.window.as_secs() / 60).max(1) as usize;
            if (minute + 1).is_multiple_of(window) {
                for place in 0..self.places.len() {
                    self.tend(place, minute + 1, window);
                }
            }
        }
        for place in core::mem::take(&mut self.places) {
            for stay in place.stays {
                self.count(&stay);
            }
        }
        let minutes = self.fleet.minutes.max(1) as f64;
        let all: f64 = self
            .fleet
            .counts
            .iter()
            .enumerate()
            .map(|(kind, count)| f64::from(*count) * f64::from(self.tables.gpus(kind)))
            .sum();
        Outcome {
            gpus_saved: self.saved / minutes,
            violating_pct: 100.0 * self.violating as f64 / self.running.max(1) as f64,
            met_pct: 100.0 * self.met as f64 / self.outcome.ended.max(1) as f64,
            harvested: self.harvested / minutes / all.max(1.0),
            gpus: all,
            ..self.outcome
        }
    }

    /// A stay is over: which of its minutes were below the SLA.
    fn count(&mut self, stay: &Stay) {
        let window = (self.fleet.tending.window.as_secs() / 60).max(1) as usize;
        let first = &stay.minutes[..stay.minutes.len().min(window)];
        let first = first.iter().sum::<f64>() / first.len().max(1) as f64;
        let mut sum = 0.0;
        for (minute, got) in stay.minutes.iter().enumerate() {
            sum += got;
            if minute >= OVER {
                sum -= stay.minutes[minute - OVER];
            }
            let mean = if minute < window {
                first
            } else {
                sum / (minute + 1).min(OVER) as f64
            };
            self.violating += u64::from(self.fleet.tending.is_short(mean, stay.job.sla));
            self.running += 1;
        }
    }

    /// What the rule thinks of a job on a node that has room for it: the more the better, or not at all.
    fn score(&mut self, job: &Job, place: usize, minute: usize) -> Option<f64> {
        let node = &self.places[place];
        let table = self.tables.of_pair(node.kind, job.kind)?;
        if node.free(self.tables).len() < u32::from(self.tables.needs(job.kind)) {
            return None;
        }
        let now = at(minute);
        let says = self.says(table, place, job.kind, now);
        let held = |hold: &Hold| !hold.is_over(self.uncorrected(table), now);
        if job.holds.get(&place).is_some_and(held) {
            return None;
        }
        let enough = |value: f64| (value >= job.sla).then_some(value);
        match self.rule {
            Rule::Random => Some(self.draw.uniform()),
            Rule::FirstFit => Some(-(place as f64)),
            Rule::MostIdle => Some(table.idle),
            Rule::IdleOnly => enough(table.idle),
            Rule::ThePaper => enough(table.paper).filter(|_| table.aligned),
            Rule::Model | Rule::ModelKnown => enough(says),
            Rule::Oracle => enough(table.truth),
        }
    }

    fn uncorrected(&self, table: &Table) -> f64 {
        match self.rule {
            Rule::Model => table.says,
            Rule::ModelKnown => table.says_known,
            Rule::Oracle => table.truth,
            _ => 1.0,
        }
    }

    fn says(&self, table: &Table, place: usize, kind: usize, now: Instant) -> f64 {
        let correction = self.places[place].corrections[kind].now(now, &self.fleet.tending);
        (self.uncorrected(table) * correction).min(1.0)
    }

    fn place(&mut self, minute: usize) {
        let mut waiting = Vec::new();
        let has_room = |place: &usize| !self.places[*place].free(self.tables).is_empty();
        let room: Vec<usize> = (0..self.places.len()).filter(has_room).collect();
        for job in core::mem::take(&mut self.queue) {
            let mut best: Option<(f64, usize)> = None;
            for &place in &room {
                if let Some(score) = self.score(&job, place, minute)
                    && best.is_none_or(|best| score > best.0)
                {
                    best = Some((score, place));
                }
            }
            let Some((_, place)) = best else {
                waiting.push(job);
                continue;
            };
            let free = self.places[place].free(self.tables);
            let gpus = self.choose(&job, place, free);
            self.places[place].stays.push(Stay {
                job,
                gpus,
                minutes: Vec::new(),
                windows: Vec::new(),
            });
        }
        self.queue = waiting;
    }

    /// Which GPUs of `free`: the model's best, or the first.
    fn choose(&self, job: &Job, place: usize, free: GpuSet) -> GpuSet {
        let table = self.tables.of_pair(self.places[place].kind, job.kind);
        let sets = table.map_or(&[][..], |table| &table.sets);
        let fits = sets.iter().filter(|set| set.gpus.minus(free).is_empty());
        let chosen = match self.rule {
            Rule::Model | Rule::ModelKnown => {
                fits.reduce(|a, b| if b.says > a.says { b } else { a })
            }
            Rule::Oracle => fits.reduce(|a, b| if b.truth > a.truth { b } else { a }),
            _ => fits.into_iter().next(),
        };
        chosen.map_or(GpuSet::of(GpuId(0)), |set| set.gpus)
    }

    /// One minute of what runs on a node.
    fn advance(&mut self, place: usize, minute: usize) {
        let node = &mut self.places[place];
        let mut stays = core::mem::take(&mut node.stays);
        let (kind, phase) = (node.kind, node.phase);
        let mut over = Vec::new();
        stays.retain_mut(|stay| {
            let Some(set) = self.tables.set(kind, stay.job.kind, stay.gpus) else {
                return false;
            };
            let at = (phase + minute) % set.got.len();
            let (got, gpus) = (set.got[at], f64::from(stay.gpus.len()));
            self.saved += got * gpus;
            self.harvested += set.open[at] * gpus;
            stay.minutes.push(got);
            stay.job.left -= got;
            stay.job.got += got;
            stay.job.ran += 1;
            let goes_on = stay.job.left > 0.0;
            if !goes_on {
                over.push(stay.clone());
            }
            goes_on
        });
        self.places[place].stays = stays;
        for stay in over {
            self.count(&stay);
            self.outcome.ended += 1;
            let mean = stay.job.got / stay.job.ran.max(1) as f64;
            self.met += u64::from(!self.fleet.tending.is_short(mean, stay.job.sla));
        }
    }

    /// The end of a window on a node.
    fn tend(&mut self, place: usize, minute: usize, window: usize) {
        let now = at(minute);
        let mut stays = core::mem::take(&mut self.places[place].stays);
        let mut kept = Vec::new();
        for mut stay in stays.drain(..) {
            let whole = stay.minutes.len() >= window;
            let own = &stay.minutes[stay.minutes.len().saturating_sub(window)..];
            let got = own.iter().sum::<f64>() / own.len().max(1) as f64;
            stay.windows.push(whole.then_some(got));
            if whole {
                self.learn(place, &stay, got, minute, window);
            }
            match self.verdict(place, &stay, now, minute) {
                Verdict::Evict(hold) => {
                    self.count(&stay);
                    self.outcome.evictions += 1;
                    let mut job = stay.job;
                    job.evictions += 1;
                    self.outcome.most = self.outcome.most.max(job.evictions);
                    // What was under way is lost.
                    job.left += stay.minutes.last().copied().unwrap_or(0.0);
                    job.holds.insert(place, hold);
                    self.places[place].last = Some(now);
                    self.queue.push(job);
                }
                Verdict::Keep(_) | Verdict::Report(_) => kept.push(stay),
            }
        }
        self.places[place].stays = kept;
    }

    fn learn(&mut self, place: usize, stay: &Stay, got: f64, minute: usize, window: usize) {
        let known = match self.rule {
            Rule::Model => false,
            Rule::ModelKnown => true,
            _ => return,
        };
        let node = &self.places[place];
        let (kind, job) = (node.kind, stay.job.kind);
        let from = node.phase + minute - window;
        let predicted = self.tables.window(kind, job, stay.gpus, from, known);
        let correction = &mut self.places[place].corrections[job];
        *correction = correction.learn(got, predicted, at(minute), &self.fleet.tending);
    }

    /// Every node has had every kind of job for an hour before the first arrives.
    fn learn_before(&mut self) {
        let window = (self.fleet.tending.window.as_secs() / 60).max(1) as usize;
        for place in 0..self.places.len() {
            for kind in 0..self.tables.jobs() {
                let node = &self.places[place];
                let table = self.tables.of_pair(node.kind, kind);
                let Some(set) = table.and_then(|table| table.sets.first()) else {
                    continue;
                };
                let mut correction = Correction::NONE;
                for turn in 0..OVER / window {
                    let from = node.phase + turn * window;
                    let got = |minute: usize| set.got[(from + minute) % set.got.len()];
                    let got = (0..window).map(got).sum::<f64>() / window as f64;
                    let predicted = self.tables.window(node.kind, kind, set.gpus, from, true);
                    let now = Instant::from_nanos(0);
                    correction = correction.learn(got, predicted, now, &self.fleet.tending);
                }
                self.places[place].corrections[kind] = correction;
            }
        }
    }

    fn verdict(&mut self, place: usize, stay: &Stay, now: Instant, minute: usize) -> Verdict {
        let job = &stay.job;
        let table = self.tables.of_pair(self.places[place].kind, job.kind);
        let uncorrected = table.map_or(1.0, |table| self.uncorrected(table));
        let knows = matches!(self.rule, Rule::Model | Rule::ModelKnown | Rule::Oracle);
        let here = match table {
            Some(table) if knows => self.says(table, place, job.kind, now),
            _ => 0.0,
        };
        let tending = self.fleet.tending;
        let mut elsewhere: Option<f64> = None;
        // Only who has too many strikes asks.
        let asks = strikes(&stay.windows, job.sla, &tending) >= tending.strikes;
        for other in (0..self.places.len()).filter(|other| asks && *other != place) {
            if let Some(score) = self.score(job, other, minute) {
                let value = if knows { score } else { 1.0 };
                elsewhere = Some(elsewhere.map_or(value, |most| most.max(value)));
            }
        }
        let case = Case {
            sla: job.sla,
            windows: &stay.windows,
            here: Some(here),
            uncorrected,
            elsewhere,
            evictions: job.evictions,
            last_here: self.places[place].last,
            may_restart: true,
        };
        judge(&case, now, &self.fleet.tending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(nodes: usize) -> Fleet {
        Fleet {
            minutes: 480,
            slas: vec![0.1, 0.3, 0.5],
            alone: (4.0, 24.0),
            counts: vec![4; nodes],
            tending: Tending::default(),
        }
    }

    /// P-PLACE-6: on nodes that always give the same, who knows them cheats nobody, who learns cheats few, and each
    /// rule plays the same for the same seed.
    #[test]
    fn on_steady_nodes_knowing_cheats_nobody() {
        // The second says twice what it gives, the last half.
        let nodes = [(0.6, 0.6), (0.5, 0.25), (0.2, 0.2), (0.35, 0.7)];
        let (fleet, tables) = (fleet(nodes.len()), tables::tests::steady(&nodes));
        for load in [0.5, 1.3] {
            let outcome = |rule, seed| play(&fleet, &tables, rule, load, seed);
            for (rule, name) in Rule::ALL {
                let told = outcome(rule, 1);
                assert_eq!(told, outcome(rule, 1), "{name}");
                assert_ne!(told, outcome(rule, 2), "{name}");
                assert!(
                    told.most <= fleet.tending.evictions_per_job,
                    "{name}: {told:?}"
                );
                let all: f64 = nodes.iter().map(|node| 4.0 * node.1).sum();
                assert!(
                    told.gpus_saved > 0.0 && told.gpus_saved <= all,
                    "{name}: {told:?}"
                );
                assert!(told.ended > 20, "{name}: {told:?}");
            }
            let (random, model) = (outcome(Rule::Random, 1), outcome(Rule::Model, 1));
            for known in [outcome(Rule::Oracle, 1), outcome(Rule::ModelKnown, 1)] {
                assert_eq!(
                    (known.violating_pct, known.evictions),
                    (0.0, 0),
                    "{known:?}"
                );
            }
            assert!(
                random.violating_pct > 10.0 && random.evictions > 10,
                "{random:?}"
            );
            assert!(
                model.violating_pct < random.violating_pct / 3.0,
                "{model:?} {random:?}"
            );
            assert!(
                model.evictions < random.evictions / 3,
                "{model:?} {random:?}"
            );
        }
    }
}
