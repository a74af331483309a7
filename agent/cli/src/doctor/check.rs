//! One check, and every check there is.

/// Which part of the node a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Kernel and limits.
    System,
    /// Driver and GPUs.
    Driver,
    /// Configuration, agent and its directory.
    Agent,
    /// Processes that use the GPUs.
    Processes,
    /// `libtidegate.so`.
    Library,
}

impl Group {
    /// As the table heads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Driver => "driver",
            Self::Agent => "agent",
            Self::Processes => "processes",
            Self::Library => "library",
        }
    }
}

/// Every check there is, in the order they are reported.
pub const CHECKS: [(&str, Group); 31] = [
    ("kernel", Group::System),
    ("cgroup2", Group::System),
    ("membarrier", Group::System),
    ("futex-waitv", Group::System),
    ("pidfd", Group::System),
    ("sched-fifo", Group::System),
    ("open-files", Group::System),
    ("clock", Group::System),
    ("device-files", Group::Driver),
    ("driver-version", Group::Driver),
    ("driver-module", Group::Driver),
    ("gsp", Group::Driver),
    ("driver-patch", Group::Driver),
    ("mig", Group::Driver),
    ("mps", Group::Driver),
    ("vgpu-guest", Group::Driver),
    ("confidential-computing", Group::Driver),
    ("channel-level", Group::Driver),
    ("configuration", Group::Agent),
    ("memory-pool", Group::Agent),
    ("agent", Group::Agent),
    ("second-agent", Group::Agent),
    ("run-directory", Group::Agent),
    ("sockets", Group::Agent),
    ("journal", Group::Agent),
    ("stuck-channels", Group::Agent),
    ("unmanaged-processes", Group::Processes),
    ("version-skew", Group::Processes),
    ("engine-timeouts", Group::Processes),
    ("leases", Group::Processes),
    ("library", Group::Library),
];

/// How a check came out, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Cannot be known here.
    Skip,
    /// As it should be.
    Pass,
    /// It works, but worse than it could.
    Warn,
    /// It does not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable name.
    pub id: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// What was found.
    pub evidence: String,
    /// What to do, in one line.
    pub remedy: Option<String>,
}

impl Check {
    fn new(id: &'static str, outcome: Outcome, evidence: impl Into<String>) -> Self {
        Self {
            id,
            outcome,
            evidence: evidence.into(),
            remedy: None,
        }
    }

    pub(super) fn pass(id: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(id, Outcome::Pass, evidence)
    }

    pub(super) fn warn(id: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(id, Outcome::Warn, evidence)
    }

    pub(super) fn fail(id: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(id, Outcome::Fail, evidence)
    }

    pub(super) fn skip(id: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(id, Outcome::Skip, evidence)
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The part of the node it is about.
    #[must_use]
    pub fn group(&self) -> Group {
        let known = CHECKS.iter().find(|(id, _)| *id == self.id);
        known.map_or(Group::System, |(_, group)| *group)
    }
}

/// 0 nothing to do, 1 warnings, 2 failures.
#[must_use]
pub fn exit_code(checks: &[Check]) -> u8 {
    match checks.iter().map(|check| check.outcome).max() {
        Some(Outcome::Fail) => 2,
        Some(Outcome::Warn) => 1,
        _ => 0,
    }
}
