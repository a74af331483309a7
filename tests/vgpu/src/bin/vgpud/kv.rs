//! Kernels in the shape of attention over a paged KV cache: what comes out is a function of what the
//! pages really hold, so that a wrong page is a wrong token.
//!
//! `tg_kv_store(table, count, value, ns)` writes `mix(value, i)` to the `i`-th address of a table in
//! memory. `tg_kv_token(table, count, seed, out, ns)` folds the words at those addresses, in order,
//! into `seed` and stores the result. An address that is not mapped faults.

use crate::sys;

/// One step of the fold; the programs under `tests/apps` have the same.
const fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

/// The addresses of a table.
fn table(pid: u32, at: u64, count: u64) -> Result<Vec<u64>, i32> {
    const MOST: u64 = 1 << 20;
    if count > MOST {
        return Err(libc::EFAULT);
    }
    let mut bytes = vec![0; count as usize * 8];
    sys::read_process(pid, at, &mut bytes)?;
    let words = bytes.chunks_exact(8);
    Ok(words
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
        .collect())
}

/// Carries out a `tg_kv_store`; an `errno` on failure.
pub(crate) fn store(pid: u32, args: &[u64]) -> Result<(), i32> {
    let [at, count, value, ..] = *args else {
        return Err(libc::EFAULT);
    };
    let places = table(pid, at, count)?;
    let words: Vec<u64> = (0..count).map(|i| mix(value, i)).collect();
    sys::write_words(pid, &places, &words)
}

/// Carries out a `tg_kv_token`; an `errno` on failure.
pub(crate) fn token(pid: u32, args: &[u64]) -> Result<(), i32> {
    let [at, count, seed, out, ..] = *args else {
        return Err(libc::EFAULT);
    };
    let words = sys::read_words(pid, &table(pid, at, count)?)?;
    let token = words.into_iter().fold(seed, mix);
    sys::write_process(pid, out, &token.to_le_bytes())
}
