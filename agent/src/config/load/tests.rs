//! The layers, and what is refused.

use super::*;
use crate::config::{Cooldown, Level, LevelChoice, Role, settings};
use std::time::Duration;

fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let dir = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("writable");
    let name = text
        .bytes()
        .fold(7_u64, |sum, b| sum.wrapping_mul(31) + u64::from(b));
    let file = dir.join(format!("{name}.toml"));
    std::fs::write(&file, text).expect("writable");
    let environment = environment
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()));
    Config::load(&file, false, environment).map_err(|error| {
        error
            .to_string()
            .replace(&format!("{}", file.display()), "FILE")
    })
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn an_absent_file_is_the_default() {
    let config = Config::load(Path::new("/nonexistent/agent.toml"), true, []);
    assert_eq!(config.expect("optional"), Config::default());
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn an_unknown_key_is_refused_with_its_path_and_line() {
    assert_eq!(
        load("[gate]\n\ncooldwon = \"5ms\"\n", &[]),
        Err("FILE:3: unknown key `gate.cooldwon`; did you mean `gate.cooldown`?".to_owned())
    );
    assert_eq!(
        load("[gates]\n", &[]),
        Err("FILE:1: unknown key `gates`".to_owned())
    );
    assert_eq!(
        load(
            "[identity]\n[[identity.rules]]\nuid = 1\nroll = \"online\"\n",
            &[]
        ),
        Err(
            "FILE:4: unknown key `identity.rules.roll`; did you mean `identity.rules.role`?"
                .to_owned()
        )
    );
    assert_eq!(
        load("", &[("TIDEGATE_GATE__QUX", "1")]),
        Err("environment variable TIDEGATE_GATE__QUX: unknown key `gate.qux`".to_owned())
    );
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn a_value_without_its_unit_is_refused() {
    assert_eq!(
        load("[gate]\nmax_gated = \"240\"\n", &[]),
        Err(
            "FILE:2: `gate.max_gated`: `240` is not a time: a number and one of ns, us, ms, s, min, h"
                .to_owned()
        )
    );
    assert_eq!(
        load("[gate]\nmax_gated = 240\n", &[]),
        Err("FILE:2: `gate.max_gated`: expected a time such as \"5ms\", in quotes".to_owned())
    );
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn broken_toml_is_refused_with_its_line() {
    let error = load("[gate]\ncooldown = \n", &[]).expect_err("not TOML");
    assert!(error.starts_with("FILE:2: "), "{error}");
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn the_environment_wins_over_the_file() {
    let config = load(
        "[gate]\ncooldown = \"5ms\"\n[identity]\ntrust_env_uids = [7]\n",
        &[
            ("TIDEGATE_GATE__COOLDOWN", "9ms"),
            ("TIDEGATE_CHANNEL__LEVEL", "L3"),
            ("TIDEGATE_IDENTITY__TRUST_ENV_UIDS", "[8, \"self\"]"),
            ("TIDEGATE_ROLE", "online"),
        ],
    )
    .expect("valid");
    assert_eq!(
        config.gate.cooldown,
        Cooldown::Fixed(Duration::from_millis(9))
    );
    assert_eq!(config.level, LevelChoice::Forced(Level::L3));
    let own = nix::unistd::Uid::effective().as_raw();
    assert_eq!(config.identity.trust_env_uids, [8, own]);
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn rules_keep_their_order_and_need_a_condition_and_a_role() {
    let text = "[[identity.rules]]\ncgroup = \"/online.slice/\"\nrole = \"online\"\n\
                [[identity.rules]]\nuid = 1000\nrole = \"offline\"\n";
    let rules = load(text, &[]).expect("valid").identity.rules;
    assert_eq!(rules[0].cgroup.as_deref(), Some("/online.slice"));
    assert_eq!((rules[1].uid, rules[1].role), (Some(1000), Role::Offline));
    assert!(load("[[identity.rules]]\nrole = \"online\"\n", &[]).is_err());
    assert!(load("[[identity.rules]]\nuid = 1\n", &[]).is_err());
}

/// A directory with an agent.toml of this text and these drop-ins; gone with the value.
struct Files(PathBuf);

impl Files {
    fn new(name: &str, text: &str, drop_ins: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("tg-config-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("agent.toml.d")).expect("writable");
        std::fs::write(dir.join("agent.toml"), text).expect("writable");
        for (name, text) in drop_ins {
            std::fs::write(dir.join("agent.toml.d").join(name), text).expect("writable");
        }
        Self(dir)
    }

    fn sources(&self) -> Sources {
        Sources::of(&self.0.join("agent.toml"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn each_layer_lies_over_the_one_before_and_is_named_as_the_origin() {
    let files = Files::new(
        "layers",
        "[gate]\ncooldown = \"1ms\"\nmax_gated = \"1s\"\nbreathe = \"1ms\"\ncooldown_max = \"1s\"\n\
         frozen_after = \"1s\"\n",
        &[
            ("20-late.toml", "[gate]\nmax_gated = \"3s\"\n"),
            (
                "10-early.toml",
                "[gate]\nmax_gated = \"2s\"\nbreathe = \"2ms\"\n",
            ),
            ("30-not.conf", "not TOML"),
        ],
    );
    let text = |text: &str| text.to_owned();
    let sources = Sources {
        environment: vec![
            (text("TIDEGATE_GATE__COOLDOWN"), text("4ms")),
            (text("TIDEGATE_GATE__COOLDOWN_MAX"), text("4s")),
            (text("TIDEGATE_GATE__FROZEN_AFTER"), text("4s")),
        ],
        flags: vec![
            (text("--set"), text("gate.cooldown_max"), text("5s")),
            (text("--set"), text("gate.frozen_after"), text("5s")),
        ],
        set: vec![(text("gate.frozen_after"), text("6s"), text("uid 0"))],
        ..files.sources()
    };
    let loaded = sources.load().expect("valid");
    let dir = format!("{}", files.0.display());
    let row = |path: &str| {
        let setting = setting(path).expect("a setting");
        let origin = loaded.origin(setting).to_string();
        (setting.show(&loaded.config), origin.replace(&dir, "DIR"))
    };
    let expect = [
        ("gate.cooldown_min", "\"2ms\"", "default"),
        (
            "gate.breathe",
            "\"2ms\"",
            "DIR/agent.toml.d/10-early.toml:3",
        ),
        (
            "gate.max_gated",
            "\"3s\"",
            "DIR/agent.toml.d/20-late.toml:2",
        ),
        (
            "gate.cooldown",
            "\"4ms\"",
            "environment variable TIDEGATE_GATE__COOLDOWN",
        ),
        ("gate.cooldown_max", "\"5s\"", "flag --set"),
        ("gate.frozen_after", "\"6s\"", "set by uid 0"),
    ];
    for (path, value, origin) in expect {
        assert_eq!(row(path), (text(value), text(origin)), "{path}");
    }
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn rules_of_drop_ins_follow_those_of_the_file_and_keep_their_lines() {
    let rule = |uid: u32| format!("\n[[identity.rules]]\nuid = {uid}\nrole = \"online\"\n");
    let files = Files::new(
        "rules",
        &(rule(1) + &rule(2)),
        &[
            ("slurm.toml", &rule(3)),
            ("a.toml", "[gate]\nbreathe = \"9ms\"\n"),
        ],
    );
    let rules = files.sources().load().expect("valid").config.identity.rules;
    let places: Vec<_> = rules
        .iter()
        .map(|rule| {
            let Origin::File { path, line } = &rule.origin else {
                panic!("{rule:?}");
            };
            (
                rule.uid,
                path.file_name().and_then(|name| name.to_str()),
                *line,
            )
        })
        .collect();
    let file = Some("agent.toml");
    assert_eq!(
        places,
        [
            (Some(1), file, 2),
            (Some(2), file, 6),
            (Some(3), Some("slurm.toml"), 2)
        ]
    );
    let sources = Sources {
        environment: vec![(
            "TIDEGATE_IDENTITY__RULES".to_owned(),
            "[{ uid = 9, role = \"ignore\" }]".to_owned(),
        )],
        ..files.sources()
    };
    let rules = sources.load().expect("valid").config.identity.rules;
    assert_eq!(rules.len(), 1, "the environment replaces them: {rules:?}");
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn every_setting_refuses_a_boolean_and_reads_what_it_shows() {
    for path in settings::paths() {
        let (section, key) = path.rsplit_once('.').expect("dotted");
        let text = if section == "identity.rules" {
            format!("[[{section}]]\n{key} = false\n")
        } else {
            format!("[{section}]\n{key} = false\n")
        };
        let error = load(&text, &[]).expect_err("no setting is a boolean");
        assert!(!error.contains("unknown key"), "{error}");
    }
    let text = "[identity]\ntrust_env_uids = [3, 4]\n[[identity.rules]]\nuid = 1\ngid = 2\ncgroup = \"/a\\\"b\"\n\
                unit = \"*.service\"\nqos = \"besteffort\"\npod = \"x\"\nslurm_partition = \"p\"\n\
                labels = { \"k/q\" = \"BE\" }\n\
                role = \"offline\"\nweight = 4\nclass = \"idle\"\n\
                [fair.users]\n7 = { weight = 3, most = 0.125 }\nroot = { most = 0.5 }\n[gate]\ncooldown = \"1500us\"\nlong_gate = \"breathe\"\n[channel]\n\
                level = \"L2\"\nlibrary = \"/x y\"\n[memory]\npool = \"3GiB\"\nstep = \"6MiB\"\n\
                [log]\nlevel = \"info,tonic=warn\"\n";
    for config in [Config::default(), load(text, &[]).expect("valid")] {
        let mut shown = String::new();
        for setting in &SETTINGS {
            let (section, key) = setting.path.split_once('.').expect("dotted");
            shown.push_str(&format!("{section}.{key} = {}\n", setting.show(&config)));
        }
        let mut again = load(&shown, &[]).expect("what is shown can be read");
        for (rule, old) in again.identity.rules.iter_mut().zip(&config.identity.rules) {
            rule.origin = old.origin.clone();
        }
        assert_eq!(again, config, "{shown}");
    }
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn a_rise_is_a_percentage_above_chance_and_nothing_else() {
    let config = load("[slo]\nttft = \"+1.25%\"\n", &[]).expect("a rise");
    assert_eq!((config.slo.ttft, config.slo.tpot), (Some(125), None));
    let tunables = crate::config::tunables(&Loaded::from(config), Level::L1);
    let slo = tunables.policy.slo.map(|slo| (slo.ttft, slo.tpot));
    assert_eq!(slo, Some((125, 50)));
    let off = load("[slo]\nttft = \"off\"\n", &[]).expect("off");
    let off = crate::config::tunables(&Loaded::from(off), Level::L1);
    assert_eq!(off.policy.slo, None);
    for (value, part) in [
        ("+0%", "from +0.15%"),
        ("+0.1%", "from +0.15%"),
        ("+101%", "to +100%"),
        ("20ms", "is a time"),
        ("+20ms", "is a time"),
        ("1%", "a plus sign"),
        ("-1%", "a plus sign"),
        ("+0.125%", "two decimals"),
    ] {
        let error = load(&format!("[slo]\nttft = \"{value}\"\n"), &[]).expect_err(value);
        assert!(error.starts_with("FILE:2: `slo.ttft`"), "{error}");
        assert!(error.contains(part), "{value}: {error}");
    }
    let error = load("[slo]\ntpot = 1\n", &[]).expect_err("a number");
    assert!(error.contains("a rise such as"), "{error}");
}

/// P-OPERATE-7: a setting that another overrides is named, with where both came from, also where that is a default.
#[test]
fn a_chosen_rate_of_shortages_overrides_an_slo_and_says_so() {
    let dir = std::env::temp_dir().join(format!("tidegate-overridden-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("writable");
    let load = |name: &str, text: &str| {
        let file = dir.join(name);
        std::fs::write(&file, text).expect("writable");
        Sources::of(&file).load().expect("valid")
    };
    let slo = |loaded: &Loaded| crate::config::tunables(loaded, Level::L1).policy.slo;
    let alone = load("alone.toml", "[slo]\ntpot = \"+1%\"\n");
    assert!(slo(&alone).is_some() && alone.overridden().is_empty());
    for every in ["30s", "15s"] {
        let text = format!("[memory]\npressure_every = \"{every}\"\n[slo]\ntpot = \"+1%\"\n");
        let both = load("both.toml", &text);
        assert_eq!(slo(&both), None, "{every}");
        let said = both.overridden().join("\n");
        for part in [
            "`slo.tpot` (",
            "both.toml:4)",
            "`memory.pressure_every` (",
            "both.toml:2)",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("slo.ttft"), "{said}");
    }
    let without = load(
        "without.toml",
        "[memory]\npressure_every = \"30s\"\n[slo]\nttft = \"off\"\n",
    );
    assert!(slo(&without).is_none() && without.overridden().is_empty());
    std::fs::remove_dir_all(&dir).expect("it is there");
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn users_and_weights_are_refused_with_their_own_line() {
    let rule = |rest: &str| format!("[[identity.rules]]\nuid = 1\nrole = \"offline\"\n{rest}\n");
    let user = |rest: &str| format!("[fair.users]\nroot = {{ weight = 2 }}\n\n{rest}\n");
    let range = "is out of range: 1 to 1000";
    for (text, message) in [
        (
            rule("weight = 0"),
            format!("`identity.rules.weight`: 0 {range}"),
        ),
        (
            rule("weight = -1"),
            format!("`identity.rules.weight`: -1 {range}"),
        ),
        (
            rule("weight = 1001"),
            format!("`identity.rules.weight`: 1001 {range}"),
        ),
        (
            rule("class = \"urgent\""),
            "`identity.rules.class`: `urgent`: expected one of normal, idle".to_owned(),
        ),
        (
            user("7 = { weight = 0 }"),
            format!("`fair.users.7.weight`: 0 {range}"),
        ),
        (
            user("7.weight = -2"),
            format!("`fair.users.7.weight`: -2 {range}"),
        ),
        (
            user("7 = { weight = 1001 }"),
            format!("`fair.users.7.weight`: 1001 {range}"),
        ),
        (
            user("7 = { weight = 1.5 }"),
            "`fair.users.7.weight`: expected a whole number from 1 to 1000".to_owned(),
        ),
        (
            user("7 = { most = 0.0 }"),
            "`fair.users.7.most`: 0 is out of range: 0.001 to 1".to_owned(),
        ),
        (
            user("7 = { most = 1.5 }"),
            "`fair.users.7.most`: 1.5 is out of range: 0.001 to 1".to_owned(),
        ),
        (
            user("7 = { mots = 1.5 }"),
            "unknown key `fair.users.7.mots`".to_owned(),
        ),
        (
            user("0 = { weight = 1 }"),
            "`fair.users.root`: user 0 is there already, by another name".to_owned(),
        ),
        (
            user("no-such-user = { weight = 1 }"),
            "`fair.users.no-such-user`: this node knows no user `no-such-user`; \
             a number names a user that it does not know"
                .to_owned(),
        ),
    ] {
        let error = load(&text, &[]).map(|_| ()).expect_err(&text);
        // The second of two names for one user is the one whose name is greater.
        let line = if text.contains("\n0 =") { 2 } else { 4 };
        assert_eq!(error, format!("FILE:{line}: {message}"), "{text}");
    }
    let error = load(
        "[[identity.rules]]\nuid = 1\nrole = \"online\"\nweight = 2\n",
        &[],
    );
    let only = "FILE:1: `identity.rules`: only a rule with role = \"offline\" has a weight";
    assert_eq!(error.map(|_| ()), Err(only.to_owned()));
    let bare = load("[[identity.rules]]\nrole = \"offline\"\nweight = 2\n", &[]);
    assert!(bare.is_err_and(|error| error.contains("a rule needs a condition")));
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn users_of_drop_ins_lie_over_those_of_the_file_and_a_flag_replaces_all() {
    let files = Files::new(
        "users",
        "[fair.users]\nroot = { weight = 2 }\n7 = { weight = 3 }\n",
        &[("a.toml", "[fair.users.7]\nmost = 0.25\n")],
    );
    let shown = |sources: &Sources| {
        let loaded = sources.load().expect("valid");
        setting("fair.users")
            .expect("a setting")
            .show(&loaded.config)
    };
    let both = "{ \"0\" = { weight = 2 }, \"7\" = { weight = 1, most = 0.25 } }";
    assert_eq!(shown(&files.sources()), both);
    let flag = (
        "--set".to_owned(),
        "fair.users".to_owned(),
        "{ 9 = { weight = 5 } }".to_owned(),
    );
    let sources = Sources {
        flags: vec![flag],
        ..files.sources()
    };
    assert_eq!(shown(&sources), "{ \"9\" = { weight = 5 } }");
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn settings_that_contradict_each_other_are_refused_at_the_later_one() {
    assert_eq!(
        load("[gate]\ncooldown_max = \"1s\"\ncooldown_min = \"2s\"\n", &[]),
        Err("FILE:3: `gate.cooldown_min`: gate.cooldown_min (\"2s\") is above gate.cooldown_max (\"1s\")".to_owned())
    );
    let error = load(
        "[memory]\nheadroom_max = \"1MiB\"\nheadroom_min = \"64MiB\"\n",
        &[],
    )
    .expect_err("above 1 MiB");
    assert!(
        error.starts_with("FILE:3: `memory.headroom_min`"),
        "{error}"
    );
    let both = "[memory]\nheadroom_max = \"16MiB\"\nheadroom_min = \"4MiB\"\n";
    assert_eq!(
        load(both, &[]).map(|_| ()),
        Ok(()),
        "each against the other, not a default"
    );
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn a_size_without_its_unit_and_a_level_that_is_none_are_refused() {
    let error = load("[memory]\npool = 40960\n", &[]).expect_err("no unit");
    assert!(
        error.contains("expected a size such as \"64MiB\""),
        "{error}"
    );
    let error = load("[log]\nlevel = \"info=loud\"\n", &[]).expect_err("no level");
    assert!(error.starts_with("FILE:2: `log.level`"), "{error}");
    let error = load("", &[("TIDEGATE_GATE__PROBE_INTERVAL", "5ms")]).expect_err("too long");
    assert!(
        error.contains("5ms is out of range: 200us to 1ms"),
        "{error}"
    );
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn only_what_counts_at_run_time_and_is_not_of_the_files_alone_can_be_set() {
    for setting in &SETTINGS {
        let of_files = ["identity", "bench"];
        let (section, _) = setting.path.split_once('.').expect("a section");
        let expected =
            setting.applies != crate::config::Applies::Restart && !of_files.contains(&section);
        assert_eq!(setting.can_be_set(), expected, "{}", setting.path);
    }
    let old = Loaded::default();
    let text = "[memory]\npool = \"1GiB\"\n[channel]\nlevel = \"L5\"\n[gate]\nbreathe = \"1ms\"\n";
    let new = Files::new("keeping", text, &[])
        .sources()
        .load()
        .expect("valid");
    let kept = new.keeping(&old);
    let paths = |changes: Vec<Change>| changes.iter().map(|c| c.setting.path).collect::<Vec<_>>();
    assert_eq!(paths(old.changes(&kept)), ["gate.breathe"]);
    assert_eq!(paths(kept.changes(&new)), ["channel.level", "memory.pool"]);
    let changes = |new: &str| {
        let files = Files::new("changes", new, &[]);
        let new = files.sources().load().expect("valid");
        let changes = Loaded::default().changes(&new);
        changes
            .iter()
            .map(|change| change.setting.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        changes("[gate]\ncooldown_min = \"2ms\"\n"),
        [""; 0],
        "as it was"
    );
    assert_eq!(
        changes("[log]\nlevel = \"debug\"\n[gate]\nbreathe = \"1ms\"\n"),
        ["gate.breathe", "log.level"]
    );
}

/// P-OPERATE-7: the file takes what `tidegate log-level` takes.
#[test]
fn a_level_that_is_none_is_refused() {
    let level = |level: &str| load(&format!("[log]\nlevel = \"{level}\"\n"), &[]);
    for good in ["info", "off", "info,tidegate_agent::control=debug"] {
        level(good).expect(good);
    }
    let error = level("verbose").expect_err("no level");
    assert!(
        error.starts_with("FILE:2: `log.level`: `verbose` is not a log level: use error, warn"),
        "{error}"
    );
}

/// P-TRAINER-15: leases are given by a promise of both times, and are off without one.
#[test]
fn leases_are_on_where_both_times_are_promised() {
    let leases = |text: &str| {
        let loaded = Loaded::from(load(text, &[]).expect(text));
        crate::config::tunables(&loaded, Level::L1).policy.leases
    };
    assert_eq!(leases(""), None);
    assert_eq!(
        leases("[lease]\nttft = \"500ms\"\nmargin = \"7.5%\"\n"),
        None
    );
    let own =
        leases("[lease]\ntpot = \"20ms\"\nttft = \"500ms\"\nmargin = \"7.5%\"\n").expect("on");
    assert_eq!((own.margin_permille, own.grace_ns), (75, 500_000));
    assert_eq!(own.promise.tpot_ns(), Some(20_000_000));
}

/// P-OPERATE-7: a mistake is named with its place, a value with its origin.
#[test]
fn a_promise_that_lacks_a_part_is_refused() {
    for (text, part) in [
        (
            "[lease]\ntpot = \"20ms\"\n",
            "FILE:2: `lease.tpot`: lease.tpot is \"20ms\" and lease.ttft is \"off\"",
        ),
        (
            "[lease]\ntpot = \"2ms\"\nttft = \"1s\"\ngrace = \"3ms\"\n",
            "FILE:2: `lease.tpot`: lease.grace (\"3ms\") is above lease.tpot (\"2ms\")",
        ),
        (
            "[lease]\ntpot = \"20us\"\n",
            "FILE:2: `lease.tpot`: 20us is out of range: 1ms to 10s",
        ),
        (
            "[lease]\ntpot = 20\n",
            "FILE:2: `lease.tpot`: expected \"off\" or a time such as \"20ms\"",
        ),
        (
            "[lease]\nmargin = \"60%\"\n",
            "FILE:2: `lease.margin`: `60%`: write a part",
        ),
        ("[lease]\nmargin = \"0.05%\"\n", "FILE:2: `lease.margin`"),
    ] {
        let error = load(text, &[]).expect_err(text);
        assert!(error.starts_with(part), "{error}");
    }
}
