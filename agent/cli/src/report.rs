//! `tidegate report`: what was harvested over days.

use super::print::{print, print_folded};
use super::table::{self, Grid, long, number, word};
use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use tidegate_agent::clock::unix_ms;
use tidegate_agent::watch::history::summary::{Gaps, Job, Summary, User, summarise};
use tidegate_agent::watch::history::{self, GpuSlice, JobSlice, Slice, Span, Subject};
use tidegate_policy::ids::GpuSet;
use tidegate_proto::{HISTORY_FILE, STATE_DIR};
use tidegate_text::screen::terminal_width;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Since when: "7d", "12h", "30m", 03:00, "2026-11-28 03:00", yesterday.
    ///
    /// A time of day is in this machine's zone; with a Z behind it, it is in UTC.
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = super::values::since)]
    since: u64,
    /// The agent's `history.file`, or a copy of one.
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(STATE_DIR).join(HISTORY_FILE))]
    file: PathBuf,
    /// Launches per second of a job alone on its GPUs, if you know it: JOB=RATE.
    #[arg(long, value_name = "JOB=RATE", value_parser = rate)]
    standalone: Vec<(String, f64)>,
    /// Whether the table of jobs has a row per job or per user.
    #[arg(long, value_enum, default_value_t = By::Job)]
    by: By,
    /// Output format. csv prints every sample, as input for a scheduler.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// What the samples of csv are about.
    #[arg(long, value_enum, default_value_t = Of::Gpus)]
    of: Of,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A human-readable table.
    Table,
    /// The summary as one object.
    Json,
    /// The history, one sample per line.
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum By {
    /// Each job.
    Job,
    /// Each user: the sums of all jobs.
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Busy, open and harvested time, gaps, preemptions, memory.
    Gpus,
    /// Busy time of two GPUs.
    Pairs,
    /// Offline jobs.
    Jobs,
    /// Sets of gates that were open together.
    Open,
    /// Memory that online left while gates were open, where it is shared.
    Memory,
}

fn rate(text: &str) -> Result<(String, f64), String> {
    let parsed = text.rsplit_once('=').and_then(|(job, rate)| {
        let rate: f64 = rate
            .parse()
            .ok()
            .filter(|rate: &f64| *rate > 0.0 && rate.is_finite())?;
        Some((job.to_owned(), rate))
    });
    parsed.ok_or_else(|| "give a job and its launches per second, e.g. batch=2400".to_owned())
}

/// Prints the report.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut slices = history::read(&args.file).map_err(|error| {
        let file = args.file.display();
        match error.kind() {
            std::io::ErrorKind::NotFound => anyhow::anyhow!(
                "there is no history at {file} yet: the agent writes it once a minute (`history.every`); if \
                 `history.file` names another, give it with --file"
            ),
            _ => anyhow::anyhow!("cannot read {file}: {error}"),
        }
    })?;
    let from = unix_ms().saturating_sub(args.since / 1_000_000);
    slices.retain(|slice| slice.span.end_unix_ms > from);
    anyhow::ensure!(
        !slices.is_empty(),
        "{} knows nothing of the last {}",
        args.file.display(),
        table::time(args.since)
    );
    if args.output == Output::Csv {
        return print(&csv(&slices, args.of));
    }
    let summary = summarise(
        &slices,
        &args.standalone.iter().cloned().collect::<BTreeMap<_, _>>(),
    );
    match args.output {
        Output::Json => print(&format!("{:#}\n", as_json(&summary))),
        _ => print_folded(&text(&summary, args.by, terminal_width())),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn gap(gaps: &Gaps, q: f64) -> String {
    match gaps.quantile(q) {
        _ if gaps.count == 0 => "-".to_owned(),
        None => "> 5 min".to_owned(),
        Some(ns) => format!("<= {}", table::time(ns)),
    }
}

/// Mebibytes of memory.
fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn ns_of_ms(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

pub(super) fn text(summary: &Summary, by: By, width: Option<u16>) -> String {
    let mut text = String::new();
    let period = ns_of_ms(summary.end_unix_ms.saturating_sub(summary.begin_unix_ms));
    let observed = summary
        .gpus
        .iter()
        .map(|gpu| gpu.observed)
        .max()
        .unwrap_or(0);
    let _ = writeln!(
        text,
        "{} of the last {} are in the history\n",
        table::time(observed.min(period)),
        table::time(period)
    );
    let mut gpus = Grid::new(&[
        word("GPU"),
        number("ONLINE"),
        number("HARVESTED"),
        number("OF IDLE").spare(1),
        number("BURSTINESS").spare(4),
        number("GAPS"),
        number("p50").spare(2),
        number("p90").spare(3),
        number("p99"),
        number("PREEMPTIONS"),
    ]);
    for gpu in &summary.gpus {
        let idle = 1.0 - gpu.busy;
        let of_idle = if idle > 0.0 {
            (gpu.harvested / idle).min(1.0)
        } else {
            0.0
        };
        gpus.add([
            gpu.gpu.to_string(),
            percent(gpu.busy),
            percent(gpu.harvested),
            percent(of_idle),
            format!("{:.2}", gpu.busy_cv),
            gpu.gaps.count.to_string(),
            gap(&gpu.gaps, 0.5),
            gap(&gpu.gaps, 0.9),
            gap(&gpu.gaps, 0.99),
            gpu.preemptions.to_string(),
        ]);
    }
    let shown = gpus.show(width, &mut text);
    text.push_str("(ONLINE: busy. HARVESTED: offline work could run. ");
    if shown.has("BURSTINESS") {
        text.push_str(
            "BURSTINESS: of the busy share from slice to slice, standard deviation over mean. ",
        );
    }
    text.push_str("GAPS: times online left the GPU idle, and how long.)\n\n");
    if summary.jobs.is_empty() {
        text.push_str("no offline job was attached\n");
    } else {
        text.push_str(&match by {
            By::Job => jobs(&summary.jobs, width),
            By::User => users(&summary.users(), width),
        });
    }
    memory(summary, &mut text);
    let aligned: Vec<_> = summary
        .pairs
        .iter()
        .filter_map(|pair| Some(format!("{}-{} {:.2}", pair.a, pair.b, pair.alignment?)))
        .collect();
    if !aligned.is_empty() {
        let _ = writeln!(
            text,
            "\nalignment of GPUs (busy together / busy on either): {}",
            aligned.join(", ")
        );
    }
    text
}

fn jobs(jobs: &[Job], width: Option<u16>) -> String {
    let mut text = String::new();
    let mut rows = Grid::new(&[
        long("JOB", 16),
        number("GPUS").spare(1),
        number("ATTACHED"),
        number("RAN"),
        number("LAUNCHES"),
        number("STANDALONE/s").spare(2),
        number("THROUGHPUT"),
        number("GPUS SAVED"),
    ]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for job in jobs {
        let rate = job.standalone.map(|(rate, basis)| {
            let basis = basis.name().replace('_', " ");
            format!("{rate:.0} ({basis})")
        });
        rows.add([
            job.name.clone(),
            job.gpus.to_string(),
            table::time(job.attached),
            table::time(job.running),
            job.launches.to_string(),
            or_dash(rate),
            or_dash(job.fraction.map(percent)),
            or_dash(job.saved.map(|saved| format!("{saved:.2}"))),
        ]);
    }
    rows.show(width, &mut text);
    let saved: f64 = jobs.iter().filter_map(|job| job.saved).sum();
    let _ = writeln!(
        text,
        "(THROUGHPUT: launches, as a share of what the job does standalone. {saved:.2} GPUs saved in all.)"
    );
    text
}

/// A user, by name where this machine knows it.
fn user(uid: Option<u32>) -> String {
    let Some(uid) = uid else {
        return "not known".to_owned();
    };
    let known = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    let name = known.ok().flatten().map(|user| user.name);
    name.map_or_else(|| uid.to_string(), |name| format!("{name} ({uid})"))
}

fn users(users: &[User], width: Option<u16>) -> String {
    let mut text = String::new();
    let mut rows = Grid::new(&[
        long("USER", 16),
        number("JOBS"),
        number("ATTACHED"),
        number("RAN"),
        number("LAUNCHES"),
        number("GPUS SAVED"),
    ]);
    for sum in users {
        rows.add([
            user(sum.uid),
            sum.jobs.to_string(),
            table::time(sum.attached),
            table::time(sum.running),
            sum.launches.to_string(),
            format!("{:.2}", sum.saved),
        ]);
    }
    rows.show(width, &mut text);
    let saved: f64 = users.iter().map(|user| user.saved).sum();
    let _ = writeln!(
        text,
        "(Sums over a user's jobs. {saved:.2} GPUs saved in all.)"
    );
    text
}

fn memory(summary: &Summary, text: &mut String) {
    for gpu in &summary.gpus {
        let Some(memory) = &gpu.memory else { continue };
        let _ = writeln!(
            text,
            "\nmemory of GPU {}, MiB: online left {} of {} on average, {} in the worst 5 % of time, {} at \
             the least; burstiness of its use {:.2}; {} times under pressure",
            gpu.gpu,
            mib(memory.mean),
            mib(memory.pool),
            mib(memory.p5),
            mib(memory.min),
            memory.used_cv,
            gpu.pressure,
        );
    }
}

fn as_json(summary: &Summary) -> Value {
    let gpus = summary.gpus.iter().map(|gpu| {
        json!({
            "gpu": gpu.gpu,
            "observed_ns": gpu.observed,
            "online_busy": gpu.busy,
            "idle": 1.0 - gpu.busy,
            "gate_open": gpu.open,
            "harvested": gpu.harvested,
            "preemptions": gpu.preemptions,
            "pressure_events": gpu.pressure,
            "busy_cv": gpu.busy_cv,
            "gaps": {
                "count": gpu.gaps.count,
                "mean_s": gpu.gaps.mean_s,
                "cv": gpu.gaps.cv,
                "bounds_ns": tidegate_node::usage::GAP_BOUNDS_NS,
                "counts": gpu.gaps.counts,
            },
            "memory": gpu.memory.map(|memory| json!({
                "pool_bytes": memory.pool,
                "available_mean_bytes": memory.mean,
                "available_p5_bytes": memory.p5,
                "available_min_bytes": memory.min,
                "used_cv": memory.used_cv,
            })),
        })
    });
    let pairs = summary
        .pairs
        .iter()
        .map(|pair| json!({"a": pair.a, "b": pair.b, "alignment": pair.alignment}));
    let jobs = summary.jobs.iter().map(|job| {
        json!({
            "job": job.name,
            "uid": job.uid,
            "gpus": job.gpus,
            "attached_ns": job.attached,
            "running_ns": job.running,
            "launches": job.launches,
            "units": job.units,
            "units_lost": job.lost,
            "paused_ns": job.paused,
            "held_mean_bytes": job.held,
            "standalone_launches_per_s": job.standalone.map(|(rate, _)| rate),
            "standalone_basis": job.standalone.map(|(_, basis)| basis.name()),
            "throughput_fraction": job.fraction,
            "gpus_saved": job.saved,
        })
    });
    let users = summary.users().into_iter().map(|user| {
        json!({
            "uid": user.uid,
            "jobs": user.jobs,
            "attached_ns": user.attached,
            "running_ns": user.running,
            "launches": user.launches,
            "gpus_saved": user.saved,
        })
    });
    json!({
        "begin_unix_ms": summary.begin_unix_ms,
        "end_unix_ms": summary.end_unix_ms,
        "gpus": gpus.collect::<Vec<_>>(),
        "pairs": pairs.collect::<Vec<_>>(),
        "jobs": jobs.collect::<Vec<_>>(),
        "users": users.collect::<Vec<_>>(),
        "gpus_saved": summary.jobs.iter().filter_map(|job| job.saved).sum::<f64>(),
    })
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// "0+2" of bits 0 and 2.
fn gpu_list(bits: u64) -> String {
    let gpus = GpuSet::from_bits(bits).iter().map(|gpu| gpu.0.to_string());
    gpus.collect::<Vec<_>>().join("+")
}

/// The first row.
fn csv_head(of: Of) -> String {
    let mut out = String::from("end_unix_ms,length_ns,");
    match of {
        Of::Gpus => {
            out.push_str(
                "gpu,busy_ns,open_ns,running_ns,edges,preemptions,wakes,pressure_events,\
                 pool_bytes,available_mean_bytes,available_min_bytes,gap_sum_ns",
            );
            for bound in tidegate_node::usage::GAP_BOUNDS_NS {
                let _ = write!(out, ",gaps_le_{}ms", bound / 1_000_000);
            }
            out.push_str(",gaps_above\n");
        }
        Of::Pairs => out.push_str("a,b,both_busy_ns,either_busy_ns\n"),
        Of::Jobs => {
            out.push_str(
                "job,gpus,attached_ns,running_ns,launches,undisturbed,uid,units,\
                 units_lost,paused_ns,held_byte_seconds\n",
            );
        }
        Of::Open => out.push_str("gpus_open,time_ns\n"),
        Of::Memory => out.push_str("gpu,pool_bytes,fallen_bytes,open_ns,available_mean_bytes\n"),
    }
    out
}

fn csv(slices: &[Slice], of: Of) -> String {
    let mut out = csv_head(of);
    for slice in slices {
        let Span {
            end_unix_ms,
            length_ns,
        } = slice.span;
        for row in csv_rows(&slice.subject, of) {
            let _ = writeln!(out, "{end_unix_ms},{length_ns},{row}");
        }
    }
    out
}

/// The rows of a slice, without its time; none where something else was asked for.
fn csv_rows(subject: &Subject, of: Of) -> Vec<String> {
    match (subject, of) {
        (Subject::Gpu(gpu), Of::Gpus) => vec![csv_gpu(gpu)],
        (Subject::Pair(pair), Of::Pairs) => {
            vec![format!(
                "{},{},{},{}",
                pair.a, pair.b, pair.both, pair.either
            )]
        }
        (Subject::Job(job), Of::Jobs) => vec![csv_job(job)],
        (Subject::Open(open), Of::Open) => {
            let sets = open.sets.iter();
            let sets = sets.map(|(gpus, time)| (gpu_list(*gpus), *time));
            let rest = (open.uncounted != 0).then(|| ("uncounted".to_owned(), open.uncounted));
            let rows = sets.chain(rest);
            rows.map(|(gpus, time)| format!("{gpus},{time}")).collect()
        }
        (Subject::Memory(memory), Of::Memory) => {
            let (gpu, pool, fallen) = (memory.gpu, memory.pool, memory.fallen);
            let means = memory.open.iter().zip(memory.mean);
            means
                .filter(|(ns, _)| **ns != 0)
                .map(|(open, mean)| format!("{gpu},{pool},{fallen},{open},{mean}"))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn csv_gpu(gpu: &GpuSlice) -> String {
    let mut row = format!(
        "{},{},{},{},{},{},{},{},{},{},{},{}",
        gpu.gpu,
        gpu.busy,
        gpu.open,
        gpu.running,
        gpu.edges,
        gpu.preemptions,
        gpu.wakes,
        gpu.pressure,
        gpu.pool,
        gpu.available_mean,
        gpu.available_min,
        gpu.gap_sum,
    );
    for count in gpu.gaps {
        let _ = write!(row, ",{count}");
    }
    row
}

fn csv_job(job: &JobSlice) -> String {
    format!(
        "{},{},{},{},{},{},{},{},{},{},{}",
        quoted(&job.name),
        job.gpus.count_ones(),
        job.attached,
        job.running,
        job.launches,
        u8::from(job.undisturbed),
        job.uid.map_or_else(String::new, |uid| uid.to_string()),
        job.units,
        job.lost,
        job.paused,
        job.held
    )
}

#[cfg(test)]
mod tests;
