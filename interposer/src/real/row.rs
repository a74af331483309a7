//! A row of the table: one hooked function of the driver.
//!
//! A row says what the function means here. The macro makes four things of it: the exported detour, the slot for the
//! real function, the answer to a look-up by name, and the line in `tidegate hooks`. The slot begins as a stub that
//! finds the real function at the first call, so that the hot path calls through it without a test.

use super::{driver, loader};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// What a hooked call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Gives the device work.
    Launch,
    /// Proves that work is done.
    Sync,
    /// Changes contexts or streams.
    Life,
    /// Begins or ends a capture.
    Capture,
    /// Allocates, frees or tells of memory.
    Memory,
    /// May hold the driver's locks while it waits for the GPU.
    Hold,
    /// Answers for the driver's functions.
    Resolve,
}

/// One hooked function in one ABI.
#[derive(Debug)]
pub struct Row {
    /// The driver's exported symbol.
    pub symbol: &'static [u8],
    /// The same, with its terminating zero.
    pub symbol_nul: &'static [u8],
    /// First CUDA version with this signature.
    pub since: i32,
    /// What it means.
    pub class: Class,
    /// Its place in the table.
    pub index: usize,
    /// The driver's function, or the stub that finds it.
    pub real: AtomicPtr<c_void>,
    /// Calls, except those of the hot path.
    pub calls: AtomicU64,
    stub: AtomicPtr<c_void>,
    detour: AtomicPtr<c_void>,
    handed_out: AtomicBool,
}

impl Row {
    /// A row whose real function is not known yet.
    pub const fn new(
        symbol_nul: &'static str,
        since: i32,
        class: Class,
        index: usize,
        detour: *mut c_void,
        stub: *mut c_void,
    ) -> Self {
        Self {
            symbol: symbol_nul.as_bytes().split_at(symbol_nul.len() - 1).0,
            symbol_nul: symbol_nul.as_bytes(),
            since,
            class,
            index,
            real: AtomicPtr::new(stub),
            calls: AtomicU64::new(0),
            stub: AtomicPtr::new(stub),
            detour: AtomicPtr::new(detour),
            handed_out: AtomicBool::new(false),
        }
    }

    fn name(&self) -> Option<&'static CStr> {
        CStr::from_bytes_with_nul(self.symbol_nul).ok()
    }

    /// Counts a call that is not on the hot path.
    pub fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Our function.
    pub fn detour(&self) -> *mut c_void {
        self.detour.load(Ordering::Relaxed)
    }

    /// Our function, noting that the application has it.
    pub fn hand_out(&self) -> *mut c_void {
        self.handed_out.store(true, Ordering::Relaxed);
        self.detour()
    }

    /// Whether the application was given our function, by name or by being linked to it.
    pub fn installed(&self, calls: u64) -> bool {
        self.handed_out.load(Ordering::Relaxed) || calls > 0
    }

    /// Whether the driver's function is known.
    pub fn resolved(&self) -> bool {
        self.real.load(Ordering::Relaxed) != self.stub.load(Ordering::Relaxed)
    }

    /// The driver's function by its exported name, or what a neighbour has for it, found once; null if the driver lacks it.
    pub fn resolve(&self) -> *mut c_void {
        if !self.resolved() {
            let found = self.name().map_or(core::ptr::null_mut(), |name| {
                self.of_neighbour(name)
                    .unwrap_or_else(|| driver::symbol(name))
            });
            if found.is_null() || found == self.detour() {
                return core::ptr::null_mut();
            }
            self.offer(found);
        }
        self.real.load(Ordering::Acquire)
    }

    /// What a neighbour with a `dlsym` of its own has for the name.
    fn of_neighbour(&self, name: &CStr) -> Option<*mut c_void> {
        let found = loader::ask_neighbour(driver::handle(), name)?;
        if found != self.detour() {
            return Some(found);
        }
        // It means its own exported function, whose name leads to ours everywhere.
        let next = loader::real_dlsym(libc::RTLD_NEXT, name);
        Some(next).filter(|next| !next.is_null() && *next != self.detour())
    }

    /// The function behind ours for a caller that was linked to the name: what the loader would have
    /// given it without this library, which may be another preloaded one. Else the driver's.
    pub fn resolve_linked(&self) -> *mut c_void {
        if !self.resolved() {
            let next = self.name().map_or(core::ptr::null_mut(), |name| {
                loader::real_dlsym(libc::RTLD_NEXT, name)
            });
            if !next.is_null() && next != self.detour() {
                self.offer(next);
            }
        }
        self.resolve()
    }

    /// Takes a function that the driver handed out as this row's, unless one is known.
    pub fn offer(&self, found: *mut c_void) {
        if found == self.detour() {
            return;
        }
        let stub = self.stub.load(Ordering::Relaxed);
        let _ = self
            .real
            .compare_exchange(stub, found, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The name under which `cuGetProcAddress` knows it.
    pub fn base(&self) -> &'static [u8] {
        base(self.symbol)
    }

    /// Whether a stream of 0 means the per-thread stream.
    pub fn thread(&self) -> bool {
        thread(self.symbol)
    }
}

/// Whether two symbols are one.
pub const fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && ends_with(one, other)
}

const fn ends_with(name: &[u8], end: &[u8]) -> bool {
    let mut i = 0;
    while i < end.len() {
        if name.len() < end.len() || name[name.len() - end.len() + i] != end[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Whether a symbol takes the per-thread stream for a stream of 0.
pub const fn thread(symbol: &[u8]) -> bool {
    ends_with(symbol, b"_ptsz") || ends_with(symbol, b"_ptds")
}

/// A symbol without its ABI and stream suffixes.
pub const fn base(symbol: &[u8]) -> &[u8] {
    let mut name = symbol;
    if thread(name) {
        name = name.split_at(name.len() - 5).0;
    }
    if name.len() > 3 && name[name.len() - 3] == b'_' && name[name.len() - 2] == b'v' {
        name = name.split_at(name.len() - 3).0;
    }
    name
}
