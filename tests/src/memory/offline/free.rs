//! An engine's free blocks, in the order in which they are handed out.

use std::collections::{BTreeSet, VecDeque};
use tidegate_policy::ids::{BlockId, StripeId};
use tidegate_policy::layout::Layout;

/// Who chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The engine: what has been free longest goes first, wherever it lies.
    Engine,
    /// Our plugin: from the stripe of the request's last block, or else from the fullest stripe
    /// that has enough, so that whole stripes stay free.
    Together,
}

impl Placement {
    /// The name every table prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Together => "together",
        }
    }
}

/// The free blocks.
#[derive(Debug)]
pub struct Free {
    /// Longest free first; with [`Placement::Engine`] all of them are in the first one.
    queues: Vec<VecDeque<BlockId>>,
    /// By block.
    queue_of: Vec<u32>,
    /// Number of free blocks, of the last change, and of the queue; none that is empty.
    fullest: BTreeSet<(usize, u64, u32)>,
    changed: Vec<u64>,
    changes: u64,
    len: usize,
}

impl Free {
    /// All of them, by number.
    pub fn new(placement: Placement, layout: &Layout, blocks: u32) -> Self {
        let stripe = |block| {
            layout
                .stripes_of(BlockId(block))
                .next()
                .unwrap_or(StripeId(0))
        };
        let queue_of: Vec<u32> = match placement {
            Placement::Engine => vec![0; blocks as usize],
            Placement::Together => (0..blocks).map(|block| stripe(block).0).collect(),
        };
        let queues = layout.len().max(1);
        let mut free = Self {
            queues: vec![VecDeque::new(); queues],
            queue_of,
            fullest: BTreeSet::new(),
            changed: vec![0; queues],
            changes: 0,
            len: 0,
        };
        free.put((0..blocks).map(BlockId));
        free
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    /// They were given back, in this order.
    pub fn put(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.next() {
            let queue = self.queue_of[first.0 as usize];
            let queue_of = &self.queue_of;
            let same = |block: &BlockId| queue_of[block.0 as usize] == queue;
            let rest: Vec<BlockId> = core::iter::from_fn(|| blocks.next_if(same)).collect();
            self.change(queue, |blocks| {
                blocks.push_back(first);
                blocks.extend(rest);
            });
        }
    }

    /// Appends `need` blocks to those of a request, or as many as there are.
    pub fn take(&mut self, need: usize, held: &mut Vec<BlockId>) {
        let end = held.len() + need.min(self.len);
        while let Some(need) = end.checked_sub(held.len()).filter(|need| *need > 0) {
            let near = held.last().map(|last| self.queue_of[last.0 as usize]);
            let near = near.filter(|near| !self.queues[*near as usize].is_empty());
            let fitting = || self.fitting(need);
            let Some(queue) = near.or_else(fitting) else {
                return;
            };
            self.change(queue, |blocks| {
                held.extend(blocks.drain(..need.min(blocks.len())));
            });
        }
    }

    /// Memory is gone from under these.
    pub fn lose(&mut self, gone: impl Fn(BlockId) -> bool) {
        for queue in (0u32..).take(self.queues.len()) {
            if self.queues[queue as usize].iter().any(|block| gone(*block)) {
                self.change(queue, |blocks| blocks.retain(|block| !gone(*block)));
            }
        }
    }

    fn fitting(&self, need: usize) -> Option<u32> {
        let enough = self.fullest.range((need, 0, 0)..).next();
        enough.or_else(|| self.fullest.last()).map(|known| known.2)
    }

    fn change(&mut self, queue: u32, how: impl FnOnce(&mut VecDeque<BlockId>)) {
        let at = queue as usize;
        let before = self.queues[at].len();
        self.fullest.remove(&(before, self.changed[at], queue));
        how(&mut self.queues[at]);
        let after = self.queues[at].len();
        self.changes += 1;
        self.changed[at] = self.changes;
        if after > 0 {
            self.fullest.insert((after, self.changes, queue));
        }
        self.len = self.len + after - before;
    }
}
