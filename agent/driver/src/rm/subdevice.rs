//! A GPU as this process reaches it: a device and a subdevice of a client of its own.

use super::asking::{Longer, Taken, is_of_size};
use super::control_file::ControlFile;
use super::gpu::Gpu;
use super::ioctl::{Result, open};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_abi::class::{NV01_DEVICE_0, NV20_SUBDEVICE_0};
use tidegate_abi::rm;

/// The agent's own subdevice of one GPU, with a client of its own.
#[derive(Debug)]
pub struct Subdevice {
    pub(super) file: Arc<ControlFile>,
    pub(super) client: u32,
    pub(super) parent: u32,
    pub(super) subdevice: u32,
    pub(super) taken: Taken,
    /// Held open: a GPU with no open file may be torn down by the driver.
    _device: OwnedFd,
}

/// The agent's own object handles; they only have to differ within one client.
pub(super) const DEVICE_HANDLE: u32 = 0x7d00_0000;
const SUBDEVICE_HANDLE: u32 = 0x7d10_0000;
/// Handle of no object.
const NO_CHANNEL: u32 = 0x7dff_ffff;

impl Subdevice {
    /// Opens the GPU with a file and a client of its own.
    ///
    /// # Errors
    /// When the driver refuses any step.
    pub fn open(gpu: &Gpu) -> Result<Self> {
        let file = Arc::new(ControlFile::open()?);
        let client = file.root()?;
        let device = open(&format!("/dev/nvidia{}", gpu.minor))?;
        Self::on(file, client, device.into(), gpu.device_instance)
    }

    pub(super) fn on(
        file: Arc<ControlFile>,
        client: u32,
        device: OwnedFd,
        instance: u32,
    ) -> Result<Self> {
        let mut parameters = rm::Nv0080Alloc {
            device_id: instance,
            // Its VA space is its own client's, as CUDA's is.
            h_client_share: client,
            ..rm::Nv0080Alloc::default()
        };
        let parent = file.alloc(
            (client, client, DEVICE_HANDLE + instance),
            (NV01_DEVICE_0, "a device"),
            Some(&mut parameters),
        )?;
        let mut parameters = rm::Nv2080Alloc::default();
        let subdevice = file.alloc(
            (client, parent, SUBDEVICE_HANDLE + instance),
            (NV20_SUBDEVICE_0, "a subdevice"),
            Some(&mut parameters),
        )?;
        Ok(Self {
            file,
            client,
            parent,
            subdevice,
            taken: Taken::default(),
            _device: device,
        })
    }

    pub(super) fn uuid(&self) -> Result<[u8; 16]> {
        let mut parameters = rm::GidInfo {
            index: 0,
            flags: rm::GID_FORMAT_BINARY,
            length: 0,
            data: [0; 256],
        };
        self.file.control(
            (self.client, self.subdevice),
            (rm::NV2080_CTRL_CMD_GPU_GET_GID_INFO, "GPU_GET_GID_INFO"),
            &mut parameters,
        )?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&parameters.data[..16]);
        Ok(uuid)
    }

    /// Disables or enables the pairs of `buffer`, whoever owns them.
    ///
    /// # Errors
    /// RM's answer. After a failed disable the state of the pairs is unknown.
    pub fn set_channels(&self, buffer: &mut rm::DisableChannels) -> Result<()> {
        self.file.set_channels(self.client, self.subdevice, buffer)
    }

    /// See [`ControlFile::exists`].
    #[must_use]
    pub fn sees(&self, client: u32) -> bool {
        self.file.exists(client)
    }

    /// Whether the driver takes a list of channels of the size that every branch has had, and no other. The list asks for a
    /// channel to be enabled that this process does not have, and of a driver that reads it there is an answer that is not
    /// about the size.
    ///
    /// # Errors
    /// What is wrong where it does not.
    pub fn takes_one_size(&self) -> std::result::Result<(), String> {
        let mut list = rm::DisableChannels {
            num_channels: 1,
            ..rm::DisableChannels::default()
        };
        list.h_client_list[0] = self.client;
        list.h_channel_list[0] = NO_CHANNEL;
        let taken = |size: usize| {
            let call = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
            let answer = self.file.control_part(
                (self.client, self.subdevice),
                (call, "FIFO_DISABLE_CHANNELS"),
                &mut Longer::new(list),
                size,
            );
            let status = answer.err().and_then(|error| error.status());
            !status.is_some_and(is_of_size)
        };
        let right = size_of::<rm::DisableChannels>();
        if !taken(right) {
            return Err(format!("it takes no list of channels of {right} bytes"));
        }
        match [right - 8, right + 8]
            .into_iter()
            .find(|wrong| taken(*wrong))
        {
            Some(wrong) => Err(format!(
                "it takes a list of channels of {wrong} bytes as well as one of {right}: two answers fit"
            )),
            None => Ok(()),
        }
    }
}
