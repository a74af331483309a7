//! Calls that a socket refused, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that were refused, by method; those that no socket serves are counted together.
#[derive(Debug)]
pub struct Denials(Box<[(&'static str, AtomicU64)]>);

impl Denials {
    /// None yet of any of `methods`.
    #[must_use]
    pub fn of(methods: impl Iterator<Item = &'static str>) -> Self {
        let methods = methods.chain(["other"]);
        Self(methods.map(|method| (method, AtomicU64::new(0))).collect())
    }

    /// Counts one of the method in that place; None: no socket serves it.
    pub fn count(&self, method: Option<usize>) {
        let known = method.and_then(|at| self.0.get(at)).or(self.0.last());
        if let Some((_, count)) = known {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many of each since the start.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |(method, count): &(_, AtomicU64)| (*method, count.load(Ordering::Relaxed));
        self.0.iter().map(count).collect()
    }
}
