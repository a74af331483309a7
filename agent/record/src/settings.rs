//! The policy's settings as the numbers of a recording's `config` line.

use tidegate_policy::config::{
    Config, Cooldown, Fair, FairMode, Learning, Means, OnMaxGated, Reserving, Sharing, Slo,
    Suspects,
};
use tidegate_policy::ids::Bytes;
use tidegate_policy::time::nanos;

use super::lease;

/// The number of settings: of the gate, then of memory, of turns, and the SLO. Settings of leases follow if there are any.
pub(super) const CONFIG_FIELDS: usize = 29;
/// With leases.
const WITH_LEASES: usize = CONFIG_FIELDS + lease::LEASING_FIELDS;
/// As above, in recordings from before jobs took turns.
pub(super) const FIELDS_BEFORE_TURNS: usize = 25;
/// As above, in recordings from before there was an SLO.
pub(super) const FIELDS_BEFORE_SLO: usize = 27;

pub(super) fn config_fields(config: &Config) -> Vec<u64> {
    let Sharing {
        reclaim_deadline,
        restore_interval,
        batch,
        map_retry,
        promise_lasts,
        reserving,
    } = config.sharing;
    let learning = match config.cooldown {
        Cooldown::Learnt(learning) => learning,
        Cooldown::Fixed(_) => Learning::default(),
    };
    let mut fields = vec![
        match config.cooldown {
            Cooldown::Learnt(_) => 0,
            Cooldown::Fixed(span) => 1 + nanos(span),
        },
        nanos(learning.window),
        learning.window_gaps,
        learning.warm_up,
        u64::from(learning.repeats),
        nanos(learning.min),
        nanos(learning.max),
        u64::from(config.means == Means::LaunchGate),
        nanos(config.frozen_after),
        u64::from(config.suspects == Suspects::Ignore),
        nanos(config.max_gated),
        match config.on_max_gated {
            OnMaxGated::Hold => 0,
            OnMaxGated::Breathe(turn) => 1 + nanos(turn),
        },
        u64::from(config.disable_retries),
        nanos(config.enable_retry),
        nanos(config.start_hold),
        nanos(reclaim_deadline),
        nanos(restore_interval),
        batch.0,
        nanos(map_retry),
        nanos(promise_lasts),
        nanos(reserving.pressure_every),
        u64::from(reserving.pressure_percent),
        reserving.step.0,
        reserving.min.0,
        reserving.max.0,
        match config.fair.mode {
            FairMode::Turns => 0,
            FairMode::Together => 1,
            FairMode::Slices => 2,
        },
        nanos(config.fair.turn),
        config.slo.map_or(0, |slo| 1 + u64::from(slo.ttft)),
        config.slo.map_or(0, |slo| 1 + u64::from(slo.tpot)),
    ];
    fields.extend(config.leases.iter().flat_map(lease::leasing_fields));
    fields
}

pub(super) fn config_of(fields: &[u64]) -> Option<Config> {
    let (fields, leases) = match fields.len() {
        WITH_LEASES => {
            let (usual, leases) = fields.split_at(CONFIG_FIELDS);
            (usual, Some(lease::leasing_of(leases)?))
        }
        _ => (fields, None),
    };
    let fields = match fields.len() {
        FIELDS_BEFORE_TURNS => &[fields, &[1, nanos(Fair::default().turn), 0, 0]].concat(),
        FIELDS_BEFORE_SLO => &[fields, &[0, 0]].concat(),
        _ => fields,
    };
    let fields: [u64; CONFIG_FIELDS] = fields.try_into().ok()?;
    let basis = |field: u64| u32::try_from(field.checked_sub(1)?).ok();
    let span = core::time::Duration::from_nanos;
    Some(Config {
        leases,
        cooldown: match fields[0].checked_sub(1) {
            None => Cooldown::Learnt(Learning {
                window: span(fields[1]),
                window_gaps: fields[2],
                warm_up: fields[3],
                repeats: u32::try_from(fields[4]).ok()?,
                min: span(fields[5]),
                max: span(fields[6]),
            }),
            Some(fixed) => Cooldown::Fixed(span(fixed)),
        },
        means: if fields[7] == 0 {
            Means::Channels
        } else {
            Means::LaunchGate
        },
        frozen_after: span(fields[8]),
        suspects: if fields[9] == 0 {
            Suspects::Busy
        } else {
            Suspects::Ignore
        },
        max_gated: span(fields[10]),
        on_max_gated: match fields[11].checked_sub(1) {
            None => OnMaxGated::Hold,
            Some(turn) => OnMaxGated::Breathe(span(turn)),
        },
        disable_retries: u32::try_from(fields[12]).ok()?,
        enable_retry: span(fields[13]),
        start_hold: span(fields[14]),
        slo: basis(fields[27])
            .zip(basis(fields[28]))
            .map(|(ttft, tpot)| Slo { ttft, tpot }),
        sharing: Sharing {
            reclaim_deadline: span(fields[15]),
            restore_interval: span(fields[16]),
            batch: Bytes(fields[17]),
            map_retry: span(fields[18]),
            promise_lasts: span(fields[19]),
            reserving: Reserving {
                pressure_every: span(fields[20]),
                pressure_percent: u8::try_from(fields[21]).ok()?,
                step: Bytes(fields[22]),
                min: Bytes(fields[23]),
                max: Bytes(fields[24]),
            },
        },
        fair: Fair {
            mode: match fields[25] {
                0 => FairMode::Turns,
                1 => FairMode::Together,
                2 => FairMode::Slices,
                _ => return None,
            },
            turn: span(fields[26]),
            // It changes what is displayed, but no effect.
            ..Fair::default()
        },
    })
}
