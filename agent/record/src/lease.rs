//! What a node is told of leases, as the numbers of a recording's lines.

use tidegate_policy::ids::{GpuId, JobId, LeaseId};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::{Event, Iteration, LeaseEvent, Unit};
use tidegate_policy::lease::record::{Key, Kind};
use tidegate_policy::lease::slo::Promise;

/// The most numbers that a line of an event has.
pub(super) const FIELDS: usize = 11;

/// Numbers of the settings.
pub(super) const LEASING_FIELDS: usize = 8;

pub(super) fn leasing_fields(config: &Leasing) -> [u64; LEASING_FIELDS] {
    let (kind, [first, further, late]) = match config.promise {
        Promise::Tail {
            ttft_ns,
            tpot_ns,
            late_permille,
        } => (0, [ttft_ns, tpot_ns, u64::from(late_permille)]),
        Promise::Each { decode_ns } => (1, [0, decode_ns, 0]),
        Promise::Mean { ttft, tpot } => (2, [u64::from(ttft), u64::from(tpot), 0]),
    };
    [
        kind,
        first,
        further,
        late,
        u64::from(config.margin_permille),
        config.switch_ns,
        config.gate_ns,
        config.grace_ns,
    ]
}

pub(super) fn leasing_of(fields: &[u64]) -> Option<Leasing> {
    let [
        kind,
        first,
        further,
        late,
        margin,
        switch_ns,
        gate_ns,
        grace_ns,
    ] = fields.try_into().ok()?;
    let narrow = |field: u64| u32::try_from(field).ok();
    let promise = match kind {
        0 => Promise::Tail {
            ttft_ns: first,
            tpot_ns: further,
            late_permille: narrow(late)?,
        },
        1 => Promise::Each { decode_ns: further },
        2 => Promise::Mean {
            ttft: narrow(first)?,
            tpot: narrow(further)?,
        },
        _ => return None,
    };
    Some(Leasing {
        promise,
        margin_permille: narrow(margin)?,
        switch_ns,
        gate_ns,
        grace_ns,
    })
}

const KINDS: [Kind; 4] = [
    Kind::Iteration,
    Kind::Forward,
    Kind::Backward,
    Kind::Optimizer,
];

/// Name and fields of an event, and how many. The first is the GPU.
pub(super) fn fields(event: &LeaseEvent) -> (&'static str, [u64; FIELDS], usize) {
    let iteration = |of: &Iteration| {
        [
            of.fingerprint,
            u64::from(of.batch),
            of.cached,
            u64::from(of.prompt),
        ]
    };
    let (name, own): (_, &[u64]) = match event {
        LeaseEvent::Seen { event, .. } => match event {
            Event::Arrived { request } => ("lease_arrived", &[*request]),
            Event::First { request, ttft_ns } => ("lease_first", &[*request, *ttft_ns]),
            Event::Ended {
                request,
                ttft_ns,
                tpot_ns,
            } => ("lease_ended", &[*request, *ttft_ns, *tpot_ns]),
            Event::Beat {
                iteration: of,
                took_ns,
                interval_ns,
                delayed_ns,
            } => {
                let [fingerprint, batch, cached, prompt] = iteration(of);
                (
                    "lease_beat",
                    &[
                        fingerprint,
                        batch,
                        cached,
                        prompt,
                        *took_ns,
                        *interval_ns,
                        *delayed_ns,
                    ],
                )
            }
            Event::Returned {
                idle_ns,
                gap,
                delayed_ns,
            } => ("lease_back", &[*idle_ns, u64::from(*gap), *delayed_ns]),
            Event::Unit { key, ns } => ("lease_unit", &[key.fingerprint, key.kind as u64, *ns]),
            Event::Lease {
                fingerprint,
                units,
                granted_ns,
                used_ns,
            } => (
                "lease_used",
                &[*fingerprint, u64::from(*units), *granted_ns, *used_ns],
            ),
        },
        LeaseEvent::Offered { job, unit, .. } => (
            "lease_offered",
            &[
                u64::from(job.0),
                unit.key.fingerprint,
                unit.key.kind as u64,
                u64::from(unit.most),
                unit.claimed_ns,
            ],
        ),
        LeaseEvent::Next { next, .. } => ("lease_next", &iteration(next)),
        LeaseEvent::Returned { lease, units, .. } => {
            ("lease_returned", &[lease.0, u64::from(*units)])
        }
    };
    let mut all = [0; FIELDS];
    all[0] = u64::from(event.gpu().0);
    all[1..=own.len()].copy_from_slice(own);
    (name, all, 1 + own.len())
}

/// The event of that name, where there is one.
pub(super) fn read(name: &str, fields: &[u64]) -> Option<LeaseEvent> {
    let number = |at: usize| fields.get(at).copied();
    let narrow = |at: usize| u32::try_from(number(at)?).ok();
    let gpu = GpuId(u8::try_from(number(0)?).ok()?);
    let iteration = || {
        Some(Iteration {
            fingerprint: number(1)?,
            batch: narrow(2)?,
            cached: number(3)?,
            prompt: narrow(4)?,
        })
    };
    let key = |at: usize| {
        Some(Key {
            fingerprint: number(at)?,
            kind: *KINDS.get(usize::try_from(number(at + 1)?).ok()?)?,
        })
    };
    let seen = |event: Event| LeaseEvent::Seen { gpu, event };
    Some(match name {
        "lease_arrived" => seen(Event::Arrived {
            request: number(1)?,
        }),
        "lease_first" => seen(Event::First {
            request: number(1)?,
            ttft_ns: number(2)?,
        }),
        "lease_ended" => seen(Event::Ended {
            request: number(1)?,
            ttft_ns: number(2)?,
            tpot_ns: number(3)?,
        }),
        "lease_beat" => seen(Event::Beat {
            iteration: iteration()?,
            took_ns: number(5)?,
            interval_ns: number(6)?,
            delayed_ns: number(7)?,
        }),
        "lease_back" => seen(Event::Returned {
            idle_ns: number(1)?,
            gap: number(2)? != 0,
            delayed_ns: number(3)?,
        }),
        "lease_unit" => seen(Event::Unit {
            key: key(1)?,
            ns: number(3)?,
        }),
        "lease_used" => seen(Event::Lease {
            fingerprint: number(1)?,
            units: narrow(2)?,
            granted_ns: number(3)?,
            used_ns: number(4)?,
        }),
        "lease_offered" => LeaseEvent::Offered {
            gpu,
            job: JobId(narrow(1)?),
            unit: Unit {
                key: key(2)?,
                most: narrow(4)?,
                claimed_ns: number(5)?,
            },
        },
        "lease_next" => LeaseEvent::Next {
            gpu,
            next: iteration()?,
        },
        "lease_returned" => LeaseEvent::Returned {
            gpu,
            lease: LeaseId(number(1)?),
            units: narrow(2)?,
        },
        _ => return None,
    })
}
