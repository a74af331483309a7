//! What a schedule does, drawn from its seed before it starts.

use crate::dice::{Dice, MS, US};
use std::fmt;

/// One request of an online process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Idle time of the process before it.
    pub pause: u64,
    pub prefill: u64,
    /// Decode iterations after the prefill; at least ten, so that every gap between two of them is
    /// a decode gap by the policy's own rule.
    pub tokens: u64,
    pub decode: u64,
}

/// What an online process says of its requests (`tg_requests_in_flight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing.
    Plain,
    /// When one comes, before its first kernel, and when it has ended.
    Tells,
    /// That none is in flight, whatever it does.
    Stuck,
    /// Now this and now that, whatever it does.
    Lies,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL; another starts after so long.
    AgentKilled(u64),
    /// SIGSTOP for so long.
    AgentStopped(u64),
    OnlineKilled,
    OnlineForks,
    OnlineExecs,
    OfflineKilled,
    OfflineForks,
    OfflineExecs,
    /// An offline process makes a channel more.
    NewChannel,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::AgentKilled(ns) => {
                return write!(
                    f,
                    "the agent is killed, another starts {} ms later",
                    ns / MS
                );
            }
            Self::AgentStopped(ns) => return write!(f, "the agent is stopped for {} ms", ns / MS),
            Self::OnlineKilled => "an online process is killed, another starts",
            Self::OnlineForks => "an online process forks",
            Self::OnlineExecs => "an online process execs",
            Self::OfflineKilled => "an offline process is killed, another starts",
            Self::OfflineForks => "an offline process forks",
            Self::OfflineExecs => "an offline process execs",
            Self::NewChannel => "an offline process makes one more channel",
        };
        f.write_str(what)
    }
}

/// A whole schedule.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub gpus: u8,
    /// Shortest decode gap; the longest is 1.8 times that, so that twice any gap covers any other.
    pub gap: u64,
    /// Whether online processes wait in a sync call the library hooks; else only the prober sees
    /// that work is done.
    pub syncs: bool,
    /// No graphs: iterations are told apart by their launch counts.
    pub eager: bool,
    /// Each with its GPUs (bit mask), what it does, and what it says of that.
    pub online: Vec<(u8, Vec<Request>, Word)>,
    /// Each with its job and its GPUs.
    pub offline: Vec<(u32, u8)>,
    pub faults: Vec<(u64, Fault)>,
    /// Of each job, where they take turns.
    pub weights: Vec<u32>,
}

impl Script {
    pub fn draw(dice: &mut Dice) -> Self {
        let gpus = if dice.percent(70) { 1 } else { 2 };
        let all = (1u8 << gpus) - 1;
        let gap = dice.scale(1_200 * US, 50 * MS);
        // All on the same GPUs: an engine that waits on one GPU for another engine leaves its second
        // GPU idle for as long as that takes, and its gaps there are not stationary.
        let mask = if dice.percent(70) { all } else { 1 };
        let online = (0..if dice.percent(75) { 1 } else { 2 })
            .map(|_| {
                let requests = (0..dice.between(5, 8))
                    .map(|_| Self::request(dice, gap))
                    .collect();
                (mask, requests, Word::Plain)
            })
            .collect();
        let jobs = dice.between(1, 2);
        let offline = (0..dice.between(jobs, 3))
            .map(|n| {
                let job = u32::try_from(n % jobs).unwrap_or(0);
                (
                    job,
                    if dice.percent(60) {
                        all
                    } else {
                        1 + (all >> 1)
                    },
                )
            })
            .collect();
        let mut faults: Vec<_> = (0..dice.between(0, 4))
            .map(|_| (dice.between(300 * MS, 4_000 * MS), Self::fault(dice)))
            .collect();
        faults.sort_by_key(|fault| fault.0);
        Self {
            gpus,
            gap,
            syncs: dice.percent(80),
            eager: dice.percent(30),
            online,
            offline,
            faults,
            weights: Vec::new(),
        }
    }

    /// As many jobs as that instead, each of one or two processes, on all GPUs or one.
    pub fn draw_jobs(&mut self, jobs: u32, dice: &mut Dice) {
        let more = u32::try_from(dice.between(0, u64::from(jobs))).unwrap_or(0);
        let gpus = self.gpus;
        let process = |nth: u32| {
            let one = 1 << dice.between(0, u64::from(gpus) - 1);
            let mask = if dice.percent(40) {
                (1u8 << gpus) - 1
            } else {
                one
            };
            (nth % jobs, mask)
        };
        self.offline = (0..jobs + more).map(process).collect();
        let weight = |_| u32::try_from(dice.between(1, 4)).unwrap_or(1);
        self.weights = (0..jobs).map(weight).collect();
    }

    /// Online processes say something of their requests, and there may be one more that lies and never works.
    pub fn draw_words(&mut self, dice: &mut Dice) {
        for online in &mut self.online {
            online.2 = Self::word(dice);
        }
        if dice.percent(60) {
            let mask = dice.between(1, (1 << self.gpus) - 1);
            let mask = u8::try_from(mask).unwrap_or(1);
            self.online.push((mask, Vec::new(), Word::Lies));
        }
    }

    fn word(dice: &mut Dice) -> Word {
        match dice.between(0, 9) {
            0..=5 => Word::Tells,
            6 | 7 => Word::Plain,
            8 => Word::Stuck,
            _ => Word::Lies,
        }
    }

    pub fn request(dice: &mut Dice, gap: u64) -> Request {
        let long = dice.percent(70);
        Request {
            pause: if long {
                dice.between(210 * MS, 700 * MS)
            } else {
                dice.between(3 * MS, 200 * MS)
            },
            prefill: dice.scale(MS, 40 * MS),
            tokens: dice.between(10, if gap > 15 * MS { 14 } else { 40 }),
            decode: dice.scale(MS, 8 * MS),
        }
    }

    fn fault(dice: &mut Dice) -> Fault {
        match dice.between(0, 9) {
            0 | 1 => Fault::AgentKilled(dice.scale(5 * MS, 2_500 * MS)),
            2 => Fault::AgentStopped(dice.scale(5 * MS, 2_500 * MS)),
            3 => Fault::OnlineKilled,
            4 => Fault::OnlineForks,
            5 => Fault::OnlineExecs,
            6 => Fault::OfflineKilled,
            7 => Fault::OfflineForks,
            8 => Fault::OfflineExecs,
            _ => Fault::NewChannel,
        }
    }
}
