//! aiperf's two exports: records of requests, and sums. A value's unit stands beside it and decides.

use super::field::Field;
use super::outcome::{ImportError, Imported};
use crate::block::{Block, Bounds};
use crate::record::{End, Figure, Seen};
use tidegate_text::spread::Spread;

/// Milliseconds of one of the metric's unit.
fn unit_ms(metric: &Field<'_>) -> Result<f64, ImportError> {
    let unit = metric.get("unit");
    match unit.text().as_str() {
        "ns" => Ok(1e-6),
        "us" => Ok(1e-3),
        "ms" => Ok(1.0),
        "s" | "sec" => Ok(1e3),
        other => Err(unit.wrong(format!(
            "{other:?} is no unit of time that aiperf has: ns, us, ms, sec"
        ))),
    }
}

/// The block of `profile_export.jsonl`.
pub fn of_records(roots: &[Field<'_>], bounds: &Bounds) -> Result<Imported, ImportError> {
    let mut seen = Vec::new();
    let mut warm_up = 0;
    for root in roots {
        let metadata = root.get("metadata");
        if metadata.get("benchmark_phase").text() == "warmup" {
            warm_up += 1;
        } else {
            seen.push(record(root, &metadata)?);
        }
    }
    let begin = seen
        .iter()
        .map(|one| one.at_s)
        .fold(f64::INFINITY, f64::min);
    let length = seen.iter().map(|one| one.at_s).fold(0.0, f64::max) - begin;
    for one in &mut seen {
        one.at_s -= begin;
    }
    let mut block = Block::of(seen, bounds);
    block.uncounted = warm_up;
    block.seconds = length.max(0.0);
    block.source = "aiperf".to_owned();
    Ok(Imported {
        block,
        notes: Vec::new(),
    })
}

fn record(root: &Field<'_>, metadata: &Field<'_>) -> Result<Seen, ImportError> {
    let metrics = root.get("metrics");
    let time = |name: &str| -> Result<Option<f64>, ImportError> {
        if !metrics.has(name) {
            return Ok(None);
        }
        let metric = metrics.get(name);
        Ok(Some(metric.get("value").number()? * unit_ms(&metric)?))
    };
    let gaps = if metrics.has("inter_chunk_latency") {
        let metric = metrics.get("inter_chunk_latency");
        let ms = unit_ms(&metric)?;
        metric
            .get("value")
            .numbers()?
            .iter()
            .map(|gap| gap * ms)
            .collect()
    } else {
        Vec::new()
    };
    let error = root.get("error");
    let end = if root.has("error") {
        End::Other(
            format!(
                "{} {}",
                error.get("type").text(),
                error.get("message").text()
            )
            .trim()
            .to_owned(),
        )
    } else if metadata.get("was_cancelled").is_true() {
        End::Other("cancelled".to_owned())
    } else {
        End::Done
    };
    if end == End::Done && !metrics.has("time_to_first_token") {
        return Err(metrics
            .get("time_to_first_token")
            .wrong("is missing: run aiperf with --streaming"));
    }
    Ok(Seen {
        index: metadata.get("session_num").count()?,
        at_s: metadata.get("request_start_ns").number()? / 1e9,
        late_ms: 0.0,
        ttft_ms: time("time_to_first_token")?,
        tpot_ms: time("inter_token_latency")?,
        itl_ms: gaps,
        output_tokens: metrics
            .get("output_sequence_length")
            .get("value")
            .optional()?
            .unwrap_or(0.0) as u64,
        end,
    })
}

/// The block of `profile_export_aiperf.json`.
pub fn of_sums(root: &Field<'_>, bounds: &Bounds) -> Result<Imported, ImportError> {
    let mut notes = vec!["sums only; profile_export.jsonl has the requests".to_owned()];
    if bounds.any() {
        notes.push(
            "sums say nothing of goodput against other times than aiperf was given".to_owned(),
        );
    }
    let requests = root.get("request_count").get("avg").count()?;
    let figure = |name: &str| -> Result<Option<Figure>, ImportError> {
        if !root.has(name) {
            return Ok(None);
        }
        let metric = root.get(name);
        let ms = unit_ms(&metric)?;
        let value = |what: &str| Ok(metric.get(what).optional()?.map(|value| value * ms));
        let spread = Spread {
            mean: metric.get("avg").number()? * ms,
            p50: value("p50")?.unwrap_or(f64::NAN),
            p99: value("p99")?.unwrap_or(f64::NAN),
            max: value("max")?.unwrap_or(f64::NAN),
        };
        // Before schema 1.1 there is no count.
        let count = if metric.has("count") {
            metric.get("count").count()?
        } else {
            requests
        };
        let deviation = value("std")?.filter(|_| name != "inter_chunk_latency");
        Ok(Some(Figure::told(spread, deviation, count)))
    };
    let ttft = figure("time_to_first_token")?;
    if ttft.is_none() {
        return Err(root
            .get("time_to_first_token")
            .wrong("is missing: run aiperf with --streaming"));
    }
    let duration = root.get("benchmark_duration");
    let seconds = if root.has("benchmark_duration") {
        duration.get("avg").number()? * unit_ms(&duration)? / 1e3
    } else {
        0.0
    };
    let version = root.get("aiperf_version").text();
    Ok(Imported {
        block: Block {
            source: format!("aiperf {version}").trim_end().to_owned(),
            seconds,
            ttft,
            tpot: figure("inter_token_latency")?,
            itl: figure("inter_chunk_latency")?,
            served: requests,
            failed: root
                .get("error_request_count")
                .get("avg")
                .optional()?
                .unwrap_or(0.0) as usize,
            output_tokens: root
                .get("total_output_tokens")
                .get("avg")
                .optional()?
                .unwrap_or(0.0) as u64,
            partial: (root.get("was_cancelled").is_true() || root.get("is_complete").is_false())
                .then(|| "aiperf says that it was cancelled or not complete".to_owned()),
            ..Block::default()
        },
        notes,
    })
}
