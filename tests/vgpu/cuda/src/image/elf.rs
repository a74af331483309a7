//! Cubins: ELF files with one `.text.NAME` section per kernel and its facts in `.nv.info.NAME`.

use super::bytes::{u16_at, u32_at, u64_at};
use super::content::{Image, KernelImage, Param, Variable};

/// Section header: bytes.
const SECTION: usize = 64;
/// `SHT_SYMTAB`.
const SYMBOLS: u32 = 2;
/// `STT_OBJECT`, `STT_FUNC`.
const OBJECT: u8 = 1;
const FUNC: u8 = 2;
/// `STO_CUDA_ENTRY` in a symbol's `st_other`.
const ENTRY: u8 = 0x10;
/// `EIATTR_KPARAM_INFO`, with a 2-byte size in front of its value.
const PARAM_INFO: u8 = 0x17;
/// Format of an attribute: value behind a 2-byte size. Others stand in the 2 bytes themselves.
const SIZED: u8 = 4;

/// Bytes of the file by its header: the section table stands last, or the program headers.
pub fn file_size(header: &[u8]) -> Option<usize> {
    let end = |at: u64, size: u16, count: u16| {
        usize::try_from(at)
            .ok()?
            .checked_add(usize::from(size) * usize::from(count))
    };
    let sections = end(u64_at(header, 40), u16_at(header, 58), u16_at(header, 60))?;
    let programs = end(u64_at(header, 32), u16_at(header, 54), u16_at(header, 56))?;
    Some(sections.max(programs))
}

struct Section<'a> {
    name: &'a str,
    kind: u32,
    link: usize,
    bytes: &'a [u8],
}

/// Reads a cubin; `None` for a broken one.
pub fn parse(file: &[u8]) -> Option<Image> {
    let sections = sections(file)?;
    let mut image = Image::default();
    for table in sections.iter().filter(|section| section.kind == SYMBOLS) {
        let names = sections.get(table.link)?.bytes;
        for symbol in table.bytes.chunks_exact(24) {
            let name = text_at(names, u32_at(symbol, 0) as usize)?;
            let (kind, other) = (symbol[4] & 0xf, symbol[5]);
            let at = sections.get(usize::from(u16_at(symbol, 6)));
            if kind == FUNC && other & ENTRY != 0 {
                let info = sections
                    .iter()
                    .find(|s| s.name.strip_prefix(".nv.info.") == Some(name));
                image.kernels.push(KernelImage {
                    name: name.to_owned(),
                    params: info.map(|info| params(info.bytes)).unwrap_or_default(),
                });
            } else if kind == OBJECT && at.is_some_and(|s| s.name.starts_with(".nv.")) {
                image.variables.push(Variable {
                    name: name.to_owned(),
                    bytes: u64_at(symbol, 16) as usize,
                });
            }
        }
    }
    Some(image)
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let start = usize::try_from(u64_at(file, 40)).ok()?;
    let count = usize::from(u16_at(file, 60));
    let header = |i: usize| file.get(start.checked_add(i * SECTION)?..)?.get(..SECTION);
    let bytes = |header: &[u8]| {
        // SHT_NOBITS has a size and no bytes.
        if u32_at(header, 4) == 8 {
            return Some(&file[..0]);
        }
        let at = usize::try_from(u64_at(header, 24)).ok()?;
        file.get(at..at.checked_add(usize::try_from(u64_at(header, 32)).ok()?)?)
    };
    let names = bytes(header(usize::from(u16_at(file, 62)))?)?;
    let section = |i| {
        let header = header(i)?;
        Some(Section {
            name: text_at(names, u32_at(header, 0) as usize)?,
            kind: u32_at(header, 4),
            link: u32_at(header, 40) as usize,
            bytes: bytes(header)?,
        })
    };
    (0..count).map(section).collect()
}

fn text_at(names: &[u8], at: usize) -> Option<&str> {
    str::from_utf8(names.get(at..)?.split(|byte| *byte == 0).next()?).ok()
}

/// The parameters in an attribute list: format, attribute, size, value.
fn params(mut info: &[u8]) -> Vec<Param> {
    let mut found: Vec<(u16, Param)> = Vec::new();
    while info.len() >= 4 {
        let (format, attribute, size) = (info[0], info[1], usize::from(u16_at(info, 2)));
        let value = if format == SIZED { size } else { 0 };
        let Some(bytes) = info.get(4..4 + value) else {
            break;
        };
        if format == SIZED && attribute == PARAM_INFO && value >= 12 {
            let offset = usize::from(u16_at(bytes, 6));
            // The size stands in the upper bits of the flags, in bytes.
            let size = (u32_at(bytes, 8) >> 18) as usize;
            found.push((u16_at(bytes, 4), Param { offset, size }));
        }
        info = &info[4 + value..];
    }
    found.sort_by_key(|(ordinal, _)| *ordinal);
    found.into_iter().map(|(_, param)| param).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param_info(ordinal: u16, offset: u16, size: u32) -> Vec<u8> {
        let mut bytes = vec![SIZED, PARAM_INFO, 12, 0, 0, 0, 0, 0];
        bytes.extend(ordinal.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend((size << 18 | 0x1f000).to_le_bytes());
        bytes
    }

    #[test]
    fn parameters_come_in_order_whatever_the_list_says_first() {
        // EIATTR_MAXREG_COUNT, whose value stands in its own two bytes.
        let mut info = vec![3, 0x1b, 0xff, 0];
        info.extend(param_info(1, 8, 4));
        info.extend(param_info(0, 0, 8));
        let expected = [Param { offset: 0, size: 8 }, Param { offset: 8, size: 4 }];
        assert_eq!(params(&info), expected);
    }

    #[test]
    fn a_cut_list_ends_where_it_is_cut() {
        let info = param_info(0, 0, 8);
        assert_eq!(params(&info[..10]), []);
    }
}
