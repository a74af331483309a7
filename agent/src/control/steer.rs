//! What people ask of the control thread: how things stand and why, and other orders and settings.

use super::Control;
use super::gang::Applied;
use super::session::Session;
use crate::clock::nanos;
use crate::config::Role;
use crate::inbox::{Ask, Standing, Tunables};
use crate::span::time as span;
use tidegate_policy::config::Suspects;
use tidegate_policy::event::Event;
use tidegate_policy::holders::Backing;
use tidegate_policy::ids::{GpuId, GpuSet, JobId};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{GateState, GpuView, JobState, JobView, Reason, StripeView};
use tidegate_proto::v1;

impl Control {
    pub(super) fn answer(&mut self, ask: Ask) {
        // Whoever asked may have left meanwhile.
        match ask {
            Ask::Report(answer) => drop(answer.send(Box::new(self.report()))),
            Ask::Usage(answer) => drop(answer.send(Box::new(self.totals()))),
            Ask::Pause(job, answer) => {
                drop(answer.send(self.steer(job.as_deref(), |job| Event::Pause { job })));
            }
            Ask::Resume(job, answer) => {
                drop(answer.send(self.steer(job.as_deref(), |job| Event::Resume { job })));
            }
            Ask::Drain(drained, answer) => {
                self.feed(Event::Drain { drained });
                drop(answer.send(self.live_names()));
            }
            Ask::Explain(pid, answer) => drop(answer.send(Box::new(self.standing(pid)))),
            Ask::Handle(handle, job, answer) => {
                drop(answer.send(self.handles(handle, job.as_deref())));
            }
        }
    }

    /// Feeds an event for one job by name, or for all; returns which.
    fn steer(
        &mut self,
        name: Option<&str>,
        event: fn(Option<JobId>) -> Event<'static>,
    ) -> Vec<String> {
        let Some(name) = name else {
            self.feed(event(None));
            return self.live_names();
        };
        let mut steered = Vec::new();
        for job in self.live_jobs() {
            if self.job_name(Some(job)).is_some_and(|own| *own == *name) {
                self.feed(event(Some(job)));
                steered.push(name.to_owned());
            }
        }
        steered
    }

    /// Jobs with a process, by name.
    fn live_names(&self) -> Vec<String> {
        let live = self.live_jobs().into_iter();
        live.filter_map(|job| self.job_name(Some(job)))
            .map(|name| name.to_string())
            .collect()
    }

    /// Goes on with other settings.
    pub(super) fn configure(&mut self, tunables: &Tunables) {
        self.rings_per_second = tunables.rings_per_second;
        self.prove_every_ns = tunables.prove_every_ns;
        self.prove_at = self.now;
        self.stall_ns = tunables.stall_ns;
        self.answer_ns = tunables.answer_ns;
        if !self.may_step() {
            return;
        }
        let ignore = tunables.policy.suspects == Suspects::Ignore;
        if std::mem::replace(&mut self.ignore_suspects, ignore) != ignore {
            self.rebuild_guards();
        }
        let mut effects = std::mem::take(&mut self.effects);
        effects.clear();
        let now = Instant::from_nanos(self.now);
        self.node.configure(tunables.policy, now, &mut effects);
        if let Some(recorder) = &mut self.recorder {
            recorder.configured(&tunables.policy, now, &effects);
        }
        self.carry_out_all(effects);
        self.drain();
    }

    fn handles(&self, handle: u32, job: Option<&str>) -> Vec<v1::HandleStatus> {
        let mut found = Vec::new();
        for id in self.live_jobs() {
            let name = self.job_name(Some(id)).unwrap_or_default();
            if job.is_some_and(|job| *job != *name) {
                continue;
            }
            if let Some(view) = self.node.stripe_of(id, handle) {
                found.push(handle_status(name.to_string(), &view));
            }
        }
        found
    }

    fn standing(&self, pid: i32) -> Standing {
        let mut standing = Standing::default();
        let usage = self.usage.at(self.now);
        for session in self.sessions.values().filter(|s| s.peer.pid == pid) {
            standing.attached.push(self.process(session));
            match session.role {
                Role::Ignore => standing
                    .reasons
                    .push("runs: the agent does nothing with it".to_owned()),
                Role::Online => self.why_online(session, &mut standing.reasons),
                Role::Offline => {
                    if let Some(view) = session.job.and_then(|job| self.node.job(job)) {
                        standing.jobs.push(self.job_status(view, &usage));
                        self.why_offline(session, &view, &mut standing.reasons);
                    }
                }
            }
        }
        standing
    }

    fn why_online(&self, session: &Session, reasons: &mut Vec<String>) {
        reasons.push("runs: online work is never held".to_owned());
        for gpu in session.gpus().collect::<GpuSet>().iter() {
            let busy = self.busy_on(session, gpu);
            let state = if session.lapsed {
                "makes no progress, so its activity does not count"
            } else if busy {
                "is busy, and keeps the gate closed"
            } else {
                "is idle"
            };
            reasons.push(format!("GPU {}: it {state}", gpu.0));
        }
    }

    fn busy_on(&self, session: &Session, gpu: GpuId) -> bool {
        let status = self.process(session);
        let here = |device: &v1::DeviceStatus| device.gpu == u32::from(gpu.0);
        status
            .devices
            .iter()
            .any(|device| here(device) && device.busy)
    }

    fn why_offline(&self, session: &Session, view: &JobView, reasons: &mut Vec<String>) {
        let since = span(self.now.saturating_sub(view.since.as_nanos()));
        let runs = matches!(
            view.state,
            JobState::Running | JobState::Breathing | JobState::Enabling
        );
        let state = if runs { "runs" } else { "waits" };
        reasons.push(format!(
            "{state}: {} (since {since})",
            self.job_reason(view)
        ));
        if let Reason::Gate(gpus) = view.reason {
            for gpu in gpus.iter() {
                if let Some(gate) = self.node.gpu(gpu, Instant::from_nanos(self.now)) {
                    self.why_shut(&gate, reasons);
                }
            }
        }
        if view.state == JobState::Unmanaged || session.launch_gated {
            let why = if session.note.is_empty() {
                "its channels cannot be controlled"
            } else {
                &session.note
            };
            reasons.push(format!("its launches are held, not its channels: {why}"));
        }
        if view.launch_gate_closed {
            reasons.push("its launches wait in the library".to_owned());
        }
        for gpu in view.gpus.iter().filter(|gpu| {
            self.gpus
                .get(gpu.index())
                .is_some_and(|state| state.stalled)
        }) {
            reasons.push(format!(
                "GPU {}: the driver does not return from a call",
                gpu.0
            ));
        }
        let job = self
            .jobs
            .get(usize::try_from(view.job.0).unwrap_or(usize::MAX));
        let unknown = job
            .into_iter()
            .flat_map(|job| &job.gangs)
            .any(|gang| gang.applied == Applied::Unknown);
        if unknown {
            reasons.push("a disable failed: what its channels do is not known for now".to_owned());
        }
        for obstacle in &self.about.obstacles {
            reasons.push(format!("channels are not touched: {obstacle}"));
        }
        if session.outbox.is_none() {
            reasons.push("its connection is lost, the process lives on".to_owned());
        }
    }

    /// Why a gate is not open.
    fn why_shut(&self, gate: &GpuView, reasons: &mut Vec<String>) {
        let gpu = gate.gpu;
        let shut_for = self.now.saturating_sub(gate.since.as_nanos());
        let cooldown = nanos(gate.cooldown);
        match gate.gate {
            GateState::Open => {}
            GateState::Cooling if self.now < self.started + self.start_hold_ns => {
                reasons.push(format!(
                    "GPU {}: the agent has just started and waits for online processes to attach",
                    gpu.0
                ));
            }
            GateState::Cooling => reasons.push(format!(
                "GPU {}: online is idle for {} of the cooldown of {}; {} to go",
                gpu.0,
                span(shut_for),
                span(cooldown),
                span(cooldown.saturating_sub(shut_for))
            )),
            GateState::Closed => reasons.push(format!(
                "GPU {}: the gate is closed since {}",
                gpu.0,
                span(shut_for)
            )),
        }
        for session in self.sessions.values() {
            if session.is_online() && !session.lapsed && self.busy_on(session, gpu) {
                reasons.push(format!(
                    "GPU {}: process {} ({}) is busy",
                    gpu.0, session.peer.pid, session.peer.name
                ));
            }
        }
    }
}

fn handle_status(job: String, view: &StripeView) -> v1::HandleStatus {
    let block =
        |at: Option<tidegate_policy::ids::BlockId>| at.map_or(-1, |block| i64::from(block.0));
    v1::HandleStatus {
        job,
        stripe: view.stripe.0,
        handles: view.handles,
        first_block: block(view.blocks.map(|(first, _)| first)),
        last_block: block(view.blocks.map(|(_, last)| last)),
        backing: match view.backing {
            Backing::Backed => "own",
            Backing::Taken => "taken",
            Backing::Pinned => "pinned",
        }
        .to_owned(),
        requests: view.requests,
        tokens: view.tokens.0,
        choice: view.choice.map(|choice| v1::HandleChoice {
            reclaim: choice.reclaim.0,
            at_ns: choice.at.as_nanos(),
            rank: choice.nth,
            tokens: choice.pick.extra.0,
            requests: choice.pick.requests,
        }),
    }
}
