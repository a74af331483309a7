//! The multiprocessors (SMs) that kernels run on.

/// Multiprocessors of the virtual GPU.
pub const PROCESSORS: i32 = 132;

/// Multiprocessors in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sms {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Sms {
    /// Those of the device.
    pub const ALL: Self = Self {
        first: 0,
        count: PROCESSORS.unsigned_abs(),
    };
}
