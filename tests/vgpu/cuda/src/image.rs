//! Module images: PTX text, cubins and fat binaries, read for what a launch needs.
//!
//! From each kernel the name and where its parameters lie, because `kernelParams` is an array of
//! pointers without sizes; from each module-scope variable its size. Nothing is compiled: the
//! device knows kernels by name. All of it is pure, over bytes.

mod bytes;
mod content;
mod elf;
mod ptx;

use std::ffi::CStr;

use tidegate_abi::cuda::CUresult;

use crate::result::CudaResult;
use crate::result::code::NO_BINARY_FOR_GPU;

use bytes::{u16_at, u32_at, u64_at};
pub use content::{Image, Param};

const ELF: [u8; 4] = *b"\x7fELF";
/// A `__fatBinC_Wrapper_t`: magic, version, pointer to the fat binary.
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
/// A fat binary: magic, version u16, header bytes u16, bytes that follow u64.
const FAT: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// The bytes of the image at `at`, whose length its own format gives.
///
/// # Safety
/// `at` points to a whole image: NUL-terminated text, a cubin, or a fat binary or its wrapper.
pub unsafe fn bytes_at<'a>(at: *const u8) -> CudaResult<&'a [u8]> {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let starts = |magic: [u8; 4]| {
        magic.iter().enumerate().all(|(i, byte)| {
            // SAFETY: every image has a terminator or a header of at least 16 bytes, and the
            // comparison ends at the first byte that differs, a terminator among them.
            unsafe { *at.add(i) == *byte }
        })
    };
    if starts(WRAPPER) {
        // SAFETY: the pointer stands at offset 8 of a wrapper.
        let inner = unsafe { at.add(8).cast::<*const u8>().read_unaligned() };
        // SAFETY: a wrapper points to a whole fat binary.
        return unsafe { bytes_at(inner) };
    }
    let length = if starts(ELF) {
        // SAFETY: an ELF header has 64 bytes.
        elf::file_size(unsafe { std::slice::from_raw_parts(at, 64) })
    } else if starts(FAT) {
        // SAFETY: a fat binary's header has 16 bytes.
        let header = unsafe { std::slice::from_raw_parts(at, 16) };
        Some(usize::from(u16_at(header, 6)) + u64_at(header, 8) as usize)
    } else {
        // SAFETY: anything else is text with a terminator.
        Some(unsafe { CStr::from_ptr(at.cast()) }.count_bytes())
    };
    let length = length.ok_or(CUresult::INVALID_IMAGE)?;
    // SAFETY: the image is whole, and its format says how long it is.
    Ok(unsafe { std::slice::from_raw_parts(at, length) })
}

/// Reads an image of any kind.
pub fn parse(bytes: &[u8]) -> CudaResult<Image> {
    if bytes.starts_with(&ELF) {
        return elf::parse(bytes).ok_or(CUresult::INVALID_IMAGE);
    }
    if bytes.starts_with(&FAT) {
        return parse_fat(bytes);
    }
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).map_err(|_| CUresult::INVALID_IMAGE)?;
    ptx::parse(text).ok_or(CUresult::INVALID_PTX)
}

/// The first cubin of a fat binary, or its first PTX. Compressed members are not read.
fn parse_fat(bytes: &[u8]) -> CudaResult<Image> {
    const PTX: u16 = 1;
    const CUBIN: u16 = 2;
    const COMPRESSED: u64 = 0x2000 | 0x8000;
    let mut at = usize::from(u16_at(bytes, 6));
    let mut text = None;
    while at + 64 <= bytes.len() {
        let (kind, header) = (u16_at(bytes, at), u32_at(bytes, at + 4) as usize);
        let (size, flags) = (u64_at(bytes, at + 8) as usize, u64_at(bytes, at + 40));
        let start = at.saturating_add(header);
        let Some(member) = bytes.get(start..start.saturating_add(size)) else {
            return Err(CUresult::INVALID_IMAGE);
        };
        match kind {
            CUBIN if flags & COMPRESSED == 0 => return parse(member),
            PTX if flags & COMPRESSED == 0 && text.is_none() => text = Some(member),
            _ => {}
        }
        at = start + size;
    }
    parse(text.ok_or(NO_BINARY_FOR_GPU)?)
}

#[cfg(test)]
mod tests {
    use super::content::{KernelImage, Variable};
    use super::*;

    const ADD: &[u8] = b".version 8.0\n.target sm_90\n.entry f(.param .u64 a) { ret; }";

    fn fat(kind: u16, flags: u64, member: &[u8]) -> Vec<u8> {
        let mut head = vec![0_u8; 64];
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&64_u32.to_le_bytes());
        head[8..16].copy_from_slice(&(member.len() as u64).to_le_bytes());
        head[40..48].copy_from_slice(&flags.to_le_bytes());
        let mut bytes = FAT.to_vec();
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend(16_u16.to_le_bytes());
        bytes.extend(((head.len() + member.len()) as u64).to_le_bytes());
        bytes.extend(head);
        bytes.extend(member);
        bytes
    }

    #[test]
    fn a_fat_binary_gives_its_text() {
        let image = parse(&fat(1, 0, ADD)).expect("an image");
        assert_eq!(image.kernels[0].name, "f");
    }

    #[test]
    fn a_fat_binary_with_nothing_readable_has_no_binary_for_this_gpu() {
        assert_eq!(parse(&fat(1, 0x2000, ADD)), Err(NO_BINARY_FOR_GPU));
    }

    #[test]
    fn the_length_of_an_image_in_memory_is_found() {
        let bytes = fat(1, 0, ADD);
        // SAFETY: a whole fat binary.
        assert_eq!(unsafe { bytes_at(bytes.as_ptr()) }.expect("bytes"), bytes);
        let text = c"not much";
        // SAFETY: terminated text.
        let found = unsafe { bytes_at(text.as_ptr().cast()) };
        assert_eq!(found.expect("bytes"), b"not much");
    }

    #[test]
    fn an_image_survives_being_written_as_text() {
        let list = [(0, 1), (4, 4), (8, 8), (16, 20), (36, 2)];
        let image = Image {
            kernels: Vec::from([KernelImage {
                name: "k".to_owned(),
                params: list.map(|(offset, size)| Param { offset, size }).to_vec(),
            }]),
            variables: Vec::from([Variable {
                name: "v".to_owned(),
                bytes: 12,
            }]),
        };
        assert_eq!(parse(image.to_ptx().as_bytes()), Ok(image));
    }

    #[test]
    fn garbage_is_refused_and_never_read_beyond_its_end() {
        assert_eq!(parse(b"hello"), Err(CUresult::INVALID_PTX));
        let bytes = fat(2, 0, ADD);
        for length in 0..bytes.len() {
            let _ = parse(&bytes[..length]);
        }
    }
}
