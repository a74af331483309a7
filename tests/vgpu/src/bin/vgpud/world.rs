//! All that the device process knows: open files, RM clients and their objects, channels, memory.
//!
//! One mutex guards the whole of it; the thread that serves calls and the one that serves doorbells
//! take turns. Time enters only through the arguments named `now`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_abi::rm;
use tidegate_device::{ChannelId, Config, Gpu, Locks, TsgId};
use tidegate_vgpu::facts::{Driver, Status};
use tidegate_vgpu::history::{Kind, Record, Writer};
use tidegate_vgpu::ring::{ENTRIES, Entry, Op, USERMODE_BYTES};
use tidegate_vgpu::wire::Node;

use crate::call::{Call, FileId};
use crate::knobs::{Knobs, fails, memory_cost};
use crate::memory::{Memory, MemoryId};
use crate::sys::{Mapping, Memfd};

/// Memory that the next `mmap` of a file maps.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A range that UVM maps to memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExternalMap {
    pub(crate) bytes: u64,
    pub(crate) memory: MemoryId,
}

/// What an open file of `/dev/nvidia-uvm` holds: an address space as the GPUs see it.
#[derive(Debug, Default)]
pub(crate) struct UvmSpace {
    pub(crate) initialized: bool,
    pub(crate) gpus: BTreeSet<usize>,
    pub(crate) vaspaces: BTreeSet<(u32, u32)>,
    pub(crate) ranges: BTreeMap<u64, u64>,
    pub(crate) maps: BTreeMap<u64, ExternalMap>,
}

#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: Node,
    pub(crate) pid: u32,
    pub(crate) inode: Option<u64>,
    /// The control file that `NV_ESC_REGISTER_FD` tied it to.
    pub(crate) ctl: Option<FileId>,
    pub(crate) announced: Option<Announced>,
    pub(crate) uvm: UvmSpace,
}

/// What an object is beyond its class.
#[derive(Debug)]
pub(crate) enum Body {
    Root,
    Device {
        gpu: usize,
    },
    Subdevice {
        gpu: usize,
    },
    Vaspace {
        external: bool,
    },
    Tsg {
        gpu: usize,
        id: TsgId,
        engine: u32,
        vaspace: Option<u32>,
    },
    Channel {
        key: u64,
    },
    Usermode,
    Confidential,
    Memory {
        id: MemoryId,
    },
    Plain,
}

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) class: u32,
    pub(crate) parent: u32,
    pub(crate) children: BTreeSet<u32>,
    /// Objects that go when this one goes, though they are no children of it.
    pub(crate) dependants: BTreeSet<u32>,
    pub(crate) body: Body,
}

/// A root client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) file: FileId,
    pub(crate) pid: u32,
    pub(crate) objects: BTreeMap<u32, Object>,
}

/// A channel: its place in the model, its ring, and what is between the two.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) gpu: usize,
    pub(crate) id: ChannelId,
    pub(crate) tsg: TsgId,
    /// Whether the TSG was made for this channel alone and goes with it.
    pub(crate) own_tsg: bool,
    pub(crate) client: u32,
    pub(crate) handle: u32,
    pub(crate) tsg_handle: u32,
    pub(crate) pid: u32,
    pub(crate) ring: Memfd,
    pub(crate) map: Mapping,
    pub(crate) pool: Option<Mapping>,
    /// Entries taken from the ring.
    pub(crate) fed: u64,
    /// Those of them that have not finished.
    pub(crate) entries: VecDeque<Entry>,
    /// Waits among them.
    pub(crate) waits: usize,
    /// The large transfer at the head of `entries` whose time has passed, and the bytes of it that
    /// have been moved.
    pub(crate) moving: Option<u64>,
    /// Steps that the `tg_steps` kernel at the head has counted.
    pub(crate) stepped: u64,
    pub(crate) external_vaspace: bool,
    /// The UVM file it was registered with.
    pub(crate) registered: Option<FileId>,
    pub(crate) dead: bool,
    /// Kernels that it was given and that never ended.
    pub(crate) lost: u64,
}

impl Channel {
    /// Nothing of it runs any more, and what it was given is thrown away, also what still lies in its ring.
    pub(crate) fn die(&mut self) {
        if let Some(ring) = self.ring() {
            // The ring is the client's: it may say anything of what it put there.
            let put = ring.put.load(Ordering::Acquire);
            let put = put.min(self.fed.saturating_add(ENTRIES as u64));
            while self.fed < put {
                let entry = self.entry(self.fed);
                self.lost += u64::from(entry.is_some_and(|entry| entry.op == Op::Kernel as u32));
                self.fed += 1;
            }
        }
        self.lose(0);
        self.dead = true;
        self.waits = 0;
    }

    /// Throws away what it was given after the first `kept` entries.
    pub(crate) fn lose(&mut self, kept: usize) {
        let kernels = self.entries.iter().skip(kept);
        let kernels = kernels.filter(|entry| entry.op == Op::Kernel as u32);
        self.lost += kernels.count() as u64;
        self.entries.truncate(kept);
    }
}

/// Whose TSG a turn was, for the history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TsgOwner {
    pub(crate) pid: u32,
    pub(crate) client: u32,
    pub(crate) handle: u32,
}

/// A disable or enable that is under way, for the history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) caller: u32,
    pub(crate) entry_ns: u64,
    pub(crate) read_ns: u64,
    /// Model events that will still name it.
    pub(crate) left: usize,
}

#[derive(Debug)]
pub(crate) struct GpuSide {
    pub(crate) model: Gpu,
    pub(crate) uuid: [u8; 16],
    pub(crate) id: u32,
    /// Open files of its node plus explicit attaches: the driver initialises a GPU at the first.
    pub(crate) attached: u32,
}

/// What is fixed at start.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) gpus: usize,
    /// What is played: sizes, layouts, privileges, locks.
    pub(crate) driver: &'static Driver<'static>,
    pub(crate) memory_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) knobs: Knobs,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) knobs: Knobs,
    pub(crate) gpus: Vec<GpuSide>,
    pub(crate) locks: Locks,
    pub(crate) files: HashMap<FileId, OpenFile>,
    pub(crate) by_inode: HashMap<u64, FileId>,
    next_file: FileId,
    pub(crate) clients: BTreeMap<u32, Client>,
    pub(crate) next_client: u32,
    pub(crate) next_auto: u32,
    pub(crate) channels: BTreeMap<u64, Channel>,
    pub(crate) next_channel: u64,
    /// Channels with entries that are not finished, and some that had: who else has nothing to do.
    pub(crate) busy: BTreeSet<u64>,
    /// Where clients ring, and the last ring after which their rings were read.
    pub(crate) doorbell: Mapping,
    pub(crate) heard: Option<u32>,
    pub(crate) by_model: HashMap<(usize, ChannelId), u64>,
    pub(crate) tsgs: HashMap<(usize, TsgId), TsgOwner>,
    pub(crate) tickets: HashMap<u64, Ticket>,
    pub(crate) next_ticket: u64,
    pub(crate) memory: Memory,
    /// When the last call about device memory is over: they are carried out one after another.
    pub(crate) memory_busy: u64,
    pub(crate) usermode: Memfd,
    pub(crate) history: Writer,
    pub(crate) rng: tidegate_device::Rng,
    /// When the engine thread looks again by itself.
    pub(crate) engine_until: Option<u64>,
    /// Controls whose one answer for the whole system the driver has cached, by name.
    pub(crate) cached: BTreeSet<&'static str>,
}

impl World {
    pub(crate) fn new(setup: Setup, dir: &Path) -> io::Result<Self> {
        let gpus = (0..setup.gpus)
            .map(|index| {
                let config = Config {
                    timeslice_ns: setup.knobs.timeslice_ns,
                    switch_ns: setup.knobs.switch_ns,
                    disable: setup.knobs.disable,
                    counting: setup.knobs.counting,
                    eviction: setup.knobs.eviction,
                    seed: setup.seed.wrapping_add(index as u64),
                };
                let mut uuid = *b"tidegate-vgpu-00";
                uuid[14] += (index / 10) as u8;
                uuid[15] += (index % 10) as u8;
                GpuSide {
                    model: Gpu::new(config),
                    uuid,
                    id: (index as u32 + 1) << 8,
                    attached: 0,
                }
            })
            .collect();
        let usermode = Memfd::new(c"vgpu-usermode", USERMODE_BYTES as u64)?;
        Ok(Self {
            knobs: setup.knobs.clone(),
            gpus,
            locks: Locks::new(setup.gpus),
            files: HashMap::new(),
            by_inode: HashMap::new(),
            next_file: 1,
            clients: BTreeMap::new(),
            next_client: rm::CLIENT_HANDLE_BASE,
            next_auto: 0xcaf0_0000,
            channels: BTreeMap::new(),
            next_channel: 1,
            busy: BTreeSet::new(),
            doorbell: usermode.map()?,
            heard: None,
            by_model: HashMap::new(),
            tsgs: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 1,
            memory: Memory::new(setup.gpus, setup.memory_bytes)?,
            memory_busy: 0,
            usermode,
            history: Writer::create(dir)?,
            rng: tidegate_device::Rng::new(setup.seed ^ 0x6b6e_6f62),
            engine_until: None,
            cached: BTreeSet::new(),
            setup,
        })
    }

    /// Takes the knobs to the models.
    pub(crate) fn apply_knobs(&mut self) {
        for gpu in &mut self.gpus {
            let config = gpu.model.config_mut();
            config.timeslice_ns = self.knobs.timeslice_ns;
            config.switch_ns = self.knobs.switch_ns;
            config.disable = self.knobs.disable;
            config.counting = self.knobs.counting;
            config.eviction = self.knobs.eviction;
        }
    }

    /// The minor number of the GPU with a device instance. The instances run against the minors,
    /// because nothing says that they agree and code that takes one for the other must fail here.
    pub(crate) fn gpu_of_instance(&self, instance: u32) -> Option<usize> {
        self.gpus.len().checked_sub(1 + instance as usize)
    }

    /// The inverse of [`World::gpu_of_instance`].
    pub(crate) fn instance_of_gpu(&self, gpu: usize) -> u32 {
        (self.gpus.len() - 1 - gpu) as u32
    }

    pub(crate) fn gpu_of_uuid(&self, uuid: [u8; 16]) -> Option<usize> {
        self.gpus.iter().position(|gpu| gpu.uuid == uuid)
    }

    pub(crate) fn open(&mut self, node: Node, pid: u32) -> FileId {
        let id = self.next_file;
        self.next_file += 1;
        if let Node::Gpu(minor) = node
            && let Some(gpu) = self.gpus.get_mut(usize::from(minor))
        {
            gpu.attached += 1;
        }
        let file = OpenFile {
            node,
            pid,
            inode: None,
            ctl: None,
            announced: None,
            uvm: UvmSpace::default(),
        };
        self.files.insert(id, file);
        id
    }

    /// The last close of an open file: what was made through it goes.
    pub(crate) fn close(&mut self, now: u64, id: FileId) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        if let Some(inode) = file.inode {
            self.by_inode.remove(&inode);
        }
        match file.node {
            Node::Gpu(minor) => {
                if let Some(gpu) = self.gpus.get_mut(usize::from(minor)) {
                    gpu.attached = gpu.attached.saturating_sub(1);
                }
            }
            Node::Uvm => self.close_uvm(now, id, &file),
            Node::Ctl => {
                let clients: Vec<u32> = self
                    .clients
                    .iter()
                    .filter_map(|(handle, client)| (client.file == id).then_some(*handle))
                    .collect();
                for client in clients {
                    self.free_client(now, client, true);
                }
            }
        }
    }

    fn close_uvm(&mut self, now: u64, id: FileId, file: &OpenFile) {
        let channels: Vec<u64> = self
            .channels
            .iter()
            .filter_map(|(key, channel)| (channel.registered == Some(id)).then_some(*key))
            .collect();
        for key in channels {
            self.stop_channel(now, key);
            if let Some(channel) = self.channels.get_mut(&key) {
                channel.registered = None;
            }
        }
        for map in file.uvm.maps.values() {
            self.memory.release(map.memory);
        }
        self.record_freed(now);
    }

    /// UVM's stop of a channel when its process dies: the driver waits for the channel to idle, and
    /// one that is disabled with work queued never does.
    fn stop_channel(&mut self, now: u64, key: u64) {
        let Some(channel) = self.channels.get(&key) else {
            return;
        };
        if channel.registered.is_none() || channel.dead {
            return;
        }
        let model = &mut self.gpus[channel.gpu].model;
        let gated = model.is_off(channel.id) && !channel.entries.is_empty();
        if gated && self.knobs.stop_wait_ns > 0 {
            let needs = tidegate_device::Needs::stop_channel();
            self.locks.reserve(now, needs, self.knobs.stop_wait_ns);
        }
        model.fail(channel.id);
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.die();
        }
    }

    /// The file whose identity calls on `file` have: the control file it is registered with.
    pub(crate) fn identity(&self, file: FileId) -> FileId {
        self.files.get(&file).and_then(|f| f.ctl).unwrap_or(file)
    }

    /// The driver's strict check: the client was made on the open file of the call.
    pub(crate) fn check_client(&self, file: FileId, client: u32) -> Result<&Client, Status> {
        self.clients
            .get(&client)
            .filter(|c| c.file == self.identity(file))
            .ok_or(Status::INVALID_CLIENT)
    }

    pub(crate) fn object(&self, client: u32, handle: u32) -> Option<&Object> {
        self.clients.get(&client)?.objects.get(&handle)
    }

    pub(crate) fn channel_key(&self, client: u32, handle: u32) -> Option<u64> {
        match self.object(client, handle)?.body {
            Body::Channel { key } => Some(key),
            _ => None,
        }
    }

    /// The GPU above an object.
    pub(crate) fn gpu_above(&self, client: u32, handle: u32) -> Option<usize> {
        let object = self.object(client, handle)?;
        match object.body {
            Body::Device { gpu } | Body::Subdevice { gpu } | Body::Tsg { gpu, .. } => Some(gpu),
            Body::Root => None,
            _ => self.gpu_above(client, object.parent),
        }
    }

    /// Adds an object under `parent`, which exists. It goes with each of `depends_on`.
    pub(crate) fn insert_object(
        &mut self,
        client: u32,
        handle: u32,
        parent: u32,
        class: u32,
        body: Body,
        depends_on: &[u32],
    ) {
        let Some(client) = self.clients.get_mut(&client) else {
            return;
        };
        if let Some(parent) = client.objects.get_mut(&parent) {
            parent.children.insert(handle);
        }
        for other in depends_on {
            if let Some(other) = client.objects.get_mut(other) {
                other.dependants.insert(handle);
            }
        }
        let object = Object {
            class,
            parent,
            children: BTreeSet::new(),
            dependants: BTreeSet::new(),
            body,
        };
        client.objects.insert(handle, object);
    }

    /// Frees a client with all it has. `dying`: its file was closed under it.
    pub(crate) fn free_client(&mut self, now: u64, handle: u32, dying: bool) {
        self.free_object(now, handle, handle, dying);
        if let Some(client) = self.clients.remove(&handle) {
            let mut record = Record::new(now, Kind::ClientDown);
            (record.pid, record.client) = (client.pid, handle);
            self.history.push(record);
        }
        self.locks.forget_client(handle);
    }

    /// Frees an object, what is under it and what depends on it, those first.
    pub(crate) fn free_object(&mut self, now: u64, client: u32, handle: u32, dying: bool) {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        if let Some(client) = self.clients.get(&client) {
            collect(&client.objects, handle, &mut seen, &mut order);
        }
        for handle in order {
            let Some(objects) = self.clients.get_mut(&client).map(|c| &mut c.objects) else {
                return;
            };
            let Some(object) = objects.remove(&handle) else {
                continue;
            };
            if let Some(parent) = objects.get_mut(&object.parent) {
                parent.children.remove(&handle);
            }
            match object.body {
                Body::Channel { key } => self.free_channel(now, key, dying),
                Body::Tsg { gpu, id, .. } => {
                    self.gpus[gpu].model.remove_tsg(id);
                }
                Body::Memory { id } => {
                    let device = self.memory.get(id).filter(|memory| memory.gpu.is_some());
                    if let Some(bytes) = device.map(|memory| memory.bytes) {
                        self.memory_call(now, self.knobs.release_ns, bytes);
                    }
                    self.memory.release(id);
                }
                _ => {}
            }
        }
        self.record_freed(now);
    }

    fn free_channel(&mut self, now: u64, key: u64, dying: bool) {
        if dying {
            self.stop_channel(now, key);
        }
        let Some(mut channel) = self.channels.remove(&key) else {
            return;
        };
        channel.die();
        self.by_model.remove(&(channel.gpu, channel.id));
        let model = &mut self.gpus[channel.gpu].model;
        model.remove_channel(channel.id);
        if channel.own_tsg {
            model.remove_tsg(channel.tsg);
        }
        let mut record = channel_record(now, Kind::ChannelDown, &channel);
        record.value = channel.lost;
        self.history.push(record);
    }

    /// When a call about `bytes` of device memory is answered that takes `first_ns` for 2 MiB.
    pub(crate) fn memory_call(&mut self, now: u64, first_ns: u64, bytes: u64) -> u64 {
        let cost = memory_cost(first_ns, bytes);
        if cost == 0 {
            return now;
        }
        self.memory_busy = self.memory_busy.max(now) + cost;
        self.memory_busy
    }

    /// Allocates device memory for the caller.
    pub(crate) fn allocate_device(
        &mut self,
        call: &Call<'_>,
        gpu: usize,
        bytes: u64,
    ) -> Result<MemoryId, Status> {
        if fails(&mut self.knobs.fail_create) {
            return Err(Status::NO_MEMORY);
        }
        self.memory.poison = self.knobs.poison;
        let id = self.memory.allocate_device(gpu, bytes, call.caller);
        let id = id.ok_or(Status::NO_MEMORY)?;
        self.memory_call(call.now, self.knobs.create_ns, bytes);
        self.history.push(Record {
            gpu: gpu as u32,
            pid: call.caller,
            caller: call.caller,
            value: id.0,
            tag: bytes,
            ..Record::new(call.now, Kind::MemoryUp)
        });
        Ok(id)
    }

    /// Records what was freed since the last time.
    pub(crate) fn record_freed(&mut self, now: u64) {
        for freed in self.memory.freed.drain(..) {
            self.history.push(Record {
                gpu: freed.gpu as u32,
                pid: freed.pid,
                value: freed.number,
                tag: freed.bytes,
                ..Record::new(now, Kind::MemoryDown)
            });
        }
    }

    /// A handle nobody uses yet in `client`.
    pub(crate) fn fresh_handle(&mut self, client: u32) -> u32 {
        loop {
            let handle = self.next_auto;
            self.next_auto = self.next_auto.wrapping_add(1);
            if self.object(client, handle).is_none() {
                return handle;
            }
        }
    }
}

/// A record about a channel.
pub(crate) fn channel_record(at_ns: u64, kind: Kind, channel: &Channel) -> Record {
    Record {
        gpu: channel.gpu as u32,
        pid: channel.pid,
        client: channel.client,
        object: channel.handle,
        ..Record::new(at_ns, kind)
    }
}

fn collect(
    objects: &BTreeMap<u32, Object>,
    handle: u32,
    seen: &mut BTreeSet<u32>,
    order: &mut Vec<u32>,
) {
    let Some(object) = objects.get(&handle) else {
        return;
    };
    if !seen.insert(handle) {
        return;
    }
    for other in object.dependants.iter().chain(&object.children) {
        collect(objects, *other, seen, order);
    }
    order.push(handle);
}
