//! Controls of channels and their groups (TSGs), on their owner's file.

use super::asking::{Sized, Taken};
use super::control_file::ControlFile;
use super::ioctl::Result;
use tidegate_abi::rm::{self, Branch, Layout};

impl ControlFile {
    /// Disables or enables the pairs of `buffer` through `subdevice` of `client`.
    ///
    /// # Errors
    /// RM's answer. After a failed disable the state of the pairs is unknown.
    pub fn set_channels(
        &self,
        client: u32,
        subdevice: u32,
        buffer: &mut rm::DisableChannels,
    ) -> Result<()> {
        self.control(
            (client, subdevice),
            (
                rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                "FIFO_DISABLE_CHANNELS",
            ),
            buffer,
        )
    }

    /// Takes a TSG off its engine once and waits for it (`NVA06C_CTRL_CMD_PREEMPT`). It stays scheduled.
    ///
    /// # Errors
    /// RM's answer.
    pub fn preempt(&self, client: u32, tsg: u32) -> Result<()> {
        let mut parameters = rm::Preempt {
            wait: 1,
            ..rm::Preempt::default()
        };
        self.control(
            (client, tsg),
            (rm::NVA06C_CTRL_CMD_PREEMPT, "PREEMPT"),
            &mut parameters,
        )
    }

    /// Restarts the runlist that a channel is on (`NVA06F_CTRL_CMD_RESTART_RUNLIST`) and waits for it:
    /// whoever has the turn yields it, and the firmware reads anew who may have one. Takes
    /// `CAP_SYS_NICE`.
    ///
    /// # Errors
    /// RM's answer; `INSUFFICIENT_PERMISSIONS` without the capability.
    pub fn restart_runlist(&self, client: u32, channel: u32) -> Result<()> {
        let mut parameters = rm::RestartRunlist {
            force: 1,
            bypass_wait: 0,
        };
        self.control(
            (client, channel),
            (rm::NVA06F_CTRL_CMD_RESTART_RUNLIST, "RESTART_RUNLIST"),
            &mut parameters,
        )
    }

    /// Sets how long a TSG keeps its engine beside others, in microseconds.
    ///
    /// # Errors
    /// RM's answer.
    pub fn set_timeslice(&self, client: u32, tsg: u32, timeslice_us: u64) -> Result<()> {
        self.control(
            (client, tsg),
            (rm::NVA06C_CTRL_CMD_SET_TIMESLICE, "SET_TIMESLICE"),
            &mut rm::Timeslice { timeslice_us },
        )
    }

    /// How long a TSG keeps its engine beside others, in microseconds, as it was set last.
    ///
    /// # Errors
    /// RM's answer.
    pub fn timeslice(&self, client: u32, tsg: u32) -> Result<u64> {
        let mut parameters = rm::Timeslice::default();
        self.control(
            (client, tsg),
            (rm::NVA06C_CTRL_CMD_GET_TIMESLICE, "GET_TIMESLICE"),
            &mut parameters,
        )?;
        Ok(parameters.timeslice_us)
    }

    /// Puts a TSG on its runlist or takes it off.
    ///
    /// # Errors
    /// RM's answer.
    pub fn schedule(&self, client: u32, tsg: u32, enable: bool, layout: Layout) -> Result<()> {
        let mut parameters = [u8::from(enable), 0, 0];
        self.control_sized(
            (client, tsg),
            (&SCHEDULE, layout),
            &Taken::default(),
            &mut parameters,
        )
    }
}

const SCHEDULE: Sized = Sized {
    call: (rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, "GPFIFO_SCHEDULE"),
    of: Branch::schedule_size,
    step: 1,
};
