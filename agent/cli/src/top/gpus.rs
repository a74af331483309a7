//! The table of GPUs: a row each, as many columns as fit.

use super::model::Model;
use super::paint::{Paint, Ranked, fit, leave_out, row};
use super::room::{small, split};
use crate::{json, table};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table};
use tidegate_agent::plain;
use tidegate_proto::v1;

/// Cells of a bar.
const BAR: usize = 5;

/// Cells of the latencies of late.
const SPARK: usize = 12;

/// What a full cell of them stands for: the promised millisecond.
const FULL_NS: u64 = 1_000_000;

const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// `share` as a bar and a number.
fn bar(share: f64, style: Style) -> Line<'static> {
    let share = share.clamp(0.0, 1.0);
    let full = (share * BAR as f64).round() as usize;
    Line::from(vec![
        Span::styled("█".repeat(full), style),
        Span::styled(
            "░".repeat(BAR - full),
            Style::new().add_modifier(Modifier::DIM),
        ),
        Span::raw(format!("{:>4.0}%", share * 100.0)),
    ])
}

/// Latencies as columns, a full one being [`FULL_NS`] or more.
fn spark(latencies: &[u64], paint: &Paint) -> Line<'static> {
    let cell = |&ns: &u64| {
        let eighth = (ns * 8 / FULL_NS).min(7);
        let colour = if ns > FULL_NS {
            Color::Red
        } else {
            Color::Cyan
        };
        let column = EIGHTHS[usize::try_from(eighth).unwrap_or(7)];
        Span::styled(column.to_string(), paint.of(colour))
    };
    Line::from(latencies.iter().map(cell).collect::<Vec<_>>())
}

fn headroom(gpu: &v1::GpuStatus, style: Style) -> Line<'static> {
    let Some(memory) = gpu.memory.as_ref().filter(|memory| memory.pool_bytes != 0) else {
        return Line::styled("not shared", Style::new().add_modifier(Modifier::DIM));
    };
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let share = memory.headroom_bytes as f64 / memory.pool_bytes as f64;
    bar(share, style)
}

/// What a column says of a GPU, by its place in the list.
type Cell<'a> = Box<dyn Fn(usize, &v1::GpuStatus) -> Line<'static> + 'a>;

/// A column of the GPUs: its head, its width, and what stands in it. Those of numbers are on the right.
struct Column<'a> {
    head: &'static str,
    /// Cells; 0: what the others leave.
    width: u16,
    number: bool,
    cell: Cell<'a>,
}

/// Width from which a column is there beside those that every terminal has room for.
pub(super) const MEMORY_FROM: u16 = 100;

/// See [`MEMORY_FROM`].
const LEASES_FROM: u16 = 118;

/// See [`MEMORY_FROM`].
const MODEL_FROM: u16 = 126;

/// See [`MEMORY_FROM`].
const STOP_FROM: u16 = 152;

fn column<'a>(head: &'static str, width: u16, number: bool, cell: Cell<'a>) -> Column<'a> {
    Column {
        head,
        width,
        number,
        cell,
    }
}

/// The columns that every terminal has room for.
fn always<'a>(model: &'a Model, paint: &'a Paint) -> Vec<Column<'a>> {
    vec![
        column(
            "GPU",
            3,
            false,
            Box::new(|_, gpu| Line::raw(gpu.index.to_string())),
        ),
        column(
            "GATE",
            14,
            false,
            Box::new(|_, gpu| {
                let gate = format!("{} {}", json::gate(gpu), table::time(gpu.state_ns));
                Line::styled(gate, paint.gate(gpu.gate()))
            }),
        ),
        column(
            "ONLINE",
            10,
            false,
            Box::new(|at, _| bar(model.lately(at).online, paint.of(Color::Magenta))),
        ),
        column(
            "OFFLINE",
            10,
            false,
            Box::new(|at, _| bar(model.lately(at).offline, paint.of(Color::Green))),
        ),
        column(
            "PREEMPT.",
            8,
            true,
            Box::new(|_, gpu| Line::raw(gpu.preemptions.to_string())),
        ),
        column(
            "p99",
            6,
            true,
            Box::new(|_, gpu| {
                let latency = gpu
                    .preempt_latency
                    .as_ref()
                    .filter(|latency| latency.count != 0);
                Line::raw(latency.map_or_else(|| "-".to_owned(), |l| table::time(l.p99_ns)))
            }),
        ),
        column(
            "LATENCY ≤1ms",
            small(SPARK),
            false,
            Box::new(|_, gpu| spark(&model.latencies(gpu.index, SPARK), paint)),
        ),
    ]
}

/// The columns that a terminal of this width has room for. Where no memory is shared, what is in use is in the place
/// of the headroom.
fn gpu_columns<'a>(
    model: &'a Model,
    status: &v1::GetStatusResponse,
    paint: &'a Paint,
    width: u16,
) -> Vec<Column<'a>> {
    let mut columns = always(model, paint);
    let shared = |gpu: &v1::GpuStatus| {
        gpu.memory
            .as_ref()
            .is_some_and(|memory| memory.pool_bytes != 0)
    };
    let any_shared = status.gpus.iter().any(shared);
    let any_known = status.gpus.iter().any(|gpu| gpu.memory_total_bytes != 0);
    let leases = status.gpus.iter().any(|gpu| gpu.leases.is_some());
    let roomy = width >= LEASES_FROM;
    if leases && !roomy && !any_shared {
        let slack = |_, gpu: &v1::GpuStatus| Line::raw(slack(gpu));
        columns.push(column("SLACK", 10, true, Box::new(slack)));
    } else if any_shared || !any_known {
        let cell = Box::new(|_, gpu: &v1::GpuStatus| headroom(gpu, paint.of(Color::Blue)));
        columns.push(column("HEADROOM", 10, false, cell));
    }
    if any_known && (width >= MEMORY_FROM || !(any_shared || leases)) {
        let brief = width < MEMORY_FROM;
        let cell = Box::new(move |_, gpu: &v1::GpuStatus| Line::raw(memory_cell(gpu, brief)));
        columns.push(column("MEMORY", if brief { 10 } else { 20 }, false, cell));
    }
    if leases && roomy {
        let slack = |_, gpu: &v1::GpuStatus| Line::raw(slack(gpu));
        let units = |_, gpu: &v1::GpuStatus| Line::raw(lent(gpu));
        columns.push(column("SLACK", 7, true, Box::new(slack)));
        columns.push(column("LEASED", 12, true, Box::new(units)));
    }
    if width >= STOP_FROM && status.gpus.iter().any(|gpu| gpu.stop.is_some()) {
        let off = |_, gpu: &v1::GpuStatus| Line::raw(table::took(gpu, |stop| stop.off_gpu_us));
        let call = |_, gpu: &v1::GpuStatus| Line::raw(table::took(gpu, |stop| stop.call_us));
        columns.push(column("OFF THE GPU", 12, true, Box::new(off)));
        columns.push(column("RETURNED", 12, true, Box::new(call)));
    }
    if any_known && width >= MODEL_FROM {
        let cell = Box::new(|_, gpu: &v1::GpuStatus| Line::raw(plain::line(&gpu.model)));
        columns.push(column("MODEL", 0, false, cell));
    }
    columns
}

/// In a narrow terminal the columns that say most about sharing stay longest.
fn rank(head: &str) -> u8 {
    match head {
        "GPU" | "GATE" => 0,
        "OFFLINE" => 1,
        "ONLINE" => 2,
        "PREEMPT." | "p99" => 3,
        "HEADROOM" | "MEMORY" | "SLACK" => 4,
        _ => 5,
    }
}

/// What a trainer could take before online's next iteration.
fn slack(gpu: &v1::GpuStatus) -> String {
    let slack = gpu.leases.as_ref().and_then(|leases| leases.slack_ns);
    slack.map_or_else(|| "-".to_owned(), table::time)
}

/// Units that ran within leases; or that nothing is lent.
fn lent(gpu: &v1::GpuStatus) -> String {
    match &gpu.leases {
        None => "-".to_owned(),
        Some(leases) if leases.tpot_too_low => "tpot too low".to_owned(),
        Some(leases) => format!("{} units", leases.units),
    }
}

/// What is in use of a GPU's memory; briefly in GiB.
fn memory_cell(gpu: &v1::GpuStatus, brief: bool) -> String {
    if !brief || gpu.memory_total_bytes == 0 {
        return table::in_use(gpu);
    }
    #[expect(clippy::cast_precision_loss, reason = "a size, for people")]
    let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
    let (used, total) = (gib(gpu.memory_used_bytes), gib(gpu.memory_total_bytes));
    if total >= 1_000.0 {
        format!("{:.1}/{:.0} T", used / 1_024.0, total / 1_024.0)
    } else if used < 99.5 {
        format!("{used:.1}/{total:.0} G")
    } else {
        format!("{used:.0}/{total:.0} G")
    }
}

/// The heads of the columns that the terminal has no room for.
pub(super) fn draw_gpus(
    frame: &mut Frame<'_>,
    model: &Model,
    status: &v1::GetStatusResponse,
    paint: &Paint,
    area: Rect,
) -> Vec<&'static str> {
    let (area, more) = split(status.gpus.len(), area);
    let mut columns = gpu_columns(model, status, paint, area.width);
    let ranked = columns.iter();
    let ranked = ranked.map(|column| (column.head, column.width, rank(column.head)));
    let left_out = leave_out(&mut ranked.collect::<Vec<Ranked>>(), area.width);
    columns.retain(|column| !left_out.contains(&column.head));
    let side = |column: &Column<'_>| {
        if column.number {
            Alignment::Right
        } else {
            Alignment::Left
        }
    };
    let widths: Vec<u16> = columns.iter().map(|column| column.width).collect();
    let widths = widths.strip_suffix(&[0]).unwrap_or(&widths);
    let rows = status.gpus.iter().enumerate().map(|(at, gpu)| {
        let cells = columns.iter();
        let cells = cells.map(|column| (column.cell)(at, gpu).alignment(side(column)));
        row(cells.collect(), widths, area.width)
    });
    let heads = columns.iter();
    let heads = heads.map(|column| Line::raw(column.head).alignment(side(column)));
    let widths = columns.iter().map(|column| match column.width {
        0 => Constraint::Min(10),
        cells => Constraint::Length(cells),
    });
    let head = Row::new(heads).style(paint.strong());
    let table = Table::new(rows, widths).header(head).column_spacing(1);
    frame.render_widget(table, area);
    if let Some((place, more)) = more {
        frame.render_widget(fit(more, place.width), place);
    }
    left_out
}
