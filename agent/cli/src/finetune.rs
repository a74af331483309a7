//! `tidegate finetune`: a LoRA of a local model, trained offline.
//!
//! The training is the engines' package's (`interposer/engines`, `finetune/cli.py`). What is asked for is judged by
//! that package before an agent is asked, and started as `tidegate run --offline` starts a program.

use super::agent::Agent;
use super::run::{self as started, wait};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The package's modules: what judges the arguments, and what trains.
const JUDGES: &str = "tidegate_engines.finetune.asked";
const TRAINS: &str = "tidegate_engines.finetune.cli";

/// Whose arithmetic and memory.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Device {
    /// A GPU, by PyTorch. Its memory is taken only if TIDEGATE_FINETUNE_DEVICE=cuda is set.
    Cuda,
    /// The virtual GPU: the processor computes.
    Virtual,
}

/// See each field.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model directory: config.json, *.safetensors, tokenizer.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Samples, one JSON object per line, with "text" or "messages". All of their tokens are learnt.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Output directory of the adapter, in PEFT's format; must not exist. Checkpoints are kept beside it.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The adapter: r=16,alpha=32,dropout=0,modules=q_proj+v_proj (default: these, and all modules).
    #[arg(long, value_name = "WORDS", default_value = "")]
    lora: String,
    /// Optimizer steps.
    #[arg(long, value_name = "N", default_value_t = 100)]
    steps: u32,
    /// Samples per step.
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch: u32,
    /// Longest sample, in tokens.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    length: u32,
    /// Cut longer samples instead of refusing them.
    #[arg(long)]
    truncate: bool,
    /// Learning rate of AdamW.
    #[arg(long, value_name = "X", default_value_t = 2e-4)]
    rate: f64,
    /// Random seed of the initial weights and of the order of samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Steps between checkpoints.
    #[arg(long, value_name = "N", default_value_t = 50)]
    save_every: u32,
    /// Where to train.
    #[arg(long, value_enum, default_value_t = Device::Cuda)]
    device: Device,
    /// A running vLLM that loads the finished adapter: <http://127.0.0.1:8000>.
    #[arg(long, value_name = "URL", requires = "name")]
    serve: Option<String>,
    /// The name under which vLLM serves it.
    #[arg(long, requires = "serve")]
    name: Option<String>,
    /// A Python with the engines' package, torch, transformers and peft.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// The offline job that it belongs to.
    #[arg(long, value_name = "NAME", default_value = "finetune")]
    job: String,
    /// Wait this long for an agent.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = wait)]
    wait: Duration,
    /// The library (default: in the usual places).
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
}

/// What is asked for cannot be begun with this Python.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoPackage(String);

impl Args {
    /// What the options name and is not there: said before a package of gigabytes is asked for.
    fn missing(&self) -> Option<String> {
        [("model", &self.model), ("data", &self.data)]
            .into_iter()
            .find(|(_, path)| !path.exists())
            .map(|(name, path)| format!("--{name}: there is no {}", path.display()))
    }

    /// The package's arguments.
    fn passed_on(&self) -> Vec<OsString> {
        let device = match self.device {
            Device::Cuda => "cuda",
            Device::Virtual => "virtual",
        };
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: &OsStr| {
            // As one word: a value may begin with a dash.
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            words.push(word);
        };
        add("model", self.model.as_os_str());
        add("data", self.data.as_os_str());
        add("out", self.out.as_os_str());
        add("lora", self.lora.as_ref());
        add("steps", self.steps.to_string().as_ref());
        add("batch", self.batch.to_string().as_ref());
        add("length", self.length.to_string().as_ref());
        add("rate", self.rate.to_string().as_ref());
        add("seed", self.seed.to_string().as_ref());
        add("save-every", self.save_every.to_string().as_ref());
        add("device", device.as_ref());
        for (name, value) in [("serve", &self.serve), ("name", &self.name)] {
            if let Some(value) = value {
                add(name, value.as_ref());
            }
        }
        if self.truncate {
            words.push("--truncate".into());
        }
        words
    }
}

/// Becomes the training; what returns is why it did not, as an exit code or an error of one line.
pub(super) fn run(agent: &Agent, args: &Args) -> anyhow::Result<u8> {
    let words = args.passed_on();
    let python = args.python.display();
    let judged = Command::new(&args.python)
        .args(["-m", JUDGES])
        .args(&words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| NoPackage(format!("--python: cannot start {python}: {error}")))?;
    if !judged.status.success() {
        let said = String::from_utf8_lossy(&judged.stderr);
        // Its own answer is one line and 2.
        if judged.status.code() == Some(2) {
            eprint!("{said}");
            return Ok(2);
        }
        if let Some(missing) = args.missing() {
            return Err(NoPackage(missing).into());
        }
        let last = said.trim_end().lines().last().unwrap_or_default();
        return Err(NoPackage(format!(
            "--python: {python} cannot use the engines' package ({last}); \
             pip install /usr/share/tidegate/engines/*.whl into its environment"
        ))
        .into());
    }
    let command = [args.python.clone().into(), "-m".into(), TRAINS.into()];
    let command = command.into_iter().chain(words).collect();
    let offline = started::Args::offline(&args.job, args.wait, args.library.clone(), command);
    started::run(agent, &offline)
}
