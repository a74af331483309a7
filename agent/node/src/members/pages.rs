//! Reads the pages of processes: edges after a doorbell, everything else at every heartbeat.

use super::Members;
use crate::kinds::Role;
use crate::page::Activity;
use crate::request::{Context, Notice, Request};
use crate::session::Session;
use std::sync::atomic::Ordering;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuSet, RequestId, SessionId};
use tidegate_policy::time::Instant;

/// Why a page is dropped.
pub(super) const RANG: &str = "rang beyond the allowed rate";
const WOKE: &str = "woke the agent without a ring beyond the allowed rate";
const GONE: &str = "took the memory of its page away";

impl Members {
    /// The next session from bell `at` on whose doorbell changed, and where to go on.
    pub(crate) fn next_ring(&mut self, mut at: usize) -> Option<(u64, usize)> {
        loop {
            let (session, changed) = self.bells.look(at)?;
            at += 1;
            if changed {
                return Some((session, at));
            }
        }
    }

    /// Reads the activity of a process that rang.
    pub(crate) fn hear_ring(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.role == Role::Offline {
            cx.counters.rings += 1;
            return self.hear_work(id, cx);
        }
        let most = cx.settings.rings_per_second;
        if session.link.rings.exceeds(cx.now, most) {
            return self.drop_page(id, RANG, cx);
        }
        cx.counters.rings += 1;
        hear_activity(session, cx);
        if session.is_online() {
            hear_requests(session, cx);
            self.hear_beats(id, cx);
        }
    }

    /// Drops every page that nobody can or need wait on any longer.
    fn drop_pages(&mut self, cx: &mut Context<'_>) {
        let most = cx.settings.rings_per_second;
        let mut dropped = Vec::new();
        for (id, session) in &mut self.sessions {
            let Some(page) = session.link.page.as_ref() else {
                continue;
            };
            let vain = session.link.vain.exceeds(page.vain_wakes(), cx.now, most);
            if page.is_unwaitable() && self.bells.has(*id) {
                dropped.push((*id, GONE));
            } else if vain && page.is_heard() {
                dropped.push((*id, WOKE));
            }
        }
        for (id, why) in dropped {
            self.drop_page(id, why, cx);
        }
    }

    /// A client that rings or wakes beyond all measure loses its page, and with it its say. An offline one is not
    /// listened to any longer, and pays for that itself.
    pub(super) fn drop_page(&mut self, id: u64, why: &'static str, cx: &mut Context<'_>) {
        self.bells.remove(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(page) = &session.link.page {
            page.unhear();
        }
        let (offline, refused) = (session.role == Role::Offline, Some(why));
        cx.emit(if offline {
            Notice {
                kind: "note",
                session: id,
                text: format!("{why}: it counts as having work"),
                refused,
                ..Notice::default()
            }
        } else {
            Notice {
                kind: "page_dropped",
                session: id,
                text: why.to_owned(),
                refused,
                ..Notice::default()
            }
        });
        if offline {
            session.library.knows_leases = false;
            self.hear_offer(id, cx);
            self.needs_no_lease(id);
            return self.counts_as_working(id, cx);
        }
        cx.counters.pages_dropped += 1;
        session.link.page = None;
        session.role = Role::Ignore;
        session.state.note = format!("{why}: its page was dropped");
        cx.ask(Request::Guards);
        cx.step(Event::OnlineGone {
            session: SessionId(id),
        });
    }

    /// Reads the activity of every online process on `gpus`.
    pub(crate) fn read_activity(&mut self, gpus: GpuSet, mut found: impl FnMut(Event<'static>)) {
        for session in self.sessions.values_mut().filter(|s| s.is_online()) {
            for (at, slot) in session.slots.iter_mut().enumerate() {
                let Some(gpu) = slot.gpu.filter(|&gpu| gpus.contains(gpu)) else {
                    continue;
                };
                if let Some(page) = &session.link.page {
                    slot.seen =
                        Activity::read(&page.devices[at], &page.memory[at], session.link.clock);
                }
                found(Event::Activity {
                    session: SessionId(session.id),
                    gpu,
                    reading: slot.seen.reading(),
                });
            }
        }
    }

    /// Gives every process a sign of life.
    pub(crate) fn beat(&self, now: u64) {
        self.all().for_each(|session| session.beat(now));
    }

    /// Says to every process that a successor was asked for.
    pub(crate) fn hand_over(&self, now: u64) {
        for session in self.all() {
            if let Some(page) = &session.link.page {
                let at = session.link.clock.there(now);
                page.agent.handing_over_ns.store(at, Ordering::Release);
            }
        }
    }

    /// What pages say without ringing: progress, suspects, soft landings.
    pub(crate) fn look_at_pages(&mut self, cx: &mut Context<'_>) {
        self.drop_pages(cx);
        let (mut suspected, first) = (false, cx.out.len());
        for session in self.sessions.values_mut() {
            let Some(page) = &session.link.page else {
                continue;
            };
            let prober = page.process.prober_ns.load(Ordering::Relaxed);
            if session.is_online() && prober != session.link.prober {
                session.link.prober = prober;
                cx.step(Event::Progress {
                    session: SessionId(session.id),
                    at: Instant::from_nanos(cx.now),
                });
            }
            for (at, (slot, words)) in session.slots.iter_mut().zip(&page.devices).enumerate() {
                let Some(gpu) = slot.gpu else { continue };
                if session.role == Role::Online {
                    let launches = page.launches(at);
                    if launches != slot.launched.0 {
                        slot.launched = (launches, cx.now);
                    }
                }
                let suspect = words.suspect.load(Ordering::Relaxed);
                let suspect = u32::try_from(suspect).unwrap_or(u32::MAX);
                if suspect != slot.suspect {
                    slot.suspect = suspect;
                    if session.role == Role::Online {
                        suspected = true;
                        cx.step(Event::Suspected {
                            session: SessionId(session.id),
                            gpu,
                            suspect: suspect != 0,
                        });
                    }
                }
            }
        }
        for session in self.sessions.values_mut().filter(|s| s.is_online()) {
            hear_requests(session, cx);
        }
        self.tend_leases(cx);
        if suspected && cx.settings.ignore_suspects {
            // Before a step that may order an enable.
            cx.out.insert(first, Request::Guards);
        }
        for session in self.sessions.values_mut() {
            let Some(page) = &session.link.page else {
                continue;
            };
            let released = page.process.released.load(Ordering::Acquire);
            if released == session.link.released {
                continue;
            }
            session.link.released = released;
            if released != cx.settings.generation {
                continue;
            }
            cx.emit(Notice {
                kind: "landed",
                session: session.id,
                job: session.job,
                text: "the process enabled its own channels".to_owned(),
                ..Notice::default()
            });
            if let Some(job) = session.job {
                cx.ask(Request::Doubt(job));
                cx.step(Event::Reissue { job: session.job });
            }
        }
    }
}

/// Passes on what a process does on its GPUs, where it is news.
fn hear_activity(session: &mut Session, cx: &mut Context<'_>) {
    let Some(page) = &session.link.page else {
        return;
    };
    let words = page.devices.iter().zip(&page.memory);
    for (slot, (words, more)) in session.slots.iter_mut().zip(words) {
        let Some(gpu) = slot.gpu else { continue };
        let activity = Activity::read(words, more, session.link.clock);
        if activity.word != slot.seen.word {
            slot.seen = activity;
            cx.step(Event::Activity {
                session: SessionId(session.id),
                gpu,
                reading: activity.reading(),
            });
        }
    }
}

/// Passes on whether requests of an online engine are in flight. News of them come after its activity, read after the
/// word: the work that it did before it said so is work of what it said before, however late the agent is.
fn hear_requests(session: &mut Session, cx: &mut Context<'_>) {
    let Some(page) = &session.link.page else {
        return;
    };
    // The word is their number plus one; 0 says nothing.
    let word = page.process.in_flight.load(Ordering::Acquire);
    let on = (word != 0).then_some(word > 1);
    if core::mem::replace(&mut session.link.flight.on, on) == on {
        return;
    }
    hear_activity(session, cx);
    let flight = &mut session.link.flight;
    // Who takes its word back has none in flight.
    let is = on == Some(true);
    flight.number += u64::from(is);
    let (session, request) = (SessionId(session.id), RequestId(flight.number));
    cx.step(if is {
        Event::RequestStarted { session, request }
    } else {
        Event::RequestEnded { session, request }
    });
}
