//! Whose turn it is on an engine, and what runs meanwhile.

use super::event::{Event, EventKind};
use super::ids::{ChannelId, TsgId};
use super::{Channel, Gpu, Item, Turn};
use crate::eviction::Eviction;

impl Gpu {
    pub(super) fn finish_due(&mut self, events: &mut Vec<Event>) {
        for index in 0..self.engines.len() {
            let Turn::Running { tsg, .. } = self.engines[index].turn else {
                continue;
            };
            if self.engines[index].next > self.now {
                continue;
            }
            let Some(tsg) = self.tsgs.get(tsg.0) else {
                continue;
            };
            for channel in &tsg.channels {
                let Some(c) = self.channels.get_mut(channel.0) else {
                    continue;
                };
                if c.ends.is_some_and(|ends| ends <= self.now)
                    && let Some(head) = c.queue.pop_front()
                {
                    let off = c.finished(head, self.config.eviction);
                    ends(events, self.now, *channel, head.tag, off);
                }
            }
        }
    }

    pub(super) fn tsg_ready(&self, tsg: TsgId) -> bool {
        self.tsgs.get(tsg.0).is_some_and(|t| {
            t.scheduled
                && t.channels
                    .iter()
                    .any(|c| self.channels.get(c.0).is_some_and(Channel::ready))
        })
    }

    /// Ends the turn of `tsg`, keeping what remains of its channels' work.
    pub(super) fn stop_turn(&mut self, engine: usize, tsg: TsgId, events: &mut Vec<Event>) {
        if let Some(t) = self.tsgs.get(tsg.0) {
            for channel in &t.channels {
                if let Some(c) = self.channels.get_mut(channel.0) {
                    c.pause(self.now);
                }
            }
        }
        self.engines[engine].turn = Turn::Idle;
        let number = self.engines[engine].number;
        self.emit(
            events,
            EventKind::TsgStop {
                tsg,
                engine: number,
            },
        );
        let channels = self.tsgs.get(tsg.0).map(|t| t.channels.clone());
        for channel in channels.unwrap_or_default() {
            self.evict_if(channel, Eviction::by_end_of_turn, events);
        }
    }

    pub(super) fn start_turn(&mut self, engine: usize, tsg: TsgId, events: &mut Vec<Event>) {
        let slice = self.tsgs.get(tsg.0).map_or(1, |t| t.timeslice);
        let e = &mut self.engines[engine];
        e.turn = Turn::Running {
            tsg,
            slice_end: self.now.saturating_add(slice),
            contended: false,
        };
        e.last = Some(tsg);
        let number = e.number;
        self.emit(
            events,
            EventKind::TsgRun {
                tsg,
                engine: number,
            },
        );
    }

    /// The TSG whose turn is next; it goes to the end of the queue.
    pub(super) fn pick(&mut self, engine: usize) -> Option<TsgId> {
        let place = self.engines[engine]
            .queue
            .iter()
            .position(|t| self.tsg_ready(*t))?;
        let queue = &mut self.engines[engine].queue;
        let tsg = queue.remove(place)?;
        queue.push_back(tsg);
        Some(tsg)
    }

    /// Starts what can start on the channels of the TSG whose turn it is, through all the work
    /// that takes no time.
    pub(super) fn start_channels(&mut self, tsg: TsgId, events: &mut Vec<Event>) {
        let Some(tsg) = self.tsgs.get(tsg.0) else {
            return;
        };
        let at = self.now;
        for channel in &tsg.channels {
            let Some(c) = self.channels.get_mut(channel.0) else {
                continue;
            };
            while c.ends.is_none() && c.ready() {
                let Some(head) = c.queue.front_mut() else {
                    break;
                };
                let tag = head.tag;
                (c.ran, c.inside) = (true, true);
                if !head.started {
                    head.started = true;
                    let kind = EventKind::Started {
                        channel: *channel,
                        tag,
                    };
                    events.push(Event { at, kind });
                }
                match head.item {
                    Item::Run { remaining: 0 } | Item::Wait { .. } => {
                        let head = *head;
                        c.queue.pop_front();
                        let off = c.finished(head, self.config.eviction);
                        ends(events, at, *channel, tag, off);
                    }
                    Item::Run { remaining } => c.ends = Some(at.saturating_add(remaining)),
                }
            }
        }
    }

    /// Brings one engine to rest at this instant and finds when it moves next.
    pub(super) fn settle(&mut self, engine: usize, events: &mut Vec<Event>) {
        loop {
            match self.engines[engine].turn {
                Turn::Idle => {
                    let Some(tsg) = self.pick(engine) else { break };
                    let loaded = self.engines[engine].last.is_none_or(|last| last == tsg);
                    if loaded || self.config.switch_ns == 0 {
                        self.start_turn(engine, tsg, events);
                    } else {
                        let until = self.now.saturating_add(self.config.switch_ns);
                        self.engines[engine].turn = Turn::Switching { tsg, until };
                        break;
                    }
                }
                Turn::Switching { until, .. } if self.now < until => break,
                Turn::Switching { tsg, .. } if self.tsg_ready(tsg) => {
                    self.start_turn(engine, tsg, events);
                }
                Turn::Switching { .. } => self.engines[engine].turn = Turn::Idle,
                Turn::Running {
                    tsg,
                    slice_end,
                    contended,
                } => {
                    if !self.tsg_ready(tsg) {
                        self.stop_turn(engine, tsg, events);
                        continue;
                    }
                    let contends = self.engines[engine]
                        .queue
                        .iter()
                        .any(|other| *other != tsg && self.tsg_ready(*other));
                    let mut slice_end = slice_end;
                    if self.now >= slice_end {
                        if contended && contends {
                            self.stop_turn(engine, tsg, events);
                            continue;
                        }
                        // Alone until now: its turns followed one another.
                        let slice = self.tsgs.get(tsg.0).map_or(1, |t| t.timeslice);
                        let over = self.now - slice_end;
                        slice_end = self.now.saturating_add(slice - over % slice);
                    }
                    self.engines[engine].turn = Turn::Running {
                        tsg,
                        slice_end,
                        contended: contends,
                    };
                    self.start_channels(tsg, events);
                    if self.tsg_ready(tsg) {
                        break;
                    }
                }
            }
        }
        let next = match self.engines[engine].turn {
            Turn::Idle => u64::MAX,
            Turn::Switching { until, .. } => until,
            Turn::Running {
                tsg,
                slice_end,
                contended,
            } => {
                let first = if contended { slice_end } else { u64::MAX };
                self.tsgs.get(tsg.0).map_or(first, |t| {
                    t.channels
                        .iter()
                        .filter_map(|c| self.channels.get(c.0)?.ends)
                        .fold(first, u64::min)
                })
            }
        };
        let engine = &mut self.engines[engine];
        engine.next = next;
        engine.dirty = false;
    }
}

/// An entry finished, and with it its channel went off if `off` has the ticket of the disable.
fn ends(events: &mut Vec<Event>, at: u64, channel: ChannelId, tag: u64, off: Option<u64>) {
    let kind = EventKind::Finished { channel, tag };
    events.push(Event { at, kind });
    if let Some(ticket) = off {
        let kind = EventKind::Disabled { channel, ticket };
        events.push(Event { at, kind });
    }
}
