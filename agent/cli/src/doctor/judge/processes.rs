//! Processes that use the GPUs.

use super::view::{View, count, seconds};
use crate::doctor::check::Check;
use crate::doctor::facts::GpuProcess;
use std::time::Duration;
use tidegate_agent::config::LongGate;
use tidegate_agent::identity::clock;
use tidegate_agent::standing::Standing;
use tidegate_proto::v1;

/// vLLM ends an engine whose step takes longer, unless `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` says otherwise.
const VLLM_DEFAULT: Duration = Duration::from_secs(300);
/// PyTorch's monitor ends a process whose NCCL watchdog makes no progress for longer, unless
/// `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` says otherwise.
const NCCL_DEFAULT: Duration = Duration::from_secs(480);
/// PyTorch ends a program whose collective takes longer, unless the program passes another `timeout` to
/// `init_process_group`. No variable sets it, and nothing outside the program tells.
const GROUP_DEFAULT: Duration = Duration::from_secs(600);
/// How long a gate that nothing ends may be expected to stay closed.
const LONG_GATE: Duration = Duration::from_secs(3_600);
/// Processes that are named; more are counted.
const NAMED: usize = 4;

pub(super) fn checks(view: &View<'_>) -> Vec<Check> {
    vec![unmanaged(view), skew(view), timeouts(view)]
}

/// "python (12), python (13) and 2 more".
fn list(processes: &[String]) -> String {
    let named = processes
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match processes.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn named(process: &GpuProcess) -> String {
    format!("{} ({})", process.name, process.pid)
}

fn unmanaged(view: &View<'_>) -> Check {
    const ID: &str = "unmanaged-processes";
    let processes = &view.node.processes;
    let Some(status) = view.node.agent.status() else {
        let text = format!(
            "no agent to ask; {} on the GPUs",
            count(processes.len(), "process")
        );
        return Check::skip(ID, text);
    };
    let attached = |process: &&GpuProcess| {
        status
            .processes
            .iter()
            .any(|known| known.pid == process.pid)
    };
    let outside: Vec<&GpuProcess> = processes
        .iter()
        .filter(|process| !attached(process))
        .collect();
    let of = |standing: Standing| {
        let those = outside
            .iter()
            .filter(|process| process.standing == standing);
        those.map(|process| named(process)).collect::<Vec<_>>()
    };
    // The worst first.
    let worst = [
        (
            Standing::Without,
            "start them with LD_PRELOAD=libtidegate.so: their work is neither seen nor gated",
        ),
        (
            Standing::OtherNamespace,
            "a driver that is opened by dlmopen is neither seen nor gated: have the program open CUDA by dlopen",
        ),
        (
            Standing::With,
            "they attach at their next CUDA context or channel; is TIDEGATE_RUN_DIR theirs?",
        ),
    ]
    .map(|(standing, remedy)| (standing.text(), of(standing), remedy))
    .into_iter()
    .find(|(_, processes, _)| !processes.is_empty());
    let ignored: Vec<String> = status
        .processes
        .iter()
        .filter(|known| known.role() == v1::Role::Ignore)
        .map(|known| format!("{} ({}): {}", known.name, known.pid, known.rule))
        .collect();
    if let Some((standing, processes, remedy)) = worst {
        let text = format!("not attached, {standing}: {}", list(&processes));
        Check::warn(ID, text).remedy(remedy)
    } else if !ignored.is_empty() {
        let text = format!("ignored: {}", list(&ignored));
        Check::warn(ID, text).remedy("add a rule to [[identity.rules]] that matches them")
    } else {
        let attached = format!("{} attached", count(status.processes.len(), "process"));
        let hidden = &view.node.hidden;
        if hidden.is_empty() {
            Check::pass(ID, attached)
        } else {
            let others = count(hidden.len(), "other");
            let text = format!(
                "{attached}; {others} cannot be looked into: {}",
                list(hidden)
            );
            Check::skip(ID, text).remedy("run doctor as root with CAP_SYS_PTRACE")
        }
    }
}

fn skew(view: &View<'_>) -> Check {
    const ID: &str = "version-skew";
    let Some(status) = view.node.agent.status() else {
        return Check::skip(ID, "no agent to ask");
    };
    let own = view.facts.version;
    if status.version != own {
        let text = format!("the agent is {}, this program {own}", status.version);
        return Check::warn(ID, text)
            .remedy("restart the agent: tidegate-agent --replace keeps the gates");
    }
    let clockless = |refusal: &&v1::Refusal| refusal.what == clock::UNKNOWN;
    if let Some(v1::Refusal { who, what, .. }) = status.refusals.iter().find(clockless) {
        return Check::warn(ID, format!("a process of {who} is refused: {what}"))
            .remedy("restart the process with the agent's version of the library");
    }
    let old: Vec<String> = status
        .processes
        .iter()
        .filter(|process| process.library_version != own)
        .map(|process| {
            format!(
                "{} ({}) {}",
                process.name, process.pid, process.library_version
            )
        })
        .collect();
    if old.is_empty() {
        Check::pass(ID, format!("all {own}"))
    } else {
        let text = format!("agent {own}; libraries: {}", list(&old));
        Check::warn(ID, text)
            .remedy("peers of another age work; restart the processes when it suits")
    }
}

fn timeouts(view: &View<'_>) -> Check {
    const ID: &str = "engine-timeouts";
    let offline = view.offline();
    let engines: Vec<&&GpuProcess> = offline.iter().filter(|p| p.vllm || p.nccl).collect();
    if engines.is_empty() {
        return Check::skip(
            ID,
            "no offline engine runs; VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS and \
             TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC must outlast a gate",
        );
    }
    let gate = view.node.config.1.as_ref().map(|config| &config.gate);
    let longest = match gate {
        Ok(gate) if gate.long_gate == LongGate::Breathe => gate.max_gated,
        _ => LONG_GATE,
    };
    let mut short = Vec::new();
    let mut variables = Vec::new();
    let mut gangs = Vec::new();
    for process in engines {
        let or = |set: Option<u64>, default| set.map_or(default, Duration::from_secs);
        for (concerned, timeout, variable) in [
            (
                process.vllm,
                or(process.vllm_timeout_s, VLLM_DEFAULT),
                "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
            ),
            (
                process.nccl,
                or(process.nccl_timeout_s, NCCL_DEFAULT),
                "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            ),
        ] {
            if concerned && timeout <= longest {
                short.push(format!("{} after {} s", named(process), seconds(timeout)));
                if !variables.contains(&variable) {
                    variables.push(variable);
                }
            }
        }
        if process.nccl && process.ranks != Some(1) && GROUP_DEFAULT <= longest {
            gangs.push(named(process));
        }
    }
    if short.is_empty() && gangs.is_empty() {
        return Check::pass(ID, format!("all outlast a gate of {} s", seconds(longest)));
    }
    let mut ends = Vec::new();
    let mut remedies = Vec::new();
    if !short.is_empty() {
        ends.push(list(&short));
        let set = variables.join("=86400 ");
        remedies.push(format!("start them with {set}=86400"));
    }
    if !gangs.is_empty() {
        ends.push(format!(
            "{} after {} s if it has several ranks and PyTorch's default timeout of a process group, which no variable sets",
            list(&gangs),
            seconds(GROUP_DEFAULT)
        ));
        remedies.push(
            "pass timeout=timedelta(days=1) to torch.distributed.init_process_group".to_owned(),
        );
    }
    Check::warn(ID, format!("a gate ends {}", ends.join("; "))).remedy(format!(
        "{}; or set gate.long_gate = \"breathe\"",
        remedies.join(", and ")
    ))
}

#[cfg(test)]
mod tests {
    use crate::doctor::Outcome::{Pass, Skip, Warn};
    use crate::doctor::facts::{GpuProcess, Node};
    use crate::doctor::judge::healthy::{self, outcome};
    use tidegate_agent::config::LongGate;
    use tidegate_agent::standing::Standing;
    use tidegate_proto::v1;

    fn add(node: &mut Node, process: GpuProcess, role: Option<v1::Role>) {
        if let Some(role) = role {
            let mut known = v1::ProcessStatus {
                pid: process.pid,
                name: process.name.clone(),
                rule: "no rule matched".to_owned(),
                library_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..v1::ProcessStatus::default()
            };
            known.set_role(role);
            healthy::status(node).processes.push(known);
        }
        node.processes.push(process);
    }

    fn python(pid: i32) -> GpuProcess {
        GpuProcess {
            pid,
            name: "python".to_owned(),
            standing: Standing::With,
            ..GpuProcess::default()
        }
    }

    #[test]
    fn a_process_on_the_gpu_that_nobody_manages_is_named() {
        let (result, text) = outcome("unmanaged-processes", |node| {
            let process = GpuProcess {
                standing: Standing::Without,
                ..python(12)
            };
            add(node, process, None);
        });
        assert_eq!(result, Warn);
        assert!(text.contains("without the library: python (12)"), "{text}");
        let (result, text) = outcome("unmanaged-processes", |node| add(node, python(13), None));
        assert_eq!(result, Warn);
        assert!(text.contains("with the library: python (13)"), "{text}");
        let (result, text) = outcome("unmanaged-processes", |node| {
            let process = GpuProcess {
                standing: Standing::OtherNamespace,
                ..python(12)
            };
            add(node, process, None);
            add(node, python(13), None);
        });
        assert_eq!(result, Warn);
        assert!(text.contains("(dlmopen): python (12)"), "{text}");
        let ignored = Some(v1::Role::Ignore);
        let (result, text) = outcome("unmanaged-processes", |node| add(node, python(14), ignored));
        assert_eq!(result, Warn);
        assert!(text.contains("python (14): no rule matched"), "{text}");
        let offline = Some(v1::Role::Offline);
        let managed = outcome("unmanaged-processes", |node| add(node, python(15), offline));
        assert_eq!(managed.0, Pass);
        let (result, text) = outcome("unmanaged-processes", |node| {
            healthy::without_agent(node);
            add(node, python(16), None);
        });
        assert_eq!(result, Skip);
        assert!(text.contains("1 process on the GPUs"), "{text}");
        let (result, text) = outcome("unmanaged-processes", |node| {
            node.hidden = (1..=5).map(|pid| format!("sshd ({pid})")).collect();
        });
        assert_eq!(result, Skip);
        assert!(
            text.contains(
                "5 others cannot be looked into: sshd (1), sshd (2), sshd (3), sshd (4) and 1 more"
            ),
            "{text}"
        );
        let (_, text) = outcome("unmanaged-processes", |node| {
            for pid in 20..26 {
                add(node, python(pid), None);
            }
        });
        assert!(text.contains("python (23) and 2 more"), "{text}");
    }

    #[test]
    fn versions_that_differ_are_named() {
        let (result, text) = outcome("version-skew", |node| {
            healthy::status(node).version = "0.0.9".to_owned();
        });
        assert_eq!(result, Warn);
        assert!(text.contains("the agent is 0.0.9"), "{text}");
        let (result, text) = outcome("version-skew", |node| {
            add(node, python(12), Some(v1::Role::Online));
            healthy::status(node).processes[0].library_version = "0.0.8".to_owned();
        });
        assert_eq!(result, Warn);
        assert!(text.contains("python (12) 0.0.8"), "{text}");
        // P-LIFECYCLE-12: a process whose clock nobody knows is refused with a reason.
        let (result, text) = outcome("version-skew", |node| {
            healthy::status(node).refusals.push(v1::Refusal {
                who: "user 1000".to_owned(),
                what: tidegate_agent::identity::clock::UNKNOWN.to_owned(),
                ..v1::Refusal::default()
            });
        });
        assert_eq!(result, Warn);
        assert!(
            text.contains("user 1000") && text.contains("clock"),
            "{text}"
        );
        assert_eq!(outcome("version-skew", healthy::without_agent).0, Skip);
    }

    #[test]
    fn engines_that_would_die_of_a_long_gate_are_named_with_their_variable() {
        let engine = || GpuProcess {
            vllm: true,
            nccl: true,
            ..python(12)
        };
        let offline = Some(v1::Role::Offline);
        let (result, text) = outcome("engine-timeouts", |node| add(node, engine(), offline));
        assert_eq!(result, Warn);
        assert!(
            text.contains("python (12) after 300 s, python (12) after 480 s"),
            "{text}"
        );
        assert!(
            text.contains(
                "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=86400 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=86400"
            ),
            "{text}"
        );
        let raised = || GpuProcess {
            vllm_timeout_s: Some(86_400),
            nccl_timeout_s: Some(86_400),
            ..engine()
        };
        let (result, text) = outcome("engine-timeouts", |node| add(node, raised(), offline));
        assert_eq!(
            result, Warn,
            "no variable sets the timeout of a process group"
        );
        assert!(
            text.contains("a gate ends python (12) after 600 s"),
            "{text}"
        );
        assert!(text.contains("init_process_group"), "{text}");
        assert!(!text.contains("=86400"), "{text}");
        let one = outcome("engine-timeouts", |node| {
            let process = GpuProcess {
                ranks: Some(1),
                ..raised()
            };
            add(node, process, offline);
        });
        assert_eq!(one.0, Pass, "one rank waits for no other");
        let alone = outcome("engine-timeouts", |node| {
            let process = GpuProcess {
                nccl: false,
                nccl_timeout_s: None,
                ..raised()
            };
            add(node, process, offline);
        });
        assert_eq!(alone.0, Pass, "without NCCL there is no watchdog of NCCL");
        let breathing = outcome("engine-timeouts", |node| {
            let config = node.config.1.as_mut().expect("valid");
            config.gate.long_gate = LongGate::Breathe;
            add(node, engine(), offline);
        });
        assert_eq!(breathing.0, Pass, "300 s outlast max_gated");
        let online = Some(v1::Role::Online);
        assert_eq!(
            outcome("engine-timeouts", |node| add(node, engine(), online)).0,
            Skip
        );
        let by_its_word = outcome("engine-timeouts", |node| {
            healthy::without_agent(node);
            let process = GpuProcess {
                wished_role: Some("offline".to_owned()),
                ..engine()
            };
            add(node, process, None);
        });
        assert_eq!(by_its_word.0, Warn);
    }
}
