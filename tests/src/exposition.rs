//! A reader of Prometheus' text format, strict about what that format asks.

use std::collections::BTreeMap;

/// One series at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name with suffix.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// A scrape.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    /// Family name -> (type, help).
    pub families: BTreeMap<String, (String, String)>,
    /// Every series, in order.
    pub series: Vec<Series>,
}

impl Exposition {
    /// Reads `text`.
    ///
    /// # Errors
    /// On the first line that breaks a rule: with that line and the rule.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut read = Self::default();
        let mut family = String::new();
        for line in text.lines() {
            let wrong = |rule: &str| format!("{rule}: {line}");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest
                    .split_once(' ')
                    .ok_or_else(|| wrong("HELP without text"))?;
                name.clone_into(&mut family);
                let before = read
                    .families
                    .insert(family.clone(), (String::new(), help.to_owned()));
                if before.is_some() {
                    return Err(wrong("a family twice"));
                }
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest
                    .split_once(' ')
                    .ok_or_else(|| wrong("TYPE without type"))?;
                if name != family {
                    return Err(wrong("TYPE of another family"));
                }
                if let Some(known) = read.families.get_mut(name) {
                    kind.clone_into(&mut known.0);
                }
            } else if !line.starts_with('#') && !line.is_empty() {
                let series = read_series(line).ok_or_else(|| wrong("not a series"))?;
                let kind = read.families.get(&family).map_or("", |known| &known.0);
                let suffix = series.name.strip_prefix(&family);
                let belongs = match kind {
                    "histogram" => {
                        matches!(suffix, Some("_bucket" | "_sum" | "_count"))
                    }
                    _ => suffix == Some(""),
                };
                if !belongs {
                    return Err(wrong("a series outside its family"));
                }
                read.series.push(series);
            }
        }
        read.histograms_add_up()?;
        Ok(read)
    }

    fn histograms_add_up(&self) -> Result<(), String> {
        let mut last = BTreeMap::new();
        for series in &self.series {
            let Some(name) = series.name.strip_suffix("_bucket") else {
                continue;
            };
            let mut labels = series.labels.clone();
            let bound = labels.remove("le").ok_or("a bucket without le")?;
            let before: f64 = last
                .insert((name, labels.clone()), series.value)
                .unwrap_or(0.0);
            if series.value < before {
                return Err(format!("{name}: bucket {bound} is below the one before"));
            }
            if bound == "+Inf" {
                let count = format!("{name}_count");
                let of = |other: &&Series| other.name == count && other.labels == labels;
                let counted = self.series.iter().find(of).map(|series| series.value);
                if counted != Some(series.value) {
                    return Err(format!("{name}: the last bucket is not the count"));
                }
            }
        }
        Ok(())
    }

    /// The series of that name with these labels, among others.
    #[must_use]
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&Series> {
        let fits = |series: &&Series| {
            let has = |(key, value): &(&str, &str)| {
                series.labels.get(*key).is_some_and(|own| own == value)
            };
            series.name == name && labels.iter().all(has)
        };
        self.series.iter().filter(fits).collect()
    }

    /// Their sum; None: there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let all = self.all(name, labels);
        (!all.is_empty()).then(|| all.iter().map(|series| series.value).sum())
    }
}

fn read_series(line: &str) -> Option<Series> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    if let Some(inside) = rest.strip_prefix('{') {
        let mut left = inside;
        while !left.starts_with('}') {
            let (key, after) = left.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.to_owned(), value);
            left = after;
        }
        rest = &left[1..];
    }
    Some(Series {
        name: name.to_owned(),
        labels,
        value: rest.trim().parse().ok()?,
    })
}

/// What stands before the closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            c => value.push(c),
        }
    }
    None
}

/// Every metric that a PromQL expression names.
#[must_use]
pub fn named(expression: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut word = String::new();
    // What stands in quotes is a label's value, in brackets a time, in braces a label.
    let (mut braces, mut quotes) = (0u32, false);
    for c in expression.chars().chain([' ']) {
        match c {
            '"' => quotes = !quotes,
            _ if quotes => {}
            c if braces == 0 && (c.is_ascii_alphanumeric() || c == '_' || c == ':') => {
                word.push(c);
                continue;
            }
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        let whole = std::mem::take(&mut word);
        if ["tidegate_", "DCGM_", "vllm:"]
            .iter()
            .any(|of| whole.starts_with(of))
        {
            names.push(whole);
        }
    }
    names
}
