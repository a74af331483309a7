//! What an offline process does when its agent is gone: the fail-open release (`landing` in the code).
//!
//! ```text
//!            gone                    deadline               hold is over
//! Obeying ----------> Waiting ---------------> Landed ------------------> Running
//!    ^   close gate      |    enable channels    |      open gate            |
//!    |                   |                       |                           |
//!    +---- an agent is back (gate word obeyed again) ------------------------+
//! ```
//!
//! At every check the process enables its channels until all of them were enabled ([`Landing::enabled`]). Only then it
//! reports the release. The hold counts from the first try, so a process that cannot enable its channels is held no
//! longer than another.
//!
//! The agent is gone if the stream is closed, or if the heartbeat has not changed for [`STALE_NS`]. The deadline is
//! [`PATIENCE_NS`] after the last heartbeat, or [`HANDOVER_NS`] after an agent wrote that it hands over. Each new
//! heartbeat moves the deadline: then an agent lives and holds the channels, and only the stream is lost.
//!
//! All times are on the clock of the process. The agent writes times of its own clock, which differs in a time
//! namespace, in a restored container, or beside a library that fakes clocks. So the process never compares such a time
//! with a clock; it only looks whether the word has changed ([`Pulse`]).
//!
//! Invariant: without a live agent no channel of this process stays disabled beyond the deadline, and no launch passes
//! between the loss of the agent and the end of the hold.

/// An agent whose heartbeat has not changed for longer than this is gone.
pub const STALE_NS: u64 = 500_000_000;
/// How long after the last heartbeat a successor is waited for.
pub const PATIENCE_NS: u64 = 900_000_000;
/// How long after `handing over` was written a successor is waited for.
pub const HANDOVER_NS: u64 = 1_000_000_000;

/// A word of the agent's, and when the process saw it change, by the clock of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    word: u64,
    at_ns: u64,
    looked_ns: u64,
}

impl Pulse {
    /// Looks at the word. Returns when it was last seen to change. If the clock went back since the last look (a process
    /// that was restored on another machine), the change is as old as it was: it never lies in the future, where it would
    /// count for as long as the clock went back.
    pub fn look(&mut self, word: u64, now_ns: u64) -> u64 {
        let back_ns = self.looked_ns.saturating_sub(now_ns);
        self.at_ns = self.at_ns.saturating_sub(back_ns);
        self.looked_ns = now_ns;
        if word != self.word {
            (self.word, self.at_ns) = (word, now_ns);
        }
        self.at_ns
    }
}

/// What a process sees of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// When `AgentWords::heartbeat_ns` last changed, by the clock of the process.
    pub heartbeat_ns: u64,
    /// When `AgentWords::handing_over_ns` was first seen, by the clock of the process; 0: it is not set.
    pub handing_over_ns: u64,
    /// Generation of the agent whose page this is.
    pub generation: u64,
    /// Whether the stream stands.
    pub stream: bool,
}

/// What to do once the channels are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Launches wait this long; 0: for ever.
    Hold {
        /// Nanoseconds.
        max_ns: u64,
    },
    /// Launches pass.
    Run,
}

impl Default for OnLoss {
    fn default() -> Self {
        Self::Hold { max_ns: 0 }
    }
}

/// Where the process stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Landing {
    /// An agent lives and its gate words are obeyed.
    #[default]
    Obeying,
    /// The gate is closed, the channels are as the agent left them.
    Waiting {
        /// Generation of the agent that is gone.
        generation: u64,
    },
    /// The channels are being enabled, or are; the gate is closed.
    Landed {
        /// Generation of the agent that is gone.
        generation: u64,
        /// When the first try was.
        since_ns: u64,
        /// Every channel was enabled.
        released: bool,
    },
    /// The gate is open although there is no agent.
    Running {
        /// Generation of the agent that is gone.
        generation: u64,
        /// Every channel was enabled.
        released: bool,
    },
}

/// What the caller does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Closes the launch gate of every device.
    CloseGate,
    /// Enables every channel of this process through its own control files; [`Landing::enabled`]
    /// takes what came of it.
    EnableChannels,
    /// Opens the launch gate and says so.
    OpenGate,
    /// Obeys the agent's gate words again.
    ObeyAgent,
}

impl AgentView {
    /// When nobody holds the channels any more.
    const fn deadline(&self) -> u64 {
        if self.handing_over_ns == 0 {
            self.heartbeat_ns.saturating_add(PATIENCE_NS)
        } else {
            self.handing_over_ns.saturating_add(HANDOVER_NS)
        }
    }

    /// Tries to enable what is not, unless an agent has come to life meanwhile.
    fn tries(&self, released: bool, now_ns: u64) -> Vec<Effect> {
        if released || now_ns < self.deadline() {
            Vec::new()
        } else {
            vec![Effect::EnableChannels]
        }
    }
}

impl Landing {
    /// Checks the agent again; the effects come in the order they must run.
    #[must_use]
    pub fn step(self, view: AgentView, on_loss: OnLoss, now_ns: u64) -> (Self, Vec<Effect>) {
        let alive = view.stream && now_ns.saturating_sub(view.heartbeat_ns) <= STALE_NS;
        match self {
            Self::Obeying if alive => (self, vec![]),
            Self::Obeying => {
                let generation = view.generation;
                let (next, mut rest) = Self::Waiting { generation }.step(view, on_loss, now_ns);
                rest.insert(0, Effect::CloseGate);
                (next, rest)
            }
            _ if alive => (Self::Obeying, vec![Effect::ObeyAgent]),
            Self::Waiting { generation } => {
                if now_ns < view.deadline() {
                    return (self, vec![]);
                }
                let landed = Self::Landed {
                    generation,
                    since_ns: now_ns,
                    released: false,
                };
                landed.step(view, on_loss, now_ns)
            }
            Self::Landed {
                generation,
                since_ns,
                released,
            } => {
                let mut effects = view.tries(released, now_ns);
                let over = match on_loss {
                    OnLoss::Run => true,
                    OnLoss::Hold { max_ns: 0 } => false,
                    OnLoss::Hold { max_ns } => now_ns.saturating_sub(since_ns) >= max_ns,
                };
                if over {
                    effects.push(Effect::OpenGate);
                    let running = Self::Running {
                        generation,
                        released,
                    };
                    (running, effects)
                } else {
                    (self, effects)
                }
            }
            Self::Running { released, .. } => (self, view.tries(released, now_ns)),
        }
    }

    /// What follows from [`Effect::EnableChannels`], by which `all` of them were enabled, or not: the
    /// generation to be written into the page as released.
    #[must_use]
    pub fn enabled(self, all: bool) -> (Self, Option<u64>) {
        let mut next = self;
        match &mut next {
            Self::Landed {
                generation,
                released,
                ..
            }
            | Self::Running {
                generation,
                released,
            } if all && !*released => {
                *released = true;
                let generation = *generation;
                (next, Some(generation))
            }
            _ => (self, None),
        }
    }
}
