//! How batches of channels go to the driver: the ladder of levels behind one trait.
//!
//! What a batch is, and what follows it, is [`tidegate_node::batch`]'s.

use crate::causes::with_causes;
use crate::config::Method;
use crate::rm::{ControlFile, Gpu, RmError, Subdevice, ThrowAway};
use tidegate_abi::rm::{Branch, Status};
pub use tidegate_node::batch::{Batch, Call, Kick, Member, Object, Plan, Via};
use tidegate_node::file::File;
use tidegate_node::kinds::Switch;

/// A control file, as the shell keeps it.
#[must_use]
pub fn file(control: ControlFile) -> File {
    File::new(control)
}

/// The control file that the shell kept.
fn control(file: &File) -> Result<&ControlFile, RmError> {
    file.get().ok_or(RmError::NotControlFile)
}

/// Disables and enables the channels of one GPU. Called by that GPU's issue thread only.
pub trait ChannelControl: Send + Sync + std::fmt::Debug {
    /// Carries out one batch and returns when the driver has.
    ///
    /// # Errors
    /// The driver's answer. After a failed disable the state of the batch is unknown.
    fn set(&self, batch: &Batch, switch: Switch) -> Result<(), RmError>;

    /// Carries out what follows a batch.
    ///
    /// # Errors
    /// The driver's answer.
    fn kick(&self, kick: &Kick) -> Result<(), RmError>;

    /// Makes a group yield its engine once.
    ///
    /// # Errors
    /// The driver's answer.
    fn preempt(&self, group: &Object) -> Result<(), RmError>;

    /// Makes one of the calls that carry out a batch.
    ///
    /// # Errors
    /// The driver's answer. After a failed disable the state of the batch is unknown.
    fn make(&self, batch: &Batch, call: Call<'_>, switch: Switch) -> Result<(), RmError> {
        match call {
            Call::Lead(group) => self.preempt(group),
            Call::Set => self.set(batch, switch),
            Call::Kick(kick) => self.kick(kick),
        }
    }

    /// Carries out a batch, with all that comes before and after it. A preemption that is refused before it keeps
    /// nothing from being disabled.
    ///
    /// # Errors
    /// The first other answer that is one. After a failed disable the state of the batch is unknown.
    fn carry_out(&self, batch: &Batch, switch: Switch) -> Result<(), RmError> {
        batch.calls(switch).try_for_each(|call| {
            let answer = self.make(batch, call, switch);
            match (call, answer) {
                (Call::Lead(group), Err(error)) => {
                    tracing::debug!(
                        client = group.client,
                        error = with_causes(&error),
                        "the driver refused to preempt a group before its disable"
                    );
                    Ok(())
                }
                (_, answer) => answer,
            }
        })
    }

    /// How long a group keeps its engine beside others, microseconds.
    ///
    /// # Errors
    /// The driver's answer.
    fn timeslice(&self, group: &Object) -> Result<u64, RmError>;

    /// Sets that.
    ///
    /// # Errors
    /// The driver's answer.
    fn set_timeslice(&self, group: &Object, us: u64) -> Result<(), RmError>;

    /// Whether there still is an RM client of this number, whoever owns it.
    fn exists(&self, client: u32) -> bool;
}

/// Whether a refusal to enable one pair means that there is nothing left to enable. No other refusal does: a channel that
/// is taken for gone is never enabled again.
///
/// `exists`: whether the driver still has the pair's client, with which its channels go. `takes_others`: whether it takes
/// pairs of living clients that are not the caller's. One that takes none refuses a channel that is still there in the
/// words in which it refuses one that is gone.
pub fn is_gone(
    error: &RmError,
    exists: impl FnOnce() -> bool,
    takes_others: impl FnOnce() -> bool,
) -> bool {
    let Some(status) = error.status() else {
        return false;
    };
    let of_the_channel = matches!(
        status,
        Status::INVALID_CHANNEL | Status::INVALID_OBJECT_HANDLE | Status::OBJECT_NOT_FOUND
    );
    // Whether it exists is a call of its own, which the answer about the channel may spare.
    of_the_channel && takes_others() || !exists()
}

/// The driver.
#[derive(Debug)]
pub struct DriverControl(pub Subdevice);

impl ChannelControl for DriverControl {
    fn set(&self, batch: &Batch, switch: Switch) -> Result<(), RmError> {
        // RM writes the struct back, so the prepared one stays as it is.
        let mut call = batch.call;
        let disables = switch.disables();
        call.disable = u8::from(disables);
        call.only_disable_scheduling = u8::from(disables && batch.method == Method::Preempt);
        match &batch.via {
            Via::Agent => self.0.set_channels(&mut call),
            Via::Owner {
                file,
                client,
                subdevice,
            } => control(file)?.set_channels(*client, *subdevice, &mut call),
        }
    }

    fn kick(&self, kick: &Kick) -> Result<(), RmError> {
        match kick {
            Kick::RestartGraphics { otherwise: None } => Err(RmError::Refused {
                what: "RESTART_RUNLIST without a channel on it",
                status: Status::INVALID_CHANNEL,
            }),
            Kick::RestartGraphics {
                otherwise: Some(by),
            }
            | Kick::Restart(by) => control(&by.file)?.restart_runlist(by.client, by.handle),
            Kick::Preempt(group) => self.preempt(group),
        }
    }

    fn preempt(&self, group: &Object) -> Result<(), RmError> {
        control(&group.file)?.preempt(group.client, group.handle)
    }

    fn timeslice(&self, group: &Object) -> Result<u64, RmError> {
        control(&group.file)?.timeslice(group.client, group.handle)
    }

    fn set_timeslice(&self, group: &Object, us: u64) -> Result<(), RmError> {
        control(&group.file)?.set_timeslice(group.client, group.handle, us)
    }

    fn exists(&self, client: u32) -> bool {
        self.0.sees(client)
    }
}

/// The driver, with a channel of the agent's own on the graphics runlist.
#[derive(Debug)]
pub struct Restarter {
    control: DriverControl,
    own: Option<ThrowAway>,
}

impl Restarter {
    /// Opens the GPU; `method` says whether a channel is needed. Without one (the driver gives none)
    /// the owners' channels have to do, and a restart without either is an error of its own.
    ///
    /// # Errors
    /// When the driver gives no subdevice.
    pub fn open(gpu: &Gpu, branch: Option<Branch>, method: Method) -> Result<Self, RmError> {
        let own = branch
            .filter(|_| method == Method::Restart)
            .and_then(|branch| {
                let own = ThrowAway::scheduled(gpu, branch);
                own.inspect_err(|error| {
                    tracing::warn!(
                        error = with_causes(error),
                        "no channel of the agent's own to restart runlists by"
                    );
                })
                .ok()
            });
        Ok(Self {
            control: DriverControl(Subdevice::open(gpu)?),
            own,
        })
    }
}

impl Restarter {
    /// Whether it has a channel of its own.
    #[must_use]
    pub const fn has_channel(&self) -> bool {
        self.own.is_some()
    }
}

impl ChannelControl for Restarter {
    fn set(&self, batch: &Batch, switch: Switch) -> Result<(), RmError> {
        self.control.set(batch, switch)
    }

    fn kick(&self, kick: &Kick) -> Result<(), RmError> {
        match (kick, &self.own) {
            (Kick::RestartGraphics { .. }, Some(own)) => own.restart_runlist(),
            _ => self.control.kick(kick),
        }
    }

    fn preempt(&self, group: &Object) -> Result<(), RmError> {
        self.control.preempt(group)
    }

    fn timeslice(&self, group: &Object) -> Result<u64, RmError> {
        self.control.timeslice(group)
    }

    fn set_timeslice(&self, group: &Object, us: u64) -> Result<(), RmError> {
        self.control.set_timeslice(group, us)
    }

    fn exists(&self, client: u32) -> bool {
        self.control.exists(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_that_knows_nothing_of_a_pair_says_that_it_is_gone() {
        let refused = |status| RmError::Refused {
            what: "FIFO_DISABLE_CHANNELS",
            status,
        };
        let gone =
            |status, exists, takes_others| is_gone(&refused(status), || exists, || takes_others);
        for status in [
            Status::INVALID_CLIENT,
            Status::INVALID_CHANNEL,
            Status::INVALID_OBJECT_HANDLE,
            Status::OBJECT_NOT_FOUND,
        ] {
            assert!(gone(status, false, false), "{status:?}: no such client");
            assert!(!gone(status, true, false), "{status:?}: it takes no pair");
            let of_the_channel = status != Status::INVALID_CLIENT;
            assert_eq!(gone(status, true, true), of_the_channel, "{status:?}");
        }
        for status in [
            Status::TIMEOUT,
            Status::INSUFFICIENT_PERMISSIONS,
            Status::INVALID_STATE,
            Status::NOT_SUPPORTED,
        ] {
            assert!(!gone(status, true, true), "{status:?}");
            assert!(gone(status, false, true), "{status:?}: its client is");
        }
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        let what = "FIFO_DISABLE_CHANNELS";
        assert!(!is_gone(
            &RmError::Ioctl { what, source },
            || false,
            || true
        ));
    }
}
