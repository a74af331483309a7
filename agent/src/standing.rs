//! How a process that uses a GPU and is not attached stands to the library, in the words of status, events and doctor.

/// How a process that uses a GPU and is not attached stands to the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It does not have it.
    #[default]
    Without,
    /// It has it.
    With,
    /// It has it, and the C library twice: what a program opens in a link-map namespace of its own comes with a C library
    /// of its own.
    OtherNamespace,
}

impl Standing {
    /// By what a process has mapped (`/proc/PID/maps`).
    #[must_use]
    pub fn of(maps: &str) -> Self {
        /// What the path of a mapping of the library contains.
        const LIBRARY: &str = "/libtidegate";
        // Each copy of a file has one mapping that begins with it.
        let begins = |line: &&str| {
            line.ends_with("/libc.so.6") && line.split_ascii_whitespace().nth(2) == Some("00000000")
        };
        match (maps.contains(LIBRARY), maps.lines().filter(begins).count()) {
            (false, _) => Self::Without,
            (true, 0 | 1) => Self::With,
            (true, _) => Self::OtherNamespace,
        }
    }

    /// In the words of status, events and doctor.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Without => "without the library",
            Self::With => "with the library",
            Self::OtherNamespace => {
                "with the library, but in a link-map namespace of its own (dlmopen)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_has_the_c_library_twice_has_a_namespace_of_its_own() {
        let libc = |at: &str| {
            format!(
                "{at}00000-{at}28000 r--p 00000000 08:01 9 /usr/lib/libc.so.6\n\
                 {at}28000-{at}90000 r-xp 00028000 08:01 9 /usr/lib/libc.so.6\n"
            )
        };
        let library = "7f0000000000-7f0000001000 r--p 00000000 08:01 7 /opt/libtidegate.so\n";
        let one = libc("7f1000");
        assert_eq!(Standing::of(""), Standing::Without);
        assert_eq!(Standing::of(&one), Standing::Without);
        assert_eq!(Standing::of(&[library, &one].concat()), Standing::With);
        let two = [library, &one, &libc("7f2000")].concat();
        assert_eq!(Standing::of(&two), Standing::OtherNamespace);
    }
}
