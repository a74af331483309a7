//! The GPU: who runs, one at a time or in turns.

use std::time::Duration;

use super::{Slot, SpanKind, State, Work, World};
use crate::run::slots::NEVER;

impl World<'_> {
    pub(super) fn dispatch(&mut self, now: u64) {
        if self.turn.share.is_some() {
            return self.dispatch_shared(now);
        }
        match self.state {
            State::Off => self.run_online(now),
            State::On => {
                if self.online.is_none_or(|work| work.since.is_none()) {
                    self.submit_offline(now);
                    self.run_offline(now);
                }
            }
            State::Draining { .. } => self.run_offline(now),
            State::Starting | State::Stopping => {}
        }
    }

    pub(super) fn run_online(&mut self, now: u64) {
        if let Some(work) = &mut self.online
            && work.since.is_none()
        {
            work.since = Some(now);
            self.waits.wanted = None;
            self.slots.set(Slot::OnlineDone, now + work.left);
        }
    }

    pub(super) fn run_offline(&mut self, now: u64) {
        if let Some(work) = &mut self.offline
            && work.since.is_none()
        {
            work.since = Some(now);
            self.slots.set(Slot::OfflineDone, now + work.left);
        }
    }

    pub(super) fn pause_online(&mut self, now: u64) {
        if let Some(work) = &mut self.online
            && let Some(since) = work.since.take()
        {
            work.left -= (now - since).min(work.left);
            self.kept.outcome.gpu.online += Duration::from_nanos(now - since);
            self.slots.set(Slot::OnlineDone, NEVER);
        }
    }

    pub(super) fn pause_offline(&mut self, now: u64) {
        if let Some(work) = &mut self.offline
            && let Some(since) = work.since.take()
        {
            work.left -= (now - since).min(work.left);
            self.kept.outcome.gpu.offline += Duration::from_nanos(now - since);
            self.slots.set(Slot::OfflineDone, NEVER);
            self.span(SpanKind::Offline, since, now);
        }
    }

    /// Both may run: who has the turn keeps it for a slice, or until it has nothing to do.
    pub(super) fn dispatch_shared(&mut self, now: u64) {
        let Some(mut share) = self.turn.share else {
            return;
        };
        if self.state == State::Starting {
            return;
        }
        if (!share.online || self.online.is_none()) && !self.waits.barred {
            self.submit_offline(now);
        }
        let (online, offline) = (self.online.is_some(), self.has_offline());
        let running = |work: Option<Work>| work.is_some_and(|work| work.since.is_some());
        let holder_has_work = if share.online { online } else { offline };
        if !holder_has_work && (online || offline) {
            return self.change_turns(now);
        }
        if online && offline {
            // A turn that began long ago without a rival is counted in whole slices.
            let into = (now - share.began) % share.slice;
            if self.slots.at(Slot::Turn) == NEVER {
                share.began = now - into;
                self.slots.set(Slot::Turn, now - into + share.slice);
            }
        }
        self.turn.share = Some(share);
        if share.online && !running(self.online) {
            self.run_online(now);
        } else if !share.online && offline && !running(self.offline) {
            self.run_offline(now);
        }
    }

    /// Whether offline has work that may run.
    pub(super) fn has_offline(&self) -> bool {
        self.offline.is_some() && !self.waits.barred
    }

    pub(super) fn turn(&mut self, now: u64) {
        if self.online.is_some() && self.has_offline() {
            self.change_turns(now);
        }
    }

    pub(super) fn change_turns(&mut self, now: u64) {
        self.pause_online(now);
        self.pause_offline(now);
        let Some(share) = &mut self.turn.share else {
            return;
        };
        share.online = !share.online;
        share.began = now + share.switch;
        if share.online {
            self.counts.preemptions += 1;
        }
        self.state = State::Starting;
        self.turn.switch_from = now;
        self.slots.set(Slot::Turn, NEVER);
        self.slots.set(Slot::Switch, now + share.switch);
    }
}
