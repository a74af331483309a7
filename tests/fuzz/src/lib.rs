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
//! | `hook` | the messages on its stream | the same; no message keeps the agent busy for 5 ms or takes 1 MiB beyond its own size |
//! | `sessions` | all sessions of a tenant, at full rate | what stays of them is at most what the tenant may have |
//! | `ioctl` | the bytes of the driver's calls | nothing is read beyond what a call needs, only channels are told whose handles were seen |
//! | `identity` | a tenant's part of its cgroup's path | it changes neither place nor role |
//! | `config` | files, drop-ins, variables, set values | a refusal names its place; what is accepted is dumped and accepted as the same |
//! | `trace` | traces, gzipped or not | a refusal names its line; what is accepted is sorted and without zeros |
//! | `status` | calls at `status.sock`, cut anywhere | each is answered, nothing stays of it, nobody steers or hears of others |
//! | `greeting` | connections to `hook.sock`: bytes, files, ends, HTTP/2, attachments | a neighbour is greeted, no descriptor and no memory stays |
//! | `frames` | connections to `status.sock`: HTTP/2 frames, calls, files, ends | a neighbour has its status, no descriptor and no memory stays |
//! | `journal` | files of an agent before: journal, holder, orders | an agent starts; what it does not understand is kept or drains the node |
//! | `joblog` | the log that the processes of a job share | every call ends, and names each block of the job at most once |
//! | `answers` | answers of servers, of other tools and of Slurm | a refusal names its file; shares are shares, names are names |
//! | `history` | the file behind `tidegate report` | shares are shares, the newest record survives |
#![deny(unsafe_code)]

mod answers;
mod config;
mod files;
mod history;
mod hook;
mod identity;
mod input;
mod ioctl;
mod joblog;
mod journal;
mod node;
mod page;
pub mod prices;
mod sessions;
mod sockets;
mod spent;
mod status;
mod trace;

use files::own_directory;

/// Something that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line, and of its corpus.
    pub name: &'static str,
    /// Reads one input; panics when what must be true is not.
    pub run: fn(&[u8]),
}

/// All there are.
pub const TARGETS: [Target; 14] = [
    Target {
        name: "page",
        run: page::run,
    },
    Target {
        name: "hook",
        run: hook::run,
    },
    Target {
        name: "sessions",
        run: sessions::run,
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
    Target {
        name: "status",
        run: status::run,
    },
    Target {
        name: "greeting",
        run: sockets::greeting,
    },
    Target {
        name: "frames",
        run: sockets::frames,
    },
    Target {
        name: "journal",
        run: journal::run,
    },
    Target {
        name: "joblog",
        run: joblog::run,
    },
    Target {
        name: "answers",
        run: answers::run,
    },
];

impl Target {
    /// Removes its files in this process, which has read its last input.
    pub fn remove_files(&self) {
        let directory = match self.name {
            "page" | "hook" | "sessions" => "node",
            name => name,
        };
        let _ = std::fs::remove_dir_all(own_directory().join(directory));
        // Unless others have some.
        let _ = std::fs::remove_dir(own_directory());
    }
}
