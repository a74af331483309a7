//! Random schedules of reclaims in virtual time: the policy's step, the device model, and engines
//! whose tokens are what their KV pages contain, in one process.
//!
//! ```text
//!   online: bursts, demands, use --> Node::step <--> processes: prepare, move, registrations
//!                                       |                  |
//!                                  issue thread        pages and the job's log
//!                                       v                  v
//!                                  device model  -->  engine: steps run, tokens come out
//! ```
//!
//! A schedule is its seed: when online wants how much, how long every message and call takes, who is
//! stopped or killed when, when the agent dies and comes back, when a scheduler starts over between a
//! reclaim and its next look at the log. What must hold is judged from the device model and from the
//! tokens, never from what the policy believes: nothing is unmapped while a channel of its process
//! is enabled, no token is wrong, every request ends, sums are exact at every step, and nothing
//! stays disabled or held. That each of these can fail is tested by [`Break`].

mod engine;
mod world;

use crate::sweep;

/// What is broken on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    #[default]
    Nothing,
    /// A process moves memory as soon as it is asked whether it could.
    UnmapEnabled,
    /// The log's entries become visible some time after the answer.
    LateLog,
    /// The engine goes on allocating lost blocks.
    NoWithhold,
    /// Later blocks of a request that lost one stay in the prefix cache.
    KeepLaterBlocks,
    /// Output that was under way when a block was lost is used.
    KeepInFlight,
}

impl Break {
    /// Each with its name on the command line.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("nothing", Self::Nothing),
        ("unmap-enabled", Self::UnmapEnabled),
        ("late-log", Self::LateLog),
        ("no-withhold", Self::NoWithhold),
        ("keep-later-blocks", Self::KeepLaterBlocks),
        ("keep-in-flight", Self::KeepInFlight),
    ];
}

/// Sums over schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Tokens that an undisturbed run would not have had.
    pub wrong_tokens: u64,
    /// Requests that did not end.
    pub lost_requests: u64,
    /// Unmaps beside an enabled channel.
    pub faults: u64,
    /// Times memory was taken from a job.
    pub reclaims: u64,
    /// Times it was given back.
    pub restores: u64,
    /// Requests that started over.
    pub hit: u64,
    /// Tokens accepted.
    pub tokens: u64,
    /// Demands met.
    pub granted: u64,
    /// Demands not met.
    pub denied: u64,
    /// Busy edges of online.
    pub edges: u64,
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.wrong_tokens += other.wrong_tokens;
        self.lost_requests += other.lost_requests;
        self.faults += other.faults;
        self.reclaims += other.reclaims;
        self.restores += other.restores;
        self.hit += other.hit;
        self.tokens += other.tokens;
        self.granted += other.granted;
        self.denied += other.denied;
        self.edges += other.edges;
    }
}

/// All schedules together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules judged.
    pub schedules: u64,
    /// Seed and what happened, in order of seed.
    pub violations: Vec<(u64, String)>,
    /// Sums.
    pub figures: Figures,
}

impl Totals {
    /// Too little happened for the verdict to mean anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Figures {
            reclaims,
            restores,
            hit,
            ..
        } = self.figures;
        self.schedules == 0
            || [reclaims, restores, hit]
                .iter()
                .any(|sum| *sum < self.schedules)
    }
}

/// Runs one schedule.
#[must_use]
pub fn run(seed: u64, broken: Break) -> (Vec<String>, Figures) {
    world::World::new(seed, broken).run()
}

/// Runs `schedules` schedules with the seeds from `seed` on, on `threads` threads.
#[must_use]
pub fn run_all(seed: u64, schedules: u64, threads: usize, broken: Break) -> Totals {
    let mut all = Totals::default();
    for (seed, (violations, figures)) in sweep::seeds(seed, schedules, threads, |s| run(s, broken))
    {
        all.schedules += 1;
        all.figures.add(&figures);
        let violations = violations.into_iter().map(|what| (seed, what));
        all.violations.extend(violations);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_schedules_have_no_wrong_token_no_lost_request_and_no_fault() {
        let totals = run_all(1, 200, 2, Break::Nothing);
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    #[test]
    fn a_schedule_is_its_seed() {
        assert_eq!(run(7, Break::Nothing), run(7, Break::Nothing));
    }

    #[test]
    fn every_break_is_noticed() {
        for (name, broken) in Break::NAMES.into_iter().skip(1) {
            let totals = run_all(1, 200, 2, broken);
            let figures = totals.figures;
            let seen = match broken {
                Break::UnmapEnabled => figures.faults,
                _ => figures.wrong_tokens,
            };
            assert!(seen > 0, "{name} went unnoticed: {figures:?}");
        }
    }
}
