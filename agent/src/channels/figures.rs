//! What the driver says of each GPU for people, by clients of the agent's own that do nothing else.
//!
//! Where a driver of an unknown branch takes no size of the call that names a GPU, the name is what the kernel module
//! shows of it in /proc.

use crate::rm::{Driver, Gpu, Subdevice};
use crate::watch::gauge::Figures;
use std::path::Path;
use tidegate_abi::rm::Layout;
use tidegate_abi::uuid::Uuid;
use tidegate_driver::rm::Memory;

/// Where the kernel module shows its GPUs, a directory each.
const SHOWN: &str = "/proc/driver/nvidia/gpus";

/// Reads the figures of every GPU that `driver` lists, in its order.
pub fn reader(driver: &Driver) -> impl FnMut() -> Vec<Figures> + Send + use<> {
    let layout = driver.layout;
    let mut gpus: Vec<(Gpu, Option<Open>)> =
        driver.gpus.iter().cloned().map(|gpu| (gpu, None)).collect();
    move || {
        let each = gpus.iter_mut();
        each.map(|(gpu, open)| read(gpu, open, layout)).collect()
    }
}

/// A GPU that was opened, and what does not change of it.
struct Open {
    subdevice: Option<Subdevice>,
    model: String,
}

/// A driver that does not answer is opened anew the next time.
fn read(gpu: &Gpu, open: &mut Option<Open>, layout: Option<Layout>) -> Figures {
    let known = open.get_or_insert_with(|| {
        let subdevice = layout.and_then(|_| Subdevice::open(gpu).ok());
        let asked = subdevice.as_ref().zip(layout);
        let model = asked.and_then(|(own, layout)| own.model(layout).ok());
        let model = model.filter(|name| !name.is_empty());
        let shown = || shown(Path::new(SHOWN), gpu.uuid).unwrap_or_default();
        Open {
            model: model.unwrap_or_else(shown),
            subdevice,
        }
    });
    let model = known.model.clone();
    let asked = known.subdevice.as_ref().zip(layout);
    let memory = asked.map(|(own, layout)| own.memory(layout));
    let Some(Ok(Memory { total, used })) = memory else {
        if let Some(Err(error)) = memory {
            tracing::debug!(%error, "a GPU's memory is not known");
        }
        *open = None;
        return Figures {
            model,
            ..Figures::default()
        };
    };
    Figures { model, total, used }
}

/// The name of a GPU by the module's list of GPUs, if it is there.
fn shown(list: &Path, uuid: [u8; 16]) -> Option<String> {
    let uuid = Uuid(uuid).to_string();
    let entries = std::fs::read_dir(list).ok()?.flatten();
    entries.into_iter().find_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("information")).ok()?;
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find_map(|(found, value)| (found.trim() == key).then(|| value.trim().to_owned()))
        };
        (value("GPU UUID")? == uuid)
            .then(|| value("Model"))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_gpu_is_that_of_its_uuid() {
        let dir = std::env::temp_dir().join(format!("tidegate-shown-{}", std::process::id()));
        for (at, model) in [(1_u8, "NVIDIA A"), (2, "NVIDIA B")] {
            let gpu = dir.join(format!("0000:0{at}:00.0"));
            std::fs::create_dir_all(&gpu).expect("writable");
            let uuid = Uuid([at; 16]);
            let text = format!(
                "Model: \t\t {model}\nIRQ:   \t\t 7\nGPU UUID: \t {uuid}\nBus Location: 0000:0{at}:00.0\n"
            );
            std::fs::write(gpu.join("information"), text).expect("writable");
        }
        assert_eq!(shown(&dir, [2; 16]).as_deref(), Some("NVIDIA B"));
        assert_eq!(shown(&dir, [3; 16]), None);
        assert_eq!(shown(&dir.join("none"), [2; 16]), None);
    }
}
