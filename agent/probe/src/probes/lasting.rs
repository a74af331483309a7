//! P4 and P5: channels that stay disabled, for long or beyond the life of who disabled them.

use crate::actor::Actor;
use crate::bench::{Bench, Ending, SOON, STILL, fail, pass, skip};
use crate::clock;
use std::time::Duration;

pub(super) fn long(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("long", Duration::from_secs(5))?;
    let log = KernelLog::open();
    let time = bench.options.long;
    let before = subject.worker.progress()?;
    subject.set(true)?;
    let settled = subject.worker.progress()?;
    clock::pause(time);
    let after = subject.worker.progress()?;
    let ns = subject.set(false)?;
    let report = &bench.report;
    report.figure("disabled for", time.as_secs_f64(), "s");
    report.micros("enable after it", ns);
    let said = match log {
        Ok(mut log) => {
            let lines = log.driver_lines();
            report.figure("kernel log lines of the driver", lines.len() as f64, "");
            for line in lines.iter().take(10) {
                report.note(format!("kernel log: {line}"));
            }
            lines.len()
        }
        Err(error) => {
            report.note(format!("the kernel log cannot be read here: {error}"));
            0
        }
    };
    if after != settled {
        let steps = after - settled;
        return Ok(fail(format!("{steps} steps while disabled")));
    }
    if let Err(error) = subject.worker.moved(after.max(before), SOON) {
        return Ok(fail(format!("the kernel did not go on: {error}")));
    }
    subject
        .worker
        .call("work", vec![crate::message::Op::WaitStream])?;
    Ok(if said > 0 {
        fail("the driver wrote to the kernel log meanwhile")
    } else {
        pass()
    })
}

/// `/dev/kmsg` from its end on.
struct KernelLog(std::fs::File);

impl KernelLog {
    fn open() -> std::io::Result<Self> {
        use std::io::Seek;
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")?;
        file.seek(std::io::SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// Lines of the driver (NVRM, Xid) since it was opened.
    fn driver_lines(&mut self) -> Vec<String> {
        use std::io::Read;
        let mut lines = Vec::new();
        let mut record = vec![0; 8192];
        // One read is one record; it ends with EAGAIN at the end.
        while let Ok(bytes @ 1..) = self.0.read(&mut record) {
            let text = String::from_utf8_lossy(&record[..bytes]);
            if text.contains("NVRM") || text.contains("Xid") {
                lines.push(text.trim().to_owned());
            }
        }
        lines
    }
}

pub(super) fn successor(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("successor", Duration::from_secs(5))?;
    let pairs = subject.pairs();
    let mut first = Actor::start(bench.driver()?, subject.instance(), &pairs, None)?;
    subject.mark();
    let did = first.order(true)?;
    if let Some(error) = did.error {
        return Ok(skip(format!(
            "another client may not disable them: {error}"
        )));
    }
    bench.report.micros("disable", did.ns);
    first.kill();
    let moved = subject.worker.progress_over(Duration::from_secs(1))?;
    let still = subject.worker.progress_over(STILL)?;
    let mut second = Actor::start(bench.driver()?, subject.instance(), &pairs, None)?;
    let did = second.order(false)?;
    let from = subject.worker.progress()?;
    if let Some(error) = did.error {
        return Ok(fail(format!("the successor may not enable them: {error}")));
    }
    subject.clear();
    bench.report.micros("enable by the successor", did.ns);
    bench.report.figure(
        "steps after the death of who disabled",
        (moved + still) as f64,
        "",
    );
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("the kernel did not go on: {error}")));
    }
    Ok(if moved + still > 0 {
        fail("the channels were enabled by the death of who disabled them")
    } else {
        pass()
    })
}
