//! Connections on which everything is tried that Linux lets a process do with a Unix socket.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tidegate_proto::greeting::Greeting;

/// The name of the files that it passes, as `/proc` shows it.
const PASSED: &std::ffi::CStr = c"passed-by-a-stranger";

/// The connection at hand, and those that are kept.
#[derive(Debug, Default)]
pub struct Trials {
    stream: Option<UnixStream>,
    kept: Vec<UnixStream>,
    file: Option<File>,
}

fn words_at<T: std::str::FromStr>(words: &[&str], at: usize) -> Result<T> {
    let word = words.get(at).ok_or_else(|| Error::other("too few words"))?;
    word.parse()
        .map_err(|_| Error::other(format!("{word} is no number")))
}

fn bytes_of(hex: &str) -> Result<Vec<u8>> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(Error::other))
        .collect()
}

/// What a call answered, for the test.
fn told(answer: isize) -> String {
    if answer < 0 {
        let error = Error::last_os_error();
        return format!("errno {}", error.raw_os_error().unwrap_or(0));
    }
    format!("did {answer}")
}

/// One control message, with room for what the kernel aligns.
fn control(level: i32, kind: i32, payload: &[u8]) -> Vec<u64> {
    let length = payload.len() as u32;
    // SAFETY: both only compute.
    let (space, whole) = unsafe { (libc::CMSG_SPACE(length), libc::CMSG_LEN(length)) };
    let mut room = vec![0_u64; (space as usize).div_ceil(8)];
    let header = libc::cmsghdr {
        cmsg_len: whole as usize,
        cmsg_level: level,
        cmsg_type: kind,
    };
    // SAFETY: the room is aligned and as long as CMSG_SPACE says for this header and its payload.
    unsafe {
        let at = room.as_mut_ptr().cast::<libc::cmsghdr>();
        at.write(header);
        let data = libc::CMSG_DATA(at);
        data.copy_from_nonoverlapping(payload.as_ptr(), payload.len());
    }
    room
}

impl Trials {
    /// `open SOCKET`, `option NAME HEX`, `greet FLAGS [...]`, `say FLAGS HEX [...]`, `shut HOW`, `keep`, `close`, `drop`.
    pub fn obey(&mut self, run_dir: &Path, words: &[&str]) -> Result<String> {
        let Some((&what, words)) = words.split_first() else {
            return Err(Error::other("what is to be tried?"));
        };
        match what {
            "open" => {
                let name = words.first().ok_or_else(|| Error::other("which socket?"))?;
                let mut stream = UnixStream::connect(run_dir.join(name))?;
                if *name == tidegate_proto::HOOK_SOCKET {
                    stream.read_exact(&mut [0; tidegate_proto::greeting::LEN])?;
                }
                stream.set_nonblocking(true)?;
                self.stream = Some(stream);
                Ok(String::new())
            }
            "option" => {
                let value = bytes_of(words.get(1).copied().unwrap_or_default())?;
                // SAFETY: the value is live for the call.
                let answer = unsafe {
                    libc::setsockopt(
                        self.stream()?.as_raw_fd(),
                        libc::SOL_SOCKET,
                        words_at(words, 0)?,
                        value.as_ptr().cast(),
                        value.len() as libc::socklen_t,
                    )
                };
                Ok(told(answer as isize))
            }
            "greet" => {
                let greeting = Greeting::new(1).encode();
                self.say(words_at(words, 0)?, &greeting, &words[1..])
            }
            "say" => {
                let bytes = bytes_of(words.get(1).copied().unwrap_or_default())?;
                self.say(words_at(words, 0)?, &bytes, &words[2..])
            }
            "shut" => {
                // SAFETY: takes two integers.
                let answer =
                    unsafe { libc::shutdown(self.stream()?.as_raw_fd(), words_at(words, 0)?) };
                Ok(told(answer as isize))
            }
            "keep" => {
                self.kept.extend(self.stream.take());
                Ok(format!("kept {}", self.kept.len()))
            }
            "close" => {
                self.stream = None;
                Ok(String::new())
            }
            "drop" => {
                self.kept.clear();
                Ok(String::new())
            }
            other => Err(Error::other(format!("{other} cannot be tried"))),
        }
    }

    fn stream(&self) -> Result<&UnixStream> {
        let stream = self.stream.as_ref();
        stream.ok_or_else(|| Error::other("open one first"))
    }

    /// A file of a name that a test finds again.
    fn file(&mut self) -> Result<RawFd> {
        if self.file.is_none() {
            // SAFETY: a C string.
            let fd = unsafe { libc::memfd_create(PASSED.as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                return Err(Error::last_os_error());
            }
            // SAFETY: it was made for this value alone.
            self.file = Some(unsafe { File::from_raw_fd(fd) });
        }
        Ok(self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    /// Sends `bytes`, with `files COUNT`, `control KIND HEX`, `credentials PID UID GID` or nothing beside them.
    fn say(&mut self, flags: i32, bytes: &[u8], beside: &[&str]) -> Result<String> {
        let mut controls = match beside.split_first() {
            None => Vec::new(),
            Some((&"files", words)) => {
                let files = vec![self.file()?; words_at(words, 0)?];
                let payload: Vec<u8> = files.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
                control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &payload)
            }
            Some((&"credentials", words)) => {
                let ids: [u32; 3] = [
                    words_at(words, 0)?,
                    words_at(words, 1)?,
                    words_at(words, 2)?,
                ];
                let payload: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
                assert_eq!(payload.len(), size_of::<libc::ucred>());
                control(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &payload)
            }
            Some((&"control", words)) => {
                let payload = bytes_of(words.get(1).copied().unwrap_or_default())?;
                control(libc::SOL_SOCKET, words_at(words, 0)?, &payload)
            }
            Some((other, _)) => return Err(Error::other(format!("{other} cannot be sent"))),
        };
        let mut slice = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all zeros are a message of nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut slice;
        message.msg_iovlen = 1;
        if !controls.is_empty() {
            message.msg_control = controls.as_mut_ptr().cast();
            message.msg_controllen = 8 * controls.len();
        }
        let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message, its bytes and its control messages are live for the call.
        let sent = unsafe { libc::sendmsg(self.stream()?.as_raw_fd(), &raw const message, flags) };
        Ok(told(sent))
    }
}
