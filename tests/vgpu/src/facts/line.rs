//! A line of a table, and what its cells say.

use std::fmt;

use super::kinds::{
    Api, Cache, Class, Control, Field, Gpus, Privilege, Required, Row, State, Unreadable,
};

/// One line of a table.
pub(super) struct Line<'t, 'a> {
    table: &'static str,
    line: usize,
    cells: &'t [&'a str],
}

impl<'a> Line<'_, 'a> {
    pub(super) fn cell(&self, at: usize) -> &'a str {
        self.cells.get(at).copied().unwrap_or_default()
    }

    pub(super) fn wrong(&self, what: impl fmt::Display) -> Unreadable {
        Unreadable {
            table: self.table,
            line: self.line,
            what: what.to_string(),
        }
    }

    pub(super) fn number(&self, at: usize) -> Result<u64, Unreadable> {
        let text = self.cell(at);
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| self.wrong(format_args!("{text:?} is no number")))
    }

    pub(super) fn bytes(&self, at: usize) -> Result<usize, Unreadable> {
        let number = self.number(at)?;
        usize::try_from(number).map_err(|_| self.wrong("too large"))
    }

    pub(super) fn word(&self, at: usize) -> Result<u32, Unreadable> {
        let number = self.number(at)?;
        u32::try_from(number).map_err(|_| self.wrong("too large"))
    }

    fn one_of<T: Copy>(&self, at: usize, words: &[(&str, T)]) -> Result<T, Unreadable> {
        let text = self.cell(at);
        let found = words.iter().find(|(word, _)| *word == text);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| self.wrong(format_args!("{text:?} is unknown")))
    }

    fn gpus(&self, at: usize) -> Result<Gpus, Unreadable> {
        let words = [
            ("none", Gpus::None),
            ("one", Gpus::One),
            ("all", Gpus::All),
            ("", Gpus::None),
        ];
        self.one_of(at, &words)
    }

    pub(super) fn row(&self, (size, field): (usize, usize)) -> Result<Row<'a>, Unreadable> {
        let name = self.cell(field);
        Ok(Row {
            size: self.bytes(size)?,
            field: if name.is_empty() {
                None
            } else {
                let (offset, size) = (self.bytes(field + 1)?, self.bytes(field + 2)?);
                Some((name, Field { offset, size }))
            },
        })
    }
}

/// Calls `each` with every line of a table and its tags.
pub(super) fn lines<'a>(
    (table, text): (&'static str, &'a str),
    columns: &str,
    mut each: impl FnMut((&'a str, &'a str), &Line<'_, 'a>) -> Result<(), Unreadable>,
) -> Result<(), Unreadable> {
    let mut lines = text.lines();
    let head = Line {
        table,
        line: 1,
        cells: &[],
    };
    if lines.next() != Some(columns) {
        return Err(head.wrong(format_args!("the columns are not {columns}")));
    }
    for (at, text) in lines.enumerate() {
        let cells: Vec<&str> = text.split(',').collect();
        let line = Line {
            table,
            line: at + 2,
            cells: &cells,
        };
        if cells.len() != columns.split(',').count() {
            return Err(line.wrong("a wrong number of cells"));
        }
        each((cells[0], cells[1]), &line)?;
    }
    Ok(())
}

pub(super) const CONTROLS: &str = "from_tag,to_tag,command,name,params_struct,params_size,privilege,cache,\
                        api_lock,gpu_locks,access_rights,class,state";
pub(super) const CLASSES: &str = "from_tag,to_tag,class,name,params_struct,params_size,required,\
                       internal_class,parents,alloc_gpu_locks,free_gpu_locks";
pub(super) const STRUCTS: &str = "from_tag,to_tag,struct,field,offset,size,struct_size";
pub(super) const UVM: &str =
    "from_tag,to_tag,number,name,params_struct,params_size,field,offset,size";
pub(super) const ESCAPES: &str = "from_tag,to_tag,number,name";
pub(super) const CONSTS: &str = "from_tag,to_tag,kind,name,value";
pub(super) const LATER: &str = "from_tag,to_tag,kind,of,field,offset,size,sources";
pub(super) const SOURCES: &str = "source,repository,commit,files,how";

pub(super) fn control<'a>(line: &Line<'_, 'a>) -> Result<Control<'a>, Unreadable> {
    let privilege = [
        ("NON_PRIVILEGED", Privilege::None),
        ("", Privilege::None),
        ("PRIVILEGED", Privilege::Root),
        ("KERNEL", Privilege::Kernel),
        ("INTERNAL", Privilege::Kernel),
    ];
    let cache = match line.cell(7) {
        "by command" => Cache::ByCommand,
        "by GPU and command" => Cache::ByGpu { some: false },
        "by GPU and command and some inputs" => Cache::ByGpu { some: true },
        text if text.is_empty() || text == "no" || text.starts_with("flag set but not used") => {
            Cache::No
        }
        text => return Err(line.wrong(format_args!("{text:?} is unknown"))),
    };
    let state = line.cell(12);
    let rights = line.cell(10);
    Ok(Control {
        name: line.cell(3),
        params: line.cell(4),
        size: if line.cell(5).is_empty() {
            0
        } else {
            line.bytes(5)?
        },
        privilege: line.one_of(6, &privilege)?,
        cache,
        api: line.one_of(
            8,
            &[("read", Api::Read), ("write", Api::Write), ("", Api::Read)],
        )?,
        gpus: line.gpus(9)?,
        rights: if rights == "none" { "" } else { rights },
        class: line.cell(11),
        state: match state.strip_prefix("converted 0x") {
            Some(hex) => State::Converted(
                u32::from_str_radix(hex, 16)
                    .map_err(|_| line.wrong(format_args!("{state:?} is unknown")))?,
            ),
            None if state == "exported" => State::Exported,
            None => State::Absent,
        },
    })
}

pub(super) fn class<'a>(line: &Line<'_, 'a>) -> Result<Class<'a>, Unreadable> {
    let required = [
        ("required", Required::Required),
        ("optional", Required::Optional),
        ("none", Required::None),
    ];
    Ok(Class {
        name: line.cell(3),
        params: line.cell(4),
        size: line.bytes(5)?,
        required: line.one_of(6, &required)?,
        internal: line.cell(7),
        parents: line.cell(8),
        alloc_gpus: line.gpus(9)?,
        free_gpus: line.gpus(10)?,
    })
}
