//! Enables what the journal says may be disabled: at the agent's start, before it says ready, and from
//! `tidegate release`.
//!
//! A successor that was handed the node leaves the channels as they are: their processes attach again
//! within milliseconds, and policy decides. What nobody has claimed by the end of the hand-over is
//! enabled then ([`start_late`]). Neither does anybody enable channels whose process is in the middle of
//! changing mappings: it attaches when it has ended that, or is gone.

use crate::channel::{Batch, ChannelControl, DriverControl, Via};
use crate::inbox::{Input, Mailbox};
use crate::journal::{Journal, Marked};
use crate::rm::{self, Driver, Gpu, RmError, Subdevice, ThrowAway};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What became of the marked channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Enabled.
    pub enabled: usize,
    /// Refused by the driver, because they are gone.
    pub gone: usize,
    /// Still marked: the driver did not take the call, or the GPU is not there.
    pub failed: usize,
    /// Still marked: their process is changing its memory's mappings.
    pub moving: usize,
}

impl fmt::Display for Reconciled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} channels enabled, {} were gone, {} could not be enabled",
            self.enabled, self.gone, self.failed
        )?;
        match self.moving {
            0 => Ok(()),
            moving => write!(
                f,
                ", {moving} wait for their process to end a change of its memory"
            ),
        }
    }
}

/// Enables everything marked, with RM clients of its own.
///
/// # Errors
/// When something is marked and the driver cannot be asked at all.
pub fn enable_marked(journal: &Journal) -> Result<Reconciled, RmError> {
    if journal.marked().is_empty() {
        return Ok(Reconciled::default());
    }
    enable_marked_on(journal, &rm::enumerate()?)
}

/// As [`enable_marked`], on a driver that was asked already.
///
/// # Errors
/// When a GPU does not open.
pub fn enable_marked_on(journal: &Journal, driver: &Driver) -> Result<Reconciled, RmError> {
    enable(journal, driver, journal.marked())
}

/// Enables these channels.
///
/// # Errors
/// When a GPU does not open.
pub fn enable(
    journal: &Journal,
    driver: &Driver,
    marked: Vec<Marked>,
) -> Result<Reconciled, RmError> {
    let mut by_gpu: BTreeMap<u32, Vec<Marked>> = BTreeMap::new();
    let mut done = Reconciled::default();
    for marked in marked {
        if marked.is_moving() {
            done.moving += 1;
            continue;
        }
        by_gpu
            .entry(marked.device_instance)
            .or_default()
            .push(marked);
    }
    for (instance, marked) in by_gpu {
        let gpu = driver
            .gpus
            .iter()
            .find(|gpu| gpu.device_instance == instance);
        let Some(gpu) = gpu else {
            done.failed += marked.len();
            continue;
        };
        let control = DriverControl(Subdevice::open(gpu)?);
        let restart = marked.iter().any(|marked| marked.restart);
        for marked in marked {
            // One call each: a pair that is gone fails its whole batch.
            let mut batch = Batch::new(Via::Agent);
            batch.push(marked.client, marked.channel, marked.place);
            match control.set(&batch, false) {
                Ok(()) => done.enabled += 1,
                Err(RmError::Refused { .. }) => done.gone += 1,
                Err(_) => {
                    done.failed += 1;
                    continue;
                }
            }
            journal.clear(marked.place);
        }
        if restart {
            restart_graphics(gpu, driver);
        }
    }
    Ok(done)
}

/// For firmware that looks again at what is enabled only then. Where enabling was enough it changes
/// nothing, so a refusal is told and no more.
fn restart_graphics(gpu: &Gpu, driver: &Driver) {
    let Some(branch) = driver.branch else { return };
    let restarted = ThrowAway::scheduled(gpu, branch).and_then(|own| own.restart_runlist());
    if let Err(error) = restarted {
        tracing::warn!(%error, "a runlist was not restarted after its channels were enabled");
    }
}

/// Enables channels that were handed over and that no process claimed, on a thread of its own because
/// the driver may make it wait. Tells the control thread which places are free again.
pub fn start_late(journal: Arc<Journal>, marked: Vec<Marked>, mailbox: Mailbox) {
    let places = marked.iter().map(|marked| marked.place).collect();
    let run = move || {
        let done = rm::enumerate().and_then(|driver| enable(&journal, &driver, marked));
        match done {
            Ok(done) => tracing::info!("channels nobody claimed: {done}"),
            Err(error) => tracing::error!(%error, "channels nobody claimed stay disabled"),
        }
        mailbox.put(Input::Released(places));
    };
    let thread = std::thread::Builder::new().name("tg-unclaimed".to_owned());
    if let Err(error) = thread.spawn(run) {
        tracing::error!(%error, "channels nobody claimed stay disabled");
    }
}
