//! What online promised its users, and how much of that is left.
//!
//! The time per further token is a mean over a request's tokens. So a single iteration does not matter; what matters is
//! how far each running request is ahead of its promise. With its first token at `f` and `k` further ones out, the next
//! token may come as late as `f + (k + 1) x tpot`. Every iteration gives each request one token, so `f - (steps when it
//! joined) x tpot` never changes, and the request with the least such number is nearest to being late.
//!
//! The [`Guard`] catches errors of the model of times, and what no model knows. It follows the share of requests that
//! were late, and gives the trainer less when that share comes near the allowed one.

pub use crate::words::lease::Promise;

/// The most requests that are followed. Others are not, which favours the trainer only above
/// what an engine runs at once (vLLM: 256, or 1,024 if configured).
pub const RUNNING: usize = 1_024;

/// Every request that decodes, by how far it is ahead.
#[derive(Clone, Debug)]
pub struct Running {
    tpot: i64,
    steps: i64,
    /// Request, and its first token less its steps at the promised pace, ns.
    requests: Vec<(u64, i64)>,
    least: i64,
    /// Arrival times of requests without a first token yet, ns.
    waiting: std::collections::VecDeque<u64>,
}

impl Running {
    /// No requests, at this pace.
    #[must_use]
    pub fn new(tpot_ns: u64) -> Self {
        Self {
            tpot: i64::try_from(tpot_ns).unwrap_or(i64::MAX / 1_000_000_000),
            steps: 0,
            requests: Vec::with_capacity(RUNNING),
            least: i64::MAX,
            waiting: std::collections::VecDeque::with_capacity(RUNNING),
        }
    }

    /// A request arrived.
    pub fn waits(&mut self, now_ns: u64) {
        if self.waiting.len() < RUNNING {
            self.waiting.push_back(now_ns);
        }
    }

    /// A request has its first token: the oldest one, as engines read them.
    pub fn read(&mut self) {
        self.waiting.pop_front();
    }

    /// How long the oldest request has waited for its first token, ns.
    #[must_use]
    pub fn waited(&self, now_ns: u64) -> u64 {
        let oldest = self.waiting.front();
        oldest.map_or(0, |came| now_ns.saturating_sub(*came))
    }

    /// Changes the pace, with no request in flight.
    pub fn restart(&mut self, tpot_ns: u64) {
        self.tpot = i64::try_from(tpot_ns).unwrap_or(i64::MAX / 1_000_000_000);
        self.requests.clear();
        (self.steps, self.least) = (0, i64::MAX);
    }

    /// A request has its first token.
    pub fn joined(&mut self, request: u64, now_ns: u64) {
        if self.requests.len() < RUNNING {
            let now = i64::try_from(now_ns).unwrap_or(i64::MAX);
            let key = now.saturating_sub(self.steps.saturating_mul(self.tpot));
            self.requests.push((request, key));
            self.least = self.least.min(key);
        }
    }

    /// Each request has one more token.
    pub const fn stepped(&mut self) {
        self.steps += 1;
    }

    /// A request has its last token, or was aborted.
    pub fn left(&mut self, request: u64) {
        let Some(place) = self.requests.iter().position(|known| known.0 == request) else {
            return;
        };
        let (_, key) = self.requests.swap_remove(place);
        if key <= self.least {
            let keys = self.requests.iter().map(|known| known.1);
            self.least = keys.min().unwrap_or(i64::MAX);
        }
    }

    /// How long, ns, the next token of the request nearest to being late may still take; below zero
    /// if it is late already. None while no request decodes.
    #[must_use]
    pub fn slack(&self, now_ns: u64) -> Option<i64> {
        if self.requests.is_empty() {
            return None;
        }
        let now = i64::try_from(now_ns).unwrap_or(i64::MAX);
        let due = (self.steps + 1).saturating_mul(self.tpot);
        Some(self.least.saturating_add(due).saturating_sub(now))
    }

    /// Number of requests that decode.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none decodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// From this part of its allowed time on, a first token counts in part as late: a queue grows faster than the guard
/// learns of the requests in it. Ours, like the next two.
const NEAR_FIRST: f64 = 0.5;
/// The same for the time per further token, which changes slowly: above the margin of a twentieth that a trainer leaves
/// that uses all of the rest.
const NEAR_FURTHER: f64 = 0.95;
/// What an iteration takes of the scale that reads no prompt although one waits: twenty, and nothing is used.
const NO_ROOM: f64 = 0.05;

/// The part of the slack that may be used, by how many requests were late.
///
/// It moves up by so little for each request in time, and down by so much for each late one, that it
/// is stable when [`Guard::AIM`] of the allowed share are late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    scale: f64,
    up: f64,
}

impl Guard {
    /// The part of the allowed share that is aimed at.
    pub const AIM: f64 = 0.5;
    /// What one late request subtracts: after four in a row nothing is used.
    const DOWN: f64 = 0.25;
    /// The initial value: nothing is known about late requests.
    const BEGIN: f64 = 0.25;

    /// A guard that begins with a quarter of the slack, and allows this many late requests of a thousand.
    #[must_use]
    pub fn new(late_permille: u32) -> Self {
        let aim = Self::AIM * f64::from(late_permille.min(999)) / 1e3;
        Self {
            scale: Self::BEGIN,
            up: Self::DOWN * aim / (1.0 - aim),
        }
    }

    /// One more request, late or not.
    pub fn saw(&mut self, late: bool) {
        let by = if late { -Self::DOWN } else { self.up };
        self.scale = (self.scale + by).clamp(0.0, 1.0);
    }

    /// One more request, which took this part of its allowed time. A request that is nearly late counts in part.
    pub fn came(&mut self, part: f64, near: f64) {
        let late = ((part - near) / (1.0 - near).max(1e-9)).clamp(0.0, 1.0);
        let late = if part > 1.0 { 1.0 } else { late };
        self.scale = (self.scale + (1.0 - late) * self.up - late * Self::DOWN).clamp(0.0, 1.0);
    }

    /// The current part, from 0 to 1.
    #[must_use]
    pub const fn scale(&self) -> f64 {
        self.scale
    }
}

/// A guard for the first token and one for those that follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guards {
    first: Guard,
    further: Guard,
}

impl Guards {
    /// Guards for this promise.
    #[must_use]
    pub fn new(promise: &Promise) -> Self {
        let guard = Guard::new(promise.late_permille());
        Self {
            first: guard,
            further: guard,
        }
    }

    /// A request of `promise` ended, whose first token took `ttft_ns` and each further one `tpot_ns`; 0: it
    /// had none, which says nothing of how fast they come.
    pub fn ended(&mut self, promise: &Promise, ttft_ns: u64, tpot_ns: u64) {
        if let Promise::Tail {
            ttft_ns: first,
            tpot_ns: further,
            ..
        } = *promise
        {
            self.first
                .came(ttft_ns as f64 / first.max(1) as f64, NEAR_FIRST);
            if tpot_ns > 0 {
                self.further
                    .came(tpot_ns as f64 / further.max(1) as f64, NEAR_FURTHER);
            }
        }
    }

    /// There is no room for who waits.
    pub fn blocked(&mut self) {
        self.first.scale = (self.first.scale - NO_ROOM).max(0.0);
    }

    /// One more token where each is promised, late or not.
    pub fn token(&mut self, late: bool) {
        self.further.saw(late);
    }

    /// What is used by what is known of tokens after the first, from 0 to 1.
    #[must_use]
    pub const fn further(&self) -> f64 {
        self.further.scale()
    }

    /// What of a reserve against the unforeseen is needed, from 0 to 1: all of it while too many are late, and nothing
    /// where nobody ever is.
    #[must_use]
    pub fn needed(&self) -> f64 {
        1.0 - self.further.scale()
    }

    /// What is used by both, from 0 to 1.
    #[must_use]
    pub const fn scale(&self) -> f64 {
        self.further.scale().min(self.first.scale())
    }
}
