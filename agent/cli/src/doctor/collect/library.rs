//! `libtidegate.so`: where it lies, and what its dynamic section asks of a process.

use crate::doctor::facts::{Found, Library, Needs};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use std::path::Path;
use tidegate_agent::selftest;
use tidegate_driver::causes::with_causes;

pub(super) fn collect(named: Option<&Path>) -> Library {
    let path = named.map(Path::to_owned).or_else(selftest::find_library);
    let needs = path
        .as_deref()
        .map_or_else(|| Err("not found".to_owned()), needs);
    Library { path, needs }
}

fn needs(path: &Path) -> Found<Needs> {
    let data = std::fs::read(path).map_err(|error| error.to_string())?;
    read(&data).map_err(|error| with_causes(&error))
}

/// The needs of a shared object of this machine's kind.
fn read(data: &[u8]) -> Result<Needs, object::Error> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut needs = Needs::default();
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries {
            if entry.tag(endian) == DT_NEEDED {
                needs.libraries.push(text(entry.string(endian, strings)?));
            }
        }
    }
    if let Some((mut files, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                needs.glibc = needs
                    .glibc
                    .max(glibc(&text(version.name(endian, strings)?)));
            }
        }
    }
    Ok(needs)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// (2, 28) of "GLIBC_2.28"; None of any other version.
fn glibc(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn versions_of_glibc_are_told_from_others() {
        assert_eq!(glibc("GLIBC_2.28"), Some((2, 28)));
        assert_eq!(glibc("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc("GLIBC_PRIVATE"), None);
        assert_eq!(glibc("GCC_4.2.0"), None);
        assert!(Some((2, 28)) > glibc("GLIBC_2.9"));
    }

    #[test]
    fn a_shared_object_names_its_libraries_and_its_newest_version() {
        let dir = std::env::temp_dir().join(format!("tidegate-needs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let (source, object) = (dir.join("a.c"), dir.join("a.so"));
        // memcpy is of 2.14 on this architecture, getrandom of 2.25, and libm is only linked.
        let text = "#include <string.h>\n#include <sys/random.h>\n\
                    long f(void *to, void *from, int n) { memcpy(to, from, n); return getrandom(to, n, 0); }\n";
        std::fs::write(&source, text).expect("writable");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
            .args([&object, &source])
            .arg("-lm")
            .status()
            .expect("cc is installed");
        assert!(built.success());
        let library = collect(Some(&object));
        let needs = library.needs.expect("a shared object");
        assert_eq!(needs.glibc, Some((2, 25)));
        assert_eq!(needs.libraries, ["libm.so.6", "libc.so.6"]);
        std::fs::write(&object, "no library").expect("writable");
        assert!(collect(Some(&object)).needs.is_err());
        let _ = std::fs::remove_dir_all(&dir);
    }
}
