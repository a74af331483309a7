//! What an engine holds, does and reports.

use crate::kv::Blocks;

/// A sequence's place; reused when it is gone.
pub type Slot = u32;

/// Blocks of one engine: pages with numbers, or only their count.
#[derive(Clone, Debug)]
pub struct Store {
    /// Pages, where it matters which.
    pub pages: Option<Blocks>,
    /// Blocks held.
    pub used: u32,
    /// Blocks it may hold.
    pub limit: u32,
    /// Blocks of the cache that the engine made when it started.
    pub cache: u32,
    /// What an admission leaves free.
    pub spare: Spare,
}

/// Blocks that an admission leaves free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// None, and of a prompt only the part that is read next has to fit.
    None,
    /// The rest of its prompt, and one for each request that runs: the backlog never ends, and
    /// would fill the last block.
    OneEach,
}

impl Store {
    pub(super) fn available(&self) -> u32 {
        let within = self.limit.saturating_sub(self.used);
        self.pages
            .as_ref()
            .map_or(within, |pages| within.min(pages.available()))
    }
}

/// One iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// GPU time, ns.
    pub ns: u64,
    /// Prompt tokens it reads.
    pub prompt_tokens: u32,
    /// Requests it decodes.
    pub decodes: u32,
}

/// What happened to a request when an iteration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its first token is out.
    First(u64),
    /// Its last token is out; follows `First` where that was it.
    Finished(u64),
}

/// Tokens of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Prompt tokens read, each counted once.
    pub prompt: u64,
    /// Tokens generated.
    pub generated: u64,
}

/// What iterations were given to compute: a token each, a prompt's or one to decode from, whatever became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Tokens in all.
    pub computed: u64,
    /// Of those, tokens that an earlier iteration had been given already.
    pub again: u64,
}
