//! Every variable that the library reads, one function each.
//!
//! Variables are read with `getenv` and without allocation, because the first reader may be the dynamic loader's
//! caller, long before `main`. In a program that gains rights from its file (`AT_SECURE`) the environment comes from
//! another user. There no variable counts as set, and the library does nothing. Only threads of the application read
//! variables: a program that changes its environment knows its own threads, but not those of this library.

use core::ffi::CStr;
use std::time::Duration;
use tidegate_core::gate::{OnTimeout, Role};

/// Whether the kernel gave this program rights that its caller has not.
fn is_secure() -> bool {
    // SAFETY: reads a word that the kernel put beside the program's stack.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn get(name: &CStr) -> Option<&'static [u8]> {
    if is_secure() {
        return None;
    }
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

/// `TIDEGATE_DISABLE`: the library stays out of everything, as it does of a program with rights of another user.
pub fn disabled() -> bool {
    is_secure() || is_set(c"TIDEGATE_DISABLE")
}

/// `TIDEGATE_NODEEPBIND`: `dlopen` drops `RTLD_DEEPBIND`, which would hide our hooks.
pub fn no_deepbind() -> bool {
    is_set(c"TIDEGATE_NODEEPBIND")
}

/// `TIDEGATE_LOG`: say on standard error what the library does.
pub fn logs() -> bool {
    is_set(c"TIDEGATE_LOG")
}

/// `TIDEGATE_RM_TRACE`: the file to which every call of the driver is appended.
pub fn rm_trace() -> Option<&'static CStr> {
    let path = get(c"TIDEGATE_RM_TRACE").filter(|path| !path.is_empty())?;
    // SAFETY: `get` cut the terminator off a C string.
    Some(unsafe { CStr::from_ptr(path.as_ptr().cast()) })
}

/// `TIDEGATE_ROLE`: `online` or `offline`; the agent decides what becomes of the wish.
pub fn role() -> Role {
    match get(c"TIDEGATE_ROLE") {
        Some(b"offline") => Role::Offline,
        Some(b"online") => Role::Online,
        _ => Role::Unknown,
    }
}

/// `TIDEGATE_ROLE` where it names no role, and so much of it as is told to the agent.
pub fn unknown_role() -> String {
    match get(c"TIDEGATE_ROLE") {
        None | Some(b"" | b"offline" | b"online") => String::new(),
        Some(text) => String::from_utf8_lossy(&text[..text.len().min(UNKNOWN)]).into_owned(),
    }
}

/// Bytes of a role that is none.
const UNKNOWN: usize = 64;

/// `TIDEGATE_JOB`: the offline job whose gate this process shares.
pub fn job() -> String {
    String::from_utf8_lossy(get(c"TIDEGATE_JOB").unwrap_or_default()).into_owned()
}

/// `TIDEGATE_WEIGHT`: the most that the job is to weigh among those of its user; 0: whatever the agent's rules say. What
/// is no number above 0 is the least.
pub fn weight() -> u32 {
    get(c"TIDEGATE_WEIGHT").map_or(0, least_of)
}

fn least_of(text: &[u8]) -> u32 {
    if text.is_empty() {
        return 0;
    }
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    number.filter(|&weight| weight > 0).unwrap_or(1)
}

/// What the reporter needs of the environment.
#[derive(Clone, Debug)]
pub struct Said {
    /// [`run_dir`].
    pub run_dir: String,
    /// [`job`].
    pub job: String,
    /// [`unknown_role`].
    pub unknown_role: String,
    /// [`weight`].
    pub weight: u32,
}

impl Said {
    /// As it is now, by a thread of the application's.
    pub fn read() -> Self {
        Self {
            run_dir: run_dir(),
            job: job(),
            unknown_role: unknown_role(),
            weight: weight(),
        }
    }
}

/// `TIDEGATE_RUN_DIR`: where the agent's sockets are.
pub fn run_dir() -> String {
    match get(c"TIDEGATE_RUN_DIR") {
        Some(dir) if !dir.is_empty() => String::from_utf8_lossy(dir).into_owned(),
        _ => tidegate_proto::RUN_DIR.to_owned(),
    }
}

/// How long an offline process waits for its first agent, and what it does then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// `TIDEGATE_ATTACH_TIMEOUT`, nanoseconds; none: for ever.
    pub limit_ns: Option<u64>,
    /// `TIDEGATE_ON_TIMEOUT`.
    pub on_timeout: OnTimeout,
    /// What could not be read, for people.
    pub unreadable: Option<&'static str>,
}

/// `TIDEGATE_ATTACH_TIMEOUT` (`30s`, `500ms`, `2min`, or seconds without a unit) and
/// `TIDEGATE_ON_TIMEOUT` (`run`, `fail`). What cannot be read holds the process back: it waits for
/// ever, or fails.
pub fn patience() -> Patience {
    let mut patience = Patience::default();
    if let Some(text) = get(c"TIDEGATE_ATTACH_TIMEOUT").filter(|text| !text.is_empty()) {
        patience.limit_ns = std::str::from_utf8(text).ok().and_then(nanoseconds);
        if patience.limit_ns.is_none() {
            patience.unreadable = Some("TIDEGATE_ATTACH_TIMEOUT is no time such as 30s or 500ms");
        }
    }
    match get(c"TIDEGATE_ON_TIMEOUT") {
        None | Some(b"" | b"run") => {}
        Some(b"fail") => patience.on_timeout = OnTimeout::Fail,
        Some(_) => {
            patience.on_timeout = OnTimeout::Fail;
            patience.unreadable = Some("TIDEGATE_ON_TIMEOUT is neither run nor fail");
        }
    }
    patience
}

fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let unit_s = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "min" => 60.0,
        _ => return None,
    };
    let seconds = number.trim().parse::<f64>().ok()? * unit_s;
    u64::try_from(Duration::try_from_secs_f64(seconds).ok()?.as_nanos()).ok()
}

/// `TIDEGATE_KV_GUESS`: allocations of at least so many MiB are taken for KV caches without a scope.
pub fn kv_guess() -> Option<u64> {
    let text = std::str::from_utf8(get(c"TIDEGATE_KV_GUESS")?).ok()?;
    let mebibytes: u64 = text.trim().parse().ok()?;
    mebibytes.checked_mul(1 << 20).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::{least_of, nanoseconds};

    #[test]
    fn a_weight_that_cannot_be_read_is_the_least() {
        let read = [
            &b""[..],
            b"3",
            b" 12 ",
            b"0",
            b"-4",
            b"99999999999",
            b"much",
            b"\xff",
        ];
        assert_eq!(read.map(least_of), [0, 3, 12, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_time_is_a_number_and_a_unit_and_nothing_else_is() {
        assert_eq!(nanoseconds("30s"), Some(30_000_000_000));
        assert_eq!(nanoseconds(" 500ms "), Some(500_000_000));
        assert_eq!(nanoseconds("2min"), Some(120_000_000_000));
        assert_eq!(nanoseconds("1.5"), Some(1_500_000_000));
        for wrong in ["", "s", "-1s", "3 days", "NaN", "inf", "1e99"] {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
