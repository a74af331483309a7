//! A channel of the agent's own, with memory and without work.
//!
//! It is there to try calls on, and to name the graphics runlist: `RESTART_RUNLIST` goes to a channel,
//! and the strict check wants one of the caller's. A channel that is all zeros is refused by some
//! firmware, so this one has what a channel of a program has: entries, USERD in real memory, an error
//! notifier. So it takes a branch whose channels are known; of any other there is none.

use super::control_file::ControlFile;
use super::gpu::Gpu;
use super::ioctl::{Parameters, Result, RmError};
use super::subdevice::{DEVICE_HANDLE, Subdevice};
use tidegate_abi::class::{
    ENGINE_TYPE_GR0, HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_SYSTEM,
};
use tidegate_abi::rm::{self, Branch, Layout, Status};

const GROUP_HANDLE: u32 = 0x7d20_0000;
const CHANNEL_HANDLE: u32 = 0x7d30_0000;
const MEMORY_HANDLE: u32 = 0x7d50_0000;

/// Entries of its GPFIFO: the fewest that a program uses. None is ever filled.
const ENTRIES: u32 = 32;
/// Its memory: a page for the notifier, one for USERD.
const MEMORY_BYTES: u64 = 64 * 1024;
const USERD_AT: u64 = 4096;
/// Where its GPFIFO would be read, had it work: nothing is mapped there.
const GPFIFO_AT: u64 = 0x1_0000_0000;
/// `NVOS32_ATTR_LOCATION_PCI`, `NVOS32_ATTR_PHYSICALITY_CONTIGUOUS` and `NVOS32_ATTR_COHERENCY_CACHED`.
const SYSTEM_MEMORY: u32 = 1 << 25 | 2 << 27 | 1 << 29;
/// GPFIFO classes by what a driver is likely to have: Hopper and Ada, Blackwell, Ampere, Turing, Volta.
const CLASSES: [u32; 6] = [
    HOPPER_CHANNEL_GPFIFO_A,
    0xc96f,
    0xca6f,
    0xc56f,
    0xc46f,
    0xc36f,
];

/// A channel of the first class that the GPU has.
fn of_any_class<T: Parameters + Copy>(
    file: &ControlFile,
    parent: (u32, u32, u32),
    parameters: T,
    branch: Branch,
) -> Result<u32> {
    let made = CLASSES.into_iter().find_map(|class| {
        let class = (class, "a channel");
        let mut parameters = parameters;
        let bytes = branch.channel_alloc_size();
        let made = file.alloc_part(parent, class, Some(&mut parameters), bytes);
        // A class of another architecture; the next may be this one's.
        let other = |error: &RmError| error.status() == Some(Status::INVALID_CLASS);
        (!made.as_ref().is_err_and(other)).then_some(made)
    });
    made.unwrap_or(Err(RmError::Refused {
        what: "a channel of any class",
        status: Status::INVALID_CLASS,
    }))
}

/// A client with one channel and no work. Gone with this value.
#[derive(Debug)]
pub struct ThrowAway {
    subdevice: Subdevice,
    /// Its channel.
    pub channel: u32,
    /// The group of it.
    pub group: u32,
}

impl ThrowAway {
    /// Makes a client, a TSG and a channel on a file of their own.
    ///
    /// # Errors
    /// When the driver refuses any step, which says nothing about what could be done with the channel.
    pub fn new(gpu: &Gpu, branch: Branch) -> Result<Self> {
        let subdevice = Subdevice::open(gpu)?;
        let (file, client) = (&subdevice.file, subdevice.client);
        let device = DEVICE_HANDLE + gpu.device_instance;
        let mut memory = rm::MemoryAlloc {
            owner: client,
            attr: SYSTEM_MEMORY,
            size: MEMORY_BYTES,
            alignment: 4096,
            ..rm::MemoryAlloc::default()
        };
        let memory = file.alloc_part(
            (client, device, MEMORY_HANDLE),
            (NV01_MEMORY_SYSTEM, "memory for a channel"),
            Some(&mut memory),
            branch.memory_alloc_size(),
        )?;
        let mut group = rm::ChannelGroupAlloc {
            engine_type: ENGINE_TYPE_GR0,
            ..rm::ChannelGroupAlloc::default()
        };
        let group = file.alloc(
            (client, device, GROUP_HANDLE),
            (KEPLER_CHANNEL_GROUP_A, "a channel group"),
            Some(&mut group),
        )?;
        let parent = (client, group, CHANNEL_HANDLE);
        let channel = if branch == Branch::B610 {
            let mut parameters = rm::ChannelAlloc610 {
                h_object_error: memory,
                gp_fifo_offset: GPFIFO_AT,
                gp_fifo_entries: ENTRIES,
                ..rm::ChannelAlloc610::default()
            };
            parameters.h_userd_memory[0] = memory;
            parameters.userd_offset[0] = USERD_AT;
            of_any_class(file, parent, parameters, branch)?
        } else {
            let mut parameters = rm::ChannelAlloc {
                h_object_error: memory,
                gp_fifo_offset: GPFIFO_AT,
                gp_fifo_entries: ENTRIES,
                ..rm::ChannelAlloc::default()
            };
            parameters.h_userd_memory[0] = memory;
            parameters.userd_offset[0] = USERD_AT;
            of_any_class(file, parent, parameters, branch)?
        };
        Ok(Self {
            subdevice,
            channel,
            group,
        })
    }

    /// As [`Self::new`], on its runlist, which it can then restart.
    ///
    /// # Errors
    /// When the driver refuses any step.
    pub fn scheduled(gpu: &Gpu, branch: Branch) -> Result<Self> {
        let own = Self::new(gpu, branch)?;
        let file = &own.subdevice.file;
        file.schedule(own.client(), own.group, true, Layout::Known(branch))?;
        Ok(own)
    }

    /// Its RM client.
    #[must_use]
    pub const fn client(&self) -> u32 {
        self.subdevice.client
    }

    /// Disables or enables its channel through its own client and file.
    ///
    /// # Errors
    /// RM's answer.
    pub fn set_own(&self, call: &mut rm::DisableChannels) -> Result<()> {
        self.subdevice.set_channels(call)
    }

    /// Restarts the graphics runlist of its GPU.
    ///
    /// # Errors
    /// RM's answer.
    pub fn restart_runlist(&self) -> Result<()> {
        let file = &self.subdevice.file;
        file.restart_runlist(self.client(), self.channel)
    }

    /// Preempts its own group.
    ///
    /// # Errors
    /// RM's answer.
    pub fn preempt_own(&self) -> Result<()> {
        let file = &self.subdevice.file;
        file.preempt(self.client(), self.group)
    }
}
