//! The least of many costs that only fall until they are taken out: a tree of minima.
//!
//! A node holds the least of the up to [`FAN`] nodes below it. A cost that falls is compared with the nodes above it,
//! up to the first that is no higher. When a cost is taken out, the nodes above it are computed anew. Invariant: a node
//! holds the least of what is below it.

/// Numbers below one node: two cache lines of costs.
const FAN: usize = 16;

/// Of what is not to be found any more.
const OUT: u64 = u64::MAX;

/// Costs, by number.
#[derive(Debug, Default)]
pub struct Least {
    /// The costs, then their minima, up to a single one.
    levels: Vec<Vec<u64>>,
}

impl Least {
    /// Takes over `costs`; those that are not open are out from the start.
    pub fn begin(&mut self, costs: impl Iterator<Item = (u64, bool)>) {
        let cost = |(cost, open): (u64, bool)| if open { cost.min(OUT - 1) } else { OUT };
        self.level(0).extend(costs.map(cost));
        let mut top = 0;
        while self.levels[top].len() > 1 {
            let below = core::mem::take(&mut self.levels[top]);
            let above = self.level(top + 1);
            above.extend(below.chunks(FAN).map(least_of));
            self.levels[top] = below;
            top += 1;
        }
        self.levels.truncate(top + 1);
    }

    /// A level, emptied; its memory is kept.
    fn level(&mut self, nth: usize) -> &mut Vec<u64> {
        if self.levels.len() == nth {
            self.levels.push(Vec::new());
        }
        self.levels[nth].clear();
        &mut self.levels[nth]
    }

    /// Its cost falls by so much, if it is not out.
    pub fn lower(&mut self, at: usize, by: u64) {
        let mut levels = self.levels.iter_mut();
        let Some(cost) = levels.next().map(|costs| &mut costs[at]) else {
            return;
        };
        if *cost == OUT {
            return;
        }
        *cost = cost.saturating_sub(by);
        let (mut node, cost) = (at, *cost);
        for level in levels {
            node /= FAN;
            if level[node] <= cost {
                break;
            }
            level[node] = cost;
        }
    }

    /// It is out. Says how many nodes were looked at.
    pub fn close(&mut self, at: usize) -> u64 {
        self.levels[0][at] = OUT;
        let mut node = at;
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            node /= FAN;
            let below = &below[level - 1];
            let end = below.len().min((node + 1) * FAN);
            above[0][node] = least_of(&below[node * FAN..end]);
        }
        self.levels.len() as u64
    }

    /// The lowest number of least cost, and that cost.
    pub fn least(&self) -> Option<(usize, u64)> {
        let cost = *self.levels.last()?.first()?;
        let down = self.levels.iter().rev().skip(1);
        let found = down.fold(0, |node, level| {
            let below = level[node * FAN..].iter();
            node * FAN + below.take_while(|known| **known != cost).count()
        });
        (cost != OUT).then_some((found, cost))
    }
}

fn least_of(costs: &[u64]) -> u64 {
    costs.iter().copied().fold(OUT, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lowest_number_of_least_cost_is_found_whatever_fell_before(
            costs in prop::collection::vec((0_u64..40, prop::bool::weighted(0.8)), 0..600),
            falls in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..9), 0..400),
        ) {
            let mut least = Least::default();
            least.begin(costs.iter().copied());
            let mut known: Vec<Option<u64>> =
                costs.iter().map(|(cost, open)| open.then_some(*cost)).collect();
            let mut falls = falls.into_iter();
            loop {
                let open = known.iter().enumerate().filter_map(|(at, cost)| Some((at, (*cost)?)));
                let want = open.min_by_key(|found| found.1);
                let found = least.least();
                prop_assert_eq!(found, want);
                let Some((at, _)) = found else { break };
                least.close(at);
                known[at] = None;
                for (at, by) in falls.by_ref().take(7) {
                    let at = at.index(known.len());
                    least.lower(at, by);
                    known[at] = known[at].map(|cost| cost.saturating_sub(by));
                }
            }
        }
    }
}
