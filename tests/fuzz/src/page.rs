//! The page of a hostile process: any word of it, at any time.
//!
//! The first byte says what the process is; then come operations of a byte and what they need.

use crate::input::Input;
use crate::node::{HOSTILE, MEMORY, Node, UUID, WORDS, activity, client_of};
use tidegate_agent::config::Role;
use tidegate_agent::grpc::heard::parts;
use tidegate_agent::inbox::{RmChange, Said};
use tidegate_proto::v1::{self, client_event::Event};

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let start = input.byte();
    let role = [Role::Online, Role::Offline, Role::Ignore][usize::from(start % 3)];
    let mut node = Node::new(role, start & 0x80 != 0);
    for _ in 0..48 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 | 1 => {
                let word = u16::from_le_bytes(input.array());
                node.write(usize::from(word) % WORDS, input.long());
            }
            2 => {
                let slot = usize::from(input.byte());
                node.write(activity(slot), input.long());
                node.ring();
            }
            3 => {
                // The words of an engine's memory: version, used, reserved, mapped.
                let slot = usize::from(input.byte() % 16);
                for word in 0..4 {
                    node.write(MEMORY + slot * 8 + word, input.long());
                }
            }
            4 => node.ring(),
            5 => node.say(
                HOSTILE,
                Said::Device {
                    slot: u32::from(input.byte()),
                    uuid: UUID,
                },
            ),
            6 => node.say(HOSTILE, cache_or_client(&mut input)),
            _ => node.settle(),
        }
    }
    node.settle();
    node.judge();
}

/// What makes the agent read more of the page: a cache whose use stands in it, or a client.
fn cache_or_client(input: &mut Input<'_>) -> Said {
    let choice = input.byte();
    if choice.is_multiple_of(2) {
        return Said::Rm {
            snapshot: false,
            changes: vec![RmChange::ClientUp(client_of(HOSTILE) | u32::from(choice))],
        };
    }
    let cache = Event::KvRegistered(v1::KvRegistered {
        kv: u32::from(choice),
        slot: u32::from(input.byte() % 16),
        world: 1,
        handle_bytes: 2 << 20,
        block_count: 64,
        first_block: vec![0, 32],
        blocks: vec![32, 32],
        handles: vec![1, 1],
        backed: vec![3],
        elastic: true,
        ..v1::KvRegistered::default()
    });
    parts(cache).pop().expect("it is about memory")
}
