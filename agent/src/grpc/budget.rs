//! What processes may say: every message is charged here, by what it costs, before the control thread hears of it.
//!
//! The unit is one small message, the dearest of those that list nothing. A list costs by its items, text by its bytes
//! ([`cost`]), each about as much more as it keeps the control thread, or the prover, busier. What items cost is measured
//! ([`prices`]). A session has `limits.messages_per_second` of them and
//! a tenant [`TENANT`] times as many, each with [`BURST_S`] second's worth in advance. Who has used them up is read slower: the
//! messages wait in its own connection, and nobody else's. What costs more than [`MOST`] is refused, and so is its
//! stream. So is a cache beyond those of a session ([`CACHES`]), or beyond the stripes that a tenant may have described at a
//! time ([`STRIPES`]). Of what is charged at most [`AHEAD`] messages of a session wait for the control thread at a time, so its
//! queue is never one tenant's.
//!
//! Decisions are [`Account`]'s; [`Budget`] and [`Purse`] keep one for each tenant and session.

pub mod prices;

use crate::grpc::rooms::Room;
use crate::inbox::Ahead;
use crate::watch::refusals::Refusals;
use prices::{BLOCK, CACHED, CHANGE, RUN, STRIPE};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_node::kinds::Tenant;
use tidegate_proto::v1::client_event::Event;
use tokio::sync::Semaphore;

/// Cost of a message that lists nothing.
const MESSAGE: u64 = 1_000;
/// Bytes that cost one thousandth of a message: they also pass the socket and HTTP/2.
pub const BYTES: u64 = 4;
/// Of a look at a file of the process: several system calls of the prover's, which is a thread of its own.
const FILE: u64 = 20 * MESSAGE;

/// How long what is allowed adds up, s.
const BURST_S: u64 = 1;
/// Sessions' worth of messages that one tenant may say.
const TENANT: u64 = 4;
/// Most that a message may cost, however little its session may say: a library cuts what it says by this.
const MOST: u64 = 4_096 * MESSAGE;
/// Most changes in a message: twice what a session may have of channels and clients together.
const CHANGES: u64 = 4 * tidegate_node::session::CHANNELS as u64;
/// Most requests, or runs of blocks, in a message. A library cuts what it says into parts.
const RUNS: u64 = 20_480;
/// Stripes that the sessions of all strangers may describe: each takes some [`STRIPE_BYTES`] for as long as its cache is
/// there. A tenant never has more than are then left, so half if it is the only one: that is eight GPUs of 141 GiB in
/// handles of the smallest size.
const STRIPES: u64 = 9 << 17;
/// Of memory, for a stripe.
pub const STRIPE_BYTES: u64 = 58;
/// Caches of a session: one for each GPU that it may have.
const CACHES: usize = tidegate_abi::page::DEVICES;
/// Stripes that take as much memory as a cache does beside its own.
const CACHE: u64 = 8;

/// Bytes that the caches of all strangers may take.
#[must_use]
pub const fn caches() -> u64 {
    STRIPES * STRIPE_BYTES
}

/// Messages of a session that may wait for the control thread.
const AHEAD: usize = 64;
/// Of a tenant.
const TENANT_AHEAD: usize = 4 * AHEAD;

/// Refusals, for status: a client that is read more slowly, and one whose message is refused.
const SLOWED: &str = "too many messages: they are read slower";
const REFUSED: &str = tidegate_proto::BEYOND_BOUNDS;

/// What so many items cost in one message: more than any message may, beyond a limit. The control thread takes a message in
/// one turn, however rich its sender is.
const fn listed(price: u64, items: u64, most: u64) -> u64 {
    if items > most { MOST } else { price * items }
}

/// What a message costs, in thousandths of one that lists nothing.
#[must_use]
pub fn cost(event: &Event) -> u64 {
    let items = match event {
        Event::Rm(changes) => listed(CHANGE, count(&changes.events), CHANGES),
        Event::Requests(said) => {
            let blocks: u64 = said.set.iter().map(|held| count(&held.blocks)).sum();
            listed(RUN, count(&said.set) + count(&said.forgotten), RUNS) + BLOCK * blocks
        }
        Event::KvRegistered(kv) => {
            CACHED
                + listed(RUN, count(&kv.first_block) + count(&kv.stripe_kinds), RUNS)
                + STRIPE * count(&kv.stripe_kind)
        }
        Event::Reclaimed(done) => STRIPE * count(&done.stripes),
        Event::Restored(done) => STRIPE * count(&done.stripes),
        Event::ControlFile(_) | Event::UvmFile(_) | Event::BeatPage(_) => FILE,
        Event::KvGone(_) => CACHED,
        _ => 0,
    };
    MESSAGE + items + event.encoded_len() as u64 / BYTES
}

/// Longest message, and longest of those that list nothing.
pub const MESSAGE_LIMIT: usize = 1 << 20;
const PLAIN: usize = 16 << 10;
/// Longest report on hooks; a library has some hundreds.
const HOOKS: usize = 256 << 10;

/// How long a message may be that begins so. What it is said to be is the first field of `ClientEvent`.
#[must_use]
pub fn longest(kind: &[u8]) -> usize {
    let tag = match *kind {
        [low, ..] if low < 0x80 => u32::from(low),
        [low, high, ..] => u32::from(low & 0x7f) | u32::from(high) << 7,
        _ => 0,
    };
    match tag >> 3 {
        // Changes of RM objects, a cache, what was moved of it, requests; what a newer library says.
        3 | 11 | 14..=16 | 29.. => MESSAGE_LIMIT,
        6 => HOOKS,
        _ => PLAIN,
    }
}

const fn count<T>(list: &[T]) -> u64 {
    list.len() as u64
}

/// What is done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be heard.
    Now,
    /// It may be heard in so many ns.
    After(u64),
    /// It costs more than may ever be said at once.
    Never,
}

/// What was said at a steady rate. It says nothing of a burst until that is over, and never forgets a debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// When all that was charged will be paid for, ns.
    paid_ns: u64,
}

impl Account {
    /// Charges `cost` to who may say `per_second` messages. What may be heard later is charged all the same.
    pub fn charge(&mut self, cost: u64, per_second: u64, now: u64) -> Verdict {
        let burst_ns = BURST_S * 1_000_000_000;
        let ns = cost.saturating_mul(1_000_000_000 / MESSAGE) / per_second.max(1);
        if cost > MOST {
            return Verdict::Never;
        }
        self.paid_ns = self.paid_ns.max(now) + ns;
        match self.paid_ns.saturating_sub(now + burst_ns) {
            0 => Verdict::Now,
            late => Verdict::After(late),
        }
    }

    /// Whether nothing is owed.
    const fn is_even(&self, now: u64) -> bool {
        self.paid_ns <= now
    }
}

/// What all sessions of a tenant say.
#[derive(Debug)]
struct Till {
    account: Account,
    sessions: usize,
    /// Stripes that they have described.
    stripes: u64,
    ahead: Arc<Semaphore>,
}

/// The accounts of all tenants that are attached.
#[derive(Debug)]
pub struct Budget {
    /// The agent's own user has none.
    tills: Mutex<HashMap<Tenant, Till>>,
    refusals: Arc<Refusals>,
}

impl Budget {
    /// A budget that nobody has used. It reports clients that exceed it to `refusals`.
    #[must_use]
    pub fn new(refusals: Arc<Refusals>) -> Self {
        Self {
            tills: Mutex::default(),
            refusals,
        }
    }

    /// `tenant` asked for `what`, which nobody can have.
    pub fn refuse(&self, tenant: &Tenant, what: &'static str) {
        self.refusals.note(tenant, what);
    }

    /// The purse of a session of `tenant` that may say `per_second` messages.
    #[must_use]
    pub fn purse(self: &Arc<Self>, tenant: &Tenant, per_second: u32) -> Purse {
        let shared = (*tenant != Tenant::Agent).then(|| {
            let mut tills = self.tills.lock().unwrap_or_else(PoisonError::into_inner);
            let till = tills.entry(tenant.clone()).or_insert_with(|| Till {
                account: Account::default(),
                sessions: 0,
                stripes: 0,
                ahead: Arc::new(Semaphore::new(TENANT_AHEAD)),
            });
            till.sessions += 1;
            Arc::clone(&till.ahead)
        });
        Purse {
            budget: Arc::clone(self),
            tenant: tenant.clone(),
            account: Account::default(),
            per_second: per_second.into(),
            stripes: BTreeMap::new(),
            ahead: Arc::new(Semaphore::new(AHEAD)),
            shared,
        }
    }

    fn charge(&self, tenant: &Tenant, cost: u64, per_second: u64, now: u64) -> Verdict {
        let mut tills = self.tills.lock().unwrap_or_else(PoisonError::into_inner);
        tills.get_mut(tenant).map_or(Verdict::Now, |till| {
            till.account.charge(cost, TENANT * per_second, now)
        })
    }

    /// Stripes of a session of `tenant` become `more` instead of `less`, if it may have so many.
    fn describe(&self, tenant: &Tenant, less: u64, more: u64) -> bool {
        let mut tills = self.tills.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = tills.values().map(|till| till.stripes).sum();
        tills.get_mut(tenant).is_none_or(|till| {
            let stripes = till.stripes.saturating_sub(less).saturating_add(more);
            let others = all - till.stripes;
            let fits = others + 2 * stripes <= STRIPES || more <= less;
            if fits {
                till.stripes = stripes;
            }
            fits
        })
    }

    /// A session of `tenant` is gone. What it owes stays until it is paid, whoever comes and goes meanwhile.
    fn leave(&self, tenant: &Tenant, now: u64) {
        let mut tills = self.tills.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(till) = tills.get_mut(tenant) {
            till.sessions -= 1;
        }
        tills.retain(|_, till| till.sessions != 0 || !till.account.is_even(now));
    }
}

/// What one session may say.
#[derive(Debug)]
pub struct Purse {
    budget: Arc<Budget>,
    tenant: Tenant,
    account: Account,
    per_second: u64,
    /// What it has described, by cache.
    stripes: BTreeMap<u32, u64>,
    ahead: Arc<Semaphore>,
    /// Its tenant's, if that has an account.
    shared: Option<Arc<Semaphore>>,
}

impl Purse {
    /// Pays for a message; after how long it may be heard, if not at once.
    ///
    /// # Errors
    /// When it costs more than may ever be said at once: why, for the process.
    pub fn pay(&mut self, event: &Event, now: u64) -> Result<Option<Duration>, &'static str> {
        let cost = cost(event);
        let own = self.account.charge(cost, self.per_second, now);
        let all = match own {
            Verdict::Never => Verdict::Never,
            _ if !self.describes(event) => Verdict::Never,
            _ => self.budget.charge(&self.tenant, cost, self.per_second, now),
        };
        let late = match (own, all) {
            (Verdict::Never, _) | (_, Verdict::Never) => {
                self.budget.refusals.note(&self.tenant, REFUSED);
                return Err(REFUSED);
            }
            (Verdict::Now, Verdict::Now) => return Ok(None),
            (Verdict::After(own), Verdict::After(all)) => own.max(all),
            (Verdict::After(late), Verdict::Now) | (Verdict::Now, Verdict::After(late)) => late,
        };
        self.budget.refusals.note(&self.tenant, SLOWED);
        Ok(Some(Duration::from_nanos(late)))
    }

    /// Keeps count of the stripes that are described. `false`: they are too many.
    fn describes(&mut self, event: &Event) -> bool {
        let (kv, stripes) = match event {
            Event::KvRegistered(said) => {
                let stripes = count(&said.first_block) + count(&said.stripe_kind);
                (said.kv, CACHE + stripes)
            }
            Event::KvGone(gone) => (gone.kv, 0),
            _ => return true,
        };
        if stripes == 0 {
            let before = self.stripes.remove(&kv).unwrap_or(0);
            return self.budget.describe(&self.tenant, before, 0);
        }
        let before = self.stripes.get(&kv).copied().unwrap_or(0);
        let known = before != 0 || self.stripes.len() < CACHES || self.shared.is_none();
        let fits = known && self.budget.describe(&self.tenant, before, stripes);
        if fits {
            self.stripes.insert(kv, stripes);
        }
        fits
    }

    /// Waits until one more message may wait for the control thread.
    pub async fn go_ahead(&self, room: Option<Arc<Room>>) -> Option<Ahead> {
        let session = Arc::clone(&self.ahead).acquire_owned().await.ok()?;
        let tenant = match &self.shared {
            Some(shared) => Some(Arc::clone(shared).acquire_owned().await.ok()?),
            None => None,
        };
        Some(Ahead {
            session,
            tenant,
            room: room.map(|room| room as Arc<dyn Any + Send + Sync>),
        })
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        if self.shared.is_some() {
            let stripes = self.stripes.values().sum();
            self.budget.describe(&self.tenant, stripes, 0);
            self.budget.leave(&self.tenant, crate::clock::now_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_proto::{parts, v1};

    const PER_SECOND: u64 = 4_096;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_flood_is_read_at_the_allowed_rate() {
        let (mut account, mut now) = (Account::default(), 0);
        for _ in 0..11 * PER_SECOND {
            if let Verdict::After(pause) = account.charge(MESSAGE, PER_SECOND, now) {
                now += pause;
            }
        }
        assert!(now >= 99 * SECOND / 10, "{now}");
        assert!(now <= 101 * SECOND / 10, "{now}");
    }

    fn changes(count: usize) -> Event {
        Event::Rm(v1::RmEvents {
            snapshot: true,
            events: vec![v1::RmEvent::default(); count],
        })
    }

    #[test]
    fn only_what_lists_something_may_be_long() {
        let begins = |event: Event| {
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            longest(&bytes[..2])
        };
        let note = Event::Note(v1::Note::default());
        let mapped = Event::Mapped(v1::Mapped::default());
        let hooks = Event::Hooks(v1::HookReport::default());
        let lists = [
            changes(1),
            cache(1, |nth| nth),
            Event::Requests(v1::Requests::default()),
            Event::Restored(v1::Restored::default()),
        ];
        assert_eq!([note, mapped].map(begins), [PLAIN; 2]);
        assert_eq!(begins(hooks), HOOKS);
        assert_eq!(lists.map(begins), [MESSAGE_LIMIT; 4]);
        assert_eq!(
            longest(&[0xea, 1]),
            MESSAGE_LIMIT,
            "field 29 is of a newer library"
        );
        assert_eq!([&[][..], &[0xff], &[8, 1]].map(longest), [PLAIN; 3]);
    }

    #[test]
    fn a_message_of_many_items_costs_as_much_as_many_messages() {
        let smallest = cost(&changes(0));
        assert!((MESSAGE..MESSAGE + 10).contains(&smallest), "{smallest}");
        assert_eq!(cost(&changes(1_000)) / 1_000, CHANGE + 1 + 2 / BYTES);
        let most = usize::try_from(CHANGES).unwrap_or(usize::MAX);
        assert!(cost(&changes(most)) < MOST / 16, "a turn is short");
        assert!(cost(&changes(most + 1)) > MOST, "refused");
        let all = Event::Requests(v1::Requests {
            set: vec![v1::RequestBlocks {
                blocks: vec![1 << 20; 100_000],
                ..v1::RequestBlocks::default()
            }],
            ..v1::Requests::default()
        });
        let least = 100_000 * BLOCK;
        assert!((least..least + 800 * MESSAGE).contains(&cost(&all)));
    }

    #[test]
    fn what_a_process_may_have_fits_a_burst_and_what_is_beyond_all_bounds_does_not() {
        let mut account = Account::default();
        let snapshot = cost(&changes(2 * tidegate_node::session::CHANNELS));
        assert_eq!(account.charge(snapshot, PER_SECOND, 0), Verdict::Now);
        assert_eq!(account.charge(MOST + 1, PER_SECOND, 0), Verdict::Never);
        let again = account.charge(PER_SECOND * MESSAGE, PER_SECOND, 0);
        assert!(matches!(again, Verdict::After(_)), "{again:?}");
    }

    /// A cache of so many stripes, each a step of `step` from the one before, as a library describes it.
    fn cache(stripes: u32, step: impl Fn(u32) -> u32) -> Event {
        Event::KvRegistered(parts::by_kinds(v1::KvRegistered {
            first_block: (0..stripes).map(&step).collect(),
            blocks: (0..stripes).map(|nth| 1 + nth % 3).collect(),
            handles: (0..stripes).map(|nth| 1 + nth % 2).collect(),
            backed: vec![0xff; stripes.div_ceil(8) as usize],
            ..v1::KvRegistered::default()
        }))
    }

    /// Whether each of them is heard, however little the session may say, and how long they are in all, s.
    fn heard(said: Vec<Event>) -> f64 {
        let mut sum = 0;
        for event in said {
            assert!(event.encoded_len() < MESSAGE_LIMIT, "it is not decoded");
            for per_second in [1, PER_SECOND] {
                let verdict = Account::default().charge(cost(&event), per_second, 0);
                assert_ne!(verdict, Verdict::Never, "{}", cost(&event));
            }
            sum += cost(&event);
        }
        sum as f64 / (PER_SECOND * MESSAGE) as f64
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

        /// P-LIFECYCLE-14: what a library says at its bounds is heard.
        #[test]
        fn whatever_a_process_has_can_be_described(
            stripes in 0_u32..=1 << 19,
            (over, under) in (1_u64..4_000, 1_u64..200),
            requests in 0_u64..=65_536,
            longest in 0_usize..40_000,
            changes in 0_usize..40_000,
        ) {
            let even = move |nth: u32| u32::try_from(u64::from(nth) * over / under).unwrap_or(u32::MAX);
            let kv = cache(stripes, even);
            proptest::prop_assert!(heard(vec![kv]) < 1.0);
            // One request is long; the others are what a node's memory may hold of them.
            let each = (longest / 1_000).max(1);
            let held = |request: u64| v1::RequestBlocks {
                request: u64::MAX - request,
                tokens: u32::MAX,
                blocks: vec![1 << 20; if request == 7 { 10 * longest } else { each }],
            };
            let set = (0..requests).map(held).collect();
            let forgotten: Vec<u64> = (0..requests).collect();
            let said = parts::requests(true, set, &forgotten);
            heard(said.into_iter().map(Event::Requests).collect());
            let said = parts::changes(true, vec![v1::RmEvent::default(); changes]);
            heard(said.into_iter().map(Event::Rm).collect());
        }
    }

    /// P-LIFECYCLE-14: what a library says at its bounds is heard.
    #[test]
    fn the_largest_cache_and_the_most_requests_are_heard_within_seconds() {
        assert!(heard(vec![cache(1 << 19, |nth| 2 * nth)]) < 1.0);
        let held = |request| v1::RequestBlocks {
            request,
            tokens: 16_000,
            blocks: (0..16).collect(),
        };
        let said = parts::requests(true, (0..65_536).map(held).collect(), &[]);
        let took = heard(said.into_iter().map(Event::Requests).collect());
        assert!(took < 5.0, "{took} s");
    }

    fn kv(kv: u32, stripes: u32) -> Event {
        match cache(stripes, |nth| nth) {
            Event::KvRegistered(said) => Event::KvRegistered(v1::KvRegistered { kv, ..said }),
            other => other,
        }
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn caches_of_one_tenant_have_a_bound_together_and_who_ends_gives_theirs_back() {
        let budget = Arc::new(Budget::new(Arc::default()));
        let tenant = Tenant::User(70_000);
        let now = crate::clock::now_ns();
        let mut first = budget.purse(&tenant, 4_096);
        let mut second = budget.purse(&tenant, 4_096);
        for purse in [&mut first, &mut second] {
            // Said again, it is the same cache.
            assert!(purse.pay(&kv(1, 1 << 18), now).is_ok());
            assert!(purse.pay(&kv(1, 1 << 18), now).is_ok());
        }
        assert_eq!(second.pay(&kv(2, 1 << 17), now), Err(REFUSED));
        // Another tenant has half of what is left.
        let mut other = budget.purse(&Tenant::User(1), 4_096);
        assert_eq!(other.pay(&kv(1, 1 << 19), now), Err(REFUSED));
        assert!(other.pay(&kv(1, 1 << 18), now).is_ok());
        drop(other);
        drop(first);
        assert!(second.pay(&kv(2, 1 << 18), now).is_ok());
        let gone = Event::KvGone(v1::KvGone { kv: 1 });
        assert!(second.pay(&gone, now).is_ok() && second.pay(&kv(3, 1 << 18), now).is_ok());
        assert_eq!(second.pay(&kv(4, 1 << 17), now), Err(REFUSED));
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn a_session_has_a_cache_for_each_gpu_and_the_largest_fits() {
        let budget = Arc::new(Budget::new(Arc::default()));
        let now = crate::clock::now_ns();
        let mut purse = budget.purse(&Tenant::User(70_000), 4_096);
        for nth in 0..CACHES as u32 {
            assert!(purse.pay(&kv(nth, 0), now).is_ok(), "cache {nth}");
        }
        assert_eq!(purse.pay(&kv(99, 0), now), Err(REFUSED));
        assert!(purse.pay(&kv(3, 1 << 19), now).is_ok(), "one of them grows");
        // The agent's own user has no bound.
        let mut own = budget.purse(&Tenant::Agent, 4_096);
        assert!((0..100).all(|nth| own.pay(&kv(nth, 1), now).is_ok()));
    }

    /// P-SECURITY-9: preemption does not wait for what a stranger says.
    #[test]
    fn sessions_of_one_tenant_share_and_those_of_another_do_not_notice() {
        let budget = Arc::new(Budget::new(Arc::default()));
        let (greedy, other) = (Tenant::User(70_000), Tenant::Container("a".into()));
        let note = changes(1_000);
        let now = crate::clock::now_ns();
        let mut paid = 0;
        for _ in 0..64 {
            let mut purse = budget.purse(&greedy, 4_096);
            while matches!(purse.pay(&note, now), Ok(None)) {
                paid += cost(&note);
            }
        }
        assert!(paid <= TENANT * PER_SECOND * MESSAGE, "{paid}");
        assert!(paid >= (TENANT - 1) * PER_SECOND * MESSAGE, "{paid}");
        assert_eq!(budget.purse(&other, 4_096).pay(&note, now), Ok(None));
        let named = budget.refusals.rows();
        assert_eq!(
            (named.len(), &*named[0].who, &*named[0].what),
            (1, "uid 70000", SLOWED)
        );
    }

    #[test]
    fn who_leaves_and_comes_back_still_owes() {
        let budget = Arc::new(Budget::new(Arc::default()));
        let (tenant, note) = (Tenant::User(70_000), changes(2_000));
        let now = crate::clock::now_ns();
        for _ in 0..TENANT * 2 {
            let mut purse = budget.purse(&tenant, 4_096);
            while matches!(purse.pay(&note, now), Ok(None)) {}
        }
        let mut again = budget.purse(&tenant, 4_096);
        assert!(matches!(again.pay(&note, now), Ok(Some(_))));
        drop(again);
        budget.leave(&Tenant::User(70_001), now + 60 * SECOND);
        assert!(budget.tills.lock().expect("not poisoned").is_empty());
    }
}
