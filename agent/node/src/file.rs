//! Descriptors of processes. The shell keeps them and passes them on, but never uses them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// An open file of the driver that a process showed. Who made it knows what is inside.
#[derive(Clone)]
pub struct File(Arc<dyn Any + Send + Sync>);

impl File {
    /// Wraps one.
    #[must_use]
    pub fn new(inside: impl Any + Send + Sync) -> Self {
        Self(Arc::new(inside))
    }

    /// What is inside, for who made it.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }

    /// Whether both are one.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}

/// What a process sent as its control file, before anybody has looked at it.
pub struct SentFile(pub Box<dyn Any + Send>);

impl SentFile {
    /// What is inside, for who made it.
    #[must_use]
    pub fn take<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|inside| *inside)
    }
}

impl fmt::Debug for SentFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SentFile")
    }
}

/// The driver's files of a process, held open.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// On which the RM clients of its channels were made.
    pub control: Vec<File>,
    /// On which its channels are registered.
    pub uvm: Option<File>,
}
