//! What each process of a job misses: a table for each, behind the log in the job's file.
//!
//! ```text
//! places u64 | promised u64 | nothing, up to 64 KiB | a byte for each block
//! ```
//!
//! Each table has a byte on which its process holds a lock for as long as it lives. Whoever finds a table whose byte is
//! free subtracts what the table says ([`tidegate_core::joblog::Member::end`]), and holds the lock meanwhile.
//!
//! A thread without a descriptor table of its own has no table here: the application could close the file, and its
//! process would count as gone.

use crate::log;
use crate::state::memory::file::{fill, lock, size};
use crate::state::memory::keeper::Table;
use core::sync::atomic::{AtomicU8, AtomicU64};
use tidegate_core::joblog::{BLOCKS, Refused, Shared};

/// Tables at most: processes of one job on one node that have memory taken from them.
const TABLES: usize = 64;
/// The lock of the first; of the others the bytes behind it.
pub const FIRST_BYTE: i64 = 1 << 20;
/// A whole number of pages, of any size that a kernel has.
const PAGES: usize = 64 << 10;
/// How many blocks a table has places for stands at its begin; the places are so much behind. What is not written takes no
/// memory.
const HEAD: usize = PAGES;
/// Behind it, in the same page, which is written with it.
const PROMISED: usize = size_of::<u64>();
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
    pub fn own(&mut self, blocks: u32) -> Option<Table> {
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
        if let Some(table) = map(self.fd, nth, places) {
            let ended = table.member(self.shared).end();
            unmap(table);
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

/// A table that has places, all of which have been written, as its head has.
fn map(fd: i32, nth: usize, places: usize) -> Option<Table> {
    if places == 0 {
        return None;
    }
    // SAFETY: a fresh shared mapping of a part of the file of which what is used was written, and that no member of the job
    // cuts off while another lives.
    let mapped = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            HEAD + places,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset(at(nth)),
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: as long as that, aligned to a page, and of atomic words and bytes.
    unsafe {
        Some(Table {
            promised: &*mapped.byte_add(PROMISED).cast::<AtomicU64>(),
            missing: core::slice::from_raw_parts(mapped.byte_add(HEAD).cast::<AtomicU8>(), places),
        })
    }
}

/// Ends the mapping of a table, to which nothing refers any more.
fn unmap(table: Table) {
    let begin = core::ptr::from_ref(table.promised).cast_mut();
    // SAFETY: mapped by `map` so.
    unsafe { libc::munmap(begin.byte_sub(PROMISED).cast(), HEAD + table.missing.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use core::sync::atomic::Ordering::Relaxed;
    use tidegate_core::joblog::ENTRIES;

    /// A file as a job's, opened anew with each call: locks are of an open file.
    fn open(file: i32) -> i32 {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{file}")).expect("no zeros");
        // SAFETY: a C string.
        unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
    }

    fn log(file: i32) -> &'static Shared {
        assert!(fill(file, 0, size_of::<Shared>()));
        // SAFETY: a fresh mapping of a file of that size.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: page-aligned, of that size, never unmapped, and valid when zeroed.
        let shared = unsafe { &*at.cast::<Shared>() };
        shared.begin(1);
        shared
    }

    /// A word that this process shares with its children.
    fn common() -> &'static AtomicU64 {
        let (read_write, anyone) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), 8, read_write, anyone, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: page-aligned, never unmapped, and valid when zeroed.
        unsafe { &*at.cast::<AtomicU64>() }
    }

    /// Loses blocks and has them back, until it is killed.
    fn lose_for_ever(file: i32, shared: &'static Shared, calls: &AtomicU64) -> ! {
        const BLOCKS: u32 = 60_000;
        let mut tables = Tables::new(open(file), shared, true);
        let member = tables.own(BLOCKS).map(|table| table.member(shared));
        loop {
            if let Some(member) = &member
                && member.lose(0, BLOCKS).is_ok()
                && member.regain(0, BLOCKS).is_ok()
            {
                calls.fetch_add(1, Relaxed);
            }
            shared.acknowledge(shared.head());
        }
    }

    /// P-MEMORY-10: a process that dies inside a call leaves the others all the room that there is.
    #[test]
    fn killed_inside_of_their_calls_processes_leave_all_the_room_that_there_is() {
        /// A call about so many promises itself all entries.
        const MOST: u32 = 2 * (ENTRIES as u32 - 1);
        // SAFETY: a C string.
        let file = unsafe { libc::memfd_create(c"job".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        let (shared, calls) = (log(file), common());
        for nth in 0..20 {
            calls.store(0, Relaxed);
            // SAFETY: the child makes plain calls until it is killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                lose_for_ever(file, shared, calls);
            }
            let until_ns = clock::now_ns() + 60_000_000_000;
            while calls.load(Relaxed) < 3 {
                assert!(clock::now_ns() < until_ns, "process {nth} has no room");
                std::thread::yield_now();
            }
            for _ in 0..nth * 10_000 {
                core::hint::spin_loop();
            }
            // SAFETY: a child of this process that was not waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, core::ptr::null_mut(), 0);
            }
            Tables::new(open(file), shared, true).look();
            for call in [Shared::lose, Shared::regain] {
                shared.acknowledge(shared.head());
                let room = call(shared, 200_000, MOST);
                assert!(room.is_ok(), "after process {nth}: {room:?}");
            }
        }
    }
}
