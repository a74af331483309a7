//! Memory: what an address is, and device memory as objects mapped into this process.
//!
//! Device memory stands at its device address in this process: an RM object, mapped over reserved
//! addresses by the UVM ioctl. Small allocations share a 2 MiB object, as the real library does.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::class::NV01_MEMORY_LOCAL_USER;
use tidegate_abi::cuda::CUresult;
use tidegate_abi::uvm::{
    UVM_CREATE_EXTERNAL_RANGE, UVM_FREE, UVM_MAP_EXTERNAL_ALLOCATION, UvmCreateExternalRange,
    UvmFree, UvmFree590, UvmGpuMappingAttributes, UvmMapExternalAllocation,
};

use super::context::Context;
use super::current;
use crate::driver;
use crate::gpu::Gpu;
use crate::handle::Pinned;
use crate::locks;
use crate::result::CudaResult;
use crate::rm::{self, RmResult, uvm_bytes};

/// Unit of device memory objects and of address reservations.
pub const PAGE: u64 = 2 << 20;
/// Small allocations are this far apart.
pub const GRAIN: u64 = 512;

/// What stands at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Device memory of the GPU with this CUDA ordinal.
    Device(i32),
    /// Device memory that an API call promised is reachable from both sides.
    Managed(i32),
    /// Page-locked host memory made here.
    Host,
    /// Host memory of the application, registered.
    Registered,
}

/// The context an allocation was made in.
pub type Owner = Option<&'static Pinned<Context>>;

/// One allocation.
#[derive(Clone, Copy)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// What it is.
    pub place: Place,
    /// Flags of a host allocation or registration.
    pub flags: u32,
    /// Context it was made in; none for mapped handles, which are the process'.
    pub context: Owner,
    /// Unique in the process.
    pub id: u64,
}

#[derive(Default)]
struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    /// Objects with one allocation each: base to RM handle and bytes.
    objects: BTreeMap<u64, (u32, u64)>,
    /// Objects shared by small allocations, per GPU.
    shared: BTreeMap<i32, Vec<Shared>>,
    next_id: u64,
}

/// A 2 MiB object and the free spans in it: offset to length.
struct Shared {
    base: u64,
    free: BTreeMap<u64, u64>,
}

impl Shared {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&at, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&at);
        if length > bytes {
            self.free.insert(at + bytes, length - bytes);
        }
        Some(self.base + at)
    }

    fn give(&mut self, address: u64, bytes: u64) {
        let (mut at, mut length) = (address - self.base, bytes);
        if let Some(after) = self.free.remove(&(at + length)) {
            length += after;
        }
        let before = self
            .free
            .range(..at)
            .next_back()
            .map(|(at, length)| (*at, *length));
        if let Some((start, before)) = before.filter(|(start, length)| start + length == at) {
            at = start;
            length += before;
        }
        self.free.insert(at, length);
    }
}

fn memory() -> MutexGuard<'static, Memory> {
    static MEMORY: Mutex<Memory> = Mutex::new(Memory {
        allocations: BTreeMap::new(),
        objects: BTreeMap::new(),
        shared: BTreeMap::new(),
        next_id: 1,
    });
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn add(&mut self, base: u64, bytes: u64, place: Place, flags: u32, context: Owner) {
        let id = self.next_id;
        self.next_id += 1;
        let allocation = Allocation {
            base,
            bytes,
            place,
            flags,
            context,
            id,
        };
        self.allocations.insert(base, allocation);
    }
}

/// The allocation that holds `address`.
pub fn find(address: u64) -> Option<Allocation> {
    let memory = memory();
    let (_, allocation) = memory.allocations.range(..=address).next_back()?;
    (address < allocation.base + allocation.bytes.max(1)).then_some(*allocation)
}

/// Device memory that is freed with this value, unless somebody freed it before.
#[derive(Debug)]
pub struct Owned {
    /// Its address.
    pub address: u64,
    id: Option<u64>,
}

impl Owned {
    /// Takes over what [`allocate`] made.
    pub fn new(address: u64) -> Self {
        let id = find(address).map(|allocation| allocation.id);
        Self { address, id }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The address may be somebody else's by now; the number is not.
        if find(self.address).map(|allocation| allocation.id) == self.id {
            let _ = free_device(self.address);
        }
    }
}

/// Flag of mapped memory that other devices may reach directly.
pub const RDMA: u32 = 1 << 31;

/// Notes that device memory is mapped at an address, and whether other devices may reach it.
pub fn announce(base: u64, bytes: u64, place: Place, rdma: bool) {
    memory().add(base, bytes, place, if rdma { RDMA } else { 0 }, None);
}

/// Notes host memory that the application registered.
pub fn announce_host(base: u64, bytes: u64, flags: u32) -> CudaResult {
    let context = current::context()?;
    memory().add(base, bytes, Place::Registered, flags, Some(context));
    Ok(())
}

/// Takes back what [`announce`] or [`announce_host`] noted.
pub fn forget(base: u64) {
    memory().allocations.remove(&base);
}

/// Frees the device memory that was allocated in a context which is gone.
pub fn drop_context(context: u64) {
    let device = |a: &&Allocation| matches!(a.place, Place::Device(_) | Place::Managed(_));
    let mine: Vec<u64> = {
        let memory = memory();
        let of = memory
            .allocations
            .values()
            .filter(|a| a.context.is_some_and(|owner| owner.id == context))
            .filter(device);
        of.map(|a| a.base).collect()
    };
    for base in mine {
        // The driver frees what this cannot with the file.
        let _ = free_device(base);
    }
}

/// Reserves `bytes` of addresses aligned to `alignment`, without access.
pub fn reserve(bytes: u64, alignment: u64, wanted: u64) -> CudaResult<u64> {
    let slack = bytes + alignment;
    // SAFETY: a fresh private mapping without access; the address is only a wish.
    let at = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(wanted as usize),
            slack as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let start = at.expose_provenance() as u64;
    let base = start.next_multiple_of(alignment);
    let (head, tail) = (base - start, start + slack - (base + bytes));
    if head > 0 {
        release(start, head);
    }
    if tail > 0 {
        release(base + bytes, tail);
    }
    Ok(base)
}

/// Gives addresses back to the system.
pub fn release(base: u64, bytes: u64) {
    // SAFETY: addresses that `reserve` made and nobody uses any more.
    unsafe {
        libc::munmap(
            std::ptr::with_exposed_provenance_mut(base as usize),
            bytes as usize,
        )
    };
}

/// Allocates `bytes` of memory of `gpu` as an RM object.
pub fn create_object(gpu: &Gpu, bytes: u64) -> RmResult<u32> {
    gpu.rm.alloc_with(
        "alloc device memory",
        gpu.device,
        NV01_MEMORY_LOCAL_USER,
        |layout, parameters| {
            layout.put_word(parameters, "owner", gpu.rm.client);
            layout.put_long(parameters, "size", bytes);
            layout.put_long(parameters, "alignment", PAGE);
        },
    )
}

/// Makes `[base, base + bytes)` a range that device memory can be mapped into.
pub fn create_range(gpu: &Gpu, base: u64, bytes: u64) -> RmResult {
    let mut p = UvmCreateExternalRange {
        base,
        length: bytes,
        ..UvmCreateExternalRange::default()
    };
    rm::uvm(
        "UVM_CREATE_EXTERNAL_RANGE",
        &gpu.rm.uvm,
        UVM_CREATE_EXTERNAL_RANGE,
        &mut p,
        |p| p.rm_status,
    )
}

/// Maps `object` from `offset` over `[base, base + bytes)`.
pub fn map(gpu: &Gpu, base: u64, bytes: u64, object: u32, offset: u64) -> RmResult {
    let narrow = size_of::<UvmMapExternalAllocation<32>>();
    if uvm_bytes(gpu.rm.driver, UVM_MAP_EXTERNAL_ALLOCATION) == narrow {
        map_as::<32>(gpu, base, bytes, object, offset)
    } else {
        map_as::<256>(gpu, base, bytes, object, offset)
    }
}

fn map_as<const GPUS: usize>(
    gpu: &Gpu,
    base: u64,
    bytes: u64,
    object: u32,
    offset: u64,
) -> RmResult {
    let mut p = UvmMapExternalAllocation::<GPUS> {
        base,
        length: bytes,
        offset,
        per_gpu_attributes: [UvmGpuMappingAttributes::default(); GPUS],
        gpu_attributes_count: 1,
        rm_ctrl_fd: gpu.rm.ctl.as_raw_fd(),
        h_client: gpu.rm.client,
        h_memory: object,
        rm_status: 0,
    };
    p.per_gpu_attributes[0].gpu_uuid = gpu.uuid.bytes;
    rm::uvm(
        "UVM_MAP_EXTERNAL_ALLOCATION",
        &gpu.rm.uvm,
        UVM_MAP_EXTERNAL_ALLOCATION,
        &mut p,
        |p| p.rm_status,
    )
}

/// Ends the range at `base` and what is mapped there.
pub fn free_range(gpu: &Gpu, base: u64, bytes: u64) -> RmResult {
    if uvm_bytes(gpu.rm.driver, UVM_FREE) == size_of::<UvmFree590>() {
        let mut p = UvmFree590 {
            base,
            ..UvmFree590::default()
        };
        return rm::uvm("UVM_FREE", &gpu.rm.uvm, UVM_FREE, &mut p, |p| p.rm_status);
    }
    let mut p = UvmFree {
        base,
        length: bytes,
        ..UvmFree::default()
    };
    rm::uvm("UVM_FREE", &gpu.rm.uvm, UVM_FREE, &mut p, |p| p.rm_status)
}

/// An object of its own for `bytes`, mapped.
fn whole(gpu: &Gpu, bytes: u64) -> CudaResult<(u64, u32)> {
    let base = reserve(bytes, PAGE, 0)?;
    let object = create_object(gpu, bytes).inspect_err(|_| release(base, bytes))?;
    let mapped = create_range(gpu, base, bytes).and_then(|()| map(gpu, base, bytes, object, 0));
    if let Err(error) = mapped {
        let _ = gpu.rm.free(object);
        release(base, bytes);
        return Err(error.into());
    }
    Ok((base, object))
}

/// Device memory for the current context.
pub fn allocate(bytes: u64, place: impl Fn(i32) -> Place) -> CudaResult<u64> {
    let context = current::context()?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (gpu, ordinal) = (context.gpu, context.ordinal);
    let _held = locks::call(gpu);
    gpu.space()?;
    let rounded = bytes
        .checked_next_multiple_of(GRAIN)
        .ok_or(CUresult::OUT_OF_MEMORY)?;
    let mut memory = memory();
    let base = if rounded > PAGE / 2 {
        let rounded = bytes
            .checked_next_multiple_of(PAGE)
            .ok_or(CUresult::OUT_OF_MEMORY)?;
        let (base, object) = whole(gpu, rounded)?;
        memory.objects.insert(base, (object, rounded));
        base
    } else {
        let shared = memory.shared.entry(ordinal).or_default();
        match shared.iter_mut().find_map(|chunk| chunk.take(rounded)) {
            Some(base) => base,
            None => {
                let (base, _object) = whole(gpu, PAGE)?;
                let free = BTreeMap::from([(rounded, PAGE - rounded)]);
                shared.push(Shared { base, free });
                base
            }
        }
    };
    memory.add(base, bytes, place(ordinal), 0, Some(context));
    Ok(base)
}

/// Frees what [`allocate`] made.
pub fn free_device(address: u64) -> CudaResult {
    let mut memory = memory();
    let allocation = memory
        .allocations
        .get(&address)
        .copied()
        .ok_or(CUresult::INVALID_VALUE)?;
    let (Place::Device(ordinal) | Place::Managed(ordinal)) = allocation.place else {
        return Err(CUresult::INVALID_VALUE);
    };
    memory.allocations.remove(&address);
    let gpu = driver::device(ordinal)?;
    if let Some((object, bytes)) = memory.objects.remove(&address) {
        drop(memory);
        free_range(gpu, address, bytes)?;
        gpu.rm.free(object)?;
        release(address, bytes);
        return Ok(());
    }
    let rounded = allocation.bytes.next_multiple_of(GRAIN);
    let chunks = memory.shared.entry(ordinal).or_default();
    let chunk = chunks
        .iter_mut()
        .find(|c| (c.base..c.base + PAGE).contains(&address));
    chunk.ok_or(CUresult::INVALID_VALUE)?.give(address, rounded);
    Ok(())
}

/// Page-locked host memory for the current context.
pub fn allocate_host(bytes: usize, flags: u32) -> CudaResult<u64> {
    let context = current::context()?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let rounded = bytes
        .checked_next_multiple_of(4096)
        .ok_or(CUresult::OUT_OF_MEMORY)?;
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            rounded,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let base = at.expose_provenance() as u64;
    memory().add(base, bytes as u64, Place::Host, flags, Some(context));
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut chunk = Shared {
            base: 0x1000_0000,
            free: BTreeMap::from([(0, PAGE)]),
        };
        let spans: Vec<u64> = (0..4).map(|_| chunk.take(GRAIN).expect("space")).collect();
        for at in [1, 3, 0, 2] {
            chunk.give(spans[at], GRAIN);
        }
        assert_eq!(chunk.free, BTreeMap::from([(0, PAGE)]));
    }

    #[test]
    fn a_span_that_is_too_small_is_not_used() {
        let mut chunk = Shared {
            base: 0,
            free: BTreeMap::from([(0, GRAIN), (2 * GRAIN, 4 * GRAIN)]),
        };
        assert_eq!(chunk.take(2 * GRAIN), Some(2 * GRAIN));
    }
}
