//! Which adapter is trained.

use crate::engine::Hello;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A LoRA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Its rank.
    pub rank: u32,
    /// Its scale: the product of its matrices counts `alpha / rank` times.
    pub alpha: f64,
    /// The matrices that it changes, by the names of PEFT. Empty: all that the engine can train but the output matrix.
    pub targets: Vec<String>,
}

/// The output matrix, which is trained only if it is named.
pub const HEAD: &str = "lm_head";

impl Lora {
    /// Reads `r=16,alpha=32,modules=q_proj+v_proj`. Without `alpha` it is twice the rank.
    ///
    /// # Errors
    /// In words for a user, with what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        const ACCEPTED: &str = "expected r=N,alpha=X,modules=NAME+NAME";
        let (mut rank, mut alpha, mut targets) = (None, None, Vec::new());
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word}: {ACCEPTED}"))?;
            match name {
                "r" => {
                    let number = value.parse().ok().filter(|rank| (1..=4096).contains(rank));
                    rank =
                        Some(number.ok_or_else(|| {
                            format!("r={value}: expected a number from 1 to 4096")
                        })?);
                }
                "alpha" => {
                    let number = value
                        .parse()
                        .ok()
                        .filter(|alpha| *alpha > 0.0 && f64::is_finite(*alpha));
                    alpha = Some(
                        number
                            .ok_or_else(|| format!("alpha={value}: expected a number above 0"))?,
                    );
                }
                "modules" => targets = value.split('+').map(str::to_owned).collect(),
                "dropout" if value.parse() == Ok(0.0) => {}
                "dropout" => {
                    return Err(format!(
                        "dropout={value}: a LoRA in a serving engine has no dropout; leave it out"
                    ));
                }
                _ => return Err(format!("{name}: {ACCEPTED}")),
            }
        }
        let rank: u32 = rank.unwrap_or(16);
        Ok(Self {
            rank,
            alpha: alpha.unwrap_or(f64::from(2 * rank)),
            targets,
        })
    }

    /// The same with its matrices named, if the engine can train it.
    ///
    /// # Errors
    /// In words for a user, with what the engine can train.
    pub fn fitted(mut self, engine: &Hello) -> Result<Self, String> {
        if self.rank > engine.max_rank {
            return Err(format!(
                "r={}: the engine was started for ranks up to {}; start it with --max-lora-rank {}",
                self.rank, engine.max_rank, self.rank
            ));
        }
        if let Some(unknown) = self
            .targets
            .iter()
            .find(|name| !engine.targets.contains(name))
        {
            let known = engine.targets.join("+");
            return Err(format!("modules={unknown}: the engine trains {known}"));
        }
        if self.targets.is_empty() {
            self.targets = engine
                .targets
                .iter()
                .filter(|name| *name != HEAD)
                .cloned()
                .collect();
        }
        Ok(self)
    }

    /// The fields of `open` for an adapter of this name.
    #[must_use]
    pub fn open(&self, name: &str, seed: u64, weight: f64) -> Value {
        json!({"adapter": name, "rank": self.rank, "alpha": self.alpha, "targets": self.targets, "seed": seed,
            "weight": weight})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> Hello {
        let targets = ["q_proj", "v_proj", HEAD].map(str::to_owned).to_vec();
        let (model, adapters) = ("base".into(), Vec::new());
        Hello {
            version: 1,
            model,
            max_model_len: 64,
            max_rank: 32,
            slots: 2,
            slots_free: 2,
            targets,
            adapters,
        }
    }

    #[test]
    fn words_are_read_and_defaults_filled_in() {
        let lora = Lora::parse("r=8").unwrap().fitted(&engine()).unwrap();
        assert_eq!((lora.rank, lora.alpha), (8, 16.0));
        assert_eq!(lora.targets, ["q_proj", "v_proj"]);
        let lora = Lora::parse("r=4,alpha=2.5,modules=lm_head+q_proj").unwrap();
        assert_eq!((lora.alpha, lora.targets.len()), (2.5, 2));
    }

    #[test]
    fn what_cannot_be_trained_is_refused_with_what_can() {
        for (words, told) in [
            ("r", "r: expected r=N,alpha=X,modules=NAME+NAME"),
            ("r=0", "r=0: expected a number from 1 to 4096"),
            ("alpha=nan", "alpha=nan: expected a number above 0"),
            ("rank=4", "rank: expected r=N,alpha=X,modules=NAME+NAME"),
            (
                "dropout=0.1",
                "dropout=0.1: a LoRA in a serving engine has no dropout; leave it out",
            ),
            (
                "r=64",
                "r=64: the engine was started for ranks up to 32; start it with --max-lora-rank 64",
            ),
            (
                "modules=w1",
                "modules=w1: the engine trains q_proj+v_proj+lm_head",
            ),
        ] {
            assert_eq!(
                Lora::parse(words)
                    .and_then(|lora| lora.fitted(&engine()))
                    .unwrap_err(),
                told
            );
        }
    }
}
