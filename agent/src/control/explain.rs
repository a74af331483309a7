//! Why a process runs or waits, and what is known about one handle, for operators.

use super::status::View;
use crate::clock::nanos;
use crate::config::Role;
use crate::inbox::Explanation;
use crate::span::time as span;
use tidegate_node::lanes::Applied;
use tidegate_node::session::Session;
use tidegate_node::work::Training;
use tidegate_policy::holders::Backing;
use tidegate_policy::ids::{GpuId, GpuSet};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{GateState, GpuView, JobState, JobView, Reason, StripeView};
use tidegate_proto::v1;

/// What a training has done.
fn trains(said: &Training) -> String {
    let of = match said.steps {
        0 => String::new(),
        steps => format!(" of {steps}"),
    };
    format!(
        "trains: step {}{of}; {} of {} units were done again after {} reclaims, {} of {} layers are resident",
        said.step, said.units_redone, said.units, said.reclaims, said.resident_layers, said.layers
    )
}

impl View<'_> {
    pub(super) fn handles(&self, handle: u32, job: Option<&str>) -> Vec<v1::HandleStatus> {
        let mut found = Vec::new();
        for id in self.shell.members().live_jobs() {
            let name = self.job_name(id);
            if job.is_some_and(|job| job != name) {
                continue;
            }
            if let Some(view) = self.shell.policy().stripe_of(id, handle) {
                found.push(handle_status(name.to_string(), &view));
            }
        }
        found
    }

    pub(super) fn explain(&self, pid: i32) -> Explanation {
        let mut explanation = Explanation::default();
        let usage = self.shell.usage().at(self.shell.now_ns());
        let own = |session: &&Session| session.process().pid == pid;
        for session in self.shell.members().all().filter(own) {
            explanation.attached.push(self.process(session));
            match session.role {
                Role::Ignore => explanation
                    .reasons
                    .push("runs: the agent does nothing with it".to_owned()),
                Role::Online => self.why_online(session, &mut explanation.reasons),
                Role::Offline => {
                    if let Some(view) = session.job.and_then(|job| self.shell.policy().job(job)) {
                        explanation.jobs.push(self.job_status(view, &usage));
                        self.why_offline(session, &view, &mut explanation.reasons);
                    }
                }
            }
        }
        explanation
    }

    fn why_online(&self, session: &Session, reasons: &mut Vec<String>) {
        reasons.push("runs: online work is never held".to_owned());
        for gpu in session.gpus().collect::<GpuSet>().iter() {
            let busy = self.busy_on(session, gpu);
            let state = if session.state.lapsed {
                "makes no progress, so its activity does not count"
            } else if busy {
                "is busy, and keeps the gate closed"
            } else if self.holder(gpu).is_some_and(|own| own.id == session.id) {
                "is idle, and keeps the gate closed: it has requests in flight"
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
        let since = span(self.shell.now_ns().saturating_sub(view.since.as_nanos()));
        let held_up = self.held_up(view);
        let runs = held_up.is_none()
            && matches!(
                view.state,
                JobState::Running | JobState::Breathing | JobState::Leased | JobState::Enabling
            );
        let why = held_up.unwrap_or_else(|| self.job_reason(view));
        reasons.push(standing(runs, &why, &since));
        if let Some(share) = self.share(view.job) {
            why_so_much(&share, reasons);
        }
        if let Some(said) = &session.work.training {
            reasons.push(trains(said));
        }
        if let Reason::Gate(gpus) = view.reason {
            for gpu in gpus.iter() {
                if let Some(gate) = self
                    .shell
                    .policy()
                    .gpu(gpu, Instant::from_nanos(self.shell.now_ns()))
                {
                    self.why_shut(&gate, reasons);
                }
            }
        }
        if view.state == JobState::Unmanaged || session.state.launch_gated {
            let why = if session.state.note.is_empty() {
                "its channels cannot be controlled"
            } else {
                &session.state.note
            };
            reasons.push(format!("its launches are held, not its channels: {why}"));
        }
        if view.launch_gate_closed {
            reasons.push("its launches wait in the library".to_owned());
        }
        for gpu in view.gpus.iter().filter(|gpu| {
            let line = self.shell.lanes().gpus.get(*gpu);
            line.is_some_and(|line| line.stalled)
        }) {
            reasons.push(format!(
                "GPU {}: the driver does not return from a call",
                gpu.0
            ));
        }
        let job = self.shell.lanes().job(view.job);
        let unknown = job
            .into_iter()
            .flat_map(|job| &job.lanes)
            .any(|lane| lane.applied() == Applied::Unknown);
        if unknown {
            reasons.push("a disable failed: what its channels do is not known for now".to_owned());
        }
        for obstacle in &self.about.obstacles {
            reasons.push(format!("no channel control: {obstacle}"));
        }
        if session.link.outbox.is_none() {
            reasons.push("its connection is lost, the process lives on".to_owned());
        }
    }

    /// Why a gate is not open.
    fn why_shut(&self, gate: &GpuView, reasons: &mut Vec<String>) {
        let gpu = gate.gpu;
        let shut_for = self.shell.now_ns().saturating_sub(gate.since.as_nanos());
        let cooldown = nanos(gate.cooldown);
        match gate.gate {
            GateState::Open => {}
            GateState::Cooling if self.shell.now_ns() < self.shell.hold_until_ns() => {
                reasons.push(format!(
                    "GPU {}: the agent has just started, or was stopped, and waits for online processes to attach",
                    gpu.0
                ));
            }
            GateState::Cooling if self.holder(gpu).is_some() => {}
            GateState::Cooling if gate.cooldown > gate.gap_cooldown => reasons.push(format!(
                "GPU {}: online is idle for {}; offline waits until that is {}, since online's users would wait for a \
                 preemption more often than [slo] accepts; its decode gaps ask for {}",
                gpu.0,
                span(shut_for),
                span(cooldown),
                span(nanos(gate.gap_cooldown))
            )),
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
        if let Some(session) = self.holder(gpu) {
            reasons.push(format!(
                "GPU {}: process {} ({}) has requests in flight",
                gpu.0,
                session.process().pid,
                session.peer.name
            ));
        }
        for session in self.shell.members().all() {
            if session.is_online() && !session.state.lapsed && self.busy_on(session, gpu) {
                reasons.push(format!(
                    "GPU {}: process {} ({}) is busy",
                    gpu.0,
                    session.process().pid,
                    session.peer.name
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

/// A part of time, for people.
/// What an offline process does and why; a reason that says the first itself stands alone.
fn standing(runs: bool, reason: &str, since: &str) -> String {
    let state = if runs { "runs" } else { "waits" };
    if reason.split(' ').next() == Some(state) {
        format!("{reason} (since {since})")
    } else {
        format!("{state}: {reason} (since {since})")
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// What a job has of its GPUs among others.
fn why_so_much(share: &v1::JobShare, reasons: &mut Vec<String>) {
    reasons.push(format!(
        "it got {} of the time in which it could run; {} is its share beside the jobs on its GPUs",
        percent(share.got),
        percent(share.deserved)
    ));
    if !share.wants {
        reasons.push("it has no work, and so no turn".to_owned());
    }
    if share.at_once {
        let slice = match share.timeslice_ns {
            0 => "what the driver gives".to_owned(),
            ns => span(ns),
        };
        reasons.push(format!(
            "it runs beside the other jobs; each of its groups of channels has a timeslice of {slice}"
        ));
    }
    if !share.turns_because.is_empty() {
        reasons.push(format!(
            "jobs take turns, not timeslices, because of {}",
            share.turns_because
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::standing;

    /// P-OPERATE-16: who waits for its turn is not said to wait twice.
    #[test]
    fn a_reason_that_says_that_it_waits_says_it_once() {
        let turn = standing(false, "waits for its turn: batch runs, 40 ms left", "2.0 s");
        assert_eq!(
            turn,
            "waits for its turn: batch runs, 40 ms left (since 2.0 s)"
        );
        let idle = standing(true, "online is idle", "2.0 s");
        assert_eq!(idle, "runs: online is idle (since 2.0 s)");
    }
}
