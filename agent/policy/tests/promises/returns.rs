//! What returns of online cost beside a trainer that a forecast lets in, for idle times that are drawn and for recorded ones
//! (`agent/replay/tests/finetune.rs`).

use tidegate_policy::forecast::Forecast;

/// A trainer that runs from the forecast's age on, and costs a return `delay_ns`: the mean delay of the returns, and the
/// share of the idle time in which it ran. Each idle time is learnt from once it is over.
pub fn mean_delay(idle_ns: &[u64], delay_ns: u64, budget_ns: u64) -> (f64, f64) {
    let mut forecast = Forecast::default();
    let (mut cost, mut ran) = (0, 0);
    for &idle in idle_ns {
        let from = forecast.from(delay_ns, budget_ns);
        let ran_for = from.and_then(|from| idle.checked_sub(from));
        let delayed = ran_for.map_or(0, |_| delay_ns);
        cost += delayed;
        ran += ran_for.unwrap_or(0);
        forecast.ended(idle, budget_ns, delayed);
    }
    let all: u64 = idle_ns.iter().sum();
    (
        cost as f64 / idle_ns.len() as f64,
        ran as f64 / all.max(1) as f64,
    )
}
