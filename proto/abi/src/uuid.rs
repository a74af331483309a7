//! A GPU's UUID in its printed form.

use core::fmt;

/// Prints as `GPU-xxxxxxxx-xxxx-...`, as the vendor's tools do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Uuid;
    use std::string::ToString;

    #[test]
    fn a_uuid_reads_as_the_vendors_tools_print_it() {
        let uuid = [
            0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
        ];
        let text = Uuid(uuid).to_string();
        assert_eq!(text, "GPU-deadbeef-0102-0304-0506-0708090a0b0c");
    }
}
