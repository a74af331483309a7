//! A continuous-batching server whose iterations take calibrated time.
//!
//! The server runs one iteration at a time: a *prefill* of waiting prompts, up to a budget of
//! tokens (a longer prompt takes several), or, when no prompt waits, a *decode* that gives every
//! running request one token. Prefill goes first, as in engines that favour time to first token.
//! It is pure: the caller runs each iteration on whatever GPU it has, real or virtual, and says
//! when it is over.
//!
//! # Cost
//!
//! With T new prompt tokens, C of the same request already cached, b running requests and K cached
//! tokens of them all, in milliseconds:
//!
//! ```text
//! prefill = p0 + p1*T + p2*((T+C)^2 - C^2)        (the quadratic part summed over requests)
//! decode  = d0 + d1*b + d2*K
//! ```
//!
//! The coefficients are least-squares fits to iteration times composed from the bf16 vLLM operator
//! latencies that ai-dynamo/aiconfigurator publishes for an H200 (commit 095f58a5, vLLM 0.24.0,
//! Apache-2.0). Mean error 2.4 to 4.3 %, largest 9.3 %; fitted for T >= 256 and T+C <= 16k,
//! extrapolated beyond. They are GPU time only: [`crate::gap`] has what lies between iterations.

use std::collections::VecDeque;
use std::time::Duration;

use crate::trace::Request;

/// What iterations of one model cost on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Model and GPU.
    pub name: &'static str,
    /// `p0`, `p1`, `p2` above.
    pub prefill_ms: [f64; 3],
    /// `d0`, `d1`, `d2` above.
    pub decode_ms: [f64; 3],
}

/// Llama 3.1 8B on one H200.
pub const LLAMA_3_1_8B: CostModel = CostModel {
    name: "llama-3.1-8b",
    prefill_ms: [1.304_02, 0.019_854_5, 4.051_99e-7],
    decode_ms: [5.018_49, 0.011_576_9, 2.994_13e-5],
};

/// Qwen 2.5 7B on one H200.
pub const QWEN_2_5_7B: CostModel = CostModel {
    name: "qwen2.5-7b",
    prefill_ms: [1.195_63, 0.018_712_9, 3.138_46e-7],
    decode_ms: [4.652_75, 0.008_894_93, 1.336_08e-5],
};

/// Every model.
pub const MODELS: [CostModel; 2] = [LLAMA_3_1_8B, QWEN_2_5_7B];

impl CostModel {
    /// A prefill of prompt parts, each `(new, cached)` tokens.
    #[must_use]
    pub fn prefill(&self, parts: impl IntoIterator<Item = (u32, u32)>) -> Duration {
        let [p0, p1, p2] = self.prefill_ms;
        let cost = parts.into_iter().fold(p0, |ms, (new, cached)| {
            let (new, cached) = (f64::from(new), f64::from(cached));
            ms + p1 * new + p2 * new * (new + 2.0 * cached)
        });
        Duration::from_secs_f64(cost / 1e3)
    }

    /// A decode of `batch` requests with `context` cached tokens between them.
    #[must_use]
    pub fn decode(&self, batch: u32, context: u64) -> Duration {
        let [d0, d1, d2] = self.decode_ms;
        Duration::from_secs_f64((d0 + d1 * f64::from(batch) + d2 * context as f64) / 1e3)
    }
}

/// What one iteration may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt tokens of one prefill.
    pub prefill_tokens: u32,
    /// Requests that run at once.
    pub running: usize,
}

impl Default for Limits {
    /// vLLM's usual order: 8,192 tokens, 256 sequences.
    fn default() -> Self {
        Self {
            prefill_tokens: 8_192,
            running: 256,
        }
    }
}

/// A request's place in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub usize);

/// What an iteration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads prompt tokens.
    Prefill {
        /// How many.
        tokens: u32,
    },
    /// Gives each running request one token.
    Decode {
        /// How many requests.
        batch: u32,
    },
}

/// One iteration, to be run by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    /// What it does.
    pub work: Work,
    /// GPU time it takes.
    pub gpu: Duration,
}

/// What a finished iteration meant for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its first token is out; it is also its last if it wanted one.
    First(RequestId),
    /// Another token is out.
    Token(RequestId),
    /// Its last token is out. Follows the `First` or `Token` that was it.
    Finished(RequestId),
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    id: RequestId,
    prompt_left: u32,
    cached: u32,
    output_left: u32,
}

/// A continuous-batching server.
#[derive(Debug)]
pub struct Server {
    cost: CostModel,
    limits: Limits,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    under_way: Option<Work>,
}

impl Server {
    /// An idle server. A limit of zero counts as one: the server always makes progress.
    #[must_use]
    pub fn new(cost: CostModel, limits: Limits) -> Self {
        let limits = Limits {
            prefill_tokens: limits.prefill_tokens.max(1),
            running: limits.running.max(1),
        };
        Self {
            cost,
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
            under_way: None,
        }
    }

    /// A request arrives. May be called at any time, also during an iteration.
    pub fn admit(&mut self, id: RequestId, request: &Request) {
        self.waiting.push_back(Sequence {
            id,
            prompt_left: request.input_tokens.max(1),
            cached: 0,
            output_left: request.output_tokens.max(1),
        });
    }

    /// Starts the next iteration; `None` while one is under way or when there is no work.
    pub fn start(&mut self) -> Option<Iteration> {
        if self.under_way.is_some() {
            return None;
        }
        let parts: Vec<(u32, u32)> = self
            .prefill_parts()
            .map(|(_, new, cached)| (new, cached))
            .collect();
        let iteration = if !parts.is_empty() {
            let tokens = parts.iter().map(|(new, _)| new).sum();
            Iteration {
                work: Work::Prefill { tokens },
                gpu: self.cost.prefill(parts),
            }
        } else if !self.running.is_empty() {
            let batch = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
            let context = self
                .running
                .iter()
                .map(|sequence| u64::from(sequence.cached))
                .sum();
            Iteration {
                work: Work::Decode { batch },
                gpu: self.cost.decode(batch, context),
            }
        } else {
            return None;
        };
        self.under_way = Some(iteration.work);
        Some(iteration)
    }

    /// The iteration under way is over: appends what it meant to `progress`, in order of arrival.
    /// Does nothing when none is under way.
    pub fn finish(&mut self, progress: &mut Vec<Progress>) {
        match self.under_way.take() {
            Some(Work::Prefill { tokens }) => self.finish_prefill(tokens, progress),
            Some(Work::Decode { .. }) => {
                for sequence in &mut self.running {
                    sequence.cached += 1;
                    sequence.output_left -= 1;
                    progress.push(Progress::Token(sequence.id));
                    if sequence.output_left == 0 {
                        progress.push(Progress::Finished(sequence.id));
                    }
                }
                self.running.retain(|sequence| sequence.output_left > 0);
            }
            None => {}
        }
    }

    /// Whether it has nothing left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Which waiting prompts the next prefill reads: index, new tokens, cached tokens.
    fn prefill_parts(&self) -> impl Iterator<Item = (usize, u32, u32)> {
        let places = self.limits.running.saturating_sub(self.running.len());
        let mut budget = self.limits.prefill_tokens;
        self.waiting
            .iter()
            .take(places)
            .enumerate()
            .map_while(move |(i, sequence)| {
                let new = sequence.prompt_left.min(budget);
                budget -= new;
                (new > 0).then_some((i, new, sequence.cached))
            })
    }

    /// Requests may have arrived meanwhile, so what was read is found by its `tokens` again: the
    /// queue is first come, first served, and nobody overtakes.
    fn finish_prefill(&mut self, tokens: u32, progress: &mut Vec<Progress>) {
        let mut left = tokens;
        while left > 0 {
            let Some(sequence) = self.waiting.front_mut() else {
                return;
            };
            let new = sequence.prompt_left.min(left);
            left -= new;
            sequence.prompt_left -= new;
            sequence.cached += new;
            if sequence.prompt_left > 0 {
                return;
            }
            sequence.output_left -= 1;
            let sequence = *sequence;
            self.waiting.pop_front();
            progress.push(Progress::First(sequence.id));
            if sequence.output_left > 0 {
                self.running.push(sequence);
            } else {
                progress.push(Progress::Finished(sequence.id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Time;

    fn request(input_tokens: u32, output_tokens: u32) -> Request {
        Request {
            arrival: Time::ZERO,
            input_tokens,
            output_tokens,
        }
    }

    #[test]
    fn costs_are_those_of_the_published_fit() {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        assert!((ms(LLAMA_3_1_8B.prefill([(2_048, 0)])) - 43.7).abs() < 0.1);
        assert!((ms(LLAMA_3_1_8B.decode(1, 1_024)) - 5.06).abs() < 0.01);
        assert!((ms(LLAMA_3_1_8B.decode(128, 128 * 1_024)) - 10.4).abs() < 0.1);
        assert!((ms(QWEN_2_5_7B.prefill([(2_048, 0)])) - 40.8).abs() < 0.1);
    }

    #[test]
    fn a_prompt_in_chunks_costs_its_whole_area() {
        let area = |parts: &[(u32, u32)]| {
            let [p0, p1, _] = LLAMA_3_1_8B.prefill_ms;
            let tokens: u32 = parts.iter().map(|(new, _)| new).sum();
            let linear = p0 * parts.len() as f64 + p1 * f64::from(tokens);
            let cost = |part: &(u32, u32)| LLAMA_3_1_8B.prefill([*part]).as_secs_f64() * 1e3;
            parts.iter().map(cost).sum::<f64>() - linear
        };
        let whole = area(&[(6_000, 0)]);
        let chunks = area(&[(2_000, 0), (2_000, 2_000), (2_000, 4_000)]);
        assert!((whole - chunks).abs() < 1e-4, "{whole} {chunks}");
    }

    #[test]
    fn a_request_that_arrives_during_a_prefill_waits_for_the_next() {
        let mut server = Server::new(LLAMA_3_1_8B, Limits::default());
        let mut progress = Vec::new();
        server.admit(RequestId(0), &request(100, 2));
        assert_eq!(
            server.start().map(|i| i.work),
            Some(Work::Prefill { tokens: 100 })
        );
        server.admit(RequestId(1), &request(50, 1));
        assert_eq!(server.start(), None, "one iteration at a time");
        server.finish(&mut progress);
        assert_eq!(progress, [Progress::First(RequestId(0))]);
        assert_eq!(
            server.start().map(|i| i.work),
            Some(Work::Prefill { tokens: 50 })
        );
        progress.clear();
        server.finish(&mut progress);
        assert_eq!(
            progress,
            [
                Progress::First(RequestId(1)),
                Progress::Finished(RequestId(1))
            ]
        );
        assert_eq!(
            server.start().map(|i| i.work),
            Some(Work::Decode { batch: 1 })
        );
        progress.clear();
        server.finish(&mut progress);
        assert_eq!(
            progress,
            [
                Progress::Token(RequestId(0)),
                Progress::Finished(RequestId(0))
            ]
        );
        assert!(server.is_idle() && server.start().is_none());
    }

    proptest! {
        #[test]
        fn every_request_gets_its_tokens_in_order_and_nothing_else(
            requests in prop::collection::vec((0u32..3_000, 0u32..20, 0usize..10), 1..30),
            prefill_tokens in 0u32..4_000,
            running in 0usize..8,
        ) {
            let mut server = Server::new(LLAMA_3_1_8B, Limits { prefill_tokens, running });
            let mut arrivals = requests.iter().enumerate().peekable();
            let mut out = vec![0; requests.len()];
            let mut finished = Vec::new();
            let mut firsts = Vec::new();
            let mut prompt = 0u64;
            let mut steps = 0;
            while arrivals.peek().is_some() || !server.is_idle() {
                while let Some((i, (input, output, _))) = arrivals.next_if(|(_, r)| r.2 <= steps) {
                    server.admit(RequestId(i), &request(*input, *output));
                }
                steps += 1;
                let Some(iteration) = server.start() else { continue };
                match iteration.work {
                    Work::Prefill { tokens } => {
                        prop_assert!(tokens <= prefill_tokens.max(1));
                        prompt += u64::from(tokens);
                    }
                    Work::Decode { batch } => prop_assert!(batch as usize <= running.max(1)),
                }
                prop_assert!(iteration.gpu > Duration::from_millis(1));
                let mut progress = Vec::new();
                server.finish(&mut progress);
                let decode = matches!(iteration.work, Work::Decode { .. });
                prop_assert!(!decode || !progress.is_empty());
                for step in progress {
                    match step {
                        Progress::First(id) => { prop_assert_eq!(out[id.0], 0); out[id.0] = 1; firsts.push(id); }
                        Progress::Token(id) => { prop_assert!(out[id.0] > 0); out[id.0] += 1; }
                        Progress::Finished(id) => finished.push(id),
                    }
                }
            }
            prop_assert_eq!(finished.len(), requests.len());
            for (i, (_, output, _)) in requests.iter().enumerate() {
                prop_assert_eq!(out[i], (*output).max(1));
            }
            let want: u64 = requests.iter().map(|r| u64::from(r.0.max(1))).sum();
            prop_assert_eq!(prompt, want);
        }
    }
}
