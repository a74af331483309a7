//! Scenarios that nobody chose: drawn from a directory of traces, by seed.
//!
//! What was tuned on ten pairs holds on ten pairs. A draw takes a trace, a GPU, two models, the offline
//! lengths, the chunk, how busy online is and how short memory is, each by itself:
//!
//! | what | from | why |
//! |---|---|---|
//! | trace, lengths, GPU, models | each as likely as any other | those of the directory, and those with fitted costs |
//! | share of time online computes | 8 to 77 % ([`BUSY`]), uniform; thinned to it | the least and the most of the evaluation's ten pairs |
//! | pool over online's peak | 1.12 to 33 ([`POOL`]), log-uniform | the same |
//! | prompt tokens of an offline iteration | 512 to 16,384 ([`CHUNKS`]), powers of two | the same |
//!
//! What cannot run is drawn again: a pool beyond what the weights leave of 90 % of the GPU (vLLM's
//! default share), fewer than [`LEAST_REQUESTS`] requests, or an online workload that by itself is
//! outside of twice those shares. Draw `n` of a seed is the same however many are drawn.
//!
//! The traces, by name, belong to two [`Half`]s in turn: what is tuned on one is judged on the other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::hardware::{GPUS, Gpu, MODELS, Model};
use crate::input::InputError;
use crate::kv::{BLOCK_TOKENS, blocks_of};
use crate::run;
use crate::scenarios::{ENDINGS, Scenario};
use crate::spec::Spec;
use crate::trace::{Cut, Lengths, Trace, read, read_lengths};
use tidegate_text::rng::Rng;

/// Shares of the time in which online computes: `busy_frac` of the ten pairs, least and most.
pub const BUSY: (f64, f64) = (0.08, 0.77);
/// The pool over online's peak alone: the same of `kv_pool_gib` over `online_kv_peak_gib`.
pub const POOL: (f64, f64) = (1.12, 33.0);
/// Prompt tokens of one offline iteration: the same of `offline_chunk_tokens`.
pub const CHUNKS: [u32; 6] = [512, 1_024, 2_048, 4_096, 8_192, 16_384];
/// Fewest online requests: of fewer a mean says little.
pub const LEAST_REQUESTS: usize = 100;
/// Most scenarios of one call.
pub const MOST: u32 = 10_000;
/// Tries for one draw.
const TRIES: u32 = 200;
const GIB: f64 = (1u64 << 30) as f64;

/// Which of the traces: those of odd places by name, or of even ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The first, third, fifth.
    First,
    /// The second, fourth, sixth.
    Second,
}

impl Half {
    /// Both.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
        }
    }
}

/// What is in the directory.
#[derive(Clone, Debug)]
pub struct Sources {
    online: Vec<(String, Arc<Trace>)>,
    lengths: Vec<(String, PathBuf, Arc<[Lengths]>)>,
    dir: PathBuf,
}

/// One drawn scenario, as its line in the table says it.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// What is run.
    pub scenario: Scenario,
    /// The half that its trace is of.
    pub half: Half,
    /// Its line, without the end.
    pub line: String,
}

/// Why nothing could be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The directory could not be read.
    #[error("cannot read {}: check the path", dir.display())]
    Dir {
        /// Which.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace is not what its format says.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A kind of file is missing.
    #[error("{}: no {what} among its .csv, .csv.gz, .jsonl and .jsonl.gz files: add one", dir.display())]
    Nothing {
        /// Where.
        dir: PathBuf,
        /// What.
        what: &'static str,
    },
    /// No scenario within the ranges was found.
    #[error(
        "{}: draw {number} of seed {seed} found no scenario in {TRIES} tries: the traces have too few requests (under \
         {LEAST_REQUESTS}) or need more memory than any GPU has",
        dir.display()
    )]
    Hopeless {
        /// Where.
        dir: PathBuf,
        /// Which draw, from 1.
        number: u32,
        /// The seed.
        seed: u64,
    },
}

impl Sources {
    /// Reads the traces and lengths of `dir`. Files of other formats are passed over; without a list of
    /// lengths those of the traces serve, as far as they are in our format.
    ///
    /// # Errors
    /// When the directory or one of its traces cannot be read, or has no trace or no lengths.
    pub fn read(dir: &Path) -> Result<Self, DrawError> {
        let failed = |source| DrawError::Dir {
            dir: dir.to_owned(),
            source,
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let stem = ENDINGS
                .iter()
                .filter(|ending| !ending.is_empty())
                .find_map(|ending| name.strip_suffix(ending));
            if let Some(stem) = stem.filter(|_| file.is_file()) {
                files.push((stem.to_owned(), file.clone()));
            }
        }
        files.sort();
        let (mut online, mut lengths, mut fallback) = (Vec::new(), Vec::new(), Vec::new());
        for (name, file) in files {
            match read(&file) {
                Ok(trace) => {
                    online.push((name.clone(), Arc::new(trace)));
                    fallback.push((name, file));
                }
                Err(InputError::Missing {
                    field: "arrival_s", ..
                }) => lengths.push((name, file.clone(), read_lengths(&file)?.into())),
                Err(InputError::Format { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if lengths.is_empty() {
            lengths.extend(fallback.into_iter().filter_map(|(name, file)| {
                let own = read_lengths(&file).ok()?;
                Some((name, file, own.into()))
            }));
        }
        for (what, none) in [
            ("trace", online.is_empty()),
            (
                "list of lengths (input_tokens,output_tokens)",
                lengths.is_empty(),
            ),
        ] {
            if none {
                let dir = dir.to_owned();
                return Err(DrawError::Nothing { dir, what });
            }
        }
        Ok(Self {
            online,
            lengths,
            dir: dir.to_owned(),
        })
    }

    /// Scenario `number`, from 1, of `seed`, from the traces of `half` or of both.
    ///
    /// # Errors
    /// When the traces allow none.
    pub fn draw(&self, number: u32, seed: u64, half: Option<Half>) -> Result<Drawn, DrawError> {
        let mut rng = Rng::stream(seed, u64::from(number));
        for _ in 0..TRIES {
            if let Some(drawn) = self.attempt(number, half, &mut rng) {
                return Ok(drawn);
            }
        }
        Err(DrawError::Hopeless {
            dir: self.dir.clone(),
            number,
            seed,
        })
    }

    fn attempt(&self, number: u32, half: Option<Half>, rng: &mut Rng) -> Option<Drawn> {
        let places: Vec<usize> = (0..self.online.len())
            .filter(|place| half.is_none_or(|half| half_of(*place) == half))
            .collect();
        let place = *places.get(below(rng, places.len()))?;
        let (trace_name, whole) = &self.online[place];
        let gpu = GPUS[below(rng, GPUS.len())];
        let model = |rng: &mut Rng| Model::named(&gpu, MODELS[below(rng, MODELS.len())].0);
        let (online_model, offline_model) = (model(rng)?, model(rng)?);
        let (lengths_name, lengths_file, lengths) = &self.lengths[below(rng, self.lengths.len())];
        let offline_chunk_tokens = CHUNKS[below(rng, CHUNKS.len())];
        let busy = BUSY.0 + (BUSY.1 - BUSY.0) * rng.uniform();
        let ratio = (POOL.0.ln() + (POOL.1 / POOL.0).ln() * rng.uniform()).exp();

        let keep_1_in = thinned_to(whole, &online_model, busy);
        let cut = Cut {
            keep_1_in,
            ..Cut::default()
        };
        let trace = whole.cut(&cut);
        if trace.len() < LEAST_REQUESTS {
            return None;
        }
        let most = room(&gpu, [&online_model, &offline_model])?;
        let mut scenario = Scenario {
            id: format!("D{number:04}"),
            gpu,
            online_trace: PathBuf::new(),
            cut,
            online_model,
            offline_model,
            offline_lengths: lengths_file.clone(),
            offline_chunk_tokens,
            kv_pool_bytes: most,
            gaps: crate::gap::VLLM,
            class: String::new(),
        };
        let spec = scenario.spec_of(Arc::new(trace), Arc::clone(lengths));
        let alone = match run::alone(&spec) {
            Ok(alone) => alone.outcome,
            Err(_) => return None,
        };
        let share = alone.gpu.online.as_secs_f64() / alone.length.as_secs_f64().max(1e-9);
        if share < BUSY.0 / 2.0 || share > (1.0 + BUSY.1) / 2.0 {
            return None;
        }
        let pool = (alone.online_kv_peak_bytes as f64 * ratio).max(largest(&spec) as f64);
        // As the table says it: hundredths of a GiB, upwards, so that the largest request still fits.
        let hundredths = (pool / GIB * 100.0).ceil();
        let gib = format!("{:.2}", hundredths / 100.0);
        scenario.kv_pool_bytes = (gib.parse::<f64>().ok()? * GIB) as u64;
        if scenario.kv_pool_bytes > most {
            return None;
        }
        let half = half_of(place);
        let line = format!(
            "{},{},{trace_name},{keep_1_in},{},{},{lengths_name},{offline_chunk_tokens},{gib},{},{},{:.2},{share:.3},{:.2},\
             \"drawn: {:.0} % busy asked for, pool {ratio:.2} x online's peak\"",
            scenario.id,
            gpu.name,
            scenario.online_model.name,
            scenario.offline_model.name,
            half.name(),
            alone.requests.len(),
            alone.requests.len() as f64 / alone.length.as_secs_f64().max(1e-9),
            alone.online_kv_peak_bytes as f64 / GIB,
            100.0 * busy,
        );
        Some(Drawn {
            scenario: Scenario {
                online_trace: crate::scenarios::trace_file(&self.dir, trace_name).ok()?,
                class: half.name().to_owned(),
                ..scenario
            },
            half,
            line,
        })
    }
}

/// The header of the table that [`Drawn::line`]s are of.
pub const HEADER: &str = "id,gpu,online_trace,thin_keep_1_in,online_model,offline_model,offline_lengths,\
    offline_chunk_tokens,kv_pool_gib,class,online_requests,online_rps,busy_frac,online_kv_peak_gib,why";

/// The table of these draws.
#[must_use]
pub fn table(drawn: &[Drawn]) -> String {
    let mut table = format!("{HEADER}\n");
    for one in drawn {
        table += &one.line;
        table.push('\n');
    }
    table
}

const fn half_of(place: usize) -> Half {
    if place.is_multiple_of(2) {
        Half::First
    } else {
        Half::Second
    }
}

fn below(rng: &mut Rng, n: usize) -> usize {
    ((rng.uniform() * n as f64) as usize).min(n.saturating_sub(1))
}

/// What the weights of both leave of 90 % of the GPU.
fn room(gpu: &Gpu, models: [&Model; 2]) -> Option<u64> {
    let weights: u64 = models.iter().map(|m| 2 * m.shape.parameters()).sum();
    (gpu.memory_bytes / 10 * 9).checked_sub(weights)
}

/// One request in how many keeps the GPU busy for about `share` of the time. Prefills come one after the
/// other; decodes share iterations, as many as Poisson arrivals would have.
fn thinned_to(trace: &Trace, model: &Model, share: f64) -> u64 {
    let (mut prefill, mut decode) = (0.0, 0.0);
    for request in trace.requests() {
        let (input, output) = (request.input_tokens, request.output_tokens);
        let context = u64::from(input) + u64::from(output) / 2;
        let attention = model.cost.attention_ms(input, 0);
        prefill += model.cost.prefill_ms(input, attention, 0, 0);
        decode += f64::from(output - 1) * model.cost.decode_ms(1, context);
    }
    let span = trace.end().as_secs_f64().max(1.0) * 1e3;
    let busy = |k: u64| (prefill / k as f64 / span) + 1.0 - (-decode / k as f64 / span).exp();
    (1..10_000).find(|k| busy(*k) <= share).unwrap_or(10_000)
}

/// What the largest request of either needs, bytes.
fn largest(spec: &Spec) -> u64 {
    let needs = |per_token: u64, tokens: u32| {
        u64::from(blocks_of(tokens)) * u64::from(BLOCK_TOKENS) * per_token
    };
    let online = spec.online.model.shape.kv_bytes_per_token();
    let requests = spec.online.trace.requests().iter();
    let online = requests.map(|r| needs(online, r.input_tokens.saturating_add(r.output_tokens)));
    let offline = spec.offline.model.shape.kv_bytes_per_token();
    let lengths = spec.offline.lengths.iter();
    let offline = lengths.map(|l| needs(offline, l.input_tokens.saturating_add(l.output_tokens)));
    online.chain(offline).max().unwrap_or_default()
}

impl fmt::Display for Half {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
