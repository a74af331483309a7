//! Many sessions of one tenant, each at the full rate that it may have: what stays of all that they said.
//!
//! An input is a list of words of eight bytes. A word names a session and what it says: how many of what, as powers of
//! two, and where their numbers begin. Time passes only as the budget has a session wait, so that each word is said as soon
//! as it may be. What the agent keeps is counted by the allocator, after each word.

use crate::input::Input;
use crate::node::{Node, process};
use std::sync::Arc;
use tidegate_agent::config::{Config, Role};
use tidegate_agent::grpc::budget::{Budget, MESSAGE_LIMIT, Purse, caches};
use tidegate_agent::grpc::heard::parts;
use tidegate_agent::inbox::NodeInput;
use tidegate_node::kinds::Tenant;
use tidegate_proto::v1::{self, client_event::Event};

/// Its user.
const UID: u32 = 70_000;
/// The first of its sessions.
const FIRST: u64 = 10;
/// How many it has at a time.
const SESSIONS: usize = 8;
/// Words of a fuzzer's input that are read: one may be 16,384 requests, and an input has ten seconds.
const WORDS: usize = 24;

/// What the agent may keep for a process that is attached: half of its memory is for the connections, of 128 KiB each
/// (SECURITY.md: one for each 256 KiB of its memory).
const PROCESS: usize = 128 << 10;
/// Of the lists of requests of a tenant that is alone (SECURITY.md).
const LISTS: usize = 16 << 20;
/// Of other things that a node keeps, whoever comes: events, jobs that are over, room that an allocator rounds up.
const BESIDE: usize = 8 << 20;

/// What may stay of one tenant with so many sessions, bytes.
fn allowance(sessions: usize) -> usize {
    let caches = usize::try_from(caches()).expect("it fits");
    sessions * PROCESS + caches / 2 + LISTS + BESIDE
}

/// A session, and what it may say.
struct Session {
    number: u64,
    purse: Purse,
}

struct World {
    node: Node,
    budget: Arc<Budget>,
    tenant: Tenant,
    sessions: Vec<Session>,
    number: u64,
    now: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            node: Node::new(Role::Offline, false),
            budget: Arc::new(Budget::new(Arc::default())),
            tenant: Tenant::User(UID),
            sessions: Vec::new(),
            number: FIRST,
            now: 1 << 40,
        };
        for place in 0..SESSIONS {
            world.comes(place);
        }
        world
    }

    fn comes(&mut self, place: usize) {
        let session = Session {
            number: self.number,
            purse: self
                .budget
                .purse(&self.tenant, Config::default().tuning.messages_per_second),
        };
        self.node.attach(session.number, &self.tenant, UID);
        self.number += 1;
        self.sessions.insert(place, session);
    }

    /// One process ends, and another comes.
    fn again(&mut self, place: usize) {
        let session = self.sessions.remove(place);
        self.node.input(NodeInput::Disconnected(session.number));
        self.node.input(NodeInput::Exited(process(session.number)));
        drop(session);
        self.comes(place);
    }

    /// A session says something, as soon as it may; what may never be said ends it.
    fn says(&mut self, place: usize, event: Event) {
        if event.encoded_len() > MESSAGE_LIMIT {
            return;
        }
        let session = &mut self.sessions[place];
        match session.purse.pay(&event, self.now) {
            Err(_) => return self.again(place),
            Ok(late) => {
                let late = late.unwrap_or_default().as_nanos();
                self.now += u64::try_from(late).expect("it fits");
            }
        }
        for said in parts(event) {
            self.node.say(session.number, said);
        }
    }

    fn judge(&mut self) {
        self.node.settle();
        let (stays, most) = (self.node.stays(), allowance(self.sessions.len()));
        assert!(
            stays <= most,
            "{stays} bytes stay of a tenant that may have {most}"
        );
    }
}

/// One word of an input.
struct Word {
    session: u8,
    kind: u8,
    /// Powers of two.
    many: u8,
    long: u8,
    from: u32,
}

impl Word {
    fn read(input: &mut Input<'_>) -> Self {
        let [session, kind, many, long] = input.array();
        let from = u32::from_le_bytes(input.array());
        Self {
            session,
            kind,
            many,
            long,
            from,
        }
    }

    /// Up to 2^`most`.
    const fn power(power: u8, most: u8) -> u32 {
        1 << (power % (most + 1))
    }

    fn event(&self) -> Event {
        let (many, from) = (Self::power(self.many, 14), self.from);
        match self.kind % 8 {
            0..3 => {
                let long = Self::power(self.long, 17).min((1 << 18) / many);
                let held = |nth: u32| v1::RequestBlocks {
                    request: u64::from(from.wrapping_add(nth)),
                    tokens: 16,
                    blocks: (0..long).map(|block| block.wrapping_add(nth)).collect(),
                };
                Event::Requests(v1::Requests {
                    snapshot: false,
                    set: (0..many).map(held).collect(),
                    forgotten: Vec::new(),
                })
            }
            3 => Event::Requests(v1::Requests {
                snapshot: self.long.is_multiple_of(16),
                set: Vec::new(),
                forgotten: (0..many)
                    .map(|nth| u64::from(from.wrapping_add(nth)))
                    .collect(),
            }),
            4 | 5 => self.cache(),
            6 => Event::KvGone(v1::KvGone { kv: 1 + from % 32 }),
            _ => Event::Rm(v1::RmEvents {
                snapshot: self.long.is_multiple_of(2),
                events: (0..many.min(4_000)).map(|nth| channel(from, nth)).collect(),
            }),
        }
    }

    /// A cache in blocks of a stripe each; every second one has a hole.
    fn cache(&self) -> Event {
        let stripes = Self::power(self.many, 19);
        let backed = if self.long.is_multiple_of(2) {
            0xff
        } else {
            0x7f
        };
        Event::KvRegistered(v1::KvRegistered {
            kv: 1 + self.from % 32,
            world: 1,
            handle_bytes: 2 << 20,
            block_count: stripes,
            stripe_kinds: vec![
                v1::StripeKind {
                    step: 0,
                    blocks: 1,
                    handles: 1,
                },
                v1::StripeKind {
                    step: 1,
                    blocks: 1,
                    handles: 1,
                },
            ],
            stripe_kind: (0..stripes).map(|nth| u32::from(nth != 0)).collect(),
            backed: vec![backed; stripes.div_ceil(8) as usize],
            ..v1::KvRegistered::default()
        })
    }
}

/// A channel of a client that nobody has.
fn channel(from: u32, nth: u32) -> v1::RmEvent {
    let up = v1::ChannelUp {
        client: from,
        channel: nth,
        tsg: nth,
        engine: v1::Engine::Graphics.into(),
        ..v1::ChannelUp::default()
    };
    v1::RmEvent {
        event: Some(v1::rm_event::Event::ChannelUp(up)),
    }
}

pub fn run(input: &[u8]) {
    read(input, WORDS);
}

fn read(input: &[u8], words: usize) {
    let mut input = Input(input);
    let mut world = World::new();
    for _ in 0..words {
        if input.is_empty() {
            break;
        }
        let word = Word::read(&mut input);
        let place = usize::from(word.session) % SESSIONS;
        if word.kind == u8::MAX {
            world.again(place);
        } else {
            world.says(place, word.event());
        }
        world.judge();
    }
    // Who is gone leaves nothing.
    for place in 0..SESSIONS {
        world.again(place);
    }
    world.node.settle();
    let (stays, most) = (world.node.stays(), SESSIONS * PROCESS + BESIDE);
    assert!(
        stays <= most,
        "{stays} bytes stay of processes that are gone"
    );
    world.node.judge();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(session: u8, kind: u8, (many, long): (u8, u8), from: u32) -> [u8; 8] {
        let [a, b, c, d] = from.to_le_bytes();
        [session, kind, many, long, a, b, c, d]
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn requests_of_a_block_each_in_many_jobs_stay_within_what_a_tenant_may_have() {
        let mut words = Vec::new();
        for session in 0..SESSIONS as u8 {
            words.extend(word(session, 4, (10, 0), 0));
            for nth in 0..10 {
                words.extend(word(session, 0, (14, 0), nth << 14));
            }
        }
        read(&words, usize::MAX);
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn long_lists_in_large_caches_stay_within_what_a_tenant_may_have() {
        let mut words = Vec::new();
        for session in 0..4 {
            words.extend(word(session, 4, (16, 0), 0));
            for nth in 0..20 {
                words.extend(word(session, 0, (2, 16), nth << 14));
            }
        }
        read(&words, usize::MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

        /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
        #[test]
        fn whatever_a_tenant_says_in_any_order_stays_within_what_it_may_have(
            words in prop::collection::vec(
                (0..SESSIONS as u8, prop_oneof![9 => 0u8..8, 1 => Just(u8::MAX)], 0u8..20, 0u8..18, 0u32..1 << 18),
                1..WORDS,
            ),
        ) {
            let said = words.into_iter().flat_map(|(session, kind, many, long, from)| {
                word(session, kind, (many, long), from)
            });
            run(&said.collect::<Vec<u8>>());
        }
    }
}
