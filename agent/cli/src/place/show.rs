//! `tidegate place show`.

use super::look::{Look, Seen};
use crate::print::{Output, print, print_folded};
use crate::table::{Grid, long, number};
use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::fmt::Write as _;
use tidegate_place::memo::Memo;
use tidegate_place::offers::Offer;
use tidegate_text::screen::terminal_width;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    look: Look,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let seen = args.look.see()?;
    super::look::complain(&seen.refused);
    let offers = seen.offers(&Memo::read(&args.look.memo));
    match args.output {
        Output::Json => print(&format!("{:#}\n", as_json(&seen, &offers))),
        Output::Table => print_folded(&text(&seen, &offers, terminal_width())),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn text(seen: &Seen, offers: &[Offer], width: Option<u16>) -> String {
    let mut text = String::new();
    if let Some(why) = &seen.none {
        let _ = writeln!(text, "Nothing is published: {why}.\n");
    }
    let mut rows = Grid::new(&[
        long("PROFILE", 16),
        number("GPUS"),
        number("GIVES"),
        number("MEAN"),
        number("IDLE"),
        number("MEMORY"),
        number("LOST"),
        number("LEARNT"),
        number("WINDOWS"),
    ]);
    let mut why = String::new();
    for offer in offers {
        let parts = &offer.prediction.parts;
        let known = offer.prediction.refusals.is_empty();
        let or_dash = |text: String| if known { text } else { "-".to_owned() };
        rows.add([
            offer.profile.clone(),
            offer.gpus.to_string(),
            or_dash(percent(offer.prediction.ratio)),
            or_dash(percent(offer.prediction.mean)),
            or_dash(percent(parts.open)),
            or_dash(format!("{:.2}", parts.memory)),
            or_dash(percent(parts.switches + parts.moves + parts.again)),
            or_dash(format!("{:.2}", parts.correction)),
            or_dash(offer.prediction.windows.to_string()),
        ]);
        // Without a history the line above says all that there is to say.
        let refusals = offer.prediction.refusals.iter();
        for refusal in refusals.filter(|_| seen.none.is_none()) {
            let _ = writeln!(why, "{}: {refusal}", offer.profile);
        }
        if known && offer.prediction.unknown >= 0.005 {
            let _ = writeln!(
                why,
                "{}: {} of the time belongs to sets of gates beyond the 256 that are told apart, and counts as closed",
                offer.profile,
                percent(offer.prediction.unknown)
            );
        }
    }
    rows.show(width, &mut text);
    text.push_str(&why);
    text.push_str(
        "(GIVES: the share of its throughput alone that a job gets in nine windows of ten, and in nine of ten times \
         ten minutes, with the worst set of GPUs it may get; the least of fewer than ten. MEAN: of all windows. Of \
         the window that GIVES is from: IDLE, gates open; MEMORY, what the memory beside online allows of the rate; \
         LOST, time for switches, moved memory and computing again; LEARNT, what jobs got here over what was \
         predicted.)\n",
    );
    text
}

fn as_json(seen: &Seen, offers: &[Offer]) -> Value {
    let row = |offer: &Offer| {
        let (prediction, parts) = (&offer.prediction, &offer.prediction.parts);
        json!({
            "profile": offer.profile,
            "gpus": offer.gpus,
            "percent": seen.none.is_none().then(|| prediction.percent()).flatten(),
            "ratio": prediction.ratio,
            "mean": prediction.mean,
            "open": parts.open,
            "memory": parts.memory,
            "switches": parts.switches,
            "moves": parts.moves,
            "again": parts.again,
            "share": parts.share,
            "correction": parts.correction,
            "worst_gpus": prediction.gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>(),
            "windows": prediction.windows,
            "unknown": prediction.unknown,
            "why_none": prediction.refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    };
    json!({
        "why_none": seen.none,
        "idle": seen.facts.idle,
        "gpus": seen.facts.gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>(),
        "profiles": offers.iter().map(row).collect::<Vec<_>>(),
        "refused": seen.refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
