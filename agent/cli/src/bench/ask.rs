//! What `tidegate bench` is asked, and what is refused before anything is sent.

use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_agent::config::show_duration;
use tidegate_bench::batch::Batch;
use tidegate_bench::import::Named;
use tidegate_bench::plan::{Mode, Request, Schedule, poisson};
use tidegate_bench::slo::Slo;
use tidegate_bench::target::Call;
use tidegate_replay::trace::{self, Cut};

/// A wrong command line, or a target that cannot be one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub(super) String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Endpoint {
    /// /v1/completions.
    Completions,
    /// /v1/chat/completions.
    Chat,
}

/// See each field.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("load").required(true).args(["requests", "rate", "import"]))]
pub struct Args {
    /// An OpenAI-compatible server: http://127.0.0.1:8000, or https://.
    #[arg(long, value_name = "URL", required_unless_present = "import")]
    pub target: Option<String>,
    /// CA certificate of an https target, in PEM (default: those of the system).
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Environment variable with the API key (default: OPENAI_API_KEY, if set).
    #[arg(long, value_name = "NAME", conflicts_with = "import")]
    api_key_env: Option<String>,
    /// Requests to send: Azure's, BurstGPT's or Mooncake's public format, or CSV with arrival_s,input_tokens,output_tokens.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Requests per second; arrivals are independent (Poisson).
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Compare results of guidellm, aiperf or `vllm bench serve --save-result`, in the order in which they were measured:
    /// [MODE=]FILE, where MODE is alone, drained, ungated, gated or one-engine. Sends no requests and needs no agent.
    #[arg(long, value_name = "[MODE=]FILE", value_delimiter = ',', value_parser = Named::parse)]
    pub import: Vec<Named>,
    /// Approximate prompt length in tokens (with --rate).
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    input_tokens: u32,
    /// Answer length in tokens (with --rate).
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    output_tokens: u32,
    /// Keep one request in N (with --requests).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    thin: u64,
    /// Begin at this second of the file (with --requests).
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    start: u64,
    /// Length of a block in seconds.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Number of ABBA cycles; with two modes a cycle is four blocks.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub cycles: u64,
    /// What offline does in the blocks: drained (nothing), ungated (runs beside online, which slows users down), gated
    /// (default: all; ungated only if bench.ungated allows it).
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = mode)]
    #[arg(conflicts_with_all = ["alone", "import"])]
    modes: Vec<Mode>,
    /// Also measure blocks in which the same server has N batch requests in flight at low priority, and no offline job
    /// runs. Start vLLM with --scheduling-policy priority.
    #[arg(long, value_name = "N", conflicts_with = "import", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Approximate prompt length of a batch request in tokens.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "batch", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch_input_tokens: u32,
    /// Answer length of a batch request in tokens.
    #[arg(long, value_name = "N", default_value_t = 256, requires = "batch", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch_output_tokens: u32,
    /// Seconds at the beginning of a block that are not counted.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    warm_up: f64,
    /// Seconds at the end of a block that are not counted.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    cool_down: f64,
    /// Random seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The model to ask for (default: the server's first).
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The endpoint that generates text.
    #[arg(long, value_enum, default_value_t = Endpoint::Completions)]
    endpoint: Endpoint,
    /// Omit `ignore_eos`, for servers that refuse it; answers may then be shorter than requested.
    #[arg(long)]
    pub may_stop: bool,
    /// Timeout for the next piece of an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    silence: f64,
    /// The objective: "ttft=500ms,tpot=50ms" (goodput), or relative to online alone "ttft=+1%,tpot=+0.5%".
    #[arg(long, value_name = "SLO", value_parser = Slo::parse)]
    pub slo: Option<Slo>,
    /// Measure the server as it is, without an agent.
    #[arg(long)]
    pub alone: bool,
    /// The offline engine's metrics, to count its tokens: http://127.0.0.1:8001.
    #[arg(long, value_name = "URL")]
    pub offline_metrics: Option<String>,
    /// Write the figures to FILE, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report to FILE, as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-4..=1e5).contains(rate));
    rate.ok_or_else(|| "give requests per second, from 0.0001 to 100000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds, from 0 to 86400".to_owned())
}

fn mode(text: &str) -> Result<Mode, String> {
    let mode = Mode::named(text).filter(|mode| !matches!(mode, Mode::Alone | Mode::OneEngine));
    mode.ok_or_else(|| "give drained, ungated or gated".to_owned())
}

impl Args {
    /// Which modes take turns on an agent that allows blocks of `longest` to be ungated, and what the reader has to
    /// know of that.
    ///
    /// # Errors
    /// When one was asked for that the agent does not allow.
    pub fn modes(&self, longest: Duration) -> Result<(Vec<Mode>, Option<String>), Usage> {
        let length = Duration::from_secs(self.seconds);
        let said = show_duration(longest);
        let asked = self.modes.contains(&Mode::Ungated);
        if asked && longest.is_zero() {
            let how = "write [bench] ungated = \"2min\" into the agent's file and reload it";
            return Err(Usage(format!(
                "--modes ungated: this agent lets no offline job run beside online; {how}"
            )));
        }
        if asked && length > longest {
            return Err(Usage(format!(
                "--modes ungated: --seconds {} is longer than the agent allows: bench.ungated = {said}",
                self.seconds
            )));
        }
        if !self.modes.is_empty() {
            return Ok((self.modes.clone(), None));
        }
        Ok(if length <= longest {
            (vec![Mode::Drained, Mode::Ungated, Mode::Gated], None)
        } else {
            let note = format!("no block is ungated: bench.ungated = {said} is shorter than one");
            let modes = vec![Mode::Drained, Mode::Gated];
            (modes, Some(note).filter(|_| !longest.is_zero()))
        })
    }

    /// The key that the target wants.
    ///
    /// # Errors
    /// When the variable that was named has none.
    pub fn key(&self) -> Result<Option<String>, Usage> {
        let named = self.api_key_env.as_deref();
        let name = named.unwrap_or("OPENAI_API_KEY");
        let key = std::env::var(name).ok().filter(|key| !key.is_empty());
        if key.is_none() && named.is_some() {
            return Err(Usage(format!(
                "--api-key-env {name}: there is no such variable, or nothing is in it"
            )));
        }
        // A value with others would be no header (RFC 9110, 5.5).
        if key
            .as_deref()
            .is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Usage(format!(
                "{name} has characters that no key has, such as a space or a line's end"
            )));
        }
        Ok(key)
    }

    /// Whether modes were chosen, which takes an agent.
    #[must_use]
    pub const fn chooses_modes(&self) -> bool {
        !self.modes.is_empty()
    }

    /// The requests of a block, and what they are in words.
    ///
    /// # Errors
    /// When a file cannot be read, or nothing would be counted.
    pub fn schedule(&self) -> anyhow::Result<(Schedule, String)> {
        let length = Duration::from_secs(self.seconds);
        let (requests, said) = if let Some(file) = &self.requests {
            let cut = Cut {
                keep_1_in: self.thin,
                from: Duration::from_secs(self.start),
                length: Some(length),
                ..Cut::default()
            };
            let trace = trace::read_cut(file, &cut)?;
            let sent = trace.requests().iter().map(|request| Request {
                due: Duration::from_nanos(request.arrival.0),
                input_tokens: request.input_tokens,
                output_tokens: request.output_tokens,
            });
            (sent.collect(), format!("{}, {cut}", file.display()))
        } else {
            let rate = self.rate.unwrap_or_default();
            let tokens = [self.input_tokens, self.output_tokens];
            let said = format!(
                "{rate} requests/s (Poisson), {} prompt and {} answer tokens, seed {}",
                tokens[0], tokens[1], self.seed
            );
            (poisson(rate, length, tokens, self.seed), said)
        };
        let cuts = [self.warm_up, self.cool_down].map(Duration::from_secs_f64);
        let schedule = Schedule::new(requests, length, cuts, self.seed);
        let schedule = schedule.map_err(|error| Usage(error.to_string()))?;
        Ok((schedule, said))
    }

    /// The batch that the server has in some of the blocks.
    #[must_use]
    pub fn batch(&self) -> Option<Batch> {
        self.batch.map(|in_flight| Batch {
            in_flight,
            input_tokens: self.batch_input_tokens,
            output_tokens: self.batch_output_tokens,
        })
    }

    /// The endpoint that generates text.
    #[must_use]
    pub const fn call(&self) -> Call {
        match self.endpoint {
            Endpoint::Completions => Call::Completions,
            Endpoint::Chat => Call::Chat,
        }
    }

    /// Timeout for the next piece of an answer.
    #[must_use]
    pub fn silence(&self) -> Duration {
        Duration::from_secs_f64(self.silence.max(0.001))
    }
}
