//! The offline process: its cache, the thread in it that changes mappings, and its engine's plugin.
//!
//! The thread does one order after the other, at most [`AT_ONCE`] handles at a time, between which it
//! looks whether the order was called off; an order that is not done at its deadline is answered as
//! late, and again when it is done. It works only while the launch gate is held. What it takes from the
//! engine is in the job's log, which the engine reads before its next iteration: requests that lost a
//! block start over, and their blocks are withheld from then on. The library's reporter makes its round
//! every [`EVERY`] and says what the log holds by then.
//!
//! Who holds which block is said before the agent can have use for it ([`Offline::requests`]) and not
//! at every round: between two choices nobody reads it, and to tell it takes longer than the rest of a
//! replay. At most once per round, as the library does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use tidegate_abi::page::{GATE_HELD, GATE_STATE, Page};
use tidegate_node::memory::{Blocker, HeldBlocks, KvRegistered, MemoryOrder, MemorySaid};
use tidegate_node::text::Text;
use tidegate_policy::ids::{BlockId, Bytes, LogSeq, ReclaimId, RequestId, StripeId, Tokens};
use tidegate_policy::reclaim::{Answer, Direction};

use super::online::{KV, layout};
use crate::clock::Time;
use crate::compute::NEVER;
use crate::costs::{Costs, HANDLE_BYTES, ns};
use crate::memory::{Pool, stripe_of, withhold};
use crate::record::Reclaim;
use tidegate_text::rng::Rng;

/// Handles that the library changes at once (`AT_ONCE` of `interposer/src/state/memory/kv.rs`).
const AT_ONCE: u64 = 64;
/// A round of the library's reporter (`EVERY_NS` of `interposer/src/memory/talk.rs`).
pub(super) const EVERY: u64 = 25_000_000;

/// In which order the engine has its stripes taken. But for `Cost` it says of each stripe which number it has in that
/// order, where it should say what it would cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Victims {
    /// By what it would cost.
    #[default]
    Cost,
    /// That of the oldest block first.
    Oldest,
    /// That of whoever came last first: vLLM's, where its own memory is short.
    LastCome,
    /// By no rule.
    Any,
}

/// In which order the engine has its stripes taken, and where it can be stopped for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manners {
    /// The order.
    pub victims: Victims,
    /// Between two layers: it says that nothing is in the way at the end of a layer only.
    pub at_layers: bool,
}

/// An order that is not answered for good.
#[derive(Debug)]
struct Open {
    order: Order,
    /// When it was begun, and how long nothing can be said of it after that.
    begun: Option<(u64, u64)>,
    late: bool,
}

#[derive(Debug)]
struct Order {
    reclaim: ReclaimId,
    until: u64,
    /// Which way and which; `None`: only whether anything is in the way.
    moves: Option<(Direction, Vec<StripeId>)>,
    cancelled: bool,
}

/// What was said of a request, or of a stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    stamp: u32,
    tokens: u32,
    blocks: usize,
}

/// The process.
#[derive(Debug)]
pub(super) struct Offline {
    pub page: Arc<Page>,
    manners: Manners,
    block: u64,
    stripe: u64,
    /// Stripes of its cache; 0: it has none yet.
    stripes: u64,
    /// One stripe: to take it and to give it back, ns.
    take: u64,
    back: u64,
    orders: VecDeque<Open>,
    /// The last entry of the log, and the last that the engine knows.
    log: u64,
    read: u64,
    /// The entry that is said to be withheld, and when the next is said.
    said: u64,
    says: u64,
    /// By slot of a request, or by stripe: what was said of it last.
    told: Vec<Told>,
    told_at: u64,
    /// When the reclaim under way was begun.
    asked: u64,
}

impl Offline {
    pub fn new(block: u64, manners: Manners, costs: &Costs) -> Self {
        let stripe = stripe_of(block);
        let handles = stripe / HANDLE_BYTES;
        Self {
            page: Arc::default(),
            manners,
            block,
            stripe,
            stripes: 0,
            take: handles * ns(costs.quarantine_handle + costs.release_handle).max(1),
            // The quarantine page is exchanged for a new handle, by the same calls.
            back: handles * ns(costs.quarantine_handle + costs.create_handle).max(1),
            orders: VecDeque::new(),
            log: 0,
            read: 0,
            said: 0,
            says: NEVER,
            told: Vec::new(),
            told_at: 0,
            asked: 0,
        }
    }

    /// It makes its cache: as large as the share of the GPU that it is shown.
    pub fn registered(&mut self, share: u64, pool: &mut Pool) -> Option<KvRegistered> {
        if self.stripes > 0 {
            return None;
        }
        let pages = pool.offline.store.pages.as_mut()?;
        self.stripes = (share / self.stripe).min(u64::from(pages.stripes()));
        let beyond: Vec<u32> = (0..pages.stripes())
            .filter(|stripe| u64::from(*stripe) >= self.stripes)
            .collect();
        pages.withhold(&beyond);
        pool.offline.store.limit = u32::MAX;
        pool.cache_offline(self.stripes * self.stripe);
        pool.offline.passes = true;
        Some(KvRegistered {
            kv: KV,
            slot: 0,
            elastic: false,
            stripes: Some((
                layout(self.stripes, self.block, self.stripe),
                vec![true; self.stripes as usize],
            )),
            fixed: Bytes::ZERO,
            refused: Text::default(),
        })
    }

    /// Bytes with memory behind them, or on the way.
    pub fn holds(&self, pool: &Pool) -> u64 {
        let pages = pool.offline.store.pages.as_ref();
        let coming = self
            .orders
            .front()
            .map_or(0, |open| match &open.order.moves {
                Some((Direction::Restore, stripes)) if open.begun.is_some() => stripes.len() as u64,
                _ => 0,
            });
        let backed = pages.map_or(0, |pages| u64::from(pages.backed_stripes()));
        (backed + coming) * self.stripe
    }

    /// The engine begins an iteration: it reads the log, and says what it withholds.
    pub fn steps(&mut self, now: u64) {
        self.read = self.log;
        if self.read > self.said && self.says == NEVER {
            self.says = (now / EVERY + 1) * EVERY;
        }
    }

    /// An order of the agent's has come.
    pub fn order(&mut self, order: MemoryOrder, now: u64) {
        let (reclaim, until, moves) = match order {
            MemoryOrder::Check {
                reclaim,
                deadline_ns,
            } => (reclaim, deadline_ns, None),
            MemoryOrder::Move {
                reclaim,
                direction,
                stripes,
                deadline_ns,
                ..
            } => (reclaim, deadline_ns, Some((direction, stripes))),
            MemoryOrder::Cancel { reclaim } => {
                let same = |open: &&mut Open| open.order.reclaim == reclaim;
                self.orders
                    .iter_mut()
                    .filter(same)
                    .for_each(|open| open.order.cancelled = true);
                return self.stop_at(now);
            }
            _ => return,
        };
        if moves.is_none() {
            self.asked = now;
        }
        let order = Order {
            reclaim,
            until,
            moves,
            cancelled: false,
        };
        self.orders.push_back(Open {
            order,
            begun: None,
            late: false,
        });
    }

    /// A move that was called off ends with what is being changed at once.
    fn stop_at(&mut self, now: u64) {
        let front = self.orders.front_mut();
        let Some(open) = front.filter(|open| open.order.cancelled) else {
            return;
        };
        let (Some((begun, _)), Some((direction, stripes))) = (open.begun, &mut open.order.moves)
        else {
            return;
        };
        let each = match direction {
            Direction::Reclaim => self.take,
            Direction::Restore => self.back,
        };
        let group = (AT_ONCE * HANDLE_BYTES / self.stripe).max(1);
        let begun_groups = now.saturating_sub(begun) / (group * each) + 1;
        stripes.truncate((begun_groups * group) as usize);
    }

    fn ends(&self, open: &Open) -> u64 {
        let Some((begun, waits)) = open.begun else {
            return NEVER;
        };
        begun
            + match &open.order.moves {
                None => waits,
                Some((Direction::Reclaim, stripes)) => stripes.len() as u64 * self.take,
                Some((Direction::Restore, stripes)) => stripes.len() as u64 * self.back,
            }
    }

    /// When it does something by itself.
    pub fn next(&self) -> u64 {
        let ends = self.orders.front().map_or(NEVER, |open| self.ends(open));
        let late = self.orders.iter().filter(|open| !open.late);
        let late = late.map(|open| open.order.until).min();
        ends.min(late.unwrap_or(NEVER)).min(self.says)
    }

    /// Whether launches wait for a reclaim, and with them what may hold the driver's locks.
    fn is_held(&self) -> bool {
        self.page.gates[0].gate.load(Acquire) & GATE_STATE == GATE_HELD
    }

    /// What it says by now; called until it says nothing.
    pub fn says(&mut self, now: u64, pool: &mut Pool) -> Option<MemorySaid> {
        if now >= self.says {
            (self.says, self.said) = (NEVER, self.read);
            let log = LogSeq(self.read);
            return Some(MemorySaid::Withheld { log });
        }
        if let Some(front) = self.orders.front_mut()
            && front.begun.is_none()
        {
            if front.order.cancelled || now > front.order.until || !self.is_held() {
                let open = self.orders.pop_front()?;
                let missed = open.order.cancelled || now > open.order.until;
                let answer = if missed {
                    Answer::Missed
                } else {
                    Answer::Refused
                };
                return Some(self.answer(&open.order, answer, Vec::new()));
            }
            let layer = if self.manners.at_layers {
                pool.offline_layer_left
            } else {
                0
            };
            if let Some(front) = self.orders.front_mut() {
                front.begun = Some((now, layer));
            }
        }
        if let Some(front) = self.orders.front()
            && self.ends(front) <= now
        {
            let open = self.orders.pop_front()?;
            return Some(self.done(open.order, now, pool));
        }
        let late = |open: &&mut Open| !open.late && now >= open.order.until;
        let late = self.orders.iter_mut().find(late)?;
        late.late = true;
        let (reclaim, moves) = (late.order.reclaim, late.order.moves.is_some());
        Some(said(reclaim, moves, Answer::Late, Vec::new(), LogSeq(0)))
    }

    /// An order is carried out.
    fn done(&mut self, mut order: Order, now: u64, pool: &mut Pool) -> MemorySaid {
        let answer = if order.cancelled {
            Answer::Missed
        } else {
            Answer::Done
        };
        let Some((direction, stripes)) = order.moves.take() else {
            return said(order.reclaim, false, answer, Vec::new(), LogSeq(0));
        };
        let numbers: Vec<u32> = stripes.iter().map(|stripe| stripe.0).collect();
        match direction {
            Direction::Reclaim => {
                self.log += stripes.len() as u64;
                let lost = withhold(&numbers, pool);
                pool.reclaims.push(Reclaim {
                    asked: Time(self.asked),
                    mapped: Time(now),
                    handles: u32::try_from(numbers.len() as u64 * self.stripe / HANDLE_BYTES)
                        .unwrap_or(u32::MAX),
                    requests: lost.requests,
                    lost_tokens: lost.tokens,
                    waited: false,
                });
            }
            Direction::Restore => {
                if let Some(pages) = &mut pool.offline.store.pages {
                    pages.restore_these(&numbers);
                }
            }
        }
        order.moves = Some((direction, Vec::new()));
        self.answer(&order, answer, stripes)
    }

    fn answer(&self, order: &Order, answer: Answer, stripes: Vec<StripeId>) -> MemorySaid {
        let log = LogSeq(self.log);
        said(order.reclaim, order.moves.is_some(), answer, stripes, log)
    }

    /// Who holds its blocks, as far as that has changed since it was last said.
    pub fn requests(&mut self, now: u64, pool: &Pool) -> Option<MemorySaid> {
        if self.told_at > 0 && now < self.told_at + EVERY {
            return None;
        }
        self.told_at = now;
        let (mut set, mut forgotten) = (Vec::new(), Vec::new());
        match self.manners.victims {
            Victims::Cost => self.holders(pool, &mut set, &mut forgotten),
            victims => self.ranks(victims, pool, &mut set, &mut forgotten),
        }
        let any = !(set.is_empty() && forgotten.is_empty());
        any.then_some(MemorySaid::Requests {
            snapshot: false,
            set,
            forgotten,
        })
    }

    fn holders(&mut self, pool: &Pool, set: &mut Vec<HeldBlocks>, forgotten: &mut Vec<RequestId>) {
        for (slot, stamp, held) in pool.offline.slots() {
            let place = slot as usize;
            if self.told.len() <= place {
                self.told.resize(place + 1, Told::default());
            }
            let blocks = held.len();
            let now = if blocks > 0 {
                let tokens = pool.offline.at_stake(slot);
                Told {
                    stamp,
                    tokens,
                    blocks,
                }
            } else {
                Told::default()
            };
            let before = core::mem::replace(&mut self.told[place], now);
            let request = RequestId(u64::from(slot));
            if blocks == 0 && before.blocks > 0 {
                forgotten.push(request);
            } else if before != now {
                set.push(HeldBlocks {
                    request,
                    tokens: Tokens(u64::from(now.tokens)),
                    blocks: held.iter().copied().map(BlockId).collect(),
                });
            }
        }
    }

    /// Of each stripe its number in an order, as a request of its own that holds a block in no other.
    fn ranks(
        &mut self,
        victims: Victims,
        pool: &Pool,
        set: &mut Vec<HeldBlocks>,
        forgotten: &mut Vec<RequestId>,
    ) {
        let Some(pages) = &pool.offline.store.pages else {
            return;
        };
        self.told.resize(self.stripes as usize, Told::default());
        let held = pages.in_order_taken();
        let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let mut came: BTreeMap<u32, u32> = BTreeMap::new();
        let mut ranks = vec![0; self.stripes as usize];
        for (age, (holder, block)) in (1u32..).zip(held) {
            // Whoever holds it came when it took its first block.
            let came = *came.entry(holder).or_insert(age);
            for stripe in pages.stripes_of(block) {
                let Some(known) = ranks.get_mut(stripe) else {
                    continue;
                };
                let rank = match victims {
                    Victims::LastCome => count + 1 - came,
                    Victims::Any => any_of(stripe, holder),
                    Victims::Cost | Victims::Oldest => age,
                };
                let first = *known == 0;
                if first || (victims == Victims::LastCome && rank < *known) {
                    *known = rank;
                }
            }
        }
        for (stripe, age) in (0u32..).zip(ranks) {
            let own = |block: &u32| {
                let around = pages.stripes_of(*block);
                (*around.start(), *around.end()) == (stripe as usize, stripe as usize)
            };
            let own = pages.blocks_in(stripe).find(own);
            let tokens = &mut self.told[stripe as usize].tokens;
            let before = core::mem::replace(tokens, age);
            let request = RequestId(u64::from(stripe));
            if age == 0 && before > 0 {
                forgotten.push(request);
            } else if age != before {
                set.extend(own.map(|block| HeldBlocks {
                    request,
                    tokens: Tokens(u64::from(age)),
                    blocks: vec![BlockId(block)],
                }));
            }
        }
    }
}

/// A number that says nothing of a stripe, and stays while its first holder does.
fn any_of(stripe: usize, holder: u32) -> u32 {
    let seed = (stripe as u64) << 32 | u64::from(holder);
    1 + (Rng::new(seed).bits() % 1_000_003) as u32
}

fn said(
    reclaim: ReclaimId,
    moves: bool,
    answer: Answer,
    stripes: Vec<StripeId>,
    log: LogSeq,
) -> MemorySaid {
    if moves {
        return MemorySaid::Moved {
            reclaim,
            answer,
            stripes,
            log,
        };
    }
    MemorySaid::Checked {
        reclaim,
        answer,
        blocker: if answer == Answer::Done {
            Blocker::None
        } else {
            Blocker::Silent
        },
    }
}
