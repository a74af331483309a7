//! Has the library's own names lead to its own functions.
//!
//! It hands out its hooks by address. Without this, the address of an exported function is that of the first object in the
//! search order that has the name: a library that is preloaded before this one and calls what it was handed would call itself.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
