//! How each type of the policy stands in a line: as numbers, in one way wherever it stands.
//!
//! [`rows`] makes both directions of a table of events, so that what is written and what is read cannot differ.

use std::time::Duration;

use tidegate_policy::event::{Order, Reading, Standing};
use tidegate_policy::fair::{Class, Lacks, Terms};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, Channels, Generation, GpuId, GpuSet, GraphId, JobId, KvId, Launches,
    LeaseId, LogSeq, ReclaimId, RequestId, SessionId, StripeId, Tokens, UserId,
};
use tidegate_policy::lease::event::{Iteration, Unit};
use tidegate_policy::lease::record::{Key, Kind};
use tidegate_policy::reclaim::Answer;
use tidegate_policy::time::{Instant, nanos};

/// The numbers of a line that are still to be read.
pub(super) struct Fields<'a>(pub(super) &'a [u64]);

impl Fields<'_> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn get<T: Field>(&mut self) -> Option<T> {
        T::read(self)
    }

    /// A list is its length and its members.
    pub(super) fn list<T>(&mut self, member: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| member(self)).collect()
    }
}

/// Writes a list, as [`Fields::list`] reads it.
pub(super) fn list<T: Field>(members: &[T], put: &mut impl FnMut(u64)) {
    put(members.len() as u64);
    for member in members {
        member.write(put);
    }
}

/// A type that stands in lines.
pub(super) trait Field: Sized {
    fn write(&self, put: &mut impl FnMut(u64));
    fn read(from: &mut Fields<'_>) -> Option<Self>;
}

/// An enum without fields stands as its place in this list.
macro_rules! places {
    ($($type:ident { $($variant:ident),* })*) => {$(
        impl Field for $type {
            fn write(&self, put: &mut impl FnMut(u64)) {
                let all = [$(Self::$variant),*];
                let place = all.iter().position(|one| one == self);
                put(place.map_or(0, |place| place as u64));
            }

            fn read(from: &mut Fields<'_>) -> Option<Self> {
                let all = [$(Self::$variant),*];
                all.get(usize::try_from(from.number()?).ok()?).copied()
            }
        }
    )*};
}

places! {
    Answer { Done, Refused, Late, Missed }
    Kind { Iteration, Forward, Backward, Optimizer }
}

/// A number stands as it is, and is refused where it is too large.
macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn write(&self, put: &mut impl FnMut(u64)) {
                put(u64::from(*self));
            }

            fn read(from: &mut Fields<'_>) -> Option<Self> {
                Self::try_from(from.number()?).ok()
            }
        }
    )*};
}

numbers! { u8 u32 u64 }

/// A struct stands as its fields, in this order.
macro_rules! structs {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl Field for $type {
            fn write(&self, put: &mut impl FnMut(u64)) {
                $(self.$field.write(put);)*
            }

            fn read(from: &mut Fields<'_>) -> Option<Self> {
                Some(Self { $($field: from.get()?),* })
            }
        }
    )*};
}

structs! {
    AskId { 0 }
    BlockId { 0 }
    Bytes { 0 }
    Channels { 0 }
    Generation { 0 }
    GpuId { 0 }
    GraphId { 0 }
    JobId { 0 }
    KvId { 0 }
    Launches { 0 }
    LeaseId { 0 }
    LogSeq { 0 }
    ReclaimId { 0 }
    RequestId { 0 }
    SessionId { 0 }
    StripeId { 0 }
    Tokens { 0 }
    UserId { 0 }
    Order { gpu, job, generation }
    Terms { user, user_weight, weight, class, most }
    Reading { generation, busy, busy_since, idle_since, launches, graph, turns }
    Iteration { fingerprint, batch, cached, prompt }
    Key { fingerprint, kind }
    Unit { key, most, claimed_ns }
}

/// Any number but 0 is true.
impl Field for bool {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(u64::from(*self));
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        Some(from.number()? != 0)
    }
}

impl Field for Standing {
    fn write(&self, put: &mut impl FnMut(u64)) {
        (*self == Self::Unknown).write(put);
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        let unknown = from.get()?;
        Some(if unknown {
            Self::Unknown
        } else {
            Self::Enabled
        })
    }
}

impl Field for Class {
    fn write(&self, put: &mut impl FnMut(u64)) {
        (*self == Self::Idle).write(put);
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        let idle = from.get()?;
        Some(if idle { Self::Idle } else { Self::Normal })
    }
}

impl Field for Instant {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(self.as_nanos());
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        from.number().map(Self::from_nanos)
    }
}

impl Field for Duration {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(nanos(*self));
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        from.number().map(Self::from_nanos)
    }
}

/// A bit for each GPU.
impl Field for GpuSet {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(self.iter().fold(0, |mask, gpu| mask | 1 << gpu.0));
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        let mask = from.number()?;
        let all = (0..64u8).filter(|gpu| mask >> gpu & 1 == 1);
        Some(all.map(GpuId).collect())
    }
}

/// What may be missing is a list of none or one.
macro_rules! options {
    ($($type:ident)*) => {$(
        impl Field for Option<$type> {
            fn write(&self, put: &mut impl FnMut(u64)) {
                list(self.as_slice(), put);
            }

            fn read(from: &mut Fields<'_>) -> Option<Self> {
                let mut list = from.list(Fields::get)?;
                let one = list.pop();
                list.is_empty().then_some(one)
            }
        }
    )*};
}

options! { Bytes KvId RequestId }

/// 0 is no job, so that each number is one higher.
impl Field for Option<JobId> {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(self.map_or(0, |job| 1 + u64::from(job.0)));
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        match from.number()?.checked_sub(1) {
            None => Some(None),
            Some(job) => Some(Some(JobId(u32::try_from(job).ok()?))),
        }
    }
}

impl Field for Option<Lacks> {
    fn write(&self, put: &mut impl FnMut(u64)) {
        put(match self {
            None => 0,
            Some(Lacks::Gang) => 1,
            Some(Lacks::Level) => 2,
            Some(Lacks::File) => 3,
            Some(Lacks::Weights) => 4,
            Some(Lacks::Refused(status)) => 5 + u64::from(*status),
        });
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        Some(match from.number()? {
            0 => None,
            1 => Some(Lacks::Gang),
            2 => Some(Lacks::Level),
            3 => Some(Lacks::File),
            4 => Some(Lacks::Weights),
            status => Some(Lacks::Refused(u32::try_from(status - 5).ok()?)),
        })
    }
}

/// Missing where the library does not count them. They end a line.
impl Field for Turns {
    fn write(&self, put: &mut impl FnMut(u64)) {
        if *self != Self::default() {
            put(self.count);
            self.first.write(put);
            self.apart.write(put);
        }
    }

    fn read(from: &mut Fields<'_>) -> Option<Self> {
        if from.0.is_empty() {
            return Some(Self::default());
        }
        Some(Self {
            count: from.get()?,
            first: from.get()?,
            apart: from.get()?,
        })
    }
}

/// A table of events: each row is the name in the line, the variant, and its fields in the order of the line. `else`
/// names variants that have no row here.
///
/// `write` hands the numbers of an event to `put` and returns its name, or `None` where it has no row here. `read` returns
/// the event of a name, or `None` if there is no such row, or a number is missing or too large.
macro_rules! rows {
    (
        fn $write:ident, $read:ident: $event:ident, $borrowed:ty, $owned:ty;
        $($name:literal $variant:ident { $($field:ident),* })*
        $(else $other:pat)?
    ) => {
        fn $write(event: &$borrowed, put: &mut impl FnMut(u64)) -> Option<&'static str> {
            Some(match event {
                $($event::$variant { $($field),* } => {
                    $(crate::fields::Field::write($field, put);)*
                    $name
                })*
                $($other => return None,)?
            })
        }

        fn $read(name: &str, from: &mut crate::fields::Fields<'_>) -> Option<$owned> {
            match name {
                $($name => Some($event::$variant { $($field: from.get()?),* }),)*
                _ => None,
            }
        }
    };
}
pub(super) use rows;
