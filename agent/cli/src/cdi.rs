//! `tidegate cdi generate`: a Container Device Interface specification, by which container engines give a
//! container the library and the agent's hook socket (`--device tidegate.dev/colo=offline`).
//!
//! Version 0.5.0 of it, because podman of Debian 12 takes nothing newer. What it asks for is no more than an
//! environment and mounts: a hook program would run privileged, with the container's `LD_PRELOAD` in its
//! environment. Inside, the library lies where no host has one, so that whatever inherits `LD_PRELOAD` on the
//! host finds nothing to load. Of the agent's directory the container sees `hook.sock` alone: root in a
//! container is root to `control.sock`.

use super::print::print;
use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tidegate_proto::{HOOK_SOCKET, RUN_DIR, RUN_DIR_ENV};

const VERSION: &str = "0.5.0";
const KIND: &str = "tidegate.dev/colo";
/// The library on the host, as packages install it.
const LIBRARY: &str = "/usr/lib/tidegate/libtidegate.so";
/// The library in a container.
const IN_CONTAINER: &str = "/opt/tidegate/libtidegate.so";
/// A file on the host that names [`IN_CONTAINER`], as packages install it.
const PRELOAD_FILE: &str = "/usr/share/tidegate/ld.so.preload";

/// Devices by name, with the word each says for its processes; rules of the agent decide without one.
const DEVICES: [(&str, Option<&str>); 3] = [
    ("online", Some("online")),
    ("offline", Some("offline")),
    ("auto", None),
];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write the specification for container engines, such as /etc/cdi/tidegate.json.
    Generate(Generate),
}

#[derive(Debug, Args)]
pub(super) struct Generate {
    /// Output file (default: standard output).
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// How programs in a container get the library: "env" is LD_PRELOAD; "file" is /etc/ld.so.preload, which
    /// also reaches programs that are started with an empty environment.
    #[arg(long, value_enum, default_value_t = Preload::Env)]
    preload: Preload,
    /// The library on this host.
    #[arg(long, default_value = LIBRARY, value_name = "PATH")]
    library: PathBuf,
    /// The file on this host that becomes /etc/ld.so.preload.
    #[arg(long, default_value = PRELOAD_FILE, value_name = "PATH")]
    preload_file: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preload {
    Env,
    File,
}

pub(super) fn run(run_dir: &Path, command: &Command) -> anyhow::Result<()> {
    let Command::Generate(arguments) = command;
    let spec = spec(run_dir, arguments)?;
    let text = match arguments.format {
        Format::Json => format!("{spec:#}\n"),
        Format::Yaml => yaml(&spec, 0),
    };
    match &arguments.output {
        None => print(&text),
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
    }
}

fn spec(run_dir: &Path, arguments: &Generate) -> anyhow::Result<Value> {
    let mut mounts = vec![
        mount("--library", &arguments.library, IN_CONTAINER)?,
        // A file and not the directory, which holds control.sock too. systemd keeps it while agents restart.
        mount(
            "--run-dir",
            &run_dir.join(HOOK_SOCKET),
            &format!("{RUN_DIR}/{HOOK_SOCKET}"),
        )?,
    ];
    let mut env = vec![format!("{RUN_DIR_ENV}={RUN_DIR}")];
    match arguments.preload {
        Preload::Env => env.push(format!("LD_PRELOAD={IN_CONTAINER}")),
        Preload::File => {
            let file = &arguments.preload_file;
            mounts.push(mount("--preload-file", file, "/etc/ld.so.preload")?);
        }
    }
    let devices = DEVICES.map(|(name, role)| {
        let role = role.map_or("TIDEGATE_ROLE=".to_owned(), |role| {
            format!("TIDEGATE_ROLE={role}")
        });
        json!({ "name": name, "containerEdits": { "env": [role] } })
    });
    Ok(json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "containerEdits": { "env": env, "mounts": mounts },
        "devices": devices,
    }))
}

fn mount(option: &str, host: &Path, container: &str) -> anyhow::Result<Value> {
    let path = host
        .to_str()
        .filter(|path| !path.contains(char::is_control));
    let path = path.with_context(|| {
        format!("{option} {host:?}: container engines take printable UTF-8 paths only")
    })?;
    anyhow::ensure!(
        host.is_absolute(),
        "{option} {path}: container engines ask for an absolute path"
    );
    Ok(json!({
        "hostPath": path,
        "containerPath": container,
        "options": ["ro", "bind", "nosuid", "nodev"],
    }))
}

/// Block YAML: every text is quoted as JSON quotes it, which YAML reads alike.
fn yaml(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let nested = |value: &Value| match value {
        Value::Object(_) | Value::Array(_) => format!("\n{}", yaml(value, depth + 1)),
        plain => format!(" {plain}\n"),
    };
    match value {
        Value::Object(fields) => {
            let field = |(name, value)| format!("{indent}{name}:{}", nested(value));
            fields.iter().map(field).collect()
        }
        Value::Array(items) => {
            let item = |item: &Value| {
                let lines = match item {
                    Value::Object(_) | Value::Array(_) => yaml(item, depth + 1),
                    plain => format!("{indent}  {plain}\n"),
                };
                // The dash takes the place of the first line's indentation.
                lines.replacen(&format!("{indent}  "), &format!("{indent}- "), 1)
            };
            items.iter().map(item).collect()
        }
        plain => format!("{indent}{plain}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn arguments(preload: Preload) -> Generate {
        Generate {
            output: None,
            format: Format::Json,
            preload,
            library: LIBRARY.into(),
            preload_file: PRELOAD_FILE.into(),
        }
    }

    fn words<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
        let items = value[field].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).collect()
    }

    fn only(value: &Value, known: &[&str]) {
        let fields = value.as_object().expect("an object");
        for field in fields.keys() {
            assert!(
                known.contains(&field.as_str()),
                "{field} is no field of version 0.5.0"
            );
        }
    }

    /// What version 0.5.0 of the specification says of `containerEdits`, and what we keep out of it.
    fn edits(value: &Value) {
        only(value, &["env", "mounts"]);
        assert!(
            value.as_object().is_some_and(|edits| !edits.is_empty()),
            "empty edits are refused"
        );
        for variable in words(value, "env") {
            let (name, _) = variable.split_once('=').expect("NAME=value");
            assert!(!name.is_empty(), "{variable}");
        }
        for mount in value["mounts"].as_array().into_iter().flatten() {
            only(mount, &["hostPath", "containerPath", "options"]);
            for path in ["hostPath", "containerPath"] {
                assert!(
                    mount[path]
                        .as_str()
                        .is_some_and(|path| path.starts_with('/')),
                    "{mount}"
                );
            }
            assert!(words(mount, "options").contains(&"ro"), "{mount}");
        }
    }

    /// A name of a class or a device: letters and digits, and `inner` between them.
    fn named(name: &str, inner: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric();
        let ends = name.starts_with(plain) && name.ends_with(plain);
        ends && name.chars().all(|c| plain(c) || inner.contains(c))
    }

    /// P-OPERATE-2: a container gets the library and the hook socket.
    #[test]
    fn what_is_generated_keeps_the_rules_of_its_version() {
        for preload in [Preload::Env, Preload::File] {
            let spec =
                spec(Path::new("/run/tidegate"), &arguments(preload)).expect("it can be made");
            only(&spec, &["cdiVersion", "kind", "containerEdits", "devices"]);
            assert_eq!(spec["cdiVersion"], "0.5.0");
            let (vendor, class) = spec["kind"]
                .as_str()
                .and_then(|kind| kind.split_once('/'))
                .expect("vendor/class");
            assert!(named(vendor, "._-") && named(class, "._-"));
            edits(&spec["containerEdits"]);
            let devices = spec["devices"].as_array().expect("a list");
            let mut seen = HashSet::new();
            for device in devices {
                only(device, &["name", "containerEdits"]);
                let name = device["name"].as_str().expect("a name");
                assert!(named(name, "._-:") && seen.insert(name), "{name}");
                edits(&device["containerEdits"]);
            }
            assert_eq!(seen, HashSet::from(["online", "offline", "auto"]));
        }
    }

    /// P-OPERATE-2: a container gets the library and the hook socket.
    #[test]
    fn a_container_sees_the_hook_socket_and_no_other() {
        let spec = spec(Path::new("/srv/run"), &arguments(Preload::Env)).expect("it can be made");
        let mounts = spec["containerEdits"]["mounts"].as_array().expect("a list");
        let hosts: Vec<_> = mounts
            .iter()
            .filter_map(|mount| mount["hostPath"].as_str())
            .collect();
        assert_eq!(hosts, [LIBRARY, "/srv/run/hook.sock"]);
    }

    #[test]
    fn a_path_that_engines_would_refuse_is_refused_with_its_option() {
        let mut wrong = arguments(Preload::Env);
        wrong.library = "lib/libtidegate.so".into();
        let error = spec(Path::new("/run/tidegate"), &wrong).expect_err("it is relative");
        assert!(
            error.to_string().contains("--library lib/libtidegate.so"),
            "{error}"
        );
        let error = spec(Path::new("/run/a\nb"), &arguments(Preload::Env)).expect_err("two lines");
        assert!(error.to_string().contains("--run-dir"), "{error}");
    }
}
