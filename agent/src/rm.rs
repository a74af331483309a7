//! The resource manager's ioctls: the agent's own clients, subdevices and channel control.
//!
//! Three facts of the driver shape this file. RM answers in the struct's `status` while `ioctl`
//! itself returns 0. A call is only accepted for a client that was created on the same open file, and
//! root does not change that; [`ControlFile::owns`] turns this into a proof of ownership, by a control
//! that the driver never answers from its cache, because that is asked first. Two calls on
//! one client serialise even for different GPUs, so there is one [`Subdevice`], with its own file and
//! client, per GPU.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use tidegate_abi::class::{NV01_DEVICE_0, NV01_ROOT_CLIENT, NV20_SUBDEVICE_0};
use tidegate_abi::rm::{self, Branch, Status};

mod modes;
mod throw_away;
pub use throw_away::ThrowAway;

/// What can go wrong between the agent and the driver.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// A device file does not open.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The ioctl itself failed: wrong size, wrong file.
    #[error("the driver does not take {what}")]
    Ioctl {
        /// The call.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// RM answered with a status.
    #[error("the driver refuses {what}: {} ({:#x})", status.name(), status.0)]
    Refused {
        /// The call.
        what: &'static str,
        /// RM's answer.
        status: Status,
    },
    /// A descriptor that was said to be the driver's control file is not.
    #[error("not the driver's control file")]
    NotControlFile,
    /// The driver says something this file cannot read.
    #[error("the driver's {what} makes no sense")]
    Nonsense {
        /// The answer.
        what: &'static str,
    },
}

impl RmError {
    /// RM's status, if it was RM that refused.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, RmError>;

/// A parameter struct of the driver: plain integers, so that any bytes the kernel writes are valid.
///
/// # Safety
/// `Self` is `repr(C)` and consists of integers and arrays of them only.
unsafe trait Parameters {}

macro_rules! parameters {
    ($($ty:ty),* $(,)?) => { $(
        // SAFETY: `repr(C)` struct of integers, of `tidegate_abi::rm` or made of one.
        unsafe impl Parameters for $ty {}
    )* };
}

parameters!(
    rm::Nvos00,
    rm::Nvos54,
    rm::Nvos64,
    rm::RmApiVersion,
    rm::CardInfo,
    [rm::CardInfo; rm::MAX_GPUS],
    rm::RegisterFd,
    rm::Nv0080Alloc,
    rm::Nv2080Alloc,
    rm::BuildVersion,
    rm::AttachedIds,
    rm::AttachIds,
    rm::IdInfoV2,
    rm::GidInfo,
    rm::DisableChannels,
    rm::ChannelGroupAlloc,
    rm::ChannelAlloc,
    rm::Preempt,
    rm::RestartRunlist,
    rm::MemoryAlloc,
    rm::Timeslice,
    [u8; 2],
    [u8; 3],
    rm::GpuInfoV2,
    rm::ConfidentialCapabilities,
    rm::Virtualization,
    u32,
    (),
);

fn ioctl<T: Parameters>(
    file: BorrowedFd<'_>,
    escape: u32,
    what: &'static str,
    parameters: &mut T,
) -> Result<()> {
    let request = rm::request(escape, size_of::<T>());
    // SAFETY: the request number carries the size of `T`, which is all the kernel reads and writes
    // at the address; pointers inside the struct are set by the callers below to live buffers.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(parameters)) };
    if result == 0 {
        Ok(())
    } else {
        Err(RmError::Ioctl {
            what,
            source: io::Error::last_os_error(),
        })
    }
}

fn open(path: &str) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| RmError::Open {
            path: path.to_owned(),
            source,
        })
}

/// An open file of `/dev/nvidiactl`: the agent's own, or one that a process handed over.
#[derive(Debug)]
pub struct ControlFile(OwnedFd);

impl ControlFile {
    /// The agent's own.
    ///
    /// # Errors
    /// When the device does not open.
    pub fn open() -> Result<Self> {
        open("/dev/nvidiactl").map(|file| Self(file.into()))
    }

    /// Somebody else's, looked at before it is used for anything: it must be the control device.
    ///
    /// # Errors
    /// When it is any other file.
    pub fn adopt(file: OwnedFd) -> Result<Self> {
        if crate::sys::character_device(file.as_fd()) == Some((rm::DEVICE_MAJOR, rm::CTL_MINOR)) {
            Ok(Self(file))
        } else {
            Err(RmError::NotControlFile)
        }
    }

    /// Any file, for who answers the calls on it himself.
    #[doc(hidden)]
    #[must_use]
    pub const fn stand_in(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Version string of the loaded driver.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn driver_version(&self) -> Result<String> {
        let mut parameters = rm::RmApiVersion {
            // Query: the driver fills in its version and judges nothing.
            cmd: u32::from(b'2'),
            reply: 0,
            version: [0; 64],
        };
        ioctl(
            self.0.as_fd(),
            rm::NV_ESC_CHECK_VERSION_STR,
            "CHECK_VERSION_STR",
            &mut parameters,
        )?;
        let text: Vec<u8> = parameters
            .version
            .into_iter()
            .take_while(|&b| b != 0)
            .collect();
        match String::from_utf8(text) {
            Ok(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()) => Ok(text),
            _ => Err(RmError::Nonsense {
                what: "version string",
            }),
        }
    }

    fn control<T: Parameters>(
        &self,
        (client, object): (u32, u32),
        what: (u32, &'static str),
        parameters: &mut T,
    ) -> Result<()> {
        self.control_part((client, object), what, parameters, size_of::<T>())
    }

    /// As [`Self::control`], for a branch that knows only the first `bytes` of the parameters.
    fn control_part<T: Parameters>(
        &self,
        (client, object): (u32, u32),
        (cmd, what): (u32, &'static str),
        parameters: &mut T,
        bytes: usize,
    ) -> Result<()> {
        let bytes = bytes.min(size_of::<T>());
        let mut call = rm::Nvos54 {
            h_client: client,
            h_object: object,
            cmd,
            params: if bytes == 0 {
                0
            } else {
                std::ptr::from_mut(parameters) as u64
            },
            params_size: u32::try_from(bytes).unwrap_or(u32::MAX),
            ..rm::Nvos54::default()
        };
        ioctl(self.0.as_fd(), rm::NV_ESC_RM_CONTROL, what, &mut call)?;
        refused(what, call.status)
    }

    fn alloc<T: Parameters>(
        &self,
        handles: (u32, u32, u32),
        class: (u32, &'static str),
        parameters: Option<&mut T>,
    ) -> Result<u32> {
        self.alloc_part(handles, class, parameters, size_of::<T>())
    }

    /// As [`Self::alloc`], for a branch that knows only the first `bytes` of the parameters.
    fn alloc_part<T: Parameters>(
        &self,
        (root, parent, new): (u32, u32, u32),
        (class, what): (u32, &'static str),
        parameters: Option<&mut T>,
        bytes: usize,
    ) -> Result<u32> {
        let size = u32::try_from(bytes.min(size_of::<T>())).unwrap_or(u32::MAX);
        let mut call = rm::Nvos64 {
            h_root: root,
            h_object_parent: parent,
            h_object_new: new,
            h_class: class,
            params_size: parameters.as_ref().map_or(0, |_| size),
            p_alloc_parms: parameters.map_or(0, |p| std::ptr::from_mut(p) as u64),
            ..rm::Nvos64::default()
        };
        ioctl(self.0.as_fd(), rm::NV_ESC_RM_ALLOC, what, &mut call)?;
        refused(what, call.status)?;
        Ok(call.h_object_new)
    }

    /// Makes a client on this file, which lives as long as the file.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn client(&self) -> Result<u32> {
        self.root()
    }

    /// Has the driver cache its build version, as every program does that starts CUDA: by the control
    /// that [`Self::owns`] must not ask.
    ///
    /// # Errors
    /// RM's answer.
    pub fn prime(&self, client: u32) -> Result<()> {
        let mut strings = [[0_u8; 256]; 3];
        let [driver, version, title] = strings.each_mut().map(|text| text.as_mut_ptr() as u64);
        let mut parameters = rm::BuildVersion {
            size_of_strings: 256,
            p_driver_version_buffer: driver,
            p_version_buffer: version,
            p_title_buffer: title,
            ..rm::BuildVersion::default()
        };
        self.control(
            (client, client),
            (
                rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
                "SYSTEM_GET_BUILD_VERSION",
            ),
            &mut parameters,
        )
    }

    /// Makes a client on this file.
    fn root(&self) -> Result<u32> {
        self.alloc::<()>((0, 0, 0), (NV01_ROOT_CLIENT, "a client"), None)
    }

    /// Whether `client` was created on this very open file.
    ///
    /// The call asks the client object itself which GPUs are attached, which RM answers only on the
    /// client's own file; any other gets `INVALID_CLIENT`. It must not be a null control (`cmd` 0), which
    /// RM answers with success before it looks at the client, nor one whose answer RM caches, such as
    /// the build version: once anybody has asked for that, every client that exists is answered on every
    /// file. Of this one no version of the driver caches anything.
    ///
    /// # Errors
    /// When the driver neither accepts nor says `INVALID_CLIENT`.
    pub fn owns(&self, client: u32) -> Result<bool> {
        let mut parameters = rm::AttachedIds {
            gpu_ids: [rm::INVALID_GPU_ID; rm::MAX_GPUS],
        };
        let answer = self.control(
            (client, client),
            (
                rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
                "GPU_GET_ATTACHED_IDS",
            ),
            &mut parameters,
        );
        match answer {
            Ok(()) => Ok(true),
            Err(RmError::Refused { status, .. }) if says_no_such_client(status) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a client of this number, whoever made it.
    ///
    /// RM answers a client that does not exist and one of another file alike. Between the two checks
    /// it looks at the size of the parameters, so a wrong one is complained of only where the client
    /// exists. What the driver answers in any other way counts as existing.
    #[must_use]
    pub fn exists(&self, client: u32) -> bool {
        let cmd = rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        let asked = self.control((client, client), (cmd, "a wrong size"), &mut ());
        let status = asked.err().and_then(|error| error.status());
        !status.is_some_and(says_no_such_client)
    }

    /// Whose `client` is by now.
    ///
    /// # Errors
    /// When the driver does not say.
    pub fn owner(&self, client: u32) -> Result<Owner> {
        Ok(if self.owns(client)? {
            Owner::Own
        } else if self.exists(client) {
            Owner::Foreign
        } else {
            Owner::Nobody
        })
    }

    /// Disables or enables the pairs of `buffer` through `subdevice` of `client`.
    ///
    /// # Errors
    /// RM's answer. After a failed disable the state of the pairs is unknown.
    pub fn set_channels(
        &self,
        client: u32,
        subdevice: u32,
        buffer: &mut rm::DisableChannels,
    ) -> Result<()> {
        self.control(
            (client, subdevice),
            (
                rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                "FIFO_DISABLE_CHANNELS",
            ),
            buffer,
        )
    }
}

/// Whose a client is, as seen from one open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It was made on this file.
    Own,
    /// It was made on another.
    Foreign,
    /// There is none of that number.
    Nobody,
}

fn says_no_such_client(status: Status) -> bool {
    [
        Status::INVALID_CLIENT,
        Status::INVALID_OBJECT_HANDLE,
        Status::OBJECT_NOT_FOUND,
    ]
    .contains(&status)
}

/// Controls of one TSG or channel, on its owner's file.
impl ControlFile {
    /// Takes a TSG off its engine once and waits for it (`NVA06C_CTRL_CMD_PREEMPT`). It stays scheduled.
    ///
    /// # Errors
    /// RM's answer.
    pub fn preempt(&self, client: u32, tsg: u32) -> Result<()> {
        let mut parameters = rm::Preempt {
            wait: 1,
            ..rm::Preempt::default()
        };
        self.control(
            (client, tsg),
            (rm::NVA06C_CTRL_CMD_PREEMPT, "PREEMPT"),
            &mut parameters,
        )
    }

    /// Restarts the runlist that a channel is on (`NVA06F_CTRL_CMD_RESTART_RUNLIST`) and waits for it:
    /// whoever has the turn yields it, and the firmware reads anew who may have one. Takes
    /// `CAP_SYS_NICE`.
    ///
    /// # Errors
    /// RM's answer; `INSUFFICIENT_PERMISSIONS` without the capability.
    pub fn restart_runlist(&self, client: u32, channel: u32) -> Result<()> {
        let mut parameters = rm::RestartRunlist {
            force: 1,
            bypass_wait: 0,
        };
        self.control(
            (client, channel),
            (rm::NVA06F_CTRL_CMD_RESTART_RUNLIST, "RESTART_RUNLIST"),
            &mut parameters,
        )
    }

    /// Sets how long a TSG keeps its engine beside others, in microseconds.
    ///
    /// # Errors
    /// RM's answer.
    pub fn set_timeslice(&self, client: u32, tsg: u32, timeslice_us: u64) -> Result<()> {
        self.control(
            (client, tsg),
            (rm::NVA06C_CTRL_CMD_SET_TIMESLICE, "SET_TIMESLICE"),
            &mut rm::Timeslice { timeslice_us },
        )
    }

    /// Puts a TSG on its runlist or takes it off.
    ///
    /// # Errors
    /// RM's answer.
    pub fn schedule(&self, client: u32, tsg: u32, enable: bool, branch: Branch) -> Result<()> {
        let object = (client, tsg);
        let call = (rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, "GPFIFO_SCHEDULE");
        let enable = u8::from(enable);
        if branch.schedule_size() == 2 {
            self.control(object, call, &mut [enable, 0])
        } else {
            self.control(object, call, &mut [enable, 0, 0])
        }
    }
}

fn refused(what: &'static str, status: u32) -> Result<()> {
    let status = Status(status);
    if status.is_ok() {
        Ok(())
    } else {
        Err(RmError::Refused { what, status })
    }
}

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

/// `GPU-xxxxxxxx-xxxx-...`, as the vendor's tools print a UUID.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        uuid[range].iter().map(|b| format!("{b:02x}")).collect()
    };
    format!(
        "GPU-{}-{}-{}-{}-{}",
        hex(0..4),
        hex(4..6),
        hex(6..8),
        hex(8..10),
        hex(10..16)
    )
}

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

/// The agent's own subdevice of one GPU, with a client of its own.
#[derive(Debug)]
pub struct Subdevice {
    file: Arc<ControlFile>,
    client: u32,
    parent: u32,
    subdevice: u32,
    /// Held open: a GPU with no open file may be torn down by the driver.
    _device: OwnedFd,
}

/// The agent's own object handles; they only have to differ within one client.
const DEVICE_HANDLE: u32 = 0x7d00_0000;
const SUBDEVICE_HANDLE: u32 = 0x7d10_0000;

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

    fn on(file: Arc<ControlFile>, client: u32, device: OwnedFd, instance: u32) -> Result<Self> {
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
            _device: device,
        })
    }

    fn uuid(&self) -> Result<[u8; 16]> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_control_device_is_never_adopted() {
        let null = File::open("/dev/null").expect("/dev/null exists");
        assert!(matches!(
            ControlFile::adopt(null.into()),
            Err(RmError::NotControlFile)
        ));
    }

    #[test]
    fn a_uuid_reads_as_the_vendors_tools_print_it() {
        let uuid = [
            0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
        ];
        assert_eq!(uuid_text(&uuid), "GPU-deadbeef-0102-0304-0506-0708090a0b0c");
    }
}
