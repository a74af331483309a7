//! Results for people: a short table on the terminal, a page for `tests/hardware`.

use crate::probes;
use crate::report::{Found, Judged, Line, Machine, Verdict};
use anyhow::Context;
use std::fmt::Write;
use tidegate_text::screen::{Grid, fold, long, word as plain};

const CLASSES: &str = "\
(A: it disturbs nothing but its own throw-away contexts. B: it may stall the whole node, and runs only with \
--kernel-is-ours.)\n";

/// Figures of a probe that stand in the table; the others are in the page and the results.
const FIGURES: usize = 4;

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "PASS",
        Verdict::Fail => "FAIL",
        Verdict::Skip => "SKIP",
    }
}

/// A figure as people read it.
fn number(value: f64, unit: &str) -> String {
    let text = if value.fract() == 0.0 || value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    };
    if unit.is_empty() {
        text
    } else {
        format!("{text} {unit}")
    }
}

/// One line as it comes, for a terminal.
#[must_use]
pub fn live(line: &Line) -> Option<String> {
    match line {
        Line::Machine(machine) => Some(format!(
            "{}, driver {}, kernel {}",
            machine.gpu,
            or(&machine.driver, "absent"),
            machine.kernel
        )),
        Line::Verdict {
            probe,
            verdict,
            reason,
            seconds,
            ..
        } => Some(format!(
            "{probe:<5} {}  {seconds:6.1} s  {reason}",
            word(*verdict)
        )),
        Line::Figure { .. } | Line::Note { .. } => None,
    }
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// The verdicts and the figures that stand for a probe, as a table for a terminal of `width` cells, if there is one.
#[must_use]
pub fn table(lines: &[Line], width: Option<u16>) -> String {
    let mut table = Grid::new(&[
        plain("PROBE"),
        plain("RESULT"),
        long("QUESTION", 20),
        long("FIGURES", 24),
    ]);
    for line in lines {
        let Line::Verdict { probe, verdict, .. } = line else {
            continue;
        };
        let figures: Vec<String> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Figure {
                    probe: of,
                    name,
                    value,
                    unit,
                } if of == probe => Some(format!("{name} {}", number(*value, unit))),
                _ => None,
            })
            .take(FIGURES)
            .collect();
        let question = probes::find(probe).map_or("is all as it was?", |probe| probe.question);
        table.add([
            probe.clone(),
            word(*verdict).to_owned(),
            question.to_owned(),
            figures.join(", "),
        ]);
    }
    let mut text = String::new();
    table.show(width, &mut text);
    fitted(&text, width)
}

/// Every probe, its class and its question.
#[must_use]
pub fn list(width: Option<u16>) -> String {
    let mut table = Grid::new(&[plain("PROBE"), plain("CLASS"), long("QUESTION", 40)]);
    for probe in probes::ALL {
        table.add([
            probe.id.to_owned(),
            format!("{:?}", probe.class),
            probe.question.to_owned(),
        ]);
    }
    let mut text = String::new();
    table.show(width, &mut text);
    text.push_str(CLASSES);
    fitted(&text, width)
}

/// `text` with no line wider than the terminal.
#[must_use]
pub fn fitted(text: &str, width: Option<u16>) -> String {
    width.map_or_else(|| text.to_owned(), |width| fold(text, usize::from(width)))
}

/// Reads results written one line each.
///
/// # Errors
/// When a line is none, with its number.
pub fn parse(text: &str) -> anyhow::Result<Vec<Line>> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(at, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}: not a result", at + 1))
        })
        .collect()
}

/// The machine of some results.
///
/// # Errors
/// When they do not say.
pub fn machine(lines: &[Line]) -> anyhow::Result<&Machine> {
    machines(lines)
        .next()
        .context("the results do not say on which machine they were found")
}

fn machines(lines: &[Line]) -> impl Iterator<Item = &Machine> {
    lines.iter().filter_map(|line| match line {
        Line::Machine(machine) => Some(machine.as_ref()),
        _ => None,
    })
}

/// A file name without extension for results: GPU and driver.
///
/// # Errors
/// When they do not say.
pub fn stem(lines: &[Line]) -> anyhow::Result<String> {
    let machine = machine(lines)?;
    let part = |text: &str| -> String {
        let clean: String = text
            .trim_start_matches("NVIDIA ")
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '.' {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect();
        clean.trim_matches('-').to_owned()
    };
    Ok(format!(
        "{}-{}",
        part(&machine.gpu),
        part(or(&machine.driver, "no-driver"))
    ))
}

/// The page.
///
/// # Errors
/// When the results do not name their machine.
pub fn page(lines: &[Line]) -> anyhow::Result<String> {
    let machine = machine(lines)?;
    let same = |run: &Machine| (&run.gpu, &run.driver) == (&machine.gpu, &machine.driver);
    anyhow::ensure!(
        machines(lines).all(same),
        "the results are of several machines"
    );
    let mut page = String::new();
    let w = &mut page;
    writeln!(
        w,
        "# {}, driver {}\n",
        machine.gpu,
        or(&machine.driver, "absent")
    )?;
    let runs: Vec<String> = machines(lines)
        .map(|run| format!("on {} with `{}`", run.date, run.command))
        .collect();
    writeln!(w, "Found {}", runs.join(", "))?;
    writeln!(
        w,
        "on kernel {}{}, {} processors, {}{}.\n",
        machine.kernel,
        if machine.sandbox.is_empty() {
            String::new()
        } else {
            format!(" ({})", machine.sandbox)
        },
        machine.cpus,
        machine.libc,
        if machine.commit.is_empty() {
            String::new()
        } else {
            format!(", commit {}", machine.commit)
        },
    )?;
    if machine.gpu == "virtual" {
        writeln!(
            w,
            "These are figures of the virtual GPU: assumptions, not measurements.\n"
        )?;
    }
    writeln!(w, "| probe | | question | |\n|---|---|---|---|")?;
    for line in lines {
        if let Line::Verdict {
            probe,
            verdict,
            reason,
            ..
        } = line
        {
            let question = probes::find(probe).map_or("", |probe| probe.question);
            writeln!(
                w,
                "| {probe} | {} | {question} | {} |",
                word(*verdict),
                cell(reason)
            )?;
        }
    }
    guesses(w, lines)?;
    let mut seen = Vec::new();
    for line in lines {
        let (Line::Figure { probe, .. } | Line::Note { probe, .. }) = line else {
            continue;
        };
        if seen.contains(&probe) {
            continue;
        }
        seen.push(probe);
        section(w, probe, lines)?;
    }
    Ok(page)
}

/// What the design took for granted, and what was found.
fn guesses(w: &mut String, lines: &[Line]) -> std::fmt::Result {
    let judged: Vec<(&str, &Judged)> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Verdict { probe, guesses, .. } => Some((probe.as_str(), guesses)),
            _ => None,
        })
        .flat_map(|(probe, guesses)| guesses.iter().map(move |one| (probe, one)))
        .collect();
    if judged.is_empty() {
        return Ok(());
    }
    writeln!(
        w,
        "\n## What was guessed\n\n| guess | | by |\n|---|---|---|"
    )?;
    for (probe, Judged { guess, found }) in judged {
        let found = match found {
            Found::Confirmed => "confirmed",
            Found::Refuted => "refuted",
        };
        writeln!(w, "| {} | {found} | {probe} |", cell(guess))?;
    }
    Ok(())
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn section(w: &mut String, probe: &str, lines: &[Line]) -> std::fmt::Result {
    writeln!(w, "\n## {probe}\n")?;
    let figures: Vec<(&str, String)> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Figure {
                probe: of,
                name,
                value,
                unit,
            } if of == probe => Some((name.as_str(), number(*value, unit))),
            _ => None,
        })
        .collect();
    if !figures.is_empty() {
        writeln!(w, "| figure | |\n|---|---|")?;
        for (name, value) in figures {
            writeln!(w, "| {} | {value} |", cell(name))?;
        }
    }
    for line in lines {
        if let Line::Note { probe: of, text } = line
            && of == probe
        {
            writeln!(w, "\n{text}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    fn lines() -> Vec<Line> {
        parse(concat!(
            r#"{"kind":"machine","gpu":"NVIDIA H200","driver":"580.95.05","kernel":"6.1","sandbox":"","cpus":16,"libc":"glibc 2.39","date":"2026-01-31","command":"run","commit":""}"#,
            "\n",
            r#"{"kind":"figure","probe":"P2","name":"disable p50","value":412.5,"unit":"us"}"#,
            "\n",
            r#"{"kind":"verdict","probe":"P2","verdict":"PASS","reason":"","seconds":3.5,"guesses":[{"guess":"it stops","found":"confirmed"}]}"#,
            "\n",
        ))
        .expect("results")
    }

    /// P-OPERATE-16: what the probes print is as wide as the terminal at most, whatever they found, and no question is
    /// cut.
    #[test]
    fn what_is_printed_fits_the_terminal() {
        let mut found = lines();
        for probe in probes::ALL {
            for name in [
                "disable p50",
                "runs after a stop that the firmware did not honour",
            ] {
                found.push(Line::Figure {
                    probe: probe.id.to_owned(),
                    name: name.to_owned(),
                    value: 12_345.678,
                    unit: "us".to_owned(),
                });
            }
            found.push(Line::Verdict {
                probe: probe.id.to_owned(),
                verdict: Verdict::Skip,
                reason: "no-blank-in-this".repeat(20) + " nor a short end " + probe.question,
                seconds: 1_234.5,
                guesses: Vec::new(),
            });
        }
        for width in [40, 80, 100, 200] {
            let live: Vec<String> = found.iter().filter_map(live).collect();
            let screens = [
                ("list", list(Some(width))),
                ("table", table(&found, Some(width))),
                ("live", fitted(&live.join("\n"), Some(width))),
            ];
            for (name, text) in screens {
                let wide = text.lines().find(|line| line.width() > usize::from(width));
                assert!(wide.is_none(), "{name}, {width}: {wide:?}\n{text}");
                let words: Vec<&str> = text.split_whitespace().collect();
                for word in probes::ALL
                    .iter()
                    .flat_map(|probe| probe.question.split(' '))
                {
                    let is_whole = words.contains(&word) || width < 80;
                    assert!(is_whole, "{name}, {width}: {word} is not in\n{text}");
                }
            }
        }
    }

    #[test]
    fn results_are_filed_under_their_gpu_and_driver() {
        assert_eq!(stem(&lines()).expect("named"), "h200-580.95.05");
        assert!(stem(&lines()[1..]).is_err());
    }

    #[test]
    fn a_page_has_the_date_the_command_the_verdicts_and_the_figures() {
        let page = page(&lines()).expect("a page");
        for part in [
            "NVIDIA H200",
            "2026-01-31",
            "`run`",
            "| P2 | PASS |",
            "| disable p50 | 412 us |",
            "| it stops | confirmed | P2 |",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn runs_of_several_machines_are_no_page() {
        let mut both = lines();
        let mut other = machine(&both).expect("named").clone();
        other.driver = "595.45.04".to_owned();
        both.push(Line::Machine(Box::new(other)));
        assert!(page(&both).is_err());
        both.extend(lines());
        both.remove(lines().len());
        assert!(page(&both).is_ok());
    }

    #[test]
    fn a_broken_line_is_named_by_its_number() {
        let error = parse("\n{\"kind\":\"note\"}\n").expect_err("no probe, no text");
        assert!(error.to_string().contains("line 2"), "{error:#}");
    }
}
