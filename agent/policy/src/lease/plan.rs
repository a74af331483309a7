//! How much training fits into one iteration of online.
//!
//! Closed forms; each equals an exhaustive search. Times are whole nanoseconds.
//!
//! ```text
//!   serial     units between two iterations           (slack - switch) / unit
//!   parallel   units beside the layers of a decode    LLMStation, equation 1, corrected
//!   tokens     training tokens in online's own pass   FlexLLM, section 6.2: max { s : f(c, s) <= budget }
//!   partition  shares of the multiprocessors          HARLI, section 6.2: the nearest below the budget
//! ```
//!
//! LLMStation's equation 1, as printed, divides the slack by the time that training adds to a decode layer. It ignores
//! that the model has a limited number of layers, that layers and units are whole, and that there may be no slack.

/// A decode, its layers, and the units that may run beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Layers of the decode.
    pub layers: u32,
    /// One of them alone, ns.
    pub alone_ns: u64,
    /// One of them beside a unit, ns.
    pub beside_ns: u64,
    /// One unit, ns.
    pub unit_ns: u64,
    /// What the whole may take, ns.
    pub budget_ns: u64,
    /// Units there are, and memory for.
    pub most: u32,
}

/// What of it runs beside each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parallel {
    /// Layers of the decode that run beside units.
    pub layers: u32,
    /// Units.
    pub units: u32,
}

/// The most units that run beside a decode within its budget: `n` layers beside them and the others
/// alone take no longer than it, and the units no longer than the `n` layers.
#[must_use]
pub fn parallel(of: &Layers) -> Parallel {
    let alone = u128::from(of.layers) * u128::from(of.alone_ns);
    let budget = u128::from(of.budget_ns);
    if alone > budget && of.beside_ns >= of.alone_ns {
        return Parallel::default();
    }
    let layers = match u128::from(of.beside_ns.saturating_sub(of.alone_ns)) {
        // All of them; they may be faster so, and all are needed where that is what saves it.
        0 if u128::from(of.layers) * u128::from(of.beside_ns) > budget => {
            return Parallel::default();
        }
        0 => of.layers,
        more => u32::try_from((budget - alone) / more).map_or(of.layers, |n| n.min(of.layers)),
    };
    let room = u128::from(layers) * u128::from(of.beside_ns);
    let units = room / u128::from(of.unit_ns.max(1));
    Parallel {
        layers,
        units: u32::try_from(units).map_or(of.most, |units| units.min(of.most)),
    }
}

/// Units that fit between two iterations, with a switch to the trainer and back: none where the
/// slack is not even that.
#[must_use]
pub fn serial(slack_ns: u64, switch_ns: u64, unit_ns: u64, most: u32) -> u32 {
    let units = slack_ns.saturating_sub(switch_ns) / unit_ns.max(1);
    u32::try_from(units).map_or(most, |units| units.min(most))
}

/// The most training tokens, in whole tiles and at most `most`, of a pass that takes `ns(tokens)`
/// and may take `budget_ns`. `ns` must not fall.
pub fn tokens(most: u32, tile: u32, budget_ns: u64, ns: impl Fn(u32) -> u64) -> u32 {
    let tile = tile.max(1);
    let fits = |tiles: u32| ns(tiles * tile) <= budget_ns;
    let (mut low, mut high) = (0, most / tile);
    if fits(high) {
        // The last tile may be what is left of a sample.
        return if ns(most) <= budget_ns {
            most
        } else {
            high * tile
        };
    }
    // `low` fits, or is nothing at all; `high` does not.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low * tile
}

/// Shares of the multiprocessors, in the partition's own steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Online's steps.
    pub online: u32,
    /// The trainer's steps.
    pub trainer: u32,
}

/// How [`partition`] chooses among what fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Favour {
    /// What brings online nearest to its budget; of equals the larger trainer (HARLI).
    Nearest,
    /// The largest trainer; of equals the faster online.
    Trainer,
}

/// The division of `steps` in which online's pass takes no longer than `budget_ns`; online alone
/// where there is none. `ns` may say that it does not know.
pub fn partition(
    steps: u32,
    budget_ns: u64,
    favour: Favour,
    ns: impl Fn(Partition) -> Option<u64>,
) -> Partition {
    let mut best: Option<(Partition, (u64, u64))> = None;
    for online in 1..steps {
        for trainer in 1..=steps - online {
            let at = Partition { online, trainer };
            let Some(took) = ns(at).filter(|took| *took <= budget_ns) else {
                continue;
            };
            let trainer = u64::from(trainer);
            let key = match favour {
                Favour::Nearest => (took, trainer),
                Favour::Trainer => (trainer, u64::MAX - took),
            };
            if best.is_none_or(|best| key > best.1) {
                best = Some((at, key));
            }
        }
    }
    let alone = Partition {
        online: steps,
        trainer: 0,
    };
    best.map_or(alone, |best| best.0)
}
