//! Files that strangers passed, and connections on which they may have passed some.
//!
//! Wherever the last name of such a file is dropped, its maker decides how long that takes. So none is dropped but in
//! the yard; and no byte of a stranger's is read by a call that would drop the files that came with it.

use super::yard::Yard;
use crate::sys;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use tidegate_node::kinds::Tenant;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A file that a stranger passed.
#[derive(Debug)]
pub struct Foreign {
    file: Option<OwnedFd>,
    yard: Yard,
    tenant: Tenant,
}

impl Foreign {
    /// One that `tenant` passed.
    #[must_use]
    pub const fn new(file: OwnedFd, yard: Yard, tenant: Tenant) -> Self {
        Self {
            file: Some(file),
            yard,
            tenant,
        }
    }

    /// The file, for a thread of the yard.
    #[must_use]
    pub fn take(mut self) -> Option<OwnedFd> {
        self.file.take()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.yard.put(self.tenant.clone(), move || close(file));
        }
    }
}

/// Closes a file of a stranger's. On a thread of the yard.
pub fn close(file: OwnedFd) {
    hurry(&file);
    drop(file);
}

/// Has a socket closed without waiting for what was not sent; any other file stays as it is.
pub fn hurry(file: &OwnedFd) {
    let at_once = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    let _ = setsockopt(file, sockopt::Linger, &at_once);
}

/// A stranger's connection, with what is to be dropped when it is closed.
#[derive(Debug)]
pub struct Wire<T: Send + 'static> {
    stream: Option<(UnixStream, T)>,
    yard: Yard,
    tenant: Tenant,
}

impl<T: Send> Wire<T> {
    /// A connection of `tenant`.
    #[must_use]
    pub const fn new(stream: UnixStream, held: T, yard: Yard, tenant: Tenant) -> Self {
        Self {
            stream: Some((stream, held)),
            yard,
            tenant,
        }
    }

    fn foreign(&self, file: OwnedFd) -> Foreign {
        Foreign::new(file, self.yard.clone(), self.tenant.clone())
    }

    /// The connection.
    ///
    /// # Errors
    /// While it is being dropped.
    pub fn stream(&self) -> io::Result<&UnixStream> {
        let stream = self.stream.as_ref().map(|(stream, _)| stream);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// As [`Self::stream`], to write.
    ///
    /// # Errors
    /// While it is being dropped.
    pub fn writer(&mut self) -> io::Result<Pin<&mut UnixStream>> {
        let stream = self.stream.as_mut().map(|(stream, _)| Pin::new(stream));
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads bytes that are there, and the files that came with them.
    ///
    /// # Errors
    /// As `recvmsg`.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<(usize, Vec<Foreign>, bool)> {
        let stream = self.stream()?;
        let (taken, files, truncated) = stream.try_io(Interest::READABLE, || {
            sys::receive_with_descriptors(stream.as_fd(), bytes)
        })?;
        let files = files.into_iter().map(|file| self.foreign(file)).collect();
        Ok((taken, files, truncated))
    }
}

impl<T: Send> Drop for Wire<T> {
    fn drop(&mut self) {
        let Some((stream, held)) = self.stream.take() else {
            return;
        };
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let _ = stream.shutdown(Shutdown::Both);
        // Nothing can come any more. Most leave nothing behind, and are closed here.
        if !matches!(sys::peek(stream.as_fd(), &mut [0]), Ok(0)) {
            self.yard.put(self.tenant.clone(), move || {
                close_read(&stream);
                drop(stream);
                drop(held);
            });
        }
    }
}

/// Reads what is left on a connection, and closes the files that came with it.
fn close_read(stream: &StdStream) {
    let mut bytes = [0; 4096];
    while let Ok((1.., files, _)) = sys::receive_with_descriptors(stream.as_fd(), &mut bytes) {
        files.into_iter().for_each(close);
    }
}
