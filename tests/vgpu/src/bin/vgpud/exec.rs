//! From rings to the model and back: takes entries, lets them run, carries out what they do.
//!
//! The model decides when an entry starts and ends; what it does to memory happens when it ends.
//! A channel's waits (semaphores, host functions, values in memory) block it in the model until
//! the condition holds here.
//!
//! A large transfer takes this process longer than it takes the model. When its time has passed its
//! channel waits while the engine thread moves it, a piece each time it has the world, so that calls
//! get in between, and no piece while the channel is disabled.

use std::sync::atomic::Ordering;

use tidegate_device::{Event, EventKind, Work};
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::ring::{ENTRIES, Entry, Op, Ring, Semaphore, Usermode, kernel_id};

use crate::kv;
use crate::sys;
use crate::world::{Channel, Ticket, World, channel_record};

/// Xid of a memory fault.
pub(crate) const XID_FAULT: u32 = 31;

const SPIN: u64 = kernel_id("tg_spin_ns");
const COUNT: u64 = kernel_id("tg_count");
const STORE: u64 = kernel_id("tg_store");
const ADD: u64 = kernel_id("tg_add");
const TOUCH: u64 = kernel_id("tg_touch");
const FOREVER: u64 = kernel_id("tg_forever");
const KV_STORE: u64 = kernel_id("tg_kv_store");
const KV_TOKEN: u64 = kernel_id("tg_kv_token");
const STEPS: u64 = kernel_id("tg_steps");
const SMS: u64 = kernel_id("tg_sms");

/// Bytes a copy moves in a nanosecond.
const COPY_BYTES_PER_NS: u64 = 20;
/// Bytes a fill writes in a nanosecond.
const FILL_BYTES_PER_NS: u64 = 1_000;
const TRANSFER_SETUP_NS: u64 = 2_000;
const ADD_NS: u64 = 10_000;
/// How often values in memory that channels wait for are looked at.
const POLL_NS: u64 = 100_000;
const CHUNK: usize = 256 * 1024;

/// Why an entry's effect did not happen.
enum Trouble {
    /// An address that is not mapped: the channel faults.
    Fault,
    /// The process is gone; so its channels soon will be.
    Gone,
}

impl From<i32> for Trouble {
    fn from(errno: i32) -> Self {
        if errno == libc::ESRCH {
            Self::Gone
        } else {
            Self::Fault
        }
    }
}

/// Bytes of a copy from which on it is moved in pieces.
const LARGE: u64 = 1 << 20;

const fn is_large(entry: &Entry) -> bool {
    entry.op == Op::Copy as u32 && entry.args[2] > LARGE
}

/// A piece of a `tg_steps` kernel: the counter moves on with each, also in mid-kernel. One of short steps has short
/// pieces.
const PIECE_NS: u64 = 1_000_000;
const PIECE_STEPS: u64 = 10;
/// Pieces of one such kernel.
const PIECES: u64 = 4_096;

/// Steps in a piece of a `tg_steps` kernel; 0 for any other entry, and for one that is one piece.
fn piece_steps(entry: &Entry) -> u64 {
    if entry.op != Op::Kernel as u32 || entry.kernel != STEPS {
        return 0;
    }
    let (steps, step_ns) = (entry.args[1], entry.args[2].max(1));
    let piece = (PIECE_NS / step_ns).min(PIECE_STEPS);
    let piece = piece.max(steps / PIECES).max(1);
    if piece < steps { piece } else { 0 }
}

const fn is_wait(entry: &Entry) -> bool {
    entry.op == Op::Acquire as u32
        || entry.op == Op::HostFunc as u32
        || entry.op == Op::WaitValue as u32
        || is_large(entry)
}

fn fill_bytes(entry: &Entry) -> u64 {
    let rows = entry.args[4].max(1);
    entry.args[1]
        .saturating_mul(entry.args[3])
        .saturating_mul(rows)
}

fn duration(entry: &Entry, unknown_kernel_ns: u64) -> u64 {
    match entry.op {
        op if op == Op::Kernel as u32 => match entry.kernel {
            SPIN => entry.args[0],
            COUNT | SMS => entry.args[1],
            STORE | TOUCH => entry.args[2],
            KV_STORE => entry.args[3],
            KV_TOKEN => entry.args[4],
            ADD => ADD_NS,
            FOREVER => u64::MAX,
            STEPS => entry.args[1].saturating_mul(entry.args[2]),
            _ => unknown_kernel_ns,
        },
        op if op == Op::Copy as u32 => TRANSFER_SETUP_NS + entry.args[2] / COPY_BYTES_PER_NS,
        op if op == Op::Fill as u32 => TRANSFER_SETUP_NS + fill_bytes(entry) / FILL_BYTES_PER_NS,
        _ => 0,
    }
}

/// The kernel's own tag where it takes one, else the launch's number.
const fn tag_of(entry: &Entry) -> u64 {
    match entry.kernel {
        SPIN => entry.args[1],
        COUNT => entry.args[2],
        _ => entry.launch,
    }
}

impl Channel {
    pub(crate) fn ring(&self) -> Option<&Ring> {
        self.map.at::<Ring>(0)
    }

    pub(crate) fn entry(&self, number: u64) -> Option<Entry> {
        let index = (number % ENTRIES as u64) as usize;
        self.map
            .copy::<Entry>(size_of::<Ring>() + index * size_of::<Entry>())
    }

    fn semaphore(&self, index: u64) -> Option<&Semaphore> {
        let index = usize::try_from(index).ok().filter(|index| *index > 0)?;
        self.pool
            .as_ref()?
            .at::<Semaphore>(index.checked_mul(size_of::<Semaphore>())?)
    }

    /// Whether the wait at the head of the queue is over.
    fn wait_is_over(&self) -> bool {
        let Some(entry) = self.entries.front() else {
            return false;
        };
        match entry.op {
            op if op == Op::Acquire as u32 => match self.semaphore(entry.args[0]) {
                Some(semaphore) => semaphore.value.load(Ordering::Acquire) >= entry.args[1],
                None => true,
            },
            _ if is_large(entry) => self.moving.is_some_and(|moved| moved >= entry.args[2]),
            op if op == Op::HostFunc as u32 => self
                .ring()
                .is_none_or(|ring| ring.host_done.load(Ordering::Acquire) >= entry.args[0]),
            op if op == Op::WaitValue as u32 => {
                let mut value = [0; 8];
                let bytes = if entry.args[2] == 4 { 4 } else { 8 };
                if sys::read_process(self.pid, entry.args[0], &mut value[..bytes]).is_err() {
                    return false;
                }
                meets(
                    u64::from_le_bytes(value),
                    entry.args[1],
                    bytes,
                    entry.args[3],
                )
            }
            _ => true,
        }
    }

    fn polls(&self) -> bool {
        self.waits > 0
            && self
                .entries
                .front()
                .is_some_and(|entry| entry.op == Op::WaitValue as u32)
    }
}

const fn meets(value: u64, wanted: u64, bytes: usize, how: u64) -> bool {
    let mask = if bytes == 4 {
        u32::MAX as u64
    } else {
        u64::MAX
    };
    let (value, wanted) = (value & mask, wanted & mask);
    match how {
        0 if bytes == 4 => (value as u32).wrapping_sub(wanted as u32) as i32 >= 0,
        0 => value.wrapping_sub(wanted) as i64 >= 0,
        1 => value == wanted,
        2 => value & wanted != 0,
        _ => !(value | wanted) & mask != 0,
    }
}

impl World {
    /// Lets the device go on to `now`, with what clients have queued by now.
    pub(crate) fn pump(&mut self, now: u64) {
        self.run_until(now);
        self.feed();
        self.check_waits();
        self.run_until(now);
    }

    /// When the device has something to do by itself.
    pub(crate) fn next_event(&self, now: u64) -> Option<u64> {
        let next = self
            .gpus
            .iter()
            .filter_map(|gpu| gpu.model.next_event())
            .min();
        let poll = self
            .busy
            .iter()
            .filter_map(|key| self.channels.get(key))
            .any(Channel::polls)
            .then_some(now + POLL_NS);
        match (next, poll) {
            (Some(next), Some(poll)) => Some(next.min(poll)),
            (next, poll) => next.or(poll),
        }
    }

    /// Lets the device go on to `now`, with what it had taken from the rings.
    pub(crate) fn run_until(&mut self, now: u64) {
        let mut events = Vec::new();
        while let Some(next) = self
            .gpus
            .iter()
            .filter_map(|gpu| gpu.model.next_event())
            .min()
            && next <= now
        {
            for gpu in 0..self.gpus.len() {
                self.gpus[gpu].model.advance(next, &mut events);
                for event in events.drain(..) {
                    self.handle(gpu, event);
                }
            }
            self.check_waits();
        }
        for gpu in &mut self.gpus {
            gpu.model.advance(now, &mut events);
        }
    }

    /// Takes what clients put into their rings, if one rang since: a context has dozens of channels, and
    /// a look at each costs more than most calls.
    fn feed(&mut self) {
        let bell = self.doorbell.at::<Usermode>(0);
        let bell = bell.map(|page| page.doorbell.load(Ordering::SeqCst));
        if bell.is_some() && bell == self.heard {
            return;
        }
        self.heard = bell;
        let channels = &self.channels;
        self.busy.retain(|key| {
            let channel = channels.get(key);
            channel.is_some_and(|channel| !channel.entries.is_empty())
        });
        let unknown_kernel_ns = self.knobs.kernel_ns;
        for (key, channel) in &mut self.channels {
            let Some(ring) = channel.ring() else { continue };
            let put = ring.put.load(Ordering::Acquire);
            if channel.dead {
                continue;
            }
            if channel.fed < put {
                self.busy.insert(*key);
            }
            while channel.fed < put {
                if channel.entries.len() == ENTRIES {
                    // More than a ring holds: the rest when there is room.
                    self.heard = None;
                    break;
                }
                let Some(entry) = channel.entry(channel.fed) else {
                    break;
                };
                let model = &mut self.gpus[channel.gpu].model;
                let tag = channel.fed << 1;
                if entry.op == Op::HostFunc as u32 || is_large(&entry) {
                    let ns = duration(&entry, unknown_kernel_ns);
                    model.submit(channel.id, Work::Part { ns, tag });
                }
                let mut ns = duration(&entry, unknown_kernel_ns);
                if let pieces @ 1.. = piece_steps(&entry) {
                    let piece_ns = pieces.saturating_mul(entry.args[2]);
                    for _ in 0..(entry.args[1] - 1) / pieces {
                        model.submit(channel.id, Work::Part { ns: piece_ns, tag });
                        ns = ns.saturating_sub(piece_ns);
                    }
                }
                if is_wait(&entry) {
                    model.submit(channel.id, Work::Wait { tag: tag | 1 });
                    channel.waits += 1;
                } else {
                    model.submit(channel.id, Work::Run { ns, tag: tag | 1 });
                }
                channel.entries.push_back(entry);
                channel.fed += 1;
            }
        }
    }

    fn check_waits(&mut self) {
        let busy = self.busy.iter().filter_map(|key| self.channels.get(key));
        for channel in busy.filter(|c| c.waits > 0 && !c.dead) {
            let model = &mut self.gpus[channel.gpu].model;
            if model.waiting(channel.id).is_some() && channel.wait_is_over() {
                model.signal(channel.id);
            }
        }
    }

    /// Moves a piece of each large transfer that may go on. Whether there was one.
    pub(crate) fn move_pieces(&mut self, now: u64) -> bool {
        let mut moved = false;
        let mut faults = Vec::new();
        for key in &self.busy {
            let Some(channel) = self.channels.get_mut(key) else {
                continue;
            };
            let Some(done) = channel.moving else { continue };
            let Some(entry) = channel.entries.front() else {
                continue;
            };
            let [to, from, bytes, ..] = entry.args;
            let disabled = self.gpus[channel.gpu].model.is_off(channel.id);
            if channel.dead || disabled || done >= bytes {
                continue;
            }
            moved = true;
            let piece = LARGE.min(bytes - done);
            let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
            channel.moving = Some(match copy(channel.pid, to, from, piece) {
                Ok(()) => done + piece,
                Err(Trouble::Gone) => bytes,
                Err(Trouble::Fault) => {
                    faults.push(*key);
                    bytes
                }
            });
        }
        for key in faults {
            self.fault(key, XID_FAULT, now);
        }
        moved
    }

    fn handle(&mut self, gpu: usize, event: Event) {
        let at = event.at;
        match event.kind {
            EventKind::Started { channel, tag } => self.started(gpu, channel, tag, at),
            EventKind::Finished { channel, tag } => self.finished(gpu, channel, tag, at),
            EventKind::TsgRun { tsg, engine } | EventKind::TsgStop { tsg, engine } => {
                let runs = matches!(event.kind, EventKind::TsgRun { .. });
                let Some(owner) = self.tsgs.get(&(gpu, tsg)).copied() else {
                    return;
                };
                self.history.push(Record {
                    gpu: gpu as u32,
                    pid: owner.pid,
                    client: owner.client,
                    object: owner.handle,
                    value: u64::from(engine),
                    ..Record::new(at, if runs { Kind::TsgRun } else { Kind::TsgStop })
                });
            }
            EventKind::Disabled { channel, ticket } => {
                self.switched(gpu, channel, ticket, at, Kind::DisableEnd);
            }
            EventKind::Enabled { channel, ticket } => {
                self.switched(gpu, channel, ticket, at, Kind::EnableEnd);
            }
            EventKind::Overtaken { ticket } => {
                self.settled(ticket);
            }
        }
    }

    fn switched(
        &mut self,
        gpu: usize,
        channel: tidegate_device::ChannelId,
        ticket: u64,
        at: u64,
        kind: Kind,
    ) {
        let call = self.settled(ticket);
        let key = self.by_model.get(&(gpu, channel));
        let Some(channel) = key.and_then(|key| self.channels.get(key)) else {
            return;
        };
        let mut record = channel_record(at, kind, channel);
        if let Some(call) = call {
            (record.caller, record.value) = (call.caller, call.entry_ns);
            if kind == Kind::EnableEnd {
                record.tag = call.read_ns;
            }
        }
        self.history.push(record);
    }

    /// One channel of a disable or enable has what the call wanted, or never will.
    fn settled(&mut self, ticket: u64) -> Option<Ticket> {
        let call = self.tickets.get_mut(&ticket).map(|open| {
            open.left -= 1;
            *open
        });
        if call.is_some_and(|call| call.left == 0) {
            self.tickets.remove(&ticket);
        }
        call
    }

    fn started(&mut self, gpu: usize, id: tidegate_device::ChannelId, tag: u64, at: u64) {
        let key = self.by_model.get(&(gpu, id));
        let Some(channel) = key.and_then(|key| self.channels.get(key)) else {
            return;
        };
        if let Some(ring) = channel.ring() {
            ring.get.store((tag >> 1) + 1, Ordering::Release);
        }
        if let Some(entry) = channel.entries.front()
            && entry.op == Op::Kernel as u32
            && channel.stepped == 0
        {
            let mut record = channel_record(at, Kind::KernelStart, channel);
            (record.value, record.tag) = (entry.kernel, tag_of(entry));
            self.history.push(record);
        }
    }

    fn finished(&mut self, gpu: usize, id: tidegate_device::ChannelId, tag: u64, at: u64) {
        let Some(key) = self.by_model.get(&(gpu, id)).copied() else {
            return;
        };
        let Some(channel) = self.channels.get_mut(&key) else {
            return;
        };
        if tag & 1 == 0 {
            // A piece of a kernel, or the first half of a large transfer, or of a host function: its
            // client may run it now.
            let pieces = channel.entries.front().map_or(0, piece_steps);
            if pieces > 0 {
                channel.stepped += pieces;
                let counter = channel.entries.front().map_or(0, |entry| entry.args[0]);
                if matches!(add_to(channel.pid, counter, pieces), Err(Trouble::Fault)) {
                    self.fault(key, XID_FAULT, at);
                }
            } else if channel.entries.front().is_some_and(is_large) {
                channel.moving = Some(0);
            } else if let Some(ring) = channel.ring() {
                sys::futex_wake(sys::low_half(&ring.get));
            }
            return;
        }
        let Some(entry) = channel.entries.pop_front() else {
            return;
        };
        let stepped = std::mem::take(&mut channel.stepped);
        if is_wait(&entry) {
            channel.waits = channel.waits.saturating_sub(1);
        }
        if entry.op == Op::Kernel as u32 {
            let mut record = channel_record(at, Kind::KernelEnd, channel);
            (record.value, record.tag) = (entry.kernel, tag_of(&entry));
            self.history.push(record);
        }
        if is_large(&entry) {
            channel.moving = None;
        }
        match carry_out(channel, &entry, stepped, at) {
            Ok(()) | Err(Trouble::Gone) => {}
            Err(Trouble::Fault) => {
                self.fault(key, XID_FAULT, at);
                return;
            }
        }
        if let Some(ring) = self.channels.get(&key).and_then(Channel::ring) {
            ring.done.store((tag >> 1) + 1, Ordering::Release);
            sys::futex_wake(sys::low_half(&ring.done));
        }
    }

    /// Kills a channel and with it every channel of its client on that GPU: the context is lost.
    pub(crate) fn fault(&mut self, key: u64, xid: u32, at: u64) {
        let Some((client, gpu)) = self.channels.get(&key).map(|c| (c.client, c.gpu)) else {
            return;
        };
        for channel in self.channels.values_mut() {
            if channel.client != client || channel.gpu != gpu || channel.dead {
                continue;
            }
            channel.die();
            self.gpus[gpu].model.fail(channel.id);
            let mut record = channel_record(at, Kind::Fault, channel);
            record.value = u64::from(xid);
            self.history.push(record);
            if let Some(ring) = channel.ring() {
                ring.error.store(xid, Ordering::Release);
                sys::futex_wake(sys::low_half(&ring.done));
                sys::futex_wake(sys::low_half(&ring.get));
            }
        }
    }
}

fn carry_out(channel: &Channel, entry: &Entry, stepped: u64, at: u64) -> Result<(), Trouble> {
    let pid = channel.pid;
    match entry.op {
        op if op == Op::Kernel as u32 => kernel(pid, entry, stepped),
        _ if is_large(entry) => Ok(()),
        op if op == Op::Copy as u32 => copy(pid, entry.args[0], entry.args[1], entry.args[2]),
        op if op == Op::Fill as u32 => fill(pid, entry),
        op if op == Op::Release as u32 => {
            if let Some(semaphore) = channel.semaphore(entry.args[0]) {
                semaphore.at_ns.store(at, Ordering::Release);
                semaphore.value.fetch_max(entry.args[1], Ordering::AcqRel);
                sys::futex_wake(sys::low_half(&semaphore.value));
            }
            Ok(())
        }
        op if op == Op::Write as u32 => {
            let bytes = if entry.args[2] == 4 { 4 } else { 8 };
            let value = entry.args[1].to_le_bytes();
            Ok(sys::write_process(pid, entry.args[0], &value[..bytes])?)
        }
        _ => Ok(()),
    }
}

fn kernel(pid: u32, entry: &Entry, stepped: u64) -> Result<(), Trouble> {
    let args = &entry.args;
    match entry.kernel {
        COUNT => add_to(pid, args[0], 1)?,
        STEPS => add_to(pid, args[0], args[1].saturating_sub(stepped))?,
        STORE => sys::write_process(pid, args[0], &args[1].to_le_bytes())?,
        SMS => mark_sms(pid, entry)?,
        KV_STORE => kv::store(pid, args)?,
        KV_TOKEN => kv::token(pid, args)?,
        ADD => add(pid, args[0], args[1], args[2], args[3])?,
        TOUCH => {
            let mut byte = [0];
            let end = args[0].saturating_add(args[1]);
            let mut at = args[0];
            while at < end {
                sys::read_process(pid, at, &mut byte)?;
                at = (at & !4095).saturating_add(4096);
            }
        }
        _ => {}
    }
    Ok(())
}

fn add_to(pid: u32, counter: u64, steps: u64) -> Result<(), Trouble> {
    let mut value = [0; 8];
    sys::read_process(pid, counter, &mut value)?;
    let value = u64::from_le_bytes(value).wrapping_add(steps);
    Ok(sys::write_process(pid, counter, &value.to_le_bytes())?)
}

/// `tg_sms`: each block marks the byte of the multiprocessor it runs on. The first blocks go to one each.
fn mark_sms(pid: u32, entry: &Entry) -> Result<(), Trouble> {
    let [first, count] = entry.sms;
    let blocks = entry.dims[..3]
        .iter()
        .map(|size| u64::from(*size))
        .product();
    let marks = vec![1; count.min(blocks) as usize];
    Ok(sys::write_process(
        pid,
        entry.args[0].wrapping_add(first),
        &marks,
    )?)
}

fn copy(pid: u32, to: u64, from: u64, bytes: u64) -> Result<(), Trouble> {
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let part = &mut buffer[..(bytes - done).min(CHUNK as u64) as usize];
        sys::read_process(pid, from.wrapping_add(done), part)?;
        sys::write_process(pid, to.wrapping_add(done), part)?;
        done += part.len() as u64;
    }
    Ok(())
}

fn fill(pid: u32, entry: &Entry) -> Result<(), Trouble> {
    let [at, elements, value, width, rows, pitch, ..] = entry.args;
    if !matches!(width, 1 | 2 | 4) {
        return Err(Trouble::Fault);
    }
    let row = elements.saturating_mul(width);
    if row == 0 {
        return Ok(());
    }
    let pattern = value.to_le_bytes();
    let buffer: Vec<u8> = pattern[..width as usize]
        .iter()
        .copied()
        .cycle()
        .take(CHUNK.min(row as usize))
        .collect();
    for number in 0..rows.max(1) {
        let start = at.wrapping_add(number.wrapping_mul(pitch));
        let mut done = 0;
        while done < row {
            let part = &buffer[..(row - done).min(CHUNK as u64) as usize];
            sys::write_process(pid, start.wrapping_add(done), part)?;
            done += part.len() as u64;
        }
    }
    Ok(())
}

fn add(pid: u32, a: u64, b: u64, c: u64, elements: u64) -> Result<(), Trouble> {
    const STEP: u64 = 16 * 1024;
    let mut done = 0;
    while done < elements {
        let count = (elements - done).min(STEP);
        let mut left = vec![0; count as usize * 4];
        let mut right = left.clone();
        let offset = done * 4;
        sys::read_process(pid, a.wrapping_add(offset), &mut left)?;
        sys::read_process(pid, b.wrapping_add(offset), &mut right)?;
        for (l, r) in left.chunks_exact_mut(4).zip(right.chunks_exact(4)) {
            let sum = f32::from_le_bytes([l[0], l[1], l[2], l[3]])
                + f32::from_le_bytes([r[0], r[1], r[2], r[3]]);
            l.copy_from_slice(&sum.to_le_bytes());
        }
        sys::write_process(pid, c.wrapping_add(offset), &left)?;
        done += count;
    }
    Ok(())
}
