//! Class and engine numbers of the resource manager, and what each means for gating.
//!
//! Source: `src/common/sdk/nvidia/inc/class/*.h`, `resource_list.h` and `ctrl2080gpu.h` of the open kernel modules, 535
//! to 595 (`tests/vgpu/facts`). Classes are matched by a list, not by their last byte: `0x506f` is an old class with
//! another meaning, and video classes follow no rule.

/// `NV01_ROOT`.
pub const NV01_ROOT: u32 = 0x0;
/// `NV01_ROOT_NON_PRIV`.
pub const NV01_ROOT_NON_PRIV: u32 = 0x1;
/// `NV01_ROOT_CLIENT`: what the kernel turns both other roots into when user space asks.
pub const NV01_ROOT_CLIENT: u32 = 0x41;
/// `NV01_DEVICE_0`.
pub const NV01_DEVICE_0: u32 = 0x80;
/// `NV_CONFIDENTIAL_COMPUTE`; a child of the client, whose handle it is given again.
pub const NV_CONFIDENTIAL_COMPUTE: u32 = 0xcb33;
/// `NV20_SUBDEVICE_0`.
pub const NV20_SUBDEVICE_0: u32 = 0x2080;
/// `NV01_MEMORY_SYSTEM`.
pub const NV01_MEMORY_SYSTEM: u32 = 0x3e;
/// `NV01_MEMORY_LOCAL_USER`: device memory.
pub const NV01_MEMORY_LOCAL_USER: u32 = 0x40;
/// `NV50_MEMORY_VIRTUAL`.
pub const NV50_MEMORY_VIRTUAL: u32 = 0x50a0;
/// `NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`.
pub const NV01_MEMORY_OS_DESCRIPTOR: u32 = 0x71;
/// `FERMI_VASPACE_A`.
pub const FERMI_VASPACE_A: u32 = 0x90f1;
/// `KEPLER_CHANNEL_GROUP_A`: a TSG.
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xa06c;
/// `FERMI_CONTEXT_SHARE_A`, child of a TSG.
pub const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;
/// `HOPPER_USERMODE_A`: the page with the doorbell.
pub const HOPPER_USERMODE_A: u32 = 0xc661;
/// `HOPPER_CHANNEL_GPFIFO_A`.
pub const HOPPER_CHANNEL_GPFIFO_A: u32 = 0xc86f;
/// `HOPPER_COMPUTE_A`.
pub const HOPPER_COMPUTE_A: u32 = 0xcbc0;
/// `HOPPER_DMA_COPY_A`.
pub const HOPPER_DMA_COPY_A: u32 = 0xc8b5;
/// `GT200_DEBUGGER`.
pub const GT200_DEBUGGER: u32 = 0x83de;

/// What an engine object allocated under a channel makes of that channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// Graphics and compute.
    Graphics,
    /// Copy engine.
    Copy,
    /// NVDEC, NVENC, NVJPEG, OFA, SEC2.
    Video,
    /// Nothing observed tells.
    Unknown,
}

impl Engine {
    /// Whether kernels may run on it: what nothing is known of counts as if they did.
    #[must_use]
    pub const fn may_compute(self) -> bool {
        matches!(self, Self::Graphics | Self::Unknown)
    }
}

/// GPFIFO channel classes, Fermi to Blackwell: all that a branch can allocate.
const GPFIFO: [u32; 11] = [
    0x906f, 0xa06f, 0xa16f, 0xb06f, 0xc06f, 0xc36f, 0xc46f, 0xc56f, 0xc86f, 0xc96f, 0xca6f,
];
/// Compute, 3D, 2D and inline-to-memory classes. Those of GPUs before Turing (`0xa0c0` to `0xc3c0`) and
/// `0xcfc0` are in no class list of the open kernel modules, but in those of the closed ones.
const GRAPHICS: [u32; 25] = [
    0xa0c0, 0xa1c0, 0xb0c0, 0xb1c0, 0xc0c0, 0xc1c0, 0xc3c0, 0xc5c0, 0xc6c0, 0xc7c0, 0xc9c0, 0xcbc0,
    0xcdc0, 0xcec0, 0xcfc0, 0xc597, 0xc697, 0xc797, 0xc997, 0xcb97, 0xcd97, 0xce97, 0x902d, 0xa140,
    0xcd40,
];
/// Copy classes; `0xa0b5`, `0xc1b5` and `0xc3b5` as above.
const COPY: [u32; 11] = [
    0xa0b5, 0xb0b5, 0xc0b5, 0xc1b5, 0xc3b5, 0xc5b5, 0xc6b5, 0xc7b5, 0xc8b5, 0xc9b5, 0xcab5,
];
/// Decoders, encoders, JPEG, optical flow and SEC2.
const VIDEO: [u32; 31] = [
    0xb4b7, 0xb8b0, 0xb8d1, 0xb8fa, 0xc4b0, 0xc4b7, 0xc4d1, 0xc6b0, 0xc6fa, 0xc7b0, 0xc7b7, 0xc7fa,
    0xc9b0, 0xc9b7, 0xc9d1, 0xc9fa, 0xcba2, 0xcdb0, 0xcdd1, 0xcdfa, 0xceb0, 0xceb7, 0xced0, 0xcefa,
    0xcfb0, 0xcfb7, 0xcfd1, 0xcffa, 0xd1b0, 0xd1b7, 0xd1fa,
];

/// Whether `class` is a channel that a runlist schedules.
#[must_use]
pub fn is_gpfifo(class: u32) -> bool {
    GPFIFO.contains(&class)
}

/// What kind of engine object `class` is, if it is one.
#[must_use]
pub fn engine_of_class(class: u32) -> Option<Engine> {
    if GRAPHICS.contains(&class) {
        Some(Engine::Graphics)
    } else if COPY.contains(&class) {
        Some(Engine::Copy)
    } else if VIDEO.contains(&class) {
        Some(Engine::Video)
    } else {
        None
    }
}

/// What `NV2080_ENGINE_TYPE_*` number `engine_type` is. `0` (null) is [`Engine::Unknown`].
#[must_use]
pub fn engine_of_type(engine_type: u32) -> Engine {
    match engine_type {
        0x01..=0x08 => Engine::Graphics,
        0x09..=0x12 | 0x34..=0x3d | 0x40..=0x53 => Engine::Copy,
        0x13..=0x1d | 0x26 | 0x2b..=0x33 | 0x3e | 0x3f => Engine::Video,
        _ => Engine::Unknown,
    }
}

/// `NV2080_ENGINE_TYPE_GR0`.
pub const ENGINE_TYPE_GR0: u32 = 0x01;
/// `NV2080_ENGINE_TYPE_COPY0`.
pub const ENGINE_TYPE_COPY0: u32 = 0x09;
