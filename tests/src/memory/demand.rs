//! How much KV memory a trace keeps in use over time.
//!
//! The trace is served by [`tidegate_replay::engine::Server`] on a GPU of its own; a request holds
//! its prompt from its arrival on and one token more per step, in blocks of 16 tokens,
//! and nothing after its last. Use is recorded when it changes.

use std::time::Duration;
use tidegate_policy::ids::Bytes;
use tidegate_replay::clock::Time;
use tidegate_replay::engine::{LLAMA_3_1_8B, Limits, Progress, RequestId, Server};
use tidegate_replay::trace::Trace;
use tidegate_replay::{estimate, gap};

/// Tokens of a KV block.
pub const BLOCK: u32 = 16;
/// KV bytes of a token of Llama 3.1 8B in bf16: keys and values of 8 heads of 128 in 32 layers.
pub const TOKEN: Bytes = Bytes(128 << 10);

/// Use from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// From here on.
    pub at: Time,
    /// This much is in use.
    pub used: Bytes,
}

/// Share of its length for which a trace keeps one GPU busy; beyond 1, it cannot be served in time.
#[must_use]
pub fn busy(trace: &Trace) -> f64 {
    let alone = estimate::alone(trace, LLAMA_3_1_8B, &gap::OVERLAP, 1);
    let idle: Duration = alone.idle.iter().map(|idle| idle.to.since(idle.from)).sum();
    let (length, end) = (trace.end().as_secs_f64(), alone.end.as_secs_f64());
    (end - idle.as_secs_f64()) / length.max(1.0)
}

/// What a trace uses until its last request ends.
#[must_use]
pub fn of(trace: &Trace) -> Vec<Use> {
    let mut server = Server::new(LLAMA_3_1_8B, Limits::default());
    let mut arrivals = trace.requests().iter().enumerate().peekable();
    let mut tokens = vec![0u32; trace.len()];
    let mut uses = vec![Use {
        at: Time::ZERO,
        used: Bytes::ZERO,
    }];
    let mut blocks = 0u64;
    let mut now = Time::ZERO;
    let mut progress = Vec::new();
    let held = |tokens: u32| u64::from(tokens.div_ceil(BLOCK));
    loop {
        while let Some((id, request)) = arrivals.next_if(|next| next.1.arrival <= now) {
            server.admit(RequestId(id), request);
            tokens[id] = request.input_tokens.max(1);
            blocks += held(tokens[id]);
        }
        let block = TOKEN.times(u64::from(BLOCK));
        let used = block.times(blocks);
        match uses.last_mut() {
            Some(last) if last.used == used => {}
            Some(last) if last.at == now => last.used = used,
            _ => uses.push(Use { at: now, used }),
        }
        let Some(iteration) = server.start() else {
            match arrivals.peek() {
                Some(next) => now = next.1.arrival,
                None => return uses,
            }
            continue;
        };
        now = now + iteration.gpu;
        progress.clear();
        server.finish(&mut progress);
        for step in &progress {
            match *step {
                Progress::First(RequestId(id)) | Progress::Token(RequestId(id)) => {
                    blocks -= held(tokens[id]);
                    tokens[id] += 1;
                    blocks += held(tokens[id]);
                }
                Progress::Finished(RequestId(id)) => blocks -= held(tokens[id]),
            }
        }
    }
}

/// Quiet between two rounds of a trace.
const PAUSE: Duration = Duration::from_secs(10);

/// The same again and again until `length` has passed.
#[must_use]
pub fn repeated(uses: &[Use], length: Duration) -> Vec<Use> {
    let Some(last) = uses.last() else {
        return Vec::new();
    };
    let round = last.at + PAUSE;
    let mut all = Vec::new();
    let mut start = Time::ZERO;
    while start.since(Time::ZERO) < length {
        all.extend(uses.iter().map(|part| Use {
            at: Time(start.0 + part.at.0),
            used: part.used,
        }));
        start = Time(start.0 + round.0);
    }
    all
}
