//! Every variable the library reads, one function each.
//!
//! Read with `getenv` and without allocation, because the first reader may be the dynamic loader's
//! caller long before `main`.

use core::ffi::CStr;
use std::time::Duration;
use tidegate_core::gate::Role;

fn get(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is a C string. The value lives in the environment; a program that changes its
    // environment while threads run breaks every library that reads it.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: what getenv returns is a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn is_set(name: &CStr) -> bool {
    get(name).is_some_and(|value| !value.is_empty() && value != b"0")
}

/// `TIDEGATE_DISABLE`: the library stays out of everything.
pub fn disabled() -> bool {
    is_set(c"TIDEGATE_DISABLE")
}

/// `TIDEGATE_NODEEPBIND`: `dlopen` drops `RTLD_DEEPBIND`, which would hide our hooks.
pub fn no_deepbind() -> bool {
    is_set(c"TIDEGATE_NODEEPBIND")
}

/// `TIDEGATE_LOG`: say on standard error what the library does.
pub fn log() -> bool {
    is_set(c"TIDEGATE_LOG")
}

/// `TIDEGATE_ROLE`: `online` or `offline`; the agent decides what becomes of the wish.
pub fn role() -> Role {
    match get(c"TIDEGATE_ROLE") {
        Some(b"offline") => Role::Offline,
        Some(b"online") => Role::Online,
        _ => Role::Unknown,
    }
}

/// `TIDEGATE_JOB`: the offline job whose gate this process shares.
pub fn job() -> String {
    String::from_utf8_lossy(get(c"TIDEGATE_JOB").unwrap_or_default()).into_owned()
}

/// `TIDEGATE_RUN_DIR`: where the agent's sockets are.
pub fn run_dir() -> String {
    match get(c"TIDEGATE_RUN_DIR") {
        Some(dir) if !dir.is_empty() => String::from_utf8_lossy(dir).into_owned(),
        _ => tidegate_proto::RUN_DIR.to_owned(),
    }
}

/// `TIDEGATE_ATTACH_TIMEOUT`: seconds an offline process waits for its first agent before it runs
/// ungated; unset: for ever.
pub fn attach_timeout() -> Option<Duration> {
    let text = std::str::from_utf8(get(c"TIDEGATE_ATTACH_TIMEOUT")?).ok()?;
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}
