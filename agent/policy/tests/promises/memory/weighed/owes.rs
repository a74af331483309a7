//! What a job owes that paid nothing for long, since it never had more than it deserved.

use super::*;

/// Tokens of one stripe.
const TOKENS: u64 = 100;

/// Online wants `bytes` and gives them back. Says what each of two jobs lost.
fn round(world: &mut World, bytes: u64) -> [u64; 2] {
    for id in 0..2 {
        let stripes = world.jobs[&id].stripes;
        publish(world, id, stripes, TOKENS);
    }
    world.bench.reports.clear();
    world.ask(0, bytes);
    world.calm(20);
    let mut lost = [0; 2];
    for report in std::mem::take(&mut world.bench.reports) {
        if let Report::Reclaimed { job, tokens, .. } = report {
            lost[job.0 as usize] += tokens.0;
        }
    }
    world.online[0] = 0;
    world.count(0);
    world.calm(2_000);
    lost
}

/// P-FAIR-11: who could not be asked to pay for long does not pay alone for as long afterwards.
#[test]
fn who_had_nothing_to_pay_with_owes_nothing_for_that_time() {
    let mut world = World::new();
    world.add(0, GPU, of_user(0, 1), 48);
    world.add(1, GPU, of_user(1, 1), 20);
    world.calm(30_000);
    // The second has all it ever wants, and deserves it. 6 bytes are free, so nothing is left over from whole stripes.
    let mut before = [0u64; 2];
    for _ in 0..100 {
        let lost = round(&mut world, 5 * STRIPE + 6);
        before = [before[0] + lost[0], before[1] + lost[1]];
    }
    assert!(before[0] >= 100 * TOKENS, "{before:?}");
    assert_eq!(before[1], 0, "{before:?}");
    // From now on it has as much more than it deserves as the first.
    let mut terms = of_user(0, 1);
    terms.user_weight = 3;
    world.bench.send(Event::Terms {
        job: JobId(0),
        terms,
    });
    world.look();
    world.jobs.get_mut(&0).expect("it is there").terms = terms;
    world.calm(60_000);
    // One batch that it still owes, and one by which they are apart at any time.
    let mut after = [0u64; 2];
    for nth in 1..=40 {
        let lost = round(&mut world, STRIPE);
        after = [after[0] + lost[0], after[1] + lost[1]];
        let apart = (after[0] / 3).abs_diff(after[1]);
        assert!(
            apart <= 2 * BATCH / STRIPE * TOKENS,
            "{after:?} after {nth} rounds"
        );
    }
    assert!(after.iter().all(|lost| *lost > 0), "{after:?}");
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}
