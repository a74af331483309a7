//! `[identity]`: users and rules.

use super::value::{Named, Row, quoted};
use super::{ConfigError, Role, Rule};

impl Named for Role {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("online", Self::Online),
        ("offline", Self::Offline),
        ("ignore", Self::Ignore),
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
            match name.as_str() {
                "uid" => {
                    let uid = value.as_integer().and_then(|uid| u32::try_from(uid).ok());
                    rule.uid = Some(uid.ok_or_else(|| inner.wrong("expected a user id"))?);
                }
                "cgroup" => {
                    let path = inner.text("a cgroup path")?;
                    if !path.starts_with('/') {
                        return Err(inner.wrong("a cgroup path begins with /"));
                    }
                    rule.cgroup = Some(path.trim_end_matches('/').to_owned());
                }
                "role" => role = Some(inner.named()?),
                _ => return Err(inner.unknown()),
            }
        }
        rule.role = role.ok_or_else(|| whole.wrong("a rule needs a role"))?;
        if rule.uid.is_none() && rule.cgroup.is_none() {
            return Err(whole.wrong("a rule needs a uid or a cgroup"));
        }
        Ok(rule)
    }
}

/// A rule as a TOML table in one line.
pub(super) fn show_rule(rule: &Rule) -> String {
    let mut fields = Vec::new();
    fields.extend(rule.uid.map(|uid| format!("uid = {uid}")));
    let cgroup = rule.cgroup.as_deref();
    fields.extend(cgroup.map(|path| format!("cgroup = {}", quoted(path))));
    fields.push(format!("role = {}", super::value::quoted_name(rule.role)));
    format!("{{ {} }}", fields.join(", "))
}
