//! What was heard of the node, and what follows from it: shares, rates, and the latencies of late.

use crate::{json, table};
use clap::ValueEnum;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use tidegate_proto::v1;

/// Latencies kept per GPU.
const LATENCIES: usize = 64;
/// Shares are of this long, ns.
const LATELY: u64 = 5_000_000_000;

/// Order of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Online first, then offline, then those that are ignored.
    Role,
    /// By process id.
    Pid,
    /// Those that launch most first.
    Launches,
}

impl Sort {
    /// The one after it.
    pub const fn next(self) -> Self {
        match self {
            Self::Role => Self::Pid,
            Self::Pid => Self::Launches,
            Self::Launches => Self::Role,
        }
    }

    /// A human-readable table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Pid => "pid",
            Self::Launches => "launches",
        }
    }
}

/// Something heard.
#[derive(Debug)]
pub enum Heard {
    /// How the node stands.
    Status(Box<v1::GetStatusResponse>),
    /// Something happened.
    Event(v1::Event),
    /// The agent cannot be spoken to.
    Lost(String),
    /// What came of an action.
    Done(String),
}

/// What an operator may do from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pause this job.
    Pause(String),
    /// Let it run again.
    Resume(String),
    /// Let no offline job run.
    Drain,
    /// Let them run again.
    Undrain,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(job) => write!(f, "pause job {job}"),
            Self::Resume(job) => write!(f, "resume job {job}"),
            Self::Drain => f.write_str("drain: stop all offline jobs, those to come included"),
            Self::Undrain => f.write_str("undrain: let offline jobs run"),
        }
    }
}

/// One GPU of late, shares from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lately {
    /// Online was busy.
    pub online: f64,
    /// Offline could run.
    pub offline: f64,
}

/// All that is known.
#[derive(Debug)]
pub struct Model {
    /// How the node stood when it was last asked.
    pub status: Option<v1::GetStatusResponse>,
    /// Why the agent cannot be spoken to, and since when.
    pub lost: Option<(String, u64)>,
    /// Order of the processes.
    pub sort: Sort,
    /// The keys are explained.
    pub help: bool,
    /// Whether to paint.
    pub colours: bool,
    /// What is to be confirmed.
    pub asking: Option<Action>,
    /// What came of what was asked for, until the next key.
    pub said: String,
    /// Only processes of which something contains this are shown; empty: all.
    pub filter: String,
    /// The filter that is being typed.
    pub typing: Option<String>,
    /// The job that was chosen, by name.
    chosen: Option<String>,
    latencies: BTreeMap<u32, VecDeque<u64>>,
    newest_event: u64,
    generation: u64,
    /// Earlier statuses with the time they came, oldest first.
    before: VecDeque<(u64, v1::GetStatusResponse)>,
}

impl Model {
    /// Nothing heard yet.
    pub fn new(sort: Sort, colours: bool) -> Self {
        Self {
            status: None,
            lost: None,
            sort,
            help: false,
            colours,
            asking: None,
            said: String::new(),
            filter: String::new(),
            typing: None,
            chosen: None,
            latencies: BTreeMap::new(),
            newest_event: 0,
            generation: 0,
            before: VecDeque::new(),
        }
    }

    /// Takes what was heard at `now`.
    pub fn hear(&mut self, heard: Heard, now: u64) {
        match heard {
            Heard::Status(status) => {
                self.lost = None;
                if status.agent_generation != self.generation {
                    // Another agent counts from zero.
                    self.generation = status.agent_generation;
                    self.before.clear();
                }
                while self.before.front().is_some_and(|(at, _)| at + LATELY < now) {
                    self.before.pop_front();
                }
                self.before.push_back((now, (*status).clone()));
                self.status = Some(*status);
            }
            Heard::Event(event) => self.take_event(&event),
            Heard::Done(said) => self.said = said,
            Heard::Lost(why) => {
                // Whoever answers next tells all its events again, and counts them from one.
                self.newest_event = 0;
                self.latencies.clear();
                let since = self.lost.as_ref().map_or(now, |(_, since)| *since);
                self.lost = Some((why, since));
            }
        }
    }

    fn jobs(&self) -> &[v1::JobStatus] {
        self.status.as_ref().map_or(&[], |status| &status.jobs)
    }

    /// Place of the job that keys are about: the one that was chosen, as long as it is there, else the first.
    pub fn selected_at(&self) -> Option<usize> {
        let jobs = self.jobs();
        let chosen = self.chosen.as_ref();
        let found = chosen.and_then(|name| jobs.iter().position(|job| job.name == *name));
        found.or((!jobs.is_empty()).then_some(0))
    }

    /// Its name.
    pub fn selected(&self) -> Option<String> {
        let at = self.selected_at()?;
        Some(self.jobs()[at].name.clone())
    }

    /// Chooses the job `by` places further on, as far as there are any.
    pub fn select(&mut self, by: isize) {
        let Some(at) = self.selected_at() else { return };
        let last = self.jobs().len() - 1;
        let at = at.saturating_add_signed(by).min(last);
        self.chosen = Some(self.jobs()[at].name.clone());
    }

    fn take_event(&mut self, event: &v1::Event) {
        if event.seq <= self.newest_event {
            return;
        }
        self.newest_event = event.seq;
        let Ok(gpu) = u32::try_from(event.gpu) else {
            return;
        };
        if event.kind == "preempted" {
            let latencies = self.latencies.entry(gpu).or_default();
            if latencies.len() == LATENCIES {
                latencies.pop_front();
            }
            latencies.push_back(event.value_ns);
        }
    }

    /// The last `count` latencies of a GPU, oldest first, ns.
    pub fn latencies(&self, gpu: u32, count: usize) -> Vec<u64> {
        let known = self.latencies.get(&gpu);
        let skip = known.map_or(0, |known| known.len().saturating_sub(count));
        known
            .map(|known| known.iter().skip(skip).copied().collect())
            .unwrap_or_default()
    }

    /// Shares of the last seconds.
    pub fn lately(&self, gpu: usize) -> Lately {
        let usage = |status: &v1::GetStatusResponse| status.gpus.get(gpu)?.usage.clone();
        let newest = self.status.as_ref().and_then(usage);
        let oldest = self.before.front().and_then(|(_, status)| usage(status));
        let (Some(new), Some(old)) = (newest, oldest) else {
            return Lately::default();
        };
        let time = new.observed_ns.saturating_sub(old.observed_ns);
        let share = |part: u64, before: u64| {
            if time == 0 {
                return 0.0;
            }
            #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
            let share = part.saturating_sub(before) as f64 / time as f64;
            share.min(1.0)
        };
        Lately {
            online: share(new.online_busy_ns, old.online_busy_ns),
            offline: share(new.offline_running_ns, old.offline_running_ns),
        }
    }

    /// Launches per second of a process, of late.
    pub fn rate(&self, process: &v1::ProcessStatus) -> u64 {
        let (Some((begin, first)), Some((end, _))) = (self.before.front(), self.before.back())
        else {
            return 0;
        };
        let same = |other: &&v1::ProcessStatus| other.session == process.session;
        let Some(old) = first.processes.iter().find(same) else {
            return 0;
        };
        let launched = table::launches(process).saturating_sub(table::launches(old));
        match end - begin {
            0 => 0,
            time => u64::try_from(u128::from(launched) * 1_000_000_000 / u128::from(time))
                .unwrap_or(u64::MAX),
        }
    }

    /// Whether the filter, or what is typed of it, lets a process through.
    fn shows(&self, process: &v1::ProcessStatus) -> bool {
        let wanted = self.typing.as_ref().unwrap_or(&self.filter).to_lowercase();
        let place = process.whereabouts.as_ref();
        let id = place.map_or("", |place| &place.container);
        let all = [
            &process.pid.to_string(),
            &process.name,
            &process.job,
            &json::role(process),
            table::place(process),
            id,
        ];
        all.iter().any(|said| said.to_lowercase().contains(&wanted))
    }

    /// The processes that are shown, in the chosen order.
    pub fn processes(&self) -> Vec<v1::ProcessStatus> {
        let mut processes = self
            .status
            .as_ref()
            .map(|status| status.processes.clone())
            .unwrap_or_default();
        processes.retain(|process| self.shows(process));
        match self.sort {
            Sort::Role => processes.sort_by_key(|process| (process.role, process.pid)),
            Sort::Pid => processes.sort_by_key(|process| process.pid),
            Sort::Launches => processes
                .sort_by_key(|process| (std::cmp::Reverse(self.rate(process)), process.pid)),
        }
        processes
    }
}
