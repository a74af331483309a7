//! Rings, memory and faults: what queued work does.

mod rig;

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rig::{Device, Job, MS, at, result, until};
use tidegate_abi::class;
use tidegate_abi::rm;
use tidegate_abi::uvm;
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::history::Kind;
use tidegate_vgpu::ring::{Op, kernel_id};

const MIB: u64 = 1 << 20;

fn reserve(bytes: u64) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes as usize,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

fn memory(job: &Job, bytes: u64) -> u32 {
    let mut p = rm::MemoryAlloc {
        size: bytes,
        ..Default::default()
    };
    let class = class::NV01_MEMORY_LOCAL_USER;
    job.side
        .ctl
        .alloc(job.side.client, job.side.device, 0, class, &mut p)
        .unwrap()
}

fn range(job: &Job, base: u64, length: u64) -> Result<(), Status> {
    let mut p = uvm::UvmCreateExternalRange {
        base,
        length,
        ..Default::default()
    };
    job.uvm
        .ioctl(uvm::UVM_CREATE_EXTERNAL_RANGE, &mut p)
        .unwrap();
    result(p.rm_status)
}

fn map(job: &Job, base: u64, length: u64, memory: u32, offset: u64) -> Result<(), Status> {
    let mut p = uvm::UvmMapExternalAllocation::<256> {
        base,
        length,
        offset,
        per_gpu_attributes: [uvm::UvmGpuMappingAttributes::default(); 256],
        gpu_attributes_count: 1,
        rm_ctrl_fd: job.side.ctl.raw(),
        h_client: job.side.client,
        h_memory: memory,
        rm_status: 0,
    };
    job.uvm
        .ioctl(uvm::UVM_MAP_EXTERNAL_ALLOCATION, &mut p)
        .unwrap();
    result(p.rm_status)
}

fn unmap(job: &Job, base: u64, length: u64) -> Result<(), Status> {
    let mut p = uvm::UvmUnmapExternal {
        base,
        length,
        gpu_uuid: job.side.uuid,
        rm_status: 0,
        pad: 0,
    };
    job.uvm.ioctl(uvm::UVM_UNMAP_EXTERNAL, &mut p).unwrap();
    result(p.rm_status)
}

fn peek(address: u64) -> u64 {
    // SAFETY: the tests ask only for words that they have just had mapped.
    unsafe { (address as *const u64).read_volatile() }
}

fn poke(address: u64, value: u64) {
    // SAFETY: as for `peek`.
    unsafe { (address as *mut u64).write_volatile(value) };
}

fn mapped(job: &Job, bytes: u64) -> u64 {
    let base = reserve(bytes);
    range(job, base, bytes).unwrap();
    map(job, base, bytes, memory(job, bytes), 0).unwrap();
    base
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn kernels_copies_and_fills_change_device_memory_in_order() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 1);
    let queue = &job.channels[0];
    let base = mapped(&job, 2 * MIB);
    let host: Vec<u64> = (0..1024).collect();
    queue.push(Op::Copy, 0, &[base, host.as_ptr() as u64, 8192]);
    queue.push(Op::Kernel, kernel_id("tg_count"), &[base + 8, 1_000, 9]);
    queue.push(Op::Kernel, kernel_id("tg_count"), &[base + 8, 1_000, 9]);
    queue.push(Op::Kernel, kernel_id("tg_store"), &[base + 16, 42, 100]);
    queue.push(Op::Write, 0, &[base + 24, u64::MAX, 4]);
    let end = queue.push(Op::Fill, 0, &[base + MIB, 1000, 0xab, 1]);
    queue.wait(end);
    assert_eq!(
        [0, 8, 16, 24, 32].map(|at| peek(base + at)),
        [0, 3, 42, 0xffff_ffff, 4]
    );
    assert_eq!(peek(base + MIB), u64::from_le_bytes([0xab; 8]));
    assert_eq!(
        (peek(base + MIB + 992), peek(base + MIB + 1000)),
        (u64::from_le_bytes([0xab; 8]), 0)
    );

    let floats =
        |values: [f32; 2]| u64::from(values[0].to_bits()) | (u64::from(values[1].to_bits()) << 32);
    poke(base, floats([1.0, 2.0]));
    poke(base + 64, floats([0.5, 0.25]));
    let end = queue.push(
        Op::Kernel,
        kernel_id("tg_add"),
        &[base, base + 64, base + 128, 2],
    );
    queue.wait(end);
    assert_eq!(peek(base + 128), floats([1.5, 2.25]));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_large_copy_stops_for_a_disable_and_goes_on_after_the_enable() {
    const BYTES: u64 = 256 * MIB;
    let device = Device::start(&["--disable-fixed-us", "50"]);
    let job = Job::new(&device, 0, 1);
    let (queue, side) = (&job.channels[0], &job.side);
    let base = mapped(&job, BYTES);
    let host = vec![7_u8; BYTES as usize];
    let gate = |on| {
        side.ctl
            .disable(side.client, side.subdevice, on, &job.pairs())
    };
    let end = queue.push(Op::Copy, 0, &[base, host.as_ptr() as u64, BYTES]);
    until("the copy is on its way", || peek(base) != 0);
    assert_eq!(gate(true), Status::OK);
    let moved = || {
        (0..BYTES / MIB)
            .filter(|part| peek(base + part * MIB) != 0)
            .count()
    };
    let before = moved();
    // Any call makes the device go on; were it to move more, it would now.
    for _ in 0..20 {
        assert_eq!(side.ctl.build_version(side.client).0, Status::OK);
    }
    assert_eq!((moved(), queue.done()), (before, 0));
    assert_eq!(gate(false), Status::OK);
    queue.wait(end);
    assert_eq!((moved(), queue.error()), ((BYTES / MIB) as usize, 0));
    unmap(&job, base + 200 * MIB, 56 * MIB).unwrap();
    queue.push(Op::Copy, 0, &[base, host.as_ptr() as u64, BYTES]);
    until("a copy beyond what is mapped faults", || {
        queue.error() == 31
    });
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_touch_of_memory_that_is_not_mapped_is_xid_31_and_loses_the_context() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 3);
    let bystander = Job::new(&device, 0, 1);
    let base = mapped(&job, 4 * MIB);
    let touch = kernel_id("tg_touch");
    let end = job.channels[0].push(Op::Kernel, touch, &[base, 4 * MIB, 1_000]);
    job.channels[0].wait(end);
    assert_eq!(job.channels[0].error(), 0);
    unmap(&job, base + 2 * MIB, 2 * MIB).unwrap();
    job.channels[0].push(Op::Kernel, touch, &[base, 4 * MIB, 1_000]);
    until("every channel of the context fails", || {
        job.channels.iter().all(|c| c.error() == 31)
    });
    assert_eq!(bystander.channels[0].error(), 0);
    let faults = device.history();
    let faults: Vec<_> = faults.iter().filter(|r| r.kind == Kind::Fault).collect();
    assert!(faults.len() == 3 && faults.iter().all(|r| r.value == 31));
    let end = bystander.channels[0].spin(1_000, 1);
    bystander.channels[0].wait(end);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_mapping_over_a_mapping_replaces_it_in_one_call() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 1);
    let base = mapped(&job, 6 * MIB);
    for part in 0..3 {
        poke(base + part * 2 * MIB, part + 1);
    }
    let quarantine = memory(&job, 2 * MIB);
    map(&job, base + 2 * MIB, 2 * MIB, quarantine, 0).unwrap();
    poke(base + 2 * MIB, 99);
    assert_eq!([0, 2, 4].map(|at| peek(base + at * MIB)), [1, 99, 3]);
    unmap(&job, base, 6 * MIB).unwrap();
    map(&job, base, 2 * MIB, quarantine, 0).unwrap();
    assert_eq!(peek(base), 99);
    assert_eq!(
        map(&job, base + 5 * MIB, 2 * MIB, quarantine, 0),
        Err(Status::INVALID_ADDRESS)
    );
    assert_eq!(
        map(&job, base, 2 * MIB, quarantine, 4096),
        Err(Status::INVALID_ARGUMENT)
    );
    assert_eq!(range(&job, base + MIB, MIB), Err(Status::INVALID_ADDRESS));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn memory_reads_as_zero_to_its_next_owner_once_nothing_names_it() {
    let device = Device::start(&["--memory-mib", "2"]);
    let job = Job::new(&device, 0, 1);
    let base = reserve(2 * MIB);
    range(&job, base, 2 * MIB).unwrap();
    let first = memory(&job, 2 * MIB);
    map(&job, base, 2 * MIB, first, 0).unwrap();
    poke(base, 7);
    assert_eq!(job.side.ctl.free(job.side.client, first), Status::OK);
    assert_eq!(peek(base), 7, "the mapping keeps the memory");
    let mut p = rm::MemoryAlloc {
        size: 2 * MIB,
        ..Default::default()
    };
    let class = class::NV01_MEMORY_LOCAL_USER;
    let again = job
        .side
        .ctl
        .alloc(job.side.client, job.side.device, 0, class, &mut p);
    assert_eq!(again, Err(Status::NO_MEMORY));
    let mut p = uvm::UvmFree {
        base,
        length: 2 * MIB,
        ..Default::default()
    };
    job.uvm.ioctl(uvm::UVM_FREE, &mut p).unwrap();
    assert_eq!(p.rm_status, 0);
    range(&job, base, 2 * MIB).unwrap();
    map(&job, base, 2 * MIB, memory(&job, 2 * MIB), 0).unwrap();
    assert_eq!(peek(base), 0);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_semaphore_pool_is_a_range_with_memory_of_its_own() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 1);
    let base = reserve(MIB);
    let mut p = vec![0_u64; 9248 / 8];
    (p[0], p[1]) = (base, MIB);
    let pool: &mut [u64; 1156] = p.as_mut_slice().try_into().unwrap();
    job.uvm.ioctl(uvm::UVM_ALLOC_SEMAPHORE_POOL, pool).unwrap();
    assert_eq!(pool[1155] as u32, 0);
    poke(base + MIB - 8, 3);
    assert_eq!(peek(base + MIB - 8), 3);
    assert_eq!(range(&job, base, MIB), Err(Status::INVALID_ADDRESS));
    unmap(&job, base, MIB).unwrap();
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_host_function_runs_between_its_neighbours_and_not_while_disabled() {
    let device = Device::start(&["--disable-fixed-us", "50"]);
    let job = Job::new(&device, 0, 1);
    let queue = &job.channels[0];
    let side = &job.side;
    let gate = |on| {
        side.ctl
            .disable(side.client, side.subdevice, on, &job.pairs())
    };
    queue.spin(1_000, 1);
    let function = queue.push(Op::HostFunc, 0, &[1]);
    let end = queue.spin(1_000, 2);
    until("its turn comes", || queue.get() >= function);
    assert_eq!(queue.done(), function - 1);
    assert_eq!(gate(true), Status::OK);
    queue.host_done(1);
    until("the doorbell is seen", || {
        device
            .control()
            .channels()
            .unwrap()
            .iter()
            .all(|c| c.queued == 2)
    });
    assert_eq!(queue.done(), function - 1);
    assert_eq!(gate(false), Status::OK);
    queue.wait(end);
    assert_eq!(queue.error(), 0);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_value_in_memory_holds_a_channel_until_it_is_there() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 1);
    let word = Box::leak(Box::new(AtomicU64::new(5)));
    let queue = &job.channels[0];
    let end = queue.push(Op::WaitValue, 0, &[word.as_ptr() as u64, 6, 8, 0]);
    queue.spin(1_000, 4);
    let other = Job::new(&device, 0, 1);
    let others = other.channels[0].spin(1_000, 5);
    other.channels[0].wait(others);
    assert_eq!(queue.done(), 0);
    word.store(6, Ordering::Release);
    queue.wait(end + 1);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn tsgs_take_turns_in_wall_time_too() {
    let device = Device::start(&["--set", "switch_us=0", "--set", "timeslice_us=1000"]);
    let jobs = [Job::new(&device, 0, 1), Job::new(&device, 0, 1)];
    let ends: Vec<u64> = jobs
        .iter()
        .enumerate()
        .map(|(tag, job)| job.channels[0].spin(10 * MS, tag as u64))
        .collect();
    for (job, end) in jobs.iter().zip(ends) {
        job.channels[0].wait(end);
    }
    let records = device.history();
    let mut running = None;
    for record in records.iter().filter(|r| r.value == 1) {
        match record.kind {
            Kind::TsgRun => {
                assert_eq!(running, None, "one TSG at a time");
                running = Some(record.client);
            }
            Kind::TsgStop => assert_eq!(running.take(), Some(record.client)),
            _ => {}
        }
    }
    // Either may be the last to end, and the first to start.
    let both = |kind| [0, 1].map(|tag| at(&records, kind, tag).unwrap());
    let [starts, ends] = [Kind::KernelStart, Kind::KernelEnd].map(both);
    let both = ends.iter().max().unwrap() - starts.iter().min().unwrap();
    assert!(both >= 20 * MS, "they share the engine: {both}");
    assert!(records.iter().filter(|r| r.kind == Kind::TsgRun).count() >= 16);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_timeslice_is_set_and_read_on_the_owners_file_and_divides_the_engine() {
    let device = Device::start(&["--set", "switch_us=0", "--set", "timeslice_us=2000"]);
    let jobs = [Job::new(&device, 0, 1), Job::new(&device, 0, 1)];
    let (set, get) = (
        rm::NVA06C_CTRL_CMD_SET_TIMESLICE,
        rm::NVA06C_CTRL_CMD_GET_TIMESLICE,
    );
    let read = |job: &Job| {
        let mut had = rm::Timeslice::default();
        let side = &job.side;
        assert_eq!(
            side.ctl.control(side.client, job.tsg, get, &mut had),
            Status::OK
        );
        had.timeslice_us
    };
    assert_eq!(jobs.each_ref().map(read), [2_000, 2_000]);
    let (side, mut long) = (
        &jobs[1].side,
        rm::Timeslice {
            timeslice_us: 8_000,
        },
    );
    let foreign = jobs[0]
        .side
        .ctl
        .control(side.client, jobs[1].tsg, set, &mut long);
    assert_eq!(foreign, Status::INVALID_CLIENT);
    assert_eq!(
        side.ctl.control(side.client, jobs[1].tsg, set, &mut long),
        Status::OK
    );
    assert_eq!(
        jobs.each_ref().map(read),
        [2_000, 8_000],
        "exactly what was set"
    );
    let gone = side.ctl.control(side.client, 0xdead, set, &mut long);
    assert_eq!(gone, Status::OBJECT_NOT_FOUND);
    // The long one has work for as long as the short one runs, however late that is submitted.
    let ends: Vec<u64> = jobs
        .iter()
        .zip([30 * MS, 600 * MS])
        .rev()
        .map(|(job, ns)| job.channels[0].spin(ns, ns))
        .collect();
    for (job, end) in jobs.iter().rev().zip(ends) {
        job.channels[0].wait(end);
    }
    let records = device.history();
    let started = at(&records, Kind::KernelStart, 30 * MS).unwrap();
    let took = at(&records, Kind::KernelEnd, 30 * MS).unwrap() - started;
    assert!(
        took.abs_diff(5 * 30 * MS) <= 10 * MS,
        "shares of 1 to 4, to one round: {took}"
    );
    let told = records.iter().find(|r| r.kind == Kind::Timeslice).unwrap();
    assert_eq!(
        (told.client, told.object, told.tag),
        (side.client, jobs[1].tsg, 8_000)
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_ring_wraps_and_a_full_one_is_drained() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 1);
    let queue = &job.channels[0];
    for round in 0..4 {
        let mut end = 0;
        for tag in 0..1000 {
            end = queue.spin(100, round * 1000 + tag);
        }
        queue.wait(end);
    }
    let records = device.history();
    let tags: Vec<u64> = records
        .iter()
        .filter(|r| r.kind == Kind::KernelEnd)
        .map(|r| r.tag)
        .collect();
    assert_eq!(tags, (0..4000).collect::<Vec<_>>());
}
