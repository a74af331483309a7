//! The agent of a schedule: the policy's node, what it hears, and where its effects go.

use super::*;

impl World {
    pub(super) fn agent_starts(&mut self) {
        let config = Config {
            cooldown: Cooldown::Fixed(Duration::from_millis(3)),
            sharing: Sharing {
                restore_interval: Duration::from_millis(100),
                reserving: Reserving {
                    pressure_every: Duration::from_millis(200),
                    step: Bytes(2),
                    min: Bytes(4),
                    max: Bytes(60),
                    ..Reserving::default()
                },
                ..Sharing::default()
            },
            ..Config::default()
        };
        self.epoch += 1;
        self.node = Some(Node::new(config, 1, Instant::from_nanos(self.now)));
        let (gpu, bytes) = (GPU, Bytes(self.pool));
        self.feed(MemoryEvent::Pool { gpu, bytes });
        self.online_attaches();
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                self.attach(pid, Standing::Unknown);
            }
        }
    }

    pub(super) fn online_attaches(&mut self) {
        self.sessions += 1;
        self.online.session = self.sessions;
        self.online.open.clear();
        let session = SessionId(self.sessions);
        self.online_says(Said::Event(Event::OnlineAttached { session }));
        self.rings();
        self.online_says(Said::Elastic(self.online.mapped));
        self.online_says(Said::Counted(self.online.counted));
        self.online_says(Said::Used(self.online.used));
    }

    pub(super) fn rings(&mut self) {
        let reading = self.reading();
        let (session, gpu) = (SessionId(self.online.session), GPU);
        self.online_says(Said::Event(Event::Activity {
            session,
            gpu,
            reading,
        }));
    }

    fn reading(&self) -> Reading {
        let now = Instant::from_nanos(self.now);
        Reading {
            generation: self.online.edges,
            busy: self.online.busy,
            busy_since: now,
            idle_since: now,
            launches: Launches(10),
            graph: GraphId(0),
        }
    }

    pub(super) fn feed<'a>(&mut self, event: impl Into<Event<'a>>) {
        let Some(node) = &mut self.node else { return };
        let mut effects = Vec::new();
        node.step(event.into(), Instant::from_nanos(self.now), &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        let sum = self
            .node
            .as_ref()
            .and_then(|node| node.ledger(GPU))
            .map(|l| l.totals().sum());
        if sum.is_some_and(|sum| !sum.is_zero() && sum != Bytes(self.pool)) {
            self.violated("the books do not add up");
        }
        for effect in effects {
            match effect {
                Effect::Disable(order) => self.issue(order, true, Look::Unconditional),
                Effect::Enable { order, look } => self.issue(order, false, look),
                Effect::CloseLaunchGate { job } | Effect::HoldLaunchGate { job } => {
                    self.gate(job, false);
                }
                Effect::OpenLaunchGate { job } => self.gate(job, true),
                Effect::Check {
                    reclaim, session, ..
                }
                | Effect::Move {
                    reclaim, session, ..
                } => {
                    let node = self.node.as_ref();
                    let stripes = node.map(|node| node.stripes(reclaim).to_vec());
                    let Some(pid) = self.pid_of(session) else {
                        continue;
                    };
                    let delay = self.dice.scale(15 * US, 300 * US);
                    let process = &mut self.processes[pid];
                    process.down = process.down.max(self.now + delay) + 1;
                    let at = process.down;
                    let stripes = stripes.unwrap_or_default();
                    self.at(at, Ev::Ordered(self.epoch, session, effect, stripes));
                }
                Effect::Map { bytes, .. } => {
                    let fails = self.dice.percent(4);
                    self.online.mapped = if fails {
                        self.online.mapped.min(bytes.0)
                    } else {
                        bytes.0
                    };
                    self.online.used = self.online.used.min(self.online.mapped);
                    self.online_says(Said::Mapped(self.online.mapped));
                    self.online_says(Said::Used(self.online.used));
                }
                Effect::AnswerAsk {
                    ask,
                    granted,
                    session,
                } => {
                    if session == SessionId(self.online.session) {
                        self.answered(ask.0, granted);
                    }
                }
                Effect::ReadActivity { .. } => self.rings(),
                Effect::WakeAt(at) => self.at(at.as_nanos(), Ev::Timer(self.epoch)),
                Effect::Emit(Report::Reclaimed { .. }) => self.figures.reclaims += 1,
                Effect::Emit(Report::Restored { .. }) => self.figures.restores += 1,
                Effect::CancelMove { .. } | Effect::Emit(_) => {}
            }
        }
    }

    pub(super) fn answered(&mut self, ask: u64, granted: Granted) {
        let Some(bytes) = self.online.open.remove(&ask) else {
            return;
        };
        match granted {
            Granted::No => self.figures.denied += 1,
            Granted::Yes => {
                self.figures.granted += 1;
                let at = self.now + self.dice.between(10 * US, 2 * MS);
                self.at(at, Ev::Allocates(self.online.session, bytes));
            }
        }
    }

    fn gate(&mut self, job: JobId, passes: bool) {
        let pid = self
            .processes
            .iter()
            .position(|process| process.alive && process.job == job);
        if let Some(pid) = pid {
            self.processes[pid].passes = passes;
            if passes {
                self.at(self.now + 5 * US, Ev::Turn(pid));
            }
        }
    }

    fn issue(&mut self, order: Order, disable: bool, look: Look) {
        let at = self
            .issue_free
            .max(self.now + self.dice.between(2 * US, 12 * US))
            + 1;
        self.issue_free = at;
        self.at(at, Ev::Enter(self.epoch, order, disable, look));
    }

    pub(super) fn enter(&mut self, order: Order, disable: bool, look: Look) {
        let list: Vec<ChannelId> = self
            .live()
            .filter(|process| process.job == order.job)
            .map(|process| process.channel)
            .collect();
        if !disable && look == Look::First && self.online.busy {
            return self.feed(Event::EnableSkipped { order });
        }
        let entered = Instant::from_nanos(self.now);
        let drawn = if disable {
            self.gpu.draw_disable()
        } else {
            self.dice.between(5 * US, 20 * US)
        };
        let done = self.issue_free.max(self.now + drawn) + 1;
        self.issue_free = done;
        let ticket = order.generation.0;
        let (event, returned) = if disable {
            self.gpu.disable_at(done, &list, ticket);
            let returned = Instant::from_nanos(done);
            (
                Event::Disabled {
                    order,
                    entered,
                    returned,
                },
                done,
            )
        } else {
            self.gpu.enable_at(done, &list, ticket);
            (Event::Enabled { order }, done)
        };
        let session = SessionId(0);
        self.at(
            returned + 1,
            Ev::Said(self.epoch, session, Said::Event(event)),
        );
    }

    pub(super) fn hears(&mut self, session: SessionId, said: Said) {
        let kv = KV;
        match said {
            Said::Event(event) => self.feed(event),
            Said::Registered(pid) => {
                let process = &self.processes[pid];
                let backed: Vec<bool> = process
                    .pages
                    .backing
                    .iter()
                    .map(|b| *b == Backing::Own)
                    .collect();
                let job = process.job;
                self.feed(MemoryEvent::KvRegistered {
                    session,
                    job,
                    gpu: GPU,
                    kv,
                    layout: &layout(),
                    backed: &backed,
                    fixed: Bytes::ZERO,
                    reclaimable: true,
                    counted: Bytes::ZERO,
                });
            }
            Said::Checked(reclaim, answer) => {
                self.feed(MemoryEvent::Checked {
                    reclaim,
                    session,
                    answer,
                });
            }
            Said::Moved(reclaim, answer, stripes, log) => {
                let (stripes, log) = (&stripes[..], LogSeq(log));
                self.feed(MemoryEvent::Moved {
                    reclaim,
                    session,
                    answer,
                    stripes,
                    log,
                });
            }
            Said::Published(request, held) => {
                let request = RequestId(request);
                match held {
                    Some((tokens, blocks)) => {
                        let blocks: Vec<BlockId> = blocks.into_iter().map(BlockId).collect();
                        let (tokens, blocks) = (Tokens(tokens), &blocks[..]);
                        self.feed(MemoryEvent::Published {
                            session,
                            request,
                            tokens,
                            blocks,
                        });
                    }
                    None => {
                        let request = Some(request);
                        self.feed(MemoryEvent::Forgotten { session, request });
                    }
                }
            }
            Said::Withheld(log) => {
                let log = LogSeq(log);
                self.feed(MemoryEvent::Withheld { session, log });
            }
            Said::Elastic(mapped) => {
                let (mapped, most) = (Bytes(mapped), Bytes(90));
                let gpu = GPU;
                self.feed(MemoryEvent::ElasticRegistered {
                    session,
                    gpu,
                    kv,
                    mapped,
                    fixed: Bytes::ZERO,
                    most,
                    handle: Bytes(1),
                    stripe: Bytes(1),
                });
            }
            Said::Mapped(mapped) => {
                let mapped = Bytes(mapped);
                self.feed(MemoryEvent::Mapped {
                    session,
                    kv,
                    mapped,
                    last: true,
                });
            }
            Said::Used(used) => {
                let used = Bytes(used);
                self.feed(MemoryEvent::Usage { session, kv, used });
            }
            Said::Counted(bytes) => {
                let (gpu, bytes) = (GPU, Bytes(bytes));
                self.feed(MemoryEvent::Counted {
                    session,
                    gpu,
                    bytes,
                });
            }
            Said::Asked(ask, bytes) => {
                let (ask, bytes, gpu, kv) = (AskId(ask), Bytes(bytes), GPU, None);
                self.feed(MemoryEvent::Asked {
                    session,
                    ask,
                    gpu,
                    kv,
                    bytes,
                    mapped: None,
                });
            }
            Said::Withdrawn(ask) => {
                let ask = AskId(ask);
                self.feed(MemoryEvent::Withdrawn { session, ask });
            }
        }
    }
}

fn layout() -> Layout {
    let stripe = |nth: u32| Stripe {
        handles: vec![nth],
        blocks: (nth * PER_STRIPE..(nth + 1) * PER_STRIPE)
            .map(BlockId)
            .collect(),
    };
    Layout::of_stripes((0..STRIPES).map(stripe).collect(), Bytes(STRIPE))
}
