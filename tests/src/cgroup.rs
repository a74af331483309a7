//! Cgroups in which a test's processes run, as a container's would.

use std::path::{Path, PathBuf};

/// A cgroup that ends with the test.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes `path` in the first hierarchy that lets this user; None: none does.
    #[must_use]
    pub fn make(path: &str) -> Option<Self> {
        let roots = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/freezer",
            "/sys/fs/cgroup/pids",
        ];
        roots.into_iter().map(Path::new).find_map(|root| {
            // Without this file it is no hierarchy, only a directory with some.
            let place = root
                .join("cgroup.procs")
                .is_file()
                .then(|| root.join(path))?;
            std::fs::create_dir_all(&place).ok()?;
            let made = Self(place);
            made.0.join("cgroup.procs").is_file().then_some(made)
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its parents too, as far as nobody else has anything there.
        let own = self.0.ancestors().take(4);
        for place in own {
            let _ = std::fs::remove_dir(place);
        }
    }
}
