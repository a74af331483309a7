//! `tidegate place claim`: a prolog that fails drains its node, so this one never does.

use super::look::Look;
use crate::agent::Agent;
use clap::Args as ClapArgs;
use tidegate_place::claims::{Claims, is_job, list};
use tidegate_place::offers::{Wish, node};
use tidegate_policy::placement::best;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    look: Look,
    /// Give the GPUs of a finished job back, in the epilog.
    #[arg(long)]
    release: bool,
}

pub(super) fn run(agent: &Agent, args: &Args) {
    match claim(agent, args) {
        Ok(Some(text)) => println!("{text}"),
        Ok(None) => {}
        Err(why) => eprintln!("tidegate: {}", tidegate_agent::plain::line(&why)),
    }
}

/// What an engine's variable says; what is no text is none.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn claim(agent: &Agent, args: &Args) -> Result<Option<String>, String> {
    let job = variable("SLURM_JOB_ID");
    if !is_job(&job) {
        return Err("SLURM_JOB_ID is no job: this runs in a prolog of Slurm".to_owned());
    }
    let claims = Claims::new(&agent.run_dir);
    if args.release {
        return claims
            .release(&job)
            .map(|()| None)
            .map_err(|error| error.to_string());
    }
    let Some(wish) = Wish::of(&variable("SLURM_JOB_COMMENT")).map_err(|why| why.to_string())?
    else {
        return Ok(None);
    };
    let seen = args.look.see().map_err(|error| error.to_string())?;
    if let Some(why) = &seen.none {
        return Err(format!("job {job} gets no GPU of its own: {why}"));
    }
    let Some(profile) = seen.profiles.iter().find(|own| own.name() == wish.profile) else {
        return Err(format!(
            "job {job} gets no GPU of its own: no profile {}",
            wish.profile
        ));
    };
    let free = seen.facts.gpus.minus(claims.taken(&job));
    let known = node(&seen.facts, seen.horizon);
    let Some(found) = best(profile, wish.gpus, free, &known) else {
        return Err(format!(
            "job {job} gets no GPU of its own: {} of {} are free",
            free.len(),
            wish.gpus
        ));
    };
    claims
        .claim(&job, found.gpus)
        .map_err(|error| error.to_string())?;
    Ok(Some(list(found.gpus)))
}
