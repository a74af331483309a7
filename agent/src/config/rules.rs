//! `[identity]`: users and rules.

use super::origin::ConfigError;
use super::sections::{Qos, Rule};
use super::value::{Named, Row, quoted, quoted_name};
use tidegate_node::kinds::Role;
use tidegate_policy::fair::Class;

/// Most that a job or a user weighs: a thousandth of the time is two turns in three minutes.
pub const MOST_WEIGHT: u32 = 1_000;

impl Named for Class {
    const NAMES: &'static [(&'static str, Self)] =
        &[("normal", Self::Normal), ("idle", Self::Idle)];
}

impl Named for Role {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("online", Self::Online),
        ("offline", Self::Offline),
        ("ignore", Self::Ignore),
    ];
}

impl Named for Qos {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("besteffort", Self::BestEffort),
        ("burstable", Self::Burstable),
        ("guaranteed", Self::Guaranteed),
    ];
}

impl Row {
    /// User ids, or "self" for the agent's own.
    pub fn uids(&self) -> Result<Vec<u32>, ConfigError> {
        let expected = "expected a list of user ids or \"self\"";
        let list = self.value.as_array().ok_or_else(|| self.wrong(expected))?;
        list.iter()
            .map(|value| match value {
                toml::Value::String(text) if text == "self" => {
                    Ok(nix::unistd::Uid::effective().as_raw())
                }
                toml::Value::Integer(uid) => u32::try_from(*uid).map_err(|_| self.wrong(expected)),
                _ => Err(self.wrong(expected)),
            })
            .collect()
    }

    /// A weight from 1 to [`MOST_WEIGHT`].
    pub fn weight(&self) -> Result<u32, ConfigError> {
        let expected = format!("expected a whole number from 1 to {MOST_WEIGHT}");
        let number = self
            .value
            .as_integer()
            .ok_or_else(|| self.wrong(expected))?;
        u32::try_from(number)
            .ok()
            .filter(|weight| (1..=MOST_WEIGHT).contains(weight))
            .ok_or_else(|| self.wrong(format!("{number} is out of range: 1 to {MOST_WEIGHT}")))
    }

    pub fn rules(&self) -> Result<Vec<Rule>, ConfigError> {
        let expected = "expected [[identity.rules]] tables";
        let list = self.value.as_array().ok_or_else(|| self.wrong(expected))?;
        let tables = list.iter().enumerate();
        tables
            .map(|(at, value)| self.rule(at, value.as_table().ok_or_else(|| self.wrong(expected))?))
            .collect()
    }

    fn rule(&self, at: usize, table: &toml::Table) -> Result<Rule, ConfigError> {
        let item = self.items.get(at);
        let whole = Self {
            origin: item.map_or_else(|| self.origin.clone(), |item| item.origin.clone()),
            ..self.clone()
        };
        let mut rule = Rule {
            origin: whole.origin.clone(),
            ..Rule::giving(Role::Ignore)
        };
        let mut role = None;
        for (name, value) in table {
            let origin = item.and_then(|item| item.keys.get(name));
            let inner = Self {
                key: format!("{}.{name}", self.key),
                origin: origin.unwrap_or(&whole.origin).clone(),
                value: value.clone(),
                items: Vec::new(),
            };
            inner.condition(name, &mut rule, &mut role)?;
        }
        rule.role = role.ok_or_else(|| whole.wrong("a rule needs a role"))?;
        for (name, given) in [
            ("weight", rule.weight.is_some()),
            ("class", rule.class.is_some()),
            ("join", rule.join),
        ] {
            if given && rule.role != Role::Offline {
                return Err(
                    whole.wrong(format!("only a rule with role = \"offline\" has a {name}"))
                );
            }
        }
        let bare = Rule {
            origin: rule.origin.clone(),
            weight: rule.weight,
            class: rule.class,
            join: rule.join,
            ..Rule::giving(rule.role)
        };
        if rule == bare {
            return Err(whole.wrong("a rule needs a condition, such as a uid or a cgroup"));
        }
        Ok(rule)
    }

    /// Takes one key of a rule.
    fn condition(
        &self,
        name: &str,
        rule: &mut Rule,
        role: &mut Option<Role>,
    ) -> Result<(), ConfigError> {
        let id = |what: &str| {
            let id = self
                .value
                .as_integer()
                .and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| self.wrong(format!("expected a {what} id")))
        };
        let text = |what: &str| self.text(what).map(|text| Some(text.to_owned()));
        match name {
            "uid" => rule.uid = Some(id("user")?),
            "gid" => rule.gid = Some(id("group")?),
            "cgroup" => {
                let path = self.text("a cgroup path")?;
                if !path.starts_with('/') {
                    return Err(self.wrong("a cgroup path begins with /"));
                }
                rule.cgroup = Some(path.trim_end_matches('/').to_owned());
            }
            "unit" => rule.unit = text("a unit such as \"vllm.service\"")?,
            "qos" => rule.qos = Some(self.named()?),
            "pod" => rule.pod = text("the id of a pod")?.map(|id| id.to_lowercase()),
            "slurm_partition" => rule.slurm_partition = text("the name of a partition")?,
            "labels" => {
                let expected =
                    "expected a table of texts, such as { \"koordinator.sh/qosClass\" = \"BE\" }";
                let table = self.value.as_table().ok_or_else(|| self.wrong(expected))?;
                for (name, value) in table {
                    let value = value.as_str().ok_or_else(|| self.wrong(expected))?;
                    rule.labels.insert(name.clone(), value.to_owned());
                }
            }
            "role" => *role = Some(self.named()?),
            "weight" => rule.weight = Some(self.weight()?),
            "class" => rule.class = Some(self.named()?),
            "join" => {
                let expected = "expected true or false";
                let join = self.value.as_bool();
                rule.join = join.ok_or_else(|| self.wrong(expected))?;
            }
            _ => return Err(self.unknown()),
        }
        Ok(())
    }
}

/// A rule as a TOML table in one line.
pub fn show_rule(rule: &Rule) -> String {
    let mut fields = Vec::new();
    let mut text = |name: &str, value: Option<&String>| {
        fields.extend(value.map(|value| format!("{name} = {}", quoted(value))));
    };
    text("cgroup", rule.cgroup.as_ref());
    text("unit", rule.unit.as_ref());
    text("pod", rule.pod.as_ref());
    text("slurm_partition", rule.slurm_partition.as_ref());
    fields.extend(rule.uid.map(|uid| format!("uid = {uid}")));
    fields.extend(rule.gid.map(|gid| format!("gid = {gid}")));
    fields.extend(rule.qos.map(|qos| format!("qos = {}", quoted_name(qos))));
    if !rule.labels.is_empty() {
        let labels = rule.labels.iter();
        let labels: Vec<_> = labels
            .map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)))
            .collect();
        fields.push(format!("labels = {{ {} }}", labels.join(", ")));
    }
    fields.push(format!("role = {}", quoted_name(rule.role)));
    fields.extend(rule.weight.map(|weight| format!("weight = {weight}")));
    fields.extend(
        rule.class
            .map(|class| format!("class = {}", quoted_name(class))),
    );
    fields.extend(rule.join.then(|| "join = true".to_owned()));
    format!("{{ {} }}", fields.join(", "))
}
