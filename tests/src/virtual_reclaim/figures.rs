//! What is broken on purpose, and what is counted.

/// What is broken on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    #[default]
    Nothing,
    /// A process moves memory as soon as it is asked whether it could.
    UnmapEnabled,
    /// The log's entries become visible some time after the answer.
    LateLog,
    /// The engine goes on allocating lost blocks.
    NoWithhold,
    /// Later blocks of a request that lost one stay in the prefix cache.
    KeepLaterBlocks,
    /// Output that was under way when a block was lost is used.
    KeepInFlight,
}

impl Break {
    /// Each with its name on the command line.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("nothing", Self::Nothing),
        ("unmap-enabled", Self::UnmapEnabled),
        ("late-log", Self::LateLog),
        ("no-withhold", Self::NoWithhold),
        ("keep-later-blocks", Self::KeepLaterBlocks),
        ("keep-in-flight", Self::KeepInFlight),
    ];
}

/// Sums over schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Tokens that an undisturbed run would not have had.
    pub wrong_tokens: u64,
    /// Requests that did not end.
    pub lost_requests: u64,
    /// Unmaps beside an enabled channel.
    pub faults: u64,
    /// Times memory was taken from a job.
    pub reclaims: u64,
    /// Times it was given back.
    pub restores: u64,
    /// Requests that started over.
    pub hit: u64,
    /// Tokens accepted.
    pub tokens: u64,
    /// Demands met.
    pub granted: u64,
    /// Demands not met.
    pub denied: u64,
    /// Busy edges of online.
    pub edges: u64,
}

impl Figures {
    pub(super) fn add(&mut self, other: &Self) {
        self.wrong_tokens += other.wrong_tokens;
        self.lost_requests += other.lost_requests;
        self.faults += other.faults;
        self.reclaims += other.reclaims;
        self.restores += other.restores;
        self.hit += other.hit;
        self.tokens += other.tokens;
        self.granted += other.granted;
        self.denied += other.denied;
        self.edges += other.edges;
    }
}
