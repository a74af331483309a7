//! Room for a job that comes where another has all there is.

use super::*;
use tidegate_policy::time::Instant;

const NEWCOMER: SessionId = SessionId(102);

/// A node on which job 0 has nearly everything, and job 1 of another user has just come.
fn full() -> World {
    let mut world = World::new();
    world.add(0, GPU, of_user(0, 1), 49);
    assert_eq!(NEWCOMER, session(1, GpuId(0)));
    world.bench.attach_offline(NEWCOMER, JobId(1), GPU);
    let (job, terms) = (JobId(1), of_user(1, 1));
    world.bench.send(Event::Terms { job, terms });
    world.look();
    world
}

/// A process asks for an allocation; the number of what it asks.
fn asks(world: &mut World, session: SessionId, bytes: u64) -> u64 {
    world.next += 1;
    world.tell(MemoryEvent::Asked {
        session,
        ask: AskId(world.next),
        gpu: GpuId(0),
        kv: None,
        bytes: Bytes(bytes),
        mapped: None,
        ahead: false,
    });
    world.next
}

fn answer(world: &World, ask: u64) -> Option<bool> {
    let answers = &world.answered;
    answers.iter().find(|known| known.0 == ask).map(|a| a.1)
}

fn has(world: &mut World, bytes: u64) {
    world.tell(MemoryEvent::Counted {
        session: NEWCOMER,
        gpu: GpuId(0),
        bytes: Bytes(bytes),
    });
}

/// P-FAIR-12: who comes where another has everything waits until that has given up what it has too much.
#[test]
fn an_allocation_of_a_newcomer_waits_until_there_is_room_for_it() {
    let mut world = full();
    assert_eq!(shown(&mut world, 1), Some((POOL - LEAST) / 2));
    let first = asks(&mut world, NEWCOMER, 300);
    assert_eq!(answer(&world, first), None, "it waits");
    world.calm(1_000);
    assert_eq!(answer(&world, first), Some(true));
    let left = world.jobs[&0].held();
    assert!(
        left <= POOL - 300 && left + 2 * STRIPE > POOL - 300,
        "{left}"
    );
    has(&mut world, 300);
    // With what it has that is more than it is shown.
    let more = asks(&mut world, NEWCOMER, 220);
    assert_eq!(answer(&world, more), Some(false));
    let rest = asks(&mut world, NEWCOMER, 180);
    world.calm(300);
    assert_eq!(answer(&world, rest), Some(true));
    assert!(world.jobs[&0].held() <= POOL - 480);
    // It allocates nothing of that, which goes back.
    world.calm(10_000);
    let back = world.jobs[&0].held();
    assert!(back + 2 * STRIPE > POOL - 300, "{back}");
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}

/// P-FAIR-12: who has allocated what was promised takes nothing from what another was promised.
#[test]
fn each_keeps_the_room_that_was_promised_to_it() {
    const THIRD: SessionId = SessionId(103);
    let mut world = full();
    world.bench.attach_offline(THIRD, JobId(2), GPU);
    let (job, terms) = (JobId(2), of_user(2, 1));
    world.bench.send(Event::Terms { job, terms });
    world.look();
    let first = asks(&mut world, NEWCOMER, 120);
    let second = asks(&mut world, THIRD, 120);
    while answer(&world, first).is_none() || answer(&world, second).is_none() {
        world.calm(5);
    }
    assert_eq!(answer(&world, first), Some(true));
    assert_eq!(answer(&world, second), Some(true));
    has(&mut world, 120);
    // What online wants now has to come from the job that has too much.
    let before = world.jobs[&0].held();
    world.ask(0, 100);
    while world.online[0] < 100 {
        world.calm(5);
    }
    let left = world.jobs[&0].held();
    assert!(left + 60 <= before, "{left} of {before}");
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}

/// P-FAIR-12: nobody makes room that has no more than it deserves, and online comes first.
#[test]
fn room_is_made_by_who_has_too_much_and_not_while_online_lacks_memory() {
    let mut world = full();
    // Online takes all but what each of the two deserves.
    world.ask(0, 600);
    let first = asks(&mut world, NEWCOMER, 180);
    while world.online[0] == 0 {
        assert_eq!(answer(&world, first), None, "online lacks memory");
        world.calm(5);
    }
    world.calm(500);
    assert_eq!(answer(&world, first), Some(true));
    has(&mut world, 180);
    let held = world.jobs[&0].held();
    assert!(held.abs_diff(220) <= STRIPE, "{held}");
    // Each deserves 190 of what online leaves.
    let second = asks(&mut world, NEWCOMER, 20);
    assert_eq!(answer(&world, second), Some(false));
    world.online[0] = 300;
    world.count(0);
    let third = asks(&mut world, NEWCOMER, 100);
    world.calm(1_000);
    assert_eq!(answer(&world, third), Some(true));
}

/// P-FAIR-12: who waits for a job that gives nothing up is told so in the end.
#[test]
fn room_that_nobody_makes_is_denied_after_25_seconds() {
    let mut world = full();
    let first = asks(&mut world, NEWCOMER, 300);
    world.pass(24_900 * MS);
    assert_eq!(answer(&world, first), None);
    world.pass(200 * MS);
    assert_eq!(answer(&world, first), Some(false));
    world.calm(1_000);
    let second = asks(&mut world, NEWCOMER, 300);
    world.calm(2_000);
    assert_eq!(answer(&world, second), Some(true));
}

/// P-MEMORY-28: where nobody else has a cache an allocation that does not fit is paid for by the job's own; what that
/// cannot pay for fails at once.
#[test]
fn a_job_alone_pays_for_its_room_itself() {
    let mut world = World::new();
    world.bench.attach_offline(NEWCOMER, JobId(1), GPU);
    let before = asks(&mut world, NEWCOMER, 300);
    assert_eq!(answer(&world, before), Some(false), "nobody has any");
    world.leave(1);
    world.add(0, GPU, of_user(0, 1), 30);
    let held = world.jobs[&0].held();
    let all = asks(&mut world, session(0, GpuId(0)), POOL);
    assert_eq!(answer(&world, all), Some(false), "its own is all there is");
    assert_eq!(world.jobs[&0].held(), held);
    let free = POOL - held;
    let own = asks(&mut world, session(0, GpuId(0)), free + 100);
    while answer(&world, own).is_none() {
        world.calm(5);
    }
    assert_eq!(answer(&world, own), Some(true));
    let left = world.jobs[&0].held();
    assert!(
        left + 100 <= held && held <= left + 100 + 2 * STRIPE,
        "{left} of {held}"
    );
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}

fn yields(world: &mut World) -> u64 {
    let now = Instant::from_nanos(world.bench.now);
    world.bench.node.yields(NEWCOMER, GpuId(0), now).0
}

/// P-FAIR-12: what others give up for a newcomer is what they have more than they deserve beside it and online, and
/// nothing once it has a cache of its own.
#[test]
fn what_others_have_too_much_counts_as_free_for_a_newcomer() {
    let mut world = full();
    let held = world.jobs[&0].held();
    let over = (held - POOL / 2) / STRIPE * STRIPE;
    assert_eq!(yields(&mut world), over);
    // What it has is no part of it.
    has(&mut world, 200);
    assert_eq!(yields(&mut world), over);
    // What online has, nobody can give up.
    world.ask(0, 300);
    world.calm(1_000);
    let left = (POOL - 300) / 2;
    let over = world.jobs[&0].held().saturating_sub(left) / STRIPE * STRIPE;
    assert!(yields(&mut world).abs_diff(over) <= STRIPE);
    let mut world = full();
    world.add(1, GPU, of_user(1, 1), 5);
    assert_eq!(yields(&mut world), 0);
}

/// P-FAIR-12: room that was made for a cache is that cache, as soon as it is registered: nothing of it is taken back.
#[test]
fn room_that_became_a_cache_counts_once() {
    let mut world = full();
    let room = asks(&mut world, NEWCOMER, 24 * STRIPE);
    world.calm(1_000);
    assert_eq!(answer(&world, room), Some(true));
    world.bench.reports.clear();
    world.add(1, GPU, of_user(1, 1), 24);
    world.calm(1_000);
    let taken = |report: &Report| matches!(report, Report::Reclaimed { job: JobId(1), .. });
    let reports = &world.bench.reports;
    assert!(!reports.iter().any(taken), "{reports:?}");
    assert!(world.jobs[&1].held() >= 24 * STRIPE);
}

/// P-FAIR-12: a job that has shown no channel of its own makes nobody give anything up, whatever it asks for or says that
/// it has.
#[test]
fn who_does_not_count_takes_nothing_from_who_does() {
    let mut world = full();
    let newcomer = |counts| Event::Counts {
        session: NEWCOMER,
        counts,
    };
    world.bench.send(newcomer(false));
    world.look();
    let before = world.jobs[&0].held();
    let first = asks(&mut world, NEWCOMER, 300);
    world.calm(26_000);
    assert_eq!(answer(&world, first), Some(false));
    has(&mut world, 400);
    world.calm(5_000);
    assert_eq!(world.jobs[&0].held(), before);
    has(&mut world, 0);
    world.bench.send(newcomer(true));
    world.look();
    let second = asks(&mut world, NEWCOMER, 300);
    world.calm(1_000);
    assert_eq!(answer(&world, second), Some(true));
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}
