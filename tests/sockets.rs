//! Everything that Linux lets a process do with a Unix socket, done to the agent's by a process of another user.
//!
//! The numbers are all that there are: a kernel has no options above 127, no flag beyond 31 bits, and no control message
//! above 63. Their names come from the headers of this machine, and say which of them the kernel must have taken.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidegate_tests::peer::{NOBODY, Peer};
use tidegate_tests::strangers::Honest;
use tidegate_tests::view::{descriptors, process, wait_so};
use tidegate_tests::wait_for;

/// The sockets that everybody may open, and what a connection there begins with.
const SOCKETS: [(&str, &str); 2] = [("hook.sock", "greet"), ("status.sock", "say")];
/// What HTTP/2 begins with.
const PREFACE: &str = "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a";
/// Connections that are kept at a time: fewer than one user may have.
const KEPT: usize = 24;

/// Names of options, flags and control messages by prefix, with their numbers, as the headers of this machine have them.
fn facts(dir: &std::path::Path) -> BTreeMap<String, i64> {
    let headers = "#define _GNU_SOURCE\n#include <sys/socket.h>\n#include <linux/un.h>\n";
    let (source, program) = (dir.join("facts.c"), dir.join("facts"));
    std::fs::write(&source, headers).expect("a directory of ours");
    let macros = Command::new("cc")
        .args(["-E", "-dM"])
        .arg(&source)
        .output()
        .expect("cc is installed");
    let text = String::from_utf8_lossy(&macros.stdout).into_owned();
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    let names: Vec<&str> = names
        .filter(|name| {
            ["SO_", "MSG_", "SCM_", "SHUT_"]
                .iter()
                .any(|of| name.starts_with(of))
        })
        .filter(|name| !name.contains('('))
        .collect();
    let print = |name: &&str| format!("    printf(\"{name} %lld\\n\", (long long){name});\n");
    let body: String = names.iter().map(print).collect();
    let whole =
        format!("{headers}#include <stdio.h>\nint main(void)\n{{\n{body}    return 0;\n}}\n");
    std::fs::write(&source, whole).expect("a directory of ours");
    let made = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("cc is installed");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let said = Command::new(&program).output().expect("it was made");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let fact = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    said.lines().filter_map(fact).collect()
}

/// Looks without end how many files of a stranger's the agent has open.
struct Look {
    most: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn passed(agent: u32) -> usize {
    let Ok(open) = std::fs::read_dir(format!("/proc/{agent}/fd")) else {
        return 0;
    };
    let links = open
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("passed-by-a-stranger"))
        .count()
}

impl Look {
    fn begin(agent: u32) -> Self {
        let (most, ends) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (found, end) = (Arc::clone(&most), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                found.fetch_max(passed(agent), Ordering::Relaxed);
            }
        });
        Self {
            most,
            ends,
            thread: Some(thread),
        }
    }

    /// The most since it was asked last.
    fn most(&self) -> usize {
        self.most.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

/// A stranger, the honest pair, and what the agent had open before.
struct Scene {
    honest: Honest,
    stranger: Peer,
    agent: u32,
    before: usize,
    kept: usize,
    tried: usize,
}

impl Scene {
    fn new() -> Option<Self> {
        let mut honest = Honest::beside_strangers("")?;
        let agent = honest.agent();
        let before = descriptors(agent);
        let stranger = Peer::of_nobody(&honest.node);
        Some(Self {
            honest,
            stranger,
            agent,
            before,
            kept: 0,
            tried: 0,
        })
    }

    /// One connection of the stranger's, on which it does all of this; what each was answered.
    fn tries(&mut self, socket: &str, words: &[String]) -> Vec<String> {
        // One that the agent refuses, because there are too many, is none on which anything was tried.
        self.stranger.ask(&format!("try open {socket}"));
        let answers = words
            .iter()
            .map(|word| self.stranger.try_ask(&format!("try {word}")));
        let answers: Vec<String> = answers.collect();
        self.tried += 1;
        // Half of them stay, half are closed with everything that was not read.
        if self.tried.is_multiple_of(2) {
            self.stranger.ask("try keep");
            self.kept += 1;
        } else {
            self.stranger.ask("try close");
        }
        if self.kept == KEPT {
            self.stranger.ask("try drop");
            self.kept = 0;
        }
        if self.tried.is_multiple_of(40) {
            self.honest.turns(1);
        }
        answers
    }

    /// The agent lives, root is answered, the honest pair is served, a newcomer is attached, and nothing of all that stays.
    #[track_caller]
    fn is_well(&mut self, after: &str) {
        self.honest.turns(1);
        assert_eq!(
            self.honest.agent(),
            self.agent,
            "the agent is gone after {after}"
        );
        let status = self.honest.node.tidegate(&["status"]);
        assert!(status.status.success(), "{after}: {status:?}");
        let newcomer = Peer::attached(&self.honest.node, "offline", "newcomer");
        let pid = newcomer.running.pid();
        wait_so("a newcomer to be attached", || {
            process(&self.honest.node, pid).is_some()
        });
        drop(newcomer);
        self.stranger.ask("try drop");
        self.kept = 0;
        let (agent, before) = (self.agent, self.before);
        wait_for(&format!("everything to be closed after {after}"), || {
            (descriptors(agent) <= before && passed(agent) == 0).then_some(())
        });
    }
}

fn begins(how: &str, flags: i64, beside: &str) -> String {
    match how {
        "greet" => format!("greet {flags} {beside}"),
        _ => format!("say {flags} {PREFACE} {beside}"),
    }
}

/// P-SECURITY-19: whatever a process does with its end of a socket, it does it to itself.
#[test]
fn every_option_of_a_socket_is_its_own_processs_affair() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let facts = facts(scene.honest.node.dir());
    // A number of nothing, of one, of less than nothing; a struct linger of a minute, a struct timeval of a microsecond.
    let values = [
        "00000000",
        "01000000",
        "ffffffff",
        "010000003c000000",
        "00000000000000000100000000000000",
    ];
    let mut taken = BTreeMap::<i64, usize>::new();
    for (socket, how) in SOCKETS {
        for option in 0..128_i64 {
            for value in values {
                let words = [
                    format!("option {option} {value}"),
                    begins(how, 0, ""),
                    "shut 1".to_owned(),
                ];
                let answers = scene.tries(socket, &words);
                *taken.entry(option).or_default() += usize::from(answers[0] == "did 0");
            }
        }
        scene.is_well(&format!("all options on {socket}"));
    }
    for name in [
        "SO_PASSCRED",
        "SO_PASSSEC",
        "SO_PEEK_OFF",
        "SO_LINGER",
        "SO_RCVBUF",
        "SO_SNDBUF",
        "SO_OOBINLINE",
        "SO_RCVLOWAT",
        "SO_SNDTIMEO_OLD",
        "SO_TIMESTAMPING_OLD",
    ] {
        let number = facts
            .get(name)
            .unwrap_or_else(|| panic!("no header knows {name}"));
        assert!(
            taken[number] > 0,
            "the kernel refuses {name}: it was not tried"
        );
    }
    let named = |number: &i64| {
        facts
            .iter()
            .find(|(name, value)| name.starts_with("SO_") && *value == number)
    };
    let said: Vec<String> = taken
        .iter()
        .filter(|(_, times)| **times > 0)
        .map(|(number, _)| {
            named(number).map_or_else(|| number.to_string(), |(name, _)| name.clone())
        })
        .collect();
    println!("options that this kernel takes: {}", said.join(" "));
}

/// P-SECURITY-19: whatever a process does with its end of a socket, it does it to itself.
#[test]
fn every_flag_and_control_message_is_met_and_no_file_is_received_but_one() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let facts = facts(scene.honest.node.dir());
    let look = Look::begin(scene.agent);
    let mut sent = BTreeMap::<i64, usize>::new();
    for (socket, how) in SOCKETS {
        // What is said out of band is followed by an ordinary greeting, and by the end of what is said.
        for bit in 0..31 {
            for beside in ["", "files 1", "files 2"] {
                for after in [vec![], vec![begins(how, 0, "")], vec!["shut 1".to_owned()]] {
                    let words: Vec<String> = [begins(how, 1 << bit, beside)]
                        .into_iter()
                        .chain(after)
                        .collect();
                    let answers = scene.tries(socket, &words);
                    *sent.entry(1 << bit).or_default() +=
                        usize::from(answers[0].starts_with("did"));
                }
            }
        }
        scene.is_well(&format!("all flags on {socket}"));
        for kind in 0..64 {
            for payload in [
                "",
                "00000000",
                "ffffffff",
                "0000000000000000",
                &"00".repeat(12),
                &"7f".repeat(64),
            ] {
                let beside = format!("control {kind} {payload}");
                scene.tries(socket, &[begins(how, 0, &beside), begins(how, 0, "")]);
            }
        }
        scene.is_well(&format!("all control messages on {socket}"));
    }
    for name in ["MSG_OOB", "MSG_EOR", "MSG_MORE", "MSG_DONTWAIT"] {
        assert!(
            sent[&facts[name]] > 0,
            "the kernel refuses {name}: it was not tried"
        );
    }
    // Of what was passed above one file may have been received by each connection that was open.
    assert!(look.most() <= KEPT + 1, "more files than connections");
    drop(look);
}

/// P-SECURITY-12: files that strangers pass where none belongs take no descriptor and no thread of the agent's.
#[test]
fn of_every_number_of_files_that_a_message_can_have_only_one_alone_is_received() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let look = Look::begin(scene.agent);
    let (mut most, mut passed_on) = (0, 0);
    for (socket, how) in SOCKETS {
        for count in 1..=254 {
            let beside = format!("files {count}");
            let first = scene.tries(socket, &[begins(how, 0, &beside)]);
            // Behind a greeting, and with no greeting at all.
            scene.tries(socket, &[begins(how, 0, ""), format!("say 0 00 {beside}")]);
            scene.tries(socket, &[format!("say 0 50 {beside}"), "shut 1".to_owned()]);
            let sent = first[0].starts_with("did");
            passed_on += usize::from(sent);
            assert_eq!(sent, count < 254, "{count} files: {first:?}");
            if (socket, count) == (SOCKETS[0].0, 1) {
                let agent = scene.agent;
                wait_for("the file of the greeting to be closed", || {
                    (passed(agent) == 0).then_some(())
                });
                most = look.most();
            }
        }
        scene.is_well(&format!("files on {socket}"));
    }
    assert_eq!(passed_on, 2 * 253);
    assert!(most <= 1, "{most} files of one greeting");
    assert_eq!(look.most(), 0, "files were received that nobody wants");
}

/// P-SECURITY-19: whatever a process does with its end of a socket, it does it to itself.
#[test]
fn who_says_to_be_another_is_who_it_is_and_who_closes_halves_is_closed() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let own = scene.stranger.running.pid();
    for (socket, how) in SOCKETS {
        let true_ones = format!("credentials {own} {NOBODY} {NOBODY}");
        let answers = scene.tries(socket, &[begins(how, 0, &true_ones)]);
        assert!(
            answers[0].starts_with("did"),
            "true credentials may be sent: {answers:?}"
        );
        for (pid, uid, gid) in [
            (1, 0, 0),
            (scene.agent, 0, 0),
            (own, 0, 0),
            (own, NOBODY, 0),
            (1, NOBODY, NOBODY),
        ] {
            let forged = format!("credentials {pid} {uid} {gid}");
            let answers = scene.tries(socket, &[begins(how, 0, &forged), begins(how, 0, "")]);
            assert_eq!(answers[0], format!("errno {}", libc::EPERM), "{forged}");
        }
        for halves in [&[0][..], &[1], &[2], &[0, 1], &[1, 0]] {
            for before in [true, false] {
                let mut words: Vec<String> =
                    halves.iter().map(|how| format!("shut {how}")).collect();
                words.insert(
                    if before { 0 } else { words.len() },
                    begins(how, 0, "files 1"),
                );
                words.push(begins(how, 0, "files 2"));
                scene.tries(socket, &words);
            }
        }
        scene.is_well(&format!("halves of {socket}"));
    }
}
