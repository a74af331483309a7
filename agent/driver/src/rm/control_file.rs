//! The control file: clients, calls on them, and the proof that a client was made on it.

use super::ioctl::{Parameters, Result, RmError, ioctl, open, refused};
use std::os::fd::{AsFd, OwnedFd};
use tidegate_abi::class::NV01_ROOT_CLIENT;
use tidegate_abi::rm::{self, Status};

/// An open file of `/dev/nvidiactl`: the agent's own, or one that a process handed over.
#[derive(Debug)]
pub struct ControlFile(pub(super) OwnedFd);

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

    pub(super) fn control<T: Parameters>(
        &self,
        (client, object): (u32, u32),
        what: (u32, &'static str),
        parameters: &mut T,
    ) -> Result<()> {
        self.control_part((client, object), what, parameters, size_of::<T>())
    }

    /// As [`Self::control`], for a branch that knows only the first `bytes` of the parameters.
    pub(super) fn control_part<T: Parameters>(
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

    pub(super) fn alloc<T: Parameters>(
        &self,
        handles: (u32, u32, u32),
        class: (u32, &'static str),
        parameters: Option<&mut T>,
    ) -> Result<u32> {
        self.alloc_part(handles, class, parameters, size_of::<T>())
    }

    /// As [`Self::alloc`], for a branch that knows only the first `bytes` of the parameters.
    pub(super) fn alloc_part<T: Parameters>(
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
    pub(super) fn root(&self) -> Result<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_that_is_not_the_control_device_is_never_adopted() {
        let null = File::open("/dev/null").expect("/dev/null exists");
        assert!(matches!(
            ControlFile::adopt(null.into()),
            Err(RmError::NotControlFile)
        ));
    }
}
