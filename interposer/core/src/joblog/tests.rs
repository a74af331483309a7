use super::*;
use proptest::prelude::*;
use std::sync::Arc;

/// All-zero memory of that size, as a fresh mapping is.
fn shared() -> Box<Shared> {
    let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
    let bytes: Box<[AtomicU8]> = (0..BLOCKS).map(|_| AtomicU8::new(0)).collect();
    let shared = Box::new(Shared {
        magic: AtomicU64::new(0),
        world: AtomicU32::new(0),
        _pad: [0; 13],
        head: AtomicU64::new(0),
        withheld: AtomicU64::new(0),
        promised: AtomicU64::new(0),
        steps: AtomicU64::new(0),
        _pad2: [0; 4],
        starts: [const { AtomicU64::new(0) }; GENERATIONS],
        firsts: [const { AtomicU64::new(0) }; GENERATIONS],
        readers: [const { AtomicU32::new(0) }; RANKS],
        cuts: *<Box<[AtomicU64; CUTS]>>::try_from(words(CUTS)).expect("that many"),
        entries: *<Box<[AtomicU64; ENTRIES]>>::try_from(words(ENTRIES)).expect("that many"),
        missing: *<Box<[AtomicU8; BLOCKS]>>::try_from(bytes).expect("that many"),
    });
    shared.begin(1);
    shared
}

fn read(shared: &Shared, reader: &mut Reader, step: u64) -> (Vec<u32>, Vec<u32>) {
    let news = reader.read(shared, step).expect("a step that is known");
    reader.consume(&news);
    shared.acknowledge(news.upto);
    (news.lost, news.back)
}

#[test]
fn a_block_is_lost_with_its_first_part_and_back_with_its_last() {
    let shared = shared();
    let mut reader = Reader::at_end(&shared);
    shared.lose(10, 3).expect("room");
    shared.lose(12, 2).expect("room");
    assert_eq!(
        read(&shared, &mut reader, 0),
        (vec![10, 11, 12, 13], vec![])
    );
    shared.regain(10, 3).expect("room");
    assert_eq!(read(&shared, &mut reader, 1), (vec![], vec![10, 11]));
    assert!(shared.is_missing(12));
    shared.regain(12, 2).expect("room");
    assert_eq!(read(&shared, &mut reader, 2), (vec![], vec![12, 13]));
}

#[test]
fn a_block_lost_again_before_it_was_told_back_is_told_as_lost() {
    let shared = shared();
    let mut reader = Reader::at_end(&shared);
    shared.lose(5, 1).expect("room");
    assert_eq!(read(&shared, &mut reader, 0), (vec![5], vec![]));
    shared.regain(5, 1).expect("room");
    shared.lose(5, 1).expect("room");
    shared.lose(9, 1).expect("room");
    assert_eq!(read(&shared, &mut reader, 1), (vec![5, 9], vec![]));
    shared.regain(5, 1).expect("room");
    assert_eq!(read(&shared, &mut reader, 2), (vec![], vec![5]));
}

#[test]
fn every_rank_sees_the_same_cut_at_the_same_step() {
    let shared = shared();
    let (mut one, mut two) = (Reader::at_end(&shared), Reader::at_end(&shared));
    shared.lose(1, 1).expect("room");
    let first = read(&shared, &mut one, 7);
    shared.lose(2, 1).expect("room");
    assert_eq!(read(&shared, &mut two, 7), first);
    assert_eq!(read(&shared, &mut two, 8), (vec![2], vec![]));
    assert_eq!(read(&shared, &mut one, 8), (vec![2], vec![]));
    for step in 9..=9 + CUTS as u64 {
        shared.cut(step).expect("a new step");
    }
    assert_eq!(shared.cut(9), Err(Refused::Step(9)), "long gone");
}

#[test]
fn a_next_reader_counts_from_0_and_is_told_what_is_missing() {
    let shared = shared();
    shared.lose(3, 2).expect("room");
    let mut first = Reader::begin(&shared, 0, None).expect("room");
    assert_eq!(
        read(&shared, &mut first, 0),
        (vec![3, 4], vec![]),
        "lost before it came"
    );
    for step in 1..2_000 {
        assert_eq!(read(&shared, &mut first, step), (vec![], vec![]));
    }
    shared.regain(4, 1).expect("room");
    assert_eq!(read(&shared, &mut first, 2_000), (vec![], vec![4]));
    shared.lose(9, 1).expect("room");
    let mut next = Reader::begin(&shared, 0, None).expect("room");
    shared.lose(20, 1).expect("room");
    assert_eq!(read(&shared, &mut next, 0), (vec![9, 3, 20], vec![]));
    shared.lose(30, 1).expect("room");
    assert_eq!(read(&shared, &mut next, 1), (vec![30], vec![]));
    shared.regain(3, 1).expect("room");
    assert_eq!(read(&shared, &mut next, 2), (vec![], vec![3]));
}

#[test]
fn the_next_readers_of_all_ranks_see_the_same_news() {
    let shared = shared();
    for rank in 0..2 {
        let mut reader = Reader::begin(&shared, rank, None).expect("room");
        shared.lose(rank * 2, 1).expect("room");
        read(&shared, &mut reader, 0);
    }
    let mut one = Reader::begin(&shared, 0, None).expect("room");
    let news = read(&shared, &mut one, 0);
    shared.lose(7, 1).expect("room");
    let mut two = Reader::begin(&shared, 1, None).expect("room");
    assert_eq!(read(&shared, &mut two, 0), news);
    assert_eq!(read(&shared, &mut one, 1).0, read(&shared, &mut two, 1).0);
}

#[test]
fn nothing_unread_is_overwritten() {
    let shared = shared();
    let mut lost = 0;
    while shared.lose(lost, 1).is_ok() {
        lost += 2;
    }
    assert_eq!(lost as usize / 2, ENTRIES);
    assert_eq!(shared.lose(1, 1), Err(Refused::Unread));
    assert!(!shared.is_missing(1));
    let mut reader = Reader::default();
    assert_eq!(read(&shared, &mut reader, 0).0.len(), ENTRIES);
    shared.lose(1, 1).expect("there is room again");
    assert_eq!(read(&shared, &mut reader, 1), (vec![1], vec![]));
    assert_eq!(
        shared.lose(u32::try_from(BLOCKS).expect("it fits"), 1),
        Err(Refused::Block)
    );
}

#[test]
fn ranks_that_append_at_once_lose_no_entry() {
    let shared: Arc<Shared> = Arc::from(shared());
    let mut reader = Reader::at_end(&shared);
    std::thread::scope(|scope| {
        for rank in 0..4_u32 {
            let shared = Arc::clone(&shared);
            scope.spawn(move || {
                for at in 0..2_000 {
                    shared.lose(at * 8 + rank * 2, 1).expect("room");
                }
            });
        }
    });
    let (mut lost, _) = read(&shared, &mut reader, 0);
    lost.sort_unstable();
    assert_eq!(lost, (0..16_000).step_by(2).collect::<Vec<u32>>());
}

proptest! {
    /// After a step's news a reader knows exactly which blocks are missing.
    #[test]
    fn the_news_of_a_step_leave_no_loss_untold(
        calls in prop::collection::vec((0_u32..40, 1_u32..9, any::<bool>(), any::<bool>()), 1..80),
    ) {
        let shared = shared();
        let mut reader = Reader::at_end(&shared);
        let mut held = Vec::new();
        let mut told = [false; 64];
        let mut step = 0;
        for (first, count, lose, look) in calls {
            if lose {
                shared.lose(first, count).expect("room");
                held.push((first, count));
            } else if let Some((first, count)) = held.pop() {
                shared.regain(first, count).expect("room");
            }
            let mut missing = [0_i32; 64];
            for (first, count) in &held {
                (*first..first + count).for_each(|id| missing[id as usize] += 1);
            }
            if look {
                let (lost, back) = read(&shared, &mut reader, step);
                step += 1;
                lost.iter().for_each(|id| told[*id as usize] = true);
                for id in back {
                    prop_assert!(std::mem::replace(&mut told[id as usize], false));
                }
                for (told, missing) in told.iter().zip(missing) {
                    prop_assert_eq!(*told, missing > 0);
                }
            }
        }
    }
}

proptest! {
    /// What a process missed ends with it, and nothing of the others.
    #[test]
    fn the_end_of_a_process_takes_back_what_it_missed_and_nothing_else(
        calls in prop::collection::vec((0_usize..3, 0_u32..40, 1_u32..9, 0_u8..4), 1..60),
        rest in 0_usize..3,
    ) {
        let shared = shared();
        let tables: Vec<Vec<AtomicU8>> = (0..3)
            .map(|_| (0..64).map(|_| AtomicU8::new(0)).collect())
            .collect();
        let promised = [const { AtomicU64::new(0) }; 3];
        let members: Vec<Member<'_>> = tables
            .iter()
            .zip(&promised)
            .map(|(own, promised)| Member::new(&shared, own, promised))
            .collect();
        let mut held: [Vec<(u32, u32)>; 3] = Default::default();
        let mut reader = Reader::at_end(&shared);
        let mut told = [false; 64];
        for (step, (at, first, count, call)) in (0..).zip(calls) {
            match call {
                0 | 1 => {
                    members[at].lose(first, count).expect("room");
                    held[at].push((first, count));
                }
                2 => {
                    if let Some((first, count)) = held[at].pop() {
                        members[at].regain(first, count).expect("room");
                    }
                }
                _ => {
                    members[at].end().expect("room");
                    held[at].clear();
                }
            }
            let (lost, back) = read(&shared, &mut reader, step);
            lost.iter().for_each(|id| told[*id as usize] = true);
            back.iter().for_each(|id| told[*id as usize] = false);
            for (id, told) in (0_u32..).zip(told) {
                let mut all = held.iter().flatten();
                let missing = all.any(|(first, count)| (*first..first + count).contains(&id));
                prop_assert_eq!((told, shared.is_missing(id)), (missing, missing), "block {}", id);
            }
        }
        held[rest].clear();
        members[rest].end().expect("room");
        for (id, at) in (0_u32..64).zip(0..) {
            prop_assert_eq!(tables[rest][at].load(std::sync::atomic::Ordering::Relaxed), 0);
            let mut all = held.iter().flatten();
            let missing = all.any(|(first, count)| (*first..first + count).contains(&id));
            prop_assert_eq!(shared.is_missing(id), missing);
        }
    }
}

#[test]
fn what_a_process_counted_in_its_table_last_is_kept_lost_rather_than_taken_from_another() {
    let shared = shared();
    let tables: Vec<Vec<AtomicU8>> = (0..2)
        .map(|_| (0..8).map(|_| AtomicU8::new(0)).collect())
        .collect();
    let promised = [const { AtomicU64::new(0) }; 2];
    let [one, other] = [0, 1].map(|at| Member::new(&shared, &tables[at], &promised[at]));
    one.lose(1, 2).expect("room");
    other.lose(1, 2).expect("room");
    // It was killed after the counts of all, before its table was full.
    tables[0][2].store(0, std::sync::atomic::Ordering::Relaxed);
    one.end().expect("room");
    other.regain(1, 2).expect("room");
    assert!(!shared.is_missing(1) && shared.is_missing(2));
    assert_eq!(one.lose(7, 2), Err(Refused::Block), "no place in its table");
    assert!(!shared.is_missing(7));
}

/// P-MEMORY-10: a process that dies inside a call leaves the others all the room that there is.
#[test]
fn what_a_dead_process_promised_itself_is_room_again() {
    const MOST: u32 = 2 * (ENTRIES as u32 - 1);
    let shared = shared();
    let table: Vec<AtomicU8> = (0..8).map(|_| AtomicU8::new(0)).collect();
    let promised = AtomicU64::new(0);
    let dead = Member::new(&shared, &table, &promised);
    std::mem::forget(shared.promise(60_000, dead.promised()).expect("room"));
    std::mem::forget(shared.promise(60_000, dead.promised()).expect("room"));
    assert_eq!(shared.lose(0, 20_000), Err(Refused::Unread));
    dead.end().expect("nothing is lost");
    shared.lose(0, MOST).expect("all of the log is free");
    shared.acknowledge(shared.head());
    shared.regain(0, MOST).expect("likewise");
    dead.end().expect("a second time it takes back nothing");
    shared.acknowledge(shared.head());
    shared.lose(0, MOST).expect("all of the log is free");
    assert_eq!(shared.promised.load(Acquire), 0);
}
