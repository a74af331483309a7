//! The object graph against what its records say, over random ioctls with few handles, so that
//! reuse, unseen frees and half-seen clients happen all the time.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_abi::class::{self, Engine};
use tidegate_core::rm::{Call, Channel, Graph, Params, Record};

/// What an agent would know from the records alone.
#[derive(Debug, Default)]
struct Mirror {
    clients: BTreeSet<u32>,
    channels: BTreeMap<(u32, u32), Channel>,
}

impl Mirror {
    fn take(&mut self, records: &mut Vec<Record>) {
        for record in records.drain(..) {
            match record {
                Record::ClientUp(client) => {
                    self.clients.insert(client);
                }
                Record::ClientDown(client) => {
                    self.clients.remove(&client);
                    assert!(
                        !self.channels.keys().any(|key| key.0 == client),
                        "a client goes after its channels"
                    );
                }
                Record::ChannelUp(channel) => {
                    assert!(
                        self.clients.contains(&channel.client),
                        "a client comes before its channels"
                    );
                    self.channels
                        .insert((channel.client, channel.channel), channel);
                }
                Record::ChannelDown { client, channel } => {
                    assert!(self.channels.remove(&(client, channel)).is_some());
                }
            }
        }
    }

    fn agrees(&self, graph: &Graph) {
        let stands: BTreeMap<_, _> = graph
            .channels()
            .map(|channel| ((channel.client, channel.channel), channel))
            .collect();
        let keys = |map: &BTreeMap<(u32, u32), Channel>| map.keys().copied().collect::<Vec<_>>();
        assert_eq!(keys(&self.channels), keys(&stands));
        for (key, known) in &self.channels {
            assert_eq!(known.engine, stands[key].engine, "{key:?}");
            assert_eq!(known.uuid, stands[key].uuid, "{key:?}");
        }
        let mut fresh = Mirror::default();
        fresh.take(&mut graph.snapshot());
        assert_eq!(fresh.clients, self.clients);
        assert_eq!(keys(&fresh.channels), keys(&stands));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Call(Call),
    Free(u32, u32),
    FailedFree(u32, u32),
}

const CLIENTS: [u32; 2] = [0xc1d0_0001, 0xc1d0_0002];

fn step() -> impl Strategy<Value = Step> {
    let client = prop::sample::select(&CLIENTS[..]);
    let handle = 1_u32..10;
    let class = prop::sample::select(vec![
        class::NV01_ROOT_CLIENT,
        class::NV01_DEVICE_0,
        class::NV20_SUBDEVICE_0,
        class::FERMI_VASPACE_A,
        class::KEPLER_CHANNEL_GROUP_A,
        class::FERMI_CONTEXT_SHARE_A,
        class::HOPPER_CHANNEL_GPFIFO_A,
        class::HOPPER_CHANNEL_GPFIFO_A,
        class::HOPPER_COMPUTE_A,
        class::HOPPER_DMA_COPY_A,
    ]);
    let alloc = (
        client.clone(),
        handle.clone(),
        handle.clone(),
        class,
        0_u32..10,
    )
        .prop_map(|(client, parent, handle, class, other)| {
            let handle = if class == class::NV01_ROOT_CLIENT {
                client
            } else {
                handle
            };
            let params = match class {
                class::NV01_DEVICE_0 => Params::Device { instance: other },
                class::KEPLER_CHANNEL_GROUP_A => Params::Tsg {
                    engine_type: other,
                    va_space: other,
                },
                class::FERMI_CONTEXT_SHARE_A => Params::ContextShare { va_space: other },
                class::HOPPER_CHANNEL_GPFIFO_A => Params::Channel {
                    engine_type: 0,
                    va_space: other,
                    context_share: 10 - other,
                },
                _ => Params::None,
            };
            Step::Call(Call::Alloc {
                client,
                parent,
                handle,
                class,
                params,
            })
        });
    let any_handle = prop_oneof![8 => handle.clone(), 1 => prop::sample::select(&CLIENTS[..])];
    prop_oneof![
        8 => alloc,
        2 => (client.clone(), any_handle.clone()).prop_map(|(client, handle)| Step::Free(client, handle)),
        1 => (client.clone(), any_handle).prop_map(|(client, handle)| Step::FailedFree(client, handle)),
        1 => (client.clone(), handle.clone()).prop_map(|(client, channel)| {
            Step::Call(Call::UvmRegister { client, channel, uuid: [7; 16] })
        }),
        1 => (client.clone(), handle.clone(), 0_u32..20).prop_map(|(client, channel, engine_type)| {
            Step::Call(Call::Bind { client, channel, engine_type })
        }),
        1 => (client, handle.clone(), handle.clone(), handle).prop_map(|(client, parent, handle, handle_src)| {
            Step::Call(Call::Dup { client, parent, handle, client_src: CLIENTS[0], handle_src })
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_records_tell_exactly_what_stands(steps in prop::collection::vec(step(), 1..80)) {
        let (mut graph, mut mirror, mut records) = (Graph::default(), Mirror::default(), vec![]);
        for step in steps {
            match step {
                Step::Call(call) => graph.apply(call, &mut records),
                Step::Free(client, handle) => {
                    graph.lift(client, handle, &mut records);
                }
                Step::FailedFree(client, handle) => {
                    let before = graph.snapshot();
                    let lifted = graph.lift(client, handle, &mut records);
                    graph.put_back(lifted, &mut records);
                    prop_assert_eq!(before, graph.snapshot());
                }
            }
            mirror.take(&mut records);
            mirror.agrees(&graph);
        }
    }
}

fn alloc(client: u32, parent: u32, handle: u32, class: u32, params: Params) -> Call {
    Call::Alloc {
        client,
        parent,
        handle,
        class,
        params,
    }
}

/// A context as the driver makes it: device, subdevice, VA space, TSG, share, two channels.
fn context(graph: &mut Graph, client: u32) -> Vec<Record> {
    let mut records = vec![];
    let channel = Params::Channel {
        engine_type: 0,
        va_space: 4,
        context_share: 6,
    };
    let tsg = Params::Tsg {
        engine_type: class::ENGINE_TYPE_GR0,
        va_space: 4,
    };
    for call in [
        alloc(client, 0, client, class::NV01_ROOT_CLIENT, Params::None),
        alloc(
            client,
            client,
            2,
            class::NV01_DEVICE_0,
            Params::Device { instance: 3 },
        ),
        alloc(client, 2, 3, class::NV20_SUBDEVICE_0, Params::None),
        alloc(client, 2, 4, class::FERMI_VASPACE_A, Params::None),
        alloc(client, 2, 5, class::KEPLER_CHANNEL_GROUP_A, tsg),
        alloc(
            client,
            5,
            6,
            class::FERMI_CONTEXT_SHARE_A,
            Params::ContextShare { va_space: 4 },
        ),
        alloc(client, 5, 7, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        alloc(client, 5, 8, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        alloc(client, 8, 9, class::HOPPER_DMA_COPY_A, Params::None),
    ] {
        graph.apply(call, &mut records);
    }
    records
}

#[test]
fn a_channel_is_told_with_its_tsg_engine_and_gpu() {
    let (client, mut graph) = (CLIENTS[0], Graph::default());
    let records = context(&mut graph, client);
    let ups = records
        .iter()
        .filter(|record| matches!(record, Record::ChannelUp(_)))
        .count();
    assert_eq!(
        ups, 2,
        "the copy object told nothing new of the second channel"
    );
    for channel in graph.channels() {
        assert_eq!(channel.engine, Engine::Graphics, "the TSG's");
        assert_eq!((channel.client, channel.tsg), (client, 5));
        assert_eq!(channel.device_instance, Some(3));
        assert_eq!(channel.subdevice, Some(3));
        assert_eq!(channel.class, class::HOPPER_CHANNEL_GPFIFO_A);
    }
}

/// What a channel counts as whose group is of `group`, with these objects below it.
fn engine(group: u32, objects: &[u32]) -> Engine {
    let (client, mut graph) = (CLIENTS[0], Graph::default());
    context(&mut graph, client);
    let tsg = Params::Tsg {
        engine_type: group,
        va_space: 4,
    };
    let channel = Params::Channel {
        engine_type: 0,
        va_space: 4,
        context_share: 0,
    };
    let mut records = vec![];
    graph.apply(
        alloc(client, 2, 20, class::KEPLER_CHANNEL_GROUP_A, tsg),
        &mut records,
    );
    graph.apply(
        alloc(client, 20, 21, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        &mut records,
    );
    for (handle, object) in (30..).zip(objects) {
        graph.apply(
            alloc(client, 21, handle, *object, Params::None),
            &mut records,
        );
    }
    let mut channels = graph.channels();
    let found = channels.find(|channel| channel.channel == 21);
    found.expect("it stands").engine
}

#[test]
fn a_channel_that_computes_and_copies_computes_whatever_came_first() {
    let (compute, copy) = (class::HOPPER_COMPUTE_A, class::HOPPER_DMA_COPY_A);
    for group in [0, class::ENGINE_TYPE_GR0] {
        for objects in [&[compute, copy][..], &[copy, compute], &[compute]] {
            assert_eq!(
                engine(group, objects),
                Engine::Graphics,
                "{group} {objects:x?}"
            );
        }
    }
    assert_eq!(engine(class::ENGINE_TYPE_GR0, &[copy]), Engine::Graphics);
    assert_eq!(engine(class::ENGINE_TYPE_COPY0, &[copy]), Engine::Copy);
    assert_eq!(engine(0, &[copy]), Engine::Copy);
    assert_eq!(engine(0, &[]), Engine::Unknown);
}

#[test]
fn a_bind_of_a_tsg_is_one_of_each_of_its_channels() {
    let (client, mut graph) = (CLIENTS[0], Graph::default());
    let no_engine = Params::Tsg {
        engine_type: 0,
        va_space: 0,
    };
    let channel = Params::Channel {
        engine_type: 0,
        va_space: 0,
        context_share: 0,
    };
    let mut records = vec![];
    for call in [
        alloc(client, 2, 5, class::KEPLER_CHANNEL_GROUP_A, no_engine),
        alloc(client, 5, 7, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        alloc(client, 5, 8, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        alloc(client, 2, 9, class::HOPPER_CHANNEL_GPFIFO_A, channel),
        Call::Bind {
            client,
            channel: 5,
            engine_type: class::ENGINE_TYPE_COPY0,
        },
    ] {
        graph.apply(call, &mut records);
    }
    let engines: Vec<_> = graph.channels().map(|channel| channel.engine).collect();
    assert_eq!(engines, [Engine::Copy, Engine::Copy, Engine::Unknown]);
}

#[test]
fn a_free_takes_what_hangs_below_and_what_depends() {
    for (freed, why) in [
        (2, "the device"),
        (4, "the VA space"),
        (5, "the TSG"),
        (6, "the context share"),
        (CLIENTS[0], "the client"),
    ] {
        let mut graph = Graph::default();
        context(&mut graph, CLIENTS[0]);
        context(&mut graph, CLIENTS[1]);
        let mut records = vec![];
        graph.lift(CLIENTS[0], freed, &mut records);
        let left: Vec<_> = graph.channels().map(|channel| channel.client).collect();
        assert_eq!(left, [CLIENTS[1], CLIENTS[1]], "{why}");
    }
}

#[test]
fn a_client_number_used_again_begins_empty() {
    let (client, mut graph) = (CLIENTS[0], Graph::default());
    context(&mut graph, client);
    let mut records = vec![];
    graph.apply(
        alloc(client, 0, client, class::NV01_ROOT_CLIENT, Params::None),
        &mut records,
    );
    assert_eq!(graph.channels().count(), 0);
    assert_eq!(records.last(), Some(&Record::ClientUp(client)));
}
