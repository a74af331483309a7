use super::*;
use crate::batch::Via;
use crate::journal::Places;
use crate::kinds::Method;
use tidegate_policy::ids::{Generation, GpuId, JobId};

struct Rig {
    journal: Journal,
    batches: Arc<Vec<Batch>>,
}

/// Two batches of two channels each; a restart of the runlist follows the second.
fn rig() -> Rig {
    let journal = Journal::private();
    let mut places = Places::without(&[]);
    let mut batches = Vec::new();
    for first in [10, 20] {
        let mut batch = Batch::by(Via::Agent, Method::Restart);
        for channel in first..first + 2 {
            let place = places.take().expect("room");
            journal.describe(place, 1, channel, 0);
            batch.push(1, channel, place);
        }
        batches.push(batch);
    }
    batches[1]
        .kicks
        .push(Kick::RestartGraphics { otherwise: None });
    Rig {
        journal,
        batches: Arc::new(batches),
    }
}

/// A call for two processes of two channels each, and one for a third.
fn joint() -> Rig {
    let journal = Journal::private();
    let mut places = Places::without(&[]);
    let mut batches = vec![Batch::by(Via::Agent, Method::Disable); 2];
    for (process, at) in [(1, 0), (2, 0), (3, 1)] {
        for channel in [10 * process, 10 * process + 1] {
            let place = places.take().expect("room");
            journal.describe(place, process, channel, 0);
            batches[at].push_of(u64::from(process), (process, channel), place);
        }
    }
    Rig {
        journal,
        batches: Arc::new(batches),
    }
}

impl Rig {
    /// Which channels each call names and how many kicks follow it, where all calls are answered so.
    fn carried_out(
        &self,
        switch: Switch,
        answer: Result<(), Status>,
    ) -> (Vec<(Vec<u32>, usize)>, Issued) {
        self.answered(switch, |_| answer)
    }

    /// The same where the answer depends on the channels that are named.
    fn answered(
        &self,
        switch: Switch,
        answer: impl Fn(&[u32]) -> Result<(), Status>,
    ) -> (Vec<(Vec<u32>, usize)>, Issued) {
        let mut carrying = Carrying::new(Issue {
            order: Order {
                gpu: GpuId(0),
                job: JobId(0),
                generation: Generation(0),
            },
            switch,
            batches: Arc::clone(&self.batches),
            wanted: Arc::default(),
            guards: Arc::default(),
            look: Look::Unconditional,
            watch: None,
        });
        let mut named = Vec::new();
        while let Some(batch) = carrying.call(&self.journal, 5) {
            let channels: Vec<u32> = batch.entries().map(|entry| entry.1).collect();
            let answer = answer(&channels);
            named.push((channels, batch.kicks.len()));
            carrying.answered(answer, (6, 7), &self.journal);
        }
        (named, carrying.issued())
    }

    fn place(&self, batch: usize, at: usize) -> Place {
        self.batches[batch].places[at]
    }
}

/// P-LIFECYCLE-4: a channel is enabled as often as it was disabled.
#[test]
fn only_what_may_run_is_disabled_and_each_disable_is_made_good() {
    let rig = rig();
    let whole = vec![(vec![10, 11], 0), (vec![20, 21], 1)];
    let (named, issued) = rig.carried_out(Switch::Disable, Ok(()));
    assert_eq!((named, issued.entered_ns), (whole.clone(), 6));
    // All of it is known to be off.
    let (named, issued) = rig.carried_out(Switch::Disable, Ok(()));
    assert_eq!(named, []);
    assert_eq!((issued.outcome, issued.entered_ns), (Outcome::Done, 5));
    // A process may have enabled one: the restart that follows the others follows it too.
    rig.journal.doubt(rig.place(0, 1));
    let (named, _) = rig.carried_out(Switch::Disable, Ok(()));
    assert_eq!(named, [(vec![11], 1)]);
    // It was disabled twice.
    let (named, _) = rig.carried_out(Switch::Enable, Ok(()));
    assert_eq!(named, [&whole[..1], &whole[..]].concat());
    // A call that failed may have stopped what it named.
    let failed = Err(Status::TIMEOUT);
    assert_eq!(rig.carried_out(Switch::Disable, failed).0, whole);
    assert_eq!(rig.carried_out(Switch::Disable, Ok(())).0, whole);
    let (named, _) = rig.carried_out(Switch::Enable, failed);
    assert_eq!(named, whole, "who fails is not asked again");
    // Nor is anything sure after it.
    assert_eq!(rig.carried_out(Switch::Disable, Ok(())).0, whole);
    let (named, _) = rig.carried_out(Switch::Enable, Ok(()));
    let thrice = whole.iter().flat_map(|call| vec![call.clone(); 3]);
    assert_eq!(named, thrice.collect::<Vec<_>>());
    assert_eq!(rig.carried_out(Switch::Enable, Ok(())).0, whole);
}

/// P-GATE-21, P-LIFECYCLE-4: likewise where a call names several processes, and is made for each when it is refused.
#[test]
fn each_process_of_a_refused_call_is_counted_by_itself() {
    let rig = joint();
    let calls = |switch, answer: &dyn Fn(&[u32]) -> Result<(), Status>| {
        let (named, issued) = rig.answered(switch, answer);
        let named: Vec<Vec<u32>> = named.into_iter().map(|(channels, _)| channels).collect();
        (named, issued.outcome, issued.apart)
    };
    let refused = Status::INVALID_CHANNEL;
    let taken = |_: &[u32]| Ok(());
    let of_one = |named: &[u32]| {
        let same = named.iter().all(|channel| channel / 10 == named[0] / 10);
        if same { Ok(()) } else { Err(refused) }
    };
    let not_second = |named: &[u32]| match named.contains(&20) {
        true => Err(refused),
        false => Ok(()),
    };
    let (both, first, second, third) = (
        vec![10, 11, 20, 21],
        vec![10, 11],
        vec![20, 21],
        vec![30, 31],
    );
    let enables = || -> Vec<u32> {
        let places = rig.batches.iter().flat_map(|batch| &batch.places);
        places.map(|&place| rig.journal.enables(&[place])).collect()
    };

    let apart = vec![both.clone(), first.clone(), second.clone(), third.clone()];
    let done = |named, apart| (named, Outcome::Done, apart);
    assert_eq!(calls(Switch::Disable, &of_one), done(apart.clone(), true));
    // The refused call may have stopped them too.
    assert_eq!(enables(), [2, 2, 2, 2, 1, 1]);
    assert_eq!(calls(Switch::Disable, &taken), done(vec![], false));
    // One of the second process may run again.
    rig.journal.doubt(rig.place(0, 2));
    let alone = vec![vec![20]];
    assert_eq!(calls(Switch::Disable, &taken), done(alone, false));
    assert_eq!(enables(), [2, 2, 3, 2, 1, 1]);
    // Each by itself, and as often as the most of its own.
    let (named, ..) = calls(Switch::Enable, &of_one);
    let of = |call: &Vec<u32>, times| vec![call.clone(); times];
    let expected = [of(&both, 1), of(&first, 2), of(&second, 3), of(&third, 1)].concat();
    assert_eq!(named, expected);
    assert!(rig.journal.marked().is_empty());

    // Who is refused alone as well keeps nobody else, and is asked for again alone.
    let (named, outcome, _) = calls(Switch::Disable, &not_second);
    assert_eq!((named, outcome), (apart, Outcome::Failed(refused)));
    let sure = |at| rig.journal.is_sure(rig.place(0, at));
    assert_eq!([0, 1, 2, 3].map(sure), [true, true, false, false]);
    assert_eq!(calls(Switch::Disable, &taken), done(of(&second, 1), false));
    assert_eq!(enables(), [2, 2, 3, 3, 1, 1]);
    let (named, outcome, apart) = calls(Switch::Enable, &taken);
    assert_eq!((outcome, apart), (Outcome::Done, false));
    assert_eq!(named, [of(&both, 3), of(&third, 1)].concat());
    assert!(rig.journal.marked().is_empty());
}
