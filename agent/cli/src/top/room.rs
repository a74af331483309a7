//! How the lines of a terminal are shared out between GPUs, jobs and processes.

use super::model::Model;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use tidegate_proto::v1;

/// Lines beside the rows of GPUs, jobs and processes: title, gates explained, heads, blanks, keys.
const FIXED: u16 = 8;
/// Rows that each part has in any terminal that is not tiny: two, and how many there are beside them.
const LEAST: u16 = 3;

pub(super) fn small(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Rows of GPUs, of jobs and of processes; one where there is none, which says so.
fn wanted(status: Option<&v1::GetStatusResponse>) -> [u16; 3] {
    let rows = |of: fn(&v1::GetStatusResponse) -> usize| small(status.map_or(1, of).max(1));
    [
        rows(|status| status.gpus.len()),
        rows(|status| status.jobs.len()),
        rows(|status| status.processes.len()),
    ]
}

/// Lines that show everything.
pub fn height(model: &Model) -> u16 {
    let wanted = wanted(model.status.as_ref()).into_iter();
    wanted.fold(FIXED + 1, u16::saturating_add)
}

/// Where each part of the picture stands.
pub(super) struct Rooms {
    pub(super) title: Rect,
    pub(super) gpus: Rect,
    pub(super) legend: Rect,
    pub(super) jobs: Rect,
    pub(super) processes: Rect,
    pub(super) keys: Rect,
}

impl Rooms {
    /// Where not everything fits, GPUs come first: they are few, and what the screen is about. Jobs have a quarter
    /// of the
    /// lines, and what processes leave. Title and keys always stand.
    pub(super) fn of(status: &v1::GetStatusResponse, area: Rect) -> Self {
        let [gpus, jobs, processes] = wanted(Some(status));
        let rest = area.height.saturating_sub(FIXED);
        let least = |wanted: u16| wanted.min(LEAST);
        let gpus = gpus.min(rest.saturating_sub(least(jobs) + least(processes)));
        let rest = rest - gpus;
        let quarter = (area.height / 4).saturating_sub(1).max(1);
        let of_jobs = quarter.max(rest.saturating_sub(processes));
        // Of that of processes nothing is taken.
        let of_jobs = of_jobs.min(rest.saturating_sub(least(processes)));
        let jobs = jobs.min(of_jobs);
        let [title, gpus, legend, _, jobs, _, processes, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(gpus + 1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(jobs + 1),
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(1),
        ])
        .areas(area);
        Self {
            title,
            gpus,
            legend,
            jobs,
            processes,
            keys,
        }
    }
}

/// How many of `count` rows `area` holds below their heads. Where these are not all, its last line is to say how many
/// more there are.
pub(super) fn held(count: usize, area: Rect) -> usize {
    let rows = usize::from(area.height.saturating_sub(1));
    if count <= rows {
        count
    } else {
        rows.saturating_sub(1)
    }
}

/// What is left of `area` for a table with its heads, and where and what is said of the rows that it does not hold.
pub(super) fn split(count: usize, area: Rect) -> (Rect, Option<(Rect, Line<'static>)>) {
    let held = held(count, area);
    if held == count || area.height < 2 {
        return (area, None);
    }
    let [table, last] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let more = format!("and {} more", count - held);
    (table, Some((last, Line::raw(more))))
}
