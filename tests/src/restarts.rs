//! Agents that are restarted by their service manager under load, again and again.
//!
//! On GPU 0 an offline program runs, and an online one comes between restarts; on GPU 1 an online program answers
//! all the time. [`Loaded::restart`] is one `systemctl restart`.

use crate::manager::Manager;
use crate::watch::{Testimony, wait_all, wait_finished, wait_open};
use crate::{Node, Offline, Online, monotonic_ns, wait_for};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_vgpu::history::Kind;

const CONFIG: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"20ms\"\n[log]\nlevel = \"warn\"\n";

/// What one restart cost.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// The longest time without a finished offline kernel, from the signal on, in nanoseconds.
    pub offline_pause_ns: u64,
    /// The longest an online program took to answer for 2 ms of work, in nanoseconds.
    pub online_answer_ns: u64,
}

/// An online program on GPU 1 that answers all the time.
struct Answering {
    count: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    fn start(node: &Node) -> Self {
        let mut online = Online::start(node, 1);
        let (count, longest) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let enough = Arc::<AtomicBool>::default();
        let (answers, slowest, end) = (
            Arc::clone(&count),
            Arc::clone(&longest),
            Arc::clone(&enough),
        );
        let answer = move || {
            while !end.load(Ordering::Relaxed) {
                let asked = monotonic_ns();
                online.say("burst 2 1000000");
                slowest.fetch_max(monotonic_ns() - asked, Ordering::Relaxed);
                answers.fetch_add(1, Ordering::Relaxed);
            }
        };
        Self {
            count,
            longest,
            enough,
            thread: Some(std::thread::spawn(answer)),
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A node under load.
pub struct Loaded {
    answering: Answering,
    online: Online,
    offline: Offline,
    /// The node; its agent is the service manager's.
    pub node: Node,
    manager: Manager,
    pid: [u32; 1],
    channels: usize,
}

impl Loaded {
    /// Starts everything.
    ///
    /// # Panics
    /// When something does not come up.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        let mut node = Node::device_only(&["--gpus", "2"]);
        let manager = Manager::new(&node, CONFIG, Duration::from_secs(2));
        node.agent = Some(manager.start(&node));
        let mut offline = Offline::start(&node, 500_000, &[0]);
        offline.running();
        let pid = [offline.process.pid()];
        let answering = Answering::start(&node);
        let online = Online::start(&node, 0);
        wait_open(&node, 0, online.process.pid());
        let channels = wait_all(&node, &pid, false);
        Self {
            answering,
            online,
            offline,
            node,
            manager,
            pid,
            channels,
        }
    }

    /// A burst stops offline work, by the agent there is now; it goes on after it.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn the_gate_works(&mut self) {
        wait_open(&self.node, 0, self.online.process.pid());
        wait_all(&self.node, &self.pid, false);
        let begun = monotonic_ns();
        self.online.say("burst 1 50000000");
        let (from, to) = wait_for("a shut and an open gate", || {
            Testimony::of(&self.node).shut(&self.pid, self.channels, begun)
        });
        let ran = Testimony::of(&self.node).ran_between(&self.pid, from, to);
        assert!(ran.is_empty(), "ran while all was disabled: {ran:?}");
        wait_finished(&self.node, &self.pid, 3, to);
    }

    /// Restarts the agent as `systemctl restart` does, and waits until offline work and online answers have
    /// gone on after it.
    ///
    /// # Panics
    /// When they do not, or the agent does not end well.
    #[track_caller]
    pub fn restart(&mut self) -> Restart {
        wait_open(&self.node, 0, self.online.process.pid());
        wait_finished(&self.node, &self.pid, 3, monotonic_ns());
        self.answering.longest.store(0, Ordering::Relaxed);
        let agent = self.node.agent.take().expect("there is an agent");
        let told = monotonic_ns();
        agent.signal(libc::SIGTERM);
        assert!(agent.finish().status.success(), "the agent ends well");
        self.node.agent = Some(self.manager.start(&self.node));
        let ready = monotonic_ns();
        let answers = self.answering.count.load(Ordering::Relaxed);
        // Attached again: the gate is open for it, and not only because nobody closes it.
        wait_open(&self.node, 0, self.online.process.pid());
        wait_finished(&self.node, &self.pid, 10, ready);
        wait_for("online answers", || {
            (self.answering.count.load(Ordering::Relaxed) >= answers + 5).then_some(())
        });
        let testimony = Testimony::of(&self.node);
        let ends: Vec<u64> = testimony
            .all(&self.pid, Kind::KernelEnd)
            .map(|end| end.at_ns)
            .collect();
        let pauses = ends.windows(2).filter(|pair| pair[1] > told);
        Restart {
            offline_pause_ns: pauses.map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
            online_answer_ns: self.answering.longest.load(Ordering::Relaxed),
        }
    }

    /// Ends it; what the offline program saw finish is what the device says it did.
    ///
    /// # Panics
    /// When a kernel was lost.
    #[track_caller]
    pub fn finish(self) {
        let Self {
            answering,
            online,
            offline,
            node,
            pid,
            ..
        } = self;
        drop(answering);
        drop(online);
        let counted = offline.stop();
        let ended = Testimony::of(&node).finished_after(&pid, 0) as u64;
        assert_eq!(counted, ended, "kernels lost or run twice by a restart");
    }
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
