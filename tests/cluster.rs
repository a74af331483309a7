//! A real Slurm places offline jobs by what each node publishes: munged, slurmctld and four slurmd of Debian's packages,
//! each node with a virtual GPU and an agent of its own. Judged by what Slurm says, and by the GPUs' own history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_tests::clock::Stalls;
use tidegate_tests::slurm::{Slurm, missing};
use tidegate_tests::{Online, monotonic_ns, wait_for, watch};

macro_rules! slurm_or_skip {
    () => {
        if let Some(why) = missing() {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
}

/// P-CLUSTER-9: a job whose SLA nobody gives waits with a reason that says so, and starts within 5 s of the first
/// publication that fits, on the best node. A comment that is not understood refuses the submission.
#[test]
fn a_job_waits_for_a_node_that_gives_enough_and_gets_the_best() {
    slurm_or_skip!();
    let mut slurm = Slurm::start(4);
    // Online has n1 and n2 to itself, and n3 for half of the time.
    let mut holds: Vec<Online> = slurm.hosts[..3]
        .iter()
        .map(|host| Online::start(&host.node, 0))
        .collect();
    let mut half = holds.pop().expect("three");
    for hold in &mut holds {
        hold.say("hold");
    }
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let on_and_off = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            half.say("hold");
            std::thread::sleep(Duration::from_millis(125));
            half.say("release");
            std::thread::sleep(Duration::from_millis(125));
        }
    });
    slurm.tick();
    for (comment, why) in [
        ("tidegate: profile=summarise", "sla is missing"),
        ("tidegate: profile=../x sla=0.4", "a word is not understood"),
        ("tidegate: profile=summarise sla=40", "sla is no share"),
    ] {
        let told = slurm.submit(comment).expect_err("refused");
        let right = "'tidegate: profile=summarise sla=0.40'";
        assert!(told.contains(why) && told.contains(right), "{told}");
    }
    let job = slurm
        .submit("tidegate: profile=summarise sla=0.40")
        .expect("taken");
    wait_for("a reason that a user can read", || {
        let seen = slurm.job(job);
        assert_eq!(seen.state, "PENDING", "nothing is published yet");
        seen.reason.contains("none-gives-enough-yet").then_some(())
    });
    slurm.give_profiles();
    let fits = |name: &str| {
        slurm
            .features(name)
            .contains(&"tg.summarise.1x40".to_owned())
    };
    let published = wait_for("a node gives enough", || {
        ["n3", "n4"]
            .iter()
            .any(|name| fits(name))
            .then(monotonic_ns)
    });
    let host = slurm.runs(job);
    let after = monotonic_ns() - published;
    assert!(after < 5_000_000_000, "{after} ns after the publication");
    println!(
        "started {} ms after the first publication that fits",
        after / 1_000_000
    );
    assert_eq!(host, "n4", "n4 idles always, n3 half of the time");
    assert!(!fits("n1") && !fits("n2"), "online has them");
    assert_eq!(slurm.drained(), [""; 0]);
    over.store(true, Ordering::Relaxed);
    on_and_off.join().expect("the load of n3");
}

/// P-CLUSTER-10: an online load that brings a job below its SLA has it moved once, to a node that gives enough, within 5 s
/// of the verdict; and it does not come back while its time away lasts, whatever the node gives then.
#[test]
fn a_job_that_gets_too_little_is_moved_once_and_stays_away() {
    slurm_or_skip!();
    let mut slurm = Slurm::start(3);
    slurm.give_profiles();
    slurm.tick();
    let job = slurm
        .submit("tidegate: profile=summarise sla=0.40")
        .expect("taken");
    let first = slurm.runs(job);
    let at = slurm
        .hosts
        .iter()
        .position(|host| host.name == first)
        .expect("a node of ours");
    // The verdict needs three windows in which it ran as it should have.
    wait_for("the job's launches", || {
        let status = watch::status(&slurm.hosts[at].node);
        status["jobs"][0]["state"].as_str().is_some().then_some(())
    });
    let mut load = Online::start(&slurm.hosts[at].node, 0);
    load.say("hold");
    let stalls = Stalls::watch();
    let went = wait_for("it is told to go", || {
        let seen = slurm.job(job);
        (seen.state != "RUNNING" || seen.host != first).then(monotonic_ns)
    });
    let second = wait_for("it runs elsewhere", || {
        let seen = slurm.job(job);
        (seen.state == "RUNNING" && seen.host != first).then_some(seen.host)
    });
    let after = monotonic_ns() - went;
    let most = 5_000_000_000 + stalls.ns();
    assert!(after < most, "{after} ns after the verdict");
    println!(
        "runs on {second} {} ms after it left {first}",
        after / 1_000_000
    );
    // The load ends, and its first node gives the most again.
    load.say("release");
    wait_for("the first node gives enough again", || {
        slurm
            .features(&first)
            .contains(&"tg.summarise.1x40".to_owned())
            .then_some(())
    });
    let shown = |field: &str| {
        let text = slurm.text("scontrol", &["--oneliner", "show", "job", &job.to_string()]);
        let value = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(field).map(str::to_owned));
        value.unwrap_or_else(|| panic!("{field} in {text}"))
    };
    assert_eq!(shown("Restarts="), "1", "it was moved once");
    assert_eq!(shown("ExcNodeList="), first, "it stays away");
    let _ = slurm.text("scontrol", &["requeue", &job.to_string()]);
    let third = wait_for("it runs again", || {
        let seen = slurm.job(job);
        (shown("Restarts=") == "2" && seen.state == "RUNNING").then_some(seen.host)
    });
    assert_ne!(third, first, "its time away is not over");
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-11: a dead agent's node says nothing within two periods, and its job is not moved for it.
#[test]
fn a_node_whose_agent_died_says_nothing_and_keeps_its_job() {
    slurm_or_skip!();
    let mut slurm = Slurm::start(2);
    slurm.give_profiles();
    slurm.tick();
    let job = slurm
        .submit("tidegate: profile=summarise sla=0.40")
        .expect("taken");
    let first = slurm.runs(job);
    let at = slurm
        .hosts
        .iter()
        .position(|host| host.name == first)
        .expect("a node of ours");
    assert!(!slurm.features(&first).is_empty(), "it was placed by them");
    slurm.hosts[at].node.agent = None;
    let died = monotonic_ns();
    wait_for("its values lapse", || {
        slurm.features(&first).is_empty().then_some(())
    });
    let after = monotonic_ns() - died;
    // Two periods of the timer, each with the time that two commands may take on a busy machine.
    assert!(after < 5_000_000_000, "{after} ns");
    println!(
        "lapsed {} ms after the agent's death, with a period of 1000 ms",
        after / 1_000_000
    );
    // Its windows would be strikes: nobody counts its launches any more.
    std::thread::sleep(Duration::from_secs(8));
    let seen = slurm.job(job);
    assert_eq!((seen.state.as_str(), seen.host), ("RUNNING", first));
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-12: a controller that was killed starts nothing on stale values and loses no running job; what waits starts
/// within 10 s of its restart.
#[test]
fn a_controller_that_was_killed_starts_nothing_on_stale_values() {
    slurm_or_skip!();
    let mut slurm = Slurm::start(2);
    slurm.give_profiles();
    slurm.tick();
    let comment = "tidegate: profile=summarise sla=0.40";
    let running = [(); 2].map(|()| slurm.submit(comment).expect("taken"));
    let hosts = running.map(|job| slurm.runs(job));
    let waiting = slurm.submit(comment).expect("taken");
    slurm.saved();
    // In the middle of publications, of which there are two a second.
    slurm.kill_controller();
    slurm.start_controller();
    let up = monotonic_ns();
    for (job, host) in running.iter().zip(&hosts) {
        let seen = slurm.job(*job);
        assert_eq!(
            (seen.state.as_str(), &seen.host),
            ("RUNNING", host),
            "no running job is lost"
        );
    }
    let _ = slurm.text("scancel", &[&running[0].to_string()]);
    let host = slurm.runs(waiting);
    let after = monotonic_ns() - up;
    assert!(after < 10_000_000_000, "{after} ns after the restart");
    println!(
        "a waiting job runs {} ms after the restart",
        after / 1_000_000
    );
    assert_eq!(host, hosts[0]);
    // Nothing was published anew before it ran there that does not fit.
    assert!(
        slurm
            .features(&host)
            .contains(&"tg.summarise.1x40".to_owned())
    );
    assert_eq!(slurm.drained(), [""; 0]);
}
