//! Iteration times and handle costs from somebody's tables, instead of the fits that ship.
//!
//! A directory holds `iteration_prefill.csv` (`gpu`, `model`, `new_tokens`, `prior_context`,
//! `attention_ms`, `total_ms`) and `iteration_decode.csv` (`gpu`, `model`, `batch`,
//! `context_per_seq`, `attention_ms`, `total_ms`), and may hold `costs.csv` (`kind`, `item`, `value`,
//! `unit`), of which the rows `vmm` of the four calls in [`CALLS`] count. Other columns and other
//! rows of costs are somebody's notes. [`Cost`] says what becomes of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::costs::Costs;
use crate::hardware::{self, MODELS, Model};
use crate::input::{CORRECT, Columns, InputError, Lines};
use crate::iteration::{Cost, Point, Table, Tables, Work};
use crate::names::{UnknownName, find};
use crate::spec::Spec;

/// The files of a directory, with the names of their two coordinates.
const PREFILL: (&str, [&str; 2]) = ("iteration_prefill.csv", ["new_tokens", "prior_context"]);
const DECODE: (&str, [&str; 2]) = ("iteration_decode.csv", ["batch", "context_per_seq"]);
const COSTS: &str = "costs.csv";
/// Rows of one table; the largest that is known has 522.
const MAX_ROWS: usize = 100_000;

/// Driver calls on one handle of 2 MiB, as `costs.csv` names them.
pub const CALLS: [&str; 4] = [
    "cuMemCreate 2 MiB",
    "cuMemMap 2 MiB",
    "cuMemSetAccess 2 MiB",
    "cuMemUnmap 2 MiB",
];

/// GPU and model.
type Pair = (&'static str, &'static str);

/// What a directory holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    dir: PathBuf,
    tables: Vec<(Pair, Arc<Tables>)>,
    /// Microseconds, in the order of [`CALLS`].
    calls: Option<[f64; 4]>,
}

impl Calibration {
    /// Reads the tables in `dir`.
    ///
    /// # Errors
    /// When one is missing, or a line of one is not what the format says.
    pub fn load(dir: &Path) -> Result<Self, InputError> {
        let (prefill, decode) = (dir.join(PREFILL.0), dir.join(DECODE.0));
        let costs = dir.join(COSTS);
        let prefills = rows(Lines::open(&prefill)?, PREFILL.1)?;
        let mut decodes = rows(Lines::open(&decode)?, DECODE.1)?;
        let mut tables = Vec::new();
        for (pair, points) in prefills {
            let place = decodes.iter().position(|other| other.0 == pair);
            let place = place.ok_or_else(|| lacks(&decode, pair, PREFILL.0))?;
            let both = Tables {
                prefill: Table::of(&points, Work::Prompt),
                decode: Table::of(&decodes.swap_remove(place).1, Work::Decode),
            };
            tables.push((pair, Arc::new(both)));
        }
        if let Some((pair, _)) = decodes.first() {
            return Err(lacks(&prefill, *pair, DECODE.0));
        }
        let calls = costs
            .exists()
            .then(|| calls(Lines::open(&costs)?, &costs))
            .transpose()?;
        Ok(Self {
            dir: dir.to_owned(),
            tables,
            calls,
        })
    }

    /// The models of `spec` by these tables, where they have them.
    ///
    /// # Errors
    /// When they have neither.
    pub fn apply(&self, spec: &mut Spec) -> Result<(), UnknownName> {
        let gpu = spec.gpu.name;
        let named = |pair: Pair| format!("{} on {}", pair.1, pair.0);
        let mut found = false;
        let mut asked = Vec::new();
        for model in [&mut spec.online.model, &mut spec.offline.model] {
            asked.push(format!("{} on {gpu}", model.name));
            found |= self.measured(gpu, model);
        }
        asked.dedup();
        let unknown = UnknownName {
            what: "iteration time in the calibration for",
            given: asked.join(", "),
            known: self.tables.iter().map(|(pair, _)| named(*pair)).collect(),
        };
        if found { Ok(()) } else { Err(unknown) }
    }

    fn measured(&self, gpu: &str, model: &mut Model) -> bool {
        let found = self
            .tables
            .iter()
            .find(|(pair, _)| *pair == (gpu, model.name.as_str()));
        if let Some((_, tables)) = found {
            model.cost = Cost::Tables(Arc::clone(tables));
        }
        found.is_some()
    }

    /// `costs` with the driver calls that were loaded.
    #[must_use]
    pub fn costs(&self, costs: Costs) -> Costs {
        let Some(us) = self.calls else { return costs };
        let [create, map, access, unmap] = us.map(|us| Duration::from_secs_f64(us / 1e6));
        Costs {
            create_handle: create,
            map_handle: map + access,
            quarantine_handle: unmap + map + access,
            ..costs
        }
    }

    /// What of it `specs` use, for people.
    #[must_use]
    pub fn words<'a>(&self, specs: impl IntoIterator<Item = &'a Spec>) -> String {
        let models = specs
            .into_iter()
            .flat_map(|spec| [&spec.online.model, &spec.offline.model]);
        let loaded = models.filter(|model| matches!(model.cost, Cost::Tables(_)));
        let mut names: Vec<&str> = loaded.map(|model| model.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let costs = if self.calls.is_some() {
            " and handles' costs"
        } else {
            ""
        };
        format!(
            "iteration times of {}{costs} from {}",
            names.join(", "),
            self.dir.display()
        )
    }
}

fn lacks(file: &Path, pair: Pair, other: &'static str) -> InputError {
    InputError::Rows {
        file: file.to_owned(),
        what: format!("{} on {}, which {other} has", pair.1, pair.0),
    }
}

/// A number of at least `least`, as [`Duration`] and arithmetic can hold it.
fn number(
    lines: &Lines<'_>,
    field: &'static str,
    text: &str,
    least: f64,
) -> Result<f64, InputError> {
    let number = text.parse().ok().filter(|n| (least..=1e9).contains(n));
    let expected = if least > 0.0 {
        "a number from 1 to 1e9"
    } else {
        "a number from 0 to 1e9"
    };
    number.ok_or_else(|| lines.value(field, text, expected, CORRECT))
}

/// The points of each GPU and model, ascending.
fn rows(
    mut lines: Lines<'_>,
    [x_name, y_name]: [&'static str; 2],
) -> Result<Vec<(Pair, Vec<Point>)>, InputError> {
    let Some((_, header)) = lines.next_line()? else {
        return Err(lines.empty("iteration times"));
    };
    let names = ["gpu", "model", x_name, y_name, "attention_ms", "total_ms"];
    let columns = Columns::find(&lines, &header, names, names.len())?;
    let mut all: Vec<(Pair, Vec<Point>)> = Vec::new();
    let mut read = 0;
    while let Some((_, row)) = lines.next_line()? {
        let [gpu, model, x, y, attention, total] = columns.cells(&lines, &row)?;
        let gpus = hardware::all().map(|gpu| (gpu.name, gpu.name));
        let gpu = find("GPU", &gpu, gpus).map_err(|error| lines.unknown("gpu", error))?;
        let models = MODELS.map(|(name, _)| (name, name));
        let model = find("model", &model, models).map_err(|error| lines.unknown("model", error))?;
        let at = [
            number(&lines, x_name, &x, 1.0)?,
            number(&lines, y_name, &y, 0.0)?,
        ];
        let attention_ms = number(&lines, "attention_ms", &attention, 0.0)?;
        let total_ms = number(&lines, "total_ms", &total, 0.0)?;
        if total_ms <= attention_ms {
            let expected = "more than attention_ms";
            return Err(lines.value("total_ms", &total, expected, CORRECT));
        }
        if read == MAX_ROWS {
            return Err(lines.large(format!("{MAX_ROWS} rows"), "cut the table"));
        }
        read += 1;
        let place = all.iter().position(|known| known.0 == (gpu, model));
        let place = place.unwrap_or_else(|| {
            all.push(((gpu, model), Vec::new()));
            all.len() - 1
        });
        let points = &mut all[place].1;
        let before = |point: &Point| point.0 < at;
        let place = points.partition_point(before);
        if points.get(place).is_some_and(|point| point.0 == at) {
            let expected = "given once with its GPU, model and other coordinate";
            return Err(lines.value(x_name, &x, expected, CORRECT));
        }
        points.insert(place, (at, attention_ms, total_ms));
    }
    if all.is_empty() {
        return Err(lines.empty("iteration times"));
    }
    Ok(all)
}

/// Microseconds of [`CALLS`].
fn calls(mut lines: Lines<'_>, file: &Path) -> Result<[f64; 4], InputError> {
    let Some((_, header)) = lines.next_line()? else {
        return Err(lines.empty("costs"));
    };
    let names = ["kind", "item", "value", "unit"];
    let columns = Columns::find(&lines, &header, names, names.len())?;
    let mut found = [None; CALLS.len()];
    while let Some((_, row)) = lines.next_line()? {
        let [kind, item, value, unit] = columns.cells(&lines, &row)?;
        let Some(place) = CALLS.iter().position(|call| kind == "vmm" && *call == item) else {
            continue;
        };
        if unit != "us" {
            return Err(lines.value("unit", &unit, "us", CORRECT));
        }
        if found[place].is_some() {
            return Err(lines.value("item", &item, "given once", CORRECT));
        }
        found[place] = Some(number(&lines, "value", &value, 0.0)?);
    }
    let mut us = [0.0; CALLS.len()];
    for ((us, found), call) in us.iter_mut().zip(found).zip(CALLS) {
        *us = found.ok_or_else(|| InputError::Rows {
            file: file.to_owned(),
            what: format!("vmm, {call}"),
        })?;
    }
    Ok(us)
}

#[cfg(test)]
mod tests;
