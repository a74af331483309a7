//! `tidegate_abi` against what the driver's own headers say (`../facts`).

use std::path::Path;
use std::process::Command;

/// The tables are what the full ones say, where those are at hand.
#[test]
fn abi_the_tables_are_what_the_source_tables_say() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let facts = here.join("facts");
    let source = here.join("../../../shared/data/rm_abi");
    if !source.is_dir() {
        println!("SKIPPED: {} is not here", source.display());
        return;
    }
    let made = std::env::temp_dir().join(format!("facts-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let run = Command::new("python3")
        .arg(facts.join("make"))
        .args([&source, &made])
        .status()
        .unwrap();
    assert!(run.success());
    for name in ["controls", "classes", "structs", "uvm", "escapes", "consts"] {
        let file = format!("{name}.csv");
        let read = |dir: &Path| std::fs::read_to_string(dir.join(&file)).unwrap();
        assert_eq!(read(&made), read(&facts), "{file}");
    }
    std::fs::remove_dir_all(&made).unwrap();
}
