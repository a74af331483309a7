//! The stream of a hostile process: messages of `ClientEvent`, each behind its length.
//!
//! The first byte says what the process is. A message that does not parse ends the stream, as it does
//! in the agent; so does a length of zero, or the process itself does.

use crate::input::Input;
use crate::node::{HOSTILE, Node};
use prost::Message as _;
use tidegate_agent::config::Role;
use tidegate_agent::grpc::sessions::said;
use tidegate_agent::inbox::NodeInput;
use tidegate_node::kinds::Process;
use tidegate_proto::v1::ClientEvent;

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let start = input.byte();
    let role = [Role::Online, Role::Offline, Role::Ignore][usize::from(start % 3)];
    let mut node = Node::new(role, start & 0x80 != 0);
    for number in 0..48 {
        if input.is_empty() {
            break;
        }
        let length = usize::from(u16::from_le_bytes(input.array()));
        let Ok(message) = ClientEvent::decode(input.bytes(length % 4_096)) else {
            node.input(NodeInput::Disconnected(HOSTILE));
            break;
        };
        match message.event.and_then(said) {
            Some(said) => node.say(HOSTILE, said),
            None if length == 0 => node.input(NodeInput::Exited(Process {
                pid: 100 + HOSTILE as i32,
                started: HOSTILE,
            })),
            None => {}
        }
        // Some come alone, some together.
        if number % 3 == 0 {
            node.settle();
        }
    }
    node.settle();
    node.judge();
}
