//! The activity protocol as it ships, on every execution that x86-64's store buffers allow.
//!
//! A small exhaustive explorer: each thread has a first-in-first-out buffer of stores, which reaches
//! memory at any time; a load looks into the thread's own buffer first; a locked instruction drains
//! the thread's own buffer; membarrier drains all. Threads are ordinary functions over
//! [`Cell`]s, run again from the start with the answers they had so far up to their next access:
//! what is explored is the code of the library, not a copy of it.
//!
//! Two promises are judged. *Rung*: while a rung idle edge stands, no launch that saw the device
//! busy is unfinished; the second membarrier carries it. *Written*: idle is not even written, for
//! the length of a probe, over a launch that had begun before the probe; the first one carries that.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use tidegate_core::activity::{Begin, Counts, Published, begin, busy_edge, enter_if_busy};
use tidegate_core::word::{Fences, Word};

/// One access of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Load(usize),
    Store(usize, u64),
    Cas(usize, u64, u64),
    Add(usize, u64),
    Membarrier,
    /// The driver tells whether everything that a thread submitted is done.
    Query(usize),
    /// A launch has passed the activity word.
    Begun,
    /// The prober is about to begin.
    Probe,
    /// The prober rings for this idle word.
    Ring(u64),
    End,
}

#[derive(Default)]
struct Replay {
    answers: Vec<u64>,
    at: usize,
    next: Option<Op>,
}

thread_local!(static REPLAY: RefCell<Replay> = RefCell::default());

struct Pause;

fn perform(op: Op) -> u64 {
    let answer = REPLAY.with_borrow_mut(|replay| {
        let answer = replay.answers.get(replay.at).copied();
        match answer {
            Some(_) => replay.at += 1,
            None => replay.next = Some(op),
        }
        answer
    });
    answer.unwrap_or_else(|| resume_unwind(Box::new(Pause)))
}

/// The next access of `program` after it got `answers`.
fn next_op(program: &dyn Fn(), answers: &[u64]) -> Op {
    REPLAY.set(Replay {
        answers: answers.to_vec(),
        ..Replay::default()
    });
    match catch_unwind(AssertUnwindSafe(program)) {
        Ok(()) => Op::End,
        Err(cause) if cause.is::<Pause>() => REPLAY.with_borrow(|replay| replay.next.unwrap()),
        Err(cause) => resume_unwind(cause),
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell(usize);

impl Word for Cell {
    fn load(&self, _: Ordering) -> u64 {
        perform(Op::Load(self.0))
    }
    fn store(&self, value: u64, _: Ordering) {
        perform(Op::Store(self.0, value));
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        let found = perform(Op::Cas(self.0, current, new));
        if found == current {
            Ok(found)
        } else {
            Err(found)
        }
    }
    fn fetch_add(&self, value: u64) -> u64 {
        perform(Op::Add(self.0, value))
    }
}

const ACTIVITY: usize = 0;
const GATE: usize = 1;
const fn entered(thread: usize) -> usize {
    2 + thread
}
const fn returned(thread: usize) -> usize {
    4 + thread
}
const fn submitted(thread: usize) -> usize {
    6 + thread
}
const fn done(thread: usize) -> usize {
    8 + thread
}
const WORDS: usize = 10;

fn pair(thread: usize) -> Counts<Cell> {
    Counts {
        entered: Cell(entered(thread)),
        returned: Cell(returned(thread)),
    }
}

/// Which membarrier is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftOut {
    Neither,
    First,
    Second,
}

/// No instruction on a launch; membarrier in the prober, unless it is the one left out.
struct Asymmetric {
    calls: std::cell::Cell<u32>,
    left_out: LeftOut,
}

impl Fences for Asymmetric {
    fn light() {}
    fn heavy(&self) {
        let call = self.calls.get();
        self.calls.set(call + 1);
        let omitted = match self.left_out {
            LeftOut::Neither => false,
            LeftOut::First => call == 0,
            LeftOut::Second => call == 1,
        };
        if !omitted {
            perform(Op::Membarrier);
        }
    }
}

fn launches(thread: usize, count: u64) {
    let counts = pair(thread);
    for number in 1..=count {
        if !enter_if_busy::<_, Asymmetric>(&counts, &Cell(ACTIVITY), &Cell(GATE)) {
            counts.raise_entered();
            busy_edge(&Cell(ACTIVITY));
        }
        perform(Op::Begun);
        Cell(submitted(thread)).store(number, Ordering::Release);
        counts.raise_returned();
    }
}

fn probes(threads: usize, count: u32, left_out: LeftOut) {
    let all: Vec<_> = (0..threads).map(pair).collect();
    for _ in 0..count {
        let fences = Asymmetric {
            calls: std::cell::Cell::new(0),
            left_out,
        };
        perform(Op::Probe);
        let Begin::Quiet(quiet) = begin(&fences, &Cell(ACTIVITY), || all.iter()) else {
            continue;
        };
        if (0..threads).any(|thread| perform(Op::Query(thread)) == 0) {
            continue;
        }
        let published = quiet.publish(&fences, &Cell(ACTIVITY), || all.iter());
        if let Published::Idle { word } = published {
            perform(Op::Ring(word));
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    memory: [u64; WORDS],
    buffers: Vec<VecDeque<(usize, u64)>>,
    answers: Vec<Vec<u64>>,
    /// Launches that passed the activity word, per thread.
    begun: Vec<u64>,
    /// The same when the probe under way began.
    begun_before_probe: Vec<u64>,
    /// The idle word last rung.
    rung: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    states: usize,
    rung: bool,
    written: bool,
}

/// Explores `launches` per thread against `probe_count` probes; the last thread is the prober.
fn explore(launch_counts: &[u64], probe_count: u32, left_out: LeftOut) -> Verdict {
    let apps = launch_counts.len();
    let mut programs: Vec<Box<dyn Fn()>> = Vec::new();
    for (thread, count) in launch_counts.iter().copied().enumerate() {
        programs.push(Box::new(move || launches(thread, count)));
    }
    programs.push(Box::new(move || probes(apps, probe_count, left_out)));
    let mut memory = [0; WORDS];
    memory[ACTIVITY] = 3;
    let first = State {
        memory,
        buffers: vec![VecDeque::new(); programs.len()],
        answers: vec![Vec::new(); programs.len()],
        begun: vec![0; apps],
        begun_before_probe: vec![0; apps],
        rung: None,
    };
    let mut known: HashMap<(usize, Vec<u64>), Op> = HashMap::new();
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut verdict = Verdict {
        states: 0,
        rung: false,
        written: false,
    };
    while let Some(state) = open.pop() {
        verdict.states += 1;
        let unfinished = |begun: &[u64]| (0..apps).any(|t| state.memory[done(t)] < begun[t]);
        if state.rung == Some(state.memory[ACTIVITY]) && unfinished(&state.begun) {
            verdict.rung = true;
        }
        if state.memory[ACTIVITY] & 1 == 0
            && state.rung != Some(state.memory[ACTIVITY])
            && unfinished(&state.begun_before_probe)
        {
            verdict.written = true;
        }
        let mut then = |next: State| {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        };
        for thread in 0..apps {
            if state.memory[done(thread)] != state.memory[submitted(thread)] {
                let mut next = state.clone();
                next.memory[done(thread)] = next.memory[submitted(thread)];
                then(next);
            }
        }
        for (thread, program) in programs.iter().enumerate() {
            let mut flushed = state.clone();
            if let Some((word, value)) = flushed.buffers[thread].pop_front() {
                flushed.memory[word] = value;
                then(flushed);
            }
            let key = (thread, state.answers[thread].clone());
            let op = *known
                .entry(key)
                .or_insert_with_key(|(_, answers)| next_op(program, answers));
            if let Some(next) = step(&state, thread, op) {
                then(next);
            }
        }
    }
    verdict
}

fn step(state: &State, thread: usize, op: Op) -> Option<State> {
    let mut next = state.clone();
    let drained = |next: &mut State, thread: usize| {
        for (word, value) in std::mem::take(&mut next.buffers[thread]) {
            next.memory[word] = value;
        }
    };
    let answer = match op {
        Op::End => return None,
        Op::Load(word) => state.buffers[thread]
            .iter()
            .rev()
            .find(|(at, _)| *at == word)
            .map_or(state.memory[word], |(_, value)| *value),
        Op::Store(word, value) => {
            next.buffers[thread].push_back((word, value));
            0
        }
        Op::Cas(word, current, new) => {
            drained(&mut next, thread);
            let found = next.memory[word];
            if found == current {
                next.memory[word] = new;
            }
            found
        }
        Op::Add(word, value) => {
            drained(&mut next, thread);
            let found = next.memory[word];
            next.memory[word] = found.wrapping_add(value);
            found
        }
        Op::Membarrier => {
            for thread in 0..next.buffers.len() {
                drained(&mut next, thread);
            }
            0
        }
        Op::Query(of) => u64::from(state.memory[submitted(of)] == state.memory[done(of)]),
        Op::Begun => {
            next.begun[thread] += 1;
            0
        }
        Op::Probe => {
            next.begun_before_probe = next.begun.clone();
            0
        }
        Op::Ring(word) => {
            next.rung = Some(word);
            0
        }
    };
    next.answers[thread].push(answer);
    Some(next)
}

/// P-GATE-4: no order of stores lets idle be rung while a launch is unfinished.
#[test]
fn no_execution_breaks_the_protocol_that_ships() {
    for (launches, probes) in [(&[1, 1][..], 1), (&[2][..], 2)] {
        let verdict = explore(launches, probes, LeftOut::Neither);
        assert!(
            !verdict.rung && !verdict.written,
            "{launches:?} x {probes}: {verdict:?}"
        );
        assert!(
            verdict.states > 1_000,
            "the exploration is not empty: {verdict:?}"
        );
    }
}

#[test]
fn leaving_out_either_membarrier_breaks_it() {
    let second = explore(&[1, 1], 1, LeftOut::Second);
    assert!(second.rung, "a rung idle edge over a running launch");
    let first = explore(&[1, 1], 1, LeftOut::First);
    assert!(first.written, "idle written over a launch begun before");
}
