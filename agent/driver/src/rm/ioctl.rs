//! One ioctl: what is passed, what comes back, and what can go wrong.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use tidegate_abi::rm::{self, Status};

/// What can go wrong between the agent and the driver.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// A device file does not open.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The ioctl itself failed: wrong size, wrong file.
    #[error("the ioctl for {what} failed")]
    Ioctl {
        /// The call.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// RM answered with a status.
    #[error("the driver refuses {what}: {} ({:#x})", status.name(), status.0)]
    Refused {
        /// The call.
        what: &'static str,
        /// RM's answer.
        status: Status,
    },
    /// A descriptor that was said to be the driver's control file is not.
    #[error("not the driver's control file")]
    NotControlFile,
    /// The driver says something this file cannot read.
    #[error("the driver gave an unexpected reply: {what}")]
    Nonsense {
        /// The answer.
        what: &'static str,
    },
}

impl RmError {
    /// RM's status, if it was RM that refused.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

pub(super) type Result<T> = std::result::Result<T, RmError>;

/// A parameter struct of the driver: plain integers, so that any bytes the kernel writes are valid.
///
/// # Safety
/// `Self` is `repr(C)` and consists of integers and arrays of them only.
pub(super) unsafe trait Parameters {}

macro_rules! parameters {
    ($($ty:ty),* $(,)?) => { $(
        // SAFETY: `repr(C)` struct of integers, of `tidegate_abi::rm` or made of one.
        unsafe impl Parameters for $ty {}
    )* };
}

parameters!(
    rm::Nvos00,
    rm::Nvos54,
    rm::Nvos64,
    rm::RmApiVersion,
    rm::CardInfo,
    [rm::CardInfo; rm::MAX_GPUS],
    rm::RegisterFd,
    rm::Nv0080Alloc,
    rm::Nv2080Alloc,
    rm::BuildVersion,
    rm::AttachedIds,
    rm::AttachIds,
    rm::IdInfoV2,
    rm::GidInfo,
    rm::DisableChannels,
    rm::ChannelGroupAlloc,
    rm::ChannelAlloc,
    rm::ChannelAlloc610,
    rm::Preempt,
    rm::RestartRunlist,
    rm::MemoryAlloc,
    rm::Timeslice,
    [u8; 3],
    rm::GpuInfoV2,
    rm::NameString,
    rm::FbInfoV2,
    rm::ConfidentialCapabilities,
    rm::Virtualization,
    u32,
    (),
);

pub(super) fn ioctl<T: Parameters>(
    file: BorrowedFd<'_>,
    escape: u32,
    what: &'static str,
    parameters: &mut T,
) -> Result<()> {
    let request = rm::request(escape, size_of::<T>());
    // SAFETY: the request number carries the size of `T`, which is all the kernel reads and writes
    // at the address; pointers inside the struct are set by the callers below to live buffers.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(parameters)) };
    if result == 0 {
        Ok(())
    } else {
        Err(RmError::Ioctl {
            what,
            source: io::Error::last_os_error(),
        })
    }
}

pub(super) fn open(path: &str) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| RmError::Open {
            path: path.to_owned(),
            source,
        })
}

/// RM's status as a result.
pub(super) fn refused(what: &'static str, status: u32) -> Result<()> {
    let status = Status(status);
    if status.is_ok() {
        Ok(())
    } else {
        Err(RmError::Refused { what, status })
    }
}
