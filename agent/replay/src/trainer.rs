//! A finetuning job in units: one layer of one window of tokens, forward or backward.
//!
//! A sample goes forward window by window through all layers, and backward layer by layer through
//! its windows, from the last; a step is so many samples and one pass of the optimizer over the
//! adapter. Backward makes the layer again and differentiates it: twice the forward's work.
//!
//! ```text
//!   forward unit   max( (p1 s + attention(s, l)) x (1 + adapter), one reading of the weights ) / layers
//!   backward unit  twice that
//! ```
//!
//! with `p1` what a prompt token takes. A window shorter than what one reading of the weights takes
//! to compute pays for the reading all the same, so that small windows train fewer tokens a second.
//!
//! Tokens count when their sample's last backward unit is done, and once, whatever was done again.

pub mod room;

use crate::hardware::{Gpu, Model, Shape};
use crate::iteration::Cost;
use tidegate_device::sharing::Demand;

/// What is trained.
#[derive(Clone, Debug)]
pub struct Finetune {
    /// The frozen model.
    pub model: Model,
    /// Rank of the adapter.
    pub rank: u32,
    /// Tokens of a sample.
    pub length: u32,
    /// Tokens of a window.
    pub window: u32,
    /// Samples of a step.
    pub samples: u32,
}

/// Tokens of a window unless told otherwise: on the GPUs known, about twice what hides the reading
/// of the weights.
pub const WINDOW: u32 = 512;
/// Samples of a step unless told otherwise (HARLI, section 8.2: a batch of 16).
pub const SAMPLES: u32 = 16;

/// A finetuning job that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinetuneError {
    /// The rank.
    #[error("rank {rank} is not from 1 to {hidden}, the hidden size of {model}")]
    Rank {
        /// What was asked for.
        rank: u32,
        /// The most there can be.
        hidden: u32,
        /// Of this model.
        model: String,
    },
    /// The length.
    #[error("samples of {length} tokens are not from 2 to {most}, the context of {model}")]
    Length {
        /// What was asked for.
        length: u32,
        /// The most there can be.
        most: u32,
        /// Of this model.
        model: String,
    },
    /// The description.
    #[error(
        "{given:?} is no finetuning job; write MODEL[:r=RANK][,length=TOKENS], such as {EXAMPLE}"
    )]
    Words {
        /// What was asked for.
        given: String,
    },
}

/// A description that is one.
pub const EXAMPLE: &str = "llama-3.1-8b:r=16,length=2048";
/// Context of the models known, tokens (Llama 3.1: 131,072; Qwen 2.5 7B: 131,072 with YaRN).
pub const CONTEXT: u32 = 131_072;

/// `r` and `length` of `MODEL:r=..,length=..`, and the model's part.
///
/// # Errors
/// [`FinetuneError::Words`].
pub fn words(given: &str) -> Result<(&str, u32, u32), FinetuneError> {
    let wrong = || FinetuneError::Words {
        given: given.to_owned(),
    };
    // A model of one's own has a colon of its own: `custom:layers=..`.
    let (model, rest) = match given.rsplit_once(':') {
        Some((model, rest)) if rest.starts_with("r=") || rest.starts_with("length=") => {
            (model, rest)
        }
        _ => (given, ""),
    };
    let (mut rank, mut length) = (16, 2_048);
    for part in rest.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let value = value.parse().map_err(|_| wrong())?;
        match name {
            "r" => rank = value,
            "length" => length = value,
            _ => return Err(wrong()),
        }
    }
    Ok((model, rank, length))
}

impl Finetune {
    /// A job with the usual windows and steps.
    ///
    /// # Errors
    /// [`FinetuneError`].
    pub fn new(model: Model, rank: u32, length: u32) -> Result<Self, FinetuneError> {
        let hidden = model.shape.hidden;
        if rank == 0 || rank > hidden {
            let model = model.name;
            return Err(FinetuneError::Rank {
                rank,
                hidden,
                model,
            });
        }
        if !(2..=CONTEXT).contains(&length) {
            return Err(FinetuneError::Length {
                length,
                most: CONTEXT,
                model: model.name,
            });
        }
        Ok(Self {
            model,
            rank,
            length,
            window: WINDOW.min(length),
            samples: SAMPLES,
        })
    }

    /// Parameters of an adapter on every matrix of every layer.
    #[must_use]
    pub fn adapter_parameters(&self) -> u64 {
        let Shape {
            layers,
            hidden,
            heads,
            kv_heads,
            inner,
            ..
        } = self.model.shape;
        let [layers, hidden, heads, kv_heads, inner, rank] =
            [layers, hidden, heads, kv_heads, inner, self.rank].map(u64::from);
        let kv = kv_heads * (hidden / heads.max(1));
        // q, o; k, v; gate, up, down: in and out of each.
        let sides = 2 * 2 * hidden + 2 * (hidden + kv) + 3 * (hidden + inner);
        layers * rank * sides
    }

    /// Bytes that a sample holds from its forward to its backward: inputs, keys and values of every layer.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let shape = &self.model.shape;
        let inputs = 2 * u64::from(shape.layers) * u64::from(shape.hidden);
        u64::from(self.length) * (inputs + shape.kv_bytes_per_token())
    }

    /// Tokens trained a second with `gpu` to itself.
    #[must_use]
    pub fn dedicated(&self, gpu: &Gpu) -> f64 {
        let trainer = Trainer::new(self, gpu, 1);
        f64::from(self.length) / (trainer.sample_ns() / 1e9)
    }
}

/// What the next unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Forward through a layer.
    Forward,
    /// Backward through a layer.
    Backward,
    /// The optimizer, once a step.
    Optimizer,
}

/// A unit of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// What it is.
    pub phase: Phase,
    /// Its place among the windows.
    pub window: u32,
    /// What it takes of the whole GPU.
    pub demand: Demand,
}

/// The job as it goes.
#[derive(Clone, Debug)]
pub struct Trainer {
    layers: u32,
    length: u32,
    window: u32,
    samples: u32,
    forward: Vec<Demand>,
    held_most: u32,
    /// Forward of the sample that is next: tokens, and layers of the window that begins there.
    tokens: u32,
    layer: u32,
    /// Samples that went forward and not backward.
    ahead: u32,
    /// Samples of this step that went forward.
    begun: u32,
    /// Backward: layers and windows done of the oldest.
    back: (u32, u32),
    /// Samples of this step that are done.
    ended: u32,
    /// Part of the unit under way that is done, from 0 to 1.
    part: f64,
    rates: Rates,
    /// So far.
    pub totals: Totals,
}

/// What training costs on this GPU.
#[derive(Clone, Debug)]
struct Rates {
    cost: Cost,
    /// Part of the forward's work that the adapter adds.
    adapter: f64,
    per_token_ms: f64,
    weights_ns: f64,
    optimizer_ns: f64,
}

/// What was trained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Tokens trained.
    pub trained: u64,
    /// Steps of the optimizer.
    pub steps: u64,
    /// Units done.
    pub units: u64,
    /// Tokens of a layer done again.
    pub redone: u64,
    /// What units and tokens in others' passes take alone, all that were done, ns.
    pub alone_ns: f64,
}

impl Trainer {
    /// A job at its start, that may hold `held_most` samples between forward and backward.
    #[must_use]
    pub fn new(job: &Finetune, gpu: &Gpu, held_most: u32) -> Self {
        let cost = job.model.cost.clone();
        // The slope where reading the weights no longer counts.
        let per_token_ms =
            (cost.prefill_ms(4_096, 0.0, 0, 0) - cost.prefill_ms(2_048, 0.0, 0, 0)) / 2_048.0;
        let parameters = job.adapter_parameters();
        let bytes = 16.0 * parameters as f64;
        let mut trainer = Self {
            layers: job.model.shape.layers.max(1),
            length: job.length,
            window: job.window.clamp(1, job.length),
            samples: job.samples.max(1),
            rates: Rates {
                adapter: parameters as f64 / job.model.shape.parameters() as f64,
                per_token_ms,
                weights_ns: cost.decode_ms(1, 0) * 1e6,
                // Gradient, two moments and weight, in and out, four and two bytes each: 16 a parameter.
                optimizer_ns: bytes / gpu.memory_bytes_per_s * 1e9,
                cost,
            },
            forward: Vec::new(),
            held_most: held_most.max(1),
            tokens: 0,
            layer: 0,
            ahead: 0,
            begun: 0,
            back: (0, 0),
            ended: 0,
            part: 0.0,
            totals: Totals::default(),
        };
        let windows = 0..trainer.windows();
        trainer.forward = windows
            .map(|window| trainer.window_demand(window))
            .collect();
        trainer
    }

    fn windows(&self) -> u32 {
        self.length.div_ceil(self.window)
    }

    /// Forward through one layer.
    fn window_demand(&self, window: u32) -> Demand {
        let begin = window * self.window;
        let tokens = self.window.min(self.length - begin);
        let layers = f64::from(self.layers);
        Demand {
            compute_ns: self.compute_ns(tokens, begin) / layers,
            memory_ns: self.rates.weights_ns / layers,
        }
    }

    /// Computing of `tokens` behind `before` of the same sample through all layers, ns.
    #[must_use]
    pub fn compute_ns(&self, tokens: u32, before: u32) -> f64 {
        let attention = self.rates.cost.attention_ms(tokens, before);
        let ms =
            self.rates.per_token_ms * f64::from(tokens) * (1.0 + self.rates.adapter) + attention;
        ms * 1e6
    }

    /// A whole sample alone, without the optimizer's part, ns.
    #[must_use]
    pub fn sample_ns(&self) -> f64 {
        let forward = self.forward.iter().map(Demand::alone_ns).sum::<f64>();
        3.0 * forward * f64::from(self.layers) + self.rates.optimizer_ns / f64::from(self.samples)
    }

    /// The backward of a window is to be run next, or an optimizer's step: no forward could be.
    #[must_use]
    pub fn wants_backward(&self) -> bool {
        self.ahead > 0 || self.ended == self.samples
    }

    /// Forward tokens that may ride in another's pass: none while a layer is half done, and none once as many samples
    /// are held as may be or the step has no more.
    #[must_use]
    pub fn forward_tokens(&self) -> u32 {
        let room = self.ahead < self.held_most && self.begun < self.samples;
        let whole = self.part <= 0.0 || self.wants_backward();
        if room && whole {
            self.length - self.forwarded()
        } else {
            0
        }
    }

    /// Tokens of the sample that went forward. A window that went through some of its layers counts for as many
    /// tokens as that is work.
    #[must_use]
    pub fn forwarded(&self) -> u32 {
        let window = self.window.min(self.length - self.tokens);
        let done = u64::from(window) * u64::from(self.layer) / u64::from(self.layers);
        self.tokens + done as u32
    }

    /// The unit that is next when units run by themselves: the oldest sample's backward, else forward.
    #[must_use]
    pub fn unit(&self) -> Unit {
        if self.ended == self.samples {
            return Unit {
                phase: Phase::Optimizer,
                window: 0,
                demand: Demand {
                    compute_ns: 0.0,
                    memory_ns: self.rates.optimizer_ns,
                },
            };
        }
        if self.ahead > 0 {
            let window = self.windows() - 1 - self.back.1;
            let Demand {
                compute_ns,
                memory_ns,
            } = self.forward[window as usize];
            return Unit {
                phase: Phase::Backward,
                window,
                demand: Demand {
                    compute_ns: 2.0 * compute_ns,
                    memory_ns: 2.0 * memory_ns,
                },
            };
        }
        let window = self.tokens / self.window;
        Unit {
            phase: Phase::Forward,
            window,
            demand: self.forward[window as usize],
        }
    }

    /// Part of the unit under way that is left, from 0 to 1.
    #[must_use]
    pub fn left(&self) -> f64 {
        1.0 - self.part
    }

    /// A part of the unit is done.
    pub fn progress(&mut self, part: f64) {
        self.totals.alone_ns += part * self.unit().demand.alone_ns();
        self.part = (self.part + part).min(1.0);
    }

    /// The unit is done.
    pub fn done(&mut self) {
        let unit = self.unit();
        self.totals.alone_ns += self.left() * unit.demand.alone_ns();
        self.part = 0.0;
        self.totals.units += 1;
        match unit.phase {
            Phase::Optimizer => {
                self.totals.steps += 1;
                (self.begun, self.ended) = (0, 0);
            }
            Phase::Backward => {
                self.back.1 += 1;
                if self.back.1 < self.windows() {
                    return;
                }
                self.back = (self.back.0 + 1, 0);
                if self.back.0 == self.layers {
                    self.back = (0, 0);
                    self.ahead -= 1;
                    self.ended += 1;
                    self.totals.trained += u64::from(self.length);
                }
            }
            Phase::Forward => {
                self.layer += 1;
                if self.layer == self.layers {
                    self.layer = 0;
                    // What was fused may have begun inside the window: its rest was run whole.
                    let end = (unit.window + 1) * self.window;
                    self.tokens = end.min(self.length);
                    self.end_forward();
                }
            }
        }
    }

    fn end_forward(&mut self) {
        if self.tokens == self.length {
            self.tokens = 0;
            self.ahead += 1;
            self.begun += 1;
        }
    }

    /// `tokens` went forward through all layers in a pass of online's.
    pub fn fused(&mut self, tokens: u32) {
        let tokens = tokens.min(self.forward_tokens());
        if tokens == 0 {
            return;
        }
        let before = self.forwarded();
        self.totals.alone_ns += self.compute_ns(tokens, before);
        (self.tokens, self.layer) = (before + tokens, 0);
        self.end_forward();
    }

    /// Whole samples that fit into `ns`, where nothing is under way: done at once, and the rest of `ns`.
    /// Nothing where a step ends before.
    pub fn whole_samples(&mut self, ns: f64) -> f64 {
        let fresh = self.tokens == 0
            && self.layer == 0
            && self.ahead == 0
            && self.part <= 0.0
            && self.begun == self.ended
            && self.ended < self.samples;
        if !fresh {
            return ns;
        }
        let forward = self.forward.iter().map(Demand::alone_ns).sum::<f64>();
        let sample = 3.0 * forward * f64::from(self.layers);
        let fit = (ns / sample) as u32;
        let samples = fit.min(self.samples - self.ended);
        self.begun += samples;
        self.ended += samples;
        self.totals.trained += u64::from(samples) * u64::from(self.length);
        self.totals.units += u64::from(samples) * u64::from(2 * self.layers * self.windows());
        self.totals.alone_ns += sample * f64::from(samples);
        ns - sample * f64::from(samples)
    }

    /// Memory that a layer under way held was taken: the layer is done again.
    pub fn lose_layer(&mut self) {
        self.part = 0.0;
        if self.ahead > 0 {
            self.totals.redone += u64::from(self.back.1 * self.window);
            self.back.1 = 0;
        } else if self.layer > 0 {
            self.totals.redone += u64::from(self.window);
            self.layer -= 1;
        }
    }

    /// Samples that are held, wholly or in part.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.ahead + u32::from(self.tokens > 0 || self.layer > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{A100, H200};
    use proptest::prelude::*;

    fn job(length: u32) -> Finetune {
        let model = Model::named(&H200, "llama-3.1-8b").expect("a fit");
        Finetune::new(model, 16, length).expect("a job")
    }

    #[test]
    fn a_dedicated_gpu_trains_what_its_prompt_costs_say() {
        // A third of 1 / 0.0199 ms is 16.8 thousand; attention and the adapter take some of it.
        let h200 = job(2_048).dedicated(&H200);
        assert!((15_500.0..16_800.0).contains(&h200), "{h200}");
        let model = Model::named(&A100, "llama-3.1-8b").expect("a fit");
        let a100 = Finetune::new(model, 16, 2_048)
            .expect("a job")
            .dedicated(&A100);
        assert!((5_500.0..6_200.0).contains(&a100), "{a100}");
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let model = || Model::named(&H200, "llama-3.1-8b").expect("a fit");
        let told = |rank, length| {
            Finetune::new(model(), rank, length)
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(
            told(0, 100),
            "rank 0 is not from 1 to 4096, the hidden size of llama-3.1-8b"
        );
        assert!(told(5_000, 100).starts_with("rank 5000"));
        assert!(told(8, 200_000).contains("from 2 to 131072"));
        assert_eq!(
            words("llama-3.1-8b:r=8,length=64"),
            Ok(("llama-3.1-8b", 8, 64))
        );
        assert_eq!(
            words("custom:layers=2,hidden=8,heads=2:length=9"),
            Ok(("custom:layers=2,hidden=8,heads=2", 16, 9))
        );
        for odd in ["m:r=x", "m:r=", "m:r=1,rank=2"] {
            assert!(words(odd).is_err(), "{odd}");
        }
    }

    proptest! {
        /// Units, fused tokens, losses and whole samples in any order: every sample counts once.
        #[test]
        fn every_sample_counts_once(
            length in 2u32..3_000, steps in prop::collection::vec((0u8..8, 0u32..600, 0.0f64..1.0), 1..2_000), held in 1u32..5,
        ) {
            let mut job = job(length);
            job.model.shape.layers = 4;
            job.samples = 3;
            let mut trainer = Trainer::new(&job, &H200, held);
            let (mut forward, mut samples, mut work) = (0u64, 0u64, 0f64);
            for (what, tokens, part) in steps {
                let before = trainer.clone();
                match what {
                    0 | 1 => {
                        let tokens = tokens.min(trainer.forward_tokens());
                        trainer.fused(tokens);
                        forward += u64::from(tokens);
                    }
                    2 => trainer.lose_layer(),
                    3 => trainer.progress(part),
                    4 => drop(trainer.whole_samples(part * 1e10)),
                    _ => trainer.done(),
                }
                prop_assert!(trainer.held() <= held + 1);
                prop_assert!(trainer.totals.trained.is_multiple_of(u64::from(length)));
                prop_assert!(trainer.totals.trained >= before.totals.trained);
                samples = trainer.totals.trained / u64::from(length);
                prop_assert!(samples / 3 >= trainer.totals.steps && samples <= 3 * (trainer.totals.steps + 1));
                work += trainer.unit().demand.alone_ns();
            }
            prop_assert!(work > 0.0);
            prop_assert!(forward <= (samples + u64::from(held) + 1) * u64::from(length));
        }
    }
}
