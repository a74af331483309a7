//! What can be asked of a device: a Hopper-class GPU as programs expect to find one.

use std::ffi::{CStr, c_char};

use tidegate_abi::cuda::{CUdevice, CUresult, CUuuid};

use crate::driver;
use crate::result::{CudaResult, store};

/// Its name, which nobody takes for that of a GPU.
const NAME: &str = "VIRTUAL NVIDIA H200";

/// `cuDeviceGetCount`.
pub fn count(out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the count.
    unsafe { store(out, driver::get()?.gpus.len() as i32) }
}

/// `cuDeviceGet`.
pub fn get(out: *mut CUdevice, ordinal: i32) -> CudaResult {
    driver::device(ordinal)?;
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, ordinal) }
}

/// Writes `text`, cut to fit with its terminator, into a buffer of `length` bytes.
fn put_text(out: *mut c_char, length: i32, text: &str) -> CudaResult {
    let length = usize::try_from(length).unwrap_or(0);
    if out.is_null() || length == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let cut = &text.as_bytes()[..text.len().min(length - 1)];
    // SAFETY: the caller's buffer has `length` bytes, of which these are fewer.
    unsafe {
        std::ptr::copy_nonoverlapping(cut.as_ptr(), out.cast(), cut.len());
        *out.add(cut.len()) = 0;
    }
    Ok(())
}

/// `cuDeviceGetName`.
pub fn name(out: *mut c_char, length: i32, ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    put_text(out, length, NAME)
}

/// `cuDeviceGetUuid`, both signatures.
pub fn uuid(out: *mut CUuuid, ordinal: CUdevice) -> CudaResult {
    // SAFETY: `out` is the caller's place for a UUID.
    unsafe { store(out, driver::device(ordinal)?.uuid) }
}

/// `cuDeviceTotalMem_v2`.
pub fn total_memory(out: *mut usize, ordinal: CUdevice) -> CudaResult {
    let (_, total) = driver::device(ordinal)?.memory()?;
    // SAFETY: `out` is the caller's place for the size.
    unsafe { store(out, total as usize) }
}

fn pci_text(ordinal: CUdevice) -> CudaResult<String> {
    let (domain, bus, slot) = driver::device(ordinal)?.card.pci;
    Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
}

/// `cuDeviceGetPCIBusId`.
pub fn pci_bus_id(out: *mut c_char, length: i32, ordinal: CUdevice) -> CudaResult {
    put_text(out, length, &pci_text(ordinal)?)
}

/// `cuDeviceGetByPCIBusId`.
pub fn by_pci_bus_id(out: *mut CUdevice, id: *const c_char) -> CudaResult {
    if id.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller passes a C string.
    let id = unsafe { CStr::from_ptr(id) }
        .to_string_lossy()
        .to_lowercase();
    let wanted = id.trim_end_matches(".0");
    for ordinal in 0..driver::get()?.gpus.len() as i32 {
        let text = pci_text(ordinal)?;
        let full = text.trim_end_matches(".0");
        if full == wanted
            || full
                .split_once(':')
                .is_some_and(|(_, short)| short == wanted)
        {
            // SAFETY: `out` is the caller's place for a device.
            return unsafe { store(out, ordinal) };
        }
    }
    Err(CUresult::INVALID_DEVICE)
}

/// `cuDeviceComputeCapability`.
pub fn compute_capability(major: *mut i32, minor: *mut i32, ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    // SAFETY: both are the caller's places.
    unsafe {
        store(major, 9)?;
        store(minor, 0)
    }
}

/// `CUdevprop`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    max_threads_per_block: i32,
    max_threads_dim: [i32; 3],
    max_grid_size: [i32; 3],
    shared_mem_per_block: i32,
    total_constant_memory: i32,
    simd_width: i32,
    mem_pitch: i32,
    regs_per_block: i32,
    clock_rate: i32,
    texture_align: i32,
}

/// `cuDeviceGetProperties`.
pub fn properties(out: *mut Properties, ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    let properties = Properties {
        max_threads_per_block: 1024,
        max_threads_dim: [1024, 1024, 64],
        max_grid_size: [i32::MAX, 65535, 65535],
        shared_mem_per_block: 49_152,
        total_constant_memory: 65_536,
        simd_width: 32,
        mem_pitch: i32::MAX,
        regs_per_block: 65_536,
        clock_rate: 1_980_000,
        texture_align: 512,
    };
    // SAFETY: `out` is the caller's place for the properties.
    unsafe { store(out, properties) }
}

/// `cuDeviceGetAttribute`. What the virtual GPU cannot do (arrays, fabric, multicast, IPC) is 0.
pub fn attribute(out: *mut i32, attribute: i32, ordinal: CUdevice) -> CudaResult {
    let (domain, bus, slot) = driver::device(ordinal)?.card.pci;
    let value = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65_536,
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => 132,
        19 => 1,
        21..=29 | 42..=49 | 52..=73 => 16_384,
        74 | 77 => 16_384,
        30 => 512,
        31 | 32 => 1,
        33 => i32::from(bus),
        34 => i32::from(slot),
        36 => 3_201_000,
        37 => 6_144,
        38 => 62_914_560,
        39 => 2_048,
        // Two copy engines.
        40 => 2,
        41 => 1,
        50 => domain as i32,
        51 => 32,
        75 => 9,
        76 => 0,
        78..=80 => 1,
        81 => 233_472,
        83 => 1,
        87 => 2,
        90 | 91 | 95 => 1,
        // Stream memory operations, 64-bit, and waiting for a NOR.
        92..=94 | 122 | 123 => 1,
        97 => 232_448,
        99 => 1,
        // Virtual memory management and its handles as descriptors.
        102 | 103 => 1,
        106 => 32,
        108 | 109 => 0,
        110 => 1,
        111 => 1_024,
        115 => 1,
        119 => 1,
        120 => 1,
        126 => 4,
        127 | 129 => 0,
        131 | 134 => -1,
        139 => 0x2335_10de,
        140 => 0x18bf_10de,
        17 | 18 | 20 | 35 | 84..=86 | 88 | 89 | 96 | 98 | 100 | 101 | 104 | 105 | 107 => 0,
        112..=114 | 116..=118 | 121 | 124 | 125 | 128 | 130 | 132 | 133 | 135..=138 => 0,
        141..=147 => 0,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, value) }
}

/// `cuDeviceCanAccessPeer`: every other GPU can be reached.
pub fn can_access_peer(out: *mut i32, device: CUdevice, peer: CUdevice) -> CudaResult {
    driver::device(device)?;
    driver::device(peer)?;
    // SAFETY: `out` is the caller's place for the answer.
    unsafe { store(out, i32::from(device != peer)) }
}
