//! The GPUs of the node and their issue threads.

use crate::counters::Counters;
use crate::journal::Place;
use crate::kinds::{Gpu, Tenant, gpu_id};
use crate::latency::Latencies;
use crate::page::Guards;
use crate::ports::Issuer;
use crate::task::{Issue, Release, Slicing, Task};
use std::sync::Arc;
use tidegate_policy::ids::GpuId;

/// A GPU of the node and its issue thread.
#[derive(Debug)]
pub struct GpuLine {
    /// Which.
    pub gpu: Gpu,
    issuer: Option<Box<dyn Issuer>>,
    pub(crate) guards: Arc<Guards>,
    /// Orders the issue thread has not answered.
    pending: u32,
    /// Since when it owes the next answer.
    pending_since: u64,
    /// It has sat in one call for longer than allowed.
    pub stalled: bool,
    /// From the busy edge to the return of the last disable.
    pub preempt: Latencies,
    /// From the busy edge to the entry of the last disable.
    pub gate: Latencies,
    /// Times online came under pressure.
    pub pressure_events: u64,
}

impl GpuLine {
    fn new(gpu: Gpu, issuer: Option<Box<dyn Issuer>>) -> Self {
        Self {
            gpu,
            issuer,
            guards: Arc::default(),
            pending: 0,
            pending_since: 0,
            stalled: false,
            preempt: Latencies::new(),
            gate: Latencies::new(),
            pressure_events: 0,
        }
    }
}

/// All GPUs, by index.
#[derive(Debug)]
pub struct Gpus {
    lines: Vec<GpuLine>,
    /// How many more may be met.
    unseen: usize,
    /// Those that were met, and who named them first.
    met: Vec<(GpuId, Tenant)>,
}

/// Whether a GPU that a process names was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// It was.
    Known,
    /// It takes the place of one that nobody uses any more.
    Instead,
    /// It was not.
    New,
}

impl Gpus {
    /// These, each with its issue thread, and as many as processes may name.
    pub(crate) fn new(gpus: Vec<(Gpu, Option<Box<dyn Issuer>>)>, unseen: usize) -> Self {
        let gpus = gpus.into_iter();
        Self {
            lines: gpus
                .map(|(gpu, issuer)| GpuLine::new(gpu, issuer))
                .collect(),
            unseen,
            met: Vec::new(),
        }
    }

    /// All of them.
    #[must_use]
    pub fn lines(&self) -> &[GpuLine] {
        &self.lines
    }

    /// One.
    #[must_use]
    pub fn get(&self, gpu: GpuId) -> Option<&GpuLine> {
        self.lines.get(gpu.index())
    }

    pub(crate) fn get_mut(&mut self, gpu: GpuId) -> Option<&mut GpuLine> {
        self.lines.get_mut(gpu.index())
    }

    /// Their names.
    pub(crate) fn ids(&self) -> impl Iterator<Item = GpuId> + use<> {
        (0..self.lines.len()).map(gpu_id)
    }

    /// Those there are and may be.
    pub(crate) fn count(&self) -> u8 {
        u8::try_from(self.lines.len() + self.unseen).unwrap_or(u8::MAX)
    }

    /// Whether an online process that counts is busy on `gpu` at this moment.
    pub(crate) fn is_online_busy(&self, gpu: GpuId) -> bool {
        self.get(gpu).is_some_and(|line| line.guards.any_busy())
    }

    /// The GPU that a channel's process named, by UUID or by the driver's number.
    pub(crate) fn of_channel(
        &self,
        uuid: Option<[u8; 16]>,
        instance: Option<u32>,
    ) -> Option<GpuId> {
        let by_uuid =
            uuid.and_then(|uuid| self.lines.iter().position(|line| line.gpu.uuid == uuid));
        by_uuid.or_else(|| self.at(instance?)).map(gpu_id)
    }

    /// The GPU with that number of the driver's.
    pub(crate) fn at(&self, instance: u32) -> Option<usize> {
        let same = |line: &GpuLine| line.gpu.device_instance == instance;
        self.lines.iter().position(same)
    }

    /// The GPU of this UUID, as `tenant` names it: one that was not listed is met, if one may be. UUIDs are free to
    /// invent, so a tenant meets no more than are left afterwards; and where none is left one that nobody uses gives way.
    pub(crate) fn named(
        &mut self,
        uuid: [u8; 16],
        tenant: &Tenant,
        is_used: impl Fn(GpuId) -> bool,
    ) -> Option<(GpuId, Met)> {
        let known = self.lines.iter().position(|line| line.gpu.uuid == uuid);
        if let Some(at) = known {
            return Some((gpu_id(at), Met::Known));
        }
        let own = self.met.iter().filter(|(_, by)| by == tenant).count();
        if own >= self.unseen {
            let idle = self.met.iter_mut().find(|(gpu, _)| !is_used(*gpu))?;
            idle.1 = tenant.clone();
            let gpu = idle.0;
            self.lines.get_mut(gpu.index())?.gpu.uuid = uuid;
            return Some((gpu, Met::Instead));
        }
        self.unseen -= 1;
        let gpu = Gpu {
            // No driver says it, and nobody is asked by it at the launch gate.
            device_instance: u32::MAX,
            uuid,
        };
        self.lines.push(GpuLine::new(gpu, None));
        let gpu = gpu_id(self.lines.len() - 1);
        self.met.push((gpu, tenant.clone()));
        Some((gpu, Met::New))
    }

    /// Sets anew which activity words forbid an enable on each GPU.
    pub(crate) fn guard(&mut self, guards: impl Fn(GpuId) -> Guards) {
        for (index, line) in self.lines.iter_mut().enumerate() {
            line.guards = Arc::new(guards(gpu_id(index)));
        }
    }

    /// Whether the issue thread of `gpu` has sat in one call for longer than allowed.
    pub(crate) fn is_stalled(&self, gpu: GpuId) -> bool {
        self.get(gpu).is_some_and(|line| line.stalled)
    }

    /// Whether the issue thread of `gpu` acts on armed orders.
    pub(crate) fn keeps_armed(&self, gpu: GpuId) -> bool {
        let issuer = self.get(gpu).and_then(|line| line.issuer.as_ref());
        issuer.is_some_and(|issuer| issuer.keeps_armed())
    }

    /// Hands an order to the issue thread of `gpu`; false when it takes none.
    pub(crate) fn issue(&mut self, gpu: GpuId, issue: Issue, now: u64) -> bool {
        let Some(line) = self.lines.get_mut(gpu.index()) else {
            return false;
        };
        let issuer = line.issuer.as_ref();
        let sent = issuer.is_some_and(|issuer| issuer.put(Task::Issue(issue)).is_ok());
        if sent {
            if line.pending == 0 {
                line.pending_since = now;
            }
            line.pending += 1;
        }
        sent
    }

    /// Hands timeslices to the issue thread of `gpu`; false when it takes none.
    pub(crate) fn slice(&self, gpu: GpuId, slicing: Slicing) -> bool {
        let issuer = self.get(gpu).and_then(|line| line.issuer.as_ref());
        issuer.is_some_and(|issuer| issuer.put(Task::Slice(slicing)).is_ok())
    }

    /// The issue thread of `gpu` has answered.
    pub(crate) fn answered(&mut self, gpu: GpuId, now: u64) {
        if let Some(line) = self.lines.get_mut(gpu.index()) {
            line.pending = line.pending.saturating_sub(1);
            line.pending_since = now;
            line.stalled = false;
        }
    }

    /// The issue thread of `gpu` enables pairs behind every order that still names them. What cannot be put
    /// there now comes back: the driver owes thousands of answers, or the level asks nothing of it here.
    ///
    /// # Errors
    /// The places.
    pub(crate) fn release(&self, gpu: GpuId, release: Release) -> Result<(), Vec<Place>> {
        let issuer = self.get(gpu).and_then(|line| line.issuer.as_ref());
        let unsent = match issuer {
            Some(issuer) => match issuer.put(Task::Release(release)) {
                Ok(()) => return Ok(()),
                Err(unsent) => unsent,
            },
            None => Task::Release(release),
        };
        Err(match unsent {
            Task::Release(Release { batches, .. }) => {
                let batches = batches.into_iter();
                batches.flat_map(|batch| batch.places).collect()
            }
            Task::Issue(_) | Task::Slice(_) => Vec::new(),
        })
    }

    /// Finds the issue threads that have sat in one call for longer than allowed since the last look.
    pub(crate) fn look_for_stalls(
        &mut self,
        now: u64,
        stall_ns: u64,
        counters: &mut Counters,
        mut found: impl FnMut(GpuId),
    ) {
        for (index, line) in self.lines.iter_mut().enumerate() {
            let late = now >= line.pending_since + stall_ns;
            if line.pending != 0 && !line.stalled && late {
                line.stalled = true;
                counters.stalls += 1;
                found(gpu_id(index));
            }
        }
    }

    /// Nobody looked for so long: no issue thread has sat in its call that long.
    pub(crate) fn put_off(&mut self, by_ns: u64, now: u64) {
        for line in &mut self.lines {
            line.pending_since = (line.pending_since + by_ns).min(now);
        }
    }

    /// When the next issue thread counts as stalled.
    pub(crate) fn stall_deadline(&self, stall_ns: u64) -> Option<u64> {
        let waiting = self.lines.iter();
        waiting
            .filter(|line| line.pending != 0 && !line.stalled)
            .map(|line| line.pending_since + stall_ns)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(tenant: u8, nth: u8) -> [u8; 16] {
        [tenant, nth, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    }

    /// P-SECURITY-7: what one tenant takes is bounded, and nobody else notices.
    #[test]
    fn gpus_that_tenants_invent_leave_numbers_for_those_that_are_there() {
        let mut gpus = Gpus::new(Vec::new(), 32);
        let greedy = [1, 2, 3].map(|uid| (Tenant::User(uid.into()), uid));
        for nth in 0..32 {
            for (tenant, uid) in &greedy {
                gpus.named(uuid(*uid, nth), tenant, |_| true);
            }
        }
        let of = |by: &Tenant| gpus.met.iter().filter(|(_, met)| met == by).count();
        assert_eq!(greedy.each_ref().map(|(tenant, _)| of(tenant)), [8, 8, 8]);
        let honest = Tenant::Container("a".into());
        let met: Vec<_> = (0..4)
            .map(|nth| gpus.named(uuid(9, nth), &honest, |_| true))
            .collect();
        assert!(
            met.iter().all(|met| matches!(met, Some((_, Met::New)))),
            "{met:?}"
        );
        let (first, _) = met[0].expect("met");
        assert_eq!(
            gpus.named(uuid(9, 0), &greedy[0].0, |_| true),
            Some((first, Met::Known))
        );
    }

    /// P-SECURITY-7: what one tenant takes is bounded, and nobody else notices.
    #[test]
    fn a_gpu_that_nobody_uses_gives_way_to_one_that_somebody_does() {
        let (mut gpus, tenant) = (Gpus::new(Vec::new(), 2), Tenant::User(1));
        let (first, _) = gpus.named(uuid(1, 0), &tenant, |_| true).expect("room");
        assert_eq!(
            gpus.named(uuid(1, 1), &tenant, |_| true),
            None,
            "it has its share"
        );
        let instead = gpus.named(uuid(1, 1), &tenant, |gpu| gpu != first);
        assert_eq!(instead, Some((first, Met::Instead)));
        assert_eq!(gpus.get(first).map(|line| line.gpu.uuid), Some(uuid(1, 1)));
        assert_eq!(gpus.lines().len(), 1);
    }
}
