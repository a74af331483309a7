//! Which stripes to take from a job.
//!
//! The *marginal token cost* of a stripe is the sum of the tokens of the requests that hold a block there and have not
//! been hit yet. [`Greedy`] takes the stripe of least marginal cost (of equal ones, the lowest number) until the need
//! is met. A request that one stripe hits costs nothing in the next. Stripes that no request holds cost nothing, so
//! they go first.
//!
//! # Cost of a selection
//!
//! Let S be the number of stripes, and E the number of entries in the requests' lists (a request and a stripe that it
//! holds). One pass over the lists sums the costs, and a tree of minima finds the least. When a stripe is taken, each
//! request that it newly hits is walked once, and never again in this selection. Each entry that is walked lowers one
//! stripe's cost. So the time is O((S + E) log S) at worst, and about S + E in practice, because most costs fall
//! without becoming the least of their neighbours. [`Selected::work`] counts the entries that were read.

mod least;

use crate::holders::{Holder, Holders};
use crate::ids::{Bytes, StripeId, Tokens};
pub use crate::words::choice::Pick;
use least::Least;

/// What a selection comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// What the chosen stripes hold, on each GPU of the job.
    pub bytes: Bytes,
    /// What has to be computed again for them.
    pub tokens: Tokens,
    /// Requests that start over for them.
    pub requests: u32,
    /// List entries and heap entries looked at.
    pub work: u64,
}

/// A rule that chooses stripes.
pub trait Select {
    /// Its name in tables and in `explain`.
    fn name(&self) -> &'static str;

    /// Appends stripes to `picked`, in the order they are to be taken, until they hold `need` or no
    /// candidate is left.
    fn select(&mut self, from: &Holders, need: Bytes, picked: &mut Vec<Pick>) -> Selected;
}

/// What hitting a request costs, as a [`Greedy`] rule counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// The tokens it computes again.
    #[default]
    Tokens,
    /// One, whatever it computes again.
    Requests,
}

impl Count {
    fn of(self, holder: &Holder) -> u64 {
        match self {
            Self::Tokens => holder.tokens().0,
            Self::Requests => 1,
        }
    }
}

/// Least marginal cost first. Keeps its memory from one selection to the next.
#[derive(Debug, Default)]
pub struct Greedy {
    count: Count,
    draft: Draft,
    costs: Vec<u64>,
    least: Least,
}

impl Greedy {
    /// The rule over tokens, or over requests.
    #[must_use]
    pub fn new(count: Count) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }
}

impl Select for Greedy {
    fn name(&self) -> &'static str {
        match self.count {
            Count::Tokens => "tokens",
            Count::Requests => "requests",
        }
    }

    fn select(&mut self, from: &Holders, need: Bytes, picked: &mut Vec<Pick>) -> Selected {
        let Self {
            count,
            draft,
            costs,
            least,
        } = self;
        draft.begin(from);
        costs.clear();
        costs.resize(from.layout().len(), 0);
        for holder in from.holders().iter().filter(|holder| !holder.is_hit()) {
            let cost = count.of(holder);
            for (stripe, _) in holder.stripes() {
                let known = &mut costs[stripe.0 as usize];
                *known = known.saturating_add(cost);
            }
        }
        let open = draft.open.iter().map(|open| *open == Open::Yes);
        least.begin(costs.iter().copied().zip(open));
        while draft.selected.bytes < need
            && let Some((at, cost)) = least.least()
        {
            let Ok(id) = u32::try_from(at) else { break };
            draft.selected.work += least.close(at);
            draft.take(from, id, cost, picked);
            for place in draft.newly.drain(..) {
                let holder = &from.holders()[place as usize];
                let cost = count.of(holder);
                for (stripe, _) in holder.stripes() {
                    least.lower(stripe.0 as usize, cost);
                    draft.selected.work += 1;
                }
            }
        }
        draft.selected
    }
}

/// A fixed order of stripes, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The stripe whose oldest block was filled first goes first; free ones before all.
    Fifo,
    /// By place, as an allocator that knows nothing of requests would.
    Address,
}

/// Stripes in a fixed order.
#[derive(Debug)]
pub struct Ordered {
    order: Order,
    draft: Draft,
    keys: Vec<u64>,
}

impl Ordered {
    /// That order.
    #[must_use]
    pub fn new(order: Order) -> Self {
        Self {
            order,
            draft: Draft::default(),
            keys: Vec::new(),
        }
    }
}

impl Select for Ordered {
    fn name(&self) -> &'static str {
        match self.order {
            Order::Fifo => "fifo",
            Order::Address => "address",
        }
    }

    fn select(&mut self, from: &Holders, need: Bytes, picked: &mut Vec<Pick>) -> Selected {
        const FREE: u64 = 0;
        let Self { order, draft, keys } = self;
        draft.begin(from);
        keys.clear();
        keys.resize(from.layout().len(), FREE);
        if *order == Order::Fifo {
            for (stripe, since) in from.holders().iter().flat_map(Holder::stripes) {
                let key = &mut keys[stripe.0 as usize];
                *key = if *key == FREE { since } else { since.min(*key) };
            }
        }
        let mut sorted: Vec<(u64, u32)> = from
            .candidates()
            .map(|stripe| (keys[stripe.0 as usize], stripe.0))
            .collect();
        sorted.sort_unstable();
        for (key, id) in sorted {
            if draft.selected.bytes >= need {
                break;
            }
            draft.take(from, id, key, picked);
        }
        draft.selected
    }
}

/// Whether a stripe can still be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Yes,
    No,
}

/// One selection under way.
#[derive(Debug, Default)]
struct Draft {
    selected: Selected,
    /// By stripe.
    open: Vec<Open>,
    /// By place of the request.
    hit: Vec<bool>,
    /// Places of the requests of each stripe, end to end: `starts[s]..starts[s + 1]`.
    places: Vec<u32>,
    starts: Vec<usize>,
    /// Places of the requests that the last taken stripe hit first.
    newly: Vec<u32>,
}

impl Draft {
    fn begin(&mut self, from: &Holders) {
        let stripes = from.layout().len();
        self.selected = Selected::default();
        self.newly.clear();
        self.open.clear();
        self.open.resize(stripes, Open::No);
        for stripe in from.candidates() {
            self.open[stripe.0 as usize] = Open::Yes;
        }
        self.hit.clear();
        self.hit.extend(from.holders().iter().map(Holder::is_hit));
        self.starts.clear();
        self.starts.resize(stripes + 1, 0);
        for (stripe, _) in from.holders().iter().flat_map(Holder::stripes) {
            self.starts[stripe.0 as usize + 1] += 1;
        }
        let mut entries = 0;
        for start in &mut self.starts {
            entries += *start;
            *start = entries;
        }
        self.places.clear();
        self.places.resize(entries, 0);
        for (place, holder) in (0u32..).zip(from.holders()) {
            for (stripe, _) in holder.stripes() {
                let next = &mut self.starts[stripe.0 as usize];
                self.places[*next] = place;
                *next += 1;
            }
        }
        // Each start has moved to its end, which is the next one's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
        self.selected.work = (entries + stripes) as u64;
    }

    fn take(&mut self, from: &Holders, id: u32, key: u64, picked: &mut Vec<Pick>) {
        self.open[id as usize] = Open::No;
        let (mut extra, stripe) = (0u64, StripeId(id));
        self.newly.clear();
        for place in &self.places[self.starts[id as usize]..self.starts[id as usize + 1]] {
            self.selected.work += 1;
            if !core::mem::replace(&mut self.hit[*place as usize], true) {
                extra = extra.saturating_add(from.holders()[*place as usize].tokens().0);
                self.newly.push(*place);
            }
        }
        let requests = u32::try_from(self.newly.len()).unwrap_or(u32::MAX);
        let selected = &mut self.selected;
        selected.bytes = selected.bytes.plus(from.layout().bytes(stripe));
        selected.tokens = Tokens(selected.tokens.0.saturating_add(extra));
        selected.requests = selected.requests.saturating_add(requests);
        picked.push(Pick {
            stripe,
            key,
            extra: Tokens(extra),
            requests,
        });
    }
}
