//! How demands are met, one story each.

use super::*;

mod online_waits;
mod unfit;

/// An offline process of a job, with its first so many stripes, which it has not registered.
fn joins(world: &mut World, session: SessionId, job: JobId, stripes: u32) {
    let gpu = GpuId(0);
    world.bench.attach_offline(session, job, GpuSet::of(gpu));
    let backed = (0..stripes).collect();
    let process = Process { job, gpu, backed };
    world.processes.insert(session, process);
}

/// An offline job with all its memory, and online idle.
fn colocated(stripes: u32) -> World {
    colocated_under(config(), stripes)
}

/// Online is busy, demands 15 bytes, and the job's process has said that they may be taken.
fn asked() -> World {
    let mut world = colocated(STRIPES);
    world.bench.busy(ONLINE, GpuId(0));
    world.bench.answer_all();
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    world
}

fn colocated_under(config: Config, stripes: u32) -> World {
    let mut world = World::with(config);
    world.map(100);
    let session = SessionId(10);
    joins(&mut world, session, JobId(0), stripes);
    world.register(session);
    world.bench.pass(10 * MS);
    world.bench.answer_all();
    let fill = world
        .bench
        .node
        .ledger(GpuId(0))
        .expect("it is there")
        .free();
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: fill,
    });
    world.check();
    world
}

impl World {
    /// The process that is asked says that it may begin, its job is disabled, and it moves what it is told to.
    fn reclaim(&mut self) {
        for _ in 0..2 {
            self.answer(0, Answer::Done);
            self.bench.answer_all();
            self.check();
        }
    }
}

fn granted(world: &World) -> Vec<Granted> {
    let answers = world
        .bench
        .effects
        .iter()
        .filter_map(|effect| match effect.1 {
            Effect::AnswerAsk { granted, .. } => Some(granted),
            _ => None,
        });
    answers.collect()
}

#[test]
fn a_demand_is_met_from_the_job_that_is_disabled_for_it_and_runs_again() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    assert!(
        world.bench.issued[0].is_empty(),
        "asked before anything is disabled"
    );
    world.answer(0, Answer::Done);
    assert_eq!(
        world.open.len(),
        0,
        "nothing moves while channels are enabled"
    );
    world.bench.answer_all();
    world.check();
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
    world.bench.answer_all();
    world.check();
    assert!(
        world.bench.held[&(SessionId(10), GpuId(0))].1,
        "it runs again"
    );
    assert!(!world.bench.held_jobs.contains(&JobId(0)));
}

/// P-MEMORY-2: what only a process lacked that is gone, nobody is told to map again.
#[test]
fn a_cache_that_has_all_its_memory_is_given_none_for_the_one_that_is_gone() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    world.reclaim();
    world.answer(0, Answer::Done);
    let taken = world.lost_at.len();
    assert!(taken > 0, "something was taken");
    let successor = SessionId(11);
    joins(&mut world, successor, JobId(0), STRIPES);
    world.register(successor);
    world.kill(SessionId(10));
    let memory = world.bench.node.job_memory(JobId(0)).expect("it is there");
    assert_eq!(memory.taken, 0, "{memory:?}");
}

#[test]
fn a_cache_maps_what_was_taken_for_it_while_the_rest_is_being_taken() {
    let usual = config();
    let sharing = Sharing {
        batch: Bytes(STRIPE),
        ..usual.sharing
    };
    let mut world = colocated_under(Config { sharing, ..usual }, STRIPES);
    let mapped = world.mapped;
    world.ask(3 * STRIPE, true);
    assert_eq!(world.target, None, "nothing is free");
    for taken in 1..=2 {
        world.reclaim();
        assert_eq!(world.target, Some(mapped + taken * STRIPE));
        assert!(granted(&world).is_empty(), "not all of it");
    }
    world.reclaim();
    assert_eq!(granted(&world), [Granted::Yes]);
}

#[test]
fn a_job_that_does_not_answer_is_left_disabled_and_nobody_waits_for_it() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert_eq!(world.open.len(), 1, "its process was told to move");
    world.bench.pass(451 * MS);
    world.check();
    assert_eq!(granted(&world), [Granted::No]);
    world.bench.pass(2_000 * MS);
    world.check();
    assert!(
        !world.bench.held[&(SessionId(10), GpuId(0))].1,
        "between an unmap and a map"
    );
    world.ask(15, false);
    world.bench.pass(451 * MS);
    world.check();
    assert_eq!(granted(&world), [Granted::No, Granted::No]);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert!(
        world.bench.held[&(SessionId(10), GpuId(0))].1,
        "it answered"
    );
}

#[test]
fn a_job_that_moves_late_serves_the_next_demand_before_it_runs() {
    let mut world = asked();
    world.bench.pass(451 * MS);
    world.check();
    assert_eq!(granted(&world), [Granted::No], "it was not done in time");
    world.answer(0, Answer::Done);
    world.ask(35, false);
    world.reclaim();
    assert_eq!(granted(&world), [Granted::No, Granted::Yes]);
    assert!(
        !world.bench.held[&(SessionId(10), GpuId(0))].1,
        "online is busy all the while"
    );
}

#[test]
fn online_is_promised_no_part_of_a_stripe() {
    let mut world = colocated(STRIPES);
    let ledger = |world: &World| world.bench.node.ledger(GpuId(0)).cloned();
    let online = ledger(&world).expect("it is there").account(ONLINE).sum();
    let grown = FIXED.plus(Bytes(world.mapped));
    let part = Bytes(12);
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: online.minus(grown).minus(part),
    });
    let (session, kv, used) = (ONLINE, KV, Bytes(world.mapped));
    world.tell(MemoryEvent::Usage { session, kv, used });
    let ledger = ledger(&world).expect("it is there");
    assert_eq!(ledger.free(), part);
    let promised = ledger.account(ONLINE).at(Place::InFlight);
    assert_eq!(promised, Bytes::ZERO, "promised, and of no use to it");
    assert_eq!(world.open.len(), 1, "the rest of a stripe is taken");
}

#[test]
fn a_thread_inside_the_driver_costs_the_job_nothing_and_a_second_job_is_taken() {
    let mut world = colocated(STRIPES);
    let second = SessionId(11);
    joins(&mut world, second, JobId(1), STRIPES);
    // What the second job has was online's until now.
    let counted = POOL.0 - 7 - u64::from(STRIPES) * STRIPE;
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: Bytes(counted - 167 - 20),
    });
    world.register(second);
    world.bench.pass(10 * MS);
    world.bench.answer_all();
    world.ask(15, false);
    let first = world.open[0].0.session;
    world.answer(0, Answer::Refused);
    assert!(world.bench.issued[0].is_empty(), "nothing was disabled");
    assert_ne!(world.open[0].0.session, first, "the other is asked");
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
}

#[test]
fn the_cheapest_stripe_goes_and_comes_back_once_withheld() {
    let mut world = colocated(STRIPES);
    let session = SessionId(10);
    for (request, block, tokens) in [(1, 0, 900), (2, 4, 100), (3, 8, 900), (4, 12, 900)] {
        let blocks: Vec<BlockId> = (block..block + 4).map(BlockId).collect();
        world.tell(MemoryEvent::Published {
            session,
            request: RequestId(request),
            tokens: Tokens(tokens),
            blocks: &blocks,
        });
    }
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let picked = world.open[0].1.clone();
    world.answer(0, Answer::Done);
    assert_eq!(picked, [StripeId(2)], "blocks 4 to 6, of request 2 alone");
    let taken = world
        .bench
        .node
        .stripe_of(JobId(0), 5)
        .expect("the stripe of handle 5");
    assert_eq!(taken.choice.map(|choice| choice.nth), Some(0));
    world.ask(0, false);
    world.bench.answer_all();
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: Bytes(0),
    });
    world.bench.pass(1_500 * MS);
    world.check();
    assert!(
        world.open.is_empty(),
        "the engine has not said that it withholds the blocks"
    );
    world.calm();
    assert_eq!(world.processes[&session].backed.len(), STRIPES as usize);
    let restored = |report: &Report| matches!(report, Report::Restored { .. });
    assert!(world.bench.reports.iter().any(restored));
}

#[test]
fn what_online_is_promised_while_a_job_is_stopped_is_not_given_back_to_it() {
    let mut world = colocated(STRIPES);
    let session = SessionId(10);
    world.ask(4 * STRIPE, false);
    while !world.open.is_empty() {
        world.answer(0, Answer::Done);
        world.bench.answer_all();
        world.check();
    }
    assert_eq!(granted(&world), [Granted::Yes]);
    let taken = STRIPES as usize - world.processes[&session].backed.len();
    assert_eq!(taken, 4);
    let (job, log) = (JobId(0), world.logs[&JobId(0)]);
    world.withheld.insert(job, log);
    let log = LogSeq(log);
    world.tell(MemoryEvent::Withheld { session, log });
    // Online did not need it: all four are to come back, and the job is asked to let its launches wait.
    while world.open.is_empty() {
        world.bench.pass(50 * MS);
        world.bench.answer_all();
        world.check();
    }
    // Meanwhile online takes the room of three.
    world.ask(2 * STRIPE + 1, false);
    assert_eq!(granted(&world), [Granted::Yes, Granted::Yes]);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert_eq!(world.open[0].1.len(), 1, "of four");
    world.answer(0, Answer::Done);
    assert_eq!(world.processes[&session].backed.len(), STRIPES as usize - 3);
}

#[test]
fn online_under_pressure_is_mapped_ahead_and_what_it_leaves_is_given_back() {
    let mut world = colocated(STRIPES);
    let before = world.mapped;
    let (session, kv, used) = (ONLINE, KV, Bytes(before));
    world.tell(MemoryEvent::Usage { session, kv, used });
    world.calm();
    assert!(world.mapped > before, "{} after {before}", world.mapped);
    let pressure = |report: &&Report| matches!(report, Report::Pressure { .. });
    assert_eq!(world.bench.reports.iter().filter(pressure).count(), 1);
    assert!(world.processes[&SessionId(10)].backed.len() < STRIPES as usize);
    let rate = world
        .bench
        .node
        .elastics(Instant::from_nanos(world.bench.now))
        .next();
    assert!(rate.is_some_and(|view| view.events == 0 && view.mapped == Bytes(world.mapped)));
}

#[test]
fn online_that_waits_for_more_than_is_mapped_is_kept_more_headroom() {
    let mut world = colocated(STRIPES);
    let view = |world: &World| {
        let now = Instant::from_nanos(world.bench.now);
        world.bench.node.elastics(now).next().expect("it is there")
    };
    let before = view(&world);
    world.ask(before.reservation.0 - world.mapped + 10, true);
    world.calm();
    let after = view(&world);
    assert_eq!(after.events, 1);
    assert!(after.headroom > before.headroom, "{after:?}");
}

#[test]
fn a_new_agent_promises_nothing_until_processes_had_time_to_attach() {
    let mut world = World::with(Config {
        start_hold: Duration::from_millis(500),
        ..config()
    });
    world.ask(50, true);
    assert_eq!(granted(&world), [Granted::No]);
    assert_eq!(world.target, None, "an offline process may hold all of it");
    world.bench.pass(600 * MS);
    world.check();
    assert!(world.target.is_some(), "by now it would have said so");
}

#[test]
fn a_cache_that_was_counted_is_not_counted_again_when_it_is_registered() {
    let mut world = World::new();
    world.map(100);
    let (session, gpu) = (SessionId(10), GpuId(0));
    world
        .bench
        .attach_offline(session, JobId(0), GpuSet::of(gpu));
    let free = |world: &World| world.bench.node.ledger(gpu).expect("it is there").free();
    let before = free(&world);
    let all = Bytes(u64::from(STRIPES) * STRIPE + 7);
    let bytes = Bytes(all.0 + 30);
    world.tell(MemoryEvent::Counted {
        session,
        gpu,
        bytes,
    });
    world.tell(born((session, JobId(0), gpu), &layout(), all));
    assert_eq!(free(&world), before.minus(bytes));
    let bytes = Bytes(30);
    world.tell(MemoryEvent::Counted {
        session,
        gpu,
        bytes,
    });
    assert_eq!(free(&world), before.minus(all).minus(bytes));
}

#[test]
fn a_second_cache_of_a_process_is_counted_whole_as_long_as_it_stands() {
    let mut world = World::new();
    world.map(100);
    let (session, gpu, kv) = (SessionId(10), GpuId(0), KvId(KV.0 + 1));
    world
        .bench
        .attach_offline(session, JobId(0), GpuSet::of(gpu));
    let free = |world: &World| world.bench.node.ledger(gpu).expect("it is there").free();
    let before = free(&world);
    let all = Bytes(u64::from(STRIPES) * STRIPE + 7);
    for kv in [KV, kv] {
        world.tell(MemoryEvent::KvRegistered {
            session,
            job: JobId(0),
            gpu,
            kv,
            layout: &layout(),
            backed: &[true; STRIPES as usize],
            fixed: Bytes(7),
            reclaimable: kv == KV,
            counted: Bytes::ZERO,
        });
    }
    assert_eq!(free(&world), before.minus(all).minus(all));
    world.tell(MemoryEvent::KvGone { session, kv });
    assert_eq!(free(&world), before.minus(all));
}

#[test]
fn a_process_that_only_schedules_answers_and_speaks_for_its_job() {
    let mut world = colocated(STRIPES);
    let session = SessionId(11);
    world.bench.attach_offline(session, JobId(0), GpuSet::EMPTY);
    let blocks: Vec<BlockId> = (0..3 * 2).map(BlockId).collect();
    world.tell(MemoryEvent::Published {
        session,
        request: RequestId(1),
        tokens: Tokens(900),
        blocks: &blocks,
    });
    world.ask(15, false);
    let asked: BTreeSet<SessionId> = world.open.iter().map(|open| open.0.session).collect();
    assert_eq!(asked, [SessionId(10), session].into());
    world.answer(0, Answer::Done);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let (order, picked) = world.open[0].clone();
    assert_eq!(order.session, SessionId(10), "who has no memory moves none");
    assert_eq!(picked, [StripeId(3)], "those before it cost tokens");
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
}

#[test]
fn what_was_mapped_for_a_demand_stays_for_a_while_and_goes_if_it_is_not_used() {
    let mut world = World::new();
    world.map(100);
    let before = world.mapped;
    world.ask(100, true);
    world.map(100);
    assert_eq!(world.mapped, before + 100);
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let wanted = view.reservation.0;
    assert!(wanted < world.mapped);
    world.bench.pass(500 * MS);
    world.check();
    assert_eq!(world.target, None, "it may ask again for what it demanded");
    world.bench.pass(600 * MS);
    world.check();
    assert_eq!(world.target, Some(wanted));
    world.target = None;
    let (session, kv, mapped) = (ONLINE, KV, Bytes(world.mapped));
    world.tell(MemoryEvent::Mapped {
        session,
        kv,
        mapped,
        last: true,
    });
    world.bench.pass(1_100 * MS);
    world.check();
    assert_eq!(
        world.target,
        Some(wanted),
        "told again: it may have kept what it reserved"
    );
}

#[test]
fn an_answer_to_an_earlier_order_takes_back_no_promise() {
    let mut world = World::new();
    world.map(100);
    world.ask(100, true);
    let target = world.target.expect("it is promised more");
    let (session, kv, gpu) = (ONLINE, KV, GpuId(0));
    let promised = |world: &World| {
        let ledger = world.bench.node.ledger(gpu).expect("it is there");
        ledger.account(ONLINE).in_flight
    };
    let before = promised(&world);
    let mut say = |mapped, last| {
        let mapped = Bytes(mapped);
        world.tell(MemoryEvent::Mapped {
            session,
            kv,
            mapped,
            last,
        });
        promised(&world)
    };
    assert_eq!(say(target - 40, false), Bytes(40));
    assert_eq!(before, Bytes(100));
    assert_eq!(say(target - 40, true), Bytes::ZERO);
}

#[test]
fn a_demand_while_memory_arrives_counts_what_has_arrived() {
    let mut world = World::new();
    world.map(100);
    let before = world.mapped;
    world.ask(100, true);
    assert_eq!(world.target, Some(before + 100));
    world.mapped = before + 60;
    world.ask(40, true);
    assert_eq!(world.target, Some(before + 100), "that much is on its way");
    assert_eq!(granted(&world), [Granted::Yes, Granted::Yes]);
    world.map(100);
    let ledger = world.bench.node.ledger(GpuId(0)).expect("it is there");
    let mapped = ledger.account(ONLINE).mapped();
    assert_eq!(mapped, FIXED.plus(Bytes(before + 100)));
}

#[test]
fn a_demand_that_waits_is_taken_once() {
    let mut world = colocated(STRIPES);
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let asked = view.reservation.0 - world.mapped + 2 * STRIPE;
    world.ask(asked, true);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let (_, picked) = world.open[0].clone();
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let headroom = view.reservation.0 - world.mapped;
    assert!(headroom > 0, "it is short of that as well");
    assert_eq!(picked.len() as u64, asked.max(headroom).div_ceil(STRIPE));
}

#[test]
fn a_caches_fixed_part_is_counted_as_long_as_it_stands() {
    let mut world = World::new();
    world.map(100);
    let account = |world: &World| {
        let ledger = world.bench.node.ledger(GpuId(0));
        ledger.expect("it is there").account(ONLINE)
    };
    assert_eq!(account(&world).mapped(), FIXED.plus(Bytes(world.mapped)));
    assert_eq!(account(&world).at(Place::Online), FIXED);
    let (session, kv) = (ONLINE, KV);
    world.tell(MemoryEvent::KvGone { session, kv });
    assert_eq!(account(&world).sum(), Bytes::ZERO);
}

#[test]
fn what_is_given_back_before_a_higher_target_is_heard_stays_promised() {
    let mut world = World::new();
    world.map(100);
    world.ask(100, true);
    world.map(100);
    let most = world.mapped;
    world.bench.pass(1_100 * MS);
    world.check();
    let less = world.target.expect("it gives back what it does not use");
    assert!(less < most);
    world.ask(50, true);
    assert_eq!(world.target, Some((most + 50).next_multiple_of(STRIPE)));
    let (session, kv, mapped, last) = (ONLINE, KV, Bytes(less), false);
    world.tell(MemoryEvent::Mapped {
        session,
        kv,
        mapped,
        last,
    });
    let target = Bytes(world.target.expect("it was told"));
    let ledger = world.bench.node.ledger(GpuId(0)).expect("it is there");
    assert_eq!(ledger.account(ONLINE).sum(), FIXED.plus(target));
}

#[test]
fn what_an_order_may_still_map_stays_promised_though_a_later_one_takes_it_back() {
    let mut world = World::new();
    world.map(100);
    world.ask(200, true);
    world.map(100);
    let most = world.mapped;
    world.bench.pass(1_100 * MS);
    world.check();
    // Down, while the agent waits for the answer up again, and down: the process begins the second order before
    // the third reaches it, and the answer to the first arrives after that has gone out.
    let mut told = Vec::new();
    for used in [0, 38, 0] {
        apply(&mut world, Op::Use(used));
        told.push(world.target.expect("the reservation is another"));
        world.end_map(100);
        world.begin_map();
        if told.len() == 2 {
            assert_eq!(world.begun.map(|order| order.1), Some(told[1]));
        }
    }
    assert!(
        told[0] == told[2] && told[0] < told[1] && told[1] < most,
        "{told:?}"
    );
    world.hear_mapped();
    world.owners_add_up(GpuId(0));
    world.map(100);
    assert_eq!(world.mapped, told[2]);
    let ledger = world.bench.node.ledger(GpuId(0)).expect("it is there");
    assert_eq!(ledger.account(ONLINE).sum(), FIXED.plus(Bytes(told[2])));
}
