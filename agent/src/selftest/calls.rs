//! The calls of a level alone, where there is no work to try it on.

use super::verdict::Outcome;
use crate::config::{Level, Method, MethodChoice};
use crate::rm::{Driver, Gpu, RmError, Subdevice, ThrowAway};
use tidegate_abi::rm::DisableChannels;

/// Tries the calls of `level` on a channel without work, on every GPU.
///
/// Two clients on two files: one makes a channel, the other names it. So L1 is tried exactly as it will
/// be used, with a pair that is foreign to the caller, and a firmware that refuses foreign pairs is
/// found before any process depends on it. L2 and L3 are the same call by the owner. The channel must
/// also answer to a second disable and a second enable, because orders are repeated.
///
/// Of the methods the first that `methods` allows: which of them stops work is not seen by this. A
/// driver that gives no channel to try them on says nothing about them.
#[must_use]
pub fn calls(driver: &Driver, level: Level, methods: MethodChoice) -> Outcome {
    let method = methods.first();
    let Some(branch) = driver.branch() else {
        // There is no channel of the agent's own where nobody knows what is to be said of one.
        return Outcome::NotTried(
            "of a branch that is not known, only a stop that was seen counts".to_owned(),
        );
    };
    if (level, method) == (Level::L1, Method::Preempt) {
        return Outcome::Failed("a group is preempted through its owner's file only".to_owned());
    }
    for (index, gpu) in driver.gpus.iter().enumerate() {
        let owner = match ThrowAway::scheduled(gpu, branch) {
            Ok(owner) => owner,
            Err(error) => return Outcome::NotTried(format!("GPU {index}: {error}")),
        };
        if let Err(error) = calls_on(gpu, &owner, level, method) {
            return Outcome::Failed(format!("GPU {index}: {error}"));
        }
    }
    Outcome::CallsOnly(method)
}

fn calls_on(gpu: &Gpu, owner: &ThrowAway, level: Level, method: Method) -> Result<(), RmError> {
    let other = Subdevice::open(gpu)?;
    for disable in [true, true, false, false] {
        let mut call = DisableChannels {
            disable: u8::from(disable),
            only_disable_scheduling: u8::from(disable && method == Method::Preempt),
            num_channels: 1,
            ..DisableChannels::default()
        };
        call.h_client_list[0] = owner.client();
        call.h_channel_list[0] = owner.channel;
        if disable && method == Method::PreemptFirst {
            owner.preempt_own()?;
        }
        match level {
            Level::L1 => other.set_channels(&mut call)?,
            Level::L2 | Level::L3 => owner.set_own(&mut call)?,
            Level::L5 => {}
        }
        match method {
            Method::Disable | Method::PreemptFirst => {}
            Method::Restart => owner.restart_runlist()?,
            Method::Preempt if disable => owner.preempt_own()?,
            Method::Preempt => {}
        }
    }
    Ok(())
}
