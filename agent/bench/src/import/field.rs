//! A value in somebody's file, which knows where it stands.

use super::outcome::ImportError;
use serde_json::Value;
use std::path::Path;

/// A value, its path within the file, and the file.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    file: &'a Path,
    line: usize,
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    /// What begins at a line.
    pub fn root(file: &'a Path, line: usize, value: &'a Value) -> Self {
        let path = String::new();
        Self {
            file,
            line,
            path,
            value,
        }
    }

    /// Whether it is an object with something of that name.
    pub fn has(&self, name: &str) -> bool {
        !self.value[name].is_null()
    }

    /// What has that name; null if nothing has.
    pub fn get(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            path: format!("{}{dot}{name}", self.path),
            value: &self.value[name],
            ..*self
        }
    }

    /// Why it cannot be used.
    pub fn wrong(&self, why: impl Into<String>) -> ImportError {
        ImportError::Field {
            file: self.file.to_owned(),
            line: self.line,
            field: self.path.clone(),
            why: why.into(),
        }
    }

    fn shown(&self) -> String {
        crate::stream::excerpt(&self.value.to_string())
    }

    /// A number that is neither negative nor endless.
    pub fn number(&self) -> Result<f64, ImportError> {
        let number = self
            .value
            .as_f64()
            .filter(|value| value.is_finite() && *value >= 0.0);
        number.ok_or_else(|| self.wrong(format!("{} is no number from 0 on", self.shown())))
    }

    /// A number, or nothing where there is none.
    pub fn optional(&self) -> Result<Option<f64>, ImportError> {
        if self.value.is_null() {
            return Ok(None);
        }
        self.number().map(Some)
    }

    /// A whole number.
    pub fn count(&self) -> Result<usize, ImportError> {
        // Some tools write counts as 20.0.
        let number = self.number()?;
        if number.fract() == 0.0 && number <= 1e12 {
            Ok(number as usize)
        } else {
            Err(self.wrong(format!("{} is no count", self.shown())))
        }
    }

    /// A list's elements.
    pub fn list(&self) -> Result<Vec<Self>, ImportError> {
        let list = self.value.as_array();
        let list = list.ok_or_else(|| self.wrong(format!("{} is no list", self.shown())))?;
        let element = |(place, value)| Self {
            path: format!("{}[{place}]", self.path),
            value,
            ..*self
        };
        Ok(list.iter().enumerate().map(element).collect())
    }

    /// A list of numbers.
    pub fn numbers(&self) -> Result<Vec<f64>, ImportError> {
        self.list()?.iter().map(Self::number).collect()
    }

    /// Text; empty if it is none.
    pub fn text(&self) -> String {
        crate::stream::excerpt(self.value.as_str().unwrap_or_default())
    }

    /// Whether it is true.
    pub fn is_true(&self) -> bool {
        self.value == &Value::Bool(true)
    }

    /// Whether it is false.
    pub fn is_false(&self) -> bool {
        self.value == &Value::Bool(false)
    }
}
