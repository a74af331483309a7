//! Driver and GPUs. Whatever speaks to the driver does so with a deadline.

use super::ask::{line, patiently};
use crate::doctor::facts::{Answer, Driver, Found, LoadedModule};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tidegate_agent::channels::level;
use tidegate_agent::channels::obstacle::{self, Mps, Obstacle};
use tidegate_agent::config::{LevelChoice, MethodChoice};
use tidegate_agent::selftest;
use tidegate_driver::causes::with_causes;
use tidegate_driver::device::Device;
use tidegate_driver::rm;
use tidegate_driver_patch::module::{self, Module};

/// `tries`: the choice of level to try on throw-away channels.
pub(super) fn collect(device: &Device, tries: Option<LevelChoice>) -> Driver {
    let names = match device {
        Device::Real => Path::new("/dev"),
        Device::Virtual(dir) => dir,
    };
    let files = files(names);
    let is_there = files.iter().any(|(name, _)| name == "nvidiactl");
    let answers = if is_there {
        ask(device, tries)
    } else {
        Answers {
            version: Err("there is no driver to ask".to_owned()),
            obstacles: None,
            level: None,
        }
    };
    let is_real = *device == Device::Real;
    let proc = Path::new("/proc/driver/nvidia");
    Driver {
        files,
        answer: answers.version,
        obstacles: answers.obstacles,
        mps_left_over: Mps::of(device).left_over(),
        level: answers.level,
        loaded: is_real.then(loaded).flatten(),
        library: device.library_version(),
        file: if is_real {
            file()
        } else {
            Err("a virtual GPU has none".to_owned())
        },
        firmware: if is_real {
            firmware(&proc.join("gpus"))
        } else {
            Vec::new()
        },
    }
}

/// The device files, by the names in `dir`. They are opened by their usual paths, where a virtual
/// GPU's shim answers too.
fn files(dir: &Path) -> Vec<(String, Found<()>)> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .filter(|name| is_device(name))
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    let open = |name: String| {
        let opened = patiently({
            let path = format!("/dev/{name}");
            move || {
                let file = fs::File::options().read(true).write(true).open(path);
                file.map(drop).map_err(|error| error.to_string())
            }
        });
        (name, opened.and_then(|opened| opened))
    };
    names.into_iter().map(open).collect()
}

fn is_device(name: &str) -> bool {
    match name.strip_prefix("nvidia") {
        Some("ctl" | "-uvm") => true,
        Some(number) => !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()),
        None => false,
    }
}

/// What the driver itself says.
struct Answers {
    version: Found<Answer>,
    obstacles: Option<Found<Vec<Obstacle>>>,
    level: Option<Found<level::Choice>>,
}

/// Asks who the driver is, and, with a choice of level, what an agent would ask of it.
fn ask(device: &Device, tries: Option<LevelChoice>) -> Answers {
    let nothing_else = |version| Answers {
        version,
        obstacles: None,
        level: None,
    };
    let driver = match patiently(rm::enumerate) {
        Ok(Ok(driver)) => Arc::new(driver),
        Ok(Err(error)) => {
            // What an agent would do here.
            let unlisted = rm::Driver::unlisted(&error);
            let chosen = |choice| level::choose(choice, &unlisted, |_| Ok(level::Stop::default()));
            return Answers {
                version: Err(unlisted.lacks.clone().unwrap_or_default()),
                obstacles: None,
                level: tries.map(|choice| chosen(choice).map_err(|error| with_causes(&error))),
            };
        }
        Err(late) => return nothing_else(Err(format!("the driver gives {late}"))),
    };
    let version = Ok(Answer {
        version: driver.version.clone(),
        gpus: driver.gpus.len(),
        hidden: driver.hidden.iter().map(ToString::to_string).collect(),
    });
    let Some(choice) = tries else {
        return nothing_else(version);
    };
    let mps = Mps::of(device);
    let obstacles = patiently({
        let driver = Arc::clone(&driver);
        move || obstacle::look(&driver, &mps)
    });
    let mut found = obstacles.iter().flatten();
    let first = found.find(|found| found.rules_levels_out());
    let forbidden = first.map(ToString::to_string);
    let tried = patiently(move || {
        level::choose(choice, &driver, |level| match &forbidden {
            Some(why) => Err(why.clone()),
            None => selftest::calls(&driver, level, MethodChoice::Auto).stop(),
        })
        .map_err(|error| with_causes(&error))
    });
    let level = tried
        .map_err(|late| format!("the self-test on throw-away channels gives {late}"))
        .and_then(|tried| tried);
    Answers {
        version,
        obstacles: Some(obstacles.map_err(|late| format!("the driver gives {late}"))),
        level: Some(level),
    }
}

fn loaded() -> Option<LoadedModule> {
    let version = line("/sys/module/nvidia/version")?;
    let notes = fs::read("/sys/module/nvidia/notes/.note.gnu.build-id").ok();
    Some(LoadedModule {
        version,
        banner: line("/proc/driver/nvidia/version").unwrap_or_default(),
        build_id: notes.as_deref().and_then(build_id),
    })
}

/// The bytes of a build id's ELF note: three words, "GNU\0", then they.
fn build_id(note: &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_ne_bytes(note.get(4..8)?.try_into().ok()?);
    let length = usize::try_from(length).ok()?;
    note.get(16..16 + length).map(<[u8]>::to_vec)
}

fn file() -> Found<(PathBuf, Module)> {
    let output = Command::new("modinfo")
        .args(["-n", "nvidia"])
        .output()
        .map_err(|error| format!("modinfo, which finds the module's file: {error}"))?;
    if !output.status.success() {
        return Err("modinfo finds no file of the module".to_owned());
    }
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    match module::read(&path) {
        Ok(module) => Ok((path, module)),
        Err(error) => Err(format!("{}: {}", path.display(), with_causes(&error))),
    }
}

/// GPU by PCI address, and the version of the firmware it runs ("N/A": none).
fn firmware(gpus: &Path) -> Vec<(String, String)> {
    let mut found: Vec<_> = fs::read_dir(gpus)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("GPU Firmware:"))?;
            let gpu = entry.file_name().to_string_lossy().into_owned();
            Some((gpu, line.trim().to_owned()))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_told_from_their_neighbours() {
        for name in ["nvidiactl", "nvidia0", "nvidia17", "nvidia-uvm"] {
            assert!(is_device(name), "{name}");
        }
        for name in [
            "nvidia",
            "nvidia-modeset",
            "nvidia-uvm-tools",
            "nvidia-caps",
            "null",
        ] {
            assert!(!is_device(name), "{name}");
        }
    }

    #[test]
    fn what_the_driver_writes_under_proc_is_read() {
        let dir = std::env::temp_dir().join(format!("tidegate-proc-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for (gpu, firmware) in [("0000:02:00.0", "N/A"), ("0000:01:00.0", "580.95.05")] {
            let gpu = dir.join("gpus").join(gpu);
            fs::create_dir_all(&gpu).expect("writable");
            let text = format!("Model: \t\t NVIDIA H200\nGPU Firmware: \t {firmware}\n");
            fs::write(gpu.join("information"), text).expect("writable");
        }
        let found = firmware(&dir.join("gpus"));
        assert_eq!(
            found[0],
            ("0000:01:00.0".to_owned(), "580.95.05".to_owned())
        );
        assert_eq!(found[1].1, "N/A");
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn a_build_id_is_taken_out_of_its_note() {
        let mut note = Vec::new();
        for word in [4_u32, 3, 3] {
            note.extend(word.to_ne_bytes());
        }
        note.extend(b"GNU\0\x0a\x0b\x0c\0");
        assert_eq!(build_id(&note), Some(vec![10, 11, 12]));
        assert_eq!(build_id(&note[..10]), None);
    }
}
