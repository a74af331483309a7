//! What the driver is, version by version: the tables of `../facts`, read and asked.
//!
//! The tables hold names, numbers, sizes and offsets out of the compiled headers of the open kernel
//! modules, and the flags of their export tables. The virtual GPU takes its rules from here and never
//! from `tidegate_abi`: who shares a definition with what it judges repeats its mistakes. Nothing here
//! asks anybody; a [`Driver`] is the part of the tables that is true of one version.

mod line;
mod status;

use std::collections::BTreeMap;
use std::sync::LazyLock;

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
}

/// The tables that this build carries.
pub const TABLES: Tables<'static> = Tables {
    controls: include_str!("../facts/controls.csv"),
    classes: include_str!("../facts/classes.csv"),
    structs: include_str!("../facts/structs.csv"),
    uvm: include_str!("../facts/uvm.csv"),
    escapes: include_str!("../facts/escapes.csv"),
    consts: include_str!("../facts/consts.csv"),
};

/// A table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table}, line {line}: {what}")]
pub struct Unreadable {
    /// Name of the file.
    pub table: &'static str,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

/// A driver version, in the vendor's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// e.g. 580.
    pub branch: u32,
    /// What follows it, missing parts being 0.
    pub rest: [u32; 2],
}

impl Version {
    /// The version that a text such as `580.95.05` or `565.77` names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let branch = parts.next()??;
        let mut rest = [0; 2];
        for (place, part) in rest.iter_mut().zip(parts.by_ref()) {
            *place = part?;
        }
        parts.next().is_none().then_some(Self { branch, rest })
    }
}

/// How a control or an allocation takes the API lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Shared.
    Read,
    /// Alone.
    Write,
}

/// Which GPUs' locks a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// None.
    None,
    /// That of the object's GPU.
    One,
    /// All of the node.
    All,
}

/// Who may make a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Anyone.
    None,
    /// Root.
    Root,
    /// The kernel's own clients, or the driver itself.
    Kernel,
}

/// Whether an answer may come from the driver's cache, before file and object are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Never.
    No,
    /// One answer for the whole system.
    ByCommand,
    /// One by GPU and command; where `some` is set only for some of its inputs.
    ByGpu {
        /// For some inputs only.
        some: bool,
    },
}

/// What becomes of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has an implementation.
    Exported,
    /// It is carried out as another, and converted before anything else is looked at.
    Converted(u32),
    /// It is a number without an implementation in the kernel part.
    Absent,
}

/// A control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control<'a> {
    /// `NV2080_CTRL_CMD_...`.
    pub name: &'a str,
    /// Struct of its parameters; empty: none.
    pub params: &'a str,
    /// Bytes that the stated size is compared with.
    pub size: usize,
    /// Who may make it.
    pub privilege: Privilege,
    /// Whether it is answered from the cache.
    pub cache: Cache,
    /// The API lock.
    pub api: Api,
    /// The GPU locks.
    pub gpus: Gpus,
    /// Access rights that the object must hold, without `RS_ACCESS_`; empty: none.
    pub rights: &'a str,
    /// The driver's class whose objects have it.
    pub class: &'a str,
    /// What becomes of it.
    pub state: State,
}

/// Whether the parameters of an allocation may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// A null pointer is refused.
    Required,
    /// A null pointer is allowed.
    Optional,
    /// There are none.
    None,
}

/// A class that can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class<'a> {
    /// `KEPLER_CHANNEL_GROUP_A`.
    pub name: &'a str,
    /// Struct of its parameters; empty: none.
    pub params: &'a str,
    /// Bytes that the driver copies, whatever size the caller states.
    pub size: usize,
    /// Whether they may be left out.
    pub required: Required,
    /// The driver's own class of the object.
    pub internal: &'a str,
    /// The driver's own classes that a parent may have.
    parents: &'a str,
    /// GPU locks of an allocation; its API lock is taken for writing.
    pub alloc_gpus: Gpus,
    /// GPU locks of a free.
    pub free_gpus: Gpus,
}

impl Class<'_> {
    /// Whether an object of the driver's class `parent` may have one of these below it.
    #[must_use]
    pub fn fits_below(&self, parent: &str) -> bool {
        self.parents.split('+').any(|one| one == parent)
    }
}

/// Where a field lies in its struct, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// From the beginning.
    pub offset: usize,
    /// Of the whole array where it is one.
    pub size: usize,
}

/// A struct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Struct<'a> {
    /// Bytes.
    pub size: usize,
    /// By path: `pci_info.bus`, `gpuInfoList[0].index`.
    pub fields: BTreeMap<&'a str, Field>,
}

impl Struct<'_> {
    /// Where a field begins.
    ///
    /// # Panics
    /// When the struct has none of that name.
    #[must_use]
    pub fn at(&self, field: &str) -> usize {
        match self.fields.get(field) {
            Some(field) => field.offset,
            None => panic!("no field {field}"),
        }
    }

    /// The field of a parameter struct with four bytes; 0 beyond the end of `bytes`.
    #[must_use]
    pub fn word(&self, bytes: &[u8], field: &str) -> u32 {
        let found = bytes.get(self.at(field)..).and_then(<[u8]>::first_chunk);
        found.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The same of eight bytes.
    #[must_use]
    pub fn long(&self, bytes: &[u8], field: &str) -> u64 {
        let found = bytes.get(self.at(field)..).and_then(<[u8]>::first_chunk);
        found.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// Whether a field of one byte is set.
    #[must_use]
    pub fn flag(&self, bytes: &[u8], field: &str) -> bool {
        bytes.get(self.at(field)).is_some_and(|byte| *byte != 0)
    }

    /// Writes over a field from its beginning, as far as `bytes` reach.
    pub fn put(&self, bytes: &mut [u8], field: &str, value: &[u8]) {
        if let Some(place) = bytes.get_mut(self.at(field)..) {
            let length = place.len().min(value.len());
            place[..length].copy_from_slice(&value[..length]);
        }
    }

    /// Writes a field of four bytes.
    pub fn put_word(&self, bytes: &mut [u8], field: &str, value: u32) {
        self.put(bytes, field, &value.to_ne_bytes());
    }

    /// Writes a field of eight bytes.
    pub fn put_long(&self, bytes: &mut [u8], field: &str, value: u64) {
        self.put(bytes, field, &value.to_ne_bytes());
    }
}

/// An ioctl of `/dev/nvidia-uvm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uvm<'a> {
    /// `UVM_REGISTER_CHANNEL`.
    pub name: &'a str,
    /// Its parameters.
    pub params: Struct<'a>,
}

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
}

/// A struct's own row or one of its fields'.
#[derive(Clone, Copy, Debug)]
struct Row<'a> {
    size: usize,
    field: Option<(&'a str, Field)>,
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
        let mut facts = Self {
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

    /// What is true of `version`: what the latest tag of its branch says that is not after it.
    /// `None` where the tables have no such tag.
    #[must_use]
    pub fn of(&self, version: &str) -> Option<Driver<'a>> {
        let parsed = Version::parse(version)?;
        let at = self
            .tags
            .iter()
            .rposition(|(tag, _)| tag.branch == parsed.branch && *tag <= parsed)?;
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
        Some(driver)
    }
}

impl<'a> Row<'a> {
    fn add_to(&self, to: &mut Struct<'a>) {
        match self.field {
            Some((name, field)) => {
                to.fields.insert(name, field);
            }
            None => to.size = self.size,
        }
    }
}

/// What is true of one version of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver<'a> {
    /// What was asked for.
    pub version: String,
    /// The tag that says it.
    pub tag: &'a str,
    /// Controls by number.
    pub controls: BTreeMap<u32, Control<'a>>,
    /// Classes by number.
    pub classes: BTreeMap<u32, Class<'a>>,
    /// Structs by name.
    pub structs: BTreeMap<&'a str, Struct<'a>>,
    /// Ioctls of `/dev/nvidia-uvm` by number.
    pub uvm: BTreeMap<u64, Uvm<'a>>,
    /// Names of the escapes by number.
    pub escapes: BTreeMap<u32, &'a str>,
    /// Constants by name.
    pub consts: BTreeMap<&'a str, u64>,
}

impl<'a> Driver<'a> {
    /// A struct.
    ///
    /// # Panics
    /// When this version has none of that name: who asks for it has to know that it does.
    #[must_use]
    pub fn layout(&self, of: &str) -> &Struct<'a> {
        match self.structs.get(of) {
            Some(layout) => layout,
            None => panic!("{} has no {of}", self.tag),
        }
    }

    /// The number of the escape with this name; `None` where this version has none.
    #[must_use]
    pub fn escape(&self, name: &str) -> Option<u32> {
        let found = self.escapes.iter().find(|(_, other)| **other == name);
        found.map(|(number, _)| *number)
    }

    /// Where a field lies; `None` where this version has none of that name.
    #[must_use]
    pub fn field(&self, of: &str, field: &str) -> Option<Field> {
        self.structs.get(of)?.fields.get(field).copied()
    }

    /// Bytes of a struct; `None` where this version has none of that name.
    #[must_use]
    pub fn size(&self, of: &str) -> Option<usize> {
        self.structs.get(of).map(|found| found.size)
    }

    /// Where a field of a UVM ioctl's parameters lies.
    #[must_use]
    pub fn uvm_field(&self, number: u64, field: &str) -> Option<Field> {
        self.uvm.get(&number)?.params.fields.get(field).copied()
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
