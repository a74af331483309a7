//! What the policy was told about memory, as a line of a recording, and from one.
//!
//! Fields are numbers. A list is its length and its members, what may be missing a list of none or
//! one. A stripe is whether it is backed, its handles and its blocks.

use std::fmt::Write;

use tidegate_policy::ids::{
    AskId, BlockId, Bytes, GpuId, JobId, KvId, LogSeq, ReclaimId, RequestId, SessionId, StripeId,
    Tokens,
};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::reclaim::Answer;
use tidegate_policy::time::Instant;

/// What names of these events begin with.
pub(super) const PREFIX: &str = "memory_";

/// The line of one event, without its end.
#[must_use]
pub(super) fn line(event: &MemoryEvent<'_>, now: Instant) -> String {
    let (name, fields) = fields(event);
    let mut line = format!("event {} {PREFIX}{name}", now.as_nanos());
    for field in fields {
        let _ = write!(line, " {field}");
    }
    line
}

fn list(members: impl ExactSizeIterator<Item = u64>) -> impl Iterator<Item = u64> {
    std::iter::once(members.len() as u64).chain(members)
}

const fn answer_field(answer: Answer) -> u64 {
    match answer {
        Answer::Done => 0,
        Answer::Refused => 1,
        Answer::Late => 2,
        Answer::Missed => 3,
    }
}

fn stripe_fields(stripe: &Stripe, backed: bool) -> Vec<u64> {
    let handles = list(stripe.handles.iter().map(|handle| (*handle).into()));
    let blocks = list(stripe.blocks.iter().map(|block| block.0.into()));
    let backed = std::iter::once(u64::from(backed));
    backed.chain(handles).chain(blocks).collect()
}

fn fields(event: &MemoryEvent<'_>) -> (&'static str, Vec<u64>) {
    match *event {
        MemoryEvent::Pool { gpu, bytes } => ("pool", vec![gpu.0.into(), bytes.0]),
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
            let mut fields = vec![
                session.0,
                job.0.into(),
                gpu.0.into(),
                kv.0.into(),
                fixed.0,
                reclaimable.into(),
                counted.0,
                layout.handle().0,
                layout.len() as u64,
            ];
            let stripes = (0u32..).map_while(|nth| layout.stripe(StripeId(nth)));
            for (nth, stripe) in stripes.enumerate() {
                let backed = backed.get(nth).copied().unwrap_or(false);
                fields.extend(stripe_fields(&stripe, backed));
            }
            ("kv_registered", fields)
        }
        MemoryEvent::ElasticRegistered {
            session,
            gpu,
            kv,
            mapped,
            fixed,
            most,
            handle,
            stripe,
        } => {
            let (gpu, kv) = (gpu.0.into(), kv.0.into());
            let sizes = [mapped.0, fixed.0, most.0, handle.0, stripe.0];
            let fields = [session.0, gpu, kv].into_iter().chain(sizes).collect();
            ("elastic_registered", fields)
        }
        MemoryEvent::KvGone { session, kv } => ("kv_gone", vec![session.0, kv.0.into()]),
        MemoryEvent::Published {
            session,
            request,
            tokens,
            blocks,
        } => {
            let mut fields = vec![session.0, request.0, tokens.0];
            fields.extend(list(blocks.iter().map(|block| block.0.into())));
            ("published", fields)
        }
        MemoryEvent::Forgotten { session, request } => {
            let mut fields = vec![session.0];
            fields.extend(list(request.iter().map(|request| request.0)));
            ("forgotten", fields)
        }
        MemoryEvent::Withheld { session, log } => ("withheld", vec![session.0, log.0]),
        MemoryEvent::Checked {
            reclaim,
            session,
            answer,
        } => {
            let fields = vec![reclaim.0, session.0, answer_field(answer)];
            ("checked", fields)
        }
        MemoryEvent::Moved {
            reclaim,
            session,
            answer,
            stripes,
            log,
        } => {
            let mut fields = vec![reclaim.0, session.0, answer_field(answer), log.0];
            fields.extend(list(stripes.iter().map(|stripe| stripe.0.into())));
            ("moved", fields)
        }
        MemoryEvent::Usage { session, kv, used } => ("usage", vec![session.0, kv.0.into(), used.0]),
        MemoryEvent::Mapped {
            session,
            kv,
            mapped,
            last,
        } => {
            let fields = vec![session.0, kv.0.into(), mapped.0, last.into()];
            ("mapped", fields)
        }
        MemoryEvent::Counted {
            session,
            gpu,
            bytes,
        } => ("counted", vec![session.0, gpu.0.into(), bytes.0]),
        MemoryEvent::Asked {
            session,
            ask,
            gpu,
            kv,
            bytes,
            mapped,
            ahead,
        } => {
            let mut fields = vec![session.0, ask.0, gpu.0.into(), bytes.0];
            fields.extend(list(kv.iter().map(|kv| kv.0.into())));
            fields.extend(list(mapped.iter().map(|mapped| mapped.0)));
            // Said only where it is: a line of before has none.
            fields.extend(ahead.then_some(1));
            ("asked", fields)
        }
        MemoryEvent::Withdrawn { session, ask } => ("withdrawn", vec![session.0, ask.0]),
    }
}

/// The fields of a line, from the first on.
struct Fields<'a>(&'a [u64]);

impl Fields<'_> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn narrow(&mut self) -> Option<u32> {
        u32::try_from(self.next()?).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        Some(self.next()? != 0)
    }

    fn bytes(&mut self) -> Option<Bytes> {
        self.next().map(Bytes)
    }

    fn session(&mut self) -> Option<SessionId> {
        self.next().map(SessionId)
    }

    fn gpu(&mut self) -> Option<GpuId> {
        Some(GpuId(u8::try_from(self.next()?).ok()?))
    }

    fn kv(&mut self) -> Option<KvId> {
        self.narrow().map(KvId)
    }

    /// A stripe, and whether memory stands behind it.
    fn stripe(&mut self) -> Option<(Stripe, bool)> {
        let backed = self.flag()?;
        let handles = self.list(Self::narrow)?;
        let blocks = self.list(|f| f.narrow().map(BlockId))?;
        Some((Stripe { handles, blocks }, backed))
    }

    fn answer(&mut self) -> Option<Answer> {
        let all = [Answer::Done, Answer::Refused, Answer::Late, Answer::Missed];
        let field = self.next()?;
        all.into_iter()
            .find(|answer| answer_field(*answer) == field)
    }

    fn list<T>(&mut self, member: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.next()?;
        (0..count).map(|_| member(self)).collect()
    }

    /// `Some(None)`: it is missing.
    fn option<T>(&mut self, member: impl Fn(&mut Self) -> Option<T>) -> Option<Option<T>> {
        let mut list = self.list(member)?;
        let one = list.pop();
        list.is_empty().then_some(one)
    }
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
            let (session, job) = (f.session()?, JobId(f.narrow()?));
            let (gpu, kv, fixed) = (f.gpu()?, f.kv()?, f.bytes()?);
            let (reclaimable, counted, handle) = (f.flag()?, f.bytes()?, f.bytes()?);
            let (cut, own) = f.list(Fields::stripe)?.into_iter().unzip();
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
            let (session, request) = (f.session()?, RequestId(f.next()?));
            let tokens = Tokens(f.next()?);
            blocks = f.list(|f| f.narrow().map(BlockId))?;
            MemoryEvent::Published {
                session,
                request,
                tokens,
                blocks: &blocks,
            }
        }
        "moved" => {
            let (reclaim, session) = (ReclaimId(f.next()?), f.session()?);
            let (answer, log) = (f.answer()?, LogSeq(f.next()?));
            stripes = f.list(|f| f.narrow().map(StripeId))?;
            MemoryEvent::Moved {
                reclaim,
                session,
                answer,
                stripes: &stripes,
                log,
            }
        }
        _ => numbers(name, &mut f)?,
    };
    f.0.is_empty().then(|| take(event))
}

/// The event of that name, if it has no lists.
fn numbers(name: &str, f: &mut Fields<'_>) -> Option<MemoryEvent<'static>> {
    Some(match name {
        "pool" => MemoryEvent::Pool {
            gpu: f.gpu()?,
            bytes: f.bytes()?,
        },
        "elastic_registered" => MemoryEvent::ElasticRegistered {
            session: f.session()?,
            gpu: f.gpu()?,
            kv: f.kv()?,
            mapped: f.bytes()?,
            fixed: f.bytes()?,
            most: f.bytes()?,
            handle: f.bytes()?,
            stripe: f.bytes()?,
        },
        "kv_gone" => MemoryEvent::KvGone {
            session: f.session()?,
            kv: f.kv()?,
        },
        "forgotten" => MemoryEvent::Forgotten {
            session: f.session()?,
            request: f.option(|f| f.next().map(RequestId))?,
        },
        "withheld" => MemoryEvent::Withheld {
            session: f.session()?,
            log: LogSeq(f.next()?),
        },
        "checked" => MemoryEvent::Checked {
            reclaim: ReclaimId(f.next()?),
            session: f.session()?,
            answer: f.answer()?,
        },
        "usage" => MemoryEvent::Usage {
            session: f.session()?,
            kv: f.kv()?,
            used: f.bytes()?,
        },
        "mapped" => MemoryEvent::Mapped {
            session: f.session()?,
            kv: f.kv()?,
            mapped: f.bytes()?,
            last: f.flag()?,
        },
        "counted" => MemoryEvent::Counted {
            session: f.session()?,
            gpu: f.gpu()?,
            bytes: f.bytes()?,
        },
        "asked" => {
            let (session, ask) = (f.session()?, AskId(f.next()?));
            let (gpu, bytes) = (f.gpu()?, f.bytes()?);
            MemoryEvent::Asked {
                session,
                ask,
                gpu,
                kv: f.option(Fields::kv)?,
                bytes,
                mapped: f.option(Fields::bytes)?,
                ahead: match f.next() {
                    None => false,
                    Some(1) => true,
                    Some(_) => return None,
                },
            }
        }
        "withdrawn" => MemoryEvent::Withdrawn {
            session: f.session()?,
            ask: AskId(f.next()?),
        },
        _ => return None,
    })
}
