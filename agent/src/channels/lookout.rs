//! Whether the driver is still the one that was asked at the start.
//!
//! A driver may come, where there was none, and it may go: its module is unloaded, and perhaps another version loaded. What
//! the agent has open then leads nowhere, and the layouts that it knows may be another version's. Nothing is mended in
//! place. The agent ends, and is started again by its service manager or by itself: it asks what there is, gates launches
//! while there is no driver, and takes what stands on record for what it is.
//!
//! A driver that is gone fails every ioctl itself. One that refuses answers, whatever it says.

use crate::causes::with_causes;
use crate::inbox::{Mailbox, NodeInput};
use crate::rm::{self, ControlFile, Driver, RmError};
use crossbeam_channel::{Receiver, Sender};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the driver is looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Takes the word of who found that the driver does not take its calls.
#[derive(Clone, Debug)]
pub struct Alarm(Sender<()>);

impl Alarm {
    /// An ioctl on a file of the agent's own failed so: the driver is looked at, without waiting for the next time.
    pub fn raise(&self, error: &RmError) {
        if is_gone(error) {
            // One that waits to be read says it all.
            let _ = self.0.try_send(());
        }
    }
}

/// What the lookout is to do.
#[derive(Debug)]
pub struct Lookout {
    alarm_tx: Sender<()>,
    alarm_rx: Receiver<()>,
    again: Arc<AtomicBool>,
}

impl Default for Lookout {
    fn default() -> Self {
        let (alarm_tx, alarm_rx) = crossbeam_channel::bounded(1);
        Self {
            alarm_tx,
            alarm_rx,
            again: Arc::default(),
        }
    }
}

impl Lookout {
    /// For who makes calls.
    #[must_use]
    pub fn alarm(&self) -> Alarm {
        Alarm(self.alarm_tx.clone())
    }

    /// Whether the agent has ended to start again by itself.
    #[must_use]
    pub fn starts_again(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.again)
    }

    /// Looks at the driver until it comes or goes, and ends the agent then. `managed`: somebody starts it again.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(self, driver: &Driver, managed: bool, mailbox: Mailbox) -> std::io::Result<()> {
        let (there, version) = (driver.lacks.is_none(), driver.version.clone());
        std::thread::Builder::new()
            .name("tg-driver".to_owned())
            .spawn(move || {
                // Kept from here on alone: no other thread makes calls on it.
                let mut file = there.then(ControlFile::open).and_then(Result::ok);
                loop {
                    // Its other end is held here, so it waits.
                    let _ = self.alarm_rx.recv_timeout(EVERY);
                    let change = if there {
                        went(&mut file, &version)
                    } else {
                        came()
                    };
                    if let Some(change) = change {
                        tracing::warn!("{change}: the agent starts again");
                        self.again.store(!managed, Ordering::Release);
                        mailbox.put(NodeInput::Stop);
                        return;
                    }
                }
            })?;
        Ok(())
    }
}

/// A driver lists its GPUs, where none did.
fn came() -> Option<String> {
    let listed = rm::enumerate().is_ok_and(|driver| driver.lacks.is_none());
    listed.then(|| "the driver lists its GPUs now".to_owned())
}

/// The driver is not the one that was there.
fn went(file: &mut Option<ControlFile>, before: &str) -> Option<String> {
    if file.is_none() {
        *file = ControlFile::open().ok();
    }
    match file.as_ref()?.driver_version() {
        Ok(version) if version == before => None,
        Ok(version) => Some(format!("the driver was {before} and is {version}")),
        Err(error) if is_gone(&error) => {
            let why = with_causes(&error);
            Some(format!(
                "driver {before} is gone ({why}); nothing of it is taken for enabled"
            ))
        }
        Err(_) => None,
    }
}

/// Whether a call failed because there is no driver behind the file any more.
const fn is_gone(error: &RmError) -> bool {
    matches!(error, RmError::Ioctl { .. })
}
