//! Functions that the application resolved past the table.

use core::ffi::c_int;
use std::sync::Mutex;

/// A function the application resolved in an ABI that no row knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhooked {
    /// Base name.
    pub name: String,
    /// CUDA version asked for.
    pub version: c_int,
    /// Flags asked with.
    pub flags: u64,
    /// How often.
    pub count: u64,
}

static UNHOOKED: Mutex<Vec<Unhooked>> = Mutex::new(Vec::new());

/// What was resolved past the table. None is said while the list is in use: a forked child may find it so for ever.
pub fn unhooked() -> Vec<Unhooked> {
    UNHOOKED
        .try_lock()
        .map(|unhooked| unhooked.clone())
        .unwrap_or_default()
}

/// Notes a function of ours in an ABI that no row knows.
pub fn count(name: &[u8], version: c_int, flags: u64) {
    // In use: one is not counted, and nobody waits.
    let Ok(mut unhooked) = UNHOOKED.try_lock() else {
        return;
    };
    let known = unhooked.iter_mut().find(|entry| {
        entry.name.as_bytes() == name && entry.version == version && entry.flags == flags
    });
    if let Some(entry) = known {
        entry.count += 1;
        return;
    }
    // A program that asks for ever more versions fills no memory.
    if unhooked.len() < 256 {
        unhooked.push(Unhooked {
            name: String::from_utf8_lossy(name).into_owned(),
            version,
            flags,
            count: 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    /// What a forked child finds of a list that a thread of its parent was using: in use for ever.
    #[test]
    fn nobody_waits_for_a_list_that_is_in_use() {
        let in_use = sys::lock(&UNHOOKED);
        count(b"cuLaunchKernel", 99_000, 0);
        assert_eq!(unhooked(), []);
        drop(in_use);
        count(b"cuLaunchKernel", 99_000, 0);
        let counts: Vec<u64> = unhooked().iter().map(|entry| entry.count).collect();
        assert_eq!(counts, [1]);
    }
}
