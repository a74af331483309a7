use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicU64;

const MS: u64 = 1_000_000;

fn beat(count: u64, end: u64, batch: Option<u32>) -> Beat {
    Beat {
        count,
        begin_ns: end - 6 * MS,
        end_ns: end,
        fingerprint: 7,
        batch,
        ..Beat::default()
    }
}

fn counts(events: &[Event]) -> (usize, usize, usize, usize) {
    let of = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    (
        of(|event| matches!(event, Event::Arrived { .. })),
        of(|event| matches!(event, Event::First { .. })),
        of(|event| matches!(event, Event::Ended { .. })),
        of(|event| matches!(event, Event::Beat { .. })),
    )
}

/// P-TRAINER-15: leases learn from each iteration, and a request is followed from its arrival to its last token.
#[test]
fn a_request_is_followed_from_its_arrival_to_its_last_token() {
    let (mut follower, mut out) = (Follower::new(3), Vec::new());
    follower.in_flight(1, 100 * MS, &mut out);
    let request = 3 << 32;
    assert_eq!(out, [Event::Arrived { request }]);
    out.clear();
    let prompt = Beat {
        prompt: 40,
        ..beat(1, 120 * MS, Some(0))
    };
    let next = follower
        .hear(prompt, Some(1), 121 * MS, &mut out)
        .expect("it decodes");
    assert_eq!((next.batch, next.prompt), (1, 0));
    let first = Event::First {
        request,
        ttft_ns: 21 * MS,
    };
    assert_eq!(out.last(), Some(&first));
    out.clear();
    for nth in 2..10 {
        let beat = Beat {
            cached: 40 + nth,
            ..beat(nth, 120 * MS + nth * 10 * MS, Some(1))
        };
        let next = follower
            .hear(beat, Some(1), beat.end_ns, &mut out)
            .expect("it goes on");
        let expected = Iteration {
            fingerprint: 7,
            batch: 1,
            cached: 41 + nth,
            prompt: 0,
        };
        assert_eq!(next, expected);
    }
    assert_eq!(counts(&out), (0, 0, 0, 8));
    out.clear();
    assert_eq!(
        follower.hear(beat(10, 220 * MS, Some(1)), Some(0), 220 * MS, &mut out),
        None
    );
    let ended = Event::Ended {
        request,
        ttft_ns: 21 * MS,
        tpot_ns: 11 * MS,
    };
    assert_eq!(out.last(), Some(&ended), "nine tokens in 99 ms");
}

/// P-TRAINER-15: what waits is read next, and before it nothing is lent.
#[test]
fn a_prompt_that_waits_comes_next() {
    let (mut follower, mut out) = (Follower::new(1), Vec::new());
    let waits = Beat {
        waiting: 1,
        waiting_tokens: 900,
        ..beat(1, 50 * MS, Some(2))
    };
    let next = follower
        .hear(waits, None, 50 * MS, &mut out)
        .expect("two decode");
    assert_eq!((next.batch, next.prompt), (2, 900));
    // The engine says that another came, and has not taken it up yet.
    follower.in_flight(4, 51 * MS, &mut out);
    let next = follower.hear(beat(2, 60 * MS, Some(2)), Some(4), 60 * MS, &mut out);
    assert!(next.expect("two decode").prompt > 0);
}

/// P-TRAINER-15: iterations that nobody saw count for the requests that decoded in them, and teach no time.
#[test]
fn iterations_that_were_missed_count_and_teach_no_time() {
    let (mut follower, mut out) = (Follower::new(1), Vec::new());
    follower.hear(beat(1, 50 * MS, Some(1)), None, 50 * MS, &mut out);
    out.clear();
    follower.hear(beat(4, 80 * MS, Some(1)), None, 80 * MS, &mut out);
    let took: Vec<_> = out
        .iter()
        .filter_map(|event| match event {
            Event::Beat {
                took_ns,
                interval_ns,
                ..
            } => Some((*took_ns, *interval_ns)),
            _ => None,
        })
        .collect();
    assert_eq!(took, [(0, 10 * MS), (0, 10 * MS), (6 * MS, 10 * MS)]);
    out.clear();
    // A count that goes back, and one that leaps, begin anew.
    for count in [2, u64::MAX] {
        follower.hear(beat(count, 90 * MS, Some(1)), None, 90 * MS, &mut out);
        assert_eq!(counts(&out), (1, 1, 1, 1));
        out.clear();
    }
}

/// P-TRAINER-15: an engine that does not say how many decode keeps its promise with every iteration.
#[test]
fn an_engine_without_a_batch_is_held_to_every_iteration() {
    let (mut follower, mut out) = (Follower::new(1), Vec::new());
    for nth in 1..20 {
        out.clear();
        let next = follower.hear(
            beat(nth, nth * 10 * MS, None),
            None,
            nth * 10 * MS,
            &mut out,
        );
        assert_eq!(next.expect("one").batch, 1);
    }
    let tpot = out.iter().find_map(|event| match event {
        Event::Ended { tpot_ns, .. } => Some(*tpot_ns),
        _ => None,
    });
    assert_eq!(tpot, Some(10 * MS));
    assert_eq!(counts(&out), (1, 1, 1, 1));
}

/// P-TRAINER-15: words that are being written are read later, and times that cannot be are cut.
#[test]
fn half_written_words_are_not_read() {
    let words = BeatWords::default();
    let clock = ProcessClock::default();
    assert_eq!(Beat::read(&words, clock, 100), None, "none has ended");
    let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    set(&words.count, 5);
    set(&words.end_ns, 90);
    set(&words.begin_ns, 80);
    set(&words.version, 1);
    assert_eq!(Beat::read(&words, clock, 100), None);
    set(&words.version, 2);
    let read = Beat::read(&words, clock, 100).expect("written");
    assert_eq!((read.begin_ns, read.end_ns, read.batch), (80, 90, None));
    set(&words.begin_ns, u64::MAX);
    set(&words.end_ns, u64::MAX);
    set(&words.batch, u64::MAX);
    let read = Beat::read(&words, clock, 100).expect("written");
    assert_eq!((read.begin_ns, read.end_ns), (100, 100));
    assert_eq!(read.batch, Some(u32::MAX));
}

proptest! {
    /// P-TRAINER-15: whatever an online process writes, the agent keeps a bounded amount of it, and every request that
    /// begins ends once.
    #[test]
    fn nothing_that_is_written_grows_without_bound(
        words in proptest::collection::vec(any::<([u64; 4], [u32; 4], Option<u64>)>(), 1..60),
    ) {
        let (mut follower, mut out) = (Follower::new(9), Vec::new());
        let (mut now, mut open) = (100 * MS, std::collections::HashSet::new());
        for ([count, begin, end, fingerprint], [batch, prompt, tokens, waiting], flight) in words {
            now += 10 * MS;
            let end_ns = end.min(now);
            let beat = Beat {
                count: count % 200,
                begin_ns: begin.min(end_ns),
                end_ns,
                fingerprint,
                batch: (batch % 3 > 0).then_some(batch),
                cached: u64::from(prompt),
                prompt: prompt % 2,
                waiting_tokens: tokens % 2,
                waiting: waiting % 3,
            };
            follower.hear(beat, flight, now, &mut out);
            prop_assert!(follower.joined.len() + follower.waiting.len() <= 2 * FOLLOWED);
            prop_assert!(out.len() <= 8 * FOLLOWED);
            if out.len() == 8 * FOLLOWED { break; }
            for event in out.drain(..) {
                match event {
                    Event::Arrived { request } => prop_assert!(open.insert(request)),
                    Event::Ended { request, .. } => prop_assert!(open.remove(&request)),
                    _ => {}
                }
            }
        }
        follower.end(now, &mut out);
        let ended = out.iter().filter(|event| matches!(event, Event::Ended { .. })).count();
        prop_assert_eq!(ended, open.len());
    }
}
