//! The control thread as it ships, turned by hand, on a node of two GPUs whose issue threads are played here.
//!
//! Judged by what reaches the GPUs: each is given its orders in the order in which they were decided, and whatever
//! failed on the way, no channel stays disabled once online is idle.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release as StoreRelease};
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_abi::page::{ACTIVITY_BUSY, BYTES, Page, ProcessWords};
use tidegate_agent::app::tunables;
use tidegate_agent::clock::now_ns;
use tidegate_agent::config::{Config, Cooldown, Level, Method, Role};
use tidegate_agent::control::{About, Control, Parts};
use tidegate_agent::events::EventLog;
use tidegate_agent::identity::Credentials;
use tidegate_agent::inbox::{Ask, Channel, Input, Mailbox, Newcomer, RmChange, Said, Tell, inbox};
use tidegate_agent::issue::{Issued, Order, Outcome, Release, Task};
use tidegate_agent::journal::Journal;
use tidegate_agent::notify::Notifier;
use tidegate_agent::rm::Gpu;
use tidegate_agent::sys::{SharedPage, SharedWords};
use tidegate_proto::v1::{self, JobState};
use tokio::sync::{mpsc, oneshot};

/// Places of words in a page.
const DOORBELL: usize = (offset_of!(Page, process) + offset_of!(ProcessWords, doorbell)) / 8;
const ACTIVITY: usize = offset_of!(Page, devices) / 8;
const GPUS: usize = 2;
const ONLINE: u64 = 1;
const OFFLINE: u64 = 2;
/// Longer than any pause of a busy machine.
const DEADLINE_NS: u64 = 60_000_000_000;

const fn uuid(gpu: usize) -> [u8; 16] {
    [gpu as u8 + 1; 16]
}

/// A GPU's issue thread, and its channels.
struct Played {
    /// Held as the control thread holds it.
    issuer: Sender<Task>,
    task_rx: Receiver<Task>,
    disabled: BTreeSet<(u32, u32)>,
    /// Command and direction of every order, as they came.
    orders: Vec<(u64, bool)>,
}

struct Rig {
    control: Control,
    mailbox: Mailbox,
    gpus: Vec<Played>,
    /// The online process' own view of its page.
    online: SharedWords,
    /// Processes listen.
    _outboxes: Vec<mpsc::Receiver<Tell>>,
    journal: std::path::PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.journal);
    }
}

impl Rig {
    /// An online process and an offline one with a channel on each GPU, which runs.
    fn new(name: &str) -> Self {
        let (mailbox, inbox) = inbox();
        let (teller, _) = EventLog::start().expect("a thread");
        let journal = std::env::temp_dir().join(format!("tg-orders-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&journal).expect("the temporary directory is writable");
        let gpus: Vec<Played> = (0..GPUS)
            .map(|_| {
                let (issuer, task_rx) = bounded(8);
                Played {
                    issuer,
                    task_rx,
                    disabled: BTreeSet::new(),
                    orders: Vec::new(),
                }
            })
            .collect();
        let issuers = gpus.iter().enumerate().map(|(index, gpu)| {
            let minor = u32::try_from(index).expect("few");
            let named = Gpu {
                minor,
                device_instance: minor,
                uuid: uuid(index),
            };
            (named, Some(gpu.issuer.clone()))
        });
        let mut config = Config::default();
        config.gate.cooldown = Cooldown::Fixed(Duration::ZERO);
        config.tuning.start_hold = Duration::ZERO;
        let control = Control::new(Parts {
            tunables: tunables(&config, Level::L1),
            level: Level::L1,
            method: Method::default(),
            pool: 0,
            // Nobody has to prove whose a client is.
            believe_unproven: true,
            gpus: issuers.collect(),
            unseen: 0,
            generation: 1,
            journal: Arc::new(Journal::open(&journal).expect("a journal")),
            adopted: Vec::new(),
            prover: unbounded().0,
            reprover: unbounded().0,
            teller,
            inbox,
            mailbox: mailbox.clone(),
            notifier: Arc::new(Notifier::default()),
            about: About::default(),
            recorder: None,
        });
        let mut pages = Vec::new();
        let mut outboxes = Vec::new();
        for (session, role) in [(ONLINE, Role::Online), (OFFLINE, Role::Offline)] {
            let (page, file) = SharedPage::create().expect("a page");
            pages.push(SharedWords::map(file.as_fd(), BYTES / 8).expect("of that size"));
            let (tell_tx, tell_rx) = mpsc::channel(64);
            outboxes.push(tell_rx);
            mailbox.put(Input::Attached(Box::new(Newcomer {
                session,
                peer: Credentials {
                    pid: 100 + i32::try_from(session).expect("small"),
                    uid: 1_000,
                    started: session,
                    ..Credentials::default()
                },
                role,
                rule: "rule 1".to_owned(),
                job: "job".to_owned(),
                version: "1".to_owned(),
                driver: "580".to_owned(),
                membarrier: true,
                last_agent_generation: 0,
                takes_memory: false,
                page: Some(page),
                control_file: None,
                outbox: tell_tx,
            })));
            for gpu in 0..GPUS {
                let slot = u32::try_from(gpu).expect("few");
                let uuid = uuid(gpu);
                mailbox.put(Input::Said(session, Said::Device { slot, uuid }));
            }
        }
        let channel = |gpu: usize| Channel {
            client: 0xc1d0_0001,
            channel: u32::try_from(gpu).expect("few") + 1,
            tsg: u32::try_from(gpu).expect("few") + 1,
            engine: Engine::Graphics,
            device_instance: u32::try_from(gpu).ok(),
            uuid: Some(uuid(gpu)),
            subdevice: 0,
        };
        let mut changes = vec![RmChange::ClientUp(0xc1d0_0001)];
        changes.extend((0..GPUS).map(|gpu| RmChange::ChannelUp(channel(gpu))));
        let snapshot = true;
        mailbox.put(Input::Said(OFFLINE, Said::Rm { snapshot, changes }));
        let online = pages.swap_remove(0);
        let mut rig = Self {
            control,
            mailbox,
            gpus,
            online,
            _outboxes: outboxes,
            journal,
        };
        rig.control.begin();
        let limit = now_ns() + DEADLINE_NS;
        loop {
            rig.settle("the agent rests", |_| true);
            let report = rig.report();
            let managed = report.gpus.iter().all(|gpu| gpu.channels == 1);
            if managed
                && report
                    .jobs
                    .iter()
                    .all(|job| job.state() == JobState::Running)
            {
                return rig;
            }
            assert!(now_ns() < limit, "offline does not run: {report:?}");
        }
    }

    /// The online process becomes busy or idle on GPU 0.
    fn online(&self, busy: bool) {
        let word = &self.online[ACTIVITY];
        let next = ((word.load(Acquire) >> 1) + 1) << 1;
        let busy = if busy { ACTIVITY_BUSY } else { 0 };
        word.store(next | busy, StoreRelease);
        self.online[DOORBELL].fetch_add(1, AcqRel);
    }

    fn report(&mut self) -> v1::GetStatusResponse {
        let (answer_tx, mut answer_rx) = oneshot::channel();
        self.mailbox.put(Input::Ask(Ask::Report(answer_tx)));
        self.settle("the agent answers", |_| true);
        *answer_rx.try_recv().expect("the agent answers")
    }

    /// The issue threads do all they were told; whether it was anything.
    fn answer(&mut self) -> bool {
        let mut any = false;
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            while let Ok(task) = gpu.task_rx.try_recv() {
                any = true;
                match task {
                    Task::Order(order) => {
                        gpu.carry_out(&order);
                        let now = now_ns();
                        self.mailbox.put(Input::Issued(Issued {
                            gpu: u32::try_from(index).expect("few"),
                            job: order.job,
                            command: order.command,
                            disable: order.disable,
                            outcome: Outcome::Done,
                            looked_ns: now,
                            entered_ns: now,
                            returned_ns: now,
                        }));
                    }
                    Task::Release(release) => {
                        let places = release.batches.into_iter().flat_map(|batch| batch.places);
                        self.mailbox.put(Input::Released(places.collect()));
                    }
                }
            }
        }
        any
    }

    /// Turns and answers until nobody has anything to say and `is_so`.
    #[track_caller]
    fn settle(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let limit = now_ns() + DEADLINE_NS;
        loop {
            self.control.turn();
            let rests = !self.answer();
            if rests && is_so(self) {
                return;
            }
            let orders: Vec<_> = self.gpus.iter().map(|gpu| &gpu.orders).collect();
            assert!(now_ns() < limit, "not in time: {what}; {orders:?}");
        }
    }
}

impl Played {
    fn carry_out(&mut self, order: &Order) {
        self.orders.push((order.command, order.disable));
        for (client, channel, _) in order.batches.iter().flat_map(|batch| batch.entries()) {
            if order.disable {
                self.disabled.insert((client, channel));
            } else {
                self.disabled.remove(&(client, channel));
            }
        }
    }

    /// Fills its queue, as a driver does that owes thousands of answers.
    fn clog(&self) {
        let nothing = || Release {
            batches: Vec::new(),
            dead: None,
        };
        while self.issuer.try_send(Task::Release(nothing())).is_ok() {}
    }
}

#[test]
fn an_order_that_fails_at_once_never_lets_an_older_one_follow_a_newer() {
    let mut rig = Rig::new("stale");
    rig.gpus[0].clog();
    // Disables of both GPUs are decided at once. The first fails before the second is handed on, again and again,
    // until policy gives up and enables.
    rig.online(true);
    rig.settle("the edge is heard", |rig| {
        rig.gpus[1].orders.iter().any(|(_, disable)| *disable)
    });
    for (index, gpu) in rig.gpus.iter().enumerate() {
        assert!(
            gpu.orders.is_sorted_by_key(|(command, _)| *command),
            "GPU {index} was given an order that a newer one had replaced: {:?}",
            gpu.orders
        );
    }
    rig.online(false);
    rig.settle("nothing stays disabled when online is idle", |rig| {
        rig.gpus.iter().all(|gpu| gpu.disabled.is_empty())
    });
}
