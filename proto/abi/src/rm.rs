//! The resource manager's ioctls on `/dev/nvidiactl` and `/dev/nvidiaN` (x86-64).
//!
//! Layouts are pinned below by size and offset. Tests compare them with the driver's own headers from 535.54.03 to
//! 595.45.04, and with what others have published about those of 610 (`tests/vgpu/facts`, `tests/vgpu/tests/abi`).
//! [`Branch`] has what differs between branches. On an unknown branch no field is read that any branch has moved
//! ([`Layout::ByAnswers`]).
//!
//! The driver compares the stated size of a control with its own. For an allocation it copies the size that its class
//! list says, and never looks at the stated one. So in an allocation a struct may be longer than the branch's, but
//! never shorter.
//!
//! An RM ioctl returns `0` and reports in the struct's `status`. `ioctl` itself fails, with EINVAL, only for a wrong
//! size in the request number or a wrong descriptor.
#![allow(missing_docs)]

pub use crate::branch::{Branch, Layout};

/// Device major of `/dev/nvidiactl` and `/dev/nvidiaN`.
pub const DEVICE_MAJOR: u32 = 195;
/// Device minor of `/dev/nvidiactl`.
pub const CTL_MINOR: u32 = 255;

const IOC_READ_WRITE: u64 = 0xC000_0000;

/// The request number of escape `nr` with a parameter struct of `size` bytes.
#[must_use]
pub const fn request(nr: u32, size: usize) -> u64 {
    IOC_READ_WRITE | ((size as u64) << 16) | 0x4600 | nr as u64
}

/// The escape number of a request, if it is one of the driver's (`_IOC_TYPE` `'F'`).
#[must_use]
pub const fn escape_of(request: u64) -> Option<u32> {
    if (request & 0xff00) == 0x4600 && request <= u32::MAX as u64 {
        Some((request & 0xff) as u32)
    } else {
        None
    }
}

/// The parameter size a request number carries.
#[must_use]
pub const fn size_of_request(request: u64) -> usize {
    ((request >> 16) & 0x3fff) as usize
}

pub const NV_ESC_RM_ALLOC_MEMORY: u32 = 0x27;
pub const NV_ESC_RM_FREE: u32 = 0x29;
pub const NV_ESC_RM_CONTROL: u32 = 0x2a;
pub const NV_ESC_RM_ALLOC: u32 = 0x2b;
pub const NV_ESC_RM_DUP_OBJECT: u32 = 0x34;
pub const NV_ESC_RM_SHARE: u32 = 0x35;
pub const NV_ESC_RM_MAP_MEMORY: u32 = 0x4e;
pub const NV_ESC_RM_UNMAP_MEMORY: u32 = 0x4f;
pub const NV_ESC_CARD_INFO: u32 = 200;
pub const NV_ESC_REGISTER_FD: u32 = 201;
pub const NV_ESC_ALLOC_OS_EVENT: u32 = 206;
pub const NV_ESC_FREE_OS_EVENT: u32 = 207;
pub const NV_ESC_CHECK_VERSION_STR: u32 = 210;
pub const NV_ESC_IOCTL_XFER_CMD: u32 = 211;
pub const NV_ESC_ATTACH_GPUS_TO_FD: u32 = 212;
pub const NV_ESC_SYS_PARAMS: u32 = 214;
pub const NV_ESC_NUMA_INFO: u32 = 215;
/// Since branch 550.
pub const NV_ESC_WAIT_OPEN_COMPLETE: u32 = 218;

/// Result of an RM call. Names as in `nvstatuscodes.h` without `NV_ERR_`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    pub const OK: Self = Self(0x00);
    pub const GPU_IS_LOST: Self = Self(0x0f);
    pub const INSERT_DUPLICATE_NAME: Self = Self(0x19);
    pub const INSUFFICIENT_PERMISSIONS: Self = Self(0x1b);
    pub const INVALID_ADDRESS: Self = Self(0x1e);
    pub const INVALID_ARGUMENT: Self = Self(0x1f);
    pub const INVALID_CHANNEL: Self = Self(0x21);
    pub const INVALID_CLASS: Self = Self(0x22);
    pub const INVALID_CLIENT: Self = Self(0x23);
    pub const INVALID_DEVICE: Self = Self(0x26);
    pub const INVALID_OBJECT_HANDLE: Self = Self(0x33);
    pub const INVALID_OBJECT_PARENT: Self = Self(0x36);
    pub const INVALID_PARAM_STRUCT: Self = Self(0x3a);
    pub const INVALID_STATE: Self = Self(0x40);
    pub const NO_MEMORY: Self = Self(0x51);
    pub const NOT_SUPPORTED: Self = Self(0x56);
    pub const OBJECT_NOT_FOUND: Self = Self(0x57);
    pub const RESET_REQUIRED: Self = Self(0x62);
    pub const STATE_IN_USE: Self = Self(0x63);
    pub const TIMEOUT: Self = Self(0x65);

    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The name without `NV_ERR_`, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OK => "OK",
            Self::GPU_IS_LOST => "GPU_IS_LOST",
            Self::INSERT_DUPLICATE_NAME => "INSERT_DUPLICATE_NAME",
            Self::INSUFFICIENT_PERMISSIONS => "INSUFFICIENT_PERMISSIONS",
            Self::INVALID_ADDRESS => "INVALID_ADDRESS",
            Self::INVALID_ARGUMENT => "INVALID_ARGUMENT",
            Self::INVALID_CHANNEL => "INVALID_CHANNEL",
            Self::INVALID_CLASS => "INVALID_CLASS",
            Self::INVALID_CLIENT => "INVALID_CLIENT",
            Self::INVALID_DEVICE => "INVALID_DEVICE",
            Self::STATE_IN_USE => "STATE_IN_USE",
            Self::INVALID_OBJECT_HANDLE => "INVALID_OBJECT_HANDLE",
            Self::INVALID_OBJECT_PARENT => "INVALID_OBJECT_PARENT",
            Self::INVALID_PARAM_STRUCT => "INVALID_PARAM_STRUCT",
            Self::INVALID_STATE => "INVALID_STATE",
            Self::NO_MEMORY => "NO_MEMORY",
            Self::NOT_SUPPORTED => "NOT_SUPPORTED",
            Self::OBJECT_NOT_FOUND => "OBJECT_NOT_FOUND",
            Self::RESET_REQUIRED => "RESET_REQUIRED",
            Self::TIMEOUT => "TIMEOUT",
            _ => "UNKNOWN",
        }
    }
}

/// First client handle the kernel generates (`RS_CLIENT_HANDLE_BASE`).
pub const CLIENT_HANDLE_BASE: u32 = 0xC1D0_0000;

// Controls of NV0000 (the client itself).
/// Deprecated: carried out as control `0x13e`, which one answer for the whole system is cached of. Once
/// anybody has asked, it is answered for every client that exists, on any file: it proves nothing.
pub const NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION: u32 = 0x101;
/// Neither cached nor privileged in any branch: answered on the client's own file and no other.
pub const NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS: u32 = 0x201;
pub const NV0000_CTRL_CMD_GPU_GET_ID_INFO: u32 = 0x202;
pub const NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: u32 = 0x205;
pub const NV0000_CTRL_CMD_GPU_GET_PROBED_IDS: u32 = 0x214;
pub const NV0000_CTRL_CMD_GPU_ATTACH_IDS: u32 = 0x215;
// Controls of NV0080 (a device).
pub const NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE: u32 = 0x0080_0289;
// Controls of NV2080 (a subdevice).
pub const NV2080_CTRL_CMD_GPU_GET_INFO_V2: u32 = 0x2080_0102;
pub const NV2080_CTRL_CMD_GPU_GET_NAME_STRING: u32 = 0x2080_0110;
pub const NV2080_CTRL_CMD_GPU_GET_GID_INFO: u32 = 0x2080_014a;
pub const NV2080_CTRL_CMD_FB_GET_INFO_V2: u32 = 0x2080_1303;
pub const NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS: u32 = 0x2080_110b;
pub const NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG: u32 = 0x2080_2210;
// Of NV_CONFIDENTIAL_COMPUTE.
pub const NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES: u32 = 0xcb33_0101;
// Controls of NVA06C (a TSG), NVA06F and NVC36F (a channel).
pub const NVA06C_CTRL_CMD_GPFIFO_SCHEDULE: u32 = 0xa06c_0101;
/// Binds every channel of the TSG.
pub const NVA06C_CTRL_CMD_BIND: u32 = 0xa06c_0102;
pub const NVA06C_CTRL_CMD_SET_TIMESLICE: u32 = 0xa06c_0103;
pub const NVA06C_CTRL_CMD_GET_TIMESLICE: u32 = 0xa06c_0104;
pub const NVA06C_CTRL_CMD_PREEMPT: u32 = 0xa06c_0105;
pub const NVA06F_CTRL_CMD_GPFIFO_SCHEDULE: u32 = 0xa06f_0103;
pub const NVA06F_CTRL_CMD_BIND: u32 = 0xa06f_0104;
pub const NVA06F_CTRL_CMD_RESTART_RUNLIST: u32 = 0xa06f_0111;
/// 535 to 550, as [`NVA06F_CTRL_CMD_GPFIFO_SCHEDULE`].
pub const NVC36F_CTRL_CMD_GPFIFO_SCHEDULE: u32 = 0xc36f_0103;
/// 535 to 550, as [`NVA06F_CTRL_CMD_BIND`].
pub const NVC36F_CTRL_CMD_BIND: u32 = 0xc36f_0104;
pub const NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: u32 = 0xc36f_0108;

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($field:ident : $ty:ty = $at:literal),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $at);)*
        };
    };
}

layout!(
    /// `NV_ESC_RM_FREE`.
    Nvos00, 16, { h_root: u32 = 0, h_object_parent: u32 = 4, h_object_old: u32 = 8, status: u32 = 12 });
layout!(
    /// `NV_ESC_RM_ALLOC`, the size raw RM tools use.
    Nvos21, 32, { h_root: u32 = 0, h_object_parent: u32 = 4, h_object_new: u32 = 8, h_class: u32 = 12,
    p_alloc_parms: u64 = 16, params_size: u32 = 24, status: u32 = 28 });
layout!(
    /// `NV_ESC_RM_ALLOC`, the size libcuda uses.
    Nvos64, 48, { h_root: u32 = 0, h_object_parent: u32 = 4, h_object_new: u32 = 8, h_class: u32 = 12,
    p_alloc_parms: u64 = 16, p_rights_requested: u64 = 24, params_size: u32 = 32, flags: u32 = 36,
    status: u32 = 40, pad: u32 = 44 });
layout!(
    /// `NV_ESC_RM_CONTROL`.
    Nvos54, 32, { h_client: u32 = 0, h_object: u32 = 4, cmd: u32 = 8, flags: u32 = 12, params: u64 = 16,
    params_size: u32 = 24, status: u32 = 28 });
layout!(
    /// `NV_ESC_RM_DUP_OBJECT`.
    Nvos55, 28, { h_client: u32 = 0, h_parent: u32 = 4, h_object: u32 = 8, h_client_src: u32 = 12,
    h_object_src: u32 = 16, flags: u32 = 20, status: u32 = 24 });
layout!(
    /// `NV_ESC_RM_SHARE`.
    Nvos57, 24, { h_client: u32 = 0, h_object: u32 = 4, share_policy: [u32; 3] = 8, status: u32 = 20 });
layout!(
    /// `NV_ESC_RM_MAP_MEMORY`: announces the next `mmap` on `fd`.
    Nvos33WithFd, 56, { h_client: u32 = 0, h_device: u32 = 4, h_memory: u32 = 8, pad: u32 = 12, offset: u64 = 16,
    length: u64 = 24, p_linear_address: u64 = 32, status: u32 = 40, flags: u32 = 44, fd: i32 = 48, pad2: u32 = 52 });
layout!(
    /// `NV_ESC_RM_UNMAP_MEMORY`.
    Nvos34, 32, { h_client: u32 = 0, h_device: u32 = 4, h_memory: u32 = 8, pad: u32 = 12,
    p_linear_address: u64 = 16, status: u32 = 24, flags: u32 = 28 });
layout!(
    /// `NV_ESC_IOCTL_XFER_CMD`: an ioctl whose arguments travel by pointer.
    Xfer, 16, { cmd: u32 = 0, size: u32 = 4, ptr: u64 = 8 });
layout!(
    /// One entry of `NV_ESC_CARD_INFO`.
    CardInfo, 72, { valid: u32 = 0, domain: u32 = 4, bus: u8 = 8, slot: u8 = 9, function: u8 = 10, pad: u8 = 11,
    vendor: u16 = 12, device: u16 = 14, gpu_id: u32 = 16, irq: u16 = 20, pad2: u16 = 22, reg_addr: u64 = 24,
    reg_size: u64 = 32, fb_addr: u64 = 40, fb_size: u64 = 48, minor: u32 = 56, dev_name: [u8; 10] = 60, pad3: u16 = 70 });
layout!(
    /// `NV_ESC_SYS_PARAMS`.
    SysParams, 8, { memblock_size: u64 = 0 });
layout!(
    /// `NV_ESC_REGISTER_FD`, on `/dev/nvidiaN`.
    RegisterFd, 4, { ctl_fd: i32 = 0 });
layout!(
    /// Parameters of `NV01_DEVICE_0`. `device_id` is the device *instance*, not the CUDA ordinal.
    Nv0080Alloc, 56, { device_id: u32 = 0, h_client_share: u32 = 4, h_target_client: u32 = 8, h_target_device: u32 = 12,
    flags: u32 = 16, pad: u32 = 20, va_space_size: u64 = 24, va_start_internal: u64 = 32, va_limit_internal: u64 = 40,
    va_mode: u32 = 48, pad2: u32 = 52 });
layout!(
    /// Parameters of `NV20_SUBDEVICE_0`.
    Nv2080Alloc, 4, { sub_device_id: u32 = 0 });
layout!(
    /// Parameters of `KEPLER_CHANNEL_GROUP_A`.
    ChannelGroupAlloc, 20, { h_object_error: u32 = 0, h_object_ecc_error: u32 = 4, h_va_space: u32 = 8, engine_type: u32 = 12,
    is_calling_context_vgpu_plugin: u32 = 16 });
layout!(
    /// Parameters of `FERMI_CONTEXT_SHARE_A`.
    CtxShareAlloc, 12, { h_va_space: u32 = 0, flags: u32 = 4, subctx_id: u32 = 8 });
layout!(
    /// Parameters of a GPFIFO class up to 595 in the longest form ([`Branch::channel_alloc_size`]). The first
    /// 304 bytes are the same in each of them.
    ChannelAlloc, 368, { h_object_error: u32 = 0, h_object_buffer: u32 = 4, gp_fifo_offset: u64 = 8, gp_fifo_entries: u32 = 16,
    flags: u32 = 20, h_context_share: u32 = 24, h_va_space: u32 = 28, h_userd_memory: [u32; 8] = 32, userd_offset: [u64; 8] = 64,
    engine_type: u32 = 128, cid: u32 = 132, sub_device_id: u32 = 136, h_object_ecc_error: u32 = 140, instance_mem: [u64; 3] = 144,
    userd_mem: [u64; 3] = 168, ramfc_mem: [u64; 3] = 192, mthdbuf_mem: [u64; 3] = 216, h_phys_channel_group: u32 = 240,
    internal_flags: u32 = 244, error_notifier_mem: [u64; 3] = 248, ecc_error_notifier_mem: [u64; 3] = 272, process_id: u32 = 296,
    sub_process_id: u32 = 300, encrypt_iv: [u32; 3] = 304, decrypt_iv: [u32; 3] = 316, hmac_nonce: [u32; 8] = 328,
    tpc_config_id: u32 = 360, pad: u32 = 364 });
layout!(
    /// Parameters of a GPFIFO class from 610: a handle more at 32, which moves what follows.
    ChannelAlloc610, 376, { h_object_error: u32 = 0, h_object_buffer: u32 = 4, gp_fifo_offset: u64 = 8, gp_fifo_entries: u32 = 16, flags: u32 = 20, h_context_share: u32 = 24, h_va_space: u32 = 28, h_handle_va_space: u32 = 32, h_userd_memory: [u32; 8] = 36, pad_userd: u32 = 68, userd_offset: [u64; 8] = 72, engine_type: u32 = 136, cid: u32 = 140, sub_device_id: u32 = 144, h_object_ecc_error: u32 = 148, instance_mem: [u64; 3] = 152, userd_mem: [u64; 3] = 176, ramfc_mem: [u64; 3] = 200, mthdbuf_mem: [u64; 3] = 224, h_phys_channel_group: u32 = 248, internal_flags: u32 = 252, error_notifier_mem: [u64; 3] = 256, ecc_error_notifier_mem: [u64; 3] = 280, process_id: u32 = 304, sub_process_id: u32 = 308, encrypt_iv: [u32; 3] = 312, decrypt_iv: [u32; 3] = 324, hmac_nonce: [u32; 8] = 336, tpc_config_id: u32 = 368, pad: u32 = 372 });
const _: () = {
    use core::mem::offset_of;
    assert!(Branch::B595.channel_engine_at() == offset_of!(ChannelAlloc, engine_type));
    assert!(Branch::B610.channel_engine_at() == offset_of!(ChannelAlloc610, engine_type));
    assert!(Branch::B610.channel_alloc_size() == core::mem::size_of::<ChannelAlloc610>());
};
layout!(
    /// Parameters of the memory classes. `size` is rounded up by the driver and written back. 535 ends
    /// before `numa_node` ([`Branch::memory_alloc_size`]).
    MemoryAlloc, 128, { owner: u32 = 0, kind: u32 = 4, flags: u32 = 8, width: u32 = 12, height: u32 = 16, pitch: i32 = 20,
    attr: u32 = 24, attr2: u32 = 28, format: u32 = 32, compr_covg: u32 = 36, zcull_covg: u32 = 40, pad: u32 = 44,
    range_lo: u64 = 48, range_hi: u64 = 56, size: u64 = 64, alignment: u64 = 72, offset: u64 = 80, limit: u64 = 88,
    address: u64 = 96, ctag_offset: u32 = 104, h_va_space: u32 = 108, internal_flags: u32 = 112, tag: u32 = 116,
    numa_node: i32 = 120, pad2: u32 = 124 });
layout!(
    /// Parameters of `FERMI_VASPACE_A` in the longest form; before 580 there is no `pasid`
    /// ([`Branch::vaspace_alloc_size`]).
    VaspaceAlloc, 56, { index: u32 = 0, flags: u32 = 4, va_size: u64 = 8, va_start_internal: u64 = 16,
    va_limit_internal: u64 = 24, big_page_size: u32 = 32, pad: u32 = 36, va_base: u64 = 40,
    pasid: u32 = 48, pad2: u32 = 52 });
/// `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED`: UVM manages it, and its channels must be
/// registered with UVM before they are scheduled.
pub const VASPACE_EXTERNALLY_OWNED: u32 = 1 << 3;
/// `NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING`.
pub const VASPACE_PAGE_FAULTING: u32 = 1 << 6;
layout!(
    /// `NVA06C_CTRL_CMD_SET_TIMESLICE` and `NVA06C_CTRL_CMD_GET_TIMESLICE`, microseconds.
    Timeslice, 8, { timeslice_us: u64 = 0 });
layout!(
    /// `NVA06C_CTRL_CMD_PREEMPT`.
    Preempt, 8, { wait: u8 = 0, manual_timeout: u8 = 1, pad: u16 = 2, timeout_us: u32 = 4 });
layout!(
    /// `NVA06F_CTRL_CMD_RESTART_RUNLIST`. Who calls it needs the right NICE, which is `CAP_SYS_NICE`.
    RestartRunlist, 2, { force: u8 = 0, bypass_wait: u8 = 1 });
layout!(
    /// `NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN`.
    WorkSubmitToken, 4, { token: u32 = 0 });
layout!(
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`.
    IdInfoV2, 32, { gpu_id: u32 = 0, gpu_flags: u32 = 4, device_instance: u32 = 8, sub_device_instance: u32 = 12, sli_status: u32 = 16,
    board_id: u32 = 20, gpu_instance: u32 = 24, numa_id: i32 = 28 });

/// `NV_ESC_CHECK_VERSION_STR`. `cmd`: 0 strict, `'1'` relaxed, `'2'` query; `reply` 1 = recognised.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmApiVersion {
    pub cmd: u32,
    pub reply: u32,
    pub version: [u8; 64],
}
const _: () = assert!(core::mem::size_of::<RmApiVersion>() == 72);

/// `NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION`. The driver copies these bytes whatever size is stated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildVersion {
    pub size_of_strings: u32,
    pub pad: u32,
    pub p_driver_version_buffer: u64,
    pub p_version_buffer: u64,
    pub p_title_buffer: u64,
    pub changelist_number: u32,
    pub official_changelist_number: u32,
}
const _: () = assert!(core::mem::size_of::<BuildVersion>() == 40);

/// GPUs in one `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS` or `..._PROBED_IDS` answer.
pub const MAX_GPUS: usize = 32;
/// Fills the unused places of such an answer.
pub const INVALID_GPU_ID: u32 = 0xffff_ffff;

/// `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedIds {
    pub gpu_ids: [u32; MAX_GPUS],
}
const _: () = assert!(core::mem::size_of::<AttachedIds>() == 128);

/// `NV0000_CTRL_CMD_GPU_GET_PROBED_IDS` in the longest form; before 580 there are no flags
/// ([`Branch::probed_ids_size`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedIds {
    pub gpu_ids: [u32; MAX_GPUS],
    pub excluded_gpu_ids: [u32; MAX_GPUS],
    pub gpu_flags: [u32; MAX_GPUS],
}
const _: () = assert!(core::mem::size_of::<ProbedIds>() == Branch::B595.probed_ids_size());

/// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`. A first id of `0xffff` attaches every probed GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachIds {
    pub gpu_ids: [u32; MAX_GPUS],
    pub failed_id: u32,
}
const _: () = assert!(core::mem::size_of::<AttachIds>() == 132);

/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`; with flags 2 (binary SHA-1) the first 16 bytes of `data` are the UUID.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidInfo {
    pub index: u32,
    pub flags: u32,
    pub length: u32,
    pub data: [u8; 256],
}
const _: () = assert!(core::mem::size_of::<GidInfo>() == 268);
/// `NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY`.
pub const GID_FORMAT_BINARY: u32 = 2;

/// Bytes of a GPU's name in ASCII; the rest of [`NameString`] is for wider letters.
pub const NAME_ASCII: usize = 64;
/// `NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS`; from 595 on the text is [`NAME_ASCII`] bytes
/// ([`Branch::name_string_size`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameString {
    /// 0: ASCII.
    pub flags: u32,
    pub text: [u8; 128],
}
const _: () = assert!(core::mem::size_of::<NameString>() == Branch::B590.name_string_size());

/// Places in `NV2080_CTRL_CMD_FB_GET_INFO_V2`, the most that any branch has.
pub const FB_INFO_PLACES: usize = 128;

/// `NV2080_CTRL_CMD_FB_GET_INFO_V2`: the caller names indices, the driver adds kibibytes. How many
/// places a branch has is in [`Branch::fb_info_size`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FbInfoV2 {
    pub list_size: u32,
    /// Index and value.
    pub list: [[u32; 2]; FB_INFO_PLACES],
}
const _: () = assert!(core::mem::size_of::<FbInfoV2>() == Branch::B595.fb_info_size());
/// `NV2080_CTRL_GPU_GET_INFO_V2_PARAMS` with the most places any branch has; how many a branch looks
/// at is [`Branch::gpu_info_size`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInfoV2 {
    pub list_size: u32,
    /// Index and value.
    pub list: [[u32; 2]; GPU_INFO_PLACES],
}
pub const GPU_INFO_PLACES: usize = 0x48;
const _: () = assert!(core::mem::size_of::<GpuInfoV2>() == Branch::B610.gpu_info_size());
/// `NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE`.
pub const GPU_INFO_SMC_MODE: u32 = 0x2a;
/// Its values: MIG cannot be had, is on, is off, and is to change with the next reset.
pub const SMC_MODE_UNSUPPORTED: u32 = 0;
pub const SMC_MODE_ENABLED: u32 = 1;
pub const SMC_MODE_DISABLED: u32 = 2;
pub const SMC_MODE_ENABLE_PENDING: u32 = 3;
pub const SMC_MODE_DISABLE_PENDING: u32 = 4;

/// `NV0080_CTRL_GPU_GET_VIRTUALIZATION_MODE_PARAMS`; branches before 570 lack the second word
/// ([`Branch::virtualization_size`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtualization {
    pub mode: u32,
    pub is_grid_build: u8,
    pub padding: [u8; 3],
}
const _: () = assert!(core::mem::size_of::<Virtualization>() == Branch::B595.virtualization_size());

/// `NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES_PARAMS`; the oldest branch lacks the last byte
/// ([`Branch::capabilities_size`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfidentialCapabilities {
    pub cpu: u8,
    pub gpus: u8,
    pub environment: u8,
    /// 0: off.
    pub feature: u8,
    pub dev_tools: u8,
    pub multi_gpu: u8,
}
const _: () = assert!(core::mem::size_of::<ConfidentialCapabilities>() == 6);
/// `NV_CONF_COMPUTE_SYSTEM_FEATURE_HCC_ENABLED`.
pub const CONFIDENTIAL_FEATURE_HCC: u8 = 2;

/// `NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE`.
pub const FB_INFO_RAM_SIZE: u32 = 0x07;
/// `NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE`.
pub const FB_INFO_TOTAL_RAM_SIZE: u32 = 0x08;
/// `NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE`.
pub const FB_INFO_HEAP_SIZE: u32 = 0x09;
/// `NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE`.
pub const FB_INFO_HEAP_FREE: u32 = 0x16;

/// (client, channel) pairs that one `FIFO_DISABLE_CHANNELS` carries at most.
pub const MAX_PAIRS: usize = 64;

/// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`, on a subdevice of the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisableChannels {
    pub disable: u8,
    pub pad: [u8; 3],
    pub num_channels: u32,
    /// What runs stays until it is preempted or its timeslice ends.
    pub only_disable_scheduling: u8,
    /// Never set: it throws queued work away.
    pub rewind_gp_put: u8,
    pub pad2: [u8; 6],
    /// NULL from user space, else `INSUFFICIENT_PERMISSIONS`.
    pub p_runlist_preempt_event: u64,
    pub h_client_list: [u32; MAX_PAIRS],
    pub h_channel_list: [u32; MAX_PAIRS],
}
const _: () = {
    assert!(core::mem::size_of::<DisableChannels>() == 536);
    assert!(core::mem::offset_of!(DisableChannels, num_channels) == 4);
    assert!(core::mem::offset_of!(DisableChannels, only_disable_scheduling) == 8);
    assert!(core::mem::offset_of!(DisableChannels, rewind_gp_put) == 9);
    assert!(core::mem::offset_of!(DisableChannels, p_runlist_preempt_event) == 16);
    assert!(core::mem::offset_of!(DisableChannels, h_client_list) == 24);
    assert!(core::mem::offset_of!(DisableChannels, h_channel_list) == 280);
};

impl Default for DisableChannels {
    fn default() -> Self {
        Self {
            disable: 0,
            pad: [0; 3],
            num_channels: 0,
            only_disable_scheduling: 0,
            rewind_gp_put: 0,
            pad2: [0; 6],
            p_runlist_preempt_event: 0,
            h_client_list: [0; MAX_PAIRS],
            h_channel_list: [0; MAX_PAIRS],
        }
    }
}
