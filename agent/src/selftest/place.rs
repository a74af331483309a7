//! What a trial needs, where it is found, and why there can be none.

use std::path::{Path, PathBuf};

/// The library's file name.
pub const LIBRARY: &str = "libtidegate.so";
/// Where the library is looked for, beside the program itself.
const LIBRARY_DIRS: [&str; 3] = ["/usr/local/lib", "/usr/lib/tidegate", "/usr/lib"];

/// How long the child may take until its kernels run: contexts on eight GPUs without persistence mode.
pub(super) const READY_NS: u64 = 30_000_000_000;

/// What a trial needs to know.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program that does the work (`tidegate-agent`).
    pub program: PathBuf,
    /// The library that is preloaded.
    pub library: PathBuf,
    /// A directory with `libcuda.so.1`, where it is not in the system's.
    pub driver_dir: Option<PathBuf>,
    /// Where a socket can be made.
    pub run_dir: PathBuf,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum NotPossible {
    /// The way to the child.
    #[error("cannot {0}")]
    Prepare(&'static str, #[source] std::io::Error),
    /// What the child says.
    #[error("{0}")]
    Child(String),
    /// It says nothing.
    #[error("its GPU work did not begin within {} s", READY_NS / 1_000_000_000)]
    Slow,
    /// Its library did not attach.
    #[error("its preloaded library did not attach")]
    NotAttached,
    /// The agent's side.
    #[error("the driver gives the agent no subdevice")]
    Subdevice(#[source] crate::rm::RmError),
}

/// The library: beside this program, or where packages put it.
#[must_use]
pub fn find_library() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok();
    let own = exe.as_deref().and_then(Path::parent).map(Path::to_owned);
    let mut dirs = own.into_iter().chain(LIBRARY_DIRS.map(PathBuf::from));
    dirs.find_map(|dir| Some(dir.join(LIBRARY)).filter(|path| path.exists()))
}
