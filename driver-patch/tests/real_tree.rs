//! On a driver's real sources: `TIDEGATE_NVIDIA_TREE` names a checkout of
//! NVIDIA/open-gpu-kernel-modules, or several joined by `:`. They are copied, never changed.

use std::fs;
use std::path::Path;
use tidegate_driver_patch::tree::Tree;
use tidegate_driver_patch::{State, Variant};

const FILES: [&str; 3] = [
    "version.mk",
    "src/nvidia/generated/g_subdevice_nvoc.c",
    "src/nvidia/inc/kernel/rmapi/control.h",
];

/// P-EQUIPMENT-6: the patch changes one word of the right row, or nothing.
#[test]
fn one_word_of_a_real_tree_changes_and_comes_back() {
    let Ok(trees) = std::env::var("TIDEGATE_NVIDIA_TREE") else {
        eprintln!("SKIPPED: TIDEGATE_NVIDIA_TREE names no source tree of the driver");
        return;
    };
    for source in trees.split(':') {
        let copy = std::env::temp_dir().join(format!("tidegate-real-{}", std::process::id()));
        let _ = fs::remove_dir_all(&copy);
        for file in FILES {
            let to = copy.join(file);
            fs::create_dir_all(to.parent().expect("inside the copy")).expect("writable");
            fs::copy(Path::new(source).join(file), to)
                .unwrap_or_else(|error| panic!("{source}/{file}: {error}"));
        }
        let table = copy.join(FILES[1]);
        let mut tree = Tree::open(&copy, false).unwrap_or_else(|error| panic!("{error}"));
        tree.undo().expect("writable");
        let shipped = fs::read_to_string(&table).expect("readable");
        for variant in [Variant::B, Variant::A] {
            tree.apply(variant).expect("as shipped");
            let patched = fs::read_to_string(&table).expect("readable");
            let lines = shipped.lines().zip(patched.lines());
            assert_eq!(lines.filter(|(old, new)| old != new).count(), 1, "{source}");
            let again = Tree::open(&copy, false).expect("still a tree");
            assert_eq!(again.state(), State::Patched(variant));
            tree.undo().expect("ours to undo");
            assert_eq!(fs::read_to_string(&table).expect("readable"), shipped);
        }
        println!("{}: {}", tree.version, tree.branch.decoded(tree.word));
        let _ = fs::remove_dir_all(&copy);
    }
}
