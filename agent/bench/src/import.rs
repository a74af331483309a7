//! Results of other tools, as blocks.
//!
//! | tool | file | recognised by | from |
//! |---|---|---|---|
//! | guidellm | `benchmarks.json` of one rate | `benchmarks` | requests |
//! | aiperf | `profile_export.jsonl` | a record with `metadata` and `metrics` | requests |
//! | aiperf | `profile_export_aiperf.json` | `time_to_first_token` with `unit` | sums |
//! | vLLM | `vllm bench serve --save-result` | `completed` and `duration` | sums, with `--save-detailed` requests |
//!
//! Field names are as published in:
//!
//! * guidellm 0.8.1 (PyPI, <https://github.com/vllm-project/guidellm>): `benchmark/schemas/report.py`,
//!   `schemas/base/request_stats.py`;
//! * aiperf 0.13.0 (PyPI): <https://docs.nvidia.com/aiperf/v0.13.0/reference/json-export-schema> (schema 1.4) and
//!   `docs/tutorials/working-with-profile-exports.md` of <https://github.com/ai-dynamo/aiperf>;
//! * vLLM: `vllm/benchmarks/serve.py` of <https://github.com/vllm-project/vllm> at commit 009e6d4a1cd6.
//!
//! TPOT is the same here as in the own generator: from the first token to the last, over all tokens but the first. That
//! is guidellm's `inter_token_latency_ms` (its `time_per_output_token_ms` has the first token in it), aiperf's
//! `inter_token_latency` and vLLM's `tpot`.

mod aiperf;
mod field;
mod guidellm;
mod outcome;
mod vllm;

use crate::block::Bounds;
use crate::plan::Mode;
use field::Field;
pub use outcome::{ImportError, Imported};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Largest file that is read.
const LARGEST: u64 = 2 << 30;

/// A file, and what offline did while it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What offline did.
    pub mode: Mode,
    /// The results.
    pub file: PathBuf,
}

impl Named {
    /// Of `MODE=FILE` or `FILE`. Without a mode nothing is known of offline.
    ///
    /// # Errors
    /// When there is no such mode, or no file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mode, file) = match text.split_once('=') {
            Some((name, file)) if !name.contains(['/', '.']) => {
                let mode = Mode::named(name).ok_or_else(|| {
                    format!("`{name}` is no mode; give alone, drained, ungated, gated or one-engine, as in gated=results.json")
                })?;
                (mode, file)
            }
            _ => (Mode::Alone, text),
        };
        if file.is_empty() {
            return Err("a file is missing".to_owned());
        }
        Ok(Self {
            mode,
            file: file.into(),
        })
    }
}

/// Reads the results in a file.
///
/// # Errors
/// When they are of no known format, or not whole.
pub fn read(named: &Named, bounds: &Bounds) -> Result<Imported, ImportError> {
    let failed = |why: String| ImportError::Read {
        file: named.file.clone(),
        why,
    };
    let about = std::fs::metadata(&named.file).map_err(|error| failed(error.to_string()))?;
    if about.len() > LARGEST {
        return Err(failed("it is larger than 2 GiB".to_owned()));
    }
    let text = std::fs::read_to_string(&named.file).map_err(|error| failed(error.to_string()))?;
    let mut imported = parse(&named.file, &text, bounds)?;
    imported.block.mode = Some(named.mode);
    Ok(imported)
}

/// Reads the results in the text of `file`, whose name is only used in words.
///
/// # Errors
/// As [`read`].
pub fn parse(file: &Path, text: &str, bounds: &Bounds) -> Result<Imported, ImportError> {
    let not_json = |line: usize, error: &serde_json::Error| ImportError::Json {
        file: file.to_owned(),
        line,
        why: error.to_string(),
    };
    let unknown = || ImportError::Format {
        file: file.to_owned(),
    };
    // One object, or one a line.
    let records: Vec<(usize, Value)> = match serde_json::from_str(text) {
        Ok(value) => vec![(1, value)],
        Err(error) => {
            let lines = text
                .lines()
                .zip(1..)
                .filter(|(line, _)| !line.trim().is_empty());
            let parsed = lines.map(|(line, number)| {
                Ok((number, serde_json::from_str(line).map_err(|e| (number, e))?))
            });
            let parsed: Result<Vec<(usize, Value)>, (usize, serde_json::Error)> = parsed.collect();
            match parsed {
                Ok(records) if !records.is_empty() => records,
                // Where the whole text fails is the better place, unless its first line is an object.
                Err((number, inner)) if number > 1 => return Err(not_json(number, &inner)),
                _ => return Err(not_json(error.line().max(1), &error)),
            }
        }
    };
    let roots: Vec<Field<'_>> = records
        .iter()
        .map(|(line, value)| Field::root(file, *line, value))
        .collect();
    let Some(first) = roots.first() else {
        return Err(unknown());
    };
    let mut imported = if first.has("benchmarks") {
        guidellm::block(first, bounds)
    } else if first.has("metadata") && first.has("metrics") {
        aiperf::of_records(&roots, bounds)
    } else if first.has("time_to_first_token") || first.has("aiperf_version") {
        aiperf::of_sums(first, bounds)
    } else if first.has("completed") && first.has("duration") {
        vllm::block(&roots, bounds)
    } else {
        return Err(unknown());
    }?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    imported.block.source = format!("{} ({name})", imported.block.source);
    for note in &mut imported.notes {
        *note = format!("{name}: {note}");
    }
    Ok(imported)
}

#[cfg(test)]
mod tests;
