//! Ioctls of `/dev/nvidia-uvm`: plain small numbers, the result in the struct's `rm_status`.
//!
//! Source: `kernel-open/nvidia-uvm/uvm_ioctl.h`, 535 to 595, offsets read off compiled headers.
#![allow(missing_docs)]

pub const UVM_INITIALIZE: u64 = 0x3000_0001;
pub const UVM_DEINITIALIZE: u64 = 0x3000_0002;
pub const UVM_REGISTER_GPU_VASPACE: u64 = 25;
pub const UVM_UNREGISTER_GPU_VASPACE: u64 = 26;
pub const UVM_REGISTER_CHANNEL: u64 = 27;
pub const UVM_UNREGISTER_CHANNEL: u64 = 28;
pub const UVM_ENABLE_PEER_ACCESS: u64 = 29;
pub const UVM_DISABLE_PEER_ACCESS: u64 = 30;
pub const UVM_MAP_EXTERNAL_ALLOCATION: u64 = 33;
pub const UVM_FREE: u64 = 34;
pub const UVM_REGISTER_GPU: u64 = 37;
pub const UVM_UNREGISTER_GPU: u64 = 38;
pub const UVM_PAGEABLE_MEM_ACCESS: u64 = 39;
pub const UVM_UNMAP_EXTERNAL: u64 = 66;
pub const UVM_ALLOC_SEMAPHORE_POOL: u64 = 68;
pub const UVM_VALIDATE_VA_RANGE: u64 = 72;
pub const UVM_CREATE_EXTERNAL_RANGE: u64 = 73;
pub const UVM_MM_INITIALIZE: u64 = 75;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmInitialize {
    pub flags: u64,
    pub rm_status: u32,
    pub pad: u32,
}
const _: () = assert!(core::mem::size_of::<UvmInitialize>() == 16);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmMmInitialize {
    pub uvm_fd: i32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmMmInitialize>() == 8);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmRegisterGpu {
    pub uuid: [u8; 16],
    pub numa_enabled: u32,
    pub numa_node_id: i32,
    pub rm_ctrl_fd: i32,
    pub h_client: u32,
    pub h_smc_part_ref: u32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmRegisterGpu>() == 40);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmRegisterGpuVaspace {
    pub uuid: [u8; 16],
    pub rm_ctrl_fd: i32,
    pub h_client: u32,
    pub h_va_space: u32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmRegisterGpuVaspace>() == 32);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmRegisterChannel {
    pub uuid: [u8; 16],
    pub rm_ctrl_fd: i32,
    pub h_client: u32,
    pub h_channel: u32,
    pub pad: u32,
    pub base: u64,
    pub length: u64,
    pub rm_status: u32,
    pub pad2: u32,
}
const _: () = assert!(core::mem::size_of::<UvmRegisterChannel>() == 56);
const _: () = assert!(core::mem::offset_of!(UvmRegisterChannel, base) == 32);
const _: () = assert!(core::mem::offset_of!(UvmRegisterChannel, rm_status) == 48);

/// 535 to 580. From 590 the struct is [`UvmUnregisterChannel590`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmUnregisterChannel {
    pub uuid: [u8; 16],
    pub h_client: u32,
    pub h_channel: u32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmUnregisterChannel>() == 28);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmUnregisterChannel590 {
    pub h_client: u32,
    pub h_channel: u32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmUnregisterChannel590>() == 12);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmCreateExternalRange {
    pub base: u64,
    pub length: u64,
    pub rm_status: u32,
    pub pad: u32,
}
const _: () = assert!(core::mem::size_of::<UvmCreateExternalRange>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UvmUnmapExternal {
    pub base: u64,
    pub length: u64,
    pub gpu_uuid: [u8; 16],
    pub rm_status: u32,
    pub pad: u32,
}
const _: () = assert!(core::mem::size_of::<UvmUnmapExternal>() == 40);

/// Attributes of one GPU in `UVM_MAP_EXTERNAL_ALLOCATION`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmGpuMappingAttributes {
    pub gpu_uuid: [u8; 16],
    pub mapping_type: u32,
    pub caching_type: u32,
    pub format_type: u32,
    pub element_bits: u32,
    pub compression_type: u32,
}
const _: () = assert!(core::mem::size_of::<UvmGpuMappingAttributes>() == 36);

/// `UVM_MAP_EXTERNAL_ALLOCATION`; `GPUS` is 32 in 535 and 256 from 550.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UvmMapExternalAllocation<const GPUS: usize> {
    pub base: u64,
    pub length: u64,
    pub offset: u64,
    pub per_gpu_attributes: [UvmGpuMappingAttributes; GPUS],
    pub gpu_attributes_count: u64,
    pub rm_ctrl_fd: i32,
    pub h_client: u32,
    pub h_memory: u32,
    pub rm_status: u32,
}
const _: () = assert!(core::mem::size_of::<UvmMapExternalAllocation<256>>() == 9264);
const _: () = assert!(core::mem::size_of::<UvmMapExternalAllocation<32>>() == 1200);
const _: () =
    assert!(core::mem::offset_of!(UvmMapExternalAllocation<256>, gpu_attributes_count) == 9240);

/// 535 to 580. From 590 the struct is [`UvmFree590`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmFree {
    pub base: u64,
    pub length: u64,
    pub rm_status: u32,
    pub pad: u32,
}
const _: () = assert!(core::mem::size_of::<UvmFree>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UvmFree590 {
    pub base: u64,
    pub rm_status: u32,
    pub pad: u32,
}
const _: () = assert!(core::mem::size_of::<UvmFree590>() == 16);
