//! What a configuration asks of GPUs that they do not have.

use super::value::show_bytes;

/// The part of `memory.pool` that every GPU has, and what to say where that is not all of it. `totals` are the bytes of
/// each GPU, in order; 0 where the driver did not say.
#[must_use]
pub fn pool_of(pool: u64, totals: &[u64]) -> (u64, Option<String>) {
    let known = totals.iter().copied().enumerate().filter(|gpu| gpu.1 != 0);
    match known.min_by_key(|gpu| gpu.1) {
        Some((gpu, total)) if total < pool => {
            // Whole MiB: the driver keeps some KiB of a card for itself, and nobody reads them.
            let shown = show_bytes(total >> 20 << 20);
            let text = format!(
                "memory.pool is {}, and GPU {gpu} has {shown}: {shown} of each GPU are shared; set memory.pool to what \
                 online and offline may use of a GPU",
                show_bytes(pool)
            );
            (total, Some(text))
        }
        _ => (pool, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-OPERATE-25: no more memory is shared than the smallest GPU has.
    #[test]
    fn a_pool_is_cut_to_the_smallest_gpu_and_the_text_names_it() {
        const GIB: u64 = 1 << 30;
        for (pool, totals) in [
            (72 * GIB, vec![]),
            (72 * GIB, vec![80 * GIB, 80 * GIB]),
            (72 * GIB, vec![0, 72 * GIB]),
            (0, vec![GIB]),
        ] {
            assert_eq!(pool_of(pool, &totals), (pool, None), "{totals:?}");
        }
        let (pool, text) = pool_of(9_000 * GIB, &[80 * GIB, 40 * GIB + 4_096, 0]);
        assert_eq!(pool, 40 * GIB + 4_096);
        let text = text.expect("a text");
        for part in ["9000GiB", "GPU 1 has 40GiB"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
