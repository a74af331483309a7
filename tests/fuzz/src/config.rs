//! Files, drop-ins, variables and set values.
//!
//! An input is the text of the main file; lines that begin with `#@` begin something else, so that an
//! input can be read: `#@ drop-in` a file that lies over it, `#@ environment NAME=VALUE` a variable,
//! `#@ set KEY=VALUE` a value set on the running agent.

use crate::files::{directory, names_line};
use std::error::Error;
use std::path::PathBuf;
use std::sync::LazyLock;
use tidegate_agent::config::{ConfigError, Loaded, SETTINGS, Sources};

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| directory("config"));

/// Files a configuration is made of here.
const FILES: usize = 3;

pub fn run(input: &[u8]) {
    let mut files = vec![Vec::new()];
    let mut sources = Sources {
        file: DIRECTORY.join("agent.toml"),
        ..Sources::default()
    };
    for line in input.split_inclusive(|&byte| byte == b'\n') {
        let text = std::str::from_utf8(line).unwrap_or_default();
        let pair = |text: &str| {
            let (name, value) = text.trim_end_matches('\n').split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        if text.starts_with("#@ drop-in") && files.len() < FILES {
            files.push(Vec::new());
        } else if let Some(said) = text.strip_prefix("#@ environment ").and_then(pair) {
            sources.environment.push(said);
        } else if let Some((key, value)) = text.strip_prefix("#@ set ").and_then(pair) {
            sources.set.push((key, value, "root".to_owned()));
        } else if let Some(last) = files.last_mut() {
            last.extend_from_slice(line);
        }
    }
    write(&sources, &files);
    match sources.load() {
        Ok(loaded) => accepted(&loaded),
        Err(error) => refused(&error, &sources, &files),
    }
}

fn write(sources: &Sources, files: &[Vec<u8>]) {
    std::fs::write(&sources.file, &files[0]).expect("a file in memory");
    std::fs::create_dir_all(sources.drop_ins()).expect("a directory in memory");
    for nth in 1..FILES {
        let path = sources.drop_ins().join(format!("{nth}.toml"));
        match files.get(nth) {
            Some(text) => std::fs::write(path, text).expect("a file in memory"),
            None => {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// What is accepted is dumped, and the dump is accepted as the same.
fn accepted(loaded: &Loaded) {
    let mut text = String::new();
    let mut section = "";
    for setting in &SETTINGS {
        let (of, key) = setting.path.split_once('.').expect("in a section");
        if of != section {
            section = of;
            text.push_str(&format!("[{section}]\n"));
        }
        text.push_str(&format!("{key} = {}\n", setting.show(&loaded.config)));
    }
    let dump = Sources {
        file: DIRECTORY.join("dump.toml"),
        ..Sources::default()
    };
    write(&dump, &[text.clone().into_bytes()]);
    let again = dump
        .load()
        .unwrap_or_else(|error| panic!("a dump is refused: {error}\n{text}"));
    let changes = loaded.changes(&again);
    assert!(changes.is_empty(), "a dump says otherwise: {changes:?}");
    let kept = again.keeping(loaded);
    assert!(loaded.changes(&kept).is_empty());
}

/// A refusal is one text that names the place of what is wrong.
fn refused(error: &ConfigError, sources: &Sources, files: &[Vec<u8>]) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    assert!(text.len() < 64 << 10, "{} bytes of an error", text.len());
    let paths = std::iter::once(sources.file.clone())
        .chain((1..FILES).map(|nth| sources.drop_ins().join(format!("{nth}.toml"))));
    let in_file = paths.zip(files).any(|(path, content)| {
        let path = path.display().to_string();
        let lines = content.split(|&byte| byte == b'\n').count();
        let unread = std::str::from_utf8(content).is_err() && text.contains(&path);
        unread || names_line(&text, &path, lines)
    });
    let said =
        |(name, _): &(String, String)| text.contains(&format!("environment variable {name}"));
    let set = !sources.set.is_empty() && text.contains("set by root");
    assert!(
        in_file || sources.environment.iter().any(said) || set,
        "no place is named: {text}"
    );
}
