//! What the agent's control thread keeps for placement: of each slice the time its gate was open, the memory offline
//! might have had meanwhile, and what fell. By the shell's own words, as the daemon's history.

use tidegate_node::Shell;
use tidegate_policy::ids::{Bytes, GpuId, GpuSet};
use tidegate_policy::placement::{Available, GpuSlice, OpenSets, Slice};

/// The history under way.
#[derive(Debug)]
pub(super) struct Book {
    /// Length of a slice, ns.
    every: u64,
    /// Up to here all is added up.
    until: u64,
    /// Where the slice under way began.
    begun: u64,
    open: GpuSet,
    available: Bytes,
    sets: OpenSets,
    gpu: GpuSlice,
    slices: Vec<Slice>,
    /// Since the trace began: from an opening to the closing.
    gates: Vec<(u64, u64)>,
    zero: u64,
}

impl Book {
    /// Of this GPU; begins at `now`.
    pub fn new(gpu: GpuId, every: u64, pool: u64, now: u64) -> Self {
        Self {
            every,
            until: now,
            begun: now,
            open: GpuSet::EMPTY,
            available: Bytes(pool),
            sets: OpenSets::new(),
            gpu: GpuSlice {
                gpu,
                openings: 0,
                available: Some(Available::of(Bytes(pool))),
            },
            slices: Vec::new(),
            gates: Vec::new(),
            zero: now,
        }
    }

    /// Adds up what stood until `now`, and takes what stands from here on.
    pub fn note(&mut self, shell: &Shell, now: u64) {
        while now - self.begun >= self.every {
            let end = self.begun + self.every;
            self.add(end);
            self.cut();
        }
        self.add(now);
        let open = shell.policy().standing().open;
        if open.contains(self.gpu.gpu) && !self.open.contains(self.gpu.gpu) {
            self.gpu.openings += 1;
            self.gates.push((now - self.zero, u64::MAX));
        } else if !open.contains(self.gpu.gpu)
            && let Some(last) = self.gates.last_mut().filter(|last| last.1 == u64::MAX)
        {
            last.1 = now - self.zero;
        }
        self.open = open;
        if let Some(ledger) = shell.policy().ledger(self.gpu.gpu) {
            let totals = ledger.totals();
            let available = ledger.pool().minus(totals.online).minus(totals.headroom);
            if let Some(own) = &mut self.gpu.available {
                own.moved(self.available, available);
            }
            self.available = available;
        }
    }

    fn add(&mut self, to: u64) {
        let ns = to - self.until;
        self.until = to;
        self.sets.add(self.open, ns);
        if let Some(own) = self
            .gpu
            .available
            .as_mut()
            .filter(|_| self.open.contains(self.gpu.gpu))
        {
            own.add(self.available, ns);
        }
    }

    fn cut(&mut self) {
        let pool = self.gpu.available.map_or(Bytes::ZERO, |own| own.pool);
        let next = GpuSlice {
            gpu: self.gpu.gpu,
            openings: 0,
            available: Some(Available::of(pool)),
        };
        let gpu = core::mem::replace(&mut self.gpu, next);
        self.slices.push(Slice {
            number: self.slices.len() as u64,
            length_ns: self.until - self.begun,
            open: core::mem::take(&mut self.sets),
            gpus: vec![gpu],
        });
        self.begun = self.until;
    }

    /// All of it, with the slice that was under way.
    pub fn close(mut self, shell: &Shell, now: u64) -> (Vec<Slice>, Vec<(u64, u64)>) {
        self.note(shell, now);
        if self.until > self.begun {
            self.cut();
        }
        if let Some(last) = self.gates.last_mut() {
            last.1 = last.1.min(now - self.zero);
        }
        (self.slices, self.gates)
    }
}
