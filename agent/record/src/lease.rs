//! Events about leases as lines of a recording.

use crate::fields::{Field, Fields, rows};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::{Event, LeaseEvent};
use tidegate_policy::lease::slo::Promise;

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

rows! {
    fn write_seen, read_seen: Event, Event, Event;
    "lease_arrived" Arrived { request }
    "lease_first" First { request, ttft_ns }
    "lease_ended" Ended { request, ttft_ns, tpot_ns }
    "lease_beat" Beat { iteration, took_ns, interval_ns, delayed_ns }
    "lease_back" Returned { idle_ns, gap, delayed_ns }
    "lease_unit" Unit { key, ns }
    "lease_known" Known { key, mean_ns, spread_ns, p95_ns, seen }
    "lease_used" Lease { fingerprint, units, granted_ns, used_ns }
}

rows! {
    fn write_own, read_own: LeaseEvent, LeaseEvent, LeaseEvent;
    "lease_offered" Offered { gpu, job, unit }
    "lease_next" Next { gpu, next }
    "lease_returned" Returned { gpu, lease, units }
    "lease_ends" Ends { gpu }
    else LeaseEvent::Seen { .. }
}

/// The name of an event, whose numbers are handed to `put`. The first is the GPU.
pub(super) fn write(event: &LeaseEvent, put: &mut impl FnMut(u64)) -> Option<&'static str> {
    match event {
        LeaseEvent::Seen { gpu, event } => {
            gpu.write(put);
            write_seen(event, put)
        }
        own => write_own(own, put),
    }
}

/// The event of that name, where there is one.
pub(super) fn read(name: &str, fields: &[u64]) -> Option<LeaseEvent> {
    let own = read_own(name, &mut Fields(fields));
    own.or_else(|| {
        let mut from = Fields(fields);
        Some(LeaseEvent::Seen {
            gpu: from.get()?,
            event: read_seen(name, &mut from)?,
        })
    })
}
