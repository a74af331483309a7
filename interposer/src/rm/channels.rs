//! Enables and disables this process' own channels on its own control files, for level L3 and for a fail-open release.
//! The client that owns a channel makes the call for it.

use super::files::Table;
use super::next::next;
use super::outbox::drop_client;
use crate::process::Process;
use crate::{clock, sys};
use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_abi::class::Engine;
use tidegate_abi::gate::MOST_DISABLES;
use tidegate_abi::rm::{self, DisableChannels, MAX_PAIRS, Nvos54, Preempt, RestartRunlist, Status};
use tidegate_core::gate::Switch;
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

impl Outcome {
    /// A call that was not made.
    #[must_use]
    pub fn refused(status: Status, errno: i32) -> Self {
        Self {
            status: status.0,
            errno,
            ..Self::default()
        }
    }

    fn done(&self) -> bool {
        (self.status, self.errno) == DONE
    }
}

const DONE: (u32, i32) = (Status::OK.0, 0);

/// What the agent ordered.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// What is done to them.
    pub switch: Switch,
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
pub fn carry_out(process: &Process, order: &Order<'_>) -> Outcome {
    let Some(table) = Table::open() else {
        return Outcome::refused(Status::OK, libc::EBADF);
    };
    if order.method == StopMethod::PreemptFirst && order.switch == Switch::Disable {
        // This makes work yield and stops nothing, so it does not matter to whom it is refused.
        for (client, group) in groups(process, order.pairs, Engine::may_compute) {
            let _ = preempt(process, &table, client, group);
        }
    }
    let mut outcome = set(process, &table, order);
    if !outcome.done() {
        return outcome;
    }
    match order.method {
        StopMethod::Preempt if order.switch == Switch::Disable => {
            for (client, group) in groups(process, order.pairs, |_| true) {
                let answer = preempt(process, &table, client, group);
                (outcome.status, outcome.errno) = answer;
                if !outcome.done() {
                    break;
                }
            }
        }
        // A restart takes everything off that is disabled by then, so it waits for the last of them.
        StopMethod::Restart if !order.more => {
            (outcome.status, outcome.errno) = restart(process, &table, order.device_instance);
        }
        _ => {}
    }
    outcome.returned_ns = clock::now_ns();
    outcome
}

/// The groups of these channels whose engine is one of `of`, in their order.
fn groups(process: &Process, pairs: &[(u32, u32)], of: impl Fn(Engine) -> bool) -> Vec<(u32, u32)> {
    let rm = sys::lock(&process.rm);
    let known: BTreeMap<(u32, u32), u32> = rm
        .graph
        .channels()
        .filter(|own| of(own.engine))
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
fn restart(process: &Process, table: &Table, device_instance: u32) -> (u32, i32) {
    let mut by: BTreeMap<(bool, u32, u32), u32> = BTreeMap::new();
    for own in sys::lock(&process.rm).graph.channels() {
        if own.device_instance.is_some_and(|on| on != device_instance) {
            continue;
        }
        let computes = own.engine.may_compute();
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
        let answer = control(process, table, (client, channel), cmd, &mut force);
        if answer != DONE {
            return answer;
        }
    }
    DONE
}

fn preempt(process: &Process, table: &Table, client: u32, group: u32) -> (u32, i32) {
    let mut wait = Preempt {
        wait: 1,
        ..Preempt::default()
    };
    control(
        process,
        table,
        (client, group),
        rm::NVA06C_CTRL_CMD_PREEMPT,
        &mut wait,
    )
}

/// A control on an object of this process, on the file its client was made on: RM's status and `errno`.
fn control<T>(
    process: &Process,
    table: &Table,
    (client, object): (u32, u32),
    cmd: u32,
    params: &mut T,
) -> (u32, i32) {
    let mut call = |file: &OwnedFd| control_on(file, (client, object), cmd, params);
    let seen = sys::lock(&process.rm).files.get(&client).copied();
    if let Some(file) = seen.and_then(|fd| table.control(fd).ok()?) {
        let answer = call(&file);
        if answer.0 != Status::INVALID_CLIENT.0 {
            return answer;
        }
    }
    // The file it was last seen on was closed. It may live on a copy of it.
    match elsewhere(table, call) {
        Ok(Some((fd, answer))) => {
            sys::lock(&process.rm).files.insert(client, fd);
            answer
        }
        Ok(None) => {
            drop_client(process, &mut sys::lock(&process.rm), client);
            (Status::INVALID_CLIENT.0, 0)
        }
        Err(error) => (Status::OK.0, error.raw_os_error().unwrap_or(libc::EBADF)),
    }
}

/// What `call` answers on the application's file that knows its client, and that descriptor; `None`:
/// none does, so the client went with the last copy of its file.
fn elsewhere(
    table: &Table,
    mut call: impl FnMut(&OwnedFd) -> (u32, i32),
) -> io::Result<Option<(c_int, (u32, i32))>> {
    for fd in table.numbers()? {
        if let Some(file) = table.control(fd)? {
            let answer = call(&file);
            if answer.0 != Status::INVALID_CLIENT.0 {
                return Ok(Some((fd, answer)));
            }
        }
    }
    Ok(None)
}

fn control_on<T>(
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
    let result = unsafe { next(file.as_raw_fd(), request, (&raw mut call).cast::<c_void>()) };
    (call.status, if result == 0 { 0 } else { sys::errno() })
}

/// Disables or enables at most [`MAX_PAIRS`] pairs of one GPU, with one call for each client.
fn set(process: &Process, table: &Table, order: &Order<'_>) -> Outcome {
    if order.pairs.is_empty() || order.pairs.len() > MAX_PAIRS {
        return Outcome::refused(Status::INVALID_ARGUMENT, 0);
    }
    let mut clients: Vec<u32> = order.pairs.iter().map(|pair| pair.0).collect();
    clients.sort_unstable();
    clients.dedup();
    let mut whole: Option<Outcome> = None;
    for client in clients {
        let one = set_of(process, table, order, client);
        let whole = whole.get_or_insert(one);
        if whole.done() {
            (whole.status, whole.errno) = (one.status, one.errno);
        }
        whole.returned_ns = one.returned_ns.max(whole.returned_ns);
    }
    whole.unwrap_or_default()
}

/// The pairs of the order that are of `client`.
fn set_of(process: &Process, table: &Table, order: &Order<'_>, client: u32) -> Outcome {
    let subdevice = sys::lock(&process.rm)
        .graph
        .subdevice(client, order.device_instance);
    let Some(subdevice) = subdevice else {
        return Outcome::refused(Status::INVALID_ARGUMENT, 0);
    };
    let disable = order.switch == Switch::Disable;
    let mut params = DisableChannels {
        disable: u8::from(disable),
        only_disable_scheduling: u8::from(disable && order.method == StopMethod::Preempt),
        ..DisableChannels::default()
    };
    let mut count = 0;
    for (client, channel) in order.pairs.iter().filter(|pair| pair.0 == client) {
        params.h_client_list[count] = *client;
        params.h_channel_list[count] = *channel;
        count += 1;
    }
    params.num_channels = u32::try_from(count).unwrap_or(0);
    let entered_ns = clock::now_ns();
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    let (status, errno) = control(process, table, (client, subdevice), cmd, &mut params);
    Outcome {
        status,
        errno,
        entered_ns,
        returned_ns: clock::now_ns(),
    }
}

/// Enables every channel of this process, as often as it may have been disabled; `false` if one that stands was not.
/// `method` is how they were disabled.
pub fn enable_all(process: &Process, method: StopMethod) -> bool {
    let mut lists: BTreeMap<(u32, u32), Vec<(u32, u32)>> = BTreeMap::new();
    for channel in sys::lock(&process.rm).graph.channels() {
        lists
            .entry((channel.device_instance.unwrap_or(0), channel.client))
            .or_default()
            .push((channel.client, channel.channel));
    }
    if lists.is_empty() {
        return true;
    }
    let Some(table) = Table::open() else {
        return false;
    };
    let mut done = true;
    for (&(device_instance, client), pairs) in &lists {
        let set = |pairs: &[(u32, u32)]| {
            let order = Order {
                switch: Switch::Enable,
                pairs,
                device_instance,
                method,
                more: false,
            };
            set_of(process, &table, &order, client)
        };
        for batch in pairs.chunks(MAX_PAIRS) {
            let mut outcome = set(batch);
            for _ in 1..MOST_DISABLES {
                if outcome.done() {
                    outcome = set(batch);
                }
            }
            let each = || {
                // One that is gone spoils the list for the others.
                batch.iter().all(|pair| {
                    let mut times = (0..MOST_DISABLES).map(|_| set(&[*pair]));
                    times.all(|outcome| outcome.done()) || is_gone(&set(&[*pair]))
                })
            };
            done &= outcome.done() || is_gone(&outcome) && each() || !stands(process, client);
        }
    }
    if method == StopMethod::Restart {
        let mut instances: Vec<u32> = lists.keys().map(|(instance, _)| *instance).collect();
        instances.dedup();
        for device_instance in instances {
            // Enabling is enough where it was measured, and this takes a right that the process may lack.
            let _ = restart(process, &table, device_instance);
        }
    }
    done
}

/// Whether RM knows nothing of what it was asked about.
fn is_gone(outcome: &Outcome) -> bool {
    let unknown = [
        Status::INVALID_CHANNEL,
        Status::INVALID_OBJECT_HANDLE,
        Status::OBJECT_NOT_FOUND,
    ];
    outcome.errno == 0 && unknown.iter().any(|status| status.0 == outcome.status)
}

fn stands(process: &Process, client: u32) -> bool {
    let owners = sys::lock(&process.rm).graph.owners();
    owners.iter().any(|owner| owner.0 == client)
}
