//! Receives what online processes report: that they attach and leave, are busy or idle, and have requests.

use super::Node;
use super::gpu::{Ring, shut};
use crate::config::{Cooldown, Learning};
use crate::effect::{Effect, Report};
use crate::event::{Event, Reading};
use crate::gate::Gate;
use crate::ids::{GpuId, RequestId, SessionId};
use crate::online::Session;
use crate::time::Instant;
use core::time::Duration;

/// A process gives up an agent that does not answer for so long. What it does from then on, its page no longer says.
const LEAVES_AFTER: Duration = Duration::from_millis(500);

impl Node {
    pub(super) fn hear(&mut self, event: Event<'_>, now: Instant, out: &mut Vec<Effect>) {
        match event {
            Event::OnlineAttached { session } => {
                if let Err(place) = self.find(session) {
                    self.sessions.insert(place, Session::new(session, now));
                }
            }
            Event::OnlineGone { session } => self.online_gone(session),
            Event::Activity {
                session,
                gpu,
                reading,
            } => {
                self.activity(session, gpu, reading, now, out);
            }
            Event::Progress { session, at } => {
                if let Some(s) = self.session(session)
                    && s.progressed(at.min(now))
                {
                    out.push(Effect::Emit(Report::Recovered { session }));
                }
            }
            Event::Suspected {
                session,
                gpu,
                suspect,
            } => {
                if let Ok(place) = self.find(session)
                    && gpu.index() < self.gpus.len()
                {
                    self.sessions[place].suspected(gpu, suspect);
                }
            }
            Event::RequestStarted { session, request } => {
                self.request_started(session, request, now);
            }
            Event::RequestEnded { session, request } => {
                if let Some(s) = self.session(session)
                    && s.request_ended(request)
                {
                    for gpu in &mut self.gpus {
                        gpu.charges.request_ended(session, request);
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn find(&self, session: SessionId) -> Result<usize, usize> {
        self.sessions.binary_search_by_key(&session, |s| s.id)
    }

    fn session(&mut self, session: SessionId) -> Option<&mut Session> {
        let place = self.find(session).ok()?;
        self.sessions.get_mut(place)
    }

    fn online_gone(&mut self, session: SessionId) {
        let Ok(place) = self.find(session) else {
            return;
        };
        self.sessions.remove(place);
        self.memory.gone(session);
        for gpu in &mut self.gpus {
            gpu.charges.session_gone(session);
        }
    }

    /// The agent was away. After [`LEAVES_AFTER`] it knows as little of online processes as a new one, and does as that:
    /// gates stay shut until those that left have had the time to come back.
    pub(super) fn absent(&mut self, lasted: Duration, now: Instant) {
        for session in &mut self.sessions {
            session.unwatched(lasted, now);
        }
        for gpu in &mut self.gpus {
            gpu.absent(lasted);
        }
        if lasted < LEAVES_AFTER {
            return;
        }
        self.hold_until = self.hold_until.max(now.after(self.config.start_hold));
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.gate.is_open()) {
            (gpu.gate, gpu.since) = (Gate::Cooling { since: now }, now);
        }
    }

    /// A request came: offline goes before the first kernel does.
    fn request_started(&mut self, session: SessionId, request: RequestId, now: Instant) {
        let Ok(place) = self.find(session) else {
            return;
        };
        let slo = self.config.slo;
        for id in self.sessions[place].gpus() {
            if self.held(id).is_none() {
                let gpu = &mut self.gpus[id.index()];
                let free = matches!(gpu.gate, Gate::Cooling { .. }) && gpu.preemption.is_none();
                gpu.expected = free.then_some(now);
            }
        }
        let session = &mut self.sessions[place];
        let known = !session.request_started(request, now);
        for id in session.gpus() {
            let gpu = &mut self.gpus[id.index()];
            if session.holds() && gpu.gate.is_open() {
                shut(gpu, Ring::Request, slo, now);
                self.world.shut = self.world.shut.with(id);
            }
            if !known {
                gpu.charges.request_started(session.id, request);
            }
        }
    }

    fn activity(
        &mut self,
        session: SessionId,
        at: GpuId,
        reading: Reading,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let Ok(place) = self.find(session) else {
            return;
        };
        let Some(gpu) = self.gpus.get_mut(at.index()) else {
            return;
        };
        let learning: Option<Learning> = match self.config.cooldown {
            Cooldown::Learnt(learning) => Some(learning),
            Cooldown::Fixed(_) => None,
        };
        let lapsed = self.sessions[place].lapsed();
        if !self.sessions[place].uses(at) {
            for request in self.sessions[place].requests() {
                gpu.charges.request_started(session, request);
            }
        }
        let seen =
            self.sessions[place].read(at, reading, gpu.opened, learning.as_ref(), now, |gap| {
                if let Some(learner) = &mut gpu.learner
                    && learner.learn(gap)
                {
                    let report = Report::CooldownViolated {
                        gpu: at,
                        gap: gap.span,
                    };
                    out.push(Effect::Emit(report));
                }
            });
        if let (Some((count, apart)), Some(learner)) = (seen.unseen, &mut gpu.learner) {
            learner.unseen(count, apart, now);
        }
        if let Some(worked) = seen.worked {
            gpu.budget.worked(worked, now);
        }
        if lapsed && !self.sessions[place].lapsed() {
            out.push(Effect::Emit(Report::Recovered { session }));
        }
        // The edges of a suspect that configuration passes over are no more than its busyness is.
        let counts = self.sessions[place].edges_count(at, self.config.suspects);
        if let Some(rang) = seen.edge.filter(|_| counts) {
            gpu.launched(rang);
            if gpu.gate != Gate::Closed {
                // Also for a whole busy period that is over by now: the gate shuts and cools anew.
                shut(gpu, Ring::Launch(rang), self.config.slo, now);
                self.world.shut = self.world.shut.with(at);
            }
        }
    }
}
