//! What the ledger of a trainer's memory costs: a small tensor allocated and freed, and a large one.

use crate::row::{Row, median};
use tidegate_core::arena::{Address, Arena, Shape};
use tidegate_tests::monotonic_ns;
use tidegate_tests::tensors::place;
use tidegate_text::rng::Rng;

const ROUNDS: usize = 101;
/// HARLI, section 4.5: allocations below 2 MiB in one step.
const SMALL: usize = 5_000;
/// The layers of Llama-3.1-8B, and the chunks of 128 MiB that an H200's memory makes of it.
const SHAPE: Shape = Shape {
    layers: 32,
    chunks: 1_100,
    second_blocks: 140_800,
};
/// A frozen layer of Llama-3.1-8B in bf16.
const LAYER_BYTES: u64 = 436_224_000;

pub fn measure() -> Vec<Row> {
    let Ok(mut arena) = Arena::new(SHAPE) else {
        return Vec::new();
    };
    let mut calls = Vec::new();
    let mut rng = Rng::new(1);
    // Between one leaf and half a block, evenly over the powers of two.
    let mut bytes = || (2f64.powf(11.0 + 9.0 * rng.uniform())) as u64;
    let mut held: Vec<Address> = (0..SMALL)
        .filter_map(|_| arena.allocate(bytes(), &mut calls).ok())
        .collect();
    let (mut takes, mut gives) = (Vec::new(), Vec::new());
    let mut pick = Rng::new(2);
    for _ in 0..ROUNDS {
        // A fifth of them goes, wherever it lies, and others come.
        let going: Vec<_> = (0..SMALL / 5)
            .map(|_| held.swap_remove((pick.uniform() * held.len() as f64) as usize))
            .collect();
        let wanted: Vec<_> = going.iter().map(|_| bytes()).collect();
        let begin = monotonic_ns();
        for at in &going {
            let freed = arena.free(*at, &mut calls);
            debug_assert!(freed.is_ok());
        }
        let between = monotonic_ns();
        held.extend(
            wanted
                .iter()
                .filter_map(|bytes| arena.allocate(*bytes, &mut calls).ok()),
        );
        let end = monotonic_ns();
        gives.push((between - begin) as f64 / going.len() as f64);
        takes.push((end - between) as f64 / going.len() as f64);
    }
    let (driver_calls, alive) = (calls.len(), held.len());
    let waste = arena.ledger().waste_bytes() as f64 / (1 << 20) as f64;
    let mut layers = Vec::new();
    for _ in 0..ROUNDS {
        calls.clear();
        let begin = monotonic_ns();
        let layer = arena.allocate(LAYER_BYTES, &mut calls);
        layers.push((monotonic_ns() - begin) as f64 / 1e3);
        if let Ok(layer) = layer {
            let freed = arena.free(layer, &mut calls);
            debug_assert!(freed.is_ok());
        }
    }
    let Ok(step) = place() else {
        return Vec::new();
    };
    vec![
        Row::new("arena.small.take", median(takes), "ns").at_most(200.0),
        Row::new("arena.small.give", median(gives), "ns"),
        Row::new("arena.small.driver_calls", driver_calls as f64, "").at_most(0.0),
        Row::new("arena.small.alive", alive as f64, "").at_least(SMALL as f64),
        Row::new("arena.small.waste", waste, "MiB"),
        Row::new("arena.layer_8b.take", median(layers), "us"),
        Row::new("arena.step_8b.tensors", step.tensors as f64, ""),
        Row::new("arena.step_8b.waste", step.waste_bytes as f64 / 1e6, "MB").at_most(100.0),
        Row::new(
            "arena.step_8b.small.driver_calls",
            step.small_calls as f64,
            "",
        )
        .at_most(0.0),
    ]
}
