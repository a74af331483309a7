//! The agent's directory: read, never written, and nobody's lock is touched.

use crate::doctor::facts::{self, Entry, Found, RunDir};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tidegate_agent::channels::journal;
use tidegate_agent::clock::now_ns;
use tidegate_agent::host::rundir;
use tidegate_proto::{CONTROL_SOCKET, HOOK_SOCKET, STATUS_SOCKET};

pub(super) fn run_dir(path: &Path) -> RunDir {
    let holder = rundir::holder(path);
    let holder_lives = holder
        .as_ref()
        .is_some_and(|holder| super::processes::is_agent(holder.pid));
    RunDir {
        path: path.to_owned(),
        entry: entry(path),
        in_memory: in_memory(path),
        holder,
        holder_lives,
        sockets: [HOOK_SOCKET, CONTROL_SOCKET, STATUS_SOCKET]
            .map(|name| (name, entry(&path.join(name))))
            .to_vec(),
        group: nix::unistd::Group::from_name(rundir::GROUP)
            .ok()
            .flatten()
            .map(|group| group.gid.as_raw()),
        journal: marked(path),
        unreadable: journal::unreadable(path),
    }
}

fn entry(path: &Path) -> Found<Entry> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Entry {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

fn in_memory(path: &Path) -> bool {
    /// Magic number of ramfs, which `nix` does not name.
    const RAMFS: i64 = 0x8584_58f6;
    nix::sys::statfs::statfs(path).is_ok_and(|stat| {
        let kind = stat.filesystem_type();
        kind == nix::sys::statfs::TMPFS_MAGIC || kind.0 == RAMFS
    })
}

fn marked(path: &Path) -> Found<Option<facts::Journal>> {
    let journal = journal::find(path)
        .map_err(|error| format!("{}: {error}", path.join(journal::NAME).display()))?;
    Ok(journal.map(|journal| facts::Journal {
        generation: journal.generation(),
        marked: journal.marked().len(),
        handing_over: journal.is_handing_over(now_ns()),
    }))
}
