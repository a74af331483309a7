//! The report as one HTML file: nothing is fetched, no script runs, and it follows the reader's
//! light or dark.

use std::fmt::Write as _;

use crate::cases::{Case, memories, times};
use crate::figures::{preempt_us, reclaim_ms, tpot_ms, ttft_ms};
use crate::record::{Outcome, SpanKind};
use crate::report::occupancy::occupancy;
use crate::report::{BOUNDS, Report, Row, percent};
use tidegate_text::numbers::{thousands, three};
use tidegate_text::page::{cards, facts, plot, section, side_by_side, whole};
use tidegate_text::svg::{Bar, Curve, bars, cumulative, escaped, strip};

/// Longest stretch of the timeline that is drawn, seconds.
const STRIP_S: f64 = 12.0;
const COLUMNS: usize = 600;

/// A run whose distributions are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// Its policies.
    pub case: Case,
    /// The run.
    pub outcome: &'a Outcome,
}

/// The page: `alone` and `drawn` are the runs of the first seed, `drawn` in the order of the rows.
#[must_use]
pub fn page(report: &Report, alone: &Outcome, drawn: &[Drawn<'_>]) -> String {
    let mut body = String::new();
    head(&mut body, report);
    legend(&mut body, report);
    section(
        &mut body,
        "What each policy gives and takes",
        &prices(report),
    );
    section(
        &mut body,
        "How long users wait",
        &waits(report, alone, drawn),
    );
    section(
        &mut body,
        "How fast the GPU and its memory come back",
        &returns(report, drawn),
    );
    if let Some(chosen) = report.chosen() {
        let own = drawn.iter().find(|drawn| drawn.case == chosen.case);
        if let Some(own) = own.filter(|own| !own.outcome.timeline.is_empty()) {
            section(
                &mut body,
                &format!("A moment under {}", chosen.case),
                &moment(own.outcome),
            );
        }
    }
    section(&mut body, "All figures", &figures(report));
    section(&mut body, "What the policies do", &policies(report));
    whole(&format!("Tidegate replay: {}", report.source), &body)
}

/// What each part of the policies' names stands for.
fn policies(report: &Report) -> String {
    let cases: Vec<Case> = report.rows.iter().map(|row| row.case).collect();
    let mut out = String::new();
    for (what, named) in [
        (
            "Who has the GPU when, the first part of a name",
            times(&cases),
        ),
        (
            "Who has its memory, the second part; one name stands for both",
            memories(&cases),
        ),
    ] {
        let _ = write!(out, "<p>{what}:</p>");
        let said = named.into_iter();
        let said: Vec<_> = said.map(|(name, about)| (name, about.to_owned())).collect();
        facts(&mut out, &said);
    }
    out
}

fn head(body: &mut String, report: &Report) {
    let _ = writeln!(
        body,
        "<header><p class=\"kicker\">Tidegate replay</p><h1>What would I harvest, and what would it \
         cost?</h1><p class=\"source\">{}</p></header>",
        escaped(&report.source)
    );
    if let Some(chosen) = report.chosen() {
        let figures = [
            (
                "of the GPU's time harvested",
                format!("{:.0} %", 100.0 * chosen.gpu_share),
            ),
            ("offline tokens per second", thousands(chosen.tokens_per_s)),
            ("time to first token", percent(chosen.increase.0)),
            ("time per further token", percent(chosen.increase.1)),
            (
                "preemptions of one request, at most",
                chosen.per_request.1.to_string(),
            ),
        ];
        cards(body, &figures);
    }
    let _ = writeln!(
        body,
        "<p class=\"conclusion\">{}</p>",
        escaped(&report.conclusion())
    );
    facts(body, &report.setting);
    body.push_str(
        "<p class=\"note\">Simulated in virtual time from published measurements; nothing \
         here was measured on a GPU. Curves are of the first seed, figures are means over all.</p>\n",
    );
}

/// The colour of the policy at `place`; the one that the report speaks of stands out.
fn class(report: &Report, place: usize) -> String {
    let chosen = report.chosen().map(|row| row.case);
    if report.rows.get(place).map(|row| row.case) == chosen {
        "own".to_owned()
    } else {
        format!("s{}", place % 8)
    }
}

fn legend(body: &mut String, report: &Report) {
    body.push_str("<p class=\"legend\"><span><i class=\"alone\"></i>online alone</span>");
    for (place, row) in report.rows.iter().enumerate() {
        let (class, name) = (class(report, place), row.case.to_string());
        let _ = write!(
            body,
            "<span><i class=\"{class}\"></i>{}</span>",
            escaped(&name)
        );
    }
    body.push_str("</p>\n");
}

fn prices(report: &Report) -> String {
    let bar = |of: fn(&Row) -> (f64, String)| -> Vec<Bar> {
        let rows = report.rows.iter().enumerate();
        let bar = |(place, row): (usize, &Row)| {
            let (value, figure) = of(row);
            (row.case.to_string(), class(report, place), value, figure)
        };
        rows.map(bar).collect()
    };
    let harvest = bar(|row| (row.tokens_per_s, thousands(row.tokens_per_s)));
    let ttft = bar(|row| (row.increase.0, percent(row.increase.0)));
    let tpot = bar(|row| (row.increase.1, percent(row.increase.1)));
    let preemptions = bar(|row| {
        let most = f64::from(row.per_request.1);
        if row.preempts() {
            (most, thousands(most))
        } else {
            (0.0, "never stops offline".to_owned())
        }
    });
    let (ttft_bound, tpot_bound, most) = BOUNDS;
    let log = "more than alone; logarithmic, the line is the promise of";
    let plots = [
        plot(
            "Harvest",
            "offline tokens per second",
            &bars("Harvest", &harvest, None, false),
        ),
        plot(
            "Time to first token",
            &format!("{log} +{ttft_bound} %"),
            &bars("Time to first token", &ttft, Some(ttft_bound), true),
        ),
        plot(
            "Time per further token",
            &format!("{log} +{tpot_bound} %"),
            &bars("Time per further token", &tpot, Some(tpot_bound), true),
        ),
        plot(
            "Preemptions of one request",
            "the most of any; logarithmic, the line is the promise of 1",
            &bars("Preemptions", &preemptions, Some(f64::from(most)), true),
        ),
    ];
    side_by_side(&plots)
}

/// The distributions of one figure: online alone first, then each policy that has values.
fn curves(
    report: &Report,
    alone: &[f64],
    drawn: &[Drawn<'_>],
    of: Values,
    title: &str,
    unit: &str,
) -> Option<String> {
    let names: Vec<String> = drawn.iter().map(|one| one.case.to_string()).collect();
    let values: Vec<Vec<f64>> = drawn.iter().map(|one| of(one.outcome)).collect();
    let mut curves = vec![Curve {
        name: "online alone",
        class: "alone".to_owned(),
        values: alone,
    }];
    for (place, (name, values)) in names.iter().zip(&values).enumerate() {
        curves.push(Curve {
            name,
            class: class(report, place),
            values,
        });
    }
    // What the report speaks of is drawn over the others.
    curves.sort_by_key(|curve| curve.class == "own");
    cumulative(title, unit, &curves)
}

type Values = fn(&Outcome) -> Vec<f64>;

fn waits(report: &Report, alone: &Outcome, drawn: &[Drawn<'_>]) -> String {
    let plots: Vec<String> = [
        (
            "Time to first token",
            "share of requests served within",
            "milliseconds",
            ttft_ms as Values,
        ),
        (
            "Time per further token",
            "share of requests at most this slow",
            "milliseconds",
            tpot_ms,
        ),
    ]
    .into_iter()
    .filter_map(|(title, what, unit, of)| {
        let svg = curves(report, &of(alone), drawn, of, title, unit)?;
        Some(plot(title, what, &svg))
    })
    .collect();
    side_by_side(&plots)
}

fn returns(report: &Report, drawn: &[Drawn<'_>]) -> String {
    let plots: Vec<String> = [
        (
            "Preemption",
            "from an online launch to offline off the GPU",
            "microseconds",
            preempt_us as Values,
            "Nothing was preempted.",
        ),
        (
            "Reclaim",
            "from online asking for memory to having it",
            "milliseconds",
            reclaim_ms,
            "No memory was reclaimed: online's stayed within what it had.",
        ),
    ]
    .into_iter()
    .map(|(title, what, unit, of, none)| {
        let svg = curves(report, &[], drawn, of, title, unit);
        plot(
            title,
            what,
            &svg.unwrap_or_else(|| format!("<p class=\"none\">{none}</p>")),
        )
    })
    .collect();
    side_by_side(&plots)
}

/// The busiest stretch: the one with the most preemptions.
fn moment(outcome: &Outcome) -> String {
    let length = outcome.length.as_secs_f64();
    let seconds = STRIP_S.min(length).max(1e-3);
    let offs: Vec<f64> = outcome
        .preemptions
        .iter()
        .map(|one| one.off.as_secs_f64())
        .collect();
    let within = |from: f64| {
        let first = offs.partition_point(|at| *at < from);
        offs.partition_point(|at| *at < from + seconds) - first
    };
    let starts = offs
        .iter()
        .map(|at| (at - 0.5).clamp(0.0, (length - seconds).max(0.0)));
    // Of equals the first.
    let from = starts
        .map(|from| (within(from), from))
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map_or(0.0, |(_, from)| from);
    let fill = |wanted: &[SpanKind]| occupancy(outcome, wanted, from, seconds, COLUMNS);
    let lanes = [
        (
            "online",
            "alone",
            fill(&[SpanKind::OnlinePrefill, SpanKind::OnlineDecode]),
        ),
        ("offline", "own", fill(&[SpanKind::Offline])),
        ("switch", "bad", fill(&[SpanKind::Switch, SpanKind::Memory])),
    ];
    let marks: Vec<f64> = offs
        .iter()
        .copied()
        .filter(|at| (from..from + seconds).contains(at))
        .collect();
    let svg = strip("Who has the GPU", &lanes, from, seconds, &marks);
    let what = format!(
        "the {seconds:.0} seconds with the most preemptions; height: share of the time; lines: \
         preemptions; switch: saving, restoring, waiting for memory"
    );
    format!(
        "<div class=\"scroll\">{}</div>\n",
        plot("Who has the GPU,", &what, &svg)
    )
}

fn figures(report: &Report) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>policy</th><th>TTFT</th><th>p50, ms</th>\
         <th>p99, ms</th><th>TPOT</th><th>p50, ms</th><th>p99, ms</th><th>preemptions a request, \
         mean</th><th>most</th><th>latency p99, us</th><th>offline tokens/s</th><th>of the \
         GPU</th><th>of the oracle</th><th>reclaims a minute</th><th>lost tokens/s</th>\
         <th>computed again, tokens per token generated</th></tr></thead>\n<tbody>",
    );
    let alone = &report.alone;
    let _ = writeln!(
        out,
        "<tr><td>online alone</td><td>{} ms</td><td>{}</td><td>{}</td><td>{} ms</td><td>{}</td><td>{}</td>\
         <td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td></tr>",
        three(alone.ttft_ms.mean),
        three(alone.ttft_ms.p50),
        three(alone.ttft_ms.p99),
        three(alone.tpot_ms.mean),
        three(alone.tpot_ms.p50),
        three(alone.tpot_ms.p99),
    );
    let chosen = report.chosen().map(|row| row.case);
    for row in &report.rows {
        let counted = |text: String| if row.preempts() { text } else { "-".to_owned() };
        let cells = [
            percent(row.increase.0),
            three(row.ttft_ms.p50),
            three(row.ttft_ms.p99),
            percent(row.increase.1),
            three(row.tpot_ms.p50),
            three(row.tpot_ms.p99),
            counted(format!("{:.2}", row.per_request.0)),
            counted(row.per_request.1.to_string()),
            counted(thousands(row.preempt_us.p99)),
            thousands(row.tokens_per_s),
            format!("{:.0} %", 100.0 * row.gpu_share),
            row.vs_oracle
                .map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
            three(row.reclaims.0),
            thousands(row.lost_per_s),
            row.recompute_tax
                .map_or_else(|| "-".to_owned(), |tax| format!("{tax:.3}")),
        ];
        let mark = if Some(row.case) == chosen {
            " class=\"own\""
        } else {
            ""
        };
        let name = row.case.to_string();
        let _ = write!(out, "<tr{mark}><td>{}</td>", escaped(&name));
        for cell in cells {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::TIDEGATE;
    use crate::clock::Time;
    use crate::record::{Preemption, Request, Span};
    use crate::report::Alone;

    fn outcome() -> Outcome {
        let request = |i: u64| Request {
            arrival: Time(i * 1_000_000_000),
            first_token: Time(i * 1_000_000_000 + 20_000_000 + i),
            last_token: Time(i * 1_000_000_000 + 90_000_000),
            tokens: 10,
            preemptions: 1,
        };
        let span = |i: u64| Span {
            kind: SpanKind::Offline,
            from: Time(i * 1_000_000_000 + 100_000_000),
            to: Time(i * 1_000_000_000 + 900_000_000),
        };
        Outcome {
            length: std::time::Duration::from_secs(60),
            requests: (0..60).map(request).collect(),
            preemptions: vec![Preemption {
                wanted: Time(30_000_000_000),
                off: Time(30_000_300_000),
            }],
            timeline: (0..60).map(span).collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn a_page_stands_alone_and_its_tags_are_closed() {
        let report = Report {
            source: "a<b>&\"c\".csv".to_owned(),
            setting: vec![("Online", "<model>".to_owned())],
            alone: Alone::default(),
            rows: vec![Row::of(TIDEGATE, &[])],
        };
        let outcome = outcome();
        let drawn = [Drawn {
            case: TIDEGATE,
            outcome: &outcome,
        }];
        let page = page(&report, &outcome, &drawn);
        for fetched in [
            "<script", "http:", "https:", "src=", "url(", "@import", "<link",
        ] {
            assert!(!page.contains(fetched), "{fetched}");
        }
        assert!(!page.contains("<b>&\"c") && page.contains("a&lt;b&gt;&amp;&quot;c&quot;.csv"));
        assert!(page.contains("Who has the GPU") && page.contains("No memory was reclaimed"));
        let mut open = Vec::new();
        for tag in page.split('<').skip(1) {
            let name: String = tag
                .chars()
                .take_while(|c| c.is_alphanumeric() || "/!".contains(*c))
                .collect();
            let alone = tag
                .split('>')
                .next()
                .is_some_and(|inside| inside.ends_with('/'));
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop().as_deref(), Some(name), "{tag}"),
                None if alone || ["meta", "!DOCTYPE"].contains(&name.as_str()) => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        for about in [TIDEGATE.compute.about(), TIDEGATE.memory.about()] {
            assert!(page.contains(&escaped(about)), "{about} is not in {page}");
        }
    }

    #[test]
    fn the_moment_is_where_the_preemptions_are() {
        let svg = moment(&outcome());
        assert!(
            svg.contains("30 s</text>") && !svg.contains(">5 s</text>"),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"mark\"").count(), 1);
    }
}
