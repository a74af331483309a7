//! The sixteen bytes before HTTP/2: the process receives the page and sends its control file.

use super::pages;
use crate::process::Process;
use crate::rm::files;
use core::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use tidegate_abi::page::Page;
use tidegate_proto::greeting::{First, Greeting, LEN};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// How long a greeting may take. Silence is never taken for an older agent.
const PATIENCE: Duration = Duration::from_millis(500);

/// How an agent was met.
#[derive(Debug)]
pub struct Met {
    /// What it brought.
    pub greeted: Greeted,
    /// The client, and the application's descriptor, whose file it was given.
    pub told: Option<(u32, c_int)>,
}

/// What an agent brought.
#[derive(Debug)]
pub enum Greeted {
    /// A page.
    Page(&'static Page),
    /// A page that we cannot use, or that a sandbox kept back, or an agent older than the greeting.
    Bare,
}

/// Takes the greeting and answers it. The page comes to `place`.
pub async fn greet(
    stream: &UnixStream,
    process: &Process,
    place: &'static Page,
) -> io::Result<Met> {
    let first = tokio::time::timeout(PATIENCE, first(stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no greeting"))??;
    let greeting = match first {
        First::Settings => {
            return Ok(Met {
                greeted: Greeted::Bare,
                told: None,
            });
        }
        First::Greeting(greeting) => greeting,
        other => {
            let text = format!("{other:?} instead of a greeting");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    };
    let files = stream
        .async_io(Interest::READABLE, || receive(stream))
        .await?;
    // None at all, and no sign of a full table: a sandbox that lets no descriptor pass.
    if !files.is_empty() && files.len() != usize::from(greeting.descriptors) {
        // The agent's greeting is used up; only a new connection brings another.
        let text = "descriptors of the greeting were lost";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let page = match files.into_iter().next() {
        Some(file) => pages::map(file, place)?.then_some(place),
        None => None,
    };
    let (told, control) = files::owner(process).unzip();
    let answer = Greeting::new(u8::from(control.is_some())).encode();
    stream
        .async_io(Interest::WRITABLE, || {
            send(stream, &answer, control.as_ref())
        })
        .await?;
    Ok(Met {
        greeted: page.map_or(Greeted::Bare, Greeted::Page),
        told,
    })
}

async fn first(stream: &UnixStream) -> io::Result<First> {
    loop {
        let mut bytes = [0_u8; LEN];
        let peek = || {
            // SAFETY: the buffer is live and as long as said.
            let read = unsafe {
                libc::recv(
                    stream.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    LEN,
                    libc::MSG_PEEK | libc::MSG_DONTWAIT,
                )
            };
            usize::try_from(read).map_err(|_| io::Error::last_os_error())
        };
        let read = stream.async_io(Interest::READABLE, peek).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match First::of(&bytes[..read]) {
            // The rest is under way; readiness does not tell of it again.
            First::More => tokio::time::sleep(Duration::from_millis(1)).await,
            known => return Ok(known),
        }
    }
}

/// Takes sixteen bytes and the descriptors that came with them.
fn receive(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut bytes = [0_u8; LEN];
    let mut space = [0_u64; 8];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: LEN,
    };
    // SAFETY: zeroed is a valid empty header; the parts are live for the call.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&space);
    // SAFETY: as above.
    let read = unsafe {
        libc::recvmsg(
            stream.as_raw_fd(),
            &raw mut header,
            libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT,
        )
    };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut files = Vec::new();
    // SAFETY: the kernel filled the header's control data in; the macros stay within its length.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                for index in 0..count {
                    files.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    if read.cast_unsigned() != LEN || header.msg_flags & libc::MSG_CTRUNC != 0 {
        files.clear();
        let text = "the greeting came in parts";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(files)
}

fn send(stream: &UnixStream, bytes: &[u8; LEN], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [0_u64; 4];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: LEN,
    };
    // SAFETY: zeroed is a valid empty header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if let Some(file) = file {
        // SAFETY: the space holds one control message with one descriptor.
        unsafe {
            header.msg_control = space.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
            let at = libc::CMSG_FIRSTHDR(&raw const header);
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = libc::SCM_RIGHTS;
            (*at).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(at)
                .cast::<c_int>()
                .write_unaligned(file.as_raw_fd());
        }
    }
    // SAFETY: everything the header names is live for the call.
    let sent = unsafe {
        libc::sendmsg(
            stream.as_raw_fd(),
            &raw const header,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    match usize::try_from(sent) {
        Ok(LEN) => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
