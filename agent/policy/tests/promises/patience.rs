//! What preemptions cost online's first tokens is kept to: the gate opens where online stays away for long enough.

use crate::bench::Bench;
use crate::dice::Dice;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::budget::{Budget, Worked};
use tidegate_policy::config::{Config, Cooldown, Slo};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, RequestId, SessionId};
use tidegate_policy::patience::{Idle, Patience};
use tidegate_policy::time::Instant;
use tidegate_policy::view::GateState;

// What agent.toml(5) says of [slo].
const UNKNOWN: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(137);
const LEAST: u32 = 32;

const GAP: Duration = Duration::from_millis(20);

const fn slo(ttft: u32) -> Slo {
    Slo { ttft, tpot: 100 }
}

/// Online alone with offline on one GPU.
struct Traffic {
    slo: Slo,
    patience: Patience,
    budget: Budget,
    now: Instant,
    cost: Duration,
    /// What preemptions cost, and for how long online read prompts.
    spent: Duration,
    read: Duration,
    waits: Vec<Duration>,
}

impl Traffic {
    fn new(slo: Slo, cost: Duration) -> Self {
        let now = Instant::from_nanos(0);
        Self {
            slo,
            patience: Patience::default(),
            budget: Budget::new(now),
            now,
            cost,
            spent: Duration::ZERO,
            read: Duration::ZERO,
            waits: Vec::new(),
        }
    }

    /// Online is away for so long, and then reads prompts.
    fn period(&mut self, away: Duration, prompts: Duration) {
        let idle = Idle {
            begins: true,
            held: false,
            gap: GAP,
        };
        (self.patience).idles(idle, self.slo, &mut self.budget, self.now);
        let wait = self.patience.wait();
        self.waits.push(wait);
        self.now = self.now.after(away);
        (self.patience).returned(self.slo, &mut self.budget, self.now, self.now);
        if away >= wait.max(GAP) {
            self.now = self.now.after(self.cost);
            self.budget.preempted(self.cost, self.cost, self.now);
            self.patience.delayed(self.cost);
            self.spent += self.cost;
        }
        self.now = self.now.after(prompts);
        let worked = Worked {
            span: prompts,
            decoded: false,
        };
        self.budget.worked(worked, self.now);
        self.read += prompts;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// P-GATE-22: preemptions cost the time to first token half of what the operator accepts, and never all of it where
    /// traffic changes.
    #[test]
    fn preemptions_cost_what_is_accepted(
        seed in any::<u64>(),
        ttft in 20u32..500,
        cost_us in 50u64..3_000,
        prompts_ms in prop::array::uniform2(2u64..300),
        away_ms in prop::array::uniform2(5u64..5_000),
    ) {
        let mut dice = Dice::new(seed);
        let cost = Duration::from_micros(cost_us);
        let mut traffic = Traffic::new(slo(ttft), cost);
        // Before anything is known, and the few that are under way where it was spent.
        let begin = cost * (LEAST + 8);
        for (prompts, away) in prompts_ms.into_iter().zip(away_ms) {
            for _ in 0..1_500 {
                let away = dice.exponential(away as f64 / 1e3);
                traffic.period(Duration::from_secs_f64(away), Duration::from_millis(prompts));
                let (spent, accepted) = (traffic.spent, traffic.read * ttft / 10_000);
                prop_assert!(spent <= accepted + begin, "{spent:?} of {accepted:?}");
            }
            if traffic.read == Duration::from_millis(prompts) * 1_500 {
                let half = traffic.read * ttft / 20_000;
                prop_assert!(
                    traffic.spent <= half.mul_f64(1.1) + begin,
                    "{:?} of {half:?}", traffic.spent
                );
            }
        }
        prop_assert!(traffic.waits.iter().all(|wait| *wait <= LONGEST));
    }
}

/// P-GATE-22: what long prompts earned is not all spent on the returns of short ones.
#[test]
fn a_change_to_many_short_prompts_is_followed() {
    let cost = Duration::from_millis(1);
    let mut traffic = Traffic::new(slo(100), cost);
    let mut dice = Dice::new(3);
    // Of the first few are away for more than a gap; all of the second.
    for (periods, prompts_ms, away_s) in [(1_500, 73, 0.011), (3_000, 2, 0.3)] {
        for _ in 0..periods {
            let away = Duration::from_secs_f64(dice.exponential(away_s));
            traffic.period(away, Duration::from_millis(prompts_ms));
        }
    }
    let (spent, accepted) = (traffic.spent, traffic.read * 100 / 10_000);
    assert!(spent <= accepted, "{spent:?} of {accepted:?}");
}

/// P-GATE-22: what is accepted is also used, and where nothing is to be paid nothing is waited for.
#[test]
fn offline_gets_the_longest_times_for_what_is_accepted() {
    let run = |ttft, cost_us| {
        let mut dice = Dice::new(7);
        let mut traffic = Traffic::new(slo(ttft), Duration::from_micros(cost_us));
        for _ in 0..4_000 {
            let away = Duration::from_secs_f64(dice.exponential(0.8));
            traffic.period(away, Duration::from_millis(20));
        }
        traffic
    };
    let traffic = run(200, 1_000);
    let allowed = traffic.read * 200 / 20_000;
    assert!(traffic.spent > allowed.mul_f64(0.7), "{:?}", traffic.spent);
    // A fifth of the returns may be delayed: those after 800 ms x ln 5, and no other.
    let last = traffic.waits[3_000..].iter();
    let usual = last.filter(|wait| (1_000..2_000).contains(&wait.as_millis()));
    assert!(usual.count() > 500, "{:?}", &traffic.waits[3_900..]);
    let looser = run(1_000, 1_000);
    assert!(looser.spent > traffic.spent);
    assert_eq!(looser.waits[3_999], Duration::ZERO, "all may be delayed");
    assert_eq!(run(200, 0).waits[3_999], Duration::ZERO, "nobody waits");
}

const ENGINE: SessionId = SessionId(1);
const GPU: GpuId = GpuId(0);
const MS: u64 = 1_000_000;

/// P-GATE-22: without an SLO the gate opens after a cooldown; with one, when the wait is over too, and status says how long.
#[test]
fn only_an_slo_makes_the_gate_wait_for_its_users_sake() {
    for slo in [None, Some(slo(200))] {
        let config = Config {
            cooldown: Cooldown::Fixed(GAP),
            slo,
            ..Config::default()
        };
        let mut bench = Bench::new(config, 1);
        bench.attach_online(ENGINE);
        bench.attach_offline(SessionId(10), JobId(0), GpuSet::of(GPU));
        bench.pass(60_000 * MS);
        bench.answer_all();
        bench.busy(ENGINE, GPU);
        bench.pass(5 * MS);
        bench.answer_all();
        bench.idle(ENGINE, GPU, 4, 7);
        let view = |bench: &Bench| bench.node.gpu(GPU, bench.at()).expect("the only GPU");
        let wait = if slo.is_some() { UNKNOWN } else { GAP };
        assert_eq!(view(&bench).cooldown, wait);
        assert_eq!(view(&bench).gap_cooldown, GAP);
        bench.pass(wait.as_nanos() as u64 - MS);
        assert_eq!(view(&bench).gate, GateState::Cooling);
        bench.pass(2 * MS);
        assert_eq!(view(&bench).gate, GateState::Open);
    }
}

/// P-GATE-22: an engine that says early enough that requests come waits for no preemption, and that is known before one was
/// needed: offline need not wait for it either.
#[test]
fn who_says_early_enough_that_requests_come_is_not_waited_for() {
    let waits = |lead_us: u64| {
        let config = Config {
            cooldown: Cooldown::Fixed(GAP),
            slo: Some(slo(200)),
            ..Config::default()
        };
        let mut bench = Bench::new(config, 1);
        bench.attach_online(ENGINE);
        bench.attach_offline(SessionId(10), JobId(0), GpuSet::of(GPU));
        bench.busy(ENGINE, GPU);
        bench.pass(5 * MS);
        bench.answer_all();
        bench.idle(ENGINE, GPU, 4, 7);
        bench.pass(200 * MS);
        let (session, request) = (ENGINE, RequestId(1));
        bench.send(Event::RequestStarted { session, request });
        bench.pass(lead_us * 1_000);
        bench.busy(ENGINE, GPU);
        bench.pass(5 * MS);
        bench.idle(ENGINE, GPU, 4, 7);
        bench.send(Event::RequestEnded { session, request });
        let gpu = bench.node.gpu(GPU, bench.at()).expect("the only GPU");
        assert_eq!(gpu.preemptions, 0, "nobody was preempted");
        gpu.cooldown
    };
    // A preemption is taken to last 1.08 ms.
    assert!(waits(1_100) <= GAP);
    assert!(waits(3_000) <= GAP);
    assert_eq!(waits(800), UNKNOWN);
    assert_eq!(waits(0), UNKNOWN);
}
