//! The service manager: ready, alive, stopping (`sd_notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog_ns: u64,
}

impl Notifier {
    /// From `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    #[must_use]
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
            return Self::default();
        };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| {
            // The control thread must never wait for the service manager.
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        });
        let watchdog_us: u64 = std::env::var("WATCHDOG_USEC")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        Self {
            socket: socket.ok(),
            watchdog_ns: watchdog_us.saturating_mul(1_000),
        }
    }

    /// Whether there is a service manager.
    #[must_use]
    pub const fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// How often [`Self::alive`] should be said; 0: not at all.
    #[must_use]
    pub const fn alive_every_ns(&self) -> u64 {
        self.watchdog_ns / 3
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// The agent serves.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// The agent reads its configuration again; [`Self::ready`] is to follow.
    pub fn reloading(&self) {
        let now_us = crate::clock::now_ns() / 1_000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
    }

    /// The control thread made a turn.
    pub fn alive(&self) {
        self.say("WATCHDOG=1\n");
    }

    /// The agent ends.
    pub fn stopping(&self) {
        self.say("STOPPING=1\n");
    }
}
