//! Work: what a stream is given, as data.
//!
//! An API call makes a [`Work`] and hands it to [`crate::submit`]; there it becomes ring entries, or, in
//! a stream that captures, a node that holds the same value.

use std::ffi::c_void;
use std::sync::Arc;

use tidegate_abi::cuda::CUresult;
use tidegate_vgpu::ring::{ARGS, Entry, Op};

use super::context::Stream;
use super::event::Event;
use super::function::Function;
use super::memory::Owned;
use super::sms::Sms;
use super::transfer::{Copy, Fill};
use crate::channel::{Point, entry};
use crate::handle::Pinned;
use crate::result::CudaResult;

/// A piece of work.
#[derive(Clone)]
pub enum Work {
    /// Nothing: a node that only joins.
    Empty,
    /// A kernel.
    Kernel(Kernel),
    /// A copy.
    Copy(Copy),
    /// A fill.
    Fill(Fill),
    /// A function of the application.
    Host(Host),
    /// Writes and waits of memory values.
    Values(Vec<Value>),
    /// A graph inside a graph.
    Child(Arc<[Work]>),
    /// A record of an event.
    EventRecord(&'static Pinned<Event>),
    /// A wait for an event.
    EventWait(&'static Pinned<Event>),
    /// Memory that a captured stream-ordered allocation made, held by its graph and instances.
    Allocation(#[expect(dead_code, reason = "held, not looked at")] Arc<Owned>),
    /// The end of such memory's use.
    Release,
}

/// A kernel launch.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// What runs.
    pub function: &'static Pinned<Function>,
    /// Grid and block.
    pub dims: [u32; 6],
    /// Dynamic shared memory.
    pub shared: u32,
    /// The first words of the parameter buffer.
    pub params: [u64; ARGS],
    /// Words of it in use.
    pub words: u32,
    /// Where it runs: those of the context it was given to, also when its graph is launched elsewhere.
    pub sms: Sms,
}

impl Kernel {
    /// The ring entry, with launch number `launch` (0: the channel chooses).
    pub fn entry(&self, launch: u64) -> Entry {
        Entry {
            op: Op::Kernel as u32,
            args_used: self.words,
            kernel: self.function.id,
            launch,
            args: self.params,
            dims: self.dims,
            sms: [u64::from(self.sms.first), u64::from(self.sms.count)],
        }
    }
}

/// A function of the application and its argument.
#[derive(Clone, Copy)]
pub struct Host {
    /// The function.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// Its argument.
    pub data: *mut c_void,
}

// SAFETY: the application hands both over to be used on a driver thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    /// Calls the function.
    pub fn call(self) {
        // SAFETY: the application promised that this call is valid on a driver thread.
        unsafe { (self.function)(self.data) };
    }
}

/// A write to or a wait on a value in memory.
#[derive(Clone, Copy)]
pub enum Value {
    /// Stores `value` in `bytes` bytes at `at`.
    Write { at: u64, value: u64, bytes: u64 },
    /// Waits for a value; `condition` as in [`Op::WaitValue`].
    Wait {
        at: u64,
        value: u64,
        bytes: u64,
        condition: u64,
    },
}

impl Value {
    fn entry(&self) -> Entry {
        match *self {
            Self::Write { at, value, bytes } => entry(Op::Write, &[at, value, bytes]),
            Self::Wait {
                at,
                value,
                bytes,
                condition,
            } => entry(Op::WaitValue, &[at, value, bytes, condition]),
        }
    }
}

impl Work {
    /// Gives the work to `stream` now; where it ends, unless it is nothing.
    pub fn run(&self, stream: &Stream, launch: u64) -> CudaResult<Option<Point>> {
        use super::context::Engine::Compute;
        match self {
            Self::Empty | Self::Allocation(_) | Self::Release => Ok(None),
            Self::Kernel(kernel) => stream.submit(Compute, &[kernel.entry(launch)]).map(Some),
            Self::Copy(copy) => copy.run(stream, launch),
            Self::Fill(fill) => stream.submit(Compute, &fill.entries(launch)).map(Some),
            Self::Host(host) => {
                let host = *host;
                stream.submit_host(Box::new(move || host.call())).map(Some)
            }
            Self::Values(values) => {
                let entries: Vec<Entry> = values.iter().map(Value::entry).collect();
                stream.submit(Compute, &entries).map(Some)
            }
            Self::Child(works) => {
                let mut point = None;
                for work in works.iter() {
                    point = work.run(stream, launch)?.or(point);
                }
                Ok(point)
            }
            Self::EventRecord(event) => event.record(stream).map(Some),
            Self::EventWait(event) => match event.point() {
                Some(point) => stream.submit_wait(point).map(|()| None),
                None => Ok(None),
            },
        }
    }
}

/// A host function that the application may not have given.
pub fn host(
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> CudaResult<Host> {
    let function = function.ok_or(CUresult::INVALID_VALUE)?;
    Ok(Host { function, data })
}
