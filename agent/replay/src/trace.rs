//! Requests, in the order in which clients send them.
//!
//! [`read`] has the formats. A recorded trace was served by many GPUs, so what one GPU can serve is
//! cut out of it, and the cut is part of every result ([`Cut`], which says itself in words).
//!
//! Invariant of a [`Trace`]: arrivals never decrease, and every request has at least one token of
//! each kind.

mod read;

use std::fmt;
use std::time::Duration;

use crate::clock::Time;
use tidegate_text::rng::splitmix64;

pub use read::{Lengths, MAX_REQUESTS, parse, read, read_cut, read_lengths};

/// One request as a client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives.
    pub arrival: Time,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it generates.
    pub output_tokens: u32,
}

/// Requests in the order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<Request>,
}

/// Which part of a trace is replayed: of the requests that arrive in a window, one in so many, and
/// how much further apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// One request in so many stays, see [`Trace::thin`]; 1 keeps all.
    pub keep_1_in: u64,
    /// Times between arrivals are multiplied by this; 1 keeps them.
    pub stretch: f64,
    /// Where the window begins.
    pub from: Duration,
    /// How long it is; `None`: to the end.
    pub length: Option<Duration>,
}

impl Default for Cut {
    /// Everything.
    fn default() -> Self {
        Self {
            keep_1_in: 1,
            stretch: 1.0,
            from: Duration::ZERO,
            length: None,
        }
    }
}

impl Cut {
    /// Whether request number `i` of its file stays.
    #[must_use]
    pub const fn keeps(&self, i: u64) -> bool {
        self.keep_1_in < 2 || splitmix64(i).is_multiple_of(self.keep_1_in)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.from.is_zero() || self.length.is_some() {
            let from = self.from.as_secs_f64();
            parts.push(match self.length {
                Some(length) => format!("seconds {from} to {}", from + length.as_secs_f64()),
                None => format!("from second {from}"),
            });
        }
        if self.keep_1_in > 1 {
            parts.push(format!("one request in {}", self.keep_1_in));
        }
        if self.stretch != 1.0 {
            parts.push(format!("times stretched by {}", self.stretch));
        }
        if parts.is_empty() {
            parts.push("every request".to_owned());
        }
        out.write_str(&parts.join(", "))
    }
}

impl Trace {
    /// The trace of these requests, in the order of their arrival.
    #[must_use]
    pub fn new(mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| request.arrival);
        for request in &mut requests {
            request.input_tokens = request.input_tokens.max(1);
            request.output_tokens = request.output_tokens.max(1);
        }
        Self { requests }
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// How many requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The last arrival.
    #[must_use]
    pub fn end(&self) -> Time {
        self.requests
            .last()
            .map_or(Time::ZERO, |request| request.arrival)
    }

    /// About one request in `factor`: request `i` stays when `splitmix64(i)` is divisible by it.
    /// Keeps the time scale of bursts. A factor of 0 or 1 keeps everything.
    #[must_use]
    pub fn thin(&self, factor: u64) -> Self {
        let stays = |i: usize| factor < 2 || splitmix64(i as u64).is_multiple_of(factor);
        let kept = self.requests.iter().enumerate().filter(|(i, _)| stays(*i));
        Self {
            requests: kept.map(|(_, request)| *request).collect(),
        }
    }

    /// The same requests, `factor` times as far apart. Slows bursts down too, so a result has to
    /// name it. A factor that is not a positive number changes nothing.
    #[must_use]
    pub fn stretch(&self, factor: f64) -> Self {
        if !(factor.is_finite() && factor > 0.0) {
            return self.clone();
        }
        let later = |request: &Request| {
            let later = Duration::try_from_secs_f64(request.arrival.as_secs_f64() * factor);
            Request {
                arrival: later.unwrap_or(Duration::MAX).into(),
                ..*request
            }
        };
        Self {
            requests: self.requests.iter().map(later).collect(),
        }
    }

    /// What `cut` keeps of it.
    #[must_use]
    pub fn cut(&self, cut: &Cut) -> Self {
        let numbered = self.requests.iter().zip(0..);
        let kept = numbered.filter(|(_, i)| cut.keeps(*i));
        let thinned = Self {
            requests: kept.map(|(request, _)| *request).collect(),
        };
        let length = cut.length.unwrap_or(Duration::MAX);
        let windowed = thinned.window(Time::from(cut.from), length);
        windowed.stretch(cut.stretch)
    }

    /// The requests of `[start, start + length)`, with `start` as the start of time.
    #[must_use]
    pub fn window(&self, start: Time, length: Duration) -> Self {
        let from = self
            .requests
            .partition_point(|request| request.arrival < start);
        let to = self
            .requests
            .partition_point(|request| request.arrival < start + length);
        let moved = |request: &Request| Request {
            arrival: Time::ZERO + request.arrival.since(start),
            ..*request
        };
        Self {
            requests: self.requests[from..to].iter().map(moved).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
