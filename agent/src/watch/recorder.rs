//! What policy is told and what it answers, written to a file as it happens.
//!
//! For `--record FILE`; the format is [`tidegate_record`]'. The control thread copies each
//! event and effect into a queue that was made beforehand, those about memory, which carry lists, as
//! lines, and never waits: what does not fit is counted, and the recording says that it has a hole. A
//! thread of its own writes, up to a limit: a recording that was forgotten fills no disk.

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
use tidegate_record::EventLine;

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
    /// Begins a recording in `file`, which is made anew, and ends it before it is larger than `limit` bytes.
    ///
    /// # Errors
    /// When the file or the thread cannot be made.
    pub fn start(file: &Path, limit: u64) -> io::Result<Self> {
        let out = BufWriter::new(File::create(file)?);
        let (entry_tx, entry_rx) = bounded(QUEUE);
        let name = file.to_owned();
        let writer = std::thread::Builder::new()
            .name("tg-record".to_owned())
            .spawn(move || {
                if let Err(error) = write(out, limit, &entry_rx) {
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

fn write(mut out: impl Write, limit: u64, entry_rx: &Receiver<Entry>) -> io::Result<()> {
    let (mut text, mut left) = (Vec::new(), limit);
    for entry in entry_rx {
        text.clear();
        match entry {
            Entry::Start(config, gpus, now) => {
                tidegate_record::write_start(&mut text, &config, gpus, now)?;
            }
            Entry::Configured(config, now) => {
                tidegate_record::write_configured(&mut text, &config, now)?;
            }
            Entry::Event(event) => tidegate_record::write_event(&mut text, &event)?,
            Entry::Effect(effect) => tidegate_record::write_effect(&mut text, &effect)?,
            Entry::Lost(count) => tidegate_record::write_lost(&mut text, count)?,
        }
        let whole = left.checked_sub(text.len() as u64);
        let Some(rest) = whole else {
            out.flush()?;
            let full = format!("it would be larger than its limit of {limit} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        };
        left = rest;
        out.write_all(&text)?;
        if entry_rx.is_empty() {
            out.flush()?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_ends_with_a_whole_entry_before_its_limit() {
        let entries = || {
            let (entry_tx, entry_rx) = bounded(QUEUE);
            for count in 1..=1_000 {
                entry_tx.send(Entry::Lost(count)).expect("there is room");
            }
            entry_rx
        };
        let (mut all, mut some) = (Vec::new(), Vec::new());
        write(&mut all, u64::MAX, &entries()).expect("there is no limit");
        let ended = write(&mut some, 1_000, &entries()).expect_err("it is too long");
        assert_eq!(ended.kind(), io::ErrorKind::StorageFull);
        assert!(some.len() <= 1_000 && some.len() > 900, "{}", some.len());
        assert!(all.starts_with(&some) && some.ends_with(b"\n"));
    }
}
