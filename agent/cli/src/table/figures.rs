//! How figures are written.

use tidegate_proto::v1;

/// Numbers of GPUs: `0-7,9`.
pub fn gpu_ranges(gpus: &[u32]) -> String {
    let mut ranges = Vec::<(u32, u32)>::new();
    for &gpu in gpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(gpu) => *last = gpu,
            _ => ranges.push((gpu, gpu)),
        }
    }
    let named = ranges.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    or_dash(&named.collect::<Vec<_>>().join(",")).to_owned()
}

/// Memory with a unit.
pub fn bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    #[expect(clippy::cast_precision_loss, reason = "a size, for people")]
    let gib = bytes as f64 / (1_u64 << 30) as f64;
    match bytes {
        0 => "-".to_owned(),
        1..MIB => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ if gib < 1.0 => format!("{} MiB", bytes / MIB),
        _ if gib < 100.0 => format!("{gib:.1} GiB"),
        _ if gib < 10_000.0 => format!("{gib:.0} GiB"),
        _ if gib < 102_400.0 => format!("{:.1} TiB", gib / 1_024.0),
        _ => format!("{:.0} TiB", gib / 1_024.0),
    }
}

/// `used of total`; a dash where the driver does not say.
pub fn in_use(gpu: &v1::GpuStatus) -> String {
    if gpu.memory_total_bytes == 0 {
        return "-".to_owned();
    }
    let used = bytes(gpu.memory_used_bytes.max(1));
    format!("{used} of {}", bytes(gpu.memory_total_bytes))
}

/// What a process holds on all its GPUs, as its library counts.
pub fn held(process: &v1::ProcessStatus) -> u64 {
    let devices = process.devices.iter();
    devices.fold(0, |sum, device| sum.saturating_add(device.memory_bytes))
}

pub fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_gpus_are_ranges() {
        assert_eq!(gpu_ranges(&[]), "-");
        assert_eq!(gpu_ranges(&[3]), "3");
        assert_eq!(gpu_ranges(&[0, 1, 3]), "0,1,3");
        assert_eq!(gpu_ranges(&[0, 1, 2, 3, 7, 8, 9]), "0-3,7-9");
    }

    #[test]
    fn memory_has_the_unit_that_keeps_it_short() {
        let read = [
            (0, "-"),
            (1, "1 KiB"),
            (5 << 20, "5 MiB"),
            (80 << 30, "80.0 GiB"),
            (2 << 40, "2048 GiB"),
            (16 << 40, "16.0 TiB"),
            (256 << 40, "256 TiB"),
        ];
        for (size, text) in read {
            assert_eq!(bytes(size), text);
        }
    }
}
