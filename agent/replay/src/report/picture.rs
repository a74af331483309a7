//! A few runs of the same requests above one another, as one SVG file: who has the GPU, and what it costs.
//!
//! The file stands alone, so that a README can show it: it fetches nothing, and it follows the reader's light or dark.

use std::fmt::Write as _;
use std::time::Duration;

use crate::record::{Outcome, SpanKind};
use crate::report::occupancy::occupancy;
use tidegate_text::numbers::{thousands, three};
use tidegate_text::svg::escaped;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 16.0;
/// Where the lanes begin: names of lanes stand left of it.
const LEFT: f64 = 76.0;
const HEAD: f64 = 64.0;
const TITLE: f64 = 26.0;
const LANE: f64 = 30.0;
const GAP: f64 = 18.0;
/// Columns of a lane: about one for each pixel of a page.
const COLUMNS: usize = 850;
/// Heights of a lane.
const STEPS: f64 = 20.0;
/// The stretch that is drawn: long enough for some requests, short enough for single iterations to show.
const SECONDS: f64 = 10.0;

/// Colours where the reader prefers dark. The light ones are attributes, which every viewer knows.
const DARK: &str = "@media(prefers-color-scheme:dark){text{fill:#e4eaee}.q{fill:#98a4ac}.page{fill:#12181c}\
.on{fill:#7ba7e8}.off{fill:#35c9b8}.axis{stroke:#3a464e}}";
const QUIET: &str = "class=\"q\" fill=\"#5b6870\"";
const HEADING: &str = "font-weight=\"600\" font-size=\"15\"";

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// For people.
    pub name: &'a str,
    /// The run, with its time line.
    pub outcome: &'a Outcome,
}

/// The picture. `about` says what ran; the command that draws it again belongs there.
#[must_use]
pub fn svg(shown: &[Shown<'_>], about: &str) -> String {
    let length = shown.iter().map(|run| run.outcome.length).max();
    let length = length.unwrap_or(Duration::ZERO).as_secs_f64();
    let seconds = SECONDS.min(length).max(1e-3);
    // The middle of the first run, so that neither its start nor its end is shown.
    let from = ((length - seconds) / 2.0).max(0.0).floor();
    let each = TITLE + 2.0 * LANE + GAP;
    let height = HEAD + each * shown.len() as f64 + 22.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui,sans-serif\" font-size=\"13\" fill=\"#1c2226\" \
         aria-label=\"{0}\"><title>{0}</title><style>{DARK}</style>\n\
         <rect class=\"page\" fill=\"#fff\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n\
         <text x=\"{MARGIN}\" y=\"28\" {HEADING}>Who has the GPU: {seconds:.0} seconds of the same requests</text>\n\
         <text x=\"{MARGIN}\" y=\"49\" {QUIET}>{1}</text>\n",
        "Who has the GPU, online and offline, in several runs of the same requests",
        escaped(about),
    );
    let first = shown.first().map(|run| run.outcome);
    for (nth, run) in shown.iter().enumerate() {
        let top = HEAD + each * nth as f64;
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{0:.0}\" {HEADING}>{1}</text>\
             <text x=\"{2}\" y=\"{0:.0}\" text-anchor=\"end\">{3}</text>",
            top + 16.0,
            escaped(run.name),
            WIDTH - MARGIN,
            escaped(&figures(run.outcome, first)),
        );
        let lanes = [
            (
                "online",
                "on",
                "#3f6fb5",
                &[SpanKind::OnlinePrefill, SpanKind::OnlineDecode][..],
            ),
            ("offline", "off", "#00776f", &[SpanKind::Offline][..]),
        ];
        for (lane, (name, class, fill, kinds)) in lanes.into_iter().enumerate() {
            let base = top + TITLE + LANE * (lane + 1) as f64 - 4.0;
            let shares = occupancy(run.outcome, kinds, from, seconds, COLUMNS);
            let colour = format!("class=\"{class}\" fill=\"{fill}\"");
            draw(&mut out, name, &colour, base, &shares);
        }
    }
    axis(&mut out, height, from, seconds);
    out.push_str("</svg>\n");
    out
}

/// Time to first token and per further token, compared with the first run, and what offline did.
fn figures(outcome: &Outcome, first: Option<&Outcome>) -> String {
    let (ttft, tpot) = means(outcome);
    let alone = first.map(means);
    let more = |value: f64, of: Option<f64>| {
        of.filter(|of| *of > 0.0 && value != *of)
            .map_or_else(String::new, |of| {
                format!(" ({:+.0} %)", (value / of - 1.0) * 100.0)
            })
    };
    format!(
        "first token {} ms{}, further tokens {} ms{}, offline {} tokens/s",
        three(ttft),
        more(ttft, alone.map(|alone| alone.0)),
        three(tpot),
        more(tpot, alone.map(|alone| alone.1)),
        thousands(outcome.offline_tokens_per_s()),
    )
}

/// Mean times to first token and per further token, ms.
fn means(outcome: &Outcome) -> (f64, f64) {
    let requests = &outcome.requests;
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64 * 1e3;
    (
        mean(
            requests
                .iter()
                .map(|one| one.ttft().as_secs_f64())
                .collect(),
        ),
        mean(
            requests
                .iter()
                .filter_map(|one| Some(one.tpot()?.as_secs_f64()))
                .collect(),
        ),
    )
}

/// One lane: its height in each column is the share of the time.
fn draw(out: &mut String, name: &str, colour: &str, base: f64, shares: &[f64]) {
    let tall = LANE - 8.0;
    let wide = (WIDTH - MARGIN - LEFT) / shares.len().max(1) as f64;
    let mut path = format!("M{LEFT} {base:.1}");
    let mut last = 0;
    for (column, share) in shares.iter().enumerate() {
        // A column that is used at all shows.
        let share: f64 = if *share > 0.0 {
            share.clamp(0.06, 1.0)
        } else {
            0.0
        };
        let step = (share * STEPS).round() as u32;
        if step != last {
            let _ = write!(
                path,
                "H{:.1}V{:.1}",
                LEFT + wide * column as f64,
                base - tall * f64::from(step) / STEPS
            );
            last = step;
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.0}\" y=\"{:.1}\" {QUIET} text-anchor=\"end\">{name}</text>\
         <path {colour} d=\"{path}H{right}V{base:.1}Z\"/>\
         <path class=\"axis\" stroke=\"#c3ccd2\" d=\"M{LEFT} {base:.1}H{right}\"/>",
        LEFT - 8.0,
        base - tall / 2.0 + 4.0,
        right = WIDTH - MARGIN,
    );
}

fn axis(out: &mut String, height: f64, from: f64, seconds: f64) {
    let room = WIDTH - MARGIN - LEFT;
    for second in 0..=seconds.floor() as u32 {
        let at = LEFT + room * f64::from(second) / seconds;
        let anchor = if at + 8.0 > WIDTH - MARGIN {
            "end"
        } else {
            "middle"
        };
        let _ = write!(
            out,
            "<text x=\"{at:.1}\" y=\"{:.0}\" {QUIET} text-anchor=\"{anchor}\">{} s</text>",
            height - 12.0,
            from + f64::from(second),
        );
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Time;
    use crate::record::{Request, Span};

    fn run(offline: bool) -> Outcome {
        let mut outcome = Outcome {
            length: Duration::from_secs(10),
            ..Outcome::default()
        };
        outcome.requests.push(Request {
            first_token: Time(20_000_000),
            last_token: Time(120_000_000),
            tokens: 11,
            ..Request::default()
        });
        let mut span = |kind, from: u64, to: u64| {
            outcome.timeline.push(Span {
                kind,
                from: Time(from * 1_000_000_000),
                to: Time(to * 1_000_000_000),
            });
        };
        span(SpanKind::OnlineDecode, 0, 2);
        if offline {
            span(SpanKind::Offline, 2, 10);
        }
        outcome
    }

    #[test]
    fn a_lane_is_as_long_as_its_program_had_the_gpu_and_names_are_escaped() {
        let (alone, both) = (run(false), run(true));
        let shown = [("alone", &alone), ("a<b", &both)];
        let shown = shown.map(|(name, outcome)| Shown { name, outcome });
        let svg = svg(&shown, "made up");
        let lanes: Vec<&str> = svg.split("d=\"M76 ").skip(1).step_by(2).collect();
        assert_eq!(lanes.len(), 4, "{svg}");
        // Two of ten seconds of 868 units, from 76 on; nothing; the same; the other eight.
        let ends = |lane: &str| {
            let path = &lane[..lane.find('Z').expect("an area")];
            path.matches('H').count()
        };
        assert_eq!(
            lanes.iter().map(|lane| ends(lane)).collect::<Vec<_>>(),
            [3, 1, 3, 2]
        );
        assert!(lanes[0].contains("H249.6"), "{}", lanes[0]);
        assert!(lanes[3].contains("H249.6"), "{}", lanes[3]);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(svg.contains("first token 20.0 ms, further tokens 10.0 ms, offline 0 tokens/s"));
    }
}
