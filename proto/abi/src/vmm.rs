//! The structs of the CUDA driver's virtual memory management.

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const PINNED: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const DEVICE: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const READ_WRITE: i32 = 3;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub const GPU_DIRECT_RDMA_WITH_VMM: i32 = 110;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// [`DEVICE`] or another kind of place.
    pub kind: i32,
    /// CUDA ordinal.
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// [`PINNED`].
    pub kind: i32,
    /// How it may be exported.
    pub handle_types: i32,
    /// Where it is.
    pub location: Location,
    /// Of another system.
    pub win32: *mut u8,
    /// Compression, `gpuDirectRDMACapable`, usage, reserved.
    pub flags: [u8; 8],
}

impl Properties {
    /// Memory of a device that is not exported.
    #[must_use]
    pub const fn of_device(ordinal: i32) -> Self {
        Self {
            kind: PINNED,
            handle_types: 0,
            location: Location {
                kind: DEVICE,
                id: ordinal,
            },
            win32: core::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// For whom.
    pub location: Location,
    /// [`READ_WRITE`], 0 for none.
    pub flags: i32,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Properties>() == 32);
    assert!(offset_of!(Properties, flags) == 24);
    assert!(size_of::<Access>() == 12);
};
