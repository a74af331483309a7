//! What policy is told and what it answers, written to a file as it happens.
//!
//! For `--record FILE`; the format is [`tidegate_replay::decisions`]'. The control thread copies each
//! event and effect into a queue that was made beforehand, those about memory, which carry lists, as
//! lines, and never waits: what does not fit is counted, and the recording says that it has a hole. A
//! thread of its own writes.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::thread::JoinHandle;
use tidegate_node::ports;
use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::time::Instant;
use tidegate_replay::decisions::{self, EventLine};

/// Entries on their way to the thread: seconds of them.
const QUEUE: usize = 65_536;

#[derive(Debug)]
enum Entry {
    Start(Box<Config>, u8, Instant),
    Configured(Box<Config>, Instant),
    Event(EventLine),
    Effect(Effect),
    Lost(u64),
}

/// The control thread's end.
#[derive(Debug)]
pub struct Recorder {
    /// `None` only while it is dropped.
    entry_tx: Option<Sender<Entry>>,
    lost: u64,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Begins a recording in `file`, which is made anew.
    ///
    /// # Errors
    /// When the file or the thread cannot be made.
    pub fn start(file: &Path) -> io::Result<Self> {
        let out = BufWriter::new(File::create(file)?);
        let (entry_tx, entry_rx) = bounded(QUEUE);
        let name = file.to_owned();
        let writer = std::thread::Builder::new()
            .name("tg-record".to_owned())
            .spawn(move || {
                if let Err(error) = write(out, &entry_rx) {
                    tracing::error!(file = %name.display(), "the recording ends: {error}");
                }
            })?;
        Ok(Self {
            entry_tx: Some(entry_tx),
            lost: 0,
            writer: Some(writer),
        })
    }

    fn send(&mut self, entry: Entry) {
        let Some(entry_tx) = &self.entry_tx else {
            return;
        };
        if self.lost > 0 && entry_tx.try_send(Entry::Lost(self.lost)).is_ok() {
            self.lost = 0;
        }
        if self.lost > 0 || entry_tx.try_send(entry).is_err() {
            self.lost += 1;
        }
    }
}

impl ports::Recorder for Recorder {
    fn begin(&mut self, config: &Config, gpus: u8, now: Instant) {
        self.send(Entry::Start(Box::new(*config), gpus, now));
    }

    fn configured(&mut self, config: &Config, now: Instant, effects: &[Effect]) {
        self.send(Entry::Configured(Box::new(*config), now));
        for effect in effects {
            self.send(Entry::Effect(*effect));
        }
    }

    fn stepped(&mut self, event: &Event<'_>, now: Instant, effects: &[Effect]) {
        self.send(Entry::Event(EventLine::of(event, now)));
        for effect in effects {
            self.send(Entry::Effect(*effect));
        }
    }
}

impl Drop for Recorder {
    /// Waits until everything is written: the control thread has ended.
    fn drop(&mut self) {
        self.entry_tx = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write(mut out: BufWriter<File>, entry_rx: &Receiver<Entry>) -> io::Result<()> {
    for entry in entry_rx {
        match entry {
            Entry::Start(config, gpus, now) => {
                decisions::write_start(&mut out, &config, gpus, now)?;
            }
            Entry::Configured(config, now) => {
                decisions::write_configured(&mut out, &config, now)?;
            }
            Entry::Event(event) => decisions::write_event(&mut out, &event)?,
            Entry::Effect(effect) => decisions::write_effect(&mut out, &effect)?,
            Entry::Lost(count) => decisions::write_lost(&mut out, count)?,
        }
        if entry_rx.is_empty() {
            out.flush()?;
        }
    }
    out.flush()
}
