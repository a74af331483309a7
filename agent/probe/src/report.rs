//! What a probe says, line by line as it finds it out: figures, notes, and at last a verdict.
//!
//! The lines go to standard output of the probe's process and from there, by the suite, into the
//! results file at once, so that a run that is killed keeps what it had.

use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// What the design relies on holds here.
    Pass,
    /// It does not, or the probe broke; the reason says which.
    Fail,
    /// Not tried; the reason says why.
    Skip,
}

/// What a probe found of something that the design took for granted before a GPU was there to ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The guess, in words.
    pub guess: String,
    /// What became of it.
    pub found: Found,
}

/// What became of a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Found {
    /// It holds on this machine.
    Confirmed,
    /// It does not.
    Refuted,
}

/// One line of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// What was run, where.
    Machine(Box<Machine>),
    /// A number.
    Figure {
        /// The probe.
        probe: String,
        /// What of it.
        name: String,
        /// How much.
        value: f64,
        /// Of what; empty for a plain count.
        unit: String,
    },
    /// Something in words.
    Note {
        /// The probe.
        probe: String,
        /// The words.
        text: String,
    },
    /// The end of a probe.
    Verdict {
        /// The probe.
        probe: String,
        /// How.
        verdict: Verdict,
        /// In one line; empty when nothing is to be said.
        reason: String,
        /// How long it took.
        seconds: f64,
        /// Guesses of the design that it was about; none when it broke or was not tried.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        guesses: Vec<Judged>,
    },
}

/// Where and how results came about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the GPU; `virtual` on the virtual one.
    pub gpu: String,
    /// Version of the driver; empty: none answers.
    pub driver: String,
    /// Kernel release.
    pub kernel: String,
    /// `gVisor` or empty.
    pub sandbox: String,
    /// Processors.
    pub cpus: usize,
    /// C library.
    pub libc: String,
    /// Date, UTC.
    pub date: String,
    /// Command line.
    pub command: String,
    /// Commit of the source, if the packer said.
    pub commit: String,
}

/// Writes lines for one probe.
#[derive(Clone, Debug)]
pub struct Reporter {
    probe: String,
    judged: Arc<Mutex<Vec<Judged>>>,
}

impl Reporter {
    /// For the probe with this id.
    #[must_use]
    pub fn new(probe: &str) -> Self {
        Self {
            probe: probe.to_owned(),
            judged: Arc::default(),
        }
    }

    /// Says of a guess whether it holds; its verdict line carries it. The first word on a guess stands.
    pub fn guess(&self, guess: &str, holds: bool) {
        let mut judged = self
            .judged
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if guess.is_empty() || judged.iter().any(|one| one.guess == guess) {
            return;
        }
        judged.push(Judged {
            guess: guess.to_owned(),
            found: if holds {
                Found::Confirmed
            } else {
                Found::Refuted
            },
        });
    }

    /// The probe's id.
    #[must_use]
    pub fn probe(&self) -> &str {
        &self.probe
    }

    /// A number.
    pub fn figure(&self, name: impl Into<String>, value: f64, unit: &str) {
        emit(&Line::Figure {
            probe: self.probe.clone(),
            name: name.into(),
            value,
            unit: unit.to_owned(),
        });
    }

    /// Nanoseconds, said in microseconds.
    pub fn micros(&self, name: impl Into<String>, ns: u64) {
        self.figure(name, ns as f64 / 1e3, "us");
    }

    /// Words.
    pub fn note(&self, text: impl Into<String>) {
        emit(&Line::Note {
            probe: self.probe.clone(),
            text: text.into(),
        });
    }

    /// The end.
    pub fn verdict(&self, verdict: Verdict, reason: impl Into<String>, seconds: f64) {
        emit(&Line::Verdict {
            probe: self.probe.clone(),
            verdict,
            reason: reason.into(),
            seconds,
            guesses: std::mem::take(
                &mut *self
                    .judged
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner),
            ),
        });
    }
}

/// Writes one line to standard output. Who does not read any more has lost interest in results, not in
/// the clean-up that follows them, so this is no error.
pub fn emit(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}
