//! The service manager: ready, alive, stopping (`sd_notify`).
//!
//! The control thread says that the agent lives. It says so only while each thread that serves somebody turns as well: an
//! agent whose control thread turns and that greets nobody is to be restarted, too.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog_ns: u64,
    pulses: Mutex<Vec<Pulse>>,
}

/// When a thread that serves somebody turned last.
#[derive(Clone, Debug)]
struct Pulse {
    thread: &'static str,
    turned_ns: Arc<AtomicU64>,
    /// Whether the log says that it is late.
    said: bool,
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
            pulses: Mutex::default(),
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

    /// The control thread made a turn at `now_ns`. Says nothing while another thread is late: by half of what the service
    /// manager waits, so that a hiccup is not the end.
    pub fn alive(&self, now_ns: u64) {
        let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = true;
        for pulse in pulses.iter_mut() {
            let late_ns = now_ns.saturating_sub(pulse.turned_ns.load(Ordering::Relaxed));
            let late = late_ns > self.watchdog_ns / 2;
            if late && !pulse.said {
                let thread = pulse.thread;
                tracing::error!(
                    thread,
                    late_ns,
                    "a thread is stuck: asking the service manager to restart the agent"
                );
            }
            pulse.said = late;
            all &= !late;
        }
        if all {
            self.say("WATCHDOG=1\n");
        }
    }

    /// What the runtime of `thread` runs for as long as it serves: it shows that its thread turns. Ends at once where
    /// nobody waits for that.
    pub fn turning(&self, thread: &'static str) -> impl Future<Output = ()> + Send + 'static {
        let turned_ns = Arc::new(AtomicU64::new(crate::clock::now_ns()));
        let every = Duration::from_nanos(self.alive_every_ns());
        if !every.is_zero() {
            let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
            pulses.push(Pulse {
                thread,
                turned_ns: Arc::clone(&turned_ns),
                said: false,
            });
        }
        async move {
            while !every.is_zero() {
                turned_ns.store(crate::clock::now_ns(), Ordering::Relaxed);
                tokio::time::sleep(every / 2).await;
            }
        }
    }

    /// The agent ends.
    pub fn stopping(&self) {
        self.say("STOPPING=1\n");
    }
}
