//! Proof that RM clients belong to the process that reports them.
//!
//! Client handles are guessable numbers: without a proof any container could name the online engine's
//! channels as its own and have the agent freeze them. The proof is the process' control file, on which
//! RM accepts a call for a client only if the client was created there. The calls may block behind the
//! driver's locks, so they are made by a thread of their own.
//!
//! A proof ages: its process may free the client without a word, and the number goes to another. So
//! each proof is made again, by a second thread that new claims cannot keep busy: see
//! [`crate::control`], `proofs`.

use crate::inbox::{Input, Mailbox};
use crate::rm::{ControlFile, Owner, RmError};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// What the prover is asked.
#[derive(Debug)]
pub enum Claim {
    /// Look at the file a session sent, before anything else is asked of it.
    File {
        /// The session.
        session: u64,
        /// What it sent.
        file: OwnedFd,
    },
    /// Take a copy of a process' control file, and look at it as at one that was sent.
    Taken {
        /// The session.
        session: u64,
        /// Its process.
        pid: i32,
        /// The process' own descriptor.
        fd: i32,
    },
    /// Does `client` belong to the process behind this file?
    Client {
        /// The session.
        session: u64,
        /// Its control file.
        file: Arc<ControlFile>,
        /// Its process, whose other control files are tried when this one does not own the client.
        pid: i32,
        /// The client it reports.
        client: u32,
    },
    /// Take a copy of a process' UVM file.
    Uvm {
        /// The session.
        session: u64,
        /// Its process.
        pid: i32,
        /// The process' own descriptor.
        fd: i32,
    },
}

/// What the prover found.
#[derive(Debug)]
pub enum Proof {
    /// The file is the driver's control device (None: it is not).
    File {
        /// The session.
        session: u64,
        /// To be used for this session only.
        file: Option<Arc<ControlFile>>,
    },
    /// Whether the client is the session's own.
    Client {
        /// The session.
        session: u64,
        /// The client.
        client: u32,
        /// The file it was created on; None: not proven.
        file: Option<Arc<ControlFile>>,
    },
    /// A copy of its UVM file (None: it is not, or cannot be had).
    Uvm {
        /// The session.
        session: u64,
        /// Only ever held.
        file: Option<OwnedFd>,
    },
}

/// Where claims are put.
pub type Prover = crossbeam_channel::Sender<Claim>;

/// Starts the thread; it ends when the sender is dropped.
///
/// # Errors
/// When no thread can be made.
pub fn start(mailbox: Mailbox) -> std::io::Result<Prover> {
    let (claim_tx, claim_rx) = crossbeam_channel::unbounded();
    std::thread::Builder::new()
        .name("tg-prover".to_owned())
        .spawn(move || {
            for claim in claim_rx {
                mailbox.put(Input::Proof(look(claim)));
            }
        })?;
    Ok(claim_tx)
}

/// A proof to be made again.
#[derive(Debug)]
pub struct Again {
    /// The session.
    pub session: u64,
    /// The client it proved.
    pub client: u32,
    /// Names the question in the answer.
    pub seq: u64,
    /// The file it was proven on.
    pub file: Arc<ControlFile>,
}

/// What became of a proof.
#[derive(Clone, Copy, Debug)]
pub struct Aged {
    /// [`Again::session`]
    pub session: u64,
    /// [`Again::client`]
    pub client: u32,
    /// [`Again::seq`]
    pub seq: u64,
    /// Whose it is by now; None: the driver does not say.
    pub owner: Option<Owner>,
}

/// Where proofs that are to be made again are put.
pub type Reprover = crossbeam_channel::Sender<Again>;

/// Proofs that may wait. The control thread tries again later when there are more.
const AGAIN: usize = 4_096;

/// Starts the thread that makes proofs again; it ends when the sender is dropped.
///
/// # Errors
/// When no thread can be made.
pub fn start_again(mailbox: Mailbox) -> std::io::Result<Reprover> {
    let (again_tx, again_rx) = crossbeam_channel::bounded::<Again>(AGAIN);
    std::thread::Builder::new()
        .name("tg-reprover".to_owned())
        .spawn(move || {
            for again in again_rx {
                let owner = again.file.owner(again.client);
                if let Err(error) = &owner {
                    report(again.client, error);
                }
                mailbox.put(Input::Aged(Aged {
                    session: again.session,
                    client: again.client,
                    seq: again.seq,
                    owner: owner.ok(),
                }));
            }
        })?;
    Ok(again_tx)
}

fn look(claim: Claim) -> Proof {
    match claim {
        Claim::File { session, file } => Proof::File {
            session,
            file: ControlFile::adopt(file).ok().map(Arc::new),
        },
        Claim::Taken { session, pid, fd } => Proof::File {
            session,
            file: control_file(pid, fd).map(Arc::new),
        },
        Claim::Client {
            session,
            file,
            pid,
            client,
        } => {
            let file = match file.owns(client) {
                Ok(true) => Some(file),
                Ok(false) => other_file(pid, client),
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
        Claim::Uvm { session, pid, fd } => Proof::Uvm {
            session,
            file: uvm_file(pid, fd),
        },
    }
}

/// A copy of descriptor `fd` of a process, if it is the driver's control file.
pub(crate) fn control_file(pid: i32, fd: i32) -> Option<ControlFile> {
    let pidfd = crate::sys::pidfd_open(pid).ok()?;
    let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
    ControlFile::adopt(file).ok()
}

/// A copy of descriptor `fd` of a process, if it is the driver's UVM file.
fn uvm_file(pid: i32, fd: i32) -> Option<OwnedFd> {
    let node = std::fs::metadata("/dev/nvidia-uvm").ok()?.rdev();
    let pidfd = crate::sys::pidfd_open(pid).ok()?;
    let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
    let (major, minor) = crate::sys::character_device(file.as_fd())?;
    (libc::makedev(major, minor) == node).then_some(file)
}

/// Another control file of the process that owns `client`: a process may open the device twice.
fn other_file(pid: i32, client: u32) -> Option<Arc<ControlFile>> {
    let pidfd = crate::sys::pidfd_open(pid).ok()?;
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    files.flatten().find_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        if target.as_os_str() != "/dev/nvidiactl" {
            return None;
        }
        let fd = entry.file_name().to_str()?.parse().ok()?;
        let file = crate::sys::pidfd_getfd(pidfd.as_fd(), fd).ok()?;
        let file = ControlFile::adopt(file).ok()?;
        matches!(file.owns(client), Ok(true)).then(|| Arc::new(file))
    })
}

fn report(client: u32, error: &RmError) {
    tracing::warn!(
        client = format_args!("{client:#x}"),
        %error,
        "the driver does not say whose client this is"
    );
}
