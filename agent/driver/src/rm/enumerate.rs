//! Which driver this is, and which GPUs it lists.

use super::control_file::ControlFile;
use super::gpu::Gpu;
use super::ioctl::{Result, RmError, ioctl, open};
use super::subdevice::Subdevice;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_abi::rm::{self, Branch, Layout};

/// The driver and its GPUs.
#[derive(Debug)]
pub struct Driver {
    /// e.g. `580.95.05`.
    pub version: String,
    /// Where its layouts are known from. None: what it says is no version.
    pub layout: Option<Layout>,
    /// In order of minor number, as the vendor's tools count them.
    pub gpus: Vec<Gpu>,
    /// GPUs of the machine that this process cannot use: it was not given their files, as in a container, or the driver
    /// refuses them, as those that are lost.
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
        let version = version.unwrap_or_default();
        Self {
            layout: Layout::of_version(&version),
            version,
            gpus: Vec::new(),
            hidden: Vec::new(),
            lacks: Some(format!(
                "the GPUs cannot be listed: {}",
                crate::causes::with_causes(error)
            )),
        }
    }
}

impl Driver {
    /// Its branch, where the layouts of it are known.
    #[must_use]
    pub fn branch(&self) -> Option<Branch> {
        self.layout.and_then(Layout::branch)
    }

    /// Hides a GPU that was listed, if the error is of that GPU only.
    ///
    /// # Errors
    /// The error, if it is the driver's.
    pub fn hide(&mut self, minor: u32, error: RmError) -> Result<()> {
        if !is_of_one(&error) {
            return Err(error);
        }
        self.hidden.push(Hidden::of(minor, &error));
        self.hidden.sort_by_key(|gpu| gpu.minor);
        Ok(())
    }
}

/// A GPU of the machine that this process cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// Why.
    pub why: String,
}

impl Hidden {
    fn of(minor: u32, error: &RmError) -> Self {
        let why = match error {
            // The file is named already.
            RmError::Open { source, .. } => source.to_string(),
            other => crate::causes::with_causes(other),
        };
        Self { minor, why }
    }
}

impl std::fmt::Display for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/dev/nvidia{}: {}", self.minor, self.why)
    }
}

/// Asks the driver what it is and which GPUs it has.
///
/// # Errors
/// When there is no driver, it does not answer, or it refuses every GPU.
pub fn enumerate() -> Result<Driver> {
    let file = Arc::new(ControlFile::open()?);
    let version = file.driver_version()?;
    let client = file.root()?;
    let mut cards = [rm::CardInfo::default(); rm::MAX_GPUS];
    ioctl(
        file.0.as_fd(),
        rm::NV_ESC_CARD_INFO,
        "CARD_INFO",
        &mut cards,
    )?;
    let (mut gpus, mut hidden) = (Vec::new(), Vec::new());
    let mut refused = None;
    for card in cards {
        if card.valid & 0xff == 0 || card.gpu_id == rm::INVALID_GPU_ID {
            continue;
        }
        match look_at(&file, client, &card) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) if is_of_one(&error) => {
                hidden.push(Hidden::of(card.minor, &error));
                refused = refused.or(error.status().map(|_| error));
            }
            Err(error) => return Err(error),
        }
    }
    gpus.sort_by_key(|gpu| gpu.minor);
    hidden.sort_by_key(|gpu| gpu.minor);
    if let Some(error) = refused.filter(|_| gpus.is_empty()) {
        return Err(error);
    }
    Ok(Driver {
        layout: Layout::of_version(&version),
        version,
        gpus,
        hidden,
        lacks: None,
    })
}

/// Asks for one GPU of those that the driver lists. Its list is the machine's, whatever this process sees of it.
fn look_at(file: &Arc<ControlFile>, client: u32, card: &rm::CardInfo) -> Result<Gpu> {
    let device = open(&format!("/dev/nvidia{}", card.minor))?;
    let instance = attach(file, client, card.gpu_id)?;
    let subdevice = Subdevice::on(Arc::clone(file), client, device.into(), instance)?;
    Ok(Gpu {
        minor: card.minor,
        device_instance: instance,
        uuid: subdevice.uuid()?,
    })
}

/// Whether an error says something of one GPU only: its file does not open (a container has none of it, the device cgroup
/// or its mode forbids it, the driver cannot start it), or RM refuses it, as one that has fallen off the bus. An ioctl that
/// fails and an answer that cannot be read are the driver's.
const fn is_of_one(error: &RmError) -> bool {
    matches!(error, RmError::Open { .. } | RmError::Refused { .. })
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
