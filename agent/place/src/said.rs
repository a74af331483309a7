//! What was said last, so that commands which run every few seconds log a line per change.

use std::fs;
use std::path::{Path, PathBuf};

/// A file with the line that was said last.
#[derive(Clone, Debug)]
pub struct Said(PathBuf);

impl Said {
    /// By the name of who says it, in `dir`.
    #[must_use]
    pub fn new(dir: &Path, who: &str) -> Self {
        Self(dir.join("place").join(format!("{who}.said")))
    }

    /// What was said holds no more: it is said again when it does.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.0);
    }

    /// Says `line` on standard error unless it was said last. A disk that keeps nothing has it said each time.
    pub fn say(&self, line: &str) {
        let line = tidegate_agent::plain::line(line);
        if fs::read_to_string(&self.0).is_ok_and(|last| last == line) {
            return;
        }
        eprintln!("tidegate: {line}");
        if let Some(dir) = self.0.parent() {
            let _ = fs::create_dir_all(dir);
        }
        let _ = fs::write(&self.0, &line);
    }
}
