//! What is trained between two steps: within what users were promised, by the rules, and with no allocation.

#[path = "../../../../agent/node/tests/counting/mod.rs"]
mod counting;

use counting::allocations;
use std::ptr::{null, null_mut};
use tidegate_coserve::ride::{Ask, Rides, Step};
use tidegate_coserve::train::{Between, Granted, Held, Ran, Rules};
use tidegate_coserve::*;

const BACKWARD: u32 = 2;
const STEP_NS: u64 = 8_000_000;

struct World {
    at: *mut Coserve,
    now: u64,
    /// What a row of a unit takes, ns.
    row: u64,
    /// What units took, the longest one, and how many rows they had.
    trained: u64,
    longest: u64,
    rows: u64,
}

impl World {
    fn new(config: &Config, rules: Rules) -> Self {
        let mut at = null_mut();
        // SAFETY: the pointers are good.
        unsafe {
            assert_eq!(tg_coserve_new(config, &raw mut at), OK);
            assert_eq!(tg_coserve_trains(at, &raw const rules), OK);
        }
        Self {
            at,
            now: 1,
            row: 2_000,
            trained: 0,
            longest: 0,
            rows: 0,
        }
    }

    fn grant(&self, ask: Between) -> Granted {
        let ask = Between {
            now_ns: self.now,
            ..ask
        };
        let mut granted = Granted::default();
        assert_eq!(
            // SAFETY: the handle is ours, and the others are good.
            unsafe { tg_coserve_grant(self.at, &raw const ask, &raw mut granted) },
            OK
        );
        granted
    }

    /// A unit, if one may run.
    fn unit(&mut self, users: u32, prompts: u32, left: u32) -> Granted {
        let granted = self.grant(Between {
            users,
            prompts,
            users_cached: u64::from(users) * 100,
            kind: BACKWARD,
            left,
            ..Between::default()
        });
        if granted.rows > 0 {
            let ns = 200_000 + self.row * u64::from(granted.rows);
            let ran = Ran {
                ns,
                kind: BACKWARD,
                rows: granted.rows,
            };
            // SAFETY: the handle is ours.
            assert_eq!(unsafe { tg_coserve_unit_ran(self.at, &raw const ran) }, OK);
            self.now += ns;
            self.trained += ns;
            self.longest = self.longest.max(ns);
            self.rows += u64::from(granted.rows);
        }
        granted
    }

    /// A step of users that decode, and what is trained before the next.
    fn step(&mut self, users: u32, interval: u64) {
        self.now += STEP_NS;
        let step = Step {
            now_ns: self.now,
            took_ns: STEP_NS,
            interval_ns: interval + STEP_NS,
            users_cached: u64::from(users) * 100,
            users,
            ..Step::default()
        };
        // SAFETY: the handle is ours.
        assert_eq!(unsafe { tg_coserve_rode(self.at, &raw const step) }, OK);
    }

    fn see(&self, kind: u32, request: u64, a: u64, b: u64) {
        let seen = Seen {
            kind,
            request,
            a,
            b,
            ..Seen::default()
        };
        assert_eq!(
            // SAFETY: the handle is ours.
            unsafe { tg_coserve_see(self.at, &raw const seen, self.now) },
            OK
        );
    }

    /// Requests of so many tokens, one after the other; how many were late.
    fn serve(&mut self, requests: u64, tokens: u64, tpot_ns: u64) -> u64 {
        let mut late = 0;
        for request in 0..requests {
            self.see(1, request, 0, 0);
            self.see(2, request, 20_000_000, 0);
            let begun = self.now;
            let mut interval = 0;
            for _ in 0..tokens {
                self.step(4, interval);
                let before = self.now;
                let mut units = 0;
                while self.unit(4, 0, 100_000).rows > 0 {
                    units += 1;
                    assert!(units < 10_000, "units never end");
                }
                interval = self.now - before;
            }
            let each = (self.now - begun) / tokens;
            self.see(3, request, 20_000_000, each);
            late += u64::from(each > tpot_ns);
        }
        late
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: the handle is ours.
        assert_eq!(unsafe { tg_coserve_free(self.at) }, OK);
    }
}

fn times(tpot_ns: u64) -> Config {
    Config {
        kind: 2,
        ttft_ns: 500_000_000,
        tpot_ns,
        late_permille: 10,
        margin_permille: 50,
        ..Config::default()
    }
}

fn shares(percent: u32) -> Config {
    Config {
        kind: 1,
        ttft_share: percent * 100,
        tpot_share: percent * 100,
        ..Config::default()
    }
}

const RULES: Rules = Rules {
    chunk: 0,
    activations: 4_096,
    strict: 0,
    reserved: 0,
};

/// P-TRAINER-18: units stay within what users were promised, whichever way it was promised, and use it.
#[test]
fn units_stay_within_what_users_were_promised() {
    let mut world = World::new(&times(12_000_000), RULES);
    let late = world.serve(300, 60, 12_000_000);
    assert!(late * 100 <= 300, "{late} of 300 late");
    let share = world.trained as f64 / world.now as f64;
    assert!(share > 0.15, "{share:.3} of the time");

    for percent in [2, 5, 20] {
        let mut world = World::new(&shares(percent), RULES);
        world.row = 100;
        world.serve(100, 60, u64::MAX);
        let alone = (world.now - world.trained) as f64;
        let more = world.trained as f64 / alone;
        let promised = f64::from(percent) / 100.0;
        assert!(more <= promised, "+{more:.4} of {promised}");
        assert!(more >= promised * 0.5, "+{more:.4} of {promised}: little");
    }
}

/// P-TRAINER-18: where less than a step is promised nothing is trained beside users.
#[test]
fn a_promise_that_serving_alone_cannot_keep_leaves_nothing() {
    let mut world = World::new(&times(7_000_000), RULES);
    world.serve(50, 60, 7_000_000);
    assert_eq!(world.rows, 0);
}

/// P-TRAINER-18: a prompt that waits is read before anything is trained; strict: no unit beside any user.
#[test]
fn no_unit_runs_while_a_prompt_waits_and_strictly_none_beside_a_user() {
    let mut world = World::new(&times(100_000_000), RULES);
    world.serve(20, 60, 100_000_000);
    assert!(world.rows > 0);
    for prompts in 1..4 {
        assert_eq!(world.unit(4, prompts, 1_000).rows, 0);
        assert_eq!(world.unit(0, prompts, 1_000).rows, 0);
    }
    let strict = Rules { strict: 1, ..RULES };
    let mut world = World::new(&times(100_000_000), strict);
    world.serve(20, 60, 100_000_000);
    assert_eq!(world.rows, 0);
    world.now += 1_000_000_000;
    world.unit(0, 0, 1_000);
    world.now += 1_000_000_000;
    assert!(world.unit(0, 0, 1_000).rows > 0, "nobody is there");
}

/// P-TRAINER-18: an engine that nobody uses trains, in units that delay little who comes.
#[test]
fn an_engine_that_nobody_uses_trains_in_units_that_delay_little() {
    for (row, rows) in [(2_000, 1_024), (100_000, 128)] {
        let mut world = World::new(&times(20_000_000), RULES);
        world.row = row;
        let (mut waited, mut most) = (0, 0);
        for _ in 0..2_000 {
            let granted = world.unit(0, 0, 100_000);
            if granted.rows == 0 {
                assert!(granted.wait_ns > 0, "it is never worth asking again");
                world.now += granted.wait_ns;
                waited += granted.wait_ns;
            }
            most = most.max(granted.rows);
        }
        assert!(world.trained > waited, "{} of {waited}", world.trained);
        // Twice a fiftieth of what a first token may take.
        assert!(world.longest <= 20_000_000, "{} ns", world.longest);
        assert!(most >= rows, "units of {most} rows at {row} ns a row");
    }
}

/// P-TRAINER-18: with a fixed window each unit is all of it, or what is left, and so is each piece of a prompt.
#[test]
fn a_fixed_window_is_all_of_it_or_nothing() {
    let rules = Rules { chunk: 48, ..RULES };
    let mut world = World::new(&times(30_000_000), rules);
    world.serve(50, 60, 30_000_000);
    assert!(
        world.rows > 0 && world.rows.is_multiple_of(48),
        "{}",
        world.rows
    );
    world.now += 10_000_000_000;
    world.unit(0, 0, 48);
    world.now += 10_000_000_000;
    assert_eq!(world.unit(0, 0, 100).rows, 48);
    assert_eq!(world.unit(0, 0, 7).rows, 7);
    for (users, prompt) in [(0, 1_000), (0, 5), (3, 1_000), (3, 47)] {
        for _ in 0..50 {
            world.now += 1_000_000_000;
            let ask = Ask {
                now_ns: world.now,
                users,
                users_cached: 100,
                prompt,
                ..Ask::default()
            };
            let mut rides = Rides::default();
            assert_eq!(
                // SAFETY: the handle is ours, and the others are good.
                unsafe { tg_coserve_rides(world.at, &raw const ask, &raw mut rides) },
                OK
            );
            assert!([0, prompt.min(48)].contains(&rides.prompt), "{rides:?}");
        }
    }
}

/// P-TRAINER-18: no more tokens are held than the rules say.
#[test]
fn samples_begin_while_there_is_room_for_what_they_leave() {
    let world = World::new(&times(20_000_000), RULES);
    for (held, next, begins) in [
        (0, 4_096, 1),
        (0, 4_097, 0),
        (4_000, 96, 1),
        (4_000, 97, 0),
        (u32::MAX, 1, 0),
        (0, 0, 0),
    ] {
        let granted = world.grant(Between {
            held,
            next,
            ..Between::default()
        });
        assert_eq!(granted.begins, begins, "{held} and {next}");
    }
}

/// P-TRAINER-16: bad input gives a code, and no number ends the process.
#[test]
fn bad_rules_and_odd_numbers_give_a_code() {
    let mut at = null_mut();
    let (mut granted, between, ran) = (Granted::default(), Between::default(), Ran::default());
    // SAFETY: pointers are null or good.
    unsafe {
        assert_eq!(tg_coserve_new(&raw const SHARES, &raw mut at), OK);
        for rules in [
            Rules {
                activations: 0,
                ..RULES
            },
            Rules { strict: 2, ..RULES },
            Rules {
                reserved: 1,
                ..RULES
            },
            Rules {
                chunk: u32::MAX,
                ..RULES
            },
        ] {
            assert_eq!(
                tg_coserve_trains(at, &raw const rules),
                BAD_INPUT,
                "{rules:?}"
            );
        }
        assert_eq!(tg_coserve_trains(at, null()), NO_HANDLE);
        assert_eq!(tg_coserve_grant(at, null(), &raw mut granted), NO_HANDLE);
        assert_eq!(
            tg_coserve_grant(null_mut(), &raw const between, &raw mut granted),
            NO_HANDLE
        );
        assert_eq!(tg_coserve_unit_ran(at, null()), NO_HANDLE);
        let held = [
            Held {
                before: 0,
                tokens: 9,
            },
            Held {
                before: 9,
                tokens: 2,
            },
        ];
        let mut place = 7;
        assert_eq!(tg_coserve_leaves(at, held.as_ptr(), 2, &raw mut place), OK);
        assert_eq!(place, 1);
        assert_eq!(tg_coserve_leaves(at, held.as_ptr(), 0, &raw mut place), OK);
        assert_eq!(place, 0, "none of none");
        assert_eq!(tg_coserve_leaves(at, null(), 2, &raw mut place), NO_HANDLE);
        assert_eq!(tg_coserve_unit_ran(at, &raw const ran), BAD_INPUT);
        let odd = [0, 1, 63, 64, 1 << 24, u32::MAX];
        for (index, chunk) in (0..).zip([0, 1, 1 << 24]) {
            let rules = Rules { chunk, ..RULES };
            assert_eq!(tg_coserve_trains(at, &raw const rules), OK);
            for number in 0..20_000_usize {
                let any = |place: usize| odd[(number * 7 + place * 13 + number / 9 + index) % 6];
                let between = Between {
                    now_ns: u64::from(any(0)) * number as u64,
                    users_cached: u64::from(any(1)) << 31,
                    users: any(2) % 3,
                    prompts: any(3) % 2,
                    held: any(4),
                    next: any(5),
                    kind: any(6) % 6,
                    left: any(7),
                };
                let code = tg_coserve_grant(at, &raw const between, &raw mut granted);
                assert!([OK, BAD_INPUT].contains(&code), "{code} of {between:?}");
                assert!(granted.rows <= between.left, "{granted:?} of {between:?}");
                let ran = Ran {
                    ns: u64::from(any(8)) << (number % 32),
                    kind: any(9) % 6,
                    rows: any(10),
                };
                let code = tg_coserve_unit_ran(at, &raw const ran);
                assert!([OK, BAD_INPUT].contains(&code), "{code} of {ran:?}");
            }
        }
        assert_eq!(tg_coserve_free(at), OK);
    }
}

static SHARES: Config = Config {
    kind: 1,
    ttft_share: 500,
    tpot_share: 500,
    late_permille: 0,
    ttft_ns: 0,
    tpot_ns: 0,
    margin_permille: 0,
    batch_tokens: 0,
    activations: 0,
    admit_every: 0,
};

/// P-TRAINER-16: nothing is allocated.
#[test]
fn nothing_is_allocated_in_the_steady_state() {
    let mut world = World::new(&times(12_000_000), RULES);
    let before = allocations();
    world.serve(50, 60, 12_000_000);
    for _ in 0..1_000 {
        world.now += 100_000_000;
        world.unit(0, 0, 10_000);
    }
    assert_eq!(allocations(), before);
    assert!(world.rows > 0);
}
