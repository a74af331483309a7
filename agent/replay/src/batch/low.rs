//! Requests of low priority, as with vLLM's `--scheduling-policy priority`.

use super::{Batch, Slot};

impl Batch {
    /// A request of low priority arrives, as with vLLM's `--scheduling-policy priority`: those of the others that wait go
    /// first, and it is the first to be put back for want of a block. What it has begun it goes on with.
    pub fn admit_low(&mut self, id: u64, input: u32, output: u32) {
        let slot = self.place(id, input, output);
        self.sequences[slot as usize].low = true;
        self.low += 1;
        self.waiting.push_back(slot);
    }

    /// Behind all that wait, but for those of low priority that have not begun.
    pub(super) fn queue(&mut self, slot: Slot) {
        let passed = |other: &Slot| {
            let other = &self.sequences[*other as usize];
            other.low && other.held == 0
        };
        let low = self.low > 0;
        let place = low.then(|| self.waiting.iter().position(passed)).flatten();
        let place = place.unwrap_or(self.waiting.len());
        self.waiting.insert(place, slot);
    }

    /// Has the last request of low priority that holds blocks give them up; false where none holds any.
    pub(super) fn put_back_low(&mut self) -> bool {
        let holds = |slot: &&Slot| {
            let sequence = &self.sequences[**slot as usize];
            sequence.low && sequence.held > 0
        };
        if let Some(slot) = self.waiting.iter().rev().find(holds).copied() {
            self.release(slot);
            self.sequences[slot as usize].cached = 0;
            return true;
        }
        let Some(slot) = self.running.iter().rev().find(holds).copied() else {
            return false;
        };
        self.put_back(slot);
        true
    }
}
