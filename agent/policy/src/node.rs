//! One step for a whole node: activity in, orders out.
//!
//! Every event first changes what is known (a process is busy, an order was answered). Then everything is settled from
//! what is known and `now`: frozen processes, gates, jobs, the next timer. Nothing is decided from an event alone, so a
//! repeated, late or stray event changes nothing, and a tick that comes early finds nothing to do.
//!
//! Cost: a step looks at every online process, GPU and job of the node, at worst a few hundred words. It allocates only
//! when a process, a job or a GPU is new to it.

mod beside;
mod gates;
mod gpu;
mod hear;
mod lease;
mod ungated;
mod views;

use crate::budget::Budget;
use crate::charge::Charges;
use crate::config::{Config, Cooldown, FairMode};
use crate::effect::{Effect, Report};
use crate::event::{Event, Order};
use crate::fair::{Claim, Fair};
use crate::gap::Learner;
use crate::gate::Gate;
use crate::ids::{Generation, GpuId, GpuSet, JobId, MAX_GPUS, SessionId};
use crate::job::{Job, World};
use crate::memory::Memory;
use crate::online::Session;
use crate::patience::Patience;
use crate::time::Instant;
use core::time::Duration;
use gpu::{Gpu, book};
use ungated::Ungated;

/// All that is known of one node, and what to do about it.
#[derive(Clone, Debug)]
pub struct Node {
    config: Config,
    /// Until when gates stay shut: the agent has just come or come back, and online processes have yet to be heard.
    hold_until: Instant,
    gpus: Vec<Gpu>,
    /// Online processes, by id.
    sessions: Vec<Session>,
    /// Offline jobs, in the order they came.
    jobs: Vec<Job>,
    fair: Fair,
    /// Kept for its room.
    claims: Vec<Claim>,
    memory: Memory,
    /// By GPU; empty where there are none.
    leases: Vec<lease::Leases>,
    /// `Pause` of all jobs holds for those to come.
    pause_new: bool,
    /// Jobs that are to come, and whether each is paused whatever holds for others.
    steered_ahead: Vec<(JobId, bool)>,
    ungated: Ungated,
    world: World,
    /// Of the last order to any job.
    generation: Generation,
    timer: Option<Instant>,
}

impl Node {
    /// A node of which nothing is known but its number of GPUs, at most [`MAX_GPUS`]. Its gates
    /// start cooling: online work may go on that has not been told yet.
    #[must_use]
    pub fn new(config: Config, gpus: u8, now: Instant) -> Self {
        let learner = match config.cooldown {
            Cooldown::Learnt(learning) => Some(Learner::new(learning)),
            Cooldown::Fixed(_) => None,
        };
        let gpu = Gpu {
            gate: Gate::Cooling { since: now },
            since: now,
            learner,
            charges: Charges::default(),
            rang: now,
            opened: None,
            longest_idle: Duration::ZERO,
            woken: false,
            stalled: false,
            announced: false,
            expected: None,
            preemption: None,
            budget: Budget::new(now),
            patience: Patience::default(),
            counts: gpu::Counts::default(),
        };
        let gpus = usize::from(gpus).min(MAX_GPUS);
        let all = (0u8..).take(gpus).map(GpuId).collect();
        Self {
            config,
            hold_until: now.after(config.start_hold),
            gpus: vec![gpu; gpus],
            sessions: Vec::new(),
            jobs: Vec::new(),
            fair: Fair::new(now),
            claims: Vec::new(),
            memory: Memory::new(config.sharing, gpus),
            leases: lease::leases(&config, gpus),
            pause_new: false,
            steered_ahead: Vec::new(),
            ungated: Ungated::default(),
            world: World {
                all,
                ..World::default()
            },
            generation: Generation(0),
            timer: None,
        }
    }

    /// Takes one event and appends what must be done. `now` never goes back.
    pub fn step(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Effect>) {
        self.take(event, now, out);
        if !event.is_one_of_many() {
            self.finish_step(event == Event::Tick, now, out);
        }
    }

    /// Goes on with other settings, as if it had been made with them, save what was learnt. What gates
    /// offline work, and how long a new agent waits, stays as it was made with.
    pub fn configure(&mut self, config: Config, now: Instant, out: &mut Vec<Effect>) {
        let config = Config {
            means: self.config.means,
            start_hold: self.config.start_hold,
            ..config
        };
        for gpu in &mut self.gpus {
            match (config.cooldown, &mut gpu.learner) {
                (Cooldown::Learnt(learning), Some(learner)) => learner.configure(learning),
                (Cooldown::Learnt(learning), None) => gpu.learner = Some(Learner::new(learning)),
                (Cooldown::Fixed(_), _) => gpu.learner = None,
            }
            if config.slo != self.config.slo {
                // What was spent under another one does not count.
                gpu.patience = Patience::default();
            }
        }
        self.memory.configure(config.sharing, now);
        self.config = config;
        self.fair.configure();
        self.configure_leases();
        self.finish_step(true, now, out);
    }

    fn finish_step(&mut self, ticked: bool, now: Instant, out: &mut Vec<Effect>) {
        self.settle(now, out);
        self.world.shut = GpuSet::EMPTY;
        let next = self.deadline(now);
        // A tick used up the shell's timer, so even an unchanged one is set again.
        if let Some(at) = next
            && (next != self.timer || ticked)
        {
            out.push(Effect::WakeAt(at));
        }
        self.timer = next;
    }

    fn take(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Effect>) {
        match event {
            Event::Memory(event) => {
                let jobs = &self.jobs;
                let job_of = |session| {
                    let job = jobs.iter().find(|job| job.has(session))?;
                    Some((job.id, job.terms.user))
                };
                self.memory.take(event, job_of, now);
            }
            Event::OnlineAttached { .. }
            | Event::OnlineGone { .. }
            | Event::Activity { .. }
            | Event::Progress { .. }
            | Event::Suspected { .. }
            | Event::RequestStarted { .. }
            | Event::RequestEnded { .. } => self.hear(event, now, out),
            Event::OfflineAttached {
                session,
                job,
                gpus,
                standing,
            } => {
                // A process belongs to one job at a time.
                self.leave(session, Some(job), out);
                let gpus = gpus.intersection(self.world.all);
                let means = self.config.means;
                self.job_or_new(job, now)
                    .attach(session, gpus, standing, means);
            }
            Event::OfflineGone { session } => self.leave(session, None, out),
            Event::ChannelsChanged {
                session,
                gpu,
                channels,
                grown,
            } => {
                let means = self.config.means;
                if gpu.index() < self.gpus.len() {
                    for job in &mut self.jobs {
                        job.channels_changed(session, gpu, channels, grown, means);
                    }
                }
            }
            Event::Disabled { order, .. }
            | Event::DisableFailed { order, .. }
            | Event::Enabled { order }
            | Event::EnableFailed { order, .. }
            | Event::EnableSkipped { order } => {
                let config = self.config;
                if let Some(job) = self.answered(order) {
                    order_answered(job, event, &config, now, out);
                }
            }
            Event::Works { .. }
            | Event::Counts { .. }
            | Event::Terms { .. }
            | Event::Groups { .. }
            | Event::SliceRefused { .. } => self.stand_beside_others(event, now),
            Event::IssueStalled { gpu } => self.issue_stalled(gpu, out),
            Event::Pause { job } => self.pause(job, true, out),
            Event::Resume { job } => self.pause(job, false, out),
            Event::Drain { drained } => self.world.drained = drained,
            Event::Ungate { until } => self.ungated.order(until, now),
            Event::Reissue { job } => {
                for known in self
                    .jobs
                    .iter_mut()
                    .filter(|known| job.is_none_or(|j| j == known.id))
                {
                    known.reissue();
                }
            }
            Event::Absent { lasted } => self.absent(lasted, now),
            Event::Lease(event) => self.step_lease(event, now, out),
            Event::Tick => {}
        }
    }

    fn issue_stalled(&mut self, gpu: GpuId, out: &mut Vec<Effect>) {
        let known = self.gpus.get_mut(gpu.index());
        if known.is_some_and(|known| !core::mem::replace(&mut known.stalled, true)) {
            out.push(Effect::Emit(Report::IssueStalled { gpu }));
        }
    }

    /// What only matters to jobs that share a GPU.
    fn stand_beside_others(&mut self, event: Event<'_>, now: Instant) {
        if let Event::SliceRefused { job, status } = event {
            self.fair.refuse(job, status);
        }
        for known in &mut self.jobs {
            match event {
                Event::Works { session, works } => known.works(session, works, now),
                Event::Counts { session, counts } => known.set_counts(session, counts),
                Event::Groups {
                    session,
                    gpu,
                    groups,
                    lacks,
                } if gpu.index() < self.gpus.len() => {
                    known.groups_changed(session, gpu, groups, lacks);
                }
                Event::Terms { job, terms } if job == known.id => known.terms = terms,
                _ => {}
            }
        }
    }

    fn job_or_new(&mut self, job: JobId, now: Instant) -> &mut Job {
        let known = self.jobs.iter().position(|known| known.id == job);
        let place = known.unwrap_or_else(|| {
            let ahead = self.steered_ahead.iter().position(|(of, _)| *of == job);
            let ahead = ahead.map(|place| self.steered_ahead.swap_remove(place).1);
            let paused = ahead.unwrap_or(self.pause_new);
            self.jobs.push(Job::new(job, paused, now));
            self.jobs.len() - 1
        });
        &mut self.jobs[place]
    }

    /// The job an answer is for. Any answer shows that its issue thread is alive.
    fn answered(&mut self, order: Order) -> Option<&mut Job> {
        if let Some(gpu) = self.gpus.get_mut(order.gpu.index()) {
            gpu.stalled = false;
        }
        self.jobs.iter_mut().find(|job| job.id == order.job)
    }

    /// A process leaves its job, unless that is `stays`.
    fn leave(&mut self, session: SessionId, stays: Option<JobId>, out: &mut Vec<Effect>) {
        let means = self.config.means;
        let (gpus, memory) = (&mut self.gpus, &mut self.memory);
        self.jobs.retain_mut(|job| {
            if stays == Some(job.id) || !job.has(session) {
                return true;
            }
            job.gone(session, means);
            memory.gone(session);
            if job.is_empty()
                && let Some(gpu) = job.preempted_by()
            {
                gpus[gpu.index()].job_stopped(gpu, None, out);
            }
            !job.is_empty()
        });
    }

    fn pause(&mut self, which: Option<JobId>, paused: bool, out: &mut Vec<Effect>) {
        match which {
            None => {
                self.pause_new = paused;
                self.steered_ahead.clear();
            }
            Some(job) if !self.jobs.iter().any(|known| known.id == job) => {
                self.steered_ahead.retain(|(of, _)| *of != job);
                self.steered_ahead.push((job, paused));
            }
            Some(_) => {}
        }
        for job in self
            .jobs
            .iter_mut()
            .filter(|job| which.is_none_or(|id| id == job.id))
        {
            if job.pause(paused) {
                let job = job.id;
                let report = if paused {
                    Report::Paused { job }
                } else {
                    Report::Resumed { job }
                };
                out.push(Effect::Emit(report));
            }
        }
    }

    fn settle(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for session in &mut self.sessions {
            if session.lapse(self.config.frozen_after, now) {
                out.push(Effect::Emit(Report::Lapsed {
                    session: session.id,
                }));
            }
            if session.doubt(self.config.frozen_after, now) {
                out.push(Effect::Emit(Report::Doubted {
                    session: session.id,
                }));
            }
        }
        self.world.ungated = self.ungated.settle(now, out);
        self.settle_gates(now);
        let means = self.config.means;
        self.settle_budgets(now);
        self.memory.plan(
            now < self.hold_until,
            &self.jobs,
            means,
            self.world.busy,
            now,
            out,
        );
        let mut fair = self.config.fair;
        if self.world.drained && fair.mode == FairMode::Slices {
            // Nobody runs: what was given is put back.
            fair.mode = FairMode::Turns;
        }
        // A reclaim that goes on changes what its job must not do, which may let it go on: from
        // idle it takes at most a hold, a stop and a freeze to get anywhere.
        for _ in 0..=4 {
            for job in &mut self.jobs {
                self.memory.set_hold(job);
            }
            self.claims.clear();
            let claims = self
                .jobs
                .iter()
                .map(|job| job.claim(&self.world, means, now));
            self.claims.extend(claims);
            self.fair.settle(fair, &self.claims, now, out);
            for (place, job) in self.jobs.iter_mut().enumerate() {
                let (world, may) = (&self.world, self.fair.may(place));
                let outcome = job.settle(&self.config, world, may, &mut self.generation, now, out);
                book(&mut self.gpus, job, outcome, out);
            }
            if !self.memory.advance(&self.jobs, means, now, out) {
                break;
            }
        }
        self.claims.clear();
        self.settle_leases(now, out);
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        let gates = self
            .world
            .all
            .iter()
            .filter_map(|id| self.gpus[id.index()].gate.opens_at(self.cooling(id, now)));
        let lapses = self
            .sessions
            .iter()
            .flat_map(|s| {
                let patience = self.config.frozen_after;
                [s.lapses_at(patience), s.doubted_at(patience)]
            })
            .flatten();
        let jobs = self.jobs.iter().filter_map(|job| {
            job.deadline(&self.config, |gpu| self.gpus[gpu.index()].breathable_at())
        });
        gates
            .chain(lapses)
            .chain(jobs)
            .chain(self.fair.deadline())
            .chain(self.memory.deadline(now))
            .chain(self.ungated.until())
            .chain([self.hold_until])
            .filter(|at| *at > now)
            .min()
    }
}

/// The answer to an order moves the job that it was given to.
fn order_answered(
    job: &mut Job,
    event: Event<'_>,
    config: &Config,
    now: Instant,
    out: &mut Vec<Effect>,
) {
    match event {
        Event::Disabled {
            order,
            entered,
            returned,
        } => job.disabled(order, entered.min(now), returned.min(now)),
        Event::DisableFailed { order, status } => job.disable_failed(order, status, out),
        Event::Enabled { order } => job.enabled(order),
        Event::EnableFailed { order, status } => {
            job.enable_failed(order, Some(status), config, now, out);
        }
        Event::EnableSkipped { order } => job.enable_skipped(order, config, now, out),
        _ => {}
    }
}
