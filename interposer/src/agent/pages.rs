//! Where the pages of agents are mapped.
//!
//! Each session brings a page. If each had a mapping of its own, a program with many short sessions would collect
//! mappings until the kernel refuses more. So the page of a new session takes the place of one that is no longer in
//! use, and there are never more places than pages in use.
//!
//! In use are the page that launches read, the page whose agent is watched, and pages that a thread holds
//! ([`crate::process::Process::hold_page`]). A launch holds none, because that would cost it two stores. So it may use
//! a place after another page came there. That does no harm: the launch counts itself, marks its device busy and obeys
//! the gate, all of which is as true for the new page, and a thread that waits on a word looks again after 50 ms. The
//! kernel replaces a mapping at once, so a thread always finds a page there.

use crate::sys;
use core::sync::atomic::Ordering::Acquire;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_abi::page::{BYTES, MAGIC, MAJOR, Page};

/// The places.
#[derive(Debug, Default)]
pub struct Pages(Vec<&'static Page>);

impl Pages {
    /// A place that is not in use.
    pub fn free(&mut self, in_use: &[*const Page]) -> io::Result<&'static Page> {
        let mut places = self.0.iter().copied();
        let free = places.find(|place| !in_use.contains(&core::ptr::from_ref(*place)));
        if let Some(free) = free {
            return Ok(free);
        }
        let at = sys::map_private(BYTES).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: page-aligned, of this size, and something of this size stays mapped there; every field is an atomic,
        // and all-zero is a page.
        let fresh = unsafe { &*at.cast::<Page>() };
        self.0.push(fresh);
        Ok(fresh)
    }
}

/// Maps a page in the place of another; `false`: it is of another major version.
pub fn map(file: OwnedFd, place: &'static Page) -> io::Result<bool> {
    let invalid = |text| io::Error::new(io::ErrorKind::InvalidData, text);
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: `fcntl` and `fstat` on a descriptor of ours.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    // SAFETY: zeroed is a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is live.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } == 0;
    if seals < 0 || seals & needed != needed || !known || stat.st_size != BYTES as i64 {
        return Err(invalid("a page that could change its size"));
    }
    let at = core::ptr::from_ref(place).cast_mut().cast();
    // SAFETY: a shared mapping of a sealed file of this size, in the place of one as large.
    let mapped = unsafe {
        libc::mmap(
            at,
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        // What was there may be gone, and a thread may still look at it.
        // SAFETY: every field is an atomic, and all-zero is a page.
        unsafe { sys::map_anew(at, BYTES) };
        return Err(error);
    }
    let (magic, major) = (&place.header.magic, &place.header.major);
    Ok(magic.load(Acquire) == MAGIC && major.load(Acquire) == MAJOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use std::os::fd::FromRawFd;

    /// As an agent makes one, of a major version.
    fn page(major: u32) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that lives for the call; the descriptor is nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"page".as_ptr(), flags)) };
        let mut bytes = vec![0_u8; BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&major.to_ne_bytes());
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the bytes are live for the call, and the descriptor is open.
        unsafe {
            libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), BYTES, 0);
            libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals);
        }
        file
    }

    fn mappings() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it can be read");
        maps.lines()
            .filter(|line| line.contains("memfd:page"))
            .count()
    }

    /// P-LIFECYCLE-13: sessions that end soon leave nothing behind.
    #[test]
    fn a_hundred_thousand_sessions_need_no_more_places_than_pages_in_use() {
        let mut pages = Pages::default();
        // The one that launches look at, which is watched, and the one that a slow thread has in its hand.
        let (mut shown, mut held) = (None::<&Page>, None::<&Page>);
        for session in 0..100_000_u64 {
            let in_use =
                [shown, held].map(|page| page.map_or(core::ptr::null(), core::ptr::from_ref));
            // Some bring a page that is of no use.
            let major = if session % 7 == 3 { MAJOR + 1 } else { MAJOR };
            let fresh = pages.free(&in_use).expect("there is room");
            let of_use = map(page(major), fresh).expect("it can be mapped");
            assert_eq!(of_use, major == MAJOR);
            for page in [shown, held].into_iter().flatten() {
                assert_ne!(page.header.session.load(Relaxed), 0, "its place was taken");
            }
            if !of_use {
                continue;
            }
            fresh.header.session.store(session + 1, Relaxed);
            shown = Some(fresh);
            if session % 5 == 0 {
                held = shown;
            }
        }
        assert_eq!(pages.0.len(), 3);
        assert_eq!(mappings(), 3);
    }
}
