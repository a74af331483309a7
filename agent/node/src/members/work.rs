//! Whether offline processes have work. They are asked only while their job shares a GPU with another job.
//!
//! A process answers on its page. A device is busy while something that was launched on it has not ended, whether it
//! may run or not. A launch that waits at the launch gate is work too. A process that cannot answer counts as having
//! work: one with an older library, without a page, or without a device so far. A process that does not count beside
//! other jobs ([`Session::counts`]) has no work, whatever it reports.

use super::Members;
use super::pages::RANG;
use crate::kinds::Role;
use crate::page::Activity;
use crate::request::{Context, Settings};
use crate::session::Session;
use std::sync::atomic::Ordering;
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{JobId, SessionId};

/// How often a process looks: a turn that it does not need is given up one look and policy's grace later.
const LOOKS_EVERY_NS: u64 = 5_000_000;

/// Whether it has work, or cannot say.
fn works(session: &Session, settings: &Settings) -> bool {
    if !session.counts(settings) {
        return false;
    }
    if !session.state.asked || session.state.waits.is_some() {
        return true;
    }
    let mut devices = session.slots.iter().filter(|slot| slot.gpu.is_some());
    let busy = devices
        .clone()
        .any(|slot| slot.seen.word & ACTIVITY_BUSY != 0);
    busy || devices.next().is_none()
}

/// Looks at its page, and tells policy what has changed.
fn tell(session: &mut Session, cx: &mut Context<'_>) {
    read(session);
    let counts = session.counts(cx.settings);
    if counts == session.state.uncounted {
        session.state.uncounted = !counts;
        cx.step(Event::Counts {
            session: SessionId(session.id),
            counts,
        });
    }
    let works = works(session, cx.settings);
    if works == session.state.rests {
        session.state.rests = !works;
        cx.step(Event::Works {
            session: SessionId(session.id),
            works,
        });
    }
}

impl Members {
    /// Whether there is anybody to ask or to be asked no longer, `any` job sharing a GPU.
    pub(crate) const fn asks_for_work(&mut self, any: bool) -> bool {
        let before = core::mem::replace(&mut self.asks, any);
        any || before
    }

    /// Asks those whose job `shares` a GPU, and no others.
    pub(crate) fn ask_for_work(&mut self, shares: impl Fn(JobId) -> bool, cx: &mut Context<'_>) {
        for session in self.sessions.values_mut() {
            let can = session.role == Role::Offline && session.library.says_work;
            let (Some(job), Some(page), true) = (session.job, &session.link.page, can) else {
                continue;
            };
            let ask = shares(job);
            if ask != session.state.asked {
                session.state.asked = ask;
                let every = if ask { LOOKS_EVERY_NS } else { 0 };
                page.agent.work_probe_ns.store(every, Ordering::Release);
                if ask {
                    if !self.bells.has(session.id) {
                        self.bells.add_offline(session.id, page);
                    }
                    // Its prober sleeps on the gates.
                    page.wake_gates();
                } else if !self.trainers.contains(&session.id) {
                    self.bells.remove(session.id);
                }
            }
            tell(session, cx);
        }
    }

    /// Launches of a process wait on the gate, or it counts among others, or no longer.
    pub(crate) fn look_at_work(&mut self, id: u64, cx: &mut Context<'_>) {
        let session = self.sessions.get_mut(&id);
        if let Some(session) = session.filter(|session| session.role == Role::Offline) {
            tell(session, cx);
        }
    }

    /// An offline process rang: an edge.
    pub(super) fn hear_work(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let most = cx.settings.rings_per_second;
        if session.link.rings.exceeds(cx.now, most) {
            return self.drop_page(id, RANG, cx);
        }
        tell(session, cx);
        self.hear_trainer(id, cx);
    }

    /// Who rings too often counts as having work from here on.
    pub(super) fn counts_as_working(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(page) = &session.link.page {
            page.agent.work_probe_ns.store(0, Ordering::Release);
        }
        (session.library.says_work, session.state.asked) = (false, false);
        tell(session, cx);
    }
}

/// Looks at its page.
fn read(session: &mut Session) {
    let Some(page) = &session.link.page else {
        return;
    };
    let words = page.devices.iter().zip(&page.memory);
    for (slot, (words, more)) in session.slots.iter_mut().zip(words) {
        if slot.gpu.is_some() {
            slot.seen = Activity::read(words, more, session.link.clock);
        }
    }
}
