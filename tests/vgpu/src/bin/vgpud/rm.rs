//! The resource manager's escapes: allocation, free, duplication, mapping, and what a process asks
//! of the driver before it has a client.
//!
//! `ioctl` itself fails only for a wrong size, a wrong descriptor or a request of another device;
//! everything else is a status in the parameters.

use std::mem::size_of;

use tidegate_abi::class::{self, engine_of_class, engine_of_type, is_gpfifo};
use tidegate_abi::rm::{self, Status};
use tidegate_device::Needs;
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::ring::{RING_BYTES, SEMAPHORES, Semaphore};
use tidegate_vgpu::wire::{self, Node};

use crate::call::{Answer, Call, get, put, put_word, word};
use crate::sys::Memfd;
use crate::world::{Announced, Body, Channel, Client, TsgOwner, World, channel_record};

/// What an allocation takes, from either of its two layouts.
struct Wanted {
    root: u32,
    parent: u32,
    handle: u32,
    class: u32,
    /// 0: the caller left it to the class.
    size: u32,
}

impl World {
    /// An ioctl on a control or GPU file.
    pub(crate) fn rm_ioctl(&mut self, call: &mut Call<'_>, node: Node) -> Answer {
        let now = call.now;
        let Some(escape) = rm::escape_of(call.request) else {
            return Answer::errno(now, libc::EINVAL);
        };
        let on_gpu = matches!(escape, rm::NV_ESC_REGISTER_FD | rm::NV_ESC_NUMA_INFO);
        let anywhere = matches!(
            escape,
            rm::NV_ESC_CHECK_VERSION_STR | rm::NV_ESC_SYS_PARAMS | rm::NV_ESC_WAIT_OPEN_COMPLETE
        );
        if !anywhere && on_gpu == (node == Node::Ctl) {
            return Answer::errno(now, libc::EINVAL);
        }
        let size = call.params.len();
        let expected = match escape {
            rm::NV_ESC_RM_FREE => size_of::<rm::Nvos00>(),
            rm::NV_ESC_RM_CONTROL => size_of::<rm::Nvos54>(),
            rm::NV_ESC_RM_ALLOC if size == size_of::<rm::Nvos21>() => size,
            rm::NV_ESC_RM_ALLOC => size_of::<rm::Nvos64>(),
            rm::NV_ESC_RM_DUP_OBJECT => size_of::<rm::Nvos55>(),
            rm::NV_ESC_RM_SHARE => size_of::<rm::Nvos57>(),
            rm::NV_ESC_RM_MAP_MEMORY => size_of::<rm::Nvos33WithFd>(),
            rm::NV_ESC_RM_UNMAP_MEMORY => size_of::<rm::Nvos34>(),
            rm::NV_ESC_REGISTER_FD => size_of::<rm::RegisterFd>(),
            rm::NV_ESC_CHECK_VERSION_STR => size_of::<rm::RmApiVersion>(),
            rm::NV_ESC_SYS_PARAMS => size_of::<rm::SysParams>(),
            rm::NV_ESC_CARD_INFO | rm::NV_ESC_ATTACH_GPUS_TO_FD => size,
            rm::NV_ESC_WAIT_OPEN_COMPLETE => 8,
            _ => return Answer::errno(now, libc::EINVAL),
        };
        if size != expected {
            return Answer::errno(now, libc::EINVAL);
        }
        match escape {
            rm::NV_ESC_RM_ALLOC => self.alloc(call),
            rm::NV_ESC_RM_FREE => self.free(call),
            rm::NV_ESC_RM_CONTROL => self.control(call),
            rm::NV_ESC_RM_DUP_OBJECT => self.dup(call),
            rm::NV_ESC_RM_SHARE => self.share(call),
            rm::NV_ESC_RM_MAP_MEMORY => self.map_memory(call),
            rm::NV_ESC_RM_UNMAP_MEMORY => {
                let found = get::<rm::Nvos34>(call.params).ok_or(Status::INVALID_ARGUMENT);
                let status = found
                    .and_then(|p| self.check_client(call.file, p.h_client).map(|_| Status::OK))
                    .unwrap_or_else(|status| status);
                put_word(call.params, 24, status.0);
                Answer::at(now)
            }
            rm::NV_ESC_REGISTER_FD => self.register_fd(call),
            rm::NV_ESC_CHECK_VERSION_STR => self.check_version(call),
            rm::NV_ESC_SYS_PARAMS => {
                put(
                    call.params,
                    &rm::SysParams {
                        memblock_size: 128 << 20,
                    },
                );
                Answer::at(now)
            }
            rm::NV_ESC_CARD_INFO => self.card_info(call),
            rm::NV_ESC_ATTACH_GPUS_TO_FD => self.attach_to_fd(call),
            _ => {
                put_word(call.params, 0, 0);
                put_word(call.params, 4, 0);
                Answer::at(now)
            }
        }
    }

    /// Records a refusal.
    pub(crate) fn refused(
        &mut self,
        call: &Call<'_>,
        client: u32,
        object: u32,
        tag: u32,
        status: Status,
    ) {
        self.history.push(Record {
            caller: call.caller,
            client,
            object,
            value: u64::from(status.0),
            tag: u64::from(tag),
            ..Record::new(call.now, Kind::Refused)
        });
    }

    /// When a call that needs the API lock for writing is answered.
    pub(crate) fn writer(&mut self, now: u64, client: u32) -> u64 {
        self.locks
            .reserve(now, Needs::writer(client), self.knobs.writer_ns)
            .1
    }

    fn check_version(&self, call: &mut Call<'_>) -> Answer {
        let Some(mut version) = get::<rm::RmApiVersion>(call.params) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        let ours = self.setup.version.as_bytes();
        let theirs = version
            .version
            .split(|b| *b == 0)
            .next()
            .unwrap_or_default();
        let query = version.cmd == u32::from(b'2');
        version.reply = u32::from(query || theirs == ours);
        version.version = [0; 64];
        let length = ours.len().min(63);
        version.version[..length].copy_from_slice(&ours[..length]);
        put(call.params, &version);
        if version.reply == 1 {
            Answer::at(call.now)
        } else {
            Answer::errno(call.now, libc::EINVAL)
        }
    }

    fn card_info(&self, call: &mut Call<'_>) -> Answer {
        const ENTRY: usize = size_of::<rm::CardInfo>();
        if !call.params.len().is_multiple_of(ENTRY) || call.params.len() / ENTRY < self.gpus.len() {
            return Answer::errno(call.now, libc::EINVAL);
        }
        call.params.fill(0);
        for (index, (place, gpu)) in call
            .params
            .chunks_exact_mut(ENTRY)
            .zip(&self.gpus)
            .enumerate()
        {
            let info = rm::CardInfo {
                valid: 1,
                bus: index as u8 + 1,
                vendor: 0x10de,
                device: 0x2330,
                gpu_id: gpu.id,
                fb_size: self.memory.total_bytes(index),
                minor: index as u32,
                ..rm::CardInfo::default()
            };
            put(place, &info);
        }
        Answer::at(call.now)
    }

    fn attach_to_fd(&mut self, call: &mut Call<'_>) -> Answer {
        let known = call
            .params
            .chunks_exact(4)
            .all(|id| self.gpus.iter().any(|gpu| gpu.id == word(id, 0)));
        Answer::errno(call.now, if known { 0 } else { libc::EINVAL })
    }

    fn register_fd(&mut self, call: &mut Call<'_>) -> Answer {
        let is_free_ctl = |file| {
            self.files
                .get(&file)
                .is_some_and(|f| f.node == Node::Ctl && f.ctl.is_none())
        };
        let Some(ctl) = call.named.filter(|file| is_free_ctl(*file)) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        match self.files.get_mut(&call.file) {
            Some(file) if file.ctl.is_none() => {
                file.ctl = Some(ctl);
                Answer::at(call.now)
            }
            _ => Answer::errno(call.now, libc::EINVAL),
        }
    }

    fn alloc(&mut self, call: &mut Call<'_>) -> Answer {
        let large = call.params.len() == size_of::<rm::Nvos64>();
        let wanted = Wanted {
            root: word(call.params, 0),
            parent: word(call.params, 4),
            handle: word(call.params, 8),
            class: word(call.params, 12),
            size: word(call.params, if large { 32 } else { 24 }),
        };
        let (root, class) = (wanted.root, wanted.class);
        let result = self.alloc_object(call, wanted);
        let status = match result {
            Ok(handle) => {
                put_word(call.params, 8, handle);
                Status::OK
            }
            Err(status) => {
                self.refused(call, root, 0, class, status);
                status
            }
        };
        put_word(call.params, if large { 40 } else { 28 }, status.0);
        let due = self.writer(call.now, root);
        if class == class::NV01_MEMORY_LOCAL_USER {
            return Answer::at(due.max(self.memory_busy));
        }
        Answer::at(due)
    }

    fn alloc_object(&mut self, call: &mut Call<'_>, wanted: Wanted) -> Result<u32, Status> {
        let is_root = matches!(
            wanted.class,
            class::NV01_ROOT | class::NV01_ROOT_NON_PRIV | class::NV01_ROOT_CLIENT
        );
        if is_root {
            return self.alloc_root(call, &wanted);
        }
        let (root, parent) = (wanted.root, wanted.parent);
        let client = self.check_client(call.file, root)?;
        if !client.objects.contains_key(&parent) {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        if wanted.handle != 0 && client.objects.contains_key(&wanted.handle) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        self.check_class(&wanted)?;
        if let Some(size) = wire::alloc_size(wanted.class, self.setup.branch) {
            let given = wanted.size as usize;
            let missing = call.nested.len() < size;
            if (given != 0 && given != size) || missing {
                return Err(Status::INVALID_ARGUMENT);
            }
        }
        let handle = if wanted.handle == 0 {
            self.fresh_handle(root)
        } else {
            wanted.handle
        };
        let wanted = Wanted { handle, ..wanted };
        let mut depends_on = Vec::new();
        let body = self.make_body(call, &wanted, &mut depends_on)?;
        let class = wanted.class;
        self.insert_object(root, handle, parent, class, body, &depends_on);
        Ok(handle)
    }

    fn alloc_root(&mut self, call: &Call<'_>, wanted: &Wanted) -> Result<u32, Status> {
        let sizes = [0, 4, self.setup.branch.root_alloc_size() as u32];
        if !sizes.contains(&wanted.size) {
            return Err(Status::INVALID_ARGUMENT);
        }
        if self
            .files
            .get(&call.file)
            .is_none_or(|f| f.node != Node::Ctl)
        {
            return Err(Status::INVALID_ARGUMENT);
        }
        let handle = match wanted.handle {
            0 => {
                if self.knobs.reuse_clients {
                    self.next_client = rm::CLIENT_HANDLE_BASE;
                }
                while self.clients.contains_key(&self.next_client) {
                    self.next_client += 1;
                }
                self.next_client += 1;
                self.next_client - 1
            }
            taken if self.clients.contains_key(&taken) => {
                return Err(Status::INSERT_DUPLICATE_NAME);
            }
            chosen => chosen,
        };
        let pid = self
            .files
            .get(&call.file)
            .map_or(call.caller, |file| file.pid);
        let client = Client {
            file: call.file,
            pid,
            objects: Default::default(),
        };
        self.clients.insert(handle, client);
        self.insert_object(
            handle,
            handle,
            handle,
            class::NV01_ROOT_CLIENT,
            Body::Root,
            &[],
        );
        self.history.push(Record {
            pid,
            client: handle,
            caller: call.caller,
            ..Record::new(call.now, Kind::ClientUp)
        });
        Ok(handle)
    }

    /// Whether the class exists on this GPU, and under this parent.
    fn check_class(&self, wanted: &Wanted) -> Result<(), Status> {
        let parent = self
            .object(wanted.root, wanted.parent)
            .ok_or(Status::INVALID_OBJECT_PARENT)?;
        let fits = match wanted.class {
            class::NV01_DEVICE_0 | class::NV_CONFIDENTIAL_COMPUTE => {
                matches!(parent.body, Body::Root)
            }
            class::NV20_SUBDEVICE_0
            | class::FERMI_VASPACE_A
            | class::KEPLER_CHANNEL_GROUP_A
            | class::NV01_MEMORY_LOCAL_USER
            | class::NV01_MEMORY_SYSTEM
            | class::NV50_MEMORY_VIRTUAL => matches!(parent.body, Body::Device { .. }),
            class::HOPPER_USERMODE_A => matches!(parent.body, Body::Subdevice { .. }),
            class::FERMI_CONTEXT_SHARE_A => matches!(parent.body, Body::Tsg { .. }),
            class::HOPPER_CHANNEL_GPFIFO_A => {
                matches!(parent.body, Body::Tsg { .. } | Body::Device { .. })
            }
            class::HOPPER_COMPUTE_A | class::HOPPER_DMA_COPY_A => {
                matches!(parent.body, Body::Channel { .. })
            }
            class::GT200_DEBUGGER => matches!(parent.body, Body::Device { .. }),
            _ => return Err(Status::INVALID_CLASS),
        };
        if fits {
            Ok(())
        } else {
            Err(Status::INVALID_OBJECT_PARENT)
        }
    }

    fn make_body(
        &mut self,
        call: &mut Call<'_>,
        wanted: &Wanted,
        depends_on: &mut Vec<u32>,
    ) -> Result<Body, Status> {
        let (root, parent) = (wanted.root, wanted.parent);
        let gpu_above = self.gpu_above(root, parent);
        let gpu = || gpu_above.ok_or(Status::INVALID_OBJECT_PARENT);
        let bad = Status::INVALID_ARGUMENT;
        match wanted.class {
            class::NV01_DEVICE_0 => {
                let params = get::<rm::Nv0080Alloc>(call.nested).ok_or(bad)?;
                let gpu = self
                    .gpu_of_instance(params.device_id)
                    .ok_or(Status::INVALID_DEVICE)?;
                if self.gpus[gpu].attached == 0 {
                    return Err(Status::INVALID_DEVICE);
                }
                Ok(Body::Device { gpu })
            }
            class::NV_CONFIDENTIAL_COMPUTE => Ok(Body::Confidential),
            class::NV20_SUBDEVICE_0 => {
                let params = get::<rm::Nv2080Alloc>(call.nested).ok_or(bad)?;
                if params.sub_device_id != 0 {
                    return Err(bad);
                }
                Ok(Body::Subdevice { gpu: gpu()? })
            }
            class::FERMI_VASPACE_A => {
                let params = get::<rm::VaspaceAlloc>(call.nested).ok_or(bad)?;
                Ok(Body::Vaspace {
                    external: params.flags & rm::VASPACE_EXTERNALLY_OWNED != 0,
                })
            }
            class::KEPLER_CHANNEL_GROUP_A => {
                let params = get::<rm::ChannelGroupAlloc>(call.nested).ok_or(bad)?;
                let engine = params.engine_type.max(class::ENGINE_TYPE_GR0);
                if engine_of_type(engine) == class::Engine::Unknown {
                    return Err(bad);
                }
                let vaspace = self.vaspace(root, params.h_va_space)?;
                depends_on.extend(vaspace);
                let gpu = gpu()?;
                let id = self.gpus[gpu].model.add_tsg(engine);
                let pid = self.clients.get(&root).map_or(0, |c| c.pid);
                let owner = TsgOwner {
                    pid,
                    client: root,
                    handle: wanted.handle,
                };
                self.tsgs.insert((gpu, id), owner);
                Ok(Body::Tsg {
                    gpu,
                    id,
                    engine,
                    vaspace,
                })
            }
            class::FERMI_CONTEXT_SHARE_A => {
                let params = get::<rm::CtxShareAlloc>(call.nested).ok_or(bad)?;
                depends_on.extend(self.vaspace(root, params.h_va_space)?);
                Ok(Body::Plain)
            }
            class::NV01_MEMORY_LOCAL_USER | class::NV01_MEMORY_SYSTEM => {
                let mut params = get::<rm::MemoryAlloc>(call.nested).ok_or(bad)?;
                if params.size == 0 {
                    return Err(bad);
                }
                let id = if wanted.class == class::NV01_MEMORY_LOCAL_USER {
                    self.allocate_device(call, gpu()?, params.size)?
                } else {
                    self.memory
                        .allocate_system(params.size)
                        .map_err(|_| Status::NO_MEMORY)?
                };
                if let Some(allocation) = self.memory.get(id) {
                    params.size = allocation.bytes;
                    params.offset = allocation.offset;
                    params.limit = allocation.bytes - 1;
                }
                put(call.nested, &params);
                Ok(Body::Memory { id })
            }
            class::HOPPER_USERMODE_A => Ok(Body::Usermode),
            c if is_gpfifo(c) => self.make_channel(call, wanted, gpu()?, depends_on),
            c if engine_of_class(c).is_some() => Ok(Body::Plain),
            _ => Ok(Body::Plain),
        }
    }

    /// The VA space that parameters name, 0 being none.
    fn vaspace(&self, client: u32, handle: u32) -> Result<Option<u32>, Status> {
        match self.object(client, handle) {
            _ if handle == 0 => Ok(None),
            Some(object) if matches!(object.body, Body::Vaspace { .. }) => Ok(Some(handle)),
            _ => Err(Status::INVALID_OBJECT_HANDLE),
        }
    }

    fn make_channel(
        &mut self,
        call: &Call<'_>,
        wanted: &Wanted,
        gpu: usize,
        depends_on: &mut Vec<u32>,
    ) -> Result<Body, Status> {
        let (root, parent) = (wanted.root, wanted.parent);
        let params = get::<rm::ChannelAlloc>(call.nested).ok_or(Status::INVALID_ARGUMENT)?;
        let in_group = match self.object(root, parent).map(|o| &o.body) {
            Some(Body::Tsg {
                id,
                engine,
                vaspace,
                ..
            }) => Some((*id, *engine, *vaspace)),
            _ => None,
        };
        let vaspace = match in_group {
            Some((.., Some(vaspace))) => Some(vaspace),
            _ => self.vaspace(root, params.h_va_space)?,
        };
        depends_on.extend(vaspace);
        if params.h_context_share != 0 {
            self.object(root, params.h_context_share)
                .ok_or(Status::INVALID_OBJECT_HANDLE)?;
            depends_on.push(params.h_context_share);
        }
        let external_vaspace = vaspace
            .and_then(|handle| self.object(root, handle))
            .is_some_and(|object| matches!(object.body, Body::Vaspace { external: true }));
        let pool = match params.h_object_buffer {
            0 => None,
            handle => {
                let Some(Body::Memory { id }) = self.object(root, handle).map(|o| &o.body) else {
                    return Err(Status::INVALID_OBJECT_HANDLE);
                };
                let pool = self.memory.get(*id).ok_or(Status::INVALID_OBJECT_HANDLE)?;
                let enough = pool.bytes >= (SEMAPHORES * size_of::<Semaphore>()) as u64;
                if pool.gpu.is_some() || !enough {
                    return Err(Status::INVALID_ARGUMENT);
                }
                depends_on.push(handle);
                Some(pool.memfd.map().map_err(|_| Status::NO_MEMORY)?)
            }
        };
        let ring = Memfd::new(c"vgpu-ring", RING_BYTES as u64).map_err(|_| Status::NO_MEMORY)?;
        let map = ring.map().map_err(|_| Status::NO_MEMORY)?;

        let pid = self.clients.get(&root).map_or(0, |c| c.pid);
        let model = &mut self.gpus[gpu].model;
        let (tsg, engine) = match in_group {
            Some((tsg, engine, _)) => (tsg, engine),
            None => {
                let engine = params.engine_type.max(class::ENGINE_TYPE_GR0);
                (model.add_tsg(engine), engine)
            }
        };
        let id = model.add_channel(tsg);
        if in_group.is_none() {
            let owner = TsgOwner {
                pid,
                client: root,
                handle: wanted.handle,
            };
            self.tsgs.insert((gpu, tsg), owner);
        }
        let key = self.next_channel;
        self.next_channel += 1;
        let channel = Channel {
            gpu,
            id,
            tsg,
            own_tsg: in_group.is_none(),
            client: root,
            handle: wanted.handle,
            tsg_handle: if in_group.is_some() {
                parent
            } else {
                wanted.handle
            },
            pid,
            ring,
            map,
            pool,
            fed: 0,
            entries: Default::default(),
            waits: 0,
            moving: None,
            stepped: 0,
            external_vaspace,
            registered: None,
            dead: false,
        };
        self.by_model.insert((gpu, id), key);
        let mut record = channel_record(call.now, Kind::ChannelUp, &channel);
        (record.caller, record.value) = (call.caller, u64::from(engine));
        record.tag = u64::from(channel.tsg_handle);
        self.history.push(record);
        self.channels.insert(key, channel);
        Ok(Body::Channel { key })
    }

    fn free(&mut self, call: &mut Call<'_>) -> Answer {
        let Some(params) = get::<rm::Nvos00>(call.params) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        let (client, handle) = (params.h_root, params.h_object_old);
        let busy = self.memory_busy;
        let found = self.check_client(call.file, client).and_then(|c| {
            let known = c.objects.contains_key(&handle);
            if known {
                Ok(())
            } else {
                Err(Status::INVALID_OBJECT_HANDLE)
            }
        });
        let status = match found {
            Ok(()) if handle == client => {
                self.free_client(call.now, client, false);
                Status::OK
            }
            Ok(()) => {
                self.free_object(call.now, client, handle, false);
                Status::OK
            }
            Err(status) => {
                self.refused(call, client, handle, rm::NV_ESC_RM_FREE, status);
                status
            }
        };
        put_word(call.params, 12, status.0);
        let due = self.writer(call.now, client);
        if self.memory_busy != busy {
            return Answer::at(due.max(self.memory_busy));
        }
        Answer::at(due)
    }

    fn dup(&mut self, call: &mut Call<'_>) -> Answer {
        let Some(params) = get::<rm::Nvos55>(call.params) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        let result = self.dup_object(call, &params);
        let status = match result {
            Ok(handle) => {
                put_word(call.params, 8, handle);
                Status::OK
            }
            Err(status) => {
                let client = params.h_client;
                self.refused(
                    call,
                    client,
                    params.h_object,
                    rm::NV_ESC_RM_DUP_OBJECT,
                    status,
                );
                status
            }
        };
        put_word(call.params, 24, status.0);
        Answer::at(self.writer(call.now, params.h_client))
    }

    /// Memory only, and by the default share policy only inside one process.
    fn dup_object(&mut self, call: &Call<'_>, params: &rm::Nvos55) -> Result<u32, Status> {
        let client = self.check_client(call.file, params.h_client)?;
        let source_client = self
            .clients
            .get(&params.h_client_src)
            .ok_or(Status::INVALID_CLIENT)?;
        if client.pid != source_client.pid {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        if !client.objects.contains_key(&params.h_parent) {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        if params.h_object != 0 && client.objects.contains_key(&params.h_object) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        let source = source_client
            .objects
            .get(&params.h_object_src)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let class = source.class;
        let Body::Memory { id } = source.body else {
            return Err(Status::NOT_SUPPORTED);
        };
        let root = params.h_client;
        let handle = if params.h_object == 0 {
            self.fresh_handle(root)
        } else {
            params.h_object
        };
        self.memory.retain(id);
        self.insert_object(
            root,
            handle,
            params.h_parent,
            class,
            Body::Memory { id },
            &[],
        );
        Ok(handle)
    }

    fn share(&mut self, call: &mut Call<'_>) -> Answer {
        let client = word(call.params, 0);
        let status = match self.check_client(call.file, client) {
            Ok(_) => Status::NOT_SUPPORTED,
            Err(status) => status,
        };
        self.refused(
            call,
            client,
            word(call.params, 4),
            rm::NV_ESC_RM_SHARE,
            status,
        );
        put_word(call.params, 20, status.0);
        Answer::at(call.now)
    }

    fn map_memory(&mut self, call: &mut Call<'_>) -> Answer {
        let Some(params) = get::<rm::Nvos33WithFd>(call.params) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        let status = self.announce(call, &params).err().unwrap_or(Status::OK);
        if !status.is_ok() {
            let (client, object) = (params.h_client, params.h_memory);
            self.refused(call, client, object, rm::NV_ESC_RM_MAP_MEMORY, status);
        }
        put_word(call.params, 40, status.0);
        Answer::at(call.now)
    }

    /// Makes memory of an object what the next `mmap` of the named file maps.
    fn announce(&mut self, call: &Call<'_>, params: &rm::Nvos33WithFd) -> Result<(), Status> {
        let client = self.check_client(call.file, params.h_client)?;
        let object = client
            .objects
            .get(&params.h_memory)
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let (memfd, start, bytes) = match &object.body {
            Body::Usermode => (&self.usermode, 0, self.usermode.bytes),
            Body::Channel { key } => {
                let channel = self
                    .channels
                    .get(key)
                    .ok_or(Status::INVALID_OBJECT_HANDLE)?;
                (&channel.ring, 0, channel.ring.bytes)
            }
            Body::Memory { id } => {
                let memory = self.memory.get(*id).ok_or(Status::INVALID_OBJECT_HANDLE)?;
                (&memory.memfd, memory.offset, memory.bytes)
            }
            _ => return Err(Status::INVALID_OBJECT_HANDLE),
        };
        let end = params
            .offset
            .checked_add(params.length)
            .ok_or(Status::INVALID_ARGUMENT)?;
        if params.length == 0 || end > bytes || !params.offset.is_multiple_of(4096) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let announced = Announced {
            fd: memfd.fd.clone(),
            offset: start + params.offset,
            bytes: params.length,
        };
        let file = call
            .named
            .and_then(|file| self.files.get_mut(&file))
            .filter(|file| file.node != Node::Uvm)
            .ok_or(Status::INVALID_ARGUMENT)?;
        if file.announced.is_some() {
            return Err(Status::STATE_IN_USE);
        }
        file.announced = Some(announced);
        Ok(())
    }

    /// `mmap` of a file: what was announced for it, once.
    pub(crate) fn mmap(&mut self, call: &Call<'_>, length: u64) -> Answer {
        let Some(file) = self.files.get_mut(&call.file) else {
            return Answer::errno(call.now, libc::EINVAL);
        };
        match file.announced.take() {
            Some(announced) if length <= announced.bytes.next_multiple_of(4096) => {
                let mut answer = Answer::at(call.now);
                answer.reply.offset = announced.offset;
                answer.memory = Some(announced.fd);
                answer
            }
            _ => Answer::errno(call.now, libc::EINVAL),
        }
    }
}
