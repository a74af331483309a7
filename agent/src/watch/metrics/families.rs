//! Every metric, a row each: its name, unit, kind and help, and how it is filled.

use super::sample::{
    Labels, Sample, Samples, Scrape, alignment, allowed, buckets, clients, delayed, flag,
    is_unmanaged, jobs_by_state, latencies, memory, per_gpu, per_request, plain, real, seconds,
    shares, time, whole,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use tidegate_proto::v1;

/// Bytes of a page as the quarantine counts them.
const PAGE: u64 = 2 << 20;

/// One metric.
pub(super) struct Family {
    /// Without the unit and `_total`.
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    pub(super) samples: fn(&Scrape) -> Samples,
}

const fn family(
    kind: MetricType,
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    samples: fn(&Scrape) -> Samples,
) -> Family {
    Family {
        name,
        unit,
        kind,
        help,
        samples,
    }
}

pub(super) const COUNTER: MetricType = MetricType::Counter;
pub(super) const GAUGE: MetricType = MetricType::Gauge;
const HISTOGRAM: MetricType = MetricType::Histogram;

/// Every metric but the plain counters of [`v1::Counter`], which bring their names and help.
pub(super) const FAMILIES: [Family; 50] = [
    family(
        GAUGE,
        "build_info",
        None,
        "Version of the agent and of the driver, and the channel level in force",
        |s| {
            let labels = vec![
                ("version", s.status.version.clone()),
                ("driver_version", s.status.driver_version.clone()),
                (
                    "level",
                    s.status
                        .level()
                        .as_str_name()
                        .replace("CHANNEL_LEVEL_", "")
                        .to_lowercase(),
                ),
            ];
            vec![(labels, Sample::Gauge(1.0))]
        },
    ),
    family(
        GAUGE,
        "stop_method",
        None,
        "How channels are stopped: the self-test's choice, or none at the launch gate",
        |s| {
            let method = crate::wire::method_said(s.status.method());
            let name = method.map_or("none", crate::config::Method::name);
            let when = if s.status.method_at_kernel_end {
                "kernel_end"
            } else {
                "at_once"
            };
            let labels = vec![("method", name.to_owned()), ("when", when.to_owned())];
            vec![(labels, Sample::Gauge(1.0))]
        },
    ),
    family(
        GAUGE,
        "uptime",
        Some(Unit::Seconds),
        "Time since the agent's start",
        |s| vec![(Labels::new(), Sample::Gauge(seconds(s.status.uptime_ns)))],
    ),
    family(
        GAUGE,
        "agent_generation",
        None,
        "Number of this agent since the node booted",
        |s| {
            vec![(
                Labels::new(),
                Sample::Gauge(real(s.status.agent_generation)),
            )]
        },
    ),
    family(
        COUNTER,
        "preemptions",
        None,
        "Times offline work was on the GPU and was taken off it, by what asked for it",
        |s| {
            per_gpu(s, |gpu| {
                vec![(
                    vec![("reason", "online".to_owned())],
                    Sample::Count(gpu.preemptions),
                )]
            })
        },
    ),
    family(
        HISTOGRAM,
        "preempt_latency",
        Some(Unit::Seconds),
        "Doorbell ring to return of the last disable",
        |s| per_gpu(s, |gpu| latencies(gpu.preempt_latency.as_ref())),
    ),
    family(
        HISTOGRAM,
        "gate_latency",
        Some(Unit::Seconds),
        "Doorbell ring to entry of the last disable",
        |s| per_gpu(s, |gpu| latencies(gpu.gate_latency.as_ref())),
    ),
    family(
        GAUGE,
        "stop_off_gpu",
        Some(Unit::Seconds),
        "Order to the last progress of the stopped kernel, by the self-test: median; absent where not measured",
        |s| per_gpu(s, |gpu| took(gpu, |stop| stop.off_gpu_us)),
    ),
    family(
        GAUGE,
        "stop_call",
        Some(Unit::Seconds),
        "Order to the return of the driver's call, by the self-test: median; absent where not measured",
        |s| per_gpu(s, |gpu| took(gpu, |stop| stop.call_us)),
    ),
    family(
        HISTOGRAM,
        "preemptions_per_request",
        None,
        "Preemptions charged to one online request (unit=\"request\", known from lifecycle hints) or one busy period",
        |s| {
            per_gpu(s, |gpu| {
                gpu.preemptions_per_unit.iter().map(per_request).collect()
            })
        },
    ),
    family(
        GAUGE,
        "online_delay_ratio",
        None,
        "What offline added to online's mean time to first token (slo=\"ttft\") and per further token (slo=\"tpot\"), by what delayed it, over the last ten minutes; none before online worked",
        |s| {
            per_gpu(s, |gpu| {
                gpu.budget.as_ref().map(delayed).unwrap_or_default()
            })
        },
    ),
    family(
        GAUGE,
        "slo_allowed_ratio",
        None,
        "What offline may add to it by the configuration; none where [slo] is off",
        |s| {
            per_gpu(s, |gpu| {
                gpu.budget.as_ref().map(allowed).unwrap_or_default()
            })
        },
    ),
    family(
        COUNTER,
        "resume",
        None,
        "Times offline got the GPU back",
        |s| per_gpu(s, |gpu| vec![plain(Sample::Count(gpu.wakes))]),
    ),
    family(
        GAUGE,
        "cooldown",
        Some(Unit::Seconds),
        "How long online must stay idle before offline runs",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.cooldown_ns)))]
            })
        },
    ),
    family(
        GAUGE,
        "longest_decode_gap",
        Some(Unit::Seconds),
        "Longest decode gap in the window; 0 before the first",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.longest_gap_ns)))]
            })
        },
    ),
    family(
        GAUGE,
        "gate_state",
        None,
        "1 for the state the gate is in",
        |s| {
            per_gpu(s, |gpu| {
                let state = |state: v1::GateState, name: &str| {
                    (
                        vec![("state", name.to_owned())],
                        Sample::Gauge(flag(gpu.gate() == state)),
                    )
                };
                vec![
                    state(v1::GateState::Open, "open"),
                    state(v1::GateState::Closed, "closed"),
                    state(v1::GateState::Cooling, "cooling"),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "online_busy_ratio",
        None,
        "Share of the last minute in which online was busy",
        |s| shares(s, |share| share.online_busy),
    ),
    family(
        GAUGE,
        "idle_compute_ratio",
        None,
        "Share of the last minute in which online left the GPU idle",
        |s| shares(s, |share| 1.0 - share.online_busy),
    ),
    family(
        GAUGE,
        "offline_running_ratio",
        None,
        "Share of the last minute in which offline work could run on the GPU",
        |s| shares(s, |share| share.offline_running),
    ),
    family(
        COUNTER,
        "observed",
        Some(Unit::Seconds),
        "Time the GPU was watched",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.observed_ns)),
    ),
    family(
        COUNTER,
        "online_busy",
        Some(Unit::Seconds),
        "Time online was busy",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.online_busy_ns)),
    ),
    family(
        COUNTER,
        "gate_open",
        Some(Unit::Seconds),
        "Time the gate was open",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.gate_open_ns)),
    ),
    family(
        COUNTER,
        "offline_running",
        Some(Unit::Seconds),
        "Time offline work could run on the GPU",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.offline_running_ns)),
    ),
    family(
        HISTOGRAM,
        "online_idle_gap",
        Some(Unit::Seconds),
        "Times online left the GPU idle between two busy periods",
        |s| {
            per_gpu(s, |gpu| {
                let gaps = gpu.usage.as_ref().and_then(|usage| usage.gaps.as_ref());
                gaps.map(|gaps| plain(buckets(gaps))).into_iter().collect()
            })
        },
    ),
    family(
        GAUGE,
        "pair_alignment",
        None,
        "Of the time online was busy on one of two GPUs, the share in which it was busy on both, in the last minute",
        alignment,
    ),
    family(
        GAUGE,
        "pool",
        Some(Unit::Bytes),
        "Memory of the shared pool by who has it",
        |s| {
            memory(s, |memory| {
                let part = |name: &str, bytes| {
                    (vec![("state", name.to_owned())], Sample::Gauge(real(bytes)))
                };
                vec![
                    part("free", memory.free_bytes),
                    part("in_flight", memory.in_flight_bytes),
                    part("headroom", memory.headroom_bytes),
                    part("online", memory.online_bytes),
                    part("offline", memory.offline_bytes),
                    part("quarantined", memory.quarantined_bytes),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "reservation",
        Some(Unit::Bytes),
        "Memory to be mapped for online engines, their headroom included",
        |s| {
            memory(s, |memory| {
                let reserved = memory
                    .caches
                    .iter()
                    .map(|cache| cache.reservation_bytes)
                    .sum();
                vec![plain(Sample::Gauge(real(reserved)))]
            })
        },
    ),
    family(
        GAUGE,
        "headroom",
        Some(Unit::Bytes),
        "Memory mapped for online ahead of need",
        |s| {
            memory(s, |memory| {
                vec![plain(Sample::Gauge(real(memory.headroom_bytes)))]
            })
        },
    ),
    family(
        GAUGE,
        "quarantined_pages",
        None,
        "Pages of 2 MiB taken from offline and not yet released",
        |s| {
            memory(s, |memory| {
                vec![plain(Sample::Gauge(real(memory.quarantined_bytes / PAGE)))]
            })
        },
    ),
    family(
        COUNTER,
        "pressure_events",
        None,
        "Times an online engine had nine tenths of its mapped memory in use",
        |s| per_gpu(s, |gpu| vec![plain(Sample::Count(gpu.pressure_events))]),
    ),
    family(
        COUNTER,
        "reclaim",
        None,
        "Times memory was taken from an offline job, by how it was chosen",
        |s| {
            let count = s
                .status
                .reclaim_latency
                .as_ref()
                .map_or(0, |latency| latency.count);
            vec![(
                vec![("policy", "least_token_cost".to_owned())],
                Sample::Count(count),
            )]
        },
    ),
    family(
        HISTOGRAM,
        "turn_wait",
        Some(Unit::Seconds),
        "How long offline jobs waited for their turn, while they could have run",
        |s| {
            let waits = s.status.turn_wait.as_ref();
            waits
                .map(|waits| plain(buckets(waits)))
                .into_iter()
                .collect()
        },
    ),
    family(
        HISTOGRAM,
        "reclaim_latency",
        Some(Unit::Seconds),
        "From the decision to take memory to the last handle released",
        |s| latencies(s.status.reclaim_latency.as_ref()),
    ),
    family(
        COUNTER,
        "leases",
        None,
        "Leases given to trainers beside online; absent where leases are off",
        |s| leases(s, |leases| Some(Sample::Count(leases.granted))),
    ),
    family(
        COUNTER,
        "lease_units",
        None,
        "Units that trainers ran within leases, as they say; absent where leases are off",
        |s| leases(s, |leases| Some(Sample::Count(leases.units))),
    ),
    family(
        COUNTER,
        "lease_overruns",
        None,
        "Leases whose trainer still ran when they were over, and was disabled; absent where leases are off",
        |s| leases(s, |leases| Some(Sample::Count(leases.overruns))),
    ),
    family(
        GAUGE,
        "lease_slack",
        Some(Unit::Seconds),
        "What a trainer could take before the iteration that online announced last; absent before the first",
        |s| {
            leases(s, |leases| {
                leases.slack_ns.map(|ns| Sample::Gauge(seconds(ns)))
            })
        },
    ),
    family(
        GAUGE,
        "lease_prediction_error_ratio",
        None,
        "By what part of what iterations of online took their predictions were off of late; absent before the first",
        |s| {
            leases(s, |leases| {
                let compared = leases.predictions > 0;
                compared.then_some(Sample::Gauge(leases.prediction_error))
            })
        },
    ),
    family(
        GAUGE,
        "channels",
        None,
        "Channels of offline jobs under control",
        |s| {
            per_gpu(s, |gpu| {
                let state = |name: &str, count| {
                    (
                        vec![("state", name.to_owned())],
                        Sample::Gauge(f64::from(count)),
                    )
                };
                vec![
                    state(
                        "enabled",
                        gpu.channels.saturating_sub(gpu.channels_disabled),
                    ),
                    state("disabled", gpu.channels_disabled),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "channel_disabled",
        Some(Unit::Seconds),
        "How long the job that waits longest for the GPU has been disabled; 0: none is",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.disabled_ns)))]
            })
        },
    ),
    family(GAUGE, "clients", None, "Attached processes", clients),
    family(
        GAUGE,
        "unmanaged_clients",
        None,
        "Offline processes whose channels cannot be controlled; their launches wait instead",
        |s| {
            let count = s
                .status
                .processes
                .iter()
                .filter(|process| is_unmanaged(&s.status, process))
                .count();
            vec![(Labels::new(), Sample::Gauge(whole(count)))]
        },
    ),
    family(
        GAUGE,
        "refused_roles",
        None,
        "Attached processes that asked for a role by TIDEGATE_ROLE and did not get it",
        |s| {
            let refused = |process: &&v1::ProcessStatus| !process.role_refused.is_empty();
            let count = s.status.processes.iter().filter(refused).count();
            vec![(Labels::new(), Sample::Gauge(whole(count)))]
        },
    ),
    family(
        GAUGE,
        "unattached_processes",
        None,
        "Processes that use a GPU and are not attached: no gate holds them",
        |s| {
            let count = s.status.unattached.len();
            vec![(Labels::new(), Sample::Gauge(whole(count)))]
        },
    ),
    family(
        GAUGE,
        "jobs",
        None,
        "Offline jobs by state; paused are those that an operator's pause or drain holds",
        jobs_by_state,
    ),
    family(
        GAUGE,
        "drained",
        None,
        "1 while the node is drained: no offline job runs, those to come included",
        |s| vec![(Labels::new(), Sample::Gauge(flag(s.status.drained)))],
    ),
    family(
        GAUGE,
        "ungated",
        None,
        "1 while an operator lets offline jobs run beside online, to measure what that costs",
        |s| vec![(Labels::new(), Sample::Gauge(flag(s.status.ungated_ns > 0)))],
    ),
    family(
        GAUGE,
        "config_refused",
        None,
        "1 while the configuration that was read last is refused; the one before is in force",
        |s| {
            let refused = !s.status.config_error.is_empty();
            vec![(Labels::new(), Sample::Gauge(flag(refused)))]
        },
    ),
    family(
        GAUGE,
        "config_pending",
        None,
        "Settings whose new value waits for a restart of the agent",
        |s| {
            let pending = s.status.config_pending.len();
            vec![(Labels::new(), Sample::Gauge(whole(pending)))]
        },
    ),
    family(
        COUNTER,
        "control_denied",
        None,
        "Calls refused on a socket that does not serve them",
        |s| {
            let denied = s.denied.iter().map(|(method, count)| {
                let labels = vec![
                    ("method", (*method).to_owned()),
                    ("reason", "socket".to_owned()),
                ];
                (labels, Sample::Count(*count))
            });
            denied.collect()
        },
    ),
];

/// A sample of each GPU where leases are on and there is one.
fn leases(scrape: &Scrape, sample: impl Fn(&v1::LeaseStatus) -> Option<Sample>) -> Samples {
    per_gpu(scrape, |gpu| {
        let sample = gpu.leases.as_ref().and_then(&sample);
        sample.map(plain).into_iter().collect()
    })
}

/// A median of the self-test's stops, where it was measured.
fn took(
    gpu: &v1::GpuStatus,
    figure: impl Fn(&v1::StopTimes) -> Option<u64>,
) -> Vec<(Labels, Sample)> {
    let us = gpu.stop.as_ref().and_then(figure).into_iter();
    us.map(|us| plain(Sample::Gauge(seconds(us * 1000))))
        .collect()
}
