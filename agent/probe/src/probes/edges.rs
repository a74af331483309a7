//! P9 and P11: lists that no agent would send, and callers without rights.

use crate::actor::{Actor, list};
use crate::bench::{Bench, Ending, SOON, STILL, fail, pass, skip};
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way};
use std::time::Duration;
use tidegate_abi::rm::MAX_PAIRS;
use tidegate_driver::causes::with_causes;

/// A user that owns nothing.
const NOBODY: u32 = 65_534;
/// With so many enables anything runs that may run at all.
const MOST_ENABLES: u32 = 6;
/// A channel handle that nobody has.
pub(super) const BOGUS: u32 = 0x7fff_fff0;

pub(super) fn answer(result: &Result<(), tidegate_driver::rm::RmError>) -> String {
    match result {
        Ok(()) => "accepted".to_owned(),
        Err(error) => with_causes(error),
    }
}

pub(super) fn stopped(subject: &mut Subject<'_>) -> anyhow::Result<bool> {
    Ok(subject.worker.progress_over(STILL)? == 0)
}

pub(super) fn odd_lists(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("odd", Duration::from_secs(10))?;
    if subject.way() == Way::Inside {
        return Ok(skip("only a thread of the owner may disable channels here"));
    }
    let report = &bench.report;
    let pairs = subject.pairs();
    let mut wrong = Vec::new();

    counts(bench, &mut subject)?;

    let none = subject.raw(&mut list(&[], true))?;
    report.note(format!("0 channels: {}", answer(&none)));

    let mut mixed = pairs.clone();
    mixed.insert(0, (pairs[0].0, BOGUS));
    mixed.truncate(MAX_PAIRS);
    subject.mark();
    let result = subject.raw(&mut list(&mixed, true))?;
    subject.follow(true)?;
    let stands = stopped(&mut subject)?;
    report.note(format!(
        "a bad pair before good ones: {}; the good ones {}",
        answer(&result),
        if stands { "stopped" } else { "run on" }
    ));
    subject.set(false)?;
    if result.is_ok() && !stands {
        wrong.push("a list with a bad pair succeeds without effect");
    }

    let stale = stale_pair(bench, subject.way())?;
    let result = subject.raw(&mut list(&[stale], true))?;
    report.note(format!(
        "a pair of a context that is gone: {}",
        answer(&result)
    ));
    let result = subject.raw(&mut list(&[stale], false))?;
    report.note(format!("the same, enabled: {}", answer(&result)));

    let from = subject.worker.progress()?;
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("after all this: {error}")));
    }
    Ok(if wrong.is_empty() {
        pass()
    } else {
        fail(wrong.join("; "))
    })
}

/// How many disables and enables cancel out, by one caller and by two. What they do is noted and not judged: firmware that
/// counts and firmware that sets a flag are both known, and the agent has to get on with either.
fn counts(bench: &Bench, subject: &mut Subject<'_>) -> anyhow::Result<()> {
    let report = &bench.report;
    let enables = |subject: &mut Subject<'_>| -> anyhow::Result<u32> {
        for nth in 1..=MOST_ENABLES {
            subject.set(false)?;
            if !stopped(subject)? {
                return Ok(nth);
            }
        }
        anyhow::bail!("{MOST_ENABLES} enables let nothing run")
    };
    let spare = subject.raw(&mut list(&subject.pairs(), false))?;
    report.note(format!(
        "an enable of what is not disabled: {}",
        answer(&spare)
    ));
    subject.set(true)?;
    let stands = stopped(subject)?;
    report.guess(
        "an enable too many takes nothing from the next disable",
        stands,
    );
    if stands {
        enables(subject)?;
    } else {
        subject.set(false)?;
    }
    for disables in [2, 3] {
        for _ in 0..disables {
            subject.set(true)?;
        }
        let took = enables(subject)?;
        report.figure(
            format!("{disables} disables: enables until it ran"),
            f64::from(took),
            "",
        );
    }
    let mut other = Actor::start(bench.driver()?, subject, None)?;
    subject.set(true)?;
    let did = other.order(true)?;
    if let Some(error) = did.error {
        report.note(format!("a second caller's disable: {error}"));
        enables(subject)?;
        return Ok(());
    }
    other.kill();
    let took = enables(subject)?;
    report.figure(
        "a disable each of two callers, one of them dead: enables until it ran",
        f64::from(took),
        "",
    );
    Ok(())
}

/// A list that says it has one pair more than it has places for. The kernel side forwards the count
/// unread: a firmware that does not check it reads beyond the list, at worst with the card lost. Hence
/// the last of all probes, where the kernel is ours alone.
pub(super) fn overlong(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("overlong", Duration::from_secs(5))?;
    if subject.way() == Way::Inside {
        return Ok(skip("only a thread of the owner may disable channels here"));
    }
    let places = subject.pairs().into_iter().cycle();
    let many: Vec<(u32, u32)> = places.take(MAX_PAIRS + 1).collect();
    subject.mark();
    let result = subject.raw(&mut list(&many, true))?;
    bench
        .report
        .note(format!("65 channels: {}", answer(&result)));
    subject.set(false)?;
    let from = subject.worker.progress()?;
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("after it: {error}")));
    }
    Ok(if result.is_ok() {
        fail("more pairs than the list has are accepted")
    } else {
        pass()
    })
}

/// A pair of a context that was destroyed, whose process lives on.
fn stale_pair(bench: &Bench, way: Way) -> anyhow::Result<(u32, u32)> {
    let mut gone = bench.subject("gone", Wait::Spin, way)?;
    let pair = gone.pairs()[0];
    gone.worker.one(Op::Reset)?;
    Ok(pair)
}

pub(super) fn unprivileged(bench: &Bench) -> anyhow::Result<Ending> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(skip("needs root, to become somebody else"));
    }
    let mut subject = bench.running("unprivileged", Duration::from_secs(2))?;
    let mut nobody = Actor::start(bench.driver()?, &subject, Some(NOBODY))?;
    subject.mark();
    let did = nobody.order(true)?;
    if let Some(error) = did.error {
        bench
            .report
            .note(format!("disable by user {NOBODY}: {error}"));
        subject.set(false)?;
        return Ok(if error.contains("open") {
            skip(format!("user {NOBODY} may not open the device files"))
        } else {
            fail(format!(
                "a user without rights may not disable channels: {error}"
            ))
        });
    }
    bench
        .report
        .micros("disable by a user without rights", did.ns);
    subject.follow(true)?;
    let stands = stopped(&mut subject)?;
    let did = nobody.order(false)?;
    if did.error.is_none() {
        bench
            .report
            .micros("enable by a user without rights", did.ns);
        subject.follow(false)?;
        subject.clear();
    } else {
        subject.set(false)?;
    }
    bench.report.note(
        "handle pairs are capabilities here: any local user that guesses them can stop another's channels",
    );
    Ok(if stands && did.error.is_none() {
        pass()
    } else {
        fail("the call succeeds, but not its effect")
    })
}
