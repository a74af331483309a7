//! Processors that wake quickly for an edge (`channel.cpu_latency`).
//!
//! An idle processor sleeps the deeper the longer it is idle, and a deep sleep takes up to some hundred microseconds to end.
//! That is a part of every preemption whose issue thread had slept. Linux bounds it for whoever holds
//! `/dev/cpu_dma_latency` open: while its number stands there, no processor of the machine enters a state that takes longer
//! to leave. It costs power, so it is held only while an order is armed, which is while online may come.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Where the kernel takes the bound, a number of microseconds.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// The bound of one issue thread.
#[derive(Debug)]
pub struct Awake {
    device: PathBuf,
    /// None: not configured, or refused.
    us: Option<i32>,
    held: Option<File>,
}

impl Awake {
    /// Without the bound yet. `latency`: `channel.cpu_latency`.
    #[must_use]
    pub fn new(latency: Option<Duration>) -> Self {
        let us = latency.map(|latency| i32::try_from(latency.as_micros()).unwrap_or(i32::MAX));
        Self {
            device: PathBuf::from(DEVICE),
            us,
            held: None,
        }
    }

    /// Holds the bound while an order is armed. Where the machine does not take it, that is said once.
    pub fn set(&mut self, armed: bool) {
        let Some(us) = self.us.filter(|_| armed) else {
            self.held = None;
            return;
        };
        if self.held.is_some() {
            return;
        }
        let opened = OpenOptions::new().write(true).open(&self.device);
        let held = opened.and_then(|mut file| {
            file.write_all(&us.to_ne_bytes())?;
            Ok(file)
        });
        match held {
            Ok(file) => self.held = Some(file),
            Err(error) => {
                self.us = None;
                tracing::warn!(
                    device = %self.device.display(),
                    %error,
                    "channel.cpu_latency is not kept: this file takes it, and must be open to the agent"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str, latency: Option<Duration>) -> Awake {
        let file = format!("tidegate-awake-{name}-{}", std::process::id());
        Awake {
            device: std::env::temp_dir().join(file),
            ..Awake::new(latency)
        }
    }

    /// P-GATE-27: processors sleep as they do without an agent, unless an order is armed.
    #[test]
    fn the_bound_is_written_once_an_order_is_armed_and_its_file_closed_with_the_order() {
        let mut awake = on("held", Some(Duration::from_micros(7)));
        std::fs::write(&awake.device, "").expect("writable");
        awake.set(false);
        let written = |awake: &Awake| std::fs::read(&awake.device).expect("it is there");
        assert!(written(&awake).is_empty() && awake.held.is_none());
        awake.set(true);
        awake.set(true);
        assert_eq!(written(&awake), 7_i32.to_ne_bytes());
        awake.set(false);
        assert!(awake.held.is_none());
        let _ = std::fs::remove_file(&awake.device);
    }

    /// P-GATE-27: processors sleep as they do without an agent, unless an order is armed.
    #[test]
    fn what_is_not_configured_or_not_there_is_left_alone() {
        let mut off = on("off", None);
        std::fs::write(&off.device, "").expect("writable");
        off.set(true);
        assert!(off.held.is_none());
        let _ = std::fs::remove_file(&off.device);
        let mut missing = on("missing", Some(Duration::ZERO));
        missing.set(true);
        assert!(missing.held.is_none() && missing.us.is_none());
    }
}
