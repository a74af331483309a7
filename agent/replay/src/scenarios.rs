//! A table of scenarios: which workloads meet on which GPU.
//!
//! A CSV with a header and one scenario a line. Needed are `id`, `gpu`, `online_trace`,
//! `thin_keep_1_in`, `online_model`, `offline_model`, `offline_lengths`, `offline_chunk_tokens`,
//! `kv_pool_gib`; `class` groups, and `stretch` (times between arrivals are multiplied by it) and
//! `gaps` (a decode-gap preset) may be given too. Other columns are somebody's notes. Traces and
//! lengths are named as files of one directory, with or without their endings ([`ENDINGS`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::costs::Costs;
use crate::engine::Limits;
use crate::gap::{self, GapModel, VLLM};
use crate::hardware::{self, DENSE, Gpu, MODELS, Model, SHAPES, Shape};
use crate::input::{CORRECT, Columns, InputError, Lines};
use crate::names::{UnknownName, find};
use crate::spec::{Batching, Compute, Memory, Offline, Online, Spec};
use crate::trace::{Cut, Lengths, Trace, read_cut, read_lengths};

/// Endings that the name of a trace may leave out.
pub const ENDINGS: [&str; 5] = ["", ".csv.gz", ".csv", ".jsonl.gz", ".jsonl"];
/// Scenarios of one table.
pub const MAX_SCENARIOS: usize = 10_000;
/// Largest KV pool, GiB: more than any GPU has.
const MAX_POOL_GIB: f64 = 4_096.0;

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub id: String,
    /// Where both run.
    pub gpu: Gpu,
    /// The online requests' file.
    pub online_trace: PathBuf,
    /// Which of them.
    pub cut: Cut,
    /// The online model.
    pub online_model: Model,
    /// The offline model.
    pub offline_model: Model,
    /// The offline requests' lengths.
    pub offline_lengths: PathBuf,
    /// Prompt tokens of one offline iteration.
    pub offline_chunk_tokens: u32,
    /// Memory for the KV caches of both, bytes.
    pub kv_pool_bytes: u64,
    /// The online engine's decode gaps.
    pub gaps: GapModel,
    /// Of its kind, for people; may be empty.
    pub class: String,
}

const COLUMNS: [&str; 12] = [
    "id",
    "gpu",
    "online_trace",
    "thin_keep_1_in",
    "online_model",
    "offline_model",
    "offline_lengths",
    "offline_chunk_tokens",
    "kv_pool_gib",
    "class",
    "stretch",
    "gaps",
];
const NEEDED: usize = 9;

/// Reads the table in `file`, whose traces lie in `traces`.
///
/// # Errors
/// When the file cannot be read, a line is not what the format says, or a line names a GPU, a model
/// or a trace that is not there.
pub fn read(file: &Path, traces: &Path) -> Result<Vec<Scenario>, InputError> {
    parse(Lines::open(file)?, traces)
}

fn parse(mut lines: Lines<'_>, traces: &Path) -> Result<Vec<Scenario>, InputError> {
    let Some((_, header)) = lines.next_line()? else {
        return Err(lines.empty("scenarios"));
    };
    lines.check_header(&header, &COLUMNS, NEEDED)?;
    let columns = Columns::find(&lines, &header, COLUMNS, NEEDED)?;
    let mut scenarios: Vec<Scenario> = Vec::new();
    while let Some((_, row)) = lines.next_line()? {
        let scenario = scenario(&lines, columns.cells(&lines, &row)?, traces)?;
        if scenarios.iter().any(|other| other.id == scenario.id) {
            return Err(lines.value("id", &scenario.id, "given once", "rename one of them"));
        }
        if scenarios.len() == MAX_SCENARIOS {
            return Err(lines.large(format!("{MAX_SCENARIOS} scenarios"), "split the table"));
        }
        scenarios.push(scenario);
    }
    if scenarios.is_empty() {
        return Err(lines.empty("scenarios"));
    }
    Ok(scenarios)
}

fn scenario(
    lines: &Lines<'_>,
    cells: [String; COLUMNS.len()],
    traces: &Path,
) -> Result<Scenario, InputError> {
    let [
        id,
        gpu_name,
        online,
        keep,
        online_name,
        offline_name,
        lengths,
        chunk,
        pool,
        class,
        stretch,
        gaps,
    ] = cells;
    let unknown = |field| move |error: UnknownName| lines.unknown(field, error);
    if id.is_empty() {
        return Err(lines.value("id", &id, "a name", CORRECT));
    }
    let gpu = gpu(&gpu_name).map_err(unknown("gpu"))?;
    let above_0 = |field, text: &str, expected| {
        let number = text.parse::<u32>().ok().filter(|n| *n > 0);
        number.ok_or_else(|| lines.value(field, text, expected, CORRECT))
    };
    let pool_bytes = pool
        .parse::<f64>()
        .ok()
        .filter(|gib| *gib > 0.0 && *gib <= MAX_POOL_GIB)
        .ok_or_else(|| {
            let expected = "a size in GiB, above 0 and at most 4096";
            lines.value("kv_pool_gib", &pool, expected, CORRECT)
        })?;
    let stretch = if stretch.is_empty() {
        1.0
    } else {
        factor(&stretch).ok_or_else(|| lines.value("stretch", &stretch, FACTOR, CORRECT))?
    };
    Ok(Scenario {
        gpu,
        online_trace: trace_file(traces, &online).map_err(unknown("online_trace"))?,
        cut: Cut {
            keep_1_in: above_0("thin_keep_1_in", &keep, "a whole number, 1 or more")?.into(),
            stretch,
            ..Cut::default()
        },
        online_model: model(&gpu, &online_name).map_err(unknown("online_model"))?,
        offline_model: model(&gpu, &offline_name).map_err(unknown("offline_model"))?,
        offline_lengths: trace_file(traces, &lengths).map_err(unknown("offline_lengths"))?,
        offline_chunk_tokens: above_0(
            "offline_chunk_tokens",
            &chunk,
            "a number of tokens, 1 or more",
        )?,
        kv_pool_bytes: (pool_bytes * (1u64 << 30) as f64) as u64,
        gaps: if gaps.is_empty() {
            VLLM
        } else {
            gap_preset(&gaps).map_err(unknown("gaps"))?
        },
        class,
        id,
    })
}

/// What [`factor`] takes.
pub const FACTOR: &str = "a factor from 0.001 to 1000";

/// A factor to stretch times by.
#[must_use]
pub fn factor(text: &str) -> Option<f64> {
    let factor = text.parse().ok()?;
    (0.001..=1_000.0).contains(&factor).then_some(factor)
}

/// The GPU of this name.
///
/// # Errors
/// When there is none.
pub fn gpu(name: &str) -> Result<Gpu, UnknownName> {
    if let Some(gpu) = own_gpu(name) {
        return Ok(gpu);
    }
    find("GPU", name, hardware::all().map(|gpu| (gpu.name, gpu))).map_err(|mut unknown| {
        let custom = "custom:memory=GIB,bandwidth=GB/S,flops=TFLOPS[,pcie=GB/S]";
        unknown.known.push(custom.to_owned());
        unknown
    })
}

/// The GPU that `custom:memory=48,bandwidth=864,flops=362,pcie=32` describes: GiB, GB/s, dense bf16 TFLOPS, and GB/s in
/// one direction, which is PCIe Gen4's unless it is given.
fn own_gpu(text: &str) -> Option<Gpu> {
    let (mut memory, mut bandwidth, mut flops, mut pcie) = (0.0, 0.0, 0.0, 32.0);
    for part in text.strip_prefix("custom:")?.split(',') {
        let (name, value) = part.split_once('=')?;
        let value: f64 = value.trim().parse().ok()?;
        // A hundred thousand of any of them is beyond every GPU there is.
        let value = Some(value).filter(|value| (0.1..=1e5).contains(value))?;
        let place = match name.trim() {
            "memory" => &mut memory,
            "bandwidth" => &mut bandwidth,
            "flops" => &mut flops,
            "pcie" => &mut pcie,
            _ => return None,
        };
        *place = value;
    }
    let given = [memory, bandwidth, flops].iter().all(|value| *value > 0.0);
    given.then_some(Gpu {
        name: "custom",
        memory_bytes: (memory * (1_u64 << 30) as f64) as u64,
        memory_bytes_per_s: bandwidth * 1e9,
        pcie_bytes_per_s: pcie * 1e9,
        flops: flops * 1e12,
    })
}

/// The model of this name on `gpu`, or one of one's own: `custom:layers=32,hidden=4096,heads=32`,
/// where `kv-heads`, `inner`, `vocabulary`, `head`, and of a mixture `experts` and `chosen` may be added.
///
/// # Errors
/// When there is none.
pub fn model(gpu: &Gpu, name: &str) -> Result<Model, UnknownName> {
    if let Some(model) = shape(name).and_then(|shape| Model::custom(gpu, name, shape)) {
        return Ok(model);
    }
    let fitted = MODELS
        .iter()
        .chain(&SHAPES)
        .filter_map(|(name, _)| Some((*name, Model::named(gpu, name)?)));
    find("model", name, fitted).map_err(|mut unknown| {
        let custom = "custom:layers=L,hidden=H,heads=N[,kv-heads=K][,inner=I][,vocabulary=V]\
                      [,head=D][,experts=E,chosen=C]";
        unknown.known.push(custom.to_owned());
        unknown
    })
}

/// The shape that `custom:...` describes. Without `kv-heads` every head has its own keys and values,
/// and `inner` is four times the hidden size, as in the first transformers.
fn shape(text: &str) -> Option<Shape> {
    let mut shape = Shape {
        layers: 0,
        hidden: 0,
        heads: 0,
        kv_heads: 0,
        inner: 0,
        vocabulary: 128_256,
        ..DENSE
    };
    for part in text.strip_prefix("custom:")?.split(',') {
        let (name, value) = part.split_once('=')?;
        // A million of anything is beyond every model there is, and its products fit into u64.
        let value = value
            .trim()
            .parse()
            .ok()
            .filter(|n| (1..=1_000_000).contains(n))?;
        let place = match name.trim() {
            "layers" => &mut shape.layers,
            "hidden" => &mut shape.hidden,
            "heads" => &mut shape.heads,
            "kv-heads" => &mut shape.kv_heads,
            "inner" => &mut shape.inner,
            "vocabulary" => &mut shape.vocabulary,
            "head" => &mut shape.head,
            "experts" => &mut shape.experts,
            "chosen" => &mut shape.chosen,
            _ => return None,
        };
        *place = value;
    }
    if shape.kv_heads == 0 {
        shape.kv_heads = shape.heads;
    }
    if shape.inner == 0 {
        shape.inner = 4 * shape.hidden;
    }
    let whole = shape.layers > 0 && shape.heads > 0 && shape.hidden >= shape.heads;
    let whole = whole && shape.chosen <= shape.experts;
    (whole && shape.kv_heads <= shape.heads && shape.layers <= 10_000).then_some(shape)
}

/// The decode-gap preset of this name.
///
/// # Errors
/// When there is none.
pub fn gap_preset(name: &str) -> Result<GapModel, UnknownName> {
    find(
        "decode-gap preset",
        name,
        gap::PRESETS.map(|preset| (preset.name, preset)),
    )
}

pub(crate) fn trace_file(traces: &Path, name: &str) -> Result<PathBuf, UnknownName> {
    let candidate = |ending: &&str| traces.join(format!("{name}{ending}"));
    let found = ENDINGS.iter().map(candidate).find(|file| file.is_file());
    if let Some(file) = found.filter(|_| !name.is_empty()) {
        return Ok(file);
    }
    let mut known: Vec<String> = std::fs::read_dir(traces)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|file| {
            let ending = ENDINGS
                .iter()
                .skip(1)
                .find_map(|ending| file.strip_suffix(ending));
            ending.unwrap_or(&file).to_owned()
        })
        .collect();
    known.sort();
    known.truncate(40);
    Err(UnknownName {
        what: "trace in the traces' directory called",
        given: name.chars().take(80).collect(),
        known,
    })
}

impl Scenario {
    /// What is run, with the traces read: online alone, to be given policies, a seed and costs.
    ///
    /// # Errors
    /// When a trace cannot be read.
    pub fn spec(&self) -> Result<Spec, InputError> {
        let trace = read_cut(&self.online_trace, &self.cut)?;
        let lengths = read_lengths(&self.offline_lengths)?;
        Ok(self.spec_of(Arc::new(trace), lengths.into()))
    }

    /// The same with what was read before: the trace is cut already.
    #[must_use]
    pub fn spec_of(&self, trace: Arc<Trace>, lengths: Arc<[Lengths]>) -> Spec {
        Spec {
            scenario: self.id.clone(),
            seed: 1,
            gpu: self.gpu,
            online: Online {
                model: self.online_model.clone(),
                trace,
                gaps: self.gaps,
                limits: Limits::default(),
                batching: Batching::default(),
            },
            offline: Offline {
                model: self.offline_model.clone(),
                lengths,
                limits: Limits {
                    prefill_tokens: self.offline_chunk_tokens,
                    ..Limits::default()
                },
                batching: Batching::default(),
            },
            kv_pool_bytes: self.kv_pool_bytes,
            compute: Compute::Standalone,
            memory: Memory::Prism,
            costs: Costs::default(),
            slo: None,
            timeline: false,
        }
    }
}

#[cfg(test)]
mod tests;
