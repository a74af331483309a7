//! The log of a job's lost blocks and its cuts: ranks that lose blocks, ranks that read them once per
//! step, all at once.

use crate::cell::{Cell, Count, Unordered};
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use tidegate_core::joblog::{Reader, Refused, Shared};
use tidegate_core::word::Word;

/// Two entries, the cuts of two steps, six blocks.
type Log<W = Cell> = Shared<W, Count, 2, 2, 6>;

fn model(what: impl Fn() + Sync + Send + 'static) {
    preempted(2, what);
}

/// With so many threads at most that are interrupted where they need not wait.
fn preempted(times: usize, what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(times);
    model.check(what);
}

fn log<W: Word + Default>() -> Arc<Log<W>> {
    let log = Log::default();
    log.begin(2);
    Arc::new(log)
}

/// What a rank makes of one block of its memory.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    LogFirst,
    MappingFirst,
}

/// One rank loses block 3; another runs a step meanwhile, in which it may read what stands there
/// afterwards, and asks for the step's news with the outputs on the host.
fn a_step_beside_a_loss<W: Word + Default + Send + Sync + 'static>(order: Order) {
    let (log, garbage) = (log::<W>(), Arc::new(W::default()));
    let service = {
        let (log, garbage) = (Arc::clone(&log), Arc::clone(&garbage));
        thread::spawn(move || {
            if order == Order::MappingFirst {
                garbage.store(1, Ordering::Release);
            }
            log.lose(3, 1).unwrap();
            garbage.store(1, Ordering::Release);
        })
    };
    let read_garbage = garbage.load(Ordering::Acquire) == 1;
    let news = Reader::default().read(&log, 0).unwrap();
    assert!(
        !read_garbage || news.lost == [3],
        "an output came from a block whose loss is not told"
    );
    service.join().unwrap();
}

#[test]
fn a_step_is_told_of_every_loss_that_its_outputs_may_come_from() {
    model(|| a_step_beside_a_loss::<Cell>(Order::LogFirst));
}

#[test]
#[should_panic(expected = "whose loss is not told")]
fn a_mapping_that_changes_before_the_log_is_read_untold() {
    model(|| a_step_beside_a_loss::<Cell>(Order::MappingFirst));
}

#[test]
#[should_panic(expected = "whose loss is not told")]
fn a_log_whose_words_order_nothing_tells_too_late() {
    model(|| a_step_beside_a_loss::<Unordered>(Order::LogFirst));
}

/// Two ranks ask for the news of a step, the second as its step number `second`, while blocks go.
fn two_ranks_ask(second: u64) {
    let log = log::<Cell>();
    let other = {
        let log = Arc::clone(&log);
        thread::spawn(move || Reader::default().read(&log, second).unwrap())
    };
    let loser = {
        let log = Arc::clone(&log);
        thread::spawn(move || log.lose(0, 1).unwrap())
    };
    let news = Reader::default().read(&log, 0).unwrap();
    assert_eq!(other.join().unwrap(), news, "two ranks saw different cuts");
    loser.join().unwrap();
}

/// P-MEMORY-10: every rank hears of the same losses, once a step.
#[test]
fn every_rank_sees_the_same_cut_of_a_step_whatever_is_lost_meanwhile() {
    model(|| two_ranks_ask(0));
}

#[test]
#[should_panic(expected = "two ranks saw different cuts")]
fn ranks_that_each_cut_for_themselves_differ() {
    model(|| two_ranks_ask(1));
}

/// A log that is full while the engine reads it and another block goes.
fn a_full_log(before_it_reads: fn(&Log)) {
    let log = log::<Cell>();
    let mut lost = vec![0, 2];
    for id in &lost {
        log.lose(*id, 1).unwrap();
    }
    let loser = {
        let log = Arc::clone(&log);
        thread::spawn(move || log.lose(4, 1))
    };
    let mut reader = Reader::default();
    let mut told: Vec<u32> = Vec::new();
    let mut step = |number| {
        before_it_reads(&log);
        let news = reader.read(&log, number).unwrap();
        told.extend(&news.lost);
        reader.consume(&news);
        log.acknowledge(news.upto);
    };
    step(0);
    if loser.join().unwrap().is_ok() {
        lost.push(4);
    }
    step(1);
    assert_eq!(told, lost, "the engine was told something else");
}

#[test]
fn nothing_is_overwritten_that_the_engine_has_not_withheld() {
    model(|| a_full_log(|_| {}));
}

#[test]
#[should_panic(expected = "the engine was told something else")]
fn an_engine_that_withholds_before_it_reads_is_told_wrong() {
    model(|| a_full_log(|log| log.acknowledge(log.head())));
}

#[test]
fn of_two_ranks_that_want_the_last_place_none_counts_what_it_cannot_tell() {
    model(|| {
        let log = log::<Cell>();
        log.lose(0, 1).unwrap();
        let lose = |id: u32| {
            let log = Arc::clone(&log);
            thread::spawn(move || log.lose(id, 1))
        };
        let results = [(2, lose(2)), (4, lose(4))].map(|(id, thread)| (id, thread.join().unwrap()));
        let mut told = vec![0];
        for (id, result) in results {
            match result {
                Ok(_) => told.push(id),
                Err(refused) => assert_eq!(refused, Refused::Unread),
            }
            assert_eq!(log.is_missing(id), result.is_ok(), "counted and not told");
        }
        let mut news = Reader::default().read(&log, 0).unwrap().lost;
        news.sort_unstable();
        assert_eq!(news, told, "the log tells what was lost and nothing else");
    });
}

#[test]
fn a_rank_that_stands_still_in_the_middle_keeps_nobody_from_going_on() {
    model(|| {
        let log: Arc<Shared<Cell, Count, 4, 2, 6>> = Arc::default();
        let loser = {
            let log = Arc::clone(&log);
            thread::spawn(move || log.lose(0, 1).unwrap())
        };
        log.lose(2, 1).unwrap();
        let news = Reader::default().read(&log, 0).unwrap();
        assert!(news.lost.contains(&2));
        loser.join().unwrap();
    });
}

/// A scheduler begins while a block comes back that the one before withholds, and another is lost.
#[test]
fn a_next_reader_knows_what_is_missing() {
    model(|| {
        let log: Arc<Shared<Cell, Count, 8, 2, 4>> = Arc::default();
        log.lose(0, 1).unwrap();
        let mut first = Reader::begin(&log, 0, None).unwrap();
        let news = first.read(&log, 0).unwrap();
        first.consume(&news);
        log.acknowledge(news.upto);
        let rank = {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                log.regain(0, 1).unwrap();
                log.lose(2, 1).unwrap();
            })
        };
        let mut next = Reader::begin(&log, 0, None).unwrap();
        let mut missing = [false; 4];
        let mut step = |number| {
            let news = next.read(&log, number).unwrap();
            next.consume(&news);
            news.lost.iter().for_each(|id| missing[*id as usize] = true);
            news.back
                .iter()
                .for_each(|id| missing[*id as usize] = false);
        };
        step(0);
        rank.join().unwrap();
        step(1);
        assert_eq!(missing, [false, false, true, false]);
    });
}

/// One rank has a block's memory again while another loses it: the log ends with what is so.
#[test]
fn a_block_that_comes_and_goes_at_once_ends_as_it_is() {
    model(|| {
        let log: Arc<Shared<Cell, Count, 16, 2, 1>> = Arc::default();
        log.lose(0, 1).unwrap();
        let other = {
            let log = Arc::clone(&log);
            thread::spawn(move || log.lose(0, 1).unwrap())
        };
        log.regain(0, 1).unwrap();
        other.join().unwrap();
        assert!(log.is_missing(0));
        let news = Reader::default().read(&log, 0).unwrap();
        assert_eq!((news.lost, news.back), (vec![0], vec![]));
    });
}

/// A rank stands still in its call while another goes round the whole log: what is told there since then stays.
#[test]
fn a_rank_that_sleeps_for_a_whole_lap_overwrites_nothing() {
    preempted(1, || {
        let log: Arc<Shared<Cell, Count, 2, 2, 8>> = Arc::default();
        let others = {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                let (mut reader, mut told, mut lost) = (Reader::default(), vec![], vec![]);
                for step in 0..3 {
                    lost.extend(log.lose(2 * step, 1).is_ok().then_some(2 * step));
                    // The last one is read when both are done.
                    if step < 2 {
                        let news = reader.read(&log, step.into()).unwrap();
                        reader.consume(&news);
                        log.acknowledge(news.upto);
                        told.extend(news.lost);
                    }
                }
                (reader, told, lost)
            })
        };
        let sleeper = log.lose(7, 1);
        let (reader, mut told, mut lost) = others.join().unwrap();
        lost.extend(sleeper.is_ok().then_some(7));
        told.extend(reader.read(&log, 2).unwrap().lost);
        told.sort_unstable();
        assert_eq!(told, lost);
    });
}
