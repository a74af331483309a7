//! Offline's memory as stripes: which are taken, and what that costs its requests.
//!
//! The oracle takes memory back with this: it differs from the agent in how much it takes and when, and
//! in nothing else. Which stripes go is decided by the agent's own code, `tidegate_policy::select`. Invariant: what backs offline is a whole number of stripes, and no
//! request holds a block of one that is gone.

use tidegate_policy::holders::{Backing, Holders};
use tidegate_policy::ids::{BlockId, Bytes, RequestId, StripeId, Tokens};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::select::{Greedy, Pick, Select};

use super::pool::{Pool, stripe_of};
use crate::batch::Slot;
use crate::costs::HANDLE_BYTES;

/// What one take came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub handles: u64,
    /// Offline requests that lost blocks.
    pub requests: u32,
    /// Tokens they compute again.
    pub tokens: u64,
}

/// Offline's stripes.
#[derive(Debug)]
pub(super) struct Stripes {
    bytes: u64,
    /// Backs offline; `None` before the first use.
    backed: Option<u64>,
    select: Greedy,
    picked: Vec<Pick>,
    holders: Option<Holders>,
}

impl Stripes {
    /// Stripes of so many bytes.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            backed: None,
            select: Greedy::default(),
            picked: Vec::new(),
            holders: None,
        }
    }

    /// Bytes that back offline.
    pub fn backed(&self) -> u64 {
        self.backed.unwrap_or(u64::MAX)
    }

    /// Leaves offline `bytes` the first time it is called; what is beyond is withheld from the
    /// start.
    pub fn begin(&mut self, bytes: u64, pool: &mut Pool) {
        let Some(pages) = pool.offline.store.pages.as_mut() else {
            return;
        };
        if self.backed.is_some() {
            return;
        }
        let backs = bytes / self.bytes;
        let beyond: Vec<u32> = (0..pages.stripes())
            .filter(|stripe| u64::from(*stripe) >= backs)
            .collect();
        pages.withhold(&beyond);
        self.backed = Some(u64::from(pages.backed_stripes()) * self.bytes);
        pool.offline.store.limit = u32::MAX;
    }

    /// Takes stripes of at least `bytes`, as far as there are any.
    pub fn take(&mut self, bytes: u64, pool: &mut Pool) -> Taken {
        if bytes == 0 || self.backed.is_none_or(|backed| backed == 0) {
            return Taken::default();
        }
        let costless = self.costless(bytes.div_ceil(self.bytes), pool);
        if costless.len() as u64 * self.bytes >= bytes {
            // What the selection would say too: stripes that cost nothing come first, the lowest
            // before the others. To tell it who holds what takes longer than the rest of a replay.
            return self.withhold(&costless, pool);
        }
        self.tell_holders(pool);
        let mut picked = core::mem::take(&mut self.picked);
        picked.clear();
        if let Some(holders) = &self.holders {
            self.select.select(holders, Bytes(bytes), &mut picked);
        }
        let stripes: Vec<u32> = picked.iter().map(|pick| pick.stripe.0).collect();
        self.picked = picked;
        self.withhold(&stripes, pool)
    }

    /// Takes up to `bytes` in stripes that nobody holds a block of: nothing is lost by it.
    pub fn take_unheld(&mut self, bytes: u64, pool: &mut Pool) -> Taken {
        let Some(pages) = &pool.offline.store.pages else {
            return Taken::default();
        };
        let most = (bytes / self.bytes) as usize;
        let unheld: Vec<u32> = pages.unheld_from_the_top().take(most).collect();
        self.withhold(&unheld, pool)
    }

    /// The first `most` stripes that nobody holds a block of who has computed anything.
    fn costless(&self, most: u64, pool: &Pool) -> Vec<u32> {
        let Some(pages) = &pool.offline.store.pages else {
            return Vec::new();
        };
        let nothing = |slot| pool.offline.at_stake(slot) == 0;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let begun = pool.offline.begun();
        let mut costless: Vec<u32> = begun
            .flat_map(|block| pages.stripes_of(block))
            .map(|stripe| stripe as u32)
            .filter(|stripe| pages.holders(*stripe).all(nothing))
            .chain(pages.unheld().take(most))
            .collect();
        costless.sort_unstable();
        costless.dedup();
        costless.truncate(most);
        costless
    }

    fn withhold(&mut self, stripes: &[u32], pool: &mut Pool) -> Taken {
        let Some(backed) = &mut self.backed else {
            return Taken::default();
        };
        let taken = withhold(stripes, pool);
        *backed -= taken.handles * HANDLE_BYTES;
        taken
    }

    /// Gives back up to `bytes`; says how many handles.
    pub fn restore(&mut self, bytes: u64, pool: &mut Pool) -> u64 {
        let stripes = u32::try_from(bytes / self.bytes).unwrap_or(u32::MAX);
        let pages = pool.offline.store.pages.as_mut();
        let pages = pages.filter(|pages| stripes > 0 && pages.backed_stripes() < pages.stripes());
        let (Some(pages), Some(backed)) = (pages, &mut self.backed) else {
            return 0;
        };
        let bytes = u64::from(pages.restore(stripes)) * self.bytes;
        *backed += bytes;
        bytes / HANDLE_BYTES
    }

    /// Who holds what, as the offline engine's plugin would have told it.
    fn tell_holders(&mut self, pool: &Pool) {
        let Some(pages) = &pool.offline.store.pages else {
            return;
        };
        let stripes = pages.stripes();
        let holders = self.holders.get_or_insert_with(|| {
            let handles = u32::try_from(self.bytes / HANDLE_BYTES).unwrap_or(u32::MAX);
            let stripe = |stripe: u32| Stripe {
                handles: (stripe * handles..(stripe + 1) * handles).collect(),
                blocks: pages.blocks_in(stripe).map(BlockId).collect(),
            };
            let layout =
                Layout::of_stripes((0..stripes).map(stripe).collect(), Bytes(HANDLE_BYTES));
            Holders::new(layout)
        });
        holders.forget_all();
        for stripe in 0..stripes {
            let backing = if pages.is_backed(stripe) {
                Backing::Backed
            } else {
                Backing::Taken
            };
            holders.set_backing(StripeId(stripe), backing);
        }
        let tokens = |slot| Tokens(u64::from(pool.offline.at_stake(slot)));
        let request = |slot| RequestId(u64::from(slot));
        let mut own = Vec::new();
        for (slot, blocks) in pool.offline.holders() {
            own.clear();
            own.extend(blocks.iter().copied().map(BlockId));
            holders.publish(request(slot), tokens(slot), &own);
        }
    }
}

/// The memory behind these stripes is taken from offline, and with it what its requests had there.
pub(crate) fn withhold(stripes: &[u32], pool: &mut Pool) -> Taken {
    let Some(pages) = &mut pool.offline.store.pages else {
        return Taken::default();
    };
    let mut hit: Vec<Slot> = stripes.iter().flat_map(|s| pages.holders(*s)).collect();
    hit.sort_unstable();
    hit.dedup();
    let before = pages.backed_stripes();
    pages.withhold(stripes);
    let gone = u64::from(before - pages.backed_stripes());
    let tokens = pool.offline.lose(&hit);
    pool.lost_tokens += tokens;
    Taken {
        handles: gone * stripe_of(pool.offline_block) / HANDLE_BYTES,
        requests: u32::try_from(hit.len()).unwrap_or(u32::MAX),
        tokens,
    }
}
