//! Times as people read them.

/// A time with two or three figures.
#[must_use]
pub fn time(ns: u64) -> String {
    let scaled = |unit: u64, name: &str| {
        let whole = ns / unit;
        if whole >= 10 {
            format!("{whole} {name}")
        } else {
            format!("{whole}.{} {name}", ns % unit * 10 / unit)
        }
    };
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(1_000, "us"),
        1_000_000..1_000_000_000 => scaled(1_000_000, "ms"),
        1_000_000_000..120_000_000_000 => scaled(1_000_000_000, "s"),
        120_000_000_000..7_200_000_000_000 => scaled(60_000_000_000, "min"),
        _ => scaled(3_600_000_000_000, "h"),
    }
}
