//! Leases between real processes and the agent that ships: one says iterations, the other offers units. Whether a channel
//! runs is the device's word, not the agent's.

use tidegate_tests::peer::Peer;
use tidegate_tests::watch::{status, wait_all};
use tidegate_tests::{Node, TRUSTING, wait_for};

/// Nothing opens by itself, and a promise that a loaded machine keeps as well.
const LEASES: &str =
    "[gate]\ncooldown = \"1h\"\n[lease]\ntpot = \"400ms\"\nttft = \"10s\"\ngrace = \"50ms\"\n";

struct Pair {
    node: Node,
    online: Peer,
    trainer: Peer,
}

impl Pair {
    /// Online decodes one request, and a trainer with a channel offers units.
    fn new() -> Self {
        let node = Node::new(&[], &format!("{TRUSTING}{LEASES}"));
        let attached = |role: &str, job: &str| {
            let mut peer = Peer::start(&node);
            peer.ask("connect");
            peer.ask(&format!("hello {role} {job} says-work"));
            peer.ask("device 0 0");
            peer
        };
        let mut online = attached("online", "-");
        online.ask("busy 0");
        let mut trainer = attached("offline", "tune");
        trainer.channels(0, 1);
        let mut pair = Self {
            online,
            trainer,
            node,
        };
        wait_all(&pair.node, &[pair.trainer.running.pid()], true);
        pair.trainer.ask("offer 8 2000000");
        wait_for("the agent to ask for iterations", || {
            pair.online.heard("beats wanted").then_some(())
        });
        pair.online.ask("flight 1");
        pair
    }

    fn beats(&mut self, seals: &str) {
        self.online.ask(&format!("beats {seals}"));
    }

    fn lease(&mut self) -> String {
        self.trainer.ask("lease 0")
    }

    /// Online decodes until the trainer has a lease; its number.
    fn leased(&mut self) -> u64 {
        wait_for("a lease", || {
            self.online.ask("beat 0 1000000 1 0");
            let lease = self.lease();
            let number = lease.strip_prefix("lease ")?.strip_suffix(" given")?;
            Some(number.parse().expect("a number"))
        })
    }

    fn state(&self) -> String {
        let status = status(&self.node);
        status["jobs"][0]["state"]
            .as_str()
            .expect("a job")
            .to_owned()
    }

    fn events(&self) -> String {
        let events = self.node.tidegate(&["events"]);
        String::from_utf8_lossy(&events.stdout).into_owned()
    }
}

/// P-TRAINER-15: a trainer that returns is given one lease after the other, and is off the device once grace is over: that
/// nothing of it is left there is its own word.
#[test]
fn a_trainer_that_returns_is_leased_again_and_off_between() {
    let mut pair = Pair::new();
    assert_eq!(pair.lease(), "lease 0 withdrawn", "its gate is shut");
    pair.beats("sealed");
    let pids = [pair.trainer.running.pid()];
    let mut last = 0;
    for _ in 0..5 {
        let number = pair.leased();
        assert!(number > last);
        last = number;
        assert_eq!(wait_all(&pair.node, &pids, false), 1, "the device runs it");
        assert_eq!(pair.state(), "leased");
        pair.trainer.ask(&format!("over 0 {number} 1"));
        wait_for("its end to be heard", || {
            (pair.lease() == format!("lease {number} withdrawn")).then_some(())
        });
        wait_all(&pair.node, &pids, true);
    }
    assert!(!pair.events().contains("lease_overrun"));
}

/// P-TRAINER-15: a trainer that stays is off the device once grace is over, and the event says so.
#[test]
fn a_trainer_that_stays_is_disabled() {
    let mut pair = Pair::new();
    pair.beats("sealed");
    let number = pair.leased();
    let pids = [pair.trainer.running.pid()];
    assert_eq!(
        wait_all(&pair.node, &pids, true),
        1,
        "the device stopped it"
    );
    assert_eq!(pair.lease(), format!("lease {number} withdrawn"));
    assert!(pair.events().contains("lease_overrun"));
    pair.trainer.ask(&format!("over 0 {number} 8"));
    assert_eq!(
        wait_all(&pair.node, &pids, true),
        1,
        "a late answer changes nothing"
    );
}

/// P-TRAINER-15: the agent refuses a page that its process could shrink, reports it, and grants no lease by it.
#[test]
fn a_page_that_can_shrink_lends_nothing() {
    let mut pair = Pair::new();
    pair.beats("open");
    wait_for("the refusal", || {
        pair.events()
            .contains("page of its iterations")
            .then_some(())
    });
    pair.beats("sealed");
    for _ in 0..50 {
        pair.online.ask("beat 0 1000000 1 0");
    }
    assert_eq!(pair.lease(), "lease 0 withdrawn", "it may send one page");
}
