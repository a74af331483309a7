//! A continuous-batching engine with paged KV cache, fast enough for hours of it in a second.
//!
//! [`crate::engine::Server`] walks over every running request in every iteration; this one does
//! not. A running request is two numbers: what it would have cached at step zero, and the step at
//! which it ends. So an iteration costs what it changes: the blocks that begin, the requests that
//! end, the prompts that are read.
//!
//! ```text
//!   waiting --(prompt read, blocks taken)--> running --(last token)--> gone
//!      ^                                        |
//!      +-- no block left, or blocks lost -------+     prompt and tokens so far are read again
//! ```
//!
//! Admission is vLLM's: first come, first served; a prompt is read in chunks, beside decodes, and
//! takes blocks chunk by chunk; who needs a block when there is none pushes the last to have joined
//! back to the front of the queue. What an admission leaves free is a setting ([`Spare`]). vLLM takes no request that is
//! larger than its cache ([`Batch::offer`]).
//!
//! Invariant: every request gets each of its tokens once, whatever is taken from it meanwhile.

mod blocks;
mod low;
mod words;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::engine::Limits;
use crate::iteration::Cost;
use crate::kv::{BLOCK_TOKENS, blocks_of};
use crate::spec::Batching;
pub use words::{Given, Iteration, Progress, Slot, Spare, Store, Tokens};

/// Requests that others go past, at most (`MOST` of the plugin's `vllm/aside.py`).
const MOST_ASIDE: usize = 256;
/// A part of a prompt that is read for want of blocks for more has so many tokens at least: `LEAST` of `vllm/fitted.py`.
const LEAST_PART: u32 = 512;

#[derive(Clone, Debug, Default)]
struct Sequence {
    id: u64,
    /// Tokens of its prompt as the client sent it.
    input: u32,
    /// Tokens to be read before it decodes: `input`, and what it generated before it was put back.
    prompt: u32,
    /// Read so far. While it runs: at step zero, in wrapping arithmetic.
    cached: u32,
    /// Tokens it got before it last joined.
    generated: u32,
    output: u32,
    /// Prompt tokens that were read at least once.
    read: u32,
    /// Places that iterations were given at least once, but for those that it decoded since it joined.
    reached: u32,
    /// Cached when it last joined.
    joined: u32,
    /// Step at which its last token is out.
    ends: u64,
    running: bool,
    held: u32,
    blocks: Vec<u32>,
    /// Changes whenever it stops running, so that what is planned for it is void.
    stamp: u32,
    /// Its priority is below that of the others.
    low: bool,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    slot: Slot,
    stamp: u32,
    new: u32,
}

/// The engine.
#[derive(Clone, Debug)]
pub struct Batch {
    cost: Cost,
    limits: Limits,
    batching: Batching,
    sequences: Vec<Sequence>,
    vacant: Vec<Slot>,
    waiting: VecDeque<Slot>,
    /// Those that could not run even alone with the blocks that are there; the others go past them.
    aside: VecDeque<Slot>,
    /// In the order in which they joined.
    running: Vec<Slot>,
    /// Requests of low priority that are here.
    pub low: u32,
    /// Whether others go past a request that could not run even alone, as with the plugin (`vllm/aside.py`).
    pub passes: bool,
    /// Blocks it could ever hold, if it reads the part of a prompt that it has blocks for, as with the plugin
    /// (`vllm/fitted.py`): of one that has room among those. 0: it reads no part for want of blocks.
    pub reach: u32,
    /// Its blocks.
    pub store: Store,
    ahead: Ahead,
    pass: Pass,
    /// So far.
    pub counts: Counts,
}

/// What comes with later steps.
#[derive(Clone, Debug, Default)]
struct Ahead {
    steps: u64,
    ends: BinaryHeap<Reverse<(u64, Slot, u32)>>,
    /// Running sequences by the step, modulo the block's tokens, at which they need another block.
    grow: [Vec<Slot>; BLOCK_TOKENS as usize],
    /// Cached tokens of all that run.
    context: u64,
}

/// The iteration that is planned or under way.
#[derive(Clone, Debug, Default)]
struct Pass {
    parts: Vec<Part>,
    /// The last of them is shorter than it would be with more blocks.
    cut: bool,
    decoding: bool,
    under_way: bool,
    given: Given,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Kept tokens.
    pub tokens: Tokens,
    /// Requests finished.
    pub finished: u64,
    /// Requests pushed back for want of a block.
    pub pushed_back: u64,
    /// Requests refused, as they need more than the whole cache.
    pub refused: u64,
}

impl Batch {
    /// An idle engine.
    #[must_use]
    pub fn new(cost: Cost, limits: Limits, batching: Batching, store: Store) -> Self {
        let limits = Limits {
            prefill_tokens: limits.prefill_tokens.max(1),
            running: limits.running.max(1),
        };
        Self {
            cost,
            limits,
            batching,
            sequences: Vec::new(),
            vacant: Vec::new(),
            waiting: VecDeque::new(),
            aside: VecDeque::new(),
            running: Vec::new(),
            ahead: Ahead::default(),
            pass: Pass::default(),
            low: 0,
            counts: Counts::default(),
            passes: false,
            reach: 0,
            store,
        }
    }

    /// A request arrives.
    pub fn admit(&mut self, id: u64, input: u32, output: u32) {
        let slot = self.place(id, input, output);
        self.queue(slot);
    }

    fn place(&mut self, id: u64, input: u32, output: u32) -> Slot {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.sequences.push(Sequence::default());
            u32::try_from(self.sequences.len() - 1).unwrap_or(u32::MAX)
        });
        let sequence = &mut self.sequences[slot as usize];
        let (stamp, blocks) = (sequence.stamp, core::mem::take(&mut sequence.blocks));
        *sequence = Sequence {
            id,
            input: input.max(1),
            prompt: input.max(1),
            output: output.max(1),
            stamp: stamp.wrapping_add(1),
            blocks,
            ..Sequence::default()
        };
        slot
    }

    /// A client sends a request. Says whether it is taken: vLLM's longest request (`max_model_len`) is never more than
    /// its cache holds, and what is longer is answered with an error.
    pub fn offer(&mut self, id: u64, input: u32, output: u32) -> bool {
        let fits = blocks_of(input.max(1).saturating_add(output.max(1))) <= self.store.cache;
        if fits {
            self.admit(id, input, output);
        } else {
            self.counts.refused += 1;
        }
        fits
    }

    /// Whether it has nothing left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.aside.is_empty()
    }

    /// Requests that wait, wholly or in part, but for those that others go past.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests whose prompts are to be read: none where others read them.
    #[must_use]
    pub fn unread(&self) -> usize {
        match self.batching {
            Batching::Mixed | Batching::PrefillFirst => self.waiting.len(),
            Batching::DecodeOnly => 0,
        }
    }

    /// Requests that decode.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Blocks it needs, in all, for its next iteration: what it holds, one for each request whose
    /// last block is full, and the whole prompts that it could begin to read.
    #[must_use]
    pub fn wants(&self) -> u32 {
        let mut wants = self.store.used + self.growth();
        let mut budget = self.budget();
        for slot in self.waiting.iter().take(self.places()) {
            if budget == 0 {
                break;
            }
            let sequence = &self.sequences[*slot as usize];
            budget = budget.saturating_sub(sequence.prompt - sequence.cached);
            wants += blocks_of(sequence.prompt) - sequence.held;
        }
        wants
    }

    /// Blocks without which it could do nothing in its next iteration: what it holds, one for each
    /// request whose last block is full, and, when none runs, the first prompt's next part.
    #[must_use]
    pub fn needs(&self) -> u32 {
        let first = self.waiting.front().filter(|_| self.running.is_empty());
        let first = first.map_or(0, |slot| {
            let sequence = &self.sequences[*slot as usize];
            let budget = if self.reaches(blocks_of(sequence.prompt) - sequence.held, 0) {
                self.budget().min(LEAST_PART)
            } else {
                self.budget()
            };
            let read = sequence.prompt.min(sequence.cached + budget);
            blocks_of(read) - sequence.held
        });
        self.store.used + self.growth() + first
    }

    /// Request and token that the next iteration begins with: what a decode gap is drawn for.
    #[must_use]
    pub fn head(&self) -> (u64, u32) {
        match (self.running.first(), self.waiting.front()) {
            (Some(slot), _) => {
                let sequence = &self.sequences[*slot as usize];
                let left = sequence.ends.saturating_sub(self.ahead.steps);
                let left = u32::try_from(left).unwrap_or(u32::MAX);
                (sequence.id, sequence.output - left.min(sequence.output))
            }
            (None, Some(slot)) => {
                let sequence = &self.sequences[*slot as usize];
                (sequence.id, u32::MAX - sequence.cached)
            }
            (None, None) => (u64::MAX, 0),
        }
    }

    fn growth(&self) -> u32 {
        let due = &self.ahead.grow[(self.ahead.steps % u64::from(BLOCK_TOKENS)) as usize];
        u32::try_from(due.len()).unwrap_or(u32::MAX)
    }

    /// Those that run begin a block each within a block's steps: a spare one for each, so that an
    /// admission is not followed by a push back at once.
    fn spare(&self) -> u32 {
        match self.store.spare {
            Spare::None => 0,
            Spare::OneEach => u32::try_from(self.running.len()).unwrap_or(u32::MAX),
        }
    }

    fn places(&self) -> usize {
        self.limits.running.saturating_sub(self.running.len())
    }

    fn budget(&self) -> u32 {
        let decodes = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        match self.batching {
            Batching::Mixed => self.limits.prefill_tokens.saturating_sub(decodes).max(1),
            Batching::PrefillFirst => self.limits.prefill_tokens,
            Batching::DecodeOnly => u32::MAX,
        }
    }

    /// Starts the next iteration; `None` while one is under way, without work, or when no block is
    /// left for what there is.
    pub fn start(&mut self) -> Option<Iteration> {
        if self.pass.under_way {
            return None;
        }
        self.make_room();
        if self.passes {
            self.step_aside();
        }
        let growth = self.growth();
        self.pass.parts.clear();
        self.pass.cut = false;
        let attention_ms = self.read_prompts(growth);
        let prompt_tokens: u32 = self.pass.parts.iter().map(|part| part.new).sum();
        self.pass.decoding = !self.running.is_empty()
            && (self.pass.parts.is_empty() || self.batching != Batching::PrefillFirst);
        if !self.pass.decoding && self.pass.parts.is_empty() {
            return None;
        }
        if self.pass.decoding {
            self.take_growth();
        }
        self.pass.under_way = true;
        self.give_prompts();
        let decodes = if self.pass.decoding {
            self.running.len()
        } else {
            0
        };
        self.pass.given.computed += decodes as u64;
        let decodes = u32::try_from(decodes).unwrap_or(u32::MAX);
        if self.batching == Batching::DecodeOnly {
            let joining = u32::try_from(self.pass.parts.len()).unwrap_or(u32::MAX);
            let decodes = decodes.saturating_add(joining);
            let context = self.ahead.context + u64::from(prompt_tokens);
            return Some(Iteration {
                ns: (self.cost.decode_ms(decodes, context) * 1e6) as u64,
                prompt_tokens: 0,
                decodes,
            });
        }
        Some(Iteration {
            ns: self.duration(prompt_tokens, attention_ms, decodes),
            prompt_tokens,
            decodes,
        })
    }

    /// A mixed iteration reads the prompt tokens and one token of each decode in one pass.
    fn duration(&self, prompt_tokens: u32, attention_ms: f64, decodes: u32) -> u64 {
        let context = if decodes > 0 { self.ahead.context } else { 0 };
        let decode = || self.cost.decode_ms(decodes, context);
        let ms = if prompt_tokens == 0 {
            decode()
        } else {
            let cost = &self.cost;
            let prefill = cost.prefill_ms(prompt_tokens, attention_ms, decodes, context);
            match self.batching {
                // Below a few hundred tokens reading the weights is what takes the time.
                Batching::Mixed => prefill.max(decode()),
                Batching::PrefillFirst | Batching::DecodeOnly => prefill,
            }
        };
        (ms * 1e6) as u64
    }

    /// Whether the iteration that was started last reads a part of a prompt for want of blocks for more.
    #[must_use]
    pub const fn reads_part(&self) -> bool {
        self.pass.cut
    }

    /// Whether a prompt that lacks `whole` blocks may be begun without them, beside the next tokens of those that decode.
    const fn reaches(&self, whole: u32, growth: u32) -> bool {
        self.store.used + growth + whole <= self.reach
    }

    /// Fills `parts` and takes their blocks; says what their attention takes, ms.
    fn read_prompts(&mut self, growth: u32) -> f64 {
        let mut attention_ms = 0.0;
        let mut budget = self.budget();
        let spare = self.spare();
        let decoding = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let mut available = self.store.available().saturating_sub(growth);
        for place in 0..self.waiting.len().min(self.places()) {
            let slot = self.waiting[place];
            let sequence = &self.sequences[slot as usize];
            let (cached, prompt, held) = (sequence.cached, sequence.prompt, sequence.held);
            let mut new = (prompt - cached).min(budget);
            let mut now = blocks_of(cached + new) - held;
            let whole = blocks_of(prompt) - held;
            if now > available && self.reaches(whole, growth) {
                // One is left for each that decodes.
                let there = available.saturating_sub(decoding);
                let part = ((held + there) * BLOCK_TOKENS).saturating_sub(cached);
                if part >= LEAST_PART {
                    (new, now, self.pass.cut) = (part, there, true);
                }
            }
            let fits = match self.store.spare {
                Spare::None => now <= available,
                Spare::OneEach => whole <= available && (held > 0 || available - whole >= spare),
            };
            if new == 0 || !fits {
                break;
            }
            available -= whole.min(available);
            budget -= new;
            for _ in 0..now {
                self.take_block(slot);
            }
            attention_ms += self.cost.attention_ms(new, cached);
            let stamp = self.sequences[slot as usize].stamp;
            self.pass.parts.push(Part { slot, stamp, new });
        }
        attention_ms
    }

    fn give_prompts(&mut self) {
        for part in &self.pass.parts {
            let sequence = &mut self.sequences[part.slot as usize];
            let end = sequence.cached + part.new;
            let again = end.min(sequence.reached).saturating_sub(sequence.cached);
            self.pass.given.computed += u64::from(part.new);
            self.pass.given.again += u64::from(again);
            sequence.reached = sequence.reached.max(end);
        }
    }

    /// Places that a sequence decoded since it joined, and how many of them it had reached before: more than none once
    /// its process was killed.
    fn decoded(&self, slot: Slot) -> (u32, u32) {
        let sequence = &self.sequences[slot as usize];
        if !sequence.running {
            return (sequence.cached, 0);
        }
        let end = self.cached(slot) + u32::from(self.pass.under_way && self.pass.decoding);
        (
            end,
            end.min(sequence.reached).saturating_sub(sequence.joined),
        )
    }

    /// What iterations were given, the one under way included.
    #[must_use]
    pub fn given(&self) -> Given {
        let running = self
            .running
            .iter()
            .map(|slot| u64::from(self.decoded(*slot).1));
        Given {
            again: self.pass.given.again + running.sum::<u64>(),
            ..self.pass.given
        }
    }

    /// Cached tokens of a sequence.
    fn cached(&self, slot: Slot) -> u32 {
        let sequence = &self.sequences[slot as usize];
        if sequence.running {
            sequence.cached.wrapping_add(self.ahead.steps as u32)
        } else {
            sequence.cached
        }
    }

    fn join(&mut self, slot: Slot) {
        let steps = self.ahead.steps;
        let sequence = &mut self.sequences[slot as usize];
        self.ahead.context += u64::from(sequence.cached);
        sequence.joined = sequence.cached;
        let left = sequence.output - sequence.generated;
        sequence.ends = steps + u64::from(left);
        // The step at which the next token begins a block.
        let until = (BLOCK_TOKENS - sequence.cached % BLOCK_TOKENS) % BLOCK_TOKENS;
        let due = (steps + u64::from(until)) % u64::from(BLOCK_TOKENS);
        sequence.cached = sequence.cached.wrapping_sub(steps as u32);
        sequence.running = true;
        self.ahead
            .ends
            .push(Reverse((sequence.ends, slot, sequence.stamp)));
        self.ahead.grow[due as usize].push(slot);
        self.running.push(slot);
    }

    /// Takes a running sequence out.
    fn leave(&mut self, slot: Slot) {
        let cached = self.cached(slot);
        let (end, again) = self.decoded(slot);
        self.pass.given.again += u64::from(again);
        self.ahead.context -= u64::from(cached);
        let until = (BLOCK_TOKENS - cached % BLOCK_TOKENS) % BLOCK_TOKENS;
        let due = ((self.ahead.steps + u64::from(until)) % u64::from(BLOCK_TOKENS)) as usize;
        if let Some(place) = self.ahead.grow[due].iter().position(|known| *known == slot) {
            self.ahead.grow[due].swap_remove(place);
        }
        if let Some(place) = self.running.iter().rposition(|known| *known == slot) {
            self.running.remove(place);
        }
        let steps = self.ahead.steps;
        let sequence = &mut self.sequences[slot as usize];
        sequence.cached = cached;
        sequence.reached = sequence.reached.max(end);
        sequence.generated =
            sequence.output - u32::try_from(sequence.ends - steps).unwrap_or(u32::MAX);
        sequence.running = false;
    }

    /// The iteration under way is over.
    pub fn finish(&mut self, mut progress: impl FnMut(Progress)) {
        if !core::mem::take(&mut self.pass.under_way) {
            return;
        }
        if core::mem::take(&mut self.pass.decoding) {
            self.ahead.steps += 1;
            let decoded = self.running.len() as u64;
            self.ahead.context += decoded;
            self.counts.tokens.generated += decoded;
            while let Some(Reverse((step, slot, stamp))) = self.ahead.ends.peek().copied()
                && step <= self.ahead.steps
            {
                self.ahead.ends.pop();
                if self.sequences[slot as usize].stamp == stamp {
                    self.leave(slot);
                    self.retire(slot, &mut progress);
                }
            }
        }
        let mut parts = core::mem::take(&mut self.pass.parts);
        for part in parts.drain(..) {
            let sequence = &mut self.sequences[part.slot as usize];
            if sequence.stamp != part.stamp {
                continue;
            }
            sequence.cached += part.new;
            let read = sequence.cached.min(sequence.input);
            self.counts.tokens.prompt += u64::from(read.saturating_sub(sequence.read));
            sequence.read = sequence.read.max(read);
            if sequence.cached < sequence.prompt {
                continue;
            }
            sequence.generated += 1;
            self.counts.tokens.generated += 1;
            if sequence.generated == 1 {
                progress(Progress::First(sequence.id));
            }
            let over = sequence.generated == sequence.output;
            if let Some(place) = self.waiting.iter().position(|known| *known == part.slot) {
                self.waiting.remove(place);
            }
            if over {
                self.retire(part.slot, &mut progress);
            } else {
                self.join(part.slot);
            }
        }
        self.pass.parts = parts;
    }

    fn retire(&mut self, slot: Slot, progress: &mut impl FnMut(Progress)) {
        self.counts.finished += 1;
        self.low -= u32::from(self.sequences[slot as usize].low);
        progress(Progress::Finished(self.sequences[slot as usize].id));
        self.release(slot);
        self.vacant.push(slot);
    }

    /// Cached tokens of all running sequences.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.ahead.context
    }
}

#[cfg(test)]
mod tests;
