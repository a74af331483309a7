//! The memory that the processes of a job share: where it is, and who is in it.
//!
//! A file in `/dev/shm` named after user and job. Its processes hold a lock on it as long as they
//! live, whatever becomes of them; who finds it held by nobody begins it anew, so that an engine that
//! starts again after a crash never reads the old one's losses. The file stays open in a thread that
//! has a descriptor table of its own, because an application may close every descriptor it has.

use crate::{log, sys, threads};
use core::ffi::CStr;
use std::ffi::CString;
use std::sync::mpsc;
use tidegate_core::joblog::Shared;

/// Why the job's memory is not to be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoJob {
    /// A system call failed.
    #[error("{step} /dev/shm/{name}: {error}", error = std::io::Error::from_raw_os_error(*errno))]
    System {
        /// What was being done.
        step: &'static str,
        /// The file.
        name: String,
        /// Its error.
        errno: i32,
    },
    /// Another number of ranks than the job's first process said.
    #[error("rank of a job of {here}, which has {there} ranks")]
    World {
        /// Of this process.
        here: u32,
        /// Of the job.
        there: u32,
    },
    /// The thread that keeps it open could not be started.
    #[error("no thread to keep the job's memory open")]
    Thread,
}

/// The file's name for a job.
fn name_of(job: &str) -> String {
    // SAFETY: no arguments, cannot fail.
    let uid = unsafe { libc::geteuid() };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !job.is_empty() && job.len() <= 64 && job.chars().all(plain) {
        return format!("tidegate-{uid}-{job}");
    }
    // FNV-1a: a name for any text, that no shorter one has.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("tidegate-{uid}-{hash:016x}.")
}

/// Locks or unlocks one byte of an open file, for as long as it is open.
fn lock(fd: i32, byte: i64, kind: i32, wait: bool) -> bool {
    // SAFETY: an all-zero flock is valid; the fields used are set below.
    let mut wanted: libc::flock = unsafe { core::mem::zeroed() };
    wanted.l_type = kind as libc::c_short;
    wanted.l_whence = libc::SEEK_SET as libc::c_short;
    wanted.l_start = byte;
    wanted.l_len = 1;
    let how = if wait {
        libc::F_OFD_SETLKW
    } else {
        libc::F_OFD_SETLK
    };
    // SAFETY: the struct is live for the call.
    unsafe { libc::fcntl(fd, how, &raw mut wanted) == 0 }
}

const TURN: i64 = 0;
const MEMBER: i64 = 1;

fn enter(path: &CStr, name: &str, world: u32) -> Result<&'static Shared, NoJob> {
    let failed = |step| NoJob::System {
        step,
        name: name.to_owned(),
        errno: sys::errno(),
    };
    let mode = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a C string; the descriptor stays open in this thread's table for ever.
    let fd = unsafe { libc::open(path.as_ptr(), mode, 0o600) };
    if fd < 0 {
        return Err(failed("open"));
    }
    if !lock(fd, TURN, libc::F_WRLCK, true) {
        return Err(failed("lock"));
    }
    let alone = lock(fd, MEMBER, libc::F_WRLCK, false);
    if alone {
        let bytes = size_of::<Shared>() as libc::off_t;
        // SAFETY: plain calls on a descriptor of ours. Nobody else has the file mapped.
        let sized = unsafe { libc::ftruncate(fd, 0) == 0 && libc::ftruncate(fd, bytes) == 0 };
        if !sized {
            return Err(failed("size"));
        }
    }
    // SAFETY: a fresh shared mapping of a file of that size, which no member of the job shortens
    // while another lives.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(failed("map"));
    }
    // SAFETY: page-aligned, of that size, never unmapped; every field is an atomic or padding, and
    // all-zero is a valid start.
    let shared = unsafe { &*at.cast::<Shared>() };
    let there = shared.ranks().filter(|_| !alone).unwrap_or_else(|| {
        shared.begin(world);
        world
    });
    if !lock(fd, MEMBER, libc::F_RDLCK, true) || !lock(fd, TURN, libc::F_UNLCK, false) {
        return Err(failed("lock"));
    }
    if there != world {
        return Err(NoJob::World { here: world, there });
    }
    Ok(shared)
}

/// The memory of `job`, which has `world` ranks. Blocks until it is there.
pub fn open(job: &str, world: u32) -> Result<&'static Shared, NoJob> {
    let name = name_of(job);
    let path = CString::new(format!("/dev/shm/{name}")).map_err(|_| NoJob::Thread)?;
    let (opened_tx, opened_rx) = mpsc::channel();
    let started = threads::spawn_keeper(move || {
        if !threads::own_descriptor_table() {
            log::debug(|| {
                "the job's memory is kept open among the application's descriptors".to_owned()
            });
        }
        let opened = enter(&path, &name, world);
        let failed = opened.is_err();
        let _ = opened_tx.send(opened);
        loop {
            if failed {
                return;
            }
            // SAFETY: sleeps until a signal, all of which are blocked.
            unsafe { libc::pause() };
        }
    });
    if !started {
        return Err(NoJob::Thread);
    }
    opened_rx.recv().map_err(|_| NoJob::Thread)?
}
