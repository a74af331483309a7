//! The agent's part in a bench: it changes what offline may do, says what offline did, and gets back what it had.

use crate::agent::{Agent, Unreachable, report};
use crate::{json, steer};
use std::time::Duration;
use tidegate_bench::block::Offline;
use tidegate_bench::plan::Mode;
use tidegate_proto::v1;
use tonic::Streaming;

/// How long what was ordered may take: jobs to stand still after a drain, gates to hold them again.
const STILL: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What offline has done since the agent's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    generation: u64,
    drained: bool,
    ungated: bool,
    launches: u64,
    preemptions: u64,
}

/// An agent that may be steered.
#[derive(Debug)]
pub struct Steered<'a> {
    agent: &'a Agent,
    was_drained: bool,
    drained: bool,
    /// Dropped, it ends the block.
    ungated: Option<Streaming<v1::UngateResponse>>,
    /// The longest block in which offline may run beside online.
    pub longest: Duration,
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
            ungated: None,
            longest: Duration::from_nanos(status.ungated_longest_ns),
            said: format!(
                "tidegate-agent {}, level {level}, driver {}",
                status.version, status.driver_version
            ),
            jobs: status.jobs.len(),
        }))
    }

    /// Lets offline do what `mode` says, ungated for `length` at most; a sentence about what did not go as it should.
    ///
    /// # Errors
    /// When the agent refuses.
    pub async fn set(&mut self, mode: Mode, length: Duration) -> anyhow::Result<Option<String>> {
        if self.ungated.take().is_some() && self.waits_for(|status| status.ungated_ns > 0).await? {
            anyhow::bail!("the agent does not end an ungated block");
        }
        let drained = mode.drains();
        // Before the call: one that fails on its way may have been heard.
        self.drained = drained;
        steer::set_drained(self.agent, drained).await?;
        if mode == Mode::Ungated {
            self.ungated = Some(steer::ungate(self.agent, length.min(self.longest)).await?);
        }
        if !drained || !self.waits_for(|status| running(status).is_some()).await? {
            return Ok(None);
        }
        let status = report(self.agent, false).await?;
        let why = "still runs after a drain: what is called drained is not online alone";
        Ok(running(&status).map(|job| format!("job {} {why}", job.name)))
    }

    /// Waits while the agent is `still` so; whether it is at the end.
    async fn waits_for(&self, still: fn(&v1::GetStatusResponse) -> bool) -> anyhow::Result<bool> {
        let mut waited = Duration::ZERO;
        while still(&report(self.agent, false).await?) {
            if waited >= STILL {
                return Ok(true);
            }
            tokio::time::sleep(LOOK_EVERY).await;
            waited += LOOK_EVERY;
        }
        Ok(false)
    }

    /// What offline has done so far.
    ///
    /// # Errors
    /// When the agent does not say.
    pub async fn count(&self) -> anyhow::Result<Counted> {
        let status = report(self.agent, false).await?;
        // Each is what its processes say, which may be any number.
        let jobs = status.jobs.iter().map(|job| job.launches);
        Ok(Counted {
            generation: status.agent_generation,
            drained: status.drained,
            ungated: status.ungated_ns > 0,
            launches: jobs.fold(0, u64::saturating_add),
            preemptions: status.gpus.iter().map(|gpu| gpu.preemptions).sum(),
        })
    }

    /// Gives back what was found.
    ///
    /// # Errors
    /// When the agent refuses or is gone; then says what to do.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        self.ungated = None;
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

/// A job that runs.
fn running(status: &v1::GetStatusResponse) -> Option<&v1::JobStatus> {
    let jobs = &status.jobs;
    jobs.iter().find(|job| job.state() == v1::JobState::Running)
}

/// What offline did between two counts, or why that is not known.
pub fn between(before: Counted, after: Counted, seconds: f64) -> Result<Offline, String> {
    if before.generation != after.generation {
        return Err("the agent was restarted".to_owned());
    }
    if before.drained != after.drained {
        return Err("somebody else drained or undrained the node".to_owned());
    }
    if before.ungated != after.ungated {
        return Err("gates held offline again before it was over".to_owned());
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
            ungated: false,
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
        let ungated = Counted {
            ungated: true,
            ..before
        };
        assert!(between(ungated, after, 2.0).is_err());
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
