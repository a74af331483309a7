//! Sockets that the service manager holds for the agent (`sd_listen_fds(3)`).
//!
//! They outlive it: a client that connects between two agents waits in the backlog, and its next agent
//! answers. Each is known by its name, never by its place; what is not passed, the agent binds itself.

use crate::sys;
use nix::sys::socket::{AddressFamily, SockaddrLike as _};
use nix::sys::socket::{SockaddrStorage, getsockname, getsockopt, sockopt};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

/// The names of the sockets an agent serves (`FileDescriptorName=`).
pub const NAMES: [&str; 3] = ["hook", "control", "status"];

/// Why passed descriptors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The environment variables are broken.
    #[error("cannot read LISTEN_FDS and LISTEN_FDNAMES")]
    Environment(#[source] io::Error),
    /// A name nobody knows.
    #[error(
        "the service manager passes a socket named '{0}'; set FileDescriptorName= to one of hook, \
         control, status"
    )]
    Unknown(String),
    /// Two of one name.
    #[error("the service manager passes two sockets named '{0}'")]
    Twice(String),
    /// Not what an agent serves on.
    #[error("the socket named '{0}' is not a listening Unix stream socket")]
    Kind(String),
}

/// Sockets passed and not taken yet.
#[derive(Debug, Default)]
pub struct Passed(HashMap<String, UnixListener>);

impl Passed {
    /// What this process was started with.
    ///
    /// # Errors
    /// When something was passed that the agent does not serve on.
    pub fn from_environment() -> Result<Self, ActivationError> {
        let listed = sd_notify::listen_fds_with_names().map_err(ActivationError::Environment)?;
        let mut passed = HashMap::new();
        for (fd, name) in listed {
            let fd = sys::passed_descriptor(fd);
            if !NAMES.contains(&name.as_str()) {
                return Err(ActivationError::Unknown(name));
            }
            let family = getsockname::<SockaddrStorage>(fd.as_raw_fd()).ok();
            let unix = family.and_then(|at| at.family()) == Some(AddressFamily::Unix);
            if !unix || getsockopt(&fd, sockopt::AcceptConn) != Ok(true) {
                return Err(ActivationError::Kind(name));
            }
            let listener = UnixListener::from(fd);
            let unblocked = listener.set_nonblocking(true);
            unblocked.map_err(ActivationError::Environment)?;
            if passed.insert(name.clone(), listener).is_some() {
                return Err(ActivationError::Twice(name));
            }
        }
        Ok(Self(passed))
    }

    /// The socket of this name, if it was passed.
    pub fn take(&mut self, name: &str) -> Option<UnixListener> {
        self.0.remove(name)
    }
}
