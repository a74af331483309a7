//! An offline engine whose tokens are computed from the actual content of its KV pages.
//!
//! The scheduler is in the shape of vLLM's: blocks of four tokens from one free queue, full blocks cached by the tokens
//! up to their end as soon as they are scheduled, prompts in chunks, and the youngest request preempted when blocks run
//! out. With `overlap` the next step is scheduled before the outputs of the last one are on the host.
//!
//! The key-value pair of a position is a hash of its token, of the pair before it and of one pair of every block
//! before, read from their pages. A token is a hash of all pairs, read from their pages. So a page with any other
//! content gives a wrong token whenever it is read.
//!
//! The plugin (`interposer/engines/tidegate_engines/vllm/lost.py`) acts once per step, after the outputs are on the
//! host. Requests that hold a lost block start over, and all of their output under way is dropped. Their later blocks
//! leave the cache, with everything that was computed from them. Lost blocks are withheld until they are back.

use super::figures::Break;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Tokens of a block.
const BLOCK: usize = 4;
/// Blocks of a stripe.
pub(super) const PER_STRIPE: u32 = 6;
/// Stripes of a cache.
pub(super) const STRIPES: u32 = 12;
const BLOCKS: u32 = PER_STRIPE * STRIPES;
/// Prompt tokens of one step.
const CHUNK: usize = 7;
/// Requests of one step.
const BATCH: usize = 6;

const fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// The token after `tokens`, from the tokens alone.
fn truth(tokens: &[u64]) -> u64 {
    let (mut before, mut context, mut next) = (1, 3, 7);
    for (position, token) in tokens.iter().enumerate() {
        before = mix(mix(before, *token), context);
        next = mix(next, before);
        if position % BLOCK == BLOCK - 1 {
            context = mix(context, before);
        }
    }
    next
}

/// What a stripe is backed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    Own,
    /// Between the unmap and the next map.
    Nothing,
    Quarantine,
}

/// One entry of a job's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Lost(u32),
    Back(u32),
}

/// The memory of one process, and its job's log.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    content: Vec<[u64; BLOCK]>,
    pub backing: Vec<Backing>,
    quarantine: [u64; BLOCK],
    log: Vec<Entry>,
    /// Per stripe: where the log ended when it named the last of its blocks as lost.
    lost: Vec<usize>,
    /// Entries that a reader can see.
    pub visible: usize,
}

impl Pages {
    pub fn new() -> Self {
        Self {
            content: vec![[0; BLOCK]; BLOCKS as usize],
            backing: vec![Backing::Own; STRIPES as usize],
            quarantine: [0; BLOCK],
            log: Vec::new(),
            lost: vec![0; STRIPES as usize],
            visible: 0,
        }
    }

    fn cell(&mut self, block: u32, position: usize) -> &mut u64 {
        let page = match self.backing[(block / PER_STRIPE) as usize] {
            Backing::Own => &mut self.content[block as usize],
            _ => &mut self.quarantine,
        };
        &mut page[position % BLOCK]
    }

    /// Memory behind a stripe is another one's from here on, or a new one's.
    pub fn set(&mut self, stripe: u32, backing: Backing) {
        if self.backing[stripe as usize] != backing {
            for block in stripe * PER_STRIPE..(stripe + 1) * PER_STRIPE {
                self.content[block as usize] = [0xdead_0000 | u64::from(block); BLOCK];
            }
            self.backing[stripe as usize] = backing;
        }
    }

    /// Appends what happened to a stripe. Not visible before `visible` says so.
    pub fn append(&mut self, stripe: u32, lost: bool) {
        for block in stripe * PER_STRIPE..(stripe + 1) * PER_STRIPE {
            self.log.push(if lost {
                Entry::Lost(block)
            } else {
                Entry::Back(block)
            });
        }
        if lost {
            self.lost[stripe as usize] = self.log.len();
        }
    }

    /// Whether a reader that has read so many entries knows that the stripe is lost.
    pub fn is_known_lost(&self, stripe: u32, read: usize) -> bool {
        self.lost[stripe as usize] <= read
    }

    pub fn log_end(&self) -> usize {
        self.log.len()
    }

    pub fn clear_quarantine(&mut self) {
        self.quarantine = [0; BLOCK];
    }
}

#[derive(Clone, Debug)]
struct Request {
    prompt: usize,
    /// Prompt and accepted tokens.
    tokens: Vec<u64>,
    want: usize,
    blocks: Vec<u32>,
    running: bool,
    /// Positions whose pairs are written once everything scheduled is done.
    computed: usize,
    /// Outputs under way.
    pending: usize,
    /// Raised when output under way is to be dropped.
    epoch: u64,
}

impl Request {
    fn done(&self) -> bool {
        self.tokens.len() - self.prompt >= self.want
    }
}

/// A request's part of a step, as the worker has it.
#[derive(Clone, Debug)]
struct Item {
    id: u64,
    epoch: u64,
    blocks: Vec<u32>,
    /// What the host knew; positions beyond are the worker's own last output.
    tokens: Vec<u64>,
    from: usize,
    to: usize,
    emits: bool,
}

/// A step: scheduled, then executed, then processed.
#[derive(Clone, Debug)]
pub(super) struct Step {
    items: Vec<Item>,
    outputs: Vec<(u64, u64, u64)>,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    pub wrong: u64,
    pub finished: u64,
    pub hit: u64,
    pub accepted: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Engine {
    broken: Break,
    overlap: bool,
    requests: BTreeMap<u64, Request>,
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    free: VecDeque<u32>,
    holders: Vec<u32>,
    cached: BTreeMap<u64, u32>,
    key_of: Vec<Option<u64>>,
    withheld: BTreeSet<u32>,
    /// Log entries it has read.
    pub read: usize,
    /// The worker's last outputs.
    sampled: BTreeMap<u64, u64>,
    pub under_way: usize,
    /// Block tables of the steps under way, the oldest first.
    flying: VecDeque<Vec<Vec<u32>>>,
    next: u64,
    pub changed: BTreeSet<u64>,
}

impl Engine {
    pub fn new(overlap: bool, broken: Break) -> Self {
        Self {
            broken,
            overlap,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            free: (0..BLOCKS).collect(),
            holders: vec![0; BLOCKS as usize],
            cached: BTreeMap::new(),
            key_of: vec![None; BLOCKS as usize],
            withheld: BTreeSet::new(),
            read: 0,
            sampled: BTreeMap::new(),
            under_way: 0,
            flying: VecDeque::new(),
            next: 0,
            changed: BTreeSet::new(),
        }
    }

    pub fn add(&mut self, prompt: Vec<u64>, want: usize) {
        self.next += 1;
        let request = Request {
            prompt: prompt.len(),
            tokens: prompt,
            want,
            blocks: Vec::new(),
            running: false,
            computed: 0,
            pending: 0,
            epoch: 0,
        };
        self.requests.insert(self.next, request);
        self.waiting.push_back(self.next);
    }

    /// Requests that are not finished.
    pub fn left(&self) -> u64 {
        self.requests
            .values()
            .filter(|request| !request.done())
            .count() as u64
    }

    /// What a request holds and would compute again; nothing once it ended.
    pub fn held(&self, id: u64) -> Option<(u64, &[u32])> {
        let request = self.requests.get(&id).filter(|request| request.running)?;
        Some((request.tokens.len() as u64, &request.blocks))
    }

    pub fn ids(&self) -> Vec<u64> {
        self.requests.keys().copied().collect()
    }

    /// The scheduler's process starts over: what it accepted stands, all else is forgotten.
    pub fn restart(&mut self) {
        let mut fresh = Self::new(self.overlap, self.broken);
        fresh.next = self.next;
        for (id, request) in core::mem::take(&mut self.requests) {
            let (prompt, tokens, want) = (request.prompt, request.tokens, request.want);
            let epoch = request.epoch + 1;
            let request = Request {
                prompt,
                tokens,
                want,
                blocks: Vec::new(),
                running: false,
                computed: 0,
                pending: 0,
                epoch,
            };
            if !request.done() {
                fresh.waiting.push_back(id);
            }
            fresh.changed.insert(id);
            fresh.requests.insert(id, request);
        }
        fresh.under_way = self.under_way;
        fresh.flying = core::mem::take(&mut self.flying);
        *self = fresh;
    }

    /// Another process goes on with what was accepted: no step of the old one ends.
    pub fn begins_anew(&mut self) {
        self.restart();
        self.under_way = 0;
        self.flying.clear();
    }

    /// The next step, if there is anything to do and room for another under way.
    pub fn schedule(&mut self) -> Option<Step> {
        if self.under_way > usize::from(self.overlap) {
            return None;
        }
        let mut items = Vec::new();
        let mut place = 0;
        while place < self.running.len() && items.len() < BATCH {
            let id = self.running[place];
            match self.item(id) {
                Room::Item(item) => {
                    items.push(item);
                    place += 1;
                }
                Room::Nothing => place += 1,
                Room::Full => {
                    let Some(youngest) = self.running.last().copied() else {
                        break;
                    };
                    items.retain(|item: &Item| item.id != youngest);
                    self.drop_request(youngest);
                    self.waiting.push_front(youngest);
                }
            }
        }
        while items.len() < BATCH
            && let Some(id) = self.waiting.front().copied()
        {
            if !self.admit(id) {
                break;
            }
            self.waiting.pop_front();
            self.running.push(id);
            if let Room::Item(item) = self.item(id) {
                items.push(item);
            }
        }
        if items.is_empty() {
            return None;
        }
        self.under_way += 1;
        let tables = items.iter().map(|item| item.blocks.clone());
        self.flying.push_back(tables.collect());
        Some(Step {
            items,
            outputs: Vec::new(),
        })
    }

    fn admit(&mut self, id: u64) -> bool {
        let request = &self.requests[&id];
        let tokens = request.tokens.clone();
        let mut shared = Vec::new();
        let mut key = 0;
        for full in tokens[..tokens.len() - 1].chunks_exact(BLOCK) {
            key = full.iter().fold(mix(key, 1), |key, token| mix(key, *token));
            match self.cached.get(&key) {
                Some(block) => shared.push(*block),
                None => break,
            }
        }
        let need = tokens.len().div_ceil(BLOCK) - shared.len();
        let spare = self
            .free
            .iter()
            .filter(|block| !shared.contains(block))
            .count();
        if spare <= need {
            return false;
        }
        for block in &shared {
            self.hold(*block);
        }
        let request = self.requests.get_mut(&id).expect("it waits");
        request.computed = shared.len() * BLOCK;
        (request.blocks, request.running) = (shared, true);
        true
    }

    fn hold(&mut self, block: u32) {
        self.holders[block as usize] += 1;
        self.free.retain(|free| *free != block);
    }

    /// A request's part of the next step, with blocks for it.
    fn item(&mut self, id: u64) -> Room {
        let request = &self.requests[&id];
        let known = request.tokens.len() + request.pending;
        if request.computed >= known || known - request.prompt >= request.want {
            return Room::Nothing;
        }
        let to = known.min(request.computed + CHUNK);
        let missing = to.div_ceil(BLOCK).saturating_sub(request.blocks.len());
        if missing > self.free.len() {
            return Room::Full;
        }
        let fresh: Vec<u32> = self.free.drain(..missing).collect();
        for block in &fresh {
            self.holders[*block as usize] += 1;
            self.uncache(*block);
        }
        let request = self.requests.get_mut(&id).expect("it runs");
        request.blocks.extend(fresh);
        let (from, emits) = (request.computed, to == known);
        request.computed = to;
        request.pending += usize::from(emits);
        let item = Item {
            id,
            epoch: request.epoch,
            blocks: request.blocks.clone(),
            tokens: request.tokens.clone(),
            from,
            to,
            emits,
        };
        self.changed.insert(id);
        // As vLLM does: full blocks are in the cache before they are computed.
        let full = to.min(item.tokens.len()) / BLOCK;
        let mut key = 0;
        for (nth, tokens) in item.tokens.chunks_exact(BLOCK).take(full).enumerate() {
            key = tokens
                .iter()
                .fold(mix(key, 1), |key, token| mix(key, *token));
            let block = item.blocks[nth];
            if !self.cached.contains_key(&key) && self.key_of[block as usize].is_none() {
                self.cached.insert(key, block);
                self.key_of[block as usize] = Some(key);
            }
        }
        Room::Item(item)
    }

    fn uncache(&mut self, block: u32) {
        if let Some(key) = self.key_of[block as usize].take() {
            self.cached.remove(&key);
        }
    }

    /// The worker does a step on the pages as they are now.
    pub fn execute(&mut self, step: &mut Step, pages: &mut Pages) {
        for item in &step.items {
            let sampled = self.sampled.get(&item.id).copied().unwrap_or(0);
            let token = |position: usize| item.tokens.get(position).copied().unwrap_or(sampled);
            let block = |position: usize| item.blocks[position / BLOCK];
            for position in item.from..item.to {
                let before = match position.checked_sub(1) {
                    Some(before) => *pages.cell(block(before), before),
                    None => 1,
                };
                let context = (0..position / BLOCK)
                    .map(|nth| *pages.cell(item.blocks[nth], BLOCK - 1))
                    .fold(3, mix);
                let pair = mix(mix(before, token(position)), context);
                *pages.cell(block(position), position) = pair;
            }
            if item.emits {
                let pairs = (0..item.to).map(|position| *pages.cell(block(position), position));
                let next = pairs.fold(7, mix);
                self.sampled.insert(item.id, next);
                step.outputs.push((item.id, item.epoch, next));
            }
        }
    }

    /// The outputs of a step are on the host.
    pub fn process(&mut self, step: &Step, pages: &Pages) -> Came {
        self.under_way = self.under_way.saturating_sub(1);
        let mut came = Came {
            hit: self.poll(pages),
            ..Came::default()
        };
        self.flying.pop_front();
        for (id, epoch, token) in &step.outputs {
            let Some(request) = self.requests.get_mut(id) else {
                continue;
            };
            let stale = *epoch != request.epoch && self.broken != Break::KeepInFlight;
            if stale || request.done() || (request.pending == 0 && *epoch == request.epoch) {
                continue;
            }
            request.pending = request.pending.saturating_sub(1);
            let truth = truth(&request.tokens);
            came.wrong += u64::from(truth != *token);
            came.accepted += 1;
            request.tokens.push(*token);
            self.changed.insert(*id);
            if request.done() {
                came.finished += 1;
                self.drop_request(*id);
            }
        }
        came
    }

    /// Once per step: what was lost, then what is back.
    pub fn poll(&mut self, pages: &Pages) -> u64 {
        let news: Vec<Entry> = pages.log[self.read.min(pages.visible)..pages.visible].to_vec();
        self.read = pages.visible;
        let lost: BTreeSet<u32> = news
            .iter()
            .filter_map(|entry| match entry {
                Entry::Lost(block) => Some(*block),
                Entry::Back(_) => None,
            })
            .collect();
        let (hit, disowned) = self.reach(&lost);
        for id in &hit {
            self.drop_request(*id);
            self.waiting.push_front(*id);
        }
        for block in disowned {
            self.uncache(block);
        }
        for entry in news {
            match entry {
                Entry::Lost(block) => {
                    self.uncache(block);
                    if self.broken != Break::NoWithhold {
                        self.free.retain(|free| *free != block);
                        self.withheld.insert(block);
                    }
                }
                Entry::Back(block) => {
                    if self.withheld.remove(&block) && self.holders[block as usize] == 0 {
                        self.free.push_back(block);
                    }
                }
            }
        }
        hit.len() as u64
    }

    /// The requests that may have read garbage, and the blocks that may have been written from it: the lost ones, and
    /// the later ones in the table of a request or of a step under way. Two requests of one prefix may share what one
    /// of them wrote from a lost block that the other does not hold: hence to a fixed point, as in the plugin.
    fn reach(&self, lost: &BTreeSet<u32>) -> (Vec<u64>, BTreeSet<u32>) {
        let mut disowned = lost.clone();
        if lost.is_empty() {
            return (Vec::new(), disowned);
        }
        let running = self.running.iter();
        let mut open: Vec<(Option<u64>, &[u32])> = running
            .map(|id| (Some(*id), &self.requests[id].blocks[..]))
            .collect();
        // Also of requests that gave their blocks up while a step with them was under way.
        open.extend(self.flying.iter().flatten().map(|table| (None, &table[..])));
        let mut hit = BTreeSet::new();
        loop {
            let before = open.len();
            open.retain(|(id, table)| {
                let Some(first) = table.iter().position(|block| disowned.contains(block)) else {
                    return true;
                };
                hit.extend(*id);
                if self.broken != Break::KeepLaterBlocks {
                    disowned.extend(&table[first..]);
                }
                false
            });
            if open.len() == before {
                break;
            }
        }
        let in_order = self.running.iter().copied();
        (in_order.filter(|id| hit.contains(id)).collect(), disowned)
    }

    /// A request gives up its blocks: it ended, is preempted, or lost some of them.
    fn drop_request(&mut self, id: u64) {
        self.running.retain(|running| *running != id);
        let request = self.requests.get_mut(&id).expect("it runs");
        (request.running, request.computed, request.pending) = (false, 0, 0);
        request.epoch += 1;
        self.changed.insert(id);
        let blocks = core::mem::take(&mut request.blocks);
        for block in blocks.into_iter().rev() {
            let holders = &mut self.holders[block as usize];
            *holders -= 1;
            if *holders == 0 && !self.withheld.contains(&block) {
                self.free.push_back(block);
            }
        }
    }
}

enum Room {
    Item(Item),
    /// It has nothing to do in this step.
    Nothing,
    /// There is no block for it.
    Full,
}
