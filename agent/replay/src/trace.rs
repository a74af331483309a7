//! Requests, and the readers of the trace formats people have.
//!
//! | format | recognised by | time | lengths |
//! |---|---|---|---|
//! | Azure LLM inference, CSV | header with `TIMESTAMP` | date and time, UTC | `ContextTokens`, `GeneratedTokens` |
//! | Mooncake, JSON lines | first character `{` | `timestamp`, ms | `input_length`, `output_length` |
//! | ours, CSV | header with `arrival_s` | seconds | `input_tokens`, `output_tokens` |
//!
//! Each may be gzipped; neither the name nor its ending matters. Columns are found by name, in any
//! order, and unknown ones are ignored. Sources: Azure/AzurePublicDataset (Splitwise, ISCA 2024) and
//! kvcache-ai/Mooncake (FAST 2025).
//!
//! Invariant of a [`Trace`]: arrivals never decrease, and every request has at least one token of
//! each kind. A request recorded with none counts as one: its prefill still yields a token.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::MultiGzDecoder;

use crate::clock::Time;
use crate::rng::splitmix64;

/// One request as a client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives.
    pub arrival: Time,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it generates.
    pub output_tokens: u32,
}

/// Requests in the order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<Request>,
}

/// Why a trace cannot be read. Each text says where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened, read or decompressed.
    #[error("cannot read trace {}: check the path, and that a gzipped file is whole", file.display())]
    Read {
        /// Its path.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing recognises the first line.
    #[error(
        "{}:1: not a trace format: the first line is {found:?}; expected a CSV header with \
         TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or arrival_s,input_tokens,output_tokens, \
         or JSON lines with timestamp, input_length and output_length (Mooncake)",
        file.display()
    )]
    Format {
        /// Its path.
        file: PathBuf,
        /// The beginning of its first line.
        found: String,
    },
    /// A header or an object without a field that its format needs.
    #[error("{}:{line}: field {field} is missing: {remedy}", file.display())]
    Missing {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field's name.
        field: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A value that is not what the field holds.
    #[error("{}:{line}: field {field}: {value:?} is not {expected}; correct or remove the line", file.display())]
    Value {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field's name.
        field: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        expected: &'static str,
    },
    /// No request in it.
    #[error("{}: the trace has no requests after its header; give one with at least one", file.display())]
    Empty {
        /// Its path.
        file: PathBuf,
    },
}

const WHOLE_TOKENS: &str = "a whole number of tokens below 4294967296";

/// Reads the trace in `file`, whichever of the formats it has.
///
/// # Errors
/// When the file cannot be read or a line is not what its format says.
pub fn read(file: &Path) -> Result<Trace, TraceError> {
    let failed = |source| TraceError::Read {
        file: file.to_owned(),
        source,
    };
    let raw = std::fs::read(file).map_err(failed)?;
    parse(file, &raw)
}

/// Reads a trace from the bytes of `file`, whose name is only used in errors.
///
/// # Errors
/// When a line is not what its format says.
pub fn parse(file: &Path, raw: &[u8]) -> Result<Trace, TraceError> {
    let mut text = Vec::new();
    if raw.starts_with(&[0x1f, 0x8b]) {
        let read = MultiGzDecoder::new(raw).read_to_end(&mut text);
        read.map_err(|source| TraceError::Read {
            file: file.to_owned(),
            source,
        })?;
    } else {
        text.extend_from_slice(raw);
    }
    // Bytes that are not UTF-8 can only be in a field nobody asks for, or are reported by value.
    let text = String::from_utf8_lossy(&text);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = Lines { file, text };
    let first = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let requests = if first.trim_start().starts_with('{') {
        lines.mooncake()?
    } else if has_column(first, "TIMESTAMP") {
        lines.csv(
            ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
            azure_time,
        )?
    } else if has_column(first, "arrival_s") {
        lines.csv(["arrival_s", "input_tokens", "output_tokens"], seconds)?
    } else if first.is_empty() {
        return Err(TraceError::Empty {
            file: file.to_owned(),
        });
    } else {
        let found = first.chars().take(80).collect();
        return Err(TraceError::Format {
            file: file.to_owned(),
            found,
        });
    };
    if requests.is_empty() {
        return Err(TraceError::Empty {
            file: file.to_owned(),
        });
    }
    Ok(Trace::from_arrivals(requests))
}

impl Trace {
    /// Requests with arrivals in seconds from any origin up to 2^53 microseconds; the first one
    /// becomes the start of time only if the origin lies before 0 or beyond a day, which no slice
    /// of a trace does and every date does.
    fn from_arrivals(mut requests: Vec<(f64, u32, u32)>) -> Self {
        requests.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = requests.first().map_or(0.0, |request| request.0);
        let origin = if (0.0..86_400.0).contains(&first) {
            0.0
        } else {
            first
        };
        let requests = requests
            .into_iter()
            .map(|(arrival, input, output)| Request {
                arrival: Duration::from_secs_f64(arrival - origin).into(),
                input_tokens: input.max(1),
                output_tokens: output.max(1),
            })
            .collect();
        Self { requests }
    }

    /// The trace of these requests, in the order of their arrival.
    #[must_use]
    pub fn new(mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| request.arrival);
        for request in &mut requests {
            request.input_tokens = request.input_tokens.max(1);
            request.output_tokens = request.output_tokens.max(1);
        }
        Self { requests }
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// How many requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The last arrival.
    #[must_use]
    pub fn end(&self) -> Time {
        self.requests
            .last()
            .map_or(Time::ZERO, |request| request.arrival)
    }

    /// About one request in `factor`: request `i` stays when `splitmix64(i)` is divisible by it.
    /// Keeps the time scale of bursts. A factor of 0 or 1 keeps everything.
    #[must_use]
    pub fn thin(&self, factor: u64) -> Self {
        let stays = |i: usize| factor < 2 || splitmix64(i as u64).is_multiple_of(factor);
        let kept = self.requests.iter().enumerate().filter(|(i, _)| stays(*i));
        Self {
            requests: kept.map(|(_, request)| *request).collect(),
        }
    }

    /// The same requests, `factor` times as far apart. Slows bursts down too, so a result has to
    /// name it. A factor that is not a positive number changes nothing.
    #[must_use]
    pub fn stretch(&self, factor: f64) -> Self {
        if !(factor.is_finite() && factor > 0.0) {
            return self.clone();
        }
        let later = |request: &Request| Request {
            arrival: Duration::from_secs_f64(request.arrival.as_secs_f64() * factor).into(),
            ..*request
        };
        Self {
            requests: self.requests.iter().map(later).collect(),
        }
    }

    /// The requests of `[start, start + length)`, with `start` as the start of time.
    #[must_use]
    pub fn window(&self, start: Time, length: Duration) -> Self {
        let from = self
            .requests
            .partition_point(|request| request.arrival < start);
        let to = self
            .requests
            .partition_point(|request| request.arrival < start + length);
        let moved = |request: &Request| Request {
            arrival: Time::ZERO + request.arrival.since(start),
            ..*request
        };
        Self {
            requests: self.requests[from..to].iter().map(moved).collect(),
        }
    }
}

struct Lines<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn value(
        &self,
        line: usize,
        field: &'static str,
        value: &str,
        expected: &'static str,
    ) -> TraceError {
        let value = value.chars().take(80).collect();
        TraceError::Value {
            file: self.file.to_owned(),
            line,
            field,
            value,
            expected,
        }
    }

    fn missing(&self, line: usize, field: &'static str, remedy: &'static str) -> TraceError {
        TraceError::Missing {
            file: self.file.to_owned(),
            line,
            field,
            remedy,
        }
    }

    /// Lines that hold anything, numbered from 1.
    fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self
            .text
            .lines()
            .enumerate()
            .map(|(i, line)| (i + 1, line.trim()));
        numbered.filter(|(_, line)| !line.is_empty())
    }

    fn csv(
        &self,
        names: [&'static str; 3],
        arrival: fn(&str) -> Result<f64, &'static str>,
    ) -> Result<Vec<(f64, u32, u32)>, TraceError> {
        let mut rows = self.numbered();
        let (header_line, header) = rows.next().unwrap_or((1, ""));
        let columns: Vec<&str> = header.split(',').map(str::trim).collect();
        let mut at = [0; 3];
        for (place, name) in at.iter_mut().zip(names) {
            let found = columns
                .iter()
                .position(|column| column.eq_ignore_ascii_case(name));
            *place = found
                .ok_or_else(|| self.missing(header_line, name, "add the column to the header"))?;
        }
        let mut requests = Vec::new();
        for (line, row) in rows {
            let cells: Vec<&str> = row.split(',').map(str::trim).collect();
            let cell = |i: usize| {
                let cell = cells.get(at[i]).copied();
                cell.ok_or_else(|| self.missing(line, names[i], "complete or remove the line"))
            };
            let tokens = |i: usize| {
                let cell = cell(i)?;
                cell.parse()
                    .map_err(|_| self.value(line, names[i], cell, WHOLE_TOKENS))
            };
            let when = cell(0)?;
            let when =
                arrival(when).map_err(|expected| self.value(line, names[0], when, expected))?;
            requests.push((when, tokens(1)?, tokens(2)?));
        }
        Ok(requests)
    }

    fn mooncake(&self) -> Result<Vec<(f64, u32, u32)>, TraceError> {
        const OBJECT: &str = "a JSON object on one line";
        let mut requests = Vec::new();
        for (line, row) in self.numbered() {
            let object: serde_json::Value = serde_json::from_str(row)
                .map_err(|_| self.value(line, "(whole line)", row, OBJECT))?;
            let field = |name: &'static str| {
                object
                    .get(name)
                    .ok_or_else(|| self.missing(line, name, "complete or remove the line"))
            };
            let tokens = |name: &'static str| {
                let value = field(name)?;
                let whole = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
                whole.ok_or_else(|| self.value(line, name, &value.to_string(), WHOLE_TOKENS))
            };
            let at = field("timestamp")?;
            let ms = at
                .as_f64()
                .filter(|ms| (0.0..1e15).contains(ms))
                .ok_or_else(|| {
                    self.value(
                        line,
                        "timestamp",
                        &at.to_string(),
                        "a number of milliseconds, 0 or more",
                    )
                })?;
            requests.push((ms / 1e3, tokens("input_length")?, tokens("output_length")?));
        }
        Ok(requests)
    }
}

fn has_column(header: &str, name: &str) -> bool {
    header
        .split(',')
        .any(|column| column.trim().eq_ignore_ascii_case(name))
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.0..1e12).contains(seconds));
    seconds.ok_or("a number of seconds, 0 or more")
}

/// `2023-11-16 18:15:46.6805900`, as published in 2023, or with `+00:00` or `Z` after it, as in
/// 2024: seconds since 1970.
fn azure_time(text: &str) -> Result<f64, &'static str> {
    const EXPECTED: &str = "a UTC time like 2023-11-16 18:15:46.6805900";
    fn parts<const N: usize>(text: &str, by: char) -> Option<[u32; N]> {
        let mut numbers = [0; N];
        let mut found = text.split(by);
        for number in &mut numbers {
            *number = found.next()?.parse().ok()?;
        }
        found.next().is_none().then_some(numbers)
    }
    let parse = || {
        let bare = text
            .strip_suffix("+00:00")
            .or_else(|| text.strip_suffix('Z'))
            .unwrap_or(text);
        let (date, time) = bare.split_once([' ', 'T'])?;
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let [year, month, day] = parts::<3>(date, '-')?;
        let [hour, minute, second] = parts::<3>(time, ':')?;
        let digits = fraction.len() <= 12 && fraction.bytes().all(|byte| byte.is_ascii_digit());
        let in_range = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        if !digits || !in_range {
            return None;
        }
        let fraction: f64 = format!("0.{fraction}").parse().ok()?;
        let days = days_since_1970(i64::from(year), i64::from(month), i64::from(day));
        let seconds = days * 86_400 + i64::from(hour * 3600 + minute * 60 + second);
        Some(seconds as f64 + fraction)
    };
    parse().ok_or(EXPECTED)
}

/// Days from 1970-01-01 in the Gregorian calendar: years begin in March, so that the leap day is
/// the last of a year and every month's start is a linear function.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
