//! Enabling and disabling this process' own channels on its own control file: level L3, and the
//! soft landing.

use crate::process::Process;
use crate::{clock, greet, ioctl, sys};
use core::ffi::c_void;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_abi::rm::{self, DisableChannels, MAX_PAIRS, Nvos54, Status};

/// What became of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// RM status.
    pub status: u32,
    /// `errno` of a failed ioctl.
    pub errno: i32,
    /// Before the call.
    pub entered_ns: u64,
    /// After it.
    pub returned_ns: u64,
}

/// Disables or enables at most [`MAX_PAIRS`] pairs of one GPU.
pub fn set(
    process: &Process,
    file: &OwnedFd,
    disable: bool,
    pairs: &[(u32, u32)],
    device_instance: u32,
) -> Outcome {
    let address = {
        let rm = sys::lock(&process.rm);
        rm.control.and_then(|(_, client)| {
            let subdevice = rm.graph.subdevice(client, device_instance)?;
            Some((client, subdevice))
        })
    };
    let (Some((client, subdevice)), true) = (address, pairs.len() <= MAX_PAIRS) else {
        return Outcome {
            status: Status::INVALID_ARGUMENT.0,
            ..Outcome::default()
        };
    };
    let mut params = DisableChannels {
        disable: u8::from(disable),
        num_channels: u32::try_from(pairs.len()).unwrap_or(0),
        ..DisableChannels::default()
    };
    for (place, (client, channel)) in pairs.iter().enumerate() {
        params.h_client_list[place] = *client;
        params.h_channel_list[place] = *channel;
    }
    let mut call = Nvos54 {
        h_client: client,
        h_object: subdevice,
        cmd: rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
        flags: 0,
        params: (&raw mut params) as u64,
        params_size: u32::try_from(size_of::<DisableChannels>()).unwrap_or(0),
        status: Status::OK.0,
    };
    let request = rm::request(rm::NV_ESC_RM_CONTROL, size_of::<Nvos54>());
    let entered_ns = clock::now_ns();
    // SAFETY: the structures are live for the call and of the sizes that the request says.
    let result =
        unsafe { ioctl::next(file.as_raw_fd(), request, (&raw mut call).cast::<c_void>()) };
    Outcome {
        status: call.status,
        errno: if result == 0 { 0 } else { sys::errno() },
        entered_ns,
        returned_ns: clock::now_ns(),
    }
}

/// Enables every channel of this process; `false` if a call failed.
pub fn enable_all(process: &Process) -> bool {
    let mut by_gpu: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    for channel in sys::lock(&process.rm).graph.channels() {
        by_gpu
            .entry(channel.device_instance.unwrap_or(0))
            .or_default()
            .push((channel.client, channel.channel));
    }
    if by_gpu.is_empty() {
        return true;
    }
    let Some(file) = greet::control_file(process) else {
        return false;
    };
    let mut done = true;
    for (device_instance, pairs) in by_gpu {
        for batch in pairs.chunks(MAX_PAIRS) {
            let outcome = set(process, &file, false, batch, device_instance);
            done &= outcome.status == Status::OK.0 && outcome.errno == 0;
        }
    }
    done
}
