//! Which requests would lose a stripe: the inverted index that selection works on.
//!
//! For each request: its tokens (prompt and answer so far, what it would compute again) and the
//! stripes that hold any block of it. A prefix block that several requests share is in the list of
//! each, so each is counted. Blocks without a request, cached ones too, cost nothing.
//!
//! A request is *hit* from the reclaim that took a block of it until it is published again: it has
//! to start over anyway, so whatever else of it goes is free.

use crate::ids::{BlockId, RequestId, StripeId, Tokens};
use crate::layout::Layout;

/// Whether a stripe can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// It is backed and may be taken.
    Backed,
    /// It is taken already, or being taken or given back.
    Taken,
    /// It is backed and stays so: it holds a block the engine cannot do without.
    Pinned,
}

/// One stripe in the list of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stripe: u32,
    /// Number of the publication in which the request first held it.
    since: u64,
}

/// One request.
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
#[derive(Clone, Debug, Default)]
pub struct Holders {
    layout: Layout,
    backing: Vec<Backing>,
    /// By request.
    holders: Vec<Holder>,
    publications: u64,
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

    /// Each request, by id.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// A request holds `blocks` and would compute `tokens` again from here on. Replaces what it
    /// published before.
    pub fn publish(&mut self, request: RequestId, tokens: Tokens, blocks: &[BlockId]) {
        self.publications += 1;
        let since = self.publications;
        let place = self.place(request);
        let Self {
            layout, holders, ..
        } = self;
        let holder = &mut holders[place];
        (holder.tokens, holder.hit) = (tokens, false);
        let before = core::mem::take(&mut holder.held);
        let stripes = blocks.iter().flat_map(|block| layout.stripes_of(*block));
        let stripes = stripes.map(|stripe| Held {
            stripe: stripe.0,
            since,
        });
        // Of two entries for a stripe the older one stays, since it sorts first.
        let kept = before.len();
        holder.held = before;
        holder.held.extend(stripes);
        let (old, new) = holder.held.split_at_mut(kept);
        new.sort_unstable_by_key(|held| held.stripe);
        for held in new {
            if let Ok(known) = old.binary_search_by_key(&held.stripe, |old| old.stripe) {
                held.since = old[known].since;
            }
        }
        holder.held.drain(..kept);
        holder.held.dedup_by_key(|held| held.stripe);
    }

    /// A request grew by `blocks` and would compute `tokens` again from here on.
    pub fn extend(&mut self, request: RequestId, tokens: Tokens, blocks: &[BlockId]) {
        self.publications += 1;
        let since = self.publications;
        let place = self.place(request);
        let Self {
            layout, holders, ..
        } = self;
        let holder = &mut holders[place];
        holder.tokens = tokens;
        for stripe in blocks.iter().flat_map(|block| layout.stripes_of(*block)) {
            let stripe = stripe.0;
            if let Err(at) = holder
                .held
                .binary_search_by_key(&stripe, |held| held.stripe)
            {
                holder.held.insert(at, Held { stripe, since });
            }
        }
    }

    /// A request ended, or gave up its blocks.
    pub fn forget(&mut self, request: RequestId) {
        if let Ok(place) = self.find(request) {
            self.holders.remove(place);
        }
    }

    /// Every request of the job ended.
    pub fn forget_all(&mut self) {
        self.holders.clear();
    }

    /// A stripe was taken or given back, or must stay.
    pub fn set_backing(&mut self, stripe: StripeId, backing: Backing) {
        if let Some(known) = self.backing.get_mut(stripe.0 as usize) {
            *known = backing;
        }
    }

    /// Whether a stripe can be taken; one that is not there cannot.
    #[must_use]
    pub fn backing(&self, stripe: StripeId) -> Backing {
        let known = self.backing.get(stripe.0 as usize).copied();
        known.unwrap_or(Backing::Taken)
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

    fn find(&self, request: RequestId) -> Result<usize, usize> {
        self.holders
            .binary_search_by_key(&request, |known| known.request)
    }

    fn place(&mut self, request: RequestId) -> usize {
        match self.find(request) {
            Ok(place) => place,
            Err(place) => {
                let holder = Holder {
                    request,
                    tokens: Tokens(0),
                    hit: false,
                    held: Vec::new(),
                };
                self.holders.insert(place, holder);
                place
            }
        }
    }
}
