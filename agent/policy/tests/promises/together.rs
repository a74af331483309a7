//! What runs beside an iteration of the same process is learnt, whatever the GPU is like.

use proptest::prelude::*;
use tidegate_policy::lease::event::Iteration;
use tidegate_policy::lease::together::{ALONE, Ask, Plan, STEPS, Together};

const ALONE_NS: f64 = 6e6;

fn ask(room_ns: f64, forward_tokens: u32) -> Ask {
    Ask {
        next: Iteration {
            fingerprint: 8,
            batch: 8,
            cached: 4_000,
            prompt: 0,
        },
        alone_ns: ALONE_NS,
        room_ns,
        forward_tokens,
    }
}

/// A GPU of which nothing is known: an iteration with this share for the trainer takes so many times as long.
struct Gpu {
    saturation: f64,
    neighbour: f64,
    free_tokens: f64,
}

impl Gpu {
    fn took(&self, plan: Plan) -> f64 {
        let online = (STEPS as f64 - f64::from(plan.trainer)) / STEPS as f64;
        let slower = (self.saturation / online).max(1.0 + self.neighbour * f64::from(plan.trainer));
        let fused = (f64::from(plan.fused) / self.free_tokens).max(1.0);
        ALONE_NS * fused * if plan.trainer > 0 { slower } else { 1.0 }
    }

    fn trained(&self, plan: Plan) -> f64 {
        self.took(plan) * f64::from(plan.trainer) / STEPS as f64
    }
}

fn run(gpu: &Gpu, ask: &Ask, together: &mut Together, iterations: u32) -> Vec<(Plan, f64)> {
    let mut ran = Vec::new();
    for _ in 0..iterations {
        let plan = together.plan(ask);
        let took = gpu.took(plan);
        together.ran(plan, ask.alone_ns, took, gpu.trained(plan));
        ran.push((plan, took));
    }
    ran
}

proptest! {
    /// P-TRAINER-12: a share is found that costs little more than the best of those allowed, and few iterations are
    /// slower than they may be, on any GPU.
    #[test]
    fn the_best_share_that_is_allowed_is_found(
        saturation in 0.2f64..0.9, neighbour in 0.0f64..0.1, room in 0.0f64..5.0,
    ) {
        let gpu = Gpu { saturation, neighbour, free_tokens: 1e9 };
        let ask = ask(room * ALONE_NS, 0);
        let mut together = Together::default();
        run(&gpu, &ask, &mut together, 8_000);
        let last = run(&gpu, &ask, &mut together, 800);
        let cost = |plan: Plan| (gpu.took(plan) - gpu.trained(plan)) / ALONE_NS;
        let best = (0..STEPS as u32).map(|trainer| Plan { trainer, ..Plan::default() })
            // A share is taken with what is kept back for its slowest.
            .filter(|plan| gpu.took(*plan) <= ALONE_NS * (1.0 + room))
            .map(cost).fold(f64::INFINITY, f64::min);
        let mean = last.iter().map(|(plan, _)| cost(*plan)).sum::<f64>() / last.len() as f64;
        let alone = 1.0 / f64::from(ALONE);
        prop_assert!(mean <= best * (1.0 - alone) + 1.1 * alone + 0.05, "{} of {}", mean, best);
        let slower = last.iter().filter(|(_, took)| *took > ALONE_NS * (1.0 + room) * (1.0 + 1e-9));
        prop_assert!(slower.count() <= 8, "a try in {} plans", 100);
    }

    /// P-TRAINER-12: as many tokens ride in a pass as ride for nothing.
    #[test]
    fn tokens_ride_while_they_cost_nothing(free in 40f64..1_000.0) {
        let gpu = Gpu { saturation: 0.5, neighbour: 0.0, free_tokens: free };
        let ask = ask(0.0, 100_000);
        let mut together = Together::default();
        run(&gpu, &ask, &mut together, 3_000);
        let last = run(&gpu, &ask, &mut together, 1_600);
        let rode: Vec<_> = last.iter().filter(|(plan, _)| plan.fused > 0).collect();
        let mean = rode.iter().map(|(plan, _)| f64::from(plan.fused)).sum::<f64>() / rode.len() as f64;
        prop_assert!(mean >= 0.8 * free - 16.0 && mean <= 1.1 * free, "{} of {}", mean, free);
        let took = last.iter().map(|(_, took)| took / ALONE_NS).sum::<f64>() / last.len() as f64;
        prop_assert!(took <= 1.03, "{}", took);
    }
}

/// P-TRAINER-12: beside a prompt nothing runs, nor where an iteration was never predicted.
#[test]
fn nothing_runs_beside_prompts() {
    let mut together = Together::default();
    let mut prompt = ask(1e9, 100);
    prompt.next.prompt = 1;
    assert_eq!(together.plan(&prompt), Plan::default());
    let mut unknown = ask(1e9, 100);
    unknown.alone_ns = f64::INFINITY;
    assert_eq!(together.plan(&unknown), Plan::default());
    assert_ne!(together.plan(&ask(1e9, 100)), Plan::default());
}
