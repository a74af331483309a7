//! The log of lost blocks that the processes of a job share: what a rank that broke made of it.
//!
//! An input is operations: a word of the memory is written, or a rank works with it as the library does. Whatever is
//! there, no call goes on without end, none takes more memory than a job has blocks, and none names a block that no job
//! has.

use crate::input::Input;
use crate::spent;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use tidegate_core::joblog::{Member, Reader, Shared};

/// Entries, steps and blocks of a log that is small enough to be full.
const ENTRIES: usize = 32;
const CUTS: usize = 8;
const BLOCKS: usize = 64;

type Small = Shared<AtomicU64, AtomicU8, ENTRIES, CUTS, BLOCKS>;

/// What one step may take: each block once or twice, and the room of sorting them.
const MEMORY: usize = 64 << 10;

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let memory = Memory([const { AtomicU64::new(0) }; WORDS]);
    let (words, shared) = (&memory.0, memory.log());
    shared.begin(2);
    let own: [AtomicU8; BLOCKS] = std::array::from_fn(|_| AtomicU8::new(0));
    let promised = AtomicU64::new(0);
    let member = Member::new(shared, &own, &promised);
    let mut readers = [Reader::at_end(shared); 2];
    let mut step = 0;
    for _ in 0..256 {
        if input.is_empty() {
            break;
        }
        let operation = input.byte();
        let reader = usize::from(operation >> 7);
        match operation % 12 {
            0 | 1 => {
                let word = usize::from(u16::from_le_bytes(input.array()));
                words[used(word)].store(input.long(), Relaxed);
            }
            // One of few words that others go by: their ends are what matters.
            2 => {
                let word = usize::from(input.byte() % 40);
                let values = [0, 1, 31, 32, 33, (1 << 40) - 1, u64::MAX - 1, u64::MAX];
                words[used(8 + word)].store(values[usize::from(input.byte() % 8)], Relaxed);
            }
            3 => match input.byte() {
                u8::MAX => promised.store(input.long(), Relaxed),
                at => own[usize::from(at) % BLOCKS].store(input.byte(), Relaxed),
            },
            4 | 5 => drop(member.lose(input.byte().into(), input.byte().into())),
            6 => drop(member.regain(input.byte().into(), input.byte().into())),
            7 => drop(member.end()),
            8 => {
                let rank = u32::from(input.byte());
                readers[reader] =
                    Reader::begin(shared, rank, Some(&promised)).unwrap_or(readers[reader]);
            }
            9 => shared.acknowledge(input.long()),
            10 => step = input.long() >> (input.byte() % 64),
            _ => {
                read(shared, &mut readers[reader], step);
                step = step.saturating_add(1);
            }
        }
        let _ = (shared.head(), shared.withheld(), shared.ranks());
    }
}

fn read(shared: &Small, reader: &mut Reader, step: u64) {
    let before = spent::begin();
    let Ok(news) = reader.read(shared, step) else {
        return;
    };
    let took = spent::most() - before;
    assert!(took <= MEMORY, "{took} bytes for a step's news");
    for ids in [&news.lost, &news.back] {
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), ids.len(), "a block is named twice: {ids:?}");
        assert!(ids.iter().all(|id| (*id as usize) < BLOCKS), "{ids:?}");
    }
    reader.consume(&news);
    shared.acknowledge(news.upto);
}

/// What the processes of a job map.
#[repr(C, align(64))]
struct Memory([AtomicU64; WORDS]);

const WORDS: usize = size_of::<Small>() / 8;

/// The word, or one nearby that means something.
const fn used(word: usize) -> usize {
    match word % WORDS {
        1..8 => 0,
        12..16 => 8,
        word => word,
    }
}

impl Memory {
    #[expect(unsafe_code, reason = "as the library sees what it has mapped")]
    const fn log(&self) -> &Small {
        const { assert!(size_of::<Small>() == size_of::<Self>()) };
        const { assert!(align_of::<Small>() <= align_of::<Self>()) };
        // SAFETY: as long and as aligned; every field is atomic and valid for any bits, but for padding, which nobody
        // reads or writes ([`used`]).
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}
