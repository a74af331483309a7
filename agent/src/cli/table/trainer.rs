//! What trainings have done.

use super::{append, right, table};
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
    let header = [
        "TRAINS", "STEP", "LOSS", "TOKENS/S", "UNITS", "AGAIN", "RECLAIMS", "LAYERS", "ADAPTER",
    ];
    let mut rows = table(&header, width);
    let mut any = false;
    for job in &report.jobs {
        let Some((trainer, said)) = both(job) else {
            continue;
        };
        any = true;
        rows.add_row([
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
    if any {
        right(&mut rows, &[1, 2, 3, 4, 5, 6, 7]);
        text.push('\n');
        append(text, &rows);
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
