//! What online is shown of offline caches, and how long it waits for them.

use super::*;
use tidegate_policy::config::Means;

/// P-MEMORY-33: online is shown what it would be given of offline caches.
#[test]
fn a_cache_gives_up_to_online_what_it_has_and_online_does_not_wait_for() {
    let all = u64::from(STRIPES) * STRIPE;
    let yields = |world: &World| {
        let now = world.bench.at();
        world.bench.node.yields_to_online(GpuId(0), now).0
    };
    let mut world = World::new();
    assert_eq!(yields(&world), 0, "nobody has a cache");
    world = colocated(STRIPES);
    assert_eq!(yields(&world), all);
    world.ask(2 * STRIPE, false);
    assert_eq!(yields(&world), all - 2 * STRIPE, "it is asked for");
    world.reclaim();
    assert_eq!(granted(&world), [Granted::Yes]);
    assert_eq!(yields(&world), all - 2 * STRIPE, "it was taken");
    let usual = config();
    let means = Means::LaunchGate;
    world = colocated_under(Config { means, ..usual }, STRIPES);
    assert_eq!(yields(&world), 0, "the job cannot be stopped for it");
}

/// P-MEMORY-33: who demands more waits longer, since more is taken in more reclaims.
#[test]
fn an_allocation_waits_as_long_as_it_takes_to_take_what_it_demands() {
    const GIB: u64 = 1 << 30;
    let denied_after = |bytes: u64| {
        let mut world = colocated(STRIPES);
        world.ask(bytes, false);
        let begun = world.bench.at();
        while granted(&world).is_empty() {
            world.bench.pass(10 * MS);
            world.check();
        }
        assert_eq!(granted(&world), [Granted::No], "nobody has so much");
        world.bench.at().since(begun)
    };
    assert!(denied_after(2 * POOL.0) < Duration::from_millis(500));
    assert!(denied_after(8 * GIB) > Duration::from_secs(2));
}
