//! Finds the file in `/dev/shm` that the processes of a job share.
//!
//! Anybody may make files there, under any name. So a job uses only a file that no other user can change. The file is named
//! after user and job. If another user has taken that name, the library appends a part that nobody can guess. It never opens
//! a file of another user.
//!
//! Two processes of a job may each make a file at once. They agree on one as follows. Each process locks all files of the
//! job in the order of their names, and checks that there are no others by now. It takes the file that a process of the job
//! is in, or else the first, and removes the rest. So a process enters a file only when it has locked all of them, and
//! nobody is in another.
//!
//! There may be many names of jobs, and a process that dies removes nothing. So each process that attaches removes what
//! other jobs of its user left behind.

use crate::state::memory::file::{lock, stat};
use crate::sys;
use core::ffi::CStr;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// The byte that a process locks while it enters a file or removes one.
pub const TURN: i64 = 0;
/// The byte that all processes in a file lock together.
pub const MEMBER: i64 = 1;

/// Where the files are.
const DIRECTORY: &CStr = c"/dev/shm";
/// Between a job and the part of a name that nobody can guess. No plain name of a job has it.
const APART: char = '~';

fn own_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// What the names of a user's files begin with.
fn prefix(uid: u32) -> String {
    format!("tidegate-{uid}-")
}

/// The file's name for a job.
pub fn name_of(job: &str) -> String {
    let prefix = prefix(own_uid());
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !job.is_empty() && job.len() <= 64 && job.chars().all(plain) {
        return format!("{prefix}{job}");
    }
    // FNV-1a: a name for any text, that no shorter one has.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{prefix}{hash:016x}.")
}

/// Whether a file is that of the job with this name.
fn is_of(file: &str, name: &str) -> bool {
    let rest = file.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(APART))
}

/// Whether only its owner can change a file, who is this user.
fn is_own(stat: &libc::stat) -> bool {
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    regular && stat.st_uid == own_uid() && stat.st_mode & 0o022 == 0
}

/// An open file, closed with this value.
#[derive(Debug)]
struct Open(i32);

impl Open {
    /// None: it cannot be opened; `errno` says why.
    fn at(directory: &Self, name: &CStr, flags: i32) -> Option<Self> {
        // A FIFO of somebody's is not waited for.
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        // SAFETY: a C string.
        let fd = unsafe { libc::openat(directory.0, name.as_ptr(), flags, 0o600) };
        (fd >= 0).then(|| Self(fd))
    }

    fn directory() -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = unsafe { libc::open(DIRECTORY.as_ptr(), flags) };
        (fd >= 0).then(|| Self(fd))
    }

    /// Whether it is this user's alone, and has a name still.
    fn stands(&self) -> bool {
        stat(self.0).is_some_and(|stat| is_own(&stat) && stat.st_nlink != 0)
    }

    /// Whether no other process is in it. Nobody comes into it then for as long as it is open, or lets go of [`MEMBER`].
    fn is_left(&self) -> bool {
        lock(self.0, MEMBER, libc::F_WRLCK, false)
    }

    fn keep(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: a descriptor of this value's, not used any more.
        unsafe { libc::close(self.0) };
    }
}

/// The user's own files whose names `wanted` wants, in the order of their names.
fn own_files(directory: &Open, wanted: impl Fn(&str) -> bool) -> Vec<CString> {
    let Ok(entries) = std::fs::read_dir(OsStr::from_bytes(DIRECTORY.to_bytes())) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().filter(|name| wanted(name));
        let Some(name) = name.and_then(|name| CString::new(name).ok()) else {
            continue;
        };
        // SAFETY: an all-zero stat is a place for one.
        let mut stat = unsafe { core::mem::zeroed() };
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: a C string, and a stat that is live for the call.
        let known = unsafe { libc::fstatat(directory.0, name.as_ptr(), &raw mut stat, flags) };
        if known == 0 && is_own(&stat) {
            files.push(name);
        }
    }
    files.sort();
    files
}

fn remove(directory: &Open, name: &CStr) {
    // SAFETY: a C string. The name is that of a file of the caller's: whoever removes one has its turn.
    unsafe { libc::unlinkat(directory.0, name.as_ptr(), 0) };
}

/// Removes the files of this user's jobs that no process is in. A process that opened one meanwhile sees that it has no
/// name any more, and begins anew.
fn sweep(directory: &Open, but: &str) {
    let prefix = prefix(own_uid());
    let others = |name: &str| name.starts_with(&prefix) && !is_of(name, but);
    for name in own_files(directory, others) {
        if let Some(file) = Open::at(directory, &name, 0)
            && file.stands()
            && lock(file.0, TURN, libc::F_WRLCK, false)
            && file.is_left()
        {
            remove(directory, &name);
        }
    }
}

/// Makes a file of the job where it has none: under its name, or under one that nobody can have taken.
fn make(directory: &Open, name: &str) -> bool {
    let new = |name: String| {
        let name = CString::new(name).ok();
        let made = name.and_then(|name| Open::at(directory, &name, libc::O_CREAT | libc::O_EXCL));
        made.is_some()
    };
    if new(name.to_owned()) {
        return true;
    }
    if sys::errno() != libc::EEXIST {
        return false;
    }
    let mut random = [0_u8; 8];
    let (into, bytes) = (random.as_mut_ptr().cast(), random.len());
    // SAFETY: the bytes are live for the call.
    let got = unsafe { libc::getrandom(into, bytes, 0) };
    let all = usize::try_from(got).is_ok_and(|got| got == bytes);
    all && new(format!("{name}{APART}{:016x}", u64::from_ne_bytes(random)))
}

/// The file of the job, in this process' turn.
fn in_turn<E>(directory: &Open, name: &str, failed: impl Fn(&'static str) -> E) -> Result<Open, E> {
    let own = || own_files(directory, |file| is_of(file, name));
    loop {
        let names = own();
        if names.is_empty() {
            if !make(directory, name) {
                return Err(failed("open"));
            }
            continue;
        }
        let mut files = Vec::new();
        for name in &names {
            let Some(file) = Open::at(directory, name, 0) else {
                // It is gone already; or this process has no descriptor left.
                if sys::errno() == libc::ENOENT {
                    break;
                }
                return Err(failed("open"));
            };
            if !lock(file.0, TURN, libc::F_WRLCK, true) {
                return Err(failed("lock"));
            }
            files.push(file);
        }
        let all = files.len() == names.len() && files.iter().all(Open::stands);
        if !all || own() != names {
            continue;
        }
        let inside = files.iter().position(|file| !file.is_left());
        let mut chosen = None;
        for (nth, (file, name)) in files.into_iter().zip(&names).enumerate() {
            if nth == inside.unwrap_or(0) {
                chosen = Some(file);
            } else if file.is_left() {
                remove(directory, name);
            }
        }
        if let Some(file) = chosen {
            return Ok(file);
        }
    }
}

/// Opens the file of the job with this name, in this process' turn, and removes what other jobs of the user left.
pub fn open<E>(name: &str, failed: impl Fn(&'static str) -> E) -> Result<i32, E> {
    let directory = Open::directory().ok_or_else(|| failed("open"))?;
    sweep(&directory, name);
    in_turn(&directory, name, failed).map(Open::keep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    use std::sync::Barrier;

    #[test]
    fn a_jobs_files_are_told_from_those_of_jobs_with_longer_names() {
        let name = name_of("batch");
        assert!(is_of(&name, &name) && is_of(&format!("{name}~00ff"), &name));
        for other in ["batch2", "batch-2", "b", "batch~", "a b"] {
            assert!(!is_of(&name_of(other), &name), "{other}");
            assert!(!is_of(&name, &name_of(other)), "{other}");
        }
    }

    /// Comes into the file of a job, as its processes do.
    fn comes(name: &str) -> Open {
        let failed = |step| format!("{step}: {}", sys::errno());
        let file = Open(open(name, failed).expect("no other user keeps it from its file"));
        assert!(lock(file.0, MEMBER, libc::F_RDLCK, true));
        assert!(lock(file.0, TURN, libc::F_UNLCK, false));
        file
    }

    /// P-SECURITY-18: a name that another user took first keeps no job from the file that its processes share.
    #[test]
    fn all_who_come_at_once_are_in_one_file_though_others_took_its_name() {
        const COME: usize = 6;
        for round in 0..60 {
            let name = name_of(&format!("place-{}-{round}", std::process::id()));
            let path = format!("/dev/shm/{name}");
            // What everybody may change is as good as another user's. In some rounds it is there to the end, in some its
            // owner removes it meanwhile.
            let taken = round % 3 != 0;
            if taken {
                let mut options = std::fs::OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                options.open(&path).expect("it is new");
                let mode = std::fs::Permissions::from_mode(0o666);
                std::fs::set_permissions(&path, mode).expect("its owner may");
            }
            let begin = Barrier::new(COME + 1);
            let files: Vec<Open> = std::thread::scope(|scope| {
                let come = || {
                    begin.wait();
                    comes(&name)
                };
                let threads: Vec<_> = (0..COME).map(|_| scope.spawn(come)).collect();
                begin.wait();
                if round % 3 == 1 {
                    std::fs::remove_file(&path).expect("its owner may");
                }
                let ends = threads.into_iter().map(|thread| thread.join());
                ends.map(|file| file.expect("no panic")).collect()
            });
            let late = comes(&name);
            let of = |file: &Open| stat(file.0).map(|stat| (stat.st_ino, stat.st_nlink));
            let all: std::collections::BTreeSet<_> = files.iter().chain([&late]).map(of).collect();
            assert_eq!(all.len(), 1, "round {round}: {all:?}");
            assert!(
                all.iter().all(|file| matches!(file, Some((_, 1)))),
                "{all:?}"
            );
            let directory = Open::directory().expect("it is there");
            let own = own_files(&directory, |file| is_of(file, &name));
            assert_eq!(own.len(), 1, "{own:?}");
            if round % 3 == 2 {
                assert!(std::fs::metadata(&path).is_ok(), "it is not ours to remove");
                std::fs::remove_file(&path).expect("its owner may");
            }
            drop((files, late));
            for name in own {
                remove(&directory, &name);
            }
        }
    }
}
