//! A thread that launches into its own stream, and somebody who asks the event behind it.

use crate::cell::{Cell, Unordered};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use tidegate_core::witness::{Event, Witness};
use tidegate_core::word::Word;

/// What the thread does last with a launch.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    Says,
    Records,
}

/// A stream: how much the event is behind, and how much is done.
#[derive(Default)]
struct Stream<W> {
    launched: W,
    behind: W,
    done: W,
    witness: Witness<W>,
}

fn asked_beside_launches<W: Word + Default + Send + Sync + 'static>(last: Last) {
    let stream = Arc::new(Stream::<W>::default());
    let thread = {
        let stream = Arc::clone(&stream);
        thread::spawn(move || {
            let (handle, context) = (7, 1);
            stream.witness.set(Event { handle, context });
            for nth in 1..=2 {
                stream.launched.store(nth, Release);
                if last == Last::Records {
                    stream.witness.covers(nth);
                }
                stream.behind.store(nth, Release);
                if last == Last::Says {
                    stream.witness.covers(nth);
                }
                // Some time later, or never.
                stream.done.store(nth, Release);
            }
        })
    };
    let launched = stream.launched.load(Acquire);
    if stream.witness.of(launched).is_some() {
        let behind = stream.behind.load(Acquire);
        let done = stream.done.load(Acquire);
        assert!(done < behind || done >= launched, "seen done too early");
    }
    thread.join().unwrap();
}

fn model(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(what);
}

#[test]
fn what_is_seen_done_of_a_threads_own_stream_is_done() {
    model(|| asked_beside_launches::<Cell>(Last::Says));
}

#[test]
#[should_panic(expected = "seen done too early")]
fn an_event_said_to_be_behind_a_launch_before_it_is_recorded_proves_nothing() {
    model(|| asked_beside_launches::<Cell>(Last::Records));
}

#[test]
#[should_panic(expected = "seen done too early")]
fn words_that_order_nothing_prove_nothing() {
    model(|| asked_beside_launches::<Unordered>(Last::Says));
}
