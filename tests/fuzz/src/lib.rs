//! What comes from outside, read under a fuzzer.
//!
//! A [`Target`] takes any bytes, reads them as the shipped code would, and asserts what must be true of
//! the outcome, beyond that nothing panics, overflows or hangs. One program has all targets, so that
//! they are built and linked once (`scripts/fuzz`); what the fuzzer found worth keeping lies in `corpus/`,
//! a directory a target, and is read again by an ordinary test.
//!
//! | target | what is hostile | what must be true |
//! |---|---|---|
//! | `page` | the page that a process shares with the agent | no order but for proven channels, others' gates and pages untouched, a bounded view |
//! | `hook` | the messages on its stream | the same |
//! | `ioctl` | the bytes of the driver's calls | nothing is read beyond what a call needs, only channels are told whose handles were seen |
//! | `identity` | a tenant's part of its cgroup's path | it changes neither place nor role |
//! | `config` | files, drop-ins, variables, set values | a refusal names its place; what is accepted is dumped and accepted as the same |
//! | `trace` | traces, gzipped or not | a refusal names its line; what is accepted is sorted and without zeros |
//! | `history` | the file behind `tidegate report` | shares are shares, the newest record survives |
#![forbid(unsafe_code)]

mod config;
mod history;
mod hook;
mod identity;
mod ioctl;
mod node;
mod page;
mod trace;

/// Something that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line, and of its corpus.
    pub name: &'static str,
    /// Reads one input; panics when what must be true is not.
    pub run: fn(&[u8]),
}

/// All there are.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "page",
        run: page::run,
    },
    Target {
        name: "hook",
        run: hook::run,
    },
    Target {
        name: "ioctl",
        run: ioctl::run,
    },
    Target {
        name: "identity",
        run: identity::run,
    },
    Target {
        name: "config",
        run: config::run,
    },
    Target {
        name: "trace",
        run: trace::run,
    },
    Target {
        name: "history",
        run: history::run,
    },
];

/// Takes an input apart, from the front. What is missing at its end is zero.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Where this process' files are, in memory.
fn own_directory() -> std::path::PathBuf {
    let name = format!("tidegate-fuzz-{}", std::process::id());
    std::path::Path::new("/dev/shm").join(name)
}

impl Target {
    /// Removes its files in this process, which has read its last input.
    pub fn remove_files(&self) {
        let directory = match self.name {
            "page" | "hook" => "node",
            name => name,
        };
        let _ = std::fs::remove_dir_all(own_directory().join(directory));
        // Unless others have some.
        let _ = std::fs::remove_dir(own_directory());
    }
}

/// A directory of this process in memory.
fn directory(name: &str) -> std::path::PathBuf {
    let directory = own_directory().join(name);
    std::fs::create_dir_all(&directory).expect("/dev/shm is writable");
    directory
}

/// Whether `text` says `FILE:LINE` with a line that a file of `lines` lines has, or the one behind it.
fn names_line(text: &str, file: &str, lines: usize) -> bool {
    let file = format!("{file}:");
    let mut numbers = text.match_indices(&file).filter_map(|(at, found)| {
        let rest = &text[at + found.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse::<usize>().ok()
    });
    numbers.any(|line| (1..=lines + 1).contains(&line))
}
