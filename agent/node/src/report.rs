//! What policy reports, as an event for people and as counters.

use crate::counters::Counters;
use crate::lanes::Lanes;
use crate::members::Members;
use crate::memory::{Blocker, Memory};
use crate::request::{Context, Notice};
use std::time::Duration;
use tidegate_policy::effect::Report;
use tidegate_policy::fair::Lacks;
use tidegate_policy::ids::JobId;
use tidegate_policy::node::Node;
use tidegate_policy::reclaim::Phase;
use tidegate_policy::time::nanos;

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

/// Counts what policy reports, and says it.
pub(crate) fn emit(report: Report, scene: Scene<'_>, cx: &mut Context<'_>) {
    let Scene {
        lanes,
        members,
        memory,
        policy,
    } = scene;
    let mut notice = Notice::default();
    match report {
        Report::Preempted {
            gpu,
            rang,
            entered,
            returned,
            jobs: _,
        } => {
            let latency = returned.as_nanos().saturating_sub(rang.as_nanos());
            if let Some(line) = lanes.gpus.get_mut(gpu) {
                line.preempt.record(latency);
                line.gate
                    .record(entered.as_nanos().saturating_sub(rang.as_nanos()));
            }
            notice.kind = "preempted";
            notice.gpu = Some(gpu);
            notice.value_ns = latency;
        }
        Report::Woken { job } => {
            notice.kind = "woken";
            notice.job = Some(job);
            notice.value_ns = crate::lanes::since(lanes.looked_before(job), cx.now);
        }
        Report::DisableFailed {
            order,
            status,
            failures,
        } => {
            cx.counters.disables_failed += 1;
            notice.kind = "disable_failed";
            notice.gpu = Some(order.gpu);
            notice.job = Some(order.job);
            notice.text = format!("status {status:#x}, {failures} in a row");
        }
        Report::EnableFailed { order, status } => {
            cx.counters.enables_failed += 1;
            notice.kind = "enable_failed";
            notice.gpu = Some(order.gpu);
            notice.job = Some(order.job);
            notice.text = format!("status {status:#x}");
        }
        Report::Unmanaged { job } => {
            notice.kind = "unmanaged";
            notice.job = Some(job);
            "its channels cannot be controlled; launches wait instead".clone_into(&mut notice.text);
        }
        Report::MaxGated { job, since } => {
            notice.kind = "max_gated";
            notice.job = Some(job);
            notice.value_ns = cx.now.saturating_sub(since.as_nanos());
        }
        Report::Breathed { job } => {
            notice.kind = "breathed";
            notice.job = Some(job);
        }
        Report::IssueStalled { gpu } => {
            notice.kind = "issue_stalled";
            notice.gpu = Some(gpu);
            "the driver does not return from a call".clone_into(&mut notice.text);
        }
        Report::Lapsed { session } => {
            members.set_lapsed(session, true, cx);
            notice.kind = "lapsed";
            notice.session = session.0;
            "busy without progress; its activity no longer counts".clone_into(&mut notice.text);
        }
        Report::Doubted { session } => {
            cx.counters.requests_doubted += 1;
            notice.kind = "doubted";
            notice.session = session.0;
            "requests in flight without work; they no longer count".clone_into(&mut notice.text);
        }
        Report::Recovered { session } => {
            members.set_lapsed(session, false, cx);
            notice.kind = "recovered";
            notice.session = session.0;
        }
        Report::CooldownViolated { gpu, gap } => {
            notice.kind = "cooldown_violated";
            notice.gpu = Some(gpu);
            notice.value_ns = ns(gap);
        }
        Report::LeaseOverrun { job, gpu, used, .. } => {
            notice.kind = "lease_overrun";
            notice.gpu = Some(gpu);
            notice.job = Some(job);
            notice.value_ns = ns(used);
        }
        Report::LeaseDemoted { job, gpu, lasts } => {
            notice.kind = "lease_demoted";
            notice.gpu = Some(gpu);
            notice.job = Some(job);
            notice.value_ns = ns(lasts);
            notice.text = format!(
                "it kept running past its leases: none for {} s, it runs by the gate alone",
                lasts.as_secs()
            );
        }
        Report::GatedAgain { lasted, expired } => {
            notice.kind = "gated_again";
            notice.value_ns = ns(lasted);
            let why = if expired {
                "the ungated block's time is over"
            } else {
                "the ungated block was ended, or who asked for it is gone"
            };
            why.clone_into(&mut notice.text);
        }
        Report::TurnsInstead { job, lacks } => {
            notice.kind = "turns_instead";
            notice.job = Some(job);
            notice.text = format!("no timeslices: {}", why_turns(lacks));
        }
        Report::Paused { job } => {
            notice.kind = "paused";
            notice.job = Some(job);
        }
        Report::Resumed { job } => {
            notice.kind = "resumed";
            notice.job = Some(job);
        }
        Report::Reclaimed { .. }
        | Report::Restored { .. }
        | Report::Unreclaimable { .. }
        | Report::Pressure { .. }
        | Report::Denied { .. } => {
            if let Report::Reclaimed { job, took, .. } = report {
                memory.reclaims.record(ns(took));
                count_lost_blocks(job, lanes, policy, cx.counters);
            }
            if let Report::Pressure { gpu, .. } = report
                && let Some(line) = lanes.gpus.get_mut(gpu)
            {
                line.pressure_events += 1;
            }
            of_memory(report, members, &mut notice);
        }
    }
    cx.emit(notice);
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
fn of_memory(report: Report, members: &Members, notice: &mut Notice) {
    match report {
        Report::Reclaimed {
            job,
            reclaim,
            handles,
            bytes,
            tokens,
            took,
        } => {
            notice.kind = "reclaimed";
            notice.job = Some(job);
            notice.value_ns = ns(took);
            notice.text = format!(
                "reclaim {}: {} handles, {} MiB on each GPU, {} tokens to compute again",
                reclaim.0,
                handles.0,
                bytes.0 >> 20,
                tokens.0
            );
        }
        Report::Restored { job, bytes } => {
            notice.kind = "restored";
            notice.job = Some(job);
            notice.text = format!("{} MiB on each GPU", bytes.0 >> 20);
        }
        Report::Unreclaimable { job, phase } => {
            notice.kind = "unreclaimable";
            notice.job = Some(job);
            notice.text = match (phase, blocker(job, members)) {
                (Phase::Checking, Some((pid, why))) => format!("process {pid}: {why}"),
                _ => "its channels were not disabled in time".to_owned(),
            };
        }
        Report::Pressure {
            session,
            gpu,
            used,
            reservation,
        } => {
            notice.kind = "pressure";
            notice.gpu = Some(gpu);
            notice.session = session.0;
            let (used, reservation) = (used.0 >> 20, reservation.0 >> 20);
            notice.text = format!("{used} MiB in use, {reservation} MiB to be mapped");
        }
        Report::Denied {
            session,
            gpu,
            bytes,
        } => {
            notice.kind = "denied";
            notice.gpu = Some(gpu);
            notice.session = session.0;
            notice.text = format!("{} MiB are not to be had in time", bytes.0 >> 20);
        }
        _ => {}
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
