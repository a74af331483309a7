//! Both sides of a lease: an engine that says its iterations, and a trainer that offers units.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::beats::{BATCH_KNOWN, BYTES, BeatPage, MAGIC, MAJOR};
use tidegate_abi::page::{LEASE_NUMBER, LEASE_STATE, LEASED_NUMBER, LEASED_OVER, Page, UNIT_MOST};
use tidegate_tests::monotonic_ns;

/// The page of its iterations, mapped for ever.
#[derive(Debug)]
pub struct Beats(&'static BeatPage, OwnedFd);

impl Beats {
    /// Makes one. `sealed`: nobody can take its memory away.
    pub fn make(sealed: bool) -> Result<Self, String> {
        let error = || std::io::Error::last_os_error().to_string();
        let name = CString::new("beats").map_err(|error| error.to_string())?;
        // SAFETY: a fresh memfd, sized, sealed and mapped for ever; it is only reached as atomics.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if fd < 0 {
                return Err(error());
            }
            let file = OwnedFd::from_raw_fd(fd);
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            if libc::ftruncate(fd, BYTES as i64) != 0
                || (sealed && libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0)
            {
                return Err(error());
            }
            let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let at = libc::mmap(std::ptr::null_mut(), BYTES, rights, shared, fd, 0);
            if at == libc::MAP_FAILED {
                return Err(error());
            }
            let page = &*at.cast::<BeatPage>();
            page.header.major.store(MAJOR, Ordering::Relaxed);
            page.header.magic.store(MAGIC, Ordering::Release);
            Ok(Self(page, file))
        }
    }

    pub fn fd(&self) -> i32 {
        self.1.as_raw_fd()
    }

    /// An iteration that took so long has ended.
    pub fn beat(&self, slot: usize, (took_ns, batch, prompt): (u64, u64, u64)) {
        let words = &self.0.devices[slot];
        let now = monotonic_ns();
        let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        words.version.fetch_add(1, Ordering::AcqRel);
        words.count.fetch_add(1, Ordering::Relaxed);
        store(&words.begin_ns, now.saturating_sub(took_ns));
        store(&words.end_ns, now);
        store(&words.fingerprint, 7 + batch);
        store(&words.batch, BATCH_KNOWN | batch);
        store(&words.prompt, prompt);
        words.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// Offers so many units, each of which takes so long by its own account.
pub fn offer(page: &Page, most: u64, unit_ns: u64) {
    page.process.unit_ns.store(unit_ns, Ordering::Relaxed);
    page.process
        .unit
        .store(most << UNIT_MOST | 512, Ordering::Release);
}

/// Number and state of the lease.
pub fn lease(page: &Page, slot: usize) -> String {
    let word = page.gates[slot].lease.load(Ordering::Acquire);
    let state = ["none", "given", "withdrawn", "?"][(word & LEASE_STATE) as usize];
    format!("lease {} {state}", word >> LEASE_NUMBER)
}

/// Ends a lease under which so many units ran.
pub fn over(page: &Page, slot: usize, number: u64, units: u64) {
    let word = number << LEASED_NUMBER | LEASED_OVER | units;
    page.memory[slot].leased.store(word, Ordering::Release);
}
