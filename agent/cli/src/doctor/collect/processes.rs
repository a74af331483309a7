//! Processes, as /proc shows them: agents, and those that use the GPUs.

use crate::doctor::facts::{AgentProcess, GpuProcess};
use std::fs;
use std::io;
use tidegate_agent::channels::obstacle;
use tidegate_agent::host::users::{AGENT, all, name, uses};
use tidegate_agent::standing::Standing;
use tidegate_driver::device::Device;

/// Strings that end with a zero, as in `cmdline` and `environ`.
fn strings(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes
        .split(|&byte| byte == 0)
        .filter(|text| !text.is_empty())
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect()
}

/// Whether `pid` is a living agent.
pub(super) fn is_agent(pid: i32) -> bool {
    // A zombie has no command line any more.
    name(pid) == AGENT && !strings(pid, "cmdline").is_empty()
}

/// Every agent of the node.
pub(super) fn agents() -> Vec<AgentProcess> {
    all()
        .filter(|&pid| is_agent(pid))
        .map(|pid| AgentProcess {
            pid,
            device: device_of(&strings(pid, "cmdline")),
        })
        .collect()
}

/// What a command line says of `--device`; its default where it says nothing.
fn device_of(command: &[String]) -> Option<String> {
    if command.is_empty() {
        return None;
    }
    let mut words = command.iter();
    while let Some(word) = words.next() {
        if word == "--device" {
            return words.next().cloned();
        }
        if let Some(device) = word.strip_prefix("--device=") {
            return Some(device.to_owned());
        }
    }
    Some(Device::Real.to_string())
}

/// Processes that use the GPUs of `device`, and those that may not be looked into: "name (pid)".
pub(super) fn on_gpus(device: &Device) -> (Vec<GpuProcess>, Vec<String>) {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut found = Vec::new();
    let mut hidden = Vec::new();
    for pid in all().filter(|&pid| pid != own) {
        match uses(pid, device) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // The kernel's own threads have no command line.
                if !strings(pid, "cmdline").is_empty() {
                    hidden.push(format!("{} ({pid})", name(pid)));
                }
            }
            Ok(true) if !matches!(name(pid).as_str(), AGENT | obstacle::MPS_PROCESS) => {
                let environment = strings(pid, "environ");
                let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
                let command = strings(pid, "cmdline");
                found.push(describe(pid, name(pid), &command, &environment, &maps));
            }
            // Ended meanwhile, or no concern of ours.
            Ok(_) | Err(_) => {}
        }
    }
    (found, hidden)
}

fn describe(
    pid: i32,
    name: String,
    command: &[String],
    environment: &[String],
    maps: &str,
) -> GpuProcess {
    let variable = |wanted: &str| {
        environment.iter().find_map(|entry| {
            let (name, value) = entry.split_once('=')?;
            (name == wanted).then(|| value.to_owned())
        })
    };
    let number = |wanted| variable(wanted).and_then(|value| value.parse().ok());
    let is_vllm = |word: &String| word.to_ascii_lowercase().contains("vllm");
    GpuProcess {
        pid,
        name,
        standing: Standing::of(maps),
        nccl: maps.contains("/libnccl"),
        vllm: command.iter().any(is_vllm),
        wished_role: variable("TIDEGATE_ROLE"),
        vllm_timeout_s: number("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        nccl_timeout_s: number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ranks: number("WORLD_SIZE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn an_agents_device_is_read_from_its_command_line() {
        let device = |line: &[&str]| device_of(&words(line));
        assert_eq!(device(&["tidegate-agent"]).as_deref(), Some("real"));
        assert_eq!(
            device(&["a", "--device", "virtual=/x"]).as_deref(),
            Some("virtual=/x")
        );
        assert_eq!(
            device(&["a", "--device=virtual=/x"]).as_deref(),
            Some("virtual=/x")
        );
        assert_eq!(device(&[]), None);
    }

    #[test]
    fn an_engine_is_known_by_its_command_line_and_its_libraries() {
        let environment = words(&[
            "TIDEGATE_ROLE=offline",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=900",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=soon",
            "WORLD_SIZE=2",
        ]);
        let maps = "7f00 r-xp 0 00:00 1 /usr/local/lib/libtidegate.so\n\
                    7f10 r-xp 0 00:00 2 /venv/nvidia/nccl/lib/libnccl.so.2\n";
        let process = describe(
            7,
            "VLLM::EngineCor".to_owned(),
            &words(&["VLLM::EngineCore"]),
            &environment,
            maps,
        );
        assert!(process.standing == Standing::With && process.nccl && process.vllm);
        assert_eq!(process.wished_role.as_deref(), Some("offline"));
        assert_eq!(process.vllm_timeout_s, Some(900));
        assert_eq!(process.nccl_timeout_s, None);
        assert_eq!(process.ranks, Some(2));
        let plain = describe(8, "sh".to_owned(), &words(&["sh", "-c", "true"]), &[], "");
        assert!(plain.standing == Standing::Without && !plain.nccl && !plain.vllm);
    }

    #[test]
    fn this_process_is_no_agent_and_uses_no_gpu() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(!is_agent(own));
        assert!(uses(own, &Device::Virtual("/nowhere".into())).is_ok_and(|uses| !uses));
        assert!(uses(own, &Device::Real).is_ok_and(|uses| !uses));
    }
}
