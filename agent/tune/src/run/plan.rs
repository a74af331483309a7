//! What a run is asked to do.

use crate::lora::Lora;
use crate::order::steps_of_epoch;
use crate::rate::Schedule;
use crate::sample::Sample;
use serde::{Deserialize, Serialize};

/// When new requests for the adapter's name get newer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Publish {
    /// After every so many steps, and at the end.
    Every(u64),
    /// After this step, and never again.
    Step(u64),
    /// At the end.
    End,
}

impl Publish {
    /// Whether this step's weights are published; the first is 1.
    #[must_use]
    pub const fn due(self, step: u64) -> bool {
        match self {
            Self::Every(steps) => step.is_multiple_of(steps),
            Self::Step(wanted) => step == wanted,
            Self::End => false,
        }
    }

    /// Whether the finished adapter is.
    #[must_use]
    pub const fn at_end(self) -> bool {
        !matches!(self, Self::Step(_))
    }
}

/// What a run is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the adapter, under which the engine answers requests.
    pub name: String,
    /// The adapter.
    pub lora: Lora,
    /// Share of training beside other adapters: 0.1 to 100.
    pub weight: f64,
    /// Seed of the first weights and of the order of samples.
    pub seed: u64,
    /// How often each sample is learnt from; 1 or more.
    pub epochs: u64,
    /// Samples of a step; 1 or more.
    pub batch: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// `AdamW`'s decay of weights.
    pub weight_decay: f64,
    /// Largest norm of a gradient; a longer one is scaled down.
    pub clip: f64,
    /// When weights are published.
    pub publish: Publish,
    /// Steps from one checkpoint to the next; 1 or more.
    pub save_every: u64,
    /// Steps from one run through the validation file to the next; 1 or more.
    pub validate_every: u64,
}

impl Plan {
    /// How many steps it takes.
    #[must_use]
    pub const fn steps(&self, samples: usize) -> u64 {
        steps_of_epoch(samples, self.batch) * self.epochs
    }

    /// Tells this plan from others: a CRC of its text. Plans are not compared themselves, as the parser of JSON may
    /// change the last bit of a number.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let text = serde_json::to_string(self).unwrap_or_default();
        crc32fast::hash(text.as_bytes())
    }
}

/// What a run learns from.
#[derive(Clone, Debug)]
pub struct Material {
    /// The samples; one or more.
    pub samples: Vec<Sample>,
    /// Those of the validation file.
    pub validation: Vec<Sample>,
}

impl Material {
    /// Tells these samples from others: a CRC of all tokens and weights.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        for sample in self.samples.iter().chain(&self.validation) {
            crc.update(&sample.tokens.len().to_le_bytes());
            for token in &sample.tokens {
                crc.update(&token.to_le_bytes());
            }
            for weight in &sample.weights {
                crc.update(&weight.to_le_bytes());
            }
        }
        crc.finalize()
    }
}
