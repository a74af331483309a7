//! One GPU of a node: its gate, and what is counted on it.

use crate::budget::Budget;
use crate::charge::Charges;
use crate::config::Slo;
use crate::effect::{Effect, Report};
use crate::gap::Learner;
use crate::gate::Gate;
use crate::ids::GpuId;
use crate::job::{Job, Outcome};
use crate::patience::Patience;
use crate::time::Instant;
use core::time::Duration;

/// One GPU: its gate and its books.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    pub(super) gate: Gate,
    pub(super) since: Instant,
    pub(super) learner: Option<Learner>,
    pub(super) charges: Charges,
    /// The last busy edge of a GPU that was idle, or the request that came before it.
    pub(super) rang: Instant,
    /// That was a request: online has launched nothing yet that could wait.
    pub(super) announced: bool,
    /// When online, idle, said that a request came while nothing of offline ran: it has launched nothing since.
    pub(super) expected: Option<Instant>,
    pub(super) opened: Option<Instant>,
    /// Longest idle time since the gate was last open.
    pub(super) longest_idle: Duration,
    pub(super) woken: bool,
    pub(super) stalled: bool,
    pub(super) preemption: Option<Preemption>,
    pub(super) budget: Budget,
    /// How long its users' sake keeps offline off beyond online's gaps, where an SLO is set.
    pub(super) patience: Patience,
    pub(super) counts: Counts,
}

/// What was counted on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) edges: u64,
    pub(super) preemptions: u64,
    pub(super) wakes: u64,
}

/// A preemption some of whose disables are under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preemption {
    rang: Instant,
    /// When online launched something that had to wait; none while a request is only announced.
    launched: Option<Instant>,
    entered: Instant,
    returned: Instant,
    waiting: u32,
    jobs: u32,
    /// Of that time the agent did not run for so long: nobody stamped a call that returned meanwhile.
    away: Duration,
}

impl Gpu {
    pub(super) fn breathable_at(&self) -> Option<Instant> {
        match self.gate {
            Gate::Open => Some(self.since),
            Gate::Cooling { since } => Some(since.after(self.longest_idle / 2)),
            Gate::Closed => None,
        }
    }

    /// Online launched something at `rang`: from then on it waits for the preemption that is under way.
    pub(super) fn launched(&mut self, rang: Instant) {
        if let Some(said) = self.expected.take() {
            self.budget.came(rang.since(said));
        }
        if let Some(preemption) = &mut self.preemption {
            preemption.launched.get_or_insert(rang);
        }
    }

    /// The agent did not run for so long: that is no time that the preemption under way took.
    pub(super) fn absent(&mut self, lasted: Duration) {
        if let Some(preemption) = &mut self.preemption {
            preemption.away = preemption.away.saturating_add(lasted);
            let launched = &mut preemption.launched;
            *launched = launched.map(|launched| launched.after(lasted));
        }
    }

    /// A job it stopped has been stopped (`at`: entry and return), or never will be (`None`).
    pub(super) fn job_stopped(
        &mut self,
        gpu: GpuId,
        at: Option<(Instant, Instant)>,
        out: &mut Vec<Effect>,
    ) {
        let Some(mut preemption) = self.preemption else {
            return;
        };
        preemption.waiting = preemption.waiting.saturating_sub(1);
        if let Some((entered, returned)) = at {
            preemption.jobs += 1;
            preemption.entered = preemption.entered.max(entered);
            preemption.returned = preemption.returned.max(returned);
        }
        self.preemption = Some(preemption).filter(|p| p.waiting > 0);
        if preemption.waiting == 0 && preemption.jobs > 0 {
            let Preemption {
                rang,
                launched,
                entered,
                returned,
                jobs,
                away,
                ..
            } = preemption;
            let rang = rang.after(away).min(returned);
            let waited = launched.map_or(Duration::ZERO, |launched| returned.since(launched));
            self.budget
                .preempted(returned.since(rang), waited, returned);
            self.patience.delayed(waited);
            out.push(Effect::Emit(Report::Preempted {
                gpu,
                rang,
                entered,
                returned,
                jobs,
            }));
        }
    }
}

/// What shuts a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// Online launched something then.
    Launch(Instant),
    /// It says that a request came.
    Request,
}

/// A ring shuts the gate.
pub(super) fn shut(gpu: &mut Gpu, ring: Ring, slo: Option<Slo>, now: Instant) {
    let rang = match ring {
        Ring::Launch(rang) => rang,
        Ring::Request => now,
    };
    if let Some(slo) = slo.filter(|_| gpu.gate != Gate::Closed) {
        gpu.patience.returned(slo, &mut gpu.budget, rang, now);
    }
    if let Gate::Cooling { since } = gpu.gate {
        gpu.longest_idle = gpu.longest_idle.max(rang.since(since));
    }
    gpu.gate = Gate::Closed;
    gpu.since = now;
    gpu.rang = rang;
    gpu.announced = ring == Ring::Request;
    gpu.counts.edges += 1;
}

/// What a job's turn means for the GPUs' books.
pub(super) fn book(gpus: &mut [Gpu], job: &Job, outcome: Outcome, out: &mut Vec<Effect>) {
    if let Some(id) = outcome.dropped {
        gpus[id.index()].job_stopped(id, None, out);
    }
    if let Some(id) = outcome.preempted {
        let gpu = &mut gpus[id.index()];
        let under_way = gpu.preemption.filter(|p| p.rang == gpu.rang);
        if under_way.is_none() {
            gpu.counts.preemptions += 1;
            gpu.charges.preempted();
        }
        if !outcome.turn_over {
            let preemption = gpu.preemption.get_or_insert(Preemption {
                rang: gpu.rang,
                launched: (!gpu.announced).then_some(gpu.rang),
                entered: Instant::default(),
                returned: Instant::default(),
                waiting: 0,
                jobs: 0,
                away: Duration::ZERO,
            });
            preemption.waiting += 1;
        }
    }
    if let Some((id, entered, returned)) = outcome.stopped {
        gpus[id.index()].job_stopped(id, Some((entered, returned)), out);
    }
    if outcome.woken {
        for id in job.gpus().iter() {
            let gpu = &mut gpus[id.index()];
            if !core::mem::replace(&mut gpu.woken, true) {
                gpu.counts.wakes += 1;
            }
        }
    }
}
