//! A client of the device's control socket: knobs, faults, state.
//!
//! One message asks, one answers: `set NAME VALUE` (the knobs are listed in `vgpud`'s `knobs.rs`)
//! answers `ok` or `error: ...`; `state LINE` answers `ok` and, from that line on, the lines of each
//! GPU, client and channel, as many as one message carries, `more LINE` saying where to go on;
//! `hold_api MICROSECONDS` has a writer of some other process take the API lock now.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A connection to the control socket of one device process.
#[derive(Debug)]
pub struct Control(OwnedFd);

/// A channel, as `state` tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelState {
    /// Minor of its GPU.
    pub gpu: u32,
    /// Its client.
    pub client: u32,
    /// Its handle.
    pub handle: u32,
    /// Handle of its TSG.
    pub tsg: u32,
    /// Its process.
    pub pid: u32,
    /// Whether it is disabled.
    pub disabled: bool,
    /// Entries that have not finished.
    pub queued: u64,
    /// Whether it is on the hardware now.
    pub running: bool,
    /// Whether a fault killed it.
    pub dead: bool,
}

impl Control {
    /// Connects to the device in `dir`.
    pub fn connect(dir: &Path) -> io::Result<Self> {
        let path = dir.join("control");
        let bytes = path.as_os_str().as_bytes();
        // SAFETY: an all-zero sockaddr_un is valid.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        if bytes.len() >= address.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
            *place = *byte as libc::c_char;
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: `address` is a NUL-terminated sockaddr_un of `size` bytes.
        if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    /// Sends one command; the answer's text.
    pub fn command(&self, text: &str) -> io::Result<String> {
        let fd = self.0.as_raw_fd();
        // SAFETY: `text` is readable for its length.
        let sent = unsafe { libc::send(fd, text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0_u8; 1 << 20];
        // SAFETY: `buffer` is writable for its length.
        let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match got {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => {
                buffer.truncate(got as usize);
                String::from_utf8(buffer).map_err(io::Error::other)
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets a knob.
    pub fn set(&self, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
        match self.command(&format!("set {name} {value}"))?.as_str() {
            "ok" => Ok(()),
            refusal => Err(io::Error::other(refusal.to_owned())),
        }
    }

    /// The device's state, all its lines.
    pub fn state(&self) -> io::Result<Vec<String>> {
        let mut lines: Vec<String> = Vec::new();
        let mut from = Some(0);
        while let Some(line) = from.take() {
            let text = self.command(&format!("state {line}"))?;
            for line in text.lines().skip(1) {
                match line.strip_prefix("more ") {
                    Some(number) => from = number.parse::<usize>().ok(),
                    None => lines.push(line.to_owned()),
                }
            }
        }
        Ok(lines)
    }

    /// The channels there are.
    pub fn channels(&self) -> io::Result<Vec<ChannelState>> {
        let lines = self.state()?;
        let channels = lines
            .iter()
            .filter_map(|line| channel(line.strip_prefix("channel ")?));
        Ok(channels.collect())
    }
}

fn channel(line: &str) -> Option<ChannelState> {
    let value = |key: &str| {
        line.split(' ')
            .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    };
    let number = |key: &str| {
        let text = value(key)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    Some(ChannelState {
        gpu: number("gpu")? as u32,
        client: number("client")? as u32,
        handle: number("handle")? as u32,
        tsg: number("tsg")? as u32,
        pid: number("pid")? as u32,
        disabled: value("disabled")? == "true",
        queued: number("queued")?,
        running: value("running")? == "true",
        dead: value("dead")? == "true",
    })
}
