//! Trainers: those that follow the library's rules ([`tidegate_core::lease`]), and those that do not.

use super::script::Kind;
use super::words::{Happening, Leases, Own, Trainer};
use crate::dice::{MS, US};
use crate::world::World;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::page::{LEASE_GIVEN, LEASE_NUMBER, LEASE_STATE, LEASED_NUMBER, LEASED_OVER};
use tidegate_core::landing::Landing;
use tidegate_core::lease::{self, Next, Seen};
use tidegate_device::Work;

/// Units that a trainer offers in a row.
const MOST: u32 = 64;

impl World<Leases> {
    fn trainer(&mut self, pid: usize) -> Option<&mut Trainer> {
        let process = self.processes.get_mut(pid)?;
        process.own.trainer().filter(|_| process.alive)
    }

    fn job_of(&self, pid: usize) -> u32 {
        self.processes[pid].job.unwrap_or(0)
    }

    /// It has attached by a new page: it offers units there.
    pub fn offers(&mut self, pid: usize) {
        let Some(trainer) = self.trainer(pid) else {
            return;
        };
        trainer.seen = 0;
        let claimed = trainer.claimed();
        let words = &self.processes[pid].page.process;
        words.unit_ns.store(claimed, Relaxed);
        words.unit.store(lease::unit(true, 512, MOST), Release);
        self.ring(pid);
        self.trains(pid);
    }

    /// Begins a unit, if it may.
    pub fn trains(&mut self, pid: usize) {
        let now = self.now;
        let Some(trainer) = self.trainer(pid) else {
            return;
        };
        if trainer.kind == Kind::Greedy {
            return self.launches_anyway(pid);
        }
        if !trainer.units.is_empty() || trainer.begins || now < trainer.frozen_until {
            return;
        }
        let claimed = trainer.claimed();
        let job = self.job_of(pid);
        for _ in 0..4 {
            let process = &self.processes[pid];
            if !process.attached_once || process.landing != Landing::Obeying {
                return;
            }
            let theirs = process.clock(now);
            let Some(seen) = Seen::of(&process.page.gates[0]) else {
                return;
            };
            let leased = &process.page.memory[0].leased;
            let lent = match lease::next(&seen, leased.load(Acquire), claimed, theirs) {
                Next::Wait => return,
                Next::Over(word) => {
                    leased.store(word, Release);
                    self.play.judge.returned(job, word >> LEASED_NUMBER, now);
                    self.ring(pid);
                    continue;
                }
                Next::Free => None,
                Next::Run(lent) => Some(lent.number),
            };
            let wait = self.dice.between(5 * US, 60 * US);
            if let Some(trainer) = self.trainer(pid) {
                trainer.begins = true;
            }
            return self.play_at(now + wait, Happening::Unit(pid, lent));
        }
    }

    /// A unit is launched, whatever the words say by now.
    pub fn unit_begins(&mut self, pid: usize, number: Option<u64>) {
        let now = self.now;
        let Some((kind, unit)) = self.trainer(pid).map(|own| (own.kind, own.unit)) else {
            return;
        };
        let odd = self.dice.percent(15) && number.is_some();
        let ns = match kind {
            Kind::Late if odd => unit * self.dice.between(2, 8),
            Kind::Returns if number.is_some() => self.dice.between(MS, 40 * MS),
            Kind::Miscounts => unit * self.dice.between(1, 6),
            Kind::Freezes if odd => self.dice.between(20 * MS, 200 * MS),
            _ => unit * self.dice.between(95, 105) / 100,
        };
        if let Some(trainer) = self.trainer(pid) {
            trainer.begins = false;
            trainer.units.push_back(number);
        }
        self.submits(pid, ns);
        match (kind, number) {
            (Kind::Returns, Some(number)) => self.says_over(pid, number, 1),
            (Kind::Freezes, _) if odd => {
                let until = now + self.dice.between(50 * MS, 800 * MS);
                if let Some(trainer) = self.trainer(pid) {
                    trainer.frozen_until = until;
                }
                self.play_at(until, Happening::Thaws(pid));
            }
            (Kind::Dies, _) if odd => {
                self.pending += 1;
                let wait = self.dice.between(0, 2 * unit);
                self.play_at(now + wait, Happening::Dies(pid));
            }
            _ => {}
        }
    }

    fn submits(&mut self, pid: usize, ns: u64) {
        let job = self.job_of(pid);
        let device = &self.processes[pid].devices[0];
        let (gpu, channel) = (device.gpu, device.channels[0].1);
        self.play.judge.unit(job, ns);
        let tag = pid as u64;
        self.device(gpu).submit(channel, Work::Run { ns, tag });
    }

    /// It says that its lease is over, and that so many units of it ran.
    fn says_over(&mut self, pid: usize, number: u64, units: u64) {
        let word = number << LEASED_NUMBER | LEASED_OVER | units;
        let leased = &self.processes[pid].page.memory[0].leased;
        leased.store(word, Release);
        let job = self.job_of(pid);
        self.play.judge.returned(job, number, self.now);
        self.ring(pid);
    }

    /// A unit has ended.
    pub fn unit_ends(&mut self, pid: usize) {
        let now = self.now;
        let frozen = |own: &Trainer| now < own.frozen_until;
        let Some(trainer) = self.trainer(pid) else {
            return;
        };
        let (kind, claimed, stopped) = (trainer.kind, trainer.claimed(), frozen(trainer));
        let number = trainer.units.pop_front().flatten();
        let job = self.job_of(pid);
        if stopped {
            return;
        }
        if let Some(number) = number.filter(|_| kind != Kind::Returns) {
            let process = &self.processes[pid];
            let theirs = process.clock(now);
            let seen = Seen::of(&process.page.gates[0]);
            let leased = &process.page.memory[0].leased;
            let said = leased.load(Acquire);
            if kind == Kind::Miscounts {
                let most = seen.as_ref().map_or(1, |seen| seen.units);
                let units = self.dice.between(0, most);
                self.says_over(pid, number, units);
            } else {
                let (word, over) = lease::done(seen.as_ref(), said, number, true, claimed, theirs);
                leased.store(word, Release);
                if over {
                    self.play.judge.returned(job, number, now);
                    self.ring(pid);
                }
            }
        }
        self.trains(pid);
    }

    /// It keeps kernels queued, and asks nobody.
    fn launches_anyway(&mut self, pid: usize) {
        let device = &self.processes[pid].devices[0];
        let (gpu, channel) = (device.gpu, device.channels[0].1);
        while self.gpus[gpu].queued(channel) < 2 {
            let ns = self.dice.between(500 * US, 6 * MS);
            self.submits(pid, ns);
        }
    }

    /// The words of leases may have changed: the judge reads them.
    pub fn look_at_leases(&mut self) {
        let now = self.now;
        for pid in 0..self.processes.len() {
            let process = &mut self.processes[pid];
            let (ahead, job) = (process.ahead, process.job.unwrap_or(0));
            let words = &process.page.gates[0];
            let (word, until) = (
                words.lease.load(Acquire),
                words.lease_until_ns.load(Acquire),
            );
            let Own::Trainer(trainer) = &mut process.own else {
                continue;
            };
            if !process.alive || trainer.seen == word {
                continue;
            }
            let stood = trainer.seen & LEASE_STATE == LEASE_GIVEN;
            trainer.seen = word;
            if word & LEASE_STATE == LEASE_GIVEN {
                let until = until.saturating_sub(ahead);
                self.play.judge.given(job, word >> LEASE_NUMBER, until, now);
                self.lease_was_given();
            } else if stood {
                self.play.judge.ended(job, now);
            }
        }
    }
}
