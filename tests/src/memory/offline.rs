//! An offline engine's KV pool under load: who holds which block, and what a reclaim does to it.
//!
//! Requests of a trace come in its order, the next as soon as there is room, as in a batch that
//! never ends: at most 1,024 at once, admitted when their prompt fits, grown by a block every 16
//! tokens in the order of the batch, preempted youngest first when blocks run out, ended at their
//! own length. Blocks come from the head of one free queue and go back to its tail, last first, as
//! in vLLM, or are chosen as our plugin for vLLM chooses them. So what lies on one handle is what
//! the trace's own arrivals and ends left there. Time is that of the calibrated iterations, 16
//! decodes to a step.

mod free;

pub use free::Placement;

use super::demand::BLOCK;
use free::Free;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_policy::holders::{Backing, Holders};
use tidegate_policy::ids::{BlockId, Bytes, RequestId, StripeId, Tokens};
use tidegate_policy::layout::{Layout, Region};
use tidegate_policy::select::{Pick, Select, Selected};
use tidegate_replay::engine::{CostModel, QWEN_2_5_7B};
use tidegate_replay::hardware;
use tidegate_replay::trace::Trace;

/// Requests that run at once: memory, not this, is to be what an offline engine runs out of.
const RUNNING: usize = 1_024;

/// Which index of a KV cache varies slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outermost {
    /// All blocks of one layer, then the next layer.
    Layer,
    /// All layers of one block, then the next block.
    Block,
}

impl Outermost {
    /// The name every table prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Block => "block",
        }
    }

    /// The stripes of a pool of Qwen 2.5 7B.
    #[must_use]
    pub fn layout(self, pool: Bytes, handle: Bytes) -> Layout {
        let shape = hardware::QWEN_2_5_7B;
        let block = Bytes(shape.kv_bytes_per_token() * u64::from(BLOCK));
        let blocks = u32::try_from(pool.0 / block.0).unwrap_or(u32::MAX);
        let (regions, block) = match self {
            Self::Block => (1, block),
            Self::Layer => (shape.layers, Bytes(block.0 / u64::from(shape.layers))),
        };
        let mut first_handle = 0;
        let regions: Vec<Region> = (0..regions)
            .map(|_| {
                let region = Region {
                    first_handle,
                    offset: Bytes::ZERO,
                    stride: block,
                    block,
                    first_block: BlockId(0),
                    blocks,
                };
                first_handle += region.handles(handle);
                region
            })
            .collect();
        Layout::new(&regions, handle)
    }
}

#[derive(Debug)]
struct Running {
    id: RequestId,
    tokens: u32,
    left: u32,
    blocks: Vec<BlockId>,
}

/// A request that waits: tokens to read, tokens to write.
type Waiting = (RequestId, u32, u32);

/// The engine.
#[derive(Debug)]
pub struct Offline {
    cost: CostModel,
    trace: Trace,
    next: usize,
    admitted: u64,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    free: Free,
    /// By block: taken stripes it lies in.
    gone: Vec<u32>,
    blocks: usize,
    holders: Holders,
    now: Duration,
    allocated: usize,
}

impl Offline {
    /// An empty pool.
    #[must_use]
    pub fn new(trace: &Trace, layout: Layout, placement: Placement) -> Self {
        let stripes = (0u32..).take(layout.len()).map(StripeId);
        let last = stripes.filter_map(|s| Some(layout.ends(s)?.1));
        let blocks = last.max().map_or(0, |block| block.0 + 1);
        Self {
            cost: QWEN_2_5_7B,
            trace: trace.clone(),
            next: 0,
            admitted: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            free: Free::new(placement, &layout, blocks),
            gone: vec![0; blocks as usize],
            blocks: blocks as usize,
            holders: Holders::new(layout),
            now: Duration::ZERO,
            allocated: 0,
        }
    }

    /// Virtual time.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }

    /// How many times the pool has been filled so far.
    #[must_use]
    pub fn turnover(&self) -> usize {
        self.allocated / self.blocks.max(1)
    }

    /// Sixteen decodes, and the prompts that are read beside them.
    pub fn step(&mut self) {
        let parts = self.admit();
        let batch = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let context = self.running.iter().map(|r| u64::from(r.tokens)).sum();
        self.now += self.cost.decode(batch, context) * BLOCK;
        if !parts.is_empty() {
            self.now += self.cost.prefill(parts);
        }
        self.grow();
    }

    fn admit(&mut self) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        while self.running.len() < RUNNING {
            let requests = self.trace.requests();
            let (id, prompt, left) = self.waiting.front().copied().unwrap_or_else(|| {
                let request = requests[self.next % requests.len()];
                let id = RequestId(self.admitted);
                (id, request.input_tokens, request.output_tokens)
            });
            let need = prompt.div_ceil(BLOCK) as usize;
            let fits = need <= self.free.len();
            if self.waiting.pop_front().is_none() {
                // One that is larger than the pool is left out.
                let never = need > self.blocks / 2;
                if fits || never {
                    self.next += 1;
                    self.admitted += 1;
                }
                if never {
                    continue;
                }
            } else if !fits {
                self.waiting.push_front((id, prompt, left));
            }
            if !fits {
                break;
            }
            let mut blocks = Vec::with_capacity(need);
            self.free.take(need, &mut blocks);
            self.allocated += need;
            self.holders.publish(id, Tokens(prompt.into()), &blocks);
            parts.push((prompt, 0));
            self.running.push(Running {
                id,
                tokens: prompt,
                left,
                blocks,
            });
        }
        parts
    }

    fn grow(&mut self) {
        let mut nth = 0;
        while nth < self.running.len() {
            let step = self.running[nth].left.min(BLOCK);
            let request = &self.running[nth];
            let need = (request.tokens + step).div_ceil(BLOCK) as usize;
            if need > request.blocks.len() {
                if self.free.len() == 0 {
                    self.preempt();
                    continue;
                }
                self.free.take(1, &mut self.running[nth].blocks);
                self.allocated += 1;
            }
            let request = &mut self.running[nth];
            request.tokens += step;
            request.left -= step;
            let grown = &request.blocks[request.blocks.len() - 1..];
            let tokens = Tokens(request.tokens.into());
            self.holders.extend(request.id, tokens, grown);
            if request.left == 0 {
                let ended = self.running.remove(nth);
                self.give_back(&ended);
            } else {
                nth += 1;
            }
        }
    }

    fn preempt(&mut self) {
        if let Some(youngest) = self.running.pop() {
            self.give_back(&youngest);
            self.waiting
                .push_front((youngest.id, youngest.tokens, youngest.left));
        }
    }

    fn give_back(&mut self, request: &Running) {
        self.holders.forget(request.id);
        let gone = &self.gone;
        let kept = request.blocks.iter().rev();
        let kept = kept.copied().filter(|block| gone[block.0 as usize] == 0);
        self.free.put(kept);
    }

    /// Takes at least `need`, chosen by `rule`; who loses a block starts over.
    pub fn reclaim(&mut self, rule: &mut dyn Select, need: Bytes) -> (Selected, Vec<Pick>) {
        let mut picked = Vec::new();
        let selected = rule.select(&self.holders, need, &mut picked);
        for pick in &picked {
            self.set(pick.stripe, Backing::Taken);
            self.holders.hit(pick.stripe);
        }
        let gone = &self.gone;
        self.free.lose(|block| gone[block.0 as usize] > 0);
        let hit: Vec<RequestId> = self
            .holders
            .holders()
            .iter()
            .filter(|holder| holder.is_hit())
            .map(|holder| holder.request())
            .collect();
        for nth in (0..self.running.len()).rev() {
            if hit.contains(&self.running[nth].id) {
                let lost = self.running.remove(nth);
                self.give_back(&lost);
                self.waiting.push_front((lost.id, lost.tokens, lost.left));
            }
        }
        (selected, picked)
    }

    /// Gives stripes back.
    pub fn restore(&mut self, picked: &[Pick]) {
        for pick in picked {
            let blocks = self.set(pick.stripe, Backing::Backed);
            let gone = &self.gone;
            let whole = blocks
                .into_iter()
                .filter(|block| gone[block.0 as usize] == 0);
            self.free.put(whole);
        }
    }

    fn set(&mut self, stripe: StripeId, backing: Backing) -> Vec<BlockId> {
        self.holders.set_backing(stripe, backing);
        let known = self.holders.layout().stripe(stripe);
        let blocks = known.map(|stripe| stripe.blocks).unwrap_or_default();
        for block in &blocks {
            let gone = &mut self.gone[block.0 as usize];
            *gone = match backing {
                Backing::Taken => *gone + 1,
                _ => gone.saturating_sub(1),
            };
        }
        blocks
    }
}
