//! What other parts ask about the memory of a node.

use super::Memory;
use super::books::Books;
use crate::ids::{Bytes, GpuId, JobId, ReclaimId, SessionId, StripeId, Tokens};
use crate::job::Job;
use crate::ledger::{Ledger, Place};
use crate::reclaim::Phase;
use crate::time::Instant;
use crate::view::{ElasticView, HandlesView, JobMemoryView, OwnerView, StripeView};
use std::collections::{BTreeMap, BTreeSet};

impl Memory {
    pub fn ledger(&self, gpu: GpuId) -> Option<&Ledger> {
        self.ledgers.get(gpu.index())
    }

    /// What the processes of an offline job hold of the pools.
    pub fn held(&self, job: &Job) -> Bytes {
        let shared = job
            .gpus()
            .iter()
            .filter_map(|gpu| self.ledgers.get(gpu.index()));
        let shared = shared.filter(|ledger| !ledger.pool().is_zero());
        let held = shared.flat_map(|ledger| {
            job.sessions()
                .map(|session| ledger.account(session).at(Place::Offline))
        });
        held.sum()
    }

    /// Whether a process was told to change its mappings, and has not said that it ended.
    pub fn is_moving(&self, session: SessionId) -> bool {
        self.jobs.iter().any(|books| books.moves(session))
    }

    /// Who holds something of a GPU's pool, or has a cache there, by id.
    pub fn owners(&self, gpu: GpuId) -> Vec<OwnerView> {
        let Some(ledger) = self.ledger(gpu) else {
            return Vec::new();
        };
        let online = self.elastic.iter().filter(|elastic| elastic.gpu == gpu);
        let online = online.map(|elastic| (elastic.session, elastic.handles()));
        let offline = self.jobs.iter().flat_map(|books| books.handles(gpu));
        let mut handles: BTreeMap<SessionId, HandlesView> = BTreeMap::new();
        for (session, cache) in online.chain(offline) {
            let sum = handles.entry(session).or_default();
            *sum = sum.plus(cache);
        }
        let holders = ledger.holders();
        let sessions: BTreeSet<_> = holders.chain(handles.keys().copied()).collect();
        sessions
            .into_iter()
            .map(|session| OwnerView {
                session,
                account: ledger.account(session),
                excess: ledger.excess_of(session),
                handles: handles.get(&session).copied().unwrap_or_default(),
            })
            .collect()
    }

    /// What an offline process may believe it has of a GPU: what its job deserves of the pool without the least headroom
    /// and what online has that never shrinks, less what others of the job believe they have; never less than it has.
    /// None where nothing is shared out.
    pub fn share(&self, session: SessionId, gpu: GpuId, jobs: &[Job], slots: u32) -> Option<Bytes> {
        let pool = self.ledger(gpu)?.pool();
        let job = jobs.iter().find(|job| job.has(session))?;
        let counted = self.counted.iter().filter(|counted| counted.1 == gpu);
        let counted = counted.map(|counted| (counted.0, counted.2));
        let claims = self.jobs.iter().flat_map(|books| books.claims(gpu));
        let (mut own, mut others) = (Bytes::ZERO, Bytes::ZERO);
        for (owner, bytes) in counted.chain(claims).filter(|claim| job.has(claim.0)) {
            let sum = if owner == session {
                &mut own
            } else {
                &mut others
            };
            *sum = sum.plus(bytes);
        }
        let shown = || self.shown(job, gpu, jobs, slots).minus(others).max(own);
        (!pool.is_zero()).then(shown)
    }

    /// The stripes of the reclaim under way of that number.
    pub fn stripes(&self, reclaim: ReclaimId) -> &[StripeId] {
        let of = |books: &&Books| books.machine.id == reclaim && books.machine.phase != Phase::Idle;
        self.jobs
            .iter()
            .find(of)
            .map_or(&[], |books| &books.machine.stripes)
    }

    pub fn job(&self, job: JobId) -> Option<JobMemoryView> {
        let books = self.jobs.iter().find(|books| books.job == job)?;
        let stripes = books.holders.layout().len();
        let backed = books.holders.candidates().count();
        Some(JobMemoryView {
            stripes: u32::try_from(stripes).unwrap_or(u32::MAX),
            taken: u32::try_from(stripes - backed).unwrap_or(u32::MAX),
            phase: books.machine.phase,
            fit: books.is_open() || books.machine.phase != Phase::Idle,
            requests: u32::try_from(books.holders.holders().len()).unwrap_or(u32::MAX),
            reclaims: books.taken.reclaims,
            tokens: books.taken.tokens,
            blocks_lost: books.taken.blocks_lost,
        })
    }

    pub fn elastics(&self, now: Instant) -> impl Iterator<Item = ElasticView> + '_ {
        self.elastic.iter().map(move |elastic| ElasticView {
            session: elastic.session,
            gpu: elastic.gpu,
            kv: elastic.kv,
            used: elastic.used,
            mapped: elastic.mapped(),
            reservation: elastic.reserve.reservation(),
            headroom: elastic.reserve.headroom(),
            interval: elastic.reserve.interval(),
            events: elastic.reserve.events(),
            rate_per_minute: elastic.reserve.rate_per_minute(now),
            target_per_minute: elastic.reserve.target_per_minute(),
        })
    }

    /// What is known of the stripe behind a handle of a job's first rank on a GPU.
    pub fn stripe_of(&self, job: JobId, handle: u32) -> Option<StripeView> {
        let books = self.jobs.iter().find(|books| books.job == job)?;
        let stripe = books.holders.layout().stripe_of_handle(handle)?;
        let holders = books
            .holders
            .holders()
            .iter()
            .filter(|holder| holder.holds(stripe));
        let fresh = holders.clone().filter(|holder| !holder.is_hit());
        Some(StripeView {
            stripe,
            handles: books.holders.layout().handles(stripe),
            blocks: books.holders.layout().ends(stripe),
            backing: books.holders.backing(stripe),
            requests: u32::try_from(holders.count()).unwrap_or(u32::MAX),
            tokens: Tokens(fresh.map(|holder| holder.tokens().0).sum()),
            choice: books
                .choices
                .iter()
                .rev()
                .find(|c| c.pick.stripe == stripe)
                .copied(),
        })
    }
}
