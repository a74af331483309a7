//! Which driver branch a version string names, and how its layouts are known.

/// Where the layouts of a driver are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Tables have them.
    Known(Branch),
    /// Nobody has read this branch. Nothing that any branch has moved is used of it: sizes are asked for,
    /// and what an object is follows from the headers of the calls that made it.
    ByAnswers,
}

impl Layout {
    /// Of a version string; `None` where it is none, which says nothing of a driver.
    #[must_use]
    pub fn of_version(version: &str) -> Option<Self> {
        let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let parts = version.split('.').count();
        if !(2..=3).contains(&parts) || !version.split('.').all(number) {
            return None;
        }
        Some(Branch::of_version(version).map_or(Self::ByAnswers, Self::Known))
    }

    /// The branch, where it is known.
    #[must_use]
    pub const fn branch(self) -> Option<Branch> {
        match self {
            Self::Known(branch) => Some(branch),
            Self::ByAnswers => None,
        }
    }

    /// As status tells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Known(_) => "known",
            Self::ByAnswers => "by answers",
        }
    }
}

/// A driver branch whose layouts are known, split where they changed inside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Branch {
    /// 535 before 535.86.05 (535.43.08 of its developer series), whose channel parameters are shorter.
    B535First,
    /// The rest of it.
    B535,
    /// 550.
    B550,
    /// 570.
    B570,
    /// 575.
    B575,
    /// 580.
    B580,
    /// 590 and 595 differ in nothing that is defined here.
    B590,
    /// See [`Self::B590`].
    B595,
    /// Its channel parameters have one handle more (`ChannelAlloc610`).
    B610,
}

impl Branch {
    /// Every known branch, oldest first.
    pub const ALL: [Self; 9] = [
        Self::B535First,
        Self::B535,
        Self::B550,
        Self::B570,
        Self::B575,
        Self::B580,
        Self::B590,
        Self::B595,
        Self::B610,
    ];

    /// The branch of a version string such as `580.95.05`, if it is known.
    #[must_use]
    pub fn of_version(version: &str) -> Option<Self> {
        let mut parts = version.split('.');
        match parts.next()? {
            "535" => {
                let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok());
                match (part(), part()) {
                    (Some(43), Some(patch)) if patch >= 8 => Some(Self::B535),
                    (Some(minor), _) if minor < 86 => Some(Self::B535First),
                    _ => Some(Self::B535),
                }
            }
            "550" => Some(Self::B550),
            "570" => Some(Self::B570),
            "575" => Some(Self::B575),
            "580" => Some(Self::B580),
            "590" => Some(Self::B590),
            "595" => Some(Self::B595),
            "610" => Some(Self::B610),
            _ => None,
        }
    }

    /// The branch number as the vendor writes it.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::B535First | Self::B535 => 535,
            Self::B550 => 550,
            Self::B570 => 570,
            Self::B575 => 575,
            Self::B580 => 580,
            Self::B590 => 590,
            Self::B595 => 595,
            Self::B610 => 610,
        }
    }

    /// Whether all its sizes were read off its own headers. Of 610 only those of channels and of what they hang on are
    /// said by two who do not copy each other.
    #[must_use]
    pub const fn sizes_are_sure(self) -> bool {
        !matches!(self, Self::B610)
    }

    const fn is_535(self) -> bool {
        matches!(self, Self::B535First | Self::B535)
    }

    const fn is_from(self, branch: u32) -> bool {
        self.number() >= branch
    }

    /// Bytes of `GpuInfoV2`.
    #[must_use]
    pub const fn gpu_info_size(self) -> usize {
        let places = match self {
            Self::B535First | Self::B535 => 0x40,
            Self::B550 | Self::B570 => 0x41,
            Self::B575 => 0x42,
            Self::B580 | Self::B590 | Self::B595 => 0x46,
            Self::B610 => 0x48,
        };
        4 + 8 * places
    }

    /// Bytes of `NameString`.
    #[must_use]
    pub const fn name_string_size(self) -> usize {
        if self.is_from(595) { 68 } else { 132 }
    }

    /// Bytes of `FbInfoV2`.
    #[must_use]
    pub const fn fb_info_size(self) -> usize {
        let places = match self {
            Self::B535First | Self::B535 => 54,
            Self::B550 => 55,
            Self::B570 | Self::B575 => 57,
            Self::B580 | Self::B590 | Self::B595 | Self::B610 => 128,
        };
        4 + 8 * places
    }

    /// Bytes of `ProbedIds`.
    #[must_use]
    pub const fn probed_ids_size(self) -> usize {
        if self.is_from(580) { 384 } else { 256 }
    }

    /// Bytes of `Virtualization`.
    #[must_use]
    pub const fn virtualization_size(self) -> usize {
        if self.is_from(570) { 8 } else { 4 }
    }

    /// Bytes of `ConfidentialCapabilities`.
    #[must_use]
    pub const fn capabilities_size(self) -> usize {
        if self.is_535() { 5 } else { 6 }
    }

    /// Bytes of the GPFIFO classes' parameters.
    #[must_use]
    pub const fn channel_alloc_size(self) -> usize {
        match self {
            Self::B535First => 304,
            Self::B535 | Self::B550 => 360,
            Self::B570 | Self::B575 | Self::B580 | Self::B590 | Self::B595 => 368,
            Self::B610 => 376,
        }
    }

    /// Where the GPFIFO classes' parameters name the engine.
    #[must_use]
    pub const fn channel_engine_at(self) -> usize {
        match self {
            Self::B610 => 136,
            _ => 128,
        }
    }

    /// Bytes of the memory classes' parameters.
    #[must_use]
    pub const fn memory_alloc_size(self) -> usize {
        if self.is_535() { 120 } else { 128 }
    }

    /// Bytes of `GPFIFO_SCHEDULE` (both the TSG's and the channel's); the first byte is `bEnable`.
    #[must_use]
    pub const fn schedule_size(self) -> usize {
        if self.is_from(575) { 3 } else { 2 }
    }

    /// Bytes of `FERMI_VASPACE_A`'s parameters.
    #[must_use]
    pub const fn vaspace_alloc_size(self) -> usize {
        if self.is_from(580) { 56 } else { 48 }
    }

    /// Places in `UVM_MAP_EXTERNAL_ALLOCATION`.
    #[must_use]
    pub const fn uvm_map_gpus(self) -> usize {
        if self.is_535() { 32 } else { 256 }
    }

    /// Bytes of `UVM_UNREGISTER_CHANNEL`; 12 are `UvmUnregisterChannel590`.
    #[must_use]
    pub const fn uvm_unregister_channel_size(self) -> usize {
        if self.is_from(590) { 12 } else { 28 }
    }

    /// Bytes of `UVM_FREE`; 16 are `UvmFree590`.
    #[must_use]
    pub const fn uvm_free_size(self) -> usize {
        if self.is_from(590) { 16 } else { 24 }
    }
}
