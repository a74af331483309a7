//! The journal's file: [`tidegate_node::journal`] on tmpfs, so that it survives the agent.

use crate::sys::SharedWords;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;
pub use tidegate_node::journal::{
    HANDING_OVER_NS, Journal, JournalMemory, Marked, Place, Places, RECORDS, WORDS,
};

/// Its name in the run directory.
pub const NAME: &str = "journal";

#[derive(Debug)]
struct Mapped(SharedWords);

impl JournalMemory for Mapped {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Opens the journal of `run_dir`, making it if there is none.
///
/// # Errors
/// When it cannot be made, or is not a journal of this version.
pub fn open(run_dir: &Path) -> io::Result<Journal> {
    map(&run_dir.join(NAME), true)
}

/// Opens the journal of `run_dir` if there is one.
///
/// # Errors
/// When it cannot be mapped, or is not a journal of this version.
pub fn find(run_dir: &Path) -> io::Result<Option<Journal>> {
    match map(&run_dir.join(NAME), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn map(path: &Path, create: bool) -> io::Result<Journal> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let bytes = (WORDS * 8) as u64;
    if create && file.metadata()?.len() < bytes {
        // Written, not only sized: a tmpfs that fills up later must not take the agent down.
        use std::io::Write;
        (&file).write_all(&vec![0; WORDS * 8])?;
    }
    let words = SharedWords::map(file.as_fd(), WORDS)?;
    Journal::over(Mapped(words))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a journal"))
}

/// Whether a process that was changing its memory's mappings may still be in the middle of it.
#[must_use]
pub fn is_moving(marked: &Marked) -> bool {
    marked.mover.is_some_and(is_running)
}

/// Whether a process has not ended. One that has ended has no program, even before its parent has heard of it.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    !std::fs::read_link(format!("/proc/{pid}/exe"))
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Method;

    fn directory(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("writable");
        dir
    }

    #[test]
    fn what_was_marked_is_found_by_whoever_comes_next() {
        let dir = directory("journal-next");
        assert!(find(&dir).expect("readable").is_none());
        let journal = open(&dir).expect("writable");
        let mut places = Places::without(&[]);
        let (a, b) = (places.take().expect("room"), places.take().expect("room"));
        for place in [a, b] {
            journal.describe(place, 0xc1d0_0001, 0x5c00_0010, 3);
            journal.mark(place, Method::Disable);
        }
        journal.begin_move(a, std::process::id());
        journal.begin_move(b, u32::MAX);
        drop(journal);
        let journal = find(&dir).expect("readable").expect("there");
        let marked = journal.marked();
        let moving: Vec<_> = marked.iter().map(is_moving).collect();
        assert_eq!(moving, [true, false], "{marked:?}");
    }

    #[test]
    fn a_foreign_file_is_not_taken_for_a_journal() {
        let dir = directory("journal-foreign");
        std::fs::write(dir.join(NAME), vec![7; WORDS * 8]).expect("writable");
        assert!(open(&dir).is_err());
        std::fs::write(dir.join(NAME), b"short").expect("writable");
        assert!(find(&dir).is_err());
    }
}
