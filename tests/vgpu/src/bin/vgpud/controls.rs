//! `NV_ESC_RM_CONTROL`: the controls that real programs and the agent use.
//!
//! The order of checks is the driver's (`_rmapiRmControl`): a null control succeeds before anything is
//! looked at (so it proves nothing about the client); a client that does not exist is 0x23; then, for a
//! control of which one answer is cached for the whole system, that answer, if anybody has ever asked:
//! it proves no more than that the client exists; then the size (0x1f), so that a wrong one tells whether
//! a client exists, whoever owns it; then the strict client check (0x23 as well); then the object (0x57);
//! then whether its class has the control (0x56); then who may make it (0x1b). Sizes, classes,
//! privileges, caching and locks are those of the version played.

use tidegate_abi::rm;
use tidegate_device::{ApiLock, ChannelId, Eviction, GpuLock, Needs, TsgId};
use tidegate_vgpu::facts::{Api, Cache, Control, Privilege, State, Status, Struct};
use tidegate_vgpu::history::{Kind, Record};

use crate::call::{Answer, Call, put_word, word};
use crate::exec::XID_FAULT;
use crate::knobs::Foreign;
use crate::world::{Body, Ticket, World, channel_record};

/// Xid of a context switch that timed out.
const XID_CTXSW_TIMEOUT: u32 = 109;
const _: () = assert!(XID_CTXSW_TIMEOUT != XID_FAULT);

/// `NV0080_CTRL_GPU_VIRTUALIZATION_MODE_NONE` and `_VGX`, from the kernel's `ctrl0080gpu.h`.
const BARE: u32 = 0;
const VGX: u32 = 2;

/// What the GPU is called: the one whose device number and compute capability it has. Wherever the name is shown, it is
/// not taken for that GPU.
const NAME: &[u8] = b"VIRTUAL NVIDIA H100 80GB HBM3";

/// What a control costs at the firmware that moves nothing on or off an engine.
const ROUND_TRIP_NS: u64 = 20_000;

/// A control that arrived: its header.
#[derive(Clone, Copy)]
struct Header {
    client: u32,
    object: u32,
    cmd: u32,
    /// Bytes of its parameters, as the caller says.
    stated: usize,
}

impl World {
    pub(crate) fn control(&mut self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("NVOS54_PARAMETERS");
        let word = |field| layout.word(call.params, field);
        let header = Header {
            client: word("hClient"),
            object: word("hObject"),
            cmd: word("cmd"),
            stated: word("paramsSize") as usize,
        };
        let mut answer = Answer::at(call.now);
        let status = self
            .try_control(call, header, &mut answer)
            .err()
            .unwrap_or(Status::OK);
        if !status.is_ok() {
            self.refused(call, header.client, header.object, header.cmd, status);
        }
        layout.put_word(call.params, "status", status.0);
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
            stated,
        } = header;
        if cmd & 0x7fff == 0 {
            return Ok(());
        }
        let controls = &self.setup.driver.controls;
        let asked = controls.get(&cmd);
        let converted = match asked.map(|control| control.state) {
            Some(State::Converted(to)) => Some(to),
            _ => None,
        };
        let carried = converted.map_or(asked, |to| controls.get(&to));
        let carried = carried.filter(|control| control.state == State::Exported);
        if !self.clients.contains_key(&client) {
            return Err(Status::INVALID_CLIENT);
        }
        // The caller's own struct is filled in last.
        let own = asked.map_or(0, |control| control.size);
        let short = converted.is_some() && call.nested.len() < own;
        let filled = if short {
            Err(Status::INVALID_ARGUMENT)
        } else {
            Ok(())
        };
        if let Some(control) = carried.filter(|control| self.cached.contains(control.name)) {
            self.build_version(call, header, self.layout(control.params), answer);
            return filled;
        }
        // What is converted gets parameters of the right size from the driver itself.
        let wrong = |control: &Control<'_>| stated != control.size || call.nested.len() != stated;
        if converted.is_none() && carried.is_some_and(wrong) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let found = self.check_client(call.file, client)?;
        let found = found.objects.get(&object);
        let class = found.ok_or(Status::OBJECT_NOT_FOUND)?.class;
        let class = self.setup.driver.classes.get(&class);
        let carried = carried
            .filter(|control| class.is_some_and(|class| class.internal == control.class))
            .ok_or(Status::NOT_SUPPORTED)?;
        let allowed = match carried.privilege {
            Privilege::None => true,
            Privilege::Root => crate::sys::is_root(call.caller),
            Privilege::Kernel => false,
        };
        if !allowed {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        if let Some(status) = self.knobs.refusal(cmd, call.caller) {
            return Err(status);
        }
        self.knobs.is_there(self.gpu_above(client, object))?;
        self.carry_out(call, header, carried, answer)?;
        if carried.cache == Cache::ByCommand {
            self.cached.insert(carried.name);
        }
        filled
    }

    /// The one control here whose answer is cached by command.
    fn build_version(
        &self,
        call: &mut Call<'_>,
        header: Header,
        layout: &Struct<'_>,
        answer: &mut Answer,
    ) {
        let version = self.setup.driver.version.as_bytes();
        let length = version.len().min(answer.reply.text.len() - 1);
        answer.reply.text[..length].copy_from_slice(&version[..length]);
        if header.cmd != rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION {
            call.nested.fill(0);
            layout.put(call.nested, "driverVersionBuffer", version);
        }
    }

    /// A control that passed every check of its caller.
    fn carry_out(
        &mut self,
        call: &mut Call<'_>,
        header: Header,
        control: &Control<'_>,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let Header { client, object, .. } = header;
        match control.name {
            "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS" => {
                return self.disable_channels(call, header, answer);
            }
            "NVA06C_CTRL_CMD_PREEMPT" => return self.preempt(call, header, answer),
            "NVA06F_CTRL_CMD_RESTART_RUNLIST" => {
                return self.restart_runlist(call, header, answer);
            }
            _ => {}
        }
        let (api, duration) = match control.api {
            Api::Read => (ApiLock::Read, 0),
            Api::Write => (ApiLock::Write, self.knobs.writer_ns),
        };
        let needs = self.needs(client, object, api, control.gpus);
        answer.due = self.locks.reserve(call.now, needs, duration).1;
        let layout = self.setup.driver.structs.get(control.params);
        let Some(layout) = layout.filter(|_| control.size > 0) else {
            return Ok(());
        };
        let none = self.number("NV0000_CTRL_GPU_INVALID_ID");
        match control.name {
            "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2" => {
                self.build_version(call, header, layout, answer);
            }
            "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS" => {
                let attached = self.gpus.iter().filter(|gpu| gpu.attached > 0);
                fill(
                    call.nested,
                    layout.at("gpuIds"),
                    none,
                    attached.map(|gpu| gpu.id),
                );
            }
            "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS" => {
                call.nested.fill(0);
                let ids = self.gpus.iter().map(|gpu| gpu.id);
                fill(call.nested, layout.at("gpuIds"), none, ids);
                let excluded = layout.at("excludedGpuIds");
                fill(call.nested, excluded, none, [].into_iter());
            }
            "NV0000_CTRL_CMD_GPU_ATTACH_IDS" => return self.attach_ids(call),
            "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2" => self.id_info(call, layout)?,
            "NV2080_CTRL_CMD_GPU_GET_INFO_V2" => self.gpu_info(call)?,
            "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE" => {
                call.nested.fill(0);
                let mode = if self.knobs.guest { VGX } else { BARE };
                layout.put_word(call.nested, "virtualizationMode", mode);
            }
            "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES" => {
                call.nested.fill(0);
                if self.knobs.confidential {
                    let on = self.number("NV_CONF_COMPUTE_SYSTEM_FEATURE_HCC_ENABLED");
                    layout.put(call.nested, "ccFeature", &[on as u8]);
                }
            }
            "NV2080_CTRL_CMD_GPU_GET_GID_INFO" => self.gid_info(call, header, layout)?,
            "NV2080_CTRL_CMD_GPU_GET_NAME_STRING" => {
                call.nested.fill(0);
                layout.put(call.nested, "gpuNameString", NAME);
            }
            "NV2080_CTRL_CMD_FB_GET_INFO_V2" => self.fb_info(call, header, layout)?,
            "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN" => {
                let key = self.channel_key(client, object).unwrap_or(0);
                layout.put_word(call.nested, "workSubmitToken", key as u32);
            }
            "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE"
            | "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE"
            | "NVC36F_CTRL_CMD_GPFIFO_SCHEDULE" => {
                let (gpu, tsg) = self.group_of(client, object)?;
                self.check_registered(tsg, gpu)?;
                let on = layout.flag(call.nested, "bEnable");
                self.gpus[gpu].model.set_scheduled_at(answer.due, tsg, on);
            }
            "NVA06C_CTRL_CMD_SET_TIMESLICE" => {
                let (gpu, tsg) = self.group_of(client, object)?;
                let us = layout.long(call.nested, "timesliceUs");
                // No value is too small: the least that the kernel side asks for is 0, and since 610 it asks for none.
                let ns = us.saturating_mul(1_000);
                self.gpus[gpu].model.set_timeslice(tsg, ns);
                self.note_group(call, header, gpu, Kind::Timeslice, us);
            }
            "NVA06C_CTRL_CMD_GET_TIMESLICE" => {
                let (gpu, tsg) = self.group_of(client, object)?;
                let us = self.gpus[gpu].model.timeslice(tsg) / 1_000;
                layout.put(call.nested, "timesliceUs", &us.to_le_bytes());
            }
            _ => {}
        }
        Ok(())
    }

    /// Which device a GPU id names.
    fn id_info(&self, call: &mut Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let id = layout.word(call.nested, "gpuId");
        let gpu = self
            .gpus
            .iter()
            .position(|gpu| gpu.id == id)
            .ok_or(Status::INVALID_ARGUMENT)?;
        let mut put = |field, value| layout.put_word(call.nested, field, value);
        put("deviceInstance", self.instance_of_gpu(gpu));
        put("subDeviceInstance", 0);
        put("boardId", id);
        put("gpuInstance", gpu as u32);
        put("numaId", u32::MAX);
        Ok(())
    }

    /// The UUID of the GPU above a subdevice.
    fn gid_info(
        &self,
        call: &mut Call<'_>,
        header: Header,
        layout: &Struct<'_>,
    ) -> Result<(), Status> {
        let Header { client, object, .. } = header;
        let gpu = self
            .gpu_above(client, object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let flags = layout.word(call.nested, "flags");
        if layout.word(call.nested, "index") != 0 || flags & rm::GID_FORMAT_BINARY == 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let at = layout.at("data");
        call.nested[at..].fill(0);
        layout.put_word(call.nested, "length", 16);
        layout.put(call.nested, "data", &self.gpus[gpu].uuid);
        Ok(())
    }

    /// Sizes of the GPU's memory, in KiB.
    fn fb_info(
        &self,
        call: &mut Call<'_>,
        header: Header,
        layout: &Struct<'_>,
    ) -> Result<(), Status> {
        let Header { client, object, .. } = header;
        let gpu = self
            .gpu_above(client, object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let asked = layout.word(call.nested, "fbInfoListSize") as usize;
        let start = layout.at("fbInfoList");
        let places = call.nested[start..].chunks_exact_mut(8);
        if asked > places.len() {
            return Err(Status::INVALID_ARGUMENT);
        }
        for place in places.take(asked) {
            let bytes = match word(place, 0) {
                rm::FB_INFO_RAM_SIZE | rm::FB_INFO_TOTAL_RAM_SIZE | rm::FB_INFO_HEAP_SIZE => {
                    self.memory.total_bytes(gpu)
                }
                rm::FB_INFO_HEAP_FREE => self.memory.free_bytes(gpu),
                _ => 0,
            };
            put_word(place, 4, (bytes >> 10) as u32);
        }
        Ok(())
    }

    /// The GPU and group of a TSG, or of a channel.
    fn group_of(&self, client: u32, object: u32) -> Result<(usize, TsgId), Status> {
        match self.object(client, object).map(|o| &o.body) {
            Some(Body::Tsg { gpu, id, .. }) => Ok((*gpu, *id)),
            Some(Body::Channel { key }) => self
                .channels
                .get(key)
                .map(|channel| (channel.gpu, channel.tsg))
                .ok_or(Status::INVALID_OBJECT_HANDLE),
            _ => Err(Status::INVALID_OBJECT_HANDLE),
        }
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
        let layout = self.layout("NV0000_CTRL_GPU_ATTACH_IDS_PARAMS");
        let none = self.number("NV0000_CTRL_GPU_INVALID_ID");
        let every = self.number("NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS");
        let field = layout.fields.get("gpuIds");
        let field = field.ok_or(Status::INVALID_ARGUMENT)?;
        let ids: Vec<u32> = call.nested[field.offset..field.offset + field.size]
            .chunks_exact(4)
            .map(|id| word(id, 0))
            .collect();
        let all = ids.first().is_some_and(|first| first & 0xffff == every);
        for id in ids.iter().take_while(|id| !all && **id != none) {
            if !self.gpus.iter().any(|gpu| gpu.id == *id) {
                layout.put_word(call.nested, "failedId", *id);
                return Err(Status::INVALID_ARGUMENT);
            }
        }
        for gpu in &mut self.gpus {
            if all || ids.contains(&gpu.id) {
                gpu.attached += 1;
            }
        }
        Ok(())
    }

    /// Refuses to schedule a channel of an externally owned VA space before UVM knows it.
    fn check_registered(&self, tsg: TsgId, gpu: usize) -> Result<(), Status> {
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

    /// Writes into the history what a call did to a group.
    fn note_group(&mut self, call: &Call<'_>, header: Header, gpu: usize, kind: Kind, tag: u64) {
        let Header { client, object, .. } = header;
        self.history.push(Record {
            gpu: gpu as u32,
            pid: self.clients.get(&client).map_or(0, |c| c.pid),
            client,
            object,
            caller: call.caller,
            value: call.entry_ns,
            tag,
            ..Record::new(call.now, kind)
        });
    }

    fn preempt(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let Header { client, object, .. } = header;
        let (gpu, id) = self.group_of(client, object)?;
        let model = &mut self.gpus[gpu].model;
        let latency = match model.has_turn(id) {
            true => model.draw_disable(),
            false => ROUND_TRIP_NS,
        };
        let needs = Needs::preempt(client, gpu);
        let (_, end) = self.locks.reserve(call.now, needs, latency);
        self.gpus[gpu].model.preempt_at(end, id);
        self.note_group(call, header, gpu, Kind::Preempt, 0);
        let layout = self.layout("NVA06C_CTRL_PREEMPT_PARAMS");
        let waits = layout.flag(call.nested, "bWait");
        answer.due = if waits { end } else { call.now };
        Ok(())
    }

    /// The right NICE is the caller's, whoever owns the file and the channel.
    fn restart_runlist(
        &mut self,
        call: &Call<'_>,
        header: Header,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let layout = self.layout("NVA06F_CTRL_RESTART_RUNLIST_PARAMS");
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
        let waits = !layout.flag(call.nested, "bBypassWait");
        answer.due = if waits { end } else { call.now };
        Ok(())
    }

    /// The pairs of a list as channels of `gpu`.
    fn resolve_pairs(&self, call: &Call<'_>, count: usize, gpu: usize) -> Result<Vec<u64>, Status> {
        let layout = self.layout("NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS");
        let list = |field| call.nested[layout.at(field)..].chunks_exact(4);
        list("hClientList")
            .zip(list("hChannelList"))
            .take(count)
            .map(|(client, channel)| {
                let (client, channel) = (word(client, 0), word(channel, 0));
                if let Foreign::Deny(status) = self.knobs.foreign
                    && self.check_client(call.file, client).is_err()
                {
                    return Err(status);
                }
                let key = self
                    .channel_key(client, channel)
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
        let layout = self.layout("NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS");
        if layout.long(call.nested, "pRunlistPreemptEvent") != 0 {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        let count = layout.word(call.nested, "numChannels");
        let gpu = self
            .gpu_above(header.client, header.object)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let disable = layout.flag(call.nested, "bDisable");
        let returned = Record {
            gpu: gpu as u32,
            client: header.client,
            caller: call.caller,
            value: call.entry_ns,
            ..Record::new(call.now, Kind::DisableReturn)
        };
        let needs = Needs::disable_channels(header.client, gpu, self.knobs.patch);
        debug_assert!(needs.api == ApiLock::Read && needs.gpus != GpuLock::None);

        // What an H100 and an H200 answer (P9, P9b), as late as any answer.
        let most = self.number("NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES");
        let resolved = if count == 0 || count > most {
            Err(Status::INVALID_PARAM_STRUCT)
        } else {
            self.resolve_pairs(call, count as usize, gpu)
        };
        let keys = match resolved {
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
        let scheduling_only = layout.flag(call.nested, "bOnlyDisableScheduling");
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
        let after = if disable { self.knobs.answer_ns } else { 0 };
        let held = latency.saturating_add(after);
        let (_, answered) = self.locks.reserve(call.now, needs, held);
        let end = answered.saturating_sub(after);
        answer.due = answered;
        answer.record = Some(returned);
        if disable {
            for channel in keys.iter().filter_map(|key| self.channels.get(key)) {
                let mut record = channel_record(call.now, Kind::DisableBegin, channel);
                (record.caller, record.value) = (call.caller, call.entry_ns);
                self.history.push(record);
            }
        }
        let (reached, result) = if !disable && self.knobs.lost_in_enable == Some(gpu) {
            self.knobs.lost_in_enable = None;
            self.knobs.lost = Some(gpu);
            (ids, Err(Status::GPU_IS_LOST))
        } else {
            self.inject(disable, &keys, ids, call.now)
        };
        if layout.flag(call.nested, "bRewindGpPut") && disable {
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
                read_ns: call.read_ns,
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
        channel.lose(model.queued(channel.id));
        channel.waits = 0;
    }
}

/// Writes a list of ids, its unused places filled with `none`.
fn fill(bytes: &mut [u8], at: usize, none: u32, mut ids: impl Iterator<Item = u32>) {
    for place in bytes[at..].chunks_exact_mut(4).take(rm::MAX_GPUS) {
        put_word(place, 0, ids.next().unwrap_or(none));
    }
}
