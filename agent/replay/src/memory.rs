//! Who gets the memory when: memory policies behind one trait.
//!
//! Both engines have their KV cache in one pool. Before each iteration online says how many blocks
//! it wants; the policy grants a limit and says how long online waits for it. Offline's limit
//! follows. Everything is counted in bytes of whole handles.

mod bound;
pub mod oracle;
mod policy;
mod pool;
mod prism;
mod static_mem;
mod static_split;
mod stripes;
mod uvm;

use crate::kv::BLOCK_TOKENS;
use crate::plan::Alone;
use crate::spec::{Memory, Spec};

pub use policy::{NEVER, Policy};
pub use pool::{Pool, Wants, stripe_of, whole};
pub(crate) use stripes::withhold;

/// The policy of `spec`; `horizon` is one of [`oracle::HORIZONS`] for the one that knows the future.
#[must_use]
pub fn make(spec: &Spec, alone: Option<&Alone>, horizon: Option<u64>) -> Box<dyn Policy> {
    let peak = alone.map_or(0, |alone| alone.kv_peak_bytes);
    match spec.memory {
        Memory::Uvm => Box::new(uvm::Uvm::new(spec)),
        Memory::Prism => Box::new(prism::Prism::new(spec)),
        Memory::StaticMem => Box::new(static_mem::StaticMem::new(spec, peak)),
        Memory::StaticSplit => Box::new(static_split::StaticSplit::new(spec)),
        Memory::Oracle => {
            let block = u64::from(BLOCK_TOKENS) * spec.offline.model.shape.kv_bytes_per_token();
            Box::new(oracle::Oracle::new(spec, alone, horizon, stripe_of(block)))
        }
        // The agent's is no policy of its own ([`crate::policies`]), save for online alone, which has all.
        Memory::Tidegate
        | Memory::TidegateNoMiad
        | Memory::TidegateFifo
        | Memory::TidegateLifo
        | Memory::TidegateRandom
        | Memory::TidegateLayerBoundary
        | Memory::Bound => Box::new(bound::Bound),
    }
}
