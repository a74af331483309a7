//! Who has blocks, and who gives them up.

use super::{Batch, MOST_ASIDE, Slot};
use crate::kv::{BLOCK_TOKENS, blocks_of};

impl Batch {
    /// Pushes sequences back until those that run have the blocks they need.
    pub(super) fn make_room(&mut self) {
        while self.store.available() < self.growth() {
            if self.low > 0 && self.put_back_low() {
                self.counts.pushed_back += 1;
                continue;
            }
            // Who has only begun to be read is the last to have come.
            if let Some(slot) = self.waiting.front().copied()
                && self.sequences[slot as usize].held > 0
            {
                self.release(slot);
                self.sequences[slot as usize].cached = 0;
            } else if let Some(slot) = self.running.last().copied() {
                self.put_back(slot);
            } else {
                return;
            }
            self.counts.pushed_back += 1;
        }
    }

    /// Those at the head that could not run even alone go aside; those that could again come back to it.
    pub(super) fn step_aside(&mut self) {
        let there = self.store.used + self.store.available();
        let begun = |slot: &Slot| self.sequences[*slot as usize].held > 0;
        let behind = usize::from(self.waiting.front().is_some_and(begun));
        for place in (0..self.aside.len()).rev() {
            let slot = self.aside[place];
            if self.needs_alone(slot) <= there {
                self.aside.remove(place);
                self.waiting.insert(behind, slot);
            }
        }
        while let Some(slot) = self.waiting.front().copied()
            && self.needs_alone(slot) > there
            && self.aside.len() < MOST_ASIDE
        {
            self.waiting.pop_front();
            self.release(slot);
            self.sequences[slot as usize].cached = 0;
            self.aside.push_back(slot);
        }
    }

    pub(super) fn needs_alone(&self, slot: Slot) -> u32 {
        blocks_of(self.sequences[slot as usize].prompt)
    }

    pub(super) fn take_growth(&mut self) {
        let due = (self.ahead.steps % u64::from(BLOCK_TOKENS)) as usize;
        for place in 0..self.ahead.grow[due].len() {
            let slot = self.ahead.grow[due][place];
            self.take_block(slot);
        }
    }

    pub(super) fn take_block(&mut self, slot: Slot) {
        let sequence = &mut self.sequences[slot as usize];
        if let Some(pages) = &mut self.store.pages
            && let Some(block) = pages.take(slot)
        {
            sequence.blocks.push(block);
        }
        sequence.held += 1;
        self.store.used += 1;
    }

    pub(super) fn release(&mut self, slot: Slot) {
        let sequence = &mut self.sequences[slot as usize];
        self.store.used -= core::mem::take(&mut sequence.held);
        if let Some(pages) = &mut self.store.pages {
            for block in sequence.blocks.drain(..) {
                pages.give(block);
            }
        }
        sequence.stamp = sequence.stamp.wrapping_add(1);
    }

    /// A sequence gives up its blocks and goes back to the front of the queue; says how many
    /// tokens have to be read again.
    pub(super) fn put_back(&mut self, slot: Slot) -> u32 {
        let lost = self.cached(slot);
        let was_running = self.sequences[slot as usize].running;
        if was_running {
            self.leave(slot);
        }
        self.release(slot);
        let sequence = &mut self.sequences[slot as usize];
        sequence.cached = 0;
        sequence.prompt = sequence.input + sequence.generated;
        if was_running && sequence.low {
            self.queue(slot);
        } else if was_running {
            self.waiting.push_front(slot);
        }
        lost
    }

    /// The blocks of these sequences are gone: each goes back to the queue. Says how many tokens
    /// have to be computed again.
    pub fn lose(&mut self, slots: &[Slot]) -> u64 {
        let lost = slots.iter().map(|slot| u64::from(self.put_back(*slot)));
        lost.sum()
    }

    /// Every sequence that holds blocks, by slot, with those.
    pub fn holders(&self) -> impl Iterator<Item = (Slot, &[u32])> {
        let held = self.slots().filter(|(_, _, blocks)| !blocks.is_empty());
        held.map(|(slot, _, blocks)| (slot, blocks))
    }

    /// Every slot with the blocks that its sequence holds, and a number that changes whenever that gives
    /// them up.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, u32, &[u32])> {
        let all = (0..).zip(&self.sequences);
        all.map(|(slot, sequence)| (slot, sequence.stamp, &*sequence.blocks))
    }

    /// Blocks of those whose first prompt tokens are being read: nothing is computed yet that could
    /// be lost with them.
    pub fn begun(&self) -> impl Iterator<Item = u32> + '_ {
        let parts = self.pass.parts.iter();
        let parts = parts.map(|part| &self.sequences[part.slot as usize]);
        let begun = parts.filter(|sequence| !sequence.running && sequence.cached == 0);
        begun.flat_map(|sequence| sequence.blocks.iter().copied())
    }

    /// Tokens a sequence would have to compute again if it lost a block.
    #[must_use]
    pub fn at_stake(&self, slot: Slot) -> u32 {
        self.cached(slot)
    }

    /// Everything in flight is gone with its process, and what it had computed with it; says how
    /// many kept tokens that were.
    pub fn kill(&mut self) -> u64 {
        let running: Vec<Slot> = self.running.iter().rev().copied().collect();
        self.lose(&running);
        let mut lost = 0;
        for slot in self.aside.drain(..).rev() {
            self.waiting.push_front(slot);
        }
        for place in 0..self.waiting.len() {
            let slot = self.waiting[place];
            self.release(slot);
            let sequence = &mut self.sequences[slot as usize];
            self.counts.tokens.prompt -= u64::from(sequence.read);
            self.counts.tokens.generated -= u64::from(sequence.generated);
            lost += u64::from(sequence.read) + u64::from(sequence.generated);
            (sequence.cached, sequence.generated, sequence.read) = (0, 0, 0);
            sequence.prompt = sequence.input;
        }
        self.pass.parts.clear();
        self.pass.decoding = false;
        self.pass.under_way = false;
        lost
    }
}
