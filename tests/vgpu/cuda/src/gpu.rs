//! One GPU of this process: device, subdevice, doorbell page, address space.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tidegate_abi::class::{
    FERMI_VASPACE_A, HOPPER_USERMODE_A, NV01_DEVICE_0, NV01_MEMORY_SYSTEM, NV20_SUBDEVICE_0,
};
use tidegate_abi::cuda::CUuuid;
use tidegate_abi::rm::{
    FB_INFO_HEAP_FREE, FB_INFO_HEAP_SIZE, GID_FORMAT_BINARY, GidInfo, NV_ESC_REGISTER_FD,
    NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GPU_GET_GID_INFO, Nv0080Alloc, Nv2080Alloc,
    RegisterFd, VASPACE_EXTERNALLY_OWNED, VASPACE_PAGE_FAULTING,
};
use tidegate_abi::uvm::{
    UVM_REGISTER_GPU, UVM_REGISTER_GPU_VASPACE, UvmRegisterGpu, UvmRegisterGpuVaspace,
};
use tidegate_vgpu::ring::{SEMAPHORES, Semaphore, USERMODE_BYTES, Usermode};

use crate::futex;
use crate::rm::{self, Card, Rm, RmResult, bytes_of, control_bytes};

/// One GPU, opened at cuInit.
pub struct Gpu {
    /// The process' client.
    pub rm: Arc<Rm>,
    /// What the driver said of it.
    pub card: Card,
    /// Its UUID.
    pub uuid: CUuuid,
    /// `/dev/nvidiaN`.
    pub path: CString,
    /// `NV01_DEVICE_0`.
    pub device: u32,
    /// `NV20_SUBDEVICE_0`.
    pub subdevice: u32,
    _file: OwnedFd,
    space: OnceLock<Space>,
    opening: Mutex<()>,
}

/// What the first context on a GPU makes and later ones share.
pub struct Space {
    /// `FERMI_VASPACE_A`.
    pub vaspace: u32,
    usermode: &'static Usermode,
}

impl Space {
    /// Tells the device that a ring has something for it. A few stores; a call only when the
    /// device sleeps.
    pub fn ring_doorbell(&self) {
        self.usermode.doorbell.fetch_add(1, Ordering::SeqCst);
        if self.usermode.sleeping.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.usermode.doorbell);
        }
    }
}

impl Gpu {
    /// Opens the file of `card` and allocates device and subdevice.
    pub fn open(rm: &Arc<Rm>, card: Card) -> RmResult<Self> {
        let path = CString::new(format!("/dev/nvidia{}", card.minor)).unwrap_or_default();
        let file = rm::open(&path)?;
        let mut register = RegisterFd {
            ctl_fd: rm.ctl.as_raw_fd(),
        };
        rm::escape(
            "REGISTER_FD",
            file.as_raw_fd(),
            NV_ESC_REGISTER_FD,
            &mut register,
        )?;
        let mut p = Nv0080Alloc {
            device_id: card.instance,
            h_client_share: rm.client,
            ..Nv0080Alloc::default()
        };
        let device = rm.alloc("alloc device", rm.client, NV01_DEVICE_0, bytes_of(&mut p))?;
        let mut p = Nv2080Alloc::default();
        let subdevice = rm.alloc(
            "alloc subdevice",
            device,
            NV20_SUBDEVICE_0,
            bytes_of(&mut p),
        )?;
        let mut gid = GidInfo {
            index: 0,
            flags: GID_FORMAT_BINARY,
            length: 0,
            data: [0; 256],
        };
        rm.control(
            "GPU_GET_GID_INFO",
            subdevice,
            NV2080_CTRL_CMD_GPU_GET_GID_INFO,
            bytes_of(&mut gid),
        )?;
        let mut uuid = CUuuid::default();
        uuid.bytes.copy_from_slice(&gid.data[..16]);
        Ok(Self {
            rm: Arc::clone(rm),
            card,
            uuid,
            path,
            device,
            subdevice,
            _file: file,
            space: OnceLock::new(),
            opening: Mutex::new(()),
        })
    }

    /// Free and total bytes of its memory, for all processes.
    pub fn memory(&self) -> RmResult<(u64, u64)> {
        let command = NV2080_CTRL_CMD_FB_GET_INFO_V2;
        let mut parameters = vec![0; control_bytes(self.rm.driver, command)];
        // The length of the list, and pairs of an index and a value.
        for (at, word) in [(0, 2), (4, FB_INFO_HEAP_FREE), (12, FB_INFO_HEAP_SIZE)] {
            parameters[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        self.rm
            .control("FB_GET_INFO_V2", self.subdevice, command, &mut parameters)?;
        let [free, total] = [8, 16].map(|at| {
            let value = parameters.get(at..).and_then(<[u8]>::first_chunk);
            u64::from(value.map_or(0, |value| u32::from_ne_bytes(*value))) << 10
        });
        Ok((free, total))
    }

    /// The address space and doorbell, made by the first context.
    pub fn space(&self) -> RmResult<&Space> {
        if let Some(space) = self.space.get() {
            return Ok(space);
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = self.space.get() {
            return Ok(space);
        }
        let made = self.make_space()?;
        Ok(self.space.get_or_init(|| made))
    }

    fn make_space(&self) -> RmResult<Space> {
        let rm = &self.rm;
        let vaspace = rm.alloc_with(
            "alloc address space",
            self.device,
            FERMI_VASPACE_A,
            |layout, bytes| {
                let flags = VASPACE_EXTERNALLY_OWNED | VASPACE_PAGE_FAULTING;
                layout.put_word(bytes, "flags", flags);
            },
        )?;
        let mut p = UvmRegisterGpu {
            uuid: self.uuid.bytes,
            rm_ctrl_fd: rm.ctl.as_raw_fd(),
            h_client: rm.client,
            ..UvmRegisterGpu::default()
        };
        rm::uvm("UVM_REGISTER_GPU", &rm.uvm, UVM_REGISTER_GPU, &mut p, |p| {
            p.rm_status
        })?;
        let mut p = UvmRegisterGpuVaspace {
            uuid: self.uuid.bytes,
            rm_ctrl_fd: rm.ctl.as_raw_fd(),
            h_client: rm.client,
            h_va_space: vaspace,
            rm_status: 0,
        };
        rm::uvm(
            "UVM_REGISTER_GPU_VASPACE",
            &rm.uvm,
            UVM_REGISTER_GPU_VASPACE,
            &mut p,
            |p| p.rm_status,
        )?;
        let object = rm.alloc("alloc usermode", self.subdevice, HOPPER_USERMODE_A, &mut [])?;
        let page = rm.map(&self.path, self.device, object, USERMODE_BYTES)?;
        Ok(Space {
            vaspace,
            // SAFETY: a page-aligned shared mapping of that size which is never unmapped; both
            // words are atomic, and all-zero is a valid start.
            usermode: unsafe { &*page.cast::<Usermode>() },
        })
    }
}

/// The semaphores of this process: values the device raises and both sides wait for.
pub struct Semaphores {
    /// The memory object, which channels name at their birth.
    pub object: u32,
    pool: &'static [Semaphore],
    free: Mutex<Free>,
}

struct Free {
    returned: Vec<u32>,
    next: u32,
    /// Last value handed out per semaphore in use or returned, so that a new owner goes on above.
    last: BTreeMap<u32, u64>,
}

impl Semaphores {
    /// Allocates and maps the pool under `gpu`, for all GPUs.
    pub fn open(gpu: &Gpu) -> RmResult<Self> {
        let bytes = SEMAPHORES * size_of::<Semaphore>();
        let object = gpu.rm.alloc_with(
            "alloc semaphores",
            gpu.device,
            NV01_MEMORY_SYSTEM,
            |layout, parameters| {
                layout.put_word(parameters, "owner", gpu.rm.client);
                layout.put_long(parameters, "size", bytes as u64);
                layout.put_long(parameters, "alignment", 4096);
            },
        )?;
        let at = gpu.rm.map(&gpu.path, gpu.device, object, bytes)?;
        Ok(Self {
            object,
            // SAFETY: a shared mapping of that size which is never unmapped, zeroed, of atomics.
            pool: unsafe { std::slice::from_raw_parts(at.cast(), SEMAPHORES) },
            free: Mutex::new(Free {
                returned: Vec::new(),
                next: 1,
                last: BTreeMap::new(),
            }),
        })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a semaphore; its index and the value it starts above. `None` when all are taken.
    pub fn take(&self) -> Option<(u32, u64)> {
        let mut free = self.free();
        let index = free.returned.pop().or_else(|| {
            let index = free.next;
            (index < SEMAPHORES as u32).then(|| {
                free.next += 1;
                index
            })
        })?;
        let start = free.last.get(&index).copied().unwrap_or(0);
        Some((index, start))
    }

    /// Gives a semaphore back whose last value handed out was `last`.
    pub fn give(&self, index: u32, last: u64) {
        let mut free = self.free();
        free.last.insert(index, last);
        free.returned.push(index);
    }

    /// The semaphore at `index`.
    pub fn at(&self, index: u32) -> &Semaphore {
        &self.pool[index as usize]
    }
}
