//! How a GPU stands: its gate, its channels and its memory.

use super::View;
use crate::watch::latency;
use tidegate_abi::uuid::Uuid;
use tidegate_node::kinds::gpu_id;
use tidegate_node::lanes::{Applied, Lane};
use tidegate_node::usage::Usage;
use tidegate_policy::ids::GpuId;
use tidegate_policy::time::Instant;
use tidegate_policy::view::{BudgetView, GateState, JobState};
use tidegate_proto::v1;

impl View<'_> {
    pub(super) fn gpu(&self, at: usize, usage: &Usage) -> v1::GpuStatus {
        let id = gpu_id(at);
        let (lanes, count) = (self.shell.lanes(), self.shell.lanes().gpus.lines().len());
        let line = &lanes.gpus.lines()[at];
        let here = || lanes.jobs.iter().filter_map(|job| job.lanes.get(at));
        let disabled = |lane: &&Lane| lane.applied() == Applied::Disabled;
        let disabled: usize = here().filter(disabled).map(Lane::channels).sum();
        let channels: usize = here().map(Lane::channels).sum();
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut status = v1::GpuStatus {
            index: small(at),
            uuid: Uuid(line.gpu.uuid).to_string(),
            channels: small(channels),
            channels_disabled: small(disabled),
            usage: latency::usage(usage, at, count),
            pressure_events: line.pressure_events,
            disabled_ns: self.longest_disabled(id),
            stop: self.stop_times(line.gpu.uuid),
            leases: self.lease_status(id),
            ..v1::GpuStatus::default()
        };
        status.memory = self.gpu_memory(id);
        if let Some(view) = self
            .shell
            .policy()
            .gpu(id, Instant::from_nanos(self.shell.now_ns()))
        {
            status.set_gate(match view.gate {
                GateState::Open => v1::GateState::Open,
                GateState::Closed => v1::GateState::Closed,
                GateState::Cooling => v1::GateState::Cooling,
            });
            status.online_busy = view.online_busy;
            status.state_ns = self.shell.now_ns().saturating_sub(view.since.as_nanos());
            status.cooldown_ns = crate::clock::nanos(view.cooldown);
            status.longest_gap_ns = crate::clock::nanos(view.longest_gap);
            status.decode_gaps = view.decode_gaps;
            status.preemptions = view.preemptions;
            status.wakes = view.wakes;
            let per = view.per_unit;
            #[expect(clippy::cast_precision_loss, reason = "counts, for people")]
            let mean = if per.units == 0 {
                0.0
            } else {
                per.preemptions as f64 / per.units as f64
            };
            status.preemptions_per_unit = Some(v1::PreemptionsPerUnit {
                unit: per.unit.name().to_owned(),
                units: per.units,
                mean,
                max: per.max,
                preemptions: per.preemptions,
                untouched: per.untouched,
                once: per.once,
            });
            status.budget = Some(budget(&view.budget));
        }
        status
    }

    /// How long the self-test's stops of a GPU took, by the method in force.
    fn stop_times(&self, uuid: [u8; 16]) -> Option<v1::StopTimes> {
        let times = self
            .about
            .self_test
            .times_of(uuid, self.about.stop?.method)?;
        Some(v1::StopTimes {
            off_gpu_us: times.off_gpu.map(|spread| spread.median_us),
            call_us: times.call.map(|spread| spread.median_us),
            off_gpu_longest_us: times.off_gpu.map(|spread| spread.longest_us),
            call_longest_us: times.call.map(|spread| spread.longest_us),
            stops: times.stops,
        })
    }

    /// How long the job that waits longest for `gpu` has been disabled.
    fn longest_disabled(&self, gpu: GpuId) -> u64 {
        let gated = self
            .shell
            .policy()
            .jobs()
            .filter(|job| job.state == JobState::Gated && job.gpus.contains(gpu));
        let since = gated.map(|job| job.since.as_nanos()).min();
        since.map_or(0, |since| self.shell.now_ns().saturating_sub(since))
    }

    fn gpu_memory(&self, gpu: GpuId) -> Option<v1::GpuMemory> {
        let ledger = self.shell.policy().ledger(gpu)?;
        let totals = ledger.totals();
        let now = Instant::from_nanos(self.shell.now_ns());
        let caches = self
            .shell
            .policy()
            .elastics(now)
            .filter(|cache| cache.gpu == gpu);
        (!ledger.pool().is_zero()).then(|| v1::GpuMemory {
            pool_bytes: ledger.pool().0,
            free_bytes: totals.free.0,
            in_flight_bytes: totals.in_flight.0,
            headroom_bytes: totals.headroom.0,
            online_bytes: totals.online.0,
            offline_bytes: totals.offline.0,
            quarantined_bytes: totals.quarantined.0,
            caches: caches
                .map(|cache| v1::ElasticCache {
                    session: cache.session.0,
                    kv: cache.kv.0,
                    used_bytes: cache.used.0,
                    mapped_bytes: cache.mapped.0,
                    reservation_bytes: cache.reservation.0,
                    headroom_bytes: cache.headroom.0,
                    pressure_events: cache.events,
                    pressure_per_minute: cache.rate_per_minute,
                    pressure_target_per_minute: cache.target_per_minute.unwrap_or(0.0),
                })
                .collect(),
            owners: Vec::new(),
        })
    }
}

fn budget(view: &BudgetView) -> v1::Budget {
    use crate::clock::nanos;
    v1::Budget {
        prompts_ns: nanos(view.prompts),
        busy_ns: nanos(view.busy),
        preempted_ns: nanos(view.preempted),
        short_ns: nanos(view.short),
        short_tpot_ns: nanos(view.short_tpot),
        shortages: view.shortages,
        ttft_allowed: view.allowed.map_or(0, |slo| slo.ttft),
        tpot_allowed: view.allowed.map_or(0, |slo| slo.tpot),
    }
}
