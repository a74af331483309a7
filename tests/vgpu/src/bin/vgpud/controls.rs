//! `NV_ESC_RM_CONTROL`: the controls that real programs and the agent use, one row each.
//!
//! The order of checks is the driver's (`_rmapiRmControl`): a null control succeeds before anything is
//! looked at (so it proves nothing about the client); a client that does not exist is 0x23; then the
//! size (0x1f), so that a wrong one tells whether a client exists, whoever owns it; then the strict
//! client check (0x23 as well); then the object; then whether its class has the control (0x56).

use std::mem::size_of;

use tidegate_abi::rm::{self, Status};
use tidegate_device::{ApiLock, ChannelId, Eviction, GpuLock, Needs};
use tidegate_vgpu::history::{Kind, Record};

use crate::call::{Answer, Call, get, put, put_word, word};
use crate::exec::XID_FAULT;
use crate::knobs::Foreign;
use crate::world::{Body, Ticket, World, channel_record};

/// Xid of a context switch that timed out.
const XID_CTXSW_TIMEOUT: u32 = 109;
const _: () = assert!(XID_CTXSW_TIMEOUT != XID_FAULT);

/// What a control costs at the firmware that moves nothing on or off an engine.
const ROUND_TRIP_NS: u64 = 20_000;

/// Which objects have a control.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Root,
    Subdevice,
    Tsg,
    Channel,
    Confidential,
}

fn target_of(body: &Body) -> Option<Target> {
    Some(match body {
        Body::Root => Target::Root,
        Body::Subdevice { .. } => Target::Subdevice,
        Body::Tsg { .. } => Target::Tsg,
        Body::Channel { .. } => Target::Channel,
        Body::Confidential => Target::Confidential,
        _ => return None,
    })
}

/// A control that arrived: its header.
#[derive(Clone, Copy)]
struct Header {
    client: u32,
    object: u32,
    cmd: u32,
}

impl World {
    /// The object and parameter size of each control the driver has here.
    fn row(&self, cmd: u32) -> Option<(Target, usize)> {
        let schedule = self.setup.branch.schedule_size();
        Some(match cmd {
            rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION => {
                (Target::Root, size_of::<rm::BuildVersion>())
            }
            rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS => {
                (Target::Root, size_of::<rm::AttachedIds>())
            }
            rm::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => (Target::Root, size_of::<rm::ProbedIds>()),
            rm::NV0000_CTRL_CMD_GPU_ATTACH_IDS => (Target::Root, size_of::<rm::AttachIds>()),
            rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 => (Target::Root, size_of::<rm::IdInfoV2>()),
            rm::NV2080_CTRL_CMD_GPU_GET_INFO_V2 => {
                (Target::Subdevice, self.setup.branch.gpu_info_size())
            }
            rm::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES => {
                (Target::Confidential, self.setup.branch.capabilities_size())
            }
            rm::NV2080_CTRL_CMD_GPU_GET_GID_INFO => (Target::Subdevice, size_of::<rm::GidInfo>()),
            rm::NV2080_CTRL_CMD_FB_GET_INFO_V2 => (Target::Subdevice, size_of::<rm::FbInfoV2>()),
            rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => {
                (Target::Subdevice, size_of::<rm::DisableChannels>())
            }
            rm::NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG => (Target::Subdevice, 0),
            rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE => (Target::Tsg, schedule),
            rm::NVA06C_CTRL_CMD_SET_TIMESLICE => (Target::Tsg, size_of::<rm::Timeslice>()),
            rm::NVA06C_CTRL_CMD_PREEMPT => (Target::Tsg, size_of::<rm::Preempt>()),
            rm::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE => (Target::Channel, schedule),
            rm::NVA06F_CTRL_CMD_BIND => (Target::Channel, 4),
            rm::NVA06F_CTRL_CMD_RESTART_RUNLIST => {
                (Target::Channel, size_of::<rm::RestartRunlist>())
            }
            rm::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN => {
                (Target::Channel, size_of::<rm::WorkSubmitToken>())
            }
            _ => return None,
        })
    }

    pub(crate) fn control(&mut self, call: &mut Call<'_>) -> Answer {
        let header = Header {
            client: word(call.params, 0),
            object: word(call.params, 4),
            cmd: word(call.params, 8),
        };
        let mut answer = Answer::at(call.now);
        let status = self
            .try_control(call, header, &mut answer)
            .err()
            .unwrap_or(Status::OK);
        if !status.is_ok() {
            self.refused(call, header.client, header.object, header.cmd, status);
        }
        put_word(call.params, 28, status.0);
        if let Some(record) = &mut answer.record {
            record.tag = u64::from(status.0);
        }
        answer
    }

    fn try_control(
        &mut self,
        call: &mut Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let Header {
            client,
            object,
            cmd,
        } = header;
        if cmd & 0x7fff == 0 {
            return Ok(());
        }
        if !self.clients.contains_key(&client) {
            return Err(Status::INVALID_CLIENT);
        }
        let row = self.row(cmd);
        if row.is_some_and(|(_, size)| call.nested.len() != size) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let found = self.check_client(call.file, client)?;
        let found = found
            .objects
            .get(&object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let target = target_of(&found.body);
        if row.is_none_or(|(wanted, _)| target != Some(wanted)) {
            return Err(Status::NOT_SUPPORTED);
        }
        if let Some(status) = self.knobs.refusal(cmd, call.caller) {
            return Err(status);
        }
        match cmd {
            rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => {
                return self.disable_channels(call, header, answer);
            }
            rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
            | rm::NVA06C_CTRL_CMD_SET_TIMESLICE
            | rm::NVA06C_CTRL_CMD_PREEMPT => return self.tsg_control(call, header, answer),
            rm::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE => {
                return self.schedule_channel(call, header, answer);
            }
            rm::NVA06F_CTRL_CMD_RESTART_RUNLIST => {
                return self.restart_runlist(call, header, answer);
            }
            _ => {}
        }
        answer.due = self.locks.reserve(call.now, Needs::reader(client), 0).1;
        match cmd {
            rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION => {
                let version = self.setup.version.as_bytes();
                let length = version.len().min(63);
                answer.reply.text[..length].copy_from_slice(&version[..length]);
            }
            rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS => {
                let mut ids = rm::AttachedIds {
                    gpu_ids: [rm::INVALID_GPU_ID; rm::MAX_GPUS],
                };
                let attached = self.gpus.iter().filter(|gpu| gpu.attached > 0);
                for (place, gpu) in ids.gpu_ids.iter_mut().zip(attached) {
                    *place = gpu.id;
                }
                put(call.nested, &ids);
            }
            rm::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => {
                let none = [rm::INVALID_GPU_ID; rm::MAX_GPUS];
                let mut ids = rm::ProbedIds {
                    gpu_ids: none,
                    excluded_gpu_ids: none,
                };
                for (place, gpu) in ids.gpu_ids.iter_mut().zip(&self.gpus) {
                    *place = gpu.id;
                }
                put(call.nested, &ids);
            }
            rm::NV0000_CTRL_CMD_GPU_ATTACH_IDS => return self.attach_ids(call),
            rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 => {
                let mut info = get::<rm::IdInfoV2>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
                let gpu = self
                    .gpus
                    .iter()
                    .position(|gpu| gpu.id == info.gpu_id)
                    .ok_or(Status::INVALID_ARGUMENT)?;
                info.device_instance = self.instance_of_gpu(gpu);
                info.sub_device_instance = 0;
                info.board_id = info.gpu_id;
                info.gpu_instance = gpu as u32;
                info.numa_id = -1;
                put(call.nested, &info);
            }
            rm::NV2080_CTRL_CMD_GPU_GET_INFO_V2 => self.gpu_info(call)?,
            rm::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES => {
                call.nested.fill(0);
                if self.knobs.confidential {
                    let at = std::mem::offset_of!(rm::ConfidentialCapabilities, feature);
                    call.nested[at] = rm::CONFIDENTIAL_FEATURE_HCC;
                }
            }
            rm::NV2080_CTRL_CMD_GPU_GET_GID_INFO => {
                let mut info = get::<rm::GidInfo>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
                let gpu = self
                    .gpu_above(client, object)
                    .ok_or(Status::INVALID_OBJECT_HANDLE)?;
                if info.index != 0 || info.flags & rm::GID_FORMAT_BINARY == 0 {
                    return Err(Status::NOT_SUPPORTED);
                }
                info.length = 16;
                info.data = [0; 256];
                info.data[..16].copy_from_slice(&self.gpus[gpu].uuid);
                put(call.nested, &info);
            }
            rm::NV2080_CTRL_CMD_FB_GET_INFO_V2 => {
                let mut info = get::<rm::FbInfoV2>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
                let gpu = self
                    .gpu_above(client, object)
                    .ok_or(Status::INVALID_OBJECT_HANDLE)?;
                let asked = info.list.get_mut(..info.list_size as usize);
                for [index, value] in asked.ok_or(Status::INVALID_ARGUMENT)? {
                    let bytes = match *index {
                        rm::FB_INFO_RAM_SIZE
                        | rm::FB_INFO_TOTAL_RAM_SIZE
                        | rm::FB_INFO_HEAP_SIZE => self.memory.total_bytes(gpu),
                        rm::FB_INFO_HEAP_FREE => self.memory.free_bytes(gpu),
                        _ => 0,
                    };
                    *value = (bytes >> 10) as u32;
                }
                put(call.nested, &info);
            }
            rm::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN => {
                let key = self.channel_key(client, object).unwrap_or(0);
                put(call.nested, &rm::WorkSubmitToken { token: key as u32 });
            }
            _ => {}
        }
        Ok(())
    }

    /// Which modes the GPU is in. A list is read and answered in place, as long as this branch's is.
    fn gpu_info(&self, call: &mut Call<'_>) -> Result<(), Status> {
        let asked = word(call.nested, 0) as usize;
        for at in (4..call.nested.len()).step_by(8).take(asked) {
            let value = match word(call.nested, at) {
                rm::GPU_INFO_SMC_MODE if self.knobs.mig => rm::SMC_MODE_ENABLED,
                rm::GPU_INFO_SMC_MODE => rm::SMC_MODE_DISABLED,
                _ => return Err(Status::NOT_SUPPORTED),
            };
            put_word(call.nested, at + 4, value);
        }
        Ok(())
    }

    fn attach_ids(&mut self, call: &mut Call<'_>) -> Result<(), Status> {
        let mut ids = get::<rm::AttachIds>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
        let all = ids.gpu_ids[0] & 0xffff == 0xffff;
        for id in ids
            .gpu_ids
            .iter()
            .take_while(|id| !all && **id != rm::INVALID_GPU_ID)
        {
            if !self.gpus.iter().any(|gpu| gpu.id == *id) {
                ids.failed_id = *id;
                put(call.nested, &ids);
                return Err(Status::INVALID_ARGUMENT);
            }
        }
        for gpu in &mut self.gpus {
            if all || ids.gpu_ids.contains(&gpu.id) {
                gpu.attached += 1;
            }
        }
        Ok(())
    }

    /// Refuses to schedule a channel of an externally owned VA space before UVM knows it.
    fn check_registered(&self, tsg: tidegate_device::TsgId, gpu: usize) -> Result<(), Status> {
        let waiting = self
            .channels
            .values()
            .any(|c| c.gpu == gpu && c.tsg == tsg && c.external_vaspace && c.registered.is_none());
        if waiting {
            Err(Status::INVALID_STATE)
        } else {
            Ok(())
        }
    }

    fn tsg_control(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let Header {
            client,
            object,
            cmd,
        } = header;
        let Some(&Body::Tsg { gpu, id, .. }) = self.object(client, object).map(|o| &o.body) else {
            return Err(Status::INVALID_OBJECT_HANDLE);
        };
        if cmd == rm::NVA06C_CTRL_CMD_PREEMPT {
            let model = &mut self.gpus[gpu].model;
            let latency = match model.has_turn(id) {
                true => model.draw_disable(),
                false => ROUND_TRIP_NS,
            };
            let needs = Needs::preempt(client, gpu);
            let (_, end) = self.locks.reserve(call.now, needs, latency);
            self.gpus[gpu].model.preempt_at(end, id);
            self.history.push(Record {
                gpu: gpu as u32,
                pid: self.clients.get(&client).map_or(0, |c| c.pid),
                client,
                object,
                caller: call.caller,
                value: call.entry_ns,
                ..Record::new(call.now, Kind::Preempt)
            });
            let waits = call.nested.first().is_some_and(|wait| *wait != 0);
            answer.due = if waits { end } else { call.now };
            return Ok(());
        }
        let end = self.writer(call.now, client);
        answer.due = end;
        if cmd == rm::NVA06C_CTRL_CMD_SET_TIMESLICE {
            let slice = get::<rm::Timeslice>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
            let ns = slice.timeslice_us.saturating_mul(1_000);
            if ns == 0 {
                return Err(Status::INVALID_ARGUMENT);
            }
            self.gpus[gpu].model.set_timeslice(id, ns);
            return Ok(());
        }
        self.check_registered(id, gpu)?;
        let on = call.nested.first().is_some_and(|on| *on != 0);
        self.gpus[gpu].model.set_scheduled_at(end, id, on);
        Ok(())
    }

    /// The right NICE is the caller's, whoever owns the file and the channel.
    fn restart_runlist(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let params = get::<rm::RestartRunlist>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
        let key = self
            .channel_key(header.client, header.object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let channel = self
            .channels
            .get(&key)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let (gpu, tsg) = (channel.gpu, channel.tsg);
        if !crate::sys::may_set_priorities(call.caller) {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        let mut record = channel_record(call.now, Kind::Restart, channel);
        (record.caller, record.value) = (call.caller, call.entry_ns);
        record.tag = u64::from(self.gpus[gpu].model.engine_of(tsg));
        self.history.push(record);
        let needs = Needs::preempt(header.client, gpu);
        if let Some(status) = self.knobs.restart {
            answer.due = self.locks.reserve(call.now, needs, ROUND_TRIP_NS).1;
            return Err(status);
        }
        let model = &mut self.gpus[gpu].model;
        let latency = match model.is_engine_busy(tsg) {
            true => model.draw_disable(),
            false => ROUND_TRIP_NS,
        };
        let (_, end) = self.locks.reserve(call.now, needs, latency);
        self.gpus[gpu].model.restart_at(end, tsg);
        answer.due = if params.bypass_wait == 0 {
            end
        } else {
            call.now
        };
        Ok(())
    }

    fn schedule_channel(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let key = self
            .channel_key(header.client, header.object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let end = self.writer(call.now, header.client);
        answer.due = end;
        let channel = self
            .channels
            .get(&key)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let (gpu, tsg) = (channel.gpu, channel.tsg);
        self.check_registered(tsg, gpu)?;
        let on = call.nested.first().is_some_and(|on| *on != 0);
        self.gpus[gpu].model.set_scheduled_at(end, tsg, on);
        Ok(())
    }

    /// The pairs of a list as channels of `gpu`.
    fn resolve_pairs(
        &self,
        call: &Call<'_>,
        params: &rm::DisableChannels,
        gpu: usize,
    ) -> Result<Vec<u64>, Status> {
        let count = params.num_channels as usize;
        let pairs = params
            .h_client_list
            .iter()
            .zip(&params.h_channel_list)
            .take(count);
        pairs
            .map(|(client, channel)| {
                if let Foreign::Deny(status) = self.knobs.foreign
                    && self.check_client(call.file, *client).is_err()
                {
                    return Err(status);
                }
                let key = self
                    .channel_key(*client, *channel)
                    .ok_or(self.knobs.unknown_pair)?;
                match self.channels.get(&key) {
                    Some(found) if found.gpu == gpu => Ok(key),
                    _ => Err(Status::INVALID_CHANNEL),
                }
            })
            .collect()
    }

    fn disable_channels(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let params = get::<rm::DisableChannels>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
        if params.p_runlist_preempt_event != 0 {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        if params.num_channels as usize > rm::MAX_PAIRS {
            return Err(Status::INVALID_ARGUMENT);
        }
        let gpu = self
            .gpu_above(header.client, header.object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let disable = params.disable != 0;
        let returned = Record {
            gpu: gpu as u32,
            client: header.client,
            caller: call.caller,
            value: call.entry_ns,
            ..Record::new(call.now, Kind::DisableReturn)
        };
        let needs = Needs::disable_channels(header.client, gpu, self.knobs.patch);
        debug_assert!(needs.api == ApiLock::Read && needs.gpus != GpuLock::None);

        let keys = match self.resolve_pairs(call, &params, gpu) {
            Ok(keys) => keys,
            Err(status) => {
                answer.due = self.locks.reserve(call.now, needs, ROUND_TRIP_NS).1;
                answer.record = Some(returned);
                return Err(status);
            }
        };
        let ids: Vec<ChannelId> = keys
            .iter()
            .filter_map(|key| Some(self.channels.get(key)?.id))
            .collect();
        let scheduling_only = params.only_disable_scheduling != 0;
        let evicts = match self.knobs.eviction {
            Eviction::OnDisable => !scheduling_only,
            Eviction::AtKernelEnd => true,
            Eviction::OnRestart | Eviction::OnPreempt | Eviction::Never => false,
        };
        let mut latency = if disable && !evicts {
            ROUND_TRIP_NS
        } else if disable {
            self.gpus[gpu].model.draw_disable()
        } else {
            self.knobs.enable.draw(&mut self.rng)
        };
        if self.knobs.hang.0 > 0 {
            self.knobs.hang.0 -= 1;
            latency = latency.saturating_add(self.knobs.hang.1);
        }
        let (_, end) = self.locks.reserve(call.now, needs, latency);
        answer.due = end;
        answer.record = Some(returned);
        if disable {
            for channel in keys.iter().filter_map(|key| self.channels.get(key)) {
                let mut record = channel_record(call.now, Kind::DisableBegin, channel);
                (record.caller, record.value) = (call.caller, call.entry_ns);
                self.history.push(record);
            }
        }
        let (reached, result) = self.inject(disable, &keys, ids, call.now);
        if params.rewind_gp_put != 0 && disable {
            for key in &keys {
                self.rewind(*key);
            }
        }
        if !reached.is_empty() {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let open = Ticket {
                caller: call.caller,
                entry_ns: call.entry_ns,
                left: reached.len(),
            };
            self.tickets.insert(ticket, open);
            let model = &mut self.gpus[gpu].model;
            if disable && scheduling_only {
                model.disable_scheduling_at(end, &reached, ticket);
            } else if disable {
                model.disable_at(end, &reached, ticket);
            } else {
                model.enable_at(end, &reached, ticket);
            }
        }
        result
    }

    /// What the fault knobs leave of a disable or enable: the channels it reaches, and its status.
    fn inject(
        &mut self,
        disable: bool,
        keys: &[u64],
        ids: Vec<ChannelId>,
        now: u64,
    ) -> (Vec<ChannelId>, Result<(), Status>) {
        fn take(knob: &mut (u32, Status)) -> Option<Status> {
            (knob.0 > 0).then(|| {
                knob.0 -= 1;
                knob.1
            })
        }
        let knobs = &mut self.knobs;
        let deaf = if disable {
            &mut knobs.deaf_disable
        } else {
            &mut knobs.deaf_enable
        };
        if *deaf > 0 {
            *deaf -= 1;
            return (Vec::new(), Ok(()));
        }
        if !disable {
            return match take(&mut knobs.fail_enable) {
                Some(status) => (Vec::new(), Err(status)),
                None => (ids, Ok(())),
            };
        }
        if let Some(status) = take(&mut knobs.fail_disable) {
            return (Vec::new(), Err(status));
        }
        if knobs.fail_disable_p > 0.0 && self.rng.unit() < knobs.fail_disable_p {
            return (Vec::new(), Err(knobs.fail_disable.1));
        }
        if let Some(status) = take(&mut knobs.partial_disable) {
            return (ids.into_iter().step_by(2).collect(), Err(status));
        }
        if knobs.preempt_timeout > 0 {
            knobs.preempt_timeout -= 1;
            if let Some(key) = keys.first() {
                self.fault(*key, XID_CTXSW_TIMEOUT, now);
            }
            return (Vec::new(), Err(Status::TIMEOUT));
        }
        (ids, Ok(()))
    }

    /// Throws away what a channel has queued but not begun: GP_PUT := GP_GET.
    fn rewind(&mut self, key: u64) {
        let Some(channel) = self.channels.get_mut(&key) else {
            return;
        };
        let model = &mut self.gpus[channel.gpu].model;
        model.discard_queued(channel.id);
        channel.entries.truncate(model.queued(channel.id));
        channel.waits = 0;
    }
}
