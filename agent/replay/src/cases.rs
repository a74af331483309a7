//! Which policies are compared, by name.
//!
//! A case is a compute policy and a memory policy. On a command line it is `COMPUTE+MEMORY`, or a
//! compute policy alone, which is then tried with each memory policy asked for.

use std::fmt;

use crate::names::{UnknownName, find};
use crate::spec::{Compute, FIGURE_10, Memory};

/// Who decides about the GPU's time, and who about its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The GPU's time.
    pub compute: Compute,
    /// Its memory.
    pub memory: Memory,
}

/// Online alone: what every case is compared with.
pub const ALONE: Case = Case::of(Compute::Standalone, Memory::Prism);
/// What offline throughput is compared with: Valve's strongest baseline.
pub const CHANNEL_PRISM: Case = Case::of(Compute::Channel, Memory::Prism);
/// What a policy that knows the future gets within the same bounds and at the same costs.
pub const ORACLE: Case = Case::of(Compute::Oracle, Memory::Oracle);
/// The same with memory that moves for nothing: above every policy, and out of reach of each.
pub const BOUND: Case = Case::of(Compute::Oracle, Memory::Bound);
/// What the agent does.
pub const TIDEGATE: Case = Case::of(Compute::Tidegate, Memory::Tidegate);

/// Each name once, in the order in which they come.
fn once<N: PartialEq>(named: impl Iterator<Item = (N, &'static str)>) -> Vec<(N, &'static str)> {
    let mut known: Vec<(N, &'static str)> = Vec::new();
    for (name, about) in named {
        if known.iter().all(|(other, _)| *other != name) {
            known.push((name, about));
        }
    }
    known
}

/// The policies for the GPU's time in these cases, each once and with what it does.
#[must_use]
pub fn times(cases: &[Case]) -> Vec<(String, &'static str)> {
    once(
        cases
            .iter()
            .map(|case| (case.compute.name(), case.compute.about())),
    )
}

/// The policies for its memory.
#[must_use]
pub fn memories(cases: &[Case]) -> Vec<(String, &'static str)> {
    let named = cases.iter().map(|case| case.memory);
    once(named.map(|memory| (memory.name().to_owned(), memory.about())))
}

impl Case {
    /// This pair.
    #[must_use]
    pub const fn of(compute: Compute, memory: Memory) -> Self {
        Self { compute, memory }
    }

    /// What is compared unless asked otherwise: no control, the six of the paper's Figure 10, and
    /// the limit.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let paper = FIGURE_10.map(|(compute, memory)| Self::of(compute, memory));
        let mut cases = vec![Self::of(Compute::NoControl, Memory::Prism)];
        cases.extend(paper);
        cases.push(ORACLE);
        cases
    }

    /// The cases that `policies` and `memories` name; [`Case::usual`] if neither names any. A
    /// policy without a memory is tried with each of `memories`, or with Tidegate's (an oracle with
    /// the oracle's); memories without a policy with Tidegate's.
    ///
    /// # Errors
    /// When a name is unknown.
    pub fn named(policies: &[String], memories: &[String]) -> Result<Vec<Self>, UnknownName> {
        if policies.is_empty() && memories.is_empty() {
            return Ok(Self::usual());
        }
        let mut known = Vec::new();
        for name in memories {
            known.push(memory(name)?);
        }
        let mut cases = Vec::new();
        let tidegate = ["Tidegate".to_owned()];
        for name in if policies.is_empty() {
            &tidegate
        } else {
            policies
        } {
            if let Some((first, second)) = name.split_once('+') {
                cases.push(Self::of(compute(first.trim())?, memory(second.trim())?));
                continue;
            }
            let compute = compute(name)?;
            if known.is_empty() {
                cases.push(Self::of(compute, usual_memory(compute)));
            }
            cases.extend(known.iter().map(|memory| Self::of(compute, *memory)));
        }
        let mut seen = std::collections::HashSet::new();
        cases.retain(|case| seen.insert(*case));
        Ok(cases)
    }
}

/// What goes with a compute policy that is named alone.
const fn usual_memory(compute: Compute) -> Memory {
    match compute {
        Compute::Oracle | Compute::OracleUnlimited => Memory::Oracle,
        Compute::OneEngine(_) => Memory::Prism,
        _ => Memory::Tidegate,
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TIDEGATE => out.write_str("Tidegate"),
            ORACLE => out.write_str("Oracle"),
            BOUND => out.write_str("Bound"),
            Self { compute, memory } => write!(out, "{}+{}", compute.name(), memory.name()),
        }
    }
}

/// The compute policy of this name; `TemporalShare(N)` and `OneEngine(N)` take any N from 1.
///
/// # Errors
/// When there is none.
pub fn compute(name: &str) -> Result<Compute, UnknownName> {
    let lower = name.to_ascii_lowercase();
    let number = |prefix: &str| {
        let n = lower.strip_prefix(prefix)?.strip_suffix(')')?.parse();
        n.ok().filter(|n| *n > 0)
    };
    if let Some(every) = number("temporalshare(") {
        return Ok(Compute::TemporalShare(every));
    }
    if let Some(cap) = number("oneengine(") {
        return Ok(Compute::OneEngine(cap));
    }
    find("compute policy", name, Compute::NAMES)
}

/// The memory policy of this name.
///
/// # Errors
/// When there is none.
pub fn memory(name: &str) -> Result<Memory, UnknownName> {
    find("memory policy", name, Memory::NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(policies: &[&str], memories: &[&str]) -> Result<Vec<String>, String> {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let cases = Case::named(&owned(policies), &owned(memories));
        cases
            .map(|cases| cases.iter().map(Case::to_string).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn names_make_cases() {
        assert_eq!(
            named(
                &["GPreempt", "channel+prism", "TemporalShare(7)"],
                &["uvm", "Tidegate"]
            ),
            Ok(["GPreempt+UVM", "GPreempt+Tidegate", "Channel+Prism"]
                .into_iter()
                .chain(["TemporalShare(7)+UVM", "TemporalShare(7)+Tidegate"])
                .map(str::to_owned)
                .collect())
        );
        assert_eq!(
            named(&[], &["StaticMem"]),
            Ok(vec!["Tidegate+StaticMem".to_owned()])
        );
        assert_eq!(
            named(&["tidegate", "Tidegate+Tidegate"], &[]),
            Ok(vec!["Tidegate".to_owned()])
        );
        assert_eq!(
            named(&["Oracle", "OracleUnlimited", "Channel"], &[]),
            Ok(["Oracle", "OracleUnlimited+Oracle", "Channel+Tidegate"]
                .map(str::to_owned)
                .into())
        );
        assert_eq!(named(&["Oracle"], &["Bound"]), Ok(vec!["Bound".to_owned()]));
        assert_eq!(named(&[], &[]).map(|cases| cases.len()), Ok(8));
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_nearest() {
        let told = named(&["GPrempt"], &[]).expect_err("unknown");
        assert!(
            told.contains("no compute policy \"GPrempt\"; did you mean GPreempt?"),
            "{told}"
        );
        let told = named(&["Channel+Prison"], &[]).expect_err("unknown");
        assert!(
            told.contains("no memory policy \"Prison\"; did you mean Prism?"),
            "{told}"
        );
        assert_eq!(
            named(&["oneengine(8)"], &[]),
            Ok(vec!["OneEngine(8)+Prism".to_owned()])
        );
        for odd in [
            "OneEngine(0)",
            "OneEngine()",
            "TemporalShare(0)",
            "TemporalShare(x)",
            "+",
            "",
        ] {
            assert!(named(&[odd], &[]).is_err(), "{odd}");
        }
    }
}
