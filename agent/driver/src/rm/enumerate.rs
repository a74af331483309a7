//! Which driver this is, and which GPUs it lists.

use super::control_file::ControlFile;
use super::gpu::Gpu;
use super::ioctl::{Result, RmError, ioctl, open};
use super::subdevice::Subdevice;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_abi::rm::{self, Branch};

/// The driver and its GPUs.
#[derive(Debug)]
pub struct Driver {
    /// e.g. `580.95.05`.
    pub version: String,
    /// None: this agent knows no layouts for it.
    pub branch: Option<Branch>,
    /// In order of minor number, as the vendor's tools count them.
    pub gpus: Vec<Gpu>,
    /// GPUs of the machine whose files this process does not have or may not open, as in a container
    /// that was given some of them.
    pub hidden: Vec<Hidden>,
    /// Why its GPUs could not be listed, if so: there are none in the list then, and only launches can be gated.
    pub lacks: Option<String>,
}

impl Driver {
    /// A driver that does not list its GPUs: there is none, this process may not ask it, or it is one whose answers
    /// cannot be read.
    #[must_use]
    pub fn unlisted(error: &RmError) -> Self {
        let version = ControlFile::open().and_then(|file| file.driver_version());
        Self {
            version: version.unwrap_or_default(),
            // Whatever layouts it has were not understood.
            branch: None,
            gpus: Vec::new(),
            hidden: Vec::new(),
            lacks: Some(format!(
                "the GPUs cannot be listed: {}",
                crate::causes::with_causes(error)
            )),
        }
    }
}

/// A GPU of the machine that this process cannot open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/dev/nvidia{}: {}", self.minor, self.why)
    }
}

/// Asks the driver what it is and which GPUs it has.
///
/// # Errors
/// When there is no driver, or it does not answer.
pub fn enumerate() -> Result<Driver> {
    let file = Arc::new(ControlFile::open()?);
    let version = file.driver_version()?;
    let branch = Branch::of_version(&version);
    let client = file.root()?;
    let mut cards = [rm::CardInfo::default(); rm::MAX_GPUS];
    ioctl(
        file.0.as_fd(),
        rm::NV_ESC_CARD_INFO,
        "CARD_INFO",
        &mut cards,
    )?;
    let (mut gpus, mut hidden) = (Vec::new(), Vec::new());
    for card in cards {
        if card.valid & 0xff == 0 || card.gpu_id == rm::INVALID_GPU_ID {
            continue;
        }
        // The driver lists the machine's, whatever this process sees of them.
        let device = match open(&format!("/dev/nvidia{}", card.minor)) {
            Err(RmError::Open { source, .. }) if is_hidden(&source) => {
                hidden.push(Hidden {
                    minor: card.minor,
                    why: source.to_string(),
                });
                continue;
            }
            opened => opened?,
        };
        let instance = attach(&file, client, card.gpu_id)?;
        let subdevice = Subdevice::on(Arc::clone(&file), client, device.into(), instance)?;
        gpus.push(Gpu {
            minor: card.minor,
            device_instance: instance,
            uuid: subdevice.uuid()?,
        });
    }
    gpus.sort_by_key(|gpu| gpu.minor);
    hidden.sort_by_key(|gpu| gpu.minor);
    Ok(Driver {
        version,
        branch,
        gpus,
        hidden,
        lacks: None,
    })
}

/// Whether a device file that does not open is not meant for this process: it is not there (containers), the device
/// cgroup forbids it (EPERM), or its mode does (EACCES).
fn is_hidden(error: &io::Error) -> bool {
    [libc::ENOENT, libc::EPERM, libc::EACCES]
        .map(Some)
        .contains(&error.raw_os_error())
}

/// Attaches a GPU to the client's file and returns its device instance.
fn attach(file: &ControlFile, client: u32, gpu_id: u32) -> Result<u32> {
    let mut parameters = rm::AttachIds {
        gpu_ids: [rm::INVALID_GPU_ID; rm::MAX_GPUS],
        failed_id: rm::INVALID_GPU_ID,
    };
    parameters.gpu_ids[0] = gpu_id;
    file.control(
        (client, client),
        (rm::NV0000_CTRL_CMD_GPU_ATTACH_IDS, "GPU_ATTACH_IDS"),
        &mut parameters,
    )?;
    let mut info = rm::IdInfoV2 {
        gpu_id,
        ..rm::IdInfoV2::default()
    };
    file.control(
        (client, client),
        (rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, "GPU_GET_ID_INFO_V2"),
        &mut info,
    )?;
    Ok(info.device_instance)
}
