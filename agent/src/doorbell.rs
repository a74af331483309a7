//! A wait on doorbells, which belong to processes that may wake for nothing or take the word away.

use crate::sys::{Awake, WaitSet};
use std::io;
use std::sync::atomic::AtomicU32;
use tidegate_node::page::PageRef;

/// Sleeps while the thread's own word and the doorbells of these pages have these values. A wake without a ring is counted
/// for the page that woke, and a page whose memory is gone is marked. The thread goes on, and the shell drops the page.
///
/// # Errors
/// When the kernel does not let this thread wait on several words at all.
pub fn wait<'a>(
    set: &mut WaitSet,
    (own, raised): (&AtomicU32, u32),
    bells: impl Iterator<Item = (&'a PageRef, u32)> + Clone,
    deadline_ns: u64,
) -> io::Result<()> {
    set.clear();
    set.push(own, raised);
    for (page, seen) in bells.clone() {
        // One that nobody is to wait on keeps its number.
        if page.is_heard() {
            set.push(&page.process.doorbell, seen);
        } else {
            set.push(own, raised);
        }
    }
    let bell = |word: usize| bells.clone().nth(word.checked_sub(1)?);
    match set.wait(deadline_ns) {
        Ok(Awake::Woken(word)) => {
            if let Some((page, seen)) = bell(word) {
                page.woke(seen);
            }
        }
        Ok(Awake::Otherwise) => {}
        // It may be there again: then nobody is to blame, and the next wait is as any other.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
            let gone = set.gone().filter_map(bell);
            gone.for_each(|(page, _)| page.cannot_be_waited_on());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
