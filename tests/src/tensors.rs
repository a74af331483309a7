//! The tensors of one training step of an 8B model, as `scripts/finetune tensors` recorded them, in a trainer's arena.

use tidegate_core::arena::{Arena, BLOCK_BYTES, BadShape, NoRoom, Shape};

/// `BYTES` for a tensor that is taken, `-AGE` for one that is given back.
const RECORDED: &str = include_str!("../golden/tensors.txt");
/// The layers of Llama-3.1-8B.
const LAYERS: u32 = 32;

/// What came of putting all of them into an arena, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placed {
    /// Tensors.
    pub tensors: usize,
    /// Of those, below a block.
    pub small: usize,
    /// Calls of the driver that those below a block cost.
    pub small_calls: usize,
    /// Most bytes that blocks of tensors had beyond what was asked for, at any time.
    pub waste_bytes: u64,
    /// Most bytes that were asked for at one time.
    pub asked_bytes: u64,
}

/// Why a recording cannot be placed.
#[derive(Debug, thiserror::Error)]
pub enum BadRecording {
    /// A line that is no number, or names what was never taken.
    #[error(
        "golden/tensors.txt:{0}: neither the bytes of a tensor nor the age of one that is there"
    )]
    Line(usize),
    /// It has more than the arena.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The arena cannot be made.
    #[error(transparent)]
    Shape(#[from] BadShape),
}

/// Places them.
///
/// # Errors
/// [`BadRecording`].
pub fn place() -> Result<Placed, BadRecording> {
    // 141 GB of an H200, in chunks of 128 MiB.
    let mut arena = Arena::new(Shape {
        layers: LAYERS,
        chunks: 1_050,
        second_blocks: 2 * 1_050 * 2 * LAYERS,
    })?;
    let mut placed = Placed::default();
    let (mut taken, mut calls) = (Vec::new(), Vec::new());
    for (line, at) in RECORDED.lines().zip(1..) {
        let number: i64 = line.parse().map_err(|_| BadRecording::Line(at))?;
        calls.clear();
        if let Ok(bytes) = u64::try_from(number) {
            taken.push(Some((arena.allocate(bytes, &mut calls)?, bytes)));
            placed.tensors += 1;
            if bytes <= BLOCK_BYTES {
                placed.small += 1;
                placed.small_calls += calls.len();
            }
        } else {
            let age = usize::try_from(number.unsigned_abs()).ok();
            let place = age.and_then(|age| taken.len().checked_sub(age));
            let held = place.and_then(|place| taken.get_mut(place)?.take());
            let (address, bytes) = held.ok_or(BadRecording::Line(at))?;
            arena
                .free(address, &mut calls)
                .map_err(|_| BadRecording::Line(at))?;
            if bytes <= BLOCK_BYTES {
                placed.small_calls += calls.len();
            }
        }
        let ledger = arena.ledger();
        placed.waste_bytes = placed.waste_bytes.max(ledger.waste_bytes());
        placed.asked_bytes = placed.asked_bytes.max(ledger.asked_bytes);
    }
    Ok(placed)
}
