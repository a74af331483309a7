//! The journal's file: [`tidegate_node::journal`] on tmpfs, so that it survives the agent.

use crate::host::rundir::{RunDir, RunDirError};
use crate::sys::SharedWords;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
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

/// Begins the name of one that could not be read.
pub const UNREADABLE: &str = "journal.unreadable-";

/// The journal of an agent's directory, as [`open`] has it.
///
/// # Errors
/// When it cannot be made.
pub fn of(run_dir: &RunDir) -> Result<(Journal, Option<PathBuf>), RunDirError> {
    open(run_dir.path()).map_err(|source| RunDirError::Prepare {
        path: run_dir.path().join(NAME),
        source,
    })
}

/// Opens the journal of `run_dir`, making it if there is none. One that is not of this version is set aside, and another
/// begun in its place; the second is where it lies then.
///
/// # Errors
/// When it cannot be made.
pub fn open(run_dir: &Path) -> io::Result<(Journal, Option<PathBuf>)> {
    let path = run_dir.join(NAME);
    let error = match map(&path, true) {
        Ok(journal) => return Ok((journal, None)),
        Err(error) => error,
    };
    if !matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory
    ) {
        return Err(error);
    }
    let aside = run_dir.join(format!(
        "{UNREADABLE}{}",
        crate::clock::unix_ns() / 1_000_000_000
    ));
    std::fs::rename(&path, &aside)?;
    Ok((map(&path, true)?.instead_of_lost(), Some(aside)))
}

/// Journals of `run_dir` that were set aside.
#[must_use]
pub fn unreadable(run_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let aside = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.starts_with(UNREADABLE))
    };
    let mut found: Vec<_> = entries.filter(aside).map(|entry| entry.path()).collect();
    found.sort();
    found
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
    let foreign = || io::Error::new(io::ErrorKind::InvalidData, "not a journal of this version");
    let bytes = (WORDS * 8) as u64;
    if file.metadata()?.len() < bytes {
        // One whose first words are zeroes was not begun: its writer ended before it had written all of them.
        let mut words = Vec::new();
        (&file).take(bytes).read_to_end(&mut words)?;
        if !create || words.iter().any(|&byte| byte != 0) {
            return Err(foreign());
        }
        (&file).rewind()?;
        // Written, not only sized: a tmpfs that fills up later must not take the agent down.
        (&file).write_all(&vec![0; WORDS * 8])?;
    }
    let words = SharedWords::map(file.as_fd(), WORDS)?;
    Journal::over(Mapped(words)).map_err(|_| foreign())
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
        let (journal, aside) = open(&dir).expect("writable");
        assert_eq!(aside, None);
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
    fn a_foreign_file_is_set_aside_and_not_taken_for_a_journal() {
        let dir = directory("journal-foreign");
        let path = dir.join(NAME);
        for content in [vec![7; WORDS * 8], b"short".to_vec()] {
            std::fs::write(&path, &content).expect("writable");
            assert!(find(&dir).is_err());
            let (journal, aside) = open(&dir).expect("writable");
            assert!(journal.is_instead_of_lost() && journal.marked().is_empty());
            let aside = aside.expect("it is set aside");
            assert_eq!(std::fs::read(&aside).expect("it is there"), content);
            assert_eq!(unreadable(&dir), [aside.as_path()]);
            std::fs::remove_file(aside).expect("it is there");
        }
        std::fs::remove_file(&path).expect("it is there");
        std::fs::create_dir(&path).expect("writable");
        assert!(open(&dir).expect("writable").1.is_some());
        // One that was just being made.
        std::fs::write(&path, vec![0; 1_000]).expect("writable");
        let (journal, aside) = open(&dir).expect("writable");
        assert!(!journal.is_instead_of_lost() && aside.is_none());
    }
}
