//! A tenant's part of its cgroup's path.
//!
//! The first byte chooses where the operator's services put a process: paths that end where a tenant
//! begins. The rest is what the tenant makes of it: names of cgroups below, in one of its hierarchies.

use crate::files::directory;
use crate::input::Input;
use std::sync::LazyLock;
use tidegate_agent::config::{Identity, Role, Rule};
use tidegate_agent::identity::place::{self, Place};
use tidegate_agent::identity::{Credentials, Qos, Subject, cgroup_of, rules};

const ID: &str = "3b1d5c0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";
const POD: &str = "0b1f9d3e-5a6c-4e2b-9c1d-7e8f9a0b1c2d";

/// What `/proc/PID/cgroup` says before the tenant says anything. `ID`, `POD` and `P_D` stand for ids;
/// below a path that ends in `+` a tenant makes cgroups.
const PLACES: [&str; 12] = [
    "0::/docker/ID+",
    "0::/system.slice/docker-ID.scope+",
    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podP_D.slice/cri-containerd-ID.scope+",
    "0::/kubepods/burstable/podPOD/ID+",
    "0::/kubepods/podPOD/ID+",
    "0::/user.slice/user-1000.slice/user@1000.service+",
    "0::/system.slice/slurmstepd.scope/job_7+",
    "0::/machine.slice/libpod-ID.scope+",
    "12:cpu,cpuacct:/docker/ID+\n4:memory:/docker/ID+\n1:name=systemd:/docker/ID+",
    "9:memory:/slurm/uid_1000/job_7+\n2:cpuset:/slurm/uid_1000/job_7+\n1:name=systemd:/system.slice/slurmd.service",
    "11:cpu:/\n6:memory:/kubepods/besteffort/podPOD/ID+\n1:name=systemd:/kubepods/besteffort/podPOD/ID+\n0::/",
    "3:cpu:/online.slice/docker-ID.scope+\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service+",
];

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let choice = usize::from(input.byte());
    let rest = String::from_utf8_lossy(input.0);
    anything(&rest);
    // The kernel takes no line's end into a cgroup's name.
    let below = rest.replace(['\n', '\0', '+'], "");
    if below.is_empty() {
        return;
    }
    let ids = |text: &str| {
        text.replace("ID", ID)
            .replace("P_D", &POD.replace('-', "_"))
            .replace("POD", POD)
    };
    let given = ids(PLACES[choice % PLACES.len()]);
    let owned = given.matches('+').count();
    let nth = given.match_indices('+').nth(choice / PLACES.len() % owned);
    let mut extended = given.clone();
    if let Some((at, _)) = nth {
        extended.insert_str(at, &format!("/{below}"));
    }
    let [given, extended] = [&given, &extended].map(|text| text.replace('+', ""));
    let (before, after) = (subject(&given), subject(&extended));
    assert_eq!(before.place, after.place, "{below:?} moved the process");
    for wishes in [None, Some(Role::Online), Some(Role::Offline)] {
        let of =
            |peer: &Credentials| rules::decide(&IDENTITY, &Subject::of(peer, &IDENTITY), wishes);
        assert_eq!(of(&before), of(&after), "{below:?} in\n{extended}");
    }
}

/// Whatever stands there, it is read, and ids are ids: file names are made of them.
fn anything(text: &str) {
    let place = Place::of(text);
    let of_id = |id: &str| id.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-');
    for id in [&place.container, &place.pod, &place.slurm_job] {
        assert!(id.as_deref().is_none_or(of_id), "{place:?}");
    }
    assert!(
        place
            .unit
            .as_deref()
            .is_none_or(|unit| !unit.contains('/') && text.contains(unit)),
        "{place:?}"
    );
    assert!(place::containers(text).all(|id| id.len() == 64));
    let path = cgroup_of(text);
    assert!(path.is_empty() || text.contains(&path));
    let _ = rules::decide(&IDENTITY, &Subject::of(&subject(text), &IDENTITY), None);
}

fn subject(text: &str) -> Credentials {
    Credentials {
        pid: 7,
        uid: 1_000,
        cgroup: tidegate_agent::plain::Foreign::new(cgroup_of(text)),
        place: Place::of(text),
        ..Credentials::default()
    }
}

/// Rules of every kind that looks at a path, none deeper than what the operator's services decide.
static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let labels = directory("identity");
    for (file, text) in [
        (format!("pod-{POD}"), "team=batch\n"),
        ("slurm-8".to_owned(), "partition=online\n"),
        ("slurm-7".to_owned(), "partition=harvest\n"),
    ] {
        std::fs::write(labels.join(file), text).expect("a file in memory");
    }
    let rule = |change: fn(&mut Rule), role| {
        let mut rule = Rule::giving(role);
        change(&mut rule);
        rule
    };
    Identity {
        labels,
        rules: vec![
            rule(
                |r| r.cgroup = Some("/online.slice".to_owned()),
                Role::Online,
            ),
            rule(|r| r.unit = Some("vllm*.service".to_owned()), Role::Online),
            rule(
                |r| r.slurm_partition = Some("online".to_owned()),
                Role::Online,
            ),
            rule(
                |r| r.slurm_partition = Some("harvest".to_owned()),
                Role::Offline,
            ),
            rule(
                |r| r.labels = [("team".to_owned(), "batch".to_owned())].into(),
                Role::Offline,
            ),
            rule(|r| r.qos = Some(Qos::Guaranteed), Role::Online),
            rule(|r| r.qos = Some(Qos::BestEffort), Role::Offline),
            rule(|r| r.cgroup = Some("/user.slice".to_owned()), Role::Offline),
            rule(|r| r.cgroup = Some("/*/*.scope".to_owned()), Role::Offline),
        ],
        ..Identity::default()
    }
});
