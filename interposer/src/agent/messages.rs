//! Builds the messages to the agent.

use crate::real::row::Row;
use crate::state::activity::slots;
use crate::state::objects::{Edge, Up};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use tidegate_abi::class::Engine;
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_core::rm::{Channel, Record};
use tidegate_proto::v1::{self, client_event::Event};

/// What waits for the agent, as it is sent.
pub fn event(item: Up) -> Event {
    match item {
        Up::Record(change) => Event::Rm(v1::RmEvents {
            snapshot: false,
            events: vec![record(change)],
        }),
        Up::Schedule {
            ticket,
            client,
            object,
        } => Event::ScheduleRequest(v1::ScheduleRequest {
            ticket,
            client,
            object,
        }),
        Up::Suspect {
            device,
            reason,
            since_ns,
        } => Event::Suspect(v1::Suspect {
            slot: u32::try_from(device).unwrap_or(0),
            reason: reason.map_or(0, |reason| reason as i32),
            since_ns,
        }),
        Up::Note { kind, text } => Event::Note(v1::Note {
            kind: kind.to_owned(),
            text,
        }),
    }
}

/// An edge, as it is sent.
pub fn edge(device: usize, edge: Edge) -> Event {
    Event::Edge(v1::Edge {
        slot: u32::try_from(device).unwrap_or(0),
        busy: edge.activity & ACTIVITY_BUSY != 0,
        activity: edge.activity,
        at_ns: edge.at_ns,
        launches: edge.launches,
        graph: edge.graph,
    })
}

/// A change to the objects, as it is sent.
pub fn record(record: Record) -> v1::RmEvent {
    use v1::rm_event::Event as Rm;
    let event = match record {
        Record::ClientUp(client) => Rm::ClientUp(v1::ClientUp { client }),
        Record::ClientDown(client) => Rm::ClientDown(v1::ClientDown { client }),
        Record::ChannelUp(channel) => Rm::ChannelUp(channel_up(channel)),
        Record::ChannelDown { client, channel } => {
            Rm::ChannelDown(v1::ChannelDown { client, channel })
        }
    };
    v1::RmEvent { event: Some(event) }
}

fn channel_up(channel: Channel) -> v1::ChannelUp {
    v1::ChannelUp {
        client: channel.client,
        channel: channel.channel,
        tsg: channel.tsg,
        engine: match channel.engine {
            Engine::Graphics => v1::Engine::Graphics,
            Engine::Copy => v1::Engine::Copy,
            Engine::Video => v1::Engine::Video,
            Engine::Unknown => v1::Engine::Unspecified,
        }
        .into(),
        device_instance: channel
            .device_instance
            .and_then(|instance| i32::try_from(instance).ok())
            .unwrap_or(-1),
        uuid: channel.uuid.map(|uuid| uuid.to_vec()).unwrap_or_default(),
        class: channel.class,
        subdevice: channel.subdevice.unwrap_or(0),
    }
}

/// Every row, with the calls of all slots added.
pub fn hook_rows(rows: &[Row]) -> Vec<v1::HookRow> {
    let mut hot = vec![0_u64; rows.len()];
    if let Some(all) = slots::all() {
        let high = all.high.load(Acquire) as usize;
        for slot in all.own.iter().take(high) {
            for (sum, calls) in hot.iter_mut().zip(&slot.calls) {
                *sum += calls.load(Relaxed);
            }
        }
    }
    rows.iter()
        .zip(hot)
        .map(|(row, hot)| {
            let calls = hot + row.calls.load(Relaxed);
            v1::HookRow {
                symbol: String::from_utf8_lossy(row.symbol).into_owned(),
                installed: row.installed(calls),
                resolved: row.resolved(),
                calls,
            }
        })
        .collect()
}
