//! What a client saw of one request, and of many.

use crate::stats::{Estimate, around, batch_interval};
use crate::stream::Stream;
use tidegate_text::spread::Spread;

const NS_PER_MS: f64 = 1e6;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The whole answer arrived.
    Done,
    /// The server answered with this HTTP status; what it said.
    Status(u16, String),
    /// The answer ended before the server said so; how.
    Cut(String),
    /// The server reported an error within the answer.
    Error(String),
    /// No connection; why.
    Unreachable(String),
    /// Nothing arrived for as long as the client waits.
    Silent,
    /// Another tool says that it failed, and this.
    Other(String),
}

impl End {
    /// In words; requests that failed alike say the same.
    #[must_use]
    pub fn words(&self) -> String {
        let because = |why: &str| {
            if why.is_empty() {
                String::new()
            } else {
                format!(": {why}")
            }
        };
        match self {
            Self::Done => "served".to_owned(),
            Self::Status(status, said) => {
                let meaning = match status {
                    429 => " (too many requests: lower --rate, or raise the server's limit)",
                    500..=599 => " (the server's own failure: see its log)",
                    401 | 403 => " (not allowed: set OPENAI_API_KEY)",
                    _ => "",
                };
                format!("the server answers {status}{meaning}{}", because(said))
            }
            Self::Cut(why) => format!("the answer was cut{}", because(why)),
            Self::Error(said) => {
                format!("the server reports an error in its answer{}", because(said))
            }
            Self::Unreachable(why) => format!("no connection{}", because(why)),
            Self::Silent => "the server fell silent".to_owned(),
            Self::Other(said) => format!("the tool reports a failure{}", because(said)),
        }
    }
}

/// One request, as its client saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its place in the schedule: the same request of another block has the same.
    pub index: usize,
    /// When it was to be sent, seconds from the beginning of its block.
    pub at_s: f64,
    /// By how much it was sent later than that, ms.
    pub late_ms: f64,
    /// From its sending to the first token, ms; none if no token came.
    pub ttft_ms: Option<f64>,
    /// From the first token to the last, by token, ms; none of answers of a single one.
    pub tpot_ms: Option<f64>,
    /// From each piece of text to the next, ms.
    pub itl_ms: Vec<f64>,
    /// Tokens that it was answered.
    pub output_tokens: u64,
    /// How it ended.
    pub end: End,
}

impl Seen {
    /// Of an answer to the request at `index`, due at `at_s`, sent `late_ms` later, at `sent_ns`.
    #[must_use]
    pub fn of(
        index: usize,
        at_s: f64,
        late_ms: f64,
        sent_ns: u64,
        stream: &Stream,
        end: End,
    ) -> Self {
        let times = stream.tokens_at_ns();
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / NS_PER_MS;
        let tokens = stream.output_tokens();
        let whole = times.first().zip(times.last());
        Self {
            index,
            at_s,
            late_ms,
            ttft_ms: times.first().map(|first| ms(sent_ns, *first)),
            tpot_ms: whole
                .filter(|_| tokens > 1 && times.len() > 1)
                .map(|(first, last)| ms(*first, *last) / (tokens - 1) as f64),
            itl_ms: times.windows(2).map(|pair| ms(pair[0], pair[1])).collect(),
            output_tokens: tokens,
            end,
        }
    }

    /// Whether it was answered as it should be.
    #[must_use]
    pub fn served(&self) -> bool {
        self.end == End::Done && self.ttft_ms.is_some()
    }
}

/// The spread of something, in ms, and how sure its mean is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Mean and quantiles.
    pub spread: Spread,
    /// Where the true mean lies with 95 %; none of too few values.
    pub ci95: Option<(f64, f64)>,
    /// Of how many values.
    pub count: usize,
}

impl Figure {
    /// Of values in the order of their arrival; none of no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let Estimate { ci95, .. } = batch_interval(values)?;
        Some(Self {
            spread: Spread::of(values.to_vec()),
            ci95,
            count: values.len(),
        })
    }

    /// Of what another tool says of `count` values: mean, median, 99th percentile, largest, and sample standard
    /// deviation where it says one.
    #[must_use]
    pub fn told(spread: Spread, deviation: Option<f64>, count: usize) -> Self {
        let ci95 = deviation
            .filter(|_| count > 1)
            .map(|deviation| around(spread.mean, deviation, count));
        Self {
            spread,
            ci95,
            count,
        }
    }
}

/// Requests that failed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How, in words.
    pub what: String,
    /// How many.
    pub count: usize,
}

/// The failures among `seen`, a line for each kind, the most frequent first.
#[must_use]
pub fn failures<'a>(seen: impl Iterator<Item = &'a Seen>) -> Vec<Failure> {
    let mut all: Vec<Failure> = Vec::new();
    for one in seen.filter(|one| !one.served()) {
        let what = if one.end == End::Done {
            "the answer had no token".to_owned()
        } else {
            one.end.words()
        };
        match all.iter_mut().find(|failure| failure.what == what) {
            Some(failure) => failure.count += 1,
            None => all.push(Failure { what, count: 1 }),
        }
    }
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.what.cmp(&b.what)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_an_answer_are_those_between_its_tokens() {
        let mut stream = Stream::default();
        for at in [30, 40, 60] {
            stream.feed(
                b"data: {\"choices\":[{\"text\":\"x\"}]}\n\n",
                at * 1_000_000,
            );
        }
        let seen = |stream: &Stream| Seen::of(0, 0.0, 0.0, 10_000_000, stream, End::Done);
        let own = seen(&stream);
        assert_eq!((own.ttft_ms, own.tpot_ms), (Some(20.0), Some(15.0)));
        assert_eq!(own.itl_ms, [10.0, 20.0]);
        // Seven tokens in three pieces: the server's count is what a token's time is of.
        stream.feed(
            b"data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n",
            1,
        );
        assert_eq!(seen(&stream).tpot_ms, Some(5.0));
        assert!(!seen(&Stream::default()).served());
    }

    #[test]
    fn failures_are_a_line_each() {
        let seen = |end: End| Seen {
            end,
            ..Seen::of(0, 0.0, 0.0, 0, &Stream::default(), End::Done)
        };
        let all = [
            seen(End::Status(500, "boom".into())),
            seen(End::Status(429, String::new())),
            seen(End::Status(429, String::new())),
        ];
        let failures = failures(all.iter());
        assert_eq!(failures.len(), 2);
        assert_eq!(failures[0].count, 2);
        assert!(failures[0].what.contains("429") && failures[1].what.ends_with(": boom"));
    }
}
