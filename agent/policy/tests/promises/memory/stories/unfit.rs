//! Jobs from which nothing can be taken just now, and when they are asked again.

use super::*;

/// Online is busy, demands 15 bytes, and the job's process does not say in time whether they may be taken.
fn unanswered() -> World {
    let mut world = colocated(STRIPES);
    world.bench.busy(ONLINE, GpuId(0));
    world.bench.answer_all();
    world.ask(15, false);
    world.bench.pass(451 * MS);
    world.check();
    assert_eq!(granted(&world), [Granted::No]);
    world.ask(15, false);
    world.bench.pass(451 * MS);
    world.check();
    assert_eq!(
        granted(&world),
        [Granted::No, Granted::No],
        "nobody is asked"
    );
    world
}

#[test]
fn a_job_that_was_slow_to_answer_is_asked_again_before_it_runs() {
    for answer in [Answer::Done, Answer::Missed] {
        let mut world = unanswered();
        world.answer(0, answer);
        world.ask(15, false);
        world.reclaim();
        let all = [Granted::No, Granted::No, Granted::Yes];
        assert_eq!(granted(&world), all, "{answer:?}");
    }
}

#[test]
fn a_job_with_a_thread_inside_the_driver_is_not_asked_again_before_it_runs() {
    let mut world = unanswered();
    world.answer(0, Answer::Refused);
    world.ask(15, false);
    assert_eq!(granted(&world), [Granted::No; 2]);
    assert!(world.open.is_empty(), "it waits for the job to run");
    world.bench.idle(ONLINE, GpuId(0), 10, 0);
    world.bench.pass(10 * MS);
    world.bench.answer_all();
    world.ask(15, false);
    assert_eq!(world.open.len(), 1, "it has run");
}

#[test]
fn a_job_whose_channels_were_slow_is_asked_again_once_they_are_disabled() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.busy(ONLINE, GpuId(0));
    world.bench.pass(21 * MS);
    world.check();
    assert!(granted(&world).is_empty(), "an allocation waits on");
    world.bench.answer_all();
    world.check();
    world.reclaim();
    assert_eq!(
        granted(&world),
        [Granted::Yes],
        "online is busy all the while"
    );
}

#[test]
fn a_job_that_says_no_at_once_is_asked_a_hundred_times_a_second_at_most() {
    let mut world = colocated(STRIPES);
    let (session, kv, used) = (ONLINE, KV, Bytes(world.mapped));
    world.tell(MemoryEvent::Usage { session, kv, used });
    let mut asked = 0;
    for _ in 0..1_000 {
        // Its reservation lacks, which no deadline ends.
        for _ in 0..5 {
            asked += world.open.len();
            world.answer(0, Answer::Refused);
            let (session, log) = (SessionId(10), LogSeq(0));
            world.tell(MemoryEvent::Withheld { session, log });
        }
        world.bench.pass(MS);
        world.bench.answer_all();
        world.check();
    }
    assert!((50..=101).contains(&asked), "{asked} times in a second");
}

#[test]
fn a_move_that_was_called_off_is_nothing_against_the_job() {
    let mut world = asked();
    assert_eq!(world.open.len(), 1, "its process was told to move");
    let ask = *world.asks.first().expect("it waits");
    world.asks.clear();
    world.tell(MemoryEvent::Withdrawn {
        session: ONLINE,
        ask: AskId(ask),
    });
    world.answer(0, Answer::Missed);
    world.ask(15, false);
    world.reclaim();
    assert_eq!(
        granted(&world),
        [Granted::Yes],
        "online is busy all the while"
    );
}
