//! P28: what a disable does to a kernel that the GPU cannot save in its middle.
//!
//! Where compute work is preempted between kernels only, a disable has to wait for the kernel's end, and the
//! driver's patience with a context switch ends after about 4.2 s: Xid 109, and the context is lost. The
//! mode is set on the probe's own channel before its first kernel. Locks of the node are held meanwhile,
//! hence class B.

use crate::bench::{Bench, Ending, fail, pass, skip};
use crate::kernel_log::{KernelLog, xid};
use crate::message::{Op, Wait};
use crate::subject::Way;
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_abi::rm::Status;

/// `NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE`, from the kernel's `ctrl2080gr.h`: flags, channel, graphics
/// mode, compute mode, and 16 bytes that say which engine.
const SET_MODE: u32 = 0x2080_1210;
/// Flag: the compute mode counts. Mode 0: the GPU waits for the work to end.
const SET_COMPUTE: u32 = 1;
const WAIT_FOR_IDLE: u32 = 0;
/// Longer than the driver's patience.
const KERNEL: Duration = Duration::from_secs(8);
/// A disable that waits for longer than this waits for the kernel.
const WAITS: Duration = Duration::from_secs(2);

pub(super) fn no_preemption(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.subject("whole-kernels", Wait::Spin, Way::Inside)?;
    let own = subject.own().clone();
    let graphics = subject
        .channels
        .iter()
        .find(|channel| channel.engine == Engine::Graphics);
    let Some(channel) = graphics.map(|channel| channel.channel) else {
        return Ok(skip("no graphics channel was seen"));
    };
    let words = [SET_COMPUTE, channel, 0, WAIT_FOR_IDLE, 0, 0, 0, 0];
    let parameters = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    let object = own.subdevice;
    let done = subject.worker.one(Op::Control {
        own,
        object,
        cmd: SET_MODE,
        parameters,
    })?;
    let status = Status(u32::try_from(done.value).unwrap_or(u32::MAX));
    if !status.is_ok() {
        return Ok(skip(if crate::machine::is_virtual() {
            format!("not modelled here ({})", status.name())
        } else {
            format!(
                "the driver refuses the mode: {} ({:#x})",
                status.name(),
                status.0
            )
        }));
    }
    let log = KernelLog::open(&bench.options.kernel_log);
    bench.spin(&mut subject, KERNEL, 1)?;
    let start = crate::clock::now_ns();
    let result = subject.set(true);
    let took = Duration::from_nanos(crate::clock::now_ns() - start);
    let report = &bench.report;
    report.figure(
        "disable of a kernel that cannot be saved",
        took.as_secs_f64() * 1e3,
        "ms",
    );
    if let Err(error) = &result {
        report.note(format!("the disable: {error:#}"));
    }
    let seen: Vec<u32> = log.map_or_else(
        |_| Vec::new(),
        |mut log| {
            log.driver_lines()
                .iter()
                .filter_map(|line| xid(line))
                .collect()
        },
    );
    report.note(format!("Xids meanwhile: {seen:?}"));
    if let Err(error) = subject.set(false) {
        report.note(format!("the enable: {error:#}"));
    }
    let alive = subject.worker.call("work", vec![Op::WaitStream]).is_ok();
    report.note(if alive {
        "the context lives on"
    } else {
        "the context is lost"
    });
    Ok(if took >= WAITS || seen.contains(&109) {
        pass()
    } else {
        fail(format!("the kernel was saved all the same, in {took:?}"))
    })
}
