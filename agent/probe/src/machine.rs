//! Where a run takes place, as its results say it.

use crate::report::Machine;
use tidegate_driver::rm::ControlFile;

/// Whether the virtual GPU stands in.
#[must_use]
pub fn is_virtual() -> bool {
    std::env::var_os("TIDEGATE_VGPU_DIR").is_some()
}

/// The sandbox whose kernel this is, if it is not a kernel of ours: gVisor reports 4.4.0 whatever runs
/// below it, and nothing that Tidegate needs exists in a real kernel of that age.
#[must_use]
pub fn sandbox() -> Option<String> {
    let release = kernel();
    release
        .starts_with("4.4.0")
        .then(|| format!("gVisor, kernel {release}"))
}

fn kernel() -> String {
    let uts = nix::sys::utsname::uname();
    uts.map_or_else(
        |_| String::new(),
        |uts| uts.release().to_string_lossy().into_owned(),
    )
}

/// The C library's version.
fn libc_version() -> String {
    // SAFETY: returns a constant C string.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", text.to_string_lossy())
}

/// Name of the first GPU, from the driver's own listing.
fn gpu_name() -> String {
    if is_virtual() {
        return "virtual".to_owned();
    }
    let entries = std::fs::read_dir("/proc/driver/nvidia/gpus").ok();
    let model = entries.into_iter().flatten().flatten().find_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("information")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    });
    model
        .or_else(|| {
            let cuda = tidegate_driver::cuda::Cuda::load().ok()?;
            cuda.name(cuda.device(0).ok()?).ok()
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Version of the loaded driver; empty where it does not answer.
#[must_use]
pub fn driver_version() -> String {
    let version = ControlFile::open().and_then(|file| file.driver_version());
    version.unwrap_or_default()
}

/// This machine, this run.
#[must_use]
pub fn describe() -> Machine {
    Machine {
        gpu: gpu_name(),
        driver: driver_version(),
        kernel: kernel(),
        sandbox: sandbox().unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        libc: libc_version(),
        date: crate::clock::date(crate::clock::unix_seconds()),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        commit: std::env::var("TIDEGATE_COMMIT").unwrap_or_default(),
    }
}
