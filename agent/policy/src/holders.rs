//! Which requests would lose a stripe: the inverted index that selection works on.
//!
//! For each request the index has its tokens (prompt and answer so far, which it would compute again) and the stripes
//! that contain any block of it. A prefix block that several requests share is in the list of each, so each is counted.
//! Blocks without a request, also cached ones, cost nothing.
//!
//! A request is *hit* when a reclaim takes a block of it, until the engine reports it again. It has to start over
//! anyway, so taking more of it costs nothing.

use crate::ids::{BlockId, RequestId, StripeId, Tokens};
use crate::layout::Layout;
pub use crate::words::choice::Backing;
use std::collections::BTreeMap;

/// One stripe in the list of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stripe: u32,
    /// Number of the publication in which the request first held it.
    since: u64,
}

/// One request that holds blocks.
#[derive(Clone, Debug)]
pub struct Holder {
    request: RequestId,
    tokens: Tokens,
    hit: bool,
    /// By stripe.
    held: Vec<Held>,
}

impl Holder {
    /// Which.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        self.request
    }

    /// What it would compute again, were it hit.
    #[must_use]
    pub const fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// Whether it has to start over already.
    #[must_use]
    pub const fn is_hit(&self) -> bool {
        self.hit
    }

    /// Its stripes, each with the publication in which it first held it.
    pub fn stripes(&self) -> impl Iterator<Item = (StripeId, u64)> + '_ {
        self.held
            .iter()
            .map(|held| (StripeId(held.stripe), held.since))
    }

    /// Whether any block of it lies there.
    #[must_use]
    pub fn holds(&self, stripe: StripeId) -> bool {
        self.held
            .binary_search_by_key(&stripe.0, |held| held.stripe)
            .is_ok()
    }
}

/// The requests of one job over its stripes.
///
/// A process publishes what it likes, in any order: [`Self::publish`] and [`Self::forget`] take O(log n)
/// for n requests and O(b log b) for the b blocks that are named.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    layout: Layout,
    backing: Vec<Backing>,
    /// In no order: the last one takes the place of one that ends.
    holders: Vec<Holder>,
    /// Where in `holders` a request is.
    places: BTreeMap<RequestId, usize>,
    /// Stripes in all lists together.
    entries: usize,
    /// Stripes that all lists together have room for.
    capacity: usize,
    /// Stripes that cannot be taken.
    closed: usize,
    publications: u64,
}

/// Stripes that all lists together may name, for each stripe there is and beside that: every block
/// shared by sixteen requests on average, and what a small cache under a long common prefix needs.
/// A list that does not fit is not kept, so its request counts as one that loses nothing: who claims
/// more than an engine has is the first to lose blocks.
const ENTRIES_PER_STRIPE: usize = 16;
const ENTRIES_BESIDE: usize = 1 << 16;

/// What a request takes beside its list, bytes: its place in `holders`, which has room for twice as many, a place in a
/// tree of which half is empty, and what an allocator needs for the list.
const REQUEST: usize = 2 * size_of::<Holder>() + 2 * size_of::<(RequestId, usize)>() + 32;

/// Requests for which there is room although there are none.
const SPARE: usize = 64;

/// Bytes that a list of so many stripes takes.
const fn bytes_of(stripes: usize) -> usize {
    REQUEST + stripes * size_of::<Held>()
}

impl Holders {
    /// No request; every stripe backed.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            backing: vec![Backing::Backed; layout.len()],
            layout,
            ..Self::default()
        }
    }

    /// Where handles and blocks lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Each request that holds blocks, in no order.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Bytes that all lists take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.holders.len() * REQUEST + self.capacity * size_of::<Held>()
    }

    /// As [`Self::publish_within`], with room for any list.
    pub fn publish(&mut self, request: RequestId, tokens: Tokens, blocks: &[BlockId]) {
        self.publish_within(usize::MAX, request, tokens, blocks);
    }

    /// A request holds `blocks` and would compute `tokens` again from here on. Replaces what it
    /// published before. One that holds nothing loses nothing, and is not kept; nor is one that would have the lists
    /// take more than `room` bytes beside what they take without it.
    pub fn publish_within(
        &mut self,
        room: usize,
        request: RequestId,
        tokens: Tokens,
        blocks: &[BlockId],
    ) {
        let mut held = self.held(blocks);
        let before = self
            .find(request)
            .map(|holder| (holder.held.len(), holder.held.capacity()));
        let (entries, capacity) = before.unwrap_or_default();
        let given_up = before.map_or(0, |_| bytes_of(capacity));
        let fits = held.len() <= self.room() + entries
            && bytes_of(held.capacity()) <= room.saturating_add(given_up);
        if held.is_empty() || !fits {
            return self.forget(request);
        }
        self.capacity = self.capacity - capacity + held.capacity();
        let Some(holder) = self.find(request) else {
            return self.add(request, tokens, held);
        };
        let (before, now) = (holder.held.len(), held.len());
        let old = &holder.held;
        for held in &mut held {
            if let Ok(known) = old.binary_search_by_key(&held.stripe, |old| old.stripe) {
                held.since = old[known].since;
            }
        }
        (holder.tokens, holder.hit, holder.held) = (tokens, false, held);
        self.entries = self.entries - before + now;
    }

    /// Stripes that lists may still name.
    fn room(&self) -> usize {
        let most = ENTRIES_PER_STRIPE * self.layout.len() + ENTRIES_BESIDE;
        most.saturating_sub(self.entries)
    }

    /// A request grew by `blocks` and would compute `tokens` again from here on.
    pub fn extend(&mut self, request: RequestId, tokens: Tokens, blocks: &[BlockId]) {
        let (room, held) = (self.room(), self.held(blocks));
        if held.len() > room {
            return;
        }
        let Some(holder) = self.find(request) else {
            if !held.is_empty() {
                self.capacity += held.capacity();
                self.add(request, tokens, held);
            }
            return;
        };
        holder.tokens = tokens;
        let (before, capacity) = (holder.held.len(), holder.held.capacity());
        for new in held {
            let known = holder
                .held
                .binary_search_by_key(&new.stripe, |held| held.stripe);
            if let Err(at) = known {
                holder.held.insert(at, new);
            }
        }
        let added = holder.held.len() - before;
        let grown = holder.held.capacity() - capacity;
        self.entries += added;
        self.capacity += grown;
    }

    /// The stripes of `blocks`, ascending, each once, as of a new publication.
    fn held(&mut self, blocks: &[BlockId]) -> Vec<Held> {
        self.publications += 1;
        let since = self.publications;
        let stripes = blocks
            .iter()
            .flat_map(|block| self.layout.stripes_of(*block));
        let mut held: Vec<Held> = stripes
            .map(|stripe| Held {
                stripe: stripe.0,
                since,
            })
            .collect();
        held.sort_unstable_by_key(|held| held.stripe);
        held.dedup_by_key(|held| held.stripe);
        // Many blocks of a stripe leave one entry: what is kept is what `entries` counts, not what was said.
        held.shrink_to_fit();
        held
    }

    fn add(&mut self, request: RequestId, tokens: Tokens, held: Vec<Held>) {
        self.places.insert(request, self.holders.len());
        self.entries += held.len();
        self.holders.push(Holder {
            request,
            tokens,
            hit: false,
            held,
        });
    }

    /// A request ended, or gave up its blocks.
    pub fn forget(&mut self, request: RequestId) {
        let Some(place) = self.places.remove(&request) else {
            return;
        };
        let gone = self.holders.swap_remove(place).held;
        self.entries -= gone.len();
        self.capacity -= gone.capacity();
        if let Some(moved) = self.holders.get(place) {
            self.places.insert(moved.request, place);
        }
        // What was told and forgotten leaves no room behind.
        if self.holders.capacity() > SPARE.max(2 * self.holders.len()) {
            self.holders
                .shrink_to(self.holders.len() + self.holders.len() / 2);
        }
    }

    /// Every request of the job ended.
    pub fn forget_all(&mut self) {
        self.holders = Vec::new();
        self.places = BTreeMap::new();
        (self.entries, self.capacity) = (0, 0);
    }

    /// A stripe was taken or given back, or must stay.
    pub fn set_backing(&mut self, stripe: StripeId, backing: Backing) {
        if let Some(known) = self.backing.get_mut(stripe.0 as usize) {
            self.closed -= usize::from(*known != Backing::Backed);
            self.closed += usize::from(backing != Backing::Backed);
            *known = backing;
        }
    }

    /// Whether a stripe can be taken; one that is not there cannot.
    #[must_use]
    pub fn backing(&self, stripe: StripeId) -> Backing {
        let known = self.backing.get(stripe.0 as usize).copied();
        known.unwrap_or(Backing::Taken)
    }

    /// Whether every stripe may be taken. Takes as long for many stripes as for few.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.closed == 0
    }

    /// Every stripe that may be taken, by number.
    pub fn candidates(&self) -> impl Iterator<Item = StripeId> + '_ {
        (0u32..)
            .zip(&self.backing)
            .filter(|known| *known.1 == Backing::Backed)
            .map(|known| StripeId(known.0))
    }

    /// A stripe is gone: whoever held a block there starts over.
    pub fn hit(&mut self, stripe: StripeId) {
        for holder in &mut self.holders {
            holder.hit = holder.hit || holder.holds(stripe);
        }
    }

    fn find(&mut self, request: RequestId) -> Option<&mut Holder> {
        let place = self.places.get(&request)?;
        self.holders.get_mut(*place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Bytes;
    use proptest::prelude::*;

    fn holders(stripes: u32, blocks: u32) -> Holders {
        let one = |stripe| (1, BlockId(stripe * blocks), blocks);
        Holders::new(Layout::of_runs((0..stripes).map(one), Bytes::mib(2)))
    }

    #[test]
    fn lists_are_kept_as_far_as_a_cache_of_this_size_can_have_them() {
        let mut holders = holders(64, 1);
        let all: Vec<BlockId> = (0..64).map(BlockId).collect();
        let most = (ENTRIES_PER_STRIPE * 64 + ENTRIES_BESIDE) / 64;
        for request in (0..2 * most as u64).rev() {
            holders.publish(RequestId(request), Tokens(1), &all);
        }
        assert_eq!(holders.holders().len(), most);
        holders.forget(RequestId(2 * most as u64 - 1));
        holders.publish(RequestId(0), Tokens(1), &all);
        assert_eq!(
            holders.holders().len(),
            most,
            "what one gives up another may have"
        );
        holders.forget_all();
        assert_eq!(holders.room(), most * 64);
    }

    /// P-SECURITY-5: a list that names one stripe over and over keeps the room of one stripe.
    #[test]
    fn what_is_kept_of_a_list_has_the_room_of_its_stripes() {
        let mut holders = holders(2, 1 << 16);
        let many: Vec<BlockId> = (0..1 << 16).map(BlockId).collect();
        for request in 0..64 {
            holders.publish(RequestId(request), Tokens(1), &many);
            holders.extend(RequestId(64 + request), Tokens(1), &many);
        }
        let room: usize = holders
            .holders()
            .iter()
            .map(|held| held.held.capacity())
            .sum();
        assert!(
            room <= 2 * holders.entries,
            "{room} for {}",
            holders.entries
        );
        assert_eq!(holders.entries, 128);
    }

    proptest! {
        #[test]
        fn a_cache_is_whole_while_every_stripe_of_it_may_be_taken(
            words in prop::collection::vec((0u32..5, 0usize..3), 0..40),
        ) {
            let mut holders = holders(4, 3);
            for (stripe, which) in words {
                let backing = [Backing::Backed, Backing::Taken, Backing::Pinned][which];
                holders.set_backing(StripeId(stripe), backing);
                prop_assert_eq!(holders.is_whole(), holders.candidates().count() == 4);
            }
        }

        #[test]
        fn what_is_kept_is_the_last_word_of_each_request(
            words in prop::collection::vec((0u64..6, 0u8..4, prop::collection::vec(0u32..12, 0..5)), 0..40),
        ) {
            let (mut holders, mut model) = (holders(4, 3), BTreeMap::<u64, Vec<u32>>::new());
            for (request, word, blocks) in words {
                let said: Vec<BlockId> = blocks.iter().copied().map(BlockId).collect();
                let stripes = blocks.iter().map(|block| block / 3);
                match word {
                    0 => {
                        holders.forget(RequestId(request));
                        model.remove(&request);
                    }
                    1 => {
                        holders.extend(RequestId(request), Tokens(1), &said);
                        model.entry(request).or_default().extend(stripes);
                    }
                    _ => {
                        holders.publish(RequestId(request), Tokens(1), &said);
                        model.insert(request, stripes.collect());
                    }
                }
                for held in model.values_mut() {
                    held.sort_unstable();
                    held.dedup();
                }
                model.retain(|_, held| !held.is_empty());
            }
            let mut kept: Vec<_> = holders.holders().iter().collect();
            kept.sort_by_key(|holder| holder.request());
            let kept: Vec<(u64, Vec<u32>)> = kept
                .iter()
                .map(|holder| (holder.request().0, holder.stripes().map(|held| held.0.0).collect()))
                .collect();
            prop_assert_eq!(kept, model.into_iter().collect::<Vec<_>>());
            let entries: usize = holders.holders().iter().map(|holder| holder.stripes().count()).sum();
            prop_assert_eq!(holders.entries, entries);
        }
    }
}
