//! The probes, one row each.

mod alias;
mod blocked;
mod connections;
mod control;
mod cost;
mod death;
mod drift;
mod edges;
mod gaps;
mod joint;
mod lasting;
mod made_of;
mod memory;
mod methods;
mod named;
mod pair;
mod rank;
mod schedule;
mod shape;
mod sharing;
mod timeout;
mod twin;
mod waits;

use crate::bench::{Bench, Ending};
use std::time::Duration;

/// Who may run a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anywhere.
    A,
    /// Only where the kernel is ours alone, on request.
    B,
}

/// One probe.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its name in results and on the command line.
    pub id: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// The design's guess: PASS confirms it, FAIL refutes it. Empty: it only measures.
    pub guess: &'static str,
    /// Who may run it.
    pub class: Class,
    /// Beyond this it is killed and cleaned up after, in seconds.
    pub limit_s: u64,
    /// Runs it.
    pub run: fn(&Bench) -> anyhow::Result<Ending>,
}

impl Probe {
    /// Its limit in a run with these options.
    #[must_use]
    pub fn limit(&self, long: Duration) -> Duration {
        let limit = Duration::from_secs(self.limit_s);
        if self.id.starts_with("P4") {
            limit + long
        } else {
            limit
        }
    }
}

macro_rules! probes {
    ($($id:literal $class:ident $limit:literal $run:path, $question:literal, $guess:literal;)*) => {
        /// All of them, class A first, in the order in which they run: what may do most harm last.
        pub const ALL: &[Probe] = &[
            $(Probe { id: $id, question: $question, guess: $guess, class: Class::$class, limit_s: $limit, run: $run },)*
        ];
    };
}

probes! {
    "P1" A 60 shape::context, "of which objects does a CUDA context consist?",
        "the driver library's ioctls pass through libc's ioctl, so that a preloaded library sees every channel of a context and its engine";
    "P2" A 90 control::foreign, "does an RM client of its own disable foreign channels, how fast?",
        "firmware takes pairs of another process' client, and a disable alone takes running work off the GPU";
    "P2m" A 90 methods::compare, "which way of stopping does the firmware honour, in mid-kernel and in mid-graph?",
        "some way of stopping takes running work off the GPU every time";
    "P3" A 60 control::owners_file, "does the owner's control file do, held by another process?",
        "the driver checks on which open file a client was made, not which process asks";
    "P3b" A 60 control::inside, "does a thread of the owner do?",
        "a thread of the owner may disable its own channels without privilege";
    "P25" A 60 made_of::contexts, "what is a context made of, by connections and number of contexts?", "";
    "P5" A 60 lasting::successor, "do channels stay disabled when who disabled them dies, and can its successor enable them?",
        "the state belongs to the channel, not to who set it";
    "P6" A 60 memory::ioctls, "which driver calls is a memory operation?",
        "memory operations reach the driver through libc's ioctl";
    "P6b" A 90 memory::zero, "is memory zero that another handle held before?",
        "memory that another handle held reads as zero";
    "P7" A 120 memory::while_disabled, "does a memory operation block while the process' channels are disabled, what does it cost?",
        "create, map, set-access, unmap and release never wait for the process' channels";
    "P7b" A 240 blocked::beside, "do they block beside a thread that hangs in a driver call?",
        "who waits for a stream or an event holds no lock that unmap, map, create or release need";
    "P17" A 120 alias::second_addresses, "is memory the same at two addresses, and can it be taken from both at once?",
        "memory that is mapped at two addresses is the same at both, and once other memory is under both nothing reaches it";
    "P24" A 150 waits::table, "which driver calls wait while no channel runs, and what do they hold?",
        "the library marks every call that holds others up while it waits";
    "P9" A 90 edges::odd_lists, "refcount, stale handles, no channel, one bad pair among good ones?",
        "a list with a bad pair is refused or takes effect";
    "P29" A 90 joint::processes, "does one call stop several processes, and what does it cost beside a call for each?",
        "firmware takes a list with channels of several processes, and stops them all in one call";
    "P30" A 90 named::channels, "what does a stop cost by the channels that it names, and when does online's kernel run?", "";
    "P36a" A 90 connections::cases, "what do the channels, a stop and the throughput become by CUDA_DEVICE_MAX_CONNECTIONS?", "";
    "P36b" A 90 gaps::waits, "how long does a short kernel wait beside a process that always has work, before and after that was stopped once?", "";
    "P31s" A 90 rank::slices, "how long does it wait by the other's time slice, and do two busy processes share by slices?", "";
    "P37" A 90 twin::preempt, "may two GPUs be freed at once, by PREEMPT through the owners' files?", "";
    "P38" A 90 drift::edges, "ten edges a second for half a minute: does a stop become slower, is anything left behind?",
        "300 stops leave no descriptor, no client and no Xid behind";
    "P10" A 60 schedule::preempt, "what do PREEMPT and SET_TIMESLICE do?",
        "PREEMPT and SET_TIMESLICE of one's own group need no privilege, and work goes on after them";
    "P11" A 60 edges::unprivileged, "may a user without rights disable foreign channels?",
        "handle pairs are capabilities: no privilege is needed to disable another's channels";
    "P12" A 90 cost::hook, "what do the hooks cost on a launch, and events?", "";
    "P4" A 60 lasting::long, "do long-disabled channels stay healthy?",
        "nothing but their owner minds that channels are disabled for long: no Xid, and work goes on";
    "P10b" B 60 schedule::unschedule, "what does GPFIFO_SCHEDULE(0) do?", "";
    "P15" B 60 sharing::green, "does the gate hold a green context, and where do graphs recorded outside it run?",
        "disabling a process' channels holds its green contexts too, and they keep to their multiprocessors";
    "P15m" B 90 sharing::mps, "has an MPS client channels of its own, and whose work stops when they are disabled?",
        "an MPS client with channels of its own can be stopped alone";
    "P31" B 90 rank::first_come, "may a process' work go before another's without a gate, by being real-time?", "";
    "P28" B 60 timeout::no_preemption, "what does a disable do to a kernel that the GPU cannot save in its middle?",
        "without preemption in mid-kernel a disable waits for the kernel, until the driver loses patience after about 4 s (Xid 109)";
    "P8" B 300 death::killed_while_disabled, "what does killing a process cost the node while its channels are disabled?",
        "a process whose channels are enabled before it is killed stalls nobody for a second";
    "P9b" B 60 edges::overlong, "is a list of 65 channels refused?",
        "a count beyond the list's 64 places is refused before firmware reads past its end";
}

/// The probe with this id, whatever its case.
#[must_use]
pub fn find(id: &str) -> Option<&'static Probe> {
    ALL.iter().find(|probe| probe.id.eq_ignore_ascii_case(id))
}
