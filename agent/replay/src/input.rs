//! Text that people bring: read line by line, so that a file larger than memory is no trouble, and
//! answered with one error that says where and what to do.
//!
//! Limits, each an error that says so: [`MAX_LINE`] bytes in a line, [`MAX_BYTES`] of text (after
//! unpacking: a few kilobytes of gzip can hold a terabyte of nothing). What is stored of a line is
//! for its reader to bound.
//!
//! A CSV row has exactly as many cells as its header, so that a comma within a number is an error
//! and not a shift. Cells may be quoted, and `""` within quotes is a quote; a cell does not span
//! lines.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::names::{UnknownName, edits};

/// Bytes of one line, its end included. The longest published trace lines have a few kilobytes.
pub const MAX_LINE: u64 = 1 << 20;
/// Bytes of one file, unpacked.
pub const MAX_BYTES: u64 = 16 << 30;

/// Why a file cannot be used. Each text says where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file could not be opened, read or decompressed.
    #[error("cannot read {}: check the path, and that a gzipped file is whole", file.display())]
    Read {
        /// Its path.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The first line is not that of any format.
    #[error("{}:{line}: not {expected}: the first line is {found:?}", file.display())]
    Format {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The beginning of that line.
        found: String,
        /// What was looked for.
        expected: &'static str,
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
    /// A header without several columns that its format needs, or with names that are nearly those it knows.
    #[error("{}:{line}: {what}", file.display())]
    Header {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// All that is wrong with it, and what to do.
        what: String,
    },
    /// A value that is not what the field holds.
    #[error("{}:{line}: field {field}: {value:?} is not {expected}; {remedy}", file.display())]
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
        /// What to do.
        remedy: &'static str,
    },
    /// A name nobody knows.
    #[error("{}:{line}: field {field}: {unknown}", file.display())]
    Unknown {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field's name.
        field: &'static str,
        /// What is known. No source of this error, which would be printed again behind it.
        unknown: UnknownName,
    },
    /// A row that is not as wide as its header.
    #[error("{}:{line}: {found} fields under a header of {wanted}; quote a value with commas, or correct the line", file.display())]
    Width {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Cells of the row.
        found: usize,
        /// Cells of the header.
        wanted: usize,
    },
    /// A quote that does not end.
    #[error("{}:{line}: a quote is not closed on its line; close it, or remove it", file.display())]
    Quote {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An arrival before the one above it.
    #[error("{}:{line}: field {field}: {value} is before the arrival above it; sort the file by {field}", file.display())]
    Order {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field's name.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// More than can be taken in.
    #[error("{}:{line}: too large: more than {limit}; {remedy}", file.display())]
    Large {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The limit that was passed.
        limit: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Rows that belong to others are not there.
    #[error("{}: no rows for {what}; add them", file.display())]
    Rows {
        /// Its path.
        file: PathBuf,
        /// Of what, and why they are looked for.
        what: String,
    },
    /// Nothing in it.
    #[error("{}: no {what} in it; give a file with at least one", file.display())]
    Empty {
        /// Its path.
        file: PathBuf,
        /// What was looked for: "requests", "scenarios".
        what: &'static str,
    },
}

/// What to do about a bad value, where nothing better can be said.
pub const CORRECT: &str = "correct or remove the line";
/// What to do about a header that lacks a column.
pub const ADD_COLUMN: &str = "add the column to the header";

/// The lines of a text that hold anything, numbered from 1, without the blanks around them.
pub struct Lines<'a> {
    file: &'a Path,
    text: Box<dyn BufRead + 'a>,
    raw: Vec<u8>,
    line: usize,
    bytes: u64,
    max_bytes: u64,
}

impl std::fmt::Debug for Lines<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}", self.file.display(), self.line)
    }
}

impl<'a> Lines<'a> {
    /// Opens `file`, gzipped or not.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(file: &'a Path) -> Result<Self, InputError> {
        let opened = std::fs::File::open(file).map_err(|source| InputError::Read {
            file: file.to_owned(),
            source,
        })?;
        Self::of(file, opened)
    }

    /// The lines of `raw`, gzipped or not; `file` is only named in errors.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(file: &'a Path, raw: impl Read + 'a) -> Result<Self, InputError> {
        let mut raw = BufReader::with_capacity(1 << 16, raw);
        let head = raw.fill_buf().map_err(|source| InputError::Read {
            file: file.to_owned(),
            source,
        })?;
        let text: Box<dyn BufRead + 'a> = if head.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        Ok(Self {
            file,
            text,
            raw: Vec::new(),
            line: 0,
            bytes: 0,
            max_bytes: MAX_BYTES,
        })
    }

    /// The next line, as its number and text; `None` at the end. Bytes that are not UTF-8 are
    /// replaced: in a field that is asked for they are reported by value.
    ///
    /// # Errors
    /// When reading or unpacking fails, or a limit is passed.
    pub fn next_line(&mut self) -> Result<Option<(usize, String)>, InputError> {
        loop {
            self.raw.clear();
            let read = (&mut self.text)
                .take(MAX_LINE + 1)
                .read_until(b'\n', &mut self.raw)
                .map_err(|source| InputError::Read {
                    file: self.file.to_owned(),
                    source,
                })? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.bytes += read;
            if read > MAX_LINE {
                let limit = format!("{} MiB in one line", MAX_LINE >> 20);
                return Err(self.large(limit, "is this a text file with line ends?"));
            }
            if self.bytes > self.max_bytes {
                let limit = format!("{} GiB of text", self.max_bytes >> 30);
                return Err(self.large(limit, "cut the file"));
            }
            let text = String::from_utf8_lossy(&self.raw);
            let text = if self.line == 1 {
                text.strip_prefix('\u{feff}').unwrap_or(&text)
            } else {
                &text
            };
            let text = text.trim();
            if !text.is_empty() {
                return Ok(Some((self.line, text.to_owned())));
            }
        }
    }

    /// More than `limit` in the line just read.
    #[must_use]
    pub fn large(&self, limit: String, remedy: &'static str) -> InputError {
        InputError::Large {
            file: self.file.to_owned(),
            line: self.line,
            limit,
            remedy,
        }
    }

    /// `value` in the line just read is not what `field` holds.
    #[must_use]
    pub fn value(
        &self,
        field: &'static str,
        value: &str,
        expected: &'static str,
        remedy: &'static str,
    ) -> InputError {
        InputError::Value {
            file: self.file.to_owned(),
            line: self.line,
            field,
            value: value.chars().take(80).collect(),
            expected,
            remedy,
        }
    }

    /// The line just read lacks `field`.
    #[must_use]
    pub fn missing(&self, field: &'static str, remedy: &'static str) -> InputError {
        InputError::Missing {
            file: self.file.to_owned(),
            line: self.line,
            field,
            remedy,
        }
    }

    /// `value` in the line just read is an arrival before the one above.
    #[must_use]
    pub fn order(&self, field: &'static str, value: &str) -> InputError {
        InputError::Order {
            file: self.file.to_owned(),
            line: self.line,
            field,
            value: value.chars().take(80).collect(),
        }
    }

    /// The first line, `found`, is not that of `expected`.
    #[must_use]
    pub fn format(&self, found: &str, expected: &'static str) -> InputError {
        InputError::Format {
            file: self.file.to_owned(),
            line: self.line,
            found: found.chars().take(80).collect(),
            expected,
        }
    }

    /// `field` of the line just read names something that is not there.
    #[must_use]
    pub fn unknown(&self, field: &'static str, unknown: UnknownName) -> InputError {
        InputError::Unknown {
            file: self.file.to_owned(),
            line: self.line,
            field,
            unknown,
        }
    }

    /// Looks at a whole header before its columns are found: names every one of the first `needed` that is
    /// missing, and every column that is nearly one of `names` and would pass for somebody's note.
    ///
    /// # Errors
    /// When there is one such, or the header is no CSV row.
    pub fn check_header(
        &self,
        header: &str,
        names: &[&'static str],
        needed: usize,
    ) -> Result<(), InputError> {
        let cells = cells(header).ok_or_else(|| self.unclosed())?;
        let is = |name: &str, cell: &str| cell.eq_ignore_ascii_case(name);
        let absent = |name: &&&'static str| !cells.iter().any(|cell| is(name, cell));
        let mut wrong = Vec::new();
        let missing: Vec<&str> = names.iter().take(needed).filter(absent).copied().collect();
        match missing.as_slice() {
            [] => {}
            [one] => wrong.push(format!("field {one} is missing: {ADD_COLUMN}")),
            all => wrong.push(format!(
                "fields {} are missing: add the columns to the header",
                all.join(", ")
            )),
        }
        for cell in cells
            .iter()
            .filter(|cell| !names.iter().any(|name| is(name, cell)))
        {
            let given = cell.to_lowercase();
            let near = names
                .iter()
                .filter(absent)
                .map(|name| (edits(&given, name), *name))
                .min()
                .filter(|&(edits, name)| edits <= name.len().div_ceil(5));
            if let Some((_, name)) = near {
                wrong.push(format!(
                    "column {cell:?} is nearly {name}: rename it, to {name} or to something else"
                ));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(InputError::Header {
            file: self.file.to_owned(),
            line: self.line,
            what: wrong.join("; "),
        })
    }

    /// Nothing was found in the whole text.
    #[must_use]
    pub fn empty(&self, what: &'static str) -> InputError {
        InputError::Empty {
            file: self.file.to_owned(),
            what,
        }
    }
}

/// The columns of a CSV text that somebody asked for, by their names in its header.
#[derive(Debug)]
pub struct Columns<const N: usize> {
    names: [&'static str; N],
    at: [Option<usize>; N],
    width: usize,
}

impl<const N: usize> Columns<N> {
    /// Finds `names` in the header just read; a name that is not there is a column that no row has,
    /// unless it is among the first `needed`.
    ///
    /// # Errors
    /// When a needed one is missing, or the header is no CSV row.
    pub fn find(
        lines: &Lines<'_>,
        header: &str,
        names: [&'static str; N],
        needed: usize,
    ) -> Result<Self, InputError> {
        let cells = cells(header).ok_or_else(|| lines.unclosed())?;
        let mut at = [None; N];
        for (i, (place, name)) in at.iter_mut().zip(names).enumerate() {
            let mut found = cells
                .iter()
                .enumerate()
                .filter(|(_, cell)| cell.eq_ignore_ascii_case(name));
            *place = found.next().map(|(column, _)| column);
            if place.is_none() && i < needed {
                return Err(lines.missing(name, ADD_COLUMN));
            }
            if found.next().is_some() {
                return Err(lines.value(name, header, "named once in the header", "rename one"));
            }
        }
        Ok(Self {
            names,
            at,
            width: cells.len(),
        })
    }

    /// The names asked for.
    #[must_use]
    pub const fn names(&self) -> [&'static str; N] {
        self.names
    }

    /// The cells of `row`, in the order of the names; a column that the header lacks is empty.
    ///
    /// # Errors
    /// When the row is not as wide as the header, or a quote is not closed.
    pub fn cells(&self, lines: &Lines<'_>, row: &str) -> Result<[String; N], InputError> {
        let mut cells = cells(row).ok_or_else(|| lines.unclosed())?;
        let lacking = self
            .at
            .iter()
            .zip(self.names)
            .find(|(at, _)| at.is_some_and(|at| at >= cells.len()));
        if let Some((_, name)) = lacking {
            return Err(lines.missing(name, CORRECT));
        }
        if cells.len() != self.width {
            return Err(InputError::Width {
                file: lines.file.to_owned(),
                line: lines.line,
                found: cells.len(),
                wanted: self.width,
            });
        }
        Ok(self.at.map(|at| {
            at.and_then(|at| cells.get_mut(at))
                .map(std::mem::take)
                .unwrap_or_default()
        }))
    }
}

impl Lines<'_> {
    fn unclosed(&self) -> InputError {
        InputError::Quote {
            file: self.file.to_owned(),
            line: self.line,
        }
    }
}

/// Whether a CSV header has a column of this name.
#[must_use]
pub fn has_column(header: &str, name: &str) -> bool {
    cells(header).is_some_and(|cells| cells.iter().any(|cell| cell.eq_ignore_ascii_case(name)))
}

/// The cells of a CSV row without the blanks around them; `None` if a quote is not closed.
fn cells(row: &str) -> Option<Vec<String>> {
    if !row.contains('"') {
        return Some(row.split(',').map(|cell| cell.trim().to_owned()).collect());
    }
    let mut cells = Vec::new();
    let mut cell = String::new();
    let mut quoted = false;
    let mut letters = row.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            _ => cell.push(letter),
        }
    }
    cells.push(cell.trim().to_owned());
    (!quoted).then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<(usize, String)>, InputError> {
        let mut lines = Lines::of(Path::new("given"), text)?;
        let mut all = Vec::new();
        while let Some(line) = lines.next_line()? {
            all.push(line);
        }
        Ok(all)
    }

    #[test]
    fn lines_keep_their_numbers_and_lose_blanks_and_marks() {
        let lines = all("\u{feff}a\r\n\n  b \n\u{c}\nlast".as_bytes()).expect("text");
        let text: Vec<(usize, &str)> = lines.iter().map(|(n, text)| (*n, text.as_str())).collect();
        assert_eq!(text, [(1, "a"), (3, "b"), (5, "last")]);
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_memory() {
        let endless = Lines::of(Path::new("endless"), std::io::repeat(b'x'));
        let error = endless
            .and_then(|mut lines| lines.next_line())
            .expect_err("too long");
        let told = error.to_string();
        assert!(
            told.contains("endless:1:") && told.contains("1 MiB in one line"),
            "{told}"
        );
    }

    #[test]
    fn a_few_bytes_that_unpack_to_gigabytes_are_refused_at_the_limit() {
        let nothing = std::iter::repeat_n(b'\n', 1 << 22).collect::<Vec<u8>>();
        let mut packer = flate2::read::GzEncoder::new(&nothing[..], flate2::Compression::best());
        let mut packed = Vec::new();
        packer.read_to_end(&mut packed).expect("in memory");
        assert!(packed.len() < 10_000);
        let mut lines = Lines::of(Path::new("bomb.gz"), &packed[..]).expect("gzip");
        lines.max_bytes = 1 << 20;
        let told = lines.next_line().expect_err("too large").to_string();
        assert!(told.starts_with("bomb.gz:1048577: too large"), "{told}");
    }

    #[test]
    fn quotes_hold_commas_and_quotes() {
        let row = cells(r#"a, "b, c" ,"say ""no""",,d"#).expect("closed");
        assert_eq!(row, ["a", "b, c", "say \"no\"", "", "d"]);
        assert_eq!(cells(r#"a,"b"#), None);
    }
}
