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
        let place = self.queue.next_request;
        let Some(request) = requests.get(place) else {
            return;
        };
        self.queue.next_request += 1;
        if let Some(next) = requests.get(self.queue.next_request) {
            self.slots.set(Slot::Arrival, next.arrival.0);
        }
        let id = place as u64;
        self.pool
            .online
            .admit(id, request.input_tokens, request.output_tokens);
        self.queue.in_flight += 1;
        // Charged for what is over before it came, so that the difference at its end is its own.
        self.kept.outcome.requests[place].preemptions =
            self.counts.preemptions - core::mem::take(&mut self.counts.charge_next);
        let idle = self.online.is_none() && self.slots.at(Slot::Launch) == NEVER;
        if idle {
            self.slots.set(Slot::Launch, now + ns(self.spec.costs.lead));
        } else {
            let wants = self.bytes(self.pool.online.wants());
            self.policies.online_expects(wants, now);
        }
        let event = Event::Arrived {
            request: id,
            in_flight: self.queue.in_flight,
        };
        self.tell(event, now);
    }

    pub(super) fn launch(&mut self, now: u64) {
        let wants = Wants {
            all: self.bytes(self.pool.online.wants()),
            least: self.bytes(self.pool.online.needs()),
        };
        let Grant::Yes(waits) = self.policies.online_wants(wants, now, &mut self.pool) else {
            self.waits.short_since.get_or_insert(now);
            return;
        };
        self.void_offline(now);
        let used = self.pool.online_used();
        let Some(iteration) = self.pool.online.start() else {
            self.waits.starved = !self.pool.online.is_idle();
            return;
        };
        let used = used.max(self.pool.online_used());
        self.kept.outcome.online_kv_peak_bytes = self.kept.outcome.online_kv_peak_bytes.max(used);
        self.kept.outcome.online_iterations += 1;
        self.waits.starved = false;
        self.note_idle(now);
        if self.spec.compute == Compute::Standalone {
            self.kept.demand.push(Demand {
                at: now,
                bytes: used,
                idle: self.kept.idle,
            });
        }
        let mut work = Work::new(iteration);
        work.left += waits;
        self.online = Some(work);
        self.waits.wanted = Some(now);
        if self.pool.online.reads_part() {
            // The rest of it is asked for while this runs.
            let wants = wants.all;
            self.policies.online_expects(wants, now);
        }
        if waits > 0 {
            self.span(SpanKind::Memory, now, now + waits);
        }
        if let Some(since) = self.waits.short_since.take() {
            self.span(SpanKind::Memory, since, now);
        }
        self.waits.held = false;
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
        let (from, oldest) = (self.pause.idle_since, self.queue.oldest);
        let oldest = self.kept.outcome.requests[oldest].arrival.0;
        if self.pause.in_gap {
            // What it waited for memory is no decode gap.
            let until = self.waits.short_since.unwrap_or(now);
            let gap = Duration::from_nanos(until - from.min(until));
            let longest = &mut self.kept.outcome.cooldown.longest_gap;
            *longest = (*longest).max(gap);
        }
        if now > from {
            self.kept.idle += now - from;
            self.kept.stretches.push(Stretch {
                from,
                to: now,
                oldest: if self.pause.in_gap { oldest } else { now },
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
        let (requests, finished) = (&mut self.kept.outcome.requests, &mut self.queue.finished);
        let trace = self.spec.online.trace.requests();
        let preemptions = self.counts.preemptions;
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
        while self
            .queue
            .finished
            .get(self.queue.oldest)
            .copied()
            .unwrap_or(false)
        {
            self.queue.oldest += 1;
        }
        self.policies.online_done(now, &mut self.pool);
        self.pause.idle_since = now;
        self.pause.in_gap = !self.pool.online.is_idle();
        if self.pause.in_gap {
            self.slots
                .set(Slot::Launch, now + gap(self.spec, &self.pool.online));
        }
        self.tell(Event::Done, now);
        for request in ended.into_iter().take(ends).chain(more) {
            self.queue.in_flight -= 1;
            let in_flight = self.queue.in_flight;
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
