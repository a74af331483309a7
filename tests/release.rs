//! What `scripts/release` packs is the same wherever and whenever it is packed, and is of a commit. What it has compiled
//! takes minutes twice, and is stood in for: `scripts/release --twice` compares that too, by hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidegate_tests::TempDir;

/// In place of `scripts/packaging/stage`: files of now, of each kind that a package has.
const STAGE: &str = r#"#!/usr/bin/env bash
set -euo pipefail
umask 022
cd "$(dirname "$0")/../.."
for program in tidegate tidegate-agent tidegate-probe; do install -D -m 755 "$(type -P true)" "$1/usr/bin/$program"; done
install -D -m 644 README.md "$1/usr/share/doc/tidegate/README.md"
install -D -m 644 scripts/packaging/agent.toml "$1/etc/tidegate/agent.toml"
ln -s README.md "$1/usr/share/doc/tidegate/README"
"#;
/// In place of `scripts/packaging/library`.
const LIBRARY: &str = r#"#!/usr/bin/env bash
mkdir -p "$CARGO_TARGET_DIR" && echo library > "$CARGO_TARGET_DIR/libtidegate.so" && echo "$CARGO_TARGET_DIR/libtidegate.so"
"#;
/// In place of `scripts/packaging/wheel`, which asks PyPI.
const WHEEL: &str = r#"#!/usr/bin/env bash
echo wheel > "$1/tidegate_engines-0.whl"
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir);
    for setting in [
        "user.name=test",
        "user.email=test@localhost",
        "advice.detachedHead=false",
    ] {
        command.args(["-c", setting]);
    }
    command
}

/// A clone of the tree as it is now, with the stand-ins committed; nothing where a release cannot be packed.
fn clone(dir: &Path) -> Option<PathBuf> {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if let Some(missing) = ["git", "rpmbuild", "dpkg-deb"]
        .into_iter()
        .find(|name| !has(name))
    {
        eprintln!("SKIPPED: {missing} is not installed");
        return None;
    }
    if !root().join(".git").exists() {
        eprintln!("SKIPPED: this is no clone");
        return None;
    }
    let clone = dir.join("clone");
    succeed(
        git(&root())
            .args(["clone", "-q", "--no-hardlinks"])
            .args([&root(), &clone]),
    );
    let scripts = ["scripts", "docs", "Cargo.toml", "Cargo.lock"];
    succeed(
        Command::new("cp")
            .arg("-a")
            .args(scripts.map(|name| root().join(name)))
            .arg(&clone),
    );
    for (name, text) in [("stage", STAGE), ("library", LIBRARY), ("wheel", WHEEL)] {
        std::fs::write(clone.join("scripts/packaging").join(name), text)
            .expect("the clone is ours");
    }
    succeed(git(&clone).args(["add", "-A"]));
    succeed(git(&clone).args(["commit", "-q", "-m", "stand-ins"]));
    Some(clone)
}

fn release(clone: &Path, out: &Path) -> Command {
    let mut command = Command::new(clone.join("scripts/release"));
    command.args(["--profile", "dev", "--out"]).arg(out);
    command
}

/// P-OPERATE-32: two clones at two places, at two times, pack equal bytes, and the checksums are theirs.
#[test]
fn two_releases_of_a_commit_are_the_same() {
    let dir = TempDir::new();
    let Some(clone) = clone(dir.path()) else {
        return;
    };
    let out = dir.path().join("out");
    succeed(release(&clone, &out).arg("--twice"));
    succeed(
        Command::new("sha256sum")
            .args(["--quiet", "-c", "SHA256SUMS"])
            .current_dir(&out),
    );
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).expect("it is there");
    for end in [
        ".deb",
        ".rpm",
        ".tar.xz",
        ".oci.tar",
        ".whl",
        ".tgz",
        ".cdx.json",
    ] {
        assert!(
            sums.lines().any(|line| line.ends_with(end)),
            "no {end}: {sums}"
        );
    }
    // What a package is made of, and no clone's place.
    let sbom = std::fs::read_dir(&out).expect("a directory").flatten();
    let sbom = sbom
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "json"));
    let sbom = std::fs::read_to_string(sbom.expect("an SBOM")).expect("text");
    let sbom: serde_json::Value = serde_json::from_str(&sbom).expect("JSON");
    let names: Vec<&str> = sbom["components"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|part| part["name"].as_str())
        .collect();
    assert!(
        names.contains(&"tonic") && names.contains(&"tidegate-agent"),
        "{names:?}"
    );
    // Only tests use the one, only the compiler the other.
    assert!(
        !names.contains(&"proptest") && !names.contains(&"clap_derive"),
        "{names:?}"
    );
}

/// P-OPERATE-32: a release is of a commit, and does not mix with files that are there.
#[test]
fn what_is_not_committed_is_not_released() {
    let dir = TempDir::new();
    let Some(clone) = clone(dir.path()) else {
        return;
    };
    let refused = |out: &Path| {
        let output = run(&mut release(&clone, out));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let why = refused(&clone.join("docs"));
    assert!(why.contains("is not empty: name a new directory"), "{why}");
    std::fs::write(clone.join("README.md"), "changed").expect("the clone is ours");
    let out = dir.path().join("out");
    let why = refused(&out);
    assert!(
        why.contains("differ from the commit") && why.contains("README.md"),
        "{why}"
    );
    assert!(!out.exists());
    let wrong = run(Command::new(clone.join("scripts/release")).arg("--ouT"));
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
