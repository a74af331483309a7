//! What trainings have done.

use super::{Grid, long, number};
use tidegate_proto::v1;

/// `120 of 1000`, or as far as it is known.
fn step(said: &v1::Training) -> String {
    match said.steps {
        0 => said.step.to_string(),
        steps => format!("{} of {steps}", said.step),
    }
}

fn loss(said: &v1::Training) -> String {
    said.loss
        .map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"))
}

fn adapter(said: &v1::Training) -> &str {
    match (&*said.served, &*said.adapter) {
        ("", "") => "-",
        ("", adapter) => adapter,
        (served, _) => served,
    }
}

/// A row for each job that trains; nothing where none does.
pub(super) fn status(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        long("TRAINS", 14),
        number("STEP"),
        number("LOSS"),
        number("TOKENS/S"),
        number("UNITS").spare(3),
        number("AGAIN").spare(2),
        number("RECLAIMS").spare(4),
        number("LAYERS").spare(1),
        long("ADAPTER", 14),
    ]);
    for job in &report.jobs {
        let Some((trainer, said)) = both(job) else {
            continue;
        };
        rows.add([
            job.name.clone(),
            step(said),
            loss(said),
            format!("{:.0}", trainer.tokens_per_s),
            said.units.to_string(),
            said.units_redone.to_string(),
            said.reclaims.to_string(),
            format!("{} of {}", said.resident_layers, said.layers),
            adapter(said).to_owned(),
        ]);
    }
    if !rows.is_empty() {
        text.push('\n');
        rows.show(width, text);
    }
}

fn both(job: &v1::JobStatus) -> Option<(&v1::TrainerStatus, &v1::Training)> {
    let trainer = job.trainer.as_ref()?;
    Some((trainer, trainer.said.as_ref()?))
}

/// The same in a line; none of a job that does not train.
pub fn line(job: &v1::JobStatus) -> Option<String> {
    let (trainer, said) = both(job)?;
    Some(format!(
        "step {}, loss {}, {:.0} tokens/s, {} of {} units again",
        step(said),
        loss(said),
        trainer.tokens_per_s,
        said.units_redone,
        said.units
    ))
}
