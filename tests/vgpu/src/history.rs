//! What the device saw, as fixed 48-byte little-endian records in `DIR/history.bin`.
//!
//! The history is the virtual GPU's own testimony: tests judge the agent and the library by it and
//! never by what those say of themselves. Records are appended in the order in which the device
//! process learnt of them; `at_ns` is device time (`CLOCK_MONOTONIC`), which for what the model
//! decides is the exact instant and may lie a little before the record was written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of one record.
pub const RECORD_BYTES: usize = 48;
/// Name of the file inside the device's directory.
pub const FILE: &str = "history.bin";

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Kind {
    /// A kernel began. `value` = kernel id, `tag` = its tag argument or launch number. Copies and
    /// fills have none of these records.
    KernelStart = 1,
    /// A kernel finished; as [`Kind::KernelStart`].
    KernelEnd = 2,
    /// A TSG got on its engine. `value` = engine.
    TsgRun = 3,
    /// A TSG got off its engine. `value` = engine.
    TsgStop = 4,
    /// A `FIFO_DISABLE_CHANNELS` that disables arrived, one record for each pair. `at_ns` = arrival
    /// in the device process, `value` = `CLOCK_MONOTONIC` at the entry of the ioctl in the calling
    /// thread.
    DisableBegin = 5,
    /// From here nothing of the channel runs. `value` as in its [`Kind::DisableBegin`].
    DisableEnd = 6,
    /// The channel may run again. `value` as in [`Kind::DisableBegin`], for the enabling ioctl; `tag` = what the
    /// calling thread had read off `CLOCK_MONOTONIC` before it, the last time but one; 0: nothing.
    EnableEnd = 7,
    /// A channel was made. `value` = engine, `tag` = handle of its TSG.
    ChannelUp = 8,
    /// A channel was freed. `value` = kernels that it was given and that never ended.
    ChannelDown = 9,
    /// A root client was made.
    ClientUp = 10,
    /// A root client was freed.
    ClientDown = 11,
    /// A channel was killed. `value` = Xid.
    Fault = 12,
    /// A call was refused. `value` = status, `tag` = control command, class or escape.
    Refused = 13,
    /// A knob was set; the control socket's text is not recorded.
    KnobSet = 14,
    /// A disable or enable was answered. `value` as in [`Kind::DisableBegin`], `tag` = status.
    DisableReturn = 15,
    /// Memory was mapped. `value` = address, `tag` = bytes, `object` = 1 where it replaced a mapping.
    Map = 16,
    /// A mapping was taken away. As [`Kind::Map`]; `object` = 1 where the range went with it.
    Unmap = 17,
    /// Device memory was allocated. `value` = its number, `tag` = bytes.
    MemoryUp = 18,
    /// Device memory was freed: neither an object nor a mapping refers to it. As [`Kind::MemoryUp`].
    MemoryDown = 19,
    /// A `RESTART_RUNLIST` arrived. `object` = the channel that names the runlist, `value` = entry of
    /// the ioctl, `tag` = the runlist's engine.
    Restart = 20,
    /// A TSG's `PREEMPT` arrived. `object` = the TSG, `value` = entry of the ioctl.
    Preempt = 21,
    /// A TSG was given a timeslice. `object` = the TSG, `value` = entry of the ioctl, `tag` = microseconds.
    Timeslice = 22,
}

impl Kind {
    const ALL: [Self; 22] = [
        Self::KernelStart,
        Self::KernelEnd,
        Self::TsgRun,
        Self::TsgStop,
        Self::DisableBegin,
        Self::DisableEnd,
        Self::EnableEnd,
        Self::ChannelUp,
        Self::ChannelDown,
        Self::ClientUp,
        Self::ClientDown,
        Self::Fault,
        Self::Refused,
        Self::KnobSet,
        Self::DisableReturn,
        Self::Map,
        Self::Unmap,
        Self::MemoryUp,
        Self::MemoryDown,
        Self::Restart,
        Self::Preempt,
        Self::Timeslice,
    ];

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// One record. Fields a kind has no use for are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Device time.
    pub at_ns: u64,
    /// What.
    pub kind: Kind,
    /// Minor number of the GPU.
    pub gpu: u32,
    /// Process that owns the object.
    pub pid: u32,
    /// Its RM client.
    pub client: u32,
    /// Channel handle, or TSG handle for `Tsg*`.
    pub object: u32,
    /// Process that made the call, for kinds that are calls.
    pub caller: u32,
    /// By kind.
    pub value: u64,
    /// By kind.
    pub tag: u64,
}

impl Record {
    /// A record with nothing but its instant and kind.
    #[must_use]
    pub const fn new(at_ns: u64, kind: Kind) -> Self {
        Self {
            at_ns,
            kind,
            gpu: 0,
            pid: 0,
            client: 0,
            object: 0,
            caller: 0,
            value: 0,
            tag: 0,
        }
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&self.at_ns.to_le_bytes());
        let words = [
            self.kind as u32,
            self.gpu,
            self.pid,
            self.client,
            self.object,
            self.caller,
        ];
        for (place, word) in bytes[8..32].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.value.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        Some(Self {
            at_ns: long(0),
            kind: Kind::of(word(8))?,
            gpu: word(12),
            pid: word(16),
            client: word(20),
            object: word(24),
            caller: word(28),
            value: long(32),
            tag: long(40),
        })
    }
}

/// Appends records; they reach the file at [`Writer::flush`].
#[derive(Debug)]
pub struct Writer {
    file: File,
    buffer: Vec<u8>,
}

impl Writer {
    /// Starts an empty history in `dir`.
    pub fn create(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::create(dir.join(FILE))?,
            buffer: Vec::with_capacity(64 * 1024),
        })
    }

    /// Appends one record.
    pub fn push(&mut self, record: Record) {
        self.buffer.extend_from_slice(&record.encode());
    }

    /// Writes out what was appended.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// Reads records, also while the device appends more.
#[derive(Debug)]
pub struct Reader {
    file: File,
    rest: Vec<u8>,
}

impl Reader {
    /// Opens the history of the device in `dir`, at its beginning.
    pub fn open(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::open(dir.join(FILE))?,
            rest: Vec::new(),
        })
    }

    /// The records appended since the last call. A kind this reader does not know is skipped.
    pub fn read_new(&mut self) -> io::Result<Vec<Record>> {
        self.file.read_to_end(&mut self.rest)?;
        let whole = self.rest.len() / RECORD_BYTES * RECORD_BYTES;
        let records = self.rest[..whole]
            .chunks_exact(RECORD_BYTES)
            .filter_map(|bytes| Record::decode(bytes.try_into().ok()?))
            .collect();
        self.rest.drain(..whole);
        Ok(records)
    }
}

/// Everything in the history of the device in `dir`.
pub fn read(dir: &Path) -> io::Result<Vec<Record>> {
    Reader::open(dir)?.read_new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_encoding() {
        for kind in Kind::ALL {
            let record = Record {
                at_ns: u64::MAX - 3,
                kind,
                gpu: 7,
                pid: 8,
                client: 0xc1d0_0001,
                object: 10,
                caller: 11,
                value: 1 << 40,
                tag: 13,
            };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }
}
