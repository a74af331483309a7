//! Frames: GPUs on top, then jobs, then processes, and what the keys do.

use super::gpus::{MEMORY_FROM, draw_gpus};
use super::model::Model;
use super::paint::{Paint, fit, leave_out, row};
use super::room::{Rooms, held, small, split};
use crate::{json, table};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use tidegate_agent::plain;
use tidegate_proto::v1;

/// Cells of a job's name, and more where there is room.
const NAME: u16 = 20;
/// The same beside shares.
const BRIEF_NAME: u16 = 12;
/// Cells of what a job got and deserved.
const SHARE: u16 = 9;
/// Cells of the reason that a long name leaves it, where it is as long.
const WHY: u16 = 44;
/// Cells of the reason in any case.
const LEAST_WHY: u16 = 12;

/// Draws `model` as it stands at `now`.
pub fn draw(frame: &mut Frame<'_>, model: &Model, now: u64) {
    let area = frame.area();
    let paint = Paint {
        colours: model.colours,
        stale: model.lost.is_some(),
    };
    let Some(status) = &model.status else {
        nobody(frame, model, area);
        return;
    };
    let room = Rooms::of(status, area);
    let title = fit(title_line(model, status, now), room.title.width);
    frame.render_widget(title, room.title);
    let mut left_out = draw_gpus(frame, model, status, &paint, room.gpus);
    left_out.extend(draw_jobs(frame, model, status, &paint, room.jobs));
    left_out.extend(draw_processes(frame, model, &paint, room.processes));
    let line = match left_out.as_slice() {
        [] => legend(&paint),
        heads => Line::styled(
            format!("Hidden: {}", heads.join(", ")),
            Style::new().add_modifier(Modifier::DIM),
        ),
    };
    frame.render_widget(fit(line, room.legend.width), room.legend);
    frame.render_widget(fit(last_line(model), room.keys.width), room.keys);
    if model.help {
        help(frame, area);
    }
}

/// What the states of a gate mean.
fn legend(paint: &Paint) -> Line<'static> {
    let mut said = vec![
        Span::styled("open", paint.gate(v1::GateState::Open)),
        Span::raw(": offline runs   "),
        Span::styled("closed", paint.gate(v1::GateState::Closed)),
        Span::raw(": online has the GPU   "),
        Span::styled("cooling", paint.gate(v1::GateState::Cooling)),
        Span::raw(": online just stopped"),
    ];
    for span in &mut said {
        if paint.stale || span.style == Style::new() {
            span.style = span.style.add_modifier(Modifier::DIM);
        }
    }
    Line::from(said)
}

fn title_line(model: &Model, status: &v1::GetStatusResponse, now: u64) -> Line<'static> {
    if let Some((_, since)) = &model.lost {
        let seconds = now.saturating_sub(*since) / 1_000_000_000;
        let gone = format!(
            " THE AGENT IS GONE for {seconds} s: online runs on, offline waits. Below is old: "
        );
        let style = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        let style = if model.colours {
            style.fg(Color::Red)
        } else {
            style
        };
        return Line::styled(gone, style);
    }
    let level = json::level_name(status.level());
    // First what there must be room for.
    let mut text = String::new();
    if status.drained {
        text.push_str("   DRAINED  ");
    }
    if status.ungated_ns > 0 {
        text.push_str("   UNGATED  ");
    }
    if !status.config_error.is_empty() {
        text.push_str("   CONFIGURATION REFUSED  ");
    }
    text += &format!(
        " up {}   driver {}   {}",
        table::time(status.uptime_ns),
        plain::line(&status.driver_version),
        if level == "L5" {
            "no channel control: launches wait".to_owned()
        } else {
            format!("channel control {level}")
        },
    );
    for obstacle in &status.obstacles {
        text.push_str("   ");
        text.push_str(&obstacle.kind);
    }
    Line::from(vec![
        Span::styled(
            format!("Tidegate {}", plain::line(&status.version)),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Span::raw(text),
    ])
}

/// What is to be confirmed, what came of it, or the keys.
fn last_line(model: &Model) -> Line<'static> {
    if let Some(action) = &model.asking {
        let question = format!("{action}? y: yes, any other key: no");
        let style = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        return Line::styled(plain::line(&question), style);
    }
    if let Some(typed) = &model.typing {
        return Line::raw(plain::line(&format!(
            "show what contains: {typed}_   (enter keeps it, esc shows all)"
        )));
    }
    if !model.said.is_empty() {
        let style = Style::new().add_modifier(Modifier::BOLD);
        return Line::styled(plain::line(&model.said), style);
    }
    let drained = model.status.as_ref().is_some_and(|status| status.drained);
    let filter = if model.filter.is_empty() {
        "/ filter".to_owned()
    } else {
        format!("/ \"{}\"", plain::line(&model.filter))
    };
    let keys = format!(
        "q quit  h help  s sort (by {})  {filter}  p pause  r resume  d {}",
        model.sort.name(),
        if drained { "undrain" } else { "drain" }
    );
    Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
}

/// How far a job's training is, why the job runs or waits, and why it has no lease.
fn why(job: &v1::JobStatus) -> String {
    let none = job.no_lease.as_ref();
    let parts = [
        table::trains(job),
        Some(job.reason.clone()),
        none.map(|none| format!("no lease: {}", none.text)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn job_cell(column: &str, job: &v1::JobStatus, paint: &Paint) -> Line<'static> {
    let colour = match job.state() {
        v1::JobState::Running => Color::Green,
        v1::JobState::Gated => Color::Red,
        _ => Color::Yellow,
    };
    match column {
        "OFFLINE JOB" => Line::raw(plain::line(&job.name)),
        "STATE" => {
            let state = format!("{} {}", json::job_state(job), table::time(job.state_ns));
            Line::styled(state, paint.of(colour))
        }
        "GPUS" => Line::raw(table::gpu_ranges(&job.gpus)),
        "PREEMPT." => Line::raw(job.preemptions.to_string()).alignment(Alignment::Right),
        _ => Line::raw(table::share(job)).alignment(Alignment::Right),
    }
}

/// The head of a column; that of numbers is on the right.
fn heading(name: &'static str, number: bool) -> Line<'static> {
    let side = if number {
        Alignment::Right
    } else {
        Alignment::Left
    };
    Line::raw(name).alignment(side)
}

/// Said in place of processes.
fn nothing(model: &Model) -> &'static str {
    if model.filter.is_empty() {
        "No process is attached."
    } else {
        "No attached process matches the filter."
    }
}

/// In a narrow terminal who a process is, and its note, stay longest.
fn rank(head: &str) -> u8 {
    match head {
        "MEMORY" => 3,
        "LAUNCHES/s" => 2,
        "GPU" => 1,
        _ => 0,
    }
}

/// The heads of the columns that the terminal has no room for.
fn draw_jobs(
    frame: &mut Frame<'_>,
    model: &Model,
    status: &v1::GetStatusResponse,
    paint: &Paint,
    area: Rect,
) -> Vec<&'static str> {
    if status.jobs.is_empty() {
        let none = "No offline job is attached. Start one with LD_PRELOAD=libtidegate.so TIDEGATE_ROLE=offline.";
        frame.render_widget(Paragraph::new(none).wrap(Wrap { trim: true }), area);
        return Vec::new();
    }
    let (area, more) = split(status.jobs.len(), area);
    let shares = table::any_turns(status);
    let gpus = |job: &v1::JobStatus| table::gpu_ranges(&job.gpus);
    let longest = |of: &dyn Fn(&v1::JobStatus) -> usize| {
        let cells = status.jobs.iter().map(of);
        small(cells.max().unwrap_or(0))
    };
    let mut columns = vec![
        ("OFFLINE JOB", 0),
        ("STATE", 14),
        (
            "GPUS",
            if shares {
                longest(&|job| gpus(job).len()).clamp(4, 8)
            } else {
                8
            },
        ),
        ("PREEMPT.", 8),
        ("SHARE", SHARE),
    ];
    // Whose turn it is takes some words.
    let brief = area.width < MEMORY_FROM;
    columns.retain(|(name, _)| match *name {
        "PREEMPT." => !(shares && brief),
        "SHARE" => shares,
        _ => true,
    });
    let least = if shares && brief { BRIEF_NAME } else { NAME };
    let mut ranked = vec![("OFFLINE JOB", least, 0), ("WHY", LEAST_WHY, 0)];
    ranked.extend(columns[1..].iter().map(|&(head, width)| match head {
        "PREEMPT." => (head, width, 2),
        "GPUS" => (head, width, 1),
        _ => (head, width, 0),
    }));
    let left_out = leave_out(&mut ranked, area.width);
    columns.retain(|(head, _)| !left_out.contains(head));
    let others: u16 = columns.iter().map(|(_, width)| width + 1).sum();
    let reason = longest(&|job| why(job).chars().count()).clamp(LEAST_WHY, WHY);
    let room = area.width.saturating_sub(others + reason);
    let name = longest(&|job| job.name.chars().count());
    columns[0].1 = name.clamp(least, room.max(least));
    let lengths: Vec<u16> = columns.iter().map(|(_, width)| *width).collect();
    let rows = status.jobs.iter().map(|job| {
        let cells = columns.iter().map(|(name, _)| job_cell(name, job, paint));
        let cells = cells.chain([Line::raw(plain::line(&why(job)))]);
        row(cells.collect(), &lengths, area.width)
    });
    let heads = columns.iter();
    let heads = heads.map(|&(name, _)| heading(name, matches!(name, "PREEMPT." | "SHARE")));
    let heads = heads.chain([Line::raw("WHY")]).collect::<Vec<_>>();
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let widths: Vec<_> = widths.chain([Constraint::Min(LEAST_WHY)]).collect();
    let table = Table::new(rows, widths).header(Row::new(heads).style(paint.strong()));
    // The one that keys are about is marked where there are several.
    let selected = model.selected_at().filter(|_| status.jobs.len() > 1);
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
    if let Some((place, more)) = more {
        frame.render_widget(fit(more, place.width), place);
    }
    left_out
}

/// The heads of the columns that the terminal has no room for.
fn draw_processes(
    frame: &mut Frame<'_>,
    model: &Model,
    paint: &Paint,
    area: Rect,
) -> Vec<&'static str> {
    let processes = model.processes();
    if processes.is_empty() {
        frame.render_widget(Paragraph::new(nothing(model)), area);
        return Vec::new();
    }
    let shown = held(processes.len(), area);
    let mut rows: Vec<_> = processes
        .iter()
        .take(shown)
        .map(|process| process_row(model, process, paint))
        .collect();
    if shown < processes.len() {
        let more = format!("and {} more", processes.len() - shown);
        rows.push(vec![Line::raw(""), Line::raw(more)]);
    }
    let wide = area.width >= MEMORY_FROM;
    let placed = wide
        && processes
            .iter()
            .any(|process| !table::place(process).is_empty());
    let mut head = vec!["PID", "PROCESS", "ROLE", "GPU", "LAUNCHES/s", "MEMORY"];
    let longest = |of: &dyn Fn(&v1::ProcessStatus) -> usize| {
        let cells = processes.iter().map(of);
        small(cells.max().unwrap_or(0))
    };
    let least = if wide { (16, 12) } else { (14, 8) };
    let mut widths = vec![
        8,
        // The kernel's names have 15 characters.
        longest(&|process| process.name.chars().count()).clamp(least.0, 16),
        8,
        longest(&|process| devices(process).chars().count()).clamp(least.1, 16),
        10,
        8,
    ];
    if placed {
        let others: u16 = widths.iter().map(|width| width + 1).sum();
        let room = area.width.saturating_sub(others + WHY).max(NAME);
        head.push("WHERE");
        widths.push(longest(&|process| table::place(process).chars().count()).clamp(5, room));
    }
    head.push("NOTE");
    let mut ranked = vec![("NOTE", 10, 0)];
    let known = head.iter().zip(&widths);
    ranked.extend(known.map(|(&head, &width)| (head, width, rank(head))));
    let left_out = leave_out(&mut ranked, area.width);
    let stays: Vec<bool> = head.iter().map(|head| !left_out.contains(head)).collect();
    let kept = |at: usize| stays.get(at).copied().unwrap_or(true);
    let all = std::mem::take(&mut widths).into_iter().enumerate();
    widths.extend(all.filter(|(at, _)| kept(*at)).map(|(_, width)| width));
    head.retain(|head| !left_out.contains(head));
    let rows = rows.into_iter().map(|mut cells: Vec<Line<'static>>| {
        if !placed && cells.len() > WHERE_AT {
            cells.remove(WHERE_AT);
        }
        // The row that counts the others has two cells.
        let cells = cells.into_iter().enumerate();
        let cells = cells.filter(|(at, _)| kept(*at)).map(|(_, cell)| cell);
        row(cells.collect(), &widths, area.width)
    });
    let constraints = widths.iter().map(|width| Constraint::Length(*width));
    let constraints: Vec<_> = constraints.chain([Constraint::Min(10)]).collect();
    let heads = head.into_iter();
    let heads = heads.map(|name| heading(name, matches!(name, "LAUNCHES/s" | "MEMORY")));
    let table = Table::new(rows, constraints).header(Row::new(heads).style(paint.strong()));
    frame.render_widget(table, area);
    left_out
}

/// The GPUs of a process, of an online one those with work first: `0-3 busy,4-7 idle`.
fn devices(process: &v1::ProcessStatus) -> String {
    let of = |wanted: Option<bool>| -> Vec<u32> {
        let devices = process.devices.iter();
        let devices = devices.filter(|device| wanted.is_none_or(|busy| busy == device.busy));
        devices.map(|device| device.gpu).collect()
    };
    if process.devices.is_empty() {
        return String::new();
    }
    if process.role() != v1::Role::Online {
        return table::gpu_ranges(&of(None));
    }
    let parts = [(of(Some(true)), "busy"), (of(Some(false)), "idle")];
    let parts = parts.iter().filter(|(gpus, _)| !gpus.is_empty());
    let parts = parts.map(|(gpus, state)| format!("{} {state}", table::gpu_ranges(gpus)));
    parts.collect::<Vec<_>>().join(",")
}

/// Where a process runs, among the cells of its row.
const WHERE_AT: usize = 6;

fn process_row(model: &Model, process: &v1::ProcessStatus, paint: &Paint) -> Vec<Line<'static>> {
    let colour = match process.role() {
        v1::Role::Online => Color::Magenta,
        v1::Role::Offline => Color::Green,
        _ => Color::Gray,
    };
    vec![
        Line::raw(process.pid.to_string()),
        Line::raw(plain::line(&process.name)),
        Line::styled(json::role(process), paint.of(colour)),
        Line::raw(devices(process)),
        Line::raw(model.rate(process).to_string()).alignment(Alignment::Right),
        Line::raw(table::bytes(table::held(process))).alignment(Alignment::Right),
        Line::raw(plain::line(table::place(process))),
        Line::raw(plain::line(&process.note)),
    ]
}

/// No agent has been heard yet.
fn nobody(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::styled("Tidegate", strong), Line::raw("")];
    match &model.lost {
        None => lines.push(Line::raw("asking the agent ...")),
        Some((why, _)) => {
            lines.push(Line::raw(plain::line(why)));
            lines.push(Line::raw(""));
            lines.push(Line::raw("Start it:   systemctl start tidegate-agent"));
            lines.push(Line::raw("Look why:   tidegate doctor"));
            lines.push(Line::raw("Elsewhere:  tidegate --run-dir DIR top"));
            lines.push(Line::raw(""));
            lines.push(Line::raw("Trying again every second. q quits."));
        }
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines = [
        "GATE      open: offline runs; closed: online has the GPU;",
        "          cooling: online stopped, and may go on at once",
        "ONLINE    share of the last 5 s in which online was busy",
        "OFFLINE   share in which offline work could run",
        "PREEMPT.  times offline was taken off the GPU",
        "p99       from online's ring to offline off the GPU",
        "LATENCY   the last 12 of these; a full column is 1 ms",
        "HEADROOM  memory kept mapped for online ahead of need",
        "MEMORY    of a GPU: in use by whomever; of a process: what",
        "          it allocated, without contexts and code",
        "SLACK     what a trainer could take before online's next",
        "          iteration; LEASED: units that ran that way",
        "",
        "up and down (k, j) choose a job; p pauses it, r resumes it,",
        "d drains the node: each is asked back for, y confirms",
        "/ shows processes of a name, job, pod, role or pid only",
        "s sorts processes, h closes this, q quits",
    ];
    let width = 62.min(area.width);
    let height = (small(lines.len()) + 2).min(area.height);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let text: Vec<_> = lines.into_iter().map(Line::raw).collect();
    let block = Block::bordered().title(" what this shows ");
    frame.render_widget(Paragraph::new(text).block(block), place);
}
