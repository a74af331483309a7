//! Status and events as JSON, with the field names of the contract in `snake_case`. Enum values are
//! their names without the type's prefix, in lower case.

use serde_json::{Value, json};
use tidegate_agent::clock::stamp;
use tidegate_proto::v1;

fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

/// A gate's state.
pub fn gate(gpu: &v1::GpuStatus) -> String {
    short(gpu.gate().as_str_name(), "GATE_STATE_")
}

/// A job's state.
pub fn job_state(job: &v1::JobStatus) -> String {
    short(job.state().as_str_name(), "JOB_STATE_")
}

/// A process' role.
pub fn role(process: &v1::ProcessStatus) -> String {
    role_name(process.role())
}

/// "online".
pub fn role_name(role: v1::Role) -> String {
    short(role.as_str_name(), "ROLE_")
}

/// A role that was asked for, if one was.
pub fn asked(role: v1::Role) -> Option<String> {
    (role != v1::Role::Unspecified).then(|| role_name(role))
}

/// Why a device is busy.
pub fn suspect(device: &v1::DeviceStatus) -> String {
    short(device.suspect().as_str_name(), "BUSY_REASON_")
}

/// A channel level.
pub fn level(report: &v1::GetStatusResponse) -> String {
    short(report.level().as_str_name(), "CHANNEL_LEVEL_")
}

/// "L1".
pub fn level_name(level: v1::ChannelLevel) -> String {
    let name = level.as_str_name().trim_start_matches("CHANNEL_LEVEL_");
    name.split('_').next().unwrap_or_default().to_owned()
}

fn self_test(test: &v1::SelfTest) -> Value {
    json!({
        "summary": test.summary,
        "levels": test.levels.iter().map(|row| json!({
            "level": level_name(row.level()), "outcome": row.outcome, "text": row.text,
            "method": method_name(row.method()),
            "methods": row.methods.iter().map(|row| json!({
                "method": method_name(row.method()), "outcome": row.outcome, "text": row.text,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// A method's name; none where no channel is touched.
pub fn method_name(method: v1::StopMethod) -> Option<&'static str> {
    tidegate_agent::wire::method_said(method).map(tidegate_agent::config::Method::name)
}

/// The whole status.
pub fn status(report: &v1::GetStatusResponse) -> Value {
    json!({
        "version": report.version,
        "agent_generation": report.agent_generation,
        "pid": report.pid,
        "uptime_ns": report.uptime_ns,
        "driver_version": report.driver_version,
        "driver_note": report.driver_note,
        "driver": json!({
            "layout": (!report.driver_layout.is_empty()).then_some(&report.driver_layout),
        }),
        "level": level(report),
        "level_note": report.level_note,
        "method": method_name(report.method()),
        "method_note": report.method_note,
        "method_at_kernel_end": report.method_at_kernel_end,
        "scheduling": report.scheduling,
        "self_test": report.self_test.as_ref().map(self_test),
        "obstacles": report.obstacles.iter().map(|obstacle| json!({
            "kind": obstacle.kind, "gpu": obstacle.gpu, "text": obstacle.text,
        })).collect::<Vec<_>>(),
        "unattached": report.unattached.iter().map(|process| json!({
            "pid": process.pid, "name": process.name, "has_library": process.has_library,
            "other_namespace": process.other_namespace,
        })).collect::<Vec<_>>(),
        "refusals": report.refusals.iter().map(|refusal| json!({
            "who": refusal.who, "what": refusal.what, "times": refusal.times, "ago_ns": refusal.ago_ns,
        })).collect::<Vec<_>>(),
        "longest_turn_ns": report.longest_turn_ns,
        "longest_turn_own_ns": report.longest_turn_own_ns,
        "drained": drained(report),
        "ungated_ns": report.ungated_ns,
        "ungated_longest_ns": report.ungated_longest_ns,
        "config_file": report.config_file,
        "config_error": report.config_error,
        "config_pending": report.config_pending,
        "config_overridden": report.config_overridden,
        "gpus": report.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "jobs": report.jobs.iter().map(job).collect::<Vec<_>>(),
        "processes": processes(&report.processes),
        "counters": report.counters.iter().map(|counter| json!({
            "name": counter.name, "help": counter.help, "value": counter.value,
        })).collect::<Vec<_>>(),
    })
}

/// Since when the node is drained and by whom, or false.
fn drained(report: &v1::GetStatusResponse) -> Value {
    if !report.drained {
        return Value::Bool(false);
    }
    let since = stamp(report.drained_since_unix_ms.saturating_mul(1_000_000));
    json!({"since": since, "by": report.drained_by})
}

fn gpu(status: &v1::GpuStatus) -> Value {
    let per_unit = status.preemptions_per_unit.as_ref();
    let known = status.memory_total_bytes != 0;
    json!({
        "index": status.index,
        "uuid": status.uuid,
        "model": Some(&status.model).filter(|name| !name.is_empty()),
        "memory_total_bytes": known.then_some(status.memory_total_bytes),
        "memory_used_bytes": known.then_some(status.memory_used_bytes),
        "gate": gate(status),
        "online_busy": status.online_busy,
        "state_ns": status.state_ns,
        "cooldown_ns": status.cooldown_ns,
        "longest_gap_ns": status.longest_gap_ns,
        "decode_gaps": status.decode_gaps,
        "preemptions": status.preemptions,
        "wakes": status.wakes,
        "preempt_latency": status.preempt_latency.as_ref().map(latency),
        "gate_latency": status.gate_latency.as_ref().map(latency),
        "stop": stop(status.stop.unwrap_or_default()),
        "channels": status.channels,
        "channels_disabled": status.channels_disabled,
        "preemptions_per_unit": per_unit.map(|per| json!({
            "unit": per.unit, "units": per.units, "mean": per.mean, "max": per.max,
        })),
        "memory": status.memory.as_ref().map(gpu_memory),
        "leases": status.leases.as_ref().map(leases),
        "budget": status.budget.as_ref().map(|budget| json!({
            "prompts_ns": budget.prompts_ns,
            "busy_ns": budget.busy_ns,
            "preempted_ns": budget.preempted_ns,
            "short_ns": budget.short_ns,
            "short_tpot_ns": budget.short_tpot_ns,
            "shortages": budget.shortages,
            "ttft_allowed_pct": f64::from(budget.ttft_allowed) / 100.0,
            "tpot_allowed_pct": f64::from(budget.tpot_allowed) / 100.0,
        })),
    })
}

/// How long stops took; null where that was not measured.
fn stop(times: v1::StopTimes) -> Value {
    json!({
        "off_gpu_us": times.off_gpu_us,
        "off_gpu_longest_us": times.off_gpu_longest_us,
        "call_us": times.call_us,
        "call_longest_us": times.call_longest_us,
        "stops": times.stops,
    })
}

fn gpu_memory(memory: &v1::GpuMemory) -> Value {
    json!({
        "pool_bytes": memory.pool_bytes,
        "free_bytes": memory.free_bytes,
        "in_flight_bytes": memory.in_flight_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "online_bytes": memory.online_bytes,
        "offline_bytes": memory.offline_bytes,
        "quarantined_bytes": memory.quarantined_bytes,
        "caches": memory.caches.iter().map(|cache| json!({
            "session": cache.session,
            "kv": cache.kv,
            "used_bytes": cache.used_bytes,
            "mapped_bytes": cache.mapped_bytes,
            "reservation_bytes": cache.reservation_bytes,
            "headroom_bytes": cache.headroom_bytes,
            "pressure_events": cache.pressure_events,
            "pressure_per_minute": cache.pressure_per_minute,
            "pressure_target_per_minute": cache.pressure_target_per_minute,
        })).collect::<Vec<_>>(),
        "owners": memory.owners.iter().map(|owner| json!({
            "session": owner.session,
            "in_flight_bytes": owner.in_flight_bytes,
            "headroom_bytes": owner.headroom_bytes,
            "online_bytes": owner.online_bytes,
            "offline_bytes": owner.offline_bytes,
            "quarantined_bytes": owner.quarantined_bytes,
            "excess_bytes": owner.excess_bytes,
            "handles": owner.handles,
            "handles_quarantined": owner.handles_quarantined,
            "handles_in_flight": owner.handles_in_flight,
            "handles_taken": owner.handles_taken,
        })).collect::<Vec<_>>(),
    })
}

fn latency(latency: &v1::Latency) -> Value {
    json!({
        "count": latency.count,
        "p50_ns": latency.p50_ns,
        "p99_ns": latency.p99_ns,
        "max_ns": latency.max_ns,
    })
}

fn job(status: &v1::JobStatus) -> Value {
    json!({
        "name": status.name,
        "state": job_state(status),
        "reason": status.reason,
        "gpus": status.gpus,
        "sessions": status.sessions,
        "state_ns": status.state_ns,
        "preemptions": status.preemptions,
        "channels": status.channels,
        "memory": status.memory.as_ref().map(|memory| json!({
            "stripes": memory.stripes,
            "stripes_taken": memory.stripes_taken,
            "reclaimable": memory.reclaimable,
            "reclaims": memory.reclaims,
            "blocks_invalidated": memory.blocks_invalidated,
            "tokens_lost": memory.tokens_lost,
            "has_bytes": memory.has_bytes,
            "deserves_bytes": memory.deserves_bytes,
        })),
        "share": status.share.as_ref().map(|share| json!({
            "deserved": share.deserved,
            "got": share.got,
            "wants": share.wants,
            "left_ns": share.left_ns,
            "at_once": share.at_once,
            "timeslice_ns": share.timeslice_ns,
            "turns_because": share.turns_because,
        })),
        "turns": status.turns,
        "units": status.units,
        "launches": status.launches,
        "attached_ns": status.attached_ns,
        "running_ns": status.running_ns,
        "paused_ns": status.paused_ns,
        "held_byte_seconds": status.held_byte_seconds,
        "trainer": status.trainer.as_ref().map(trainer),
        "no_lease": status.no_lease.as_ref().map(no_lease),
    })
}

/// Leases of a GPU.
pub fn leases(status: &v1::LeaseStatus) -> Value {
    json!({
        "ttft_ns": status.ttft_ns,
        "tpot_ns": status.tpot_ns,
        "granted": status.granted,
        "overruns": status.overruns,
        "units": status.units,
        "slack_ns": status.slack_ns,
        "predicted_ns": status.predicted_ns,
        "predictions": status.predictions,
        "prediction_error": status.prediction_error,
        "slack_used": status.slack_used,
        "alone_ns": (status.alone_ns > 0).then_some(status.alone_ns),
        "tpot_too_low": status.tpot_too_low,
        "job": Some(&status.job).filter(|job| !job.is_empty()),
        "reported_ago_ns": status.reported_ago_ns,
    })
}

/// Why a trainer has no lease.
pub fn no_lease(none: &v1::NoLease) -> Value {
    json!({
        "kind": none.kind,
        "text": none.text,
        "remedy": Some(&none.remedy).filter(|remedy| !remedy.is_empty()),
    })
}

fn trainer(status: &v1::TrainerStatus) -> Value {
    json!({
        "pid": status.pid,
        "tokens_per_s": status.tokens_per_s,
        "steps": status.steps,
        "tokens": status.tokens,
        "units_redone": status.units_redone,
        "said": status.said.as_ref().map(|said| json!({
            "step": said.step,
            "steps": said.steps,
            "begun": said.begun,
            "tokens": said.tokens,
            "units": said.units,
            "units_redone": said.units_redone,
            "reclaims": said.reclaims,
            "layers": said.layers,
            "resident_layers": said.resident_layers,
            "loss": said.loss,
            "adapter": said.adapter,
            "served": said.served,
        })),
    })
}

/// A list of processes.
pub fn processes(processes: &[v1::ProcessStatus]) -> Value {
    processes.iter().map(process).collect()
}

fn process(status: &v1::ProcessStatus) -> Value {
    json!({
        "session": status.session,
        "pid": status.pid,
        "uid": status.uid,
        "name": status.name,
        "role": role(status),
        "rule": status.rule,
        "job": status.job,
        "library_version": status.library_version,
        "driver_version": status.driver_version,
        "devices": status.devices.iter().map(|device| json!({
            "slot": device.slot,
            "gpu": device.gpu,
            "busy": device.busy,
            "launches": device.launches,
            "edges": device.edges,
            "memory_bytes": device.memory_bytes,
            "suspect": suspect(device),
        })).collect::<Vec<_>>(),
        "channels": status.channels,
        "proven": status.proven,
        "lane": status.lane,
        "counts": status.counts,
        "note": status.note,
        "asked_role": asked(status.asked_role()),
        "role_refused": status.role_refused,
        "where": status.whereabouts.as_ref().map(|place| json!({
            "unit": place.unit,
            "container": place.container,
            "pod_uid": place.pod_uid,
            "namespace": place.namespace,
            "pod": place.pod,
            "slurm_job": place.slurm_job,
        })),
        "hooks": status.hooks.iter().map(|hook| json!({
            "symbol": hook.symbol,
            "installed": hook.installed,
            "resolved": hook.resolved,
            "calls": hook.calls,
        })).collect::<Vec<_>>(),
        "unhooked": status.unhooked.iter().map(|abi| json!({
            "name": abi.name,
            "version": abi.version,
            "flags": abi.flags,
            "count": abi.count,
        })).collect::<Vec<_>>(),
    })
}

/// One event.
pub fn event(event: &v1::Event) -> Value {
    json!({
        "seq": event.seq,
        "at_ns": event.at_ns,
        "unix_ns": event.unix_ns,
        "kind": event.kind,
        "gpu": event.gpu,
        "session": event.session,
        "job": event.job,
        "pid": event.pid,
        "text": event.text,
        "value_ns": event.value_ns,
    })
}
