//! What could be trained, as one HTML file: for each promise what every row trains and what users wait for it.

use std::fmt::Write as _;

use super::table::{Cell, keeps};
use crate::run::beside::Way;
use tidegate_text::numbers::{thousands, three};
use tidegate_text::page::{cards, facts, plot, section, side_by_side, whole};
use tidegate_text::svg::{Bar, bars, escaped};

/// One row of the page: the cells of one policy under one promise, one a seed.
struct Row<'a>(&'a str, Vec<&'a Cell>);

impl Row<'_> {
    fn mean(&self, of: impl Fn(&Cell) -> f64) -> f64 {
        self.1.iter().map(|cell| of(cell)).sum::<f64>() / self.1.len().max(1) as f64
    }
}

fn rows<'a>(cells: &[&'a Cell]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for cell in cells {
        match rows.iter_mut().find(|row| row.0 == cell.policy) {
            Some(row) => row.1.push(cell),
            None => rows.push(Row(&cell.policy, vec![cell])),
        }
    }
    rows
}

/// The page of what was asked for: `alone` are online's own cells, and `cells` those of every promise.
#[must_use]
pub fn page(source: &str, setting: &[(&str, String)], alone: &[Cell], cells: &[Cell]) -> String {
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><p class=\"kicker\">Tidegate replay</p><h1>What would I train beside online, and what would it \
         cost?</h1><p class=\"source\">{}</p></header>",
        escaped(source)
    );
    let mut promises: Vec<String> = Vec::new();
    for cell in cells {
        if !promises.contains(&cell.set.name()) {
            promises.push(cell.set.name());
        }
    }
    let of = |promise: &str| -> Vec<&Cell> {
        let own = cells.iter().filter(|cell| cell.set.name() == promise);
        own.collect()
    };
    let ours: Vec<(String, String)> = promises
        .iter()
        .filter_map(|promise| {
            let cells = of(promise);
            let row = rows(&cells).into_iter().find(|row| row.0 == "Tidegate")?;
            let trained = thousands(row.mean(|cell| cell.trained_per_s));
            Some((format!("trained tokens per second, {promise}"), trained))
        })
        .collect();
    let figures: Vec<(&str, String)> = ours
        .iter()
        .map(|(what, figure)| (what.as_str(), figure.clone()))
        .collect();
    cards(&mut body, &figures);
    facts(&mut body, setting);
    body.push_str(
        "<p class=\"note\">Simulated in virtual time from published measurements; nothing here was measured on a \
         GPU. Figures are means over the seeds. Gap: trained while online was away. Serial: in turn with its \
         iterations. Fused: in their own pass. Spatial: on a share of the GPU.</p>\n",
    );
    let alone: Vec<&Cell> = alone.iter().collect();
    for promise in &promises {
        let cells = of(promise);
        section(&mut body, promise, &content(&alone, &rows(&cells)));
    }
    whole(&format!("Tidegate replay: {source}"), &body)
}

fn content(alone: &[&Cell], rows: &[Row<'_>]) -> String {
    let class = |place: usize, row: &Row<'_>| {
        if row.0 == "Tidegate" {
            "own".to_owned()
        } else {
            format!("s{}", place % 8)
        }
    };
    let drawn = |of: &dyn Fn(&Cell) -> f64| -> Vec<Bar> {
        rows.iter()
            .enumerate()
            .map(|(place, row)| {
                let value = row.mean(of);
                (row.0.to_owned(), class(place, row), value, three(value))
            })
            .collect()
    };
    let alone_rows = self::rows(alone);
    let own = alone_rows
        .first()
        .map(|row| row.mean(|cell| cell.tpot_p99_ms));
    let trained = drawn(&|cell| cell.trained_per_s);
    let late = drawn(&|cell| cell.tpot_p99_ms);
    let plots = [
        plot(
            "Trained",
            "tokens per second, each counted once",
            &bars("Trained tokens per second", &trained, None, false),
        ),
        plot(
            "Time per further token",
            "99th percentile, ms; the line is online alone",
            &bars(
                "99th percentile of the time per further token",
                &late,
                own,
                false,
            ),
        ),
    ];
    let mut out = side_by_side(&plots);
    let all: Vec<&Row<'_>> = alone_rows.iter().chain(rows).collect();
    push_table(&mut out, &all);
    out
}

/// Each policy's figures, as a table.
fn push_table(out: &mut String, rows: &[&Row<'_>]) {
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>policy</th><th>trained tokens/s</th><th>steps a day</th>\
         <th>of a GPU of its own</th><th>gap</th><th>serial</th><th>fused</th><th>spatial</th><th>TTFT mean</th><th>p99</th><th>TPOT mean</th><th>p99</th>\
         <th>keeps</th><th>of the oracle</th></tr></thead><tbody>\n",
    );
    for row in rows {
        let mark = if row.0 == "Tidegate" {
            " class=\"own\""
        } else {
            ""
        };
        let _ = write!(out, "<tr{mark}><td>{}</td>", escaped(row.0));
        let oracle = row.1.iter().filter_map(|cell| cell.vs_oracle);
        let oracle: Vec<f64> = oracle.collect();
        let ms = |value: f64| format!("{} ms", three(value));
        let way = |way: Way| format!("{:.0} %", 100.0 * row.mean(|cell| cell.ways[way as usize]));
        let figures = [
            thousands(row.mean(|cell| cell.trained_per_s)),
            thousands(row.mean(|cell| cell.steps_per_day)),
            format!("{:.0} %", 100.0 * row.mean(|cell| cell.of_dedicated)),
            way(Way::Gap),
            way(Way::Serial),
            way(Way::Fused),
            way(Way::Spatial),
            ms(row.mean(|cell| cell.ttft_mean_ms)),
            ms(row.mean(|cell| cell.ttft_p99_ms)),
            ms(row.mean(|cell| cell.tpot_mean_ms)),
            ms(row.mean(|cell| cell.tpot_p99_ms)),
            keeps(row.1.iter().copied()).to_owned(),
            match oracle.len() {
                0 => "-".to_owned(),
                seeds => format!("{:.2}", oracle.iter().sum::<f64>() / seeds as f64),
            },
        ];
        for figure in figures {
            let _ = write!(out, "<td>{figure}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}
