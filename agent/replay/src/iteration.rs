//! What an iteration takes: by coefficients, or put together from tables.
//!
//! An iteration is put together from the operators that it runs, as an engine batches them: what
//! every token passes is looked up by the tokens of the whole pass, attention by each prompt part
//! and by the decodes together.
//!
//! ```text
//!   decode = rest(b) + attention(b, K / b)
//!   mixed  = rest(T + b) + sum of attention(T_i, C_i) + attention(b, K / b)     at least the decode
//! ```
//!
//! Between the points of a table values are interpolated, linearly in both directions. Above the
//! last point attention grows with its work, T (T + 2 C) of a prompt part and b c of a decode, and
//! the rest goes on as between the last two; below the first it stays, since a kernel's start does.

use std::sync::Arc;

use crate::engine::CostModel;

/// What iterations of one model on one GPU take.
#[derive(Clone, Debug, PartialEq)]
pub enum Cost {
    /// By three coefficients each.
    Fit(CostModel),
    /// The same for a mixture of experts: the first coefficient is that of all its weights, of which a pass reads
    /// those
    /// that its tokens choose.
    Experts(CostModel, Mixture),
    /// By tables.
    Tables(Arc<Tables>),
}

/// Weights of which each token passes a part: all that is no expert, and the experts that it chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Share of the weights that are of experts.
    pub share: f64,
    /// Experts of a layer.
    pub experts: f64,
    /// How many of them a token chooses.
    pub chosen: f64,
}

impl Mixture {
    /// Share of the weights that a pass of so many tokens reads, each of which chooses by itself and evenly: an
    /// expert is
    /// left out by a token with 1 - k/E, so that E (1 - (1 - k/E)^n) experts are read on average. Real routers prefer
    /// some, and neighbouring tokens the same: they read fewer.
    #[must_use]
    pub fn read(&self, tokens: f64) -> f64 {
        let left_out = (1.0 - self.chosen / self.experts).powf(tokens.max(1.0));
        1.0 - self.share * left_out
    }
}

impl Cost {
    /// Attention of a prompt part of `new` tokens behind `cached` ones, milliseconds.
    #[must_use]
    pub fn attention_ms(&self, new: u32, cached: u32) -> f64 {
        let (new, cached) = (f64::from(new), f64::from(cached));
        match self {
            Self::Fit(fit) | Self::Experts(fit, _) => fit.prefill_ms[2] * area(new, cached),
            Self::Tables(tables) => tables.prefill.attention.at(new, cached),
        }
    }

    /// A pass of `decodes` requests with `context` cached tokens between them, milliseconds.
    #[must_use]
    pub fn decode_ms(&self, decodes: u32, context: u64) -> f64 {
        let (batch, context) = (f64::from(decodes), context as f64);
        match self {
            Self::Fit(fit) | Self::Experts(fit, _) => {
                let [d0, d1, d2] = fit.decode_ms;
                d0 * self.read(batch) + d1 * batch + d2 * context
            }
            Self::Tables(tables) => tables.decode.rest.at(batch) + tables.decoding(batch, context),
        }
    }

    /// A pass that reads `prompt` tokens, whose attention takes `attention_ms`, beside `decodes`
    /// requests with `context` cached tokens between them, milliseconds.
    #[must_use]
    pub fn prefill_ms(&self, prompt: u32, attention_ms: f64, decodes: u32, context: u64) -> f64 {
        let (batch, context) = (f64::from(decodes), context as f64);
        let tokens = f64::from(prompt) + batch;
        attention_ms
            + match self {
                Self::Fit(fit) | Self::Experts(fit, _) => {
                    let [p0, p1, _] = fit.prefill_ms;
                    p0 * self.read(tokens) + p1 * tokens + fit.decode_ms[2] * context
                }
                Self::Tables(tables) => {
                    tables.prefill.rest.at(tokens) + tables.decoding(batch, context)
                }
            }
    }

    /// The share of all weights that a pass of so many tokens reads.
    fn read(&self, tokens: f64) -> f64 {
        match self {
            Self::Experts(_, mixture) => mixture.read(tokens),
            Self::Fit(_) | Self::Tables(_) => 1.0,
        }
    }

    /// Where it is from, in a word.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        match self {
            Self::Fit(_) | Self::Experts(..) => "fit",
            Self::Tables(_) => "tables",
        }
    }
}

/// The multiplications of attention of a prompt part, in no unit.
fn area(new: f64, cached: f64) -> f64 {
    new * (new + 2.0 * cached)
}

/// Both tables of one model on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    pub(crate) prefill: Table,
    pub(crate) decode: Table,
}

impl Tables {
    fn decoding(&self, batch: f64, context: f64) -> f64 {
        if batch > 0.0 {
            self.decode.attention.at(batch, context / batch)
        } else {
            0.0
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    /// By the tokens of a pass: all but attention.
    rest: Curve,
    attention: Grid,
}

/// Points by one coordinate, ascending; never empty.
#[derive(Clone, Debug, PartialEq)]
struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// The points around `x` and how far it is from the first to the second.
    fn around(&self, x: f64) -> (usize, usize, f64) {
        let last = self.0.len() - 1;
        let above = self.0.partition_point(|(at, _)| *at < x).min(last);
        let below = above.saturating_sub(1);
        let (low, high) = (self.0[below].0, self.0[above].0);
        let share = if high > low && x > low {
            (x - low) / (high - low)
        } else {
            0.0
        };
        (below, above, share)
    }

    /// Above the last point as between the last two, below the first as there.
    fn at(&self, x: f64) -> f64 {
        let (below, above, share) = self.around(x);
        let (low, high) = (self.0[below].1, self.0[above].1);
        low + (high - low) * share
    }
}

/// What attention grows with beyond the points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// New and cached tokens of a prompt part.
    Prompt,
    /// Requests and cached tokens of each.
    Decode,
}

impl Work {
    fn of(self, x: f64, y: f64) -> f64 {
        match self {
            Self::Prompt => area(x, y),
            Self::Decode => x * y,
        }
    }
}

/// Curves by a first coordinate, ascending; never empty.
#[derive(Clone, Debug, PartialEq)]
struct Grid {
    first: Curve,
    second: Vec<Curve>,
    work: Work,
}

impl Grid {
    fn at(&self, x: f64, y: f64) -> f64 {
        let points = &self.first.0;
        let within = x.clamp(points[0].0, points[points.len() - 1].0);
        let (below, above, share) = self.first.around(within);
        let low = self.on(below, y);
        let value = low + (self.on(above, y) - low) * share;
        if x > within {
            value * self.work.of(x, y) / self.work.of(within, y)
        } else {
            value
        }
    }

    /// At the `row`th point of the first coordinate.
    fn on(&self, row: usize, y: f64) -> f64 {
        let curve = &self.second[row];
        let last = curve.0[curve.0.len() - 1].0;
        let value = curve.at(y.min(last));
        let (at, held) = (self.first.0[row].0, self.work.of(self.first.0[row].0, last));
        if y > last && held > 0.0 {
            value * self.work.of(at, y) / held
        } else {
            value
        }
    }
}

/// One row of a table: coordinates, attention and all, the latter in milliseconds.
pub(crate) type Point = ([f64; 2], f64, f64);
impl Table {
    pub(crate) fn of(points: &[Point], work: Work) -> Self {
        let mut rest: Vec<(f64, f64)> = Vec::new();
        let mut second: Vec<Curve> = Vec::new();
        for ([x, y], attention, total) in points {
            match (rest.last(), second.last_mut()) {
                (Some(last), Some(curve)) if last.0 >= *x => curve.0.push((*y, *attention)),
                _ => {
                    rest.push((*x, total - attention));
                    second.push(Curve(vec![(*y, *attention)]));
                }
            }
        }
        Self {
            attention: Grid {
                first: Curve(rest.clone()),
                second,
                work,
            },
            rest: Curve(rest),
        }
    }
}
