//! KV caches that an engine registered, and the operations on their stripes.
//!
//! Only registered memory is ever reclaimed. Weights, graph pools and workspaces that were allocated in a KV scope by
//! accident are backed by handles, but never taken.

use super::backed::{Backed, Failed, Range};
use super::vmm::{Refused, Vmm};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tidegate_core::elastic::Elastic;
use tidegate_core::joblog::Member;
use tidegate_core::stripes::{self, Backing, BadRegions, Piece, Region, Stripes};
use tidegate_proto::v1;

/// A registered cache.
#[derive(Debug)]
pub struct Kv {
    /// Its number.
    pub id: u32,
    /// CUDA ordinal.
    pub device: usize,
    /// Of each handle.
    pub handle_bytes: u64,
    /// First addresses of the allocations its regions are in.
    pub bases: Vec<u64>,
    /// How it is cut.
    pub cut: Stripes,
    /// By stripe: memory of its own stands behind it.
    pub backed: Vec<bool>,
    /// By stripe: the entry of the job's log after which its blocks count as lost.
    lost_at: Vec<u64>,
    /// Online: what may be used. Its lock is never held over a call of the driver.
    pub elastic: Option<Arc<Mutex<Elastic>>>,
    /// Why it is never reclaimed from; empty: it may be.
    pub refused: String,
}

/// Why a cache cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKv {
    /// The regions make no sense.
    #[error(transparent)]
    Regions(#[from] BadRegions),
    /// Its allocations have handles of different sizes, or are of different devices.
    #[error("its allocations differ in device or size of handles")]
    Mixed,
    /// A part of it that always needs memory got none.
    #[error("no memory for the part that always has some: {bytes} bytes")]
    NoMemory {
        /// CUDA ordinal.
        device: usize,
        /// Of that part.
        bytes: u64,
    },
}

/// What became of an order about stripes.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Stripes done.
    pub stripes: Vec<u32>,
    /// Bytes of their handles.
    pub bytes: u64,
    /// The driver's answer, if it refused.
    pub refused: Option<Refused>,
    /// Not mapped at all: allocation, first piece, count.
    pub torn: Vec<(u64, usize, usize)>,
}

/// Consecutive pieces of one allocation.
type Run = (u64, usize, usize);

/// Handles changed at once: what a failure undoes and a cancel waits for.
const AT_ONCE: usize = 64;

impl Kv {
    /// Cuts `regions`, which lie in allocations of `backed`.
    pub fn new(
        id: u32,
        backed: &Backed,
        regions: &[Region],
        protected: u32,
        elastic: bool,
    ) -> Result<Self, BadKv> {
        let mut bases = Vec::new();
        for (index, region) in regions.iter().enumerate() {
            let range = backed.find(region.base);
            let base = range.ok_or(BadRegions::NotBacked(index))?.base;
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
        let ranges: Vec<&Range> = bases.iter().filter_map(|base| backed.find(*base)).collect();
        let first = ranges.first().ok_or(BadRegions::Empty)?;
        let (device, handle_bytes) = (first.device, first.handle_bytes);
        let alike = |range: &&Range| (range.device, range.handle_bytes) == (device, handle_bytes);
        if !ranges.iter().all(alike) {
            return Err(BadKv::Mixed);
        }
        let backings: Vec<Backing> = ranges
            .iter()
            .map(|range| Backing {
                base: range.base,
                bytes: range.bytes,
            })
            .collect();
        let cut = stripes::cut(regions, &backings, handle_bytes, protected)?;
        let own = |piece: &Piece| {
            let range = ranges.get(piece.backing as usize);
            range.is_some_and(|r| {
                r.handles
                    .get(piece.handle as usize)
                    .is_some_and(|h| *h != 0)
            })
        };
        let backed_now: Vec<bool> = cut
            .stripes
            .iter()
            .map(|s| s.handles.iter().all(own))
            .collect();
        let refused = if ranges.iter().any(|range| range.shared) {
            SHARED.to_owned()
        } else {
            String::new()
        };
        let count = cut.block_count;
        let growing = elastic.then(|| {
            let mut growing = Elastic::new(&cut.stripes, handle_bytes, count, protected);
            // An engine that registered it in vain first has memory behind all of it.
            let stands = backed_now.iter().enumerate().filter(|(_, own)| **own);
            stands.for_each(|(at, _)| growing.mapped(at));
            Arc::new(Mutex::new(growing))
        });
        Ok(Self {
            id,
            device,
            handle_bytes,
            bases,
            lost_at: vec![0; cut.stripes.len()],
            cut,
            backed: backed_now,
            elastic: growing,
            refused,
        })
    }

    /// What the agent is told of it.
    pub fn describe(&self, rank: u32, world: u32, job: &str) -> v1::KvRegistered {
        let mut bits = vec![0_u8; self.backed.len().div_ceil(8)];
        for (at, _) in self.backed.iter().enumerate().filter(|(_, own)| **own) {
            bits[at / 8] |= 1 << (at % 8);
        }
        let stripes = &self.cut.stripes;
        v1::KvRegistered {
            kv: self.id,
            slot: u32::try_from(self.device).unwrap_or(0),
            rank,
            world,
            job: job.to_owned(),
            handle_bytes: self.handle_bytes,
            block_count: self.cut.block_count,
            first_block: stripes.iter().map(|s| s.first_block).collect(),
            blocks: stripes.iter().map(|s| s.blocks).collect(),
            handles: stripes
                .iter()
                .map(|s| u32::try_from(s.handles.len()).unwrap_or(u32::MAX))
                .collect(),
            backed: bits,
            fixed_bytes: self.cut.fixed.len() as u64 * self.handle_bytes,
            refused: self.refused.clone(),
            elastic: self.elastic.is_some(),
            ..v1::KvRegistered::default()
        }
    }

    /// The pieces of some handles, as runs.
    fn runs(&self, pieces: impl Iterator<Item = Piece>) -> Vec<Run> {
        let mut pieces: Vec<Piece> = pieces.collect();
        pieces.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for piece in pieces {
            let base = self.bases.get(piece.backing as usize).copied().unwrap_or(0);
            let index = piece.handle as usize;
            match runs.last_mut() {
                Some((at, first, count)) if *at == base && *first + *count == index => *count += 1,
                _ => runs.push((base, index, 1)),
            }
        }
        runs
    }

    fn pieces(&self, stripes: &[u32]) -> impl Iterator<Item = Piece> {
        let known = stripes
            .iter()
            .filter_map(|at| self.cut.stripes.get(*at as usize));
        known.flat_map(|stripe| stripe.handles.iter().copied())
    }

    /// Stripes of an order that can be carried out, in groups of about [`AT_ONCE`] handles.
    fn groups(&self, stripes: &[u32], backed: bool) -> Vec<Vec<u32>> {
        let mut wanted: Vec<u32> = stripes
            .iter()
            .copied()
            .filter(|at| self.backed.get(*at as usize) == Some(&backed))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut groups: Vec<(usize, Vec<u32>)> = Vec::new();
        for at in wanted {
            let handles = self.cut.stripes[at as usize].handles.len();
            match groups.last_mut() {
                Some((count, group)) if *count + handles <= AT_ONCE => {
                    *count += handles;
                    group.push(at);
                }
                _ => groups.push((handles, vec![at])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn ids(&self, at: u32) -> (u32, u32) {
        let stripe = &self.cut.stripes[at as usize];
        (stripe.first_block, stripe.blocks)
    }

    /// Reclaims stripes: the log first, then the quarantine page over them, then the handles.
    pub fn reclaim(
        &mut self,
        vmm: &Vmm,
        backed: &mut Backed,
        log: Option<&Member<'_>>,
        stripes: &[u32],
        go_on: impl Fn() -> bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for group in self.groups(stripes, true) {
            if !go_on() {
                break;
            }
            let mut told = Vec::new();
            for at in &group {
                let (first, count) = self.ids(*at);
                // Without a log there is nobody who could be told, and nothing is reclaimed.
                match log.map(|log| log.lose(first, count)) {
                    Some(Ok(number)) => told.push((*at, number)),
                    _ => break,
                }
            }
            if told.is_empty() {
                break;
            }
            let group: Vec<u32> = told.iter().map(|(at, _)| *at).collect();
            let Some(old) = self.exchange(vmm, backed, &group, |_| 0, &mut outcome) else {
                for at in &group {
                    let (first, count) = self.ids(*at);
                    let _ = log.map(|log| log.regain(first, count));
                }
                break;
            };
            self.gave_up(vmm, old, &mut outcome);
            for (at, number) in told {
                self.backed[at as usize] = false;
                self.lost_at[at as usize] = number;
                outcome.stripes.push(at);
            }
        }
        outcome
    }

    fn gave_up(&self, vmm: &Vmm, handles: Vec<u64>, outcome: &mut Outcome) {
        for handle in handles.into_iter().filter(|handle| *handle != 0) {
            let _ = vmm.give_up(handle);
            outcome.bytes += self.handle_bytes;
        }
    }

    /// Reclaims stripes whose blocks nobody uses, without a word to anybody.
    pub fn reclaim_unused(&mut self, vmm: &Vmm, backed: &mut Backed, stripes: &[u32]) -> Outcome {
        let mut outcome = Outcome::default();
        for group in self.groups(stripes, true) {
            let Some(old) = self.exchange(vmm, backed, &group, |_| 0, &mut outcome) else {
                break;
            };
            self.gave_up(vmm, old, &mut outcome);
            for at in group {
                self.backed[at as usize] = false;
                outcome.stripes.push(at);
            }
        }
        outcome
    }

    /// Restores stripes: memory of their own stands behind them again.
    pub fn restore(
        &mut self,
        vmm: &Vmm,
        backed: &mut Backed,
        log: Option<&Member<'_>>,
        stripes: &[u32],
        go_on: impl Fn() -> bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for group in self.groups(stripes, false) {
            if !go_on() {
                break;
            }
            let count = self.pieces(&group).count();
            let base = self.bases.first().copied().unwrap_or(0);
            let fresh = match backed.make(vmm, base, count) {
                Ok(fresh) => fresh,
                Err(refused) => {
                    outcome.refused = Some(refused);
                    break;
                }
            };
            let exchanged = self.exchange(vmm, backed, &group, |at| fresh[at], &mut outcome);
            if exchanged.is_none() {
                let held: Vec<u64> = backed.all().flat_map(|r| r.handles.clone()).collect();
                for handle in fresh.iter().filter(|handle| !held.contains(handle)) {
                    let _ = vmm.give_up(*handle);
                }
                break;
            }
            outcome.bytes += count as u64 * self.handle_bytes;
            for at in group {
                self.backed[at as usize] = true;
                let (first, count) = self.ids(at);
                // There is room: as much was lost before, and the engine has read it.
                let _ = log.map(|log| log.regain(first, count));
                outcome.stripes.push(at);
            }
        }
        outcome
    }

    /// Puts other handles behind a group, all or none; those that were there. `None`: it failed.
    fn exchange(
        &self,
        vmm: &Vmm,
        backed: &mut Backed,
        group: &[u32],
        fresh: impl Fn(usize) -> u64,
        outcome: &mut Outcome,
    ) -> Option<Vec<u64>> {
        let mut done: Vec<(Run, Vec<u64>)> = Vec::new();
        let mut used = 0;
        for run in self.runs(self.pieces(group)) {
            let (base, first, count) = run;
            let handles: Vec<u64> = (used..used + count).map(&fresh).collect();
            used += count;
            match backed.replace(vmm, base, first, &handles) {
                Ok(old) => done.push((run, old)),
                Err(failed) => {
                    outcome.refused = Some(failed.refused());
                    if matches!(failed, Failed::Torn(_)) {
                        outcome.torn.push(run);
                    }
                    for ((base, first, count), old) in done {
                        if let Err(Failed::Torn(_)) = backed.replace(vmm, base, first, &old) {
                            outcome.torn.push((base, first, count));
                        }
                    }
                    return None;
                }
            }
        }
        Some(done.into_iter().flat_map(|(_, old)| old).collect())
    }

    /// Backs what is in no stripe, for a cache that was made without memory.
    pub fn back_fixed(&self, vmm: &Vmm, backed: &mut Backed) -> Result<(), Refused> {
        let bare = |piece: &Piece| {
            let base = self.bases.get(piece.backing as usize);
            let range = base.and_then(|base| backed.find(*base));
            range.is_some_and(|range| range.handles.get(piece.handle as usize) == Some(&0))
        };
        let bare: Vec<Piece> = self.cut.fixed.iter().copied().filter(bare).collect();
        for (base, first, count) in self.runs(bare.into_iter()) {
            let fresh = backed.make(vmm, base, count)?;
            if let Err(failed) = backed.replace(vmm, base, first, &fresh) {
                for handle in fresh {
                    let _ = vmm.give_up(handle);
                }
                return Err(failed.refused());
            }
        }
        Ok(())
    }

    /// Takes note of stripes that were backed without an order.
    pub fn look(&mut self, backed: &Backed, log: Option<&Member<'_>>) {
        for at in (0..).take(self.backed.len()) {
            let own = |piece: Piece| {
                let base = self.bases.get(piece.backing as usize);
                let range = base.and_then(|base| backed.find(*base));
                let handle = range.and_then(|range| range.handles.get(piece.handle as usize));
                handle.is_some_and(|handle| *handle != 0)
            };
            if !self.backed[at as usize] && self.pieces(&[at]).all(own) {
                self.backed[at as usize] = true;
                let (first, count) = self.ids(at);
                let _ = log.map(|log| log.regain(first, count));
            }
        }
    }

    /// The cache is gone: what it missed is nobody's loss any more.
    pub fn forget(&self, log: Option<&Member<'_>>) {
        let missing = self.backed.iter().zip(&self.cut.stripes);
        for (_, stripe) in missing.filter(|(backed, _)| !**backed && self.elastic.is_none()) {
            let _ = log.map(|log| log.regain(stripe.first_block, stripe.blocks));
        }
    }

    /// Whether the engine withholds the blocks of every one of these stripes.
    pub fn withheld(&self, log: Option<&Member<'_>>, stripes: &[u32]) -> bool {
        let withheld = log.map_or(0, |log| log.shared().withheld());
        let lost_at = stripes
            .iter()
            .filter_map(|at| self.lost_at.get(*at as usize));
        lost_at.copied().all(|number| number <= withheld)
    }

    /// Entry of the log that names everything lost with these stripes.
    pub fn lost_at(&self, stripes: &[u32]) -> u64 {
        let lost_at = stripes
            .iter()
            .filter_map(|at| self.lost_at.get(*at as usize));
        lost_at.copied().max().unwrap_or(0)
    }
}

/// Why a cache whose pages others hold is not reclaimed from.
pub const SHARED: &str = "its memory was exported or registered with another device";

/// The caches of the process.
pub type Kvs = BTreeMap<u32, Kv>;
