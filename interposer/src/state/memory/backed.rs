//! Allocations with a handle behind each piece, and the page that replaces what is reclaimed.
//!
//! The application sees one allocation at an address that never changes. Behind each piece is a handle of its own or,
//! while the piece is reclaimed, the *quarantine page* of the device: one handle that is mapped wherever something is
//! missing, so that no access ever faults.

use super::vmm::{Refused, Vmm};
use crate::real::driver;
use core::sync::atomic::AtomicPtr;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_abi::vmm::{
    Access, DEVICE, GPU_DIRECT_RDMA_WITH_VMM, Location, Properties, READ_WRITE,
};

/// Handles are at least this large, and this large unless the engine says otherwise.
pub const HANDLE_BYTES: u64 = 2 << 20;

/// The driver's functions; `None` for a driver older than CUDA 10.2.
pub fn vmm() -> Option<&'static Vmm> {
    static VMM: AtomicPtr<Vmm> = AtomicPtr::new(core::ptr::null_mut());
    driver::loaded(&VMM)
}

/// One allocation.
#[derive(Debug)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Bytes the application asked for.
    pub asked: u64,
    /// Bytes mapped.
    pub bytes: u64,
    /// Of each handle.
    pub handle_bytes: u64,
    /// CUDA ordinal.
    pub device: usize,
    /// Context it was made in, and goes with.
    pub context: usize,
    /// Number of the buffer, for life.
    pub id: u64,
    /// By piece; 0: the quarantine page.
    pub handles: Vec<u64>,
    /// The application has given it to others in a way that pins its pages.
    pub shared: bool,
    /// Where pieces of it are seen a second time.
    pub seconds: Option<Seconds>,
}

/// Addresses at which pieces of an allocation are mapped again, in an order of their own.
#[derive(Debug)]
pub struct Seconds {
    /// First of them.
    pub base: u64,
    /// So many pieces have room.
    pub places: usize,
    /// By piece: its place.
    seen: BTreeMap<usize, usize>,
}

/// Consecutive pieces: the first address they are mapped at, and which of those that are changed they are.
type Span = (u64, core::ops::Range<usize>);

impl Range {
    /// All addresses at which these pieces are mapped.
    fn spans(&self, first: usize, count: usize) -> Vec<Span> {
        let seconds = self.seconds.iter().flat_map(|seconds| {
            let seen = seconds.seen.range(first..first + count);
            seen.map(|(piece, place)| {
                let at = seconds.base + *place as u64 * self.handle_bytes;
                (at, piece - first..piece - first + 1)
            })
        });
        [(self.piece(first), 0..count)]
            .into_iter()
            .chain(seconds)
            .collect()
    }

    /// Whether an address is inside.
    pub const fn holds(&self, at: u64) -> bool {
        at >= self.base && at - self.base < self.bytes
    }

    /// Address of a piece.
    pub const fn piece(&self, index: usize) -> u64 {
        self.base + index as u64 * self.handle_bytes
    }

    /// Bytes that handles of its own stand behind.
    pub fn own_bytes(&self) -> u64 {
        let own = self.handles.iter().filter(|handle| **handle != 0).count();
        own as u64 * self.handle_bytes
    }
}

/// A device's quarantine page for one size of handles.
#[derive(Debug)]
struct Quarantine {
    handle: u64,
    /// Where it is mapped for itself, to be zeroed.
    at: u64,
    context: usize,
    stream: usize,
}

/// Every backed allocation of the process.
#[derive(Debug, Default)]
pub struct Backed {
    ranges: BTreeMap<u64, Range>,
    quarantine: BTreeMap<(usize, u64), Quarantine>,
    /// Devices with access to the memory of a context, beside its own.
    peers: BTreeMap<usize, BTreeSet<i32>>,
}

/// What a change of mappings came to when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// Everything stands as before.
    #[error("{0}")]
    Undone(#[source] Refused),
    /// Something is not mapped, and mapping it again was refused too.
    #[error("{0}, and it could not be undone")]
    Torn(#[source] Refused),
}

impl Failed {
    /// What the driver said.
    pub const fn refused(self) -> Refused {
        match self {
            Self::Undone(refused) | Self::Torn(refused) => refused,
        }
    }
}

fn access_of(device: i32) -> Access {
    Access {
        location: Location {
            kind: DEVICE,
            id: device,
        },
        flags: READ_WRITE,
    }
}

fn properties(vmm: &Vmm, device: i32) -> Properties {
    let mut properties = Properties::of_device(device);
    if vmm.attribute(GPU_DIRECT_RDMA_WITH_VMM, device) != 0 {
        // `gpuDirectRDMACapable`, as memory of cuMemAlloc is.
        properties.flags[1] = 1;
    }
    properties
}

fn ordinal(device: usize) -> i32 {
    i32::try_from(device).unwrap_or(0)
}

/// Maps `handles` over consecutive pieces from `at`; on failure nothing is mapped there.
fn attach_all(
    vmm: &Vmm,
    at: u64,
    bytes: u64,
    handles: impl ExactSizeIterator<Item = u64>,
    access: &[Access],
) -> Result<(), Refused> {
    let whole = handles.len() as u64 * bytes;
    let mut done = 0;
    let mut mapped = Ok(());
    for handle in handles {
        mapped = vmm.attach(at + done, bytes, handle);
        if mapped.is_err() {
            break;
        }
        done += bytes;
    }
    let opened = mapped.and_then(|()| vmm.open(at, whole, access));
    if opened.is_err() && done > 0 {
        // A refusal here leaves a mapping without access, as none at all would be.
        let _ = vmm.detach(at, done);
    }
    opened
}

impl Backed {
    /// The allocation that holds an address.
    pub fn find(&self, at: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=at).next_back()?;
        range.holds(at).then_some(range)
    }

    /// As [`Self::find`], to change it.
    pub fn find_mut(&mut self, at: u64) -> Option<&mut Range> {
        let (_, range) = self.ranges.range_mut(..=at).next_back()?;
        range.holds(at).then_some(range)
    }

    /// Every allocation.
    pub fn all(&self) -> impl Iterator<Item = &Range> {
        self.ranges.values()
    }

    /// Bytes of a device's quarantine pages.
    pub fn page_bytes(&self, device: usize) -> u64 {
        let pages = self.quarantine.keys().filter(|(at, _)| *at == device);
        pages.map(|(_, bytes)| bytes).sum()
    }

    fn access(&self, context: usize, device: usize) -> Vec<Access> {
        let own = ordinal(device);
        let peers = self.peers.get(&context).into_iter().flatten().copied();
        [own]
            .into_iter()
            .chain(peers.filter(|peer| *peer != own))
            .map(access_of)
            .collect()
    }

    fn quarantine(
        &mut self,
        vmm: &Vmm,
        device: usize,
        context: usize,
        bytes: u64,
    ) -> Result<u64, Refused> {
        if let Some(known) = self.quarantine.get(&(device, bytes)) {
            return Ok(known.handle);
        }
        let handle = vmm.make(&properties(vmm, ordinal(device)), bytes)?;
        let give_up = |refused| {
            let _ = vmm.give_up(handle);
            refused
        };
        let at = vmm
            .addresses(bytes, bytes.next_power_of_two())
            .map_err(give_up)?;
        let access = [access_of(ordinal(device))];
        let mapped = attach_all(vmm, at, bytes, [handle].into_iter(), &access);
        let zeroed = mapped.and_then(|()| {
            let stream = vmm.stream(context)?;
            vmm.zero(context, stream, at, bytes)?;
            vmm.drain(context, stream)?;
            Ok(stream)
        });
        let stream = zeroed.map_err(|refused| {
            let _ = vmm.detach(at, bytes);
            let _ = vmm.forget(at, bytes);
            give_up(refused)
        })?;
        let page = Quarantine {
            handle,
            at,
            context,
            stream,
        };
        self.quarantine.insert((device, bytes), page);
        Ok(handle)
    }

    /// Makes an allocation: with handles, or `bare`, the quarantine page behind all of it.
    pub fn allocate(
        &mut self,
        vmm: &Vmm,
        (device, context): (usize, usize),
        asked: u64,
        handle_bytes: u64,
        bare: bool,
    ) -> Result<u64, Refused> {
        let properties = properties(vmm, ordinal(device));
        let unit = vmm.unit(&properties)?.max(HANDLE_BYTES);
        let handle_bytes = handle_bytes.max(unit).next_multiple_of(unit);
        let bytes = asked
            .checked_next_multiple_of(handle_bytes)
            .ok_or(Refused(2))?;
        let quarantine = self.quarantine(vmm, device, context, handle_bytes)?;
        let count = usize::try_from(bytes / handle_bytes).unwrap_or(usize::MAX);
        let mut handles = Vec::with_capacity(count);
        let give_up = |handles: &[u64]| {
            for handle in handles {
                let _ = vmm.give_up(*handle);
            }
        };
        while !bare && handles.len() < count {
            let made = vmm.make(&properties, handle_bytes);
            handles.push(made.inspect_err(|_| give_up(&handles))?);
        }
        let alignment = handle_bytes.next_power_of_two();
        let base = vmm
            .addresses(bytes, alignment)
            .inspect_err(|_| give_up(&handles))?;
        let access = self.access(context, device);
        let behind: Vec<u64> = if bare {
            vec![quarantine; count]
        } else {
            handles.clone()
        };
        attach_all(vmm, base, handle_bytes, behind.into_iter(), &access).inspect_err(|_| {
            let _ = vmm.forget(base, bytes);
            give_up(&handles);
        })?;
        if bare {
            handles = vec![0; count];
        }
        let range = Range {
            base,
            asked,
            bytes,
            handle_bytes,
            device,
            context,
            id: vmm.buffer_id(base),
            handles,
            shared: false,
            seconds: None,
        };
        self.ranges.insert(base, range);
        Ok(base)
    }

    /// Ends an allocation whose context is done with it.
    pub fn end(&mut self, vmm: &Vmm, base: u64) -> Option<Range> {
        let range = self.ranges.remove(&base)?;
        // The driver drops what a refused call leaves with the process.
        let _ = vmm.detach(range.base, range.bytes);
        if let Some(seconds) = &range.seconds {
            for place in seconds.seen.values() {
                let at = seconds.base + *place as u64 * range.handle_bytes;
                let _ = vmm.detach(at, range.handle_bytes);
            }
            let _ = vmm.forget(seconds.base, seconds.places as u64 * range.handle_bytes);
        }
        for handle in range.handles.iter().filter(|handle| **handle != 0) {
            let _ = vmm.give_up(*handle);
        }
        let _ = vmm.forget(range.base, range.bytes);
        Some(range)
    }

    /// Ends every allocation of a context that is gone; their first addresses.
    pub fn context_gone(&mut self, vmm: &Vmm, context: usize) -> Vec<u64> {
        let mine = |range: &&Range| range.context == context;
        let bases: Vec<u64> = self.all().filter(mine).map(|range| range.base).collect();
        for base in &bases {
            self.end(vmm, *base);
        }
        self.peers.remove(&context);
        // Its streams went with it.
        let pages = self
            .quarantine
            .iter()
            .filter(|(_, page)| page.context == context);
        let keys: Vec<(usize, u64)> = pages.map(|(key, _)| *key).collect();
        for key in keys {
            let used = |range: &Range| (range.device, range.handle_bytes) == key;
            if self.all().any(used) {
                continue;
            }
            if let Some(page) = self.quarantine.remove(&key) {
                let _ = vmm.detach(page.at, key.1);
                let _ = vmm.forget(page.at, key.1);
                let _ = vmm.give_up(page.handle);
            }
        }
        bases
    }

    /// Gives `device` access to the memory of `context`, also to what is mapped later.
    pub fn peer(&mut self, vmm: &Vmm, context: usize, device: i32) {
        self.peers.entry(context).or_default().insert(device);
        for range in self.all().filter(|range| range.context == context) {
            let access = self.access(context, range.device);
            // Refused for a device that cannot reach it; then the driver's own call was as well.
            let _ = vmm.open(range.base, range.bytes, &access);
            for (at, _) in range.spans(0, range.handles.len()).iter().skip(1) {
                let _ = vmm.open(*at, range.handle_bytes, &access);
            }
        }
    }

    /// Makes handles for as many pieces of the allocation at `base`; all or none.
    pub fn make(&self, vmm: &Vmm, base: u64, count: usize) -> Result<Vec<u64>, Refused> {
        let range = self.find(base).ok_or(Refused(1))?;
        let properties = properties(vmm, ordinal(range.device));
        let mut handles = Vec::with_capacity(count);
        while handles.len() < count {
            let made = vmm.make(&properties, range.handle_bytes);
            handles.push(made.inspect_err(|_| {
                for handle in &handles {
                    let _ = vmm.give_up(*handle);
                }
            })?);
        }
        Ok(handles)
    }

    /// Puts `fresh` behind the pieces from `first` on (0: the quarantine page); what was behind them.
    pub fn replace(
        &mut self,
        vmm: &Vmm,
        base: u64,
        first: usize,
        fresh: &[u64],
    ) -> Result<Vec<u64>, Failed> {
        let nothing = Failed::Undone(Refused(1));
        let range = self.find(base).ok_or(nothing)?;
        let bytes = range.handle_bytes;
        let access = self.access(range.context, range.device);
        let key = (range.device, bytes);
        let quarantine = self.quarantine.get(&key).ok_or(nothing)?.handle;
        let old = range.handles.get(first..first + fresh.len());
        let old = old.ok_or(nothing)?.to_vec();
        let spans = range.spans(first, fresh.len());
        let put = |(at, of): &Span, handles: &[u64]| {
            let stands = |handle: &u64| if *handle == 0 { quarantine } else { *handle };
            let handles = handles[of.clone()].iter().map(stands);
            attach_all(vmm, *at, bytes, handles, &access)
        };
        let take = |(at, of): &Span| vmm.detach(*at, of.len() as u64 * bytes);
        for (done, span) in spans.iter().enumerate() {
            let refused = match take(span) {
                Ok(()) => match put(span, fresh) {
                    Ok(()) => continue,
                    Err(refused) => {
                        put(span, &old).map_err(Failed::Torn)?;
                        refused
                    }
                },
                Err(refused) => refused,
            };
            // Nobody may see the one at one address and the other at another.
            for span in &spans[..done] {
                take(span)
                    .and_then(|()| put(span, &old))
                    .map_err(Failed::Torn)?;
            }
            return Err(Failed::Undone(refused));
        }
        if let Some(range) = self.ranges.get_mut(&base) {
            range.handles[first..first + fresh.len()].copy_from_slice(fresh);
        }
        Ok(old)
    }

    /// Backs every piece of the allocation at `base` that has no memory of its own, and zeroes it.
    pub fn back_whole(&mut self, vmm: &Vmm, base: u64) -> Result<(), Refused> {
        /// Handles changed at once: what a failure undoes.
        const AT_ONCE: usize = 64;
        while let Some(range) = self.find(base) {
            let bare = |handle: &u64| *handle == 0;
            let Some(first) = range.handles.iter().position(bare) else {
                break;
            };
            let run = range.handles[first..].iter().take(AT_ONCE);
            let count = run.take_while(|handle| bare(handle)).count();
            let (at, bytes) = (range.piece(first), count as u64 * range.handle_bytes);
            let (context, key) = (range.context, (range.device, range.handle_bytes));
            let fresh = self.make(vmm, base, count)?;
            if let Err(failed) = self.replace(vmm, base, first, &fresh) {
                for handle in fresh {
                    let _ = vmm.give_up(handle);
                }
                if matches!(failed, Failed::Torn(_)) {
                    // It is refused below, and nobody uses what is torn; the next change of it tries again.
                    let _ = self.mend(vmm, base, first, count);
                }
                return Err(failed.refused());
            }
            // What the engine wrote there before is gone; zeroes are what caches are made of.
            if let Some(page) = self
                .quarantine
                .get(&key)
                .filter(|page| page.context == context)
            {
                let _ = vmm.zero(context, page.stream, at, bytes);
                let _ = vmm.drain(context, page.stream);
            }
        }
        Ok(())
    }

    /// Reserves addresses for second mappings of the allocation at `base`; the first.
    pub fn open_seconds(&mut self, vmm: &Vmm, base: u64, places: usize) -> Result<u64, Refused> {
        let range = self.ranges.get_mut(&base).ok_or(Refused(1))?;
        let bytes = places as u64 * range.handle_bytes;
        let at = vmm.addresses(bytes, range.handle_bytes.next_power_of_two())?;
        range.seconds = Some(Seconds {
            base: at,
            places,
            seen: BTreeMap::new(),
        });
        Ok(at)
    }

    /// Maps a piece a second time: what stands behind it now.
    pub fn see(&mut self, vmm: &Vmm, base: u64, piece: usize, place: usize) -> Result<(), Refused> {
        let range = self.find(base).ok_or(Refused(1))?;
        let access = self.access(range.context, range.device);
        let key = (range.device, range.handle_bytes);
        let quarantine = self.quarantine.get(&key).ok_or(Refused(1))?.handle;
        let handle = *range.handles.get(piece).ok_or(Refused(1))?;
        let seconds = range.seconds.as_ref().ok_or(Refused(1))?;
        let at = seconds.base + place as u64 * range.handle_bytes;
        let behind = if handle == 0 { quarantine } else { handle };
        attach_all(vmm, at, range.handle_bytes, [behind].into_iter(), &access)?;
        let range = self.ranges.get_mut(&base);
        if let Some(seconds) = range.and_then(|range| range.seconds.as_mut()) {
            seconds.seen.insert(piece, place);
        }
        Ok(())
    }

    /// Takes a second mapping away.
    pub fn unsee(&mut self, vmm: &Vmm, base: u64, piece: usize) -> Result<(), Refused> {
        let range = self.ranges.get_mut(&base).ok_or(Refused(1))?;
        let bytes = range.handle_bytes;
        let seconds = range.seconds.as_mut().ok_or(Refused(1))?;
        let place = *seconds.seen.get(&piece).ok_or(Refused(1))?;
        vmm.detach(seconds.base + place as u64 * bytes, bytes)?;
        seconds.seen.remove(&piece);
        Ok(())
    }

    /// Maps again what [`Self::replace`] left torn.
    pub fn mend(&self, vmm: &Vmm, base: u64, first: usize, count: usize) -> Result<(), Refused> {
        let Some(range) = self.find(base) else {
            return Ok(());
        };
        let key = (range.device, range.handle_bytes);
        let quarantine = self.quarantine.get(&key).map_or(0, |page| page.handle);
        let stands = |handle: &u64| if *handle == 0 { quarantine } else { *handle };
        let handles: Vec<u64> = range.handles[first..first + count]
            .iter()
            .map(stands)
            .collect();
        let access = self.access(range.context, range.device);
        let bytes = range.handle_bytes;
        range
            .spans(first, count)
            .into_iter()
            .try_for_each(|(at, of)| {
                // Of several addresses some may stand.
                let _ = vmm.detach(at, of.len() as u64 * bytes);
                attach_all(vmm, at, bytes, handles[of].iter().copied(), &access)
            })
    }
}
