//! Colours, and text cut to its cells.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Row;
use tidegate_proto::v1;
use unicode_width::UnicodeWidthChar;

/// `line` in `cells` cells; one that is cut ends with an ellipsis.
pub(super) fn fit(mut line: Line<'static>, cells: u16) -> Line<'static> {
    let cells = usize::from(cells);
    if line.width() <= cells {
        return line;
    }
    let mut room = cells.saturating_sub(1);
    let mut spans = Vec::new();
    for span in std::mem::take(&mut line.spans) {
        let mut text = String::new();
        for c in span.content.chars() {
            let Some(left) = room.checked_sub(c.width().unwrap_or(0)) else {
                room = 0;
                break;
            };
            room = left;
            text.push(c);
        }
        spans.push(Span::styled(text, span.style));
        if room == 0 {
            break;
        }
    }
    spans.push(Span::raw("…"));
    line.spans = spans;
    line
}

/// A row whose cells stand in columns of these widths, one cell apart; the last column has the rest of `whole`.
pub(super) fn row(cells: Vec<Line<'static>>, widths: &[u16], whole: u16) -> Row<'static> {
    let others: u16 = widths.iter().map(|width| width + 1).sum();
    let last = whole.saturating_sub(others);
    let widths = widths.iter().copied().chain([last]);
    Row::new(
        cells
            .into_iter()
            .zip(widths)
            .map(|(cell, width)| fit(cell, width)),
    )
}

/// A column that may be left out: its head, its least width, and its rank.
pub(super) type Ranked = (&'static str, u16, u8);

/// Takes columns away until a line of `whole` cells has room for the others, one cell apart: those of the greatest rank
/// first, of one rank the rightmost, and none of rank 0. The heads of those that it took.
pub(super) fn leave_out(columns: &mut Vec<Ranked>, whole: u16) -> Vec<&'static str> {
    let mut out = Vec::new();
    loop {
        let wide: u32 = columns
            .iter()
            .map(|(_, width, _)| u32::from(*width) + 1)
            .sum();
        let worst = (0..columns.len()).max_by_key(|at| columns[*at].2);
        match worst.filter(|at| columns[*at].2 > 0) {
            Some(at) if wide > u32::from(whole) + 1 => out.push(columns.remove(at).0),
            _ => return out,
        }
    }
}

pub(super) struct Paint {
    pub(super) colours: bool,
    /// What is shown is old.
    pub(super) stale: bool,
}

impl Paint {
    pub(super) fn of(&self, colour: Color) -> Style {
        match (self.colours, self.stale) {
            (_, true) => Style::new().add_modifier(Modifier::DIM),
            (true, false) => Style::new().fg(colour),
            (false, false) => Style::new(),
        }
    }

    pub(super) fn strong(&self) -> Style {
        if self.stale {
            Style::new().add_modifier(Modifier::DIM)
        } else {
            Style::new().add_modifier(Modifier::BOLD)
        }
    }

    pub(super) fn gate(&self, gate: v1::GateState) -> Style {
        self.of(match gate {
            v1::GateState::Open => Color::Green,
            v1::GateState::Closed => Color::Red,
            v1::GateState::Cooling | v1::GateState::Unspecified => Color::Yellow,
        })
    }
}
