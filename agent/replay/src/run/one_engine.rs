//! One engine that serves both: what a user tries who has no second process.
//!
//! vLLM with `--scheduling-policy priority`: batch requests come with a low priority, and a client keeps so many of them
//! in flight. They ride in the iterations of the users' requests, so there is no switch and no second copy of the
//! weights; each iteration that carries them is longer, and what a batch request has begun stands before a user's.
//!
//! Against Tidegate it is kind: every batch request is of online's model, whatever the scenario says, and the client's
//! cap is the one for the whole run that the case names.

use super::world::{gap, store};
use crate::batch::{Batch, Progress, Spare};
use crate::clock::Time;
use crate::costs::ns;
use crate::kv::BLOCK_TOKENS;
use crate::plan::Alone;
use crate::record::{Outcome, Request, Span, SpanKind};
use crate::spec::Spec;
use std::time::Duration;
use tidegate_text::rng::splitmix64;

/// Ids from here on are batch requests.
const LOW: u64 = 1 << 62;

/// Runs `spec` with `cap` batch requests in flight until each of the users' has its last token.
pub(super) fn run(spec: &Spec, cap: u32, alone: &Alone) -> Outcome {
    let requests = spec.online.trace.requests();
    let mut outcome = Outcome {
        requests: requests.iter().map(Request::arrived).collect(),
        cooldown: alone.outcome.cooldown,
        ..Outcome::default()
    };
    let mut engine = engine(spec);
    let lengths = &spec.offline.lengths;
    let mut drawn = splitmix64(spec.seed) % (lengths.len().max(1) as u64);
    let (mut next, mut left, mut now) = (0, requests.len(), 0);
    while left > 0 {
        while let Some(request) = requests
            .get(next)
            .filter(|request| request.arrival.0 <= now)
        {
            engine.admit(next as u64, request.input_tokens, request.output_tokens);
            next += 1;
        }
        // Of those that never fit one is offered at each iteration, or the backlog of such would have no end.
        for _ in engine.low..cap {
            let draw = lengths[(drawn % lengths.len() as u64) as usize];
            let needs = crate::kv::blocks_of(draw.input_tokens.saturating_add(draw.output_tokens));
            drawn += 1;
            outcome.offline.offered += 1;
            if needs > engine.store.cache {
                engine.counts.refused += 1;
                break;
            }
            engine.admit_low(LOW + drawn, draw.input_tokens, draw.output_tokens);
        }
        let used = engine.store.used;
        let Some(iteration) = engine.start() else {
            let Some(request) = requests.get(next) else {
                break;
            };
            now = now.max(request.arrival.0) + ns(spec.costs.lead);
            continue;
        };
        let held = u64::from(used.max(engine.store.used)) * block_bytes(spec);
        outcome.online_kv_peak_bytes = outcome.online_kv_peak_bytes.max(held);
        outcome.online_iterations += 1;
        let (from, to) = (Time(now), Time(now + iteration.ns));
        now = to.0;
        outcome.gpu.online += Duration::from_nanos(iteration.ns);
        if spec.timeline {
            let reads = iteration.prompt_tokens > 0;
            let kind = [SpanKind::OnlineDecode, SpanKind::OnlinePrefill][usize::from(reads)];
            outcome.timeline.push(Span { kind, from, to });
        }
        engine.finish(|progress| match progress {
            Progress::First(id) if id < LOW => {
                outcome.requests[id as usize].first_token = Time(now);
            }
            Progress::Finished(id) if id < LOW => {
                let known = &mut outcome.requests[id as usize];
                known.last_token = Time(now);
                known.tokens = requests[id as usize].output_tokens;
                left -= 1;
            }
            Progress::Finished(_) => outcome.offline.finished += 1,
            Progress::First(_) => {}
        });
        now += gap(spec, &engine);
    }
    outcome.length = Duration::from_nanos(now);
    count(spec, &engine, &mut outcome);
    outcome
}

fn block_bytes(spec: &Spec) -> u64 {
    spec.online.model.shape.kv_bytes_per_token() * u64::from(BLOCK_TOKENS)
}

fn engine(spec: &Spec) -> Batch {
    let store = store(spec.kv_pool_bytes, block_bytes(spec), Spare::None, false);
    Batch::new(
        spec.online.model.cost.clone(),
        spec.online.limits,
        spec.online.batching,
        store,
    )
}

/// What batch requests got: what the engine did in all, less what the users' requests are.
fn count(spec: &Spec, engine: &Batch, outcome: &mut Outcome) {
    let users = spec.online.trace.requests().iter();
    let (prompt, generated) = users.fold((0, 0), |(prompt, generated), request| {
        (
            prompt + u64::from(request.input_tokens.max(1)),
            generated + u64::from(request.output_tokens.max(1)),
        )
    });
    let given = engine.given();
    let offline = &mut outcome.offline;
    offline.prompt_tokens = engine.counts.tokens.prompt.saturating_sub(prompt);
    offline.generated_tokens = engine.counts.tokens.generated.saturating_sub(generated);
    offline.computed_tokens = given.computed.saturating_sub(prompt + generated);
    offline.again_tokens = given.again;
    offline.capacity_preemptions = engine.counts.pushed_back;
    offline.refused = engine.counts.refused;
    offline.iterations = outcome.online_iterations;
}
