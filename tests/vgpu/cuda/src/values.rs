//! Stream memory operations: writes to and waits on words in memory, in stream order.

use std::ffi::c_void;

use tidegate_abi::cuda::{CUdeviceptr, CUresult, CUstream};

use crate::objects::current::{self, DefaultStream};
use crate::objects::work::{Value, Work};
use crate::result::CudaResult;
use crate::submit;

fn give(default: DefaultStream, stream: CUstream, values: Vec<Value>) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    submit::enqueue(stream, Work::Values(values)).map(|_| ())
}

fn write(at: u64, value: u64, bytes: u64) -> CudaResult<Value> {
    if at == 0 || !at.is_multiple_of(bytes) {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(Value::Write { at, value, bytes })
}

/// The low bits of the flags are the condition; the flush bit has nothing to flush.
fn wait(at: u64, value: u64, bytes: u64, flags: u32) -> CudaResult<Value> {
    const FLUSH: u32 = 1 << 30;
    let condition = flags & !FLUSH;
    if at == 0 || !at.is_multiple_of(bytes) || condition > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(Value::Wait {
        at,
        value,
        bytes,
        condition: u64::from(condition),
    })
}

macro_rules! values {
    ($($write:ident, $wait:ident: $type:ty;)*) => {$(
        /// `cuStreamWriteValue*`.
        pub fn $write(
            default: DefaultStream,
            stream: CUstream,
            at: CUdeviceptr,
            value: $type,
            _flags: u32,
        ) -> CudaResult {
            let value = write(at, value.into(), size_of::<$type>() as u64)?;
            give(default, stream, Vec::from([value]))
        }

        /// `cuStreamWaitValue*`.
        pub fn $wait(
            default: DefaultStream,
            stream: CUstream,
            at: CUdeviceptr,
            value: $type,
            flags: u32,
        ) -> CudaResult {
            let value = wait(at, value.into(), size_of::<$type>() as u64, flags)?;
            give(default, stream, Vec::from([value]))
        }
    )*};
}

values! {
    write32, wait32: u32;
    write64, wait64: u64;
}

/// `CUstreamBatchMemOpParams`: operation, address, value, flags.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    kind: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    spare: u64,
}
const _: () = assert!(size_of::<Operation>() == 48);

/// `cuStreamBatchMemOp`.
pub fn batch(
    default: DefaultStream,
    stream: CUstream,
    count: u32,
    list: *const Operation,
    _flags: u32,
) -> CudaResult {
    if list.is_null() || count > 256 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut values = Vec::new();
    for i in 0..count as usize {
        // SAFETY: the application's array has `count` entries and is not null.
        let op = unsafe { list.add(i).read_unaligned() };
        let low = op.value & u64::from(u32::MAX);
        match op.kind {
            1 => values.push(wait(op.address, low, 4, op.flags)?),
            2 => values.push(write(op.address, low, 4)?),
            4 => values.push(wait(op.address, op.value, 8, op.flags)?),
            5 => values.push(write(op.address, op.value, 8)?),
            // Barriers: the device's order is a total one.
            3 | 6 => {}
            _ => return Err(CUresult::INVALID_VALUE),
        }
    }
    give(default, stream, values)
}

/// `cuStreamGetAttribute`: nothing was ever set that has an effect.
pub fn get_attribute(
    default: DefaultStream,
    stream: CUstream,
    _attribute: i32,
    value: *mut [u64; 8],
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { current::stream(stream, default)? };
    // SAFETY: the caller's place for an attribute value, which has 64 bytes.
    unsafe { crate::result::store(value, [0; 8]) }
}

/// `cuStreamSetAttribute`.
pub fn set_attribute(
    default: DefaultStream,
    stream: CUstream,
    _attribute: i32,
    value: *const c_void,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { current::stream(stream, default)? };
    if value.is_null() {
        Err(CUresult::INVALID_VALUE)
    } else {
        Ok(())
    }
}

/// `cuStreamCopyAttributes`.
pub fn copy_attributes(default: DefaultStream, to: CUstream, from: CUstream) -> CudaResult {
    // SAFETY: stream handles of the application, by the API's contract.
    unsafe {
        current::stream(to, default)?;
        current::stream(from, default).map(|_| ())
    }
}
