//! Files that strangers passed, and connections on which they may have passed some.
//!
//! Wherever the last name of such a file is dropped, its maker decides how long that takes. So at most one is received of
//! each connection, where a greeting may bring one, and it is closed in the yard; its connection keeps its seat until then.
//! Files on any other byte are never received: they go with their connection ([`super::grave`]).

use super::yard::Yard;
use crate::sys;
use nix::sys::socket::{setsockopt, sockopt};
use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_node::kinds::Tenant;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Dropped when a connection and all that came by it are closed.
pub type Held = Arc<dyn Any + Send + Sync>;

/// A file that a stranger passed.
#[derive(Debug)]
pub struct Foreign {
    file: Option<OwnedFd>,
    yard: Yard,
    tenant: Tenant,
    held: Option<Held>,
}

impl Foreign {
    /// Has `adopt` take the file, on a thread of the yard.
    #[must_use]
    pub fn give<T>(mut self, adopt: impl FnOnce(OwnedFd) -> Option<T>) -> Option<T> {
        // What is held goes when the file is adopted, or closed.
        self.file.take().and_then(adopt)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let held = self.held.take();
            self.yard.put(self.tenant.clone(), move || {
                close(file);
                drop(held);
            });
        }
    }
}

/// Closes a file of a stranger's. On a thread of the yard.
fn close(file: OwnedFd) {
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
pub struct Wire {
    stream: Option<UnixStream>,
    yard: Yard,
    tenant: Tenant,
    held: Option<Held>,
}

impl Wire {
    /// A connection of `tenant`.
    #[must_use]
    pub fn new(stream: UnixStream, held: Option<Held>, yard: Yard, tenant: Tenant) -> Self {
        Self {
            stream: Some(stream),
            yard,
            tenant,
            held,
        }
    }

    /// The connection.
    ///
    /// # Errors
    /// While it is being dropped.
    pub fn stream(&self) -> io::Result<&UnixStream> {
        let stream = self.stream.as_ref();
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// As [`Self::stream`], to write.
    ///
    /// # Errors
    /// While it is being dropped.
    pub fn writer(&mut self) -> io::Result<Pin<&mut UnixStream>> {
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads bytes that are there.
    ///
    /// # Errors
    /// As `recv`; `InvalidData` when files come with them, which are not received.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let stream = self.stream()?;
        stream.try_io(Interest::READABLE, || {
            sys::receive_plain(stream.as_fd(), bytes)
        })
    }

    /// Reads bytes that are there, and the one file that may come with them.
    ///
    /// # Errors
    /// As `recvmsg`; when more files come, or there is no descriptor left for one.
    pub fn read_file(&self, bytes: &mut [u8]) -> io::Result<(usize, Option<Foreign>)> {
        let stream = self.stream()?;
        if sys::files_waiting(stream.as_fd())?.is_some_and(|files| files > 1) {
            return Err(io::Error::other("more files than one"));
        }
        let (taken, files, truncated) = stream.try_io(Interest::READABLE, || {
            sys::receive_with_descriptors(stream.as_fd(), bytes)
        })?;
        let foreign = |file| Foreign {
            file: Some(file),
            yard: self.yard.clone(),
            tenant: self.tenant.clone(),
            held: self.held.clone(),
        };
        let mut files: Vec<Foreign> = files.into_iter().map(foreign).collect();
        if truncated {
            return Err(io::Error::other("no descriptor left for a client's file"));
        }
        let file = files.pop();
        if files.is_empty() {
            Ok((taken, file))
        } else {
            Err(io::Error::other("more files than one"))
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let Some(Ok(stream)) = self.stream.take().map(UnixStream::into_std) else {
            return;
        };
        let _ = stream.shutdown(Shutdown::Both);
        // Nothing can come any more. Most leave no file behind, and are closed here.
        if matches!(sys::peek(stream.as_fd(), &mut [0]), Ok(0))
            || matches!(sys::files_waiting(stream.as_fd()), Ok(Some(0)))
        {
            return;
        }
        let Err(stream) = self.yard.bury(stream) else {
            return;
        };
        let held = self.held.take();
        self.yard.put(self.tenant.clone(), move || {
            close_read(&stream);
            drop(stream);
            drop(held);
        });
    }
}

/// Reads what is left on a connection, and closes the files that came with it.
fn close_read(stream: &StdStream) {
    let mut bytes = [0; 4096];
    while let Ok((1.., files, _)) = sys::receive_with_descriptors(stream.as_fd(), &mut bytes) {
        files.into_iter().for_each(close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("/proc").count()
    }

    /// P-SECURITY-12: files that strangers pass where none belongs take no descriptor and no thread of the agent's.
    #[tokio::test]
    async fn of_the_files_that_come_at_most_one_is_received_and_its_seat_is_held() {
        let yard = Yard::start(64);
        let seat: Held = Arc::new(());
        let wire = |near| {
            let stream = UnixStream::from_std(near).expect("a runtime");
            Wire::new(
                stream,
                Some(Arc::clone(&seat)),
                yard.clone(),
                Tenant::User(7),
            )
        };
        let pair = || {
            let (near, far) = StdStream::pair().expect("sockets exist");
            near.set_nonblocking(true).expect("it can be");
            (near, far)
        };
        let (pipe, _writer) = std::io::pipe().expect("pipes exist");
        for files in [1, 2, 253] {
            let (near, far) = pair();
            let wire = wire(near);
            let many = vec![pipe.as_fd(); files];
            sys::send_with_descriptors(far.as_fd(), b"0123456789abcdef", &many).expect("room");
            wire.stream()
                .expect("open")
                .readable()
                .await
                .expect("there");
            let before = descriptors();
            let error = wire
                .read(&mut [0; 64])
                .expect_err("files come with the bytes");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let greeting = wire.read_file(&mut [0; 16]);
            assert_eq!(greeting.is_ok(), files == 1, "{greeting:?}");
            assert_eq!(descriptors(), before + usize::from(files == 1));
            drop(wire);
            let held = usize::from(files == 1);
            assert_eq!(Arc::strong_count(&seat), 1 + held, "the seat of the file");
            drop(greeting);
            while Arc::strong_count(&seat) > 1 {
                tokio::task::yield_now().await;
            }
        }
        let (near, mut far) = pair();
        let wire = wire(near);
        far.write_all(b"no file").expect("room");
        wire.stream()
            .expect("open")
            .readable()
            .await
            .expect("there");
        assert_eq!(wire.read(&mut [0; 64]).expect("plain bytes"), 7);
    }
}
