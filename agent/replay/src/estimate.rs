//! A trace on one GPU, alone: how busy it keeps it, and what latency it gives.
//!
//! The virtual-time run of [`crate::engine`] over a trace, with gaps from [`crate::gap`]. It answers
//! before anything is started whether a trace leaves room to harvest, and how often a gate would
//! have to close.

use std::time::Duration;

use crate::clock::Time;
use crate::engine::{CostModel, Limits, Progress, RequestId, Server};
use crate::gap::GapModel;
use crate::queue::EventQueue;
use crate::trace::Trace;
use tidegate_text::rng::Rng;

/// When one request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its arrival.
    pub arrival: Time,
    /// Its first token.
    pub first_token: Time,
    /// Its last token.
    pub last_token: Time,
    /// How many tokens.
    pub tokens: u32,
}

/// A stretch of time without online work on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// When the GPU fell idle.
    pub from: Time,
    /// When it was used again.
    pub to: Time,
}

/// What the run gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Per request, in the order of the trace.
    pub served: Vec<Served>,
    /// Every stretch without work from the start to `end`, decode gaps included.
    pub idle: Vec<Idle>,
    /// The longest decode gap.
    pub longest_gap: Duration,
    /// The last token of the last request.
    pub end: Time,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival(usize),
    Launch,
    Finished,
}

/// Runs `trace` alone. `seed` draws the gaps.
#[must_use]
pub fn alone(trace: &Trace, cost: CostModel, gaps: &GapModel, seed: u64) -> Estimate {
    let mut rng = Rng::stream(seed, 2);
    let mut server = Server::new(cost, Limits::default());
    let mut queue = EventQueue::new();
    for (i, request) in trace.requests().iter().enumerate() {
        queue.schedule(request.arrival, Event::Arrival(i));
    }
    let mut estimate = Estimate {
        served: trace
            .requests()
            .iter()
            .map(|request| Served {
                arrival: request.arrival,
                first_token: request.arrival,
                last_token: request.arrival,
                tokens: 0,
            })
            .collect(),
        ..Estimate::default()
    };
    let mut idle_from = Some(Time::ZERO);
    let mut launch_pending = false;
    let mut progress = Vec::new();
    while let Some((now, event)) = queue.pop() {
        match event {
            Event::Arrival(i) => {
                server.admit(RequestId(i), &trace.requests()[i]);
                // A server with work is either in an iteration or in the gap after one.
                if idle_from.is_some() && !launch_pending {
                    launch_pending = true;
                    queue.schedule(now, Event::Launch);
                }
            }
            Event::Launch => {
                launch_pending = false;
                if let Some(iteration) = server.start() {
                    estimate
                        .idle
                        .extend(idle_from.take().map(|from| Idle { from, to: now }));
                    queue.schedule(now + iteration.gpu, Event::Finished);
                }
            }
            Event::Finished => {
                progress.clear();
                server.finish(&mut progress);
                estimate.note(now, &progress);
                idle_from = Some(now);
                if !server.is_idle() {
                    let gap = gaps.draw(&mut rng);
                    estimate.longest_gap = estimate.longest_gap.max(gap);
                    launch_pending = true;
                    queue.schedule(now + gap, Event::Launch);
                }
            }
        }
    }
    estimate
}

impl Estimate {
    fn note(&mut self, now: Time, progress: &[Progress]) {
        self.end = now;
        for step in progress {
            match step {
                Progress::First(id) => {
                    let served = &mut self.served[id.0];
                    served.first_token = now;
                    served.last_token = now;
                    served.tokens = 1;
                }
                Progress::Token(id) => {
                    self.served[id.0].last_token = now;
                    self.served[id.0].tokens += 1;
                }
                Progress::Finished(_) => {}
            }
        }
    }

    /// Share of `length` in which the GPU was idle and had been for `cooldown`.
    #[must_use]
    pub fn harvestable_share(&self, cooldown: Duration, length: Duration) -> f64 {
        let end = Time::ZERO + length;
        let tail = Idle {
            from: self.end.min(end),
            to: end,
        };
        let beyond = |idle: &Idle| idle.to.min(end).since(idle.from + cooldown);
        let total: Duration = self.idle.iter().chain([&tail]).map(beyond).sum();
        total.as_secs_f64() / length.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// How often the GPU was used again after it had been idle for longer than `cooldown`: an
    /// upper bound for the preemptions a gate with this cooldown makes.
    #[must_use]
    pub fn returns_after(&self, cooldown: Duration) -> usize {
        self.idle
            .iter()
            .filter(|idle| idle.to.since(idle.from) > cooldown)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::LLAMA_3_1_8B;
    use crate::gap::{OVERLAP, VLLM};
    use crate::generator::{CALLER, CONVERSATION};
    use crate::trace::Request;

    #[test]
    fn one_request_alone_takes_its_prefill_and_its_decodes() {
        let request = Request {
            arrival: Time(1_000_000),
            input_tokens: 1_000,
            output_tokens: 3,
        };
        let estimate = alone(&Trace::new(vec![request]), LLAMA_3_1_8B, &OVERLAP, 1);
        let served = estimate.served[0];
        let prefill = LLAMA_3_1_8B.prefill([(1_000, 0)]);
        assert_eq!(served.first_token, request.arrival + prefill);
        let decodes = LLAMA_3_1_8B.decode(1, 1_000) + LLAMA_3_1_8B.decode(1, 1_001);
        let gaps: Duration = estimate.idle[1..]
            .iter()
            .map(|idle| idle.to.since(idle.from))
            .sum();
        assert_eq!(served.last_token, served.first_token + decodes + gaps);
        assert_eq!((served.tokens, estimate.idle.len()), (3, 3));
    }

    #[test]
    fn steady_conversation_leaves_nothing_and_a_quarter_of_it_something() {
        let length = Duration::from_secs(300);
        let full = CONVERSATION.generate(1, length);
        let cooldown = Duration::from_millis(20);
        let share = |trace: &Trace| {
            alone(trace, LLAMA_3_1_8B, &VLLM, 1).harvestable_share(cooldown, length)
        };
        assert!(share(&full) < 0.03, "{}", share(&full));
        let thinned = share(&full.thin(4));
        assert!((0.05..0.4).contains(&thinned), "{thinned}");
    }

    proptest! {
        #[test]
        fn time_is_either_idle_or_worked(seed: u64, rate in 0.2f64..6.0) {
            let length = Duration::from_secs(20);
            let trace = CALLER.at_rate(rate).generate(seed, length);
            let estimate = alone(&trace, LLAMA_3_1_8B, &VLLM, seed);
            for (served, request) in estimate.served.iter().zip(trace.requests()) {
                prop_assert_eq!(served.tokens, request.output_tokens);
                prop_assert!(served.arrival < served.first_token && served.first_token <= served.last_token);
                prop_assert!(served.last_token <= estimate.end);
            }
            for two in estimate.idle.windows(2) {
                prop_assert!(two[0].from <= two[0].to && two[0].to < two[1].from);
            }
            let share = estimate.harvestable_share(Duration::ZERO, length);
            prop_assert!((0.0..=1.0).contains(&share), "{}", share);
            prop_assert!(estimate.returns_after(Duration::from_millis(20)) <= trace.len());
        }
    }
}
