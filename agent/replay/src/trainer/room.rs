//! What of a trainer's frozen layers stays on a GPU beside online's cache (`tidegate_policy::resident`).

use std::time::Duration;

use super::Finetune;
use crate::costs::HANDLE_BYTES;
use crate::spec::Spec;
use tidegate_policy::ids::Bytes;
use tidegate_policy::resident::{Demand, reserve, resident};

/// Beside online whose cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Kept free for online.
    pub reserve: Bytes,
    /// Layers that stay.
    pub stay: u32,
    /// Of so many.
    pub layers: u32,
}

/// Beside `spec`'s online, which may make a token of each request every `per_token`.
#[must_use]
pub fn room(finetune: &Finetune, spec: &Spec, per_token: Duration) -> Room {
    let shape = &spec.online.model.shape;
    // Keys and values of each layer: what is taken at once, and what memory comes in.
    let handles = 2 * shape.layers;
    let costs = &spec.costs;
    let reserve = reserve(Demand {
        detect: costs.edge,
        release: costs.disable_save + (costs.quarantine_handle + costs.map_handle) * handles,
        per_token,
        requests: u32::try_from(spec.online.limits.running).unwrap_or(u32::MAX),
        token: Bytes(shape.kv_bytes_per_token()),
        chunk: Bytes(HANDLE_BYTES).times(u64::from(handles)),
    });
    let frozen = &finetune.model.shape;
    let layers = frozen.layers;
    let output = u64::from(frozen.hidden) * u64::from(frozen.vocabulary);
    let layer = 2 * (frozen.parameters() - output) / u64::from(layers.max(1));
    let left = spec.gpu.left(&[&spec.online.model]).unwrap_or(0);
    // The output matrix always stays, and what a sample holds is needed whenever it is under way.
    let kept = spec.kv_pool_bytes + 2 * output + finetune.held_bytes();
    Room {
        reserve,
        stay: resident(
            Bytes(left).minus(Bytes(kept)),
            reserve,
            Bytes(layer),
            layers,
        ),
        layers,
    }
}
