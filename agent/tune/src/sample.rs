//! Samples as tokens, made by the engine's own tokenizer and chat template.

use crate::data::{Content, DataError, Learn, Line};
use crate::engine::{Engine, EngineError, Hello};
use serde::Deserialize;
use serde_json::{Value, json};

/// A sample as tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sample {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// For each token what its prediction counts: 0 or 1.
    pub weights: Vec<f64>,
}

/// Why a file did not become samples.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A line is no sample for this engine.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The engine does not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Sample {
    /// How many tokens are learnt.
    #[must_use]
    pub fn learnt(&self) -> f64 {
        self.weights.iter().skip(1).sum()
    }

    /// What the engine's `forward` takes: each position predicts the token after it, and counts `scale` times.
    #[must_use]
    pub fn datum(&self, scale: f64) -> Value {
        let inputs = &self.tokens[..self.tokens.len().saturating_sub(1)];
        let targets = self.tokens.get(1..).unwrap_or_default();
        let weights: Vec<f64> = self
            .weights
            .iter()
            .skip(1)
            .map(|weight| weight * scale)
            .collect();
        json!({"tokens": inputs, "targets": targets, "weights": weights})
    }
}

/// Has the engine encode the lines of a file.
///
/// # Errors
/// At the first line that the engine's template refuses, that is too long for the engine, or of which nothing is learnt.
pub async fn encode(
    engine: &Engine,
    hello: &Hello,
    file: &str,
    lines: &[Line],
    learn: Learn,
) -> Result<Vec<Sample>, SampleError> {
    let mut samples = Vec::with_capacity(lines.len());
    for line in lines {
        let wrong = |problem: String| {
            let (file, field) = (file.to_owned(), field(&line.content).to_owned());
            DataError {
                file,
                line: line.number,
                field,
                problem,
            }
        };
        let ask = match &line.content {
            Content::Messages(messages) => json!({"messages": messages, "learn": learn.word()}),
            Content::Text(text) => json!({"text": text, "learn": Learn::All.word()}),
        };
        let sample: Sample = match engine.call("encode", ask).await {
            Ok(sample) => sample,
            Err(EngineError::Refused { kind, message, .. }) if kind == "bad_request" => {
                Err(wrong(message))?
            }
            Err(error) => return Err(error.into()),
        };
        let (tokens, most) = (sample.tokens.len(), hello.max_model_len);
        if tokens != sample.weights.len() {
            let detail = format!("{tokens} tokens and {} weights", sample.weights.len());
            Err(EngineError::Answer {
                method: "encode",
                detail,
            })?;
        }
        if tokens > most {
            Err(wrong(format!(
                "{tokens} tokens, and the engine takes {most}; shorten the sample"
            )))?;
        }
        if sample.learnt() <= 0.0 {
            Err(wrong(
                "no token is learnt; give the assistant a turn with content, or learn all tokens"
                    .into(),
            ))?;
        }
        samples.push(sample);
    }
    Ok(samples)
}

const fn field(content: &Content) -> &'static str {
    match content {
        Content::Messages(_) => "messages",
        Content::Text(_) => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_position_predicts_the_next_token_and_the_first_is_never_learnt() {
        let sample = Sample {
            tokens: vec![5, 6, 7],
            weights: vec![1.0, 0.0, 1.0],
        };
        let datum = json!({"tokens": [5, 6], "targets": [6, 7], "weights": [0.0, 0.5]});
        assert_eq!(sample.datum(0.5), datum);
        assert!((sample.learnt() - 1.0).abs() < f64::EPSILON);
    }
}
