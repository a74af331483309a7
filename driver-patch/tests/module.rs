//! The word is read back from a built module, whoever built it and however it is packed.
//!
//! The modules are compiled here from a few lines of C: the driver's row as its header declares it,
//! beside rows of other controls, and the strings that `modinfo` shows.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tidegate_driver_patch::module::{self, ModuleError};

struct Built(PathBuf);

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn build(name: &str, rows: &str) -> (Built, PathBuf) {
    let dir = std::env::temp_dir().join(format!("tidegate-module-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("writable");
    let source = format!(
        "struct row {{ void (*f)(void); unsigned flags, right, method, size; const void *class; }};
         static void called(void) {{}}
         const struct row rows[] = {{ {{called, 0x8, 0, 0x20801109, 536, 0}}, {rows} {{called, 4, 0, 0x2080110c, 12, 0}} }};
         static const char info[] __attribute__((section(\".modinfo\"), used)) =
             \"license=Dual MIT/GPL\\0supported=external\\0version=580.95.05\";\n"
    );
    let (from, to) = (dir.join("nvidia.c"), dir.join("nvidia.ko"));
    fs::write(&from, source).expect("writable");
    let built = Command::new("cc")
        .args(["-c", "-O2", "-fPIC", "-o"])
        .args([&to, &from])
        .status()
        .expect("cc is installed");
    assert!(built.success());
    (Built(dir), to)
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_built_module_shows_its_word_version_and_licence() {
    let (_dir, path) = build("plain", "{called, 0x10118, 0, 0x2080110b, 536, 0},");
    let module = module::read(&path).expect("a module");
    assert_eq!(module.flags, 0x10118);
    assert_eq!(module.version.as_deref(), Some("580.95.05"));
    assert_eq!(module.license.as_deref(), Some("Dual MIT/GPL"));

    let packed = Command::new("gzip").args(["-k"]).arg(&path).status();
    assert!(packed.expect("gzip is installed").success());
    let packed = module::read(&path.with_extension("ko.gz"));
    assert_eq!(packed.expect("the same module"), module);
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_file_without_exactly_one_such_row_tells_nothing() {
    let (_dir, path) = build("none", "");
    assert!(matches!(module::read(&path), Err(ModuleError::Rows(0))));
    let one = "{called, 0x108, 0, 0x2080110b, 536, 0},";
    let (_dir, path) = build("two", &one.repeat(2));
    assert!(matches!(module::read(&path), Err(ModuleError::Rows(2))));
    fs::write(&path, "no module").expect("writable");
    assert!(matches!(module::read(&path), Err(ModuleError::Elf(_))));
    fs::write(&path, [0x28, 0xb5, 0x2f, 0xfd, 0]).expect("writable");
    assert!(matches!(
        module::read(&path),
        Err(ModuleError::Unpack("zstd"))
    ));
}
