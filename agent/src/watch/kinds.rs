//! The kinds of events: their names, whether they ask for attention, and what each means.
//!
//! `tidegate events --kind` takes these names and lists them, and the log writes those that ask for
//! attention as warnings. A test reads the sources for every kind that the agent tells of.

/// One kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// In snake_case; it never changes.
    pub name: &'static str,
    /// Somebody should look at it: the log has it as a warning.
    pub warns: bool,
    /// It comes by the thousand: the log counts it once a minute ([`super::minute`]).
    pub frequent: bool,
    /// An operator did it, or it was done to the agent by hand: kept whatever tenants do.
    pub by_operators: bool,
    /// What happened.
    pub meaning: &'static str,
}

impl Kind {
    const fn of_operators(self) -> Self {
        Self {
            by_operators: true,
            ..self
        }
    }

    const fn frequent(self) -> Self {
        Self {
            frequent: true,
            ..self
        }
    }
}

const fn usual(name: &'static str, meaning: &'static str) -> Kind {
    Kind {
        name,
        warns: false,
        frequent: false,
        by_operators: false,
        meaning,
    }
}

const fn warning(name: &'static str, meaning: &'static str) -> Kind {
    Kind {
        name,
        warns: true,
        frequent: false,
        by_operators: false,
        meaning,
    }
}

/// Every kind, by name.
pub const KINDS: [Kind; 59] = [
    usual(
        "adapter_saved",
        "a trainer finished its adapter: where it is",
    ),
    usual(
        "adapter_served",
        "a server answers with a trainer's adapter",
    ),
    warning(
        "agent_was_stopped",
        "the agent's control thread came late by 250 ms or more",
    ),
    usual(
        "attached",
        "a process attached: its role and the rule that gave it",
    ),
    usual(
        "breathed",
        "a job ran for a moment although its gate had been closed for long",
    )
    .frequent(),
    warning(
        "channels_stuck",
        "channels that a dead process or agent left disabled cannot be enabled yet",
    ),
    warning(
        "config_refused",
        "a configuration was read and refused; the old one stays in force",
    )
    .of_operators(),
    warning(
        "cooldown_violated",
        "online paused for longer than the cooldown, within a request",
    ),
    warning(
        "denied",
        "memory that online asked for was not available in time",
    ),
    warning("disable_failed", "the driver refused to disable channels"),
    usual(
        "disconnected",
        "a process' connection is lost; the process lives on",
    ),
    warning(
        "doubted",
        "an online process reports requests in flight and works on none of them; they no longer count",
    ),
    usual("drained", "an operator drained the node").of_operators(),
    warning("enable_failed", "the driver refused to enable channels"),
    usual("exited", "an attached process ended"),
    warning(
        "foreign_claim",
        "a process named an RM client that is not its own",
    ),
    usual(
        "gated_again",
        "an ungated block ended: gates hold offline again; its time is the length of the block",
    )
    .of_operators(),
    usual("gpu_met", "a process uses a GPU that the agent did not see"),
    warning("issue_stalled", "the driver does not return from a call"),
    warning(
        "kv_not_reclaimable",
        "a KV cache was registered whose memory is never taken",
    ),
    warning(
        "kv_refused",
        "a KV cache was registered whose regions are invalid",
    ),
    usual(
        "landed",
        "an offline process without an agent enabled its own channels",
    ),
    warning(
        "lapsed",
        "an online process is busy without progress; its activity no longer counts",
    ),
    usual("launches_pass", "launches of an offline process pass again").frequent(),
    usual(
        "launches_wait",
        "launches of an offline process wait in the library",
    )
    .frequent(),
    warning(
        "lease_demoted",
        "a trainer kept running past its leases, and is held to the gate for a while",
    ),
    warning(
        "lease_overrun",
        "a trainer still ran when its lease beside online was over, and was disabled",
    ),
    warning(
        "lease_tpot_too_low",
        "online alone needs longer for a token than lease.tpot: nothing is lent",
    ),
    warning(
        "lease_unit_too_long",
        "no unit of a trainer has fitted beside online: what one takes, and what would fit",
    ),
    warning(
        "max_gated",
        "a job has waited for longer than gate.max_gated",
    ),
    usual("more", "further events of a tenant: how many, and whose"),
    warning(
        "no_iterations",
        "an online process does not report its iterations, so no lease is given beside it",
    ),
    usual("note", "a message of a library"),
    warning("obstacle", "something prevents channel control"),
    usual("obstacle_gone", "channel control is possible again"),
    usual(
        "operator",
        "an operator paused, resumed, or changed the log level",
    )
    .of_operators(),
    warning("page_dropped", "a process rang its doorbell too often"),
    usual("paused", "a job was paused"),
    usual(
        "preempted",
        "offline work was taken off a GPU for online; its time is the latency",
    )
    .frequent(),
    usual(
        "pressure",
        "an online engine uses nine tenths of the memory mapped for it",
    )
    .frequent(),
    warning(
        "proof_lapsed",
        "an RM client no longer belongs to the process",
    ),
    usual("reclaimed", "memory was taken from an offline job").frequent(),
    usual("recovered", "an online process makes progress again"),
    warning("refused", "a tenant exceeded its share of the agent"),
    usual("reloaded", "a configuration was read and is in force").of_operators(),
    usual("restored", "memory was given back to an offline job").frequent(),
    usual("resumed", "a paused job may run again"),
    warning(
        "role_refused",
        "a process asked for a role by TIDEGATE_ROLE and did not get it",
    ),
    usual("set", "an operator changed a setting").of_operators(),
    warning("socket_removed", "one of the agent's sockets was removed").of_operators(),
    warning(
        "turns_instead",
        "jobs take turns although timeslices are configured: which job, and why",
    ),
    warning(
        "unattached",
        "a process uses a GPU and is not attached: no gate holds it",
    ),
    usual("undrained", "an operator ended a drain").of_operators(),
    warning(
        "ungated",
        "an operator lets offline run beside online for a while, to measure what that costs",
    )
    .of_operators(),
    usual(
        "unit_redone",
        "a trainer repeated units because memory was taken from it; at most once a second",
    )
    .frequent(),
    warning(
        "unmanaged",
        "a job's channels cannot be controlled; its launches wait instead",
    ),
    warning(
        "unreclaimable",
        "no memory could be taken from an offline job: what blocked it",
    ),
    usual(
        "wake_overtaken",
        "an enable was withheld because online became busy first",
    )
    .frequent(),
    usual("woken", "an offline job got the GPU back").frequent(),
];

/// The kind of that name.
#[must_use]
pub fn kind(name: &str) -> Option<&'static Kind> {
    let at = KINDS.binary_search_by(|kind| kind.name.cmp(name)).ok()?;
    Some(&KINDS[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The names that stand behind `before` in `text`, as far as a string literal follows.
    fn named<'a>(text: &'a str, before: &str, found: &mut BTreeSet<&'a str>) {
        for rest in text.split(before).skip(1) {
            if let Some((name, _)) = rest.split_once('"') {
                found.insert(name);
            }
        }
    }

    fn sources(dir: &Path, into: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("the sources are here") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
                into.push(before_tests.to_owned());
            }
        }
    }

    /// What stands before the kind of an event where one is told.
    const TELLING: [&str; 12] = [
        "kind: \"",
        "notice.kind = \"",
        "remark(session, \"",
        "shell.remark(\"",
        "Audit(\"",
        "audit(\"",
        "named(\"",
        "of_gpu(\"",
        "of_job(\"",
        "of_lane(\"",
        "of_order(\"",
        "of_session(\"",
    ];

    /// P-OPERATE-13: every kind that the agent tells of is in the table, and no other.
    #[test]
    fn the_table_has_every_kind_that_the_sources_tell_of() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut texts = Vec::new();
        for dir in ["node/src", "src/grpc", "src/control", "src/watch"] {
            sources(&root.join(dir), &mut texts);
        }
        let mut found = BTreeSet::new();
        for text in &texts {
            for before in TELLING.into_iter().chain(["=> (\""]) {
                named(text, before, &mut found);
            }
        }
        // A choice of two, and what stands in the same shape and is no kind of event.
        found.extend(["launches_wait", "launches_pass", "obstacle_gone"]);
        let known: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        let missing: Vec<_> = known.difference(&found).collect();
        assert!(missing.is_empty(), "nobody tells of {missing:?}");
        for name in found.difference(&known) {
            let elsewhere = texts.iter().any(|text| {
                TELLING
                    .iter()
                    .any(|before| text.contains(&format!("{before}{name}\"")))
            });
            assert!(!elsewhere, "`{name}` is not in the table of kinds");
        }
    }

    #[test]
    fn a_kind_is_found_by_its_name() {
        assert!(KINDS.is_sorted_by(|a, b| a.name < b.name));
        for known in &KINDS {
            assert_eq!(kind(known.name), Some(known));
        }
        assert_eq!(kind("bogus"), None);
    }
}
