//! What the rules make of a process: each is tried in order until one matches.

use super::{Decision, Subject};
use crate::config::{Identity, Role, Rule};
use tidegate_node::text::Text;
use tidegate_policy::fair::Gives;

/// Says in the log that nobody can be online, if nobody can.
pub fn warn_of_none(identity: &Identity, file: &std::path::Path) {
    if identity.rules.is_empty() && identity.trust_env_uids.is_empty() {
        tracing::warn!(
            file = %file.display(),
            "no identity rule: no process is online, and only processes with TIDEGATE_ROLE=offline are gated; add \
             [[identity.rules]]"
        );
    }
}

/// How one rule fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial<'a> {
    /// From 1.
    pub number: usize,
    /// The rule.
    pub rule: &'a Rule,
    /// The first condition that does not hold, and what there is instead; None: it matched.
    pub mismatch: Option<String>,
}

/// The rules up to the first that matches.
#[must_use]
pub fn trials<'a>(identity: &'a Identity, subject: &Subject<'_>) -> Vec<Trial<'a>> {
    let mut trials = Vec::new();
    for (at, rule) in identity.rules.iter().enumerate() {
        let mismatch = mismatch(rule, subject);
        let matched = mismatch.is_none();
        trials.push(Trial {
            number: at + 1,
            rule,
            mismatch,
        });
        if matched {
            break;
        }
    }
    trials
}

/// Applies the rules to a process that `wishes` for a role (None: it did not say).
#[must_use]
pub fn decide(identity: &Identity, subject: &Subject<'_>, wishes: Option<Role>) -> Decision {
    let uid = subject.peer.uid;
    let matched = trials(identity, subject)
        .pop()
        .filter(|trial| trial.mismatch.is_none());
    let gives = matched.as_ref().map_or_else(Gives::default, |trial| Gives {
        weight: trial.rule.weight.unwrap_or(1),
        class: trial.rule.class.unwrap_or_default(),
    });
    let joined = matched.as_ref().filter(|trial| trial.rule.join);
    let joined_by = joined.map(|trial| Text::line(conditions(trial.rule).trim()));
    if let Some(role) = wishes.filter(|_| identity.trust_env_uids.contains(&uid)) {
        return Decision {
            role,
            rule: format!("trusted user {uid}: its own word"),
            gives,
            joined_by,
        };
    }
    let Some(Trial { number, rule, .. }) = matched else {
        let (role, rule) = if wishes == Some(Role::Offline) {
            (Role::Offline, "no rule matched: its own word")
        } else {
            (Role::Ignore, "no rule matched")
        };
        return Decision {
            role,
            rule: rule.to_owned(),
            gives,
            joined_by,
        };
    };
    let text = format!("rule {number}:{}", conditions(rule));
    if rule.role == Role::Online && wishes == Some(Role::Offline) {
        return Decision {
            role: Role::Offline,
            rule: format!("{text}, lowered at its own wish"),
            gives,
            joined_by,
        };
    }
    Decision {
        role: rule.role,
        rule: text,
        gives,
        joined_by,
    }
}

/// Why a process did not get the role it asked for; empty: it did, or asked for none. `unknown`: what it
/// asked for by a word that names no role.
#[must_use]
pub fn refused(wishes: Option<Role>, unknown: &str, uid: u32, decision: &Decision) -> String {
    let Decision { role, rule, .. } = decision;
    let is = match role {
        Role::Online => "is online",
        Role::Offline => "is offline",
        Role::Ignore => "is left alone, neither seen nor gated",
    };
    if !unknown.is_empty() {
        return format!(
            "asked for `{unknown}` by TIDEGATE_ROLE, which knows online and offline; it {is}: {rule}"
        );
    }
    match wishes {
        Some(Role::Online) if *role != Role::Online => format!(
            "asked for online by TIDEGATE_ROLE and {is}: {rule}, and user {uid} is not in identity.trust_env_uids"
        ),
        Some(Role::Offline) if *role != Role::Offline => {
            format!("asked for offline by TIDEGATE_ROLE and {is}: {rule}")
        }
        _ => String::new(),
    }
}

/// The conditions, each with a blank before it.
fn conditions(rule: &Rule) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name} {value}"));
        }
    };
    add("uid", rule.uid.map(|uid| uid.to_string()));
    add("gid", rule.gid.map(|gid| gid.to_string()));
    add("cgroup", rule.cgroup.clone());
    add("unit", rule.unit.clone());
    add("qos", rule.qos.map(|qos| qos.name().to_owned()));
    add("pod", rule.pod.clone());
    add("slurm_partition", rule.slurm_partition.clone());
    for (name, value) in &rule.labels {
        add("label", Some(format!("{name}={value}")));
    }
    text
}

/// The first condition of `rule` that does not hold.
fn mismatch(rule: &Rule, subject: &Subject<'_>) -> Option<String> {
    let Subject {
        peer,
        place,
        labels,
    } = subject;
    let differs = |name: &str, wanted: &str, found: Option<&str>| {
        let found = found.map_or_else(|| "none".to_owned(), |found| format!("`{found}`"));
        Some(format!("{name} is {found}, not `{wanted}`"))
    };
    if let Some(uid) = rule.uid.filter(|&uid| uid != peer.uid) {
        return Some(format!("uid is {}, not {uid}", peer.uid));
    }
    if let Some(gid) = rule.gid.filter(|gid| !peer.groups.contains(gid)) {
        return Some(format!("its groups are {:?}, without {gid}", peer.groups));
    }
    if let Some(pattern) = &rule.cgroup
        && !is_below(super::place::trusted(peer.cgroup.to_compare()), pattern)
    {
        return differs("cgroup", pattern, Some(&peer.cgroup.line()));
    }
    if let Some(pattern) = &rule.unit
        && !place
            .unit
            .as_deref()
            .is_some_and(|unit| glob(pattern, unit))
    {
        return differs("unit", pattern, place.unit.as_deref());
    }
    if let Some(qos) = rule.qos.filter(|&qos| place.qos != Some(qos)) {
        return differs("qos", qos.name(), place.qos.map(super::Qos::name));
    }
    if let Some(pod) = rule
        .pod
        .as_ref()
        .filter(|&pod| place.pod.as_ref() != Some(pod))
    {
        return differs("pod", pod, place.pod.as_deref());
    }
    let partition = labels.get(super::labels::PARTITION);
    if let Some(wanted) = &rule.slurm_partition
        && (place.slurm_job.is_none() || partition != Some(wanted))
    {
        let found = partition.filter(|_| place.slurm_job.is_some());
        return differs("slurm_partition", wanted, found.map(String::as_str));
    }
    rule.labels.iter().find_map(|(name, wanted)| {
        let found = labels.get(name);
        (found != Some(wanted)).then(|| {
            let name = format!("label {name}");
            differs(&name, wanted, found.map(String::as_str)).unwrap_or_default()
        })
    })
}

/// Whether `path` is a cgroup of this pattern or one below it; "/online" is not above "/online-batch".
fn is_below(path: &str, pattern: &str) -> bool {
    let mut components = path.split('/');
    pattern.split('/').all(|part| {
        components
            .next()
            .is_some_and(|component| glob(part, component))
    })
}

/// Whether `text` is of the pattern: `*` stands for anything, `?` for one character.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut next) = (0, 0);
    // Where to go on when what follows the last star does not fit after all.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(next) {
            Some('*') => {
                star = Some((next, at));
                next += 1;
            }
            Some(&c) if c == '?' || c == text[at] => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some((back, taken)) = star else {
                    return false;
                };
                star = Some((back, taken + 1));
                (next, at) = (back + 1, taken + 1);
            }
        }
    }
    pattern[next..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests;
