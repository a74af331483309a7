//! Calls that take channels off their engine and put them back, each at the instant it takes effect.

use super::control::Control;
use super::event::{Event, EventKind};
use super::ids::{ChannelId, TsgId};
use super::{Gpu, Turn};
use crate::eviction::{Eviction, Pending};

impl Gpu {
    /// [`Gpu::set_scheduled`] at a later instant.
    pub fn set_scheduled_at(&mut self, at: u64, tsg: TsgId, on: bool) {
        self.control(at, Control::Schedule { tsg, on });
    }

    /// Draws how long the next disable takes.
    pub fn draw_disable(&mut self) -> u64 {
        self.config.disable.draw(&mut self.rng)
    }

    /// Begins to disable `channels`: draws the latency and returns the instant from which nothing
    /// of them runs. `ticket` comes back in the events.
    pub fn begin_disable(&mut self, channels: &[ChannelId], ticket: u64) -> u64 {
        let at = self.now.saturating_add(self.draw_disable());
        self.disable_at(at, channels, ticket);
        at
    }

    /// Disables `channels` at `at`, for callers that drew the latency or queued for locks.
    pub fn disable_at(&mut self, at: u64, channels: &[ChannelId], ticket: u64) {
        self.disable_by(at, channels, ticket, false);
    }

    /// As [`Gpu::disable_at`], without taking off what runs: the channels are only not given another
    /// turn.
    pub fn disable_scheduling_at(&mut self, at: u64, channels: &[ChannelId], ticket: u64) {
        self.disable_by(at, channels, ticket, true);
    }

    fn disable_by(&mut self, at: u64, channels: &[ChannelId], ticket: u64, scheduling_only: bool) {
        self.control(
            at,
            Control::Disable {
                channels: channels.to_vec(),
                pending: Pending {
                    ticket,
                    scheduling_only,
                },
            },
        );
    }

    /// Enables `channels` at `at`.
    pub fn enable_at(&mut self, at: u64, channels: &[ChannelId], ticket: u64) {
        self.control(
            at,
            Control::Enable {
                channels: channels.to_vec(),
                ticket,
            },
        );
    }

    /// Makes a TSG yield its turn once, at `at`.
    pub fn preempt_at(&mut self, at: u64, tsg: TsgId) {
        self.control(at, Control::Preempt { tsg });
    }

    /// Restarts the runlist of the engine that `tsg` is on, at `at`: who has the turn yields it.
    pub fn restart_at(&mut self, at: u64, tsg: TsgId) {
        if let Some(engine) = self.tsgs.get(tsg.0).map(|t| t.engine) {
            self.control(at, Control::Restart { engine });
        }
    }

    fn control(&mut self, at: u64, control: Control) {
        self.control_seq += 1;
        self.controls
            .insert((at.max(self.now), self.control_seq), control);
    }

    pub(super) fn apply_controls(&mut self, events: &mut Vec<Event>) {
        while let Some(entry) = self.controls.first_entry()
            && entry.key().0 <= self.now
        {
            match entry.remove() {
                Control::Disable { channels, pending } => {
                    for channel in channels {
                        self.disable(channel, pending, events);
                    }
                }
                Control::Enable { channels, ticket } => {
                    for channel in channels {
                        let counting = self.config.counting;
                        let Some(c) = self.channels.get_mut(channel.0) else {
                            continue;
                        };
                        c.disabled = if counting {
                            c.disabled.saturating_sub(1)
                        } else {
                            0
                        };
                        let void = c.pending.take_if(|_| c.disabled == 0);
                        c.off &= c.disabled > 0;
                        let engine = c.engine;
                        self.touch(engine);
                        if let Some(Pending { ticket, .. }) = void {
                            self.emit(events, EventKind::Overtaken { ticket });
                        }
                        self.emit(events, EventKind::Enabled { channel, ticket });
                    }
                }
                Control::Preempt { tsg } => {
                    if let Some(engine) = self.tsgs.get(tsg.0).map(|t| t.engine)
                        && let Turn::Running { tsg: running, .. } = self.engines[engine].turn
                        && running == tsg
                    {
                        self.stop_turn(engine, tsg, events);
                        self.touch(engine);
                    }
                    let channels = self.tsgs.get(tsg.0).map(|t| t.channels.clone());
                    for channel in channels.unwrap_or_default() {
                        self.evict_if(channel, Eviction::by_preempt, events);
                    }
                }
                Control::Restart { engine } => {
                    if let Turn::Running { tsg, .. } = self.engines[engine].turn {
                        self.stop_turn(engine, tsg, events);
                    }
                    self.touch(engine);
                    let groups = self.engines[engine].queue.iter();
                    let channels: Vec<ChannelId> = groups
                        .filter_map(|tsg| self.tsgs.get(tsg.0))
                        .flat_map(|tsg| tsg.channels.iter().copied())
                        .collect();
                    for channel in channels {
                        self.evict_if(channel, Eviction::by_restart, events);
                    }
                }
                Control::Schedule { tsg, on } => self.set_scheduled(tsg, on),
            }
        }
    }

    fn disable(&mut self, channel: ChannelId, pending: Pending, events: &mut Vec<Event>) {
        let (counting, eviction) = (self.config.counting, self.config.eviction);
        let resident = self
            .channels
            .get(channel.0)
            .is_some_and(|c| self.has_turn(c.tsg));
        let Some(c) = self.channels.get_mut(channel.0) else {
            return;
        };
        c.disabled = if counting {
            c.disabled.saturating_add(1)
        } else {
            1
        };
        let runs = match eviction {
            Eviction::OnDisable => resident && pending.scheduling_only,
            Eviction::AtKernelEnd => c.inside,
            Eviction::OnRestart | Eviction::OnPreempt => c.ran,
            Eviction::Never => true,
        };
        let void = if runs && !c.off {
            c.pending.replace(pending)
        } else {
            c.goes_off(self.now);
            c.pending.take()
        };
        let waits = c.pending.is_some();
        let engine = c.engine;
        self.touch(engine);
        if let Some(Pending { ticket, .. }) = void {
            self.emit(events, EventKind::Overtaken { ticket });
        }
        if !waits {
            let ticket = pending.ticket;
            self.emit(events, EventKind::Disabled { channel, ticket });
        }
    }

    /// Lets a pending disable of `channel` take effect if `by` says so of this firmware.
    pub(super) fn evict_if(
        &mut self,
        channel: ChannelId,
        by: impl Fn(Eviction, Pending) -> bool,
        events: &mut Vec<Event>,
    ) {
        let eviction = self.config.eviction;
        let Some(c) = self.channels.get_mut(channel.0) else {
            return;
        };
        if let Some(Pending { ticket, .. }) = c.pending.take_if(|pending| by(eviction, *pending)) {
            c.goes_off(self.now);
            let engine = c.engine;
            self.touch(engine);
            self.emit(events, EventKind::Disabled { channel, ticket });
        }
    }
}
