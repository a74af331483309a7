//! How long an iteration or a unit takes, fitted by least squares to measured times.
//!
//! There are two stages, as in HARLI (arXiv 2511.11729, equations 4 and 5): an iteration by itself, on one share of the
//! GPU's multiprocessors, and how much longer it takes beside training.
//!
//! ```text
//!   solo   = b0 x requests + c0 + k0 x cached tokens of them all
//!   beside = (b1 x online's share + k1 x the trainer's share) x solo
//! ```
//!
//! The second equation of the paper has no constant, so without a trainer it does not equal the first; in that case the
//! first is used. The paper's cached tokens are the number of requests times one length. Here they are the sum over a
//! mixed batch, which is what an iteration reads. A batch below [`PADDED`] takes as long as one of that size, because
//! kernels pad.
//!
//! A third equation, from LLMStation (section 4), converts a time from one GPU to another by what is computed, sent and
//! read: [`Hardware`].
//!
//! Samples are weighted by the inverse square of their time, so that relative errors count. A fit is refused if by it
//! more work takes less time. Outside of the measured range a prediction is inflated: it may be wrong there, and an
//! error must not cost online.

/// Least batch that has a time of its own (HARLI, section 6.1).
pub const PADDED: u32 = 4;
/// What is added to a prediction for each range's length that it lies beyond what was measured. No
/// source: an assumption, on the safe side of a linear model's error on the decode tables.
pub const INFLATION: f64 = 0.1;

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Fewer samples than unknowns, or samples that do not tell them apart.
    TooFew,
    /// More work would take less time.
    NotMonotone,
}

/// The sums of a least-squares fit in `N` unknowns: as small with a million samples as with ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums<const N: usize> {
    xx: [[f64; N]; N],
    xy: [f64; N],
    samples: u64,
}

impl<const N: usize> Default for Sums<N> {
    fn default() -> Self {
        Self {
            xx: [[0.0; N]; N],
            xy: [0.0; N],
            samples: 0,
        }
    }
}

impl<const N: usize> Sums<N> {
    /// `x` was seen to give `y`; ignored if that is not above zero or anything is not finite.
    pub fn add(&mut self, x: [f64; N], y: f64) {
        if !(y > 0.0 && y.is_finite() && x.iter().all(|x| x.is_finite())) {
            return;
        }
        let weight = 1.0 / (y * y);
        for (row, a) in self.xx.iter_mut().zip(x) {
            for (cell, b) in row.iter_mut().zip(x) {
                *cell += weight * a * b;
            }
        }
        for (cell, a) in self.xy.iter_mut().zip(x) {
            *cell += weight * a * y;
        }
        self.samples += 1;
    }

    /// Lets all that was added so far weigh `factor` of what it did.
    pub fn forget(&mut self, factor: f64) {
        let cells = self.xx.iter_mut().flatten();
        for cell in cells.chain(self.xy.iter_mut()) {
            *cell *= factor;
        }
    }

    /// Samples added.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The coefficients; of what was always zero, zero.
    ///
    /// # Errors
    /// [`Unfit::TooFew`].
    pub fn solve(&self) -> Result<[f64; N], Unfit> {
        // Unknowns differ by many orders of magnitude: every one is scaled by its own diagonal.
        let scale: [f64; N] = core::array::from_fn(|i| self.xx[i][i].sqrt());
        let used = scale.iter().filter(|scale| **scale > 0.0).count();
        if used == 0 || self.samples < used as u64 {
            return Err(Unfit::TooFew);
        }
        let mut a = self.xx;
        let mut b = self.xy;
        for i in 0..N {
            for j in 0..N {
                a[i][j] = match scale[i] * scale[j] {
                    product if product > 0.0 => a[i][j] / product,
                    _ => f64::from(u8::from(i == j)),
                };
            }
            b[i] = if scale[i] > 0.0 { b[i] / scale[i] } else { 0.0 };
        }
        for column in 0..N {
            let by_size = |x: &usize, y: &usize| {
                let (x, y) = (a[*x][column].abs(), a[*y][column].abs());
                x.total_cmp(&y)
            };
            let pivot = (column..N).max_by(by_size).unwrap_or(column);
            a.swap(column, pivot);
            b.swap(column, pivot);
            // What is left of a scaled diagonal once the others are known.
            let left = a[column][column].abs();
            if left < 1e-9 || left.is_nan() {
                return Err(Unfit::TooFew);
            }
            for row in column + 1..N {
                let factor = a[row][column] / a[column][column];
                let above = a[column];
                for (cell, above) in a[row].iter_mut().zip(above).skip(column) {
                    *cell -= factor * above;
                }
                b[row] -= factor * b[column];
            }
        }
        for row in (0..N).rev() {
            let known: f64 = (row + 1..N).map(|column| a[row][column] * b[column]).sum();
            b[row] = (b[row] - known) / a[row][row];
        }
        for (b, scale) in b.iter_mut().zip(scale) {
            *b = if scale > 0.0 { *b / scale } else { 0.0 };
        }
        if b.iter().any(|b| !b.is_finite()) {
            return Err(Unfit::TooFew);
        }
        Ok(b)
    }
}

/// What was measured, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    const NOTHING: Self = Self {
        least: f64::INFINITY,
        most: 0.0,
    };

    fn add(&mut self, x: f64) {
        self.least = self.least.min(x);
        self.most = self.most.max(x);
    }

    /// How many of its own lengths `x` lies above it.
    fn beyond(&self, x: f64) -> f64 {
        ((x - self.most) / self.most.max(1.0)).max(0.0)
    }
}

/// Times of iterations alone, as they come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoloFit {
    sums: Sums<3>,
    batch: Range,
    cached: Range,
}

impl Default for SoloFit {
    fn default() -> Self {
        Self {
            sums: Sums::default(),
            batch: Range::NOTHING,
            cached: Range::NOTHING,
        }
    }
}

impl SoloFit {
    /// An iteration of `batch` requests with `cached` tokens between them took `ns`.
    pub fn add(&mut self, batch: u32, cached: u64, ns: f64) {
        let (batch, cached) = (f64::from(batch.max(PADDED)), cached as f64);
        self.sums.add([batch, 1.0, cached], ns);
        self.batch.add(batch);
        self.cached.add(cached);
    }

    /// Lets the past weigh `factor` of what it did.
    pub fn forget(&mut self, factor: f64) {
        self.sums.forget(factor);
    }

    /// Iterations seen.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.sums.samples()
    }

    /// The model.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn fit(&self) -> Result<Solo, Unfit> {
        let [per_request, constant, per_token] = self.sums.solve()?;
        // Rounding gives a little below zero where the truth is zero.
        let least = -1e-9 * constant.abs();
        if per_request < least || per_token < least || constant < 0.0 {
            return Err(Unfit::NotMonotone);
        }
        Ok(Solo {
            per_request: per_request.max(0.0),
            constant,
            per_token: per_token.max(0.0),
            batch: self.batch,
            cached: self.cached,
        })
    }
}

/// What an iteration takes by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solo {
    /// ns a request.
    pub per_request: f64,
    /// ns, whatever it holds.
    pub constant: f64,
    /// ns a cached token.
    pub per_token: f64,
    batch: Range,
    cached: Range,
}

impl Solo {
    /// ns of an iteration of `batch` requests with `cached` tokens between them. Never falls with
    /// either.
    #[must_use]
    pub fn predict(&self, batch: u32, cached: u64) -> f64 {
        let (batch, cached) = (f64::from(batch.max(PADDED)), cached as f64);
        let plain = self.constant + self.per_request * batch + self.per_token * cached;
        plain * (1.0 + INFLATION * (self.batch.beyond(batch) + self.cached.beyond(cached)))
    }
}

/// Times of iterations beside training, as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BesideFit(Sums<2>);

impl BesideFit {
    /// With these shares of the multiprocessors, of one, an iteration that takes `solo` ns with
    /// online's share alone took `ns`. Without a trainer there is nothing to learn.
    pub fn add(&mut self, online: f64, trainer: f64, solo: f64, ns: f64) {
        if trainer > 0.0 && solo > 0.0 {
            self.0.add([online, trainer], ns / solo);
        }
    }

    /// The model.
    ///
    /// # Errors
    /// [`Unfit`]: also when a larger trainer would be a better neighbour.
    pub fn fit(&self) -> Result<Beside, Unfit> {
        let [per_online, per_trainer] = self.0.solve()?;
        if per_trainer < 0.0 {
            return Err(Unfit::NotMonotone);
        }
        Ok(Beside {
            per_online,
            per_trainer,
        })
    }
}

/// How much longer an iteration takes beside training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// `b1` above.
    pub per_online: f64,
    /// `k1` above.
    pub per_trainer: f64,
}

impl Beside {
    /// ns of what takes `solo` ns with online's share alone; never less than that.
    #[must_use]
    pub fn predict(&self, online: f64, trainer: f64, solo: f64) -> f64 {
        if trainer <= 0.0 {
            return solo;
        }
        let factor = self.per_online * online + self.per_trainer * trainer;
        solo * factor.max(1.0)
    }
}

/// What is done, in no time yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes sent between GPUs.
    pub sent: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// What a GPU can do at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Multiplications and additions a second.
    pub flops: f64,
    /// Bytes a second between GPUs.
    pub sent: f64,
    /// Bytes a second from memory.
    pub bytes: f64,
}

/// Times of work on several GPUs, as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HardwareFit(Sums<3>);

impl HardwareFit {
    fn features(work: Work, peak: Peak) -> [f64; 3] {
        [
            work.flops / peak.flops,
            work.sent / peak.sent,
            work.bytes / peak.bytes,
        ]
    }

    /// `work` took `ns` on a GPU with `peak`.
    pub fn add(&mut self, work: Work, peak: Peak, ns: f64) {
        self.0.add(Self::features(work, peak), ns);
    }

    /// The model.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn fit(&self) -> Result<Hardware, Unfit> {
        let per = self.0.solve()?;
        if per.iter().any(|per| *per < 0.0) {
            return Err(Unfit::NotMonotone);
        }
        Ok(Hardware(per))
    }
}

/// What work takes on a GPU that nothing was measured on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware([f64; 3]);

impl Hardware {
    /// ns of `work` on a GPU with `peak`.
    #[must_use]
    pub fn predict(&self, work: Work, peak: Peak) -> f64 {
        let features = HardwareFit::features(work, peak);
        self.0.iter().zip(features).map(|(per, x)| per * x).sum()
    }
}
