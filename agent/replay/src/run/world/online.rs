//! What online does: requests arrive, iterations are submitted and end.

use std::time::Duration;

use super::{Progress, Slot, SpanKind, Work, World};
use crate::batch::Batch;
use crate::clock::Time;
use crate::compute::Event;
use crate::costs::ns;
use crate::memory::{self, Wants};
use crate::plan::{Demand, Stretch};
use crate::policies::Grant;
use crate::run::slots::NEVER;
use crate::spec::{Compute, Spec};
use tidegate_text::rng::{Rng, splitmix64};

impl World<'_> {
    pub(super) fn arrives(&mut self, now: u64) {
        let requests = self.spec.online.trace.requests();
        let place = self.next_request;
        let Some(request) = requests.get(place) else {
            return;
        };
        self.next_request += 1;
        if let Some(next) = requests.get(self.next_request) {
            self.slots.set(Slot::Arrival, next.arrival.0);
        }
        let id = place as u64;
        self.pool
            .online
            .admit(id, request.input_tokens, request.output_tokens);
        self.in_flight += 1;
        // Charged for what is over before it came, so that the difference at its end is its own.
        self.outcome.requests[place].preemptions =
            self.preemptions - core::mem::take(&mut self.charge_next);
        let idle = self.online.is_none() && self.slots.at(Slot::Launch) == NEVER;
        if idle {
            self.slots.set(Slot::Launch, now + ns(self.spec.costs.lead));
        } else {
            let wants = self.bytes(self.pool.online.wants());
            self.policies.online_expects(wants, now);
        }
        let event = Event::Arrived {
            request: id,
            in_flight: self.in_flight,
        };
        self.tell(event, now);
    }

    pub(super) fn launch(&mut self, now: u64) {
        let wants = Wants {
            all: self.bytes(self.pool.online.wants()),
            least: self.bytes(self.pool.online.needs()),
        };
        let Grant::Yes(waits) = self.policies.online_wants(wants, now, &mut self.pool) else {
            self.short_since.get_or_insert(now);
            return;
        };
        self.void_offline(now);
        let used = self.pool.online_used();
        let Some(iteration) = self.pool.online.start() else {
            self.starved = !self.pool.online.is_idle();
            return;
        };
        let used = used.max(self.pool.online_used());
        self.outcome.online_kv_peak_bytes = self.outcome.online_kv_peak_bytes.max(used);
        self.outcome.online_iterations += 1;
        self.starved = false;
        self.note_idle(now);
        if self.spec.compute == Compute::Standalone {
            self.demand.push(Demand {
                at: now,
                bytes: used,
                idle: self.idle,
            });
        }
        let mut work = Work::new(iteration);
        work.left += waits;
        self.online = Some(work);
        self.wanted = Some(now);
        if self.pool.online.reads_part() {
            // The rest of it is asked for while this runs.
            let wants = wants.all;
            self.policies.online_expects(wants, now);
        }
        if waits > 0 {
            self.span(SpanKind::Memory, now, now + waits);
        }
        if let Some(since) = self.short_since.take() {
            self.span(SpanKind::Memory, since, now);
        }
        self.held = false;
        let event = Event::Launch {
            prompt: iteration.prompt_tokens > 0,
            decodes: iteration.decodes,
        };
        self.tell(event, now);
    }

    /// What so many of online's blocks are, in whole handles.
    fn bytes(&self, blocks: u32) -> u64 {
        memory::whole(u64::from(blocks) * self.pool.online_block)
    }

    /// Online used the GPU again.
    pub(super) fn note_idle(&mut self, now: u64) {
        let (from, oldest) = (self.idle_since, self.oldest);
        let oldest = self.outcome.requests[oldest].arrival.0;
        if self.in_gap {
            // What it waited for memory is no decode gap.
            let until = self.short_since.unwrap_or(now);
            let gap = Duration::from_nanos(until - from.min(until));
            let longest = &mut self.outcome.cooldown.longest_gap;
            *longest = (*longest).max(gap);
        }
        if now > from {
            self.idle += now - from;
            self.stretches.push(Stretch {
                from,
                to: now,
                oldest: if self.in_gap { oldest } else { now },
            });
        }
    }

    pub(super) fn online_done(&mut self, now: u64) {
        self.pause_online(now);
        let Some(work) = self.online.take() else {
            return;
        };
        let kind = if work.iteration.prompt_tokens > 0 {
            SpanKind::OnlinePrefill
        } else {
            SpanKind::OnlineDecode
        };
        self.span(kind, now - work.iteration.ns.min(now), now);
        let (requests, finished) = (&mut self.outcome.requests, &mut self.finished);
        let trace = self.spec.online.trace.requests();
        let preemptions = self.preemptions;
        let mut ended = [0u64; 8];
        let mut ends = 0;
        let mut more = Vec::new();
        self.pool.online.finish(|progress| match progress {
            Progress::First(id) => requests[id as usize].first_token = Time(now),
            Progress::Finished(id) => {
                let place = id as usize;
                requests[place].last_token = Time(now);
                requests[place].tokens = trace[place].output_tokens;
                requests[place].preemptions = preemptions - requests[place].preemptions;
                finished[place] = true;
                match ended.get_mut(ends) {
                    Some(free) => *free = id,
                    None => more.push(id),
                }
                ends += 1;
            }
        });
        while self.finished.get(self.oldest).copied().unwrap_or(false) {
            self.oldest += 1;
        }
        self.policies.online_done(now, &mut self.pool);
        self.idle_since = now;
        self.in_gap = !self.pool.online.is_idle();
        if self.in_gap {
            self.slots
                .set(Slot::Launch, now + gap(self.spec, &self.pool.online));
        }
        self.tell(Event::Done, now);
        for request in ended.into_iter().take(ends).chain(more) {
            self.in_flight -= 1;
            let in_flight = self.in_flight;
            self.tell(Event::Ended { request, in_flight }, now);
        }
    }
}

/// The decode gap of `engine` before its next iteration, ns. It belongs to the oldest request of the batch and its token,
/// so that runs which differ by a delay meet the same gaps.
pub(in crate::run) fn gap(spec: &Spec, engine: &Batch) -> u64 {
    let (request, token) = engine.head();
    let key = splitmix64(request).wrapping_add(u64::from(token));
    let mut rng = Rng::new(splitmix64(spec.seed) ^ splitmix64(key));
    ns(spec.online.gaps.draw(&mut rng)).max(1)
}
