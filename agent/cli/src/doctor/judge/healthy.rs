//! A node with two GPUs and nothing wrong, for tests to break one thing of.

use crate::doctor::facts::{
    Agent, AgentProcess, Answer, Driver, Entry, Facts, Journal, Library, LoadedModule, Needs, Node,
    RunDir, System,
};
use crate::doctor::{CHECKS, Check, Outcome, exit_code, judge};
use tidegate_agent::config::{Config, Role, Rule};
use tidegate_agent::host::rundir::Holder;
use tidegate_driver::device::Device;
use tidegate_driver_patch::module::Module;
use tidegate_proto::{CONTROL_SOCKET, HOOK_SOCKET, STATUS_SOCKET, v1};

fn facts(device: Device) -> Facts {
    let version = env!("CARGO_PKG_VERSION");
    let mut config = Config::default();
    config.identity.rules.push(Rule {
        uid: Some(1_001),
        ..Rule::giving(Role::Offline)
    });
    let mut status = v1::GetStatusResponse {
        version: version.to_owned(),
        pid: 77,
        agent_generation: 3,
        scheduling: "SCHED_FIFO".to_owned(),
        gpus: vec![v1::GpuStatus::default()],
        ..v1::GetStatusResponse::default()
    };
    status.set_level(v1::ChannelLevel::L1Agent);
    let entry = |mode, gid| Ok(Entry { mode, uid: 0, gid });
    let node = Node {
        system: System {
            kernel: "6.18.0".to_owned(),
            cgroup2: Some("/sys/fs/cgroup".into()),
            membarrier: Ok(()),
            futex_waitv: true,
            pidfd: Ok(()),
            fifo: Ok(()),
            open_files: Ok(65_536),
            clock: Some("tsc".to_owned()),
        },
        driver: Driver {
            files: ["nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"]
                .map(|name| (name.to_owned(), Ok(())))
                .to_vec(),
            answer: Ok(Answer {
                version: "580.95.05".to_owned(),
                gpus: 2,
                hidden: Vec::new(),
            }),
            loaded: Some(LoadedModule {
                version: "580.95.05".to_owned(),
                banner: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"
                    .to_owned(),
                build_id: Some(vec![1, 2]),
            }),
            library: Some("580.95.05".to_owned()),
            file: Ok((
                "/lib/modules/6.18.0/nvidia.ko".into(),
                Module {
                    version: Some("580.95.05".to_owned()),
                    license: Some("Dual MIT/GPL".to_owned()),
                    build_id: Some(vec![1, 2]),
                    flags: 0x10118,
                },
            )),
            firmware: ["0000:01:00.0", "0000:02:00.0"]
                .map(|gpu| (gpu.to_owned(), "580.95.05".to_owned()))
                .to_vec(),
            obstacles: Some(Ok(Vec::new())),
            mps_left_over: None,
            level: None,
        },
        config: ("/etc/tidegate/agent.toml".into(), Ok(config)),
        run_dir: RunDir {
            path: "/run/tidegate".into(),
            entry: entry(0o755, 0),
            in_memory: true,
            holder: Some(Holder {
                pid: 77,
                generation: 3,
                device: device.to_string(),
            }),
            holder_lives: true,
            sockets: vec![
                (HOOK_SOCKET, entry(0o666, 0)),
                (CONTROL_SOCKET, entry(0o660, 990)),
                (STATUS_SOCKET, entry(0o666, 0)),
            ],
            group: Some(990),
            unreadable: Vec::new(),
            journal: Ok(Some(Journal {
                generation: 3,
                marked: 0,
                handing_over: false,
            })),
        },
        agent: Agent::Answers(Box::new(status)),
        agents: vec![AgentProcess {
            pid: 77,
            device: Some(device.to_string()),
        }],
        processes: Vec::new(),
        hidden: Vec::new(),
    };
    Facts {
        device,
        version,
        node: Some(node),
        library: Some(Library {
            path: Some("/usr/local/lib/libtidegate.so".into()),
            needs: Ok(Needs {
                glibc: Some((2, 28)),
                libraries: vec!["libc.so.6".to_owned()],
            }),
        }),
    }
}

/// The answer of its agent.
pub(crate) fn status(node: &mut Node) -> &mut v1::GetStatusResponse {
    match &mut node.agent {
        Agent::Answers(status) => status,
        _ => panic!("no agent answers"),
    }
}

/// Its agent has ended cleanly.
pub(crate) fn without_agent(node: &mut Node) {
    node.agent = Agent::Absent;
    node.agents.clear();
    node.run_dir.holder_lives = false;
}

#[track_caller]
fn judged(device: Device, id: &str, change: impl FnOnce(&mut Node)) -> (Outcome, String) {
    let mut facts = facts(device);
    change(facts.node.as_mut().expect("a node"));
    let checks = judge(&facts);
    let ids: Vec<_> = checks.iter().map(|check| check.id).collect();
    assert_eq!(ids, CHECKS.map(|(id, _)| id), "every check, in its order");
    let check = checks.into_iter().find(|check| check.id == id);
    let Check {
        outcome,
        evidence,
        remedy,
        ..
    } = check.expect("the check exists");
    // Whatever is wrong says what to do.
    let is_bad = matches!(outcome, Outcome::Warn | Outcome::Fail);
    assert!(!is_bad || remedy.is_some(), "{id}: {evidence}");
    (
        outcome,
        format!("{evidence} > {}", remedy.unwrap_or_default()),
    )
}

/// How check `id` comes out once `change` was made to the healthy node, with evidence and remedy.
#[track_caller]
pub(crate) fn outcome(id: &str, change: impl FnOnce(&mut Node)) -> (Outcome, String) {
    judged(Device::Real, id, change)
}

/// As [`outcome`], on a virtual GPU.
#[track_caller]
pub(crate) fn outcome_virtual(id: &str, change: impl FnOnce(&mut Node)) -> (Outcome, String) {
    judged(Device::Virtual("/tmp/gpu".into()), id, change)
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn a_healthy_node_has_nothing_to_do() {
    for device in [Device::Real, Device::Virtual("/tmp/gpu".into())] {
        let checks = judge(&facts(device));
        let bad: Vec<_> = checks
            .iter()
            .filter(|check| check.outcome > Outcome::Pass)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(exit_code(&checks), 0);
    }
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn the_worst_check_makes_the_exit_code() {
    let mut facts = facts(Device::Real);
    facts.node.as_mut().expect("a node").system.futex_waitv = false;
    assert_eq!(exit_code(&judge(&facts)), 1);
    facts.node.as_mut().expect("a node").agent = Agent::Absent;
    assert_eq!(exit_code(&judge(&facts)), 2);
    facts.node = None;
    assert_eq!(
        exit_code(&judge(&facts)),
        0,
        "only the library was asked for"
    );
}
