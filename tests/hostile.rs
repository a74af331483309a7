//! A hostile process costs itself: the agent neither ends nor spins nor acts for it, and the honest job
//! beside it is gated and woken as if it were alone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tidegate_proto::greeting::{Greeting, LEN};
use tidegate_tests::peer::Peer;
use tidegate_tests::schedules::Rng;
use tidegate_tests::view::{
    counter, cpu_ns, descriptors, disabled, process, records, status, wait_all, wait_so,
};
use tidegate_tests::{Node, Offline, clock, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::{Kind, Record};

/// Other jobs on the GPU have no turns of their own.
const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n\
                     [fair]\nmode = \"together\"\n";

/// An honest online engine, whose channels nobody may touch, and an honest offline job.
struct Honest {
    node: Node,
    online: Peer,
    engine: u32,
    offline: Peer,
    client: u32,
}

impl Honest {
    fn new() -> Self {
        Self::with(FIXED)
    }

    fn with(config: &str) -> Self {
        let node = Node::new(&[], config);
        let mut online = Peer::attached(&node, "online", "");
        let (engine, _) = online.channels(0, 2);
        online.ask("idle 0");
        let mut offline = Peer::attached(&node, "offline", "honest");
        let (client, _) = offline.channels(0, 2);
        wait_all(&node, client, false);
        Self {
            node,
            online,
            engine,
            offline,
            client,
        }
    }

    /// Gates and wakes the honest job `times`.
    fn turns(&mut self, times: u32) {
        for _ in 0..times {
            self.online.ask("busy 0");
            wait_all(&self.node, self.client, true);
            self.online.ask("idle 0");
            wait_all(&self.node, self.client, false);
        }
    }

    fn agent(&self) -> u32 {
        self.node.agent.as_ref().expect("it runs").pid()
    }

    /// By the device's own account nobody but `gated` ever had a channel disabled.
    #[track_caller]
    fn only_disabled(&self, gated: &[u32]) {
        // The agent tries its level on channels of its own when it starts.
        let (honest, agent) = (self.offline.running.pid(), self.agent());
        let wrong: Vec<_> = records(&self.node)
            .into_iter()
            .filter(|r| r.kind == Kind::DisableBegin)
            .filter(|r| r.pid != honest && r.pid != agent && !gated.contains(&r.pid))
            .collect();
        assert!(wrong.is_empty(), "channels of others were named: {wrong:?}");
        assert_eq!(disabled(&self.node, self.engine), [false, false]);
    }

    /// Left alone, the agent has next to nothing to do.
    #[track_caller]
    fn is_at_rest(&self) {
        let (begun, used) = (monotonic_ns(), cpu_ns(self.agent()));
        let end = begun + 1_000_000_000;
        wait_for("a second", || (monotonic_ns() >= end).then_some(()));
        let (passed, used) = (monotonic_ns() - begun, cpu_ns(self.agent()) - used);
        assert!(used < passed / 4, "the agent used {used} of {passed} ns");
        assert_eq!(status(&self.node)["gpus"][0]["gate"], "open");
    }
}

/// Descriptors a process holds.
fn connect(node: &Node) -> UnixStream {
    let stream = UnixStream::connect(node.run_dir().join("hook.sock")).expect("the agent listens");
    let limit = Some(clock::DEADLINE);
    stream
        .set_read_timeout(limit)
        .expect("a socket takes a limit");
    stream
}

/// A connection past the greetings, without a control file.
fn greeted(node: &Node) -> UnixStream {
    let mut stream = connect(node);
    let mut bytes = [0; LEN];
    stream.read_exact(&mut bytes).expect("the agent greets");
    let greeting = Greeting::new(0).encode();
    stream.write_all(&greeting).expect("the agent reads");
    stream
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn pages_full_of_random_bytes_change_nothing_for_others_while_they_are_written() {
    let mut honest = Honest::new();
    let mut hostile = Vec::new();
    let mut gated = Vec::new();
    for role in ["offline", "offline", "ignore"] {
        let mut peer = Peer::attached(&honest.node, role, "noise");
        peer.channels(0, 1);
        gated.push(peer.running.pid());
        peer.tell("scribble 2500");
        hostile.push(peer);
    }
    let end = monotonic_ns() + 2_000_000_000;
    while monotonic_ns() < end {
        honest.turns(1);
    }
    assert!(
        status(&honest.node)["processes"]
            .as_array()
            .is_some_and(|all| all.len() == 5)
    );
    honest.only_disabled(&gated[..2]);
    drop(hostile);
    honest.turns(1);
    honest.is_at_rest();
}

/// The agent drops the page of the hostile process, then uses little processor time, and the honest job has its turns.
fn costs_nothing_once_its_page_is_dropped(honest: &mut Honest) {
    wait_so("the page's end", || {
        counter(&honest.node, "pages_dropped") == 1
    });
    let (begun, used) = (monotonic_ns(), cpu_ns(honest.agent()));
    let end = begun + 1_500_000_000;
    wait_for("a while", || (monotonic_ns() >= end).then_some(()));
    let (passed, used) = (monotonic_ns() - begun, cpu_ns(honest.agent()) - used);
    assert!(used < passed / 4, "the agent used {used} of {passed} ns");
    honest.turns(5);
    honest.only_disabled(&[]);
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn who_rings_for_ever_is_not_listened_to_and_costs_the_agent_nothing() {
    let mut honest = Honest::with(&format!("{FIXED}[limits]\nrings_per_second = 2000\n"));
    let mut hostile = Peer::attached(&honest.node, "online", "");
    hostile.tell("ring 30000");
    costs_nothing_once_its_page_is_dropped(&mut honest);
}

/// P-SECURITY-16: who wakes the agent for nothing is not listened to.
#[test]
fn an_engine_that_wakes_without_a_ring_is_not_listened_to_and_costs_the_agent_nothing() {
    let mut honest = Honest::with(&format!("{FIXED}[limits]\nrings_per_second = 2000\n"));
    let mut hostile = Peer::attached(&honest.node, "online", "");
    // The order that enables the honest job has the GPU's issue thread wait on that doorbell, too.
    honest.turns(1);
    hostile.tell("wake 30000");
    costs_nothing_once_its_page_is_dropped(&mut honest);
}

/// P-SECURITY-2: nothing leaves the agent's lists disabled.
#[test]
fn a_handle_that_is_reused_belongs_to_who_has_it_now_whatever_was_claimed_before() {
    let mut honest = Honest::new();
    let mut owner = Peer::attached(&honest.node, "offline", "owner");
    let (client, channels) = owner.channels(0, 2);
    let list: Vec<String> = channels.iter().map(|c| format!("{c:#x}")).collect();
    let report = format!("report 0 {client:#x} {}", list.join(" "));
    // Claimed while its owner lives, and again by one that claims it when the owner is gone.
    let mut early = Peer::attached(&honest.node, "offline", "thief");
    early.ask(&report);
    wait_so("the claim's refusal", || {
        counter(&honest.node, "foreign_claims") >= 1
    });
    let owned_by = owner.running.pid();
    drop(owner);
    wait_so("the owner to be forgotten", || {
        process(&honest.node, owned_by).is_none()
    });
    let mut late = Peer::attached(&honest.node, "offline", "thief");
    late.ask(&report);
    wait_so("the claim's refusal", || {
        counter(&honest.node, "foreign_claims") >= 2
    });
    // An engine that is not even attached has the same handles next.
    let mut engine = Peer::start(&honest.node);
    let made = engine.ask(&format!("make 0 2 {client:#x}"));
    assert_eq!(made, format!("made {client:#x} {}", list.join(" ")));
    for thief in [&mut early, &mut late] {
        thief.ask(&report);
    }
    let begun = monotonic_ns();
    honest.turns(3);
    let touched = records(&honest.node)
        .into_iter()
        .find(|r| r.kind == Kind::DisableBegin && r.at_ns > begun && r.pid == engine.running.pid());
    assert!(touched.is_none(), "{touched:?}");
    assert_eq!(disabled(&honest.node, client), [false, false]);
    honest.only_disabled(&[owned_by]);
}

/// Every program that starts CUDA asks the driver's version, of which the driver then has one answer for
/// any client that exists, on any file: no proof may rest on it.
/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn a_claim_of_the_engines_client_is_refused_though_the_driver_answers_for_it_from_its_cache() {
    let mut honest = Honest::new();
    let mut owner = Peer::attached(&honest.node, "online", "");
    let (engine, channels) = owner.channels(0, 2);
    owner.ask("idle 0");
    let list: Vec<String> = channels.iter().map(|c| format!("{c:#x}")).collect();
    let mut liar = Peer::attached(&honest.node, "offline", "liar");
    assert_eq!(owner.ask(&format!("version {engine:#x}")), "status 0x0");
    assert_eq!(liar.ask(&format!("version {engine:#x}")), "status 0x0");
    let refused = counter(&honest.node, "foreign_claims");
    liar.ask(&format!("report 0 {engine:#x} {}", list.join(" ")));
    wait_so("the claim's refusal", || {
        counter(&honest.node, "foreign_claims") > refused
    });
    honest.turns(3);
    honest.only_disabled(&[]);
    assert_eq!(disabled(&honest.node, engine), [false, false]);
}

/// As above, whatever was asked, made and freed before, by whom and in which order.
/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn nothing_that_is_asked_of_the_driver_makes_a_stranger_the_owner_of_a_client() {
    const STEPS: u64 = 60;
    for seed in 1..=3 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let mut honest = Honest::new();
        // An engine that is not attached: none of its channels is ever the agent's to touch.
        let mut engine = Peer::start(&honest.node);
        let mut thieves = [0, 1].map(|_| Peer::attached(&honest.node, "offline", "thief"));
        let pids = thieves.each_ref().map(|thief| thief.running.pid());
        // Who made it (a thief, or the engine), handle and channels, also of those that are freed again.
        let mut made: Vec<(usize, String, String)> = Vec::new();
        for step in 0..STEPS {
            let who = usize::try_from(rng.between(0, 3)).expect("small");
            let peer = thieves.get_mut(who).unwrap_or(&mut engine);
            let any = usize::try_from(rng.between(0, made.len().max(1) as u64)).expect("few");
            match (rng.between(0, 8), made.get(any).cloned()) {
                (0..2, _) | (_, None) => {
                    let answer = peer.ask("make 0 2");
                    let mut words = answer.split(' ').skip(1).map(str::to_owned);
                    let client = words.next().expect("a client");
                    made.push((who, client, words.collect::<Vec<_>>().join(" ")));
                }
                (2, Some((owner, client, _))) if owner == who => {
                    drop(peer.ask(&format!("free {client}")))
                }
                (2..5, Some((_, client, _))) => drop(peer.ask(&format!("version {client}"))),
                (_, Some((_, client, channels))) if who < 2 => {
                    drop(peer.ask(&format!("report 0 {client} {channels}")));
                }
                _ => {}
            }
            if step % 6 == 5 {
                honest.turns(1);
            }
        }
        honest.turns(2);
        honest.only_disabled(&pids);
        assert!(counter(&honest.node, "foreign_claims") > 0, "nobody lied");
        let own = |r: &Record| r.kind == Kind::DisableBegin && pids.contains(&r.pid);
        assert!(records(&honest.node).iter().any(own), "nobody was believed");
    }
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn a_client_freed_without_a_word_spoils_only_its_own_jobs_disables() {
    let mut honest = Honest::new();
    let mut hostile = Peer::attached(&honest.node, "offline", "silent");
    let (client, _) = hostile.channels(0, 2);
    wait_all(&honest.node, client, false);
    honest.turns(1);
    hostile.ask(&format!("free {client:#x}"));
    honest.turns(5);
    let pid = hostile.running.pid();
    honest.only_disabled(&[pid]);
    drop(hostile);
    wait_so("it to be forgotten", || {
        process(&honest.node, pid).is_none()
    });
    honest.turns(1);
    honest.is_at_rest();
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn an_environment_can_lower_a_role_and_never_raise_it() {
    let rule = |role: &str| {
        // SAFETY: takes nothing and cannot fail.
        let uid = unsafe { libc::geteuid() };
        format!(
            "[gate]\ncooldown = \"5ms\"\n[fair]\nmode = \"together\"\n\
             [[identity.rules]]\nuid = {uid}\nrole = \"{role}\"\n"
        )
    };
    let node = Node::new(&[], &rule("offline"));
    let mut forger = Peer::start(&node);
    forger.ask("connect");
    let welcome = forger.ask("hello online");
    assert!(welcome.contains("ROLE_OFFLINE"), "{welcome}");
    forger.ask("device 0 0");
    let mut honest = Peer::attached(&node, "offline", "honest");
    let (client, _) = honest.channels(0, 1);
    wait_so("the job to run", || {
        status(&node)["jobs"].as_array().is_some_and(|jobs| {
            jobs.iter()
                .any(|job| job["name"] == "honest" && job["state"] == "running")
        })
    });
    let begun = monotonic_ns();
    forger.ask("busy 0");
    // The agent has looked at every page at least once by then.
    wait_for("some beats", || {
        (monotonic_ns() > begun + 300_000_000).then_some(())
    });
    let stopped = |r: &tidegate_vgpu::history::Record| {
        r.kind == Kind::DisableBegin && r.client == client && r.at_ns > begun
    };
    assert!(!records(&node).iter().any(stopped), "it closed the gate");
    let node = Node::new(&[], &rule("online"));
    let mut humble = Peer::start(&node);
    humble.ask("connect");
    let welcome = humble.ask("hello offline");
    assert!(welcome.contains("ROLE_OFFLINE"), "{welcome}");
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn channels_and_clients_beyond_the_limit_are_refused_and_launches_wait() {
    let mut honest = Honest::new();
    let mut greedy = Peer::attached(&honest.node, "offline", "greedy");
    greedy.channels(0, 1_100);
    wait_so("the refusal", || {
        counter(&honest.node, "channels_refused") >= 76
    });
    let pid = greedy.running.pid();
    let known = process(&honest.node, pid).expect("it is attached");
    assert_eq!(known["channels"], 1_024);
    honest.online.ask("busy 0");
    wait_so("its launches to wait", || {
        greedy.ask("gate 0") == "gate closed"
    });
    wait_all(&honest.node, honest.client, true);
    honest.online.ask("idle 0");
    wait_so("its launches to pass", || {
        greedy.ask("gate 0") == "gate open"
    });
    wait_all(&honest.node, honest.client, false);
    // Clients by the thousand, none of which exists.
    let mut liar = Peer::attached(&honest.node, "offline", "liar");
    for client in 0..3_000_u32 {
        liar.tell(&format!("report 0 {:#x} 0x1", 0x7000_0000 + client));
    }
    honest.turns(3);
    honest.only_disabled(&[pid]);
    drop((greedy, liar));
    honest.turns(1);
    honest.is_at_rest();
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn floods_of_messages_are_read_at_the_agents_pace_while_the_honest_job_is_served() {
    let mut honest = Honest::new();
    let mut hostile: Vec<Peer> = (0..3)
        .map(|_| Peer::attached(&honest.node, "offline", "flood"))
        .collect();
    for peer in &mut hostile {
        peer.tell("flood 100000");
        peer.tell("huge");
    }
    let (begun, used) = (monotonic_ns(), cpu_ns(honest.agent()));
    let mut turns = 0;
    while monotonic_ns() < begun + 2_000_000_000 || turns < 5 {
        honest.turns(1);
        turns += 1;
    }
    let (passed, used) = (monotonic_ns() - begun, cpu_ns(honest.agent()) - used);
    assert!(used < passed, "the agent used {used} of {passed} ns");
    drop(hostile);
    honest.turns(1);
    honest.only_disabled(&[]);
    honest.is_at_rest();
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn connections_that_say_nothing_or_half_of_it_or_garbage_are_closed_and_forgotten() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut honest = Honest::new();
    let before = descriptors(honest.agent());
    let mut held: Vec<UnixStream> = (0..500).map(|_| connect(&honest.node)).collect();
    let mut garbage = monotonic_ns() | 1;
    for at in 0..60_usize {
        let mut stream = greeted(&honest.node);
        let said = match at % 4 {
            0 => stream.write_all(&PREFACE[..10]),
            1 => stream.write_all(PREFACE),
            2 => stream.write_all(&[PREFACE, &SETTINGS].concat()),
            _ => {
                let noise: Vec<u8> = (0..4_096)
                    .map(|_| {
                        garbage ^= garbage << 13;
                        garbage ^= garbage >> 7;
                        garbage ^= garbage << 17;
                        (garbage >> 24) as u8
                    })
                    .collect();
                stream.write_all(&noise)
            }
        };
        // The agent may have closed on the first of it.
        drop(said);
        held.push(stream);
    }
    honest.turns(5);
    let closed = tidegate_tests::wait_until(clock::DEADLINE, || {
        (descriptors(honest.agent()) <= before + 2).then_some(())
    });
    assert!(
        closed.is_some(),
        "{} descriptors, {before} before",
        descriptors(honest.agent())
    );
    honest.turns(2);
    honest.only_disabled(&[]);
    honest.is_at_rest();
    drop(held);
}

/// A thief proved a client, freed it without a word, and an engine is given the same handles.
struct Stolen {
    honest: Honest,
    thief: Peer,
    engine: Peer,
    client: u32,
}

impl Stolen {
    /// `meanwhile` is between the end of the thief's client and the engine's birth.
    fn after(meanwhile: impl FnOnce(&mut Honest, &mut Peer)) -> Self {
        let mut honest = Honest::new();
        let mut thief = Peer::attached(&honest.node, "offline", "thief");
        let (client, channels) = thief.channels(0, 2);
        wait_all(&honest.node, client, false);
        honest.turns(1);
        thief.ask(&format!("free {client:#x}"));
        meanwhile(&mut honest, &mut thief);
        let mut engine = Peer::start(&honest.node);
        engine.ask(&format!("make 0 {} {client:#x}", channels.len()));
        Self {
            honest,
            thief,
            engine,
            client,
        }
    }

    /// Disables of the engine's channels that began after `since`.
    fn touched(&self, since: u64) -> usize {
        let pid = self.engine.running.pid();
        let touches = |r: &&tidegate_vgpu::history::Record| {
            r.kind == Kind::DisableBegin && r.at_ns > since && r.pid == pid
        };
        records(&self.honest.node).iter().filter(touches).count()
    }
}

/// A disable that comes before anybody can know reaches the engine once; the proof that follows it sets
/// that right while online is still busy.
/// P-SECURITY-2: nothing leaves the agent's lists disabled.
#[test]
fn a_proof_does_not_outlive_the_client_it_was_made_for() {
    let mut stolen = Stolen::after(|_, _| ());
    stolen.honest.online.ask("busy 0");
    wait_all(&stolen.honest.node, stolen.honest.client, true);
    wait_so("the proof to be made again", || {
        counter(&stolen.honest.node, "proofs_lapsed") == 1
    });
    wait_all(&stolen.honest.node, stolen.client, false);
    wait_so("the thief's launches to wait", || {
        stolen.thief.ask("gate 0") == "gate closed"
    });
    stolen.honest.online.ask("idle 0");
    wait_all(&stolen.honest.node, stolen.honest.client, false);
    let begun = monotonic_ns();
    stolen.honest.turns(3);
    assert_eq!(stolen.touched(begun), 0);
    assert_eq!(disabled(&stolen.honest.node, stolen.client), [false, false]);
    assert_eq!(
        counter(&stolen.honest.node, "proofs_lapsed"),
        1,
        "told once"
    );
}

/// P-SECURITY-2: nothing leaves the agent's lists disabled.
#[test]
fn a_client_that_is_gone_is_forgotten_before_its_number_comes_round() {
    let mut stolen = Stolen::after(|honest, thief| {
        let pid = thief.running.pid();
        wait_so("the client to be missed", || {
            process(&honest.node, pid).is_some_and(|thief| thief["channels"] == 0)
        });
    });
    stolen.honest.turns(3);
    assert_eq!(stolen.touched(0), 0);
    assert_eq!(counter(&stolen.honest.node, "proofs_lapsed"), 0);
}

/// Whatever it says to be rid of the pair: nothing leaves the lists disabled.
/// P-SECURITY-2: nothing leaves the agent's lists disabled.
#[test]
fn no_word_of_the_thief_leaves_the_engine_disabled() {
    for escape in ["gone", "connect", "drop", "exit"] {
        let mut stolen = Stolen::after(|_, _| ());
        let (pid, client) = (stolen.thief.running.pid(), stolen.client);
        stolen.honest.online.tell("busy 0");
        match escape {
            "gone" => drop(stolen.thief.ask(&format!("gone {client:#x}"))),
            "connect" => {
                stolen.thief.ask("connect");
                stolen.thief.ask("hello offline thief");
            }
            "drop" => drop(stolen.thief.ask("drop")),
            _ => stolen.thief.running.signal(libc::SIGKILL),
        }
        wait_all(&stolen.honest.node, stolen.honest.client, true);
        wait_so("the pair to leave the lists", || {
            process(&stolen.honest.node, pid).is_none_or(|thief| {
                thief["channels"] == 0 || thief["note"].to_string().contains("another process")
            })
        });
        wait_all(&stolen.honest.node, client, false);
        let begun = monotonic_ns();
        stolen.honest.online.ask("idle 0");
        wait_all(&stolen.honest.node, stolen.honest.client, false);
        stolen.honest.turns(1);
        assert_eq!(stolen.touched(begun), 0, "{escape}");
    }
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn no_name_steers_the_terminal_of_whoever_looks() {
    let node = Node::new(&[], FIXED);
    let app = node.dir().join("e\u{1b}[2Jx\u{9b}");
    std::fs::copy(compile("offline", &["-lcuda"]), &app).expect("the directory is ours");
    let mut command = node.preloaded(app, "offline");
    command
        .args(["1000000", "0"])
        .env("TIDEGATE_JOB", "b\u{1b}]0;t\u{7}\nFORGED \u{202e}");
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    let pid = offline.process.pid().to_string();
    let shown: [(&[&str], &str); 6] = [
        (&["status"], "e?[2Jx?"),
        (&["events"], "b?]0;t??FORGED \\u{202e}"),
        (&["hooks"], "e?[2Jx?"),
        (&["top", "--once"], "e?[2Jx?"),
        (&["explain", "pid", &pid], "e?[2Jx?"),
        (&["pause"], "b?]0;t??FORGED \\u{202e}"),
    ];
    for (args, name) in shown {
        let output = node.tidegate(args);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains(name), "{args:?}: {text:?}");
        let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(steers), "{args:?}: {text:?}");
        let forged = |line: &str| line.trim_start().starts_with("FORGED");
        assert!(!text.lines().any(forged), "{args:?}: {text}");
    }
}

/// Whether the other end has closed it.
fn is_closed(connection: &mut UnixStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match connection.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Connections of one user on a socket that everybody may open: 1,500 of them once took every descriptor.
/// P-SECURITY-6: a flood of connections keeps nobody else out.
#[test]
fn who_keeps_connections_open_keeps_nobody_else_out() {
    const KEPT: usize = 64;
    let node = Node::new(&[], FIXED);
    let status = node.run_dir().join("status.sock");
    let mut kept: Vec<UnixStream> = (0..4 * KEPT)
        .map(|_| {
            let connection = UnixStream::connect(&status).expect("the agent listens");
            connection.set_nonblocking(true).expect("a socket");
            connection
        })
        .collect();
    wait_for("the rest to be closed", || {
        kept.retain_mut(|connection| !is_closed(connection));
        (kept.len() <= KEPT).then_some(())
    });
    // At the limit, long before silence is what they are closed for.
    assert_eq!(kept.len(), KEPT, "who came first stays");
    // The operator's socket counts for itself.
    let paused = node.tidegate(&["pause"]);
    assert!(paused.status.success(), "{paused:?}");
    drop(kept);
    wait_so("status is answered again", || {
        node.tidegate(&["status"]).status.success()
    });
}

#[test]
fn the_agent_may_open_as_many_files_as_its_hard_limit_says() {
    let node = Node::device_only(&[]);
    let agent = node.agent_command();
    let mut command = std::process::Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -S -n 256 && ulimit -H -n 4096 && exec \"$@\"",
            "sh",
        ])
        .arg(agent.get_program())
        .args(agent.get_args())
        .stderr(std::process::Stdio::piped());
    for (name, value) in agent.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let agent = tidegate_tests::Running::start("tidegate-agent", &mut command);
    let limits = format!("/proc/{}/limits", agent.pid());
    wait_so("the soft limit is the hard one", || {
        let limits = std::fs::read_to_string(&limits).unwrap_or_default();
        let open = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        open.is_some_and(|line| line.split_whitespace().nth(3) == Some("4096"))
    });
}
