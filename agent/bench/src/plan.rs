//! What is sent when, and in which order the modes take turns. Everything follows from a seed.

use std::time::Duration;
use tidegate_text::rng::Rng;

/// What the offline jobs of the node may do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing is known of them: there is no agent, or it was not asked.
    Alone,
    /// None runs: `tidegate drain`.
    Drained,
    /// No gate holds them, as if there were no Tidegate; memory is shared as ever.
    Ungated,
    /// They run while online leaves the GPU idle.
    Gated,
    /// None runs, and online's own engine serves a batch at low priority: what takes no second process.
    OneEngine,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 5] = [
        Self::Alone,
        Self::Drained,
        Self::Ungated,
        Self::Gated,
        Self::OneEngine,
    ];

    /// Its name in JSON and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Drained => "drained",
            Self::Ungated => "ungated",
            Self::Gated => "gated",
            Self::OneEngine => "one-engine",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether the offline jobs of the node are to stand still.
    #[must_use]
    pub const fn drains(self) -> bool {
        matches!(self, Self::Drained | Self::OneEngine)
    }

    /// Whether online has the GPU to itself, so that others are compared with it.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Self::Alone | Self::Drained)
    }
}

/// The order of the blocks: `modes` there and back, over and over, `cycles` times.
///
/// Of two modes that is ABBA: what drifts at a constant rate meanwhile (a GPU that warms up, a cache that fills) adds
/// the same to both, and each block of one mode has a neighbour of the other.
#[must_use]
pub fn order(modes: &[Mode], cycles: usize) -> Vec<Mode> {
    let back = modes.iter().rev();
    let cycle: Vec<Mode> = modes.iter().chain(back).copied().collect();
    cycle.repeat(cycles)
}

/// One request of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it is due, from the beginning of its block.
    pub due: Duration,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it generates.
    pub output_tokens: u32,
}

/// The requests of a block. Every block sends the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// In the order in which they are due.
    requests: Vec<Request>,
    /// From the first request that could be sent to the last.
    pub length: Duration,
    /// What arrives before is sent and not counted: caches fill, clocks rise.
    pub warm_up: Duration,
    /// What arrives so shortly before the end is sent and not counted: it meets a server that empties.
    pub cool_down: Duration,
    /// Of the prompts' words.
    pub seed: u64,
}

/// Why a block has nothing to count.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoRequests {
    /// The cuts leave no time.
    #[error("--warm-up and --cool-down leave nothing of a block of {0} s; give more --seconds")]
    Time(u64),
    /// No request arrives between them.
    #[error(
        "no request arrives between warm-up and cool-down; give more --seconds, a higher --rate or a longer file"
    )]
    Requests,
}

impl Schedule {
    /// A block of `requests`, which are in the order in which they are due.
    ///
    /// # Errors
    /// When no request would count.
    pub fn new(
        requests: Vec<Request>,
        length: Duration,
        [warm_up, cool_down]: [Duration; 2],
        seed: u64,
    ) -> Result<Self, NoRequests> {
        if warm_up + cool_down >= length {
            return Err(NoRequests::Time(length.as_secs()));
        }
        let schedule = Self {
            requests,
            length,
            warm_up,
            cool_down,
            seed,
        };
        if schedule
            .requests()
            .any(|(_, request)| schedule.counts(request.due))
        {
            Ok(schedule)
        } else {
            Err(NoRequests::Requests)
        }
    }

    /// The requests and their places.
    pub fn requests(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request that is due this long after the beginning is counted.
    #[must_use]
    pub fn counts(&self, due: Duration) -> bool {
        (self.warm_up..self.length - self.cool_down).contains(&due)
    }

    /// Length of what is counted.
    #[must_use]
    pub fn counted(&self) -> Duration {
        self.length - self.cool_down - self.warm_up
    }
}

/// Requests that arrive independently of each other (a Poisson process), all of the same lengths.
#[must_use]
pub fn poisson(
    rate: f64,
    length: Duration,
    [input_tokens, output_tokens]: [u32; 2],
    seed: u64,
) -> Vec<Request> {
    let mut rng = Rng::stream(seed, 0);
    let mut requests = Vec::new();
    let mut due = 0.0;
    if !(rate.is_finite() && rate > 0.0) {
        return requests;
    }
    loop {
        due -= rng.uniform().ln() / rate;
        if due >= length.as_secs_f64() {
            return requests;
        }
        requests.push(Request {
            due: Duration::from_secs_f64(due),
            input_tokens: input_tokens.max(1),
            output_tokens: output_tokens.max(1),
        });
    }
}

/// Short words that common vocabularies have as one token.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with",
    "his", "they", "at", "be", "this", "from", "have", "or", "one", "had", "by", "word", "but",
    "not", "what", "all", "were", "we",
];

/// A prompt of about `tokens` tokens: other words in each block and request, so that no answer comes of what a server
/// kept of an earlier prompt.
#[must_use]
pub fn prompt(seed: u64, block: usize, index: usize, tokens: u32) -> String {
    let place = (block as u64) << 32 | index as u64;
    let mut rng = Rng::stream(seed, !place);
    let words = (0..tokens.max(1)).map(|_| WORDS[(rng.bits() >> 59) as usize]);
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn modes_take_turns_there_and_back() {
        use Mode::{Drained as D, Gated as G, Ungated as U};
        assert_eq!(order(&[D, G], 2), [D, G, G, D, D, G, G, D]);
        assert_eq!(order(&[D, U, G], 1), [D, U, G, G, U, D]);
        // What grows by one a block adds as much to each mode.
        let sum = |mode| {
            let blocks = order(&[D, U, G], 3).into_iter().enumerate();
            blocks
                .filter(|(_, own)| *own == mode)
                .map(|(place, _)| place)
                .sum::<usize>()
        };
        assert_eq!([sum(D), sum(U)], [sum(G), sum(G)]);
    }

    #[test]
    fn arrivals_are_a_poisson_process_of_the_rate() {
        let requests = poisson(20.0, 1_000 * S, [8, 4], 3);
        let gaps: Vec<f64> = requests
            .windows(2)
            .map(|pair| (pair[1].due - pair[0].due).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 20.0 - 1.0).abs() < 0.03, "seed 3: {mean}");
        // Of an exponential distribution the deviation is the mean.
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.05,
            "seed 3: {variance}"
        );
        assert_eq!(requests, poisson(20.0, 1_000 * S, [8, 4], 3));
        assert!(poisson(0.0, S, [1, 1], 1).is_empty());
    }

    #[test]
    fn warm_up_and_cool_down_do_not_count() {
        let block =
            |warm, cool| Schedule::new(poisson(5.0, 10 * S, [1, 1], 1), 10 * S, [warm, cool], 1);
        let schedule = block(2 * S, S).expect("requests");
        assert!(!schedule.counts(Duration::from_millis(1_999)) && schedule.counts(2 * S));
        assert!(schedule.counts(Duration::from_millis(8_999)) && !schedule.counts(9 * S));
        assert_eq!(schedule.counted(), 7 * S);
        assert_eq!(block(5 * S, 5 * S), Err(NoRequests::Time(10)));
        let none = Schedule::new(Vec::new(), 10 * S, [S, S], 1);
        assert_eq!(none, Err(NoRequests::Requests));
    }

    #[test]
    fn no_prompt_is_sent_twice() {
        let words = prompt(1, 0, 0, 40);
        assert_eq!(words.split(' ').count(), 40);
        assert_ne!(words, prompt(1, 1, 0, 40));
        assert_ne!(words, prompt(1, 0, 1, 40));
        assert_eq!(words, prompt(1, 0, 0, 40));
    }
}
