//! What a row of a table says.

use std::collections::BTreeMap;

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
    pub(super) parents: &'a str,
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

/// A struct's own row or one of its fields'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub size: usize,
    pub field: Option<(&'a str, Field)>,
}

impl<'a> Row<'a> {
    pub fn add_to(&self, to: &mut Struct<'a>) {
        match self.field {
            Some((name, field)) => {
                to.fields.insert(name, field);
            }
            None => to.size = self.size,
        }
    }
}
