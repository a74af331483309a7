//! The engine: it reads prompts, decodes all requests in flight together, and reports its iterations.

use super::words::{Decodes, Engine, Happening, Leases, Turn};
use crate::dice::US;
use crate::world::World;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use tidegate_abi::beats::{self, BATCH_KNOWN, BeatPage};
use tidegate_device::Work;

/// Requests that decode together at most.
const MOST: usize = 32;

impl World<Leases> {
    pub fn engine(&mut self) -> Option<(usize, &mut Engine)> {
        let pid = self
            .processes
            .iter()
            .position(|process| process.is_online())?;
        self.processes[pid].own.engine().map(|engine| (pid, engine))
    }

    /// A request came.
    pub fn request(&mut self, request: usize) {
        let now = self.now;
        let rings = self.play.script.rings;
        let Some((pid, engine)) = self.engine() else {
            return;
        };
        let first = engine.in_flight() == 0;
        engine.waiting.push_back(request);
        let heard = (first || rings) && !self.play.broken.deaf();
        self.play.judge.arrived(request, first || rings, now);
        self.says_flight(pid, heard || first);
        self.begin_turn(pid, 5 * US);
    }

    /// What it says of its requests.
    pub fn engine_word(&mut self) -> u64 {
        self.engine().map_or(1, |own| own.1.in_flight() + 1)
    }

    fn says_flight(&mut self, pid: usize, rings: bool) {
        let Some((_, engine)) = self.engine() else {
            return;
        };
        let word = engine.in_flight() + 1;
        let page = &self.processes[pid].page;
        page.process.in_flight.store(word, Release);
        if rings {
            self.ring(pid);
        }
    }

    fn begin_turn(&mut self, pid: usize, wait: u64) {
        let Some((_, engine)) = self.engine() else {
            return;
        };
        let idle = engine.waiting.is_empty() && engine.decodes.is_empty();
        if !idle && engine.turn.is_none() && !core::mem::replace(&mut engine.begins, true) {
            self.play_at(self.now + wait, Happening::Turn(pid));
        }
    }

    /// An iteration begins.
    pub fn turn_begins(&mut self, pid: usize) {
        let now = self.now;
        let Some((_, engine)) = self.engine() else {
            return;
        };
        engine.begins = false;
        let room = engine.decodes.len() < MOST;
        let prompt = room.then(|| engine.waiting.pop_front()).flatten();
        let (batch, nth) = (engine.decodes.len() as u64, engine.iterations);
        if prompt.is_none() && batch == 0 {
            return;
        }
        engine.turn = Some(Turn { began: now, prompt });
        let script = &self.play.script;
        let ns = match prompt {
            Some(request) => script.requests[request].prompt,
            None => script.decode_ns(nth, batch),
        };
        let graph = if prompt.is_some() {
            0
        } else {
            batch.next_power_of_two()
        };
        let process = &mut self.processes[pid];
        let theirs = process.clock(now);
        let device = &mut process.devices[0];
        let rang = device.launch(&process.page.devices[0], graph, theirs);
        device.returned();
        let (gpu, channel) = (device.gpu, device.channels[0].1);
        let tag = pid as u64;
        self.device(gpu).submit(channel, Work::Run { ns, tag });
        if rang {
            self.ring(pid);
            self.wake_prober(pid);
        }
    }

    /// Its work is done: tokens are out, and the agent is told.
    pub fn turn_ends(&mut self, pid: usize, at: u64) {
        let process = &mut self.processes[pid];
        let theirs = process.clock(at);
        process.devices[0].outstanding -= 1;
        process.devices[0].synced(theirs);
        let requests = self.play.script.requests.clone();
        let Some((_, engine)) = self.engine() else {
            return;
        };
        let Some(turn) = engine.turn.take() else {
            return;
        };
        engine.iterations += 1;
        let batch = engine.decodes.len() as u64;
        let mut done = Vec::new();
        match turn.prompt {
            Some(request) => engine.decodes.push(Decodes {
                request,
                left: requests[request].tokens,
                first: at,
            }),
            None => {
                for decodes in &mut engine.decodes {
                    decodes.left -= 1;
                }
                let ended = engine.decodes.iter().filter(|own| own.left == 0);
                done.extend(ended.copied());
                engine.decodes.retain(|own| own.left > 0);
            }
        }
        for own in done {
            let of = &requests[own.request];
            let ttft = own.first - of.at;
            let tpot = (at - own.first) / of.tokens;
            self.play.judge.served(own.request, ttft, tpot, at);
            self.acts();
        }
        self.says_flight(pid, false);
        self.beat(pid, turn, batch, at);
        let gap = self.play.script.gap;
        self.begin_turn(pid, gap);
    }

    fn beat(&mut self, pid: usize, turn: Turn, batch: u64, at: u64) {
        let waiting: u64 = {
            let script = self.play.script.clone();
            let Some((_, engine)) = self.engine() else {
                return;
            };
            let waits = engine.waiting.iter();
            waits
                .map(|request| script.requests[*request].prompt / (20 * US))
                .sum()
        };
        let Some((_, engine)) = self.engine() else {
            return;
        };
        let (Some(page), flight) = (engine.page.clone(), engine.in_flight()) else {
            return self.ring_if_idle(pid);
        };
        let decodes = turn.prompt.is_none();
        let waits = engine.waiting.len() as u64;
        let process = &self.processes[pid];
        let words = &page.devices[0];
        words.version.fetch_add(1, AcqRel);
        words.count.fetch_add(1, Relaxed);
        words.begin_ns.store(process.clock(turn.began), Relaxed);
        words.end_ns.store(process.clock(at), Relaxed);
        let shape = if decodes {
            batch.next_power_of_two()
        } else {
            1_000
        };
        words.fingerprint.store(shape, Relaxed);
        let decoded = if decodes { batch } else { 0 };
        words.batch.store(BATCH_KNOWN | decoded, Relaxed);
        words.cached.store(flight * 500, Relaxed);
        words.prompt.store(u64::from(!decodes) * 100, Relaxed);
        words.waiting_tokens.store(waiting, Relaxed);
        words.waiting.store(waits, Relaxed);
        words.version.fetch_add(1, AcqRel);
        self.ring(pid);
    }

    /// Without beats it rings when its last request has ended.
    fn ring_if_idle(&mut self, pid: usize) {
        let idle = self.engine().is_some_and(|own| own.1.in_flight() == 0);
        if idle {
            self.ring(pid);
        }
    }

    /// The agent asked for the page of its iterations.
    pub fn new_beats(&mut self) {
        let page = BeatPage::default();
        page.header.magic.store(beats::MAGIC, Relaxed);
        page.header.major.store(beats::MAJOR, Relaxed);
        if let Some((_, engine)) = self.engine() {
            engine.page = Some(Arc::new(page));
        }
    }
}
