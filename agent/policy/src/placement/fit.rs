//! Fits a profile to a job's history on a node: its rate with the GPUs to itself, what less memory costs, what it
//! loses.
//!
//! ```text
//!   units = rate x (open - switches - moves) x memory(half) - again x rate x lost          sample by sample
//! ```
//!
//! This is the equation of [`super::predict`], solved for the profile. For each half memory of a ladder, the rate and
//! the cost of a loss are fitted by least squares, and the half memory with the least squares is chosen. If the memory
//! was nearly the same all the time, the history cannot tell what less of it costs.

use super::profile::{Draft, GIB};
use super::slice::Slice;
use super::{Costs, memory_by, most};
use crate::ids::{GpuId, GpuSet};
use core::fmt;

/// Slices that say enough: a rate of ten minutes, in slices of one, has several bursts of online in it.
const LEAST: usize = 10;
/// Least ratio of most to least memory that tells what memory is worth. Below it, a curve with half its rate at a
/// quarter of that memory bends by less than 4 %, which is what single minutes differ by.
const SPREAD: f64 = 1.25;
/// Half memories that are tried, as parts of the most memory: from a thousandth, where memory counts for nothing, in
/// steps of 5 %, to four times of it, where the curve is nearly a straight line.
const LADDER: (f64, f64, i32) = (1e-3, 1.05, 170);

/// What a job did in one slice.
#[derive(Clone, Copy, Debug)]
pub struct Did<'a> {
    /// The node then.
    pub slice: &'a Slice,
    /// GPUs that it used.
    pub gpus: GpuSet,
    /// Useful units.
    pub units: u64,
    /// Units that were lost to memory that fell.
    pub lost: u64,
}

/// A profile, and how far from it the slices are.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The profile.
    pub draft: Draft,
    /// Slices that it is of.
    pub slices: usize,
    /// Mean absolute error of a slice, over the mean of all.
    pub error: f64,
}

/// Why nothing is fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// Too few slices in which the job was there all the time, its gates opened, and it had an eighth of the pool.
    Slices {
        /// So many.
        has: usize,
        /// Of so many.
        needs: usize,
    },
    /// It did nothing.
    Idle,
    /// Memory was nearly the same all the time.
    Memory {
        /// Least, GiB.
        least: f64,
        /// Most, GiB.
        most: f64,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Slices { has, needs } => write!(
                out,
                "{has} slices of the history have it from begin to end, with gates open and an eighth of the pool; {needs} are \
                 needed"
            ),
            Self::Idle => out.write_str("it counts no units and no launches in any of its slices"),
            Self::Memory { least, most } => write!(
                out,
                "it always had from {least:.1} to {most:.1} GiB, which does not tell what less costs: give its half \
                 memory"
            ),
        }
    }
}

/// One slice, as numbers.
struct Row<'a> {
    did: &'a Did<'a>,
    /// Seconds with its gates open, less what moves and switches took.
    open: f64,
}

impl Row<'_> {
    /// Seconds that it would have taken with the GPUs to itself and `half`.
    fn alone(&self, half: f64, full: f64) -> f64 {
        let curve = |gib: f64| (gib * (1.0 + half / full) / (gib + half)).clamp(0.0, 1.0);
        let each = self.did.gpus.iter();
        let worth = each.map(|gpu| memory_by(curve, self.did.slice, gpu));
        self.open * worth.reduce(f64::min).unwrap_or(0.0)
    }
}

/// Fits a profile of this name and unit; `half`, if it is known, in GiB.
///
/// # Errors
/// When what the job did does not tell.
pub fn fit(
    name: &str,
    unit: &str,
    did: &[Did<'_>],
    half: Option<f64>,
    costs: &Costs,
) -> Result<Fitted, Unfit> {
    let rows: Vec<Row<'_>> = did.iter().filter_map(|did| row(did, costs)).collect();
    if rows.len() < LEAST {
        return Err(Unfit::Slices {
            has: rows.len(),
            needs: LEAST,
        });
    }
    if rows.iter().all(|row| row.did.units == 0) {
        return Err(Unfit::Idle);
    }
    let (least, full) = span(&rows);
    let tried: Vec<f64> = match half {
        Some(half) => vec![half],
        None if full < SPREAD * least => return Err(Unfit::Memory { least, most: full }),
        None => (0..LADDER.2)
            .map(|step| full * LADDER.0 * LADDER.1.powi(step))
            .collect(),
    };
    let solved = tried.into_iter().map(|half| {
        let line = solve(&rows, half, full);
        let off = |row: &Row<'_>| line.off(row, half, full);
        (
            half,
            rows.iter().map(|row| off(row) * off(row)).sum::<f64>(),
        )
    });
    let best = solved.reduce(|a, b| if b.1 < a.1 { b } else { a });
    let half = best.map_or(full, |best| best.0);
    let line = solve(&rows, half, full);
    let units: f64 = rows.iter().map(|row| row.did.units as f64).sum();
    let off: f64 = rows.iter().map(|row| line.off(row, half, full).abs()).sum();
    let lost: f64 = rows.iter().map(|row| row.did.lost as f64).sum();
    let fallen: f64 = rows.iter().map(|row| pools_fallen(row.did)).sum();
    let counts = lost > 0.0 && fallen > 0.0 && line.again > 0.0;
    Ok(Fitted {
        draft: Draft {
            name: name.to_owned(),
            unit: Some(unit.to_owned()),
            gpus: rows.first().map(|row| f64::from(row.did.gpus.len())),
            rate: Some(line.rate),
            full: Some(full),
            half: Some(half),
            lost: counts.then(|| lost / fallen),
            again: counts.then_some(line.again),
            ..Draft::default()
        },
        slices: rows.len(),
        error: off / units.max(f64::MIN_POSITIVE),
    })
}

fn row<'a>(did: &'a Did<'a>, costs: &Costs) -> Option<Row<'a>> {
    // In the lowest level of memory the straight line between its ends is far below any curve.
    let known = |gpu: GpuId| {
        let own = did.slice.gpu(gpu).and_then(|own| own.available);
        own.is_some_and(|own| own.pool.0 > 0 && own.levels[0].ns == 0)
    };
    if did.gpus.is_empty() || !did.gpus.iter().all(known) {
        return None;
    }
    let own = || {
        did.slice
            .gpus
            .iter()
            .filter(|gpu| did.gpus.contains(gpu.gpu))
    };
    let openings = own().map(|gpu| gpu.openings).max().unwrap_or(0);
    let fallen = own().filter_map(|gpu| Some(gpu.available?.fallen.0));
    let fallen = fallen.max().unwrap_or(0) as f64 / GIB;
    let open = did.slice.open.together(did.gpus).min(did.slice.length_ns) as f64 / 1e9;
    let given_back = fallen.min(costs.give_back_gib_per_s * open);
    let switches = f64::from(openings) * costs.switch.as_secs_f64();
    let open = open - switches - given_back * costs.give_back_gib.as_secs_f64();
    (open > 0.0).then_some(Row { did, open })
}

/// Least and most memory that it had for a while, GiB.
fn span(rows: &[Row<'_>]) -> (f64, f64) {
    let slices: Vec<&Slice> = rows.iter().map(|row| row.did.slice).collect();
    let gpus = rows
        .iter()
        .fold(GpuSet::EMPTY, |all, row| all.union(row.did.gpus));
    let most = gpus.iter().map(|gpu| most(&slices, gpu) as f64 / GIB);
    let most = most.fold(f64::INFINITY, f64::min);
    let levels = rows.iter().flat_map(|row| {
        let own = row.did.slice.gpus.iter();
        let own = own.filter(|gpu| row.did.gpus.contains(gpu.gpu));
        own.filter_map(|gpu| gpu.available)
            .flat_map(|own| own.levels)
    });
    let open = levels.filter(|level| level.ns > 0);
    let least = open.map(|level| level.mean().0 as f64 / GIB);
    (least.fold(most, f64::min), most)
}

fn pools_fallen(did: &Did<'_>) -> f64 {
    let own = did
        .slice
        .gpus
        .iter()
        .filter(|gpu| did.gpus.contains(gpu.gpu));
    let falls = own.filter_map(|gpu| gpu.available);
    falls
        .map(|own| own.fallen.0 as f64 / own.pool.0.max(1) as f64)
        .fold(0.0, f64::max)
}

/// Units a second, and seconds that one lost unit takes again.
struct Line {
    rate: f64,
    again: f64,
}

impl Line {
    /// Units that a slice had too few of.
    fn off(&self, row: &Row<'_>, half: f64, full: f64) -> f64 {
        let did = self.rate * (row.alone(half, full) - self.again * row.did.lost as f64);
        did - row.did.units as f64
    }
}

/// Least squares for one half memory.
fn solve(rows: &[Row<'_>], half: f64, full: f64) -> Line {
    let (mut xx, mut xl, mut ll, mut xu, mut lu) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for row in rows {
        let (x, lost) = (row.alone(half, full), row.did.lost as f64);
        let units = row.did.units as f64;
        xx += x * x;
        xl += x * lost;
        ll += lost * lost;
        xu += x * units;
        lu += lost * units;
    }
    let plain = xu / xx.max(f64::MIN_POSITIVE);
    let ground = xx * ll - xl * xl;
    // Both grow in step, or nothing is lost: it tells nothing of what is lost.
    if ground <= 1e-9 * xx * ll {
        return Line {
            rate: plain,
            again: 0.0,
        };
    }
    let rate = (xu * ll - lu * xl) / ground;
    let again = (xu * xl - lu * xx) / ground / rate;
    // A unit that is lost is not done twice over, and gives nothing.
    if rate > 0.0 && (0.0..=1.0 / rate).contains(&again) {
        return Line { rate, again };
    }
    Line {
        rate: plain,
        again: 0.0,
    }
}
