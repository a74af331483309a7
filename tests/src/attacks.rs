//! What processes of another user do that mean it ill.

/// What a stranger does.
#[derive(Debug)]
pub struct Attack {
    /// For a command line.
    pub name: &'static str,
    /// For people.
    pub(crate) what: &'static str,
    /// What it is told, one after the other; the last goes on. `{}` stands for a client of its own.
    pub(crate) words: &'static [&'static str],
}

const fn attack(name: &'static str, what: &'static str, words: &'static [&'static str]) -> Attack {
    Attack { name, what, words }
}

/// Every kind.
pub const ATTACKS: [Attack; 24] = [
    attack(
        "hook-connections",
        "connections to hook.sock",
        &["hold hook.sock 1500"],
    ),
    attack(
        "status-connections",
        "connections to status.sock",
        &["hold status.sock 1500"],
    ),
    attack("lingering-sockets", "sockets that linger", &["linger"]),
    attack(
        "lingering-file",
        "a control file that lingers",
        &["connect lingering", "hello offline lingering"],
    ),
    attack(
        "invented-channels",
        "invented channels",
        &[
            "connect",
            "hello offline greedy",
            "device 0 0",
            "invent {} 1024",
        ],
    ),
    attack(
        "storm",
        "long messages",
        &["connect", "hello offline storm", "storm 50 2000"],
    ),
    attack(
        "long-message",
        "a message of 120,000 changes",
        &["connect", "hello offline huge", "storm 1 120000"],
    ),
    attack(
        "notes",
        "notes",
        &["connect", "hello offline notes", "flood 20000"],
    ),
    attack(
        "large-message",
        "a message of 2 MiB",
        &["connect", "hello offline huge", "huge"],
    ),
    attack(
        "pages",
        "random pages",
        &[
            "connect",
            "hello offline page",
            "device 0 0",
            "scribble 500",
        ],
    ),
    attack("half-messages", "messages that never end", &["begin 100"]),
    attack(
        "deaf-readers",
        "readers that take nothing",
        &["untaken 16 64"],
    ),
    attack(
        "wakes",
        "wakes without a ring",
        &[
            "connect",
            "hello offline wakes says-work",
            "device 0 0",
            "wake 5000",
        ],
    ),
    attack(
        "holes",
        "holes in the page",
        &[
            "connect",
            "hello offline holes says-work",
            "device 0 0",
            "holes 5000",
        ],
    ),
    attack(
        "false-claims",
        "false claims",
        &[
            "table 4000",
            "connect",
            "hello offline liar",
            "device 0 0",
            "lie 5000",
        ],
    ),
    attack(
        "waits",
        "events of launches that wait",
        &["connect", "hello offline waits", "device 0 0", "wait 5000"],
    ),
    attack(
        "same-job",
        "a job of the honest one's name, on one more GPU",
        &[
            "connect",
            "hello offline honest",
            "device 0 0",
            "device 1 1",
            "scribble 2000",
        ],
    ),
    attack(
        "caches",
        "caches, each laid out otherwise",
        &[
            "connect",
            "hello offline caches",
            "device 0 0",
            "caches 5000",
        ],
    ),
    attack(
        "urgent-bytes",
        "bytes out of band, with files",
        &["linger", "linger", "linger", "linger"],
    ),
    attack(
        "sessions",
        "sessions of one process",
        &[
            "connect",
            "hello offline again",
            "connect",
            "hello offline again",
            "connect",
            "hello offline again",
            "flood 5000",
        ],
    ),
    attack("readers", "readers of status", &["readers 60 16"]),
    attack("files", "253 files on each connection", &["files 100"]),
    attack("locks", "locks on the agent's files", &["lock"]),
    attack(
        "rings",
        "rings",
        &[
            "connect",
            "hello offline rings says-work",
            "device 0 0",
            "ring 5000",
        ],
    ),
];
