//! `cuGetProcAddress`: from a base name, a CUDA version and a stream flag to an address.
//!
//! A base name has one symbol per signature it ever had; the newest whose version does not exceed
//! the one asked for is the answer. With the per-thread flag, symbols that take the per-thread
//! default stream are preferred, and names without such a symbol fall back to the plain one.

use std::ffi::{CStr, c_char, c_int, c_void};

use tidegate_abi::cuda::{CUresult, GPA_LEGACY_STREAM, GPA_PER_THREAD_DEFAULT_STREAM};

use crate::driver::VERSION;
use crate::result::{CudaResult, log, store, store_optional};

/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const FOUND: c_int = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const SYMBOL_NOT_FOUND: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const VERSION_NOT_SUFFICIENT: c_int = 2;

struct Entry {
    base: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests read it"))]
    symbol: &'static str,
    version: c_int,
    per_thread: bool,
    address: Address,
}

#[derive(Clone, Copy)]
struct Address(*const ());

// SAFETY: the address of a function, never written through.
unsafe impl Sync for Address {}

// The rows are sorted by base name, then plain before per-thread, then by version.
include!(concat!(env!("OUT_DIR"), "/table.rs"));

#[derive(Debug, PartialEq, Eq)]
enum Search {
    Found(*const ()),
    VersionNotSufficient,
    SymbolNotFound,
}

fn search(base: &str, version: c_int, flags: u64) -> Search {
    let first = TABLE.partition_point(|entry| entry.base < base);
    let rows = TABLE[first..].iter().take_while(|entry| entry.base == base);
    let mut best: Option<&Entry> = None;
    let mut any = false;
    for entry in rows {
        any = true;
        let stream_ok = !entry.per_thread || flags & GPA_PER_THREAD_DEFAULT_STREAM != 0;
        // Per-thread rows come after the plain ones, so the last match is the best.
        if stream_ok && entry.version <= version {
            best = Some(entry);
        }
    }
    match best {
        Some(entry) => Search::Found(entry.address.0),
        None if any => Search::VersionNotSufficient,
        None => Search::SymbolNotFound,
    }
}

fn lookup(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CudaResult<Search> {
    if name.is_null() || out.is_null() || version > VERSION {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags & !(GPA_LEGACY_STREAM | GPA_PER_THREAD_DEFAULT_STREAM) != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let found = search(name.to_str().unwrap_or(""), version, flags);
    let address = match found {
        Search::Found(address) => address,
        Search::VersionNotSufficient | Search::SymbolNotFound => {
            log(&format_args!(
                "cuGetProcAddress {name:?} {version}: {found:?}"
            ));
            std::ptr::null()
        }
    };
    // SAFETY: `out` is the caller's place for a pointer, not null.
    unsafe { store(out, address as *mut c_void)? };
    Ok(found)
}

/// `cuGetProcAddress` of CUDA 11.3: an absent symbol is an error.
pub fn get_v1(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CudaResult {
    match lookup(name, out, version, flags)? {
        Search::Found(_) => Ok(()),
        Search::VersionNotSufficient | Search::SymbolNotFound => Err(CUresult::NOT_FOUND),
    }
}

/// `cuGetProcAddress` of CUDA 12.0: an absent symbol is a success with NULL and a status.
pub fn get_v2(
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CudaResult {
    let found = match lookup(name, out, version, flags)? {
        Search::Found(_) => FOUND,
        Search::VersionNotSufficient => VERSION_NOT_SUFFICIENT,
        Search::SymbolNotFound => SYMBOL_NOT_FOUND,
    };
    // SAFETY: `status` is null or the caller's place for the status.
    unsafe { store_optional(status, found) };
    Ok(())
}

/// `cuGetExportTable`: there are no private tables, by decision (see the front page).
pub fn export_table(out: *mut *const c_void, id: *const [u8; 16]) -> CudaResult {
    if out.is_null() || id.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `out` is the caller's place for a pointer, not null.
    unsafe { store(out, std::ptr::null())? };
    Err(CUresult::NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(base: &str, version: c_int, flags: u64) -> &'static str {
        match search(base, version, flags) {
            Search::Found(address) => {
                let row = TABLE
                    .iter()
                    .find(|entry| std::ptr::eq(entry.address.0, address));
                row.map_or("?", |entry| entry.symbol)
            }
            Search::VersionNotSufficient => "version",
            Search::SymbolNotFound => "none",
        }
    }

    #[test]
    fn the_table_is_sorted_as_the_search_expects() {
        let key = |e: &Entry| (e.base, e.per_thread, e.version);
        assert!(TABLE.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    }

    #[test]
    fn the_newest_signature_that_the_version_knows_is_returned() {
        assert_eq!(symbol("cuCtxCreate", 2000, 0), "cuCtxCreate");
        assert_eq!(symbol("cuCtxCreate", 11030, 0), "cuCtxCreate_v2");
        assert_eq!(symbol("cuCtxCreate", 12040, 0), "cuCtxCreate_v3");
        assert_eq!(symbol("cuCtxCreate", 13000, 0), "cuCtxCreate_v4");
        assert_eq!(
            symbol("cuGraphInstantiate", 13000, 0),
            "cuGraphInstantiateWithFlags"
        );
    }

    #[test]
    fn the_stream_flag_selects_the_per_thread_symbol_where_there_is_one() {
        assert_eq!(symbol("cuLaunchKernel", 7000, 0), "cuLaunchKernel");
        assert_eq!(symbol("cuLaunchKernel", 7000, 1), "cuLaunchKernel");
        assert_eq!(symbol("cuLaunchKernel", 7000, 2), "cuLaunchKernel_ptsz");
        assert_eq!(symbol("cuLaunchKernel", 4000, 2), "cuLaunchKernel");
        assert_eq!(symbol("cuInit", 13000, 2), "cuInit");
        assert_eq!(symbol("cuMemcpyHtoD", 13000, 2), "cuMemcpyHtoD_v2_ptds");
    }

    #[test]
    fn too_old_a_version_and_an_unknown_name_are_told_apart() {
        assert_eq!(symbol("cuLaunchKernelEx", 11050, 0), "version");
        assert_eq!(symbol("cuLaunchKernelFast", 13000, 0), "none");
        assert_eq!(symbol("cuMemAlloc_v2", 13000, 0), "none");
    }

    #[test]
    fn asked_for_itself_it_returns_itself() {
        assert_eq!(symbol("cuGetProcAddress", 11030, 0), "cuGetProcAddress");
        assert_eq!(symbol("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
    }
}
