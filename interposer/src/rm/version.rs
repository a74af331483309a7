//! The version of the loaded driver, for the agent.
//!
//! NVML asks the driver for it, which [`crate::hook::ioctl`] sees; the driver's own library may never ask. Then the
//! library asks at the first call whose meaning depends on the version, on the file of that call, and the reporter asks
//! on a control file of its own, which it closes again. Otherwise the version is read from what the kernel module
//! publishes.

use super::next::next;
use core::ffi::c_int;
use core::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use tidegate_abi::rm::{self, Layout, RmApiVersion};

/// Of the kernel's driver; empty: nobody says.
pub fn of_driver() -> String {
    asked().or_else(written).unwrap_or_default()
}

fn asked() -> Option<String> {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/nvidiactl")
        .ok()?;
    on_file(file.as_raw_fd())
}

/// By `CHECK_VERSION_STR` on a control file, as a query: the driver fills its version in and judges nothing.
pub fn on_file(fd: c_int) -> Option<String> {
    let mut said = RmApiVersion {
        cmd: u32::from(b'2'),
        reply: 0,
        version: [0; 64],
    };
    let request = rm::request(rm::NV_ESC_CHECK_VERSION_STR, size_of::<RmApiVersion>());
    // SAFETY: the structure is live for the call and of the size that the request says.
    let result = unsafe { next(fd, request, (&raw mut said).cast::<c_void>()) };
    let text = said.version.split(|byte| *byte == 0).next()?;
    let text = core::str::from_utf8(text)
        .ok()
        .filter(|text| is_version(text))?;
    (result == 0).then(|| text.to_owned())
}

fn written() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    in_banner(text.lines().next()?)
}

/// The version in the first line of `/proc/driver/nvidia/version`.
fn in_banner(line: &str) -> Option<String> {
    line.split_whitespace()
        .find(|word| is_version(word))
        .map(str::to_owned)
}

fn is_version(word: &str) -> bool {
    Layout::of_version(word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_the_kernels_banner() {
        for (line, version) in [
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)",
                Some("580.95.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.142  Tue",
                Some("580.142"),
            ),
            ("GCC version:  gcc version without numbers", None),
        ] {
            assert_eq!(in_banner(line).as_deref(), version, "{line}");
        }
    }
}
