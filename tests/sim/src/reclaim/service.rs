//! The thread that changes mappings on the agent's order, as `interposer/src/memory/service.rs` does it.
//!
//! It takes one order after the other. It begins an order only in the session in which the order came, before its
//! deadline, while the gate word says that a reclaim is under way, and when no thread is inside a call that may hold
//! the driver's locks. It carries out an order stripe by stripe, and stops between two stripes if the order was
//! cancelled or its session is over. The reporter says that an order is late if it is not answered in time.

use super::engine::Backing;
use super::fault::Trigger;
use super::figures::Break;
use super::play::{Change, Happening, Order, Own, Reclaim};
use crate::dice::{MS, US};
use crate::world::World;
use tidegate_node::memory::{Blocker, MemoryOrder, MemorySaid};
use tidegate_node::text::Text;
use tidegate_policy::ids::{LogSeq, ReclaimId, StripeId};
use tidegate_policy::reclaim::{Answer, Direction};

impl World<Reclaim> {
    /// Whose event it is that happens in a process, and until when it is stopped.
    pub fn whose(&self, event: &Happening) -> Option<(usize, u64)> {
        let pid = match event {
            Happening::Ordered(pid, ..)
            | Happening::Serve(pid)
            | Happening::Clear(pid, _)
            | Happening::Changed(pid)
            | Happening::Late(pid, ..)
            | Happening::Visible(pid, _)
            | Happening::Deliver(pid)
            | Happening::Output(pid, _)
            | Happening::Turn(pid)
            | Happening::Tick(pid)
            | Happening::Allocates(pid, _)
            | Happening::Frees(pid, _)
            | Happening::Mapped(pid) => *pid,
            Happening::Online(_)
            | Happening::Demand
            | Happening::QueueDrains
            | Happening::Fault(..)
            | Happening::Strikes(..) => return None,
        };
        let until = match &self.processes[pid].own {
            Own::Offline(offline) => offline.stopped_until,
            Own::Online(_) => 0,
        };
        Some((pid, until))
    }

    /// A process hears an order.
    pub fn ordered(&mut self, pid: usize, era: u64, order: MemoryOrder) {
        if self.processes[pid].own.line().era != era {
            return;
        }
        let order = match order {
            MemoryOrder::Check {
                reclaim,
                deadline_ns,
            } => Order {
                era,
                reclaim,
                deadline: deadline_ns,
                moves: None,
            },
            MemoryOrder::Move {
                reclaim,
                direction,
                stripes,
                deadline_ns,
                ..
            } => Order {
                era,
                reclaim,
                deadline: deadline_ns,
                moves: Some((direction, stripes)),
            },
            MemoryOrder::Cancel { reclaim } => {
                if let Some(offline) = self.processes[pid].own.as_offline() {
                    offline.service.cancelled.insert(reclaim);
                }
                return;
            }
            order => return self.online_ordered(pid, &order),
        };
        let trigger = if order.moves.is_some() {
            Trigger::Move
        } else {
            Trigger::Check
        };
        let late = Happening::Late(pid, era, order.reclaim);
        self.play_at(order.deadline, late);
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        offline.service.open.push(order.clone());
        offline.service.orders.push_back(order);
        if !core::mem::replace(&mut offline.service.busy, true) {
            self.serve_next(pid);
        }
        self.strikes(pid, trigger);
    }

    fn serve_next(&mut self, pid: usize) {
        let at = self.now + self.dice.scale(10 * US, 300 * US);
        self.play_at(at, Happening::Serve(pid));
    }

    /// The thread takes its next order.
    pub fn serve(&mut self, pid: usize) {
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let Some(order) = offline.service.orders.pop_front() else {
            offline.service.busy = false;
            return;
        };
        if order.era != offline.line.era {
            return self.serve_next(pid);
        }
        if self.is_void(pid, &order) {
            return self.answers(pid, &order, Answer::Missed, Vec::new());
        }
        if !self.processes[pid].is_held() {
            return self.answers(pid, &order, Answer::Refused, Vec::new());
        }
        let inside = if order.moves.is_some() { 2 } else { 6 };
        if self.dice.percent(inside) {
            // Until the thread is out, or it is too late.
            let out = self.now + self.dice.scale(100 * US, 60 * MS);
            let at = out.min(order.deadline);
            return self.play_at(at, Happening::Clear(pid, order));
        }
        self.clear(pid, order);
    }

    /// Nobody is inside a call that may hold the driver's locks, or it is too late.
    pub fn clear(&mut self, pid: usize, order: Order) {
        if self.is_void(pid, &order) {
            return self.answers(pid, &order, Answer::Missed, Vec::new());
        }
        if self.now == order.deadline {
            return self.answers(pid, &order, Answer::Refused, Vec::new());
        }
        match order.moves.clone() {
            None => {
                if self.play.broken == Break::UnmapEnabled {
                    self.fault_if_enabled(pid);
                }
                self.answers(pid, &order, Answer::Done, Vec::new());
            }
            Some((direction, stripes)) => self.begins_change(pid, order, direction, stripes),
        }
    }

    /// Whether an order was called off, or came too late to begin.
    fn is_void(&mut self, pid: usize, order: &Order) -> bool {
        self.now > order.deadline || !self.goes_on(pid, order)
    }

    fn goes_on(&mut self, pid: usize, order: &Order) -> bool {
        let offline = self.processes[pid].own.as_offline();
        offline.is_some_and(|offline| {
            offline.line.era == order.era && !offline.service.cancelled.contains(&order.reclaim)
        })
    }

    fn begins_change(
        &mut self,
        pid: usize,
        order: Order,
        direction: Direction,
        stripes: Vec<StripeId>,
    ) {
        // The driver takes its time now and then, and hardly ever hangs for a while.
        let each = match self.dice.between(0, 99) {
            0..=6 => self.dice.scale(2 * MS, 60 * MS),
            _ => self.dice.scale(20 * US, 400 * US),
        };
        let hangs = if self.dice.percent(3) {
            self.dice.scale(100 * MS, 1_500 * MS)
        } else {
            0
        };
        let early = self.play.broken == Break::EarlyAnswer;
        let Some(cache) = self.processes[pid].own.cache() else {
            return self.answers(pid, &order, Answer::Refused, Vec::new());
        };
        let restores = direction == Direction::Restore;
        let (pages, read) = (&cache.pages, cache.engine.read);
        let mut known = stripes.iter();
        if restores && !known.all(|stripe| pages.is_known_lost(stripe.0, read)) {
            return self.answers(pid, &order, Answer::Refused, Vec::new());
        }
        // What stands is not restored, and what is gone not taken: another rank's may be.
        let stands = |stripe: &StripeId| pages.backing[stripe.0 as usize] == Backing::Own;
        let stripes: Vec<StripeId> = stripes
            .into_iter()
            .filter(|stripe| stands(stripe) != restores)
            .collect();
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        offline.service.change = Some(Change {
            order: order.clone(),
            direction,
            stripes: stripes.clone(),
            done: 0,
            each,
            hangs,
            answered: early,
        });
        if early {
            self.says_answer(pid, &order, Answer::Done, stripes);
        }
        self.changes_next(pid);
    }

    /// The next stripe of a change, or its end.
    fn changes_next(&mut self, pid: usize) {
        self.fault_if_enabled(pid);
        let now = self.now;
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let (Some(change), Some(cache)) = (&mut offline.service.change, &mut offline.cache) else {
            return;
        };
        let order = change.order.clone();
        let next = change.stripes.get(change.done).copied();
        let takes = change.direction == Direction::Reclaim;
        let took = change.each + core::mem::take(&mut change.hangs);
        let goes_on =
            offline.line.era == order.era && !offline.service.cancelled.contains(&order.reclaim);
        let Some(stripe) = next.filter(|_| goes_on) else {
            return self.ends_change(pid, goes_on);
        };
        if takes {
            // Readable before the mapping changes.
            cache.pages.append(stripe.0, true);
        }
        cache.pages.set(stripe.0, Backing::Nothing);
        self.shows_log(pid);
        self.play_at(now + took, Happening::Changed(pid));
    }

    /// Mappings of a stripe are changed.
    pub fn changed(&mut self, pid: usize) {
        self.fault_if_enabled(pid);
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let (Some(change), Some(cache)) = (&mut offline.service.change, &mut offline.cache) else {
            return;
        };
        let Some(stripe) = change.stripes.get(change.done).copied() else {
            return;
        };
        change.done += 1;
        if change.direction == Direction::Reclaim {
            cache.pages.set(stripe.0, Backing::Quarantine);
            cache.pages.clear_quarantine();
        } else {
            cache.pages.set(stripe.0, Backing::Own);
            cache.pages.append(stripe.0, false);
        }
        self.shows_log(pid);
        self.changes_next(pid);
    }

    fn ends_change(&mut self, pid: usize, goes_on: bool) {
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let Some(change) = offline.service.change.take() else {
            return;
        };
        let Change {
            order,
            mut stripes,
            done,
            answered,
            ..
        } = change;
        stripes.truncate(done);
        let answer = if goes_on {
            Answer::Done
        } else {
            Answer::Missed
        };
        if answered {
            return self.serve_next(pid);
        }
        self.answers(pid, &order, answer, stripes);
    }

    /// Entries of the log become readable, at once but where that is broken.
    fn shows_log(&mut self, pid: usize) {
        let late = self.play.broken == Break::LateLog;
        let Some(cache) = self.processes[pid].own.cache() else {
            return;
        };
        let end = cache.pages.log_end();
        if late {
            let at = self.now + self.dice.between(2 * MS, 20 * MS);
            self.play_at(at, Happening::Visible(pid, end));
        } else {
            cache.pages.visible = end;
        }
    }

    pub fn visible(&mut self, pid: usize, end: usize) {
        if let Some(cache) = self.processes[pid].own.cache() {
            cache.pages.visible = cache.pages.visible.max(end);
        }
    }

    /// The last answer to an order; the thread goes on.
    fn answers(&mut self, pid: usize, order: &Order, answer: Answer, stripes: Vec<StripeId>) {
        self.says_answer(pid, order, answer, stripes);
        self.serve_next(pid);
    }

    fn says_answer(&mut self, pid: usize, order: &Order, answer: Answer, stripes: Vec<StripeId>) {
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let known = |open: &Order| (open.era, open.reclaim) == (order.era, order.reclaim);
        let same = |open: &Order| known(open) && open.moves.is_some() == order.moves.is_some();
        offline.service.open.retain(|open| !same(open));
        // Nobody waits for the answers of an earlier session; the next one is told what stands.
        if offline.line.era != order.era {
            self.play.figures.void += u64::from(order.moves.is_some());
            return;
        }
        self.play.figures.late += u64::from(self.now > order.deadline);
        let log = match (&order.moves, &offline.cache) {
            (Some((Direction::Reclaim, _)), Some(cache)) => cache.pages.log_end() as u64,
            _ => 0,
        };
        let said = answer_to(order, answer, stripes, log);
        self.says(pid, said);
    }

    /// The time of an order is over, and it has no answer.
    pub fn late(&mut self, pid: usize, era: u64, reclaim: ReclaimId) {
        let Some(offline) = self.processes[pid].own.as_offline() else {
            return;
        };
        let open = offline.service.open.iter();
        let late: Vec<Order> = open
            .filter(|open| (open.era, open.reclaim) == (era, reclaim))
            .filter(|open| open.deadline <= self.now)
            .cloned()
            .collect();
        for order in late {
            let said = answer_to(&order, Answer::Late, Vec::new(), 0);
            self.says(pid, said);
        }
    }
}

/// An answer in the shell's words.
fn answer_to(order: &Order, answer: Answer, stripes: Vec<StripeId>, log: u64) -> MemorySaid {
    let reclaim = order.reclaim;
    if order.moves.is_none() {
        return MemorySaid::Checked {
            reclaim,
            answer,
            blocker: match answer {
                Answer::Done => Blocker::None,
                Answer::Late => Blocker::Silent,
                Answer::Refused => Blocker::Inside(Text::name("cuMemAlloc")),
                Answer::Missed => Blocker::Refused(Text::name("the order came too late")),
            },
        };
    }
    MemorySaid::Moved {
        reclaim,
        answer,
        stripes,
        log: LogSeq(log),
    }
}
