//! The C interface: nothing crosses it but codes, and nothing is allocated once a handle is made.

#[path = "../../../../agent/node/tests/counting/mod.rs"]
mod counting;

use counting::allocations;
use std::ptr::{null, null_mut};
use tidegate_coserve::ride::{Ask, Rides, Step};
use tidegate_coserve::train::{Between, Granted, Held, Ran, Rules};
use tidegate_coserve::*;

fn shares(percent: u32) -> Config {
    Config {
        kind: 1,
        ttft_share: percent * 100,
        tpot_share: percent * 100,
        batch_tokens: 2_048,
        activations: 4_096,
        admit_every: 10,
        ..Config::default()
    }
}

fn made(config: &Config) -> *mut Coserve {
    let mut at = null_mut();
    // SAFETY: both are good.
    assert_eq!(unsafe { tg_coserve_new(config, &raw mut at) }, OK);
    assert!(!at.is_null());
    at
}

/// A GPU of which a step takes so many ns.
fn takes(users: u32, rows: u32, cached: u64, prompt: u32) -> u64 {
    let base = 8_000_000 + 30_000 * u64::from(users + rows) + cached * 20;
    base + if prompt > 0 {
        1_500_000 + 25_000 * u64::from(prompt)
    } else {
        0
    }
}

struct World {
    at: *mut Coserve,
    now: u64,
    rows: u64,
    prompt: u64,
    more: u64,
    alone: u64,
}

impl World {
    fn new(config: &Config) -> Self {
        Self {
            at: made(config),
            now: 1,
            rows: 0,
            prompt: 0,
            more: 0,
            alone: 0,
        }
    }

    fn step(&mut self, users: u32, prompts: u32) -> Rides {
        let ask = Ask {
            now_ns: self.now,
            users_cached: u64::from(users) * 900,
            background_cached: 32 * 700,
            users,
            prompts,
            background: 32,
            prompt: 3_000,
            ..Ask::default()
        };
        let mut rides = Rides::default();
        // SAFETY: the handle is ours.
        assert_eq!(
            // SAFETY: the handle lives, and the others are good.
            unsafe { tg_coserve_rides(self.at, &raw const ask, &raw mut rides) },
            OK
        );
        let cached = u64::from(rides.rows) * 700;
        let read = if prompts > 0 { 512 } else { 0 };
        let took = takes(
            users,
            rides.rows,
            ask.users_cached + cached,
            rides.prompt + read,
        );
        let alone = takes(users, 0, ask.users_cached, read);
        self.now += took;
        let step = Step {
            now_ns: self.now,
            took_ns: took,
            interval_ns: took,
            users_cached: ask.users_cached,
            background_cached: cached,
            users,
            users_prompt: read,
            rows: rides.rows,
            prompt: rides.prompt,
        };
        // SAFETY: the handle is ours.
        assert_eq!(unsafe { tg_coserve_rode(self.at, &raw const step) }, OK);
        self.rows += u64::from(rides.rows);
        self.prompt += u64::from(rides.prompt);
        self.more += took - alone;
        self.alone += alone;
        rides
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: the handle is ours.
        assert_eq!(unsafe { tg_coserve_free(self.at) }, OK);
    }
}

/// P-TRAINER-16: rows stay within the promise.
#[test]
fn rows_use_what_is_promised_and_no_more() {
    for percent in [2, 5, 10] {
        let mut world = World::new(&shares(percent));
        for step in 0..20_000_u32 {
            world.step(4 + step / 7 % 24, 0);
        }
        let more = world.more as f64 / world.alone as f64;
        let promised = f64::from(percent) / 100.0;
        assert!(more <= promised, "+{more:.4} of {promised}");
        assert!(
            more >= promised * 0.7,
            "+{more:.4} of {promised}: little rides"
        );
        assert!(world.rows > 20_000, "{} rows", world.rows);
    }
}

/// P-TRAINER-16: rows stay within the promise.
#[test]
fn nothing_rides_where_a_prompt_waits() {
    let mut world = World::new(&shares(5));
    for step in 0..5_000_u32 {
        let prompts = u32::from(step % 3 == 0);
        let rides = world.step(4 + step % 13, prompts);
        assert!(prompts == 0 || rides == Rides::default());
    }
    assert!(world.rows > 0);
}

#[test]
fn a_promise_of_nothing_lets_nothing_ride_beside_users() {
    let mut world = World::new(&shares(0));
    for step in 0..5_000_u32 {
        assert_eq!(world.step(1 + step % 13, 0), Rides::default());
    }
}

#[test]
fn background_requests_have_an_engine_that_nobody_uses() {
    let mut world = World::new(&shares(5));
    for _ in 0..100 {
        world.now += 10_000_000;
        world.step(0, 0);
    }
    assert!(world.rows + world.prompt > 0);
}

#[test]
fn times_are_kept_by_the_slack_of_the_nearest() {
    let config = Config {
        kind: 2,
        ttft_ns: 500_000_000,
        tpot_ns: 12_000_000,
        late_permille: 10,
        ..shares(0)
    };
    let mut world = World::new(&config);
    let see = |world: &World, kind, request, a, b| {
        let seen = Seen {
            kind,
            request,
            a,
            b,
            ..Seen::default()
        };
        // SAFETY: the handle is ours.
        assert_eq!(
            // SAFETY: the handle lives, and the others are good.
            unsafe { tg_coserve_see(world.at, &raw const seen, world.now) },
            OK
        );
    };
    let (mut late, mut ended) = (0, 0);
    for request in 0..200_u64 {
        see(&world, 1, request, 0, 0);
        see(&world, 2, request, 20_000_000, 0);
        let begun = world.now;
        for _ in 0..60 {
            world.step(1 + (request % 9) as u32, 0);
        }
        let tpot = (world.now - begun) / 60;
        see(&world, 3, request, 20_000_000, tpot);
        late += u32::from(tpot > 12_000_000);
        ended += 1;
    }
    assert!(late * 100 <= ended, "{late} of {ended} late");
    assert!(world.rows > 1_000, "{} rows", world.rows);
}

/// P-TRAINER-16: bad input gives a code.
#[test]
fn bad_input_gives_a_code() {
    let mut at = null_mut();
    let bad = [
        Config::default(),
        Config {
            kind: 3,
            ..shares(5)
        },
        Config {
            kind: 2,
            ..shares(5)
        },
        Config {
            margin_permille: 1_001,
            ..shares(5)
        },
        Config {
            ttft_share: u32::MAX,
            ..shares(5)
        },
        Config {
            kind: 2,
            ttft_ns: 1,
            tpot_ns: u64::MAX,
            ..shares(5)
        },
        Config {
            kind: 2,
            ttft_ns: 1,
            tpot_ns: 1,
            late_permille: 1_000,
            ..shares(5)
        },
    ];
    // SAFETY: pointers are null or good.
    unsafe {
        for config in bad {
            assert_eq!(
                tg_coserve_new(&raw const config, &raw mut at),
                BAD_INPUT,
                "{config:?}"
            );
            assert!(at.is_null());
        }
        assert_eq!(tg_coserve_new(null(), &raw mut at), NO_HANDLE);
        assert_eq!(tg_coserve_new(&raw const bad[0], null_mut()), NO_HANDLE);
        assert_eq!(tg_coserve_free(null_mut()), NO_HANDLE);
        let (ask, step, seen) = (Ask::default(), Step::default(), Seen::default());
        let (mut rides, mut place) = (Rides::default(), 0);
        assert_eq!(
            tg_coserve_rides(null_mut(), &raw const ask, &raw mut rides),
            NO_HANDLE
        );
        let at = made(&shares(5));
        assert_eq!(tg_coserve_rides(at, null(), &raw mut rides), NO_HANDLE);
        assert_eq!(tg_coserve_rode(at, null()), NO_HANDLE);
        assert_eq!(tg_coserve_rode(at, &raw const step), OK);
        assert_eq!(tg_coserve_see(at, &raw const seen, 0), BAD_INPUT);
        assert_eq!(tg_coserve_whose(at, null(), 0, &raw mut place), NO_HANDLE);
        assert_eq!(tg_coserve_free(at), OK);
    }
}

/// Numbers that no engine has, one after the other, at every function.
/// P-TRAINER-16: bad input gives a code.
#[test]
fn no_number_ends_the_process() {
    let odd = [
        0,
        1,
        2,
        255,
        u64::from(u32::MAX),
        1 << 52,
        i64::MAX as u64,
        u64::MAX,
    ];
    let mut seed = 7_u64;
    let mut any = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        odd[(seed >> 40) as usize % odd.len()]
    };
    for kind in [1, 2] {
        let at = made(&Config {
            kind,
            ttft_ns: 1,
            tpot_ns: 1,
            ..shares(5)
        });
        for _ in 0..20_000 {
            let mut small = || any() as u32;
            let (mut rides, mut planned) = (Rides::default(), Planned::default());
            let mut turn = Turn {
                decodes: small(),
                prompt: small(),
                samples: small(),
                activations: small(),
                next: 0,
            };
            let (users, prompts, background, prompt) = (small(), small(), small(), small());
            let (under_way, odd) = (small(), small());
            let ask = Ask {
                now_ns: any(),
                users_cached: any(),
                background_cached: any(),
                users,
                prompts,
                background,
                prompt,
                under_way,
                reserved: u32::from(odd % 8 == 0),
            };
            let step = Step {
                now_ns: any(),
                took_ns: any(),
                interval_ns: any(),
                users_cached: any(),
                background_cached: any(),
                users,
                users_prompt: prompts,
                rows: background,
                prompt,
            };
            let seen = Seen {
                kind: any() as u32 % 6,
                reserved: 0,
                request: any(),
                a: any(),
                b: any(),
            };
            let pass = Pass {
                fingerprint: any(),
                cached: any(),
                batch: users,
                prompt: 0,
                forward: background,
                reserved: 0,
                now_ns: any(),
                took_ns: any(),
                trained_ns: any(),
            };
            let (job, now) = (any() % 20, any());
            // SAFETY: the handle is ours.
            unsafe {
                tg_coserve_see(at, &raw const seen, now);
                for code in [
                    tg_coserve_rides(at, &raw const ask, &raw mut rides),
                    tg_coserve_rode(at, &raw const step),
                    tg_coserve_beside(at, &raw const pass, &raw mut planned),
                    tg_coserve_ran(at, &raw const pass, &raw const planned),
                    tg_coserve_next(at, &raw mut turn),
                    tg_coserve_job(at, job, any() as u32),
                    tg_coserve_took(at, job, any()),
                ] {
                    assert!(
                        [OK, BAD_INPUT, FULL].contains(&code),
                        "{code} of {ask:?} {step:?} {pass:?} {turn:?}"
                    );
                }
            }
        }
        // SAFETY: the handle is ours.
        unsafe { tg_coserve_free(at) };
    }
}

#[test]
fn turns_and_shares_are_the_policys() {
    let at = made(&shares(5));
    let ready = [4_u64, 9];
    let mut place = 9;
    let mut turns = [0; 2];
    // SAFETY: the handle is ours.
    unsafe {
        assert_eq!(tg_coserve_whose(at, ready.as_ptr(), 2, &raw mut place), OK);
        assert_eq!(place, 2, "nobody is known");
        assert_eq!(tg_coserve_job(at, 4, 1), OK);
        assert_eq!(tg_coserve_job(at, 9, 3), OK);
        for _ in 0..400 {
            assert_eq!(tg_coserve_whose(at, ready.as_ptr(), 2, &raw mut place), OK);
            turns[place as usize] += 1;
            assert_eq!(tg_coserve_took(at, ready[place as usize], 10_000_000), OK);
        }
        assert!((95..=105).contains(&turns[0]), "{turns:?}");
        let mut turn = Turn {
            decodes: 3,
            samples: 100,
            ..Turn::default()
        };
        assert_eq!(tg_coserve_next(at, &raw mut turn), OK);
        assert_eq!(turn.next, 1);
        turn = Turn {
            samples: 100,
            ..Turn::default()
        };
        assert_eq!(tg_coserve_next(at, &raw mut turn), OK);
        assert_eq!((turn.next, turn.samples), (2, 100));
        turn = Turn {
            activations: 100,
            ..Turn::default()
        };
        assert_eq!(tg_coserve_next(at, &raw mut turn), OK);
        assert_eq!(turn.next, 3);
        tg_coserve_free(at);
    }
}

/// P-TRAINER-16: nothing is allocated.
#[test]
fn nothing_is_allocated_in_the_steady_state() {
    let mut world = World::new(&shares(5));
    let before = allocations();
    for step in 0..10_000_u32 {
        let seen = Seen {
            kind: 1 + step % 3,
            request: u64::from(step / 3 % 2_000),
            a: 20_000_000,
            b: 9_000_000,
            ..Seen::default()
        };
        // SAFETY: the handle is ours.
        unsafe { tg_coserve_see(world.at, &raw const seen, world.now) };
        world.step(step / 5 % 17, u32::from(step % 9 == 0));
    }
    assert_eq!(allocations(), before);
    assert!(world.rows > 0);
}

/// The sizes and offsets of a structure, as a line of the C program below prints them.
macro_rules! layout {
    ($name:literal, $of:ty, $($field:ident),+) => {{
        let offsets = [$(concat!(" ", stringify!($field), " ").to_owned() + &std::mem::offset_of!($of, $field).to_string()),+];
        let numbers = offsets.concat();
        let fields = [$(concat!(" printf(\" ", stringify!($field), " %zu\", offsetof(struct ", $name, ", ", stringify!($field), "));")),+];
        (
            format!("printf(\"{0} %zu\", sizeof(struct {0}));{1} puts(\"\");\n", $name, fields.concat()),
            format!("{} {}{numbers}\n", $name, size_of::<$of>()),
        )
    }};
}

/// Each structure, as a C program prints it, and its line.
fn structures() -> [(String, String); 13] {
    [
        layout!(
            "tg_coserve_config",
            Config,
            kind,
            ttft_share,
            tpot_share,
            late_permille,
            ttft_ns,
            tpot_ns,
            margin_permille,
            batch_tokens,
            activations,
            admit_every
        ),
        layout!("tg_coserve_seen", Seen, kind, reserved, request, a, b),
        layout!(
            "tg_coserve_ask",
            Ask,
            now_ns,
            users_cached,
            background_cached,
            users,
            prompts,
            background,
            prompt,
            under_way,
            reserved
        ),
        layout!("tg_coserve_rides", Rides, rows, prompt),
        layout!(
            "tg_coserve_step",
            Step,
            now_ns,
            took_ns,
            interval_ns,
            users_cached,
            background_cached,
            users,
            users_prompt,
            rows,
            prompt
        ),
        layout!(
            "tg_coserve_pass",
            Pass,
            fingerprint,
            cached,
            batch,
            prompt,
            forward,
            reserved,
            now_ns,
            took_ns,
            trained_ns
        ),
        layout!("tg_coserve_planned", Planned, fused, trainer),
        layout!(
            "tg_coserve_turn",
            Turn,
            decodes,
            prompt,
            samples,
            activations,
            next
        ),
        layout!(
            "tg_coserve_rules",
            Rules,
            chunk,
            activations,
            strict,
            reserved
        ),
        layout!(
            "tg_coserve_between",
            Between,
            now_ns,
            users_cached,
            users,
            prompts,
            held,
            next,
            kind,
            left
        ),
        layout!("tg_coserve_granted", Granted, wait_ns, begins, rows),
        layout!("tg_coserve_held", Held, before, tokens),
        layout!("tg_coserve_unit", Ran, ns, kind, rows),
    ]
}

/// P-TRAINER-16: header and library agree.
#[test]
fn the_header_has_the_structures_of_the_library() {
    let structures = structures();
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    let body: String = structures.iter().map(|(print, _)| print.as_str()).collect();
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"tidegate_coserve.h\"\nint main(void) {{\n{body}return 0;\n}}\n"
    );
    std::fs::write(&source, text).expect("room for a file");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let built = std::process::Command::new("cc")
        .args(["-Wall", "-Werror", "-I", include, "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("a C compiler").success());
    let printed = std::process::Command::new(&program).output();
    let printed = String::from_utf8(printed.expect("it runs").stdout).expect("numbers");
    let ours: String = structures.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(printed, ours);
}

/// P-TRAINER-16: header and library agree; the plugin's binding does, too.
#[test]
fn python_has_the_structures_of_the_library() {
    let engines = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let program =
        "from tidegate_engines import coserve_abi as abi; print(abi.layout()); print(abi.VERSION)";
    let run = std::process::Command::new("python3")
        .args(["-B", "-c", program])
        .env("PYTHONPATH", engines)
        .output()
        .expect("python3");
    assert!(run.status.success(), "{run:?}");
    let printed = String::from_utf8(run.stdout).expect("numbers");
    let (lines, version) = printed.trim_end().rsplit_once('\n').expect("two lines");
    assert_eq!(version, tg_coserve_version().to_string());
    let ours = structures().map(|(_, line)| line);
    assert!(lines.lines().count() >= 10, "{lines}");
    for line in lines.lines() {
        assert!(
            ours.contains(&format!("{line}\n")),
            "{line} is none of {ours:?}"
        );
    }
}
