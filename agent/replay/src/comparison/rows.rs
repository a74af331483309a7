//! The rows of the table: which policy, with which settings, on which platform.
//!
//! Of a row with a setting that somebody tunes, each value is run, and the best that keeps the set
//! counts; where none does, the one with the fewest late requests is shown.

use tidegate_policy::lease::slo::Promise;
use tidegate_policy::lease::{Leaser, Leasing};

use crate::plan::Alone;
use crate::run::beside::{Platform, Setting};
use crate::tuning::chunked::{self, Chunked};
use crate::tuning::fine_infer::{self, FineInfer};
use crate::tuning::flexllm::FlexLlm;
use crate::tuning::gate::Gate;
use crate::tuning::harli::Harli;
use crate::tuning::llmstation::LlmStation;
use crate::tuning::mcgill::McGill;
use crate::tuning::oracle::Oracle;
use crate::tuning::static_mps::{self, StaticMps};
use crate::tuning::temporal::Temporal;
use crate::tuning::tidegate::Tidegate;
use crate::tuning::{Idle, Policy, Seen, Truth};

/// Margins that are tried with those who plan a pass up to its budget, thousandths. They give none, and without one
/// what lies between two passes makes them late; ours has the latter ([`leasing`]).
pub const MARGINS: [u32; 2] = [0, 50];

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// Online by itself; nothing is trained.
    Alone,
    /// Nobody decides: slices in turn.
    NoControl,
    /// The gate.
    Gate,
    /// Whole samples while nothing is served.
    FineInfer,
    /// A fixed share.
    StaticMps,
    /// Chunks of one size.
    Chunked,
    /// A sample after so many iterations.
    TemporalShare(u32),
    /// Tokens up to the iteration's budget.
    FlexLlm,
    /// Tasklets by equation 1.
    LlmStation,
    /// Shares by prediction.
    Harli,
    /// Decode, prompts with samples, backward.
    McGill,
    /// Ours.
    Tidegate,
    /// Knows the future.
    Oracle,
}

impl Row {
    /// The rows of a class, in the order of the table. Two processes can neither share a pass nor a
    /// GPU's multiprocessors.
    #[must_use]
    pub fn of(platform: Platform) -> Vec<Self> {
        match platform {
            Platform::TwoProcess => vec![Self::Gate, Self::FineInfer, Self::Tidegate, Self::Oracle],
            Platform::OneProcess => vec![
                Self::FineInfer,
                Self::StaticMps,
                Self::Chunked,
                Self::TemporalShare(128),
                Self::FlexLlm,
                Self::LlmStation,
                Self::Harli,
                Self::McGill,
                Self::Tidegate,
                Self::Oracle,
            ],
            Platform::TimeSliced => vec![Self::NoControl],
        }
    }

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::TemporalShare(every) => format!("TemporalShare({every})"),
            Self::FlexLlm => "FlexLLM".to_owned(),
            Self::LlmStation => "LLMStation".to_owned(),
            Self::Harli => "HARLI".to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// Every row by name; a number in parentheses is 128.
    #[must_use]
    pub fn names() -> Vec<(String, Self)> {
        let rows = [
            Self::Gate,
            Self::NoControl,
            Self::FineInfer,
            Self::StaticMps,
            Self::Chunked,
            Self::TemporalShare(128),
            Self::FlexLlm,
            Self::LlmStation,
            Self::Harli,
            Self::McGill,
            Self::Tidegate,
            Self::Oracle,
        ];
        rows.map(|row| (row.name(), row)).to_vec()
    }

    /// Why it cannot run on `platform`, if it cannot.
    #[must_use]
    pub fn cannot(self, platform: Platform) -> Option<&'static str> {
        match (self, platform) {
            (
                Self::FlexLlm | Self::McGill | Self::Chunked | Self::LlmStation,
                Platform::TwoProcess,
            ) => Some(
                "training tokens ride in online's own pass, which needs one process and one copy of the model",
            ),
            (Self::StaticMps | Self::Harli, Platform::TwoProcess) => Some(
                "two processes without MPS take turns on a GPU and cannot divide its multiprocessors",
            ),
            (Self::Gate, Platform::OneProcess) => {
                Some("channels are disabled for a process, and online is in the same one")
            }
            _ => None,
        }
    }

    /// Its settings that are tried: each is a number that [`Row::make`] knows.
    #[must_use]
    pub fn tried(self) -> Vec<u32> {
        match self {
            Self::FineInfer => (0..fine_infer::BOUNDS.len() as u32).collect(),
            Self::StaticMps => static_mps::PERCENT.to_vec(),
            Self::Chunked => chunked::SIZES.to_vec(),
            Self::FlexLlm | Self::LlmStation | Self::Harli => MARGINS.to_vec(),
            _ => vec![0],
        }
    }

    /// Whether what it does depends on what was promised.
    #[must_use]
    pub const fn reads_the_promise(self) -> bool {
        matches!(
            self,
            Self::FlexLlm | Self::LlmStation | Self::Harli | Self::Tidegate | Self::Oracle
        )
    }

    /// Whether it reads of a promise what an iteration may take, and nothing else.
    #[must_use]
    pub const fn reads_the_budget(self) -> bool {
        matches!(self, Self::FlexLlm | Self::LlmStation | Self::Harli)
    }

    /// The policy, with one of its settings.
    #[must_use]
    pub fn make(
        self,
        of: &Setting<'_>,
        alone: &Alone,
        promise: Promise,
        tried: u32,
    ) -> Box<dyn Policy> {
        let costs = &of.spec.costs;
        let ns = |span: std::time::Duration| span.as_nanos() as u64;
        let switch_ns = match of.platform {
            Platform::OneProcess => 0,
            _ => ns(costs.timeslice_switch),
        };
        let margin = if self.reads_the_budget() { tried } else { 0 };
        let budget_ns = promise.tpot_ns().unwrap_or(0) / 1_000 * u64::from(1_000 - margin);
        let layers = of.finetune.model.shape.layers;
        match self {
            Self::Alone => Box::new(Nothing),
            Self::NoControl => Box::new(Always),
            Self::Gate => Box::new(Gate::new(of.spec, alone)),
            Self::FineInfer => Box::new(FineInfer {
                defer_ns: fine_infer::BOUNDS[tried as usize],
            }),
            Self::StaticMps => Box::new(StaticMps { percent: tried }),
            Self::Chunked => Box::new(Chunked {
                tokens: tried,
                layers,
            }),
            Self::TemporalShare(every) => Box::new(Temporal {
                every,
                units: 2 * layers * of.finetune.length.div_ceil(of.finetune.window),
                since: 0,
            }),
            Self::FlexLlm => Box::new(FlexLlm { budget_ns }),
            Self::LlmStation => Box::new(LlmStation {
                budget_ns,
                layers: of.spec.online.model.shape.layers,
            }),
            Self::Harli => Box::new(Harli {
                budget_ns,
                share: 0.0,
            }),
            Self::McGill => Box::new(McGill),
            Self::Tidegate => {
                let config = leasing(of, promise);
                Box::new(Tidegate::new(config, of.platform == Platform::OneProcess))
            }
            Self::Oracle => Box::new(Oracle::new(promise, switch_ns)),
        }
    }
}

/// Ours, as an agent would be told: its margin is 5 %, its grace half a millisecond.
#[must_use]
pub fn leasing(of: &Setting<'_>, promise: Promise) -> Leasing {
    let costs = &of.spec.costs;
    let ns = |span: std::time::Duration| span.as_nanos() as u64;
    let one = of.platform == Platform::OneProcess;
    Leasing {
        promise,
        margin_permille: 50,
        switch_ns: if one { 0 } else { ns(costs.timeslice_switch) },
        gate_ns: ns(costs.edge) + ns(costs.disable_save),
        grace_ns: 500_000,
    }
}

/// The agent's policy by itself, for a measurement of it.
#[must_use]
pub fn leaser(of: &Setting<'_>, promise: Promise) -> Leaser {
    Leaser::new(leasing(of, promise))
}

#[derive(Debug)]
struct Nothing;

impl Policy for Nothing {
    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            from: None,
            ..Idle::UNITS
        }
    }
}

#[derive(Debug)]
struct Always;

// The slice that runs ends before online's begins: on average half of one.
impl Policy for Always {}
