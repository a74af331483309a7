//! Derives the settings of the control thread and the policy from the operator's settings.

use super::load::Loaded;
use super::sections::{Config, Cooldown, FairMode, LongGate, Slo, Suspects};
use crate::clock;
use crate::inbox::Tunables;
use tidegate_node::kinds::Level;
use tidegate_policy::config as policy;
use tidegate_policy::ids::Bytes;
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::slo::Promise;

/// What the control thread can be told while it runs.
#[must_use]
pub fn tunables(loaded: &Loaded, level: Level) -> Tunables {
    let config = &loaded.config;
    Tunables {
        policy: policy_config(loaded, level),
        rings_per_second: config.limits.rings_per_second,
        prove_every_ns: clock::nanos(config.prove_every),
        stall_ns: clock::nanos(config.tuning.stall_after),
        answer_ns: clock::nanos(config.tuning.answer_within),
        users: config.fair.users.clone(),
    }
}

/// What online may pay: either rise sets it, and a rate of shortages that somebody chose overrides it
/// ([`Loaded::overridden`] says so).
fn slo(loaded: &Loaded) -> Option<policy::Slo> {
    let config = &loaded.config;
    let set = config.slo.ttft.is_some() || config.slo.tpot.is_some();
    (set && !loaded.chose_pressure()).then(|| policy::Slo {
        ttft: config.slo.ttft.unwrap_or(Slo::USUAL.0),
        tpot: config.slo.tpot.unwrap_or(Slo::USUAL.1),
    })
}

/// One switch of the GPU between two processes. No source: nobody has measured it on a card, replay assumes 200 us.
const SWITCH_NS: u64 = 250_000;
/// What online waits when a trainer is stopped in mid-unit: about the 1.08 ms of a preemption on an H200
/// (`tests/hardware`).
const GATE_NS: u64 = 1_000_000;
/// Of a thousand requests so many may be late: a promise is of the 99th percentile.
const LATE_PERMILLE: u32 = 10;

/// What leases are given by; None: there are none.
fn leases(config: &Config) -> Option<Leasing> {
    let (ttft, tpot) = config.lease.promise()?;
    Some(Leasing {
        promise: Promise::Tail {
            ttft_ns: clock::nanos(ttft),
            tpot_ns: clock::nanos(tpot),
            late_permille: LATE_PERMILLE,
        },
        margin_permille: config.lease.margin,
        switch_ns: SWITCH_NS,
        gate_ns: GATE_NS,
        grace_ns: clock::nanos(config.lease.grace),
    })
}

/// The policy's settings from the operator's.
fn policy_config(loaded: &Loaded, level: Level) -> policy::Config {
    let config = &loaded.config;
    policy::Config {
        leases: leases(config),
        slo: slo(loaded),
        frozen_after: config.tuning.frozen_after,
        start_hold: config.tuning.start_hold,
        disable_retries: config.tuning.disable_retries,
        cooldown: match config.gate.cooldown {
            Cooldown::Learn => policy::Cooldown::Learnt(policy::Learning {
                window: config.tuning.cooldown_window,
                min: config.tuning.cooldown_min,
                max: config.tuning.cooldown_max,
                ..policy::Learning::default()
            }),
            Cooldown::Fixed(time) => policy::Cooldown::Fixed(time),
        },
        means: if level == Level::L5 {
            policy::Means::LaunchGate
        } else {
            policy::Means::Channels
        },
        suspects: match config.gate.suspects {
            Suspects::Busy => policy::Suspects::Busy,
            Suspects::Ignore => policy::Suspects::Ignore,
        },
        max_gated: config.gate.max_gated,
        on_max_gated: match config.gate.long_gate {
            LongGate::Hold => policy::OnMaxGated::Hold,
            LongGate::Breathe => policy::OnMaxGated::Breathe(config.gate.breathe),
        },
        fair: policy::Fair {
            mode: match config.fair.mode {
                FairMode::Together => policy::FairMode::Together,
                FairMode::Slices => policy::FairMode::Slices,
                FairMode::Auto | FairMode::Turns => policy::FairMode::Turns,
            },
            turn: config.fair.turn,
            slots: config.fair.slots,
        },
        sharing: policy::Sharing {
            reclaim_deadline: config.memory.reclaim_deadline,
            restore_interval: config.memory.restore_interval,
            reserving: policy::Reserving {
                pressure_every: config.memory.pressure_every,
                step: Bytes(config.memory.step),
                min: match config.memory.headroom_min {
                    0 => policy::Reserving::of_pool(Bytes(config.memory.pool))
                        .min
                        .min(Bytes(config.memory.headroom_max)),
                    bytes => Bytes(bytes),
                },
                max: Bytes(config.memory.headroom_max),
                ..policy::Reserving::default()
            },
            ..policy::Sharing::default()
        },
        enable_retry: policy::Config::default().enable_retry,
    }
}
