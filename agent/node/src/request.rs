//! What one part of the shell asks of the others.
//!
//! A part changes only itself and what it is lent. For everything else it returns requests, in the order in which they
//! must happen. The router ([`crate::Shell`]) carries out one request, with everything that follows from it, before the
//! next.

use crate::counters::Counters;
use crate::file::Files;
use crate::journal::Place;
use crate::kinds::{Level, Method};
use crate::message::{Claim, Tunables};
use std::collections::BTreeMap;
use tidegate_policy::config::{FairMode, Suspects};
use tidegate_policy::event::Event;
use tidegate_policy::fair::UserShare;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, LeaseId};
use tidegate_policy::lease::Leasing;

/// One thing to be done elsewhere.
#[derive(Debug)]
pub(crate) enum Request {
    /// Step the policy.
    Step(Event<'static>),
    /// Tell people.
    Emit(Notice),
    /// Ask the prover.
    Claim(Claim),
    /// Take channels of a session out of everything. A pair leaves the lists enabled or gone: whoever has its
    /// number by now may not be whom policy gated, and no order would name it again.
    Retire(Retire),
    /// The channels of a session on these GPUs changed: prepare the calls anew, and tell policy.
    Changed {
        session: u64,
        gpus: GpuSet,
        grown: bool,
    },
    /// A client is the session's own: manage its channels.
    Manage { session: u64, client: u32 },
    /// Nobody waits for a proof of this client of a session any more.
    Unasked(u64, u32),
    /// Tell policy of an offline process and all GPUs it is known to use.
    Announce(u64),
    /// A process of the job left: say anew what the job has among others.
    Terms(JobId),
    /// Write the gate words of a job's processes as they should stand.
    Gates(JobId),
    /// Let scheduling calls of a session pass that may.
    Tickets(u64),
    /// The same of a whole job.
    JobTickets(JobId),
    /// A process says that nothing of it runs any more under a lease.
    LeaseOver {
        session: u64,
        gpu: GpuId,
        lease: LeaseId,
        units: u32,
    },
    /// Make anew which activity words forbid an enable.
    Guards,
    /// Read the activity of every online process on these GPUs.
    ReadActivity(GpuSet),
    /// Have the proofs of a job's clients on a GPU made again.
    ProveAgain(JobId, GpuId),
    /// A process of the job may have enabled its own channels.
    Doubt(JobId),
    /// These places are free again.
    Free(Vec<Place>),
    /// How much of a GPU is shared out.
    SharePool(GpuId),
    /// What offline processes are shown may have changed.
    SharesStale,
}

/// See [`Request::Retire`].
#[derive(Debug)]
pub(crate) struct Retire {
    pub session: u64,
    pub job: Option<JobId>,
    pub places: Vec<(Option<GpuId>, Place)>,
    /// The files of a process that ended.
    pub dead: Option<Files>,
}

/// An event for people, before names are put to its numbers.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    pub kind: &'static str,
    pub gpu: Option<GpuId>,
    /// 0: not about one.
    pub session: u64,
    /// Of who has no session any more, or none yet; 0 otherwise.
    pub pid: i32,
    pub job: Option<JobId>,
    pub text: String,
    pub value_ns: u64,
    /// What the session's tenant is refused, for status; None: nothing.
    pub refused: Option<&'static str>,
}

/// What holds for the whole shell.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub level: Level,
    pub method: Method,
    /// Bytes of each GPU that are shared out; 0: none.
    pub pool: u64,
    /// Clients of processes without a control file belong to the first that reports them.
    pub believe_unproven: bool,
    pub ignore_suspects: bool,
    /// This agent's.
    pub generation: u64,
    pub rings_per_second: u32,
    pub prove_every_ns: u64,
    pub stall_ns: u64,
    pub answer_ns: u64,
    pub users: BTreeMap<u32, UserShare>,
    /// Jobs are to share by timeslices.
    pub slices: bool,
    /// What leases are given by; None: they are off.
    pub leases: Option<Leasing>,
    /// MPS runs, so a process that sent no file may be its client.
    pub mps: bool,
}

impl Settings {
    /// Goes on with others.
    pub fn tune(&mut self, tunables: &Tunables) {
        self.rings_per_second = tunables.rings_per_second;
        self.prove_every_ns = tunables.prove_every_ns;
        self.stall_ns = tunables.stall_ns;
        self.answer_ns = tunables.answer_ns;
        self.users.clone_from(&tunables.users);
        self.leases = tunables.policy.leases;
        self.slices = tunables.policy.fair.mode == FairMode::Slices;
        self.ignore_suspects = tunables.policy.suspects == Suspects::Ignore;
    }
}

/// What every part is lent.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub now: u64,
    pub settings: &'a Settings,
    pub counters: &'a mut Counters,
    pub out: &'a mut Vec<Request>,
}

impl Context<'_> {
    pub fn ask(&mut self, request: Request) {
        self.out.push(request);
    }

    pub fn step(&mut self, event: Event<'static>) {
        self.ask(Request::Step(event));
    }

    pub fn emit(&mut self, notice: Notice) {
        self.ask(Request::Emit(notice));
    }
}
