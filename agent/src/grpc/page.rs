//! The page shared with a process, as the shell is given it.

use crate::sys::{self, SharedPage};
use tidegate_abi::page::Page;
use tidegate_node::page::{PageMemory, PageRef};

#[derive(Debug)]
struct Mapped(SharedPage);

impl PageMemory for Mapped {
    fn page(&self) -> &Page {
        &self.0
    }

    fn wake_gate(&self, slot: usize) {
        if let Some(words) = self.0.gates.get(slot) {
            sys::futex_wake_low(&words.gate);
        }
    }

    fn wake_lease(&self, slot: usize) {
        if let Some(words) = self.0.gates.get(slot) {
            sys::futex_wake_low(&words.lease);
        }
    }
}

/// A mapped page.
#[must_use]
pub fn shared(page: SharedPage) -> PageRef {
    PageRef::new(Mapped(page))
}
