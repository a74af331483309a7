//! What offline cost online's users, beside what `[slo]` allows.

use super::{Grid, number, word};
use std::fmt::Write as _;
use tidegate_proto::v1;

/// A part of a whole as a rise in percent; "-" of nothing.
fn rise(part_ns: u64, whole_ns: u64) -> String {
    if whole_ns == 0 {
        return "-".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "ratios, for people")]
    let percent = 100.0 * part_ns as f64 / whole_ns as f64;
    format!("+{percent:.2}%")
}

fn allowed(basis: u32) -> String {
    format!("+{:.2}%", f64::from(basis) / 100.0)
}

/// A row for each GPU with a budget; nothing where `[slo]` is off.
pub(super) fn status(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        word("GPU"),
        number("TTFT"),
        number("ALLOWED"),
        number("BY PREEMPTION").spare(2),
        number("BY MEMORY").spare(3),
        number("TPOT"),
        number("ALLOWED"),
        number("SHORTAGES").spare(1),
    ]);
    for gpu in &report.gpus {
        let Some(budget) = gpu.budget.filter(|budget| budget.ttft_allowed != 0) else {
            continue;
        };
        let waited = budget.preempted_ns.saturating_add(budget.short_ns);
        rows.add([
            gpu.index.to_string(),
            rise(waited, budget.prompts_ns),
            allowed(budget.ttft_allowed),
            rise(budget.preempted_ns, budget.prompts_ns),
            rise(budget.short_ns, budget.prompts_ns),
            rise(budget.short_tpot_ns, budget.busy_ns),
            allowed(budget.tpot_allowed),
            budget.shortages.to_string(),
        ]);
    }
    if !rows.is_empty() {
        text.push('\n');
        rows.show(width, text);
        let _ = writeln!(
            text,
            "(what offline cost online in the last ten minutes: waits by the work that they delayed)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-MEMORY-20: status shows how much of the budget is used, and by what.
    #[test]
    fn what_is_used_stands_beside_what_is_allowed_and_off_says_nothing() {
        let budget = v1::Budget {
            prompts_ns: 10_000_000_000,
            busy_ns: 50_000_000_000,
            preempted_ns: 20_000_000,
            short_ns: 45_000_000,
            short_tpot_ns: 60_000_000,
            shortages: 3,
            ttft_allowed: 100,
            tpot_allowed: 50,
        };
        let with = |budget| v1::GetStatusResponse {
            gpus: vec![v1::GpuStatus {
                budget: Some(budget),
                ..v1::GpuStatus::default()
            }],
            ..v1::GetStatusResponse::default()
        };
        let said = |report: &v1::GetStatusResponse| {
            let mut text = String::new();
            status(report, None, &mut text);
            text
        };
        let text = said(&with(budget));
        let row = text.lines().find(|line| line.contains("+0.65%"));
        let cells: Vec<_> = row.expect("a row").split_whitespace().collect();
        let figures = [
            "0", "+0.65%", "+1.00%", "+0.20%", "+0.45%", "+0.12%", "+0.50%", "3",
        ];
        assert_eq!(cells, figures, "{text}");
        let off = v1::Budget {
            ttft_allowed: 0,
            ..budget
        };
        assert_eq!(said(&with(off)), "");
        let idle = v1::Budget {
            prompts_ns: 0,
            ..budget
        };
        assert!(said(&with(idle)).contains(" - "), "{}", said(&with(idle)));
    }
}
