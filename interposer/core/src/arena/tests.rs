//! Tests the arena against a memory that is written and read through the addresses that the arena returns.

use super::*;
use proptest::prelude::*;

const PIECES: u64 = BLOCK_BYTES / PIECE_BYTES;

/// What stands at one block's worth of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Block(Block),
    Quarantine,
}

/// A driver with its rules: nothing is mapped over what is mapped, and nothing unmapped twice. Each
/// piece of a block holds the number of whoever wrote it last.
struct Memory {
    mapped: BTreeMap<u64, Stands>,
    /// By block and piece; 0 where nobody wrote since the memory came.
    written: Vec<u64>,
}

impl Memory {
    fn new(arena: &Arena, blocks: u32) -> Self {
        let first = |block| (arena.first_address(block).0, Stands::Block(block));
        let mapped: BTreeMap<_, _> = (0..blocks).map(Block).map(first).collect();
        assert_eq!(
            mapped.len(),
            blocks as usize,
            "first addresses are distinct"
        );
        Self {
            mapped,
            written: vec![0; (u64::from(blocks) * PIECES) as usize],
        }
    }

    fn run(&mut self, arena: &Arena, calls: &[Call]) {
        for call in calls {
            match *call {
                Call::Map { block, at } => {
                    assert!(at.0 + BLOCK_BYTES <= arena.address_bytes());
                    let before = self.mapped.insert(at.0, Stands::Block(block));
                    assert_eq!(before, None, "mapped over {at:?}");
                }
                Call::Unmap { at } => {
                    assert!(self.mapped.remove(&at.0).is_some(), "unmapped twice {at:?}");
                }
            }
        }
    }

    fn cell(&self, at: u64) -> Option<(Block, u64)> {
        match self.mapped[&(at - at % BLOCK_BYTES)] {
            Stands::Block(block) => Some((block, at % BLOCK_BYTES / PIECE_BYTES)),
            Stands::Quarantine => None,
        }
    }

    fn number(&mut self, (block, piece): (Block, u64)) -> &mut u64 {
        &mut self.written[(u64::from(block.0) * PIECES + piece) as usize]
    }

    /// Whether nobody but `number` wrote a piece since its memory came.
    fn is(&self, (block, piece): (Block, u64), number: u64) -> bool {
        let found = self.written[(u64::from(block.0) * PIECES + piece) as usize];
        found == 0 || found == number
    }

    /// The pieces of `bytes` bytes at an address.
    fn cells(&self, at: Address, bytes: u64) -> Vec<(Block, u64)> {
        let pieces = (0..bytes.div_ceil(PIECE_BYTES)).map(|piece| at.0 + piece * PIECE_BYTES);
        pieces.filter_map(|at| self.cell(at)).collect()
    }

    /// Puts memory, or the quarantine page, at every address that still shows a block.
    fn replace(&mut self, arena: &Arena, block: Block, lost: bool) {
        for at in arena.addresses(block) {
            let with = if lost {
                Stands::Quarantine
            } else {
                Stands::Block(block)
            };
            let before = self.mapped.insert(at.0, with);
            assert!(before.is_some(), "{at:?} was mapped");
        }
    }
}

/// The blocks there are, counted one by one.
fn counted(arena: &Arena, shape: Shape) -> Ledger {
    let mut ledger = Ledger {
        asked_bytes: arena.ledger().asked_bytes,
        ..Ledger::default()
    };
    for chunk in 0..shape.chunks {
        let blocks = arena.blocks_in(Chunk(chunk)).collect::<Vec<_>>();
        let held = |block: &Block| {
            matches!(
                arena.holder(*block),
                Some(Holder::Tensor(_) | Holder::Small)
            )
        };
        let broken = blocks.iter().any(held);
        for block in &blocks {
            let lost = arena.blocks[block.0 as usize].lost;
            ledger.lost_blocks += u32::from(lost);
            match arena.holder(*block).expect("there is such a block") {
                Holder::Free => {
                    ledger.free_blocks += 1;
                    ledger.broken_blocks += u32::from(broken && !lost);
                }
                Holder::Rows(of) => {
                    assert_eq!(of, Chunk(chunk));
                    ledger.row_blocks += 1;
                }
                Holder::Tensor(_) => ledger.tensor_blocks += 1,
                Holder::Small => ledger.small_blocks += 1,
            }
        }
    }
    ledger
}

/// What somebody does with an arena.
#[derive(Clone, Debug)]
enum Do {
    Allocate(u64),
    Free(usize),
    AllocateRows,
    FreeRows(usize),
    Lose(u32),
    Back(u32),
}

fn deeds(blocks: u32) -> impl Strategy<Value = Do> {
    let bytes = prop_oneof![
        4 => 1..=BLOCK_BYTES / 2,
        3 => BLOCK_BYTES / 2..=5 * BLOCK_BYTES,
        1 => Just(BLOCK_BYTES),
        1 => Just(u64::MAX),
        1 => Just(0_u64),
    ];
    prop_oneof![
        5 => bytes.prop_map(Do::Allocate),
        4 => any::<usize>().prop_map(Do::Free),
        2 => Just(Do::AllocateRows),
        1 => any::<usize>().prop_map(Do::FreeRows),
        2 => (0..blocks + 1).prop_map(Do::Lose),
        2 => (0..blocks + 1).prop_map(Do::Back),
    ]
}

fn shapes() -> impl Strategy<Value = (Shape, Vec<Do>)> {
    (1_u32..4, 1_u32..5, 0_u32..40).prop_flat_map(|(layers, chunks, second_blocks)| {
        let shape = Shape {
            layers,
            chunks,
            second_blocks,
        };
        let deeds = prop::collection::vec(deeds(2 * layers * chunks), 1..80);
        (Just(shape), deeds)
    })
}

/// Whether there was indeed no room for `bytes`.
fn refused_rightly(
    arena: &Arena,
    blocks: u32,
    bytes: u64,
    why: NoRoom,
) -> Result<(), TestCaseError> {
    let usable = |block: &Block| {
        arena.holder(*block) == Some(Holder::Free) && !arena.blocks[block.0 as usize].lost
    };
    let free = (0..blocks).map(Block).filter(usable).count() as u64;
    match why {
        NoRoom::Empty => prop_assert_eq!(bytes, 0),
        NoRoom::Blocks { needed, free: said } => {
            prop_assert!(free < needed);
            prop_assert_eq!(free, u64::from(said));
        }
        NoRoom::Addresses { needed, longest } => {
            prop_assert!(longest < needed && bytes > BLOCK_BYTES);
        }
    }
    Ok(())
}

/// Whether each owner's number stands at all of its addresses.
fn each_finds_its_own(
    arena: &Arena,
    memory: &mut Memory,
    tensors: &[(Address, u64, u64)],
    rows: &[(Chunk, u64)],
) -> Result<(), TestCaseError> {
    for (at, bytes, number) in tensors {
        for cell in memory.cells(*at, *bytes) {
            let first = Address(arena.first_address(cell.0).0 + cell.1 * PIECE_BYTES);
            prop_assert_eq!(
                memory.cell(first.0),
                Some(cell),
                "one block at both addresses"
            );
            prop_assert!(memory.is(cell, *number), "{:?} belongs to two", cell);
        }
    }
    for (chunk, number) in rows {
        for block in arena.blocks_in(*chunk) {
            let own = (0..PIECES).all(|piece| memory.is((block, piece), *number));
            prop_assert!(own, "{:?} belongs to two", block);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Each owner writes its number through its own addresses and finds it there at every later moment,
    /// and through the blocks' first addresses as well, unless the memory was reclaimed in between.
    /// P-TRAINER-5: a block has one holder, and is lost at all its addresses.
    #[test]
    fn no_block_has_two_owners_and_a_lost_one_is_lost_at_all_its_addresses(
        (shape, deeds) in shapes(),
    ) {
        let mut arena = Arena::new(shape).expect("it is a shape");
        let blocks = 2 * shape.layers * shape.chunks;
        let mut memory = Memory::new(&arena, blocks);
        let mut calls = Vec::new();
        // Address, bytes asked, number.
        let mut tensors: Vec<(Address, u64, u64)> = Vec::new();
        let mut rows: Vec<(Chunk, u64)> = Vec::new();
        for (number, deed) in (1_u64..).zip(deeds) {
            calls.clear();
            match deed {
                Do::Allocate(bytes) => {
                    let before = arena.ledger();
                    match arena.allocate(bytes, &mut calls) {
                        Ok(at) => {
                            prop_assert!(bytes > BLOCK_BYTES || calls.is_empty());
                            memory.run(&arena, &calls);
                            let cells = memory.cells(at, bytes);
                            prop_assert_eq!(cells.len() as u64, bytes.div_ceil(PIECE_BYTES), "none of it is lost");
                            cells.into_iter().for_each(|cell| *memory.number(cell) = number);
                            tensors.push((at, bytes, number));
                        }
                        Err(why) => {
                            prop_assert!(calls.is_empty());
                            prop_assert_eq!(arena.ledger(), before);
                            refused_rightly(&arena, blocks, bytes, why)?;
                        }
                    }
                }
                Do::Free(which) if !tensors.is_empty() => {
                    let (at, bytes, _) = tensors.swap_remove(which % tensors.len());
                    // A piece that begins inside it was not allocated.
                    let inside = Address(at.0 + PIECE_BYTES);
                    if bytes > PIECE_BYTES {
                        prop_assert_eq!(arena.free(inside, &mut calls), Err(NotAllocated));
                    }
                    prop_assert_eq!(arena.free(at, &mut calls), Ok(()));
                    memory.run(&arena, &calls);
                }
                Do::AllocateRows => match arena.allocate_rows() {
                    Some(chunk) => {
                        for block in (0..shape.layers).flat_map(|layer| {
                            [Row::Key, Row::Value].map(|row| arena.row(chunk, layer, row))
                        }) {
                            let block = block.expect("it is a layer");
                            (0..PIECES).for_each(|piece| *memory.number((block, piece)) = number);
                        }
                        rows.push((chunk, number));
                    }
                    None => {
                        let whole = (0..shape.chunks).map(Chunk).any(|chunk| arena.blocks_in(chunk).all(|block| {
                            arena.holder(block) == Some(Holder::Free) && !arena.blocks[block.0 as usize].lost
                        }));
                        prop_assert!(!whole, "a chunk that is free as a whole can be had");
                    }
                },
                Do::FreeRows(which) if !rows.is_empty() => {
                    let (chunk, _) = rows.swap_remove(which % rows.len());
                    prop_assert_eq!(arena.free_rows(chunk), Ok(()));
                    prop_assert_eq!(arena.free_rows(chunk), Err(NotAllocated));
                }
                Do::Lose(block) => {
                    let block = Block(block);
                    let holder = arena.holder(block);
                    if let Some(said) = arena.lose(block) {
                        prop_assert_eq!(Some(said), holder);
                        memory.replace(&arena, block, true);
                        prop_assert!(!memory.mapped.values().any(|stands| *stands == Stands::Block(block)),
                            "{:?} can still be seen", block);
                        // Whoever held it has nothing to find there, also when it is back.
                        (0..PIECES).for_each(|piece| *memory.number((block, piece)) = 0);
                        prop_assert_eq!(arena.lose(block), None);
                    }
                }
                Do::Back(block) => {
                    let block = Block(block);
                    if arena.back(block) {
                        memory.replace(&arena, block, false);
                        prop_assert!(!arena.back(block));
                    }
                }
                Do::Free(_) | Do::FreeRows(_) => {}
            }
            prop_assert_eq!(arena.ledger(), counted(&arena, shape));
            prop_assert_eq!(arena.ledger().asked_bytes, tensors.iter().map(|it| it.1).sum::<u64>());
            each_finds_its_own(&arena, &mut memory, &tensors, &rows)?;
        }
        // When all is freed and back, every chunk is free as a whole and every address in one run.
        calls.clear();
        for (at, ..) in tensors {
            arena.free(at, &mut calls).expect("it was allocated");
        }
        memory.run(&arena, &calls);
        for (chunk, _) in rows {
            arena.free_rows(chunk).expect("it was allocated");
        }
        for block in 0..blocks {
            arena.back(Block(block));
        }
        prop_assert_eq!(memory.mapped.len(), blocks as usize, "no second mapping is left");
        prop_assert_eq!(arena.ledger(), Ledger { free_blocks: blocks, ..Ledger::default() });
        prop_assert_eq!(arena.whole.len(), shape.chunks as usize);
        prop_assert_eq!(arena.runs.values().sum::<u32>(), shape.second_blocks);
        prop_assert!(arena.runs.len() <= 1);
    }
}

const SHAPE: Shape = Shape {
    layers: 32,
    chunks: 8,
    second_blocks: 1024,
};

#[test]
fn a_tensor_lies_over_blocks_wherever_they_are_free() {
    let mut arena = Arena::new(SHAPE).expect("it is a shape");
    let mut calls = Vec::new();
    let held: Vec<_> = (0..512)
        .map(|_| {
            arena
                .allocate(BLOCK_BYTES, &mut calls)
                .expect("there is room")
        })
        .collect();
    assert_eq!(calls, [], "a tensor of one block is used where it is");
    for at in held.iter().step_by(100) {
        arena.free(*at, &mut calls).expect("it was allocated");
    }
    // Six blocks are free, in as many chunks as may be.
    let at = arena
        .allocate(6 * BLOCK_BYTES, &mut calls)
        .expect("six are enough");
    assert_eq!(calls.len(), 6);
    let places = calls.iter().map(|call| match call {
        Call::Map { at, .. } => at.0,
        Call::Unmap { .. } => 0,
    });
    assert!(
        places.eq((0..6).map(|index| at.0 + index * BLOCK_BYTES)),
        "one after the other"
    );
    assert_eq!(arena.blocks_of(at).len(), 6);
    assert_eq!(arena.ledger().free_blocks, 0);
    let why = arena.allocate(1, &mut calls);
    assert_eq!(why, Err(NoRoom::Blocks { needed: 1, free: 0 }));
}

#[test]
fn five_thousand_small_tensors_cost_no_driver_call() {
    // HARLI, section 4.5: so many allocations below 2 MiB are made in one step.
    let mut arena = Arena::new(SHAPE).expect("it is a shape");
    let mut calls = Vec::new();
    let held: Vec<_> = (0..5000_u64)
        .map(|index| {
            let bytes = 1 + index * 977 % (64 << 10);
            arena.allocate(bytes, &mut calls).expect("there is room")
        })
        .collect();
    let distinct: BTreeSet<_> = held.iter().collect();
    assert_eq!(distinct.len(), 5000);
    for at in held {
        arena.free(at, &mut calls).expect("it was allocated");
    }
    assert_eq!(calls, []);
    assert_eq!(arena.ledger().free_blocks, 512);
}

#[test]
fn nonsense_is_refused_by_name() {
    let made = |layers, chunks, second_blocks| {
        let shape = Shape {
            layers,
            chunks,
            second_blocks,
        };
        Arena::new(shape).map(|arena| arena.address_bytes())
    };
    assert_eq!(made(0, 1, 0), Err(BadShape::Empty));
    assert_eq!(made(1, 0, 0), Err(BadShape::Empty));
    assert_eq!(made(u32::MAX, 2, 0), Err(BadShape::TooLarge));
    assert_eq!(made(1, 1, u32::MAX), Err(BadShape::TooLarge));
    assert_eq!(made(1, 1, 1), Ok(3 * BLOCK_BYTES));
    let mut arena = Arena::new(SHAPE).expect("it is a shape");
    assert_eq!(arena.row(Chunk(0), 32, Row::Key), None);
    assert_eq!(arena.lose(Block(512)), None);
    assert_eq!(
        arena.free(Address(u64::MAX), &mut Vec::new()),
        Err(NotAllocated)
    );
}
