//! P1: what a context is made of, from the library's trace of its birth.

use crate::bench::{Bench, Ending, fail, pass};
use crate::message::Wait;
use tidegate_abi::class::Engine;

/// Name of the file with the shape, in the directory for results.
pub const FILE: &str = "rm-context.json";

pub(super) fn context(bench: &Bench) -> anyhow::Result<Ending> {
    let mut worker = bench.worker("context", Wait::Spin)?;
    worker.trace.read()?;
    let shape = worker.trace.shape(&crate::machine::driver_version());
    let channels = worker.trace.channels();
    let report = &bench.report;
    report.figure("driver calls", worker.trace.lines().len() as f64, "");
    report.figure("clients", shape.clients as f64, "");
    report.figure("TSGs", shape.tsgs.len() as f64, "");
    report.figure("channels", channels.len() as f64, "");
    report.note(format!(
        "TSGs by engine and channels: {}",
        shape.tsgs.join(", ")
    ));
    report.note(format!(
        "channel classes {}, allocation requests {}, channel parameters {:?} bytes, schedule {:?} bytes",
        shape.gpfifo_classes.join(" "),
        shape.alloc_request.join(" "),
        shape.channel_alloc_bytes,
        shape.schedule_bytes,
    ));
    report.note(format!("order: {}", shape.order.join(", ")));
    if let Some(out) = &bench.options.out {
        let text = format!("{}\n", serde_json::to_string_pretty(&shape)?);
        std::fs::write(out.join(FILE), text)?;
        std::fs::copy(worker.trace.path(), out.join("rm-trace.jsonl"))?;
    }
    Ok(if channels.is_empty() {
        fail("no channel was seen: the driver's ioctls do not pass through the library")
    } else if channels
        .iter()
        .all(|channel| channel.engine != Engine::Graphics)
    {
        fail("no compute channel among those seen")
    } else if channels
        .iter()
        .any(|channel| channel.engine == Engine::Unknown)
    {
        fail("the engine of some channels is not known")
    } else if channels
        .iter()
        .any(|channel| channel.device_instance.is_none() || channel.subdevice.is_none())
    {
        fail("the GPU of some channels is not known")
    } else {
        pass()
    })
}
