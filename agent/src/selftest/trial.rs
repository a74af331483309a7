//! The self-test proper: a child with GPU work of its own ([`super::work`]) runs as an offline process,
//! with the preloaded library, attached to a socket that only the two know. Its channels come to this
//! side the way every job's do, and each level disables and enables them the way it will a job's, by each
//! method in turn until one holds. A method holds when, on every GPU and three times of three, the work
//! stands still while the driver says that it is disabled and goes on when it says that it is enabled: in
//! the middle of a kernel that fills the GPU, and in the middle of a graph of such kernels. What the
//! driver answers proves nothing: firmware was seen that answers OK and stops nothing.
//!
//! Work that goes on to the end of its kernel and stands still there is told apart, because it is a
//! gate and not more: pages that such a kernel uses must not be taken.
//!
//! The child makes its own contexts and is killed by nobody: it ends when its standard input does, with
//! everything enabled.

mod attempt;
mod times;

use super::child::{self, Directory, Server};
use super::place::{NotPossible, Place, READY_NS};
use super::verdict::{Held, Outcome, Times, Tried};
use super::work::STEPS;
use crate::channels::channel::{self, ChannelControl, Member, Plan, Restarter, Via};
use crate::channels::{journal, prove};
use crate::clock::now_ns;
use crate::config::{Level, Method, MethodChoice, Role};
use crate::inbox::{
    self, Channel, Inbox, Input, NodeInput, RmChange, Said, SetChannels, Tell, Ticket, Welcome,
};
use crate::rm::Driver;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_abi::gate::Gate;
use tidegate_driver::stop_and_resume::{Counters, goes_on};
use tidegate_driver::worker::{Gone, Worker};
use tidegate_node::file::File;
use tidegate_node::kinds::{Process, Switch};
use tidegate_node::page::PageRef;
use tidegate_node::ports::Outbox;

/// How long an answer of the child, or of its library, may take.
const ANSWER_NS: u64 = 2_000_000_000;
/// How long enabled work may take to go on.
const RESUME: Duration = Duration::from_secs(2);
/// How long disabled work must stand still, at least ...
const STILL: Duration = Duration::from_millis(10);
/// ... and this many times the longest that enabled work stood still while it was watched: a machine
/// that keeps the work from running must not pass for a driver that stopped it.
const STILL_FACTOR: u32 = 10;
/// And no longer than this.
const STILL_MOST: Duration = Duration::from_millis(500);
/// How often enabled work is watched move, and how often a method is tried on each kind of work.
const WATCHED: usize = 8;
const ROUNDS: usize = 3;
/// After a disable returned, until what its last kernel wrote has reached the host.
const SETTLE: Duration = Duration::from_millis(1);
/// How long the child may take to end.
const END_NS: u64 = 5_000_000_000;
/// Messages are looked for this often.
const TURN: Duration = Duration::from_millis(1);

/// Tries all levels, in order L1, L2, L3, each by the methods that `methods` allows until one holds; then times
/// stops on each GPU by the first level that holds.
///
/// # Errors
/// When the work could not be set up, which says nothing about any level.
pub fn run(
    driver: &Driver,
    place: &Place,
    methods: MethodChoice,
) -> Result<(Vec<Tried>, Vec<Times>), NotPossible> {
    let dir = Directory::new(&place.run_dir)?;
    let (mailbox, inbox) = inbox::inbox();
    let server = Server::start(&dir.0, mailbox)?;
    let mut trial = Trial {
        child: child::start(place, &dir.0)?,
        inbox,
        attached: None,
        channels: Vec::new(),
        answers: Vec::new(),
        next_seq: 1,
        own: Vec::new(),
        devices: Vec::new(),
        still: STILL,
        stuck: false,
    };
    for gpu in &driver.gpus {
        trial.own.push(
            Restarter::open(gpu, driver.branch(), methods.needs())
                .map_err(NotPossible::Subdevice)?,
        );
    }
    let outcome = trial.wait_ready().and_then(|()| {
        trial.still = trial.watch().map_err(NotPossible::Child)?;
        Ok(())
    });
    let outcome = outcome.map(|()| {
        let levels = [Level::L1, Level::L2, Level::L3].into_iter();
        let tried: Vec<_> = levels
            .map(|level| trial.attempt(driver, level, methods))
            .collect();
        let proven = tried.iter().find_map(|tried| match &tried.outcome {
            Outcome::Proven(stop) => Some((tried.level, stop.method)),
            _ => None,
        });
        let times = proven.map_or_else(Vec::new, |by| trial.times(driver, by));
        (tried, times)
    });
    trial.end();
    drop(server);
    outcome
}

/// Who attached.
struct Attached {
    process: Process,
    page: Option<PageRef>,
    file: Option<File>,
    outbox: Box<dyn Outbox>,
}

struct Trial {
    child: Worker,
    inbox: Inbox,
    attached: Option<Attached>,
    channels: Vec<Channel>,
    /// Answers to orders of level L3: number, whether it was done, and how.
    answers: Vec<(u64, bool, Option<Method>)>,
    next_seq: u64,
    /// The agent's own side, by GPU.
    own: Vec<Restarter>,
    /// UUIDs by the child's CUDA ordinals.
    devices: Vec<String>,
    /// How long disabled work must stand still here.
    still: Duration,
    /// Work that a failed method left does not go on, so there is nothing to try another on.
    stuck: bool,
}

impl Trial {
    /// Takes what the child's library says, and gives it the signs of life it wants.
    fn turn(&mut self) {
        if let Some(page) = self.attached.as_ref().and_then(|own| own.page.as_ref()) {
            page.agent.heartbeat_ns.store(now_ns(), Ordering::Release);
        }
        let Ok(first) = self.inbox.input_rx.recv_timeout(TURN) else {
            return;
        };
        let more: Vec<_> = self.inbox.input_rx.try_iter().collect();
        for input in std::iter::once(first).chain(more) {
            let Input::Node(input, _) = input else {
                continue;
            };
            match input {
                NodeInput::Attached(newcomer) => {
                    newcomer.outbox.tell(Tell::Welcome(Welcome {
                        session: newcomer.session,
                        role: Role::Offline,
                        level: Level::L1,
                        method: Method::default(),
                        agent_generation: 1,
                    }));
                    if let Some(page) = &newcomer.page {
                        for slot in 0..page.gates.len() {
                            page.set_gate(slot, Gate::Open);
                        }
                    }
                    self.attached = Some(Attached {
                        process: newcomer.peer.process,
                        page: newcomer.page,
                        file: newcomer
                            .control_file
                            .and_then(prove::sent_file)
                            .map(channel::file),
                        outbox: newcomer.outbox,
                    });
                }
                NodeInput::Said(_, Said::Rm { changes, .. }) => {
                    for change in changes {
                        self.observe(&change);
                    }
                }
                NodeInput::Said(_, Said::ControlFile(fd)) => {
                    if let Some(own) = &mut self.attached {
                        own.file = prove::control_file(own.process, fd).map(channel::file);
                    }
                }
                NodeInput::Said(_, Said::Schedule(Ticket { ticket, .. })) => {
                    if let Some(own) = &self.attached {
                        own.outbox.tell(Tell::Go { ticket });
                    }
                }
                NodeInput::Said(
                    _,
                    Said::Channels {
                        seq,
                        status,
                        errno,
                        method,
                        ..
                    },
                ) => {
                    let done = status == 0 && errno == 0;
                    self.answers.push((seq, done, method));
                }
                _ => {}
            }
        }
    }

    fn observe(&mut self, change: &RmChange) {
        match *change {
            RmChange::ChannelUp(up) => {
                self.channels
                    .retain(|own| (own.client, own.channel) != (up.client, up.channel));
                self.channels.push(up);
            }
            RmChange::ChannelDown { client, channel } => self
                .channels
                .retain(|own| (own.client, own.channel) != (client, channel)),
            RmChange::ClientDown(client) => self.channels.retain(|own| own.client != client),
            RmChange::ClientUp(_) => {}
        }
    }

    /// Turns until `done` says something, at most until `limit_ns` from now.
    fn until<T>(
        &mut self,
        limit_ns: u64,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let limit = now_ns() + limit_ns;
        loop {
            self.turn();
            if let Some(done) = done(self) {
                return Some(done);
            }
            if now_ns() >= limit {
                return None;
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let line = self.child.line(Duration::ZERO);
        line.unwrap_or_else(|Gone| Some("error its GPU work ended by itself".to_owned()))
    }

    fn wait_ready(&mut self) -> Result<(), NotPossible> {
        let said = self.until(READY_NS, Self::line).ok_or(NotPossible::Slow)?;
        let Some(devices) = said.strip_prefix("ready ") else {
            let text = said.strip_prefix("error ").unwrap_or(&said);
            return Err(NotPossible::Child(text.to_owned()));
        };
        self.devices = devices.split(' ').map(str::to_owned).collect();
        // What it did before it said so may still be on its way.
        self.until(ANSWER_NS, |trial| {
            let there = trial.attached.is_some() && !trial.channels.is_empty();
            there.then_some(())
        })
        .ok_or(NotPossible::NotAttached)?;
        // So may its file; without it a level is not tried.
        let has_file = |trial: &mut Self| {
            let own = trial.attached.as_ref()?;
            own.file.as_ref().map(|_| ())
        };
        let _ = self.until(ANSWER_NS, has_file);
        Ok(())
    }

    /// The child's answer to a word.
    fn ask(&mut self, word: &str) -> Result<String, String> {
        let asked = self.child.say(word).is_ok();
        let line = self.until(ANSWER_NS, Self::line).filter(|_| asked);
        line.ok_or_else(|| "its GPU work does not answer".to_owned())
    }

    /// Every counter, as the child has them now, with how much is queued behind it.
    fn read(&mut self) -> Result<Vec<(u64, u64)>, String> {
        let line = self.ask("read")?;
        line.split(' ')
            .map(|word| {
                let (value, queued) = word.split_once(':')?;
                Some((value.parse().ok()?, queued.parse().ok()?))
            })
            .collect::<Option<_>>()
            .ok_or(line.clone())
    }

    /// Has the child launch `what` ("kernels" or "graphs") from now on, and waits until it runs.
    fn switch(&mut self, what: &str) -> Result<(), String> {
        let line = self.ask(what)?;
        let begin: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let begin = begin.ok_or(line)?;
        let limit = now_ns() + crate::clock::nanos(RESUME);
        loop {
            let now = self.read()?;
            if now
                .iter()
                .zip(&begin)
                .all(|((value, _), begin)| value > begin)
            {
                return Ok(());
            }
            if now_ns() >= limit {
                return Err(format!("its {what} do not begin"));
            }
        }
    }

    /// Every counter, once there is work queued behind each: what has nothing to do stands still
    /// whatever the driver did.
    fn loaded(&mut self) -> Result<Vec<u64>, String> {
        let limit = now_ns() + ANSWER_NS;
        loop {
            let counters = self.read()?;
            if counters.iter().all(|(_, queued)| *queued != 0) {
                return Ok(counters.into_iter().map(|(value, _)| value).collect());
            }
            if now_ns() >= limit {
                return Err("its GPU work is not kept queued".to_owned());
            }
        }
    }

    /// Watches enabled work for how long it stands still by itself; how long disabled work must.
    fn watch(&mut self) -> Result<Duration, String> {
        let mut longest = 0;
        for _ in 0..WATCHED {
            let before = self.loaded()?;
            let from = now_ns();
            goes_on(self, &before, RESUME)?
                .map_err(|_| "its GPU work does not go on".to_owned())?;
            longest = longest.max(now_ns() - from);
        }
        let factored = Duration::from_nanos(longest) * STILL_FACTOR;
        Ok(factored.clamp(STILL, STILL_MOST))
    }

    fn attempt(&mut self, driver: &Driver, level: Level, methods: MethodChoice) -> Tried {
        let mut tried = Vec::new();
        for method in Method::ALL {
            if !methods.allows(method) {
                continue;
            }
            let held = self.attempt_by(driver, level, method);
            let best = held == Held::Stops;
            tried.push((method, held));
            if best {
                break;
            }
        }
        Tried::of(level, tried)
    }

    fn attempt_by(&mut self, driver: &Driver, level: Level, method: Method) -> Held {
        if let Some(why) = self.lacks(level, method) {
            return Held::NotTried(why.to_owned());
        }
        let held = self.holds(driver, level, method);
        held.unwrap_or_else(|why| {
            // Whatever this left: the next one and the child's end want it enabled.
            for level in [Level::L2, Level::L1] {
                let _ = self.set_all(driver, level, method, Switch::Enable);
            }
            let before = self.counters();
            let goes_on = before.and_then(|before| goes_on(self, &before, RESUME));
            self.stuck = !matches!(goes_on, Ok(Ok(())));
            Held::Failed(why)
        })
    }

    /// What is missing here to try it.
    fn lacks(&self, level: Level, method: Method) -> Option<&'static str> {
        let file = self.attached.as_ref().and_then(|own| own.file.as_ref());
        match method {
            _ if self.stuck => Some("what was disabled before does not go on"),
            Method::Preempt if level == Level::L1 => {
                Some("a group is preempted through its owner's file only")
            }
            Method::PreemptFirst if level == Level::L1 && file.is_none() => {
                Some("its library sent no control file")
            }
            Method::Restart
                if level != Level::L3
                    && file.is_none()
                    && !self.own.iter().all(Restarter::has_channel) =>
            {
                Some("the driver gives the agent no channel to restart the runlist by")
            }
            _ => None,
        }
    }

    fn holds(&mut self, driver: &Driver, level: Level, method: Method) -> Result<Held, String> {
        let mut late = false;
        for work in ["kernels", "graphs"] {
            self.switch(work)?;
            // By CUDA device: whether it stood still in the middle of a kernel.
            let mut inside: Vec<bool> = Vec::new();
            for _ in 0..ROUNDS {
                let (at, went_to_its_end) = self.round(driver, level, method)?;
                late |= went_to_its_end;
                inside.resize(at.len(), false);
                for (inside, counter) in inside.iter_mut().zip(&at) {
                    *inside |= counter % STEPS != 0;
                }
            }
            // Nothing but the ends of kernels, however often: that is where it stops.
            late |= inside.contains(&false);
        }
        Ok(if late { Held::AtKernelEnd } else { Held::Stops })
    }

    /// Disables or enables all channels of the child, GPU by GPU, the way `level` and `method` do it.
    fn set_all(
        &mut self,
        driver: &Driver,
        level: Level,
        method: Method,
        switch: Switch,
    ) -> Result<(), String> {
        (0..driver.gpus.len()).try_for_each(|at| self.set_on(driver, at, (level, method), switch))
    }

    /// The same on one GPU.
    fn set_on(
        &mut self,
        driver: &Driver,
        index: usize,
        (level, method): (Level, Method),
        switch: Switch,
    ) -> Result<(), String> {
        let gpu = &driver.gpus[index];
        let on = |channel: &&Channel| {
            channel.device_instance == Some(gpu.device_instance) || channel.uuid == Some(gpu.uuid)
        };
        let channels: Vec<Channel> = self.channels.iter().filter(on).copied().collect();
        if channels.is_empty() {
            return Err(format!("no channel was seen on GPU {index}"));
        }
        let set = self.set(index, gpu.device_instance, level, method, channels, switch);
        set.map_err(|error| {
            let what = match switch {
                Switch::Disable => "disable",
                Switch::Enable => "enable",
            };
            format!("{what} on GPU {index}: {error}")
        })
    }

    fn set(
        &mut self,
        index: usize,
        device_instance: u32,
        level: Level,
        method: Method,
        mut channels: Vec<Channel>,
        switch: Switch,
    ) -> Result<(), String> {
        let file = self.attached.as_ref().and_then(|own| own.file.clone());
        if level == Level::L2 && file.is_none() {
            return Err("its library sent no control file".to_owned());
        }
        let computing: Vec<(u32, u32)> = channels
            .iter()
            .filter(|channel| channel.engine.may_compute())
            .map(|channel| (channel.client, channel.tsg))
            .collect();
        let is_computing = |channel: &Channel| computing.contains(&(channel.client, channel.tsg));
        channels.sort_by_key(|own| (!is_computing(own), own.client, own.tsg, own.channel));
        let mut plan = Plan::new(method, level == Level::L3);
        for channel in &channels {
            let via = Via::of(level, file.as_ref(), channel.client, channel.subdevice);
            let member = Member {
                client: channel.client,
                channel: channel.channel,
                group: channel.tsg,
                computes: is_computing(channel),
                file: file.clone(),
                place: journal::Place::NONE,
            };
            plan.push(0, via, &member);
        }
        let batches = plan.finish();
        for (at, batch) in batches.iter().enumerate() {
            if level == Level::L3 {
                let pairs = batch
                    .entries()
                    .map(|(client, channel, _)| (client, channel));
                let tell = Tell::Set(SetChannels {
                    seq: self.next_seq,
                    switch,
                    pairs: pairs.collect(),
                    device_instance,
                    method,
                    more: at + 1 < batches.len(),
                });
                self.set_remotely(tell, method)?;
            } else {
                let own = &self.own[index];
                let done = batch
                    .calls(switch)
                    .try_for_each(|call| own.make(batch, call, switch));
                done.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn set_remotely(&mut self, tell: Tell, method: Method) -> Result<(), String> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let told = self
            .attached
            .as_ref()
            .is_some_and(|own| own.outbox.tell(tell));
        let answer = self.until(ANSWER_NS, |trial| {
            let (_, done, by) = trial.answers.iter().find(|(own, ..)| *own == seq)?;
            Some((*done, by.unwrap_or_default()))
        });
        match answer {
            Some((true, by)) if told && by == method => Ok(()),
            Some((true, _)) => Err("its library does not know the method".to_owned()),
            Some(_) => Err("its library could not".to_owned()),
            None => Err("its library does not answer".to_owned()),
        }
    }

    /// Lets the child end; it must never be killed while a channel of it is disabled.
    fn end(&mut self) {
        self.child.end_input();
        let _ = self.until(END_NS, |trial| trial.child.status());
        self.child.kill();
    }
}

impl Counters for Trial {
    type Error = String;

    fn counters(&mut self) -> Result<Vec<u64>, String> {
        let counters = self.read()?.into_iter();
        Ok(counters.map(|(value, _)| value).collect())
    }

    fn pass(&mut self, time: Duration) {
        self.until(crate::clock::nanos(time), |_| None::<()>);
    }
}
