//! Names as numbers. The shell assigns them; the policy only compares them.

use core::fmt;

/// GPUs one node can have.
pub const MAX_GPUS: usize = 64;

/// A GPU of this node: its index in the agent's order, below [`MAX_GPUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(pub u8);

impl GpuId {
    /// Place in a per-GPU array.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One attached process, online or offline. Never reused while an agent lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// One offline job: all processes that are gated together. Never reused while an agent lives: a job
/// whose last process left is over, and one of the same name that comes later has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

/// Somebody whose offline jobs are counted together: the shell's name for a user of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// A request an engine told us about; unique within its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Number of a decision; grows over the life of a node. Every order carries it and every answer repeats it, so that
/// the answer to an order that has been overtaken is recognised and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A lease of one GPU, counted from the node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// Launches of one busy period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Launches(pub u64);

/// The graph last launched in a busy period: a name, never followed. Zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub u64);

/// Channels held on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channels(pub u32);

/// GPU memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);

    /// This many MiB.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left without `other`; nothing if that is more.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This many times as much.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// The least multiple of `unit` that is not less. A unit of zero rounds nothing.
    #[must_use]
    pub const fn round_up(self, unit: Self) -> Self {
        match self.0.checked_next_multiple_of(unit.0) {
            Some(bytes) => Self(bytes),
            None => self,
        }
    }

    /// The largest multiple of `unit` that is not more. A unit of zero rounds nothing.
    #[must_use]
    pub const fn round_down(self, unit: Self) -> Self {
        match self.0.checked_rem(unit.0) {
            Some(rest) => Self(self.0 - rest),
            None => self,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl core::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Self::plus)
    }
}

/// Tokens an engine would have to compute again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// Physical VMM allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handles(pub u32);

/// A KV block of an engine, by the engine's own number. Equal on all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// All handles that back one range of blocks in every layer, on every rank of a job: what is
/// reclaimed as one. Numbered by place, from the first block on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u32);

/// One KV cache of one process, by the process' own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvId(pub u32);

/// A demand for memory of an online process, in its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// One reclaim or one restore of one job. Grows over the life of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReclaimId(pub u64);

/// Place in a job's ordered log of lost and given-back blocks; the first entry is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSeq(pub u64);

/// A set of GPUs of one node.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuSet(u64);

impl GpuSet {
    /// No GPU.
    pub const EMPTY: Self = Self(0);

    /// The set of one.
    #[must_use]
    pub const fn of(gpu: GpuId) -> Self {
        if (gpu.0 as usize) < MAX_GPUS {
            Self(1 << gpu.0)
        } else {
            Self(0)
        }
    }

    /// The first `count` GPUs.
    #[must_use]
    pub const fn first(count: u8) -> Self {
        if count as usize >= MAX_GPUS {
            Self(u64::MAX)
        } else {
            Self((1 << count) - 1)
        }
    }

    /// This set and `gpu`.
    #[must_use]
    pub const fn with(self, gpu: GpuId) -> Self {
        self.union(Self::of(gpu))
    }

    /// The set whose bit i is GPU i.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit i is GPU i.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// GPUs of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// GPUs of both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// GPUs of this set that `other` lacks.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether `gpu` is one of them.
    #[must_use]
    pub const fn contains(self, gpu: GpuId) -> bool {
        Self::of(gpu).0 & self.0 != 0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Each, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = GpuId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let gpu = u8::try_from(rest.trailing_zeros()).ok()?;
            (rest != 0).then(|| {
                rest &= rest - 1;
                GpuId(gpu)
            })
        })
    }
}

impl fmt::Debug for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|gpu| gpu.0)).finish()
    }
}

impl FromIterator<GpuId> for GpuSet {
    fn from_iter<I: IntoIterator<Item = GpuId>>(gpus: I) -> Self {
        gpus.into_iter().fold(Self::EMPTY, Self::with)
    }
}
