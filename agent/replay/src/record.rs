//! What one replay gave: everything a report shows is computed from this and nothing else.

use std::time::Duration;

use crate::clock::Time;
use tidegate_policy::placement::Slice;

/// One online request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Its arrival.
    pub arrival: Time,
    /// Its first token; `arrival` if none came before the end.
    pub first_token: Time,
    /// Its last token.
    pub last_token: Time,
    /// Tokens it got.
    pub tokens: u32,
    /// Preemptions charged to it: those while it was in flight, and, when none was, the one that
    /// made way for it.
    pub preemptions: u32,
}

impl Request {
    /// A request that has arrived, and got nothing yet.
    #[must_use]
    pub fn arrived(request: &crate::trace::Request) -> Self {
        Self {
            arrival: request.arrival,
            first_token: request.arrival,
            last_token: request.arrival,
            ..Self::default()
        }
    }

    /// Arrival to first token.
    #[must_use]
    pub fn ttft(&self) -> Duration {
        self.first_token.since(self.arrival)
    }

    /// Time per further token; `None` for a request of one token.
    #[must_use]
    pub fn tpot(&self) -> Option<Duration> {
        let further = self.tokens.checked_sub(1).filter(|further| *further > 0)?;
        Some(self.last_token.since(self.first_token) / further)
    }
}

/// Offline made way for online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The online launch that wanted the GPU, or the moment offline was told to go if that is earlier.
    pub wanted: Time,
    /// Offline was off the GPU.
    pub off: Time,
}

impl Preemption {
    /// How long it took.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.off.since(self.wanted)
    }
}

/// Memory went from offline to online because online needed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// Online asked.
    pub asked: Time,
    /// The whole of it was mapped for online, or ready to be.
    pub mapped: Time,
    /// Handles that changed hands.
    pub handles: u32,
    /// Offline requests that lost blocks.
    pub requests: u32,
    /// Tokens offline has to compute again.
    pub lost_tokens: u64,
    /// Online waited for it; otherwise it was ahead of need.
    pub waited: bool,
}

/// What stands in a stretch of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpanKind {
    /// An online iteration that reads prompt tokens.
    OnlinePrefill,
    /// An online iteration that only decodes.
    OnlineDecode,
    /// Offline on the GPU.
    Offline,
    /// Offline is being saved or restored.
    Switch,
    /// Online waits for memory.
    Memory,
}

/// One stretch of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub kind: SpanKind,
    /// From here.
    pub from: Time,
    /// To here.
    pub to: Time,
}

/// The offline workload over the whole replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfflineTotals {
    /// Prompt tokens read and kept; what is read again counts once.
    pub prompt_tokens: u64,
    /// Tokens generated and kept.
    pub generated_tokens: u64,
    /// Requests finished.
    pub finished: u64,
    /// Iterations.
    pub iterations: u64,
    /// Tokens computed again because their blocks were reclaimed or the job was killed.
    pub lost_tokens: u64,
    /// Tokens that its iterations were given, whatever became of them.
    pub computed_tokens: u64,
    /// Of those, tokens that it had computed before: lost with a reclaim or its process, with a step that was
    /// dropped, or given up for want of its own memory.
    pub again_tokens: u64,
    /// Requests put back for want of its own memory (recomputed too, part of no reclaim).
    pub capacity_preemptions: u64,
    /// Requests that its engine was sent, and of those the ones that it refused, as they are larger than its whole cache.
    pub offered: u64,
    /// The latter.
    pub refused: u64,
    /// Times the job was killed.
    pub kills: u64,
}

impl OfflineTotals {
    /// Tokens kept.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens + self.generated_tokens
    }

    /// Tokens computed again per token generated; `None` if none was.
    #[must_use]
    pub fn recompute_tax(&self) -> Option<f64> {
        (self.generated_tokens > 0).then(|| self.again_tokens as f64 / self.generated_tokens as f64)
    }
}

/// Where the GPU's time went; the rest was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTotals {
    /// Online ran.
    pub online: Duration,
    /// Offline ran.
    pub offline: Duration,
    /// Of that, for work that was thrown away.
    pub wasted: Duration,
    /// Neither ran because of a switch.
    pub switching: Duration,
}

/// The cooldown, learnt against true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CooldownRecord {
    /// Longest decode gap that happened.
    pub longest_gap: Duration,
    /// Cooldown in force at the end; `None` for policies that have none.
    pub at_end: Option<Duration>,
    /// Mean, over all pauses longer than it, of the cooldown in force.
    pub mean: Option<Duration>,
    /// Decode gaps that the policy counted.
    pub gaps_seen: u64,
    /// Wakes inside a decode gap.
    pub woken_in_gap: u64,
}

/// What placement reads of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The agent's history, slice by slice.
    pub history: Vec<Slice>,
    /// When its gate was open: from, to, in ns.
    pub gates: Vec<(u64, u64)>,
    /// Offline tokens kept in each slice.
    pub by_slice: Vec<u64>,
}

/// Everything one replay gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// From the start to the last online token, and at least to the last arrival.
    pub length: Duration,
    /// Online requests, in the order of the trace.
    pub requests: Vec<Request>,
    /// Preemptions, in order.
    pub preemptions: Vec<Preemption>,
    /// Wakes: times offline got the GPU back.
    pub wakes: u64,
    /// Reclaims, in order.
    pub reclaims: Vec<Reclaim>,
    /// The offline workload.
    pub offline: OfflineTotals,
    /// The GPU.
    pub gpu: GpuTotals,
    /// The cooldown.
    pub cooldown: CooldownRecord,
    /// Online iterations.
    pub online_iterations: u64,
    /// Online requests put back for want of memory.
    pub online_capacity_preemptions: u64,
    /// Most KV cache online held, bytes.
    pub online_kv_peak_bytes: u64,
    /// Handles that were mapped, backed or on their way beyond what the pool has, at the worst moment:
    /// zero, or the policy is wrong.
    pub faults: u64,
    /// Spans, if they were asked for, in order of their start.
    pub timeline: Vec<Span>,
    /// For placement, if it was asked for.
    pub placement: Placement,
}

impl Outcome {
    /// Offline tokens kept, per second.
    #[must_use]
    pub fn offline_tokens_per_s(&self) -> f64 {
        self.offline.tokens() as f64 / self.length.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Most preemptions charged to one request.
    #[must_use]
    pub fn preemptions_per_request_max(&self) -> u32 {
        let charged = self.requests.iter().map(|request| request.preemptions);
        charged.max().unwrap_or(0)
    }

    /// Preemptions charged per request, on average.
    #[must_use]
    pub fn preemptions_per_request_mean(&self) -> f64 {
        let charged: u64 = self
            .requests
            .iter()
            .map(|request| u64::from(request.preemptions))
            .sum();
        charged as f64 / self.requests.len().max(1) as f64
    }
}
