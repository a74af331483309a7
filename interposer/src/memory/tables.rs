//! What each process of a job misses: a table for each, behind the log in the job's file.
//!
//! Each table has a byte on which its process holds a lock for as long as it lives. Whoever finds a table whose byte is
//! free subtracts what the table says ([`Member::end`]), and holds the lock meanwhile.
//!
//! A thread without a descriptor table of its own has no table here: the application could close the file, and its
//! process would count as gone.

use crate::log;
use crate::state::memory::file::{fill, lock, size};
use core::sync::atomic::AtomicU8;
use tidegate_core::joblog::{BLOCKS, Member, Refused, Shared};

/// Tables at most: processes of one job on one node that have memory taken from them.
const TABLES: usize = 64;
/// The lock of the first; of the others the bytes behind it.
pub const FIRST_BYTE: i64 = 1 << 20;
/// A whole number of pages, of any size that a kernel has.
const PAGES: usize = 64 << 10;
/// How many blocks a table has places for stands at its begin; the places are so much behind. What is not written takes no
/// memory.
const HEAD: usize = PAGES;
const STRIDE: usize = HEAD + BLOCKS;

/// The tables of a job, and which of them is this process' own.
#[derive(Debug)]
pub struct Tables {
    fd: i32,
    shared: &'static Shared,
    /// Whether the file stays open as long as the process lives.
    lasts: bool,
    own: Option<usize>,
    /// Places that the own one has.
    places: usize,
}

impl Tables {
    /// Of an open file.
    pub const fn new(fd: i32, shared: &'static Shared, lasts: bool) -> Self {
        Self {
            fd,
            shared,
            lasts,
            own: None,
            places: 0,
        }
    }

    /// The own table, with places for so many blocks at least.
    pub fn own(&mut self, blocks: u32) -> Option<&'static [AtomicU8]> {
        let blocks = (blocks as usize).min(BLOCKS);
        let nth = self.own.or_else(|| self.claim())?;
        self.own = Some(nth);
        let more = blocks.saturating_sub(self.places);
        if !fill(self.fd, at(nth) + HEAD + self.places, more) {
            log::line("no room in /dev/shm for what a job loses: nothing is taken of this engine");
            return None;
        }
        self.places = self.places.max(blocks);
        self.set_head(nth, self.places).then_some(())?;
        map(self.fd, nth, self.places)
    }

    /// A table that is nobody's.
    fn claim(&self) -> Option<usize> {
        let free = |nth: &usize| {
            self.holds(*nth) && {
                let ended = self.end(*nth);
                if ended.is_err() {
                    self.lets_go(*nth);
                }
                ended.is_ok()
            }
        };
        (0..TABLES).filter(|_| self.lasts).find(free)
    }

    /// Takes back what processes missed that are gone.
    pub fn look(&self) {
        let behind = size(self.fd).saturating_sub(at(0));
        let others = (0..behind.div_ceil(STRIDE).min(TABLES)).filter(|nth| self.own != Some(*nth));
        for nth in others {
            if self.head(nth) != 0 && self.holds(nth) {
                // Where the log has no room, it is tried again.
                let _ = self.end(nth);
                self.lets_go(nth);
            }
        }
    }

    fn holds(&self, nth: usize) -> bool {
        lock(self.fd, byte(nth), libc::F_WRLCK, false)
    }

    fn lets_go(&self, nth: usize) {
        lock(self.fd, byte(nth), libc::F_UNLCK, false);
    }

    /// Ends the process whose table it was. Its lock is held.
    fn end(&self, nth: usize) -> Result<(), Refused> {
        let places = self.head(nth);
        if let Some(own) = map(self.fd, nth, places) {
            let ended = Member::new(self.shared, own).end();
            // SAFETY: mapped above, and nothing refers to it any more.
            unsafe { libc::munmap(own.as_ptr().cast_mut().cast(), places) };
            ended?;
        }
        self.set_head(nth, 0);
        Ok(())
    }

    /// Places of a table; 0: it is nobody's.
    fn head(&self, nth: usize) -> usize {
        let mut places = 0_u64;
        let (into, bytes) = ((&raw mut places).cast(), size_of::<u64>());
        // SAFETY: the word is live for the call.
        let read = unsafe { libc::pread(self.fd, into, bytes, offset(at(nth))) };
        let whole = usize::try_from(read).is_ok_and(|read| read == bytes);
        let places = usize::try_from(places).ok().filter(|_| whole);
        places.map_or(0, |places| places.min(BLOCKS))
    }

    fn set_head(&self, nth: usize, places: usize) -> bool {
        let places = places as u64;
        let (from, bytes) = ((&raw const places).cast(), size_of::<u64>());
        // SAFETY: the word is live for the call.
        let wrote = unsafe { libc::pwrite(self.fd, from, bytes, offset(at(nth))) };
        usize::try_from(wrote).is_ok_and(|wrote| wrote == bytes)
    }
}

/// Where a table begins.
const fn at(nth: usize) -> usize {
    size_of::<Shared>().next_multiple_of(PAGES) + nth * STRIDE
}

const fn offset(at: usize) -> libc::off_t {
    at as libc::off_t
}

const fn byte(nth: usize) -> i64 {
    FIRST_BYTE + nth as i64
}

/// The places of a table, all of which have been written.
fn map(fd: i32, nth: usize, places: usize) -> Option<&'static [AtomicU8]> {
    if places == 0 {
        return None;
    }
    // SAFETY: a fresh shared mapping of a part of the file that was written, and that no member of the job cuts off while
    // another lives.
    let mapped = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            places,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset(at(nth) + HEAD),
        )
    };
    // SAFETY: as long as that, and of atomic bytes.
    (mapped != libc::MAP_FAILED)
        .then(|| unsafe { core::slice::from_raw_parts(mapped.cast::<AtomicU8>(), places) })
}
