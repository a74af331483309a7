//! The trace formats people have.
//!
//! | format | recognised by | time | lengths |
//! |---|---|---|---|
//! | Azure LLM inference, CSV | header with `ContextTokens` | `TIMESTAMP`: date and time, UTC | `ContextTokens`, `GeneratedTokens` |
//! | BurstGPT, CSV | header with `Request tokens` | `Timestamp`: seconds | `Request tokens`, `Response tokens` |
//! | Mooncake, JSON lines | first character `{` | `timestamp`: ms | `input_length`, `output_length` |
//! | ours, CSV | header with `arrival_s` | `arrival_s`: seconds | `input_tokens`, `output_tokens` |
//! | lengths, CSV | [`read_lengths`] only | none | `input_tokens`, `output_tokens` |
//!
//! Each may be gzipped; neither the name nor its ending matters. Columns are found by name, in any
//! order, and unknown ones are ignored. Sources: Azure/AzurePublicDataset (Splitwise, ISCA 2024),
//! HPMLL/BurstGPT (arXiv 2401.17644) and kvcache-ai/Mooncake (FAST 2025).
//!
//! Nothing is mended: arrivals that go backwards, a request without tokens or a value that does not
//! fit is an error that names its line. The file is read as a stream, so only the requests that a
//! [`Cut`] keeps take memory, at most [`MAX_REQUESTS`] of them.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::clock::Time;
use crate::input::{CORRECT, Columns, InputError, Lines, has_column};

use super::{Cut, Request, Trace};

/// Requests that one trace may hold; 512 MB of memory.
pub const MAX_REQUESTS: usize = 32_000_000;
/// From the first arrival to the last: ten years.
const MAX_SPAN_S: f64 = 10.0 * 366.0 * 86_400.0;

const TOKENS: &str = "a whole number of tokens from 1 to 4294967295";
const FAILED: &str = "the request failed: take BurstGPT's file without fails, or remove the line";
const FORMATS: &str = "a trace: expected a CSV header with TIMESTAMP,ContextTokens,GeneratedTokens \
    (Azure), Timestamp,Request tokens,Response tokens (BurstGPT) or \
    arrival_s,input_tokens,output_tokens, or JSON lines with timestamp, input_length and \
    output_length (Mooncake)";

/// What a request asks for, without a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it generates.
    pub output_tokens: u32,
}

/// Reads the trace in `file`, whichever of the formats it has.
///
/// # Errors
/// When the file cannot be read or a line is not what its format says.
pub fn read(file: &Path) -> Result<Trace, InputError> {
    read_cut(file, &Cut::default())
}

/// Reads the requests of `file` that `cut` keeps. Lines after the cut's window are not read.
///
/// # Errors
/// When the file cannot be read, a line is not what its format says, or the cut keeps nothing.
pub fn read_cut(file: &Path, cut: &Cut) -> Result<Trace, InputError> {
    Reader::new(Lines::open(file)?)?.requests(cut)
}

/// Reads a trace from the bytes of `file`, whose name is only used in errors.
///
/// # Errors
/// When a line is not what its format says.
pub fn parse(file: &Path, raw: impl Read) -> Result<Trace, InputError> {
    Reader::new(Lines::of(file, raw)?)?.requests(&Cut::default())
}

/// Reads what offline requests ask for: a CSV with `input_tokens` and `output_tokens`, in the order
/// in which they are worked off.
///
/// # Errors
/// When the file cannot be read or a line is not what its format says.
pub fn read_lengths(file: &Path) -> Result<Vec<Lengths>, InputError> {
    let mut lines = Lines::open(file)?;
    let Some((_, header)) = lines.next_line()? else {
        return Err(lines.empty("requests"));
    };
    let columns = Columns::find(&lines, &header, ["input_tokens", "output_tokens"], 2)?;
    let mut all = Vec::new();
    while let Some((_, row)) = lines.next_line()? {
        let [input, output] = columns.cells(&lines, &row)?;
        bounded(&lines, all.len())?;
        all.push(Lengths {
            input_tokens: tokens(&lines, "input_tokens", &input, CORRECT)?,
            output_tokens: tokens(&lines, "output_tokens", &output, CORRECT)?,
        });
    }
    if all.is_empty() {
        return Err(lines.empty("requests"));
    }
    Ok(all)
}

enum Format {
    Csv {
        columns: Columns<3>,
        arrival: fn(&str) -> Result<f64, &'static str>,
        no_tokens: &'static str,
    },
    /// With the first line, which is a request already.
    Mooncake(Option<String>),
}

struct Reader<'a> {
    lines: Lines<'a>,
    format: Format,
}

impl<'a> Reader<'a> {
    fn new(mut lines: Lines<'a>) -> Result<Self, InputError> {
        let Some((_, first)) = lines.next_line()? else {
            return Err(lines.empty("requests"));
        };
        let format = if first.starts_with('{') {
            Format::Mooncake(Some(first))
        } else {
            let has = |name| has_column(&first, name);
            let (names, arrival, no_tokens): ([_; 3], fn(&str) -> _, _) =
                if has("Request tokens") || has("Response tokens") {
                    (
                        ["Timestamp", "Request tokens", "Response tokens"],
                        seconds,
                        FAILED,
                    )
                } else if has("TIMESTAMP") || has("ContextTokens") {
                    (
                        ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
                        azure_time,
                        CORRECT,
                    )
                } else if has("arrival_s") || has("input_tokens") {
                    (
                        ["arrival_s", "input_tokens", "output_tokens"],
                        seconds,
                        CORRECT,
                    )
                } else {
                    return Err(lines.format(&first, FORMATS));
                };
            Format::Csv {
                columns: Columns::find(&lines, &first, names, 3)?,
                arrival,
                no_tokens,
            }
        };
        Ok(Self { lines, format })
    }

    /// The arrivals' origin is that of the file, unless it lies beyond a day: no slice of a trace
    /// starts there and every date does, and then it is the first arrival.
    fn requests(mut self, cut: &Cut) -> Result<Trace, InputError> {
        let from = Time::from(cut.from);
        let until = cut.length.map(|length| from + length);
        let mut origin = None;
        let mut last = Time::ZERO;
        let mut requests = Vec::new();
        let mut number = 0;
        while let Some(row) = self.next_row()? {
            let origin = *origin.get_or_insert(if row.arrival < 86_400.0 {
                0.0
            } else {
                row.arrival
            });
            let since = row.arrival - origin;
            if since > MAX_SPAN_S {
                let expected = "within ten years of the first arrival";
                return Err(self.lines.value(row.field, &row.text, expected, CORRECT));
            }
            let arrival = Time::from(Duration::from_secs_f64(since.max(0.0)));
            if since < 0.0 || arrival < last {
                return Err(self.lines.order(row.field, &row.text));
            }
            last = arrival;
            number += 1;
            if until.is_some_and(|until| arrival >= until) {
                break;
            }
            if arrival >= from && cut.keeps(number - 1) {
                bounded(&self.lines, requests.len())?;
                requests.push(Request {
                    arrival: Time::ZERO + arrival.since(from),
                    input_tokens: row.lengths.input_tokens,
                    output_tokens: row.lengths.output_tokens,
                });
            }
        }
        if requests.is_empty() {
            return Err(self.lines.empty(if number == 0 {
                "requests"
            } else {
                "requests that this cut keeps"
            }));
        }
        Ok(Trace { requests }.stretch(cut.stretch))
    }

    fn next_row(&mut self) -> Result<Option<Row>, InputError> {
        let line = match &mut self.format {
            Format::Mooncake(first) if first.is_some() => first.take(),
            _ => self.lines.next_line()?.map(|(_, line)| line),
        };
        let Some(line) = line else {
            return Ok(None);
        };
        match &self.format {
            Format::Csv {
                columns,
                arrival,
                no_tokens,
            } => {
                let [when, input, output] = columns.cells(&self.lines, &line)?;
                let [field, input_field, output_field] = columns.names();
                let arrival = arrival(&when)
                    .map_err(|expected| self.lines.value(field, &when, expected, CORRECT))?;
                Ok(Some(Row {
                    arrival,
                    field,
                    text: when,
                    lengths: Lengths {
                        input_tokens: tokens(&self.lines, input_field, &input, no_tokens)?,
                        output_tokens: tokens(&self.lines, output_field, &output, no_tokens)?,
                    },
                }))
            }
            Format::Mooncake(_) => mooncake(&self.lines, &line).map(Some),
        }
    }
}

struct Row {
    /// Seconds.
    arrival: f64,
    /// Name and text of the field with the arrival, for errors.
    field: &'static str,
    text: String,
    lengths: Lengths,
}

fn bounded(lines: &Lines<'_>, held: usize) -> Result<(), InputError> {
    if held < MAX_REQUESTS {
        return Ok(());
    }
    Err(lines.large(
        format!("{MAX_REQUESTS} requests"),
        "replay a window of it, or thin it",
    ))
}

/// `no_tokens` is what to do about a 0.
fn tokens(
    lines: &Lines<'_>,
    field: &'static str,
    text: &str,
    no_tokens: &'static str,
) -> Result<u32, InputError> {
    match text.parse() {
        Ok(0) => Err(lines.value(field, text, TOKENS, no_tokens)),
        Ok(tokens) => Ok(tokens),
        Err(_) => Err(lines.value(field, text, TOKENS, CORRECT)),
    }
}

fn mooncake(lines: &Lines<'_>, row: &str) -> Result<Row, InputError> {
    let object: serde_json::Value = serde_json::from_str(row)
        .map_err(|_| lines.value("(whole line)", row, "a JSON object on one line", CORRECT))?;
    let field = |name: &'static str| object.get(name).ok_or_else(|| lines.missing(name, CORRECT));
    let length = |name: &'static str| tokens(lines, name, &field(name)?.to_string(), CORRECT);
    let at = field("timestamp")?;
    let ms = at.as_f64().filter(|ms| (0.0..1e15).contains(ms));
    let ms = ms.ok_or_else(|| {
        let expected = "a number of milliseconds, 0 or more";
        lines.value("timestamp", &at.to_string(), expected, CORRECT)
    })?;
    Ok(Row {
        arrival: ms / 1e3,
        field: "timestamp",
        text: at.to_string(),
        lengths: Lengths {
            input_tokens: length("input_length")?,
            output_tokens: length("output_length")?,
        },
    })
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
