//! Rows of background requests in the users' own steps: how many, and what they cost.
//!
//! A step of an engine reads all weights whatever it carries, so that a row more costs little; how little is learnt from
//! the steps. No figure of a GPU is known here.
//!
//! ```text
//!   a step     = base + per row + per cached token               least squares over steps without a prompt
//!   a prompt   = start + per token, beside that                  the same over steps with a background prompt
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
/// Steps after which a fit is made anew.
const REFIT: u32 = 32;
/// What the past weighs then.
const FADE: f64 = 0.95;
/// Weight of the newest value in means.
const WEIGHT: f64 = 0.02;
/// Room that is saved up at most, in steps: a step that takes much longer than its neighbours is somebody's first token.
const SAVED: f64 = 1.0;
/// A step without users takes at most so many times what the least of them takes: who comes waits for it.
const IDLE: f64 = 1.5;
/// Rows of a step while nothing is known of what they cost.
const UNKNOWN: u32 = 1;
/// Prompt tokens of a step while nothing is known of what they cost.
const FIRST_CHUNK: u32 = 64;

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

/// What was learnt, and what is left of the promise.
#[derive(Clone, Debug)]
pub struct Ride {
    leasing: Leasing,
    leaser: Leaser,
    decodes: Sums<3>,
    line: Option<Line>,
    prompts: Sums<2>,
    /// Start and per token, ns.
    prompt: Option<(f64, f64)>,
    /// What prompts took a token, for the time before the fit.
    token: f64,
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
}

/// A row, or where none decodes a part of a prompt.
fn least(ask: &Ask) -> Rides {
    let rows = ask.background.min(UNKNOWN);
    let prompt = if rows == 0 {
        ask.prompt.min(FIRST_CHUNK)
    } else {
        0
    };
    Rides { rows, prompt }
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
            leaser: Leaser::new(leasing),
            decodes: Sums::default(),
            line: None,
            prompts: Sums::default(),
            prompt: None,
            token: 0.0,
            since: 0,
            right: 1.0,
            alone: 0.0,
            own: 0.0,
            room: 0.0,
            idle_since: Some(0),
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
        let room = self.room(ask);
        if room <= 0.0 {
            return Rides::default();
        }
        let Some(line) = self.line else {
            return least(ask);
        };
        self.fill(ask, line, room)
    }

    /// As many decodes as `room` pays, then prompt tokens.
    fn fill(&self, ask: &Ask, line: Line, room: f64) -> Rides {
        let each = ask.background_cached as f64 / f64::from(ask.background.max(1));
        let row = line.row + line.cached * each;
        let budget = room as u64;
        let rows = plan::tokens(ask.background, 1, budget, |rows| {
            (row * f64::from(rows)) as u64
        });
        let left = (room - row * f64::from(rows)).max(0.0);
        // Who decodes goes first: a prompt that is read has to be decoded, too.
        let prompt = if rows < ask.background {
            0
        } else {
            self.chunk(ask.prompt, left)
        };
        Rides { rows, prompt }
    }

    /// Prompt tokens that `room` pays.
    fn chunk(&self, most: u32, room: f64) -> u32 {
        match (self.prompt, self.token) {
            (Some((start, token)), _) => plan::tokens(most, 1, room as u64, |tokens| {
                if tokens == 0 {
                    0
                } else {
                    (start + token * f64::from(tokens)) as u64
                }
            }),
            (None, token) if token > 0.0 => plan::tokens(most, 1, room as u64, |tokens| {
                (token * f64::from(tokens)) as u64
            }),
            (None, _) => most.min(FIRST_CHUNK),
        }
    }

    /// What the next step may take longer, ns.
    fn room(&mut self, ask: &Ask) -> f64 {
        match self.leasing.promise {
            Promise::Mean { .. } => self.room,
            Promise::Tail { .. } | Promise::Each { .. } => self
                .leaser
                .slack(&iteration(ask.users, ask.users_cached, 0), ask.now_ns)
                as f64,
        }
    }

    /// Nobody runs whom a step could make wait, but somebody may come in the midst of it.
    fn idle(&mut self, ask: &Ask) -> Rides {
        let since = *self.idle_since.get_or_insert(ask.now_ns);
        let config = Leasing {
            gate_ns: (self.own / 2.0) as u64,
            ..self.leasing
        };
        self.leaser.configure(config);
        let from = self.leaser.from(false);
        if from.is_none_or(|from| ask.now_ns.saturating_sub(since) < from) {
            return Rides::default();
        }
        let Some(line) = self.line else {
            return Rides {
                rows: ask.background,
                prompt: ask.prompt.min(FIRST_CHUNK),
            };
        };
        let rides = self.fill(ask, line, line.base * (IDLE - 1.0));
        if rides != Rides::default() {
            return rides;
        }
        // The least of a step, whatever was learnt: where nothing runs nothing better is learnt either.
        least(ask)
    }

    /// A step is over. What its users waited for those that rode, ns.
    pub fn ran(&mut self, step: &Step) -> u64 {
        let took = step.took_ns as f64;
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
                delayed_ns: more.max(0.0) as u64,
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
            let more = (took - line.at(rows, cached)).max(1.0);
            let tokens = f64::from(step.prompt);
            self.prompts.add([1.0, tokens], more);
            mean(&mut self.token, more / tokens);
        }
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
        if let Ok([start, token]) = self.prompts.solve()
            && token > 0.0
        {
            self.prompt = Some((start.max(0.0), token));
        }
        self.decodes.forget(FADE);
        self.prompts.forget(FADE);
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

    /// Each row seemed to take as long as ten steps without: what was learnt says that none is to run.
    #[test]
    fn an_engine_that_nobody_uses_goes_on_whatever_was_learnt() {
        let promise = Promise::Mean {
            ttft: 500,
            tpot: 500,
        };
        let mut ride = Ride::new(Leasing {
            promise,
            margin_permille: 0,
            switch_ns: 0,
            gate_ns: 0,
            grace_ns: 0,
        });
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
