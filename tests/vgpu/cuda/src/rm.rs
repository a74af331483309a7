//! The resource manager as a client sees it: three device files, one root client, and ioctls.
//!
//! Every call goes through libc's `open` and `ioctl`, as the real library's do. An ioctl succeeds
//! as a call and reports in the struct's status; both are folded into [`RmError`] here.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_abi::class::NV01_ROOT_CLIENT;
use tidegate_abi::cuda::CUresult;
use tidegate_abi::rm::{
    AttachIds, BuildVersion, CardInfo, INVALID_GPU_ID, IdInfoV2, NV_ESC_CARD_INFO,
    NV_ESC_CHECK_VERSION_STR, NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL, NV_ESC_RM_FREE,
    NV_ESC_RM_MAP_MEMORY, NV_ESC_SYS_PARAMS, NV0000_CTRL_CMD_GPU_ATTACH_IDS,
    NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS,
    NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, Nvos00, Nvos33WithFd, Nvos54, Nvos64, ProbedIds,
    RmApiVersion, Status, SysParams, request,
};
use tidegate_abi::uvm::{UVM_INITIALIZE, UVM_MM_INITIALIZE, UvmInitialize, UvmMmInitialize};

use tidegate_vgpu::calls::{self, Entry};
use tidegate_vgpu::facts::{self, Driver, Struct};
use tidegate_vgpu::wire::Node;

use crate::result::{CudaResult, log};

/// Why a driver call failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum RmError {
    /// The system call itself failed.
    #[error("{0}: errno {1}")]
    Call(&'static str, i32),
    /// The resource manager refused.
    #[error("{0}: {name}", name = .1.name())]
    Status(&'static str, Status),
    /// A driver that the tables say nothing of.
    #[error("unknown driver version")]
    UnknownBranch,
}

impl From<RmError> for CUresult {
    fn from(error: RmError) -> Self {
        log(&format_args!("{error}"));
        match error {
            RmError::Status(_, Status::NO_MEMORY) => Self::OUT_OF_MEMORY,
            _ => Self::OPERATING_SYSTEM,
        }
    }
}

/// What a driver call returns.
pub type RmResult<T = ()> = Result<T, RmError>;

/// Opens a device file.
pub fn open(path: &CStr) -> RmResult<OwnedFd> {
    // SAFETY: a C string and constant flags.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(RmError::Call("open", errno()));
    }
    // SAFETY: a descriptor that nobody else owns yet.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn errno() -> i32 {
    // SAFETY: glibc returns the calling thread's own word.
    unsafe { *libc::__errno_location() }
}

/// One ioctl on `argument`, in and out.
fn ioctl<T>(what: &'static str, fd: RawFd, request: u64, argument: &mut T) -> RmResult {
    // SAFETY: `argument` is the struct that belongs to `request`, alive for the call.
    let rc = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(argument)) };
    if rc < 0 {
        return Err(RmError::Call(what, errno()));
    }
    Ok(())
}

/// One escape of the `'F'` family whose struct size travels in the number.
pub fn escape<T>(what: &'static str, fd: RawFd, nr: u32, argument: &mut T) -> RmResult {
    ioctl(what, fd, request(nr, size_of::<T>()), argument)
}

/// One UVM ioctl; `status` reads the result out of the struct.
pub fn uvm<T>(
    what: &'static str,
    fd: &OwnedFd,
    request: u64,
    argument: &mut T,
    status: impl Fn(&T) -> u32,
) -> RmResult {
    ioctl(what, fd.as_raw_fd(), request, argument)?;
    checked(what, status(argument))
}

fn checked(what: &'static str, status: u32) -> RmResult {
    if status == 0 {
        Ok(())
    } else {
        Err(RmError::Status(what, Status(status)))
    }
}

/// The open files and the root client of this process.
pub struct Rm {
    /// `/dev/nvidiactl`.
    pub ctl: OwnedFd,
    /// The file of `/dev/nvidia-uvm` that holds the UVM address space.
    pub uvm: OwnedFd,
    /// The second one, which holds the process' memory map alive; absent where refused.
    _uvm_mm: Option<OwnedFd>,
    /// The root client.
    pub client: u32,
    /// The driver: its layouts.
    pub driver: &'static Driver<'static>,
    next_handle: AtomicU32,
}

/// One GPU as the driver lists it.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Instance that `NV01_DEVICE_0` takes.
    pub instance: u32,
    /// PCI domain, bus, slot.
    pub pci: (u32, u8, u8),
}

/// Most GPUs in one `NV_ESC_CARD_INFO`.
const MAX_CARDS: usize = 32;

impl Rm {
    /// Opens the files, checks the version and makes the root client, in the real library's order.
    pub fn open() -> CudaResult<(Self, Vec<Card>)> {
        let ctl = open(c"/dev/nvidiactl").map_err(|_| CUresult::NO_DEVICE)?;
        let fd = ctl.as_raw_fd();
        let driver = check_version(fd)?;
        escape(
            "SYS_PARAMS",
            fd,
            NV_ESC_SYS_PARAMS,
            &mut SysParams::default(),
        )?;
        let mut cards = [CardInfo::default(); MAX_CARDS];
        escape("CARD_INFO", fd, NV_ESC_CARD_INFO, &mut cards)?;

        // A handle is all that the driver's class list takes for a client.
        let mut handle = 0_u32;
        let root_parameters = bytes_of(&mut handle);
        let mut root = Nvos64 {
            h_class: NV01_ROOT_CLIENT,
            p_alloc_parms: root_parameters.as_mut_ptr().expose_provenance() as u64,
            params_size: u32::try_from(root_parameters.len()).unwrap_or(0),
            ..Nvos64::default()
        };
        escape("RM_ALLOC root", fd, NV_ESC_RM_ALLOC, &mut root)?;
        checked("RM_ALLOC root", root.status)?;
        let client = root.h_object_new;

        let found = attach(fd, client, &cards, driver)?;
        let uvm_file = open(c"/dev/nvidia-uvm")?;
        uvm(
            "UVM_INITIALIZE",
            &uvm_file,
            UVM_INITIALIZE,
            &mut UvmInitialize::default(),
            |p| p.rm_status,
        )?;
        let rm = Self {
            _uvm_mm: mm_initialize(&uvm_file).ok(),
            ctl,
            uvm: uvm_file,
            client,
            driver,
            next_handle: AtomicU32::new(0x5c00_0001),
        };
        Ok((rm, found))
    }

    /// Allocates an object of `class` under `parent` with `parameters` (may be empty); its handle.
    pub fn alloc(
        &self,
        what: &'static str,
        parent: u32,
        class: u32,
        parameters: &mut [u8],
    ) -> RmResult<u32> {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let mut p = Nvos64 {
            h_root: self.client,
            h_object_parent: parent,
            h_object_new: handle,
            h_class: class,
            p_alloc_parms: pointer(parameters),
            params_size: u32::try_from(parameters.len()).unwrap_or(u32::MAX),
            ..Nvos64::default()
        };
        escape(what, self.ctl.as_raw_fd(), NV_ESC_RM_ALLOC, &mut p)?;
        checked(what, p.status)?;
        Ok(p.h_object_new)
    }

    /// As [`Self::alloc`], with the fields that `fill` sets in parameters of the driver's layout.
    pub fn alloc_with(
        &self,
        what: &'static str,
        parent: u32,
        class: u32,
        fill: impl FnOnce(&Struct<'_>, &mut [u8]),
    ) -> RmResult<u32> {
        let known = self.driver.classes.get(&class);
        let known = known.ok_or(RmError::Status(what, Status::INVALID_CLASS))?;
        let mut parameters = vec![0; known.size];
        fill(self.driver.layout(known.params), &mut parameters);
        self.alloc(what, parent, class, &mut parameters)
    }

    /// Frees an object and what hangs on it.
    pub fn free(&self, object: u32) -> RmResult {
        let mut p = Nvos00 {
            h_root: self.client,
            h_object_old: object,
            ..Nvos00::default()
        };
        escape("RM_FREE", self.ctl.as_raw_fd(), NV_ESC_RM_FREE, &mut p)?;
        checked("RM_FREE", p.status)
    }

    /// A control on `object`.
    pub fn control(
        &self,
        what: &'static str,
        object: u32,
        cmd: u32,
        parameters: &mut [u8],
    ) -> RmResult {
        control(
            self.ctl.as_raw_fd(),
            self.client,
            what,
            object,
            cmd,
            parameters,
        )
    }

    /// Maps `bytes` of an object of GPU file `path` somewhere in this process.
    pub fn map(&self, path: &CStr, device: u32, object: u32, bytes: usize) -> RmResult<*mut u8> {
        let file = open(path)?;
        let mut p = Nvos33WithFd {
            h_client: self.client,
            h_device: device,
            h_memory: object,
            length: bytes as u64,
            fd: file.as_raw_fd(),
            ..Nvos33WithFd::default()
        };
        escape(
            "RM_MAP_MEMORY",
            self.ctl.as_raw_fd(),
            NV_ESC_RM_MAP_MEMORY,
            &mut p,
        )?;
        checked("RM_MAP_MEMORY", p.status)?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(RmError::Call("mmap", errno()));
        }
        Ok(at.cast())
    }

    /// Whether the driver still answers at all.
    pub fn alive(&self) -> bool {
        let fd = self.ctl.as_raw_fd();
        escape(
            "SYS_PARAMS",
            fd,
            NV_ESC_SYS_PARAMS,
            &mut SysParams::default(),
        )
        .is_ok()
    }
}

fn pointer(parameters: &mut [u8]) -> u64 {
    if parameters.is_empty() {
        0
    } else {
        parameters.as_mut_ptr().expose_provenance() as u64
    }
}

fn control(
    ctl: RawFd,
    client: u32,
    what: &'static str,
    object: u32,
    cmd: u32,
    parameters: &mut [u8],
) -> RmResult {
    let mut p = Nvos54 {
        h_client: client,
        h_object: object,
        cmd,
        params: pointer(parameters),
        params_size: u32::try_from(parameters.len()).unwrap_or(u32::MAX),
        ..Nvos54::default()
    };
    escape(what, ctl, NV_ESC_RM_CONTROL, &mut p)?;
    checked(what, p.status)
}

/// Bytes of a control's parameters.
pub fn control_bytes(driver: &Driver<'_>, cmd: u32) -> usize {
    driver.controls.get(&cmd).map_or(0, |control| control.size)
}

/// Bytes of the parameters of one of UVM's ioctls.
pub fn uvm_bytes(driver: &Driver<'_>, number: u64) -> usize {
    driver.uvm.get(&number).map_or(0, |ioctl| ioctl.params.size)
}

/// Set: the version is asked for past libc's `ioctl`, so that nobody beside sees a library ask. NVML asks; whether CUDA's
/// own library does is not known.
const QUIET: &str = "TIDEGATE_VGPU_QUIET_VERSION";

fn check_version(ctl: RawFd) -> CudaResult<&'static Driver<'static>> {
    let mut p = RmApiVersion {
        cmd: u32::from(b'2'),
        reply: 0,
        version: [0; 64],
    };
    if std::env::var_os(QUIET).is_some() {
        let request = request(NV_ESC_CHECK_VERSION_STR, size_of::<RmApiVersion>());
        // SAFETY: the argument is what the request says, and live for the call.
        let asked = unsafe {
            calls::ioctl(
                ctl,
                Node::Ctl,
                request,
                (&raw mut p) as u64,
                Entry::default(),
            )
        };
        asked.map_err(|errno| RmError::Call("CHECK_VERSION_STR", errno))?;
    } else {
        escape("CHECK_VERSION_STR", ctl, NV_ESC_CHECK_VERSION_STR, &mut p)?;
    }
    let version = CStr::from_bytes_until_nul(&p.version).unwrap_or_default();
    let driver = facts::of(version.to_str().unwrap_or(""));
    // Once a process, for its whole life.
    Ok(Box::leak(Box::new(driver.ok_or(RmError::UnknownBranch)?)))
}

/// Asks for the GPUs, attaches them and finds what belongs together.
fn attach(ctl: RawFd, client: u32, cards: &[CardInfo], driver: &Driver<'_>) -> RmResult<Vec<Card>> {
    let mut strings = [[0_u8; 64]; 3];
    let [named, version, title] = &mut strings;
    let mut build = BuildVersion {
        size_of_strings: 64,
        p_driver_version_buffer: pointer(named),
        p_version_buffer: pointer(version),
        p_title_buffer: pointer(title),
        ..BuildVersion::default()
    };
    let ask =
        |what, cmd, parameters: &mut [u8]| control(ctl, client, what, client, cmd, parameters);
    ask(
        "SYSTEM_GET_BUILD_VERSION",
        NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
        bytes_of(&mut build),
    )?;
    let mut probed = ProbedIds {
        gpu_ids: [INVALID_GPU_ID; 32],
        excluded_gpu_ids: [INVALID_GPU_ID; 32],
        gpu_flags: [0; 32],
    };
    ask(
        "GPU_GET_PROBED_IDS",
        NV0000_CTRL_CMD_GPU_GET_PROBED_IDS,
        &mut bytes_of(&mut probed)[..control_bytes(driver, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS)],
    )?;
    let ids = probed.gpu_ids.iter().copied();
    let ids: Vec<u32> = ids.take_while(|id| *id != INVALID_GPU_ID).collect();
    let mut attach = AttachIds {
        gpu_ids: [INVALID_GPU_ID; 32],
        failed_id: 0,
    };
    attach.gpu_ids[..ids.len()].copy_from_slice(&ids);
    ask(
        "GPU_ATTACH_IDS",
        NV0000_CTRL_CMD_GPU_ATTACH_IDS,
        bytes_of(&mut attach),
    )?;

    let mut found = Vec::new();
    for gpu_id in ids {
        let mut info = IdInfoV2 {
            gpu_id,
            ..IdInfoV2::default()
        };
        ask(
            "GPU_GET_ID_INFO_V2",
            NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
            bytes_of(&mut info),
        )?;
        let card = cards
            .iter()
            .find(|card| card.valid & 0xff != 0 && card.gpu_id == gpu_id);
        if let Some(card) = card {
            found.push(Card {
                minor: card.minor,
                instance: info.device_instance,
                pci: (card.domain, card.bus, card.slot),
            });
        }
    }
    Ok(found)
}

fn mm_initialize(uvm_file: &OwnedFd) -> RmResult<OwnedFd> {
    let second = open(c"/dev/nvidia-uvm")?;
    let mut p = UvmMmInitialize {
        uvm_fd: uvm_file.as_raw_fd(),
        rm_status: 0,
    };
    uvm(
        "UVM_MM_INITIALIZE",
        &second,
        UVM_MM_INITIALIZE,
        &mut p,
        |p| p.rm_status,
    )?;
    Ok(second)
}

/// The bytes of a parameter struct.
pub fn bytes_of<T: Copy>(value: &mut T) -> &mut [u8] {
    // SAFETY: parameter structs are plain integers without padding, so all bytes are initialised
    // and any bytes the driver writes are valid; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}
