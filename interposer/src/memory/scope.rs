//! KV scopes: an allocation that a thread makes inside one belongs to a cache.

use core::cell::Cell;

thread_local! {
    /// Size of handles in the KV scope the thread is in, and how deep it is in scopes.
    pub static SCOPE: Cell<(u32, u64, bool)> = const { Cell::new((0, 0, false)) };
}

/// The calling thread's scope: size of handles, and whether it begins without memory.
pub fn scope() -> Option<(u64, bool)> {
    let (depth, handle_bytes, bare) = SCOPE.get();
    (depth > 0).then_some((handle_bytes, bare))
}
