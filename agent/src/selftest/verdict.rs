//! What a self-test found: of a method, of a level, in sum.

use crate::channels::level::Stop;
use crate::config::{Level, Method};
use std::fmt;

/// What is known of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Work stopped and went on.
    Proven(Stop),
    /// The driver took the calls; what they do was not seen.
    CallsOnly(Method),
    /// It could not be tried, and why; nothing is known of it.
    NotTried(String),
    /// It must not be used, and why.
    Failed(String),
}

impl Outcome {
    /// How the level stops what runs, if it may be used.
    ///
    /// # Errors
    /// Why it may not.
    pub fn stop(&self) -> Result<Stop, String> {
        match self {
            Self::Proven(stop) => Ok(*stop),
            Self::CallsOnly(method) => Ok(Stop::by(*method)),
            Self::NotTried(why) => Err(format!("self-test: not tried: {why}")),
            Self::Failed(why) => Err(format!("self-test: {why}")),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven(stop) => write!(f, "proven by {stop}"),
            Self::CallsOnly(method) => write!(f, "calls only, by {method}"),
            Self::NotTried(why) => write!(f, "not tried: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// What became of one method at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Work stood still at once, three times of three.
    Stops,
    /// It stood still at the end of the kernel that it was inside of.
    AtKernelEnd,
    /// Something was lacking to try it.
    NotTried(String),
    /// It stops nothing, or is refused.
    Failed(String),
}

impl Held {
    /// What status calls it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stops => "stops",
            Self::AtKernelEnd => "stops at kernel end",
            Self::NotTried(_) => "not tried",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it is not the one that is used; empty where there is nothing to say.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Stops => "",
            Self::AtKernelEnd => "stops work only at the end of its kernel",
            Self::NotTried(why) | Self::Failed(why) => why,
        }
    }
}

/// A level with its methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which.
    pub level: Level,
    /// In sum.
    pub outcome: Outcome,
    /// The methods that were tried, in order.
    pub methods: Vec<(Method, Held)>,
}

impl Tried {
    /// The first method that stops work at once is kept, else the first that does at the end of a kernel.
    #[must_use]
    pub fn of(level: Level, methods: Vec<(Method, Held)>) -> Self {
        let first = |wanted: &Held| {
            let found = methods.iter().find(|(_, held)| held == wanted);
            found.map(|(method, _)| *method)
        };
        let kept = first(&Held::Stops).map(Stop::by).or_else(|| {
            let method = first(&Held::AtKernelEnd)?;
            Some(Stop {
                method,
                at_kernel_end: true,
            })
        });
        let why = || match &methods[..] {
            [(_, only)] => only.why().to_owned(),
            all => named(all),
        };
        let untried = |(_, held): &(Method, Held)| matches!(held, Held::NotTried(_));
        let outcome = match kept {
            Some(stop) => Outcome::Proven(stop),
            None if methods.iter().all(untried) => Outcome::NotTried(why()),
            None => Outcome::Failed(why()),
        };
        Self {
            level,
            outcome,
            methods,
        }
    }

    /// Why the methods before the one that is used are not.
    #[must_use]
    pub fn why_not_better(&self) -> String {
        let Ok(stop) = self.outcome.stop() else {
            return String::new();
        };
        let kept = self.methods.iter().position(|(own, _)| *own == stop.method);
        let mut why = named(&self.methods[..kept.unwrap_or(0)]);
        if stop.at_kernel_end {
            let said = "work that runs goes on to the end of its kernel, so no memory is taken";
            why = [why, said.to_owned()].join(if kept == Some(0) { "" } else { "; " });
        }
        why
    }
}

fn named(methods: &[(Method, Held)]) -> String {
    let texts = methods
        .iter()
        .map(|(method, held)| format!("{method}: {}", held.why()));
    texts.collect::<Vec<_>>().join("; ")
}

/// How long the stops of one GPU took, by one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The GPU.
    pub uuid: [u8; 16],
    /// The method.
    pub method: Method,
    /// From the order until the stopped kernel made its last progress; None: not measured.
    pub off_gpu: Option<Spread>,
    /// From the order until the call returned; None: not measured.
    pub call: Option<Spread>,
    /// Stops that were timed.
    pub stops: u32,
}

/// Some times in sum, in microseconds. There are too few of them for a 99th percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The median.
    pub median_us: u64,
    /// The longest.
    pub longest_us: u64,
}

impl Spread {
    /// Of times in nanoseconds; None of none. What took less than a microsecond counts as one.
    #[must_use]
    pub fn of(mut times_ns: Vec<u64>) -> Option<Self> {
        times_ns.sort_unstable();
        let us = |ns: &u64| ns.div_ceil(1000).max(1);
        Some(Self {
            median_us: times_ns.get(times_ns.len() / 2).map(us)?,
            longest_us: times_ns.last().map(us)?,
        })
    }
}

/// What a self-test found, for status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In one line.
    pub summary: String,
    /// The levels that were asked about or tried with them, in order.
    pub levels: Vec<Tried>,
    /// How long stops took, of the GPUs on which they were timed.
    pub times: Vec<Times>,
}

impl Report {
    /// How long stops took on a GPU by a method.
    #[must_use]
    pub fn times_of(&self, uuid: [u8; 16], method: Method) -> Option<&Times> {
        let mut times = self.times.iter();
        times.find(|times| (times.uuid, times.method) == (uuid, method))
    }

    /// Why the methods better than the one that `level` uses are not used, and what is to be known of it.
    #[must_use]
    pub fn why_not_better(&self, level: Level) -> String {
        let tried = self.levels.iter().find(|tried| tried.level == level);
        tried.map(Tried::why_not_better).unwrap_or_default()
    }
}
