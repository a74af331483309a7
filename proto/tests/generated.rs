//! The committed code is what the committed contract generates.

use prost::Message;
use std::path::{Path, PathBuf};

fn generate(into: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("tidegate/v1/tidegate.proto");
    let set = protox::compile([&file], [root]).expect("the contract compiles");
    let descriptor = into.join("tidegate.v1.bin");
    // Without source info: the comments are in the generated code, reflection does not need them.
    let mut bare = set.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    std::fs::write(&descriptor, bare.encode_to_vec()).expect("the directory is writable");
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(into)
        .compile_fds(set)
        .expect("the contract generates");
    descriptor
}

#[test]
fn the_committed_code_is_current() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if std::env::var_os("TIDEGATE_REGENERATE").is_some() {
        generate(&committed);
        return;
    }
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&fresh).expect("the target directory is writable");
    generate(&fresh);
    for name in ["tidegate.v1.rs", "tidegate.v1.bin"] {
        let (old, new) = (
            std::fs::read(committed.join(name)),
            std::fs::read(fresh.join(name)),
        );
        assert!(
            old.ok() == new.ok(),
            "proto/src/generated/{name} is stale: run TIDEGATE_REGENERATE=1 cargo test -p tidegate-proto"
        );
    }
}
