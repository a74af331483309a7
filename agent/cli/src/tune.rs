//! `tidegate tune`: an adapter trained in an engine that serves.

use super::agent::runtime;
use clap::Args as ClapArgs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_tune::data::{self, Learn};
use tidegate_tune::engine::{Engine, Hello};
use tidegate_tune::lora::Lora;
use tidegate_tune::rate::{Schedule, Shape};
use tidegate_tune::run::{self, End, Material, News, Place, Plan, Publish, RunError, Wants, Watch};
use tidegate_tune::sample::{Sample, encode};
use tidegate_tune::serve::{Keys, Options};
use tokio::signal::unix::{SignalKind, signal};

/// What is asked for makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

/// Which tokens of a sample are learnt.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Learnt {
    /// Those of the assistant's turns; of a sample with "text" all.
    Assistant,
    /// All.
    All,
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fall {
    /// Not at all.
    Constant,
    /// In a straight line to 0.
    Linear,
    /// Along half a cosine to 0.
    Cosine,
}

/// See each field.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: Option<Train>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Train for several users: OpenAI's files and fine-tuning jobs over HTTP.
    Serve(Serve),
}

/// See each field.
#[derive(Debug, ClapArgs)]
struct Serve {
    /// The socket of the engine's training service; a vLLM started with TIDEGATE_TUNE logs its path.
    #[arg(long, value_name = "SOCKET")]
    engine: PathBuf,
    /// Where clients connect. There is no TLS: put a proxy before any address but a local one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Who may connect: TOML with rows [[keys]] of key, owner, weight, tokens_per_day, adapters.
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Folder of files, jobs and adapters. A server that is started again goes on from it.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
}

/// See each field.
#[derive(Debug, ClapArgs)]
struct Train {
    /// The socket of the engine's training service; a vLLM started with TIDEGATE_TUNE logs its path.
    #[arg(long, value_name = "SOCKET")]
    engine: PathBuf,
    /// Samples, one JSON object per line, with "messages" or "text".
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// The name under which the engine answers with the adapter.
    #[arg(long)]
    name: String,
    /// Output directory of the adapter, in PEFT's format; must not exist. Checkpoints are kept in DIR.tune.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The adapter: r=16,alpha=32,modules=q_proj+v_proj (default: these, and all modules but lm_head).
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = Lora::parse)]
    lora: Lora,
    /// How often each sample is learnt from.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    epochs: u64,
    /// Samples per step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch: u64,
    /// Highest learning rate of AdamW.
    #[arg(long, value_name = "X", default_value_t = 2e-4, value_parser = rate)]
    lr: f64,
    /// Steps in which the learning rate rises.
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// How the learning rate falls after that.
    #[arg(long, value_enum, default_value_t = Fall::Constant)]
    schedule: Fall,
    /// Decay of weights of AdamW.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    weight_decay: f64,
    /// After which steps the engine answers with the new weights at once: "every N" steps, "step N" alone, or the "end".
    /// After the others it does so when the next step begins.
    #[arg(long, num_args = 1..=2, value_names = ["WHEN", "N"], default_values = ["every", "1"])]
    publish: Vec<String>,
    /// Samples that are not learnt from. The adapter of the step with the smallest loss on them is kept.
    #[arg(long, value_name = "FILE")]
    validation: Option<PathBuf>,
    /// Steps between two losses of the validation file (default: an epoch).
    #[arg(long, value_name = "N", requires = "validation", value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: Option<u64>,
    /// Which tokens are learnt.
    #[arg(long, value_enum, default_value_t = Learnt::Assistant)]
    learn: Learnt,
    /// Random seed of the initial weights and of the order of samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Steps between checkpoints.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,
    /// Close the adapter at the end. Otherwise the engine goes on answering requests for NAME.
    #[arg(long)]
    close: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text
        .parse()
        .ok()
        .filter(|rate| (1e-12..=10.0).contains(rate));
    rate.ok_or_else(|| "give a number above 0, up to 10".to_owned())
}

fn publish(words: &[String]) -> anyhow::Result<Publish> {
    let count = |text: &String| text.parse().ok().filter(|count| *count > 0);
    let publish = match words {
        [when, count_of] if when == "every" => count(count_of).map(Publish::Every),
        [when, step] if when == "step" => count(step).map(Publish::Step),
        [when] if when == "end" => Some(Publish::End),
        _ => None,
    };
    publish.ok_or_else(|| {
        Usage("--publish: expected \"every N\", \"step N\" or \"end\"".to_owned()).into()
    })
}

impl Train {
    const fn learn(&self) -> Learn {
        match self.learn {
            Learnt::Assistant => Learn::Assistant,
            Learnt::All => Learn::All,
        }
    }

    fn plan(&self, samples: usize) -> anyhow::Result<Plan> {
        let shape = match self.schedule {
            Fall::Constant => Shape::Constant,
            Fall::Linear => Shape::Linear,
            Fall::Cosine => Shape::Cosine,
        };
        let batch = usize::try_from(self.batch)?;
        let epoch = tidegate_tune::order::steps_of_epoch(samples, batch).max(1);
        Ok(Plan {
            name: self.name.clone(),
            lora: self.lora.clone(),
            weight: 1.0,
            seed: self.seed,
            epochs: self.epochs,
            batch,
            schedule: Schedule {
                peak: self.lr,
                warmup: self.warmup,
                shape,
            },
            weight_decay: self.weight_decay,
            clip: 1.0,
            publish: publish(&self.publish)?,
            save_every: self.save_every,
            validate_every: self.validate_every.unwrap_or(epoch),
        })
    }
}

/// Prints what happens, and ends the run at a signal.
#[derive(Debug)]
struct Terminal {
    stop: Arc<AtomicBool>,
    steps: u64,
}

impl Watch for Terminal {
    fn wants(&self) -> Wants {
        if self.stop.load(Ordering::Relaxed) {
            Wants::Pause
        } else {
            Wants::Go
        }
    }

    fn saw(&mut self, news: News) {
        let mut out = std::io::stdout().lock();
        // Whoever reads may have gone; the training goes on.
        let _ = match news {
            News::Begun { done, steps } => {
                self.steps = steps;
                let from = if done > 0 {
                    format!(", going on after step {done}")
                } else {
                    String::new()
                };
                writeln!(out, "{steps} steps{from}")
            }
            News::Step(step) => writeln!(
                out,
                "step {}/{}: loss {:.4}, {} tokens, gradient {:.3}",
                step.step, self.steps, step.loss, step.tokens, step.gradient_norm
            ),
            News::Validated { step, loss } => {
                writeln!(out, "step {step}: validation loss {loss:.4}")
            }
            News::Saved { .. } | News::Published { .. } => Ok(()),
        };
    }
}

/// Trains, or serves; the exit code.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    match (&args.command, &args.train) {
        (Some(Command::Serve(args)), _) => serve(args),
        (None, Some(args)) => train(args),
        // The parser asks for one of them.
        (None, None) => Err(Usage("give the options of a training, or serve".to_owned()).into()),
    }
}

/// Serves until a signal; the exit code.
fn serve(args: &Serve) -> anyhow::Result<u8> {
    let wrong = |error: String| Usage(format!("{}: {error}", args.keys.display()));
    let text = std::fs::read_to_string(&args.keys).map_err(|error| wrong(error.to_string()))?;
    let options = Options {
        engine: args.engine.clone(),
        listen: args.listen,
        keys: Keys::parse(&text).map_err(wrong)?,
        state: std::path::absolute(&args.state)?,
    };
    runtime()?.block_on(async {
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        let stop = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        tidegate_tune::serve::serve(options, stop, |address| {
            // Nobody may read it.
            let _ = writeln!(std::io::stdout(), "listening at http://{address}/v1");
        })
        .await?;
        Ok(0)
    })
}

/// Trains; the exit code.
fn train(args: &Train) -> anyhow::Result<u8> {
    publish(&args.publish)?;
    let learn = args.learn();
    let read = |path: &Path| {
        let bytes =
            std::fs::read(path).map_err(|error| Usage(format!("{}: {error}", path.display())))?;
        data::lines(&path.display().to_string(), &bytes, learn)
            .map_err(|error| Usage(error.to_string()))
    };
    let lines = read(&args.data)?;
    let validation = args
        .validation
        .as_deref()
        .map(read)
        .transpose()?
        .unwrap_or_default();
    runtime()?.block_on(async {
        let (engine, hello) = Engine::connect(&args.engine).await?;
        let samples = samples(&engine, &hello, &args.data, &lines, learn).await?;
        let path = args.validation.as_deref().unwrap_or(&args.data);
        let validation = self::samples(&engine, &hello, path, &validation, learn).await?;
        let plan = args.plan(samples.len())?;
        let place = Place::beside(&std::path::absolute(&args.out)?);
        let mut terminal = Terminal {
            stop: stopped()?,
            steps: 0,
        };
        let material = Material {
            samples,
            validation,
        };
        let end = run::train(&engine, &hello, &plan, &material, &place, &mut terminal).await;
        ended(args, &engine, end).await
    })
}

async fn samples(
    engine: &Engine,
    hello: &Hello,
    path: &Path,
    lines: &[data::Line],
    learn: Learn,
) -> anyhow::Result<Vec<Sample>> {
    use tidegate_tune::sample::SampleError;
    let samples = encode(engine, hello, &path.display().to_string(), lines, learn).await;
    samples.map_err(|error| match error {
        SampleError::Data(error) => Usage(error.to_string()).into(),
        SampleError::Engine(error) => error.into(),
    })
}

/// Set once a signal asks this process to end.
fn stopped() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signal = signal(kind)?;
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            signal.recv().await;
            stop.store(true, Ordering::Relaxed);
        });
    }
    Ok(stop)
}

async fn ended(args: &Train, engine: &Engine, end: Result<End, RunError>) -> anyhow::Result<u8> {
    let out = args.out.display();
    match end {
        Ok(End::Finished { step }) => {
            // As above: whoever reads may have gone.
            let _ = writeln!(std::io::stdout(), "{out} has the adapter of step {step}");
            if args.close {
                let close = serde_json::json!({"adapter": args.name});
                let _: serde_json::Value = engine.call("close", close).await?;
            }
            Ok(0)
        }
        Ok(End::Paused | End::Cancelled) => {
            let _ = writeln!(std::io::stdout(), "stopped; the same command goes on");
            Ok(1)
        }
        Err(error @ RunError::Unfit(_)) => Err(Usage(format!("--lora: {error}")).into()),
        Err(RunError::Engine(error)) if error.gone() => {
            anyhow::bail!("{error}; the same command goes on from the newest checkpoint")
        }
        Err(error) => Err(error.into()),
    }
}
