//! What processes say, as the agent hears it.
//!
//! The messages of the protocol end here: a process' stream is wrapped before its first message is read, and what
//! leaves this file is typed, bounded, and has every text as [`Text`]. Sizes and rates are bounded here, so that the
//! control thread's queue is.

pub(super) mod memory;

use crate::config::Role;
use crate::grpc::budget::Purse;
use crate::grpc::incoming::Carried;
use crate::grpc::rooms::Room;
use crate::inbox::{Channel, Library, Offer, RmChange, Said, Ticket};
use crate::wire::{method_said, role_said};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_node::page::Activity;
use tidegate_node::text::Text;
use tidegate_node::work::Training;
use tidegate_proto::v1;
use tidegate_proto::v1::client_event::Event;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

/// How long a client may take for its Hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The stream of a process.
#[derive(Debug)]
pub struct Stream {
    stream: Streaming<v1::ClientEvent>,
    messages: u64,
    /// Where room for the bytes of a message is.
    carried: Carried,
}

/// A message that is not read yet.
#[derive(Debug)]
pub struct Heard {
    event: Event,
    room: Option<Room>,
}

/// What a message says.
#[derive(Debug)]
pub enum Read {
    /// For the control thread, one after the other.
    Said(Vec<Said>),
    /// Of the process' hooks.
    Hooks(HookReport),
}

/// The first message of every stream.
#[derive(Debug)]
pub struct Hello {
    /// The role that it wishes for.
    pub wishes: Option<Role>,
    /// What it asks for instead of a role; empty: nothing.
    pub unknown_role: Text,
    /// The most that it wants its job to weigh; none: whatever the rules say.
    pub weight: Option<u32>,
    /// The job that it names; empty: none.
    pub job: Text,
    /// What is in it.
    pub library: Library,
    /// Highest layout of the page that it knows: major and minor.
    pub page_version: u32,
    /// Generation of the agent it obeyed before; 0: none.
    pub last_agent_generation: u64,
    /// It says the next edge of a device only when the last was heard.
    pub paces: bool,
    /// Its clock when it wrote this; none: its library does not say.
    pub clock_ns: Option<u64>,
}

/// The minor version of the page from which on an offline process can be asked whether it has work.
const SAYS_WORK: u32 = 3;
/// The one from which on a process has words for leases.
const KNOWS_LEASES: u32 = 5;

const fn is_since(hello: &v1::Hello, minor: u32) -> bool {
    hello.page_version >> 16 == tidegate_abi::page::MAJOR && hello.page_version & 0xffff >= minor
}

/// What a process says of its hooks, as it is kept: cleaned, cut and encoded, which is a fifth of what it is to work with.
#[derive(Clone, Debug, Default)]
pub struct HookReport(Vec<u8>);

impl Stream {
    /// Of messages that came by a connection.
    #[must_use]
    pub const fn new(stream: Streaming<v1::ClientEvent>, carried: Carried) -> Self {
        Self {
            stream,
            messages: 0,
            carried,
        }
    }

    /// How many messages came after the first, those of a newer library among them.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.messages
    }

    /// Its first message.
    ///
    /// # Errors
    /// When that is something else, or does not come in time.
    pub async fn hello(&mut self) -> Result<Hello, Status> {
        let first = tokio::time::timeout(HELLO_LIMIT, self.stream.next())
            .await
            .map_err(|_| Status::deadline_exceeded("say Hello first"))?;
        drop(self.carried.take());
        match first {
            Some(Ok(v1::ClientEvent {
                event: Some(Event::Hello(hello)),
            })) => Ok(Hello::from(&hello)),
            _ => Err(Status::failed_precondition("say Hello first")),
        }
    }

    /// The next message; none: the stream has ended.
    pub async fn next(&mut self) -> Option<Heard> {
        loop {
            match self.stream.next().await? {
                Ok(message) => {
                    self.messages += 1;
                    // Also of one that says nothing.
                    let room = self.carried.take();
                    if let Some(event) = message.event {
                        return Some(Heard { event, room });
                    }
                    // None: of a newer library.
                }
                // The usual end of a process is a broken stream: nothing to worry about.
                Err(status) => {
                    tracing::debug!(status = %Text::line(status.message()), "stream ended");
                    return None;
                }
            }
        }
    }
}

impl Heard {
    /// Pays for it; after how long it may be heard, if not at once.
    ///
    /// # Errors
    /// When it costs more than may ever be said at once: why, for the process.
    pub fn pay(&self, purse: &mut Purse, now: u64) -> Result<Option<Duration>, &'static str> {
        purse.pay(&self.event, now)
    }

    /// What it says, and the room for it.
    #[must_use]
    pub fn read(self) -> (Read, Option<Arc<Room>>) {
        let read = match self.event {
            Event::Hooks(report) => Read::Hooks(HookReport::from(report)),
            event => Read::Said(parts(event)),
        };
        (read, self.room.map(Arc::new))
    }
}

/// The inputs of the control thread for a message. A long message makes several, so that other inputs come between. None:
/// the message means nothing to it, or does not parse.
#[must_use]
pub fn parts(event: Event) -> Vec<Said> {
    said(event).map(slices).unwrap_or_default()
}

impl From<&v1::Hello> for Hello {
    fn from(hello: &v1::Hello) -> Self {
        Self {
            wishes: role_said(hello.wished_role()),
            unknown_role: Text::name(&hello.unknown_role),
            weight: Some(hello.weight).filter(|&weight| weight > 0),
            job: Text::name(&hello.job),
            library: Library {
                version: Text::name(&hello.version),
                driver: Text::name(&hello.driver_version),
                membarrier: hello.membarrier,
                takes_memory: hello.memory != 0,
                says_work: is_since(hello, SAYS_WORK),
                knows_leases: is_since(hello, KNOWS_LEASES),
            },
            page_version: hello.page_version,
            last_agent_generation: hello.last_agent_generation,
            paces: hello.paces,
            clock_ns: Some(hello.clock_ns).filter(|&at| at != 0),
        }
    }
}

/// Rows of a hook report that are kept; a library has some hundreds.
const ROWS: usize = 1_024;
/// Bytes of a symbol that are kept.
const SYMBOL: usize = 64;

fn symbol(raw: &str) -> String {
    let mut kept = String::from(Text::name(raw));
    while kept.len() > SYMBOL {
        kept.pop();
    }
    kept
}

impl From<v1::HookReport> for HookReport {
    fn from(mut report: v1::HookReport) -> Self {
        report.rows.truncate(ROWS);
        report.unhooked.truncate(ROWS);
        for row in &mut report.rows {
            row.symbol = symbol(&row.symbol);
        }
        for abi in &mut report.unhooked {
            abi.name = symbol(&abi.name);
        }
        Self(report.encode_to_vec())
    }
}

impl HookReport {
    /// As status shows it: the rows, and what was resolved in an ABI without a wrapper.
    #[must_use]
    pub fn shown(&self) -> (Vec<v1::HookRow>, Vec<v1::UnhookedAbi>) {
        let report = v1::HookReport::decode(&*self.0).unwrap_or_default();
        (report.rows, report.unhooked)
    }

    /// What it takes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Changes to RM objects, or requests, in one input of the control thread. A snapshot of objects is never divided, since
/// an object that it lacks is gone.
const SLICE: usize = 64;

/// A message, divided if it is long.
fn slices(said: Said) -> Vec<Said> {
    match said {
        Said::Rm {
            snapshot: false,
            changes,
        } if changes.len() > SLICE => changes
            .chunks(SLICE)
            .map(|part| Said::Rm {
                snapshot: false,
                changes: part.to_vec(),
            })
            .collect(),
        Said::Memory(said) => memory::slices(*said, SLICE)
            .into_iter()
            .map(|part| Said::Memory(Box::new(part)))
            .collect(),
        said => vec![said],
    }
}

/// The input of the control thread for a message. None: the message means nothing to it, or does not parse.
fn said(event: Event) -> Option<Said> {
    Some(match event {
        // A second Hello says nothing new.
        Event::Hello(_) | Event::Hooks(_) => return None,
        Event::BeatPage(page) => Said::Beats(page.fd),
        Event::TrainingUnit(unit) => Said::Unit(Offer {
            most: unit.most,
            backward: unit.backward,
            tokens: unit.tokens,
            unit_ns: unit.unit_ns,
        }),
        Event::LeaseOver(over) => Said::LeaseOver {
            slot: over.slot,
            lease: over.lease,
            units: over.units,
        },
        Event::KvRegistered(_)
        | Event::KvGone(_)
        | Event::Checked(_)
        | Event::Reclaimed(_)
        | Event::Restored(_)
        | Event::Requests(_)
        | Event::Withheld(_)
        | Event::Usage(_)
        | Event::Demand(_)
        | Event::Mapped(_)
        | Event::Pressure(_) => Said::Memory(Box::new(memory::said(event)?)),
        Event::DeviceSeen(seen) => Said::Device {
            slot: seen.slot,
            uuid: seen.uuid.try_into().ok()?,
        },
        Event::Rm(events) => Said::Rm {
            snapshot: events.snapshot,
            changes: events.events.into_iter().filter_map(change).collect(),
        },
        Event::ScheduleRequest(request) => Said::Schedule(Ticket {
            ticket: request.ticket,
            client: request.client,
            object: request.object,
        }),
        Event::Edge(edge) => Said::Edge {
            slot: edge.slot,
            edge: Activity {
                word: edge.activity,
                busy_since_ns: if edge.busy { edge.at_ns } else { 0 },
                idle_since_ns: if edge.busy { 0 } else { edge.at_ns },
                launches: edge.launches,
                graph: edge.graph,
                ..Activity::default()
            },
        },
        Event::ChannelResult(result) => Said::Channels {
            seq: result.seq,
            status: result.status,
            errno: result.errno,
            entered_ns: result.entered_ns,
            returned_ns: result.returned_ns,
            method: method_said(result.method()),
        },
        Event::Suspect(suspect) => Said::Suspect {
            slot: suspect.slot,
            reason: u32::try_from(suspect.reason).unwrap_or(0),
        },
        Event::Note(note) => Said::Note {
            kind: Text::name(&note.kind),
            text: Text::name(&note.text),
        },
        Event::GateWait(wait) => Said::GateWait(wait.waiting),
        Event::UvmFile(file) => Said::Uvm(file.fd),
        Event::ControlFile(file) => Said::ControlFile(file.fd),
        Event::Training(said) => Said::Training(Box::new(training(said))),
        Event::Progress(progress) => Said::Progress(progress.units),
    })
}

fn training(said: v1::Training) -> Training {
    Training {
        step: said.step,
        steps: said.steps,
        begun: said.begun,
        tokens: said.tokens,
        units: said.units,
        units_redone: said.units_redone,
        reclaims: said.reclaims,
        layers: said.layers,
        resident_layers: said.resident_layers,
        loss: said.loss.filter(|loss| loss.is_finite()),
        adapter: Text::line(&said.adapter),
        served: Text::line(&said.served),
    }
}

fn change(event: v1::RmEvent) -> Option<RmChange> {
    use v1::rm_event::Event;
    Some(match event.event? {
        Event::ChannelUp(up) => RmChange::ChannelUp(Channel {
            client: up.client,
            channel: up.channel,
            tsg: up.tsg,
            engine: match up.engine() {
                v1::Engine::Graphics => Engine::Graphics,
                v1::Engine::Copy => Engine::Copy,
                v1::Engine::Video => Engine::Video,
                v1::Engine::Unspecified => Engine::Unknown,
            },
            device_instance: u32::try_from(up.device_instance).ok(),
            uuid: up.uuid.try_into().ok(),
            subdevice: up.subdevice,
        }),
        Event::ChannelDown(down) => RmChange::ChannelDown {
            client: down.client,
            channel: down.channel,
        },
        Event::ClientUp(up) => RmChange::ClientUp(up.client),
        Event::ClientDown(down) => RmChange::ClientDown(down.client),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_node::memory::MemorySaid;

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn a_report_of_hooks_is_kept_in_as_many_bytes_as_its_rows_may_have() {
        let row = v1::HookRow {
            symbol: "\u{10348}".repeat(64),
            installed: true,
            resolved: true,
            calls: u64::MAX,
        };
        let kept = HookReport::from(v1::HookReport {
            rows: vec![row; 2_048],
            ..v1::HookReport::default()
        });
        assert!(kept.bytes() <= ROWS * (SYMBOL + 32), "{}", kept.bytes());
        let (rows, _) = kept.shown();
        assert_eq!((rows.len(), rows[0].symbol.len()), (ROWS, SYMBOL));
        assert_eq!((rows[0].installed, rows[0].calls), (true, u64::MAX));
    }

    /// P-SECURITY-9: preemption does not wait for what a stranger says.
    #[test]
    fn many_requests_are_told_in_parts_that_say_the_same() {
        let held = |request| v1::RequestBlocks {
            request,
            blocks: vec![1],
            ..v1::RequestBlocks::default()
        };
        let said = parts(Event::Requests(v1::Requests {
            snapshot: true,
            set: (0..1_000).map(held).collect(),
            forgotten: (0..500).collect(),
        }));
        assert!(said.len() > 1_500 / SLICE);
        let mut requests = Vec::new();
        for (nth, part) in said.into_iter().enumerate() {
            let Said::Memory(part) = part else {
                panic!("{part:?}");
            };
            let MemorySaid::Requests {
                snapshot,
                set,
                forgotten,
            } = *part
            else {
                panic!("{part:?}");
            };
            assert_eq!(snapshot, nth == 0, "what is said anew is said first");
            assert!(set.len() + forgotten.len() <= SLICE);
            requests.extend(set.iter().map(|held| (held.request.0, true)));
            requests.extend(forgotten.iter().map(|request| (request.0, false)));
        }
        let all = (0..1_000).map(|request| (request, true));
        let all = all.chain((0..500).map(|request| (request, false)));
        assert_eq!(requests, all.collect::<Vec<_>>());
        let none = parts(Event::Requests(v1::Requests {
            snapshot: true,
            ..v1::Requests::default()
        }));
        assert_eq!(none.len(), 1, "that there are none is said, too");
    }

    #[test]
    fn what_does_not_parse_is_skipped() {
        let seen = v1::DeviceSeen {
            slot: 0,
            uuid: vec![1; 15],
        };
        assert!(said(Event::DeviceSeen(seen)).is_none());
        assert!(change(v1::RmEvent { event: None }).is_none());
    }
}
