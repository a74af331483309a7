//! agent.toml(5) is written by hand; what it says of each setting is what the agent takes.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_agent::config::{Applies, Config, Origin, Role, Rule, SETTINGS, Setting, show_rule};
use tidegate_agent::identity::Qos;

const PAGE: &str = include_str!("../man/agent.toml.5");
const LONGEST: &str = "18446744073709551615ns";

/// What the agent says to `value` of `setting`; None: it takes it.
fn refusal(setting: &Setting, value: &str) -> Option<String> {
    let name = format!("TIDEGATE_{}", setting.path.replacen('.', "__", 1));
    let row = (name.to_uppercase(), value.to_owned());
    let error = Config::load(Path::new("/nonexistent/agent.toml"), true, [row]).err()?;
    let error = error.to_string();
    let (_, message) = error
        .split_once(&format!("`{}`: ", setting.path))
        .expect("the message names the setting");
    Some(message.to_owned())
}

/// What the agent expects of `setting`, as it tells who gives it something else.
fn takes(setting: &Setting) -> String {
    let refused = |value| refusal(setting, value);
    let expected = |message: String| {
        let from = message.find("expected ").expect("it says what it expects");
        let text = &message[from + "expected ".len()..];
        text.strip_suffix(", in quotes").unwrap_or(text).to_owned()
    };
    let kind = expected(refused("true").expect("a truth value is no setting"));
    if let Some(out) = refused(LONGEST).filter(|message| message.contains("out of range")) {
        let (_, range) = out.split_once("out of range: ").expect("a range");
        return format!("{kind}, from {range}");
    }
    // Of numbers and sizes the least that is refused tells the bounds.
    let least = match kind.as_str() {
        "a number" => refused("0"),
        "a size such as \"64MiB\"" => refused("0B"),
        _ => None,
    };
    least.map_or(kind, expected)
}

const fn counts(applies: Applies) -> &'static str {
    match applies {
        Applies::Now => "A change counts at once.",
        Applies::NextAttach => "A change counts for processes that attach later.",
        Applies::Restart => "A change counts after a restart.",
    }
}

/// The entries of the page from one section title to another: section, name, what follows the name, text.
fn entries(from: &str, to: &str) -> Vec<(String, String, String, String)> {
    let (_, text) = PAGE.split_once(&format!("\n{from}\n")).expect("a section");
    let (text, _) = text.split_once(&format!("\n{to}\n")).expect("its end");
    let mut section = String::new();
    let mut entries = Vec::new();
    for block in format!("\n{text}").split("\n.TP\n") {
        let (block, next) = match block.split_once(".SS [") {
            Some((block, next)) => (block, next.strip_suffix(']')),
            None => (block, None),
        };
        if let Some(rest) = block.strip_prefix("\\fB") {
            let (tag, text) = rest.split_once('\n').expect("a text");
            let (name, value) = tag.split_once("\\fR").expect("an end");
            entries.push((section.clone(), name.into(), value.into(), text.into()));
        }
        if let Some(next) = next {
            section = next.to_owned();
        }
    }
    entries
}

/// P-OPERATE-8: agent.toml(5) and the settings agree.
#[test]
fn the_page_and_the_table_of_settings_agree() {
    let default = Config::default();
    let mut page: BTreeMap<_, _> = entries(".SH SETTINGS", ".SH FILES")
        .into_iter()
        .map(|(section, name, value, text)| (format!("{section}.{name}"), (value, text)))
        .collect();
    for setting in &SETTINGS {
        let (value, text) = page
            .remove(setting.path)
            .unwrap_or_else(|| panic!("agent.toml(5) lacks {}", setting.path));
        assert_eq!(
            value,
            format!(" = {}", setting.show(&default)),
            "{}",
            setting.path
        );
        let facts = format!(
            "\n.br\nTakes {}.\n{}",
            takes(setting),
            counts(setting.applies)
        );
        assert!(
            text.trim_end().ends_with(&facts),
            "{}: {text}\nlacks{facts}",
            setting.path
        );
    }
    assert!(
        page.is_empty(),
        "agent.toml(5) has settings that the agent lacks: {page:?}"
    );
}

/// P-OPERATE-8: agent.toml(5) and the settings agree.
#[test]
fn the_page_has_every_key_of_a_rule_and_no_other() {
    let text = |text: &str| Some(text.to_owned());
    let full = Rule {
        uid: Some(1),
        gid: Some(1),
        cgroup: text("/a"),
        unit: text("a.service"),
        qos: Some(Qos::BestEffort),
        pod: text("a"),
        slurm_partition: text("a"),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        role: Role::Offline,
        weight: Some(2),
        class: Some(tidegate_policy::fair::Class::Idle),
        join: true,
        origin: Origin::Default,
    };
    let table: toml::Table = format!("rule = {}", show_rule(&full))
        .parse()
        .expect("TOML");
    let mut keys: Vec<_> = table["rule"]
        .as_table()
        .expect("a table")
        .keys()
        .cloned()
        .collect();
    let page = entries(".SS Keys of a rule", ".SS Label files");
    let mut named: Vec<_> = page.into_iter().map(|(_, name, ..)| name).collect();
    keys.sort();
    named.sort();
    assert_eq!(named, keys);
}

/// P-OPERATE-8: agent.toml(5) and the settings agree.
#[test]
fn the_example_of_the_page_is_a_configuration() {
    let (_, text) = PAGE.split_once("\n.EX\n").expect("an example");
    let (text, _) = text.split_once("\n.EE\n").expect("its end");
    let file = std::env::temp_dir().join(format!("tg-manual-{}.toml", std::process::id()));
    std::fs::write(&file, text).expect("writable");
    let loaded = Config::load(&file, false, []);
    std::fs::remove_file(&file).expect("written above");
    assert_eq!(loaded.expect("the agent takes it").identity.rules.len(), 2);
}
