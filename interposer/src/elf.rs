//! Reads the loaded objects: to which one a function belongs, and where the C library or the kernel has a function.
//!
//! This library exports `dlsym` and `dlvsym`, so only the loaded objects themselves say where the real ones are. The
//! layouts are those of the System V ABI, chapter "Dynamic Linking", and of GNU's hash table.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// Type of a symbol: a function.
const STT_FUNC: u8 = 2;

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// What is looked for in each object, and what was found.
struct Search<'a> {
    name: &'a CStr,
    /// The files of the objects that are asked; none: all but this library.
    files: &'a [&'a [u8]],
    found: *mut c_void,
}

/// The function of this name in the first object but this library that has it; null: none has.
pub fn function(name: &CStr) -> *mut c_void {
    find(name, &[])
}

/// The function of this name that glibc has. Before glibc 2.34 those of `dlfcn.h` are in a library of their own.
pub fn function_of_glibc(name: &CStr) -> *mut c_void {
    find(name, &[b"libc.so.6", b"libdl.so.2"])
}

fn find(name: &CStr, files: &[&[u8]]) -> *mut c_void {
    let mut search = Search {
        name,
        files,
        found: ptr::null_mut(),
    };
    // SAFETY: `visit` is given the search for as long as the call lasts.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Whether an address is in an object that comes before this library in the search order.
pub fn is_before_own(address: *const c_void) -> bool {
    let mut search = (address as u64, false);
    // SAFETY: `compare` is given the search for as long as the call lasts.
    unsafe { libc::dl_iterate_phdr(Some(compare), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn compare(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: what `is_before_own` passed, and what the loader passes for a loaded object.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<(u64, bool)>()) };
    let holds = |address| headers(object).iter().any(|of| is_in(object, of, address));
    if holds(own()) {
        return 1;
    }
    search.1 = holds(search.0);
    c_int::from(search.1)
}

/// An address in this library.
fn own() -> u64 {
    function as fn(&'static CStr) -> _ as usize as u64
}

/// Where the object is loaded that an address is in; none: it is in none.
pub fn object_of(address: *const c_void) -> Option<u64> {
    Some(span_of(address)?.base)
}

/// Where an object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What its addresses are relative to.
    pub base: u64,
    /// Its first address.
    pub begin: u64,
    /// The one behind its last.
    pub end: u64,
}

/// Where the object is loaded that an address is in; none: it is in none.
pub fn span_of(address: *const c_void) -> Option<Span> {
    let mut search = (address as u64, None);
    // SAFETY: `holds` is given the search for as long as the call lasts.
    unsafe { libc::dl_iterate_phdr(Some(holds), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn holds(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: what `span_of` passed, and what the loader passes for a loaded object.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<(u64, Option<Span>)>()) };
    let headers = headers(object);
    if !headers.iter().any(|header| is_in(object, header, search.0)) {
        return 0;
    }
    let base = object.dlpi_addr;
    let loaded = || {
        headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
    };
    let begin = loaded().map(|header| base + header.p_vaddr).min();
    let end = loaded().map(|header| base + header.p_vaddr + header.p_memsz);
    search.1 = Some(Span {
        base,
        begin: begin.unwrap_or(base),
        end: end.max().unwrap_or(base),
    });
    1
}

fn headers(object: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if object.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader counted them.
    unsafe { core::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) }
}

fn is_in(object: &libc::dl_phdr_info, header: &libc::Elf64_Phdr, address: u64) -> bool {
    let begin = object.dlpi_addr + header.p_vaddr;
    header.p_type == libc::PT_LOAD && (begin..begin + header.p_memsz).contains(&address)
}

/// The function of this name in the object that the kernel maps into every process (vDSO); null: there is none.
pub fn of_the_kernel(name: &CStr) -> *mut c_void {
    // SAFETY: only asks.
    let object = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if object == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the kernel mapped an ELF image there, with its headers, for as long as the process lives.
    let headers = unsafe {
        let file = &*(object as *const libc::Elf64_Ehdr);
        core::slice::from_raw_parts(
            (object + file.e_phoff) as *const libc::Elf64_Phdr,
            usize::from(file.e_phnum),
        )
    };
    let of_type = |wanted| headers.iter().find(|header| header.p_type == wanted);
    let (Some(first), Some(dynamic)) = (of_type(libc::PT_LOAD), of_type(PT_DYNAMIC)) else {
        return ptr::null_mut();
    };
    let base = object + first.p_offset - first.p_vaddr;
    // SAFETY: its dynamic section, which nobody relocates: the image is read-only.
    unsafe { lookup(base, (base + dynamic.p_vaddr) as *const Dyn, name) }
}

unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: what `function` passed, and what the loader passes for a loaded object.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search<'_>>()) };
    let headers = headers(object);
    let base = object.dlpi_addr;
    let is_asked = if search.files.is_empty() {
        !headers.iter().any(|header| is_in(object, header, own()))
    } else {
        is_of(object, search.files)
    };
    if !is_asked {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|header| header.p_type == PT_DYNAMIC) else {
        return 0;
    };
    // SAFETY: the dynamic section of a loaded object.
    search.found = unsafe { lookup(base, (base + dynamic.p_vaddr) as *const Dyn, search.name) };
    c_int::from(!search.found.is_null())
}

fn is_of(object: &libc::dl_phdr_info, files: &[&[u8]]) -> bool {
    if object.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: the name of a loaded object is a C string.
    let path = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next();
    file.is_some_and(|file| files.contains(&file))
}

/// # Safety
/// `dynamic` is the dynamic section of an object that is loaded at `base`.
unsafe fn lookup(base: u64, mut dynamic: *const Dyn, name: &CStr) -> *mut c_void {
    let (mut hash, mut gnu, mut strings, mut symbols) = (
        ptr::null::<u32>(),
        ptr::null::<u32>(),
        ptr::null::<c_char>(),
        ptr::null::<Symbol>(),
    );
    // glibc has added the base already, musl and the kernel have not.
    let at = |value: u64| if value < base { base + value } else { value };
    loop {
        // SAFETY: the section ends with DT_NULL.
        let entry = unsafe { &*dynamic };
        match entry.tag {
            DT_NULL => break,
            DT_HASH => hash = at(entry.value) as *const u32,
            DT_GNU_HASH => gnu = at(entry.value) as *const u32,
            DT_STRTAB => strings = at(entry.value) as *const c_char,
            DT_SYMTAB => symbols = at(entry.value) as *const Symbol,
            _ => {}
        }
        // SAFETY: as above.
        dynamic = unsafe { dynamic.add(1) };
    }
    // Only a hash table says how many symbols there are: the older kind by the number of its chains.
    if (hash.is_null() && gnu.is_null()) || strings.is_null() || symbols.is_null() {
        return ptr::null_mut();
    }
    let count = match hash.is_null() {
        // SAFETY: a GNU hash table of a loaded object.
        true => unsafe { hashed(gnu) },
        // SAFETY: the second word of the hash table.
        false => unsafe { *hash.add(1) as usize },
    };
    // SAFETY: as many as the hash table chains.
    let symbols = unsafe { core::slice::from_raw_parts(symbols, count) };
    for symbol in symbols {
        if symbol.info & 0xf != STT_FUNC || symbol.section == 0 {
            continue;
        }
        // SAFETY: names are C strings in the string table.
        if unsafe { CStr::from_ptr(strings.add(symbol.name as usize)) } == name {
            return (base + symbol.value) as *mut c_void;
        }
    }
    ptr::null_mut()
}

/// How many symbols there are up to the last that a GNU hash table names.
///
/// # Safety
/// `table` is one.
unsafe fn hashed(table: *const u32) -> usize {
    // SAFETY: four words begin it; then come as many filter words of eight bytes, the buckets, and a chain for each symbol from
    // the first that it names. The last of a bucket's chain has its lowest bit set.
    unsafe {
        let (buckets, first, filter) = (*table as usize, *table.add(1), *table.add(2) as usize);
        let bucket = table.add(4 + 2 * filter);
        let Some(mut last) = (0..buckets).map(|at| *bucket.add(at)).max() else {
            return first as usize;
        };
        if last < first {
            return first as usize;
        }
        let chain = bucket.add(buckets);
        while *chain.add((last - first) as usize) & 1 == 0 {
            last += 1;
        }
        last as usize + 1
    }
}
