//! What is true of one version.

use std::collections::BTreeMap;

use super::kinds::{Class, Control, Field, Struct, Uvm};

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
