//! Memory of the device and of the host, and counters in it.

use super::context::Cuda;
use super::library::{Result, call};
use cudarc::driver::sys::CUdevice;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::vmm::{Access, DEVICE, Location, Properties, READ_WRITE};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_MAPPED: c_uint = 3;

/// A counter in pinned host memory, which kernels add to. It is never freed.
#[derive(Clone, Copy, Debug)]
pub struct Counter(u64);

impl Counter {
    /// Its address, for the device too.
    #[must_use]
    pub const fn at(self) -> u64 {
        self.0
    }

    /// As far as it has come.
    #[must_use]
    pub fn value(self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `Cuda::counter` allocated a page of host memory for it, which is never freed; the device
        // writes it meanwhile, hence the atomic.
        unsafe { AtomicU64::from_ptr(self.0 as *mut u64) }
    }
}

impl Cuda {
    /// Free and total bytes of the device.
    ///
    /// # Errors
    /// The driver's; so for every method below.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Device memory.
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        let mut at = 0;
        call!(self, cuMemAlloc_v2(&raw mut at, bytes as usize))?;
        Ok(at)
    }

    /// Frees device memory.
    pub fn free(&self, at: u64) -> Result {
        call!(self, cuMemFree_v2(at))
    }

    /// Pinned host memory that the device sees at the same address.
    pub fn alloc_host(&self, bytes: u64) -> Result<u64> {
        let mut at = null_mut();
        call!(
            self,
            cuMemHostAlloc(&raw mut at, bytes as usize, HOST_MAPPED)
        )?;
        Ok(at as u64)
    }

    /// A counter at zero.
    pub fn counter(&self) -> Result<Counter> {
        let counter = Counter(self.alloc_host(4096)?);
        counter.word().store(0, Ordering::Release);
        Ok(counter)
    }

    /// Frees pinned host memory that [`Self::alloc_host`] returned and nobody looks at any more.
    pub fn free_host(&self, at: u64) -> Result {
        call!(self, cuMemFreeHost(at as *mut c_void))
    }

    /// Copies from the device and waits for it.
    pub fn copy_to_host(&self, to: &mut [u8], at: u64) -> Result {
        call!(self, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), at, to.len()))
    }

    /// Fills device memory.
    pub fn fill(&self, at: u64, byte: u8, bytes: u64) -> Result {
        call!(self, cuMemsetD8_v2(at, byte, bytes as usize))
    }

    /// Addresses.
    pub fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut at = 0;
        call!(
            self,
            cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0)
        )?;
        Ok(at)
    }

    /// Gives addresses back.
    pub fn unreserve(&self, at: u64, bytes: u64) -> Result {
        call!(self, cuMemAddressFree(at, bytes as usize))
    }

    /// A handle of physical memory.
    pub fn create(&self, device: CUdevice, bytes: u64) -> Result<u64> {
        let properties = Properties::of_device(device);
        let mut handle = 0;
        call!(
            self,
            cuMemCreate(
                &raw mut handle,
                bytes as usize,
                (&raw const properties).cast(),
                0
            )
        )?;
        Ok(handle)
    }

    /// Gives a handle back.
    pub fn release(&self, handle: u64) -> Result {
        call!(self, cuMemRelease(handle))
    }

    /// Maps a handle.
    pub fn map(&self, at: u64, bytes: u64, handle: u64) -> Result {
        call!(self, cuMemMap(at, bytes as usize, 0, handle, 0))
    }

    /// Gives the device access to a mapped range.
    pub fn access(&self, device: CUdevice, at: u64, bytes: u64) -> Result {
        let access = Access {
            location: Location {
                kind: DEVICE,
                id: device,
            },
            flags: READ_WRITE,
        };
        call!(
            self,
            cuMemSetAccess(at, bytes as usize, (&raw const access).cast(), 1)
        )
    }

    /// Unmaps.
    pub fn unmap(&self, at: u64, bytes: u64) -> Result {
        call!(self, cuMemUnmap(at, bytes as usize))
    }
}
