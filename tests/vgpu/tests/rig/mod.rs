//! Starts a device process and speaks to it as a driver client would, through the same code that
//! the shim runs, but without a preload: each open file is a value of the test.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_abi::class;
use tidegate_abi::rm::{self, Branch};
use tidegate_abi::uvm;
use tidegate_vgpu::clock::now_ns;
use tidegate_vgpu::control::Control;
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::history::{self, Kind, Record};
use tidegate_vgpu::ring::{
    ENTRIES, Entry, Op, RING_BYTES, Ring, USERMODE_BYTES, Usermode, kernel_id,
};
use tidegate_vgpu::wire::Node;
use tidegate_vgpu::{calls, ring};

pub const MS: u64 = 1_000_000;

/// A running device process with a directory of its own.
pub struct Device {
    child: Child,
    pub dir: PathBuf,
}

impl Device {
    pub fn start(args: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("vgpu-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_vgpud"))
            .arg("--dir")
            .arg(&dir)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self { child, dir }
    }

    pub fn open(&self, node: Node) -> File {
        File::open(&self.dir, node).unwrap()
    }

    pub fn control(&self) -> Control {
        Control::connect(&self.dir).unwrap()
    }

    /// The history with everything a client can have seen: the device writes it out before it
    /// answers anybody, but after it wakes those that wait for queued work.
    pub fn history(&self) -> Vec<Record> {
        self.control().state().unwrap();
        history::read(&self.dir).unwrap()
    }

    /// Waits until the history holds what `wanted` finds.
    pub fn wait_history<T>(&self, what: &str, wanted: impl Fn(&[Record]) -> Option<T>) -> T {
        let deadline = now_ns() + 10_000 * MS;
        loop {
            let records = self.history();
            if let Some(found) = wanted(&records) {
                return found;
            }
            assert!(now_ns() < deadline, "never happened: {what}; {records:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let ended = self.child.wait().unwrap();
        if !std::thread::panicking() {
            assert!(ended.success(), "vgpud: {ended}");
            fs::remove_dir_all(&self.dir).unwrap();
        }
    }
}

/// An open file of a device node.
#[derive(Debug)]
pub struct File {
    pub fd: OwnedFd,
    pub node: Node,
}

impl File {
    pub fn open(dir: &Path, node: Node) -> Result<Self, i32> {
        use std::os::unix::ffi::OsStrExt;
        let fd = calls::open(dir.as_os_str().as_bytes(), node, true)?;
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, node })
    }

    /// A further name of the same open file.
    pub fn dup(&self) -> Self {
        Self {
            fd: self.fd.try_clone().unwrap(),
            node: self.node,
        }
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// An ioctl with a struct, as it stands.
    pub fn ioctl<T>(&self, request: u64, params: &mut T) -> Result<(), i32> {
        let at = std::ptr::from_mut(params) as u64;
        let (at_ns, read_ns) = (now_ns(), 0);
        let entry = calls::Entry { at_ns, read_ns };
        // SAFETY: `params` is the struct of the request; its pointers are the tests' own.
        unsafe { calls::ioctl(self.raw(), self.node, request, at, entry) }.map(|_| ())
    }

    /// An escape whose number carries the struct's size.
    pub fn escape<T>(&self, nr: u32, params: &mut T) -> Result<(), i32> {
        self.ioctl(rm::request(nr, size_of::<T>()), params)
    }

    pub fn alloc<T>(
        &self,
        root: u32,
        parent: u32,
        handle: u32,
        class: u32,
        params: &mut T,
    ) -> Result<u32, Status> {
        let mut p = rm::Nvos64 {
            h_root: root,
            h_object_parent: parent,
            h_object_new: handle,
            h_class: class,
            p_alloc_parms: if size_of::<T>() == 0 {
                0
            } else {
                std::ptr::from_mut(params) as u64
            },
            params_size: size_of::<T>() as u32,
            ..Default::default()
        };
        self.escape(rm::NV_ESC_RM_ALLOC, &mut p).unwrap();
        result(p.status).map(|()| p.h_object_new)
    }

    /// A root client.
    pub fn root(&self) -> u32 {
        self.alloc(0, 0, 0, class::NV01_ROOT_CLIENT, &mut ())
            .unwrap()
    }

    pub fn control_raw(&self, client: u32, object: u32, cmd: u32, params: &mut [u8]) -> Status {
        let mut p = rm::Nvos54 {
            h_client: client,
            h_object: object,
            cmd,
            params: if params.is_empty() {
                0
            } else {
                params.as_mut_ptr() as u64
            },
            params_size: params.len() as u32,
            ..Default::default()
        };
        self.escape(rm::NV_ESC_RM_CONTROL, &mut p).unwrap();
        Status(p.status)
    }

    pub fn control<T>(&self, client: u32, object: u32, cmd: u32, params: &mut T) -> Status {
        let bytes = size_of_val(params);
        let at = std::ptr::from_mut(params).cast::<u8>();
        // SAFETY: plain structs of integers, viewed as their bytes.
        self.control_raw(client, object, cmd, unsafe {
            std::slice::from_raw_parts_mut(at, bytes)
        })
    }

    /// `GPU_GET_ATTACHED_IDS` of a client itself, which is answered on its own file only.
    pub fn attached(&self, client: u32) -> Status {
        let mut ids = rm::AttachedIds {
            gpu_ids: [0; rm::MAX_GPUS],
        };
        let cmd = rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        self.control(client, client, cmd, &mut ids)
    }

    /// `SYSTEM_GET_BUILD_VERSION`.
    pub fn build_version(&self, client: u32) -> (Status, String) {
        let mut buffers = [[0_u8; 64]; 3];
        let mut p = rm::BuildVersion {
            size_of_strings: 64,
            p_driver_version_buffer: buffers[0].as_mut_ptr() as u64,
            p_version_buffer: buffers[1].as_mut_ptr() as u64,
            p_title_buffer: buffers[2].as_mut_ptr() as u64,
            ..Default::default()
        };
        let cmd = rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION;
        let status = self.control(client, client, cmd, &mut p);
        let text = buffers[0].split(|b| *b == 0).next().unwrap();
        (status, String::from_utf8_lossy(text).into_owned())
    }

    pub fn free(&self, client: u32, object: u32) -> Status {
        let mut p = rm::Nvos00 {
            h_root: client,
            h_object_old: object,
            ..Default::default()
        };
        self.escape(rm::NV_ESC_RM_FREE, &mut p).unwrap();
        Status(p.status)
    }

    /// Disables (or enables) pairs through a subdevice of this file.
    pub fn disable(
        &self,
        client: u32,
        subdevice: u32,
        disable: bool,
        pairs: &[(u32, u32)],
    ) -> Status {
        let mut p = rm::DisableChannels {
            disable: u8::from(disable),
            num_channels: pairs.len() as u32,
            ..Default::default()
        };
        for (place, (client, channel)) in pairs.iter().enumerate() {
            (p.h_client_list[place], p.h_channel_list[place]) = (*client, *channel);
        }
        self.control(
            client,
            subdevice,
            rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
            &mut p,
        )
    }
}

pub fn result(status: u32) -> Result<(), Status> {
    if status == 0 {
        Ok(())
    } else {
        Err(Status(status))
    }
}

/// A mapping that lives as long as the test process.
pub fn map(
    device: &Device,
    ctl: &File,
    client: u32,
    gpu: u8,
    object: u32,
    bytes: usize,
) -> *mut u8 {
    let file = device.open(Node::Gpu(gpu));
    let mut p = rm::Nvos33WithFd {
        h_client: client,
        h_memory: object,
        length: bytes as u64,
        fd: file.raw(),
        ..Default::default()
    };
    ctl.escape(rm::NV_ESC_RM_MAP_MEMORY, &mut p).unwrap();
    result(p.status).unwrap();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { calls::mmap(file.raw(), 0, bytes as u64, prot, libc::MAP_SHARED, 0) };
    at.unwrap().cast()
}

/// A client with a device and a subdevice on one GPU: what the agent has.
pub struct Side {
    pub ctl: File,
    pub gpu_file: File,
    pub gpu: u8,
    pub client: u32,
    pub device: u32,
    pub subdevice: u32,
    pub uuid: [u8; 16],
}

impl Side {
    pub fn new(on: &Device, gpu: u8) -> Self {
        let ctl = on.open(Node::Ctl);
        let gpu_file = on.open(Node::Gpu(gpu));
        let mut register = rm::RegisterFd { ctl_fd: ctl.raw() };
        gpu_file
            .escape(rm::NV_ESC_REGISTER_FD, &mut register)
            .unwrap();
        let client = ctl.root();
        let mut cards = [rm::CardInfo::default(); rm::MAX_GPUS];
        ctl.escape(rm::NV_ESC_CARD_INFO, &mut cards).unwrap();
        let card = cards
            .iter()
            .find(|c| c.valid != 0 && c.minor == u32::from(gpu))
            .unwrap();
        let mut info = rm::IdInfoV2 {
            gpu_id: card.gpu_id,
            ..Default::default()
        };
        let cmd = rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
        assert_eq!(ctl.control(client, client, cmd, &mut info), Status::OK);
        let mut p = rm::Nv0080Alloc {
            device_id: info.device_instance,
            ..Default::default()
        };
        let device = ctl
            .alloc(client, client, 0, class::NV01_DEVICE_0, &mut p)
            .unwrap();
        let mut p = rm::Nv2080Alloc::default();
        let subdevice = ctl
            .alloc(client, device, 0, class::NV20_SUBDEVICE_0, &mut p)
            .unwrap();
        let mut gid = rm::GidInfo {
            index: 0,
            flags: rm::GID_FORMAT_BINARY,
            length: 0,
            data: [0; 256],
        };
        let cmd = rm::NV2080_CTRL_CMD_GPU_GET_GID_INFO;
        assert_eq!(ctl.control(client, subdevice, cmd, &mut gid), Status::OK);
        let uuid = *gid.data.first_chunk().unwrap();
        Self {
            ctl,
            gpu_file,
            gpu,
            client,
            device,
            subdevice,
            uuid,
        }
    }
}

/// A TSG with channels that run: what a CUDA context has.
pub struct Job {
    pub side: Side,
    pub uvm: File,
    pub tsg: u32,
    pub channels: Vec<Queue>,
    pub usermode: &'static Usermode,
}

/// A channel and its ring.
pub struct Queue {
    pub handle: u32,
    ring: &'static Ring,
    entries: *mut Entry,
    usermode: &'static Usermode,
    put: AtomicU64,
}

impl Job {
    pub fn new(on: &Device, gpu: u8, channels: usize) -> Self {
        Self::of_branch(on, gpu, channels, Branch::B580)
    }

    pub fn of_branch(on: &Device, gpu: u8, channels: usize, branch: Branch) -> Self {
        let mut job = Self::unscheduled(on, gpu, channels, branch);
        for handle in job.channels.iter().map(|c| c.handle).collect::<Vec<_>>() {
            job.register(handle).unwrap();
        }
        assert_eq!(job.schedule(branch.schedule_size()), Status::OK);
        job
    }

    /// All but UVM's registration of the channels and the schedule.
    pub fn unscheduled(on: &Device, gpu: u8, channels: usize, branch: Branch) -> Self {
        let side = Side::new(on, gpu);
        let (ctl, client, device) = (&side.ctl, side.client, side.device);
        let uvm = on.open(Node::Uvm);
        uvm.ioctl(uvm::UVM_INITIALIZE, &mut uvm::UvmInitialize::default())
            .unwrap();
        let mut p = uvm::UvmRegisterGpu {
            uuid: side.uuid,
            rm_ctrl_fd: -1,
            ..Default::default()
        };
        uvm.ioctl(uvm::UVM_REGISTER_GPU, &mut p).unwrap();
        result(p.rm_status).unwrap();

        let mut space = vec![0_u8; branch.vaspace_alloc_size()];
        space[4] = (rm::VASPACE_EXTERNALLY_OWNED | rm::VASPACE_PAGE_FAULTING) as u8;
        let mut p = rm::Nvos64 {
            h_root: client,
            h_object_parent: device,
            h_class: class::FERMI_VASPACE_A,
            p_alloc_parms: space.as_mut_ptr() as u64,
            params_size: space.len() as u32,
            ..Default::default()
        };
        ctl.escape(rm::NV_ESC_RM_ALLOC, &mut p).unwrap();
        result(p.status).unwrap();
        let space = p.h_object_new;
        let mut p = uvm::UvmRegisterGpuVaspace {
            uuid: side.uuid,
            rm_ctrl_fd: ctl.raw(),
            h_client: client,
            h_va_space: space,
            ..Default::default()
        };
        uvm.ioctl(uvm::UVM_REGISTER_GPU_VASPACE, &mut p).unwrap();
        result(p.rm_status).unwrap();

        let usermode = ctl.alloc(client, side.subdevice, 0, class::HOPPER_USERMODE_A, &mut ());
        let page = map(on, ctl, client, gpu, usermode.unwrap(), USERMODE_BYTES);
        // SAFETY: a mapping of that size that is never unmapped, made of atomics.
        let usermode = unsafe { &*page.cast::<Usermode>() };

        let mut p = rm::ChannelGroupAlloc {
            h_va_space: space,
            engine_type: class::ENGINE_TYPE_GR0,
            ..Default::default()
        };
        let tsg = ctl
            .alloc(client, device, 0, class::KEPLER_CHANNEL_GROUP_A, &mut p)
            .unwrap();
        let channels = (0..channels)
            .map(|_| {
                let mut params = vec![0_u8; branch.channel_alloc_size()];
                let mut p = rm::Nvos64 {
                    h_root: client,
                    h_object_parent: tsg,
                    h_class: class::HOPPER_CHANNEL_GPFIFO_A,
                    p_alloc_parms: params.as_mut_ptr() as u64,
                    params_size: params.len() as u32,
                    ..Default::default()
                };
                ctl.escape(rm::NV_ESC_RM_ALLOC, &mut p).unwrap();
                result(p.status).unwrap();
                let handle = p.h_object_new;
                ctl.alloc(client, handle, 0, class::HOPPER_COMPUTE_A, &mut ())
                    .unwrap();
                let at = map(on, ctl, client, gpu, handle, RING_BYTES);
                Queue {
                    handle,
                    // SAFETY: a mapping of a whole ring that is never unmapped.
                    ring: unsafe { &*at.cast::<Ring>() },
                    // SAFETY: the entries follow the first page of the same mapping.
                    entries: unsafe { at.add(size_of::<Ring>()) }.cast(),
                    usermode,
                    put: AtomicU64::new(0),
                }
            })
            .collect();
        Self {
            side,
            uvm,
            tsg,
            channels,
            usermode,
        }
    }

    pub fn register(&mut self, channel: u32) -> Result<(), Status> {
        let mut p = uvm::UvmRegisterChannel {
            uuid: self.side.uuid,
            rm_ctrl_fd: self.side.ctl.raw(),
            h_client: self.side.client,
            h_channel: channel,
            ..Default::default()
        };
        self.uvm.ioctl(uvm::UVM_REGISTER_CHANNEL, &mut p).unwrap();
        result(p.rm_status)
    }

    pub fn schedule(&self, size: usize) -> Status {
        let mut on = vec![0_u8; size];
        on[0] = 1;
        let cmd = rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        self.side
            .ctl
            .control_raw(self.side.client, self.tsg, cmd, &mut on)
    }

    pub fn pairs(&self) -> Vec<(u32, u32)> {
        self.channels
            .iter()
            .map(|c| (self.side.client, c.handle))
            .collect()
    }
}

impl Queue {
    pub fn push(&self, op: Op, kernel: u64, args: &[u64]) -> u64 {
        let mut entry = Entry {
            op: op as u32,
            args_used: args.len() as u32,
            kernel,
            launch: 0,
            args: [0; ring::ARGS],
            dims: [0; 6],
            sms: [0; 2],
        };
        entry.args[..args.len()].copy_from_slice(args);
        let number = self.put.fetch_add(1, Ordering::Relaxed);
        assert!(
            number - self.done() < ENTRIES as u64,
            "the test outruns the ring"
        );
        // SAFETY: inside the ring's entries, and the device does not read it before `put` says so.
        unsafe { self.entries.add(number as usize % ENTRIES).write(entry) };
        self.ring.put.store(number + 1, Ordering::Release);
        self.ring_doorbell();
        number + 1
    }

    pub fn ring_doorbell(&self) {
        self.usermode.doorbell.fetch_add(1, Ordering::SeqCst);
        if self.usermode.sleeping.load(Ordering::SeqCst) != 0 {
            let word = &raw const self.usermode.doorbell;
            // SAFETY: a live futex word.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
        }
    }

    pub fn spin(&self, ns: u64, tag: u64) -> u64 {
        self.push(Op::Kernel, kernel_id("tg_spin_ns"), &[ns, tag])
    }

    pub fn done(&self) -> u64 {
        self.ring.done.load(Ordering::Acquire)
    }

    pub fn get(&self) -> u64 {
        self.ring.get.load(Ordering::Acquire)
    }

    pub fn error(&self) -> u32 {
        self.ring.error.load(Ordering::Acquire)
    }

    pub fn host_done(&self, count: u64) {
        self.ring.host_done.store(count, Ordering::Release);
        self.ring_doorbell();
    }

    /// Waits until `count` entries are done.
    pub fn wait(&self, count: u64) {
        until("the work ends", || {
            self.done() >= count || self.error() != 0
        });
    }
}

/// Waits until `so` holds, at most ten seconds.
pub fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = now_ns() + 10_000 * MS;
    while !so() {
        assert!(now_ns() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The instants of a kind for one tag.
pub fn at(records: &[Record], kind: Kind, tag: u64) -> Option<u64> {
    records
        .iter()
        .find(|r| r.kind == kind && r.tag == tag)
        .map(|r| r.at_ns)
}
