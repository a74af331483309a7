//! Which rule matches, and what is said of those that do not.

use super::super::labels::Labels;
use super::super::place::Place;
use super::super::{Credentials, Qos, Subject};
use super::*;
use proptest::prelude::*;

use tidegate_policy::fair::{Class, Gives};

fn peer(uid: u32, cgroup: &str) -> Credentials {
    Credentials {
        pid: 1,
        uid,
        groups: vec![uid, 44],
        cgroup: crate::plain::Foreign::new(cgroup.to_owned()),
        place: Place::of_path(cgroup),
        ..Credentials::default()
    }
}

fn subject<'a>(peer: &'a Credentials, labels: &[(&str, &str)]) -> Subject<'a> {
    Subject {
        peer,
        place: &peer.place,
        labels: labels
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect::<Labels>(),
    }
}

fn decided(identity: &Identity, uid: u32, cgroup: &str, wishes: Option<Role>) -> Role {
    let peer = peer(uid, cgroup);
    decide(identity, &subject(&peer, &[]), wishes).role
}

fn identity() -> Identity {
    let rule = |uid, cgroup: Option<&str>, role| Rule {
        uid,
        cgroup: cgroup.map(str::to_owned),
        ..Rule::giving(role)
    };
    Identity {
        trust_env_uids: vec![7],
        rules: vec![
            rule(Some(1000), Some("/a"), Role::Ignore),
            rule(None, Some("/a"), Role::Online),
            rule(Some(1000), None, Role::Offline),
        ],
        ..Identity::default()
    }
}

#[test]
fn the_first_rule_whose_every_condition_holds_decides() {
    let role = |uid, cgroup| decided(&identity(), uid, cgroup, None);
    assert_eq!(role(1000, "/a/b"), Role::Ignore);
    assert_eq!(role(5, "/a"), Role::Online);
    assert_eq!(role(1000, "/other"), Role::Offline);
    assert_eq!(role(5, "/ab"), Role::Ignore, "/a is not above /ab");
}

/// P-SECURITY-4: no tenant chooses its role.
#[test]
fn no_process_raises_itself_to_online() {
    for uid in [5, 1000] {
        for cgroup in ["/", "/x", ""] {
            let role = decided(&identity(), uid, cgroup, Some(Role::Online));
            assert_ne!(role, Role::Online, "{uid} {cgroup}");
        }
    }
}

#[test]
fn a_process_may_lower_itself_and_a_trusted_user_may_choose() {
    let role = |uid, cgroup, wish| decided(&identity(), uid, cgroup, Some(wish));
    assert_eq!(role(5, "/a", Role::Offline), Role::Offline);
    let ignored = role(1000, "/x", Role::Ignore);
    assert_eq!(ignored, Role::Offline, "ignored is not lower");
    assert_eq!(
        role(5, "/x", Role::Offline),
        Role::Offline,
        "no rule speaks"
    );
    assert_eq!(role(5, "/x", Role::Ignore), Role::Ignore);
    let left_alone = role(1000, "/a", Role::Offline);
    assert_eq!(left_alone, Role::Ignore, "the operator said so");
    assert_eq!(role(7, "/x", Role::Online), Role::Online);
}

/// Each condition alone, on a process it holds for.
#[test]
fn each_condition_matches_what_it_names_and_says_what_there_is_instead() {
    let id = "e".repeat(64);
    let pod = "0b1f9d3e-5a6c-4e2b-9c1d-7e8f9a0b1c2d";
    let in_pod = format!("/kubepods/besteffort/pod{pod}/{id}");
    let service = "/system.slice/vllm@0.service/worker";
    let slurm = "/system.slice/slurmstepd.scope/job_42/step_0";
    let plain = Rule::giving(Role::Online);
    let text = |text: &str| Some(text.to_owned());
    let label = |name: &str| [(name.to_owned(), "BE".to_owned())].into();
    let qos = "koordinator.sh/qosClass";
    let rows = [
        (
            Rule {
                uid: Some(5),
                ..plain.clone()
            },
            service,
            "uid is 9, not 5",
        ),
        (
            Rule {
                gid: Some(44),
                ..plain.clone()
            },
            service,
            "its groups are [9], without 44",
        ),
        (
            Rule {
                cgroup: text("/system.slice/vllm@*.service"),
                ..plain.clone()
            },
            service,
            "cgroup is `/none`, not `/system.slice/vllm@*.service`",
        ),
        (
            Rule {
                unit: text("vllm@?.service"),
                ..plain.clone()
            },
            service,
            "unit is none, not `vllm@?.service`",
        ),
        (
            Rule {
                qos: Some(Qos::BestEffort),
                ..plain.clone()
            },
            &in_pod,
            "qos is none, not `besteffort`",
        ),
        (
            Rule {
                pod: text(pod),
                ..plain.clone()
            },
            &in_pod,
            "pod is none, not `0b1f",
        ),
        (
            Rule {
                slurm_partition: text("harvest"),
                ..plain.clone()
            },
            slurm,
            "slurm_partition is none, not `harvest`",
        ),
        (
            Rule {
                labels: label(qos),
                ..plain.clone()
            },
            &in_pod,
            "label koordinator.sh/qosClass is none, not `BE`",
        ),
    ];
    let labels = [("partition", "harvest"), (qos, "BE")];
    for (rule, cgroup, otherwise) in rows {
        let identity = Identity {
            rules: vec![rule],
            ..Identity::default()
        };
        let fits = peer(5, cgroup);
        let fits = subject(&fits, &labels);
        assert_eq!(trials(&identity, &fits)[0].mismatch, None, "{otherwise}");
        assert_eq!(decide(&identity, &fits, None).role, Role::Online);
        let other = Credentials {
            groups: vec![9],
            ..peer(9, "/none")
        };
        // A partition that nobody's job is in says nothing of a process outside Slurm.
        let said = trials(&identity, &subject(&other, &labels[..1]))
            .remove(0)
            .mismatch;
        assert!(
            said.as_deref()
                .is_some_and(|said| said.starts_with(otherwise)),
            "{said:?} {otherwise}"
        );
    }
}

/// P-SECURITY-4: no tenant chooses its role.
#[test]
fn no_cgroup_that_a_tenant_makes_fits_a_rule() {
    let identity = Identity {
        rules: vec![Rule {
            cgroup: Some("/user.slice/*/*/online.slice".to_owned()),
            ..Rule::giving(Role::Online)
        }],
        ..Identity::default()
    };
    let role = |cgroup| decided(&identity, 1000, cgroup, None);
    let root_made = "/user.slice/user-1000.slice/session-3.scope/online.slice";
    assert_eq!(role(root_made), Role::Online);
    let own = "/user.slice/user-1000.slice/user@1000.service/online.slice";
    assert_eq!(role(own), Role::Ignore);
}

#[test]
fn a_star_stays_within_one_component() {
    for (pattern, path, below) in [
        ("/a/*/c", "/a/b/c/d", true),
        ("/a/*/c", "/a/b/b/c", false),
        ("/a*", "/abc/d", true),
        ("/*", "/x/y", true),
        ("/a/b", "/a", false),
        ("", "/x", true),
        ("/a/*b*d?", "/a/xbydz", true),
        ("/a/*b*d?", "/a/xbyd", false),
    ] {
        assert_eq!(is_below(path, pattern), below, "{pattern} {path}");
    }
}

fn words() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["/a", "/a/b", "/ab", "/*", "/x.service", ""]).prop_map(str::to_owned)
}

fn a_rule() -> impl Strategy<Value = Rule> {
    let role = prop::sample::select(vec![Role::Online, Role::Offline, Role::Ignore]);
    (
        prop::option::of(0..3_u32),
        prop::option::of(words()),
        prop::option::of(words()),
        role,
    )
        .prop_map(|(uid, cgroup, unit, role)| Rule {
            uid,
            cgroup,
            unit,
            ..Rule::giving(role)
        })
}

proptest! {
    /// P-SECURITY-4: no tenant chooses its role.
    #[test]
    fn the_trials_end_with_the_one_that_decides_and_no_wish_raises(
        rules in prop::collection::vec(a_rule(), 0..6),
        uid in 0..3_u32,
        cgroup in words(),
        wish in prop::sample::select(vec![None, Some(Role::Online), Some(Role::Offline), Some(Role::Ignore)]),
    ) {
        let identity = Identity { rules, ..Identity::default() };
        let peer = peer(uid, &cgroup);
        let subject = subject(&peer, &[]);
        let trials = trials(&identity, &subject);
        let plain = decide(&identity, &subject, None);
        let last = trials.last().filter(|trial| trial.mismatch.is_none());
        prop_assert_eq!(plain.role, last.map_or(Role::Ignore, |trial| trial.rule.role));
        prop_assert!(trials.iter().rev().skip(1).all(|trial| trial.mismatch.is_some()));
        if last.is_none() {
            prop_assert_eq!(trials.len(), identity.rules.len(), "every rule was tried");
        }
        let wished = decide(&identity, &subject, wish).role;
        prop_assert!(wished == plain.role || (plain.role != Role::Offline && wished == Role::Offline));
    }

    #[test]
    fn a_pattern_without_stars_is_the_text_itself(text in "[a-z.@-]{0,12}", other in "[a-z.@-]{0,12}") {
        prop_assert!(glob(&text, &text));
        prop_assert_eq!(glob(&text, &other), text == other);
        prop_assert!(glob("*", &text));
        let around = format!("*{text}*");
        let longer = format!("{other}{text}{other}");
        prop_assert!(glob(&around, &longer));
    }
}

#[test]
fn a_role_that_was_asked_for_and_not_given_is_named_with_the_reason() {
    let said = |uid, cgroup: &str, wishes, unknown: &str| {
        let (identity, peer) = (identity(), peer(uid, cgroup));
        let decision = decide(&identity, &subject(&peer, &[]), wishes);
        refused(wishes, unknown, uid, &decision)
    };
    let (online, offline) = (Some(Role::Online), Some(Role::Offline));
    assert_eq!(
        said(5, "/other", online, ""),
        "asked for online by TIDEGATE_ROLE and is left alone, neither seen nor gated: no rule matched, and \
         user 5 is not in identity.trust_env_uids"
    );
    assert_eq!(
        said(1000, "/other", online, ""),
        "asked for online by TIDEGATE_ROLE and is offline: rule 3: uid 1000, and user 1000 is not in \
         identity.trust_env_uids"
    );
    assert_eq!(
        said(1000, "/a", offline, ""),
        "asked for offline by TIDEGATE_ROLE and is left alone, neither seen nor gated: rule 1: uid 1000 cgroup /a"
    );
    assert_eq!(
        said(5, "/a", None, "ofline"),
        "asked for `ofline` by TIDEGATE_ROLE, which knows online and offline; it is online: rule 2: cgroup /a"
    );
    // Who gets what it asked for, or asked for nothing, is refused nothing.
    for (uid, cgroup, wishes) in [
        (7, "/other", online),
        (5, "/a", online),
        (5, "/a", offline),
        (5, "/other", offline),
        (5, "/other", None),
    ] {
        assert_eq!(
            said(uid, cgroup, wishes, ""),
            "",
            "{uid} {cgroup} {wishes:?}"
        );
    }
}

/// P-FAIR-6: what a job weighs is what the operator's rule says, also where the role is the user's own word.
#[test]
fn a_rule_gives_weight_and_class_whoever_gives_the_role() {
    let identity = Identity {
        trust_env_uids: vec![7],
        rules: vec![Rule {
            weight: Some(4),
            class: Some(Class::Idle),
            uid: Some(7),
            ..Rule::giving(Role::Offline)
        }],
        ..Identity::default()
    };
    let gives = |uid, wishes| {
        let peer = peer(uid, "/");
        decide(&identity, &subject(&peer, &[]), wishes).gives
    };
    let (ruled, default) = (
        Gives {
            weight: 4,
            class: Class::Idle,
        },
        Gives::default(),
    );
    assert_eq!(gives(7, Some(Role::Offline)), ruled);
    assert_eq!(gives(7, None), ruled);
    assert_eq!(gives(8, Some(Role::Offline)), default, "no rule matched");
}
