//! `tidegate explain`: why a process is what it is and does what it does, why a handle was taken.

mod lease;

use super::agent::Agent;
use super::print::{Output, print, print_folded};
use super::table::time;
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use tidegate_proto::v1;
use tidegate_text::screen::terminal_width;
use v1::node_client::NodeClient;

#[derive(Debug, Subcommand)]
pub enum What {
    /// Show which rule gives a process its role, and why it runs or waits now.
    Pid {
        /// Process id, in the namespace of the node.
        #[arg(value_parser = process_id)]
        pid: i32,
        /// Show it as if TIDEGATE_ROLE were set to this role.
        #[arg(long, value_enum, value_name = "ROLE")]
        asking: Option<Wish>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Show what a memory handle of an offline job's KV cache is worth, and why it was last taken.
    Handle {
        /// Its number in the job's cache, from 0.
        handle: u32,
        /// Only this job.
        #[arg(long)]
        job: Option<String>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Show the slack beside online, the last leases, and why a trainer has none.
    Lease {
        /// Only this job; all jobs that train if omitted.
        job: Option<String>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

fn process_id(text: &str) -> Result<i32, &'static str> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or("give the number of a process, as `tidegate status` shows it")
}

/// What a process may ask to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wish {
    /// Its work has the GPU when it wants it.
    Online,
    /// It has the GPU while online is idle.
    Offline,
}

impl Wish {
    /// As the protocol says it.
    pub(super) const fn role(self) -> v1::Role {
        match self {
            Self::Online => v1::Role::Online,
            Self::Offline => v1::Role::Offline,
        }
    }
}

pub async fn run(agent: &Agent, what: &What) -> anyhow::Result<()> {
    let mut node = NodeClient::new(agent.reader().await?);
    match what {
        What::Pid {
            pid,
            asking,
            output,
        } => {
            let mut request = v1::ExplainRequest {
                pid: *pid,
                ..v1::ExplainRequest::default()
            };
            if let Some(wish) = asking {
                request.set_asked_role(wish.role());
            }
            let answer = node.explain(request).await?;
            let found = answer.into_inner();
            match output {
                Output::Table => print_folded(&process(&found)),
                Output::Json => print(&format!("{:#}\n", process_json(&found))),
            }
        }
        What::Lease { job, output } => {
            let request = v1::ExplainLeaseRequest {
                job: job.clone().unwrap_or_default(),
            };
            let gpus = node.explain_lease(request).await?.into_inner().gpus;
            match output {
                Output::Table => print_folded(&lease::text(&gpus, terminal_width())),
                Output::Json => print(&format!("{:#}\n", lease::json(&gpus))),
            }
        }
        What::Handle {
            handle,
            job,
            output,
        } => {
            let request = v1::ExplainHandleRequest {
                handle: *handle,
                job: job.clone().unwrap_or_default(),
            };
            let found = node.explain_handle(request).await?.into_inner().handles;
            match output {
                Output::Table => {
                    let texts: Vec<_> = found.iter().map(|h| self::handle(*handle, h)).collect();
                    print_folded(&texts.join("\n"))
                }
                Output::Json => {
                    let rows: Vec<_> = found.iter().map(handle_json).collect();
                    print(&format!(
                        "{:#}\n",
                        json!({ "handle": handle, "jobs": rows })
                    ))
                }
            }
        }
    }
}

fn process(found: &v1::ExplainResponse) -> String {
    let mut text = format!(
        "process {} ({}), uid {}, gid {}\n  cgroup  {}\n",
        found.pid, found.name, found.uid, found.gid, found.cgroup
    );
    for fact in &found.facts {
        text.push_str(&format!("  {}  {}\n", fact.name, fact.value));
    }
    text.push_str("rules, in order\n");
    if found.trials.is_empty() {
        text.push_str("  none are configured\n");
    }
    for trial in &found.trials {
        text.push_str(&format!(
            "  {}. {}  # {}\n",
            trial.number, trial.rule, trial.origin
        ));
        let fared = if trial.matched {
            "matches"
        } else {
            &trial.mismatch
        };
        text.push_str(&format!("     {fared}\n"));
    }
    text.push_str(&format!(
        "role\n  {}: {}\n",
        super::json::role_name(found.role()),
        found.rule
    ));
    if !found.role_refused.is_empty() {
        text.push_str(&format!("  it {}\n", found.role_refused));
    }
    for process in &found.attached {
        text.push_str(&format!(
            "attached, session {}\n  {}: {}\n",
            process.session,
            super::json::role(process),
            process.rule
        ));
    }
    text.push_str("at this moment\n");
    for reason in &found.reasons {
        text.push_str(&format!("  {reason}\n"));
    }
    text
}

fn process_json(found: &v1::ExplainResponse) -> serde_json::Value {
    let facts = found.facts.iter();
    let facts: serde_json::Map<_, _> = facts
        .map(|fact| (fact.name.clone(), fact.value.clone().into()))
        .collect();
    let trials = found.trials.iter().map(|trial| {
        json!({
            "number": trial.number,
            "origin": trial.origin,
            "rule": trial.rule,
            "matched": trial.matched,
            "mismatch": trial.mismatch,
        })
    });
    json!({
        "pid": found.pid,
        "name": found.name,
        "uid": found.uid,
        "gid": found.gid,
        "cgroup": found.cgroup,
        "facts": facts,
        "trials": trials.collect::<Vec<_>>(),
        "role": super::json::role_name(found.role()),
        "rule": found.rule,
        "asked_role": super::json::asked(found.asked_role()),
        "role_refused": found.role_refused,
        "attached": super::json::processes(&found.attached),
        "reasons": found.reasons,
    })
}

fn handle(number: u32, found: &v1::HandleStatus) -> String {
    let blocks = if found.first_block < 0 {
        "no block".to_owned()
    } else {
        format!("blocks {} to {}", found.first_block, found.last_block)
    };
    let mut text = format!(
        "handle {number} of job {}: stripe {}, {} handles on each GPU, {blocks}\n",
        found.job, found.stripe, found.handles
    );
    let standing = match found.backing.as_str() {
        "own" => format!(
            "it has memory of its own; taking it would cost {} tokens of {} requests",
            found.tokens, found.requests
        ),
        "pinned" => "it is never taken: the engine cannot do without one of its blocks".to_owned(),
        _ => "it is taken, or on its way".to_owned(),
    };
    text.push_str(&format!("  {standing}\n"));
    match &found.choice {
        Some(choice) => text.push_str(&format!(
            "  taken last in reclaim {} (at {} of the machine's clock), as number {} of its choice: it cost \
             {} more tokens, of {} requests that nothing chosen before had hit\n",
            choice.reclaim,
            time(choice.at_ns),
            u64::from(choice.rank) + 1,
            choice.tokens,
            choice.requests
        )),
        None => text.push_str("  it was not taken lately\n"),
    }
    text
}

fn handle_json(found: &v1::HandleStatus) -> serde_json::Value {
    let choice = found.choice.as_ref().map(|choice| {
        json!({
            "reclaim": choice.reclaim,
            "at_ns": choice.at_ns,
            "rank": choice.rank,
            "tokens": choice.tokens,
            "requests": choice.requests,
        })
    });
    json!({
        "job": found.job,
        "stripe": found.stripe,
        "handles": found.handles,
        "first_block": found.first_block,
        "last_block": found.last_block,
        "backing": found.backing,
        "requests": found.requests,
        "tokens": found.tokens,
        "choice": choice,
    })
}
