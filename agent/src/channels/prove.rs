//! Proof that RM clients belong to the process that reports them.
//!
//! Client handles are guessable numbers: without a proof any container could name the online engine's
//! channels as its own and have the agent freeze them. The proof is the process' control file, on which
//! RM accepts a call for a client only if the client was created there. The calls may block behind the
//! driver's locks, and what was sent may be any file, so each tenant's claims are looked at one after the other by
//! threads that may be lost ([`crate::host::yard`]).
//!
//! A proof ages: its process may free the client without a word, and the number goes to another. So
//! each proof is made again, by a second thread that new claims cannot keep busy.

use crate::causes::with_causes;
use crate::channels::channel;
use crate::channels::obstacle::Mps;
use crate::host::foreign::{Foreign, hurry};
use crate::host::yard::Yard;
use crate::inbox::{Mailbox, NodeInput};
use crate::rm::{self, ControlFile, RmError};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tidegate_abi::beats::BeatPage;
use tidegate_node::beats::{BeatMemory, BeatRef};
use tidegate_node::file::{File, SentFile};
use tidegate_node::kinds::Process;
use tidegate_node::message::{Again, Aged, Claim, Owner, Proof};
use tidegate_node::ports;

/// Where claims are put, and proofs that are to be made again.
#[derive(Clone, Debug)]
pub struct Prover {
    claim_tx: crossbeam_channel::Sender<Claim>,
    again_tx: crossbeam_channel::Sender<Again>,
}

impl ports::Prover for Prover {
    fn claim(&self, claim: Claim) {
        let _ = self.claim_tx.send(claim);
    }

    fn again(&self, again: Again) -> bool {
        self.again_tx.try_send(again).is_ok()
    }
}

/// Starts both threads; they end when the prover is dropped.
///
/// # Errors
/// When no thread can be made.
pub fn start(mailbox: &Mailbox, yard: Yard, mps: Mps) -> std::io::Result<Prover> {
    let claim_tx = start_claims(mailbox.clone(), yard, mps)?;
    let again_tx = start_again(mailbox.clone())?;
    Ok(Prover { claim_tx, again_tx })
}

/// The thread only hands claims on, so that the control thread waits for no lock.
fn start_claims(
    mailbox: Mailbox,
    yard: Yard,
    mps: Mps,
) -> std::io::Result<crossbeam_channel::Sender<Claim>> {
    let (claim_tx, claim_rx) = crossbeam_channel::unbounded();
    std::thread::Builder::new()
        .name("tg-prover".to_owned())
        .spawn(move || {
            for claim in claim_rx {
                let (mailbox, session) = (mailbox.clone(), session_of(&claim));
                let mps = mps.clone();
                yard.put_for(session, move || {
                    let (proof, used) = measured(|| look(claim, &mps));
                    let vain = matches!(&proof, Proof::Client { file: None, .. });
                    mailbox.put(NodeInput::Proof(proof));
                    if vain {
                        std::thread::sleep(pause(used));
                    }
                });
            }
        })?;
    Ok(claim_tx)
}

/// A false claim costs the looks at all of its process' files. Its tenant's next claim waits so many times as long, so
/// that however many files there are, one tenant's false claims take this part of a processor at most.
const PART: u32 = 32;
/// But not for longer than this: status does not take the thread for one that a file keeps waiting.
const LONGEST: Duration = Duration::from_millis(900);

/// How long a tenant's claims wait after a false one that took so much of a processor.
fn pause(used: Duration) -> Duration {
    (used * (PART - 1)).min(LONGEST)
}

/// What came of it, and the processor time that it took this thread.
fn measured<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = crate::sys::thread_use();
    let done = work();
    let used = crate::sys::thread_use().since(before);
    (done, Duration::from_nanos(used))
}

/// Proofs that may wait. The control thread tries again later when there are more.
const AGAIN: usize = 4_096;

fn start_again(mailbox: Mailbox) -> std::io::Result<crossbeam_channel::Sender<Again>> {
    let (again_tx, again_rx) = crossbeam_channel::bounded::<Again>(AGAIN);
    std::thread::Builder::new()
        .name("tg-reprover".to_owned())
        .spawn(move || {
            for again in again_rx {
                let file = again.file.get::<ControlFile>();
                let owner = file.map(|file| file.owner(again.client));
                if let Some(Err(error)) = &owner {
                    report(again.client, error);
                }
                mailbox.put(NodeInput::Aged(Aged {
                    session: again.session,
                    client: again.client,
                    seq: again.seq,
                    owner: owner.and_then(Result::ok).map(seen_as),
                }));
            }
        })?;
    Ok(again_tx)
}

/// Whose a client is, as the shell says it.
const fn seen_as(owner: rm::Owner) -> Owner {
    match owner {
        rm::Owner::Own => Owner::Own,
        rm::Owner::Foreign => Owner::Foreign,
        rm::Owner::Nobody => Owner::Nobody,
    }
}

const fn session_of(claim: &Claim) -> u64 {
    match claim {
        Claim::File { session, .. }
        | Claim::Taken { session, .. }
        | Claim::Client { session, .. }
        | Claim::Beats { session, .. }
        | Claim::Uvm { session, .. } => *session,
    }
}

fn look(claim: Claim, mps: &Mps) -> Proof {
    match claim {
        Claim::File { session, file } => Proof::File {
            session,
            file: sent_file(file).map(channel::file),
        },
        Claim::Taken {
            session,
            process,
            fd,
        } => Proof::File {
            session,
            file: control_file(process, fd).map(channel::file),
        },
        Claim::Client {
            session,
            process,
            client,
            ..
        } if mps.serves(process.pid) => Proof::Mps { session, client },
        Claim::Client {
            session,
            file,
            process,
            client,
        } => {
            let owns = file.get::<ControlFile>().map(|file| file.owns(client));
            let file = match owns.unwrap_or(Ok(false)) {
                Ok(true) => Some(file),
                Ok(false) => other_file(process, client),
                Err(error) => {
                    report(client, &error);
                    None
                }
            };
            Proof::Client {
                session,
                client,
                file,
            }
        }
        Claim::Beats {
            session,
            process,
            fd,
        } => Proof::Beats {
            session,
            page: beat_page(process, fd),
        },
        Claim::Uvm {
            session,
            process,
            fd,
        } => Proof::Uvm {
            session,
            file: uvm_file(process, fd).map(File::new),
        },
    }
}

/// What came with a greeting, if it is the driver's control file.
pub(crate) fn sent_file(file: SentFile) -> Option<ControlFile> {
    file.take::<Foreign>()?.give(adopt)
}

/// Names a process for good, if it still is the one that attached: its number may have gone to another.
fn open(process: Process) -> Option<OwnedFd> {
    let pidfd = crate::sys::pidfd_open(process.pid).ok()?;
    let there = crate::identity::process(process.pid)?;
    let same = there == process && !crate::sys::pidfd_ended(pidfd.as_fd());
    same.then_some(pidfd)
}

/// A copy of descriptor `fd` of a process, if it is the driver's control file.
pub(crate) fn control_file(process: Process, fd: i32) -> Option<ControlFile> {
    let pidfd = open(process)?;
    adopt(crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?)
}

/// Whatever it is, it is closed here if it is not the driver's.
fn adopt(file: OwnedFd) -> Option<ControlFile> {
    hurry(&file);
    ControlFile::adopt(file).ok()
}

/// The page behind descriptor `fd` of a process, if it is memory that nobody can take away.
fn beat_page(process: Process, fd: i32) -> Option<BeatRef> {
    let pidfd = open(process)?;
    let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
    hurry(&file);
    match crate::sys::SharedBeats::map(file.as_fd()) {
        Ok(page) => Some(BeatRef::new(Mapped(page))),
        Err(error) => {
            tracing::debug!(pid = process.pid, %error, "no page for iterations");
            None
        }
    }
}

#[derive(Debug)]
struct Mapped(crate::sys::SharedBeats);

impl BeatMemory for Mapped {
    fn page(&self) -> &BeatPage {
        &self.0
    }
}

/// A copy of descriptor `fd` of a process, if it is the driver's UVM file.
fn uvm_file(process: Process, fd: i32) -> Option<OwnedFd> {
    let node = std::fs::metadata("/dev/nvidia-uvm").ok()?.rdev();
    let pidfd = open(process)?;
    let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
    hurry(&file);
    let (major, minor) = crate::sys::character_device(file.as_fd())?;
    (libc::makedev(major, minor) == node).then_some(file)
}

/// Descriptors of a process among which another control file is looked for.
const LOOKED_AT: usize = 4_096;
/// Control files among them that are asked whether the client is theirs: each is a call of the driver.
const ASKED: usize = 16;

/// Another control file of the process that owns `client`: a process may open the device twice.
fn other_file(process: Process, client: u32) -> Option<File> {
    let pidfd = open(process)?;
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).ok()?;
    let control = files.flatten().take(LOOKED_AT).filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let named = target.as_os_str() == "/dev/nvidiactl";
        named.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    control.take(ASKED).find_map(|fd| {
        let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
        let file = adopt(file)?;
        matches!(file.owns(client), Ok(true)).then(|| channel::file(file))
    })
}

fn report(client: u32, error: &RmError) {
    tracing::warn!(
        client = format_args!("{client:#x}"),
        error = with_causes(error),
        "the ownership check failed"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-SECURITY-17: false claims cost their tenant what they cost the agent.
    #[test]
    fn false_claims_take_a_part_of_a_processor_and_an_honest_mistake_next_to_nothing() {
        for used in [0, 20, 900, 8_000, 29_000].map(Duration::from_micros) {
            assert_eq!(used * PART, used + pause(used), "{used:?}");
        }
        assert_eq!(pause(Duration::from_secs(5)), LONGEST);
        let (sum, used) = measured(|| {
            (0..20_000_000_u64).fold(0, |a, b| std::hint::black_box(a ^ b.rotate_left(7)))
        });
        assert!(used > Duration::ZERO, "{sum}");
    }

    #[test]
    fn a_number_that_went_to_another_process_names_none() {
        let pid = std::process::id().cast_signed();
        let own = crate::identity::process(pid).expect("it runs");
        assert!(open(own).is_some());
        let before = Process {
            started: own.started - 1,
            ..own
        };
        assert!(open(before).is_none());
    }
}
