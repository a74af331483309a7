//! Two kinds of work on one GPU at once, each on multiprocessors of its own, under one memory
//! bandwidth.
//!
//! A roofline: work is so much computing and so much reading, and takes whatever is longer. On a
//! share `g` of the multiprocessors computing goes at `g`, and memory answers at no more than
//! `g / g_sat` of its bandwidth: a few multiprocessors cannot ask for all of it, and from `g_sat` on they
//! can. Where both together ask for more than there is, each gets what it asks for up to an equal
//! part, and what one leaves the other may take.
//!
//! That HARLI's equations 4 and 5 (arXiv 2511.11729) fit what it measured is what speaks for this
//! form; `g_sat` no source gives. Whoever uses it sweeps it, from 0.3 to 0.7.
//!
//! ```
//! use tidegate_device::sharing::{Contention, Demand, Shares};
//!
//! let model = Contention { saturation: 0.5 };
//! // A decode reads for 6 ms and computes for 1; a training unit computes for 4 and reads for 1.
//! let decode = Demand { compute_ns: 1e6, memory_ns: 6e6 };
//! let unit = Demand { compute_ns: 4e6, memory_ns: 1e6 };
//! assert_eq!(model.alone(decode, 1.0), 6e6);
//! // Half of the multiprocessors can still ask for all of the bandwidth.
//! assert_eq!(model.alone(decode, 0.5), 6e6);
//! assert_eq!(model.alone(decode, 0.25), 12e6);
//!
//! let [online, trainer] = model.together([decode, unit], Shares { online: 0.5, trainer: 0.5 });
//! assert!((6e6..8e6).contains(&online), "it has to leave the unit some bandwidth: {online}");
//! assert_eq!(trainer, 8e6, "computing on half of the multiprocessors takes twice as long");
//! ```

/// What work needs of the whole GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Computing on all multiprocessors, ns.
    pub compute_ns: f64,
    /// Reading and writing at all of the bandwidth, ns.
    pub memory_ns: f64,
}

impl Demand {
    /// What it takes with the GPU to itself, ns.
    #[must_use]
    pub const fn alone_ns(&self) -> f64 {
        self.compute_ns.max(self.memory_ns)
    }
}

/// Parts of the multiprocessors, from 0 to 1; together no more than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Online's.
    pub online: f64,
    /// The trainer's.
    pub trainer: f64,
}

/// The model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Share of the multiprocessors that can ask for all of the bandwidth.
    pub saturation: f64,
}

impl Default for Contention {
    /// In the middle of what is swept.
    fn default() -> Self {
        Self { saturation: 0.5 }
    }
}

impl Contention {
    /// Bandwidth that a share can ask for, of one.
    fn reach(self, share: f64) -> f64 {
        (share / self.saturation.max(f64::MIN_POSITIVE)).min(1.0)
    }

    /// What `work` takes on a share with nothing beside it, ns; infinite on none.
    #[must_use]
    pub fn alone(self, work: Demand, share: f64) -> f64 {
        if share <= 0.0 {
            return f64::INFINITY;
        }
        let compute = work.compute_ns / share.min(1.0);
        compute.max(work.memory_ns / self.reach(share))
    }

    /// What each of two works takes while the other runs beside it, ns: online's, the trainer's.
    #[must_use]
    pub fn together(self, works: [Demand; 2], shares: Shares) -> [f64; 2] {
        // Two of each, written out: this is what a run of the world spends its time on.
        let [online, trainer] = works;
        let alone = (
            self.alone(online, shares.online),
            self.alone(trainer, shares.trainer),
        );
        // Bandwidth that each would use, of one.
        let asked = (asked(online, alone.0), asked(trainer, alone.1));
        if asked.0 + asked.1 <= 1.0 {
            return [alone.0, alone.1];
        }
        let least = asked.0.min(asked.1).min(0.5);
        let slowed = |work: Demand, alone: f64, own: f64, other: f64| {
            let had = own.min(if other <= least { 1.0 - other } else { 0.5 });
            let memory = if had > 0.0 { work.memory_ns / had } else { 0.0 };
            alone.max(memory)
        };
        [
            slowed(online, alone.0, asked.0, asked.1),
            slowed(trainer, alone.1, asked.1, asked.0),
        ]
    }
}

/// Bandwidth that work uses which takes `alone` ns, of one.
fn asked(work: Demand, alone: f64) -> f64 {
    if alone.is_finite() && alone > 0.0 {
        work.memory_ns / alone
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work() -> impl Strategy<Value = Demand> {
        (1e3f64..1e8, 1e3f64..1e8).prop_map(|(compute_ns, memory_ns)| Demand {
            compute_ns,
            memory_ns,
        })
    }

    proptest! {
        #[test]
        fn no_more_bandwidth_is_used_than_there_is(
            online in work(), trainer in work(), share in 0.01f64..0.99, saturation in 0.3f64..0.7,
        ) {
            let model = Contention { saturation };
            let shares = Shares { online: share, trainer: 1.0 - share };
            let [a, b] = model.together([online, trainer], shares);
            let used = online.memory_ns / a + trainer.memory_ns / b;
            prop_assert!(used <= 1.0 + 1e-9, "{}", used);
            // Nobody computes faster than on its share, and nobody is faster than alone.
            prop_assert!(a >= model.alone(online, share) && b >= model.alone(trainer, 1.0 - share));
            prop_assert!(a >= online.compute_ns / share * (1.0 - 1e-9));
            // And none of it is wasted: who is slower than alone has all that the other leaves.
            if a > model.alone(online, share) * (1.0 + 1e-9) || b > model.alone(trainer, 1.0 - share) * (1.0 + 1e-9) {
                prop_assert!(used >= 1.0 - 1e-9, "{}", used);
            }
        }

        #[test]
        fn more_of_the_gpu_is_never_slower(work in work(), less in 0.01f64..1.0, more in 0.0f64..1.0, saturation in 0.3f64..0.7) {
            let model = Contention { saturation };
            let more = less + more * (1.0 - less);
            prop_assert!(model.alone(work, more) <= model.alone(work, less) * (1.0 + 1e-12));
            prop_assert_eq!(model.alone(work, 1.0), work.alone_ns());
        }

        #[test]
        fn a_larger_neighbour_is_never_a_better_one(
            online in work(), trainer in work(), share in 0.05f64..0.5, one in 0.01f64..0.5, other in 0.01f64..0.5,
        ) {
            let model = Contention::default();
            let beside = |trainer_share| {
                let shares = Shares { online: share, trainer: trainer_share };
                model.together([online, trainer], shares)[0]
            };
            prop_assert!(beside(one.max(other)) >= beside(one.min(other)) * (1.0 - 1e-9));
            prop_assert_eq!(beside(0.0), model.alone(online, share));
        }
    }
}
