//! Closes connections that carry files of untrusted clients which nobody receives.
//!
//! The kernel drops such files together with the connection, in the thread that drops the last reference to it. A
//! socket among them blocks that thread for as long as its maker likes, unless the thread is ending. So the connection
//! goes to a thread with a descriptor table of its own. That thread takes a reference, and ends once the agent has
//! dropped its own, so that the ending thread has the last one. No such file ever gets a number in the agent's table.

use crate::sys;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long connections wait where no thread can be made.
const PAUSE: Duration = Duration::from_millis(50);

/// The way there.
#[derive(Debug)]
pub struct Grave {
    way: Mutex<UnixStream>,
    /// Connections of which the agent has dropped its own name, in the order in which they were sent.
    dropped: Arc<AtomicU32>,
}

impl Grave {
    /// Starts the thread that makes the others.
    ///
    /// # Errors
    /// When it cannot be made, or may have no descriptors of its own.
    pub fn start() -> io::Result<Self> {
        let (way, end) = UnixStream::pair()?;
        way.set_nonblocking(true)?;
        end.set_nonblocking(true)?;
        let (ready_tx, ready_rx) = channel();
        let dropped = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("tg-grave".to_owned())
            .spawn(move || {
                // From here on `end` has its number in two tables. It is closed in neither while the agent runs.
                let owns = sys::own_descriptors(end.as_fd());
                let ready = owns.is_ok();
                let _ = ready_tx.send(owns);
                if ready {
                    work(&end, &counted);
                }
                std::mem::forget(end);
            })?;
        ready_rx.recv().map_err(io::Error::other)??;
        let way = Mutex::new(way);
        Ok(Self { way, dropped })
    }

    /// Closes a connection, and never waits.
    ///
    /// # Errors
    /// The connection, when it cannot be handed over.
    pub fn put(&self, stream: UnixStream) -> Result<(), UnixStream> {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        match sys::send_with_descriptors(way.as_fd(), &[0], &[stream.as_fd()]) {
            Ok(()) => {
                // It has another name until this is counted.
                drop(stream);
                self.dropped.fetch_add(1, Ordering::Release);
                sys::futex_wake(&self.dropped);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, "a connection with files on it is closed elsewhere");
                Err(stream)
            }
        }
    }
}

fn work(end: &UnixStream, dropped: &AtomicU32) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut taken = 0;
    loop {
        let mut there = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
        if poll(&mut there, PollTimeout::NONE).is_err() {
            continue;
        }
        let made = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("tg-grave".to_owned());
            let take = || take(end, &mut taken, dropped);
            thread.spawn_scoped(scope, take).map(drop)
        });
        if let Err(error) = made {
            tracing::warn!(%error, "no thread that closes connections with files on them");
            std::thread::sleep(PAUSE);
        }
    }
}

/// Takes what is there into a table that ends with this thread, and closes none of it.
fn take(end: &UnixStream, taken: &mut u32, dropped: &AtomicU32) {
    if sys::own_descriptors(end.as_fd()).is_err() {
        return std::thread::sleep(PAUSE);
    }
    while let Ok((1.., files, _)) = sys::receive_with_descriptors(end.as_fd(), &mut [0]) {
        files.into_iter().for_each(std::mem::forget);
        *taken = taken.wrapping_add(1);
    }
    loop {
        let now = dropped.load(Ordering::Acquire);
        if now.wrapping_sub(*taken) <= u32::MAX / 2 {
            return;
        }
        let _ = sys::futex_wait(dropped, now, Some(PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A socket whose last close waits for a minute, and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a loopback");
        let address = listener.local_addr().expect("it is bound");
        let mut stream = TcpStream::connect(address).expect("somebody listens");
        let (other, _) = listener.accept().expect("it is there");
        stream.set_nonblocking(true).expect("it can be");
        while stream.write(&[0; 1 << 16]).is_ok() {}
        let minute = libc::linger {
            l_onoff: 1,
            l_linger: 60,
        };
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &minute)
            .expect("it can be");
        (stream, other)
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("/proc").count()
    }

    /// P-SECURITY-12: files that strangers pass where none belongs take no descriptor and no thread of the agent's.
    #[test]
    fn a_socket_that_lingers_is_closed_with_its_connection_and_nobody_waits() {
        let grave = Arc::new(Grave::start().expect("a thread can be made"));
        let mut others = Vec::new();
        let before = descriptors();
        for _ in 0..10 {
            let (near, far) = UnixStream::pair().expect("sockets exist");
            let (file, mut other) = lingering();
            let mut files = vec![file.as_fd(); 100];
            files.push(near.as_fd());
            sys::send_with_descriptors(near.as_fd(), b"!", &files).expect("room");
            drop(near);
            assert_ne!(file.as_raw_fd(), far.as_raw_fd());
            drop(file);
            let soon = Duration::from_secs(20);
            let (put_tx, put_rx) = channel();
            let way = Arc::clone(&grave);
            std::thread::spawn(move || put_tx.send(way.put(far).is_ok()));
            assert!(put_rx.recv_timeout(soon).expect("nobody waits"));
            other.set_read_timeout(Some(soon)).expect("it can be");
            // What was sent, and then its end, well within the minute: nobody has it open.
            let mut sent = Vec::new();
            other.read_to_end(&mut sent).expect("it is closed in time");
            others.push(other);
        }
        assert_eq!(descriptors(), before + others.len());
    }
}
