//! Turns `symbols.txt` into the rest of the export list and the table behind `cuGetProcAddress`.
//!
//! A symbol is implemented when a row of `src/exports/` names it; every other symbol gets a
//! function that answers `CUDA_ERROR_NOT_SUPPORTED`. So no name is kept in two lists.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=src/exports");
    println!("cargo:rerun-if-changed=build.rs");
    // Addresses handed out by cuGetProcAddress must be this library's own, whatever is preloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");

    let implemented = implemented(Path::new("src/exports"));
    let text = fs::read_to_string("symbols.txt").expect("symbols.txt");
    let mut stubs = String::new();
    let mut table = String::from("[\n");
    let mut seen = BTreeSet::new();
    let mut rows = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (Some(base), Some(symbol), Some(version)) = (words.next(), words.next(), words.next())
        else {
            panic!("symbols.txt: {line:?} is not `base symbol version [thread]`");
        };
        let per_thread = words.next() == Some("thread");
        let module = if implemented.contains(symbol) {
            "exports"
        } else {
            "stubs"
        };
        writeln!(
            table,
            "Entry {{ base: {base:?}, symbol: {symbol:?}, version: {version}, per_thread: {per_thread}, \
             address: Address(crate::{module}::{symbol} as *const ()) }},"
        )
        .expect("write to a string");
        rows += 1;
        if seen.insert(symbol.to_owned()) && !implemented.contains(symbol) {
            writeln!(
                stubs,
                "#[unsafe(no_mangle)] pub extern \"C\" fn {symbol}() -> CUresult {{ not_supported({symbol:?}) }}"
            )
            .expect("write to a string");
        }
    }
    table.push(']');
    let unknown: Vec<_> = implemented.difference(&seen).collect();
    assert!(unknown.is_empty(), "not in symbols.txt: {unknown:?}");

    let out = env::var("OUT_DIR").expect("OUT_DIR");
    fs::write(Path::new(&out).join("stubs.rs"), stubs).expect("write stubs.rs");
    fs::write(
        Path::new(&out).join("table.rs"),
        format!("static TABLE: [Entry; {rows}] = {table};\n"),
    )
    .expect("write table.rs");
}

/// The names in the rows of the export tables: what stands before the arguments of a line that
/// begins with four blanks and `cu`, one name or two with a `/` between.
fn implemented(tables: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in fs::read_dir(tables).expect("src/exports") {
        let text = fs::read_to_string(file.expect("directory entry").path()).expect("table");
        for line in text.lines().filter(|line| line.starts_with("    cu")) {
            let Some((head, _)) = line.split_once('(') else {
                continue;
            };
            names.extend(head.split('/').map(|name| name.trim().to_owned()));
        }
    }
    names
}
