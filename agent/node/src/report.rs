//! Turns reports of policy into events for operators and counters.

use crate::counters::Counters;
use crate::lanes::Lanes;
use crate::lending::nothing_lent;
use crate::members::Members;
use crate::memory::{Blocker, Memory};
use crate::request::{Context, Notice};
use std::time::Duration;
use tidegate_policy::effect::Report;
use tidegate_policy::event::Order;
use tidegate_policy::fair::Lacks;
use tidegate_policy::ids::{GpuId, JobId, SessionId};
use tidegate_policy::no_lease::NoLease;
use tidegate_policy::node::Node;
use tidegate_policy::reclaim::Phase;
use tidegate_policy::time::{Instant, nanos};

/// What a report changes and is told of.
pub(crate) struct Scene<'a> {
    pub lanes: &'a mut Lanes,
    pub members: &'a mut Members,
    pub memory: &'a mut Memory,
    pub policy: &'a Node,
}

fn ns(duration: Duration) -> u64 {
    nanos(duration)
}

fn since(end: Instant, begin: Instant) -> u64 {
    end.as_nanos().saturating_sub(begin.as_nanos())
}

/// Counts what policy reports, and says it.
pub(crate) fn emit(report: Report, mut scene: Scene<'_>, cx: &mut Context<'_>) {
    count(report, &mut scene, cx);
    let notice = notice(report, &scene, cx.now);
    cx.emit(notice);
}

/// Counts what policy reports, and notes it where it stays.
fn count(report: Report, scene: &mut Scene<'_>, cx: &mut Context<'_>) {
    match report {
        Report::Preempted {
            gpu,
            rang,
            entered,
            returned,
            jobs: _,
        } => {
            if let Some(line) = scene.lanes.gpus.get_mut(gpu) {
                line.preempt.record(since(returned, rang));
                line.gate.record(since(entered, rang));
            }
        }
        Report::DisableFailed { .. } => cx.counters.disables_failed += 1,
        Report::EnableFailed { .. } => cx.counters.enables_failed += 1,
        Report::Lapsed { session } => scene.members.set_lapsed(session, true, cx),
        Report::Doubted { .. } => cx.counters.requests_doubted += 1,
        Report::Recovered { session } => scene.members.set_lapsed(session, false, cx),
        Report::Reclaimed { job, took, .. } => {
            scene.memory.reclaims.record(ns(took));
            count_lost_blocks(job, scene.lanes, scene.policy, cx.counters);
        }
        Report::Pressure { gpu, .. } => {
            if let Some(line) = scene.lanes.gpus.get_mut(gpu) {
                line.pressure_events += 1;
            }
        }
        _ => {}
    }
}

/// What is said of it.
fn notice(report: Report, scene: &Scene<'_>, now: u64) -> Notice {
    match report {
        Report::Preempted {
            gpu,
            rang,
            returned,
            ..
        } => of_gpu("preempted", gpu).taking(since(returned, rang)),
        Report::Woken { job } => {
            let looked = scene.lanes.looked_before(job);
            of_job("woken", job).taking(crate::lanes::since(looked, now))
        }
        Report::DisableFailed {
            order,
            status,
            failures,
        } => of_order("disable_failed", order)
            .saying(format!("status {status:#x}, {failures} in a row")),
        Report::EnableFailed { order, status } => {
            of_order("enable_failed", order).saying(format!("status {status:#x}"))
        }
        Report::Unmanaged { job } => of_job("unmanaged", job)
            .saying("its channels cannot be controlled; launches wait instead"),
        Report::MaxGated { job, since } => {
            of_job("max_gated", job).taking(now.saturating_sub(since.as_nanos()))
        }
        Report::Breathed { job } => of_job("breathed", job),
        Report::IssueStalled { gpu } => {
            of_gpu("issue_stalled", gpu).saying("the driver does not return from a call")
        }
        Report::Lapsed { session } => of_session("lapsed", session)
            .saying("busy without progress; its activity no longer counts"),
        Report::Doubted { session } => of_session("doubted", session)
            .saying("requests in flight without work; they no longer count"),
        Report::Recovered { session } => of_session("recovered", session),
        Report::CooldownViolated { gpu, gap } => of_gpu("cooldown_violated", gpu).taking(ns(gap)),
        Report::LeaseOverrun { job, gpu, used, .. } => {
            of_lane("lease_overrun", job, gpu).taking(ns(used))
        }
        Report::LeaseDemoted { job, gpu, lasts } => of_lane("lease_demoted", job, gpu)
            .taking(ns(lasts))
            .saying(format!(
                "it kept running past its leases: none for {} s, it runs by the gate alone",
                lasts.as_secs()
            )),
        Report::LeaseTpotTooLow { gpu, alone, tpot } => of_gpu("lease_tpot_too_low", gpu)
            .taking(ns(alone))
            .saying(nothing_lent(&NoLease::TpotTooLow(alone, tpot))),
        Report::LeaseUnitTooLong {
            job,
            gpu,
            unit,
            fits,
        } => of_lane("lease_unit_too_long", job, gpu)
            .taking(ns(unit))
            .saying(nothing_lent(&NoLease::UnitTooLong(unit, fits))),
        Report::GatedAgain { lasted, expired } => {
            let why = if expired {
                "the ungated block's time is over"
            } else {
                "the ungated block was ended, or who asked for it is gone"
            };
            named("gated_again").taking(ns(lasted)).saying(why)
        }
        Report::TurnsInstead { job, lacks } => {
            of_job("turns_instead", job).saying(format!("no timeslices: {}", why_turns(lacks)))
        }
        Report::Paused { job } => of_job("paused", job),
        Report::Resumed { job } => of_job("resumed", job),
        Report::Reclaimed { .. }
        | Report::Restored { .. }
        | Report::Unreclaimable { .. }
        | Report::Pressure { .. }
        | Report::Denied { .. } => of_memory(report, scene.members),
    }
}

impl Notice {
    fn saying(self, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..self
        }
    }

    fn taking(self, value_ns: u64) -> Self {
        Self { value_ns, ..self }
    }
}

fn named(kind: &'static str) -> Notice {
    Notice {
        kind,
        ..Notice::default()
    }
}

fn of_gpu(kind: &'static str, gpu: GpuId) -> Notice {
    Notice {
        gpu: Some(gpu),
        ..named(kind)
    }
}

fn of_job(kind: &'static str, job: JobId) -> Notice {
    Notice {
        job: Some(job),
        ..named(kind)
    }
}

fn of_lane(kind: &'static str, job: JobId, gpu: GpuId) -> Notice {
    Notice {
        gpu: Some(gpu),
        ..of_job(kind, job)
    }
}

fn of_order(kind: &'static str, order: Order) -> Notice {
    of_lane(kind, order.job, order.gpu)
}

fn of_session(kind: &'static str, session: SessionId) -> Notice {
    Notice {
        session: session.0,
        ..named(kind)
    }
}

/// Why jobs take turns where timeslices were asked for, said of the job for whose sake it is.
#[must_use]
pub fn why_turns(lacks: Lacks) -> String {
    match lacks {
        Lacks::Gang => "it uses several GPUs, which it must have at the same time".to_owned(),
        Lacks::Level => "at this level the agent makes no calls for channels".to_owned(),
        Lacks::File => {
            "it has channels that the agent does not manage, or whose control file it lacks"
                .to_owned()
        }
        Lacks::Weights => "its weight lies too far from another's".to_owned(),
        Lacks::Refused(status) => format!("the driver refused to set one, status {status:#x}"),
    }
}

/// What is said of memory.
fn of_memory(report: Report, members: &Members) -> Notice {
    match report {
        Report::Reclaimed {
            job,
            reclaim,
            handles,
            bytes,
            tokens,
            took,
        } => of_job("reclaimed", job).taking(ns(took)).saying(format!(
            "reclaim {}: {} handles, {} MiB on each GPU, {} tokens to compute again",
            reclaim.0,
            handles.0,
            bytes.0 >> 20,
            tokens.0
        )),
        Report::Restored { job, bytes } => {
            of_job("restored", job).saying(format!("{} MiB on each GPU", bytes.0 >> 20))
        }
        Report::Unreclaimable { job, phase } => {
            let why = match (phase, blocker(job, members)) {
                (Phase::Checking, Some((pid, why))) => format!("process {pid}: {why}"),
                _ => "its channels were not disabled in time".to_owned(),
            };
            of_job("unreclaimable", job).saying(why)
        }
        Report::Pressure {
            session,
            gpu,
            used,
            reservation,
        } => {
            let (used, reservation) = (used.0 >> 20, reservation.0 >> 20);
            Notice {
                gpu: Some(gpu),
                ..of_session("pressure", session)
            }
            .saying(format!("{used} MiB in use, {reservation} MiB to be mapped"))
        }
        Report::Denied {
            session,
            gpu,
            bytes,
        } => Notice {
            gpu: Some(gpu),
            ..of_session("denied", session)
        }
        .saying(format!("{} MiB cannot be freed in time", bytes.0 >> 20)),
        _ => Notice::default(),
    }
}

/// A process of a job from which nothing can be taken, and why: one that answered before those
/// whose answers were not waited for.
fn blocker(job: JobId, members: &Members) -> Option<(i32, &Blocker)> {
    let ranks = members.of_job(job);
    ranks
        .filter_map(|rank| Some((rank.process().pid, &rank.blocker.as_ref()?.1)))
        .filter(|(_, why)| **why != Blocker::None)
        .min_by_key(|(pid, why)| (**why == Blocker::Silent, *pid))
}

/// Adds to the node's counters what the last reclaim of `job` invalidated.
fn count_lost_blocks(id: JobId, lanes: &mut Lanes, policy: &Node, counters: &mut Counters) {
    let lost = policy.job_memory(id).map_or(0, |view| view.blocks_lost);
    let Some(job) = lanes.job_mut(id) else { return };
    let before = std::mem::replace(&mut job.blocks_lost, lost);
    counters.blocks_invalidated += lost.saturating_sub(before);
}
