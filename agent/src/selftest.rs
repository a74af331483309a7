//! Tries a channel level at the start, on channels of the agent's own and on every GPU.
//!
//! Two clients on two files: one makes a channel, the other names it. So L1 is tried exactly as it will
//! be used, with a pair that is foreign to the caller, and a firmware that refuses foreign pairs is
//! found before any process depends on it. L2 and L3 are the same call by the owner. The channel must
//! also answer to a second disable and a second enable, because orders are repeated.
//!
//! The channel has no work: that work stops and goes on is not shown here.

use crate::config::Level;
use crate::rm::{Driver, Gpu, RmError, Subdevice, ThrowAway};
use tidegate_abi::rm::{Branch, DisableChannels};

/// Tries `level`; what is wrong with it otherwise.
///
/// # Errors
/// With a text for status.
pub fn run(driver: &Driver, level: Level) -> Result<(), String> {
    let branch = driver.branch.ok_or("the driver's branch is not known")?;
    for (index, gpu) in driver.gpus.iter().enumerate() {
        try_on(gpu, branch, level).map_err(|error| format!("self-test on GPU {index}: {error}"))?;
    }
    Ok(())
}

fn try_on(gpu: &Gpu, branch: Branch, level: Level) -> Result<(), RmError> {
    let owner = ThrowAway::new(gpu, branch)?;
    let other = Subdevice::open(gpu)?;
    for disable in [true, true, false, false] {
        let mut call = DisableChannels {
            disable: u8::from(disable),
            num_channels: 1,
            ..DisableChannels::default()
        };
        call.h_client_list[0] = owner.client();
        call.h_channel_list[0] = owner.channel;
        match level {
            Level::L1 => other.set_channels(&mut call)?,
            Level::L2 | Level::L3 => owner.set_own(&mut call)?,
            Level::L5 => {}
        }
    }
    Ok(())
}
