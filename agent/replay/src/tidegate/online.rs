//! The online process: what the library in it writes into its page and says of its memory.
//!
//! Activity is what the interposer makes of launches: a busy edge at the first, an idle edge when the
//! prober's next round finds the work done. A gap shorter than that round stays unseen.
//!
//! Its cache is elastic. The engine reserves blocks before an iteration; what has no memory behind it
//! is not granted, and the library says how much it lacks (`Demand`). After an iteration is scheduled,
//! and after it is done, the engine says what it uses: that goes into the page, and at 90 % of what is
//! mapped the library says `Pressure`. A thread of its own maps and unmaps stripe by stripe at the
//! agent's word; a newer order replaces the one that waits, and not the one under way.
//!
//! The engine gives its blocks back as requests end. The vLLM plugin holds those of a burst for a minute
//! (`HOLD_S` of `interposer/engines`), which is not modelled.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tidegate_abi::page::{ACTIVITY_BUSY, Page};
use tidegate_node::memory::{KvRegistered, MemorySaid};
use tidegate_node::text::Text;
use tidegate_policy::ids::{AskId, BlockId, Bytes, KvId};
use tidegate_policy::layout::Layout;

use crate::baselines::KERNELS_PER_LAYER;
use crate::compute::{NEVER, noticed};
use crate::costs::{Costs, HANDLE_BYTES, ns};
use crate::memory::stripe_of;

/// What either process calls its only cache.
pub(super) const KV: KvId = KvId(1);
/// Kernel launches of one prefill iteration: not a graph.
const PREFILL_LAUNCHES: u64 = 32 * KERNELS_PER_LAYER as u64;
/// Largest batch with a graph of its own size; above it and between, the next multiple of eight, as
/// vLLM captures them.
const EXACT_GRAPHS: u32 = 4;

/// The process.
#[derive(Debug)]
pub(super) struct Online {
    pub page: Arc<Page>,
    probe: u64,
    busy: bool,
    launches: u64,
    graph: u64,
    done: u64,
    /// When the prober publishes idle.
    publish: u64,
    /// Requests in flight, as the engine says; `None`: it does not.
    hints: Option<u32>,
    pub cache: Option<Cache>,
}

impl Online {
    pub fn new(costs: &Costs, hints: bool, cache: Option<Cache>) -> Self {
        Self {
            page: Arc::default(),
            probe: ns(costs.probe),
            busy: false,
            launches: 0,
            graph: 0,
            done: 0,
            publish: NEVER,
            hints: hints.then_some(0),
            cache,
        }
    }

    /// When it does something by itself.
    pub fn next(&self) -> u64 {
        let mapped = self.cache.as_ref().map_or(NEVER, Cache::next);
        self.publish.min(mapped)
    }

    fn ring(&self) {
        self.page.process.doorbell.fetch_add(1, Release);
    }

    /// The next edge: begins a period, or ends one.
    fn edge(&mut self, busy: bool) {
        let words = &self.page.devices[0];
        let generation = (words.activity.load(Acquire) >> 1) + 1;
        let state = if busy { ACTIVITY_BUSY } else { 0 };
        words.activity.store(generation << 1 | state, Release);
        self.busy = busy;
        self.ring();
    }

    /// It submits an iteration. Says whether it rang.
    pub fn launched(&mut self, prompt: bool, decodes: u32, now: u64) -> bool {
        self.publish = NEVER;
        let rings = !self.busy;
        if rings {
            self.page.devices[0].busy_since_ns.store(now, Relaxed);
            (self.launches, self.graph) = (0, 0);
            self.edge(true);
        }
        if prompt {
            self.launches += PREFILL_LAUNCHES;
        } else {
            self.launches += 1;
            self.graph = u64::from(if decodes <= EXACT_GRAPHS {
                decodes
            } else {
                decodes.next_multiple_of(8)
            });
        }
        rings
    }

    /// That iteration is done.
    pub fn is_done(&mut self, now: u64) {
        self.done = now;
        self.publish = noticed(now, self.probe);
    }

    /// The prober finds that nothing runs, if it looks by now. Says whether it rang.
    pub fn publishes(&mut self, now: u64) -> bool {
        if now < self.publish {
            return false;
        }
        self.publish = NEVER;
        let words = &self.page.devices[0];
        words.idle_since_ns.store(self.done, Relaxed);
        words.launches.store(self.launches, Relaxed);
        words.graph.store(self.graph, Relaxed);
        self.edge(false);
        true
    }

    /// The prober has made its rounds up to now.
    pub fn probed(&self, now: u64) {
        let round = now - now % self.probe.max(1);
        self.page.process.prober_ns.store(round, Relaxed);
    }

    /// Bytes it could ever have mapped, if it reads a part of a prompt meanwhile: as vLLM does with the plugin, which tells
    /// of requests, too.
    pub fn reads_parts(&self) -> Option<u64> {
        let cache = self.cache.as_ref().filter(|_| self.hints.is_some());
        cache.map(Cache::whole)
    }

    /// So many requests are in flight: `tg_requests_in_flight`. Says whether it rang.
    pub fn in_flight(&mut self, count: u32) -> bool {
        let Some(before) = self.hints else {
            return false;
        };
        self.hints = Some(count);
        let word = u64::from(count) + 1;
        self.page.process.in_flight.store(word, Release);
        let rings = (before > 0) != (count > 0);
        if rings {
            self.ring();
        }
        rings
    }

    /// The engine uses so many bytes: `tg_usage`. What the library says of it.
    pub fn uses(&mut self, bytes: u64, now: u64) -> Option<MemorySaid> {
        let cache = self.cache.as_mut()?;
        cache.advance(now);
        cache.reserved = bytes;
        let words = &self.page.memory[0];
        words.version.fetch_add(1, Release);
        words.used.store(bytes, Release);
        words.reserved.store(bytes, Release);
        words.mapped.store(cache.mapped, Release);
        words.version.fetch_add(1, Release);
        let pressed = cache.mapped > 0 && bytes.saturating_mul(10) >= cache.mapped * 9;
        let newly = core::mem::replace(&mut cache.pressed, pressed) != pressed && pressed;
        newly.then_some(MemorySaid::Pressure {
            kv: KV,
            used: Bytes(bytes),
        })
    }

    /// Bytes that the page says are used.
    pub fn used(&self) -> u64 {
        self.page.memory[0].used.load(Relaxed)
    }
}

/// An order to map or unmap that is being carried out.
#[derive(Clone, Copy, Debug)]
struct Doing {
    seq: u64,
    target: u64,
    /// When the stripe that is being moved was begun.
    from: u64,
}

/// Its elastic cache, and the thread that maps it.
#[derive(Debug)]
pub(super) struct Cache {
    block: u64,
    stripe: u64,
    stripes: u64,
    /// One stripe: to make and map it, and to unmap and release it, ns.
    map: u64,
    unmap: u64,
    pub mapped: u64,
    /// Behind blocks that the engine has.
    reserved: u64,
    doing: Option<Doing>,
    /// The newest order, while another is being carried out.
    queued: Option<(u64, u64)>,
    asks: u64,
    /// What the engine asked for and did not get.
    wants: u64,
    pressed: bool,
}

impl Cache {
    /// Of blocks of `block` bytes, as many as fit into `pool`.
    pub fn new(pool: u64, block: u64, costs: &Costs) -> Self {
        let stripe = stripe_of(block);
        let handles = stripe / HANDLE_BYTES;
        Self {
            block,
            stripe,
            stripes: pool / stripe,
            map: handles * ns(costs.create_handle + costs.map_handle).max(1),
            unmap: handles * ns(costs.quarantine_handle + costs.release_handle).max(1),
            mapped: 0,
            reserved: 0,
            doing: None,
            queued: None,
            asks: 0,
            wants: 0,
            pressed: false,
        }
    }

    /// All that can be mapped of it.
    pub fn whole(&self) -> u64 {
        self.stripes * self.stripe
    }

    /// What the engine asked for last, if it did not get it.
    pub const fn wants(&self) -> u64 {
        self.wants
    }

    /// Bytes that are mapped as one.
    pub const fn stripe(&self) -> u64 {
        self.stripe
    }

    /// What it says when it is registered: it begins without memory.
    pub fn registered(&self) -> KvRegistered {
        KvRegistered {
            kv: KV,
            slot: 0,
            elastic: true,
            stripes: Some((
                layout(self.stripes, self.block, self.stripe),
                vec![false; self.stripes as usize],
            )),
            fixed: Bytes::ZERO,
            refused: Text::default(),
        }
    }

    /// The engine wants `bytes` in all for its next iteration, or will when requests that came are read (`ahead`). What
    /// the library says if that is more than is mapped.
    pub fn reserve(&mut self, bytes: u64, ahead: bool, now: u64) -> Option<MemorySaid> {
        self.advance(now);
        let lacks = bytes.min(self.whole()).saturating_sub(self.mapped);
        self.wants = if lacks > 0 { bytes } else { 0 };
        if lacks == 0 {
            return None;
        }
        self.asks += 1;
        Some(MemorySaid::Demand {
            ask: AskId(self.asks),
            slot: 0,
            kv: Some(KV),
            bytes: Bytes(lacks.next_multiple_of(self.stripe)),
            mapped: Some(Bytes(self.mapped)),
            ahead,
            usage: None,
        })
    }

    /// An order to have `bytes` mapped.
    pub fn order(&mut self, seq: u64, bytes: u64, now: u64) {
        self.queued = Some((seq, bytes));
        self.begin(now);
    }

    fn begin(&mut self, now: u64) {
        if self.doing.is_none()
            && let Some((seq, target)) = self.queued.take()
        {
            let from = now;
            self.doing = Some(Doing { seq, target, from });
        }
    }

    /// Stripes that are left to map of an order, or to unmap.
    fn left(&self, doing: &Doing) -> (u64, u64) {
        let target = doing.target.min(self.whole());
        let least = target.max(self.reserved.next_multiple_of(self.stripe));
        (
            target.saturating_sub(self.mapped) / self.stripe,
            self.mapped.saturating_sub(least).div_ceil(self.stripe),
        )
    }

    fn advance(&mut self, now: u64) {
        let Some(mut doing) = self.doing else { return };
        let (up, down) = self.left(&doing);
        let passed = now.saturating_sub(doing.from);
        let (up, down) = (up.min(passed / self.map), down.min(passed / self.unmap));
        self.mapped = self.mapped + up * self.stripe - down * self.stripe;
        doing.from += up * self.map + down * self.unmap;
        self.doing = Some(doing);
    }

    /// When an order is carried out.
    pub fn next(&self) -> u64 {
        self.doing.map_or(NEVER, |doing| {
            let (up, down) = self.left(&doing);
            doing.from + up * self.map + down * self.unmap
        })
    }

    /// The order is carried out, if it is by now: the answer.
    pub fn carried_out(&mut self, now: u64) -> Option<MemorySaid> {
        self.advance(now);
        let done = self.doing.filter(|_| self.next() <= now)?;
        self.doing = None;
        self.begin(now);
        Some(MemorySaid::Mapped {
            kv: KV,
            mapped: Bytes(self.mapped),
            seq: done.seq,
        })
    }

    /// What it will have mapped at most by the orders it has.
    pub fn promised(&self) -> u64 {
        let doing = self.doing.map_or(0, |doing| doing.target);
        let queued = self.queued.map_or(0, |queued| queued.1);
        self.mapped.max(doing).max(queued)
    }
}

/// `stripes` of blocks that lie one after the other.
pub(super) fn layout(stripes: u64, block: u64, stripe: u64) -> Layout {
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let handles = narrow(stripe / HANDLE_BYTES);
    let blocks = stripes * stripe / block;
    let cut = (0..stripes).map(|nth| {
        let first = nth * stripe / block;
        let end = ((nth + 1) * stripe).div_ceil(block).min(blocks);
        (
            handles,
            BlockId(narrow(first)),
            narrow(end.saturating_sub(first)),
        )
    });
    Layout::of_runs(cut, Bytes(HANDLE_BYTES))
}
