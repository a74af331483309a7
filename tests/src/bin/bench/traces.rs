//! The traces that `headroom` and `selection` go over.

use std::path::PathBuf;
use std::time::Duration;
use tidegate_replay::generator::PRESETS;
use tidegate_replay::input::InputError;
use tidegate_replay::trace::{self, Trace};
use tidegate_tests::memory::demand;

/// Longest busy share of a trace on one GPU before it is thinned: beyond, requests only pile up.
const BUSY: f64 = 0.9;

/// Reads the traces, thinned until one GPU can serve them; generates some if none is named.
pub fn load(files: &[PathBuf]) -> Result<Vec<(String, Trace)>, InputError> {
    if files.is_empty() {
        let generated = PRESETS.map(|preset| {
            let trace = preset.generate(1, Duration::from_secs(3_600));
            (preset.name.to_owned(), trace)
        });
        return Ok(generated.into());
    }
    let named = files.iter().map(|file| {
        let (name, whole) = (file.file_name().unwrap_or_default(), trace::read(file)?);
        let name = name
            .to_string_lossy()
            .replace(".csv", "")
            .replace(".gz", "");
        let factor = (1..=64).find(|factor| demand::busy(&whole.thin(*factor)) <= BUSY);
        Ok(match factor {
            Some(1) => (name, whole),
            factor => {
                let factor = factor.unwrap_or(64);
                (format!("{name}/{factor}"), whole.thin(factor))
            }
        })
    });
    named.collect()
}
