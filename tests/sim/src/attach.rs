//! A process attaches to an agent: it reports who it is, which devices it uses and which RM objects it has.

use crate::defect::Defect;
use crate::dice::{MS, US};
use crate::ports::{Shared, Stream};
use crate::timeline::Who;
use crate::world::{Ev, In, Play, World, client_of, process_of, uuid};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_abi::class::Engine;
use tidegate_device::{ChannelId, TsgId};
use tidegate_node::Input;
use tidegate_node::clock::{ProcessClock, Stamp};
use tidegate_node::file::SentFile;
use tidegate_node::kinds::{Level, Role};
use tidegate_node::message::{Asked, Channel, Library, Newcomer, Peer, RmChange, Said, Ticket};
use tidegate_node::page::PageRef;
use tidegate_node::text::Text;

/// How soon a process that must not attach yet tries again, ns.
const SETTLES: u64 = MS;

impl<P: Play> World<P> {
    pub fn attach(&mut self, pid: usize) {
        let (now, epoch) = (self.now, self.epoch);
        let process = &self.processes[pid];
        let Some(agent) = &self.agent else { return };
        if !process.alive || process.attached == Some(agent.epoch) {
            return;
        }
        if P::is_changing(self, pid) && !self.is_broken(Defect::AttachesMoving) {
            // An agent that knows it may enable its channels: not over a range where nothing is mapped.
            return self.tell_in(SETTLES, In::Attach(pid));
        }
        let gives = P::gives(self, pid);
        let process = &mut self.processes[pid];
        let Some(agent) = &mut self.agent else { return };
        agent.sessions += 1;
        let (session, wire) = (agent.sessions, agent.wire.clone());
        process.new_page(session, now);
        if let Some(timeline) = &self.timeline {
            let kind = if process.is_online() {
                "online"
            } else {
                "offline"
            };
            let what = format!("process {pid} ({kind}) attaches as session {session}");
            timeline.put(now, Who::Schedule, what);
        }
        let stamp = Stamp {
            theirs_ns: process.clock(now),
            from_ns: now,
            to_ns: now,
        };
        // The gates of a new page are shut, whatever those of the last one were.
        let newcomer = Newcomer {
            session,
            peer: Peer {
                process: process_of(pid),
                uid: 1_000,
                name: Text::default(),
                ..Peer::default()
            },
            role: if process.is_online() {
                Role::Online
            } else {
                Role::Offline
            },
            rule: String::new(),
            asked: Asked::default(),
            gives,
            joined_by: None,
            job: process
                .job
                .map_or_else(Text::default, |job| Text::name(&job.to_string())),
            library: Library {
                takes_memory: true,
                knows_leases: P::LEASES,
                ..Library::default()
            },
            last_agent_generation: process.obeyed,
            clock: ProcessClock::found(None, Some(stamp)).unwrap_or_default(),
            page: Some(PageRef::new(Shared(
                pid,
                Arc::clone(&process.page),
                wire.clone(),
            ))),
            control_file: Some(SentFile(Box::new(()))),
            outbox: Box::new(Stream {
                session,
                wire,
                listens: Arc::clone(&process.listens),
            }),
        };
        process.attached = Some(epoch);
        process.attached_once = true;
        process.obeyed = agent.shell.generation();
        process.reported = BTreeSet::new();
        let devices: Vec<usize> = process.devices.iter().map(|device| device.gpu).collect();
        let online = process.is_online();
        self.say(Input::Attached(Box::new(newcomer)));
        for (at, gpu) in devices.into_iter().enumerate() {
            let slot = u32::try_from(at).unwrap_or(u32::MAX);
            let uuid = uuid(gpu);
            self.say(Input::Said(session, Said::Device { slot, uuid }));
        }
        if online {
            self.processes[pid].reported = (0..self.processes[pid].devices.len()).collect();
            self.wake_prober(pid);
        } else {
            let wait = self.dice.between(50 * US, 500 * US);
            self.tell_in(wait, In::Objects(pid, None));
            self.at(now, Ev::Reporter(pid));
        }
        P::attached(self, pid);
    }

    /// A process says which RM objects it has, and that a scheduling call waits.
    pub fn objects(&mut self, pid: usize, waits: Option<(usize, TsgId)>) {
        let process = &self.processes[pid];
        if !process.alive || process.attached != Some(self.epoch) {
            return;
        }
        let (session, client) = (process.session, client_of(pid));
        let mut changes = vec![RmChange::ClientUp(client)];
        for device in &process.devices {
            for (tsg, channel) in &device.channels {
                let place = (device.gpu, *tsg, *channel);
                changes.push(RmChange::ChannelUp(self.channel(client, place)));
            }
        }
        let snapshot = true;
        self.say(Input::Said(session, Said::Rm { snapshot, changes }));
        if let Some((gpu, tsg)) = waits {
            self.tickets.push((gpu, tsg));
            let ticket = Ticket {
                ticket: u64::try_from(self.tickets.len()).unwrap_or(u64::MAX),
                client,
                object: self.handle_of_tsg(client, gpu, tsg),
            };
            self.say(Input::Said(session, Said::Schedule(ticket)));
        }
        let devices = self.processes[pid].devices.len();
        if self.proven.contains(&(self.epoch, pid)) || self.rules.level == Level::L5 {
            self.processes[pid].reported = (0..devices).collect();
        }
    }

    fn handle_of_tsg(&self, client: u32, gpu: usize, tsg: TsgId) -> u32 {
        let of = |known: &(&(u32, u32), &TsgId)| known.0.0 == client && *known.1 == tsg;
        let on = |handle: u32| handle >> 16 == u32::try_from(gpu).unwrap_or(0);
        let mut all = self.groups.iter().filter(of).map(|known| known.0.1);
        all.find(|handle| on(*handle)).unwrap_or(0)
    }

    fn channel(&self, client: u32, (gpu, tsg, channel): (usize, TsgId, ChannelId)) -> Channel {
        let of = |known: &(&(u32, u32), &(usize, ChannelId))| {
            known.0.0 == client && *known.1 == (gpu, channel)
        };
        let handle = self.handles.iter().find(of).map_or(0, |known| known.0.1);
        Channel {
            client,
            channel: handle,
            tsg: self.handle_of_tsg(client, gpu, tsg),
            engine: Engine::Graphics,
            device_instance: u32::try_from(gpu).ok(),
            uuid: Some(uuid(gpu)),
            subdevice: 0,
        }
    }
}
