//! What is known of versions after the last one whose headers were read: a few sizes and fields, each with who
//! says it (`later.csv`, `sources.csv`). What no row names is taken to be as it was, which is a guess of this
//! device and of nothing that judges by it.

use std::collections::BTreeSet;

use super::driver::Driver;
use super::kinds::{Field, Unreadable, Version};
use super::line::{LATER, Line, SOURCES, lines};

/// Somebody who has read the driver, in `sources.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source<'a> {
    /// As rows name it.
    pub name: &'a str,
    /// Where it is published.
    pub repository: &'a str,
}

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// Bytes of a struct.
    Struct(&'a str),
    /// A field of one, and where it begins.
    Field(&'a str, &'a str, usize),
    /// Bytes of a control's parameters.
    Control(u32),
    /// Bytes of a UVM ioctl's parameters.
    Uvm(u64),
}

/// A row of `later.csv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Later<'a> {
    /// The first version that a source was read at, and the last.
    pub from: (Version, &'a str),
    /// The last.
    pub to: (Version, &'a str),
    /// What it is about.
    pub what: What<'a>,
    /// Bytes.
    pub size: usize,
    /// Who says so.
    pub sources: Vec<&'a str>,
}

pub(super) fn sources(text: &str) -> Result<Vec<Source<'_>>, Unreadable> {
    let mut found: Vec<Source<'_>> = Vec::new();
    lines(
        ("sources.csv", text),
        SOURCES,
        |(name, repository), line| {
            if found.iter().any(|source| source.name == name) {
                return Err(line.wrong(format_args!("{name} is there already")));
            }
            found.push(Source { name, repository });
            Ok(())
        },
    )?;
    Ok(found)
}

/// Reads `later.csv`, each of whose rows names sources that there are.
pub(super) fn read<'a>(text: &'a str, known: &[Source<'a>]) -> Result<Vec<Later<'a>>, Unreadable> {
    let mut found = Vec::new();
    lines(("later.csv", text), LATER, |(from, to), line| {
        found.push(row((from, to), line, known)?);
        Ok(())
    })?;
    Ok(found)
}

fn row<'a>(
    (from, to): (&'a str, &'a str),
    line: &Line<'_, 'a>,
    known: &[Source<'a>],
) -> Result<Later<'a>, Unreadable> {
    let version = |tag: &'a str| {
        let parsed = Version::parse(tag);
        let parsed = parsed.ok_or_else(|| line.wrong(format_args!("{tag:?} is no version")))?;
        Ok((parsed, tag))
    };
    let (from, to) = (version(from)?, version(to)?);
    if from.0 > to.0 {
        return Err(line.wrong("its tags run backwards"));
    }
    let (of, field) = (line.cell(3), line.cell(4));
    let what = match line.cell(2) {
        "struct" => What::Struct(of),
        "field" => What::Field(of, field, line.bytes(5)?),
        "control" => What::Control(line.word(3)?),
        "uvm" => What::Uvm(line.number(3)?),
        other => return Err(line.wrong(format_args!("{other:?} is unknown"))),
    };
    let sources: Vec<_> = line.cell(7).split('+').collect();
    let unknown = |source: &&&str| !known.iter().any(|known| known.name == **source);
    if let Some(unknown) = sources.iter().find(unknown) {
        return Err(line.wrong(format_args!("sources.csv has no {unknown:?}")));
    }
    Ok(Later {
        from,
        to,
        what,
        size: line.bytes(6)?,
        sources,
    })
}

impl Later<'_> {
    /// Whether it is said of a version's branch. A branch is read at some of its versions only.
    pub(super) const fn is_of(&self, version: Version) -> bool {
        self.from.0.branch <= version.branch && version.branch <= self.to.0.branch
    }

    /// How many that do not copy each other say it.
    #[must_use]
    pub fn independent(&self, sources: &[Source<'_>]) -> usize {
        let of = |name| sources.iter().find(|source| source.name == name);
        let found = self.sources.iter().filter_map(|name| of(*name));
        let repositories: BTreeSet<_> = found.map(|source| source.repository).collect();
        repositories.len()
    }
}

impl<'a> Driver<'a> {
    /// Takes over what a row says. Fields that lie beyond the end of a struct that is shorter are gone.
    pub(super) fn take(&mut self, row: &Later<'a>) {
        match row.what {
            What::Struct(name) => self.resize(name, row.size),
            What::Field(of, field, offset) => {
                let place = Field {
                    offset,
                    size: row.size,
                };
                self.place(of, field, place);
            }
            What::Control(number) => {
                let known = self.controls.get(&number);
                if let Some(params) = known.map(|control| control.params) {
                    self.lengthen(params, row.size);
                    self.resize(params, row.size);
                }
                if let Some(control) = self.controls.get_mut(&number) {
                    control.size = row.size;
                }
            }
            What::Uvm(number) => {
                if let Some(ioctl) = self.uvm.get_mut(&number) {
                    ioctl.params.size = row.size;
                }
            }
        }
    }

    /// Gives a struct another size, and what takes it.
    pub(super) fn resize(&mut self, name: &str, size: usize) {
        if let Some(found) = self.structs.get_mut(name) {
            found.size = size;
        }
        for class in self.classes.values_mut().filter(|of| of.params == name) {
            class.size = size;
        }
        for control in self.controls.values_mut().filter(|of| of.params == name) {
            control.size = size;
        }
    }

    /// Has a list that ends its struct end it at another size.
    pub(super) fn lengthen(&mut self, name: &str, size: usize) {
        let Some(found) = self.structs.get_mut(name) else {
            return;
        };
        let fields = &found.fields;
        let is_last = |(name, place): &(&&str, &Field)| {
            let element = format!("{name}[0]");
            let is_list = fields.keys().any(|other| other.starts_with(&element));
            is_list && place.offset + place.size == found.size
        };
        let list = fields.iter().find(is_last).map(|(name, _)| *name);
        if let Some(list) = list.and_then(|list| found.fields.get_mut(list)) {
            list.size = size.saturating_sub(list.offset);
        }
    }

    /// Puts a field, and with it those inside it, somewhere.
    pub(super) fn place(&mut self, of: &str, field: &'a str, place: Field) {
        let Some(found) = self.structs.get_mut(of) else {
            return;
        };
        let before = found.fields.insert(field, place);
        let Some(before) = before else { return };
        for (name, inner) in &mut found.fields {
            if name
                .strip_prefix(field)
                .is_some_and(|rest| rest.starts_with(['.', '[']))
            {
                inner.offset = inner.offset - before.offset + place.offset;
            }
        }
    }
}
