//! What a kind of offline job needs, and what less memory costs it, measured once by itself.
//!
//! A [`Draft`] is what a user wrote, in the user's units. [`Draft::check`] makes a [`Profile`] of it, or names the
//! field that is wrong. All numbers of a profile are finite and in range, and its curve never falls.

use core::fmt;

/// Longest name of a profile, or of a unit.
pub const NAME: usize = 32;
/// Most memory of a GPU that is believed, GiB: eight times that of the largest card of 2026.
pub const MOST_GIB: f64 = 4_096.0;
/// Most points of a curve.
pub const POINTS: usize = 64;
/// Most units a second that are believed: tokens of a rack are a thousandth of it.
const MOST_RATE: f64 = 1e12;
/// Longest that one unit takes, s: more than a day is no unit of progress.
const MOST_UNIT_S: f64 = 86_400.0;
/// Bytes of a GiB.
pub(super) const GIB: f64 = (1u64 << 30) as f64;

/// A profile as it was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// `[a-z0-9_]{1,32}`.
    pub name: String,
    /// What progress is counted in, as `tokens`; written like a name.
    pub unit: Option<String>,
    /// GPUs of one job; one, if nothing is said.
    pub gpus: Option<f64>,
    /// Units a second with the GPUs to itself.
    pub rate: Option<f64>,
    /// Memory of each GPU at which its rate was measured, GiB.
    pub full: Option<f64>,
    /// Memory of each GPU at which it would have half of the rate it tends to, GiB. Or a curve.
    pub half: Option<f64>,
    /// GiB of each GPU and the share of [`Draft::rate`] with so much, from the least memory up.
    pub curve: Option<Vec<(f64, f64)>>,
    /// Where it never has as much, its longest request never fits and all behind it wait, GiB; none, if nothing is
    /// said.
    pub least: Option<f64>,
    /// Units that it computes again for as much memory as both share, when that fell; none, if nothing is said.
    pub lost: Option<f64>,
    /// Seconds that computing one unit again takes; needed with [`Draft::lost`].
    pub again: Option<f64>,
}

/// What is wrong with a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The field, as it is written in a file.
    pub field: &'static str,
    /// What of it, and what would be right.
    pub told: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.told)
    }
}

impl core::error::Error for Wrong {}

fn wrong(field: &'static str, told: String) -> Wrong {
    Wrong { field, told }
}

/// How much a job gets done with so much memory on each of its GPUs, against all of it.
#[derive(Clone, Debug, PartialEq)]
enum Curve {
    /// `M (1 + h / full) / (M + h)`: a decode step of b requests takes `d0 + d1 b`, and b is as many as M holds.
    Half { half: f64, full: f64 },
    /// Straight between points, and through nothing at no memory.
    Points(Vec<(f64, f64)>),
}

/// What a kind of job needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: String,
    unit: String,
    gpus: u8,
    rate: f64,
    curve: Curve,
    least: f64,
    lost: f64,
    again: f64,
}

impl Profile {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its progress is counted in.
    #[must_use]
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// GPUs of one job.
    #[must_use]
    pub const fn gpus(&self) -> u8 {
        self.gpus
    }

    /// Units a second with the GPUs to itself.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// Memory of each GPU that its longest request needs, GiB.
    #[must_use]
    pub const fn least_gib(&self) -> f64 {
        self.least
    }

    /// Units that it computes again for as much memory as both share, when that fell.
    #[must_use]
    pub const fn lost_per_pool(&self) -> f64 {
        self.lost
    }

    /// Seconds that computing one unit again takes.
    #[must_use]
    pub const fn again_s(&self) -> f64 {
        self.again
    }

    /// Share of its rate with `gib` on each of its GPUs: never falls with memory, from 0 to 1.
    #[must_use]
    pub fn memory_share(&self, gib: f64) -> f64 {
        if gib <= 0.0 {
            return 0.0;
        }
        let share = match &self.curve {
            Curve::Half { half, full } => gib * (1.0 + half / full) / (gib + half),
            Curve::Points(points) => between(points, gib),
        };
        share.clamp(0.0, 1.0)
    }
}

fn between(points: &[(f64, f64)], gib: f64) -> f64 {
    let at = points.partition_point(|point| point.0 < gib);
    let (low, low_share) = if at == 0 { (0.0, 0.0) } else { points[at - 1] };
    let Some(&(high, high_share)) = points.get(at) else {
        return low_share;
    };
    low_share + (high_share - low_share) * (gib - low) / (high - low)
}

/// Whether `name` is `[a-z0-9_]{1,32}`: safe in a label, a feature, a file name and a line of text.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=NAME).contains(&name.len()) && name.bytes().all(known)
}

impl Draft {
    /// The profile that it describes.
    ///
    /// # Errors
    /// The first field that is missing, out of range, or at odds with another.
    pub fn check(self) -> Result<Profile, Wrong> {
        const LETTERS: &str = "1 to 32 of a-z, 0-9 and _";
        if !is_name(&self.name) {
            return Err(wrong("name", format!("{:?} is not {LETTERS}", self.name)));
        }
        let Some(unit) = self.unit else {
            let told = "missing: say what progress is counted in, as \"tokens\"";
            return Err(wrong("unit", told.to_owned()));
        };
        if !is_name(&unit) {
            return Err(wrong("unit", format!("{unit:?} is not {LETTERS}")));
        }
        let gpus = self.gpus.unwrap_or(1.0);
        if !(gpus.fract() == 0.0 && (1.0..=64.0).contains(&gpus)) {
            return Err(wrong(
                "gpus",
                format!("{gpus} is not a whole number from 1 to 64"),
            ));
        }
        let rate = needed("rate", self.rate, MOST_RATE, "units a second")?;
        let full = needed("full", self.full, MOST_GIB, "GiB")?;
        let curve = match (self.half, self.curve) {
            (Some(half), None) => Curve::Half {
                half: above_0("half", half, MOST_GIB, "GiB")?,
                full,
            },
            (None, Some(points)) => Curve::Points(points_of(points, full)?),
            (Some(_), Some(_)) => {
                let told = "given beside half: keep one of them";
                return Err(wrong("curve", told.to_owned()));
            }
            (None, None) => {
                let told = "missing: give the memory at half of the rate, or a curve";
                return Err(wrong("half", told.to_owned()));
            }
        };
        let least = from_0("least", self.least, MOST_GIB, "GiB")?;
        if least > full {
            let told = format!("{least} GiB is more than full, {full} GiB");
            return Err(wrong("least", told));
        }
        let lost = from_0("lost", self.lost, MOST_RATE, "units")?;
        let again = from_0("again", self.again, MOST_UNIT_S, "s")?;
        if lost > 0.0 && self.again.is_none() {
            let told = "missing: with lost, say how long computing a unit again takes";
            return Err(wrong("again", told.to_owned()));
        }
        Ok(Profile {
            name: self.name,
            unit,
            gpus: gpus as u8,
            rate,
            curve,
            least,
            lost,
            again,
        })
    }
}

fn needed(field: &'static str, value: Option<f64>, most: f64, unit: &str) -> Result<f64, Wrong> {
    let Some(value) = value else {
        return Err(wrong(field, format!("missing: give {unit}, above 0")));
    };
    above_0(field, value, most, unit)
}

fn above_0(field: &'static str, value: f64, most: f64, unit: &str) -> Result<f64, Wrong> {
    if value > 0.0 && value <= most {
        return Ok(value);
    }
    let told = format!("{value} is not above 0 and at most {most} {unit}");
    Err(wrong(field, told))
}

fn from_0(field: &'static str, value: Option<f64>, most: f64, unit: &str) -> Result<f64, Wrong> {
    let value = value.unwrap_or(0.0);
    if (0.0..=most).contains(&value) {
        // Without the sign of a negative zero.
        return Ok(value + 0.0);
    }
    let told = format!("{value} is not from 0 to {most} {unit}");
    Err(wrong(field, told))
}

/// Points in order of memory, whose shares do not fall and end at the whole rate.
fn points_of(points: Vec<(f64, f64)>, full: f64) -> Result<Vec<(f64, f64)>, Wrong> {
    const FIELD: &str = "curve";
    if !(2..=POINTS).contains(&points.len()) {
        let told = format!("{} points: give 2 to {POINTS}", points.len());
        return Err(wrong(FIELD, told));
    }
    let (mut gib_before, mut share_before) = (0.0, 0.0);
    for (place, &(gib, share)) in (1..).zip(&points) {
        let point = |told: String| Err(wrong(FIELD, format!("point {place}: {told}")));
        if !(gib > gib_before && gib <= full) {
            return point(format!(
                "{gib} GiB is not above {gib_before} and at most full, {full} GiB"
            ));
        }
        if !(0.0..=1.0).contains(&share) {
            return point(format!("{share} is not a share of rate, from 0 to 1"));
        }
        if share < share_before {
            return point(format!(
                "falls from {share_before} to {share}: more memory never does less; measure again"
            ));
        }
        (gib_before, share_before) = (gib, share);
    }
    if share_before < 1.0 {
        let told = format!("ends at {share_before}: the last point is the whole rate, 1");
        return Err(wrong(FIELD, told));
    }
    Ok(points)
}
