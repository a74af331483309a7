//! One iteration (`turn`) of the shell: it wakes, takes its inputs, and waits.
//!
//! When awake it reads what changed, stamps `now`, steps the policy and carries out the effects. It makes no call that
//! may wait. In the steady state (edges, timers, answers) it allocates nothing.
//!
//! Heartbeats: the shell writes every page's heartbeat at least every [`HEARTBEAT_NS`]. If an iteration is late by
//! [`LATE_NS`], this thread or the machine was stopped. That time counts against no process. First the shell
//! reports it to the policy and moves its own deadlines by it. Then it reads the pages. Processes may have released
//! their channels meanwhile (fail-open release), so at the end the shell orders the wanted state of every channel
//! again. Every reading of the clock is checked in this way, because a thread may be stopped anywhere.

use super::Shell;
use crate::message::Input;
use crate::request::{Context, Notice, Request};
use std::time::Duration;
use tidegate_policy::event::Event;

/// Longest time between two heartbeats in a page.
pub const HEARTBEAT_NS: u64 = 50_000_000;
/// A turn this late: processes may have given up on this agent.
pub const LATE_NS: u64 = 250_000_000;

impl Shell {
    /// Before the first turn.
    pub fn begin(&mut self) {
        self.step(Event::Tick);
        self.share_pools();
    }

    /// Begins a turn: reads every doorbell that rang.
    pub fn wake(&mut self) {
        self.stamp();
        self.read_bells();
    }

    /// Takes one input, and reads every doorbell that rang.
    pub fn take(&mut self, input: Input) {
        // After it was received, so that nothing is stamped earlier than it can have been true.
        self.stamp();
        self.route(input);
        self.read_bells();
    }

    /// Ends a turn.
    pub fn rest(&mut self) {
        if self.time.timer.is_some_and(|at| at <= self.time.now) {
            self.time.timer = None;
            self.step(Event::Tick);
        }
        self.look_for_stalls();
        self.attend_to_memory();
        self.give_up_on_remotes();
        self.release_unclaimed(self.time.now);
        self.settle();
        self.prove_all_again();
        self.account();
    }

    /// When the next turn is due at the latest, even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        let others = [
            self.time.timer,
            self.lanes.gpus.stall_deadline(self.settings.stall_ns),
            self.adoption.deadline(),
            self.lanes.remote_deadline(self.settings.level),
        ];
        let beat = self.time.beat + HEARTBEAT_NS;
        others.into_iter().flatten().fold(beat, u64::min)
    }

    /// Stamps `now`, and gives the signs of life when they are due.
    pub(super) fn stamp(&mut self) {
        self.time.now = self.ports.clock.now_ns();
        let now = self.time.now;
        if now < self.time.beat + HEARTBEAT_NS {
            return;
        }
        let lasted = now - self.time.beat;
        let late = self.time.beat != 0 && lasted > LATE_NS;
        self.time.beat = now;
        self.members.beat(now);
        if late {
            self.was_away(lasted);
        }
        self.with(|members, _, cx| members.look_at_pages(cx));
        self.settle();
        if late {
            self.order_anew();
        }
        self.ask_for_work();
    }

    /// This thread did not run for so long.
    fn was_away(&mut self, lasted_ns: u64) {
        self.counters.late_turns += 1;
        // Ahead of what was heard and not stepped yet.
        let lasted = Duration::from_nanos(lasted_ns);
        self.step(Event::Absent { lasted });
        self.lanes.gpus.put_off(lasted_ns, self.time.now);
        self.lanes.put_off(lasted_ns);
        self.adoption.put_off(lasted_ns);
        // What an edge or an idle edge says must be known before anything is enabled.
        self.ask(Request::ReadActivity(self.lanes.gpus.ids().collect()));
        self.settle();
        self.drain();
    }

    /// Processes may have enabled their channels while this thread was away.
    fn order_anew(&mut self) {
        self.lanes.doubt();
        for job in self.lanes.job_ids() {
            self.ask(Request::Doubt(job));
        }
        self.ask(Request::Emit(Notice {
            kind: "agent_was_stopped",
            text: "the control thread came late; ordering every channel anew".to_owned(),
            ..Notice::default()
        }));
        self.ask(Request::Step(Event::Reissue { job: None }));
        self.settle();
    }

    /// Asks offline processes whether they have work while that makes a difference to others.
    fn ask_for_work(&mut self) {
        if !self.may_step() {
            return;
        }
        let (policy, members) = (&self.policy, &mut self.members);
        if !members.asks_for_work(policy.any_shares()) {
            return;
        }
        members.ask_for_work(|job| policy.shares(job), &mut context!(self));
        self.settle();
    }

    /// Reads the activity of every process whose doorbell changed.
    fn read_bells(&mut self) {
        let mut at = 0;
        while let Some((session, next)) = self.members.next_ring(at) {
            at = next;
            self.with(|members, _, cx| members.hear_ring(session, cx));
            // A cooldown counts from here: stamped before the words were read, it would end too early
            // by as long as this thread was kept from reading them.
            self.stamp();
            self.settle();
        }
    }

    /// In the middle of a long message: gives the signs of life that are due, and reads every doorbell that rang.
    pub(super) fn look_up(&mut self) {
        self.stamp();
        self.read_bells();
    }

    fn look_for_stalls(&mut self) {
        self.with(|members, lanes, cx| {
            let (now, stall_ns) = (cx.now, cx.settings.stall_ns);
            let out = &mut *cx.out;
            let found = |gpu| out.push(Request::Step(Event::IssueStalled { gpu }));
            lanes
                .gpus
                .look_for_stalls(now, stall_ns, cx.counters, found);
            lanes.open_next(members, cx);
        });
        self.settle();
    }

    fn give_up_on_remotes(&mut self) {
        self.with(|members, lanes, cx| lanes.give_up_on_remotes(members, cx));
        self.settle();
    }

    fn prove_all_again(&mut self) {
        if !self.are_proofs_due() {
            return;
        }
        for job in self.lanes.job_ids() {
            for gpu in self.lanes.gpus.ids() {
                self.ask(Request::ProveAgain(job, gpu));
            }
        }
        self.settle();
    }
}
