//! What `explain` answers about a process.

use crate::config::{Identity, Role, show_rule};
use crate::identity::rules::{Trial, decide, refused, trials};
use crate::identity::{Credentials, Qos, Subject};
use crate::inbox::Explanation;
use crate::wire::{role, role_said};
use tidegate_proto::v1;

/// What the rules make of a process, in the role that it asks for or is `supposed` to ask for, and how it stands.
pub fn explained(
    peer: &Credentials,
    rules: &Identity,
    supposed: Option<Role>,
    standing: Explanation,
) -> v1::ExplainResponse {
    let subject = Subject::of(peer, rules);
    // What it asked for when it attached, it would ask for again.
    let attached = standing.attached.first();
    let asked = supposed.or_else(|| role_said(attached?.asked_role()));
    let decision = decide(rules, &subject, asked);
    let role_refused = match attached {
        Some(known) if supposed.is_none() => known.role_refused.clone(),
        _ => refused(asked, "", peer.uid, &decision),
    };
    let mut reasons = standing.reasons;
    if standing.attached.is_empty() {
        reasons.push("it is not attached: it runs no GPU work under the library".to_owned());
    }
    for process in &standing.attached {
        if process.role != i32::from(role(decision.role)) {
            reasons.push(format!(
                "it attached as what it is by: {}; the rules in force count when it attaches anew",
                process.rule
            ));
        }
    }
    v1::ExplainResponse {
        pid: peer.pid,
        name: peer.name.clone().into(),
        uid: peer.uid,
        gid: peer.groups.first().copied().unwrap_or_default(),
        cgroup: peer.cgroup.line().into(),
        facts: facts(&subject),
        trials: trials(rules, &subject).iter().map(trial).collect(),
        role: role(decision.role).into(),
        rule: decision.rule,
        asked_role: asked.map_or(v1::Role::Unspecified, role).into(),
        role_refused,
        attached: standing.attached,
        jobs: standing.jobs,
        reasons,
    }
}

fn fact(name: &str, value: &str) -> v1::Fact {
    v1::Fact {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

/// What rules can look at, beside user, groups and cgroup.
fn facts(subject: &Subject<'_>) -> Vec<v1::Fact> {
    let place = subject.place;
    let found = [
        ("unit", place.unit.as_deref()),
        ("container", place.container.as_deref()),
        ("qos", place.qos.map(Qos::name)),
        ("pod", place.pod.as_deref()),
        ("slurm_job", place.slurm_job.as_deref()),
    ];
    let found = found.into_iter();
    let mut facts: Vec<_> = found
        .filter_map(|(name, value)| Some(fact(name, value?)))
        .collect();
    let labels = subject.labels.iter();
    facts.extend(labels.map(|(name, value)| fact(&format!("label {name}"), value)));
    facts
}

fn trial(trial: &Trial<'_>) -> v1::RuleTrial {
    v1::RuleTrial {
        number: u32::try_from(trial.number).unwrap_or(u32::MAX),
        origin: trial.rule.origin.to_string(),
        rule: show_rule(trial.rule),
        matched: trial.mismatch.is_none(),
        mismatch: trial.mismatch.clone().unwrap_or_default(),
    }
}
