//! What `vllm bench serve --save-result` writes: times in seconds by request, sums in ms.

use super::field::Field;
use super::outcome::{ImportError, Imported};
use crate::block::{Block, Bounds};
use crate::record::{End, Figure, Seen};
use tidegate_text::spread::Spread;

/// The block of a file.
pub fn block(roots: &[Field<'_>], bounds: &Bounds) -> Result<Imported, ImportError> {
    let [root] = roots else {
        return Err(roots[1].wrong("a second result (--append-result); keep one result in a file"));
    };
    let mut notes = Vec::new();
    let mut block = if root.has("ttfts") {
        requests(root, bounds)?
    } else {
        notes
            .push("sums only; with --save-detailed requests can be compared one by one".to_owned());
        if bounds.any() {
            notes.push(
                "sums say nothing of goodput against other times than vLLM was given".to_owned(),
            );
        }
        sums(root)?
    };
    block.seconds = root.get("duration").number()?;
    let model = root.get("model_id").text();
    block.source = format!("vllm bench serve, model {model}");
    Ok(Imported { block, notes })
}

fn requests(root: &Field<'_>, bounds: &Bounds) -> Result<Block, ImportError> {
    let ttfts = root.get("ttfts").numbers()?;
    let (itls, lengths) = (root.get("itls"), root.get("output_lens"));
    let (itls, lengths) = (itls.list()?, lengths.list()?);
    let errors = if root.has("errors") {
        root.get("errors").list()?
    } else {
        Vec::new()
    };
    let starts = if root.has("start_times") {
        root.get("start_times").numbers()?
    } else {
        Vec::new()
    };
    for (name, length) in [("itls", itls.len()), ("output_lens", lengths.len())] {
        if length != ttfts.len() {
            let why = format!(
                "{length} values beside {} ttfts: the file is not whole",
                ttfts.len()
            );
            return Err(root.get(name).wrong(why));
        }
    }
    let begin = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let mut seen = Vec::with_capacity(ttfts.len());
    for (index, ttft) in ttfts.iter().enumerate() {
        let gaps: Vec<f64> = itls[index].numbers()?.iter().map(|gap| gap * 1e3).collect();
        let tokens = lengths[index].count()? as u64;
        let error = errors.get(index).map(Field::text).unwrap_or_default();
        // A failed request has an error, or none and no token.
        let end = if error.is_empty() && tokens > 0 {
            End::Done
        } else {
            End::Other(error.lines().next().unwrap_or_default().to_owned())
        };
        seen.push(Seen {
            index,
            at_s: starts
                .get(index)
                .map_or(index as f64, |start| start - begin),
            late_ms: 0.0,
            ttft_ms: (tokens > 0).then_some(ttft * 1e3),
            tpot_ms: (tokens > 1).then(|| gaps.iter().sum::<f64>() / (tokens - 1) as f64),
            itl_ms: gaps,
            output_tokens: tokens,
            end,
        });
    }
    Ok(Block::of(seen, bounds))
}

fn sums(root: &Field<'_>) -> Result<Block, ImportError> {
    let served = root.get("completed").count()?;
    let figure = |name: &str| -> Result<Figure, ImportError> {
        let value = |what: &str| root.get(&format!("{what}_{name}_ms"));
        let spread = Spread {
            mean: value("mean").number()?,
            p50: value("median").number()?,
            p99: value("p99").optional()?.unwrap_or(f64::NAN),
            max: f64::NAN,
        };
        // NumPy's `std` divides by the count.
        let sample = |deviation: f64| deviation * (served as f64 / (served as f64 - 1.0)).sqrt();
        let deviation = value("std").optional()?.filter(|_| served > 1).map(sample);
        // Of gaps within answers it would be an interval of values that depend on each other.
        let deviation = deviation.filter(|_| name != "itl");
        Ok(Figure::told(spread, deviation, served))
    };
    Ok(Block {
        ttft: Some(figure("ttft")?),
        tpot: Some(figure("tpot")?),
        itl: Some(figure("itl")?),
        served,
        failed: root.get("failed").optional()?.unwrap_or(0.0) as usize,
        output_tokens: root.get("total_output_tokens").optional()?.unwrap_or(0.0) as u64,
        ..Block::default()
    })
}
