//! Events about memory as lines of a recording.
//!
//! Every field is a number. A list is its length, then its members. An optional field is a list of at most
//! one member. A stripe is whether it is backed, then its handles, then its blocks.

use std::fmt::Write;

use crate::fields::{Field, Fields, list, rows};
use tidegate_policy::ids::StripeId;
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::time::Instant;

/// The names of these events begin with this.
pub(super) const PREFIX: &str = "memory_";

/// The line of one event, without its end.
#[must_use]
pub(super) fn line(event: &MemoryEvent<'_>, now: Instant) -> String {
    let mut fields = String::new();
    let name = write(event, &mut |field| {
        let _ = write!(fields, " {field}");
    });
    format!("event {} {PREFIX}{name}{fields}", now.as_nanos())
}

rows! {
    fn write_row, read_row: MemoryEvent, MemoryEvent<'_>, MemoryEvent<'static>;
    "pool" Pool { gpu, bytes }
    "elastic_registered" ElasticRegistered { session, gpu, kv, mapped, fixed, most, handle, stripe }
    "kv_gone" KvGone { session, kv }
    "forgotten" Forgotten { session, request }
    "withheld" Withheld { session, log }
    "checked" Checked { reclaim, session, answer }
    "usage" Usage { session, kv, used }
    "mapped" Mapped { session, kv, mapped, last }
    "counted" Counted { session, gpu, bytes }
    "withdrawn" Withdrawn { session, ask }
    else MemoryEvent::KvRegistered { .. }
        | MemoryEvent::Published { .. }
        | MemoryEvent::Moved { .. }
        | MemoryEvent::Asked { .. }
}

/// Hands the numbers of an event to `put`: its name, without [`PREFIX`].
fn write(event: &MemoryEvent<'_>, put: &mut impl FnMut(u64)) -> &'static str {
    match event {
        MemoryEvent::KvRegistered {
            session,
            job,
            gpu,
            kv,
            layout,
            backed,
            fixed,
            reclaimable,
            counted,
        } => {
            session.write(put);
            job.write(put);
            gpu.write(put);
            kv.write(put);
            fixed.write(put);
            reclaimable.write(put);
            counted.write(put);
            layout.handle().write(put);
            put(layout.len() as u64);
            let stripes = (0u32..).map_while(|nth| layout.stripe(StripeId(nth)));
            for (nth, stripe) in stripes.enumerate() {
                backed.get(nth).copied().unwrap_or(false).write(put);
                list(&stripe.handles, put);
                list(&stripe.blocks, put);
            }
            "kv_registered"
        }
        MemoryEvent::Published {
            session,
            request,
            tokens,
            blocks,
        } => {
            session.write(put);
            request.write(put);
            tokens.write(put);
            list(blocks, put);
            "published"
        }
        MemoryEvent::Moved {
            reclaim,
            session,
            answer,
            stripes,
            log,
        } => {
            reclaim.write(put);
            session.write(put);
            answer.write(put);
            log.write(put);
            list(stripes, put);
            "moved"
        }
        MemoryEvent::Asked {
            session,
            ask,
            gpu,
            kv,
            bytes,
            mapped,
            ahead,
        } => {
            session.write(put);
            ask.write(put);
            gpu.write(put);
            bytes.write(put);
            kv.write(put);
            mapped.write(put);
            if *ahead {
                put(1);
            }
            "asked"
        }
        event => write_row(event, put).unwrap_or_default(),
    }
}

/// A stripe, and whether memory stands behind it.
fn stripe(from: &mut Fields<'_>) -> Option<(Stripe, bool)> {
    let backed = from.get()?;
    let handles = from.list(Fields::get)?;
    let blocks = from.list(Fields::get)?;
    Some((Stripe { handles, blocks }, backed))
}

/// Hands the event of that name, without [`PREFIX`], to `take`. `None` if there is no such event.
pub(super) fn read<T>(
    name: &str,
    fields: &[u64],
    take: impl FnOnce(MemoryEvent<'_>) -> T,
) -> Option<T> {
    let mut f = Fields(fields);
    let (blocks, stripes, backed): (Vec<_>, Vec<_>, Vec<_>);
    let layout;
    let event = match name {
        "kv_registered" => {
            let (session, job, gpu, kv) = (f.get()?, f.get()?, f.get()?, f.get()?);
            let (fixed, reclaimable, counted) = (f.get()?, f.get()?, f.get()?);
            let handle = f.get()?;
            let (cut, own) = f.list(stripe)?.into_iter().unzip();
            backed = own;
            layout = Layout::of_stripes(cut, handle);
            MemoryEvent::KvRegistered {
                session,
                job,
                gpu,
                kv,
                layout: &layout,
                backed: &backed,
                fixed,
                reclaimable,
                counted,
            }
        }
        "published" => {
            let (session, request, tokens) = (f.get()?, f.get()?, f.get()?);
            blocks = f.list(Fields::get)?;
            MemoryEvent::Published {
                session,
                request,
                tokens,
                blocks: &blocks,
            }
        }
        "moved" => {
            let (reclaim, session) = (f.get()?, f.get()?);
            let (answer, log) = (f.get()?, f.get()?);
            stripes = f.list(Fields::get)?;
            MemoryEvent::Moved {
                reclaim,
                session,
                answer,
                stripes: &stripes,
                log,
            }
        }
        "asked" => MemoryEvent::Asked {
            session: f.get()?,
            ask: f.get()?,
            gpu: f.get()?,
            bytes: f.get()?,
            kv: f.get()?,
            mapped: f.get()?,
            ahead: match f.number() {
                None => false,
                Some(1) => true,
                Some(_) => return None,
            },
        },
        _ => read_row(name, &mut f)?,
    };
    f.0.is_empty().then(|| take(event))
}
