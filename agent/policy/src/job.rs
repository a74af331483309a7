//! One offline job: a gang of processes on one or more GPUs that is disabled and enabled as one.
//!
//! Each GPU on which the job has something to gate is a *lane* (a job-GPU slot), served by that GPU's issue thread.
//!
//! ```text
//!              gate shuts             answer
//!    Enabled --------------> Disabling ------> Disabled        a failed disable puts every lane
//!       ^   answer             |  ^               |            of the job into Unknown
//!       +---------- Enabling <-+--+---------------+
//!                      |  ^          all gates open, no lane still Disabling
//!                      v  | timer
//!                     Failed        Unknown --> whatever is wanted, ordered anew
//! ```
//!
//! Invariants:
//!
//! * Every order has a new generation, and only the answer to a lane's latest order moves the lane.
//! * The job is ordered to run only if the gates of all of its GPUs are open, or for one anti-starvation window
//!   (`breath`).
//! * After a failed disable, all lanes are enabled before anything else is decided.
//! * A job whose enables fail as often as a disable may fail is given up, so that no other job waits for it.
//! * A failed enable is tried again for as long as the job lives, so no waiting here ends in "disabled".

mod answers;
mod beside;
mod breath;
mod groups;
mod lease;
mod ranks;
mod views;
mod world;

use crate::config::{Config, Means};
use crate::effect::{Effect, Look, Report};
use crate::event::{Order, Standing};
use crate::fair::{Lacks, Terms};
use crate::ids::{Channels, Generation, GpuId, GpuSet, JobId, SessionId};
use crate::reclaim::Hold;
use crate::time::Instant;
use crate::view::JobState;
use core::time::Duration;
use lease::Lease;
pub(crate) use world::{Outcome, World};

#[derive(Clone, Debug)]
struct Member {
    session: SessionId,
    gpus: GpuSet,
    standing: Standing,
    channels: Vec<(GpuId, Channels)>,
    /// It said that it has no work, and when.
    idle: Option<Instant>,
    /// It counts when memory is divided.
    counts: bool,
    /// What computes for it, by GPU, and why that cannot be given timeslices.
    groups: Vec<(GpuId, u32, Option<Lacks>)>,
}

impl Member {
    /// It uses a GPU on which nothing is known that could be disabled.
    fn is_bare(&self) -> bool {
        self.channels.iter().all(|held| held.1.0 == 0) || self.is_hidden()
    }

    /// It uses a GPU on which nothing of it is known, so nothing of it can be known to be disabled.
    fn is_hidden(&self) -> bool {
        let held = self.channels.iter().filter(|held| held.1.0 > 0);
        let held: GpuSet = held.map(|held| held.0).collect();
        !self.gpus.minus(held).is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    Enabled,
    Unknown,
    Disabling,
    Disabled,
    Enabling,
    Failed { retry_at: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    gpu: GpuId,
    state: LaneState,
    generation: Generation,
    retry: Duration,
    /// Enables that failed in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Managed,
    /// A disable failed; everything is being enabled.
    Recovering,
    Unmanaged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Run,
    /// Beside online, as far as its lease goes.
    Lease,
    Gate(Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Gates,
    /// Another job has its turn.
    Turn,
    Operator,
    Skipped,
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breath {
    No,
    Wanted,
    Until(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaunchGate {
    /// A process attached since it was last set.
    Unset,
    Open,
    Closed,
    /// A reclaim is under way.
    Held,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub paused: bool,
    pub terms: Terms,
    gpus: GpuSet,
    members: Vec<Member>,
    lanes: Vec<Lane>,
    ordered: Ordered,
    trouble: Trouble,
    /// What a reclaim keeps it from.
    pub hold: Hold,
    gated: Gated,
    breath: Breath,
    lease: Lease,
    stop: Stop,
    /// Rises whenever groups came.
    groups_version: u64,
    shown: Shown,
}

/// What a job was ordered, and in which way it is managed.
#[derive(Clone, Copy, Debug)]
struct Ordered {
    mode: Mode,
    want: Want,
    launch_gate: LaunchGate,
    /// Activity is to be read anew once everything was ordered to be enabled.
    reread: bool,
}

/// What the driver refused for a job.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    failures: u32,
    skip_until: Option<Instant>,
}

/// How long a job has waited.
#[derive(Clone, Copy, Debug, Default)]
struct Gated {
    /// Since when it has had no turn, and whether that was reported.
    since: Option<Instant>,
    reported: bool,
    /// It was gated, so running again is a wake.
    wakes: bool,
}

/// The last time that a job was stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Stop {
    preempted_by: Option<GpuId>,
    entered: Instant,
    returned: Instant,
    /// How often a busy edge stopped it.
    preemptions: u64,
}

/// The job as operators saw it last.
#[derive(Clone, Copy, Debug)]
struct Shown {
    state: JobState,
    since: Instant,
}

impl Job {
    pub fn new(id: JobId, paused: bool, now: Instant) -> Self {
        Self {
            id,
            paused,
            terms: Terms::default(),
            gpus: GpuSet::EMPTY,
            members: Vec::new(),
            lanes: Vec::new(),
            ordered: Ordered {
                mode: Mode::Managed,
                want: Want::Run,
                launch_gate: LaunchGate::Unset,
                reread: false,
            },
            trouble: Trouble::default(),
            hold: Hold::No,
            gated: Gated::default(),
            breath: Breath::No,
            lease: Lease::No,
            stop: Stop::default(),
            groups_version: 0,
            shown: Shown {
                state: JobState::Running,
                since: now,
            },
        }
    }

    pub fn has(&self, session: SessionId) -> bool {
        self.members.iter().any(|member| member.session == session)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Says whether that was news.
    pub fn pause(&mut self, paused: bool) -> bool {
        if !paused && self.ordered.mode == Mode::Unmanaged {
            self.ordered.mode = Mode::Managed;
            self.trouble.failures = 0;
        }
        core::mem::replace(&mut self.paused, paused) != paused
    }

    /// What is believed about its channels may be wrong.
    pub fn reissue(&mut self) {
        self.disturb(self.gpus);
        self.ordered.launch_gate = LaunchGate::Unset;
    }

    fn want(&self, world: &World, may: bool, now: Instant) -> Want {
        if let Some(why) = self.held_by(world, now) {
            Want::Gate(why)
        } else if !self.is_open(world) && !self.breathes(world, now) {
            self.want_beside(now)
        } else if may {
            Want::Run
        } else {
            Want::Gate(Why::Turn)
        }
    }

    /// What holds it, whatever gates and other jobs do.
    fn held_by(&self, world: &World, now: Instant) -> Option<Why> {
        if self.paused || world.drained {
            Some(Why::Operator)
        } else if self.trouble.skip_until.is_some_and(|until| now < until) {
            Some(Why::Skipped)
        } else if self.hold >= Hold::Stopped {
            Some(Why::Memory)
        } else {
            None
        }
    }

    fn is_open(&self, world: &World) -> bool {
        // A process that has not said yet which GPUs it uses may use any.
        let gpus = if self.gpus.is_empty() {
            world.all
        } else {
            self.gpus
        };
        world.ungated || gpus.minus(world.open).is_empty()
    }

    /// Orders what is wanted and not yet so.
    pub fn settle(
        &mut self,
        config: &Config,
        world: &World,
        may: bool,
        generation: &mut Generation,
        now: Instant,
        out: &mut Vec<Effect>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if self.trouble.skip_until.is_some_and(|until| now >= until) {
            self.trouble.skip_until = None;
        }
        self.breathe(config, world, may, now, out);
        let want = self.want(world, may, now);
        if want == Want::Run && (world.ungated || self.gpus.minus(world.open).is_empty()) {
            self.breath = Breath::No;
        }
        if want == Want::Run {
            self.lease = Lease::No;
        }
        if self.ordered.want.is_on() && !want.is_on() {
            self.stop(want, world, now, &mut outcome);
        }
        self.ordered.want = want;
        if self.ordered.mode == Mode::Recovering {
            self.recover(config, out);
            outcome.dropped = self.stop.preempted_by.take();
        }
        self.order(world, generation, now, out);
        if core::mem::take(&mut self.ordered.reread) {
            out.push(Effect::ReadActivity { gpus: self.gpus });
        }
        if self.lanes.is_empty() {
            outcome.dropped = outcome.dropped.or_else(|| self.stop.preempted_by.take());
        } else if !want.is_on() && self.all(LaneState::Disabled) {
            self.trouble.failures = 0;
            if let Some(gpu) = self.stop.preempted_by.take() {
                outcome.stopped = Some((gpu, self.stop.entered, self.stop.returned));
            }
        }
        if want == Want::Run && self.all(LaneState::Enabled) {
            if !matches!(self.breath, Breath::Until(_)) {
                self.gated.since = None;
            }
            if core::mem::take(&mut self.gated.wakes) && !self.lanes.is_empty() {
                outcome.woken = true;
                out.push(Effect::Emit(Report::Woken { job: self.id }));
            }
        }
        if config.means == Means::Channels {
            self.set_launch_gate(world, out);
        }
        self.note_state(now);
        outcome
    }

    /// Ends the recovery from a failed disable: when everything is enabled, or could not be for as many tries as a disable
    /// has. Then others no longer wait for it.
    fn recover(&mut self, config: &Config, out: &mut Vec<Effect>) {
        let most = config.disable_retries;
        let stuck = self.lanes.iter().any(|lane| lane.failures > most);
        if stuck || self.all(LaneState::Enabled) && self.trouble.failures > most {
            out.push(Effect::Emit(Report::Unmanaged { job: self.id }));
            self.ordered.mode = Mode::Unmanaged;
        } else if self.all(LaneState::Enabled) {
            self.ordered.mode = Mode::Managed;
        }
    }

    fn stop(&mut self, want: Want, world: &World, now: Instant, outcome: &mut Outcome) {
        let ran = self.ordered.mode == Mode::Managed
            && self
                .lanes
                .iter()
                .any(|lane| matches!(lane.state, LaneState::Enabled | LaneState::Enabling));
        if want == Want::Gate(Why::Gates) && ran {
            let cause = self.gpus.intersection(world.shut).iter().next();
            outcome.turn_over = cause.is_none() && matches!(self.breath, Breath::Until(_));
            outcome.preempted =
                cause.or_else(|| self.gpus.iter().next().filter(|_| outcome.turn_over));
            if outcome.preempted.is_some() {
                self.stop.preemptions += 1;
            }
            outcome.dropped = core::mem::replace(&mut self.stop.preempted_by, cause);
        }
        (self.stop.entered, self.stop.returned) = (Instant::default(), Instant::default());
        self.gated.since = Some(now);
        self.gated.reported = false;
        self.gated.wakes = true;
        self.breath = Breath::No;
        self.lease = Lease::No;
    }

    fn all(&self, state: LaneState) -> bool {
        self.lanes.iter().all(|lane| lane.state == state)
    }

    fn order(
        &mut self,
        world: &World,
        generation: &mut Generation,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let enable = self.ordered.want.is_on() || self.ordered.mode != Mode::Managed;
        if enable && self.hold == Hold::Frozen {
            return;
        }
        let waits = self.ordered.mode == Mode::Managed
            && self
                .lanes
                .iter()
                .any(|lane| lane.state == LaneState::Disabling);
        if enable && waits {
            return;
        }
        let due = |state: LaneState| match state {
            LaneState::Unknown => true,
            LaneState::Enabled | LaneState::Enabling => !enable,
            LaneState::Disabled | LaneState::Disabling => enable,
            LaneState::Failed { retry_at } => !enable || now >= retry_at,
        };
        if !self.lanes.iter().any(|lane| due(lane.state)) {
            return;
        }
        *generation = Generation(generation.0 + 1);
        let (job, generation) = (self.id, *generation);
        // A lease and an ungated block are for while online is busy.
        let beside = self.ordered.want == Want::Lease || world.ungated;
        let look = if self.ordered.mode == Mode::Managed && !beside {
            Look::First
        } else {
            Look::Unconditional
        };
        for lane in self.lanes.iter_mut().filter(|lane| due(lane.state)) {
            let order = Order {
                gpu: lane.gpu,
                job,
                generation,
            };
            lane.generation = generation;
            if enable {
                lane.state = LaneState::Enabling;
                out.push(Effect::Enable { order, look });
            } else {
                lane.state = LaneState::Disabling;
                out.push(Effect::Disable(order));
            }
        }
    }

    fn set_launch_gate(&mut self, world: &World, out: &mut Vec<Effect>) {
        let held = self
            .lanes
            .iter()
            .any(|lane| lane.state != LaneState::Disabled && world.stalled.contains(lane.gpu));
        let bare = self.members.iter().any(Member::is_bare);
        let closed = match (self.ordered.want, self.ordered.mode) {
            (Want::Run, _) => false,
            (Want::Lease, _) => matches!(self.lease, Lease::Back(_)),
            (Want::Gate(_), Mode::Unmanaged | Mode::Recovering) => true,
            // Nothing known to disable yet, or the disable hangs: launches are all there is to hold.
            (Want::Gate(_), _) if held || bare => true,
            (Want::Gate(_), _) => {
                self.ordered.launch_gate != LaunchGate::Open && !self.all(LaneState::Disabled)
            }
        };
        let (wanted, effect) = if self.hold != Hold::No {
            (LaunchGate::Held, Effect::HoldLaunchGate { job: self.id })
        } else if closed {
            (LaunchGate::Closed, Effect::CloseLaunchGate { job: self.id })
        } else {
            (LaunchGate::Open, Effect::OpenLaunchGate { job: self.id })
        };
        if self.ordered.launch_gate != wanted {
            self.ordered.launch_gate = wanted;
            out.push(effect);
        }
    }

    /// When time alone changes something. `breathable_at` says when a GPU's gate has cooled enough.
    pub fn deadline(
        &self,
        config: &Config,
        breathable_at: impl Fn(GpuId) -> Option<Instant>,
    ) -> Option<Instant> {
        let retries = self.lanes.iter().filter_map(|lane| match lane.state {
            LaneState::Failed { retry_at } => Some(retry_at),
            _ => None,
        });
        let waits_for_gates = self.ordered.want == Want::Gate(Why::Gates);
        let gated = self
            .gated
            .since
            .filter(|_| waits_for_gates && !self.gated.reported)
            .map(|since| since.after(config.max_gated));
        let breath = match self.breath {
            Breath::No => None,
            Breath::Until(end) => Some(end),
            Breath::Wanted if !waits_for_gates || self.ordered.mode != Mode::Managed => None,
            Breath::Wanted => self
                .gpus
                .iter()
                .map(breathable_at)
                .try_fold(Instant::default(), |latest, at| at.map(|at| latest.max(at))),
        };
        retries
            .chain(gated)
            .chain(breath)
            .chain(self.lease_ends())
            .chain(self.trouble.skip_until)
            .min()
    }

    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.members.iter().map(|member| member.session)
    }

    /// The GPU whose preemption the job still owes an answer to.
    pub fn preempted_by(&self) -> Option<GpuId> {
        self.stop.preempted_by
    }

    pub fn gpus(&self) -> GpuSet {
        self.gpus
    }
}
