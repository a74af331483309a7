//! What a GPU is called, and how much of its memory is in use: for people.

use super::asking::Sized;
use super::ioctl::Result;
use super::subdevice::Subdevice;
use tidegate_abi::rm::{self, Branch, Layout};

/// Memory of a GPU, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All that programs may have.
    pub total: u64,
    /// Of that in use, by whomever.
    pub used: u64,
}

const NAME: Sized = Sized {
    call: (
        rm::NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
        "GPU_GET_NAME_STRING",
    ),
    of: Branch::name_string_size,
    step: 4,
};
const FB_INFO: Sized = Sized {
    call: (rm::NV2080_CTRL_CMD_FB_GET_INFO_V2, "FB_GET_INFO_V2"),
    of: Branch::fb_info_size,
    step: 8,
};

impl Subdevice {
    /// The name that the vendor's tools print.
    ///
    /// # Errors
    /// When the driver does not say.
    pub fn model(&self, layout: Layout) -> Result<String> {
        let mut name = rm::NameString {
            flags: 0,
            text: [0; 128],
        };
        self.file.control_sized(
            (self.client, self.subdevice),
            (&NAME, layout),
            &self.taken,
            &mut name,
        )?;
        let text = name.text.iter().take(rm::NAME_ASCII);
        let text = text.take_while(|&&c| c != 0).map(|&c| char::from(c));
        Ok(text.filter(|c| c.is_ascii_graphic() || *c == ' ').collect())
    }

    /// Its memory at this moment, as `nvidia-smi` has it.
    ///
    /// # Errors
    /// When the driver does not say.
    pub fn memory(&self, layout: Layout) -> Result<Memory> {
        let mut info = rm::FbInfoV2 {
            list_size: 2,
            list: [[0; 2]; rm::FB_INFO_PLACES],
        };
        info.list[0][0] = rm::FB_INFO_HEAP_SIZE;
        info.list[1][0] = rm::FB_INFO_HEAP_FREE;
        self.file.control_sized(
            (self.client, self.subdevice),
            (&FB_INFO, layout),
            &self.taken,
            &mut info,
        )?;
        // In KiB.
        let [total, free] = [info.list[0][1], info.list[1][1]].map(|kib| u64::from(kib) << 10);
        Ok(Memory {
            total,
            used: total.saturating_sub(free),
        })
    }
}
