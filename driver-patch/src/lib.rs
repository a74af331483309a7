//! The optional driver patch: one bit in one word of NVIDIA's open kernel modules.
//!
//! `FIFO_DISABLE_CHANNELS`, the control that stops an offline job, holds the lock of *all* GPUs of the
//! node while it waits for one GPU's firmware. On a node with several GPUs the disables of one edge
//! therefore queue behind each other. Which locks a control takes is a word of flags in one generated
//! table row; the patch adds one flag to that word:
//!
//! * **variant B** (default) `GPU_LOCK_DEVICE_ONLY`: the lock of that GPU only.
//! * **variant A** `ROUTE_TO_PHYSICAL`: sent to the firmware before the driver's own code looks at it,
//!   under one GPU's lock if every GPU of the node runs firmware.
//!
//! A wrong word would change who may call the control, or which locks guard it. So nothing here is
//! fuzzy: the row is found by its method id, its shape, its old word, the driver's version and the
//! meaning of the bits (the tree's own header) must all be as `branches.toml` says, or nothing is
//! written. [`tree`] works on sources, [`module`] reads the same row back from a built module.
#![forbid(unsafe_code)]

pub mod branches;
pub mod module;
pub mod tree;

/// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`.
pub const METHOD_ID: u32 = 0x2080_110b;
/// Size of its parameters.
pub const PARAMETERS: u32 = 536;

/// Which flag is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `ROUTE_TO_PHYSICAL`.
    A,
    /// `GPU_LOCK_DEVICE_ONLY`.
    B,
}

impl Variant {
    /// The flag, as the driver's header names it without its prefix.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::A => "ROUTE_TO_PHYSICAL",
            Self::B => "GPU_LOCK_DEVICE_ONLY",
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

impl std::str::FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "A" | "a" => Ok(Self::A),
            "B" | "b" => Ok(Self::B),
            _ => Err("expected A or B".to_owned()),
        }
    }
}

/// What a flag word says of the patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As NVIDIA ships it.
    Unpatched,
    /// With this variant.
    Patched(Variant),
    /// Neither: somebody else changed it, or the table does not know this driver.
    Other,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unpatched => f.write_str("not patched"),
            Self::Patched(variant) => write!(f, "patched, variant {variant}"),
            Self::Other => f.write_str("neither NVIDIA's word nor one of this patch"),
        }
    }
}
