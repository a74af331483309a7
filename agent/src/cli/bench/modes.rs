//! The agent's part in a bench: it changes what offline may do, says what offline did, and gets back what it had.

use crate::cli::agent::{Agent, Unreachable, report};
use crate::cli::{json, steer};
use std::time::Duration;
use tidegate_bench::block::Offline;
use tidegate_bench::plan::Mode;
use tidegate_proto::v1;

/// How long the jobs may take to stand still after a drain.
const STILL: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What offline has done since the agent's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    generation: u64,
    drained: bool,
    launches: u64,
    preemptions: u64,
}

/// An agent that may be steered.
#[derive(Debug)]
pub struct Steered<'a> {
    agent: &'a Agent,
    was_drained: bool,
    drained: bool,
    /// The agent's version, driver and level.
    pub said: String,
    /// Offline jobs that it had at first.
    pub jobs: usize,
}

impl<'a> Steered<'a> {
    /// The agent, if one listens.
    ///
    /// # Errors
    /// When it cannot be spoken to, though it is there.
    pub async fn find(agent: &'a Agent) -> anyhow::Result<Option<Self>> {
        let status = match report(agent, false).await {
            Ok(status) => status,
            Err(error) => match error.downcast_ref() {
                Some(Unreachable::Absent(_)) => return Ok(None),
                _ => return Err(error),
            },
        };
        let level = json::level(&status);
        Ok(Some(Self {
            agent,
            was_drained: status.drained,
            drained: status.drained,
            said: format!(
                "tidegate-agent {}, level {level}, driver {}",
                status.version, status.driver_version
            ),
            jobs: status.jobs.len(),
        }))
    }

    /// Lets offline do what `mode` says; a sentence about what did not go as it should.
    ///
    /// # Errors
    /// When the agent refuses.
    pub async fn set(&mut self, mode: Mode) -> anyhow::Result<Option<String>> {
        let drained = mode == Mode::Drained;
        // Before the call: one that fails on its way may have been heard.
        self.drained = drained;
        steer::set_drained(self.agent, drained).await?;
        if !drained {
            return Ok(None);
        }
        let mut waited = Duration::ZERO;
        loop {
            let status = report(self.agent, false).await?;
            let running = |job: &&v1::JobStatus| job.state() == v1::JobState::Running;
            let Some(job) = status.jobs.iter().find(running) else {
                return Ok(None);
            };
            if waited >= STILL {
                let why = "still runs after a drain: what is called drained is not online alone";
                return Ok(Some(format!("job {} {why}", job.name)));
            }
            tokio::time::sleep(LOOK_EVERY).await;
            waited += LOOK_EVERY;
        }
    }

    /// What offline has done so far.
    ///
    /// # Errors
    /// When the agent does not say.
    pub async fn count(&self) -> anyhow::Result<Counted> {
        let status = report(self.agent, false).await?;
        Ok(Counted {
            generation: status.agent_generation,
            drained: status.drained,
            launches: status.jobs.iter().map(|job| job.launches).sum(),
            preemptions: status.gpus.iter().map(|gpu| gpu.preemptions).sum(),
        })
    }

    /// Gives back what was found.
    ///
    /// # Errors
    /// When the agent refuses or is gone; then says what to do.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        if self.drained == self.was_drained {
            return Ok(());
        }
        let by_hand = if self.was_drained { "drain" } else { "undrain" };
        steer::set_drained(self.agent, self.was_drained)
            .await
            .map_err(|error| {
                error.context(format!(
                    "offline was not given back; run `tidegate {by_hand}`"
                ))
            })?;
        self.drained = self.was_drained;
        Ok(())
    }
}

/// What offline did between two counts, or why that is not known.
pub fn between(before: Counted, after: Counted, seconds: f64) -> Result<Offline, String> {
    if before.generation != after.generation {
        return Err("the agent was restarted".to_owned());
    }
    if before.drained != after.drained {
        return Err("somebody else drained or undrained the node".to_owned());
    }
    Ok(Offline {
        // A job that left took its count with it.
        launches: after.launches.checked_sub(before.launches),
        tokens: None,
        preemptions: after.preemptions.checked_sub(before.preemptions),
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_underneath_is_no_count() {
        let before = Counted {
            generation: 3,
            drained: true,
            launches: 10,
            preemptions: 1,
        };
        let after = Counted {
            launches: 25,
            preemptions: 4,
            ..before
        };
        let done = between(before, after, 2.0).expect("the same agent");
        assert_eq!((done.launches, done.preemptions), (Some(15), Some(3)));
        let restarted = Counted {
            generation: 4,
            ..after
        };
        assert!(between(before, restarted, 2.0).is_err());
        let undrained = Counted {
            drained: false,
            ..after
        };
        assert!(between(before, undrained, 2.0).is_err());
        let fewer = Counted {
            launches: 5,
            ..after
        };
        assert_eq!(
            between(before, fewer, 2.0)
                .expect("the same agent")
                .launches,
            None
        );
    }
}
