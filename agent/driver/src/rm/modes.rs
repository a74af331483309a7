//! In which modes a GPU is that rule channel control out.

use super::asking::Sized;
use super::ioctl::Result;
use super::subdevice::Subdevice;
use tidegate_abi::class::NV_CONFIDENTIAL_COMPUTE;
use tidegate_abi::rm::{self, Branch, Layout};

/// As the other handles of the agent's own.
const CONFIDENTIAL_HANDLE: u32 = 0x7d40_0000;

/// `NV0080_CTRL_GPU_VIRTUALIZATION_MODE_VGX`, from the kernel's `ctrl0080gpu.h`: a virtual GPU, as its guest
/// sees it. 1 is a whole GPU passed through, which is controlled as any.
const GUEST: u32 = 2;

const GPU_INFO: Sized = Sized {
    call: (rm::NV2080_CTRL_CMD_GPU_GET_INFO_V2, "GPU_GET_INFO_V2"),
    of: Branch::gpu_info_size,
    step: 8,
};
const CAPABILITIES: Sized = Sized {
    call: (
        rm::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES,
        "SYSTEM_GET_CAPABILITIES",
    ),
    of: Branch::capabilities_size,
    step: 1,
};
const VIRTUALIZATION: Sized = Sized {
    call: (
        rm::NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE,
        "GPU_GET_VIRTUALIZATION_MODE",
    ),
    of: Branch::virtualization_size,
    step: 1,
};

impl Subdevice {
    /// Whether the GPU is, or will be after its next reset, split into instances (MIG).
    ///
    /// # Errors
    /// When the driver does not say; `NOT_SUPPORTED` where there is no such thing.
    pub fn is_split(&self, layout: Layout) -> Result<bool> {
        let mut info = rm::GpuInfoV2 {
            list_size: 1,
            list: [[0; 2]; rm::GPU_INFO_PLACES],
        };
        info.list[0][0] = rm::GPU_INFO_SMC_MODE;
        self.file.control_sized(
            (self.client, self.subdevice),
            (&GPU_INFO, layout),
            &self.taken,
            &mut info,
        )?;
        Ok([
            rm::SMC_MODE_ENABLED,
            rm::SMC_MODE_ENABLE_PENDING,
            rm::SMC_MODE_DISABLE_PENDING,
        ]
        .contains(&info.list[0][1]))
    }

    /// Whether the node's GPUs compute confidentially.
    ///
    /// # Errors
    /// When the driver does not say; `INVALID_CLASS` or `NOT_SUPPORTED` where there is no such thing.
    pub fn is_confidential(&self, layout: Layout) -> Result<bool> {
        let mut client = self.client;
        let object = self.file.alloc(
            (self.client, self.client, CONFIDENTIAL_HANDLE),
            (NV_CONFIDENTIAL_COMPUTE, "a confidential computing object"),
            Some(&mut client),
        )?;
        let mut capabilities = rm::ConfidentialCapabilities::default();
        self.file.control_sized(
            (self.client, object),
            (&CAPABILITIES, layout),
            &self.taken,
            &mut capabilities,
        )?;
        Ok(capabilities.feature != 0)
    }

    /// Whether the GPU is a virtual one, whose channels a hypervisor's driver has.
    ///
    /// # Errors
    /// When the driver does not say; `NOT_SUPPORTED` where there is no such thing.
    pub fn is_guest(&self, layout: Layout) -> Result<bool> {
        let mut virtualization = rm::Virtualization::default();
        self.file.control_sized(
            (self.client, self.parent),
            (&VIRTUALIZATION, layout),
            &self.taken,
            &mut virtualization,
        )?;
        Ok(virtualization.mode == GUEST)
    }
}
