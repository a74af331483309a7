//! The stream of a hostile process: messages of `ClientEvent`, each behind its length.
//!
//! The first byte says what the process is. A message that does not parse ends the stream, as it does
//! in the agent; so does a length of zero, or the process itself does.
//!
//! What costs a node is long, and a fuzzer's inputs are short: the upper bits of a length say how often the lists of a
//! message are repeated, each time with other numbers, up to the largest message that the agent reads and the most that
//! its budget lets through. A message is judged by what it costs: the longest turn of the control thread, the memory
//! that it takes, and the memory that stays.

use crate::input::Input;
use crate::node::{HOSTILE, Node, process};
use crate::spent;
use prost::Message as _;
use std::time::Duration;
use tidegate_agent::config::{Config, Role};
use tidegate_agent::grpc::budget::{Account, MESSAGE_LIMIT, Verdict, cost};
use tidegate_agent::grpc::heard::parts;
use tidegate_agent::inbox::NodeInput;
use tidegate_proto::v1::{self, ClientEvent, client_event::Event};

/// The longest turn of the control thread.
const TURN: Duration = Duration::from_millis(5);
/// What one message may leave behind, and what it may take beyond the room of its own lists.
const MEMORY: usize = 1 << 20;
/// Bytes of memory for one of a message: an element of one byte becomes a structure, and is held once as it was read
/// and once as it is told.
const ROOM: usize = 256;
/// Items of a list in a message, each of a byte and more.
const ITEMS: usize = MESSAGE_LIMIT / 2;
/// How often an input that took too long is tried again: a core may be slow for once, an input is slow each time.
const AGAIN: usize = 3;

/// What the dearest message of an input cost.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    turn: Duration,
    message: usize,
    stays: usize,
    over: usize,
}

pub fn run(input: &[u8]) {
    let mut spent = once(input);
    for _ in 0..AGAIN {
        if spent.turn <= TURN && spent.stays <= MEMORY && spent.over <= MEMORY {
            break;
        }
        spent = once(input);
    }
    assert!(spent.turn <= TURN, "a turn too long: {spent:?}");
    assert!(
        spent.stays <= MEMORY,
        "a message leaves much behind: {spent:?}"
    );
    assert!(spent.over <= MEMORY, "a message takes much: {spent:?}");
}

fn once(input: &[u8]) -> Spent {
    let mut input = Input(input);
    let start = input.byte();
    let role = [Role::Online, Role::Offline, Role::Ignore][usize::from(start % 3)];
    let mut node = Node::new(role, start & 0x80 != 0);
    let per_second = Config::default().tuning.messages_per_second;
    let mut spent = Spent::default();
    for number in 0..48 {
        if input.is_empty() {
            break;
        }
        let length = u16::from_le_bytes(input.array());
        let Ok(message) = ClientEvent::decode(input.bytes(usize::from(length % 4_096))) else {
            node.input(NodeInput::Disconnected(HOSTILE));
            break;
        };
        let before = spent::begin();
        let bytes = match message.event {
            Some(mut event) => {
                repeat(&mut event, 1 << (length >> 12));
                let bytes = (ClientEvent {
                    event: Some(event.clone()),
                })
                .encoded_len();
                let paid = Account::default().charge(cost(&event), per_second.into(), 0);
                // What costs more than it may is not even looked at, nor is what is too long.
                if bytes <= MESSAGE_LIMIT && !matches!(paid, Verdict::Never) {
                    for said in parts(event) {
                        node.say(HOSTILE, said);
                    }
                }
                bytes
            }
            None if length == 0 => {
                node.input(NodeInput::Exited(process(HOSTILE)));
                0
            }
            None => 0,
        };
        // Some come alone, some together.
        if number % 3 == 0 {
            node.settle();
        }
        spent.message = spent.message.max(bytes);
        spent.over = spent
            .over
            .max((spent::most() - before).saturating_sub(ROOM * bytes));
    }
    node.settle();
    spent.turn = node.longest_turn();
    spent.stays = node.stays();
    node.judge();
    spent
}

/// Repeats the lists of a message, so that they are `times` as long and say other things.
fn repeat(event: &mut Event, times: u32) {
    match event {
        Event::Rm(changes) => longer(&mut changes.events, times, |change, by| {
            use v1::rm_event::Event;
            match &mut change.event {
                Some(Event::ChannelUp(up)) => up.channel = up.channel.wrapping_add(by),
                Some(Event::ChannelDown(down)) => down.channel = down.channel.wrapping_sub(by),
                Some(Event::ClientUp(up)) => up.client = up.client.wrapping_add(by),
                Some(Event::ClientDown(down)) => down.client = down.client.wrapping_sub(by),
                None => {}
            }
        }),
        Event::Requests(requests) => {
            longer(&mut requests.set, times, |held, by| {
                held.request = held.request.wrapping_sub(by.into());
            });
            longer(&mut requests.forgotten, times, |request, by| {
                *request = request.wrapping_add(by.into());
            });
            let most = ITEMS / requests.set.len().max(1);
            for held in &mut requests.set {
                let room = u32::try_from(most / held.blocks.len().max(1)).unwrap_or(1);
                longer(&mut held.blocks, times.min(room), |block, by| {
                    *block = block.wrapping_sub(by);
                });
            }
        }
        Event::KvRegistered(kv) => {
            let apart = kv.blocks.iter().copied().max().unwrap_or(1);
            longer(&mut kv.first_block, times, |first, by| {
                *first = first.wrapping_add(by.wrapping_mul(apart));
            });
            longer(&mut kv.blocks, times, |_, _| {});
            longer(&mut kv.handles, times, |_, _| {});
            longer(&mut kv.backed, times, |_, _| {});
        }
        Event::Reclaimed(done) => {
            longer(&mut done.stripes, times, |at, by| *at = at.wrapping_add(by))
        }
        Event::Restored(done) => {
            longer(&mut done.stripes, times, |at, by| *at = at.wrapping_sub(by))
        }
        _ => {}
    }
}

/// Makes `list` `times` as long, but not longer than one of a message can be.
fn longer<T: Clone>(list: &mut Vec<T>, times: u32, change: impl Fn(&mut T, u32)) {
    let once = list.len();
    for by in 1..times {
        if list.len() + once > ITEMS {
            break;
        }
        for at in 0..once {
            let mut element = list[at].clone();
            change(&mut element, by);
            list.push(element);
        }
    }
}
