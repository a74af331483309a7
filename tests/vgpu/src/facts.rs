//! What the driver is, version by version: the tables of `../facts`, read and asked.
//!
//! The tables hold names, numbers, sizes and offsets out of the compiled headers of the open kernel
//! modules, and the flags of their export tables. The virtual GPU takes its rules from here and never
//! from `tidegate_abi`: who shares a definition with what it judges repeats its mistakes. Nothing here
//! asks anybody; a [`Driver`] is the part of the tables that is true of one version.

mod driver;
mod kinds;
mod later;
mod line;
mod moved;
mod status;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub use driver::Driver;
use kinds::Row;
pub use kinds::{
    Api, Cache, Class, Control, Field, Gpus, Privilege, Required, State, Struct, Unreadable, Uvm,
    Version,
};
pub use later::{Later, Source, What};
use line::{CLASSES, CONSTS, CONTROLS, ESCAPES, STRUCTS, UVM, class, control, lines};
pub use status::Status;

/// The tables as text, one file each.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// `controls.csv`.
    pub controls: &'a str,
    /// `classes.csv`.
    pub classes: &'a str,
    /// `structs.csv`.
    pub structs: &'a str,
    /// `uvm.csv`.
    pub uvm: &'a str,
    /// `escapes.csv`.
    pub escapes: &'a str,
    /// `consts.csv`.
    pub consts: &'a str,
    /// `later.csv`.
    pub later: &'a str,
    /// `sources.csv`.
    pub sources: &'a str,
}

/// The tables that this build carries.
pub const TABLES: Tables<'static> = Tables {
    controls: include_str!("../facts/controls.csv"),
    classes: include_str!("../facts/classes.csv"),
    structs: include_str!("../facts/structs.csv"),
    uvm: include_str!("../facts/uvm.csv"),
    escapes: include_str!("../facts/escapes.csv"),
    consts: include_str!("../facts/consts.csv"),
    later: include_str!("../facts/later.csv"),
    sources: include_str!("../facts/sources.csv"),
};

/// The tag range of a row, as places in the order of all tags.
type Range = (usize, usize);

/// All tables, of every version.
#[derive(Debug)]
pub struct Facts<'a> {
    tags: Vec<(Version, &'a str)>,
    controls: Vec<(Range, u32, Control<'a>)>,
    classes: Vec<(Range, u32, Class<'a>)>,
    structs: Vec<(Range, &'a str, Row<'a>)>,
    uvm: Vec<(Range, (u64, &'a str), Row<'a>)>,
    escapes: Vec<(Range, u32, &'a str)>,
    consts: Vec<(Range, &'a str, u64)>,
    later: Vec<Later<'a>>,
    sources: Vec<Source<'a>>,
}

impl<'a> Facts<'a> {
    /// Reads the tables.
    ///
    /// # Errors
    /// At the first line that is not what its columns say, or whose tags run backwards.
    pub fn read(tables: &Tables<'a>) -> Result<Self, Unreadable> {
        let files = [
            ("controls.csv", tables.controls, CONTROLS),
            ("classes.csv", tables.classes, CLASSES),
            ("structs.csv", tables.structs, STRUCTS),
            ("uvm.csv", tables.uvm, UVM),
            ("escapes.csv", tables.escapes, ESCAPES),
            ("consts.csv", tables.consts, CONSTS),
        ];
        let mut tags: BTreeMap<Version, &str> = BTreeMap::new();
        for (table, text, columns) in files {
            lines((table, text), columns, |(from, to), line| {
                for tag in [from, to] {
                    let version = Version::parse(tag)
                        .ok_or_else(|| line.wrong(format_args!("{tag:?} is no version")))?;
                    tags.insert(version, tag);
                }
                Ok(())
            })?;
        }
        let tags: Vec<(Version, &str)> = tags.into_iter().collect();
        let sources = later::sources(tables.sources)?;
        let mut facts = Self {
            later: later::read(tables.later, &sources)?,
            sources,
            controls: Vec::new(),
            classes: Vec::new(),
            structs: Vec::new(),
            uvm: Vec::new(),
            escapes: Vec::new(),
            consts: Vec::new(),
            tags,
        };
        for (table, text, columns) in files {
            let tags = facts.tags.clone();
            lines((table, text), columns, |(from, to), line| {
                let place = |tag| tags.iter().position(|(_, other)| *other == tag);
                let range = match (place(from), place(to)) {
                    (Some(from), Some(to)) if from <= to => (from, to),
                    _ => return Err(line.wrong("its tags run backwards")),
                };
                match table {
                    "controls.csv" => {
                        let row = (range, line.word(2)?, control(line)?);
                        facts.controls.push(row);
                    }
                    "classes.csv" => {
                        let row = (range, line.word(2)?, class(line)?);
                        facts.classes.push(row);
                    }
                    "structs.csv" => {
                        let row = (range, line.cell(2), line.row((6, 3))?);
                        facts.structs.push(row);
                    }
                    "uvm.csv" => {
                        let ioctl = (line.number(2)?, line.cell(3));
                        facts.uvm.push((range, ioctl, line.row((5, 6))?));
                    }
                    "escapes.csv" => {
                        let row = (range, line.word(2)?, line.cell(3));
                        facts.escapes.push(row);
                    }
                    _ => {
                        let row = (range, line.cell(3), line.number(4)?);
                        facts.consts.push(row);
                    }
                }
                Ok(())
            })?;
        }
        Ok(facts)
    }

    /// Every version that a row begins or ends with, oldest first.
    pub fn tags(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.tags.iter().map(|(_, tag)| *tag)
    }

    /// Every version after those at which a row of `later.csv` begins or ends, oldest first.
    pub fn later_tags(&self) -> impl Iterator<Item = &'a str> + '_ {
        let tags = self.later.iter().flat_map(|row| [row.from, row.to]);
        let tags: BTreeMap<Version, &str> = tags.collect();
        tags.into_values()
    }

    /// What is known of versions after those, and who says it.
    #[must_use]
    pub fn later(&self) -> (&[Later<'a>], &[Source<'a>]) {
        (&self.later, &self.sources)
    }

    /// What is true of `version`: what the latest tag of its branch says that is not after it. Of a later branch what the
    /// last tag says, but for what is known of it; of an invented one what has moved at random besides.
    /// `None` where the tables have no such tag.
    #[must_use]
    pub fn of(&self, version: &str) -> Option<Driver<'a>> {
        let parsed = Version::parse(version)?;
        let same = |(tag, _): &(Version, &str)| tag.branch == parsed.branch && *tag <= parsed;
        if let Some(at) = self.tags.iter().rposition(same) {
            return Some(self.at(at, version));
        }
        let invented = moved::is_invented(parsed);
        let newest = self
            .later
            .iter()
            .map(|row| row.to)
            .max_by_key(|tag| tag.0)?;
        let as_of = if invented { newest.0 } else { parsed };
        let mut rows = self.later.iter().filter(|row| row.is_of(as_of)).peekable();
        let tag = rows.peek()?.to.1;
        let mut driver = self.at(self.tags.len() - 1, version);
        driver.tag = tag;
        for row in rows {
            driver.take(row);
        }
        if invented {
            driver.invent(parsed);
        }
        Some(driver)
    }

    fn at(&self, at: usize, version: &str) -> Driver<'a> {
        let holds = |(from, to): Range| (from..=to).contains(&at);
        let mut driver = Driver {
            version: version.to_owned(),
            tag: self.tags[at].1,
            ..Driver::default()
        };
        for (range, number, control) in &self.controls {
            if holds(*range) {
                driver.controls.insert(*number, *control);
            }
        }
        for (range, number, class) in &self.classes {
            if holds(*range) {
                driver.classes.insert(*number, *class);
            }
        }
        for (range, name, row) in &self.structs {
            if holds(*range) {
                row.add_to(driver.structs.entry(name).or_default());
            }
        }
        for (range, (number, name), row) in &self.uvm {
            if holds(*range) {
                let ioctl = driver.uvm.entry(*number).or_insert_with(|| Uvm {
                    name,
                    params: Struct::default(),
                });
                row.add_to(&mut ioctl.params);
            }
        }
        for (range, number, name) in &self.escapes {
            if holds(*range) {
                driver.escapes.insert(*number, name);
            }
        }
        for (range, name, value) in &self.consts {
            if holds(*range) {
                driver.consts.insert(name, *value);
            }
        }
        driver
    }
}

/// The tables that this build carries, read once.
///
/// # Panics
/// When they cannot be read, which a test rules out.
#[must_use]
pub fn facts() -> &'static Facts<'static> {
    static READ: LazyLock<Facts<'static>> = LazyLock::new(|| match Facts::read(&TABLES) {
        Ok(facts) => facts,
        Err(error) => panic!("{error}"),
    });
    &READ
}

/// What is true of `version`; see [`Facts::of`].
#[must_use]
pub fn of(version: &str) -> Option<Driver<'static>> {
    facts().of(version)
}

#[cfg(test)]
mod tests;
