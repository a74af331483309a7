//! `/dev/nvidia-uvm`: registration of GPUs, VA spaces and channels, and external mappings.
//!
//! On hardware an external mapping is an entry of the GPU's page table. Here device memory lies at
//! the same address in the owner's process, so a mapping is an order to the shim to map the memfd
//! range there before the ioctl returns; over an existing mapping that is one step, as in UVM.

use std::mem::size_of;

use tidegate_abi::rm::Status;
use tidegate_abi::uvm;
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::wire::Order;

use crate::call::{Answer, Call, get, long, put_word, word};
use crate::knobs::fails;
use crate::world::{Body, ExternalMap, UvmSpace, World};

impl World {
    fn space(&mut self, call: &Call<'_>) -> Option<&mut UvmSpace> {
        self.files.get_mut(&call.file).map(|file| &mut file.uvm)
    }

    /// An ioctl on a UVM file.
    pub(crate) fn uvm_ioctl(&mut self, call: &mut Call<'_>) -> Answer {
        let now = call.now;
        let ready = self.space(call).is_some_and(|space| space.initialized);
        let needs_init = !matches!(call.request, uvm::UVM_INITIALIZE | uvm::UVM_MM_INITIALIZE);
        if needs_init && !ready {
            return Answer::errno(now, libc::EBADFD);
        }
        let mut answer = Answer::at(now);
        let size = call.params.len();
        // Where the result goes: at the end, but for structs that end in padding.
        let (status_at, result) = match call.request {
            uvm::UVM_INITIALIZE => {
                if let Some(space) = self.space(call) {
                    space.initialized = true;
                }
                (8, Ok(()))
            }
            uvm::UVM_MM_INITIALIZE => {
                let known = call.named.and_then(|file| self.files.get(&file));
                let ready = known.is_some_and(|file| file.uvm.initialized);
                (
                    4,
                    if ready {
                        Ok(())
                    } else {
                        Err(Status::INVALID_ARGUMENT)
                    },
                )
            }
            uvm::UVM_REGISTER_GPU => (36, self.register_gpu(call)),
            uvm::UVM_UNREGISTER_GPU => (16, Ok(())),
            uvm::UVM_REGISTER_GPU_VASPACE => (28, self.register_vaspace(call)),
            uvm::UVM_UNREGISTER_GPU_VASPACE => (16, Ok(())),
            uvm::UVM_REGISTER_CHANNEL => (48, self.register_channel(call)),
            uvm::UVM_UNREGISTER_CHANNEL => {
                let at = size.saturating_sub(12);
                (size.saturating_sub(4), self.unregister_channel(call, at))
            }
            uvm::UVM_ENABLE_PEER_ACCESS | uvm::UVM_DISABLE_PEER_ACCESS => (32, Ok(())),
            uvm::UVM_PAGEABLE_MEM_ACCESS => {
                put_word(call.params, 0, 0);
                (4, Ok(()))
            }
            uvm::UVM_CREATE_EXTERNAL_RANGE => (16, self.create_range(call)),
            uvm::UVM_VALIDATE_VA_RANGE => {
                let found = self.range_around(call, long(call.params, 0), long(call.params, 8));
                (
                    16,
                    if found {
                        Ok(())
                    } else {
                        Err(Status::INVALID_ADDRESS)
                    },
                )
            }
            uvm::UVM_MAP_EXTERNAL_ALLOCATION => {
                (size.saturating_sub(4), self.map_external(call, &mut answer))
            }
            uvm::UVM_UNMAP_EXTERNAL => (32, self.unmap_external(call, &mut answer)),
            uvm::UVM_FREE => (
                if size == 16 { 8 } else { 16 },
                self.free_range(call, &mut answer),
            ),
            uvm::UVM_ALLOC_SEMAPHORE_POOL => (
                size.saturating_sub(8),
                self.semaphore_pool(call, &mut answer),
            ),
            uvm::UVM_DEINITIALIZE => return answer,
            _ => (size.saturating_sub(8), Err(Status::NOT_SUPPORTED)),
        };
        if result.is_ok() {
            let length = long(call.params, 8);
            let cost = match call.request {
                uvm::UVM_MAP_EXTERNAL_ALLOCATION => self.knobs.map_ns,
                uvm::UVM_UNMAP_EXTERNAL => self.knobs.unmap_ns,
                _ => 0,
            };
            answer.due = self.memory_call(now, cost, length);
        }
        let status = result.err().unwrap_or(Status::OK);
        put_word(call.params, status_at, status.0);
        if !status.is_ok() {
            self.refused(call, 0, 0, call.request as u32, status);
        }
        answer
    }

    /// The strict check as UVM makes it: with the control file that the parameters name.
    fn check_named(&self, call: &Call<'_>, client: u32) -> Result<(), Status> {
        let file = call.named.ok_or(Status::INVALID_ARGUMENT)?;
        self.check_client(file, client).map(|_| ())
    }

    fn gpu_of(&self, call: &Call<'_>) -> Result<usize, Status> {
        let uuid = call
            .params
            .first_chunk::<16>()
            .ok_or(Status::INVALID_ARGUMENT)?;
        self.gpu_of_uuid(*uuid).ok_or(Status::OBJECT_NOT_FOUND)
    }

    fn register_gpu(&mut self, call: &Call<'_>) -> Result<(), Status> {
        let gpu = self.gpu_of(call)?;
        if let Some(space) = self.space(call) {
            space.gpus.insert(gpu);
        }
        Ok(())
    }

    fn check_gpu(&mut self, call: &Call<'_>) -> Result<usize, Status> {
        let gpu = self.gpu_of(call)?;
        let known = self
            .space(call)
            .is_some_and(|space| space.gpus.contains(&gpu));
        if known {
            Ok(gpu)
        } else {
            Err(Status::INVALID_DEVICE)
        }
    }

    fn register_vaspace(&mut self, call: &Call<'_>) -> Result<(), Status> {
        self.check_gpu(call)?;
        let params =
            get::<uvm::UvmRegisterGpuVaspace>(call.params).ok_or(Status::INVALID_ARGUMENT)?;
        self.check_named(call, params.h_client)?;
        let object = self.object(params.h_client, params.h_va_space);
        if !object.is_some_and(|o| matches!(o.body, Body::Vaspace { .. })) {
            return Err(Status::INVALID_OBJECT_HANDLE);
        }
        if let Some(space) = self.space(call) {
            space.vaspaces.insert((params.h_client, params.h_va_space));
        }
        Ok(())
    }

    fn register_channel(&mut self, call: &Call<'_>) -> Result<(), Status> {
        let gpu = self.check_gpu(call)?;
        let params = get::<uvm::UvmRegisterChannel>(call.params).ok_or(Status::INVALID_ARGUMENT)?;
        self.check_named(call, params.h_client)?;
        let key = self
            .channel_key(params.h_client, params.h_channel)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        match self.channels.get_mut(&key) {
            Some(channel) if channel.gpu != gpu => Err(Status::INVALID_CHANNEL),
            Some(channel) if channel.registered.is_some() => Err(Status::INVALID_STATE),
            Some(channel) => {
                channel.registered = Some(call.file);
                Ok(())
            }
            None => Err(Status::INVALID_CHANNEL),
        }
    }

    fn unregister_channel(&mut self, call: &Call<'_>, at: usize) -> Result<(), Status> {
        let (client, channel) = (word(call.params, at), word(call.params, at + 4));
        let key = self
            .channel_key(client, channel)
            .ok_or(Status::INVALID_CHANNEL)?;
        match self.channels.get_mut(&key) {
            Some(channel) if channel.registered == Some(call.file) => {
                channel.registered = None;
                Ok(())
            }
            _ => Err(Status::INVALID_CHANNEL),
        }
    }

    fn create_range(&mut self, call: &Call<'_>) -> Result<(), Status> {
        let params =
            get::<uvm::UvmCreateExternalRange>(call.params).ok_or(Status::INVALID_ARGUMENT)?;
        let (base, length) = (params.base, params.length);
        let end = base.checked_add(length).ok_or(Status::INVALID_ADDRESS)?;
        if length == 0 || !base.is_multiple_of(4096) || !length.is_multiple_of(4096) {
            return Err(Status::INVALID_ADDRESS);
        }
        let space = self.space(call).ok_or(Status::INVALID_STATE)?;
        let before = space.ranges.range(..end).next_back();
        if before.is_some_and(|(other, length)| other + length > base) {
            return Err(Status::INVALID_ADDRESS);
        }
        space.ranges.insert(base, length);
        Ok(())
    }

    /// Whether a range lies inside one external range of the caller's space.
    fn range_around(&mut self, call: &Call<'_>, base: u64, length: u64) -> bool {
        let Some(end) = base.checked_add(length) else {
            return false;
        };
        self.space(call).is_some_and(|space| {
            space
                .ranges
                .range(..=base)
                .next_back()
                .is_some_and(|(start, bytes)| end <= start + bytes)
        })
    }

    fn map_external(&mut self, call: &Call<'_>, answer: &mut Answer) -> Result<(), Status> {
        let size = call.params.len();
        let (base, length) = (long(call.params, 0), long(call.params, 8));
        let offset = long(call.params, 16);
        let client = word(call.params, size - 12);
        let handle = word(call.params, size - 8);
        self.check_named(call, client)?;
        if length == 0 || !self.range_around(call, base, length) {
            return Err(Status::INVALID_ADDRESS);
        }
        let Some(&Body::Memory { id }) = self.object(client, handle).map(|o| &o.body) else {
            return Err(Status::INVALID_OBJECT_HANDLE);
        };
        if fails(&mut self.knobs.fail_map) {
            return Err(Status::NO_MEMORY);
        }
        let memory = self.memory.get(id).ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let end = offset.checked_add(length).ok_or(Status::INVALID_ARGUMENT)?;
        if end > memory.bytes || !offset.is_multiple_of(4096) || !base.is_multiple_of(4096) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let (fd, at) = (memory.memfd.fd.clone(), memory.offset + offset);
        let gpu = memory.gpu.unwrap_or(0);
        self.memory.retain(id);
        let replaced = self.drop_maps(call, base, length);
        self.record_mapping(call, Kind::Map, gpu, (base, length), replaced);
        if let Some(space) = self.space(call) {
            space.maps.insert(
                base,
                ExternalMap {
                    bytes: length,
                    memory: id,
                },
            );
        }
        *answer = Answer::at(call.now).order(Order::Map, base, length, at);
        answer.memory = Some(fd);
        Ok(())
    }

    /// A range of its own with system memory mapped over it.
    fn semaphore_pool(&mut self, call: &Call<'_>, answer: &mut Answer) -> Result<(), Status> {
        let (base, length) = (long(call.params, 0), long(call.params, 8));
        self.create_range(call)?;
        let Ok(id) = self.memory.allocate_system(length) else {
            if let Some(space) = self.space(call) {
                space.ranges.remove(&base);
            }
            return Err(Status::NO_MEMORY);
        };
        let fd = self.memory.get(id).map(|memory| memory.memfd.fd.clone());
        if let Some(space) = self.space(call) {
            let map = ExternalMap {
                bytes: length,
                memory: id,
            };
            space.maps.insert(base, map);
        }
        *answer = Answer::at(call.now).order(Order::Map, base, length, 0);
        answer.memory = fd;
        Ok(())
    }

    /// Forgets what is mapped in a range; mappings that reach beyond it keep their ends.
    /// Says whether anything was mapped there.
    fn drop_maps(&mut self, call: &Call<'_>, base: u64, length: u64) -> bool {
        let end = base + length;
        let Some(space) = self.space(call) else {
            return false;
        };
        let touched: Vec<(u64, ExternalMap)> = space
            .maps
            .range(..end)
            .filter(|(start, map)| **start + map.bytes > base)
            .map(|(start, map)| (*start, *map))
            .collect();
        let mut released = Vec::new();
        let mut kept = Vec::new();
        for (start, map) in touched {
            space.maps.remove(&start);
            released.push(map.memory);
            let ends = start + map.bytes;
            if start < base {
                kept.push((
                    start,
                    ExternalMap {
                        bytes: base - start,
                        ..map
                    },
                ));
            }
            if ends > end {
                kept.push((
                    end,
                    ExternalMap {
                        bytes: ends - end,
                        ..map
                    },
                ));
            }
        }
        for (start, map) in &kept {
            space.maps.insert(*start, *map);
        }
        for (_, map) in kept {
            self.memory.retain(map.memory);
        }
        let any = !released.is_empty();
        for memory in released {
            self.memory.release(memory);
        }
        self.record_freed(call.now);
        any
    }

    fn record_mapping(
        &mut self,
        call: &Call<'_>,
        kind: Kind,
        gpu: usize,
        (base, length): (u64, u64),
        flag: bool,
    ) {
        self.history.push(Record {
            gpu: gpu as u32,
            pid: call.caller,
            caller: call.caller,
            object: u32::from(flag),
            value: base,
            tag: length,
            ..Record::new(call.now, kind)
        });
    }

    fn unmap_external(&mut self, call: &Call<'_>, answer: &mut Answer) -> Result<(), Status> {
        let params = get::<uvm::UvmUnmapExternal>(call.params).ok_or(Status::INVALID_ARGUMENT)?;
        if params.length == 0 || !self.range_around(call, params.base, params.length) {
            return Err(Status::INVALID_ADDRESS);
        }
        let gpu = self.gpu_of_uuid(params.gpu_uuid).unwrap_or(0);
        self.drop_maps(call, params.base, params.length);
        let range = (params.base, params.length);
        self.record_mapping(call, Kind::Unmap, gpu, range, false);
        *answer = Answer::at(call.now).order(Order::Unmap, params.base, params.length, 0);
        Ok(())
    }

    fn free_range(&mut self, call: &Call<'_>, answer: &mut Answer) -> Result<(), Status> {
        let base = long(call.params, 0);
        let space = self.space(call).ok_or(Status::INVALID_STATE)?;
        let length = space.ranges.remove(&base).ok_or(Status::INVALID_ADDRESS)?;
        if self.drop_maps(call, base, length) {
            self.record_mapping(call, Kind::Unmap, 0, (base, length), true);
        }
        *answer = Answer::at(call.now).order(Order::Unmap, base, length, 0);
        Ok(())
    }
}

const _: () = assert!(size_of::<uvm::UvmFree>() == 24);
