//! `/dev/nvidia-uvm`: registration of GPUs, VA spaces and channels, and external mappings.
//!
//! On hardware an external mapping is an entry of the GPU's page table. Here device memory lies at
//! the same address in the owner's process, so a mapping is an order to the shim to map the memfd
//! range there before the ioctl returns; over an existing mapping that is one step, as in UVM.

use tidegate_abi::uvm;
use tidegate_vgpu::facts::{Status, Struct};
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::wire::Order;

use crate::call::{Answer, Call};
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
        let Some(ioctl) = self.setup.driver.uvm.get(&call.request) else {
            return Answer::errno(now, libc::EINVAL);
        };
        let layout = &ioctl.params;
        if call.params.len() != layout.size {
            return Answer::errno(now, libc::EINVAL);
        }
        let needs_init = !matches!(call.request, uvm::UVM_INITIALIZE | uvm::UVM_MM_INITIALIZE);
        if needs_init && !ready {
            return Answer::errno(now, libc::EBADFD);
        }
        let mut answer = Answer::at(now);
        let result = match call.request {
            uvm::UVM_INITIALIZE => {
                if let Some(space) = self.space(call) {
                    space.initialized = true;
                }
                Ok(())
            }
            uvm::UVM_MM_INITIALIZE => {
                let known = call.named.and_then(|file| self.files.get(&file));
                match known.is_some_and(|file| file.uvm.initialized) {
                    true => Ok(()),
                    false => Err(Status::INVALID_ARGUMENT),
                }
            }
            uvm::UVM_REGISTER_GPU => self.register_gpu(call, layout),
            uvm::UVM_REGISTER_GPU_VASPACE => self.register_vaspace(call, layout),
            uvm::UVM_REGISTER_CHANNEL => self.register_channel(call, layout),
            uvm::UVM_UNREGISTER_CHANNEL => self.unregister_channel(call, layout),
            uvm::UVM_UNREGISTER_GPU
            | uvm::UVM_UNREGISTER_GPU_VASPACE
            | uvm::UVM_ENABLE_PEER_ACCESS
            | uvm::UVM_DISABLE_PEER_ACCESS => Ok(()),
            uvm::UVM_PAGEABLE_MEM_ACCESS => {
                layout.put(call.params, "pageableMemAccess", &[0]);
                Ok(())
            }
            uvm::UVM_CREATE_EXTERNAL_RANGE => self.create_range(call, layout),
            uvm::UVM_VALIDATE_VA_RANGE => {
                let (base, length) = range(call, layout);
                match self.range_around(call, base, length) {
                    true => Ok(()),
                    false => Err(Status::INVALID_ADDRESS),
                }
            }
            uvm::UVM_MAP_EXTERNAL_ALLOCATION => self.map_external(call, layout, &mut answer),
            uvm::UVM_UNMAP_EXTERNAL => self.unmap_external(call, layout, &mut answer),
            uvm::UVM_FREE => self.free_range(call, layout, &mut answer),
            uvm::UVM_ALLOC_SEMAPHORE_POOL => self.semaphore_pool(call, layout, &mut answer),
            uvm::UVM_DEINITIALIZE => return answer,
            _ => Err(Status::NOT_SUPPORTED),
        };
        if result.is_ok() {
            let cost = match call.request {
                uvm::UVM_MAP_EXTERNAL_ALLOCATION => self.knobs.map_ns,
                uvm::UVM_UNMAP_EXTERNAL => self.knobs.unmap_ns,
                _ => 0,
            };
            if cost > 0 {
                answer.due = self.memory_call(now, cost, range(call, layout).1);
            }
        }
        let status = result.err().unwrap_or(Status::OK);
        layout.put_word(call.params, "rmStatus", status.0);
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

    fn gpu_of(&self, call: &Call<'_>, layout: &Struct<'_>) -> Result<usize, Status> {
        // Both names are in use.
        let field = ["gpuUuid", "gpu_uuid"].into_iter();
        let mut field = field.filter(|name| layout.fields.contains_key(name));
        let at = layout.at(field.next().ok_or(Status::INVALID_ARGUMENT)?);
        let uuid = call.params.get(at..).and_then(<[u8]>::first_chunk);
        let uuid = uuid.ok_or(Status::INVALID_ARGUMENT)?;
        self.gpu_of_uuid(*uuid).ok_or(Status::OBJECT_NOT_FOUND)
    }

    fn register_gpu(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let gpu = self.gpu_of(call, layout)?;
        if let Some(space) = self.space(call) {
            space.gpus.insert(gpu);
        }
        Ok(())
    }

    fn check_gpu(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<usize, Status> {
        let gpu = self.gpu_of(call, layout)?;
        let known = self
            .space(call)
            .is_some_and(|space| space.gpus.contains(&gpu));
        if known {
            Ok(gpu)
        } else {
            Err(Status::INVALID_DEVICE)
        }
    }

    fn register_vaspace(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        self.check_gpu(call, layout)?;
        let client = layout.word(call.params, "hClient");
        let vaspace = layout.word(call.params, "hVaSpace");
        self.check_named(call, client)?;
        let object = self.object(client, vaspace);
        if !object.is_some_and(|o| matches!(o.body, Body::Vaspace { .. })) {
            return Err(Status::INVALID_OBJECT_HANDLE);
        }
        if let Some(space) = self.space(call) {
            space.vaspaces.insert((client, vaspace));
        }
        Ok(())
    }

    fn register_channel(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let gpu = self.check_gpu(call, layout)?;
        let client = layout.word(call.params, "hClient");
        self.check_named(call, client)?;
        let key = self
            .channel_key(client, layout.word(call.params, "hChannel"))
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

    fn unregister_channel(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let client = layout.word(call.params, "hClient");
        let channel = layout.word(call.params, "hChannel");
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

    fn create_range(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let (base, length) = range(call, layout);
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

    fn map_external(
        &mut self,
        call: &Call<'_>,
        layout: &Struct<'_>,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let (base, length) = range(call, layout);
        let offset = layout.long(call.params, "offset");
        let client = layout.word(call.params, "hClient");
        let handle = layout.word(call.params, "hMemory");
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
    fn semaphore_pool(
        &mut self,
        call: &Call<'_>,
        layout: &Struct<'_>,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let (base, length) = range(call, layout);
        self.create_range(call, layout)?;
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

    fn unmap_external(
        &mut self,
        call: &Call<'_>,
        layout: &Struct<'_>,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let (base, length) = range(call, layout);
        if length == 0 || !self.range_around(call, base, length) {
            return Err(Status::INVALID_ADDRESS);
        }
        let gpu = self.gpu_of(call, layout).unwrap_or(0);
        self.drop_maps(call, base, length);
        self.record_mapping(call, Kind::Unmap, gpu, (base, length), false);
        *answer = Answer::at(call.now).order(Order::Unmap, base, length, 0);
        Ok(())
    }

    fn free_range(
        &mut self,
        call: &Call<'_>,
        layout: &Struct<'_>,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let base = layout.long(call.params, "base");
        let space = self.space(call).ok_or(Status::INVALID_STATE)?;
        let length = space.ranges.remove(&base).ok_or(Status::INVALID_ADDRESS)?;
        if self.drop_maps(call, base, length) {
            self.record_mapping(call, Kind::Unmap, 0, (base, length), true);
        }
        *answer = Answer::at(call.now).order(Order::Unmap, base, length, 0);
        Ok(())
    }
}

/// The addresses that the parameters name: first and number of bytes.
fn range(call: &Call<'_>, layout: &Struct<'_>) -> (u64, u64) {
    let long = |field| layout.long(call.params, field);
    (long("base"), long("length"))
}
