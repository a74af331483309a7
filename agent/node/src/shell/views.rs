//! The state of the shell for operators, and what operators ask of it.

use super::Shell;
use crate::counters::Counters;
use crate::kinds::Level;
use crate::lanes::Lanes;
use crate::members::Members;
use crate::memory::Memory;
use crate::request::Notice;
use crate::session::Session;
use crate::spans::Spans;
use crate::text::Text;
use crate::usage::Usage;
use crate::work::Totals;
use tidegate_policy::event::Event;
use tidegate_policy::ids::JobId;
use tidegate_policy::node::Node;

impl Shell {
    /// Stamps `now` for a question, and steps what an operator asks for.
    pub fn steer(&mut self, event: Option<Event<'static>>) {
        self.stamp();
        if let Some(event) = event {
            self.step(event);
        }
    }

    /// Which jobs are paused, and which run although all others are, by name: for those that begin from here on.
    pub fn steer_by_name(&mut self, jobs: Vec<(Text, bool)>) {
        self.steered = jobs;
    }

    /// An event of the shell's surroundings, stamped and named as its own.
    pub fn remark(&mut self, kind: &'static str, text: String) {
        self.emit(Notice {
            kind,
            text,
            ..Notice::default()
        });
    }

    /// The processes.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The jobs and GPUs.
    #[must_use]
    pub const fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// What policy knows.
    #[must_use]
    pub const fn policy(&self) -> &Node {
        &self.policy
    }

    /// What is counted of memory.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where the node's time went.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.history.usage
    }

    /// When online was busy lately.
    #[must_use]
    pub const fn spans(&self) -> &Spans {
        &self.history.spans
    }

    /// Things counted since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// As last stamped, ns.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.time.now
    }

    /// When it was made, ns.
    #[must_use]
    pub const fn started_ns(&self) -> u64 {
        self.time.started
    }

    /// Until when gates stay shut after the start, or after the agent was away, ns.
    #[must_use]
    pub const fn hold_until_ns(&self) -> u64 {
        self.policy.hold_until().as_nanos()
    }

    /// How channels are controlled.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.settings.level
    }

    /// This agent's generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.settings.generation
    }

    /// Launches of a job under this agent, by all its processes.
    #[must_use]
    pub fn launches(&self, id: JobId) -> u64 {
        let gone = self.lanes.job(id).map_or(0, |job| job.launched);
        let members = self.members.of_job(id);
        members.fold(gone, |sum, session| sum.saturating_add(session.launches()))
    }

    /// What a job says of its work under this agent, all its processes together.
    #[must_use]
    pub fn worked(&self, id: JobId) -> Totals {
        let gone = self
            .lanes
            .job(id)
            .map_or_else(Totals::default, |job| job.worked);
        let members = self.members.of_job(id);
        members.fold(gone, |sum, session| sum.plus(session.totals()))
    }

    /// Channels of a process that may be disabled and that no order reaches.
    #[must_use]
    pub fn stuck(&self, session: &Session) -> usize {
        let unlisted = session.channels.iter().filter(|held| held.place.is_none());
        let pairs = unlisted.map(|held| held.channel.pair());
        pairs
            .filter(|pair| self.adoption.may_be_disabled(*pair))
            .count()
    }

    /// The trainer of a job that spoke last.
    #[must_use]
    pub fn trainer(&self, id: JobId) -> Option<&Session> {
        let members = self.members.of_job(id);
        members
            .filter(|session| session.work.training.is_some())
            .max_by_key(|session| session.work.heard_ns)
    }
}
