//! The agent and both processes before the trace: they attach, the prover finds the offline process' RM
//! client to be its own, offline makes its cache and online maps its headroom.

use super::*;
use tidegate_node::text::Text;

/// The agent's settings for the variants that it has a setting for.
fn config(spec: &Spec) -> Config {
    let usual = Reserving::of_pool(Bytes(spec.kv_pool_bytes));
    let min = usual.min.min(usual.max);
    let reserving = Reserving {
        min,
        max: match spec.memory {
            Memory::TidegateNoMiad => min,
            _ => usual.max,
        },
        ..usual
    };
    let sharing = Sharing {
        reserving,
        ..Sharing::default()
    };
    Config {
        sharing,
        slo: spec.slo,
        ..Config::default()
    }
}

impl Tidegate {
    /// The agent's gate alone: memory is somebody else's.
    #[must_use]
    pub fn gate(spec: &Spec) -> Self {
        let hints = spec.compute == Compute::TidegateHints;
        let online = Online::new(&spec.costs, hints, None);
        Self::with(spec, Rule::Own, 0, online, None)
    }

    /// Gate and memory.
    #[must_use]
    pub fn whole(spec: &Spec) -> Self {
        Self::sharing(spec, Rule::Own)
    }

    /// The agent's memory, under somebody else's gate.
    #[must_use]
    pub fn under(spec: &Spec) -> Self {
        let (runs, off) = (None, true);
        Self::sharing(spec, Rule::Foreign { runs, off })
    }

    fn sharing(spec: &Spec, rule: Rule) -> Self {
        let hints = spec.compute == Compute::TidegateHints;
        let block = |per_token: u64| per_token * u64::from(crate::kv::BLOCK_TOKENS);
        let online = block(spec.online.model.shape.kv_bytes_per_token());
        let offline = block(spec.offline.model.shape.kv_bytes_per_token());
        let cache = Cache::new(spec.kv_pool_bytes, online, &spec.costs);
        let manners = Manners {
            victims: match spec.memory {
                Memory::TidegateFifo => Victims::Oldest,
                Memory::TidegateLifo => Victims::LastCome,
                Memory::TidegateRandom => Victims::Any,
                _ => Victims::Cost,
            },
            at_layers: spec.memory == Memory::TidegateLayerBoundary,
        };
        let online = Online::new(&spec.costs, hints, Some(cache));
        let offline = Offline::new(offline, manners, &spec.costs);
        Self::with(spec, rule, spec.kv_pool_bytes, online, Some(offline))
    }

    fn with(spec: &Spec, rule: Rule, pool: u64, online: Online, offline: Option<Offline>) -> Self {
        let (time, wire) = (Time::default(), Wire::default());
        let journal = Arc::new(Journal::private());
        let gpu = Gpu {
            device_instance: 0,
            uuid: UUID,
        };
        let shell = Shell::new(Parts {
            tunables: tunables(config(spec)),
            level: Level::L1,
            method: Method::default(),
            pool,
            believe_unproven: false,
            gpus: vec![(gpu, Some(Box::new(wire.clone())))],
            unseen: 0,
            generation: 1,
            journal: Arc::clone(&journal),
            adopted: Vec::new(),
            mps: false,
            ports: Ports {
                clock: Box::new(time.clone()),
                prover: Box::new(wire.clone()),
                machine: Box::new(Lasting),
                events: Box::new(NoEvents),
                recorder: None,
            },
        });
        Self {
            shell,
            wire,
            time,
            journal,
            edge: ns(spec.costs.edge),
            rule,
            thread: Thread::new(&spec.costs),
            online,
            offline,
            mail: VecDeque::new(),
            timers: Timers {
                doorbell: NEVER,
                retry: NEVER,
            },
            begun: false,
            enabled: false,
            figures: Seen::default(),
            book: None,
        }
    }

    // What happens before the trace.

    pub(super) fn start(&mut self, mut pool: Option<&mut Pool>, out: &mut Vec<Command>) {
        self.shell.begin();
        if let Some(pool) = pool.as_deref_mut() {
            pool.online_reads_parts(self.online.reads_parts().unwrap_or_default());
        }
        if self.rule != Rule::Own {
            self.shell.steer(Some(event::Event::Pause { job: None }));
        }
        let mut unused = Vec::new();
        let online = Shared(Arc::clone(&self.online.page));
        self.attach(ONLINE, Role::Online, online);
        if let Some(cache) = &self.online.cache {
            let said = MemorySaid::KvRegistered(cache.registered());
            self.hear(ONLINE, Said::Memory(Box::new(said)));
        }
        let offline = self.offline.as_ref().map(|offline| &offline.page);
        let offline = Shared(offline.map(Arc::clone).unwrap_or_default());
        self.attach(OFFLINE, Role::Offline, offline);
        self.answer(0, &mut unused);
        while self.at() < BEFORE {
            self.pass(self.at(), pool.as_deref_mut(), &mut unused);
        }
        self.begun = true;
        if self.enabled && self.rule == Rule::Own {
            out.push(Command::Run { takes: 0 });
        }
    }

    fn attach(&mut self, session: u64, role: Role, page: Shared) {
        let takes_memory = self.offline.is_some();
        let pid = i32::try_from(session).unwrap_or(i32::MAX);
        self.shell.take(Input::Attached(Box::new(Newcomer {
            session,
            peer: Peer {
                process: Process {
                    pid,
                    started: session,
                },
                uid: 1_000,
                name: Text::name("replay"),
                ..Peer::default()
            },
            role,
            rule: String::new(),
            asked: Asked::default(),
            gives: tidegate_policy::fair::Gives::default(),
            job: Text::name("offline"),
            joined_by: None,
            library: Library {
                takes_memory,
                ..Library::default()
            },
            last_agent_generation: 0,
            clock: tidegate_node::clock::ProcessClock::default(),
            page: Some(PageRef::new(page)),
            control_file: Some(SentFile(Box::new(()))),
            outbox: Box::new(Stream(session, self.wire.clone())),
        })));
        let (slot, uuid) = (0, UUID);
        self.hear(session, Said::Device { slot, uuid });
        if role == Role::Offline {
            let channel = Channel {
                client: CLIENT,
                channel: CHANNEL,
                tsg: CHANNEL,
                engine: Engine::Graphics,
                device_instance: Some(0),
                uuid: Some(UUID),
                subdevice: 0,
            };
            let changes = vec![RmChange::ClientUp(CLIENT), RmChange::ChannelUp(channel)];
            let snapshot = true;
            self.hear(session, Said::Rm { snapshot, changes });
        }
    }

    pub(super) fn hear(&mut self, session: u64, said: Said) {
        self.shell.take(Input::Said(session, said));
        self.shell.rest();
    }

    pub(super) fn prove(&mut self, claim: Claim) {
        self.shell.take(Input::Proof(match claim {
            Claim::File { session, .. } | Claim::Taken { session, .. } => {
                let file = Some(File::new(()));
                Proof::File { session, file }
            }
            Claim::Client {
                session,
                client,
                file,
                ..
            } => Proof::Client {
                session,
                client,
                file: Some(file),
            },
            Claim::Beats { session, .. } => Proof::Beats {
                session,
                page: None,
            },
            Claim::Uvm { session, .. } => Proof::Uvm {
                session,
                file: None,
            },
        }));
        self.shell.rest();
    }
}

/// The agent's usual settings beside `policy`: `config::Config::default` of the daemon.
const fn tunables(policy: Config) -> Tunables {
    Tunables {
        policy,
        rings_per_second: 50_000,
        prove_every_ns: 1_000_000_000,
        stall_ns: 50_000_000,
        answer_ns: 100_000_000,
        users: std::collections::BTreeMap::new(),
    }
}
