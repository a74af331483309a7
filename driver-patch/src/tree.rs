//! The row in a source tree: found by its method id, judged, changed in place.
//!
//! ```text
//!     {               /*  [317] */
//! #if NVOC_EXPORTED_METHOD_DISABLED_BY_FLAG(0x10108u)
//!         ...
//!         /*flags=*/      0x10108u,          <- the word
//!         /*accessRight=*/0x0u,
//!         /*methodId=*/   0x2080110bu,       <- found by this
//!         /*paramSize=*/  sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS),
//!         ...
//!     },
//! ```
//!
//! The word in the `#if` stays: it only says which flags would compile the method out, none of which
//! the patch adds.

use crate::branches::{self, Branch};
use crate::{METHOD_ID, State, Variant};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

const VERSION: &str = "version.mk";
const TABLE: &str = "src/nvidia/generated/g_subdevice_nvoc.c";
const HEADER: &str = "src/nvidia/inc/kernel/rmapi/control.h";

const METHOD_MARK: &str = "/*methodId=*/";
const FLAGS_MARK: &str = "/*flags=*/";
const SIZE_LINE: &str = "/*paramSize=*/  sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS),";

/// Why a tree is left alone.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Not a driver's source tree, or one that may not be touched.
    #[error("cannot {what} {}", path.display())]
    File {
        /// read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The tree does not say its version.
    #[error("{}: expected a line `NVIDIA_VERSION = ...`", .0.display())]
    NoVersion(PathBuf),
    /// The table has no such branch.
    #[error("{}:{line}: driver {version} is of no known branch; known: {known}", path.display())]
    UnknownBranch {
        /// The file with the version.
        path: PathBuf,
        /// Its line.
        line: usize,
        /// The version.
        version: String,
        /// Numbers of the known ones.
        known: String,
    },
    /// The branch is known, the version was never looked at.
    #[error("{}:{line}: driver {version} was not read by the makers of this patch, expected {first} to {last}; \
             --untested-version goes on if everything else is as expected", path.display())]
    UntestedVersion {
        /// The file with the version.
        path: PathBuf,
        /// Its line.
        line: usize,
        /// The version.
        version: String,
        /// First read.
        first: String,
        /// Last read.
        last: String,
    },
    /// The control is not in the table.
    #[error("{}: expected one row with `{METHOD_MARK}   {METHOD_ID:#x}u`, found none", .0.display())]
    NoRow(PathBuf),
    /// The control is in the table more than once.
    #[error("{}: expected one row with `{METHOD_MARK}   {METHOD_ID:#x}u`, found them at lines {lines:?}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// Where.
        lines: Vec<usize>,
    },
    /// The row does not look like one.
    #[error("{}:{line}: expected {expected} in the row of {METHOD_ID:#x}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The row's method id.
        line: usize,
        /// What is missing.
        expected: String,
    },
    /// The word is not one this patch knows.
    #[error("{}:{line}: expected the flags {expected}, found {found:#x}", path.display())]
    Flags {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What belongs there.
        expected: String,
        /// What stands there.
        found: u32,
    },
    /// The driver's header gives a bit another meaning.
    #[error("{}: expected `#define RMCTRL_FLAGS_{flag} {expected:#x}`, found {found}", path.display())]
    Bit {
        /// The file.
        path: PathBuf,
        /// The flag.
        flag: String,
        /// As the table has it.
        expected: u32,
        /// As the header has it.
        found: String,
    },
}

fn read(path: PathBuf) -> Result<(PathBuf, String), TreeError> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(TreeError::File {
            what: "read",
            path,
            source,
        }),
    }
}

/// A driver's source tree whose row was found and whose word is one the table knows.
#[derive(Debug)]
pub struct Tree {
    /// The driver's version.
    pub version: String,
    /// Its branch.
    pub branch: &'static Branch,
    /// The file with the row.
    pub path: PathBuf,
    /// Line of the word.
    pub line: usize,
    /// The word.
    pub word: u32,
    text: String,
    at: Range<usize>,
}

impl Tree {
    /// Looks at the tree in `root`; `untested` accepts versions outside those that were read.
    ///
    /// # Errors
    /// When anything is not exactly as the table says.
    pub fn open(root: &Path, untested: bool) -> Result<Self, TreeError> {
        let (version, branch) = version(root, untested)?;
        check_bits(root, branch)?;
        let (path, text) = read(root.join(TABLE))?;
        let row = find_row(&path, &text)?;
        let word = row.word;
        let tree = Self {
            version,
            branch,
            path,
            line: row.line,
            word,
            text,
            at: row.at,
        };
        if tree.state() == State::Other {
            return Err(tree.unexpected(&format!("{:#x}", branch.old)));
        }
        Ok(tree)
    }

    /// What the word is.
    #[must_use]
    pub fn state(&self) -> State {
        self.branch.state(self.word)
    }

    fn unexpected(&self, expected: &str) -> TreeError {
        TreeError::Flags {
            path: self.path.clone(),
            line: self.line,
            expected: expected.to_owned(),
            found: self.word,
        }
    }

    /// Adds the flag of `variant`; false when it stands there already.
    ///
    /// # Errors
    /// When the tree has the other variant, or cannot be written.
    pub fn apply(&mut self, variant: Variant) -> Result<bool, TreeError> {
        match self.state() {
            State::Unpatched => self.write(self.branch.patched(variant)).map(|()| true),
            State::Patched(present) if present == variant => Ok(false),
            _ => Err(self.unexpected(&format!(
                "{:#x} (undo the other variant first)",
                self.branch.old
            ))),
        }
    }

    /// Puts NVIDIA's word back; false when it stands there already.
    ///
    /// # Errors
    /// When the tree cannot be written.
    pub fn undo(&mut self) -> Result<bool, TreeError> {
        if self.state() == State::Unpatched {
            return Ok(false);
        }
        self.write(self.branch.old).map(|()| true)
    }

    /// Replaces the file by one with another word, or leaves it as it was.
    fn write(&mut self, word: u32) -> Result<(), TreeError> {
        let digits = format!("{word:#x}");
        let mut text = self.text.clone();
        text.replace_range(self.at.clone(), &digits);
        let fresh = self.path.with_extension("c.tidegate");
        let replace = || {
            fs::write(&fresh, &text)?;
            fs::set_permissions(&fresh, fs::metadata(&self.path)?.permissions())?;
            fs::rename(&fresh, &self.path)
        };
        replace().map_err(|source| {
            // Whatever could not be written must not stay beside the driver's sources.
            let _ = fs::remove_file(&fresh);
            TreeError::File {
                what: "write",
                path: self.path.clone(),
                source,
            }
        })?;
        self.at.end = self.at.start + digits.len();
        self.text = text;
        self.word = word;
        Ok(())
    }
}

fn version(root: &Path, untested: bool) -> Result<(String, &'static Branch), TreeError> {
    let (path, text) = read(root.join(VERSION))?;
    let found = text.lines().zip(1..).find_map(|(text, line)| {
        let value = text.strip_prefix("NVIDIA_VERSION")?.trim_start();
        Some((value.strip_prefix('=')?.trim(), line))
    });
    let Some((version, line)) = found else {
        return Err(TreeError::NoVersion(path));
    };
    let version = version.to_owned();
    let Some(branch) = branches::of_version(&version) else {
        let known: Vec<String> = branches::all()
            .iter()
            .map(|branch| branch.number.to_string())
            .collect();
        return Err(TreeError::UnknownBranch {
            path,
            line,
            version,
            known: known.join(", "),
        });
    };
    if !untested && !branch.was_read(&version) {
        return Err(TreeError::UntestedVersion {
            path,
            line,
            version,
            first: branch.first.clone(),
            last: branch.last.clone(),
        });
    }
    Ok((version, branch))
}

/// The tree's own header must give every bit concerned the meaning the table gives it.
fn check_bits(root: &Path, branch: &Branch) -> Result<(), TreeError> {
    let (path, text) = read(root.join(HEADER))?;
    let concerned = branch.patched(Variant::A) | branch.patched(Variant::B);
    for (flag, &bit) in branch.layout() {
        if bit & concerned == 0 {
            continue;
        }
        let found = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("#define")).then_some(())?;
            (words.next()?.strip_prefix("RMCTRL_FLAGS_") == Some(flag)).then_some(())?;
            words.next()
        });
        if found.and_then(hexadecimal) != Some(bit) {
            return Err(TreeError::Bit {
                path,
                flag: flag.clone(),
                expected: bit,
                found: found.unwrap_or("no such line").to_owned(),
            });
        }
    }
    Ok(())
}

fn hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok()
}

struct Row {
    line: usize,
    word: u32,
    at: Range<usize>,
}

/// `0x10108` of a line such as `/*flags=*/      0x10108u,`, and where in the line it stands.
fn word_after(line: &str, mark: &str) -> Option<(u32, Range<usize>)> {
    let rest = line.trim_start().strip_prefix(mark)?.trim_start();
    let digits = rest.trim_end().strip_suffix("u,")?;
    let start = line.len() - rest.len();
    Some((hexadecimal(digits)?, start..start + digits.len()))
}

fn find_row(path: &Path, text: &str) -> Result<Row, TreeError> {
    let lines: Vec<(usize, &str)> = text
        .split_inclusive('\n')
        .scan(0, |offset, line| {
            let at = *offset;
            *offset += line.len();
            Some((at, line.trim_end()))
        })
        .collect();
    let is_ours = |(_, line): &(usize, &str)| {
        word_after(line, METHOD_MARK).is_some_and(|(id, _)| id == METHOD_ID)
    };
    let found: Vec<usize> = (0..lines.len())
        .filter(|&index| is_ours(&lines[index]))
        .collect();
    let method = match found[..] {
        [] => return Err(TreeError::NoRow(path.to_owned())),
        [method] => method,
        _ => {
            return Err(TreeError::Rows {
                path: path.to_owned(),
                lines: found.iter().map(|index| index + 1).collect(),
            });
        }
    };
    let missing = |expected: &str| TreeError::Shape {
        path: path.to_owned(),
        line: method + 1,
        expected: expected.to_owned(),
    };
    // The braces of a row stand at four blanks; anything else in it is indented further or not at all.
    let first = (0..method)
        .rev()
        .find(|&index| lines[index].1.starts_with("    {"))
        .ok_or_else(|| missing("a line that opens it"))?;
    let last = (method..lines.len())
        .find(|&index| lines[index].1.starts_with("    }"))
        .ok_or_else(|| missing("a line that closes it"))?;
    let row = &lines[first..=last];
    if !row.iter().any(|(_, line)| line.trim_start() == SIZE_LINE) {
        return Err(missing(&format!("`{SIZE_LINE}`")));
    }
    let mut words = row
        .iter()
        .zip(first + 1..)
        .filter_map(|((at, line), number)| {
            let (word, range) = word_after(line, FLAGS_MARK)?;
            Some(Row {
                line: number,
                word,
                at: at + range.start..at + range.end,
            })
        });
    match (words.next(), words.next()) {
        (Some(row), None) => Ok(row),
        _ => Err(missing(&format!("one line `{FLAGS_MARK} 0x...u,`"))),
    }
}
