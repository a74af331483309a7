//! The shell as it ships, turned by hand: an online engine says its iterations, a trainer offers units, and what is
//! written in their pages decides who runs.

mod rig;

use rig::Rig;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_abi::beats::{self, BATCH_KNOWN, BeatPage};
use tidegate_abi::page::{
    GATE_STATE, GateWords, LEASE_GIVEN, LEASE_NONE, LEASE_NUMBER, LEASE_STATE, LEASE_WITHDRAWN,
    LEASED_NUMBER, LEASED_OVER, UNIT_MOST,
};
use tidegate_node::Input;
use tidegate_node::beats::{BeatMemory, BeatRef};
use tidegate_node::kinds::Role;
use tidegate_node::message::{Library, Said, Tunables};
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::view::JobState;

const MS: u64 = 1_000_000;
const HEARTBEAT_NS: u64 = 50 * MS;
const LEASING: Leasing = Leasing {
    promise: Promise::Tail {
        ttft_ns: 500 * MS,
        tpot_ns: 40 * MS,
        late_permille: 10,
    },
    margin_permille: 50,
    switch_ns: 40_000,
    gate_ns: MS,
    grace_ns: MS / 2,
};

#[derive(Debug)]
struct Beats(Arc<BeatPage>);

impl BeatMemory for Beats {
    fn page(&self) -> &BeatPage {
        &self.0
    }
}

fn config(leases: Option<Leasing>) -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_secs(600)),
        leases,
        ..Rig::without_waits()
    }
}

struct Node {
    rig: Rig,
    beats: Arc<BeatPage>,
    online: u64,
    trainer: u64,
}

impl Node {
    /// Online is busy all the time, and a trainer offers units of 2 ms.
    fn new(leases: Option<Leasing>) -> Self {
        let mut rig = Rig::new(1, config(leases));
        rig.library = Library {
            knows_leases: true,
            ..Library::default()
        };
        let trainer = rig.attach(Role::Offline, "tune");
        let online = rig.attach(Role::Online, "");
        rig.edge(online, 0, true, 1);
        rig.requests(online, 1);
        rig.rest();
        let page = BeatPage::default();
        page.header.magic.store(beats::MAGIC, Ordering::Relaxed);
        page.header.major.store(beats::MAJOR, Ordering::Relaxed);
        let beats = Arc::new(page);
        let node = Self {
            rig,
            beats,
            online,
            trainer,
        };
        node.offer(8);
        node
    }

    fn offer(&self, most: u64) {
        let page = self.rig.page(self.trainer);
        page.process.unit_ns.store(2 * MS, Ordering::Relaxed);
        page.process
            .unit
            .store(most << UNIT_MOST | 512, Ordering::Release);
    }

    /// The agent hears of the offer, and maps the page that it then asks for.
    fn meet(&mut self) {
        self.rig.pass(HEARTBEAT_NS);
        self.rig.probe();
        self.rig.rest();
        self.rig.beats = Some(BeatRef::new(Beats(Arc::clone(&self.beats))));
        self.rig.say(self.online, Said::Beats(7));
        self.rig.rest();
    }

    /// An iteration of one request that decodes: 5 ms, and a gap before it.
    fn beat(&mut self) {
        self.rig.pass(6 * MS);
        self.said(0);
    }

    fn said(&mut self, prompt: u64) {
        let words = &self.beats.devices[0];
        words.version.fetch_add(1, Ordering::AcqRel);
        words.count.fetch_add(1, Ordering::Relaxed);
        words
            .begin_ns
            .store(self.rig.now() - 5 * MS, Ordering::Relaxed);
        words.end_ns.store(self.rig.now(), Ordering::Relaxed);
        words.fingerprint.store(77, Ordering::Relaxed);
        words
            .batch
            .store(BATCH_KNOWN | u64::from(prompt == 0), Ordering::Relaxed);
        words.prompt.store(prompt, Ordering::Relaxed);
        words.version.fetch_add(1, Ordering::AcqRel);
        let page = self.rig.page(self.online);
        page.process.doorbell.fetch_add(1, Ordering::AcqRel);
        page.process
            .prober_ns
            .store(self.rig.now(), Ordering::Relaxed);
        self.rig.rest();
    }

    /// Number and state of the lease, and whether launches pass.
    fn lease(&self) -> (u64, u64, bool) {
        let page = self.rig.page(self.trainer);
        let GateWords { lease, gate, .. } = &page.gates[0];
        let word = lease.load(Ordering::Acquire);
        let passes = gate.load(Ordering::Acquire) & GATE_STATE == 0;
        (word >> LEASE_NUMBER, word & LEASE_STATE, passes)
    }

    /// Iterations until a lease is given.
    fn leased(&mut self) -> u64 {
        for _ in 0..200 {
            self.beat();
            let (number, state, passes) = self.lease();
            if state == LEASE_GIVEN {
                assert!(passes, "its gate is open");
                return number;
            }
        }
        let policy = self.rig.shell.policy();
        let job = policy.job(JobId(0));
        panic!(
            "no lease in 200 iterations: {:?}, {job:?}, {:?}",
            self.rig.told.kinds(),
            policy.leases(GpuId(0))
        );
    }

    fn over(&mut self, lease: u64, units: u64) {
        let page = self.rig.page(self.trainer);
        let word = lease << LEASED_NUMBER | LEASED_OVER | units;
        page.memory[0].leased.store(word, Ordering::Release);
        page.process.doorbell.fetch_add(1, Ordering::AcqRel);
        self.rig.rest();
    }

    /// Who has returned is off.
    fn grace(&mut self) {
        self.rig.pass(LEASING.grace_ns);
        self.rig.rest();
    }

    fn is_on(&self) -> bool {
        self.rig.is_on(self.trainer, 0)
    }
}

/// P-TRAINER-15: what a trainer offers and online says becomes a lease in its words, and its return ends it.
#[test]
fn a_trainer_is_given_leases_between_iterations_and_ends_them() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let mut last = 0;
    for _ in 0..20 {
        let number = node.leased();
        assert!(number > last);
        last = number;
        let page = node.rig.page(node.trainer);
        let words = &page.gates[0];
        let units = words.lease_units.load(Ordering::Relaxed);
        assert!((1..=8).contains(&units), "{units}");
        let until = words.lease_until_ns.load(Ordering::Relaxed);
        let left = until - node.rig.now();
        // Two iterations' promise at most, and no grace in it.
        assert!(left > 2 * MS && left < 80 * MS, "{left}");
        node.rig.pass(3 * MS);
        node.over(number, 1);
        assert_eq!(node.lease(), (number, LEASE_WITHDRAWN, false));
        assert!(node.is_on());
        node.grace();
        assert!(!node.is_on(), "what it left on the device is stopped");
    }
    let told = node.rig.told.kinds();
    assert!(!told.contains(&"lease_overrun"), "{told:?}");
}

/// P-TRAINER-15: who is not back is off the GPU when grace is over, whatever it writes afterwards.
#[test]
fn who_overstays_is_disabled_when_its_grace_is_over() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let number = node.leased();
    let page = node.rig.page(node.trainer);
    let until = page.gates[0].lease_until_ns.load(Ordering::Relaxed);
    node.rig.pass(until - node.rig.now() + LEASING.grace_ns - 1);
    node.rig.rest();
    assert!(node.is_on());
    node.rig.pass(1);
    node.rig.rest();
    assert!(!node.is_on(), "disabled");
    assert_eq!(node.lease(), (number, LEASE_WITHDRAWN, true));
    assert!(node.rig.told.kinds().contains(&"lease_overrun"));
    // Late words, and words of leases that never were, change nothing.
    for lease in [number, number + 1, u64::MAX >> LEASED_NUMBER] {
        node.over(lease, 3);
        assert!(!node.is_on());
        assert_eq!(node.lease().1, LEASE_WITHDRAWN);
    }
}

/// P-TRAINER-15: a request that comes withdraws the lease, and the unit that runs may end.
#[test]
fn a_request_withdraws_the_lease() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let number = node.leased();
    node.rig.requests(node.online, 2);
    let page = node.rig.page(node.online);
    page.process.doorbell.fetch_add(1, Ordering::AcqRel);
    node.rig.rest();
    assert_eq!(node.lease(), (number, LEASE_WITHDRAWN, true));
    node.over(number, 1);
    assert_eq!(node.lease(), (number, LEASE_WITHDRAWN, false));
    // And none is given while its prompt waits.
    for _ in 0..5 {
        node.beat();
        assert_ne!(node.lease().1, LEASE_GIVEN);
    }
}

/// P-TRAINER-15: where leases are off nobody is asked for iterations and no word is written; switched off, what stands
/// ends.
#[test]
fn where_leases_are_off_no_word_is_written() {
    let mut node = Node::new(None);
    node.meet();
    assert!(
        node.rig.beats.is_some(),
        "nobody asked for a page, so none is mapped"
    );
    for _ in 0..50 {
        node.beat();
        assert_eq!((node.lease().0, node.lease().1), (0, LEASE_NONE));
    }
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let number = node.leased();
    let tunables = Tunables {
        policy: config(None),
        rings_per_second: 1_000_000,
        prove_every_ns: 5_000_000_000,
        stall_ns: 50 * MS,
        answer_ns: 100 * MS,
        users: std::collections::BTreeMap::new(),
    };
    node.rig.shell.take(Input::Configure(Box::new(tunables)));
    node.rig.rest();
    assert_eq!((node.lease().0, node.lease().1), (number, LEASE_NONE));
    assert!(!node.is_on());
}

/// P-TRAINER-15: what has offered nothing yet is told whether it needs a lease: its launch gate may be open while its
/// channels are disabled, and what it launched then would run when they are enabled for a lease.
#[test]
fn before_a_first_offer_it_is_told_whether_it_needs_a_lease() {
    let mut node = Node::new(Some(LEASING));
    node.offer(0);
    assert_eq!(node.lease(), (0, LEASE_WITHDRAWN, true));
    assert!(!node.is_on());
    node.rig.requests(node.online, 0);
    node.rig.edge(node.online, 0, false, 1);
    node.rig.pass(MS);
    node.rig.rest();
    assert_eq!(node.lease(), (0, LEASE_NONE, true));
    assert!(node.is_on());
    node.rig.edge(node.online, 0, true, 1);
    node.rig.rest();
    assert_eq!(node.lease().1, LEASE_WITHDRAWN);
}

/// P-TRAINER-15: by an open gate a trainer needs no lease, and once it shuts none of its units begins without one.
#[test]
fn by_an_open_gate_no_lease_is_needed() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    assert_eq!(node.lease().1, LEASE_WITHDRAWN, "online is busy");
    node.rig.requests(node.online, 0);
    node.rig.edge(node.online, 0, false, 1);
    node.rig.pass(MS);
    node.rig.rest();
    assert_eq!(node.lease(), (0, LEASE_NONE, true));
    assert!(node.is_on());
    node.rig.edge(node.online, 0, true, 1);
    node.rig.rest();
    assert_eq!(node.lease().1, LEASE_WITHDRAWN);
    assert!(!node.is_on());
}

/// P-TRAINER-15: an engine beside which another uses the GPU keeps no promise that the agent knows, and nothing is lent.
#[test]
fn beside_two_engines_nothing_is_lent() {
    let mut node = Node::new(Some(LEASING));
    node.rig.attach(Role::Online, "");
    node.meet();
    node.said(40);
    for _ in 0..200 {
        node.beat();
        assert_ne!(node.lease().1, LEASE_GIVEN);
    }
}

/// P-TRAINER-15: a trainer that takes its offer back is given nothing, and one that offers again is.
#[test]
fn an_offer_holds_until_it_is_taken_back() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let number = node.leased();
    node.offer(0);
    node.over(number, 1);
    for _ in 0..100 {
        node.beat();
        assert_ne!(node.lease().1, LEASE_GIVEN);
    }
    node.offer(4);
    node.rig.pass(HEARTBEAT_NS);
    node.rig.rest();
    assert!(node.leased() > number);
    let job = node.rig.shell.policy().job(JobId(0)).map(|view| view.state);
    assert_eq!(job, Some(JobState::Leased));
}

/// P-TRAINER-15: the death of a process ends its lease, even if its job goes on. It is not reported as an overrun.
#[test]
fn who_dies_under_a_lease_ends_it() {
    let mut node = Node::new(Some(LEASING));
    let other = node.rig.attach(Role::Offline, "tune");
    node.meet();
    node.said(40);
    let number = node.leased();
    let standing = |node: &Node| {
        let view = node.rig.shell.policy().leases(GpuId(0));
        view.and_then(|view| view.standing)
    };
    assert_eq!(standing(&node).map(|standing| standing.1.0), Some(number));
    node.rig.exit(node.trainer);
    assert_eq!(standing(&node), None);
    node.grace();
    assert!(!node.rig.is_on(other, 0));
    assert!(!node.rig.told.kinds().contains(&"lease_overrun"));
}

/// P-TRAINER-15: an agent that hands over ends its leases first: its successor does not know of them.
#[test]
fn no_lease_is_handed_over() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    let number = node.leased();
    node.rig.shell.take(Input::HandOver);
    node.rig.rest();
    assert_eq!(node.lease().0, number);
    assert_eq!(node.lease().1, LEASE_WITHDRAWN);
    assert!(!node.is_on());
    assert!(node.rig.shell.has_ended());
}

/// P-TRAINER-15: a trainer that runs units which take longer than it says is held to the gate after a few, and told of.
#[test]
fn who_lies_of_its_units_is_held_to_the_gate() {
    let mut node = Node::new(Some(LEASING));
    node.meet();
    node.said(40);
    for _ in 0..4 {
        let number = node.leased();
        // It says that all of them ran, and goes on with the first.
        let page = node.rig.page(node.trainer);
        let until = page.gates[0].lease_until_ns.load(Ordering::Relaxed);
        node.rig.pass(until - node.rig.now() + LEASING.grace_ns);
        node.rig.rest();
        assert!(!node.is_on());
        node.over(number, 8);
    }
    assert!(node.rig.told.kinds().contains(&"lease_demoted"));
    for _ in 0..100 {
        node.beat();
        assert_ne!(node.lease().1, LEASE_GIVEN);
    }
    node.rig.pass(500 * MS);
    node.leased();
}

/// P-LEASE-11: of two processes of a job that both train on a GPU each has leases in turn, of its own units. One that offers
/// none any more, or is gone, leaves the other's offer as it is.
#[test]
fn processes_of_one_job_have_leases_in_turn() {
    let mut node = Node::new(Some(LEASING));
    let both = [node.trainer, node.rig.attach(Role::Offline, "tune")];
    let offer = |node: &mut Node, at: usize, most: u64| {
        node.trainer = both[at];
        node.offer(most);
        // Its units are not those of the other.
        let page = node.rig.page(node.trainer);
        page.process
            .unit_ns
            .store((2 + at as u64) * MS, Ordering::Relaxed);
    };
    offer(&mut node, 1, 8);
    node.meet();
    node.said(40);
    // Who has the next lease, which it ends.
    let next = |node: &mut Node| {
        for _ in 0..200 {
            node.beat();
            for (at, trainer) in both.into_iter().enumerate() {
                node.trainer = trainer;
                let (number, state, _) = node.lease();
                if state == LEASE_GIVEN {
                    let other = node.rig.page(both[1 - at]);
                    let word = other.gates[0].lease.load(Ordering::Acquire);
                    assert_eq!(word & LEASE_STATE, LEASE_WITHDRAWN, "one at a time");
                    node.over(number, 1);
                    return at;
                }
            }
        }
        panic!("no lease in 200 iterations");
    };
    let order: Vec<usize> = (0..20).map(|_| next(&mut node)).collect();
    for pair in order.windows(2) {
        assert_ne!(pair[0], pair[1], "{order:?}");
    }
    offer(&mut node, 0, 0);
    node.rig.pass(HEARTBEAT_NS);
    node.rig.rest();
    let order: Vec<usize> = (0..5).map(|_| next(&mut node)).collect();
    assert_eq!(order, [1; 5], "it offers none");
    offer(&mut node, 0, 8);
    node.rig.pass(HEARTBEAT_NS);
    node.rig.rest();
    let order: Vec<usize> = (0..4).map(|_| next(&mut node)).collect();
    assert!(order.contains(&0), "{order:?}");
    node.rig.exit(both[0]);
    let order: Vec<usize> = (0..5).map(|_| next(&mut node)).collect();
    assert_eq!(order, [1; 5], "it is gone");
}

/// P-LEASE-8: an online process beside a trainer that works and reports no iterations is reported once, with what to do.
#[test]
fn who_works_and_reports_no_iterations_is_told_of_once() {
    let mut node = Node::new(Some(LEASING));
    node.rig.pass(HEARTBEAT_NS);
    node.rig.probe();
    node.rig.rest();
    let silent = |node: &Node| {
        let kinds = node.rig.told.kinds();
        kinds
            .iter()
            .filter(|kind| **kind == "no_iterations")
            .count()
    };
    // Who does not work has nothing to report.
    for _ in 0..400 {
        node.rig.pass(HEARTBEAT_NS);
        node.rig.rest();
    }
    assert_eq!(silent(&node), 0);
    for _ in 0..400 {
        node.rig.launch(node.online, 0);
        node.rig.pass(HEARTBEAT_NS);
        node.rig.rest();
    }
    assert_eq!(silent(&node), 1);
}
