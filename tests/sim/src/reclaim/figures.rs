//! What is broken on purpose, and what is counted.

use crate::defect::Defect;

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
    /// A process answers that it has moved memory when it begins to.
    EarlyAnswer,
    /// An issue thread carries out an older order after a newer one.
    StaleOrder,
    /// An issue thread whose queue is full takes an order and forgets it.
    LostOrder,
    /// An issue thread reports a call that the driver refused as done.
    HiddenRefusal,
    /// A process enables its own channels in the middle of a move.
    LandsMoving,
    /// A process attaches again in the middle of a move.
    AttachesMoving,
    /// A successor does not ask the journal who is in the middle of a move.
    ForgottenMover,
}

impl Break {
    /// Each with its name on the command line.
    pub const NAMES: [(&'static str, Self); 13] = [
        ("nothing", Self::Nothing),
        ("unmap-enabled", Self::UnmapEnabled),
        ("late-log", Self::LateLog),
        ("no-withhold", Self::NoWithhold),
        ("keep-later-blocks", Self::KeepLaterBlocks),
        ("keep-in-flight", Self::KeepInFlight),
        ("early-answer", Self::EarlyAnswer),
        ("stale-order", Self::StaleOrder),
        ("lost-order", Self::LostOrder),
        ("hidden-refusal", Self::HiddenRefusal),
        ("lands-moving", Self::LandsMoving),
        ("attaches-moving", Self::AttachesMoving),
        ("forgotten-mover", Self::ForgottenMover),
    ];

    /// What of the world it breaks; the others are of the library and the engine.
    pub(super) const fn defect(self) -> Option<Defect> {
        match self {
            Self::Nothing
            | Self::UnmapEnabled
            | Self::LateLog
            | Self::NoWithhold
            | Self::KeepLaterBlocks
            | Self::KeepInFlight
            | Self::EarlyAnswer => None,
            Self::StaleOrder => Some(Defect::StaleOrder),
            Self::LostOrder => Some(Defect::LostOrder),
            Self::HiddenRefusal => Some(Defect::HiddenRefusal),
            Self::LandsMoving => Some(Defect::LandsMoving),
            Self::AttachesMoving => Some(Defect::AttachesMoving),
            Self::ForgottenMover => Some(Defect::ForgottenMover),
        }
    }
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
    /// Orders to issue threads that failed at once.
    pub untaken: u64,
    /// Processes that left, for good or to come back, with an order about memory unanswered.
    pub left: u64,
    /// Answers about memory after their deadline.
    pub late: u64,
    /// Moves that ended without a session to answer in.
    pub void: u64,
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
        self.untaken += other.untaken;
        self.left += other.left;
        self.late += other.late;
        self.void += other.void;
    }
}
