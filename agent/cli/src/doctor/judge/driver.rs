//! Driver and GPUs.

use super::view::{View, count};
use crate::doctor::check::Check;
use crate::doctor::facts::Found;
use tidegate_abi::rm::Layout;
use tidegate_agent::channels::level::{self, Choice};
use tidegate_agent::config::Level;
use tidegate_driver_patch::{State, branches};
use tidegate_proto::v1;

const VIRTUAL: &str = "a virtual GPU has no kernel module";
const NO_DRIVER: &str = "no driver answers";

fn is_there(view: &View<'_>) -> bool {
    let files = &view.driver().files;
    files.iter().any(|(name, _)| name == "nvidiactl")
}

pub(super) fn checks(view: &View<'_>) -> Vec<Check> {
    vec![
        files(view),
        version(view),
        module(view),
        gsp(view),
        patch(view),
        mig(view),
        mps(view),
        vgpu_guest(view),
        confidential(view),
        level(view),
    ]
}

fn files(view: &View<'_>) -> Check {
    const ID: &str = "device-files";
    let files = &view.driver().files;
    if !is_there(view) {
        let missing = Check::fail(ID, "there is no /dev/nvidiactl: no driver is loaded here");
        return missing.remedy(if view.is_virtual() {
            "start vgpud in the device's directory"
        } else {
            "load NVIDIA's driver, or look at a virtual GPU: --device virtual=DIR"
        });
    }
    let refused: Vec<String> = files
        .iter()
        .filter_map(|(name, access)| Some(format!("/dev/{name}: {}", access.as_ref().err()?)))
        .collect();
    if refused.is_empty() {
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        Check::pass(ID, names.join(", "))
    } else {
        Check::fail(ID, refused.join("; "))
            .remedy("run as root, or as a user who may open /dev/nvidia*")
    }
}

fn version(view: &View<'_>) -> Check {
    const ID: &str = "driver-version";
    if !is_there(view) {
        return Check::skip(ID, NO_DRIVER);
    }
    let answer = match &view.driver().answer {
        Ok(answer) => answer,
        Err(why) => {
            return Check::fail(ID, why).remedy(
                "look for Xid lines in the kernel log: a driver that hangs holds every caller",
            );
        }
    };
    let version = &answer.version;
    let found = format!("{version}, {}", count(answer.gpus, "GPU"));
    let note = level::version_note(version);
    let library = view.driver().library.as_deref();
    if let Some(wrong) = level::half_upgraded(version, library) {
        return Check::fail(ID, wrong).remedy(
            "reboot, or load the module again: CUDA does not start until both are one version",
        );
    }
    if !answer.hidden.is_empty() {
        let hidden = answer.hidden.join("; ");
        Check::warn(ID, format!("{found}; cannot be used from here: {hidden}")).remedy(
            "give the agent every GPU that is to be shared, and reset one that is lost: it manages nothing on the others",
        )
    } else if note.is_empty() {
        Check::pass(ID, found)
    } else if Layout::of_version(version).is_some() {
        Check::warn(ID, format!("{found}; {note}"))
            .remedy("none, if channel-level is well: each agent tries the control before it serves")
    } else {
        Check::warn(ID, format!("{found}; {note}")).remedy(
            "look at the driver's installation; until then launches are gated, not channels",
        )
    }
}

fn module(view: &View<'_>) -> Check {
    const ID: &str = "driver-module";
    if view.is_virtual() {
        return Check::skip(ID, VIRTUAL);
    }
    match &view.driver().loaded {
        None => Check::skip(ID, "no module named nvidia is loaded here"),
        Some(module) if module.banner.contains("Open Kernel Module") => {
            Check::pass(ID, format!("open, {}", module.version))
        }
        Some(module) => Check::warn(
            ID,
            format!("closed, {}: what its locks do is not known", module.version),
        )
        .remedy("install the open kernel modules (Turing GPUs and newer)"),
    }
}

fn gsp(view: &View<'_>) -> Check {
    const ID: &str = "gsp";
    let firmware = &view.driver().firmware;
    if view.is_virtual() {
        return Check::skip(ID, VIRTUAL);
    }
    let without: Vec<&str> = firmware
        .iter()
        .filter(|(_, version)| version == "N/A" || version.is_empty())
        .map(|(gpu, _)| gpu.as_str())
        .collect();
    if firmware.is_empty() {
        Check::skip(ID, "/proc/driver/nvidia/gpus says nothing")
    } else if without.is_empty() {
        Check::pass(ID, format!("firmware {}", firmware[0].1))
    } else {
        Check::warn(
            ID,
            format!(
                "no firmware runs on {}: its channels cannot be controlled",
                without.join(", ")
            ),
        )
        .remedy("load nvidia with NVreg_EnableGpuFirmware=1")
    }
}

/// For so long online's group keeps a GPU on which another was made to yield, us: what CUDA asks for, on an H200.
const TIMESLICE_US: u64 = 2_048;

fn patch(view: &View<'_>) -> Check {
    const ID: &str = "driver-patch";
    if view.is_virtual() {
        return Check::skip(ID, VIRTUAL);
    }
    let Some((_, gpus)) = view.answer() else {
        return Check::skip(ID, NO_DRIVER);
    };
    if gpus < 2 {
        return Check::pass(ID, "not needed: it would change nothing with one GPU");
    }
    let (path, file) = match &view.driver().file {
        Ok((path, file)) => (path, file),
        Err(why) => return Check::skip(ID, why),
    };
    let built = file.version.as_deref().unwrap_or_default();
    let loaded = view.driver().loaded.as_ref();
    let is_loaded = loaded.is_none_or(|loaded| {
        loaded.version == built
            && match (&loaded.build_id, &file.build_id) {
                (Some(loaded), Some(file)) => loaded == file,
                _ => true,
            }
    });
    if !is_loaded {
        return Check::warn(
            ID,
            format!("{} is not the module that is loaded", path.display()),
        )
        .remedy("load it again, or reboot: which flags are in force is not known");
    }
    let state = branches::of_version(built).map_or(State::Other, |branch| branch.state(file.flags));
    match state {
        State::Unpatched => {
            let status = view.node.agent.status();
            let calls = status.map_or(&[][..], |status| &status.gpus);
            let calls = calls.iter().filter_map(|gpu| gpu.stop.as_ref()?.call_us);
            let row: u64 = calls.sum();
            let took = format!(", {:.1} ms by the self-test", row as f64 / 1e3);
            let took = if row == 0 { "" } else { &took };
            let first =
                "channel.method = \"preempt+disable\" if each GPU has a process of its own, else ";
            let first = if row > TIMESLICE_US { "" } else { first };
            let gpus = count(gpus, "GPU");
            let text = format!("not patched: the disables of {gpus} wait for each other{took}");
            Check::pass(ID, text).remedy(format!(
                "optional: {first}the patch; driver-patch/README.md"
            ))
        }
        State::Patched(_) => Check::pass(ID, state.to_string()),
        State::Other => Check::warn(
            ID,
            format!(
                "{}: flags {:#x} are neither the driver's nor the patch's",
                path.display(),
                file.flags
            ),
        )
        .remedy("build the modules again from NVIDIA's sources"),
    }
}

/// What rules the channel levels out, of one kind: as the agent says, else as the driver does.
fn obstacle(view: &View<'_>, id: &'static str, kind: &str, none: &str, remedy: &str) -> Check {
    let found: Vec<String> = match (view.node.agent.status(), &view.driver().obstacles) {
        (Some(status), _) => {
            let of_kind = status.obstacles.iter().filter(|found| found.kind == kind);
            of_kind.map(|found| found.text.clone()).collect()
        }
        (None, Some(Ok(found))) => {
            let of_kind = found.iter().filter(|found| found.kind() == kind);
            of_kind.map(ToString::to_string).collect()
        }
        (None, Some(Err(why))) => return Check::skip(id, why),
        (None, None) => return Check::skip(id, NO_DRIVER),
    };
    if found.is_empty() {
        Check::pass(id, none)
    } else {
        Check::warn(id, found.join("; ")).remedy(remedy)
    }
}

fn mig(view: &View<'_>) -> Check {
    let remedy = "nvidia-smi -mig 0 on the GPUs that are to be shared, then reset them";
    obstacle(view, "mig", "mig", "no GPU is split into instances", remedy)
}

fn mps(view: &View<'_>) -> Check {
    let remedy = "start offline programs with CUDA_MPS_PIPE_DIRECTORY set to an empty directory, or stop MPS: \
                  echo quit | nvidia-cuda-mps-control";
    let left_over = view.driver().mps_left_over.as_ref();
    let none = left_over.map_or_else(
        || "no MPS server".to_owned(),
        |left_over| format!("no MPS server; {left_over}"),
    );
    obstacle(view, "mps", "mps", &none, remedy)
}

fn vgpu_guest(view: &View<'_>) -> Check {
    let remedy = "launches are gated instead; share GPUs on the host, or pass a whole one through";
    obstacle(view, "vgpu-guest", "vgpu_guest", "no GPU is a vGPU", remedy)
}

fn confidential(view: &View<'_>) -> Check {
    let id = "confidential-computing";
    let remedy = "launches are gated instead; turn it off where GPUs are to be shared";
    obstacle(view, id, "confidential_computing", "off", remedy)
}

fn level(view: &View<'_>) -> Check {
    match (view.node.agent.status(), &view.driver().level) {
        (Some(status), _) => {
            let seen = status.self_test.as_ref().and_then(|test| {
                let of_level = test.levels.iter().find(|tried| tried.level == status.level);
                of_level.map(|tried| format!(", {} ({})", tried.outcome, test.summary))
            });
            let text = format!(
                "the agent uses {}{}{}",
                named(status.level()),
                stopped_by(status),
                seen.unwrap_or_default()
            );
            let notes = [&status.level_note, &status.method_note];
            let notes: Vec<&str> = notes
                .into_iter()
                .map(String::as_str)
                .filter(|note| !note.is_empty())
                .collect();
            let check = reached(status.level(), &text, &notes.join("; "));
            if status.method_at_kernel_end && status.level() != v1::ChannelLevel::L5LaunchGate {
                return Check::warn("channel-level", check.evidence).remedy(
                    "offline stops at the end of the kernel that runs, not within it; see the reason above",
                );
            }
            check
        }
        (None, Some(tried)) => tried_level(tried),
        (None, None) => Check::skip("channel-level", NO_DRIVER),
    }
}

/// `, by ` the method in force, if channels are stopped at all.
fn stopped_by(status: &v1::GetStatusResponse) -> String {
    let method = tidegate_agent::wire::method_said(status.method());
    method.map_or_else(String::new, |method| format!(", by {method}"))
}

fn tried_level(tried: &Found<Choice>) -> Check {
    match tried {
        Ok(choice) => {
            let level = match choice.level {
                Level::L1 => v1::ChannelLevel::L1Agent,
                Level::L2 => v1::ChannelLevel::L2OwnerFile,
                Level::L3 => v1::ChannelLevel::L3Interposer,
                Level::L5 => v1::ChannelLevel::L5LaunchGate,
            };
            let text = format!("an agent would use {}, by its calls alone", named(level));
            reached(level, &text, &choice.note)
        }
        Err(why) => Check::fail("channel-level", why)
            .remedy("set channel.level = \"auto\", or see what the driver says"),
    }
}

const fn named(level: v1::ChannelLevel) -> &'static str {
    match level {
        v1::ChannelLevel::L1Agent => "L1, its own client",
        v1::ChannelLevel::L2OwnerFile => "L2, the owner's file",
        v1::ChannelLevel::L3Interposer => "L3, the process itself",
        v1::ChannelLevel::L4Timeslice => "L4, timeslices",
        v1::ChannelLevel::L5LaunchGate => "L5, launches wait",
        v1::ChannelLevel::Unspecified => "a level this program does not know",
    }
}

fn reached(level: v1::ChannelLevel, text: &str, note: &str) -> Check {
    const ID: &str = "channel-level";
    let text = if note.is_empty() {
        text.to_owned()
    } else {
        format!("{text}; {note}")
    };
    match level {
        v1::ChannelLevel::L1Agent | v1::ChannelLevel::L2OwnerFile => Check::pass(ID, text),
        v1::ChannelLevel::L3Interposer => Check::warn(ID, text)
            .remedy("keep offline processes off throttled CPUs: each stops its own channels"),
        _ => Check::warn(ID, text).remedy(
            "offline stops at the next kernel or graph, not within it; see the reason above",
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::doctor::Outcome::{Fail, Pass, Skip, Warn};
    use crate::doctor::facts::Node;
    use crate::doctor::judge::healthy::{self, outcome, outcome_virtual};
    use tidegate_agent::channels::level::{Choice, Stop};
    use tidegate_agent::channels::obstacle::Obstacle;
    use tidegate_agent::config::Level;
    use tidegate_proto::v1::{self, ChannelLevel, LevelTest, SelfTest};

    #[test]
    fn a_machine_without_a_driver_is_told_so_once() {
        let none = |node: &mut Node| {
            healthy::without_agent(node);
            node.driver.files.clear();
            node.driver.answer = Err("there is no driver".to_owned());
            node.driver.loaded = None;
            node.driver.firmware.clear();
            node.driver.obstacles = None;
            node.driver.level = None;
        };
        assert_eq!(outcome("device-files", none).0, Fail);
        for id in [
            "driver-version",
            "driver-module",
            "gsp",
            "driver-patch",
            "mig",
            "mps",
            "vgpu-guest",
            "confidential-computing",
            "channel-level",
        ] {
            assert_eq!(outcome(id, none).0, Skip, "{id}");
        }
        let (result, text) = outcome("driver-version", |node| {
            node.driver.answer = Err("the driver gives no answer in 5 s".to_owned());
        });
        assert_eq!(result, Fail);
        assert!(text.contains("Xid"), "{text}");
    }

    #[test]
    fn a_device_file_that_does_not_open_is_named() {
        let (result, text) = outcome("device-files", |node| {
            node.driver.files[1].1 = Err("Permission denied".to_owned());
        });
        assert_eq!(result, Fail);
        assert!(text.contains("/dev/nvidia0: Permission denied"), "{text}");
    }

    #[test]
    fn versions_are_held_against_the_tested_table() {
        let with = |version: &str| {
            outcome("driver-version", |node| {
                node.driver.answer.as_mut().expect("it answers").version = version.to_owned();
                node.driver.library = Some(version.to_owned());
            })
        };
        assert_eq!(with("580.95.05").0, Pass);
        let (result, text) = with("580.159.04");
        assert_eq!(result, Warn);
        assert!(text.contains("not a version that was tested"), "{text}");
        assert!(text.contains("tries the control"), "{text}");
        let (result, text) = with("615.71.09");
        assert_eq!(result, Warn);
        assert!(text.contains("unknown branch"), "{text}");
        assert!(text.contains("tries the control"), "{text}");
        let (result, text) = with("nightly");
        assert_eq!(result, Warn);
        assert!(text.contains("which is none"), "{text}");
        assert!(text.contains("launches are gated"), "{text}");
    }

    #[test]
    fn a_driver_that_is_half_upgraded_is_named_with_both_versions() {
        let (result, text) = outcome("driver-version", |node| {
            node.driver.library = Some("580.105.08".to_owned());
        });
        assert_eq!(result, Fail);
        assert!(
            text.contains("580.95.05") && text.contains("580.105.08"),
            "{text}"
        );
        let (result, _) = outcome("driver-version", |node| node.driver.library = None);
        assert_eq!(result, Pass, "a node without CUDA programs of its own");
    }

    #[test]
    fn gpus_of_the_machine_that_are_not_seen_are_named() {
        let (result, text) = outcome("driver-version", |node| {
            let answer = node.driver.answer.as_mut().expect("it answers");
            answer.hidden = vec!["/dev/nvidia1: Operation not permitted".to_owned()];
        });
        assert_eq!(result, Warn);
        assert!(text.contains("/dev/nvidia1: Operation not"), "{text}");
    }

    #[test]
    fn the_closed_module_and_a_gpu_without_firmware_are_warned_of() {
        let (result, text) = outcome("driver-module", |node| {
            let module = node.driver.loaded.as_mut().expect("loaded");
            module.banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05".to_owned();
        });
        assert_eq!(result, Warn);
        assert!(text.contains("closed"), "{text}");
        let (result, text) = outcome("gsp", |node| {
            node.driver.firmware[1].1 = "N/A".to_owned();
        });
        assert_eq!(result, Warn);
        assert!(text.contains("0000:02:00.0"), "{text}");
    }

    #[test]
    fn the_patch_is_read_from_the_module_that_is_loaded() {
        let flags = |flags: u32| {
            outcome("driver-patch", |node| {
                node.driver.file.as_mut().expect("a file").1.flags = flags;
            })
        };
        let (result, text) = flags(0x10108);
        assert_eq!(result, Pass);
        assert!(
            text.contains("not patched: the disables of 2 GPUs"),
            "{text}"
        );
        assert!(text.contains("optional"), "{text}");
        for (call_us, remedy) in [(700, "preempt+disable"), (1_100, "optional: the patch")] {
            let (_, text) = outcome("driver-patch", |node| {
                let mut gpu = v1::GpuStatus::default();
                gpu.stop.get_or_insert_default().call_us = Some(call_us);
                healthy::status(node).gpus = vec![gpu.clone(), gpu];
                node.driver.file.as_mut().expect("a file").1.flags = 0x10108;
            });
            let together = format!("{:.1} ms", call_us as f64 / 500.0);
            assert!(text.contains(&together) && text.contains(remedy), "{text}");
        }
        assert!(flags(0x10118).1.contains("patched, variant B"));
        assert_eq!(flags(0x10118).0, Pass);
        assert_eq!(flags(0x10109).0, Warn);

        let (result, text) = outcome("driver-patch", |node| {
            node.driver.file.as_mut().expect("a file").1.build_id = Some(vec![9]);
        });
        assert_eq!(result, Warn);
        assert!(text.contains("not the module that is loaded"), "{text}");
        let (result, _) = outcome("driver-patch", |node| {
            node.driver.file = Err("modinfo is not installed".to_owned());
        });
        assert_eq!(result, Skip);
        let (result, text) = outcome("driver-patch", |node| {
            node.driver.answer.as_mut().expect("it answers").gpus = 1;
        });
        assert_eq!(result, Pass);
        assert!(text.contains("not needed"), "{text}");
    }

    #[test]
    fn what_rules_the_channel_levels_out_is_the_agents_word_or_the_drivers() {
        let all = [
            ("mig", Obstacle::Mig(1), "GPU 1"),
            ("mps", Obstacle::Mps(7), "process 7"),
            ("vgpu-guest", Obstacle::VgpuGuest(1), "GPU 1 is a vGPU"),
            (
                "confidential-computing",
                Obstacle::ConfidentialComputing,
                "key rotation",
            ),
        ];
        for (id, found, named) in all {
            let told = |node: &mut Node| {
                healthy::status(node).obstacles.push(v1::Obstacle {
                    kind: found.kind().to_owned(),
                    text: found.to_string(),
                    ..v1::Obstacle::default()
                });
            };
            let asked = |answer| {
                |node: &mut Node| {
                    healthy::without_agent(node);
                    node.driver.obstacles = answer;
                }
            };
            for (result, text) in [
                outcome(id, told),
                outcome(id, asked(Some(Ok(vec![found.clone()])))),
            ] {
                assert_eq!(result, Warn, "{id}");
                assert!(text.contains(named), "{text}");
            }
            assert_eq!(outcome(id, asked(Some(Ok(Vec::new())))).0, Pass);
            let late = Some(Err("no answer".to_owned()));
            assert_eq!(outcome(id, asked(late)).0, Skip);
            assert_eq!(outcome(id, asked(None)).0, Skip);
        }
        let (result, text) = outcome("mps", |node| {
            node.driver.mps_left_over = Some("no server uses the pipe directory /x".to_owned());
        });
        assert_eq!(result, Pass);
        assert!(text.contains("no MPS server; no server uses"), "{text}");
        let (result, _) = outcome("mig", |node| {
            healthy::without_agent(node);
            node.driver.obstacles = Some(Ok(vec![Obstacle::Mps(7)]));
        });
        assert_eq!(result, Pass, "MPS is not MIG");
    }

    #[test]
    fn the_level_is_the_agents_or_what_the_self_test_reaches_with_its_reason() {
        for (level, want) in [
            (ChannelLevel::L1Agent, Pass),
            (ChannelLevel::L2OwnerFile, Pass),
            (ChannelLevel::L3Interposer, Warn),
            (ChannelLevel::L5LaunchGate, Warn),
        ] {
            let (result, text) = outcome("channel-level", |node| {
                let status = healthy::status(node);
                status.set_level(level);
                status.level_note = "L0: because".to_owned();
                let mut tried = LevelTest {
                    outcome: "proven".to_owned(),
                    ..LevelTest::default()
                };
                tried.set_level(level);
                status.self_test = Some(SelfTest {
                    summary: "in 8 ms".to_owned(),
                    levels: vec![tried],
                });
            });
            assert_eq!(result, want, "{level:?}");
            assert!(text.contains("proven (in 8 ms); L0: because"), "{text}");
        }
        let tried = |tried| {
            outcome("channel-level", |node| {
                healthy::without_agent(node);
                node.driver.level = Some(tried);
            })
        };
        let choice = |level| Choice {
            level,
            stop: Stop::default(),
            note: "foreign pairs are refused".to_owned(),
        };
        let (result, text) = tried(Ok(choice(Level::L2)));
        assert_eq!(result, Pass);
        assert!(text.contains("foreign pairs are refused"), "{text}");
        assert_eq!(tried(Ok(choice(Level::L5))).0, Warn);
        assert_eq!(tried(Err("no answer".to_owned())).0, Fail);
    }

    #[test]
    fn a_virtual_gpu_has_no_module_to_judge() {
        for id in ["driver-module", "gsp", "driver-patch"] {
            let (result, text) = outcome_virtual(id, |_| {});
            assert_eq!(result, Skip, "{id}");
            assert!(text.contains("virtual GPU"), "{text}");
        }
    }
}
