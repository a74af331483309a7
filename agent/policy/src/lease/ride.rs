//! Rows of background requests in the users' own steps: how many ride, and what they cost.
//!
//! A step of an engine reads all weights, whatever it carries, so one more row costs little. How little is learnt from
//! the steps; no figure of a GPU is known here.
//!
//! ```text
//!   a step     = base + per row + per cached token               least squares over steps without a prompt
//!   a prompt   = what prompts of about its length took, beside that   means by octaves of tokens
//!   never more than twice the rows or tokens that a step had before: beyond what was seen nothing is known
//!   room       = a share of what steps take alone, saved up for a moment, less what rows cost   promised as a share
//!              = the slack of the user nearest to being late                                    promised as a time
//!   rows       = as many decodes as the room pays, then prompt tokens of what is left
//!   a user's prompt waits or is read: none
//!   no user runs: from the idle age on from which a return is worth its delay, see [`Leaser::from`]
//! ```

use super::plan;
use super::predict::Sums;
use super::slo::Promise;
use super::{Leaser, Leasing};
use crate::words::lease::{Event, Iteration};

/// Of a promised share, what is planned for: steps that take longer hold more users, and those cost as well. Ours.
const PLANNED: f64 = 0.8;
/// The same of the time to first token, for who comes while no user runs: whoever is late by a step meets more of those
/// that come with it in the next one, and that counts as well. Ours.
const PLANNED_FIRST: f64 = 0.5;
/// Steps after which a fit is made anew.
const REFIT: u32 = 32;
/// What the past weighs then.
const FADE: f64 = 0.95;
/// Weight of the newest value in means.
const WEIGHT: f64 = 0.02;
/// Weight of the newest cost of a prompt.
const POINT: f64 = 0.1;
/// Room that is saved up at most, in steps: a step that takes much longer than its neighbours is somebody's first token.
const SAVED: f64 = 1.0;
/// A step without users takes at most so many times what the least of them takes: who comes waits for it.
const IDLE: f64 = 1.5;
/// Rows of a step while nothing is known of what they cost.
const UNKNOWN: u32 = 1;
/// Prompt tokens of a step while nothing is known of what they cost.
const FIRST_CHUNK: u32 = 64;
/// Octaves of prompt tokens: the last begins at 65,536.
const OCTAVES: usize = 17;
/// Rows or tokens of a step, of what a step had at most.
const GROWTH: u32 = 2;

/// What the next step holds, and who could ride in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ask {
    /// Now, ns.
    pub now_ns: u64,
    /// Cached tokens of the users that decode.
    pub users_cached: u64,
    /// Cached tokens of the background requests that could decode.
    pub background_cached: u64,
    /// Users that decode.
    pub users: u32,
    /// Users whose prompt waits, or is being read.
    pub prompts: u32,
    /// Background requests that could decode.
    pub background: u32,
    /// Prompt tokens of background requests that could be read.
    pub prompt: u32,
    /// Steps under way: a user that comes waits for them, and for the next one.
    pub under_way: u32,
    /// Zero.
    pub reserved: u32,
}

/// What rides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rides {
    /// Background requests that decode.
    pub rows: u32,
    /// Prompt tokens of background requests.
    pub prompt: u32,
}

/// A step that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// When it ended, ns.
    pub now_ns: u64,
    /// What it took, ns.
    pub took_ns: u64,
    /// From the end of the one before, ns.
    pub interval_ns: u64,
    /// Cached tokens of the users that decoded.
    pub users_cached: u64,
    /// Cached tokens of the background requests that decoded.
    pub background_cached: u64,
    /// Users that decoded.
    pub users: u32,
    /// Prompt tokens of users that it read.
    pub users_prompt: u32,
    /// Background requests that decoded.
    pub rows: u32,
    /// Prompt tokens of background requests that it read.
    pub prompt: u32,
}

/// What a step without a prompt takes, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    base: f64,
    row: f64,
    cached: f64,
}

impl Line {
    fn at(&self, rows: u32, cached: u64) -> f64 {
        self.base + self.row * f64::from(rows) + self.cached * cached as f64
    }
}

/// What prompt tokens of background requests add to a step, ns: a point for each octave of them. What a step takes grows
/// faster than its tokens where they are many, and not at all where they are few, so that no line says both.
#[derive(Clone, Copy, Debug, Default)]
struct Prompts([(f64, f64); OCTAVES]);

impl Prompts {
    fn add(&mut self, tokens: u32, more: f64) {
        let octave = (tokens.max(1).ilog2() as usize).min(OCTAVES - 1);
        let (at, cost) = &mut self.0[octave];
        let weight = if *at > 0.0 { POINT } else { 1.0 };
        *at += weight * (f64::from(tokens) - *at);
        *cost += weight * (more - *cost);
    }

    /// The most tokens seen, about.
    fn most(&self) -> f64 {
        self.0.iter().fold(0.0, |most, point| point.0.max(most))
    }

    /// What so many take. More never take less; beyond the points each takes what those at the last did on average.
    fn at(&self, tokens: u32) -> f64 {
        let tokens = f64::from(tokens);
        let (mut before, mut cost) = (0.0, 0.0);
        for &(at, points) in self.0.iter().filter(|point| point.0 > 0.0) {
            let next = points.max(cost);
            if tokens <= at {
                return cost + (next - cost) * (tokens - before) / (at - before).max(1.0);
            }
            (before, cost) = (at, next);
        }
        if before > 0.0 {
            cost * tokens / before
        } else {
            0.0
        }
    }
}

/// What was learnt, and what is left of the promise.
#[derive(Clone, Debug)]
pub struct Ride {
    leasing: Leasing,
    leaser: Leaser,
    decodes: Sums<3>,
    line: Option<Line>,
    prompts: Prompts,
    /// Background requests that decoded in one step at most.
    most: u32,
    since: u32,
    /// What users' steps took of what the line says.
    right: f64,
    /// What users' steps take alone, ns, and steps of background requests.
    alone: f64,
    own: f64,
    /// Unspent, ns.
    room: f64,
    /// Since when no user runs.
    idle_since: Option<u64>,
    /// Prompt tokens of a step; 0: what is paid for.
    chunk: u32,
    /// What was trained since the last step, ns.
    trained: u64,
}

/// What of a promise is planned for.
fn planned(promise: Promise) -> Promise {
    match promise {
        Promise::Mean { ttft, tpot } => Promise::Mean {
            ttft: (f64::from(ttft) * PLANNED_FIRST) as u32,
            tpot,
        },
        other => other,
    }
}

fn mean(mean: &mut f64, value: f64) {
    let weight = if *mean > 0.0 { WEIGHT } else { 1.0 };
    *mean += weight * (value - *mean);
}

impl Ride {
    /// Nothing known.
    #[must_use]
    pub fn new(leasing: Leasing) -> Self {
        Self {
            leasing,
            leaser: Leaser::new(Leasing {
                promise: planned(leasing.promise),
                ..leasing
            }),
            decodes: Sums::default(),
            line: None,
            prompts: Prompts::default(),
            most: 0,
            since: 0,
            right: 1.0,
            alone: 0.0,
            own: 0.0,
            room: 0.0,
            idle_since: Some(0),
            chunk: 0,
            trained: 0,
        }
    }

    /// From now on prompts are read in pieces of so many tokens, or not at all; 0: in what is paid for.
    pub const fn in_pieces(&mut self, chunk: u32) {
        self.chunk = chunk;
    }

    /// What the next step of so many users may come later, ns.
    pub fn left(&mut self, users: u32, cached: u64, now_ns: u64) -> f64 {
        match self.leasing.promise {
            Promise::Mean { .. } => self.room,
            Promise::Tail { .. } | Promise::Each { .. } => {
                self.leaser.slack(&iteration(users, cached, 0), now_ns) as f64
            }
        }
    }

    /// Users that decode waited so long for what was trained, ns.
    pub fn spent(&mut self, ns: u64) {
        self.trained = self.trained.saturating_add(ns);
        if matches!(self.leasing.promise, Promise::Mean { .. }) {
            let most = SAVED * self.alone;
            self.room = (self.room - ns as f64).max(-most);
        }
    }

    /// A row, or where none decodes a part of a prompt.
    fn least(&self, ask: &Ask) -> Rides {
        let rows = ask.background.min(UNKNOWN);
        let prompt = if rows == 0 {
            ask.prompt.min(self.first())
        } else {
            0
        };
        Rides { rows, prompt }
    }

    /// Prompt tokens of a step while nothing is known of what they cost.
    const fn first(&self) -> u32 {
        if self.chunk > 0 {
            self.chunk
        } else {
            FIRST_CHUNK
        }
    }

    /// The leases beneath: what they learn of users is told to them.
    pub fn leaser(&mut self) -> &mut Leaser {
        &mut self.leaser
    }

    /// What happened to users' requests.
    pub fn see(&mut self, event: &Event, now_ns: u64) {
        self.leaser.step(event, now_ns);
    }

    /// How many ride in the next step.
    pub fn plan(&mut self, ask: &Ask) -> Rides {
        if ask.prompts > 0 {
            self.idle_since = None;
            return Rides::default();
        }
        if ask.users == 0 {
            return self.idle(ask);
        }
        self.idle_since = None;
        let room = self.left(ask.users, ask.users_cached, ask.now_ns);
        if room <= 0.0 {
            return Rides::default();
        }
        let Some(line) = self.line else {
            return self.least(ask);
        };
        self.fill(ask, line, room)
    }

    /// As many decodes as `room` pays, then prompt tokens.
    fn fill(&self, ask: &Ask, line: Line, room: f64) -> Rides {
        let each = ask.background_cached as f64 / f64::from(ask.background.max(1));
        let row = line.row + line.cached * each;
        let budget = room as u64;
        let most = ask.background.min(self.rows());
        let rows = plan::tokens(most, 1, budget, |rows| (row * f64::from(rows)) as u64);
        let left = (room - row * f64::from(rows)).max(0.0);
        // Who decodes goes first: a prompt that is read has to be decoded, too.
        let prompt = if rows < ask.background {
            0
        } else {
            self.chunk(ask.prompt, left)
        };
        Rides { rows, prompt }
    }

    /// Background requests that may decode in one step, whatever is paid for.
    const fn rows(&self) -> u32 {
        let most = self.most.saturating_mul(GROWTH);
        if most > UNKNOWN { most } else { UNKNOWN }
    }

    /// Prompt tokens that `room` pays.
    fn chunk(&self, most: u32, room: f64) -> u32 {
        if self.chunk > 0 {
            let piece = most.min(self.chunk);
            let paid = self.prompts.at(piece) <= room;
            return if paid { piece } else { 0 };
        }
        let seen = self.prompts.most();
        if seen == 0.0 {
            return most.min(FIRST_CHUNK);
        }
        let grown = seen * f64::from(GROWTH);
        let most = most.min((grown as u32).max(FIRST_CHUNK));
        plan::tokens(most, 1, room as u64, |tokens| {
            self.prompts.at(tokens) as u64
        })
    }

    /// Nobody runs whom a step could make wait, but somebody may come in the midst of it.
    fn idle(&mut self, ask: &Ask) -> Rides {
        let since = *self.idle_since.get_or_insert(ask.now_ns);
        let config = Leasing {
            promise: planned(self.leasing.promise),
            gate_ns: (self.own * (0.5 + f64::from(ask.under_way))) as u64,
            ..self.leasing
        };
        self.leaser.configure(config);
        let from = self.leaser.from(false);
        if from.is_none_or(|from| ask.now_ns.saturating_sub(since) < from) {
            return Rides::default();
        }
        let Some(line) = self.line else {
            return Rides {
                rows: ask.background.min(self.rows()),
                prompt: ask.prompt.min(self.first()),
            };
        };
        let rides = self.fill(ask, line, line.base * (IDLE - 1.0));
        if rides != Rides::default() {
            return rides;
        }
        // The least of a step, whatever was learnt: where nothing runs nothing better is learnt either.
        self.least(ask)
    }

    /// A step is over. What its users waited for those that rode, ns.
    pub fn ran(&mut self, step: &Step) -> u64 {
        let took = step.took_ns as f64;
        let trained = std::mem::take(&mut self.trained);
        if step.took_ns == 0 {
            return 0;
        }
        let alone = self.line.map_or(self.alone, |line| {
            line.at(step.users, step.users_cached) * self.right
        });
        let rode = step.rows > 0 || step.prompt > 0;
        if step.users_prompt == 0 {
            self.learn(step, took);
        }
        let pure = step.users > 0 && step.users_prompt == 0;
        if pure && !rode {
            mean(&mut self.alone, took);
            if let Some(line) = self.line {
                let part = took / line.at(step.users, step.users_cached).max(1.0);
                self.right += WEIGHT * (part.clamp(0.5, 2.0) - self.right);
            }
        }
        if step.users == 0 && step.users_prompt == 0 {
            mean(&mut self.own, took);
            return 0;
        }
        let more = if pure && rode && alone > 0.0 {
            took - alone
        } else {
            0.0
        };
        self.account(took - more, more);
        if step.users > 0 || step.users_prompt > 0 {
            let beat = Event::Beat {
                iteration: iteration(step.users, step.users_cached, step.users_prompt),
                took_ns: (took - more).max(1.0) as u64,
                interval_ns: step.interval_ns,
                delayed_ns: (more.max(0.0) as u64).saturating_add(trained),
            };
            self.leaser.step(&beat, step.now_ns);
        }
        more.max(0.0) as u64
    }

    /// A promised share of what a step took alone is earned, and what it took more is spent.
    fn account(&mut self, alone: f64, more: f64) {
        if let Promise::Mean { tpot, .. } = self.leasing.promise {
            let earned = f64::from(tpot) / 1e4 * PLANNED * alone;
            let most = SAVED * self.alone.max(earned);
            self.room = (self.room + earned - more).clamp(-most, most);
        }
    }

    fn learn(&mut self, step: &Step, took: f64) {
        let rows = step.users.saturating_add(step.rows);
        let cached = step.users_cached.saturating_add(step.background_cached);
        if step.prompt == 0 {
            if rows > 0 {
                self.decodes
                    .add([1.0, f64::from(rows), cached as f64], took);
            }
        } else if let Some(line) = self.line {
            let more = (took - line.at(rows, cached)).max(0.0);
            self.prompts.add(step.prompt, more);
        }
        self.most = self.most.max(step.rows);
        self.since += 1;
        if self.since >= REFIT {
            self.since = 0;
            self.refit();
        }
    }

    fn refit(&mut self) {
        if let Ok([base, row, cached]) = self.decodes.solve() {
            // Noise gives a little below zero where the truth is about zero.
            if base > 0.0 && row >= 0.0 {
                self.line = Some(Line {
                    base,
                    row,
                    cached: cached.max(0.0),
                });
            }
        }
        self.decodes.forget(FADE);
    }
}

fn iteration(users: u32, cached: u64, prompt: u32) -> Iteration {
    Iteration {
        // A shape: kernels pad batches to multiples.
        fingerprint: u64::from(users).next_multiple_of(8),
        batch: users,
        cached,
        prompt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ride(share: u32) -> Ride {
        Ride::new(Leasing {
            promise: Promise::Mean {
                ttft: share,
                tpot: share,
            },
            margin_permille: 0,
            switch_ns: 0,
            gate_ns: 0,
            grace_ns: 0,
        })
    }

    /// A step of so many users, without prompts, at 5 ms and 0.1 ms a row.
    fn step(users: u32, rows: u32, prompt: u32, more_ns: u64) -> Step {
        let took_ns = 5_000_000 + u64::from(users + rows) * 100_000 + more_ns;
        Step {
            took_ns,
            interval_ns: took_ns,
            users,
            rows,
            prompt,
            ..Step::default()
        }
    }

    /// Few prompt tokens take no time where a step waits for memory. Many do.
    #[test]
    fn a_prompt_is_no_longer_than_twice_the_longest_that_was_seen() {
        let mut ride = ride(5_000);
        for at in 0..200 {
            ride.ran(&step(1 + at % 8, 0, 0, 0));
        }
        let ask = Ask {
            users: 4,
            prompt: 100_000,
            ..Ask::default()
        };
        let (mut longest, mut grew) = (FIRST_CHUNK, 0);
        for _ in 0..100 {
            let prompt = ride.plan(&ask).prompt;
            assert!(prompt <= longest * GROWTH, "{prompt} after {longest}");
            grew += u32::from(prompt > longest);
            longest = longest.max(prompt);
            let more_ns = u64::from(prompt.saturating_sub(300)) * 20_000;
            ride.ran(&step(4, 0, prompt, more_ns));
        }
        assert!(grew > 1 && longest < 1_000, "{longest}");
    }

    /// A user that comes waits for the steps under way, and for the one that is queued behind them.
    #[test]
    fn no_step_is_queued_where_only_one_may_delay_who_comes() {
        let mut ride = ride(5_000);
        for request in 0..8 {
            ride.see(&Event::Arrived { request }, 0);
            let ttft_ns = 40_000_000;
            ride.see(&Event::First { request, ttft_ns }, 0);
            let returned = Event::Returned {
                idle_ns: 1_000_000,
                gap: false,
                delayed_ns: 0,
            };
            ride.see(&returned, 0);
        }
        for at in 0..200 {
            ride.ran(&step(at % 2, 1 + at % 20, 0, 0));
        }
        let ask = Ask {
            background: 8,
            ..Ask::default()
        };
        assert!(ride.plan(&ask).rows > 0);
        let queued = Ask {
            under_way: 1,
            ..ask
        };
        assert_eq!(ride.plan(&queued), Rides::default());
    }

    /// Each row seemed to take as long as ten steps without: what was learnt says that none is to run.
    #[test]
    fn an_engine_that_nobody_uses_goes_on_whatever_was_learnt() {
        let mut ride = ride(500);
        let mut now_ns = 0;
        for step in 0..2_000_u32 {
            let users = 1 + step % 8;
            let took_ns = 1_000_000 + u64::from(users) * 10_000_000;
            now_ns += took_ns;
            ride.ran(&Step {
                now_ns,
                took_ns,
                interval_ns: took_ns,
                users,
                ..Step::default()
            });
        }
        for (background, prompt) in [(3, 0), (0, 100)] {
            let mut rode = 0;
            for _ in 0..1_000 {
                now_ns += 10_000_000;
                let ask = Ask {
                    now_ns,
                    background,
                    prompt,
                    ..Ask::default()
                };
                rode += u32::from(ride.plan(&ask) != Rides::default());
            }
            assert!(rode > 500, "{rode} of 1000 steps");
        }
    }
}
