use proptest::prelude::*;

use super::*;
use crate::engine::{self, LLAMA_3_1_8B, RequestId, Server};
use crate::kv::Blocks;
use crate::trace::Request;

fn store(limit: u32, paged: bool) -> Store {
    Store {
        pages: paged.then(|| Blocks::new(u64::from(limit), 1, 1)),
        used: 0,
        limit,
        cache: limit,
        spare: Spare::OneEach,
    }
}

proptest! {
    /// The same requests through the server that walks over everything.
    /// P-REPLAY-4: time adds up, and every request gets its tokens.
    #[test]
    fn with_enough_memory_it_does_what_the_plain_server_does(
        requests in prop::collection::vec((1u32..3_000, 1u32..40, 0usize..20), 1..20),
        prefill_tokens in 1u32..4_000,
        running in 1usize..8,
    ) {
        let limits = Limits { prefill_tokens, running };
        let mut plain = Server::new(LLAMA_3_1_8B, limits);
        let mut batch = Batch::new(
            Cost::Fit(LLAMA_3_1_8B), limits, Batching::PrefillFirst, store(100_000, true),
        );
        let mut arrivals = requests.iter().enumerate().peekable();
        let mut steps = 0;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        while arrivals.peek().is_some() || !plain.is_idle() {
            while let Some((i, (input, output, _))) = arrivals.next_if(|(_, r)| r.2 <= steps) {
                let request = Request {
                    arrival: crate::clock::Time::ZERO,
                    input_tokens: *input,
                    output_tokens: *output,
                };
                plain.admit(RequestId(i), &request);
                batch.admit(i as u64, *input, *output);
            }
            steps += 1;
            let (a, b) = (plain.start(), batch.start());
            prop_assert_eq!(a.is_some(), b.is_some());
            let Some((a, b)) = a.zip(b) else { continue };
            prop_assert!(a.gpu.as_nanos().abs_diff(u128::from(b.ns)) <= 1);
            let mut progress = Vec::new();
            plain.finish(&mut progress);
            theirs.extend(progress.iter().filter_map(|progress| match progress {
                engine::Progress::First(id) => Some((steps, Progress::First(id.0 as u64))),
                engine::Progress::Finished(id) => Some((steps, Progress::Finished(id.0 as u64))),
                engine::Progress::Token(_) => None,
            }));
            batch.finish(|progress| ours.push((steps, progress)));
        }
        prop_assert!(batch.is_idle());
        // Within an iteration the order differs: heaps have their own.
        let key = |(step, progress): &(usize, Progress)| match progress {
            Progress::First(id) => (*step, *id, 0),
            Progress::Finished(id) => (*step, *id, 1),
        };
        theirs.sort_by_key(key);
        ours.sort_by_key(key);
        prop_assert_eq!(theirs, ours);
        prop_assert_eq!(batch.store.used, 0);
        prop_assert_eq!(batch.given().again, 0, "nothing was taken, and nothing was short");
    }

    /// P-REPLAY-4: time adds up, and every request gets its tokens.
    #[test]
    fn every_request_gets_its_tokens_once_whatever_is_taken_from_it(
        requests in prop::collection::vec((1u32..400, 1u32..60), 1..20),
        blocks in 30u32..80,
        faults in prop::collection::vec((0u8..13, any::<u32>()), 0..60),
        passes: bool,
    ) {
        let limits = Limits { prefill_tokens: 256, running: 8 };
        let mut batch = Batch::new(Cost::Fit(LLAMA_3_1_8B), limits, Batching::Mixed, store(blocks, true));
        batch.passes = passes;
        for (id, (input, output)) in requests.iter().enumerate() {
            batch.admit(id as u64, *input, *output);
        }
        let mut faults = faults.into_iter();
        let mut finished = Vec::new();
        let mut withheld = Vec::new();
        let mut computed = 0;
        for _ in 0..100_000 {
            if batch.is_idle() {
                break;
            }
            let started = batch.start();
            computed += started.map_or(0, |one| u64::from(one.prompt_tokens) + u64::from(one.decodes));
            match faults.next() {
                Some((0..4, which)) => {
                    let Some(pages) = &mut batch.store.pages else { unreachable!() };
                    let stripe = which % pages.stripes();
                    let mut holders: Vec<Slot> = pages.holders(stripe).collect();
                    holders.dedup();
                    pages.withhold(&[stripe]);
                    withheld.push(stripe);
                    batch.lose(&holders);
                }
                Some((4, _)) => { batch.kill(); }
                Some((5, which)) => {
                    // What nobody holds, so that who has begun may not be able to go on, even alone.
                    let Some(pages) = &mut batch.store.pages else { unreachable!() };
                    let stripes: Vec<u32> = pages.unheld().skip(which as usize % 4).collect();
                    pages.withhold(&stripes);
                    withheld.extend(stripes);
                }
                Some((6, which)) => {
                    let Some(pages) = &mut batch.store.pages else { unreachable!() };
                    pages.restore(which % 32);
                }
                Some(_) => {}
                None => {
                    let Some(pages) = &mut batch.store.pages else { unreachable!() };
                    pages.restore(u32::MAX);
                }
            }
            batch.finish(|progress| {
                if let Progress::Finished(id) = progress {
                    finished.push(id);
                }
            });
            let pages = batch.store.pages.as_ref().expect("pages");
            let held: u32 = (0..pages.stripes()).map(|s| pages.held(s)).sum();
            prop_assert_eq!(held, batch.store.used);
            prop_assert!(started.is_some() || !batch.is_idle());
        }
        finished.sort_unstable();
        prop_assert_eq!(finished, (0..requests.len() as u64).collect::<Vec<_>>());
        let prompt: u64 = requests.iter().map(|r| u64::from(r.0)).sum();
        let generated: u64 = requests.iter().map(|r| u64::from(r.1)).sum();
        prop_assert_eq!(batch.counts.tokens, Tokens { prompt, generated });
        // The last token of an answer is never read.
        let needed = prompt + generated - requests.len() as u64;
        let Given { computed: given, again } = batch.given();
        prop_assert_eq!(given, computed);
        prop_assert_eq!(given, needed + again);
        prop_assert_eq!((batch.store.used, batch.context()), (0, 0));
    }
}

/// P-REPLAY-4: where prompts are read elsewhere, a request decodes from its first iteration on, beside those that do, and
/// no iteration takes longer than a decode of as many.
#[test]
fn decodes_alone_read_no_prompt() {
    let limits = Limits {
        prefill_tokens: 8,
        running: 8,
    };
    let cost = Cost::Fit(LLAMA_3_1_8B);
    let batching = Batching::DecodeOnly;
    let mut batch = Batch::new(cost.clone(), limits, batching, store(1_000, false));
    batch.admit(0, 2_000, 3);
    let mut told = Vec::new();
    for (step, decodes, cached) in [(0, 1, 2_000), (1, 2, 3_000), (2, 2, 3_001), (3, 1, 1_001)] {
        if step == 1 {
            batch.admit(1, 1_000, 3);
        }
        assert_eq!(batch.unread(), 0);
        let iteration = batch.start().expect("work");
        assert_eq!((iteration.prompt_tokens, iteration.decodes), (0, decodes));
        let ns = (cost.decode_ms(decodes, cached) * 1e6) as u64;
        assert!(
            iteration.ns.abs_diff(ns) <= 1,
            "{step}: {iteration:?}, {ns}"
        );
        batch.finish(|progress| told.push((step, progress)));
    }
    assert!(batch.is_idle());
    let expected = [
        (0, Progress::First(0)),
        (1, Progress::First(1)),
        (2, Progress::Finished(0)),
        (3, Progress::Finished(1)),
    ];
    assert_eq!(told, expected);
}

/// P-REPLAY-4: of a prompt that lacks blocks an engine with the plugin reads what there is room for, and the others as far
/// as their next part has room as a whole.
#[test]
fn a_prompt_that_lacks_blocks_is_read_as_far_as_they_reach() {
    let limits = Limits {
        prefill_tokens: 2_048,
        running: 8,
    };
    let read = |reach: u32, blocks: u32| {
        let store = Store {
            spare: Spare::None,
            ..store(8, false)
        };
        let mut batch = Batch::new(Cost::Fit(LLAMA_3_1_8B), limits, Batching::Mixed, store);
        batch.reach = reach;
        // One decodes, and begins no block soon.
        batch.admit(0, 100, 10);
        batch.start();
        batch.finish(|_| ());
        batch.admit(1, 4_000, 2);
        let mut steps = Vec::new();
        for more in [blocks, 0, 300] {
            batch.store.limit += more;
            let iteration = batch.start().expect("one decodes");
            assert_eq!(iteration.decodes, 1);
            steps.push((iteration.prompt_tokens, batch.reads_part()));
            batch.finish(|_| ());
        }
        steps
    };
    // Of 8 blocks the first has 7. One is left for it.
    assert_eq!(read(1_000, 40)[0], (40 * BLOCK_TOKENS, true));
    assert_eq!(read(0, 40)[0], (0, false));
    // With none more it decodes alone, and then the budget is what there is too little of.
    assert_eq!(read(1_000, 40)[1..], [(0, false), (2_047, false)]);
    assert_eq!(read(0, 40)[1..], [(0, false), (2_047, false)]);
    // An iteration would hardly be shorter for less.
    assert_eq!(read(1_000, 31)[0], (0, false));
    assert_eq!(read(1_000, 32)[0], (LEAST_PART, true));
    // It will never have room as a whole: 7 and 250.
    assert_eq!(read(257, 40)[0], (40 * BLOCK_TOKENS, true));
    assert_eq!(read(256, 40)[0], (0, false));
    // Alone, it needs as much as its next part does where it is read in parts, and as all that it reads next where not.
    for (reach, needs) in [(0, 128), (249, 128), (250, 32)] {
        let mut batch = Batch::new(
            Cost::Fit(LLAMA_3_1_8B),
            limits,
            Batching::Mixed,
            store(8, false),
        );
        batch.reach = reach;
        batch.admit(0, 4_000, 2);
        assert_eq!(batch.needs(), needs, "{reach}");
    }
    // All that is read next has room.
    assert_eq!(read(1_000, 127)[0], (2_047, false));
}

/// P-REPLAY-4: a request that could not run even alone keeps nobody waiting, and is the first once it could.
#[test]
fn whoever_could_not_run_even_alone_keeps_nobody_waiting() {
    for passes in [false, true] {
        let limits = Limits {
            prefill_tokens: 64,
            running: 8,
        };
        let cost = Cost::Fit(LLAMA_3_1_8B);
        let mut batch = Batch::new(cost, limits, Batching::Mixed, store(20, true));
        batch.passes = passes;
        let away: Vec<u32> = (10..20).collect();
        let pages = batch.store.pages.as_mut().expect("pages");
        pages.withhold(&away);
        for (id, input) in [(0, 11 * BLOCK_TOKENS), (1, 40), (2, 40)] {
            assert!(batch.offer(id, input, 2));
        }
        assert!(!batch.offer(3, 20 * BLOCK_TOKENS, 1), "no cache holds that");
        assert_eq!(batch.counts.refused, 1);
        for id in 10..310 {
            assert!(batch.offer(id, 11 * BLOCK_TOKENS, 1));
        }
        let mut ended = Vec::new();
        let mut steps = |batch: &mut Batch| {
            for _ in 0..20 {
                batch.start();
                batch.finish(|progress| {
                    if let Progress::Finished(id) = progress {
                        ended.push(id);
                    }
                });
            }
            core::mem::take(&mut ended)
        };
        let others = if passes { vec![1, 2] } else { vec![] };
        assert_eq!(steps(&mut batch), others);
        // However long the queue is, no more than so many are looked at in each step.
        assert_eq!(batch.aside.len(), if passes { MOST_ASIDE } else { 0 });
        assert!(batch.waiting() > 0);
        // All of it is back: they are the first again, in their order.
        batch.store.pages.as_mut().expect("pages").restore(u32::MAX);
        let after = steps(&mut batch);
        assert!(
            after.starts_with(if passes { &[0, 10] } else { &[0, 1, 2] }),
            "{after:?}"
        );
    }
}

/// P-REPLAY-8: a request of low priority waits for the others, and is the first to give its blocks up.
#[test]
fn a_request_of_low_priority_comes_last_and_leaves_first() {
    let limits = Limits {
        prefill_tokens: 64,
        running: 8,
    };
    let store = Store {
        spare: Spare::None,
        ..store(9, false)
    };
    let mut batch = Batch::new(Cost::Fit(LLAMA_3_1_8B), limits, Batching::Mixed, store);
    let mut order = Vec::new();
    let step = |batch: &mut Batch, order: &mut Vec<Progress>| {
        let begun = batch.start().is_some();
        batch.finish(|progress| order.push(progress));
        begun
    };
    // It decodes when the first user comes; the second of its kind has not begun.
    batch.admit_low(100, 32, 40);
    assert!(step(&mut batch, &mut order));
    batch.admit_low(101, 32, 4);
    batch.admit(1, 48, 30);
    batch.admit(2, 16, 20);
    while step(&mut batch, &mut order) {}
    assert!(batch.is_idle() && batch.low == 0 && batch.store.used == 0);
    let place = |wanted: Progress| order.iter().position(|seen| *seen == wanted);
    assert_eq!(place(Progress::First(100)), Some(0));
    assert!(place(Progress::First(1)) < place(Progress::First(101)));
    assert!(place(Progress::Finished(1)) < place(Progress::Finished(100)));
    assert!(batch.counts.pushed_back > 0);
    assert_eq!(batch.counts.tokens.generated, 40 + 4 + 30 + 20);
}
