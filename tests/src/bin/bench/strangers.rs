//! What strangers cost an honest job's preemption: its own p99 alone against its p99 beside them, on one node.
//!
//! From the edge that the online process rings to the end of the last disable, which the device stamps. A stranger
//! attacks, is gone and the next one comes, so what one leaves behind is measured too.

use crate::row::{Row, quantile};
use tidegate_tests::attacks::ATTACKS;
use tidegate_tests::strangers::paired;

/// What `--attack` takes beside the names of attacks.
const ALL: &str = "all";

/// The names that `--attack` takes.
pub fn names() -> Vec<&'static str> {
    let names = ATTACKS.iter().map(|attack| attack.name);
    names.chain([ALL]).collect()
}

/// Measures `edges` alone and beside strangers of each kind that is named.
pub fn measure(named: &[String], edges: u32) -> Result<Vec<Row>, String> {
    let wanted = |name: &str| named.iter().any(|own| own == name || own == ALL);
    let mut out = Vec::new();
    for attack in ATTACKS.iter().filter(|attack| wanted(attack.name)) {
        let Some(found) = paired(attack, edges) else {
            return Err("it takes root to become another user".to_owned());
        };
        let found = found?;
        let key = format!("edge.attack.{}", attack.name.replace('-', "_"));
        let [alone, beside] = [&found.alone, &found.beside].map(|ns| micros(ns));
        let ratio = quantile(&beside, 99) / quantile(&alone, 99);
        for (what, sorted) in [("alone", &alone), ("beside", &beside)] {
            for percent in [50, 99] {
                let key = format!("{key}.{what}_p{percent}_us");
                out.push(Row::new(key, quantile(sorted, percent), "us"));
            }
        }
        out.push(Row::new(format!("{key}.p99_ratio"), ratio, "of idle").at_most(1.2));
    }
    Ok(out)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(ns: &[u64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = ns.iter().map(|ns| *ns as f64 / 1000.0).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}
