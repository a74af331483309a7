//! A real control plane of Kubernetes places offline jobs by what each node gives. `scripts/cluster kubernetes` builds
//! it of Debian's source package and runs these; without it they are skipped. Each node has a virtual GPU and an agent
//! of its own. Kubelets, node-feature-discovery and the descheduler are played (`src/kubernetes/played.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_tests::clock::Stalls;
use tidegate_tests::kubernetes::audit::Did;
use tidegate_tests::kubernetes::played::LABEL;
use tidegate_tests::kubernetes::{HISTORY, Kubernetes, LAPSES, missing};
use tidegate_tests::{HalfOfTheTime, Online, monotonic_ns, wait_for};

macro_rules! kubernetes_or_skip {
    () => {
        if let Some(why) = missing() {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
}

/// Longest from a value that fits to the start of a job, and for what else the players do at their next look.
const STARTS: Duration = Duration::from_secs(10);

/// Milliseconds from `from` to `to`: less than `most` and what the machine stood still for.
#[track_caller]
fn within(most: Duration, from: u64, to: u64, stalls: &Stalls) -> u64 {
    let after = to.saturating_sub(from);
    let most = most.as_nanos() + u128::from(stalls.ns());
    assert!(u128::from(after) < most, "{after} ns, of {most}");
    after / 1_000_000
}

/// Waits until a job runs; its node and its pod.
#[track_caller]
fn runs(cluster: &Kubernetes, job: &str) -> (String, String) {
    wait_for("the job runs", || cluster.running(job))
}

/// Of every pod of a job that the API server bound, in its own order, its node's label said at least `percent` then, and
/// when the kubelet saw it the node's own file did, and had not lapsed.
#[track_caller]
fn none_was_placed_below(cluster: &Kubernetes, job: &str, percent: u8) {
    let (mut says, mut placed) = (BTreeMap::new(), 0);
    for did in cluster.did() {
        match did {
            Did::Says(node, value) => {
                says.insert(node, value);
            }
            Did::Bound { pod, node } if pod.starts_with(job) => {
                let said = says.get(&node).copied().flatten();
                assert!(
                    said.is_some_and(|said| said >= percent),
                    "{pod} went to {node}, whose label said {said:?}"
                );
                placed += 1;
            }
            Did::Bound { .. } | Did::Evicted(_) => {}
        }
    }
    assert_ne!(placed, 0, "it was placed");
    let own = wait_for("kubelets saw what was bound", || {
        let mut own = cluster.bound();
        own.retain(|bound| bound.pod.starts_with(job));
        (own.len() == placed).then_some(own)
    });
    for bound in own {
        let said = bound.said.get(LABEL);
        let said = said.and_then(|text| text.parse::<u8>().ok());
        assert!(said.is_some_and(|said| said >= percent), "{bound:?}");
    }
}

/// P-CLUSTER-17: a job whose share nobody gives waits with a reason that a user can read, starts within 10 s of the
/// first value that fits, and gets the better of two nodes that do.
#[test]
fn a_pod_waits_for_a_node_that_gives_enough_and_gets_the_best() {
    kubernetes_or_skip!();
    let cluster = Kubernetes::start(3);
    // Online has n1 to itself, and n2 for half of the time.
    let mut all = Online::start(&cluster.hosts[0].node, 0);
    all.say("hold");
    let half = Online::start(&cluster.hosts[1].node, 0);
    let half = HalfOfTheTime::of(half);
    cluster.submit("most", 70);
    let why = wait_for("a reason", || cluster.why_waiting("most"));
    assert!(why.contains("node affinity"), "{why}");
    println!("waits: {why}");
    // Of a node's history its begin, before online came, is all there is at first.
    wait_for("n1 and n2 give too little, n3 enough", || {
        let below = |at, percent| cluster.would_give(at).is_some_and(|gives| gives < percent);
        let enough = cluster.would_give(2).is_some_and(|gives| gives >= 70);
        (below(0, 10) && below(1, 70) && enough).then_some(())
    });
    cluster.give_profiles();
    let stalls = Stalls::watch();
    let fits = wait_for("n3 gives enough", || {
        (cluster.gives("n3")? >= 70).then(monotonic_ns)
    });
    let (node, pod) = runs(&cluster, "most");
    let began = wait_for("its kubelet saw it", || cluster.began(&pod));
    println!(
        "began {} ms after the value",
        within(STARTS, fits, began, &stalls)
    );
    assert_eq!(node, "n3");
    none_was_placed_below(&cluster, "most", 70);
    // The other that gives enough for less, while the best has no slot.
    wait_for("n2 gives less than n3 and enough", || {
        (10..70).contains(&cluster.gives("n2")?).then_some(())
    });
    cluster.submit("second", 10);
    assert_eq!(runs(&cluster, "second").0, "n2");
    for job in ["most", "second"] {
        cluster.remove(job);
    }
    cluster.submit("best", 10);
    assert_eq!(
        runs(&cluster, "best").0,
        "n3",
        "of two that give enough the better"
    );
    assert!(
        !cluster.bound().iter().any(|bound| bound.node == "n1"),
        "online has it"
    );
    drop(half);
}

/// P-CLUSTER-18: an online load that brings a node below what its job asks for has it evicted once; it runs elsewhere
/// and does not come back while the bad windows are in the history that the node speaks from.
#[test]
fn a_pod_whose_node_gives_too_little_is_evicted_once_and_stays_away() {
    kubernetes_or_skip!();
    let cluster = Kubernetes::start(3);
    cluster.give_profiles();
    cluster.submit("moves", 40);
    let (first, pod) = runs(&cluster, "moves");
    let at = cluster.hosts.iter().position(|host| host.name == first);
    let mut load = Online::start(&cluster.hosts[at.expect("ours")].node, 0);
    load.say("hold");
    let loaded = monotonic_ns();
    let stalls = Stalls::watch();
    let went = wait_for("it is evicted", || {
        (cluster.evicted() == [pod.clone()]).then(monotonic_ns)
    });
    let (second, next) = wait_for("it runs elsewhere", || {
        cluster.running("moves").filter(|(node, _)| *node != first)
    });
    let began = wait_for("its kubelet saw it", || cluster.began(&next));
    println!(
        "runs on {second} {} ms after its eviction",
        within(STARTS, went, began, &stalls)
    );
    // Of its history more than one window of ten is bad, however long that is.
    let since = |at: u64| Duration::from_nanos(monotonic_ns() - at);
    wait_for("a fifth of the history with load", || {
        (since(loaded) > HISTORY / 5).then_some(())
    });
    // The load is over, and what it was stays in the value: who is moved once more, well after, does not come back.
    load.say("release");
    let over = monotonic_ns();
    wait_for("a quarter of the history without load", || {
        let low = cluster.gives(&first).is_none_or(|gives| gives < 40);
        assert!(low, "the bad windows are in its history");
        (since(over) > HISTORY / 4).then_some(())
    });
    cluster.api.evict(&next).expect("it may be evicted");
    let (third, last) = wait_for("it runs again", || {
        cluster.running("moves").filter(|(_, pod)| *pod != next)
    });
    assert_ne!(third, first, "its time away is not over");
    wait_for("the first node gives enough again", || {
        (cluster.gives(&first)? >= 40).then_some(())
    });
    let away = since(over);
    println!("{first} gives enough again {away:.1?} after the load");
    assert!(away > HISTORY / 2, "they were in it until they were old");
    // A node that is as good as its own takes nobody away.
    assert_eq!(cluster.running("moves"), Some((third, last)));
    assert_eq!(
        cluster.evicted(),
        [pod, next],
        "it was moved once, and once by hand"
    );
    none_was_placed_below(&cluster, "moves", 40);
}

/// P-CLUSTER-19: etcd and the API server killed lose no running job, and once discovery has looked again and the
/// scheduler has heard of it nothing is placed on values that fell or lapsed meanwhile, though slots are free there; what
/// waits starts when they are back.
#[test]
fn a_control_plane_that_was_killed_places_nothing_on_values_that_lapsed() {
    kubernetes_or_skip!();
    let mut cluster = Kubernetes::start(3);
    cluster.give_profiles();
    let jobs = ["a", "b", "c"];
    let was = jobs.map(|job| {
        cluster.submit(job, 40);
        runs(&cluster, job)
    });
    for job in ["d", "e"] {
        cluster.submit(job, 40);
        wait_for("no slot is free", || cluster.why_waiting(job));
    }
    let at = |node: &str| {
        let mut hosts = cluster.hosts.iter();
        hosts.position(|host| host.name == node).expect("ours")
    };
    let [falls, lapses, _] = was.each_ref().map(|(node, _)| at(node));
    cluster.kill_server();
    // Two nodes give nothing any more, one of them because nobody says what it gives. The API, which is away, knows that
    // both do.
    let mut load = Online::start(&cluster.hosts[falls].node, 0);
    load.say("hold");
    cluster.hosts[lapses].says.store(false, Ordering::Relaxed);
    for host in [falls, lapses].map(|at| &cluster.hosts[at]) {
        wait_for("its own file says so", || {
            host.says_now().is_none_or(|gives| gives < 40).then_some(())
        });
    }
    let before = cluster.did();
    cluster.start_server();
    let up = monotonic_ns();
    for (job, was) in jobs.iter().zip(&was) {
        assert_eq!(
            cluster.running(job).as_ref(),
            Some(was),
            "no running job is lost"
        );
    }
    // Labels are in etcd: until discovery has looked again they say what was so before.
    for (node, _) in &was[..2] {
        wait_for("its label says so", || {
            let gives = cluster.gives(node);
            gives.is_none_or(|gives| gives < 40).then_some(())
        });
    }
    // And until the scheduler, which was cut off as well, has heard of it. It says so itself.
    let waiting = ["d", "e"];
    let two_fit_nobody = |job: &str| {
        wait_for("the scheduler knows that two nodes do not fit", || {
            let why = cluster.why_waiting(job)?;
            why.contains("2 node(s) didn't match Pod's node affinity")
                .then_some(why)
        })
    };
    for job in waiting {
        println!("waits: {}", two_fit_nobody(job));
    }
    let (removed, stalls) = (monotonic_ns(), Stalls::watch());
    for job in jobs {
        cluster.remove(job);
    }
    let first = wait_for("one of those that wait runs", || {
        waiting
            .into_iter()
            .find(|job| cluster.running(job).is_some())
    });
    let (node, pod) = runs(&cluster, first);
    let began = wait_for("its kubelet saw it", || cluster.began(&pod));
    println!(
        "a waiting job runs {} ms after slots were free, {} ms after the restart",
        within(STARTS, removed, began, &stalls),
        (began - up) / 1_000_000
    );
    assert_eq!(node, was[2].0);
    let other = if first == "d" { "e" } else { "d" };
    // The other waits for a node of the two, and gets the one that says again what it gives.
    println!("waits: {}", two_fit_nobody(other));
    cluster.hosts[lapses].says.store(true, Ordering::Relaxed);
    assert_eq!(runs(&cluster, other).0, was[1].0);
    for job in waiting {
        none_was_placed_below(&cluster, job, 40);
    }
    let bound = |did: &[Did]| {
        let bound = did.iter().filter(|did| matches!(did, Did::Bound { .. }));
        bound.count()
    };
    assert_eq!(bound(&before), 3, "three have slots");
    assert_eq!(bound(&cluster.did()), 5, "nobody was placed twice");
}

/// P-CLUSTER-20: what a node says lapses when its agent dies, and when whoever says it does; nothing is placed there.
#[test]
fn what_a_dead_agents_node_said_lapses() {
    kubernetes_or_skip!();
    let mut cluster = Kubernetes::start(2);
    cluster.give_profiles();
    for name in ["n1", "n2"] {
        wait_for("both give enough", || {
            (cluster.gives(name)? >= 40).then_some(())
        });
    }
    let stalls = Stalls::watch();
    let died = monotonic_ns();
    cluster.hosts[0].node.agent = None;
    // The side-car alone: its agent lives, and nobody says so.
    cluster.hosts[1].says.store(false, Ordering::Relaxed);
    // As soon as its own side-car sees that, and when the file has lapsed.
    for (name, most) in [("n1", STARTS), ("n2", LAPSES + STARTS)] {
        let gone = wait_for("the label lapses", || {
            cluster.gives(name).is_none().then(monotonic_ns)
        });
        let ms = within(most, died, gone, &stalls);
        println!("the label of {name} went after {ms} ms; a file lapses after {LAPSES:?}");
    }
    cluster.submit("waits", 40);
    wait_for("a reason", || cluster.why_waiting("waits"));
    cluster.hosts[0].start_agent();
    let (node, _) = runs(&cluster, "waits");
    assert_eq!(node, "n1", "the other says nothing");
    none_was_placed_below(&cluster, "waits", 40);
}
