//! The engines' plugins speak to the library as its header says; their schedulers are judged by
//! `scripts/engines`.

use std::path::Path;
use std::process::Command;

use tidegate_tests::{Node, Running, TRUSTING};

fn says(command: &mut Command, role: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    command
        .arg(tests.join("apps/engine_abi.py"))
        .arg(role)
        .env("PYTHONPATH", tests.join("../interposer/engines"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    Running::start("engine_abi.py", command).succeed()
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn an_offline_plugin_registers_polls_and_publishes() {
    let node = Node::new(&[], "");
    assert_eq!(
        says(&mut node.preloaded("python3", "offline"), "offline"),
        "ok\n"
    );
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn an_online_plugin_grows_within_its_headroom() {
    let node = Node::new(&[], &format!("{TRUSTING}[memory]\npool = \"256MiB\"\n"));
    assert_eq!(
        says(&mut node.preloaded("python3", "online"), "online"),
        "ok\n"
    );
}

/// P-MEMORY-11: plugins speak to the library as its header says.
#[test]
fn without_the_library_a_plugin_knows_it() {
    let node = Node::device_only(&[]);
    assert_eq!(says(&mut node.plain("python3"), "none"), "no library\n");
}
