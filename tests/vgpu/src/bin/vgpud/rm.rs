//! The resource manager's escapes: allocation, free, duplication, mapping, and what a process asks
//! of the driver before it has a client.
//!
//! `ioctl` itself fails only for a wrong size, a wrong descriptor or a request of another device;
//! everything else is a status in the parameters. Which escapes, classes and sizes there are, what may
//! hang below what and which locks that takes is what the driver's version says ([`Driver`]).

mod bodies;

use tidegate_abi::class;
use tidegate_abi::rm;
use tidegate_device::{ApiLock, GpuLock, Needs};
use tidegate_vgpu::facts::{Driver, Gpus, Required, Status, Struct};
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::wire::Node;

use crate::call::{Answer, Call, word};
use crate::world::{Announced, Body, Client, World};

/// What an allocation takes, from either of its two layouts.
struct Wanted {
    root: u32,
    parent: u32,
    handle: u32,
    class: u32,
}

/// Bytes that an escape's argument has, one entry for each form; empty: as many as the caller likes.
fn sizes(driver: &Driver<'_>, escape: &str) -> Option<Vec<usize>> {
    let structs: &[&str] = match escape {
        "NV_ESC_RM_FREE" => &["NVOS00_PARAMETERS"],
        "NV_ESC_RM_CONTROL" => &["NVOS54_PARAMETERS"],
        "NV_ESC_RM_ALLOC" => &["NVOS21_PARAMETERS", "NVOS64_PARAMETERS"],
        "NV_ESC_RM_DUP_OBJECT" => &["NVOS55_PARAMETERS"],
        "NV_ESC_RM_SHARE" => &["NVOS57_PARAMETERS"],
        "NV_ESC_RM_MAP_MEMORY" => &["nv_ioctl_nvos33_parameters_with_fd"],
        "NV_ESC_RM_UNMAP_MEMORY" => &["NVOS34_PARAMETERS"],
        "NV_ESC_REGISTER_FD" => &["nv_ioctl_register_fd_t"],
        "NV_ESC_CHECK_VERSION_STR" => &["nv_ioctl_rm_api_version_t"],
        "NV_ESC_SYS_PARAMS" => &["nv_ioctl_sys_params_t"],
        "NV_ESC_CARD_INFO" | "NV_ESC_ATTACH_GPUS_TO_FD" => &[],
        "NV_ESC_WAIT_OPEN_COMPLETE" => &["nv_ioctl_wait_open_complete_t"],
        _ => return None,
    };
    Some(structs.iter().map(|of| driver.layout(of).size).collect())
}

impl World {
    /// A struct of the driver that is played.
    pub(crate) fn layout(&self, of: &str) -> &'static Struct<'static> {
        self.setup.driver.layout(of)
    }

    /// An ioctl on a control or GPU file.
    pub(crate) fn rm_ioctl(&mut self, call: &mut Call<'_>, node: Node) -> Answer {
        let now = call.now;
        let driver = self.setup.driver;
        let escape = rm::escape_of(call.request).and_then(|nr| driver.escapes.get(&nr));
        let Some(escape) = escape.copied() else {
            return Answer::errno(now, libc::EINVAL);
        };
        let on_gpu = matches!(escape, "NV_ESC_REGISTER_FD" | "NV_ESC_NUMA_INFO");
        let anywhere = escape == "NV_ESC_WAIT_OPEN_COMPLETE";
        if !anywhere && on_gpu == (node == Node::Ctl) {
            return Answer::errno(now, libc::EINVAL);
        }
        let fits = sizes(driver, escape)
            .is_some_and(|sizes| sizes.is_empty() || sizes.contains(&call.params.len()));
        if !fits {
            return Answer::errno(now, libc::EINVAL);
        }
        match escape {
            "NV_ESC_RM_ALLOC" => self.alloc(call),
            "NV_ESC_RM_FREE" => self.free(call),
            "NV_ESC_RM_CONTROL" => self.control(call),
            "NV_ESC_RM_DUP_OBJECT" => self.dup(call),
            "NV_ESC_RM_SHARE" => self.share(call),
            "NV_ESC_RM_MAP_MEMORY" => self.map_memory(call),
            "NV_ESC_RM_UNMAP_MEMORY" => {
                let layout = self.layout("NVOS34_PARAMETERS");
                let client = layout.word(call.params, "hClient");
                let found = self.check_client(call.file, client);
                let status = found.map_or_else(|status| status, |_| Status::OK);
                layout.put_word(call.params, "status", status.0);
                Answer::at(now)
            }
            "NV_ESC_REGISTER_FD" => self.register_fd(call),
            "NV_ESC_CHECK_VERSION_STR" => self.check_version(call),
            "NV_ESC_SYS_PARAMS" => {
                let layout = self.layout("nv_ioctl_sys_params_t");
                layout.put_long(call.params, "memblock_size", 128 << 20);
                Answer::at(now)
            }
            "NV_ESC_CARD_INFO" => self.card_info(call),
            "NV_ESC_ATTACH_GPUS_TO_FD" => self.attach_to_fd(call),
            _ => {
                let layout = self.layout("nv_ioctl_wait_open_complete_t");
                layout.put_word(call.params, "rc", 0);
                layout.put_word(call.params, "adapterStatus", 0);
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

    /// The locks of a call of `client`, which `gpus` names for the GPU above `object`.
    pub(crate) fn needs(&self, client: u32, object: u32, api: ApiLock, gpus: Gpus) -> Needs {
        Needs {
            api,
            client: Some(client),
            gpus: match (gpus, self.gpu_above(client, object)) {
                (Gpus::All, _) => GpuLock::All,
                (Gpus::One, Some(gpu)) => GpuLock::One(gpu),
                _ => GpuLock::None,
            },
        }
    }

    /// When a call that needs the API lock for writing is answered, and those of some GPUs.
    fn writer(&mut self, now: u64, client: u32, object: u32, gpus: Gpus) -> u64 {
        let needs = self.needs(client, object, ApiLock::Write, gpus);
        self.locks.reserve(now, needs, self.knobs.writer_ns).1
    }

    fn check_version(&self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("nv_ioctl_rm_api_version_t");
        let text = layout.at("versionString");
        let told = self.knobs.version(call.caller);
        let ours = told.unwrap_or(&self.setup.driver.version).as_bytes();
        let theirs = call.params[text..].split(|b| *b == 0).next();
        let query = layout.word(call.params, "cmd") == self.number("NV_RM_API_VERSION_CMD_QUERY");
        let recognized = query || theirs == Some(ours);
        let reply = if recognized {
            self.number("NV_RM_API_VERSION_REPLY_RECOGNIZED")
        } else {
            0
        };
        layout.put_word(call.params, "reply", reply);
        call.params[text..].fill(0);
        layout.put(call.params, "versionString", ours);
        if recognized {
            Answer::at(call.now)
        } else {
            Answer::errno(call.now, libc::EINVAL)
        }
    }

    /// A constant of the driver's headers.
    pub(crate) fn number(&self, name: &str) -> u32 {
        match self.setup.driver.consts.get(name) {
            Some(value) => *value as u32,
            None => panic!("{} has no {name}", self.setup.driver.tag),
        }
    }

    fn card_info(&self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("nv_ioctl_card_info_t");
        let places = call.params.len() / layout.size;
        if !call.params.len().is_multiple_of(layout.size) || places < self.gpus.len() {
            return Answer::errno(call.now, libc::EINVAL);
        }
        call.params.fill(0);
        for (index, (place, gpu)) in call
            .params
            .chunks_exact_mut(layout.size)
            .zip(&self.gpus)
            .enumerate()
        {
            layout.put(place, "valid", &[1]);
            layout.put(place, "pci_info.bus", &[index as u8 + 1]);
            layout.put(place, "pci_info.vendor_id", &0x10de_u16.to_ne_bytes());
            layout.put(place, "pci_info.device_id", &0x2330_u16.to_ne_bytes());
            layout.put_word(place, "gpu_id", gpu.id);
            layout.put_long(place, "fb_size", self.memory.total_bytes(index));
            layout.put_word(place, "minor_number", index as u32);
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
        let forms = ["NVOS21_PARAMETERS", "NVOS64_PARAMETERS"].map(|of| self.layout(of));
        let layout = forms[usize::from(call.params.len() == forms[1].size)];
        let word = |field| layout.word(call.params, field);
        let wanted = Wanted {
            root: word("hRoot"),
            parent: word("hObjectParent"),
            handle: word("hObjectNew"),
            class: word("hClass"),
        };
        let (root, parent, class) = (wanted.root, wanted.parent, wanted.class);
        let result = self.alloc_object(call, wanted);
        let status = match result {
            Ok(handle) => {
                layout.put_word(call.params, "hObjectNew", handle);
                Status::OK
            }
            Err(status) => {
                self.refused(call, root, 0, class, status);
                status
            }
        };
        layout.put_word(call.params, "status", status.0);
        let known = self.setup.driver.classes.get(&class);
        let gpus = known.map_or(Gpus::None, |class| class.alloc_gpus);
        let due = self.writer(call.now, root, parent, gpus);
        if class == class::NV01_MEMORY_LOCAL_USER {
            return Answer::at(due.max(self.memory_busy));
        }
        Answer::at(due)
    }

    fn alloc_object(&mut self, call: &mut Call<'_>, wanted: Wanted) -> Result<u32, Status> {
        let driver = self.setup.driver;
        let known = driver
            .classes
            .get(&wanted.class)
            .ok_or(Status::INVALID_CLASS)?;
        if known.fits_below("RS_ROOT_OBJECT") {
            return self.alloc_root(call, &wanted);
        }
        let (root, parent) = (wanted.root, wanted.parent);
        let client = self.check_client(call.file, root)?;
        let above = client.objects.get(&parent);
        let above = above.ok_or(Status::OBJECT_NOT_FOUND)?.class;
        if wanted.handle != 0 && client.objects.contains_key(&wanted.handle) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        let fits = driver
            .classes
            .get(&above)
            .is_some_and(|above| known.fits_below(above.internal));
        if !fits {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        // The size that the caller states is not looked at.
        let missing = known.size > 0 && call.nested.len() < known.size;
        if missing && (known.required == Required::Required || !call.nested.is_empty()) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let handle = if wanted.handle == 0 {
            self.fresh_handle(root)
        } else {
            wanted.handle
        };
        let wanted = Wanted { handle, ..wanted };
        let mut depends_on = Vec::new();
        let body = self.make_body(call, &wanted, known.params, &mut depends_on)?;
        let class = wanted.class;
        self.insert_object(root, handle, parent, class, body, &depends_on);
        Ok(handle)
    }

    fn alloc_root(&mut self, call: &Call<'_>, wanted: &Wanted) -> Result<u32, Status> {
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

    fn free(&mut self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("NVOS00_PARAMETERS");
        let client = layout.word(call.params, "hRoot");
        let handle = layout.word(call.params, "hObjectOld");
        let busy = self.memory_busy;
        let found = self.check_client(call.file, client);
        // A handle that names nothing is as good as freed.
        let class = found.map(|found| found.objects.get(&handle).map(|object| object.class));
        let gpus = match class {
            Ok(Some(class)) => self.setup.driver.classes.get(&class),
            _ => None,
        };
        let gpus = gpus.map_or(Gpus::None, |class| class.free_gpus);
        let needs = self.needs(client, handle, ApiLock::Write, gpus);
        let status = match class {
            Ok(_) if handle == client => {
                self.free_client(call.now, client, false);
                Status::OK
            }
            Ok(_) => {
                self.free_object(call.now, client, handle, false);
                Status::OK
            }
            Err(status) => {
                self.refused(call, client, handle, rm::NV_ESC_RM_FREE, status);
                status
            }
        };
        layout.put_word(call.params, "status", status.0);
        let due = self.locks.reserve(call.now, needs, self.knobs.writer_ns).1;
        if self.memory_busy != busy {
            return Answer::at(due.max(self.memory_busy));
        }
        Answer::at(due)
    }

    fn dup(&mut self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("NVOS55_PARAMETERS");
        let client = layout.word(call.params, "hClient");
        let result = self.dup_object(call, layout);
        let status = match result {
            Ok(handle) => {
                layout.put_word(call.params, "hObject", handle);
                Status::OK
            }
            Err(status) => {
                let wanted = layout.word(call.params, "hObject");
                self.refused(call, client, wanted, rm::NV_ESC_RM_DUP_OBJECT, status);
                status
            }
        };
        layout.put_word(call.params, "status", status.0);
        Answer::at(self.writer(call.now, client, client, Gpus::All))
    }

    /// Memory only, and by the default share policy only inside one process.
    fn dup_object(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<u32, Status> {
        let word = |field| layout.word(call.params, field);
        let (root, parent, wanted) = (word("hClient"), word("hParent"), word("hObject"));
        let client = self.check_client(call.file, root)?;
        let source_client = self
            .clients
            .get(&word("hClientSrc"))
            .ok_or(Status::INVALID_CLIENT)?;
        if client.pid != source_client.pid {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        if !client.objects.contains_key(&parent) {
            return Err(Status::OBJECT_NOT_FOUND);
        }
        if wanted != 0 && client.objects.contains_key(&wanted) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        let source = source_client
            .objects
            .get(&word("hObjectSrc"))
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        let class = source.class;
        let Body::Memory { id } = source.body else {
            return Err(Status::NOT_SUPPORTED);
        };
        let handle = if wanted == 0 {
            self.fresh_handle(root)
        } else {
            wanted
        };
        self.memory.retain(id);
        self.insert_object(root, handle, parent, class, Body::Memory { id }, &[]);
        Ok(handle)
    }

    fn share(&mut self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("NVOS57_PARAMETERS");
        let client = layout.word(call.params, "hClient");
        let object = layout.word(call.params, "hObject");
        let status = match self.check_client(call.file, client) {
            Ok(_) => Status::NOT_SUPPORTED,
            Err(status) => status,
        };
        self.refused(call, client, object, rm::NV_ESC_RM_SHARE, status);
        layout.put_word(call.params, "status", status.0);
        Answer::at(call.now)
    }

    fn map_memory(&mut self, call: &mut Call<'_>) -> Answer {
        let layout = self.layout("nv_ioctl_nvos33_parameters_with_fd");
        let status = self.announce(call, layout).err().unwrap_or(Status::OK);
        if !status.is_ok() {
            let client = layout.word(call.params, "params.hClient");
            let object = layout.word(call.params, "params.hMemory");
            self.refused(call, client, object, rm::NV_ESC_RM_MAP_MEMORY, status);
        }
        layout.put_word(call.params, "params.status", status.0);
        Answer::at(call.now)
    }

    /// Makes memory of an object what the next `mmap` of the named file maps.
    fn announce(&mut self, call: &Call<'_>, layout: &Struct<'_>) -> Result<(), Status> {
        let client = self.check_client(call.file, layout.word(call.params, "params.hClient"))?;
        let object = client
            .objects
            .get(&layout.word(call.params, "params.hMemory"))
            .ok_or(Status::INVALID_OBJECT_HANDLE)?;
        let offset = layout.long(call.params, "params.offset");
        let length = layout.long(call.params, "params.length");
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
        let end = offset.checked_add(length).ok_or(Status::INVALID_ARGUMENT)?;
        if length == 0 || end > bytes || !offset.is_multiple_of(4096) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let announced = Announced {
            fd: memfd.fd.clone(),
            offset: start + offset,
            bytes: length,
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
