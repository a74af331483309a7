//! What servers and schedulers answer: a live server to `tidegate bench`, other tools' results, Slurm to `tidegate place`.
//!
//! The first byte chooses whose answer it is; the rest is the answer.

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use tidegate_bench::block::Bounds;
use tidegate_bench::import;
use tidegate_bench::stream::Stream;
use tidegate_bench::target::{self, Target};
use tidegate_bench::wire::{self, Way};
use tidegate_place::{claims, queue, slurm};
use tokio::runtime::{Builder, Runtime};

/// A name that no answer has in it.
const FILE: &str = "given";

pub fn run(input: &[u8]) {
    let Some((choice, answer)) = input.split_first() else {
        return;
    };
    match choice % 8 {
        0 | 1 => streamed(answer, usize::from(choice >> 3)),
        2 => models(answer),
        3 => imported(answer),
        4 => node(&String::from_utf8_lossy(answer)),
        5 => jobs(&String::from_utf8_lossy(answer)),
        6 => nodes(&String::from_utf8_lossy(answer)),
        _ => served(answer),
    }
}

/// Text of others as it reaches a terminal.
fn plain(text: &str, most: usize) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.chars().count() <= most, "{} characters", text.len());
}

/// However an answer is cut, the same is read of it.
fn streamed(answer: &[u8], step: usize) {
    let fed = |step: usize| {
        let mut stream = Stream::default();
        for piece in answer.chunks(step) {
            stream.feed(piece, 5);
        }
        stream
    };
    let (whole, cut) = (fed(answer.len().max(1)), fed(step + 1));
    let lines = answer.iter().filter(|byte| **byte == b'\n').count();
    assert!(whole.tokens_at_ns().len() <= lines);
    assert_eq!(format!("{whole:?}"), format!("{cut:?}"));
    if let Some(error) = whole.error() {
        plain(error, 400);
    }
}

static SERVER: LazyLock<Target> = LazyLock::new(|| Target::parse("http://h").expect("a target"));

fn models(answer: &[u8]) {
    for (status, wanted) in [(200, None), (200, Some("a")), (500, None)] {
        match target::model(&SERVER, status, answer, wanted) {
            Ok(model) => assert!(status == 200 && wanted.is_none_or(|name| name == model)),
            Err(error) => {
                let text = error.to_string();
                let named = text.contains("http://h/v1/models") || text.contains("--model a");
                assert!(named, "{text}");
            }
        }
    }
    let _ = target::tokens_made(&String::from_utf8_lossy(answer));
}

/// A refusal names its file; what is taken has figures that are numbers.
fn imported(answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    match import::parse(Path::new(FILE), &text, &Bounds::default()) {
        Ok(taken) => {
            let text = format!("{:?}", taken.block);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        Err(error) => assert!(error.to_string().contains(FILE), "{error}"),
    }
}

/// What Slurm says of this node: features of others stay, and what is told is not told again.
fn node(text: &str) {
    let Some(shown) = slurm::Shown::of(text) else {
        return;
    };
    let ours = ["tg.s.1x10".to_owned(), "tg.s.1x20".to_owned()];
    let Some(told) = shown.update(&ours, Some(40)) else {
        return;
    };
    for argument in &told {
        let odd = |c: char| c.is_ascii_whitespace() || c.is_control();
        assert!(!argument.contains(odd), "{argument:?}");
        let (key, _) = argument.split_once('=').expect("a key");
        assert!(["AvailableFeatures", "ActiveFeatures", "Weight"].contains(&key));
    }
    let known = |names: &BTreeSet<String>| {
        let theirs = names.iter().filter(|name| !name.starts_with(slurm::OURS));
        theirs.cloned().collect::<Vec<_>>()
    };
    // As Slurm would say it then.
    let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(",");
    let before = format!(
        "NodeName=n AvailableFeatures={} ActiveFeatures={} Weight={}",
        list(&shown.available),
        list(&shown.active),
        shown
            .weight
            .map_or_else(String::new, |weight| weight.to_string()),
    );
    let after = slurm::Shown::of(&format!("{before} {}", told.join(" "))).expect("a node");
    assert_eq!(known(&after.available), known(&shown.available));
    assert_eq!(known(&after.active), known(&shown.active));
    assert_eq!(after.update(&ours, Some(40)), None, "it is told again");
}

/// What becomes a file's name or an argument is a number.
fn jobs(text: &str) {
    for job in queue::jobs(text) {
        assert!(claims::is_job(&job.id), "{job:?}");
        assert!(!job.id.contains(['/', '.']), "{job:?}");
    }
    assert!(
        slurm::jobs_of_steps(text)
            .iter()
            .all(|job| claims::is_job(job))
    );
    assert!(slurm::pids(text).iter().all(|pid| *pid > 0));
    if let Some(list) = queue::excluded(text) {
        assert_eq!(list, list.trim());
    }
}

/// What other nodes give is a share, and not this node's.
fn nodes(text: &str) {
    let without = BTreeSet::from(["x".to_owned()]);
    let found = queue::elsewhere(text, "n1", &without, "a", 1);
    assert!(
        found.is_none_or(|share| (0.0..=1.0).contains(&share)),
        "{found:?}"
    );
    let here = text.lines().all(|line| line.starts_with("n1|"));
    assert!(!here || found.is_none(), "{found:?}");
}

/// A server that sends each connection these bytes, and hangs up.
struct Server {
    next_tx: SyncSender<Vec<u8>>,
    way: Way,
    runtime: Runtime,
}

static LIVE: LazyLock<Server> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (next_tx, next_rx) = sync_channel::<Vec<u8>>(1);
    std::thread::spawn(move || {
        for answer in next_rx {
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(&answer);
            let _ = stream.shutdown(Shutdown::Write);
            // Until the client has hung up.
            while stream.read(&mut [0; 4_096]).is_ok_and(|bytes| bytes > 0) {}
            // A port that waits for what is on its way could not be had again soon.
            let _ = setsockopt(&stream.as_fd(), sockopt::Linger, &AT_ONCE);
        }
    });
    let target = Target::parse(&format!("http://{address}")).expect("a target");
    Server {
        next_tx,
        way: Way {
            target,
            key: None,
            trust: None,
        },
        runtime: Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime"),
    }
});

/// Nothing is waited for when a connection is closed.
const AT_ONCE: linger = linger {
    l_onoff: 1,
    l_linger: 0,
};

/// The client ends with an answer or with why there is none, and keeps to its bounds.
fn served(answer: &[u8]) {
    LIVE.next_tx.send(answer.to_vec()).expect("it serves");
    match LIVE.runtime.block_on(wire::get(&LIVE.way, "/v1/models")) {
        Ok((status, _, body)) => {
            assert!((100..1_000).contains(&status));
            assert!(body.len() <= answer.len() && answer.starts_with(b"HTTP/1."));
        }
        Err(unanswered) => assert!(!unanswered.why.is_empty() && !unanswered.tls),
    }
}
