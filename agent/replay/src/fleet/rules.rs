//! Who is placed where, and what the rule knows of a node.

/// A rule of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Any node with room.
    Random,
    /// The first with room.
    FirstFit,
    /// The most idle with room.
    MostIdle,
    /// The most idle whose idle share is the SLA's.
    IdleOnly,
    /// Valve's product of idle time and memory, with a threshold for each pair of GPUs.
    ThePaper,
    /// The agent's model, corrected by what it sees; nothing is known before.
    Model,
    /// The same, after each node had each kind of job for an hour.
    ModelKnown,
    /// Knows what each node gives in its worst hour.
    Oracle,
}

impl Rule {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Random, "Random"),
        (Self::FirstFit, "FirstFit"),
        (Self::MostIdle, "MostIdle"),
        (Self::IdleOnly, "IdleOnly"),
        (Self::ThePaper, "ThePaper"),
        (Self::Model, "Model"),
        (Self::ModelKnown, "ModelKnown"),
        (Self::Oracle, "Oracle"),
    ];
}
