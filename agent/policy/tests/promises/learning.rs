//! What the cooldown is learnt from, and what it is worth to a request.

use crate::bench::Bench;
use crate::dice::Dice;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::{Config, Learning};
use tidegate_policy::effect::{Effect, Report};
use tidegate_policy::event::Event;
use tidegate_policy::gap::{Gap, Iterations, Learner, Pattern, Turns};
use tidegate_policy::ids::{GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{GateState, GpuView, Unit};

const ENGINE: SessionId = SessionId(1);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);
const MS: u64 = 1_000_000;
const DECODE_GRAPH: u64 = 7;

fn between(dice: &mut Dice, low: u64, high: u64) -> u64 {
    dice.between(low as f64, high as f64) as u64
}

/// An engine that serves one request at a time, beside a job that is always ready.
struct Served {
    bench: Bench,
    dice: Dice,
    /// Longest decode gap that can come; the shortest is half of it.
    gap: u64,
    /// End and length of every decode gap between equal iterations.
    gaps: Vec<(u64, u64)>,
    eager: bool,
}

impl Served {
    fn new(seed: u64, gap: u64, eager: bool) -> Self {
        let mut bench = Bench::new(Config::default(), 1);
        bench.attach_online(ENGINE);
        bench.attach_offline(SessionId(10), JOB, GpuSet::of(GPU));
        bench.pass(600 * MS);
        bench.answer_all();
        Self {
            bench,
            dice: Dice::new(seed),
            gap,
            gaps: Vec::new(),
            eager,
        }
    }

    fn wait(&mut self, ns: u64) {
        // Orders are carried out within microseconds of every timer on the way.
        self.bench.pass(ns.saturating_sub(MS / 10));
        self.bench.answer_all();
        self.bench.pass(ns.min(MS / 10));
        self.bench.answer_all();
    }

    fn iteration(&mut self, prefill: bool) {
        self.bench.busy(ENGINE, GPU);
        self.bench.answer_all();
        self.wait(if prefill { 20 * MS } else { 5 * MS });
        let (launches, graph) = match (prefill, self.eager) {
            (true, _) => (between(&mut self.dice, 400, 500), 0),
            (false, true) => (between(&mut self.dice, 300, 310), 0),
            (false, false) => (4, DECODE_GRAPH),
        };
        self.bench.idle(ENGINE, GPU, launches, graph);
    }

    /// Disables during one request.
    fn request(&mut self, tokens: u64) -> usize {
        let before = self.bench.effects.len();
        self.iteration(true);
        for token in 0..tokens {
            let gap = between(&mut self.dice, self.gap / 2, self.gap);
            self.wait(gap);
            if token > 0 {
                self.gaps.push((self.bench.now, gap));
            }
            self.iteration(false);
        }
        let effects = &self.bench.effects[before..];
        effects
            .iter()
            .filter(|(_, effect)| matches!(effect, Effect::Disable(_)))
            .count()
    }

    /// Twice the longest decode gap of the window, from the schedule alone.
    fn truth(&self) -> Duration {
        let learning = Learning::default();
        let recent = self
            .gaps
            .len()
            .saturating_sub(learning.window_gaps as usize);
        let horizon = self.bench.now.saturating_sub(60_000 * MS);
        let in_window = self
            .gaps
            .iter()
            .enumerate()
            .filter(|(n, g)| *n >= recent || g.0 >= horizon);
        let longest = in_window.map(|(_, g)| g.1).max().unwrap_or(0);
        Duration::from_nanos(2 * longest).clamp(learning.min, learning.max)
    }

    fn view(&self) -> GpuView {
        let view = self.bench.node.gpu(GPU, self.bench.at());
        view.expect("the only GPU")
    }

    fn cooldown(&self) -> Duration {
        self.view().cooldown
    }

    fn longest_gap(&self) -> Duration {
        self.view().longest_gap
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn with_poisson_arrivals_and_stationary_gaps_the_cooldown_is_twice_the_longest_gap_or_doubt(
        seed: u64, gap in MS..90 * MS, pause in 5 * MS..2_000 * MS, eager: bool,
    ) {
        let mut served = Served::new(seed, gap, eager);
        for request in 0..40 {
            let tokens = between(&mut served.dice, 2, 60);
            served.request(tokens);
            let pause = served.dice.exponential(pause as f64) as u64;
            served.wait(pause);
            let counted = served.bench.node.gpu(GPU, served.bench.at()).unwrap().decode_gaps;
            if counted < 32 {
                prop_assert_eq!(served.cooldown(), Duration::from_millis(200));
                prop_assert!(request < 30, "nothing was learnt");
            } else {
                let (learnt, truth) = (served.cooldown().as_secs_f64(), served.truth().as_secs_f64());
                let truth = truth.max(0.2 * (32.0 / counted as f64).sqrt());
                prop_assert!((truth * 0.9..=truth * 1.1).contains(&learnt), "{learnt} for {truth}");
            }
        }
    }

    /// P-GATE-17: a request is preempted once while decode gaps are stationary.
    #[test]
    fn a_request_is_preempted_at_most_once_while_gaps_are_stationary(
        seed: u64, gap in MS..90 * MS, pause in 5 * MS..2_000 * MS, eager: bool,
    ) {
        let mut served = Served::new(seed, gap, eager);
        let mut preempted = 0;
        for _ in 0..40 {
            let tokens = between(&mut served.dice, 2, 60);
            let disables = served.request(tokens);
            prop_assert!(disables <= 1, "{disables} in one request");
            preempted += disables;
            let pause = served.dice.exponential(pause as f64) as u64 + 100 * MS;
            served.wait(pause);
        }
        prop_assert!(preempted > 0, "the test is about nothing");
    }

    #[test]
    fn the_estimate_is_the_longest_gap_of_the_window_and_at_most_one_percent_more(
        gaps in prop::collection::vec((1u64..200, 1u64..2_000), 33..3_000),
    ) {
        let window_gaps = 1_000;
        let mut learner = Learner::new(Learning { window_gaps, ..Learning::default() });
        let (mut now, mut seen) = (0, Vec::new());
        for (gap, pause) in gaps {
            let gap = gap * MS / 2;
            now += gap + pause * MS / 20;
            seen.push((now, gap));
            let span = Duration::from_nanos(gap);
            learner.learn(Gap { span, end: Instant::from_nanos(now), woke: false });
        }
        now += 30_000 * MS;
        let recent = seen.len().saturating_sub(1_000);
        let horizon = now.saturating_sub(60_000 * MS);
        let window = seen.iter().enumerate().filter(|(n, g)| *n >= recent || g.0 >= horizon);
        let longest = Duration::from_nanos(window.map(|(_, g)| g.1).max().unwrap().max(MS));
        let learnt = learner.longest(Instant::from_nanos(now));
        prop_assert!(longest <= learnt && learnt <= longest + longest / 100, "{learnt:?} {longest:?}");
    }
}

/// P-GATE-3: the policy decides as promised, whatever happens.
#[test]
fn pauses_between_bursts_are_not_learnt() {
    let mut served = Served::new(1, 4 * MS, false);
    for _ in 0..20 {
        for _ in 0..5 {
            served.request(20);
            served.wait(60 * MS);
        }
        served.wait(900 * MS);
    }
    assert!(served.longest_gap() <= Duration::from_millis(5));
}

#[test]
fn few_decode_gaps_say_little_and_many_say_all() {
    let mut served = Served::new(1, 4 * MS, false);
    served.request(32);
    assert_eq!(served.cooldown(), Duration::from_millis(200));
    served.request(96);
    let doubt = served.cooldown();
    assert!(
        (Duration::from_millis(95)..Duration::from_millis(105)).contains(&doubt),
        "four times as many halve the doubt: {doubt:?}"
    );
    served.request(30_000);
    assert_eq!(served.cooldown(), served.truth());
}

/// One gap in a thousand is ten times the others: the first of them must not wake offline.
#[test]
fn a_rare_long_gap_is_outlasted_before_it_was_ever_seen() {
    for seed in 0..20 {
        let mut served = Served::new(seed, MS, false);
        let mut disables = 0;
        for _ in 0..300 {
            disables = disables.max(served.request(40));
            if served.dice.unit() < 0.04 {
                served.wait(10 * MS);
                served.iteration(false);
            }
            served.wait(500 * MS);
        }
        assert!(disables <= 1);
        let violated = |report: &Report| matches!(report, Report::CooldownViolated { .. });
        assert!(!served.bench.reports.iter().any(violated), "seed {seed}");
    }
}

#[test]
fn pauses_between_requests_of_one_token_are_not_learnt_beside_graphs() {
    let mut served = Served::new(1, 4 * MS, false);
    served.request(50);
    for _ in 0..100 {
        served.request(0);
        served.wait(70 * MS);
    }
    assert!(served.longest_gap() <= Duration::from_millis(5));
}

#[test]
fn a_run_shorter_than_eight_repeats_makes_no_pattern_known() {
    let mut served = Served::new(1, 4 * MS, false);
    for _ in 0..100 {
        served.request(8);
    }
    assert_eq!(
        served
            .bench
            .node
            .gpu(GPU, served.bench.at())
            .unwrap()
            .decode_gaps,
        0
    );
    served.request(9);
    served.request(2);
    assert_eq!(
        served
            .bench
            .node
            .gpu(GPU, served.bench.at())
            .unwrap()
            .decode_gaps,
        9
    );
}

#[test]
fn a_gap_that_outlasts_the_cooldown_is_obeyed_at_once_and_forgotten_over_the_window() {
    let mut served = Served::new(1, 4 * MS, false);
    served.request(16_000);
    // The same request stalls: offline wakes, then the same iteration goes on.
    served.wait(40 * MS);
    served.iteration(false);
    let violated = Report::CooldownViolated {
        gpu: GPU,
        gap: Duration::from_millis(40),
    };
    assert!(
        served.bench.reports.contains(&violated),
        "{:?}",
        served.bench.reports
    );
    assert!(
        served.cooldown() > Duration::from_micros(79_900),
        "{:?}",
        served.cooldown()
    );
    served.wait(30_000 * MS);
    let half = served.cooldown();
    assert!(
        (Duration::from_millis(40)..Duration::from_millis(48)).contains(&half),
        "{half:?}"
    );
    served.wait(30_000 * MS);
    assert!(served.cooldown() < Duration::from_millis(9));
}

#[test]
fn a_return_after_a_wake_that_is_another_request_is_no_violation() {
    let mut served = Served::new(1, 4 * MS, false);
    for _ in 0..5 {
        served.request(50);
        served.wait(40 * MS);
    }
    assert!(
        served
            .bench
            .reports
            .iter()
            .all(|r| !matches!(r, Report::CooldownViolated { .. }))
    );
    assert!(served.longest_gap() <= Duration::from_millis(5));
}

#[test]
fn with_lifecycle_hints_the_gate_opens_when_the_last_request_ends_and_not_before() {
    let mut served = Served::new(1, 4 * MS, false);
    let hint = |started, n| {
        let (session, request) = (ENGINE, RequestId(n));
        if started {
            Event::RequestStarted { session, request }
        } else {
            Event::RequestEnded { session, request }
        }
    };
    let gate = |served: &Served| served.bench.node.gpu(GPU, served.bench.at()).unwrap().gate;
    served.bench.send(hint(true, 1));
    served.request(4);
    served.wait(2_000 * MS);
    assert_eq!(gate(&served), GateState::Cooling, "a request is in flight");
    served.bench.send(hint(true, 2));
    served.bench.send(hint(false, 1));
    served.wait(2_000 * MS);
    assert_eq!(gate(&served), GateState::Cooling, "another one is");
    served.bench.send(hint(false, 2));
    assert_eq!(gate(&served), GateState::Open, "none is");
    let unit = served
        .bench
        .node
        .gpu(GPU, served.bench.at())
        .unwrap()
        .per_unit;
    assert_eq!(
        (unit.unit, unit.units, unit.preemptions),
        (Unit::Request, 2, 1)
    );
}

#[test]
fn with_lifecycle_hints_every_gap_within_a_request_is_a_decode_gap_and_no_other_is() {
    let mut served = Served::new(1, 4 * MS, false);
    for n in 0..20 {
        let (session, request) = (ENGINE, RequestId(n));
        served
            .bench
            .send(Event::RequestStarted { session, request });
        served.request(3);
        served.bench.send(Event::RequestEnded { session, request });
        served.wait(70 * MS);
    }
    let view = served.bench.node.gpu(GPU, served.bench.at()).unwrap();
    assert_eq!(view.decode_gaps, 60);
    assert!(view.longest_gap <= Duration::from_millis(5), "{view:?}");
}

/// An engine whose gaps are shorter than the prober's period says how many iterations it had. Its pauses, after which it
/// begins with a prefill, are none of its gaps; where it goes on with a decode, the time before it is one.
#[test]
fn gaps_that_nobody_sees_are_learnt_from_the_turns_of_a_busy_period() {
    let config = Learning::default();
    let (mut iterations, mut learner) = (Iterations::default(), Learner::new(config));
    let (mut now, mut seen) = (0, Vec::new());
    let mut period = |count: u64, first: u64, pause_ms: u64| {
        let (turns, launches) = (
            Turns {
                count,
                first: Launches(first),
                apart: Duration::from_micros(600),
            },
            Launches(3 * count + if first > 6 { 400 } else { 0 }),
        );
        now += pause_ms * MS;
        let gap = Gap {
            span: Duration::from_millis(pause_ms),
            end: Instant::from_nanos(now),
            woke: true,
        };
        let span = Duration::from_millis(5 * count);
        now += 5 * count * MS;
        let pattern = Pattern {
            launches,
            graph: GraphId(DECODE_GRAPH),
        };
        iterations.ended(pattern, turns, Some(gap), &config, |gap| {
            seen.push(gap.span.as_millis());
            learner.learn(gap);
        });
        let at = Instant::from_nanos(now);
        learner.unseen(turns.gaps(span), turns.apart, at);
        (learner.cooldown(at), learner.gaps())
    };
    assert_eq!(period(30, 400, 0), (config.max, 29), "too few to believe");
    let (cooldown, _) = period(100, 400, 900);
    assert!(cooldown < config.max, "{cooldown:?}");
    for _ in 0..50 {
        period(600, u64::MAX, 700);
    }
    let (cooldown, gaps) = period(600, 400, 900);
    let doubt = config.max.mul_f64((32.0 / gaps as f64).sqrt());
    assert_eq!(
        (cooldown, gaps),
        (doubt, 29 + 99 + 51 * 599),
        "as of so many gaps that were seen"
    );
    assert!(cooldown < Duration::from_millis(7));
    // A step that came late, and a few single ones after it.
    let (cooldown, _) = period(40, 3, 25);
    let twice = Duration::from_millis(50);
    assert!(
        cooldown <= twice && cooldown >= twice.mul_f64(0.98),
        "{cooldown:?} for a gap of 25 ms in which the gate had opened"
    );
    period(1, 3, 30);
    period(2, 6, 26);
    period(600, 2_000, 900);
    assert_eq!(seen, [25, 30, 26], "no pause is one");
    let lie = Turns {
        count: u64::MAX,
        apart: Duration::from_nanos(1),
        ..Turns::default()
    };
    assert_eq!(
        lie.gaps(Duration::from_millis(1)),
        4,
        "no more than a model can make"
    );
    assert_eq!(
        Turns {
            count: 9,
            ..Turns::default()
        }
        .gaps(Duration::from_secs(1)),
        0,
        "a library that does not say"
    );
}

/// P-GATE-3: no cooldown outlasts such a gap, so it teaches none.
#[test]
fn a_gap_that_the_longest_cooldown_would_not_outlast_is_not_learnt() {
    let mut learner = Learner::new(Learning::default());
    let learnt = |learner: &mut Learner, ms: u64, at_s: u64, woke: bool| {
        let span = Duration::from_millis(ms);
        let end = Instant::from_nanos(at_s * 1_000 * MS);
        let violated = learner.learn(Gap { span, end, woke });
        (violated, learner.longest(end))
    };
    for at in 1..10_000 {
        learnt(&mut learner, 4, at, false);
    }
    let four = Duration::from_millis(4);
    assert_eq!(learnt(&mut learner, 540, 10_001, true), (false, four));
    assert_eq!(
        learnt(&mut learner, 90, 10_002, true),
        (true, Duration::from_millis(90))
    );
}

/// The prober may miss the short gap between a prefill and the first decode: one busy period then
/// holds both, and ends with the decode's graph. It may miss gaps between decodes as well.
#[test]
fn a_pause_before_a_prefill_that_runs_into_its_decode_is_no_decode_gap() {
    let mut iterations = Iterations::default();
    let mut gaps = Vec::new();
    let mut ended = |launches: u64, span_ms: u64| {
        let pattern = Pattern {
            launches: Launches(launches),
            graph: GraphId(DECODE_GRAPH),
        };
        let gap = Gap {
            span: Duration::from_millis(span_ms),
            ..Gap::default()
        };
        iterations.ended(
            pattern,
            Turns::default(),
            Some(gap),
            &Learning::default(),
            |gap| {
                gaps.push(gap.span.as_millis());
            },
        );
    };
    for launches in [2, 1, 3, 1, 1, 2, 1, 1, 1, 2] {
        ended(launches, 1);
    }
    ended(9, 400);
    ended(1, 1);
    ended(2, 7);
    ended(9, 500);
    let want = [[1; 9].as_slice(), &[7]].concat();
    assert_eq!(gaps, want, "every decode gap and no pause");
}
