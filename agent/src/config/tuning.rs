//! Times and counts an operator may tune: each with its unit, its default, and what it trades. The range in
//! which the rest of the design still holds stands in the setting's row.

use std::time::Duration;

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// See each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// `gate.frozen_after`: activity of an online process whose prober has made no progress for this long
    /// no longer closes gates; nor do requests that it says are in flight, without work for so long. Shorter wakes offline beside a process that is only slow; longer lets a
    /// stopped one hold the GPU.
    pub frozen_after: Duration,
    /// `gate.cooldown_min`: shortest learnt cooldown. Below the time that a disable and an enable take
    /// (about 1 ms) a wake costs more than it gives.
    pub cooldown_min: Duration,
    /// `gate.cooldown_max`: longest learnt cooldown, and the one in force until enough gaps were seen.
    pub cooldown_max: Duration,
    /// `gate.cooldown_window`: how long a decode gap counts. Longer is safer against rare long gaps and
    /// slower to harvest again after one.
    pub cooldown_window: Duration,
    /// `gate.start_hold`: how long a new agent keeps gates shut until online processes have attached.
    pub start_hold: Duration,
    /// `gate.probe_interval`: how often an online process that is busy asks whether its work is done.
    /// Shorter sees the end of a burst sooner and costs the process more.
    pub probe_interval: Duration,
    /// `channel.stall_after`: a driver call without an answer for this long is reported, and launches
    /// wait meanwhile.
    pub stall_after: Duration,
    /// `channel.answer_within`: how long a process may take at level L3 to disable its channels before
    /// that counts as failed.
    pub answer_within: Duration,
    /// `channel.schedule_hold`: how long a gated process' new channels wait to be put into the lists
    /// before they run ungated.
    pub schedule_hold: Duration,
    /// `channel.cpu_latency`: how long a processor may take to wake while an order is armed; None: as long as it likes.
    pub cpu_latency: Option<Duration>,
    /// `channel.disable_retries`: failed disables in a row after which a job's launches are gated
    /// instead.
    pub disable_retries: u32,
    /// `limits.keep_alive`: how often an attached process is asked whether it listens, and how long it
    /// may take to say so. One that does not is cut off, and keeps what its page and channels say.
    pub keep_alive: Duration,
    /// `limits.messages_per_second`: what one process may say. Above it its stream is read slower.
    pub messages_per_second: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            frozen_after: Duration::from_secs(5),
            cooldown_min: ms(2),
            cooldown_max: ms(200),
            cooldown_window: Duration::from_secs(60),
            start_hold: ms(500),
            probe_interval: Duration::from_micros(500),
            stall_after: ms(50),
            answer_within: ms(100),
            schedule_hold: Duration::from_secs(2),
            cpu_latency: None,
            disable_retries: 3,
            keep_alive: ms(500),
            messages_per_second: 4_096,
        }
    }
}
