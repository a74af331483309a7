//! Which online processes are busy on which GPU, since when, and what their gaps teach.
//!
//! Only the process writes the words that say busy and idle. Each of its time stamps is therefore read as at most
//! `now`, and never as older than the edge before it: a process that lies changes its own gaps and nothing else.
//! Activity comes from readings of those words, not from edges. A doorbell that is coalesced or lost costs time, but
//! the reading is right: the generation in the word says how many edges were missed.
//!
//! An engine may also report that requests are in flight. The first of them shuts an open gate before its first kernel,
//! and no gap between their iterations opens it. Such a report costs the process nothing, so it counts only as long as
//! work follows. A process that reports requests and then works on no GPU for `frozen_after` is doubted, and so is one
//! whose last request ended without work. Its reports count again once it has worked.
//!
//! The opposite also happens. A process that reports its requests, and whose gaps therefore need no cooldown, may work
//! on something that it did not report: its hook misses some requests, or a word is stuck. From then on it counts as a
//! process that reports nothing, until it reports the next request.

use crate::budget::Worked;
use crate::config::{Learning, Suspects};
use crate::event::Reading;
use crate::gap::{Gap, Iterations, Pattern};
use crate::ids::{GpuId, RequestId, SessionId};
use crate::time::Instant;
use core::time::Duration;

/// Requests followed per process; beyond that they only count as in flight.
const REQUESTS: usize = 4096;

/// One process.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub id: SessionId,
    devices: Vec<Device>,
    progress: Instant,
    lapsed: bool,
    hinted: bool,
    /// It began to work while it said that no request is in flight.
    strayed: bool,
    requests: Vec<RequestId>,
    /// Requests beyond [`REQUESTS`].
    untracked: u64,
    /// Times the last request in flight ended.
    drained: u64,
    /// When the first of those in flight came, and whether it worked since.
    arrived: Instant,
    worked: bool,
    /// When work of its was last seen.
    seen_at: Instant,
    /// Its requests are doubted for no time before this: the agent was away.
    watched_from: Instant,
    /// What it says of requests is not believed.
    doubted: bool,
}

#[derive(Clone, Debug)]
struct Device {
    gpu: GpuId,
    reading: Option<Reading>,
    /// Start of the busy period, or end of it.
    busy_since: Instant,
    idle_since: Instant,
    suspect: bool,
    iterations: Iterations,
    gap: Option<Gap>,
    gap_in_request: bool,
    /// `Session::drained` at the start of the gap, if a request was in flight then.
    flight: Option<u64>,
}

/// What a reading said that the gate must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Online began to work, or did so unseen, and rang then.
    pub edge: Option<Instant>,
    /// It worked.
    pub worked: Option<Worked>,
    /// Decode gaps that nobody saw, and what each was shorter than.
    pub unseen: Option<(u64, Duration)>,
}

/// A reading, and what counts for all that it says.
struct Told<'a> {
    reading: Reading,
    /// `Session::drained`, if a request is in flight.
    flight: Option<u64>,
    /// The process says when requests come.
    hinted: bool,
    learning: Option<&'a Learning>,
}

impl Device {
    fn busy(&self) -> bool {
        self.reading.is_some_and(|reading| reading.busy)
    }

    fn counts(&self, suspects: Suspects) -> bool {
        self.busy() && !(self.suspect && suspects == Suspects::Ignore)
    }

    /// A busy period ended at `idle_since`. `known`: nothing came unseen between it and the reading before.
    fn end_period(
        &mut self,
        known: bool,
        idle_since: Instant,
        told: &Told<'_>,
        seen: &mut Seen,
        decode: &mut impl FnMut(Gap),
    ) {
        let gap = self.gap.take().filter(|_| known);
        let turns = told.reading.turns;
        let pattern = Pattern {
            launches: told.reading.launches,
            graph: told.reading.graph,
        };
        if known {
            let span = idle_since.since(self.busy_since);
            seen.unseen = Some((turns.gaps(span), turns.apart));
            seen.worked = Some(Worked {
                span,
                decoded: self.iterations.is_decode(pattern),
            });
        }
        self.flight = told.flight;
        match told.learning {
            Some(_) if told.hinted => {
                if let Some(gap) = gap.filter(|_| self.gap_in_request) {
                    decode(gap);
                }
            }
            Some(learning) => {
                self.iterations.ended(pattern, turns, gap, learning, decode);
            }
            None => {}
        }
        self.idle_since = idle_since;
    }

    /// Follows the edges between the reading `before` and this one.
    fn follow(
        &mut self,
        before: Option<Reading>,
        told: &Told<'_>,
        opened: Option<Instant>,
        now: Instant,
        decode: &mut impl FnMut(Gap),
    ) -> Seen {
        let was_busy = before.is_some_and(|before| before.busy);
        // Edges since the last reading beyond the one that explains the new state.
        let steps = before.map(|before| told.reading.generation.wrapping_sub(before.generation));
        let idle_since = told.reading.idle_since.min(now);
        let mut seen = Seen::default();
        let mut edge = None;
        let mut end_period = |device: &mut Device, known, idle_since| {
            device.end_period(known, idle_since, told, &mut seen, decode);
        };
        match (was_busy, told.reading.busy) {
            (true, false) => {
                let idle_since = idle_since.max(self.busy_since);
                end_period(self, steps == Some(1), idle_since);
                if steps != Some(1) {
                    edge = Some(idle_since);
                }
            }
            (true, true) => {
                let busy_since = told.reading.busy_since.min(now);
                let idle_since = idle_since.clamp(self.busy_since, busy_since.max(self.busy_since));
                end_period(self, steps == Some(2), idle_since);
                self.gap_ended(busy_since.max(idle_since), opened, told.flight);
                edge = Some(self.busy_since);
            }
            (false, true) => {
                let known = steps == Some(1);
                if before.is_some() && !known {
                    // Whole periods went by: the last one ended at `idle_since`.
                    self.gap = None;
                    end_period(self, false, idle_since.max(self.idle_since));
                }
                let stamp = told.reading.busy_since.min(now);
                let busy_since = if stamp < self.idle_since { now } else { stamp };
                if before.is_some() {
                    self.gap_ended(busy_since, opened, told.flight);
                } else {
                    self.busy_since = busy_since;
                }
                edge = Some(busy_since);
            }
            (false, false) if before.is_some() => {
                let idle_since = idle_since.max(self.idle_since);
                let busy_since = told
                    .reading
                    .busy_since
                    .min(now)
                    .clamp(self.idle_since, idle_since);
                self.gap_ended(busy_since, opened, told.flight);
                end_period(self, steps == Some(2), idle_since);
                edge = Some(busy_since);
            }
            (false, false) => self.idle_since = idle_since,
        }
        seen.edge = edge;
        seen
    }

    /// A gap ended at `busy_since`; `flight` is `Session::drained` if a request is in flight.
    fn gap_ended(&mut self, busy_since: Instant, opened: Option<Instant>, flight: Option<u64>) {
        self.gap_in_request = flight.is_some() && self.flight == flight;
        self.gap = Some(Gap {
            span: busy_since.since(self.idle_since),
            end: busy_since,
            woke: opened.is_some_and(|at| at >= self.idle_since),
        });
        self.busy_since = busy_since;
    }
}

impl Session {
    pub fn new(id: SessionId, now: Instant) -> Self {
        Self {
            id,
            devices: Vec::new(),
            progress: now,
            lapsed: false,
            hinted: false,
            strayed: false,
            requests: Vec::new(),
            untracked: 0,
            drained: 0,
            arrived: now,
            worked: false,
            seen_at: Instant::default(),
            watched_from: Instant::default(),
            doubted: false,
        }
    }

    fn device(&mut self, gpu: GpuId) -> &mut Device {
        let place = match self.devices.iter().position(|device| device.gpu == gpu) {
            Some(place) => place,
            None => {
                self.devices.push(Device {
                    gpu,
                    reading: None,
                    busy_since: Instant::default(),
                    idle_since: Instant::default(),
                    suspect: false,
                    iterations: Iterations::default(),
                    gap: None,
                    gap_in_request: false,
                    flight: None,
                });
                self.devices.len() - 1
            }
        };
        &mut self.devices[place]
    }

    /// Takes a reading. `opened` is when the gate of that GPU last opened; `decode` gets every gap
    /// that turns out to be a decode gap.
    pub fn read(
        &mut self,
        gpu: GpuId,
        reading: Reading,
        opened: Option<Instant>,
        learning: Option<&Learning>,
        now: Instant,
        mut decode: impl FnMut(Gap),
    ) -> Seen {
        let hinted = self.hinted();
        let flight = self.in_flight().then_some(self.drained);
        let device = self.device(gpu);
        let before = device.reading;
        if before.is_some_and(|b| b.generation == reading.generation && b.busy == reading.busy) {
            return Seen::default();
        }
        device.reading = Some(reading);
        let told = Told {
            reading,
            flight,
            hinted,
            learning,
        };
        let seen = device.follow(before, &told, opened, now, &mut decode);
        // A request that came with this work is told of right after it, and takes this back. What it worked on before
        // it was known to use this GPU was begun under a word that nobody heard.
        self.strayed |= seen.edge.is_some() && before.is_some() && flight.is_none() && self.hinted;
        if reading.busy || seen.edge.is_some() {
            self.worked = true;
            self.seen_at = now;
            self.doubted = false;
        }
        self.progressed(now);
        seen
    }

    /// The agent was away for so long: that nothing was heard of the process in this time says nothing of it.
    pub fn unwatched(&mut self, lasted: Duration, now: Instant) {
        self.progress = self.progress.after(lasted).min(now);
        self.watched_from = self.without_work_since().after(lasted).min(now);
    }

    /// Since when no work came of the requests that it says are in flight, as far as the agent watched.
    fn without_work_since(&self) -> Instant {
        let worked = self.devices.iter().map(|device| device.idle_since);
        worked.fold(self.arrived.max(self.watched_from), Ord::max)
    }

    /// The prober made a round. Says whether a lapsed process counts again.
    pub fn progressed(&mut self, at: Instant) -> bool {
        if at <= self.progress {
            return false;
        }
        self.progress = at;
        core::mem::take(&mut self.lapsed)
    }

    /// Checks for lack of progress. Says whether the process lapsed just now.
    pub fn lapse(&mut self, frozen_after: Duration, now: Instant) -> bool {
        let due = self.lapses_at(frozen_after).is_some_and(|at| now >= at);
        self.lapsed |= due;
        due
    }

    /// Whether it froze while busy.
    pub fn lapsed(&self) -> bool {
        self.lapsed
    }

    /// When it lapses without progress.
    pub fn lapses_at(&self, frozen_after: Duration) -> Option<Instant> {
        let busy = self.devices.iter().any(Device::busy);
        (busy && !self.lapsed).then(|| self.progress.after(frozen_after))
    }

    /// Whether requests in flight keep the gates of its GPUs shut.
    pub fn holds(&self) -> bool {
        self.in_flight() && !self.lapsed && !self.doubted
    }

    /// Whether it began to be doubted just now.
    pub fn doubt(&mut self, patience: Duration, now: Instant) -> bool {
        let due = self.doubted_at(patience).is_some_and(|at| now >= at);
        self.doubted |= due;
        due
    }

    /// When it is doubted, if no work comes.
    pub fn doubted_at(&self, patience: Duration) -> Option<Instant> {
        let idle = !self.devices.iter().any(Device::busy);
        (self.holds() && idle).then(|| self.without_work_since().after(patience))
    }

    pub fn suspected(&mut self, gpu: GpuId, suspect: bool) {
        self.device(gpu).suspect = suspect;
    }

    /// Whether its edges on that GPU shut the gate.
    pub fn edges_count(&self, gpu: GpuId, suspects: Suspects) -> bool {
        suspects == Suspects::Busy || !self.devices.iter().any(|d| d.gpu == gpu && d.suspect)
    }

    /// Whether it keeps offline off that GPU.
    pub fn busy_on(&self, gpu: GpuId, suspects: Suspects) -> bool {
        !self.lapsed
            && self
                .devices
                .iter()
                .any(|d| d.gpu == gpu && d.counts(suspects))
    }

    /// Whether it uses that GPU.
    pub fn uses(&self, gpu: GpuId) -> bool {
        self.devices.iter().any(|device| device.gpu == gpu)
    }

    /// GPUs it uses.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + '_ {
        self.devices.iter().map(|device| device.gpu)
    }

    /// Whether it gives lifecycle hints of all that it does.
    pub fn hinted(&self) -> bool {
        self.hinted && !self.strayed
    }

    /// Whether a request it told us about is in flight.
    pub fn in_flight(&self) -> bool {
        !self.requests.is_empty() || self.untracked > 0
    }

    /// Requests in flight that are followed one by one.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.requests.iter().copied()
    }

    /// Says whether that was news.
    pub fn request_started(&mut self, request: RequestId, now: Instant) -> bool {
        (self.hinted, self.strayed) = (true, false);
        if self.requests.contains(&request) {
            return false;
        }
        if !self.in_flight() {
            self.arrived = now;
            // Work that is seen together with the word is already its own.
            self.worked = self.seen_at == now || self.devices.iter().any(Device::busy);
        }
        if self.requests.len() >= REQUESTS {
            self.untracked += 1;
            return false;
        }
        self.requests.push(request);
        true
    }

    /// Says whether it was in flight.
    pub fn request_ended(&mut self, request: RequestId) -> bool {
        self.hinted = true;
        let known = self.requests.iter().position(|r| *r == request);
        match known {
            Some(place) => {
                self.requests.swap_remove(place);
            }
            None if self.untracked > 0 => self.untracked -= 1,
            None => return false,
        }
        if !self.in_flight() {
            self.drained += 1;
            self.doubted |= !self.worked;
        }
        known.is_some()
    }
}
