//! `[fair.users]`: what users have among each other.

use super::origin::ConfigError;
use super::value::{Row, quoted};
use std::collections::BTreeMap;
use tidegate_policy::fair::UserShare;

impl Row {
    /// Users by number, each with what it has.
    pub fn users(&self) -> Result<BTreeMap<u32, UserShare>, ConfigError> {
        let expected =
            "expected a table of users, such as { alice = { weight = 4 }, 1000 = { most = 0.5 } }";
        let table = self.value.as_table().ok_or_else(|| self.wrong(expected))?;
        let mut users = BTreeMap::new();
        for (name, value) in table {
            let item = self.items.iter().find(|item| item.name == *name);
            let at = |key: Option<&str>| {
                let whole = item.map_or(&self.origin, |item| &item.origin);
                let inner = key.and_then(|key| item?.keys.get(key));
                Self {
                    key: key.map_or_else(
                        || format!("{}.{name}", self.key),
                        |key| format!("{}.{name}.{key}", self.key),
                    ),
                    origin: inner.unwrap_or(whole).clone(),
                    value: value.clone(),
                    items: Vec::new(),
                }
            };
            let row = at(None);
            let uid = row.uid_of(name)?;
            let share = value.as_table().ok_or_else(|| {
                row.wrong("expected what the user has, such as { weight = 4, most = 0.5 }")
            })?;
            let mut user = UserShare::default();
            for (key, value) in share {
                let row = Self {
                    value: value.clone(),
                    ..at(Some(key))
                };
                match key.as_str() {
                    "weight" => user.weight = row.weight()?,
                    "most" => user.most = row.most()?,
                    _ => return Err(row.unknown()),
                }
            }
            if users.insert(uid, user).is_some() {
                return Err(row.wrong(format!("user {uid} is there already, by another name")));
            }
        }
        Ok(users)
    }

    /// The number of a user who is called so on this node.
    fn uid_of(&self, name: &str) -> Result<u32, ConfigError> {
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            let uid = name.parse().ok().filter(|&uid| uid != u32::MAX);
            return uid.ok_or_else(|| self.wrong("no user has such a number"));
        }
        match nix::unistd::User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => Err(self.wrong(format!(
                "this node knows no user `{name}`; a number names a user that it does not know"
            ))),
            Err(error) => Err(self.wrong(format!("user `{name}` cannot be looked up: {error}"))),
        }
    }

    /// A part in thousandths, above 0.
    fn most(&self) -> Result<u32, ConfigError> {
        let part = match &self.value {
            toml::Value::Float(part) => *part,
            toml::Value::Integer(0) => 0.0,
            toml::Value::Integer(1) => 1.0,
            _ => return Err(self.wrong("expected a part from 0.001 to 1, such as 0.5")),
        };
        if (0.001..=1.0).contains(&part) {
            return Ok((part * 1000.0).round() as u32);
        }
        Err(self.wrong(format!("{part} is out of range: 0.001 to 1")))
    }
}

/// As [`Row::users`] reads them.
pub fn show_users(users: &BTreeMap<u32, UserShare>) -> String {
    let shown = users.iter().map(|(uid, user)| {
        let mut fields = vec![format!("weight = {}", user.weight)];
        if user.most < 1000 {
            fields.push(format!("most = {}", f64::from(user.most) / 1000.0));
        }
        let uid = quoted(&uid.to_string());
        format!("{uid} = {{ {} }}", fields.join(", "))
    });
    match shown.collect::<Vec<_>>() {
        none if none.is_empty() => "{}".to_owned(),
        shown => format!("{{ {} }}", shown.join(", ")),
    }
}
