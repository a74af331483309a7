//! The patch changes one word of the right row of a known driver, and nothing of any other.
//!
//! The trees are written here, in the shape of each branch's generated table: a row before and a row
//! behind the control's, the function with an ampersand from 580 on, blanks and comments as the
//! generator puts them.

use std::fs;
use std::path::{Path, PathBuf};
use tidegate_driver_patch::branches::{self, Branch};
use tidegate_driver_patch::tree::{Tree, TreeError};
use tidegate_driver_patch::{State, Variant};

const TABLE: &str = "src/nvidia/generated/g_subdevice_nvoc.c";
const HEADER: &str = "src/nvidia/inc/kernel/rmapi/control.h";

struct Excerpt(PathBuf);

impl Drop for Excerpt {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn row(index: u32, branch: u32, name: &str, parameters: &str, method: u32, flags: u32) -> String {
    let and = if branch >= 580 { "&" } else { "" };
    format!(
        "    {{               /*  [{index}] */
#if NVOC_EXPORTED_METHOD_DISABLED_BY_FLAG({flags:#x}u)
        /*pFunc=*/      (void (*)(void)) NULL,
#else
        /*pFunc=*/      (void (*)(void)) {and}{name}_IMPL,
#endif // NVOC_EXPORTED_METHOD_DISABLED_BY_FLAG({flags:#x}u)
        /*flags=*/      {flags:#x}u,
        /*accessRight=*/0x0u,
        /*methodId=*/   {method:#x}u,
        /*paramSize=*/  sizeof({parameters}),
        /*pClassInfo=*/ &(__nvoc_class_def_Subdevice.classInfo),
#if NV_PRINTF_STRINGS_ALLOWED
        /*func=*/       \"{name}\"
#endif
    }},
"
    )
}

fn ours(branch: &Branch, flags: u32) -> String {
    let parameters = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS";
    let name = "subdeviceCtrlCmdFifoDisableChannels";
    row(2, branch.number, name, parameters, 0x2080_110b, flags)
}

fn table(rows: &[String]) -> String {
    format!(
        "static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_Subdevice[] = \n{{\n{}\n}};\n",
        rows.concat()
    )
}

impl Excerpt {
    fn new(name: &str, version: &str, branch: &Branch, rows: &[String]) -> Self {
        let root =
            std::env::temp_dir().join(format!("tidegate-patch-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut header = String::from("#define RMCTRL_FLAGS(...)   (0)\n");
        for (flag, bit) in branch.layout() {
            header += &format!("#define RMCTRL_FLAGS_{flag:<45} {bit:#011x} // as it is\n");
        }
        let version = format!("NVIDIA_VERSION = {version}\nNVIDIA_NVID_VERSION = {version}\n");
        let excerpt = Self(root);
        for (path, text) in [
            ("version.mk", version),
            (TABLE, table(rows)),
            (HEADER, header),
        ] {
            let path = excerpt.0.join(path);
            fs::create_dir_all(path.parent().expect("inside the tree")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        excerpt
    }

    /// NVIDIA's own table of `branch`.
    fn shipped(name: &str, branch: &Branch) -> Self {
        let before = row(1, branch.number, "aMethod", "A_PARAMS", 0x2080_1109, 0x8);
        let behind = row(3, branch.number, "bMethod", "B_PARAMS", 0x2080_110c, 0x4);
        let rows = [before, ours(branch, branch.old), behind];
        Self::new(name, &branch.last, branch, &rows)
    }

    fn text(&self) -> String {
        fs::read_to_string(self.0.join(TABLE)).expect("readable")
    }

    fn change(&self, path: &str, from: &str, to: &str) {
        let path = self.0.join(path);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replace(from, to)).expect("writable");
    }

    fn refused(&self) -> String {
        let before = self.text();
        let error = match Tree::open(&self.0, false) {
            Err(error) => error,
            Ok(mut tree) => tree.apply(Variant::B).expect_err("it is not as shipped"),
        };
        assert_eq!(self.text(), before, "a refusal writes nothing");
        assert_eq!(
            fs::read_dir(self.0.join(TABLE).parent().expect("a file"))
                .expect("readable")
                .count(),
            1,
            "a refusal leaves nothing behind"
        );
        error.to_string()
    }
}

fn branch(number: u32) -> &'static Branch {
    let mut all = branches::all().iter();
    all.find(|branch| branch.number == number).expect("known")
}

fn open(root: &Path) -> Tree {
    Tree::open(root, false).unwrap_or_else(|error| panic!("{error}"))
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn one_word_of_every_branch_changes_and_comes_back() {
    for branch in branches::all() {
        let excerpt = Excerpt::shipped(&format!("each-{}", branch.number), branch);
        let shipped = excerpt.text();
        for variant in [Variant::A, Variant::B] {
            let mut tree = open(&excerpt.0);
            assert_eq!(tree.state(), State::Unpatched);
            assert!(tree.apply(variant).expect("as shipped"));
            let patched = excerpt.text();
            let differ: Vec<_> = shipped
                .lines()
                .zip(patched.lines())
                .zip(1..)
                .filter(|((old, new), _)| old != new)
                .collect();
            let old = format!("        /*flags=*/      {:#x}u,", branch.old);
            let new = format!("        /*flags=*/      {:#x}u,", branch.patched(variant));
            assert_eq!(differ, [((old.as_str(), new.as_str()), tree.line)]);
            assert_eq!(shipped.lines().count(), patched.lines().count());

            let mut again = open(&excerpt.0);
            assert_eq!(again.state(), State::Patched(variant));
            assert!(!again.apply(variant).expect("already there"));
            assert_eq!(excerpt.text(), patched);
            assert!(again.undo().expect("ours to undo"));
            assert!(!again.undo().expect("already back"));
            assert_eq!(excerpt.text(), shipped);
        }
    }
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_driver_nobody_read_is_refused() {
    let known = branch(580);
    let rows = [ours(known, known.old)];
    let tree = Excerpt::new("unknown", "610.43.02", known, &rows);
    let error = tree.refused();
    assert!(error.contains("version.mk:1: driver 610.43.02"), "{error}");
    assert!(error.contains("535, 550, 570, 580, 590, 595"), "{error}");
    let tree = Excerpt::new("untested", "580.999.01", known, &rows);
    let error = tree.refused();
    assert!(error.contains("expected 580.65.06 to 580.142"), "{error}");
    assert!(error.contains("--untested-version"), "{error}");
    let mut forced = Tree::open(&tree.0, true).expect("all else is as expected");
    assert!(forced.apply(Variant::B).expect("as shipped"));
    let tree = Excerpt::shipped("silent", known);
    tree.change("version.mk", "NVIDIA_VERSION =", "VERSION =");
    assert!(
        tree.refused()
            .contains("expected a line `NVIDIA_VERSION = ...`")
    );
    fs::remove_file(tree.0.join("version.mk")).expect("there");
    assert!(matches!(
        Tree::open(&tree.0, false),
        Err(TreeError::File { what: "read", .. })
    ));
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_row_that_is_missing_double_or_of_another_shape_is_refused() {
    let known = branch(570);
    let other = row(1, 570, "aMethod", "A_PARAMS", 0x2080_1109, known.old);
    let tree = Excerpt::new("missing", &known.last, known, std::slice::from_ref(&other));
    let error = tree.refused();
    assert!(error.contains("`/*methodId=*/   0x2080110bu`"), "{error}");
    assert!(error.ends_with("found none"), "{error}");

    let twice = [ours(known, known.old), other, ours(known, known.old)];
    let tree = Excerpt::new("twice", &known.last, known, &twice);
    let error = tree.refused();
    assert!(error.contains("found them at lines [11, 41]"), "{error}");

    let tree = Excerpt::shipped("size", known);
    tree.change(TABLE, "FIFO_DISABLE_CHANNELS_PARAMS", "OTHER_PARAMS");
    let error = tree.refused();
    assert!(error.contains("g_subdevice_nvoc.c:26: expected"), "{error}");
    assert!(
        error.contains("sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS)"),
        "{error}"
    );

    let tree = Excerpt::shipped("two-words", known);
    tree.change(
        TABLE,
        "        /*flags=*/      0x108u,\n",
        "        /*flags=*/      0x108u,\n        /*flags=*/      0x108u,\n",
    );
    assert!(tree.refused().contains("one line `/*flags=*/ 0x...u,`"));

    let tree = Excerpt::shipped("decimal", known);
    tree.change(TABLE, "      0x108u,", "      264u,");
    assert!(tree.refused().contains("one line `/*flags=*/ 0x...u,`"));
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn other_flags_and_the_other_variant_are_refused_with_their_line() {
    let known = branch(580);
    let rows = [ours(known, 0x10109)];
    let error = Excerpt::new("flags", &known.last, known, &rows).refused();
    assert!(
        error.contains("g_subdevice_nvoc.c:9: expected the flags 0x10108, found 0x10109"),
        "{error}"
    );

    let rows = [ours(known, known.patched(Variant::A))];
    let error = Excerpt::new("variant", &known.last, known, &rows).refused();
    assert!(error.contains("undo the other variant first"), "{error}");
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_header_that_gives_a_bit_another_meaning_is_refused() {
    // The word is right, but this tree's control.h is of the other era.
    let (known, other) = (branch(550), branch(580));
    let excerpt = Excerpt::shipped("bits", known);
    let header = fs::read_to_string(Excerpt::shipped("bits-other", other).0.join(HEADER));
    fs::write(excerpt.0.join(HEADER), header.expect("readable")).expect("writable");
    let error = excerpt.refused();
    assert!(
        error.contains("control.h: expected `#define RMCTRL_FLAGS_"),
        "{error}"
    );

    let excerpt = Excerpt::shipped("no-bit", known);
    excerpt.change(
        HEADER,
        "RMCTRL_FLAGS_GPU_LOCK_DEVICE_ONLY",
        "RMCTRL_FLAGS_OTHER",
    );
    let error = excerpt.refused();
    assert!(
        error.contains("`#define RMCTRL_FLAGS_GPU_LOCK_DEVICE_ONLY 0x40`, found no such line"),
        "{error}"
    );
}

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn a_tree_that_cannot_be_written_stays_as_it_was() {
    let excerpt = Excerpt::shipped("unwritable", branch(595));
    let mut tree = open(&excerpt.0);
    // Root writes read-only files, so the place of the fresh copy is taken instead.
    fs::create_dir(excerpt.0.join(TABLE).with_extension("c.tidegate")).expect("writable");
    let before = excerpt.text();
    let error = tree.apply(Variant::B).expect_err("nowhere to write");
    assert!(error.to_string().starts_with("cannot write"), "{error}");
    assert_eq!(excerpt.text(), before);
}
