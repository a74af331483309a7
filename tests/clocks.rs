//! Processes whose clock is not the agent's: in a time namespace, as a restored container or one with `timeOffsets` is,
//! and under a library that fakes clocks. The gate's promises hold as anywhere, while the agent lives, while it is
//! stopped, and after it was killed.
//!
//! The device's history, which is of the tests' own clock, judges.

use std::process::Command;
use tidegate_tests::clock::Stalls;
use tidegate_tests::view::process;
use tidegate_tests::watch::{Testimony, wait_all, wait_finished, wait_open};
use tidegate_tests::{Node, Offline, Online, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::Kind;

/// A busy process is frozen sooner than usual, so that a test sees it soon.
const CONFIG: &str =
    "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"20ms\"\nfrozen_after = \"1s\"\n";
/// Beyond that online counts as frozen, if its progress is not seen.
const FROZEN_NS: u64 = 1_000_000_000;
/// How long the agent is stopped.
const STOPPED_NS: u64 = 5_000_000_000;
/// No channel stays disabled without a live agent for longer than this.
const LANDING_NS: u64 = 1_000_000_000;
/// What two busy cores may add to it.
const SLACK_NS: u64 = 500_000_000;
/// No preemption of the virtual GPU takes longer, on the busiest machine.
const LATENCY_NS: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Online,
    Offline,
    Nobody,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Namespace,
    Library,
}

/// Whose clock is ahead of the agent's, by how many seconds, and why.
#[derive(Clone, Copy, Debug)]
struct Shift {
    who: Who,
    seconds: i64,
    by: By,
}

impl Shift {
    /// `command` of `role`, with the clock that it is to have.
    fn apply(self, role: Who, command: Command) -> Command {
        if role != self.who {
            return command;
        }
        let (seconds, mut shifted) = (
            self.seconds,
            match self.by {
                By::Namespace => Command::new("unshare"),
                By::Library => Command::new(command.get_program()),
            },
        );
        if let By::Namespace = self.by {
            shifted
                .arg("--time")
                .arg(format!("--monotonic={seconds}"))
                .arg(format!("--boottime={seconds}"))
                .arg("--")
                .arg(command.get_program());
        }
        shifted.args(command.get_args());
        for (name, value) in command.get_envs() {
            match (self.by, value) {
                (By::Library, Some(value)) if name == "LD_PRELOAD" => {
                    let mut preload =
                        compile("faked_clock", &["-shared", "-fPIC"]).into_os_string();
                    preload.push(":");
                    preload.push(value);
                    shifted.env(name, preload);
                }
                (_, Some(value)) => drop(shifted.env(name, value)),
                (_, None) => drop(shifted.env_remove(name)),
            }
        }
        shifted.env("FAKED_S", seconds.to_string());
        shifted
    }

    /// Why it cannot be had here.
    fn lacks(self) -> Option<String> {
        if matches!(self.by, By::Library) || self.who == Who::Nobody {
            return None;
        }
        let tried = Command::new("unshare")
            .args(["--time", &format!("--monotonic={}", self.seconds), "true"])
            .output();
        match tried {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(format!("unshare: {error}")),
        }
    }
}

struct Pair {
    node: Node,
    online: Online,
    offline: Offline,
    /// The offline process.
    pid: [u32; 1],
    /// Its channels.
    count: usize,
}

impl Pair {
    #[track_caller]
    fn start(shift: Shift) -> Self {
        let node = Node::new(&["--gpus", "1"], CONFIG);
        let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
        command.arg("500000");
        let mut offline = Offline::from_command(&mut shift.apply(Who::Offline, command));
        offline.running();
        let pid = [offline.process.pid()];
        let mut command = node.preloaded(compile("online", &["-lcuda"]), "online");
        command.arg("0");
        let online = Online::from_command(&mut shift.apply(Who::Online, command));
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &pid, false);
        Self {
            node,
            online,
            offline,
            pid,
            count,
        }
    }

    /// Online keeps its GPU for longer than a frozen process would, and offline stands still; then it runs again.
    #[track_caller]
    fn the_gate_works(&mut self) {
        wait_open(&self.node, 0, self.online.process.pid());
        wait_finished(&self.node, &self.pid, 3, monotonic_ns());
        let begun = monotonic_ns();
        self.online.say("hold");
        assert_eq!(wait_all(&self.node, &self.pid, true), self.count);
        let stopped = monotonic_ns();
        wait_for("online to be busy for long", || {
            (monotonic_ns() > stopped + 2 * FROZEN_NS).then_some(())
        });
        let released = monotonic_ns();
        self.online.say("release");
        self.stood_still(stopped, released);
        let (from, to) = wait_for("a shut and an open gate", || {
            Testimony::of(&self.node).shut(&self.pid, self.count, begun)
        });
        assert!(
            to > released,
            "enabled {} ns before online was done",
            released - to
        );
        self.stood_still(from, to);
        wait_finished(&self.node, &self.pid, 3, to);
    }

    /// Nothing of offline ran meanwhile.
    #[track_caller]
    fn stood_still(&self, from: u64, to: u64) {
        let ran = Testimony::of(&self.node).ran_between(&self.pid, from, to);
        assert!(ran.is_empty(), "offline ran beside online: {ran:?}");
    }

    /// The offline process enables its channels in time after the agent was lost, between `heard` and `lost`.
    #[track_caller]
    fn lands(&self, heard: u64, lost: u64, stalls: &Stalls) {
        let (at, caller) = wait_for("the landing", || {
            let testimony = Testimony::of(&self.node);
            let mut enables = testimony.all(&self.pid, Kind::EnableEnd);
            let first = enables.find(|record| record.at_ns > heard)?;
            Some((first.at_ns, first.caller))
        });
        assert_eq!(caller, self.pid[0], "the process enables its own channels");
        let (stuck, still) = (at.saturating_sub(lost), stalls.ns());
        assert!(
            stuck <= LANDING_NS + SLACK_NS + still,
            "disabled for {stuck} ns without an agent; the machine stood still for {still} ns"
        );
        wait_all(&self.node, &self.pid, false);
    }

    /// The agent is stopped under a shut gate and goes on. Online is busy all the time: nobody enables anything for it.
    #[track_caller]
    fn outlives_a_stopped_agent(&mut self) {
        self.online.say("hold");
        wait_all(&self.node, &self.pid, true);
        let (stalls, heard) = (Stalls::watch(), monotonic_ns());
        let agent = self.node.agent.as_ref().expect("it runs");
        agent.freeze();
        let lost = monotonic_ns();
        self.lands(heard, lost, &stalls);
        wait_for("the agent to have been stopped for long", || {
            (monotonic_ns() > lost + STOPPED_NS).then_some(())
        });
        let back = monotonic_ns();
        agent.signal(libc::SIGCONT);
        let agent = agent.pid();
        wait_all(&self.node, &self.pid, true);
        let shut = monotonic_ns();
        wait_for("online to be busy for long under the agent", || {
            (monotonic_ns() > shut + 2 * FROZEN_NS).then_some(())
        });
        let released = monotonic_ns();
        self.stood_still(shut, released);
        self.online.say("release");
        let testimony = Testimony::of(&self.node);
        let early: Vec<_> = testimony
            .all(&self.pid, Kind::EnableEnd)
            .filter(|record| record.caller == agent && (back..released).contains(&record.at_ns))
            .collect();
        assert!(early.is_empty(), "enabled beside online: {early:?}");
        wait_open(&self.node, 0, self.online.process.pid());
        wait_finished(&self.node, &self.pid, 3, monotonic_ns());
    }

    /// The agent is killed under a shut gate, and has a successor.
    #[track_caller]
    fn outlives_a_killed_agent(&mut self) {
        self.online.say("hold");
        wait_all(&self.node, &self.pid, true);
        let (stalls, heard) = (Stalls::watch(), monotonic_ns());
        let agent = self.node.agent.take().expect("it runs");
        agent.signal(libc::SIGKILL);
        drop(agent);
        self.lands(heard, monotonic_ns(), &stalls);
        self.node.start_agent(CONFIG);
        wait_all(&self.node, &self.pid, true);
        self.online.say("release");
    }

    /// What the agent says is true: nobody froze, no pause was too long, and a preemption took what it may.
    #[track_caller]
    fn nothing_odd_is_said(&self, after: &str) {
        let output = self.node.tidegate(&["events", "--output", "json"]);
        let text = String::from_utf8_lossy(&output.stdout);
        let mut preempted = 0;
        for line in text.lines() {
            let event: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            let kind = event["kind"].as_str().unwrap_or_default();
            let odd = ["lapsed", "recovered", "doubted", "cooldown_violated"];
            assert!(!odd.contains(&kind), "{after}: {line}");
            if kind == "preempted" {
                preempted += 1;
                let took = event["value_ns"].as_u64().expect("a latency");
                assert!(took < LATENCY_NS, "{after}: {line}");
            }
        }
        assert!(preempted > 0, "{after}: {text}");
    }
}

#[track_caller]
fn keeps_the_gates_promises(shift: Shift) {
    if let Some(why) = shift.lacks() {
        eprintln!("SKIPPED: no time namespace {} s away: {why}", shift.seconds);
        return;
    }
    let mut pair = Pair::start(shift);
    let shifted = match shift.who {
        Who::Online => Some(pair.online.process.pid()),
        Who::Offline => Some(pair.pid[0]),
        Who::Nobody => None,
    };
    let told = |node: &Node| {
        let note = process(node, shifted?)?["note"].as_str()?.to_owned();
        Some(note.contains("its clock is"))
    };
    let is_told = shifted.map(|_| matches!(shift.by, By::Namespace));
    assert_eq!(told(&pair.node), is_told, "status names another clock");
    pair.the_gate_works();
    pair.nothing_odd_is_said("while the agent lived");
    pair.outlives_a_stopped_agent();
    pair.the_gate_works();
    pair.nothing_odd_is_said("after it was stopped");
    pair.outlives_a_killed_agent();
    pair.the_gate_works();
    pair.nothing_odd_is_said("under its successor");
    assert_eq!(told(&pair.node), is_told, "status names another clock");
    let ended = Testimony::of(&pair.node).finished_after(&pair.pid, 0);
    let counted = pair.offline.stop();
    assert!(
        counted >= u64::try_from(ended).expect("a small number"),
        "a kernel that ended did not count: {counted} of {ended}"
    );
}

macro_rules! shifts {
    ($($name:ident: $who:ident $by:ident $seconds:expr;)*) => {$(
        /// P-LIFECYCLE-2, P-LIFECYCLE-12: the gate's promises hold whatever clock a process has.
        #[test]
        fn $name() {
            keeps_the_gates_promises(Shift {
                who: Who::$who,
                seconds: $seconds,
                by: By::$by,
            });
        }
    )*};
}

shifts! {
    an_agent_that_was_stopped_takes_nobody_for_frozen: Nobody Library 0;
    online_five_minutes_behind: Online Namespace -300;
    online_a_second_behind: Online Namespace -1;
    online_a_second_ahead: Online Namespace 1;
    online_a_day_ahead: Online Namespace 86_400;
    offline_five_minutes_behind: Offline Namespace -300;
    offline_a_second_behind: Offline Namespace -1;
    offline_a_second_ahead: Offline Namespace 1;
    offline_a_day_ahead: Offline Namespace 86_400;
    online_under_a_library_that_fakes_clocks: Online Library 86_400;
    offline_under_a_library_that_fakes_clocks: Offline Library 86_400;
}
