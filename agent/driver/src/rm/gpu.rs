//! A GPU.

/// A GPU of the node, as the driver names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// `NV0080_ALLOC.deviceId`.
    pub device_instance: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
}
