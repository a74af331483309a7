//! The C functions that engines call (`include/tidegate.h`).
//!
//! Engines find them by `dlsym`, so an engine runs the same without the library. What an engine calls in every step
//! only reads and writes memory; only attaching, registering and scopes call anything. Results are 0 or a negative
//! `errno`.

use crate::hook::table;
use crate::memory::answered::answered;
use crate::memory::scope::SCOPE;
use crate::memory::service::serve;
use crate::memory::usage::write_usage;
use crate::memory::{alone, job, talk, whole};
use crate::outbox::say;
use crate::process::{Process, guarded, process, ring};
use crate::state::memory::backed::{HANDLE_BYTES, vmm};
use crate::state::memory::kv::{BadKv, Kv};
use crate::state::memory::state::{Growing, Membership, Polled, State, begin_to_read};
use crate::{clock, env, log, sys};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::sync::Arc;
use tidegate_core::gate::Role;
use tidegate_core::joblog::{Member, Reader, Refused, Shared};
use tidegate_core::stripes::Region;
use tidegate_proto::v1::{self, client_event::Event};

/// `TG_ABI_VERSION` of the header.
const VERSION: u32 = 5;
/// `TG_KV_ELASTIC`.
const ELASTIC: u32 = 1;

/// `tg_kv_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvRegion {
    base: u64,
    block_stride: u64,
    block_bytes: u64,
    first_block: u32,
    blocks: u32,
}
const _: () = assert!(size_of::<KvRegion>() == 32);

/// `tg_abi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_abi_version() -> u32 {
    VERSION
}

/// `tg_attach`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_attach(name: *const c_char, rank: u32, world: u32) -> c_int {
    answered(|process| {
        if world == 0 || rank >= world {
            return Err(libc::EINVAL);
        }
        let name = if name.is_null() {
            env::job()
        } else {
            // SAFETY: this function's contract.
            let name = unsafe { CStr::from_ptr(name) };
            name.to_string_lossy().into_owned()
        };
        let mut membership = sys::lock(&process.memory.job.membership);
        if membership.joined.is_some() {
            return Err(libc::EALREADY);
        }
        // Processes without a name for their job share it with nobody.
        let shown = if name.is_empty() {
            format!("pid-{}", std::process::id())
        } else {
            name.clone()
        };
        let (log, readers) = job::open(&shown, world).map_err(|error| {
            log::line(&format!("tg_attach: {error}"));
            libc::EIO
        })?;
        process.memory.set_log(Member::without_table(log));
        *membership = Membership {
            name,
            rank,
            world,
            reader: Reader::default(),
            polled: Polled::Never,
            reads: None,
            joined: Some(readers),
        };
        Ok(())
    })
}

/// `tg_role`: as the header numbers them, which is how the library does.
#[unsafe(no_mangle)]
pub extern "C" fn tg_role(wait_ms: u32) -> c_int {
    let asked = |process: &'static Process| {
        speak(process);
        if !talk::is_raised_within(&process.link.ever, u64::from(wait_ms) * 1_000_000) {
            return Role::Unknown;
        }
        process.role()
    };
    guarded(|| {
        sys::keeping_errno(|| {
            process().map_or(-libc::ENOSYS, |process| {
                asked(process).to_word().cast_signed()
            })
        })
    })
    .unwrap_or(-libc::EIO)
}

/// `tg_kv_scope_begin`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_kv_scope_begin(handle_bytes: u64, flags: u32) -> c_int {
    answered(|_| {
        let (depth, _, _) = SCOPE.get();
        if depth > 0 {
            return Err(libc::EALREADY);
        }
        if flags & !ELASTIC != 0 || !handle_bytes.is_multiple_of(HANDLE_BYTES) {
            return Err(libc::EINVAL);
        }
        SCOPE.set((1, handle_bytes, flags & ELASTIC != 0));
        Ok(())
    })
}

/// `tg_kv_scope_end`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_kv_scope_end() -> c_int {
    answered(|_| match SCOPE.replace((0, 0, false)) {
        (0, ..) => Err(libc::EINVAL),
        _ => Ok(()),
    })
}

/// `tg_kv_register`.
///
/// # Safety
/// `regions` has `count` entries; `kv` is the caller's place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_kv_register(
    regions: *const KvRegion,
    count: usize,
    protected: u32,
    flags: u32,
    kv: *mut u32,
) -> c_int {
    answered(|process| {
        if regions.is_null() || kv.is_null() || count == 0 || flags & !ELASTIC != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: this function's contract.
        let regions = unsafe { core::slice::from_raw_parts(regions, count) };
        let regions: Vec<Region> = regions
            .iter()
            .map(|region| Region {
                base: region.base,
                stride: region.block_stride,
                block_bytes: region.block_bytes,
                first_block: region.first_block,
                blocks: region.blocks,
            })
            .collect();
        let elastic = flags & ELASTIC != 0;
        let id = registered(process, &regions, protected, elastic).map_err(|error| {
            log::line(&format!("tg_kv_register: {error}"));
            let errno = if matches!(error, BadKv::NoMemory { .. }) {
                libc::ENOMEM
            } else {
                libc::EINVAL
            };
            // Nobody hears which of its blocks may be used.
            let backed = if elastic {
                whole::back_unclaimed(process)
            } else {
                Ok(())
            };
            backed.err().unwrap_or(errno)
        })?;
        // SAFETY: this function's contract.
        unsafe { kv.write(id) };
        Ok(())
    })
}

/// Registers a cache. What it always needs is asked for once where it is not to be had.
fn registered(
    process: &'static Process,
    regions: &[Region],
    protected: u32,
    elastic: bool,
) -> Result<u32, BadKv> {
    const ASK_NS: u64 = 500_000_000;
    match register(process, regions, protected, elastic) {
        Err(BadKv::NoMemory { device, bytes }) if talk::ask(process, device, bytes, ASK_NS) => {
            register(process, regions, protected, elastic)
        }
        done => done,
    }
}

fn register(
    process: &'static Process,
    regions: &[Region],
    protected: u32,
    elastic: bool,
) -> Result<u32, BadKv> {
    let memory = &process.memory;
    let mut state = sys::lock(&memory.state);
    let membership = sys::lock(&memory.job.membership);
    let State {
        backed,
        kvs,
        kvs_made,
        ..
    } = &mut *state;
    let mut cache = Kv::new(*kvs_made + 1, backed, regions, protected, elastic)?;
    if env::kv_guess().is_some() && membership.world != 1 {
        "its memory was guessed, and the job has more than one rank, or was not joined yet"
            .clone_into(&mut cache.refused);
    } else if !elastic && kvs.values().any(|other| other.elastic.is_none()) {
        // Lost blocks are told by number, and each cache has its own.
        "the process has another cache".clone_into(&mut cache.refused);
    }
    if elastic {
        let short = BadKv::NoMemory {
            device: cache.device,
            bytes: cache.cut.fixed.len() as u64 * cache.handle_bytes,
        };
        let vmm = vmm().ok_or(short)?;
        cache.back_fixed(vmm, backed).map_err(|_| short)?;
    }
    *kvs_made += 1;
    let id = cache.id;
    if !elastic {
        // The agent promises what is free as soon as it hears of a cache: it must know of all else by then.
        say(process, Event::Usage(state.usage(cache.device)));
    }
    say(process, Event::KvRegistered(membership.describe(&cache)));
    if let Some(elastic) = &cache.elastic {
        let known = (cache.device, Arc::clone(elastic));
        sys::lock(&memory.growth.elastic).insert(id, known);
    }
    state.kvs.insert(id, cache);
    drop(state);
    serve(process);
    memory.changed();
    // Rung while the state was held, the reporter may have put it off.
    process.bell.ring();
    Ok(id)
}

/// `tg_kv_whole`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_kv_whole() -> c_int {
    answered(whole::back_unclaimed)
}

/// `tg_kv_unregister`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_kv_unregister(kv: u32) -> c_int {
    answered(|process| {
        let memory = &process.memory;
        // From here on no order finds it.
        let removed = sys::lock(&memory.state).kvs.remove(&kv);
        let mut cache = removed.ok_or(libc::ENOENT)?;
        let whole = whole::back_cache(process, &cache.bases);
        if let (Err(errno), None) = (whole, &cache.elastic) {
            // What it misses stays lost until the agent gives it back; nothing more is taken of it.
            "it is not registered any more".clone_into(&mut cache.refused);
            let mut state = sys::lock(&memory.state);
            let membership = sys::lock(&memory.job.membership);
            cache.look(&state.backed, memory.log());
            say(process, Event::KvRegistered(membership.describe(&cache)));
            state.kvs.insert(kv, cache);
            return Err(errno);
        }
        cache.forget(memory.log());
        sys::lock(&memory.growth.elastic).remove(&kv);
        sys::lock(&memory.arenas).forget(kv);
        say(process, Event::KvGone(v1::KvGone { kv }));
        whole
    })
}

fn log_of(process: &Process) -> Result<&'static Shared, c_int> {
    let log = process.memory.log().ok_or(libc::ENOTCONN)?;
    Ok(log.shared())
}

/// Copies ids out, or says how many there are.
///
/// # Safety
/// `into` has room for `*count` ids; both are the caller's.
unsafe fn give_ids(ids: &[u32], into: *mut u32, count: *mut usize) {
    // SAFETY: this function's contract, checked for null by the caller.
    unsafe {
        core::ptr::copy_nonoverlapping(ids.as_ptr(), into, ids.len());
        count.write(ids.len());
    }
}

/// `tg_poll`.
///
/// # Safety
/// Each list has room for as many ids as its count says; `seq` is the caller's place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_poll(
    step: u64,
    lost: *mut u32,
    lost_count: *mut usize,
    back: *mut u32,
    back_count: *mut usize,
    seq: *mut u64,
) -> c_int {
    answered(|process| {
        if lost_count.is_null() || back_count.is_null() || seq.is_null() {
            return Err(libc::EINVAL);
        }
        log_of(process)?;
        begin_to_read(&process.memory)?;
        let member = process.memory.log().ok_or(libc::ENOTCONN)?;
        let shared = member.shared();
        let mut membership = sys::lock(&process.memory.job.membership);
        let begun = membership.read_from(member, step);
        let news = begun.and_then(|()| membership.reader.read(shared, step));
        let news = news.map_err(|refused| match refused {
            Refused::Step(_) => libc::ESTALE,
            _ => libc::EIO,
        })?;
        // SAFETY: not null, and the caller's.
        let (lost_room, back_room) = unsafe { (*lost_count, *back_count) };
        if news.lost.len() > lost_room || news.back.len() > back_room {
            // SAFETY: as above.
            unsafe {
                lost_count.write(news.lost.len());
                back_count.write(news.back.len());
            }
            return Err(libc::ENOSPC);
        }
        // SAFETY: both lists have room for what is written, which may be nothing.
        unsafe {
            give_ids(&news.lost, lost, lost_count);
            give_ids(&news.back, back, back_count);
            seq.write(news.upto);
        }
        membership.reader.consume(&news);
        membership.polled = Polled::At(step);
        drop(membership);
        sys::lock(&process.memory.arenas).heard(&news.lost, &news.back);
        Ok(())
    })
}

/// Starts the library's threads in a process that schedules and never makes a context. Joining a job
/// does not: the greeting carries the file that proves a process' channels, which it opens later.
fn speak(process: &'static Process) {
    if !process.start.threads.load(Acquire) {
        table::start(process);
    }
}

/// `tg_ack_withheld`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_ack_withheld(seq: u64) -> c_int {
    answered(|process| {
        speak(process);
        log_of(process)?.acknowledge(seq);
        Ok(())
    })
}

/// `tg_publish_request`.
///
/// # Safety
/// `blocks` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_publish_request(
    request: u64,
    tokens: u32,
    blocks: *const u32,
    count: usize,
) -> c_int {
    answered(|process| {
        if blocks.is_null() && count > 0 {
            return Err(libc::EINVAL);
        }
        let blocks = if count == 0 {
            &[][..]
        } else {
            // SAFETY: this function's contract.
            unsafe { core::slice::from_raw_parts(blocks, count) }
        };
        speak(process);
        let mut requests = sys::lock(&process.memory.job.requests);
        let held = requests.all.entry(request).or_default();
        if held.tokens == tokens && held.blocks == blocks {
            return Ok(());
        }
        held.tokens = tokens;
        held.blocks.clear();
        held.blocks.extend_from_slice(blocks);
        requests.changed.insert(request, ());
        Ok(())
    })
}

/// `tg_forget_request`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_forget_request(request: u64) -> c_int {
    answered(|process| {
        let mut requests = sys::lock(&process.memory.job.requests);
        if requests.all.remove(&request).is_some() {
            requests.changed.insert(request, ());
        }
        Ok(())
    })
}

fn elastic(process: &Process, kv: u32) -> Result<Growing, c_int> {
    // Found without the state's lock, which is held over calls of the driver.
    let known = sys::lock(&process.memory.growth.elastic);
    let (device, elastic) = known.get(&kv).ok_or(libc::ENOENT)?;
    Ok((*device, Arc::clone(elastic)))
}

/// `tg_reserve`.
///
/// # Safety
/// `ids` has room for `want` ids; `granted` is the caller's place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_reserve(kv: u32, want: u32, ids: *mut u32, granted: *mut u32) -> c_int {
    answered(|process| {
        if granted.is_null() || ids.is_null() {
            return Err(libc::EINVAL);
        }
        let (device, elastic) = elastic(process, kv)?;
        let mut elastic = sys::lock(&elastic);
        // SAFETY: this function's contract.
        let ids = unsafe { core::slice::from_raw_parts_mut(ids, want as usize) };
        let got = elastic.reserve(want, ids);
        write_usage(process, device, &elastic, None);
        let short = want - got;
        let (bytes, mapped) = (elastic.demand(short), elastic.mapped_bytes());
        drop(elastic);
        if short > 0 && bytes > 0 && !alone::map(process, kv, mapped + bytes) {
            talk::demand(process, device, bytes, (kv, mapped), talk::Need::Now);
        }
        // SAFETY: not null, and the caller's.
        unsafe { granted.write(got) };
        Ok(())
    })
}

/// `tg_expect`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_expect(kv: u32, blocks: u32) -> c_int {
    answered(|process| {
        let (device, elastic) = elastic(process, kv)?;
        let elastic = sys::lock(&elastic);
        let (_, ready) = elastic.counts();
        let bytes = elastic.demand(blocks.saturating_sub(ready));
        let mapped = elastic.mapped_bytes();
        drop(elastic);
        if bytes > 0 && !alone::map(process, kv, mapped + bytes) {
            talk::demand(process, device, bytes, (kv, mapped), talk::Need::Ahead);
        }
        Ok(())
    })
}

/// `tg_release`.
///
/// # Safety
/// `ids` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_release(kv: u32, ids: *const u32, count: usize) -> c_int {
    answered(|process| {
        if ids.is_null() {
            return if count == 0 {
                Ok(())
            } else {
                Err(libc::EINVAL)
            };
        }
        let (device, elastic) = elastic(process, kv)?;
        let mut elastic = sys::lock(&elastic);
        // SAFETY: this function's contract.
        let ids = unsafe { core::slice::from_raw_parts(ids, count) };
        let released = elastic.release(ids);
        write_usage(process, device, &elastic, None);
        process.memory.changed();
        if released as usize == count {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    })
}

/// `tg_usage`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_usage(kv: u32, used_blocks: u32) -> c_int {
    answered(|process| {
        let (device, elastic) = elastic(process, kv)?;
        let elastic = sys::lock(&elastic);
        let (used, mapped) = write_usage(process, device, &elastic, Some(used_blocks));
        drop(elastic);
        // 90 % of what is mapped: the paper's pressure event (section 5).
        let pressed = mapped > 0 && used.saturating_mul(10) >= mapped.saturating_mul(9);
        if process.memory.growth.pressed.swap(pressed, AcqRel) != pressed && pressed {
            say(
                process,
                Event::Pressure(v1::Pressure {
                    kv,
                    used_bytes: used,
                    mapped_bytes: mapped,
                    at_ns: clock::now_ns(),
                }),
            );
        }
        Ok(())
    })
}

/// `tg_requests_in_flight`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_requests_in_flight(count: u32) -> c_int {
    answered(|process| {
        let word = u64::from(count) + 1;
        process.memory.in_flight.store(word, SeqCst);
        // A page that is shown from now on takes the number from there.
        let page = process.page();
        let before = page.process.in_flight.swap(word, SeqCst);
        // While leases are given beside it the agent hears of each request: it withdraws the lease that stands.
        let came = word > before && process.memory.beats.wanted() != 0;
        if (before > 1) != (word > 1) || before == 0 || came {
            ring(page);
        }
        Ok(())
    })
}
