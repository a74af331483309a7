//! Leases where all parts meet: the agent that ships, an online program and a trainer with the library that ships. What ran
//! is the device's word. What was granted and taken away is read off the agent's recording, which is made again meanwhile.

use tidegate_tests::pair::Pair;
use tidegate_tests::wait_for;
use tidegate_tests::watch::Testimony;
use tidegate_vgpu::history::Kind;

/// What online promises, ns.
const TPOT: u64 = 400_000_000;
/// Tokens of each of its requests.
const TOKENS: u64 = tidegate_tests::pair::TOKENS;

/// Requests of online: each is what the device has of its first and last iteration.
fn requests(history: &Testimony, online: u32) -> Vec<(u64, u64)> {
    let ends: Vec<u64> = history
        .all(&[online], Kind::KernelEnd)
        .map(|record| record.at_ns)
        .collect();
    let whole = ends.chunks_exact(TOKENS as usize);
    whole
        .map(|request| (request[0], request[request.len() - 1]))
        .collect()
}

/// No request took longer for a token than was promised.
#[track_caller]
fn keeps_its_promise(history: &Testimony, online: u32) {
    for (first, last) in requests(history, online) {
        let tpot = (last - first) / (TOKENS - 1);
        assert!(tpot <= TPOT, "{tpot} ns a token");
    }
}

/// P-LEASE-6: by the device's history, an obedient trainer runs within its leases and nowhere else, many units of it beside
/// requests of online, whose promise is kept.
#[test]
fn units_run_within_leases_beside_an_engine_whose_promise_is_kept() {
    let pair = Pair::new(&["obedient", "2000000"]);
    wait_for("leases", || {
        let over = pair
            .leases()
            .iter()
            .filter(|lease| lease.over.is_some())
            .count();
        (over >= 8).then_some(())
    });
    let (history, leases, [online, trainer]) = pair.ends();
    let times = |kind| -> Vec<u64> {
        let pids = [trainer];
        let own = history.all(&pids, kind);
        own.map(|record| record.at_ns).collect()
    };
    let (starts, ends) = (times(Kind::KernelStart), times(Kind::KernelEnd));
    // A machine under load may make an obedient trainer late. What then becomes of it is the next test's.
    let overrun = leases
        .iter()
        .find_map(|lease| lease.over.filter(|(_, said)| !said));
    let judged = overrun.map_or(u64::MAX, |(at, _)| at);
    let within = |at: u64| {
        leases.iter().find(|lease| {
            let over = lease.over.map_or(u64::MAX, |(at, _)| at);
            (lease.given_ns..=over).contains(&at)
        })
    };
    for at in starts.iter().filter(|at| **at < judged) {
        assert!(within(*at).is_some(), "a unit began at {at}: {leases:?}");
    }
    let clean = leases
        .iter()
        .filter(|lease| lease.over.is_some_and(|(_, said)| said));
    let mut beside = 0;
    for lease in clean {
        let (over, _) = lease.over.expect("it is over");
        let began = starts
            .iter()
            .filter(|at| (lease.given_ns..=over).contains(at));
        let began: Vec<&u64> = began.collect();
        assert!(
            began.len() as u64 <= u64::from(lease.units),
            "{lease:?}: {began:?}"
        );
        let ended = ends
            .iter()
            .filter(|at| (lease.given_ns..=over).contains(at));
        assert_eq!(
            began.len(),
            ended.count(),
            "{lease:?}: nothing of it runs on"
        );
        assert!(over <= lease.until_ns, "{lease:?}");
        let requests = requests(&history, online);
        let amid = |at: &u64| {
            requests
                .iter()
                .any(|(first, last)| (first..last).contains(&at))
        };
        beside += began.into_iter().filter(|at| amid(at)).count();
    }
    assert!(
        beside >= 20,
        "{beside} units between tokens of a request: {leases:?}"
    );
    keeps_its_promise(&history, online);
}

/// When each channel of a process was disabled, and enabled again.
fn stopped(history: &Testimony, pid: u32) -> Vec<(u32, u64, u64)> {
    let pids = [pid];
    let disabled = history.all(&pids, Kind::DisableEnd);
    let spans = disabled.map(|record| {
        let mut enabled = history.all(&pids, Kind::EnableEnd);
        let next = enabled.find(|next| next.object == record.object && next.at_ns > record.at_ns);
        (
            record.object,
            record.at_ns,
            next.map_or(u64::MAX, |next| next.at_ns),
        )
    });
    spans.collect()
}

/// P-LEASE-6: a trainer that overstays is off the device once its lease and grace are over, whatever it says, and stays off
/// it until it is let in again; online's promise is kept meanwhile.
#[test]
fn a_trainer_that_overstays_is_disabled() {
    // Its units take 2 s where it says 100 ms; it is stopped within one; it waits for no lease and ends none.
    for how in [
        ["late", "100000000"],
        ["frozen", "100000000"],
        ["greedy", "2000000"],
    ] {
        let pair = Pair::new(&how);
        let (overrun, (_, from, _)) = wait_for("an overstayer to be disabled", || {
            let leases = pair.leases();
            let overrun = *leases
                .iter()
                .find(|lease| lease.over.is_some_and(|(_, said)| !said))?;
            let spans = stopped(&Testimony::of(&pair.node), pair.trainer.pid());
            let after = |span: &&(u32, u64, u64)| span.1 > overrun.until_ns;
            Some((overrun, *spans.iter().find(after)?))
        });
        let (history, _, [online, trainer]) = pair.ends();
        let ran = |kind, from: u64, to: u64| {
            let pids = [trainer];
            let own = history.all(&pids, kind);
            own.filter(|record| (from..to).contains(&record.at_ns))
                .count()
        };
        let began = ran(Kind::KernelStart, overrun.given_ns, from);
        assert!(began > 0, "{how:?} ran within {overrun:?}");
        if how[0] != "greedy" {
            let ended = ran(Kind::KernelEnd, overrun.given_ns, from);
            assert_eq!(
                (began, ended),
                (1, 0),
                "{how:?} was stopped within its unit"
            );
        }
        for (channel, from, to) in stopped(&history, trainer) {
            let on = history.0.iter().filter(|record| {
                matches!(record.kind, Kind::KernelStart | Kind::KernelEnd)
                    && (record.pid, record.object) == (trainer, channel)
                    && record.at_ns > from
                    && record.at_ns < to
            });
            assert_eq!(
                on.count(),
                0,
                "{how:?}: channel {channel:#x} ran while it was disabled"
            );
        }
        keeps_its_promise(&history, online);
    }
}
