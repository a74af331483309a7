//! The price list of what tenants say is what the agent's threads measure.

use tidegate_agent::grpc::budget::prices::ALL;
use tidegate_fuzz::prices::{list, measured, rounded};

/// A price may be this many times too high or too low. The machine that made the list is another one, and a round that
/// nothing interrupts is rare beside other programs.
const FACTOR: f64 = 3.0;
/// A busy machine may have each of its rounds interrupted: a price that is wrong is wrong each time.
const TRIES: usize = 3;

/// P-SECURITY-9: preemption does not wait for what a stranger says.
#[test]
fn prices_are_what_the_agents_threads_measure() {
    if std::env::var_os("TIDEGATE_REGENERATE").is_some() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../agent/src/grpc/budget/prices.rs"
        );
        std::fs::write(path, list(&measured().0)).expect("the sources are writable");
        return;
    }
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        wrong = beyond();
        if wrong.is_empty() {
            return;
        }
    }
    panic!(
        "prices differ by more than {FACTOR} times (TIDEGATE_REGENERATE=1 cargo test -p tidegate-fuzz --test prices): {wrong:?}"
    );
}

/// What is too far from its price, and what is charged too little for.
fn beyond() -> Vec<String> {
    let (prices, taken) = measured();
    let names: Vec<&str> = prices.iter().map(|price| price.name).collect();
    assert_eq!(
        names,
        ALL.map(|(name, _)| name),
        "the list has other prices"
    );
    let mut wrong = Vec::new();
    for (price, (name, listed)) in prices.iter().zip(ALL) {
        let whole = |price_of: u64| (price_of + price.beside) as f64;
        let times = whole(rounded(price)) / whole(listed);
        println!("{name}: {listed}, measured {:.1}", price.measured);
        if !(1.0 / FACTOR..=FACTOR).contains(&times) {
            wrong.push(format!("{name}: {listed}, measured {:.1}", price.measured));
        }
    }
    let cheap = taken
        .iter()
        .filter(|taken| taken.takes > FACTOR * taken.charged);
    wrong.extend(cheap.map(|taken| format!("{taken:?}")));
    wrong
}
