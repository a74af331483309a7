//! Why a trainer has no lease at this moment, and what to do about it.
//!
//! The texts of the reasons exist only here; events, status, `tidegate explain lease` and doctor show them.

use crate::words::view::Reason;
use core::fmt;
use core::time::Duration;

/// What keeps a trainer from running units beside online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// No promise is configured.
    Off,
    /// The trainer's library has no words for leases.
    OldTrainer,
    /// It trains whole micro-batches of about that long, and that fits; zero: not known.
    MicroBatches(Duration, Duration),
    /// It offers no units.
    NoUnits,
    /// It uses several GPUs.
    SeveralGpus,
    /// Its channels are not disabled and enabled, so that nothing would end a lease.
    Unmanaged,
    /// No online process uses its GPU.
    NoService,
    /// So many online processes use its GPU.
    Services(u32),
    /// Online's library has no words for iterations.
    OldService,
    /// Online shares no memory with the agent.
    NoPage,
    /// Online was asked for its iterations and has reported none for so long.
    NoBeats(Duration),
    /// The gate is open: it needs none.
    Open,
    /// Something else than the gate holds it.
    Held(Reason),
    /// It kept running past its leases: none for so long.
    Demoted(Duration),
    /// Orders to its channels are under way.
    Settling,
    /// Another trainer has the lease, or its turn.
    Turn,
    /// No request decodes.
    Idle,
    /// A prompt waits or is read.
    Prompt,
    /// Iterations of the next one's shape were seen so often, of so many that are needed.
    Learning(u64, u64),
    /// Online needs so long for a token without leases, and has promised that.
    TpotTooLow(Duration, Duration),
    /// Requests in flight are no further ahead than what is kept back.
    NoSlack,
    /// It does not say what a unit takes, and none was seen.
    NoTime,
    /// One unit takes so long, and that fits.
    UnitTooLong(Duration, Duration),
}

impl NoLease {
    /// How many reasons there are.
    pub const KINDS: usize = 23;

    /// Each its own number, below [`Self::KINDS`].
    #[must_use]
    pub const fn number(&self) -> usize {
        match self {
            Self::Off => 0,
            Self::OldTrainer => 1,
            Self::MicroBatches(..) => 2,
            Self::NoUnits => 3,
            Self::SeveralGpus => 4,
            Self::Unmanaged => 5,
            Self::NoService => 6,
            Self::Services(_) => 7,
            Self::OldService => 8,
            Self::NoPage => 9,
            Self::NoBeats(_) => 10,
            Self::Open => 11,
            Self::Held(_) => 12,
            Self::Demoted(_) => 13,
            Self::Settling => 14,
            Self::Turn => 15,
            Self::Idle => 16,
            Self::Prompt => 17,
            Self::Learning(..) => 18,
            Self::TpotTooLow(..) => 19,
            Self::NoSlack => 20,
            Self::NoTime => 21,
            Self::UnitTooLong(..) => 22,
        }
    }

    /// For programs, by [`Self::number`].
    pub const NAMES: [&'static str; Self::KINDS] = [
        "off",
        "old_trainer",
        "micro_batches",
        "no_units",
        "several_gpus",
        "unmanaged",
        "no_service",
        "several_services",
        "old_service",
        "no_page",
        "no_iterations",
        "gate_open",
        "held",
        "demoted",
        "settling",
        "turn",
        "idle",
        "prompt",
        "learning",
        "tpot_too_low",
        "no_slack",
        "no_unit_time",
        "unit_too_long",
    ];

    /// For programs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.number()]
    }

    /// What a user can do about it; `None`: it passes by itself, or nothing is wrong.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let fixed = match self {
            Self::Off => "set lease.tpot and lease.ttft to what online promises its users",
            Self::OldTrainer => "restart the trainer with the agent's version of the library",
            Self::MicroBatches(..) | Self::NoUnits => {
                "train in windows with `tidegate finetune`, or have the program call tg_unit, tg_lease and tg_unit_done"
            }
            Self::SeveralGpus => "give the trainer one GPU",
            Self::Unmanaged => "`tidegate explain pid` says why its channels cannot be controlled",
            Self::Services(_) => "leave one online process on this GPU",
            Self::OldService => {
                "restart the online process with the agent's version of the library"
            }
            Self::NoPage => {
                "let the online process share memory with the agent: mount its run directory and hook.sock"
            }
            Self::NoBeats(lasts) if lasts.is_zero() => return None,
            Self::NoBeats(_) => {
                "install the engine's plugin (vLLM with its workers in one process), or have the engine call tg_beat"
            }
            Self::Held(Reason::Paused) => "`tidegate resume` or `tidegate undrain`",
            Self::Demoted(_) => "have each unit end within the time that tg_unit says",
            Self::TpotTooLow(alone, _) => {
                return Some(format!(
                    "set lease.tpot above {}, or take requests off this engine",
                    Shown(*alone)
                ));
            }
            Self::NoSlack => {
                "raise lease.tpot or lease.ttft, or lower lease.margin, if it stays so"
            }
            Self::NoTime => "pass what a unit takes to tg_unit",
            Self::UnitTooLong(_, fits) => {
                return Some(format!(
                    "make units of {} at most, by shorter windows, or raise lease.tpot",
                    Shown(*fits)
                ));
            }
            Self::NoService
            | Self::Open
            | Self::Held(_)
            | Self::Settling
            | Self::Turn
            | Self::Idle
            | Self::Prompt
            | Self::Learning(..) => return None,
        };
        Some(fixed.to_owned())
    }
}

/// A time for people.
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= Duration::from_secs(10) {
            write!(f, "{} s", self.0.as_secs())
        } else {
            write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
        }
    }
}

impl fmt::Display for NoLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("leases are off"),
            Self::OldTrainer => f.write_str("the trainer's library knows no leases"),
            Self::MicroBatches(each, _) if each.is_zero() => {
                f.write_str("it trains whole micro-batches, and offers no units")
            }
            Self::MicroBatches(each, fits) => write!(
                f,
                "it trains whole micro-batches of about {}, and {} fit",
                Shown(*each),
                Shown(*fits)
            ),
            Self::NoUnits => f.write_str("it offers no units"),
            Self::SeveralGpus => f.write_str("it uses several GPUs, and a lease is of one"),
            Self::Unmanaged => f.write_str(
                "its channels cannot be controlled, so nothing would end a lease in time",
            ),
            Self::NoService => {
                f.write_str("no online process uses its GPU: it runs by the gate alone")
            }
            Self::Services(count) => write!(
                f,
                "{count} online processes use its GPU, and a promise is kept for one"
            ),
            Self::OldService => f.write_str("the online process' library reports no iterations"),
            Self::NoPage => f.write_str("the online process shares no memory with the agent"),
            Self::NoBeats(Duration::ZERO) => {
                f.write_str("the online process is being asked for its iterations")
            }
            Self::NoBeats(lasts) => write!(
                f,
                "the online process has reported no iteration for {}",
                Shown(*lasts)
            ),
            Self::Open => f.write_str("the gate is open: it needs none"),
            Self::Held(Reason::Paused) => f.write_str("it is paused, or the node is drained"),
            Self::Held(Reason::Reclaim) => f.write_str("memory is taken from it or given back"),
            Self::Held(Reason::Turn) => f.write_str("another job has its turn"),
            Self::Held(_) => f.write_str("its launches are held"),
            Self::Demoted(left) => write!(
                f,
                "it kept running past its leases: none for {} more",
                Shown(*left)
            ),
            Self::Settling => f.write_str("orders to its channels are under way"),
            Self::Turn => f.write_str("another trainer has the lease, or its turn"),
            Self::Idle => f.write_str("no request decodes: the gate decides when it may run"),
            Self::Prompt => f.write_str("a prompt waits or is read, and goes first"),
            Self::Learning(seen, of) => write!(
                f,
                "iterations like the next one were seen {seen} of {of} times"
            ),
            Self::TpotTooLow(alone, tpot) => write!(
                f,
                "online alone needs {} for a token, and lease.tpot is {}",
                Shown(*alone),
                Shown(*tpot)
            ),
            Self::NoSlack => {
                f.write_str("the requests in flight have no time to spare before their promise")
            }
            Self::NoTime => f.write_str("it does not say what a unit takes, and none was seen"),
            Self::UnitTooLong(unit, fits) => {
                write!(f, "a unit takes {}, and {} fit", Shown(*unit), Shown(*fits))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-LEASE-7: each reason has a number and a name of its own, and says what to do where something can be done.
    #[test]
    fn each_reason_has_its_own_number_and_name() {
        let some = Duration::from_millis(3);
        let all = [
            NoLease::Off,
            NoLease::OldTrainer,
            NoLease::MicroBatches(some, some),
            NoLease::NoUnits,
            NoLease::SeveralGpus,
            NoLease::Unmanaged,
            NoLease::NoService,
            NoLease::Services(2),
            NoLease::OldService,
            NoLease::NoPage,
            NoLease::NoBeats(some),
            NoLease::Open,
            NoLease::Held(Reason::Paused),
            NoLease::Demoted(some),
            NoLease::Settling,
            NoLease::Turn,
            NoLease::Idle,
            NoLease::Prompt,
            NoLease::Learning(2, 8),
            NoLease::TpotTooLow(some, some),
            NoLease::NoSlack,
            NoLease::NoTime,
            NoLease::UnitTooLong(some, some),
        ];
        assert_eq!(all.len(), NoLease::KINDS);
        for (number, reason) in all.iter().enumerate() {
            assert_eq!(reason.number(), number);
        }
        let mut names: Vec<_> = all.iter().map(NoLease::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NoLease::KINDS);
        let low = NoLease::TpotTooLow(Duration::from_micros(31_400), Duration::from_millis(20));
        assert_eq!(
            low.to_string(),
            "online alone needs 31.4 ms for a token, and lease.tpot is 20.0 ms"
        );
        let remedy = low.remedy().expect("something can be done");
        assert!(remedy.contains("above 31.4 ms"), "{remedy}");
    }
}
