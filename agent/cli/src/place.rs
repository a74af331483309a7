//! `tidegate place`: what this node gives offline jobs, said to the engine that places them.

mod claim;
mod look;
mod profile;
mod publish;
mod show;
mod tend;

use super::agent::Agent;
use super::print::print;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;
use tidegate_place::profiles;
use tidegate_place::slurm;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Predict what a job of each profile would get here, and show why. Needs no agent.
    Show(show::Args),
    /// Publish it once: as features of Slurm, or as a file for node-feature-discovery. Exits with 0 even if the engine
    /// does not answer.
    Publish(publish::Args),
    /// Move a job that has been below its SLA for long, if another node gives enough. Runs once, under Slurm.
    Tend(Box<tend::Args>),
    /// Make or check profiles: what a kind of offline job needs.
    #[command(subcommand)]
    Profile(profile::Command),
    /// Check profiles, as `place profile check`.
    #[command(hide = true)]
    Check(profile::Check),
    /// Choose the GPUs of a Slurm job, in its prolog. Always exits with 0.
    Claim(claim::Args),
    /// Print the lines for slurm.conf and gres.conf.
    SlurmConf(Conf),
}

/// See each field.
#[derive(Debug, ClapArgs)]
pub(super) struct Conf {
    /// Directory of the profiles.
    #[arg(long, value_name = "DIR", default_value = profiles::DIR)]
    profiles: PathBuf,
    /// Nodes of the partition, as Slurm lists them.
    #[arg(long, value_name = "NODES", default_value = "gpu[01-20]")]
    nodes: String,
    /// Offline jobs that each of them runs at once: its number of GPUs.
    #[arg(long, value_name = "N", default_value_t = 8)]
    gpus: u32,
}

pub(super) fn run(agent: &Agent, command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Show(args) => show::run(args)?,
        Command::Publish(args) => publish::run(agent, args)?,
        Command::Tend(args) => tend::run(agent, args)?,
        Command::Profile(command) => return profile::run(command),
        Command::Check(args) => return profile::check(args),
        Command::Claim(args) => claim::run(agent, args),
        Command::SlurmConf(args) => {
            let (profiles, refused) = look::read(&args.profiles)?;
            look::complain(&refused);
            print(&slurm::conf(&profiles, &args.nodes, args.gpus))?;
        }
    }
    Ok(0)
}
