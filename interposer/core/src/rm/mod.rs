//! Which channels a process owns: the objects of the resource manager, observed from the process' ioctls.
//!
//! [`Call`] is one successful ioctl, [`decode`]d. [`Graph`] holds the objects that exist, and returns [`Record`]s of
//! what changed.

mod decode;
mod graph;

pub use decode::{Nested, decode, depends_on_layout, needed, nested, uvm_register};
pub use graph::{Graph, Lifted};
use tidegate_abi::class::Engine;

/// One ioctl that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `NV_ESC_RM_ALLOC`.
    Alloc {
        /// The client; for a root class the new client itself.
        client: u32,
        /// Parent object.
        parent: u32,
        /// The new object's handle, as the kernel returned it.
        handle: u32,
        /// Class number.
        class: u32,
        /// What its parameters say.
        params: Params,
    },
    /// `NV_ESC_RM_DUP_OBJECT`.
    Dup {
        /// Where the copy lives.
        client: u32,
        /// Its parent.
        parent: u32,
        /// Its handle.
        handle: u32,
        /// The source's client.
        client_src: u32,
        /// The source.
        handle_src: u32,
    },
    /// `NVA06F_CTRL_CMD_BIND`, or the same of another class.
    Bind {
        /// Client.
        client: u32,
        /// Channel, or the TSG whose channels it is about.
        channel: u32,
        /// `NV2080_ENGINE_TYPE_*`.
        engine_type: u32,
    },
    /// `UVM_REGISTER_CHANNEL`.
    UvmRegister {
        /// Client.
        client: u32,
        /// Channel.
        channel: u32,
        /// The GPU.
        uuid: [u8; 16],
    },
}

/// The parameters of an allocation that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Params {
    /// Nothing of interest.
    #[default]
    None,
    /// `NV01_DEVICE_0`.
    Device {
        /// Device instance.
        instance: u32,
    },
    /// A TSG.
    Tsg {
        /// `NV2080_ENGINE_TYPE_*`, 0 if the channels say.
        engine_type: u32,
        /// VA space it depends on, or 0.
        va_space: u32,
    },
    /// A channel.
    Channel {
        /// `NV2080_ENGINE_TYPE_*`, 0 if the TSG says.
        engine_type: u32,
        /// VA space it depends on, or 0.
        va_space: u32,
        /// Context share it depends on, or 0.
        context_share: u32,
    },
    /// A context share.
    ContextShare {
        /// VA space it depends on, or 0.
        va_space: u32,
    },
}

/// A channel as the agent must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// RM client.
    pub client: u32,
    /// Channel handle.
    pub channel: u32,
    /// Its TSG; the channel itself where there is none.
    pub tsg: u32,
    /// What it feeds.
    pub engine: Engine,
    /// Device instance, if an ancestor says.
    pub device_instance: Option<u32>,
    /// A subdevice of the client on that GPU.
    pub subdevice: Option<u32>,
    /// The GPU, once `UVM_REGISTER_CHANNEL` named it.
    pub uuid: Option<[u8; 16]>,
    /// GPFIFO class.
    pub class: u32,
}

/// What changed. A second [`Record::ChannelUp`] of a pair replaces what the first said: its engine
/// or its GPU became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A client exists.
    ClientUp(u32),
    /// A client is gone, and with it every channel it had.
    ClientDown(u32),
    /// A channel exists, or more is known of it.
    ChannelUp(Channel),
    /// A channel is gone or about to go.
    ChannelDown {
        /// RM client.
        client: u32,
        /// Channel handle.
        channel: u32,
    },
}
