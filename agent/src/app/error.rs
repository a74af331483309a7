//! Why the agent does not run.

use crate::channels::level::Refused;
use crate::device::DeviceError;
use crate::grpc::activation::ActivationError;
use crate::host::rundir::RunDirError;
use crate::rm::RmError;
use std::io;

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// What the service manager passes.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The driver.
    #[error("cannot use the driver")]
    Driver(#[from] RmError),
    /// The channel level.
    #[error(transparent)]
    Level(#[from] Refused),
    /// Threads, sockets.
    #[error("cannot {what}")]
    Start {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The metrics endpoint.
    #[error("cannot serve metrics on {listen}: choose another `metrics.listen`, or \"off\"")]
    Metrics {
        /// Where.
        listen: crate::config::Listen,
        /// Why.
        source: io::Error,
    },
    /// The control thread is gone.
    #[error("the control thread ended by itself")]
    ControlLost,
    /// A server is gone.
    #[error("a socket is no longer served")]
    Server(#[from] tonic::transport::Error),
}

impl AppError {
    /// 3 when another agent runs, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::RunDir(error) if error.is_held() => 3,
            _ => 1,
        }
    }
}

pub(super) fn starting(what: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| AppError::Start { what, source }
}
