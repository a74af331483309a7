//! Plots as inline SVG: axes, curves and bars, coloured by the page's style sheet.
//!
//! Everything is drawn in a box of [`WIDTH`] units that the page scales, so text keeps its place at
//! any width. Colours are classes (`s0`, `s1` ...), so that light and dark are the page's affair.

use std::fmt::Write as _;

/// Units across a plot.
pub const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;
/// Points of one curve: more than a screen shows.
const POINTS: usize = 240;

/// One curve.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// Shown when pointed at.
    pub name: &'a str,
    /// Its colour and strength: classes of the style sheet.
    pub class: String,
    /// Its values, in any order.
    pub values: &'a [f64],
}

/// Text as it stands in HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// A logarithmic axis shows so much: what lies below is at its beginning.
const DECADES: f64 = 1e5;

/// A logarithmic axis from a value below all to a value above.
#[derive(Clone, Copy, Debug)]
struct Log {
    low: f64,
    high: f64,
}

impl Log {
    fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values
            .filter(|value| (1e-6..=1e12).contains(value))
            .fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| {
                (low.min(value), high.max(value))
            });
        // A single value gets room on both sides. Times are neither shorter nor longer than that.
        (low <= high).then(|| Self {
            low: (low / 1.08).max(high / DECADES),
            high: (high * 1.08).max(low * 1.6),
        })
    }

    fn share(&self, value: f64) -> f64 {
        ((value.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln()).min(1.0)
    }

    /// As many round numbers as seven.
    fn ticks(&self) -> Vec<f64> {
        let within = |steps: &[f64]| -> Vec<f64> {
            let powers = -6..=12;
            let all =
                powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            all.filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let choices: [&[f64]; 5] = [
            &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
            &[1.0, 2.0, 3.0, 5.0, 7.0],
            &[1.0, 2.0, 5.0],
            &[1.0, 3.0],
            &[1.0],
        ];
        let fitting = choices.iter().map(|steps| within(steps));
        let mut fitting = fitting.filter(|ticks| ticks.len() <= 7);
        fitting
            .next()
            .unwrap_or_else(|| within(&[1.0]).into_iter().step_by(2).collect())
    }
}

/// A number on an axis.
fn label(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e4 => format!("{}k", v / 1e3),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

fn open(out: &mut String, height: f64, title: &str) {
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
}

/// Cumulative shares of each curve's values over a logarithmic axis; `None` if there are no values.
#[must_use]
pub fn cumulative(title: &str, unit: &str, curves: &[Curve<'_>]) -> Option<String> {
    let log = Log::over(curves.iter().flat_map(|curve| curve.values.iter().copied()))?;
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = |value: f64| LEFT + (right - LEFT) * log.share(value);
    let y = |share: f64| floor - (floor - TOP) * share;
    let mut out = String::new();
    open(&mut out, HEIGHT, title);
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{:.0} %</text>",
            LEFT - 5.0,
            y(tick) + 4.0,
            100.0 * tick,
            at = y(tick),
        );
    }
    for tick in log.ticks() {
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{floor}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" class=\"mid\">{}</text>",
            floor + 15.0,
            label(tick),
            at = x(tick),
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"mid\">{} (logarithmic)</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 6.0,
        escaped(unit)
    );
    for curve in curves {
        let mut values = curve.values.to_vec();
        values.retain(|value| !value.is_nan());
        if values.is_empty() {
            continue;
        }
        values.sort_by(f64::total_cmp);
        let mut path = format!("M{:.1} {:.1}", x(values[0]), y(0.0));
        let steps = values.len().min(POINTS);
        for step in 1..=steps {
            let rank = (values.len() * step).div_ceil(steps);
            let _ = write!(
                path,
                "H{:.1}V{:.1}",
                x(values[rank - 1]),
                y(rank as f64 / values.len() as f64)
            );
        }
        let _ = write!(path, "H{right}");
        let _ = write!(
            out,
            "<path class=\"curve {}\" d=\"{path}\"><title>{}</title></path>",
            curve.class,
            escaped(curve.name)
        );
    }
    out.push_str("</svg>");
    Some(out)
}

/// One bar: name, class, value, and the value as written beside it.
pub type Bar = (String, String, f64, String);

/// Horizontal bars, in the order given, with a line at `bound`. With `logarithmic`, values up to a
/// tenth of the bound have no length and the axis says so.
#[must_use]
pub fn bars(title: &str, bars: &[Bar], bound: Option<f64>, logarithmic: bool) -> String {
    const ROW: f64 = 24.0;
    const NAMES: f64 = 142.0;
    const FIGURES: f64 = 74.0;
    let height = 10.0 + ROW * bars.len() as f64;
    let room = WIDTH - NAMES - FIGURES;
    let most = bars
        .iter()
        .map(|bar| bar.2)
        .filter(|value| value.is_finite())
        .chain(bound)
        .fold(0.0, f64::max);
    let log = bound.filter(|_| logarithmic).map(|bound| Log {
        low: bound / 10.0,
        high: most.max(bound * 10.0),
    });
    let length = |value: f64| match log {
        Some(log) => room * log.share(value.max(log.low)),
        None if most > 0.0 => room * (value.max(0.0) / most),
        None => 0.0,
    };
    let mut out = String::new();
    open(&mut out, height, title);
    if let Some(bound) = bound {
        let at = NAMES + length(bound);
        let _ = write!(
            out,
            "<path class=\"bound\" d=\"M{at:.1} 2V{:.1}\"/>",
            height - 2.0
        );
    }
    for (i, (name, class, value, figure)) in bars.iter().enumerate() {
        let top = 5.0 + ROW * i as f64;
        let long = length(*value);
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{}</text>\
             <rect class=\"bar {class}\" x=\"{NAMES}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"figure\">{}</text>",
            NAMES - 7.0,
            top + 16.0,
            escaped(name),
            top + 4.0,
            long.max(1.0),
            ROW - 8.0,
            NAMES + long.max(1.0) + 6.0,
            top + 16.0,
            escaped(figure),
        );
    }
    out.push_str("</svg>");
    out
}

/// One lane of a strip: its name, class, and how full each column of it is, from 0 to 1.
pub type Lane<'a> = (&'a str, &'a str, Vec<f64>);

/// Lanes over time, from second `from` on for `seconds`, with marks at `marks`.
#[must_use]
pub fn strip(title: &str, lanes: &[Lane<'_>], from: f64, seconds: f64, marks: &[f64]) -> String {
    const WIDE: f64 = 960.0;
    const LANE: f64 = 46.0;
    const NAMES: f64 = 66.0;
    let floor = 8.0 + LANE * lanes.len() as f64;
    let height = floor + 34.0;
    let room = WIDE - NAMES - 14.0;
    let x = |s: f64| NAMES + room * ((s - from) / seconds).clamp(0.0, 1.0);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDE} {height}\" role=\"img\" aria-label=\"{}\" class=\"wide\">",
        escaped(title)
    );
    for (i, (name, class, columns)) in lanes.iter().enumerate() {
        let base = 8.0 + LANE * (i + 1) as f64 - 6.0;
        let tall = LANE - 12.0;
        let wide = room / columns.len().max(1) as f64;
        let mut path = format!("M{NAMES} {base:.1}");
        for (column, full) in columns.iter().enumerate() {
            // A column that is used at all shows.
            let full = if *full > 0.0 {
                full.clamp(0.04, 1.0)
            } else {
                0.0
            };
            let to = NAMES + wide * (column + 1) as f64;
            let _ = write!(path, "V{:.1}H{to:.1}", base - tall * full);
        }
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{}</text>\
             <path class=\"area {class}\" d=\"{path}V{base:.1}Z\"/>\
             <path class=\"axis\" d=\"M{NAMES} {base:.1}H{:.1}\"/>",
            NAMES - 8.0,
            base - tall / 2.0 + 4.0,
            escaped(name),
            NAMES + room,
        );
    }
    for mark in marks {
        let _ = write!(
            out,
            "<path class=\"mark\" d=\"M{:.1} 4V{floor:.1}\"/>",
            x(*mark)
        );
    }
    let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0]
        .into_iter()
        .find(|step| seconds / step <= 12.0)
        .unwrap_or(seconds / 6.0);
    let mut tick = (from / step).ceil() * step;
    while tick <= from + seconds + 1e-9 {
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{at:.1} {floor:.1}v5\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" class=\"mid\">{} s</text>",
            floor + 19.0,
            label((tick * 1e3).round() / 1e3),
            at = x(tick),
        );
        tick += step;
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_none_to_all() {
        let values: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let curve = Curve {
            name: "a<b",
            class: "s1".to_owned(),
            values: &values,
        };
        let svg = cumulative("t", "ms", &[curve]).expect("values");
        let path = svg
            .split("class=\"curve s1\" d=\"")
            .nth(1)
            .expect("a curve");
        let path = &path[..path.find('"').expect("its end")];
        let heights = path.split('V').skip(1);
        let heights: Vec<f64> = heights
            .filter_map(|step| step.split('H').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), POINTS);
        assert!(heights.is_sorted_by(|a, b| a >= b), "y grows downwards");
        assert!(heights[0] < HEIGHT - BOTTOM && heights[POINTS - 1] == TOP);
        assert!(svg.contains("a&lt;b"));
        assert!(cumulative("t", "ms", &[]).is_none());
    }

    #[test]
    fn axes_have_a_few_round_ticks() {
        for (low, high) in [
            (0.1, 0.11),
            (5.0, 7.0),
            (1.0, 1_000.0),
            (0.001, 1e6),
            (20.0, 90_000.0),
        ] {
            let ticks = Log::over([low, high].into_iter()).expect("values").ticks();
            assert!((1..=7).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn no_value_breaks_a_plot() {
        let odd = [3.0, 0.0, -1.0, f64::NAN, f64::INFINITY, 5e-324, 1e300];
        let curve = Curve {
            name: "odd",
            class: String::new(),
            values: &odd,
        };
        let bar = |value: f64| ("n".to_owned(), String::new(), value, String::new());
        let mut all = cumulative("t", "u", &[curve]).unwrap_or_default();
        for value in odd {
            all += &bars("t", &[bar(value), bar(1.0)], Some(2.0), true);
            all += &bars("t", &[bar(value)], None, false);
        }
        all += &strip("t", &[("n", "c", vec![])], 0.0, 1.0, &[]);
        assert!(!all.contains("NaN") && !all.contains("inf"));
    }
}
