//! guidellm's `benchmarks.json`: one benchmark, its requests by how they ended.

use super::field::Field;
use super::outcome::{ImportError, Imported};
use crate::block::{Block, Bounds};
use crate::record::{End, Seen};

/// The block of a file.
pub fn block(root: &Field<'_>, bounds: &Bounds) -> Result<Imported, ImportError> {
    let all = root.get("benchmarks");
    let benchmarks = all.list()?;
    let [benchmark] = &benchmarks[..] else {
        let why = format!(
            "{} benchmarks; give a file of one rate, not of a sweep",
            benchmarks.len()
        );
        return Err(all.wrong(why));
    };
    let requests = benchmark.get("requests");
    let mut seen = Vec::new();
    for (status, ended) in [
        ("successful", None),
        ("errored", Some("errored")),
        ("incomplete", Some("incomplete: the run ended first")),
    ] {
        let list = requests.get(status);
        let list = if requests.has(status) {
            list.list()?
        } else {
            Vec::new()
        };
        for request in list {
            seen.push(one(&request, ended)?);
        }
    }
    if !seen.iter().any(|one| one.end == End::Done) {
        return Err(requests
            .get("successful")
            .wrong("no request; run guidellm so that it keeps them (no sampling)"));
    }
    // Files have them in the order in which they ended.
    seen.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let begin = seen.first().map_or(0.0, |first| first.at_s);
    for (index, one) in seen.iter_mut().enumerate() {
        one.index = index;
        one.at_s -= begin;
    }
    let mut notes = Vec::new();
    let total = benchmark
        .get("metrics")
        .get("request_totals")
        .get("total")
        .optional()?;
    if let Some(total) = total.filter(|total| *total > seen.len() as f64) {
        notes.push(format!("it holds {} of {total} requests", seen.len()));
    }
    let mut block = Block::of(seen, bounds);
    block.seconds = benchmark.get("duration").optional()?.unwrap_or(0.0);
    let version = root.get("metadata").get("guidellm_version").text();
    block.source = format!("guidellm {version}").trim_end().to_owned();
    Ok(Imported { block, notes })
}

fn one(request: &Field<'_>, ended: Option<&str>) -> Result<Seen, ImportError> {
    // Before 0.4 it was `start_time`.
    let name = if request.has("request_start_time") {
        "request_start_time"
    } else {
        "start_time"
    };
    let start = request.get(name).optional()?.unwrap_or(0.0);
    let ttft = request.get("time_to_first_token_ms");
    let end = match ended {
        None => End::Done,
        Some(words) => {
            let said = request.get("info").get("error").text();
            End::Other(if said.is_empty() {
                words.to_owned()
            } else {
                said
            })
        }
    };
    Ok(Seen {
        index: 0,
        at_s: start,
        late_ms: 0.0,
        ttft_ms: if end == End::Done {
            Some(ttft.number()?)
        } else {
            ttft.optional()?
        },
        tpot_ms: request.get("inter_token_latency_ms").optional()?,
        itl_ms: Vec::new(),
        output_tokens: request.get("output_tokens").optional()?.unwrap_or(0.0) as u64,
        end,
    })
}
