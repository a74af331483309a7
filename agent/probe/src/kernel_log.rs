//! The kernel's log, for what the driver says there while a probe runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Where the kernel writes its log, a record a read.
pub const KERNEL_LOG: &str = "/dev/kmsg";

/// A kernel log from where it ended when it was opened.
#[derive(Debug)]
pub struct KernelLog(File);

impl KernelLog {
    /// Opens it at its end. A plain file will do in its place.
    ///
    /// # Errors
    /// When it cannot be read here.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// Lines of the driver (NVRM, Xid) since it was opened or asked last.
    pub fn driver_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = vec![0; 8192];
        loop {
            match self.0.read(&mut record) {
                // Of the log a record, of a file whatever there is.
                Ok(bytes @ 1..) => {
                    let text = String::from_utf8_lossy(&record[..bytes]);
                    let said = text.lines().filter(|line| is_drivers(line));
                    lines.extend(said.map(|line| line.trim().to_owned()));
                }
                // The record was overwritten before it was read: the next one stands.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                // EAGAIN is the log's end.
                Ok(0) | Err(_) => return lines,
            }
        }
    }
}

fn is_drivers(line: &str) -> bool {
    line.contains("NVRM") || line.contains("Xid")
}

/// The number of the Xid that a line reports: `NVRM: Xid (PCI:0000:17:00): 109, pid=...` is 109. The
/// driver writes many lines that report none.
#[must_use]
pub fn xid(line: &str) -> Option<u32> {
    let (_, rest) = line.split_once("Xid (")?;
    let (_, rest) = rest.split_once("): ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest[..digits.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_xid_is_told_from_other_lines_of_the_driver() {
        let line =
            "4,1234,5678,-;NVRM: Xid (PCI:0000:17:00): 109, pid=1, name=python3, Ch 00000008";
        assert_eq!(xid(line), Some(109));
        assert_eq!(xid("NVRM: Xid (PCI:0000:17:00): 79"), Some(79));
        for other in [
            "NVRM: loading NVIDIA UNIX Open Kernel Module",
            "NVRM: Xid",
            "",
        ] {
            assert_eq!(xid(other), None, "{other}");
        }
    }

    #[test]
    fn what_was_there_before_and_what_others_say_does_not_count() {
        let path = std::env::temp_dir().join(format!("tidegate-kmsg-{}", std::process::id()));
        std::fs::write(&path, "NVRM: earlier\n").expect("a file");
        let mut log = KernelLog::open(&path).expect("readable");
        assert_eq!(log.driver_lines(), Vec::<String>::new());
        let mut file = File::options().append(true).open(&path).expect("ours");
        file.write_all(b"6,1,2,-;usb 1-1: new device\n4,2,3,-;NVRM: one\n4,3,4,-;NVRM: two\n")
            .expect("written");
        assert_eq!(
            log.driver_lines(),
            ["4,2,3,-;NVRM: one", "4,3,4,-;NVRM: two"]
        );
        assert_eq!(log.driver_lines(), Vec::<String>::new());
        std::fs::remove_file(&path).expect("ours");
    }
}
