//! Tidegate: the agent's own shell, `tidegate_node`, in a world of virtual time.
//!
//! The shell is the one that the daemon turns, with the agent's default settings, and decides about the GPU's time and
//! its memory at once. Modelled is what lies around it, each with its time from [`Costs`](crate::costs::Costs):
//!
//! ```text
//!   launch, done --> page words --> doorbell --edge--> Shell --order--> issue thread --> world
//!     (online)        (prober)                         |   ^                 |
//!                                                      |   +---- answer -----+
//!   reserve, use --> Demand, Pressure, usage words ----+-> Map --> mapped stripe by stripe
//!   requests, log --> Requests, Withheld (offline) ----+-> Check, Move --> taken, given back
//! ```
//!
//! A message takes as long as a doorbell, either way. The agent and both processes were there
//! [`BEFORE`] the first request: what an agent waits for at its start is over, and online has its
//! headroom. Beside another policy for the GPU's time (`Under`) the agent hears of no activity, and
//! that policy pauses and resumes the job as an operator does.
//!
//! Invariant, of the processes' own books and not of the agent's: what online has mapped, is on its
//! way to either, and backs offline never exceeds the pool.

mod book;
mod issue;
mod offline;
mod online;
mod ports;
mod start;
mod under;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidegate_abi::class::Engine;
use tidegate_node::file::{File, SentFile};
use tidegate_node::journal::Journal;
use tidegate_node::kinds::{Gpu, Level, Method, Process, Role, Switch};
use tidegate_node::memory::{MemoryOrder, MemorySaid};
use tidegate_node::message::{
    Aged, Asked, Channel, Claim, Library, Newcomer, Owner, Peer, Proof, RmChange, Said, Tell,
    Tunables,
};
use tidegate_node::page::PageRef;
use tidegate_node::ports::Ports;
use tidegate_node::task::Task;
use tidegate_node::{Input, Parts, Shell};
use tidegate_policy::config::{Config, Reserving, Sharing};
use tidegate_policy::event;
use tidegate_policy::ids::{Bytes, GpuId};
use tidegate_policy::placement::Slice;
use tidegate_policy::time::Instant;
use tidegate_policy::view::Reason;

use crate::compute::{self, Boundary, Command, Event, NEVER};
use crate::costs::ns;
use crate::memory::{Pool, Wants};
use crate::record::CooldownRecord;
use crate::spec::{Compute, Memory, Spec};
use book::Book;
use issue::{Thread, Turn};
use offline::{Manners, Offline, Victims};
use online::{Cache, Online};
use ports::{Heard, Lasting, NoEvents, Shared, Stream, Time, Wire};

/// How long everybody was there before the trace begins.
const BEFORE: u64 = 2_000_000_000;
const GPU: GpuId = GpuId(0);
const UUID: [u8; 16] = [1; 16];
const ONLINE: u64 = 1;
const OFFLINE: u64 = 2;
/// Offline's RM client, and its channel there.
const CLIENT: u32 = 0xc1d0_0002;
const CHANNEL: u32 = 1;
/// A vLLM scheduler without blocks for any request waits so long and tries again (`SHORTAGE_WAIT_S` of
/// `interposer/engines`).
const SHORTAGE_WAIT: u64 = 2_000_000;

/// What is on its way between the agent and a process.
#[derive(Debug)]
enum Mail {
    Said(u64, MemorySaid),
    Order(u64, MemoryOrder),
}

/// Who decides about the GPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The agent.
    Own,
    /// Somebody else.
    Foreign {
        /// Who lets offline in, which takes so many ns.
        runs: Option<u64>,
        /// Nothing of offline is on the GPU.
        off: bool,
    },
}

/// The agent, both processes and the issue thread.
#[derive(Debug)]
pub struct Tidegate {
    shell: Shell,
    wire: Wire,
    time: Time,
    journal: Arc<Journal>,
    edge: u64,
    rule: Rule,
    thread: Thread,
    online: Online,
    offline: Option<Offline>,
    mail: VecDeque<(u64, Mail)>,
    /// The world has begun.
    begun: bool,
    /// As the last call left offline's channels.
    enabled: bool,
    book: Option<Book>,
    timers: Timers,
    figures: Seen,
}

/// When something happens by itself.
#[derive(Debug)]
struct Timers {
    /// When the agent hears a doorbell.
    doorbell: u64,
    /// When online tries again to begin an iteration for which it has no memory.
    retry: u64,
}

/// What is kept for the report.
#[derive(Debug, Default)]
struct Seen {
    /// Most that was held beyond the pool.
    overdrawn: u64,
    /// Cooldowns in force at each wake.
    cooldowns: (u64, u128),
}

impl Tidegate {
    // What happens.

    /// When something happens by itself, in the agent's time.
    fn at(&self) -> u64 {
        let offline = self.offline.as_ref().map_or(NEVER, Offline::next);
        let mail = self.mail.front().map_or(NEVER, |mail| mail.0);
        self.shell
            .deadline()
            .min(self.thread.ends().unwrap_or(NEVER))
            .min(self.online.next())
            .min(offline)
            .min(mail)
            .min(self.timers.doorbell)
            .min(self.timers.retry)
    }

    /// All that happens at `now`.
    fn pass(&mut self, now: u64, mut pool: Option<&mut Pool>, out: &mut Vec<Command>) {
        self.time.set(now);
        self.online.probed(now);
        if self.online.publishes(now) {
            self.timers.doorbell = self.timers.doorbell.min(now + self.edge);
        }
        if let Some(said) = self.online.cache.as_mut().and_then(|c| c.carried_out(now)) {
            self.post(now, Mail::Said(ONLINE, said));
        }
        if let Some(turn) = self.thread.returned(now, &self.journal) {
            self.heed(turn, now, out);
        }
        while let Some((_, mail)) = self.mail.pop_front_if(|mail| mail.0 <= now) {
            self.deliver(mail, now, pool.as_deref_mut());
        }
        if let (Some(offline), Some(pool)) = (&mut self.offline, pool.as_deref_mut()) {
            while let Some(said) = offline.says(now, pool) {
                self.mail
                    .push_back((now + self.edge, Mail::Said(OFFLINE, said)));
            }
        }
        if now >= self.timers.doorbell || now >= self.shell.deadline() {
            self.timers.doorbell = NEVER;
            self.inform(now, pool.as_deref_mut());
            self.shell.wake();
            self.shell.rest();
        }
        self.answer(now, out);
        if now >= self.timers.retry {
            self.timers.retry = NEVER;
            out.push(Command::Retry);
        }
        self.audit(pool);
        if let Some(book) = self.book.as_mut().filter(|_| now >= BEFORE) {
            book.note(&self.shell, now);
        }
    }

    fn post(&mut self, now: u64, mail: Mail) {
        self.mail.push_back((now + self.edge, mail));
    }

    fn deliver(&mut self, mail: Mail, now: u64, mut pool: Option<&mut Pool>) {
        match mail {
            Mail::Said(session, said) => {
                self.inform(now, pool.as_deref_mut());
                self.hear(session, Said::Memory(Box::new(said)));
            }
            Mail::Order(ONLINE, MemoryOrder::Map { seq, bytes, .. }) => {
                if let Some(cache) = &mut self.online.cache {
                    cache.order(seq, bytes.0, now);
                }
            }
            Mail::Order(
                OFFLINE,
                MemoryOrder::Share {
                    bytes: Some(bytes), ..
                },
            ) => {
                let registered = self.offline.as_mut().zip(pool);
                let registered = registered.and_then(|(own, pool)| own.registered(bytes.0, pool));
                if let Some(registered) = registered {
                    let said = MemorySaid::KvRegistered(registered);
                    self.hear(OFFLINE, Said::Memory(Box::new(said)));
                }
            }
            Mail::Order(OFFLINE, order) => {
                if let Some(offline) = &mut self.offline {
                    offline.order(order, now);
                }
            }
            Mail::Order(..) => {}
        }
    }

    /// Takes what the shell asks for until it asks for nothing more.
    fn answer(&mut self, now: u64, out: &mut Vec<Command>) {
        loop {
            while let Some(heard) = self.wire.take() {
                match heard {
                    Heard::Task(Task::Issue(issue)) => self.thread.put(issue),
                    // No channel of this world leaves the lists.
                    Heard::Task(Task::Release(_)) => {}
                    // One job has nobody to share with.
                    Heard::Task(Task::Slice(_)) => {}
                    Heard::Claim(claim) => self.prove(claim),
                    Heard::Again(again) => {
                        self.shell.take(Input::Aged(Aged {
                            session: again.session,
                            client: again.client,
                            seq: again.seq,
                            owner: Some(Owner::Own),
                        }));
                        self.shell.rest();
                    }
                    Heard::Told(session, Tell::Memory(order)) => {
                        self.post(now, Mail::Order(session, *order));
                    }
                    Heard::Told(..) => {}
                }
            }
            let Some(turn) = self.thread.begin(now, &self.journal) else {
                break;
            };
            self.heed(turn, now, out);
        }
    }
}

impl Tidegate {
    /// The issue thread entered a call, or is done with an order.
    fn heed(&mut self, turn: Turn, now: u64, out: &mut Vec<Command>) {
        let (switch, takes) = match turn {
            Turn::Over(issued) => {
                self.shell.take(Input::Issued(issued));
                return self.shell.rest();
            }
            Turn::Entered(switch, takes) => (switch, takes),
        };
        self.enabled = switch == Switch::Enable;
        let job = self.shell.policy().jobs().next();
        let reason = job.map_or(Reason::None, |job| job.reason);
        match (switch, self.rule) {
            (Switch::Enable, Rule::Own) => {
                let cooldown = self.cooldown(now);
                self.figures.cooldowns.0 += 1;
                self.figures.cooldowns.1 += cooldown.as_nanos();
                out.push(Command::Run { takes });
            }
            (Switch::Enable, Rule::Foreign { runs, .. }) => {
                let takes = runs.unwrap_or(takes);
                self.thread.ends_at(now + takes);
                out.push(Command::Run { takes });
            }
            (Switch::Disable, Rule::Foreign { off: true, .. }) => self.thread.ends_at(now),
            // It is on its way off the GPU; the call waits for that.
            (Switch::Disable, Rule::Foreign { runs: None, .. }) => self.thread.ends_at(NEVER),
            (Switch::Disable, _) if reason == Reason::Reclaim => out.push(Command::Hold { takes }),
            (Switch::Disable, _) => out.push(Command::Stop {
                at: Boundary::After(0),
                takes,
            }),
        }
        if let (Switch::Enable, Rule::Foreign { off, .. }) = (switch, &mut self.rule) {
            *off = false;
        }
    }

    fn cooldown(&self, now: u64) -> Duration {
        let gpu = self.shell.policy().gpu(GPU, Instant::from_nanos(now));
        gpu.map_or(Duration::ZERO, |gpu| gpu.cooldown)
    }

    /// Says who holds offline's blocks, if the agent may choose some of them at what it hears next.
    fn inform(&mut self, now: u64, pool: Option<&mut Pool>) {
        let (Some(offline), Some(pool)) = (&mut self.offline, pool) else {
            return;
        };
        let known = self
            .shell
            .policy()
            .elastics(Instant::from_nanos(now))
            .next();
        let (Some(cache), Some(known)) = (&self.online.cache, known) else {
            return;
        };
        let (reservation, headroom) = (known.reservation.0, known.headroom.0);
        let uses = self.online.used().max(cache.wants());
        // What the reservation becomes of this at most.
        let wants = if uses > reservation {
            uses + headroom * Reserving::FIRST_GROWTH / 100
        } else if uses.saturating_mul(10) >= reservation.saturating_mul(9) {
            (uses + headroom).max(uses.saturating_mul(10) / 9 + cache.stripe())
        } else {
            reservation
        };
        let wants = wants.next_multiple_of(cache.stripe()).min(cache.whole());
        if wants <= pool.bytes.saturating_sub(offline.holds(pool)) {
            return;
        }
        if let Some(said) = offline.requests(now, pool) {
            self.hear(OFFLINE, Said::Memory(Box::new(said)));
        }
    }

    /// Whether more is held than there is, by what the processes themselves know.
    fn audit(&mut self, pool: Option<&mut Pool>) {
        if let (Some(offline), Some(cache), Some(pool)) = (&self.offline, &self.online.cache, pool)
        {
            let held = cache.promised() + offline.holds(pool);
            self.figures.overdrawn = self.figures.overdrawn.max(held.saturating_sub(pool.bytes));
        }
    }

    /// Most that was mapped, backed or on its way beyond what there is, bytes: zero, or the agent is wrong.
    #[must_use]
    pub const fn overdrawn(&self) -> u64 {
        self.figures.overdrawn
    }

    /// Keeps a history for placement, in slices of `every` ns.
    pub fn watch(&mut self, every: u64) {
        let pool = self.online.cache.as_ref().map_or(0, Cache::whole);
        self.book = Some(Book::new(GPU, every.max(1), pool, BEFORE));
    }

    /// That history up to `now`, and when its gate was open.
    pub fn history(&mut self, now: u64) -> (Vec<Slice>, Vec<(u64, u64)>) {
        let book = self.book.take();
        book.map_or_else(Default::default, |book| {
            book.close(&self.shell, now + BEFORE)
        })
    }

    // What the world asks.

    /// Takes an event of the world.
    pub fn step(
        &mut self,
        event: Event,
        now: u64,
        mut pool: Option<&mut Pool>,
        out: &mut Vec<Command>,
    ) {
        if event == Event::Start {
            return self.start(pool, out);
        }
        let now = now + BEFORE;
        self.time.set(now);
        let own = self.rule == Rule::Own;
        let rang = match event {
            Event::Launch { prompt, decodes } => {
                let rang = !own || self.online.launched(prompt, decodes, now);
                self.uses(now, pool.as_deref_mut());
                rang
            }
            Event::Done => {
                if own {
                    self.online.is_done(now);
                }
                self.uses(now, pool.as_deref_mut());
                !own
            }
            Event::Arrived { in_flight, .. } | Event::Ended { in_flight, .. } => {
                self.online.in_flight(in_flight)
            }
            Event::Due => {
                while self.at() <= now {
                    self.pass(now, pool.as_deref_mut(), out);
                }
                false
            }
            Event::Start | Event::Stopped | Event::Running | Event::OfflineDone => false,
        };
        if rang {
            self.timers.doorbell = self.timers.doorbell.min(now + self.edge);
        }
    }

    /// The engine says what it uses.
    fn uses(&mut self, now: u64, pool: Option<&mut Pool>) {
        let said = pool.and_then(|pool| self.online.uses(pool.online_used(), now));
        if let Some(said) = said {
            self.post(now, Mail::Said(ONLINE, said));
        }
    }

    /// When it wants [`Event::Due`].
    #[must_use]
    pub fn next(&self) -> u64 {
        if self.begun {
            self.at().saturating_sub(BEFORE)
        } else {
            NEVER
        }
    }

    /// Online is about to submit an iteration: whether it has the memory for one.
    pub fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> bool {
        let now = now + BEFORE;
        let Some(cache) = &mut self.online.cache else {
            return true;
        };
        let said = cache.reserve(wants.all, false, now);
        pool.limit_online(cache.mapped);
        let enough = wants.least.min(cache.whole()) <= cache.mapped;
        self.timers.retry = if enough { NEVER } else { now + SHORTAGE_WAIT };
        if let Some(said) = said {
            self.post(now, Mail::Said(ONLINE, said));
        }
        enough
    }

    /// A request came while online computes: vLLM's plugin asks for what it will need, as soon as it is sent.
    pub fn online_expects(&mut self, bytes: u64, now: u64) {
        let now = now + BEFORE;
        let cache = self.online.cache.as_mut();
        if let Some(said) = cache.and_then(|cache| cache.reserve(bytes, true, now)) {
            self.post(now, Mail::Said(ONLINE, said));
        }
    }

    /// Offline is about to submit an iteration.
    pub fn offline_wants(&mut self, now: u64) {
        if let Some(offline) = &mut self.offline {
            offline.steps(now + BEFORE);
        }
    }

    /// What it learnt of decode gaps.
    pub fn learnt(&self, now: u64, record: &mut CooldownRecord) {
        let now = now + BEFORE;
        if let Some(view) = self.shell.policy().gpu(GPU, Instant::from_nanos(now)) {
            record.at_end = Some(view.cooldown);
            record.gaps_seen = view.decode_gaps;
        }
        let (wakes, sum) = self.figures.cooldowns;
        let mean = sum.checked_div(u128::from(wakes));
        record.mean =
            mean.map(|mean| Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)));
    }
}

impl compute::Policy for Tidegate {
    fn step(&mut self, event: Event, now: u64, out: &mut Vec<Command>) {
        self.step(event, now, None, out);
    }

    fn next(&self) -> u64 {
        self.next()
    }

    fn learnt(&self, now: u64, record: &mut CooldownRecord) {
        self.learnt(now, record);
    }
}
