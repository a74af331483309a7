//! A fleet as a file: which nodes, and which kinds of jobs.
//!
//! A CSV with a header; `what` says whether a line is a `node` or a `job`. Of a node are needed `name`, `count`, `gpu`,
//! `trace`, `model` and `kv_gib`; `thin` (keep one request in so many), `gpus` (1) and `together` (share of the minutes
//! in which its GPUs do the same, 1) may be given. Of a job are needed `name`, `model`, `lengths` and `chunk`; `gpus`
//! is how many it needs (1). Other columns are somebody's notes.

use std::path::Path;

use super::NodeKind;
use crate::gap::VLLM;
use crate::input::{CORRECT, Columns, InputError, Lines};
use crate::names::UnknownName;
use crate::placing::Kind;
use crate::scenarios::{Scenario, gpu, model, trace_file};
use crate::trace::Cut;

/// Most GPUs of a node: of eight every set is known exactly.
const MOST_GPUS: u8 = 8;
/// Most nodes of a kind.
const MOST_NODES: u32 = 10_000;

const COLUMNS: [&str; 12] = [
    "what", "name", "model", "count", "gpu", "trace", "kv_gib", "lengths", "chunk", "thin", "gpus",
    "together",
];
const NEEDED: usize = 9;

/// What the file says.
#[derive(Clone, Debug)]
pub struct FleetFile {
    /// The online side of each kind of node; the offline side is anything.
    pub nodes: Vec<Scenario>,
    /// What each of them has.
    pub kinds: Vec<NodeKind>,
    /// How many there are of each.
    pub counts: Vec<u32>,
    /// The kinds of jobs.
    pub jobs: Vec<Kind>,
    /// GPUs that each of them needs.
    pub needs: Vec<u8>,
}

/// Reads the fleet in `file`, whose traces lie in `traces`.
///
/// # Errors
/// When the file cannot be read, or a line is not what the format says.
pub fn read(file: &Path, traces: &Path) -> Result<FleetFile, InputError> {
    let mut lines = Lines::open(file)?;
    let Some((_, header)) = lines.next_line()? else {
        return Err(lines.empty("nodes"));
    };
    lines.check_header(&header, &COLUMNS, NEEDED)?;
    let columns = Columns::find(&lines, &header, COLUMNS, NEEDED)?;
    let mut fleet = FleetFile {
        nodes: Vec::new(),
        kinds: Vec::new(),
        counts: Vec::new(),
        jobs: Vec::new(),
        needs: Vec::new(),
    };
    while let Some((_, row)) = lines.next_line()? {
        let cells = columns.cells(&lines, &row)?;
        match cells[0].as_str() {
            "node" => node(&lines, &cells, traces, &mut fleet)?,
            "job" => job(&lines, &cells, traces, &mut fleet)?,
            other => return Err(lines.value("what", other, "node or job", CORRECT)),
        }
    }
    if fleet.nodes.is_empty() || fleet.jobs.is_empty() {
        let what = if fleet.nodes.is_empty() {
            "nodes"
        } else {
            "jobs"
        };
        return Err(lines.empty(what));
    }
    Ok(fleet)
}

type Cells = [String; COLUMNS.len()];

fn whole(
    lines: &Lines<'_>,
    cells: &Cells,
    at: usize,
    usual: u32,
    most: u32,
) -> Result<u32, InputError> {
    let text = &cells[at];
    if text.is_empty() && usual > 0 {
        return Ok(usual);
    }
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| {
        let expected = "a whole number, 1 or more, and not beyond what there is";
        lines.value(COLUMNS[at], text, expected, CORRECT)
    })
}

fn gpus(lines: &Lines<'_>, cells: &Cells) -> Result<u8, InputError> {
    let gpus = whole(lines, cells, 10, 1, u32::from(MOST_GPUS))?;
    Ok(u8::try_from(gpus).unwrap_or(MOST_GPUS))
}

fn node(
    lines: &Lines<'_>,
    cells: &Cells,
    traces: &Path,
    fleet: &mut FleetFile,
) -> Result<(), InputError> {
    let [
        _,
        name,
        online,
        _,
        gpu_name,
        trace,
        kv,
        _,
        _,
        _,
        _,
        together,
    ] = cells;
    let unknown = |field| move |error: UnknownName| lines.unknown(field, error);
    if name.is_empty() || fleet.nodes.iter().any(|node| node.id == *name) {
        return Err(lines.value("name", name, "a name, given once", CORRECT));
    }
    let gpu = gpu(gpu_name).map_err(unknown("gpu"))?;
    let online_model = model(&gpu, online).map_err(unknown("model"))?;
    let gib = kv
        .parse::<f64>()
        .ok()
        .filter(|gib| *gib > 0.0 && *gib <= 4_096.0);
    let gib = gib.ok_or_else(|| {
        lines.value(
            "kv_gib",
            kv,
            "a size in GiB, above 0 and at most 4096",
            CORRECT,
        )
    })?;
    let together = match together.as_str() {
        "" => 1.0,
        text => {
            let share = text
                .parse()
                .ok()
                .filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| lines.value("together", text, "a share from 0 to 1", CORRECT))?
        }
    };
    let online_trace = trace_file(traces, trace).map_err(unknown("trace"))?;
    fleet.counts.push(whole(lines, cells, 3, 0, MOST_NODES)?);
    fleet.kinds.push(NodeKind {
        gpus: gpus(lines, cells)?,
        together,
    });
    fleet.nodes.push(Scenario {
        id: name.clone(),
        gpu,
        online_trace: online_trace.clone(),
        cut: Cut {
            keep_1_in: whole(lines, cells, 9, 1, u32::MAX)?.into(),
            stretch: 1.0,
            ..Cut::default()
        },
        offline_model: online_model.clone(),
        online_model,
        // Replaced by each kind of job.
        offline_lengths: online_trace,
        offline_chunk_tokens: 1,
        kv_pool_bytes: (gib * (1_u64 << 30) as f64) as u64,
        gaps: VLLM,
        class: String::new(),
    });
    Ok(())
}

fn job(
    lines: &Lines<'_>,
    cells: &Cells,
    traces: &Path,
    fleet: &mut FleetFile,
) -> Result<(), InputError> {
    let unknown = |field| move |error: UnknownName| lines.unknown(field, error);
    let h200 = gpu("h200").map_err(unknown("gpu"))?;
    model(&h200, &cells[2]).map_err(unknown("model"))?;
    fleet.jobs.push(Kind {
        model: cells[2].clone(),
        lengths: trace_file(traces, &cells[7]).map_err(unknown("lengths"))?,
        chunk: whole(lines, cells, 8, 0, u32::MAX)?,
    });
    fleet.needs.push(gpus(lines, cells)?);
    Ok(())
}
