//! `libtidegate.so`: what it asks of the programs it is loaded into.

use crate::doctor::check::Check;
use crate::doctor::facts::Library;

/// Newest glibc the shipped library may ask for: older than that of any image engines come in.
const FLOOR: (u32, u32) = (2, 28);
/// Loaded by the host on its own terms, or not at all.
const FORBIDDEN: &str = "libcuda";

pub(super) fn check(library: &Library) -> Check {
    const ID: &str = "library";
    let Some(path) = &library.path else {
        return Check::warn(ID, "libtidegate.so lies in none of the usual places")
            .remedy("name it: --library PATH");
    };
    let path = path.display();
    let needs = match &library.needs {
        Ok(needs) => needs,
        Err(why) => return Check::fail(ID, format!("{path}: {why}")),
    };
    let forbidden = needs
        .libraries
        .iter()
        .find(|name| name.starts_with(FORBIDDEN));
    if let Some(name) = forbidden {
        let text = format!("{path} needs {name}: programs without a driver would not start");
        return Check::fail(ID, text).remedy("build it as scripts/packaging/library does");
    }
    match needs.glibc {
        Some((major, minor)) if (major, minor) > FLOOR => Check::warn(
            ID,
            format!("{path} needs glibc {major}.{minor}: no image with an older one loads it"),
        )
        .remedy("scripts/packaging/library builds one for glibc 2.28"),
        Some((major, minor)) => Check::pass(ID, format!("{path}, for glibc {major}.{minor}")),
        None => Check::fail(ID, format!("{path} asks for no version of glibc"))
            .remedy("build it as scripts/packaging/library does"),
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::doctor::Outcome::{Fail, Pass, Warn};
    use crate::doctor::facts::{Library, Needs};

    fn needs(glibc: Option<(u32, u32)>, library: &str) -> Library {
        Library {
            path: Some("/usr/local/lib/libtidegate.so".into()),
            needs: Ok(Needs {
                glibc,
                libraries: vec!["libc.so.6".to_owned(), library.to_owned()],
            }),
        }
    }

    #[test]
    fn the_library_needs_no_driver_and_no_glibc_newer_than_its_floor() {
        let outcome = |library: Library| check(&library).outcome;
        assert_eq!(outcome(needs(Some((2, 28)), "libdl.so.2")), Pass);
        assert_eq!(outcome(needs(Some((2, 17)), "libdl.so.2")), Pass);
        assert_eq!(outcome(needs(Some((2, 29)), "libdl.so.2")), Warn);
        assert_eq!(outcome(needs(Some((3, 0)), "libdl.so.2")), Warn);
        assert_eq!(outcome(needs(None, "libdl.so.2")), Fail);
        assert_eq!(outcome(needs(Some((2, 28)), "libcuda.so.1")), Fail);
        let unreadable = Library {
            needs: Err("not a shared object".to_owned()),
            ..needs(None, "")
        };
        assert_eq!(outcome(unreadable), Fail);
        let missing = Library {
            path: None,
            ..needs(None, "")
        };
        assert_eq!(outcome(missing), Warn);
    }
}
