//! A real Slurm places offline jobs by what each node publishes: munged, slurmctld and four slurmd of Debian's
//! packages, each node with a virtual GPU and an agent of its own. Judged by what Slurm says, and by the GPUs' own
//! history.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tidegate_tests::clock::Stalls;
use tidegate_tests::exposition::Exposition;
use tidegate_tests::slurm::{Settings, Slurm, missing};
use tidegate_tests::{
    HalfOfTheTime, Node, Offline, Online, TRUSTING, compile, monotonic_ns, wait_for, watch,
};

macro_rules! slurm_or_skip {
    () => {
        if let Some(why) = missing() {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
}

/// What every job of these asks for.
const ASKS: &str = "tidegate: profile=summarise sla=0.40";
/// What `place tend` leaves for Prometheus.
const GOT: &str = "tidegate_job_throughput_ratio";
const EVICTIONS: &str = "tidegate_evictions_total";
/// The feature that answers it.
const GIVES: &str = "tg.summarise.1x40";

/// A cluster with a job that runs.
struct Placed {
    slurm: Slurm,
    job: u32,
    /// Its node.
    at: usize,
    /// The same by name.
    first: String,
}

fn placed(count: usize, settings: Settings) -> Placed {
    let mut slurm = Slurm::start_as(count, settings);
    slurm.give_profiles();
    slurm.tick();
    let job = slurm.submit(ASKS).expect("taken");
    let first = slurm.runs(job);
    let mut hosts = slurm.hosts.iter();
    let at = hosts
        .position(|host| host.name == first)
        .expect("a node of ours");
    Placed {
        slurm,
        job,
        at,
        first,
    }
}

/// What `scontrol` says of a field of a job.
fn shown(slurm: &Slurm, job: u32, field: &str) -> String {
    let text = slurm.text("scontrol", &["--oneliner", "show", "job", &job.to_string()]);
    let mut words = text.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix(field).map(str::to_owned));
    value.unwrap_or_else(|| panic!("{field} in {text}"))
}

/// Milliseconds since `from`: less than `most` and what the machine stood still for.
#[track_caller]
fn within(most: Duration, from: u64, stalls: &Stalls) -> u64 {
    let after = monotonic_ns() - from;
    let most = most.as_nanos() + u128::from(stalls.ns());
    assert!(u128::from(after) < most, "{after} ns, of {most}");
    after / 1_000_000
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
    let half = holds.pop().expect("three");
    for hold in &mut holds {
        hold.say("hold");
    }
    let half = HalfOfTheTime::of(half);
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
    let job = slurm.submit(ASKS).expect("taken");
    wait_for("a reason that a user can read", || {
        let seen = slurm.job(job);
        assert_eq!(seen.state, "PENDING", "nothing is published yet");
        seen.reason.contains("none-gives-enough-yet").then_some(())
    });
    // What the nodes did before online came is forgotten.
    wait_for("n1 and n2 give too little, n4 enough", || {
        let gives = |at: usize| slurm.would_publish(at).contains(GIVES);
        (!gives(0) && !gives(1) && gives(3)).then_some(())
    });
    slurm.give_profiles();
    let fits = |name: &str| slurm.features(name).contains(&GIVES.to_owned());
    let stalls = Stalls::watch();
    let published = wait_for("a node gives enough", || {
        ["n3", "n4"]
            .iter()
            .any(|name| fits(name))
            .then(monotonic_ns)
    });
    let host = slurm.runs(job);
    let ms = within(Duration::from_secs(5), published, &stalls);
    println!("started {ms} ms after the first publication that fits");
    assert_eq!(host, "n4", "n4 idles always, n3 half of the time");
    assert!(!fits("n1") && !fits("n2"), "online has them");
    assert_eq!(slurm.drained(), [""; 0]);
    drop(half);
}

/// P-CLUSTER-10, P-CLUSTER-15: an online load that brings a job below its SLA has it moved once, to a node that gives
/// enough, within 5 s of the verdict; and it does not come back while its time away lasts, whatever the node gives
/// then.
#[test]
fn a_job_that_gets_too_little_is_moved_once_and_stays_away() {
    slurm_or_skip!();
    let Placed {
        slurm,
        job,
        at,
        first,
    } = placed(3, Settings::default());
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
    let ms = within(Duration::from_secs(5), went, &stalls);
    println!("runs on {second} {ms} ms after it left {first}");
    // Prometheus is told by the node that it left.
    let file = slurm.hosts[at].node.dir().join("tidegate-tend.prom");
    wait_for("the eviction is counted", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let seen = Exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        let gone = seen.sum(GOT, &[]).is_none();
        (gone && seen.sum(EVICTIONS, &[]) == Some(1.0)).then_some(())
    });
    // The load ends, and its first node gives the most again.
    load.say("release");
    wait_for("the first node gives enough again", || {
        let features = slurm.features(&first);
        features.contains(&GIVES.to_owned()).then_some(())
    });
    let shown = |field: &str| shown(&slurm, job, field);
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

/// P-CLUSTER-25: a job that its user cancels in the moment in which it is to be moved is not brought back.
#[test]
fn a_job_that_is_cancelled_while_it_is_told_to_go_does_not_come_back() {
    slurm_or_skip!();
    let Placed {
        slurm,
        job,
        at,
        first,
    } = placed(2, Settings::default());
    // Its user is a moment faster than who moves it, each time.
    let (dir, asked) = (slurm.dir().join("user"), slurm.dir().join("asked"));
    std::fs::create_dir(&dir).expect("writable");
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$1\" != requeue ]; then exec /usr/bin/scontrol \"$@\"; fi\n\
         scancel {job}\n\
         echo \"$@\" >> {}\n\
         exec /usr/bin/scontrol \"$@\"\n",
        asked.display()
    );
    let faster = dir.join("scontrol");
    std::fs::write(&faster, text).expect("writable");
    let runs = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&faster, runs).expect("its owner");
    let env = slurm.dir().join("env").join(&first);
    let known = std::fs::read_to_string(&env).expect("readable");
    let first = format!("{known}PATH={}:$PATH\n", dir.display());
    std::fs::write(&env, first).expect("writable");
    let mut load = Online::start(&slurm.hosts[at].node, 0);
    load.say("hold");
    wait_for("it is to be moved", || asked.exists().then_some(()));
    wait_for("it has ended", || {
        (shown(&slurm, job, "JobState=") == "CANCELLED").then_some(())
    });
    // It would be back at once, and run on the other node.
    slurm.pass(at, 3);
    assert_eq!(shown(&slurm, job, "JobState="), "CANCELLED");
    assert_eq!(shown(&slurm, job, "Restarts="), "0");
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-11: a dead agent's node says nothing within two periods, and its job is not moved for it.
#[test]
fn a_node_whose_agent_died_says_nothing_and_keeps_its_job() {
    slurm_or_skip!();
    let Placed {
        mut slurm,
        job,
        at,
        first,
    } = placed(2, Settings::default());
    assert!(!slurm.features(&first).is_empty(), "it was placed by them");
    slurm.hosts[at].node.agent = None;
    let (died, stalls) = (monotonic_ns(), Stalls::watch());
    wait_for("its values lapse", || {
        slurm.features(&first).is_empty().then_some(())
    });
    // Two periods of the timer, each with the time that two commands may take on a busy machine.
    let ms = within(Duration::from_secs(5), died, &stalls);
    println!("lapsed {ms} ms after the agent's death, with a period of 1000 ms");
    // Three windows of 2 s would be strikes: nobody counts its launches any more.
    slurm.pass(at, 8);
    let seen = slurm.job(job);
    assert_eq!((seen.state.as_str(), seen.host), ("RUNNING", first));
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-12: a controller that was killed starts nothing on stale values and loses no running job. Nodes have said
/// theirs again within two periods of its restart, and what waits starts within 10 s.
#[test]
fn a_controller_that_was_killed_starts_nothing_on_stale_values() {
    slurm_or_skip!();
    let mut slurm = Slurm::start(2);
    slurm.give_profiles();
    slurm.tick();
    let running = [(); 2].map(|()| slurm.submit(ASKS).expect("taken"));
    let hosts = running.map(|job| slurm.runs(job));
    let waiting = slurm.submit(ASKS).expect("taken");
    slurm.saved();
    // In the middle of publications, of which there are two a second.
    slurm.kill_controller();
    slurm.start_controller();
    let (up, stalls) = (monotonic_ns(), Stalls::watch());
    for (job, host) in running.iter().zip(&hosts) {
        let seen = slurm.job(*job);
        assert_eq!(
            (seen.state.as_str(), &seen.host),
            ("RUNNING", host),
            "no running job is lost"
        );
    }
    for at in 0..slurm.hosts.len() {
        slurm.pass(at, 1);
        let features = slurm.features(&slurm.hosts[at].name);
        assert!(features.contains(&GIVES.to_owned()), "{features:?}");
    }
    let _ = slurm.text("scancel", &[&running[0].to_string()]);
    let host = slurm.runs(waiting);
    let ms = within(Duration::from_secs(10), up, &stalls);
    println!("a waiting job runs {ms} ms after the restart");
    assert_eq!(host, hosts[0]);
    // Nothing was published anew before it ran there that does not fit.
    assert!(slurm.features(&host).contains(&GIVES.to_owned()));
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-13, P-CLUSTER-21: a job whose node's slurmd was killed runs elsewhere, where enough is given, and once
/// only: when its first node is back, nothing of it is left there. The node says nothing while Slurm has lost it, and
/// not before the old step is gone.
#[test]
fn a_job_whose_slurmd_was_killed_runs_elsewhere() {
    slurm_or_skip!();
    let lost_s = 5;
    let settings = Settings {
        lost_s,
        ..Settings::default()
    };
    let Placed {
        mut slurm,
        job,
        at,
        first,
    } = placed(2, settings);
    let old_step = |slurm: &Slurm| {
        let status = watch::status(&slurm.hosts[at].node);
        !status["jobs"].as_array().is_none_or(Vec::is_empty)
    };
    wait_for("its step runs", || old_step(&slurm).then_some(()));
    slurm.kill_slurmd(at);
    let killed = monotonic_ns();
    let second = wait_for("it runs elsewhere", || {
        let seen = slurm.job(job);
        (seen.state == "RUNNING" && seen.host != first).then_some(seen.host)
    });
    println!(
        "runs on {second} {} ms after slurmd of {first} was killed, with a SlurmdTimeout of {lost_s} s",
        (monotonic_ns() - killed) / 1_000_000
    );
    assert!(slurm.features(&second).contains(&GIVES.to_owned()));
    assert_eq!(shown(&slurm, job, "Restarts="), "1");
    wait_for("what the lost node said is taken back", || {
        slurm.features(&first).is_empty().then_some(())
    });
    // What its node's agent sees of it ends with the old step, which outlived slurmd.
    assert!(old_step(&slurm), "it outlives slurmd");
    slurm.start_slurmd(at);
    wait_for("it says something again", || {
        let says = !slurm.features(&first).is_empty();
        assert!(!(says && old_step(&slurm)), "the old step still runs");
        says.then_some(())
    });
    wait_for("the node is back", || {
        let text = slurm.text("sinfo", &["-h", "-n", &first, "-o", "%T"]);
        (text.trim() == "idle").then_some(())
    });
    let seen = slurm.job(job);
    assert_eq!((seen.state.as_str(), seen.host), ("RUNNING", second));
    assert_eq!(slurm.drained(), [""; 0]);
}

/// P-CLUSTER-16: a hundred jobs are evicted as slurmd does it, by SIGTERM and then SIGKILL, while they are gated with
/// work queued. The driver here holds the locks of all GPUs for two minutes for each disabled channel whose files are
/// closed.
#[test]
fn evicting_gated_jobs_never_stalls_the_drivers_locks() {
    let config = format!("{TRUSTING}[gate]\ncooldown = \"5ms\"\n[fair]\nturn = \"10ms\"\n");
    let node = Node::new(&["--set", "stop_channel_wait_us=120000000"], &config);
    let mut online = Online::start(&node, 0);
    let mut stays = Offline::start(&node, 1_000_000, &[0]);
    stays.running();
    for round in 0..20 {
        let job = |number: u32| {
            let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
            command.env("TIDEGATE_JOB", format!("slurm-{}", 5 * round + number));
            Offline::from_command(command.args(["1000000", "0"]))
        };
        let mut jobs: Vec<_> = (1..=5).map(job).collect();
        jobs.iter_mut().for_each(Offline::running);
        online.say("hold");
        let pids: Vec<_> = jobs.iter().map(|job| job.process.pid()).collect();
        let channels = watch::wait_all(&node, &pids, true);
        assert!(channels >= jobs.len(), "{channels} channels");
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            jobs.iter().for_each(|job| job.process.signal(signal));
        }
        wait_for("their channels are gone", || {
            watch::channels(&node, &pids).is_empty().then_some(())
        });
        // An enable takes the driver's locks.
        online.say("release");
        watch::wait_all(&node, &[stays.process.pid()], false);
    }
    stays.stop();
}
