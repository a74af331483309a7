//! Enabling and disabling this process' own channels on its own control file: level L3, and the
//! soft landing.

use crate::process::Process;
use crate::{clock, greet, ioctl, sys};
use core::ffi::c_void;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_abi::class::Engine;
use tidegate_abi::rm::{self, DisableChannels, MAX_PAIRS, Nvos54, Preempt, RestartRunlist, Status};
use tidegate_proto::v1::StopMethod;

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

/// What the agent ordered.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Disable, else enable.
    pub disable: bool,
    /// At most [`MAX_PAIRS`] of one GPU.
    pub pairs: &'a [(u32, u32)],
    /// The GPU.
    pub device_instance: u32,
    /// How to stop what runs.
    pub method: StopMethod,
    /// Another of the same order follows.
    pub more: bool,
}

/// Carries out an order, with what its method has follow the call.
pub fn carry_out(process: &Process, file: &OwnedFd, order: &Order<'_>) -> Outcome {
    let mut outcome = set(process, file, order);
    let done = |outcome: &Outcome| outcome.status == Status::OK.0 && outcome.errno == 0;
    if !done(&outcome) {
        return outcome;
    }
    match order.method {
        StopMethod::Preempt if order.disable => {
            for (client, group) in groups(process, order.pairs) {
                let (status, errno) = preempt(file, client, group);
                (outcome.status, outcome.errno) = (status, errno);
                if !done(&outcome) {
                    break;
                }
            }
        }
        // A restart takes everything off that is disabled by then, so it waits for the last of them.
        StopMethod::Restart if !order.more => {
            (outcome.status, outcome.errno) = restart(process, file, order.device_instance);
        }
        _ => {}
    }
    outcome.returned_ns = clock::now_ns();
    outcome
}

/// The groups of these channels, in their order.
fn groups(process: &Process, pairs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let rm = sys::lock(&process.rm);
    let known: BTreeMap<(u32, u32), u32> = rm
        .graph
        .channels()
        .map(|own| ((own.client, own.channel), own.tsg))
        .collect();
    let mut groups = Vec::new();
    for pair in pairs {
        if let Some(group) = known.get(pair).map(|tsg| (pair.0, *tsg))
            && !groups.contains(&group)
        {
            groups.push(group);
        }
    }
    groups
}

/// Restarts the runlists that this process has channels on: that of graphics and compute by one of them,
/// those of the copy engines by one of each group, because which engine it is on is not known here.
fn restart(process: &Process, file: &OwnedFd, device_instance: u32) -> (u32, i32) {
    let mut by: BTreeMap<(bool, u32, u32), u32> = BTreeMap::new();
    for own in sys::lock(&process.rm).graph.channels() {
        if own.device_instance.is_some_and(|on| on != device_instance) {
            continue;
        }
        let computes = matches!(own.engine, Engine::Graphics | Engine::Unknown);
        let group = if computes { 0 } else { own.tsg };
        by.entry((!computes, own.client, group))
            .or_insert(own.channel);
    }
    for ((_, client, _), channel) in by {
        let mut force = RestartRunlist {
            force: 1,
            bypass_wait: 0,
        };
        let cmd = rm::NVA06F_CTRL_CMD_RESTART_RUNLIST;
        let answer = control(file, (client, channel), cmd, &mut force);
        if answer != (Status::OK.0, 0) {
            return answer;
        }
    }
    (Status::OK.0, 0)
}

fn preempt(file: &OwnedFd, client: u32, group: u32) -> (u32, i32) {
    let mut wait = Preempt {
        wait: 1,
        ..Preempt::default()
    };
    control(
        file,
        (client, group),
        rm::NVA06C_CTRL_CMD_PREEMPT,
        &mut wait,
    )
}

/// A control on an object of this process: RM's status and `errno`.
fn control<T>(
    file: &OwnedFd,
    (client, object): (u32, u32),
    cmd: u32,
    params: &mut T,
) -> (u32, i32) {
    let mut call = Nvos54 {
        h_client: client,
        h_object: object,
        cmd,
        flags: 0,
        params: std::ptr::from_mut(params) as u64,
        params_size: u32::try_from(size_of::<T>()).unwrap_or(0),
        status: Status::OK.0,
    };
    let request = rm::request(rm::NV_ESC_RM_CONTROL, size_of::<Nvos54>());
    // SAFETY: the structures are live for the call and of the sizes that the request and the call say.
    let result =
        unsafe { ioctl::next(file.as_raw_fd(), request, (&raw mut call).cast::<c_void>()) };
    (call.status, if result == 0 { 0 } else { sys::errno() })
}

/// Disables or enables at most [`MAX_PAIRS`] pairs of one GPU.
fn set(process: &Process, file: &OwnedFd, order: &Order<'_>) -> Outcome {
    let Order {
        disable,
        pairs,
        device_instance,
        method,
        ..
    } = *order;
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
        only_disable_scheduling: u8::from(disable && method == StopMethod::Preempt),
        num_channels: u32::try_from(pairs.len()).unwrap_or(0),
        ..DisableChannels::default()
    };
    for (place, (client, channel)) in pairs.iter().enumerate() {
        params.h_client_list[place] = *client;
        params.h_channel_list[place] = *channel;
    }
    let entered_ns = clock::now_ns();
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let (status, errno) = control(file, (client, subdevice), cmd, &mut params);
    Outcome {
        status,
        errno,
        entered_ns,
        returned_ns: clock::now_ns(),
    }
}

/// Enables every channel of this process; `false` if a call failed. `method` is how they were disabled.
pub fn enable_all(process: &Process, method: StopMethod) -> bool {
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
            let order = Order {
                disable: false,
                pairs: batch,
                device_instance,
                method,
                more: false,
            };
            let outcome = set(process, &file, &order);
            done &= outcome.status == Status::OK.0 && outcome.errno == 0;
        }
        if method == StopMethod::Restart {
            // Enabling is enough where it was measured, and this takes a right that the process may lack.
            let _ = restart(process, &file, device_instance);
        }
    }
    done
}
