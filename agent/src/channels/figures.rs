//! What the driver says of each GPU for people, by clients of the agent's own that do nothing else.

use crate::rm::{Driver, Gpu, Subdevice};
use crate::watch::gauge::Figures;
use tidegate_abi::rm::Layout;

/// Reads the figures of every GPU that `driver` lists, in its order.
pub fn reader(driver: &Driver) -> impl FnMut() -> Vec<Figures> + Send + use<> {
    let layout = driver.layout;
    let mut gpus: Vec<(Gpu, Option<Open>)> =
        driver.gpus.iter().cloned().map(|gpu| (gpu, None)).collect();
    move || {
        let each = gpus.iter_mut();
        each.map(|(gpu, open)| {
            layout
                .and_then(|layout| read(gpu, open, layout))
                .unwrap_or_default()
        })
        .collect()
    }
}

/// A GPU that was opened, and what does not change of it.
struct Open {
    subdevice: Subdevice,
    model: String,
}

/// None: the driver does not answer; it is opened anew the next time.
fn read(gpu: &Gpu, open: &mut Option<Open>, layout: Layout) -> Option<Figures> {
    if open.is_none() {
        let subdevice = Subdevice::open(gpu).ok()?;
        let model = subdevice.model(layout).unwrap_or_default();
        *open = Some(Open { subdevice, model });
    }
    let known = open.as_ref()?;
    let model = known.model.clone();
    match known.subdevice.memory(layout) {
        Ok(memory) => Some(Figures {
            model,
            total: memory.total,
            used: memory.used,
        }),
        Err(error) => {
            tracing::debug!(%error, "a GPU's memory is not known");
            *open = None;
            None
        }
    }
}
