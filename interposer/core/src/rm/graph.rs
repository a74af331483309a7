//! The object graph of one process.
//!
//! Every object has a parent and may depend on others (a channel on its VA space and context share, a TSG on its VA
//! space). Freeing an object frees its children and everything that depends on it; freeing a client frees everything.
//! Handles repeat between clients and are reused after a free, so everything is keyed by (client, handle). If a handle
//! is allocated that still exists here, the library missed a free: the old object is removed first.
//!
//! The engine of its group says what a channel feeds. A graphics channel carries more than one engine object, a copy
//! object beside the one that computes, in an order that the driver chooses. If the group has no engine, computing
//! wins.
//!
//! A free is applied before the ioctl is forwarded ([`Graph::lift`]), and undone if the ioctl fails
//! ([`Graph::put_back`]). In between the agent must not name the channel, because a stale pair in its list would fail
//! the call for the others.

use super::{Call, Channel, Params, Record};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_abi::class::{self, Engine};

type Key = (u32, u32);

#[derive(Clone, Copy, Debug)]
struct Node {
    class: u32,
    parent: u32,
    deps: [u32; 2],
    params: Params,
    /// By the engine objects below a channel.
    objects: Option<Engine>,
    /// By `NVA06F_CTRL_CMD_BIND`.
    bound: Option<Engine>,
    uuid: Option<[u8; 16]>,
}

/// Every object of a process, by (client, handle); clients are their own handle.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: BTreeMap<Key, Node>,
}

/// What a free took out.
#[derive(Debug)]
pub struct Lifted(Vec<(Key, Node)>);

const fn is_root(class: u32) -> bool {
    matches!(
        class,
        class::NV01_ROOT | class::NV01_ROOT_NON_PRIV | class::NV01_ROOT_CLIENT
    )
}

impl Graph {
    /// Takes a successful ioctl in; what it changed is appended to `records`.
    pub fn apply(&mut self, call: Call, records: &mut Vec<Record>) {
        match call {
            Call::Alloc {
                client,
                parent,
                handle,
                class,
                params,
            } => self.alloc(client, parent, handle, class, params, records),
            Call::Dup {
                client,
                parent,
                handle,
                client_src,
                handle_src,
            } => {
                if let Some(source) = self.nodes.get(&(client_src, handle_src)).copied() {
                    // What the source depends on lives in the source's client.
                    let params = match source.params {
                        Params::Channel { engine_type, .. } => Params::Channel {
                            engine_type,
                            va_space: 0,
                            context_share: 0,
                        },
                        other => other,
                    };
                    self.alloc(client, parent, handle, source.class, params, records);
                }
            }
            Call::Bind {
                client,
                channel,
                engine_type,
            } => {
                let engine = class::engine_of_type(engine_type);
                for channel in self.channels_of(client, channel) {
                    self.learn(client, channel, records, |node| {
                        if engine != Engine::Unknown {
                            node.bound = Some(engine);
                        }
                    });
                }
            }
            Call::UvmRegister {
                client,
                channel,
                uuid,
            } => self.learn(client, channel, records, |node| node.uuid = Some(uuid)),
        }
    }

    /// Takes an object out with everything that goes with it.
    pub fn lift(&mut self, client: u32, handle: u32, records: &mut Vec<Record>) -> Lifted {
        let mut gone = BTreeSet::new();
        let whole_client = client == handle;
        if whole_client {
            gone.extend(self.of_client(client).map(|(key, _)| *key));
        } else if handle != 0 {
            // Also for a handle that is not known: what hangs below it was seen without it.
            let mut open = vec![handle];
            while let Some(next) = open.pop() {
                if gone.insert((client, next)) {
                    open.extend(
                        self.of_client(client)
                            .filter(|(key, node)| {
                                // A client is its own parent, not its own child.
                                key.1 != next && (node.parent == next || node.deps.contains(&next))
                            })
                            .map(|(key, _)| key.1),
                    );
                }
            }
        }
        let mut lifted = Vec::with_capacity(gone.len());
        for key in gone {
            if let Some(node) = self.nodes.remove(&key) {
                if class::is_gpfifo(node.class) {
                    let (client, channel) = key;
                    records.push(Record::ChannelDown { client, channel });
                }
                lifted.push((key, node));
            }
        }
        if whole_client && !lifted.is_empty() {
            records.push(Record::ClientDown(client));
        }
        Lifted(lifted)
    }

    /// Puts back what a free took out that then failed.
    pub fn put_back(&mut self, lifted: Lifted, records: &mut Vec<Record>) {
        let keys: Vec<Key> = lifted.0.iter().map(|(key, _)| *key).collect();
        for (key, node) in lifted.0 {
            // A handle that another thread was given meanwhile is the newer truth.
            self.nodes.entry(key).or_insert(node);
        }
        let clients = keys.iter().filter(|(client, handle)| client == handle);
        records.extend(clients.map(|(client, _)| Record::ClientUp(*client)));
        for (client, handle) in keys {
            records.extend(self.channel(client, handle).map(Record::ChannelUp));
        }
    }

    /// Everything that stands, clients first, as the first message of a session tells it.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Record> {
        let clients = self
            .nodes
            .keys()
            .filter(|(client, handle)| client == handle);
        let channels = self
            .nodes
            .keys()
            .filter_map(|&(client, handle)| self.channel(client, handle));
        clients
            .map(|(client, _)| Record::ClientUp(*client))
            .chain(channels.map(Record::ChannelUp))
            .collect()
    }

    /// Every channel that stands.
    pub fn channels(&self) -> impl Iterator<Item = Channel> {
        self.nodes
            .keys()
            .filter_map(|&(client, handle)| self.channel(client, handle))
    }

    /// Clients that own channels, and how many.
    #[must_use]
    pub fn owners(&self) -> Vec<(u32, usize)> {
        let mut owners: Vec<(u32, usize)> = Vec::new();
        let channels = self.nodes.iter();
        for ((client, _), _) in channels.filter(|(_, node)| class::is_gpfifo(node.class)) {
            match owners.last_mut() {
                Some((last, count)) if last == client => *count += 1,
                _ => owners.push((*client, 1)),
            }
        }
        owners
    }

    /// A subdevice of `client` below the device of this instance: what a control on a GPU is
    /// addressed to.
    #[must_use]
    pub fn subdevice(&self, client: u32, device_instance: u32) -> Option<u32> {
        self.of_client(client)
            .filter(|(_, node)| node.class == class::NV20_SUBDEVICE_0)
            .map(|(key, _)| key.1)
            .find(|&handle| self.device_instance(client, handle) == Some(device_instance))
    }

    /// Objects that stand, clients among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing stands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn alloc(
        &mut self,
        client: u32,
        parent: u32,
        handle: u32,
        class: u32,
        params: Params,
        records: &mut Vec<Record>,
    ) {
        // The driver gives nothing the handle 0, and what depends on nothing names it.
        if handle == 0 || client == 0 && !is_root(class) {
            return;
        }
        if is_root(class) {
            self.lift(handle, handle, records);
            self.insert(handle, handle, handle, class, Params::None);
            records.push(Record::ClientUp(handle));
            return;
        }
        if !self.nodes.contains_key(&(client, client)) {
            // The client came by an open file of another process or before this library did.
            self.insert(
                client,
                client,
                client,
                class::NV01_ROOT_CLIENT,
                Params::None,
            );
            records.push(Record::ClientUp(client));
        }
        if handle == client {
            return;
        }
        self.lift(client, handle, records);
        self.insert(client, parent, handle, class, params);
        if let Some(channel) = self.channel(client, handle) {
            records.push(Record::ChannelUp(channel));
        }
        if let Some(engine) = class::engine_of_class(class) {
            self.learn(client, parent, records, |node| {
                if node.objects != Some(Engine::Graphics) {
                    node.objects = Some(engine);
                }
            });
        }
    }

    fn insert(&mut self, client: u32, parent: u32, handle: u32, class: u32, params: Params) {
        let deps = match params {
            Params::Channel {
                va_space,
                context_share,
                ..
            } => [va_space, context_share],
            Params::Tsg { va_space, .. } | Params::ContextShare { va_space } => [va_space, 0],
            Params::None | Params::Device { .. } => [0, 0],
        };
        let node = Node {
            class,
            parent,
            // Handle 0 names nothing.
            deps: deps.map(|dep| if dep == handle { 0 } else { dep }),
            params,
            objects: None,
            bound: None,
            uuid: None,
        };
        self.nodes.insert((client, handle), node);
    }

    /// Changes what is known of a channel and says so if it made a difference.
    fn learn(
        &mut self,
        client: u32,
        channel: u32,
        records: &mut Vec<Record>,
        change: impl FnOnce(&mut Node),
    ) {
        let before = self.channel(client, channel);
        if let Some(node) = self.nodes.get_mut(&(client, channel)) {
            change(node);
        }
        let after = self.channel(client, channel);
        if before != after {
            records.extend(after.map(Record::ChannelUp));
        }
    }

    fn channel(&self, client: u32, handle: u32) -> Option<Channel> {
        let node = self.nodes.get(&(client, handle))?;
        if !class::is_gpfifo(node.class) {
            return None;
        }
        let tsg = self
            .nodes
            .get(&(client, node.parent))
            .filter(|parent| parent.class == class::KEPLER_CHANNEL_GROUP_A);
        let own = match node.params {
            Params::Channel { engine_type, .. } => class::engine_of_type(engine_type),
            _ => Engine::Unknown,
        };
        let of_tsg = match tsg.map(|tsg| tsg.params) {
            Some(Params::Tsg { engine_type, .. }) => class::engine_of_type(engine_type),
            _ => Engine::Unknown,
        };
        let said = [
            of_tsg,
            node.objects.unwrap_or(Engine::Unknown),
            own,
            node.bound.unwrap_or(Engine::Unknown),
        ];
        let engine = said
            .into_iter()
            .find(|engine| *engine != Engine::Unknown)
            .unwrap_or(Engine::Unknown);
        let device_instance = self.device_instance(client, handle);
        Some(Channel {
            client,
            channel: handle,
            tsg: tsg.map_or(handle, |_| node.parent),
            engine,
            device_instance,
            subdevice: device_instance.and_then(|instance| self.subdevice(client, instance)),
            uuid: node.uuid,
            class: node.class,
        })
    }

    /// The channels below a TSG; of anything else the object itself.
    fn channels_of(&self, client: u32, object: u32) -> Vec<u32> {
        let is_group = |node: &Node| node.class == class::KEPLER_CHANNEL_GROUP_A;
        if !self.nodes.get(&(client, object)).is_some_and(is_group) {
            return vec![object];
        }
        self.of_client(client)
            .filter(|(_, node)| node.parent == object && class::is_gpfifo(node.class))
            .map(|(key, _)| key.1)
            .collect()
    }

    fn device_instance(&self, client: u32, handle: u32) -> Option<u32> {
        let mut at = handle;
        // A chain of parents is no longer than the client has objects; a hostile or half-seen one
        // may be a circle.
        for _ in 0..16 {
            let node = self.nodes.get(&(client, at))?;
            if let Params::Device { instance } = node.params {
                return Some(instance);
            }
            if node.parent == at {
                return None;
            }
            at = node.parent;
        }
        None
    }

    fn of_client(&self, client: u32) -> impl Iterator<Item = (&Key, &Node)> {
        self.nodes.range((client, 0)..=(client, u32::MAX))
    }
}
