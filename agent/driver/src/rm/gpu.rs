//! A GPU, and how its name is printed.

/// A GPU of the node, as the driver names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// `NV0080_ALLOC.deviceId`.
    pub device_instance: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
}

/// `GPU-xxxxxxxx-xxxx-...`, as the vendor's tools print a UUID.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        uuid[range].iter().map(|b| format!("{b:02x}")).collect()
    };
    format!(
        "GPU-{}-{}-{}-{}-{}",
        hex(0..4),
        hex(4..6),
        hex(6..8),
        hex(8..10),
        hex(10..16)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_the_vendors_tools_print_it() {
        let uuid = [
            0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
        ];
        assert_eq!(uuid_text(&uuid), "GPU-deadbeef-0102-0304-0506-0708090a0b0c");
    }
}
