//! The row in a built module: `nvidia.ko`, or an object file on the way to it.
//!
//! The row is a struct of the driver with four integers side by side: flags, access right, method id,
//! size of the parameters. The last two together occur nowhere else, so the word is found without
//! symbols, which a shipped module does not have. The build id says whether a file is the module that
//! is loaded (`/sys/module/nvidia/notes/.note.gnu.build-id`).

use crate::{METHOD_ID, PARAMETERS};
use object::{Object, ObjectSection};
use std::io;
use std::path::Path;
use std::process::Command;

/// What a module says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// `modinfo -F version`; None in an object file.
    pub version: Option<String>,
    /// `modinfo -F license`: "Dual MIT/GPL" is the open module, "NVIDIA" the closed one.
    pub license: Option<String>,
    /// The linker's build id, if it was asked for one.
    pub build_id: Option<Vec<u8>>,
    /// The control's word.
    pub flags: u32,
}

/// Why a file tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It cannot be read.
    #[error("cannot read it")]
    Read(#[from] io::Error),
    /// The tool that unpacks it is missing or fails.
    #[error("cannot unpack it with `{0}`")]
    Unpack(&'static str),
    /// Not a module.
    #[error("not a module")]
    Elf(#[from] object::Error),
    /// Another module, or a driver of another age.
    #[error("expected one row of {METHOD_ID:#x} with {PARAMETERS} bytes of parameters, found {0}")]
    Rows(usize),
}

/// Reads `path`, which may be packed as distributions do (`.ko.xz`, `.ko.zst`, `.ko.gz`).
///
/// # Errors
/// When it is not a module with exactly one such row.
pub fn read(path: &Path) -> Result<Module, ModuleError> {
    parse(&unpacked(path)?)
}

fn unpacked(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let bytes = std::fs::read(path)?;
    let tool = match bytes.get(..4) {
        Some([0xfd, b'7', b'z', b'X']) => "xz",
        Some([0x28, 0xb5, 0x2f, 0xfd]) => "zstd",
        Some([0x1f, 0x8b, ..]) => "gzip",
        _ => return Ok(bytes),
    };
    match Command::new(tool).args(["-dc"]).arg(path).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        _ => Err(ModuleError::Unpack(tool)),
    }
}

/// Reads a module from memory.
///
/// # Errors
/// As [`read`].
pub fn parse(bytes: &[u8]) -> Result<Module, ModuleError> {
    let file = object::File::parse(bytes)?;
    let info = file.section_by_name_bytes(b".modinfo");
    let info = info.map(|section| section.data()).transpose()?;
    let mut found = Vec::new();
    for section in file.sections() {
        // Sections without bytes in the file answer with none.
        found.extend(rows(section.data().unwrap_or_default()));
    }
    let &[flags] = &found[..] else {
        return Err(ModuleError::Rows(found.len()));
    };
    Ok(Module {
        version: info.and_then(|info| value(info, "version")),
        license: info.and_then(|info| value(info, "license")),
        build_id: file.build_id()?.map(<[u8]>::to_vec),
        flags,
    })
}

/// The value of `key` among `key=value\0` strings.
fn value(info: &[u8], key: &str) -> Option<String> {
    info.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

fn rows(data: &[u8]) -> impl Iterator<Item = u32> {
    data.windows(16).step_by(4).filter_map(|window| {
        let word = |at: usize| {
            let bytes = window[at..at + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(bytes)
        };
        let [flags, right, method, size] = [word(0), word(4), word(8), word(12)];
        (right == 0 && method == METHOD_ID && size == PARAMETERS).then_some(flags)
    })
}
