//! The demo's page: the table and its words, who had the GPU when, and what to try next. One file, nothing is fetched.

use std::fmt::Write as _;

use tidegate_agent::clock::{stamp, unix_ns};
use tidegate_tests::figures::Span;
use tidegate_text::numbers::{micros, thousands, three};
use tidegate_text::page::{cards, facts, plot, section, whole};
use tidegate_text::svg::escaped;

use crate::runs::{Results, Run};
use crate::table::{self, Header};

/// Units across a time line, and what is left of it for names.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 96.0;
/// Of one program's row, and of its bar.
const ROW: f64 = 22.0;
const BAR: f64 = 16.0;
/// Parts of a time line that are drawn apart: a screen shows no more.
const PARTS: u64 = 800;
/// What the second drawing shows of each run.
const DETAIL_NS: u64 = 3_000_000_000;

/// The whole page. `command` is how the program was called.
#[must_use]
pub fn html(header: &Header, results: &Results, command: &str) -> String {
    let mut body = format!(
        "<p class=\"kicker\">Tidegate {}</p><h1>One GPU, online and offline together</h1>\n\
         <p class=\"source\">{} requests in {} s, {}, on a {} GPU</p>\n",
        env!("CARGO_PKG_VERSION"),
        header.requests,
        header.length.as_secs(),
        escaped(header.model),
        header.device.to_uppercase(),
    );
    cards(&mut body, &figures(results));
    let words = escaped(&table::verdict(results));
    let _ = writeln!(body, "<p class=\"conclusion\">{words}</p>");
    if let Some(lines) = time_lines(results) {
        section(&mut body, "Who has the GPU when", &lines);
    }
    let table = escaped(&table::text(header, results));
    section(
        &mut body,
        "The table",
        &format!("<div class=\"scroll\"><pre>{table}</pre></div>"),
    );
    section(
        &mut body,
        "What to try next",
        "<ul><li><code>tidegate demo --keep</code> leaves everything running: look at it with <code>tidegate status</code> and \
         <code>tidegate top</code></li>\
         <li><code>tidegate demo --trace FILE</code> replays your own requests</li>\
         <li><code>tidegate replay --trace FILE --html replay.html</code> compares policies on your trace, in seconds</li>\
         <li><code>tidegate bench</code> measures your own server on your own GPU</li></ul>",
    );
    facts(
        &mut body,
        &[
            ("made", stamp(unix_ns())),
            ("command", command.to_owned()),
            ("requests", header.source.clone()),
        ],
    );
    whole("Tidegate demo", &body)
}

fn figures(results: &Results) -> Vec<(&'static str, String)> {
    let [alone, uncontrolled, tidegate] =
        [&results.alone, &results.uncontrolled, &results.tidegate]
            .map(|run| three(run.ttft_ms.mean));
    let mut figures = vec![
        ("ms to the first token, online alone (mean)", alone),
        ("ms beside offline, without control", uncontrolled),
        ("ms beside offline, with Tidegate", tidegate),
        (
            "offline tokens/s with Tidegate",
            thousands(results.tidegate.offline_tokens_per_s),
        ),
    ];
    if let Some(gated) = &results.tidegate.gated {
        figures.push(("preemption, median", micros(gated.latency_us.p50)));
    }
    figures
}

/// Both drawings; nothing on hardware, which keeps no history.
fn time_lines(results: &Results) -> Option<String> {
    let runs = [
        ("online alone", &results.alone),
        ("no control", &results.uncontrolled),
        ("Tidegate", &results.tidegate),
    ];
    let whole = drawn(&runs, |span| span)?;
    // The middle of each run: the same requests in all three.
    let detail = drawn(&runs, |span| {
        let middle = span.from_ns + (span.to_ns - span.from_ns) / 2;
        Span {
            from_ns: middle,
            to_ns: (middle + DETAIL_NS).min(span.to_ns),
        }
    })?;
    let legend = "<span class=\"own\">online</span> above, <span class=\"s1\">offline</span> below, for each run";
    Some(format!(
        "<div class=\"scroll\">{}{}</div>",
        plot("The three runs", legend, &whole),
        plot(
            "Three seconds of each",
            "from the middle of the run",
            &detail
        ),
    ))
}

fn drawn(runs: &[(&str, &Run)], cut: impl Fn(Span) -> Span) -> Option<String> {
    let rows = runs.len() as f64 * 2.0;
    let height = rows * ROW + runs.len() as f64 * 8.0 + 24.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"time lines of the GPU\">"
    );
    let mut y = 4.0;
    let mut longest_ns = 0;
    for (name, run) in runs {
        let span = cut(run.line.span?);
        longest_ns = longest_ns.max(span.to_ns - span.from_ns);
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}</text>",
            y + ROW + 4.0,
            escaped(name)
        );
        for (class, busy) in [("own", &run.line.online), ("s1", &run.line.offline)] {
            let _ = write!(svg, "<g class=\"{class}\">");
            for (from, to) in parts(busy, span) {
                let at = |part: u64| LEFT + (WIDTH - LEFT) * part as f64 / PARTS as f64;
                let _ = write!(
                    svg,
                    "<rect class=\"bar\" x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\"/>",
                    at(from),
                    at(to) - at(from),
                );
            }
            svg.push_str("</g>");
            y += ROW;
        }
        y += 8.0;
    }
    let seconds = longest_ns as f64 / 1e9;
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{0}\">0 s</text><text class=\"end\" x=\"{WIDTH}\" y=\"{0}\">{seconds:.1} s</text></svg>",
        height - 4.0,
    );
    Some(svg)
}

/// The parts of `span` of which stretches of `busy` fill at least an eighth, in runs: first, and one past the last. Without
/// control both programs have a part of each.
fn parts(busy: &[Span], span: Span) -> Vec<(u64, u64)> {
    let part_ns = ((span.to_ns - span.from_ns) / PARTS).max(1);
    let mut filled = vec![0; PARTS as usize];
    for stretch in busy {
        let from = stretch.from_ns.max(span.from_ns) - span.from_ns;
        let to = stretch.to_ns.min(span.to_ns).saturating_sub(span.from_ns);
        let mut at = from;
        while at < to {
            let part = at / part_ns;
            let end = ((part + 1) * part_ns).min(to);
            if let Some(sum) = filled.get_mut(part as usize) {
                *sum += end - at;
            }
            at = end;
        }
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (part, _) in (0..).zip(&filled).filter(|(_, sum)| **sum * 8 >= part_ns) {
        match runs.last_mut() {
            Some(run) if run.1 == part => run.1 += 1,
            _ => runs.push((part, part + 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::span;

    #[test]
    fn a_time_line_shows_when_work_ran_and_leaves_out_what_no_screen_shows() {
        // A part is a millisecond.
        let all = span(1_000, 1_800);
        let busy = [span(900, 1_010), span(1_100, 1_250), span(1_799, 2_000)];
        assert_eq!(parts(&busy, all), [(0, 10), (100, 250), (799, 800)]);
        let short = Span {
            from_ns: 1_500_000_000,
            to_ns: 1_500_100_000,
        };
        assert_eq!(parts(&[short], all), []);
    }
}
