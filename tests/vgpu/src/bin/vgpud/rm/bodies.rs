//! What an object is made of, class by class.

use std::mem::size_of;

use tidegate_abi::class::{self, engine_of_class, engine_of_type, is_gpfifo};
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::history::Kind;
use tidegate_vgpu::ring::{RING_BYTES, SEMAPHORES, Semaphore};

use super::Wanted;
use crate::call::Call;
use crate::sys::Memfd;
use crate::world::{Body, Channel, TsgOwner, World, channel_record};

impl World {
    pub(super) fn make_body(
        &mut self,
        call: &mut Call<'_>,
        wanted: &Wanted,
        params: &str,
        depends_on: &mut Vec<u32>,
    ) -> Result<Body, Status> {
        let (root, parent) = (wanted.root, wanted.parent);
        let gpu_above = self.gpu_above(root, parent);
        let gpu = || gpu_above.ok_or(Status::INVALID_OBJECT_PARENT);
        self.knobs.is_there(gpu_above)?;
        let bad = Status::INVALID_ARGUMENT;
        // Parameters that were left out read as 0.
        let driver = self.setup.driver;
        let word = |call: &Call<'_>, field| driver.layout(params).word(call.nested, field);
        match wanted.class {
            class::NV01_DEVICE_0 => {
                let gpu = self
                    .gpu_of_instance(word(call, "deviceId"))
                    .ok_or(Status::INVALID_DEVICE)?;
                if self.gpus[gpu].attached == 0 {
                    return Err(Status::INVALID_DEVICE);
                }
                self.knobs.is_there(Some(gpu))?;
                Ok(Body::Device { gpu })
            }
            class::NV_CONFIDENTIAL_COMPUTE => Ok(Body::Confidential),
            class::NV20_SUBDEVICE_0 => {
                if word(call, "subDeviceId") != 0 {
                    return Err(bad);
                }
                Ok(Body::Subdevice { gpu: gpu()? })
            }
            class::FERMI_VASPACE_A => {
                let external = self.number("NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED");
                Ok(Body::Vaspace {
                    external: word(call, "flags") & external != 0,
                })
            }
            class::KEPLER_CHANNEL_GROUP_A => {
                let engine = word(call, "engineType").max(class::ENGINE_TYPE_GR0);
                if engine_of_type(engine) == class::Engine::Unknown {
                    return Err(bad);
                }
                let vaspace = self.vaspace(root, word(call, "hVASpace"))?;
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
                depends_on.extend(self.vaspace(root, word(call, "hVASpace"))?);
                Ok(Body::Plain)
            }
            class::NV01_MEMORY_LOCAL_USER | class::NV01_MEMORY_SYSTEM => {
                let layout = driver.layout(params);
                let size = layout.long(call.nested, "size");
                if size == 0 {
                    return Err(bad);
                }
                let id = if wanted.class == class::NV01_MEMORY_LOCAL_USER {
                    self.allocate_device(call, gpu()?, size)?
                } else {
                    self.memory
                        .allocate_system(size)
                        .map_err(|_| Status::NO_MEMORY)?
                };
                if let Some(allocation) = self.memory.get(id) {
                    layout.put_long(call.nested, "size", allocation.bytes);
                    layout.put_long(call.nested, "offset", allocation.offset);
                    layout.put_long(call.nested, "limit", allocation.bytes - 1);
                }
                Ok(Body::Memory { id })
            }
            class::HOPPER_USERMODE_A => Ok(Body::Usermode),
            class::HOPPER_CHANNEL_GPFIFO_A => {
                self.make_channel(call, wanted, params, gpu()?, depends_on)
            }
            class::HOPPER_COMPUTE_A
            | class::HOPPER_DMA_COPY_A
            | class::NV50_MEMORY_VIRTUAL
            | class::GT200_DEBUGGER => Ok(Body::Plain),
            // Classes of the driver that this GPU does not have.
            other if is_gpfifo(other) || engine_of_class(other).is_some() => {
                Err(Status::INVALID_CLASS)
            }
            _ => Err(Status::NOT_SUPPORTED),
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
        params: &str,
        gpu: usize,
        depends_on: &mut Vec<u32>,
    ) -> Result<Body, Status> {
        let (root, parent) = (wanted.root, wanted.parent);
        let layout = self.layout(params);
        let word = |field| layout.word(call.nested, field);
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
            _ => self.vaspace(root, word("hVASpace"))?,
        };
        depends_on.extend(vaspace);
        let share = word("hContextShare");
        if share != 0 {
            self.object(root, share)
                .ok_or(Status::INVALID_OBJECT_HANDLE)?;
            depends_on.push(share);
        }
        let external_vaspace = vaspace
            .and_then(|handle| self.object(root, handle))
            .is_some_and(|object| matches!(object.body, Body::Vaspace { external: true }));
        let pool = match word("hObjectBuffer") {
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
                let engine = word("engineType").max(class::ENGINE_TYPE_GR0);
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
            lost: 0,
        };
        self.by_model.insert((gpu, id), key);
        let mut record = channel_record(call.now, Kind::ChannelUp, &channel);
        (record.caller, record.value) = (call.caller, u64::from(engine));
        record.tag = u64::from(channel.tsg_handle);
        self.history.push(record);
        self.channels.insert(key, channel);
        Ok(Body::Channel { key })
    }
}
