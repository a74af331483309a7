//! Hardware queues: groups of channels of one GPU.

use std::env;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_abi::class::{
    ENGINE_TYPE_GR0, FERMI_CONTEXT_SHARE_A, HOPPER_CHANNEL_GPFIFO_A, HOPPER_COMPUTE_A,
    HOPPER_DMA_COPY_A, KEPLER_CHANNEL_GROUP_A,
};
use tidegate_abi::cuda::CUresult;
use tidegate_abi::rm::{
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, WorkSubmitToken,
};
use tidegate_abi::uvm::{
    UVM_REGISTER_CHANNEL, UVM_UNREGISTER_CHANNEL, UvmRegisterChannel, UvmUnregisterChannel,
    UvmUnregisterChannel590,
};
use tidegate_vgpu::ring::{ENTRIES, RING_BYTES};

use crate::channel::{Channel, Mapped};
use crate::driver;
use crate::gpu::{Gpu, Space};
use crate::result::CudaResult;
use crate::rm::{self, RmResult, bytes_of, control_bytes, uvm_bytes};

/// Copy groups of a context, and channels of each. The driver's library makes about forty channels a
/// context with the default of eight connections; how they are parted waits for a look at a GPU.
pub const COPY_GROUPS: u32 = 8;
/// See [`COPY_GROUPS`].
pub const COPY_CHANNELS: usize = 4;
/// Groups that carry work: streams compute in the first and copy in and out by two others.
pub const WORKING: usize = 3;

/// One TSG and its channels.
pub struct Group {
    tsg: u32,
    handles: Vec<u32>,
    /// Its channels.
    pub channels: Vec<Channel>,
}

impl Group {
    /// A group of so many channels on an engine.
    pub fn new(
        gpu: &'static Gpu,
        space: &'static Space,
        (engine, count): (u32, usize),
        lost: &Arc<AtomicI32>,
    ) -> CudaResult<Self> {
        let rm = &gpu.rm;
        let tsg = rm.alloc_with(
            "alloc TSG",
            gpu.device,
            KEPLER_CHANNEL_GROUP_A,
            |layout, bytes| {
                layout.put_word(bytes, "hVASpace", space.vaspace);
                layout.put_word(bytes, "engineType", engine);
            },
        )?;
        let share = if engine == ENGINE_TYPE_GR0 {
            rm.alloc_with(
                "alloc context share",
                tsg,
                FERMI_CONTEXT_SHARE_A,
                |layout, bytes| layout.put_word(bytes, "hVASpace", space.vaspace),
            )?
        } else {
            0
        };
        let mut group = Self {
            tsg,
            handles: Vec::with_capacity(count),
            channels: Vec::with_capacity(count),
        };
        for _ in 0..count {
            group.add(gpu, space, engine, share, lost)?;
        }
        let command = NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        let mut schedule = vec![0_u8; control_bytes(rm.driver, command)];
        schedule[0] = 1;
        rm.control("GPFIFO_SCHEDULE", tsg, command, &mut schedule)?;
        Ok(group)
    }

    fn add(
        &mut self,
        gpu: &'static Gpu,
        space: &'static Space,
        engine: u32,
        share: u32,
        lost: &Arc<AtomicI32>,
    ) -> CudaResult {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let rm = &gpu.rm;
        let semaphores = driver::semaphores()?;
        let own_space = if share == 0 { space.vaspace } else { 0 };
        let channel = rm.alloc_with(
            "alloc channel",
            self.tsg,
            HOPPER_CHANNEL_GPFIFO_A,
            |layout, bytes| {
                layout.put_word(bytes, "hObjectBuffer", semaphores.object);
                layout.put_word(bytes, "gpFifoEntries", ENTRIES as u32);
                layout.put_word(bytes, "hContextShare", share);
                layout.put_word(bytes, "hVASpace", own_space);
            },
        )?;
        for object in objects(engine) {
            rm.alloc("alloc engine object", channel, *object, &mut [])?;
        }
        let mut token = WorkSubmitToken::default();
        rm.control(
            "GET_WORK_SUBMIT_TOKEN",
            channel,
            NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
            bytes_of(&mut token),
        )?;
        let ring = rm.map(&gpu.path, gpu.device, channel, RING_BYTES)?;
        let mut p = UvmRegisterChannel {
            uuid: gpu.uuid.bytes,
            rm_ctrl_fd: rm.ctl.as_raw_fd(),
            h_client: rm.client,
            h_channel: channel,
            ..UvmRegisterChannel::default()
        };
        rm::uvm(
            "UVM_REGISTER_CHANNEL",
            &rm.uvm,
            UVM_REGISTER_CHANNEL,
            &mut p,
            |p| p.rm_status,
        )?;
        let mapped = Mapped {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            ring,
            semaphore: semaphores.take().ok_or(CUresult::OUT_OF_MEMORY)?,
        };
        self.handles.push(channel);
        // SAFETY: the whole ring was just mapped, this is its only producer, and rings of a
        // destroyed context stay mapped because a stale stream may still look at its points.
        self.channels
            .push(unsafe { Channel::new(gpu, space, &mapped, Arc::clone(lost)) });
        Ok(())
    }

    /// Gives the group back to the GPU.
    pub fn free(&self, gpu: &Gpu) {
        let rm = &gpu.rm;
        for &channel in &self.handles {
            // What the driver does not free here it frees with the file.
            let _ = unregister(gpu, channel);
        }
        let _ = rm.free(self.tsg);
    }
}

/// The engine objects of a channel, in the order they are made.
fn objects(engine: u32) -> &'static [u32] {
    static COPY_FIRST: OnceLock<bool> = OnceLock::new();
    let copy_first = || env::var("TIDEGATE_VGPU_OBJECTS").is_ok_and(|first| first == "copy");
    if engine != ENGINE_TYPE_GR0 {
        &[HOPPER_DMA_COPY_A]
    } else if *COPY_FIRST.get_or_init(copy_first) {
        &[HOPPER_DMA_COPY_A, HOPPER_COMPUTE_A]
    } else {
        &[HOPPER_COMPUTE_A, HOPPER_DMA_COPY_A]
    }
}

fn unregister(gpu: &Gpu, channel: u32) -> RmResult {
    let rm = &gpu.rm;
    let what = "UVM_UNREGISTER_CHANNEL";
    if uvm_bytes(rm.driver, UVM_UNREGISTER_CHANNEL) == size_of::<UvmUnregisterChannel590>() {
        let mut p = UvmUnregisterChannel590 {
            h_client: rm.client,
            h_channel: channel,
            rm_status: 0,
        };
        return rm::uvm(what, &rm.uvm, UVM_UNREGISTER_CHANNEL, &mut p, |p| {
            p.rm_status
        });
    }
    let mut p = UvmUnregisterChannel {
        uuid: gpu.uuid.bytes,
        h_client: rm.client,
        h_channel: channel,
        rm_status: 0,
    };
    rm::uvm(what, &rm.uvm, UVM_UNREGISTER_CHANNEL, &mut p, |p| {
        p.rm_status
    })
}
