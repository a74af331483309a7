//! Configuration, agent, and the agent's directory.

use super::view::{View, count};
use crate::doctor::check::Check;
use crate::doctor::facts::{Agent, Entry, RunDir};
use tidegate_agent::config::pool_of;
use tidegate_proto::{CONTROL_SOCKET, v1};

/// A gate that has been open this long has no channel left to enable.
const SETTLED_NS: u64 = 1_000_000_000;

pub(super) fn checks(view: &View<'_>) -> Vec<Check> {
    vec![
        configuration(view),
        pool(view),
        agent(view),
        second(view),
        directory(view),
        sockets(view),
        journal(view),
        stuck(view),
    ]
}

fn configuration(view: &View<'_>) -> Check {
    const ID: &str = "configuration";
    let (path, config) = &view.node.config;
    let path = path.display();
    match config {
        Err(why) => Check::fail(ID, why).remedy("the agent refuses to start with this file"),
        Ok(config)
            if config.identity.rules.is_empty() && config.identity.trust_env_uids.is_empty() =>
        {
            Check::warn(
                ID,
                format!("{path}: no rule says who is online and who is offline"),
            )
            .remedy(
                "add [[identity.rules]]: until then nobody is online, and only who says \
                 TIDEGATE_ROLE=offline is gated",
            )
        }
        Ok(config) if config.identity.rules.is_empty() => Check::pass(
            ID,
            format!(
                "{path}, {} trusted with their own word",
                count(config.identity.trust_env_uids.len(), "user")
            ),
        ),
        Ok(config) => Check::pass(
            ID,
            format!("{path}, {}", count(config.identity.rules.len(), "rule")),
        ),
    }
}

fn pool(view: &View<'_>) -> Check {
    const ID: &str = "memory-pool";
    let wanted = view
        .node
        .config
        .1
        .as_ref()
        .map_or(0, |config| config.memory.pool);
    let totals: Vec<u64> = match &view.node.agent {
        Agent::Answers(status) => {
            let gpus = status.gpus.iter();
            gpus.map(|gpu| gpu.memory_total_bytes).collect()
        }
        _ => Vec::new(),
    };
    match pool_of(wanted, &totals).1 {
        Some(text) => Check::warn(ID, text).remedy("change it in agent.toml and restart the agent"),
        None if wanted == 0 => Check::pass(ID, "no memory is shared: memory.pool is not set"),
        None if totals.iter().all(|total| *total == 0) => Check::pass(
            ID,
            "not compared with the GPUs: no agent says how much memory they have",
        ),
        None => Check::pass(ID, "each GPU has the memory that memory.pool names"),
    }
}

fn agent(view: &View<'_>) -> Check {
    const ID: &str = "agent";
    const RESTART: &str =
        "systemctl restart tidegate-agent; offline processes enable their channels meanwhile";
    let run_dir = &view.node.run_dir;
    let holder = run_dir.holder.as_ref().filter(|_| run_dir.holder_lives);
    match (&view.node.agent, holder) {
        (Agent::Answers(status), _) => Check::pass(
            ID,
            format!(
                "{}, pid {}, generation {}",
                status.version, status.pid, status.agent_generation
            ),
        ),
        (Agent::Silent(why), Some(holder)) => {
            Check::fail(ID, format!("pid {} does not answer: {why}", holder.pid)).remedy(RESTART)
        }
        (Agent::Silent(why), None) => Check::fail(ID, why).remedy(
            "systemd holds the sockets while the agent does not start: `systemctl status tidegate-agent` says why; \
             without root or group tidegate, ask who has them",
        ),
        (Agent::Absent, Some(holder)) => Check::fail(
            ID,
            format!(
                "pid {} holds {} and serves no socket",
                holder.pid,
                run_dir.path.display()
            ),
        )
        .remedy(RESTART),
        (Agent::Absent, None) => {
            Check::warn(ID, format!("none runs on {}", run_dir.path.display()))
                .remedy("systemctl start tidegate-agent")
        }
    }
}

fn second(view: &View<'_>) -> Check {
    const ID: &str = "second-agent";
    let device = view.facts.device.to_string();
    let own = match &view.node.agent {
        Agent::Answers(status) => Some(status.pid),
        _ => view.node.run_dir.holder.as_ref().map(|holder| holder.pid),
    };
    let others: Vec<String> = view
        .node
        .agents
        .iter()
        .filter(|agent| Some(agent.pid) != own)
        .filter(|agent| agent.device.as_ref().is_none_or(|other| *other == device))
        .map(|agent| agent.pid.to_string())
        .collect();
    if others.is_empty() {
        Check::pass(ID, "no other agent on this device")
    } else {
        let text = format!(
            "pid {} also drives this device, from another directory",
            others.join(", ")
        );
        Check::fail(ID, text).remedy("end all but one: each enables what the other disables")
    }
}

fn directory(view: &View<'_>) -> Check {
    const ID: &str = "run-directory";
    let run_dir = &view.node.run_dir;
    let path = run_dir.path.display();
    let entry = match &run_dir.entry {
        Ok(entry) => entry,
        Err(why) if view.agent_lives() => {
            return Check::fail(ID, why).remedy("restart the agent: it makes its directory anew");
        }
        Err(_) => return Check::skip(ID, format!("{path} is made by the agent")),
    };
    if entry.mode & 0o002 != 0 && entry.mode & 0o1000 == 0 {
        Check::fail(
            ID,
            format!("{path} is writable to all: anyone may take the sockets' names"),
        )
        .remedy(format!("chmod 755 {path}"))
    } else if run_dir.in_memory {
        Check::pass(ID, format!("{path}, in memory"))
    } else {
        Check::warn(
            ID,
            format!("{path} is on a disk: its journal would outlive a reboot, and channels do not"),
        )
        .remedy("put node.run_dir on a tmpfs, such as /run")
    }
}

/// Who may connect to `name`.
fn wanted_mode(name: &str) -> u32 {
    if name == CONTROL_SOCKET { 0o660 } else { 0o666 }
}

fn sockets(view: &View<'_>) -> Check {
    const ID: &str = "sockets";
    let run_dir = &view.node.run_dir;
    if !view.agent_lives() {
        return Check::skip(ID, "no agent serves them");
    }
    let mut wrong = Vec::new();
    for (name, entry) in &run_dir.sockets {
        match entry {
            Err(why) => wrong.push(format!("{name}: {why}")),
            Ok(entry) if entry.mode & 0o777 != wanted_mode(name) => wrong.push(format!(
                "{name} has mode {:03o}, expected {:03o}",
                entry.mode & 0o777,
                wanted_mode(name)
            )),
            Ok(_) => {}
        }
    }
    if !wrong.is_empty() {
        return Check::fail(ID, wrong.join("; "))
            .remedy("restart the agent: it makes its sockets anew");
    }
    match (run_dir.group, control_group(run_dir)) {
        (None, _) => Check::warn(
            ID,
            "there is no group tidegate: only root may pause and resume",
        )
        .remedy("groupadd --system tidegate, then restart the agent"),
        (Some(group), Some(found)) if found.gid != group && found.uid == 0 => Check::warn(
            ID,
            format!("{CONTROL_SOCKET} is of group {}, not tidegate", found.gid),
        )
        .remedy("restart the agent: it makes its sockets anew"),
        _ => Check::pass(ID, "hook and status for all, control for group tidegate"),
    }
}

fn control_group(run_dir: &RunDir) -> Option<Entry> {
    let control = run_dir
        .sockets
        .iter()
        .find(|(name, _)| *name == CONTROL_SOCKET);
    control.and_then(|(_, entry)| entry.as_ref().ok().copied())
}

fn journal(view: &View<'_>) -> Check {
    const ID: &str = "journal";
    match &view.node.run_dir.journal {
        Err(why) if why.contains("ermission denied") => {
            Check::skip(ID, "only the agent's user may read it")
        }
        Err(why) => Check::fail(ID, why).remedy(
            "start the agent: it sets the file aside, and enables every channel that may be disabled",
        ),
        _ if !view.node.run_dir.unreadable.is_empty() => {
            let aside = view.node.run_dir.unreadable.iter();
            let aside: Vec<_> = aside.map(|path| path.display().to_string()).collect();
            let text = format!("an agent could not read and has set aside {}", aside.join(", "));
            Check::warn(ID, text).remedy("remove it when you know what became of it")
        }
        Ok(None) => Check::pass(ID, "none: no agent has run here"),
        Ok(Some(journal)) => Check::pass(
            ID,
            format!(
                "generation {}, {} marked",
                journal.generation,
                count(journal.marked, "channel")
            ),
        ),
    }
}

fn stuck(view: &View<'_>) -> Check {
    const ID: &str = "stuck-channels";
    if let Some(status) = view.node.agent.status() {
        return stuck_beside(status);
    }
    let journal = match &view.node.run_dir.journal {
        Ok(journal) => journal.unwrap_or_default(),
        Err(_) => return Check::skip(ID, "the journal cannot be read"),
    };
    let marked = count(journal.marked, "channel");
    if journal.marked == 0 {
        Check::pass(ID, "nothing is marked as disabled")
    } else if journal.handing_over {
        Check::skip(ID, format!("{marked} change hands between two agents"))
    } else if view.agent_lives() {
        Check::fail(
            ID,
            format!("{marked} disabled by an agent that does not answer"),
        )
        .remedy("restart the agent: it enables everything first")
    } else {
        Check::fail(
            ID,
            format!("{marked} left disabled by an agent that is gone"),
        )
        .remedy("tidegate release")
    }
}

/// Beside an agent: an open gate with disabled channels, or a job that it lost control of.
fn stuck_beside(status: &v1::GetStatusResponse) -> Check {
    const ID: &str = "stuck-channels";
    let paused = |job: &&v1::JobStatus| job.state() == v1::JobState::Paused;
    let open: Vec<String> = status
        .gpus
        .iter()
        .filter(|gpu| {
            gpu.gate() == v1::GateState::Open
                && gpu.state_ns > SETTLED_NS
                && gpu.channels_disabled > 0
                && !status
                    .jobs
                    .iter()
                    .filter(paused)
                    .any(|job| job.gpus.contains(&gpu.index))
        })
        .map(|gpu| {
            format!(
                "GPU {}: {} of {}",
                gpu.index, gpu.channels_disabled, gpu.channels
            )
        })
        .collect();
    if !open.is_empty() {
        let text = format!("disabled under an open gate: {}", open.join("; "));
        return Check::fail(ID, text).remedy("restart the agent: it enables everything first");
    }
    let lost: Vec<String> = status
        .jobs
        .iter()
        .filter(|job| matches!(job.state(), v1::JobState::Unknown | v1::JobState::Unmanaged))
        .map(|job| format!("{}: {}", job.name, job.reason))
        .collect();
    if lost.is_empty() {
        match status.gpus.iter().map(|gpu| gpu.channels_disabled).sum() {
            0_u32 => Check::pass(ID, "no channel is disabled"),
            disabled => Check::pass(
                ID,
                format!("none stuck; {disabled} disabled by a closed gate"),
            ),
        }
    } else {
        Check::warn(ID, lost.join("; ")).remedy("see `tidegate events`; restart the job")
    }
}

#[cfg(test)]
mod tests {
    use crate::doctor::Outcome::{Fail, Pass, Skip, Warn};
    use crate::doctor::facts::{Agent, AgentProcess, Journal, Node};
    use crate::doctor::judge::healthy::{self, outcome};
    use tidegate_agent::config::Config;
    use tidegate_proto::v1;

    #[test]
    fn a_configuration_without_rules_manages_nobody() {
        let (result, text) = outcome("configuration", |node| {
            node.config.1 = Ok(Config::default());
        });
        assert_eq!(result, Warn);
        assert!(text.contains("[[identity.rules]]"), "{text}");
        let (result, text) = outcome("configuration", |node| {
            node.config.1 = Err("agent.toml:3: unknown key `gate.coldown`".to_owned());
        });
        assert_eq!(result, Fail);
        assert!(text.contains("agent.toml:3"), "{text}");
    }

    #[test]
    fn an_agent_is_absent_stuck_or_answers() {
        let silent = || Agent::Silent("no answer in 3 s".to_owned());
        let (result, text) = outcome("agent", |node| node.agent = silent());
        assert_eq!(result, Fail);
        assert!(text.contains("pid 77 does not answer"), "{text}");
        let (result, _) = outcome("agent", |node| {
            node.agent = silent();
            node.run_dir.holder_lives = false;
        });
        assert_eq!(result, Fail);
        let (result, text) = outcome("agent", |node| node.agent = Agent::Absent);
        assert_eq!(result, Fail);
        assert!(text.contains("serves no socket"), "{text}");
        let (result, text) = outcome("agent", healthy::without_agent);
        assert_eq!(result, Warn);
        assert!(text.contains("systemctl start"), "{text}");
    }

    #[test]
    fn another_agent_counts_when_it_drives_the_same_device() {
        let other = |device: Option<&str>| {
            let device = device.map(str::to_owned);
            outcome("second-agent", |node| {
                node.agents.push(AgentProcess { pid: 88, device });
            })
        };
        assert_eq!(other(Some("real")).0, Fail);
        assert!(other(Some("real")).1.contains("pid 88"));
        assert_eq!(other(None).0, Fail);
        assert_eq!(other(Some("virtual=/tmp/gpu")).0, Pass);
    }

    #[test]
    fn the_directory_is_in_memory_and_not_for_all_to_write() {
        let (result, text) = outcome("run-directory", |node| {
            node.run_dir.entry.as_mut().expect("there").mode = 0o777;
        });
        assert_eq!(result, Fail);
        assert!(text.contains("chmod 755 /run/tidegate"), "{text}");
        let sticky = |node: &mut Node| {
            node.run_dir.entry.as_mut().expect("there").mode = 0o1777;
        };
        assert_eq!(outcome("run-directory", sticky).0, Pass);
        let disk = |node: &mut Node| node.run_dir.in_memory = false;
        assert_eq!(outcome("run-directory", disk).0, Warn);
        let missing = |node: &mut Node| node.run_dir.entry = Err("not there".to_owned());
        assert_eq!(outcome("run-directory", missing).0, Fail);
        let before = |node: &mut Node| {
            healthy::without_agent(node);
            missing(node);
        };
        assert_eq!(outcome("run-directory", before).0, Skip);
    }

    #[test]
    fn a_socket_with_another_mode_or_group_is_named() {
        let (result, text) = outcome("sockets", |node| {
            node.run_dir.sockets[1].1.as_mut().expect("there").mode = 0o666;
        });
        assert_eq!(result, Fail);
        assert!(
            text.contains("control.sock has mode 666, expected 660"),
            "{text}"
        );
        let (result, text) = outcome("sockets", |node| {
            node.run_dir.sockets[0].1 = Err("it is not there".to_owned());
        });
        assert_eq!(result, Fail);
        assert!(text.contains("hook.sock: it is not there"), "{text}");
        let (result, text) = outcome("sockets", |node| node.run_dir.group = None);
        assert_eq!(result, Warn);
        assert!(text.contains("groupadd"), "{text}");
        let (result, _) = outcome("sockets", |node| node.run_dir.group = Some(5));
        assert_eq!(result, Warn);
        assert_eq!(outcome("sockets", healthy::without_agent).0, Skip);
    }

    #[test]
    fn channels_without_an_agent_are_stuck_unless_they_change_hands() {
        let left = |marked, handing_over| {
            move |node: &mut Node| {
                healthy::without_agent(node);
                node.run_dir.journal = Ok(Some(Journal {
                    generation: 3,
                    marked,
                    handing_over,
                }));
            }
        };
        let (result, text) = outcome("stuck-channels", left(3, false));
        assert_eq!(result, Fail);
        assert!(text.contains("3 channels left disabled"), "{text}");
        assert!(text.contains("tidegate release"), "{text}");
        assert_eq!(outcome("stuck-channels", left(3, true)).0, Skip);
        assert_eq!(outcome("stuck-channels", left(0, false)).0, Pass);
        let (result, text) = outcome("stuck-channels", |node| {
            left(1, false)(node);
            node.run_dir.holder_lives = true;
        });
        assert_eq!(result, Fail);
        assert!(text.contains("restart the agent"), "{text}");
        let unreadable = |why: &str| {
            let why = why.to_owned();
            move |node: &mut Node| {
                healthy::without_agent(node);
                node.run_dir.journal = Err(why);
            }
        };
        let denied = || unreadable("Permission denied (os error 13)");
        assert_eq!(outcome("stuck-channels", denied()).0, Skip);
        assert_eq!(outcome("journal", denied()).0, Skip);
        assert_eq!(outcome("journal", unreadable("not a journal")).0, Fail);
        let (result, text) = outcome("journal", |node| {
            node.run_dir.unreadable = vec!["/run/tidegate/journal.unreadable-7".into()];
        });
        assert_eq!(result, Warn);
        assert!(text.contains("journal.unreadable-7"), "{text}");
    }

    #[test]
    fn an_open_gate_has_no_disabled_channels_unless_somebody_paused_the_job() {
        fn open(node: &mut Node) {
            let gpu = &mut healthy::status(node).gpus[0];
            gpu.set_gate(v1::GateState::Open);
            gpu.state_ns = 2_000_000_000;
            gpu.channels = 8;
            gpu.channels_disabled = 2;
        }
        let (result, text) = outcome("stuck-channels", open);
        assert_eq!(result, Fail);
        assert!(text.contains("GPU 0: 2 of 8"), "{text}");
        let job = |state| {
            move |node: &mut Node| {
                let mut job = v1::JobStatus {
                    name: "batch".to_owned(),
                    reason: "because".to_owned(),
                    gpus: vec![0],
                    ..v1::JobStatus::default()
                };
                job.set_state(state);
                healthy::status(node).jobs.push(job);
            }
        };
        let (result, _) = outcome("stuck-channels", |node| {
            open(node);
            job(v1::JobState::Paused)(node);
        });
        assert_eq!(result, Pass);
        let (result, _) = outcome("stuck-channels", |node| {
            open(node);
            healthy::status(node).gpus[0].state_ns = 1_000_000;
        });
        assert_eq!(result, Pass, "the enable may be on its way");
        let (result, text) = outcome("stuck-channels", job(v1::JobState::Unmanaged));
        assert_eq!(result, Warn);
        assert!(text.contains("batch: because"), "{text}");
    }
}
