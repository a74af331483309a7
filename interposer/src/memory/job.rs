//! The memory that the processes of a job share: where it is, and who uses it.
//!
//! It is a file in `/dev/shm` ([`super::place`] finds it). Its processes hold a lock on it as long as they live. A process
//! that finds it locked by nobody starts it anew, so an engine that starts again after a crash never reads the losses
//! of the old one. The file stays open in a thread with a descriptor table of its own, because an application may close
//! every descriptor that it has.
//!
//! One process of each rank reads what was lost: two engines in one job would learn of each other's losses by steps
//! that are not theirs, and too late. The reader holds a lock too, and nothing is taken while nobody holds it. An
//! engine that ends may take a while to be gone, and whoever restarts it does not always wait for that. So the next one
//! waits, for [`PATIENCE`].
//!
//! What a process missed ends with it: the others check for that ([`super::tables`]).

use super::place::{self, MEMBER, TURN};
use super::tables::{FIRST_BYTE, Tables};
use crate::state::memory::file::{fill, lock};
use crate::state::memory::keeper::{Ask, Readers};
use crate::{ending, log, sys, threads};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
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

/// Of rank 0; of the others the bytes behind it.
const READER: i64 = 2;

/// How long a rank's next reader waits for one that ends: as long as the plugins wait for an agent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries: the kernel lets nobody wait for a lock with an end.
const TRY: Duration = Duration::from_millis(20);

/// Whether another open file holds a lock on a reader's byte.
fn is_read(fd: i32) -> bool {
    // SAFETY: an all-zero flock is valid; the fields used are set below.
    let mut found: libc::flock = unsafe { core::mem::zeroed() };
    found.l_type = libc::F_WRLCK as libc::c_short;
    found.l_whence = libc::SEEK_SET as libc::c_short;
    found.l_start = READER;
    found.l_len = FIRST_BYTE - READER;
    // SAFETY: the struct is live for the call.
    let asked = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut found) == 0 };
    asked && found.l_type != libc::F_UNLCK as libc::c_short
}

/// Answers what is asked for as long as the process lives. Who is to read waits for a reader that ends.
fn keep(fd: i32, tables: &mut Tables, asked_rx: &mpsc::Receiver<Ask>) {
    let most = PATIENCE.as_millis() / TRY.as_millis();
    let mut waiting: Vec<(u32, u128, mpsc::Sender<bool>)> = Vec::new();
    let mut reads = false;
    loop {
        let asked = ending::sleeping(|| {
            if waiting.is_empty() {
                asked_rx.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                asked_rx.recv_timeout(TRY)
            }
        });
        let timed_out = matches!(asked, Err(RecvTimeoutError::Timeout));
        match asked {
            Ok(Ask::Read(rank, answer_tx)) => waiting.push((rank, most, answer_tx)),
            Ok(Ask::IsRead(answer_tx)) => {
                let _ = answer_tx.send(reads || is_read(fd));
            }
            Ok(Ask::Table(blocks, answer_tx)) => {
                let _ = answer_tx.send(tables.own(blocks));
            }
            Ok(Ask::Look) => tables.look(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain_mut(|(rank, left, answer_tx)| {
            let got = lock(fd, READER + i64::from(*rank), libc::F_WRLCK, false);
            reads |= got;
            if got || *left == 0 {
                let _ = answer_tx.send(got);
                return false;
            }
            *left -= u128::from(timed_out);
            true
        });
    }
}

fn enter(name: &str, world: u32) -> Result<(&'static Shared, i32), NoJob> {
    let failed = |step| NoJob::System {
        step,
        name: name.to_owned(),
        errno: sys::errno(),
    };
    // It stays open in this thread's table for ever.
    let fd = place::open(name, failed)?;
    let alone = lock(fd, MEMBER, libc::F_WRLCK, false);
    if alone {
        // SAFETY: a plain call on a descriptor of ours. Nobody else has the file mapped.
        let emptied = unsafe { libc::ftruncate(fd, 0) } == 0;
        if !emptied || !fill(fd, 0, size_of::<Shared>()) {
            let why = failed("reserve");
            // SAFETY: as above.
            unsafe { libc::ftruncate(fd, 0) };
            return Err(why);
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
    Ok((shared, fd))
}

/// The memory of `job`, which has `world` ranks, and whom to ask to read it. Blocks until it is there.
pub fn open(job: &str, world: u32) -> Result<(&'static Shared, Readers), NoJob> {
    let name = place::name_of(job);
    let (opened_tx, opened_rx) = mpsc::channel();
    let (asked_tx, asked_rx) = mpsc::channel();
    let started = threads::spawn_keeper(move || {
        let lasts = threads::own_descriptor_table();
        if !lasts {
            log::debug(|| {
                "the job's memory is kept open among the application's descriptors".to_owned()
            });
        }
        let (shared, fd) = match enter(&name, world) {
            Ok(entered) => entered,
            Err(error) => {
                let _ = opened_tx.send(Err(error));
                return;
            }
        };
        let _ = opened_tx.send(Ok(shared));
        keep(fd, &mut Tables::new(fd, shared, lasts), &asked_rx);
        loop {
            // SAFETY: sleeps until a signal, all of which are blocked.
            ending::sleeping(|| unsafe { libc::pause() });
        }
    });
    if !started {
        return Err(NoJob::Thread);
    }
    let log = opened_rx.recv().map_err(|_| NoJob::Thread)??;
    Ok((log, asked_tx))
}
