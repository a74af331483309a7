//! How long online must be idle before offline may wake: twice its longest decode gap.
//!
//! A *decode gap* is the idle time between two iterations of the same request. Any other idle time is a *pause*:
//! learning pauses as gaps costs 5 to 16 % of the harvest on bursty traces. They are distinguished as follows:
//!
//! - with lifecycle hints: a request was in flight from the gap's start to its end;
//! - without: the launch pattern before and after is the same iteration (the same graph and at most
//!   [`MERGED`] times the launches, or, where no graph is launched, the same launch count within
//!   10 %), and has repeated at least [`Learning::repeats`] times in a row once. Such a pattern is *known*: its gaps
//!   count at once from then on, and the gaps of the run that made it known count in retrospect. A prefill between two
//!   requests breaks the run, and so does the pause before it. Once a process is known to decode
//!   with graphs, an iteration without one is a prefill: if requests want a single token, there
//!   may be many in a row, with pauses between them.
//!
//! ```text
//!   D . D . D . D        P . D . D          P prefill, D decode step, . decode gap, _ pause
//!                ________                   D_P: not the same iteration; P.D: not learnt either
//! ```
//!
//! The estimate is the longest gap of the last 60 s and of the last 65 536 gaps, whichever reach
//! further back: a scheduler's longest gaps are one in a thousand or rarer, and a window without such a gap
//! would wake offline inside the next one. For the same reason few gaps say little: before
//! [`Learning::warm_up`] gaps the cooldown is the longest allowed, and after n gaps it is at least
//! sqrt(warm_up / n) of that. It thus comes down to the measured gaps only after rare ones have been seen.
//!
//! The prober misses most gaps that are shorter than its period, and for a decoding engine it may miss all of them. The
//! library then counts [`Turns`]: iterations between which no round of the prober saw it idle, and how far apart these
//! rounds were. Each is a decode gap shorter than that distance. For an engine with [`Learning::repeats`] such
//! iterations or more, an idle time is a decode gap if the engine goes on with few launches for its first iteration,
//! however many iterations there were before and after; otherwise it is a pause.
//!
//! A gap that outlasts the cooldown, so that offline wakes inside it, is a
//! *violation*: the estimate becomes that gap at once and decays over the window, because a
//! pause that looks like a gap must not cost a whole window of harvest each time.
//!
//! Invariant: a reported longest gap is at least the longest in the window and at most 1 % above it.

use crate::config::Learning;
use crate::ids::{GraphId, Launches};
use crate::time::{Instant, nanos};
pub use crate::words::event::Turns;
use core::time::Duration;
use std::collections::VecDeque;

/// How many iterations of one graph a busy period may be: gaps shorter than the prober's period go
/// unseen. More launches than that, and it held something else, such as the prefill of a request:
/// the idle time before it was a pause.
pub const MERGED: u64 = 4;

/// What one busy period launched: two periods with the same pattern are the same iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// How many launches.
    pub launches: Launches,
    /// The graph last launched; zero for none.
    pub graph: GraphId,
}

impl Pattern {
    /// Whether both are the same iteration.
    #[must_use]
    pub fn same(self, other: Self) -> bool {
        let (a, b) = (self.launches.0, other.launches.0);
        if self.graph.0 != 0 || other.graph.0 != 0 {
            return self.graph == other.graph && a.max(b) <= a.min(b).saturating_mul(MERGED);
        }
        a != 0 && b != 0 && a.abs_diff(b).saturating_mul(10) <= a.max(b)
    }
}

/// An idle time that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// How long it was.
    pub span: Duration,
    /// When it ended.
    pub end: Instant,
    /// The gate opened inside it.
    pub woke: bool,
}

/// Longest run of equal iterations that [`Learning::repeats`] can ask for.
pub const MAX_REPEATS: usize = 16;
/// Known patterns kept per process and GPU: an engine has one graph per batch size it meets often.
const KNOWN: usize = 8;

/// Tells decode gaps from pauses by the launch patterns of one process on one GPU.
#[derive(Clone, Debug, Default)]
pub struct Iterations {
    last: Option<Pattern>,
    run: [Gap; MAX_REPEATS],
    run_len: usize,
    known: [Pattern; KNOWN],
    next_known: usize,
    /// A pattern with a graph is known.
    graphs: bool,
    /// It decoded in turns: the launches of one.
    turn: Option<u64>,
}

impl Iterations {
    /// Whether a busy period with that pattern only decoded, as far as is known: a few launches of a graph,
    /// or a pattern that repeated.
    #[must_use]
    pub fn is_decode(&self, pattern: Pattern) -> bool {
        let few = pattern.graph.0 != 0 && pattern.launches.0 <= MERGED;
        few || self.known.iter().any(|known| known.same(pattern))
    }

    /// A busy period ended that launched `pattern`, after `gap` if that is known. Hands every gap
    /// that is thereby known to be a decode gap to `decode`.
    pub fn ended(
        &mut self,
        pattern: Pattern,
        turns: Turns,
        gap: Option<Gap>,
        learning: &Learning,
        mut decode: impl FnMut(Gap),
    ) {
        let turn = (turns.count >= u64::from(learning.repeats).max(1))
            .then(|| (pattern.launches.0 / turns.count.max(1)).max(1));
        if let Some(known) = self.turn.filter(|_| turns.first.0 != 0) {
            let went_on = turns.first.0 <= known.saturating_mul(MERGED);
            // A few single steps that go on make it no less known to decode.
            self.turn = turn.or(went_on.then_some(known));
            self.last = Some(pattern);
            self.run_len = 0;
            if let Some(gap) = gap.filter(|_| went_on) {
                decode(gap);
            }
            return;
        }
        self.turn = turn;
        let otherwise = pattern.graph.0 != 0 && turns.first == Turns::NO_GRAPH;
        let prefill = otherwise || self.graphs && pattern.graph.0 == 0;
        let again = self.last.is_some_and(|last| last.same(pattern)) && !prefill;
        self.last = Some(pattern);
        let Some(gap) = gap.filter(|_| again) else {
            self.run_len = 0;
            return;
        };
        if let Some(known) = self.known.iter_mut().find(|known| known.same(pattern)) {
            // The least is a single iteration.
            known.launches = known.launches.min(pattern.launches);
            self.run_len = 0;
            decode(gap);
            return;
        }
        let repeats = usize::try_from(learning.repeats)
            .unwrap_or(MAX_REPEATS)
            .clamp(1, MAX_REPEATS);
        if let Some(place) = self.run.get_mut(self.run_len) {
            *place = gap;
            self.run_len += 1;
        }
        if self.run_len >= repeats {
            for gap in self.run.iter().take(self.run_len) {
                decode(*gap);
            }
            self.run_len = 0;
            self.graphs |= pattern.graph.0 != 0;
            if let Some(place) = self.known.get_mut(self.next_known) {
                *place = pattern;
            }
            self.next_known = (self.next_known + 1) % KNOWN;
        }
    }
}

/// A gap that no longer one in the window exceeds.
#[derive(Clone, Copy, Debug)]
struct Peak {
    span: Duration,
    end: Instant,
    number: u64,
}

/// The cooldown of one GPU, learnt from the decode gaps of every online process on it.
#[derive(Clone, Debug)]
pub struct Learner {
    learning: Learning,
    /// Spans fall strictly from front to back, each by more than 1 %: bounded, never reallocated.
    peaks: VecDeque<Peak>,
    gaps: u64,
    violation: Option<(Duration, Instant)>,
}

/// Peaks that differ by 1 % or more between half of any sensible `min` and `max`.
const PEAKS: usize = 1024;

impl Learner {
    /// Knows nothing.
    #[must_use]
    pub fn new(learning: Learning) -> Self {
        Self {
            learning,
            peaks: VecDeque::with_capacity(PEAKS),
            gaps: 0,
            violation: None,
        }
    }

    /// A decode gap was seen. Says whether it was a violation. One that the longest cooldown would not outlast is not
    /// learnt, since nothing is gained: an engine that warms up, say, pauses between equal steps for half a second.
    pub fn learn(&mut self, gap: Gap) -> bool {
        if gap.span >= self.learning.max {
            return false;
        }
        self.gaps += 1;
        let span = gap.span.clamp(self.learning.min / 2, self.learning.max);
        let violated = gap.woke && gap.span > self.longest(gap.end);
        if violated {
            self.violation = Some((span, gap.end));
        } else {
            self.push(Peak {
                span,
                end: gap.end,
                number: self.gaps,
            });
        }
        self.expire(gap.end);
        violated
    }

    /// So many decode gaps went by unseen, each shorter than `apart`.
    pub fn unseen(&mut self, count: u64, apart: Duration, end: Instant) {
        if count == 0 {
            return;
        }
        self.gaps = self.gaps.saturating_add(count);
        self.push(Peak {
            span: apart.clamp(self.learning.min / 2, self.learning.max),
            end,
            number: self.gaps,
        });
        self.expire(end);
    }

    fn push(&mut self, peak: Peak) {
        while self.peaks.back().is_some_and(|back| back.span <= peak.span) {
            self.peaks.pop_back();
        }
        let full = self.peaks.len() >= PEAKS;
        match self.peaks.back_mut() {
            Some(back) if full || back.span <= peak.span + peak.span / 100 => {
                (back.end, back.number) = (peak.end, peak.number);
            }
            _ => self.peaks.push_back(peak),
        }
    }

    fn expired(&self, peak: &Peak, now: Instant) -> bool {
        now.since(peak.end) > self.learning.window
            && peak.number.saturating_add(self.learning.window_gaps) <= self.gaps
    }

    fn expire(&mut self, now: Instant) {
        while self
            .peaks
            .front()
            .is_some_and(|front| self.expired(front, now))
        {
            self.peaks.pop_front();
        }
    }

    /// The estimate: zero before the first gap.
    #[must_use]
    pub fn longest(&self, now: Instant) -> Duration {
        let in_window = self
            .peaks
            .iter()
            .find(|peak| !self.expired(peak, now))
            .map_or(Duration::ZERO, |peak| peak.span);
        let Some((span, at)) = self.violation else {
            return in_window;
        };
        let (age, window) = (nanos(now.since(at)), nanos(self.learning.window).max(1));
        if age >= window || span <= in_window {
            return in_window;
        }
        let left =
            u128::from(nanos(span - in_window)) * u128::from(window - age) / u128::from(window);
        in_window + Duration::from_nanos(u64::try_from(left).unwrap_or(0))
    }

    /// Learns by other rules from here on; what was learnt stays.
    pub const fn configure(&mut self, learning: Learning) {
        self.learning = learning;
    }

    /// How long online must stay idle.
    #[must_use]
    pub fn cooldown(&self, now: Instant) -> Duration {
        let Learning {
            warm_up, min, max, ..
        } = self.learning;
        if self.gaps <= warm_up {
            return max;
        }
        let doubt = max.mul_f64((warm_up as f64 / self.gaps as f64).sqrt());
        (self.longest(now) * 2).max(doubt).clamp(min, max)
    }

    /// Decode gaps seen so far.
    #[must_use]
    pub const fn gaps(&self) -> u64 {
        self.gaps
    }
}
