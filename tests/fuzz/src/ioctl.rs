//! The driver's calls, from their bytes to the channels of a process.
//!
//! An input is a list of calls: a way, an escape, an argument of a size the driver knows or of any
//! size, nested parameters. The calls make an object graph, whose records a stand-in for the agent
//! follows.

use crate::input::Input;
use std::collections::BTreeSet;
use tidegate_abi::rm::{self, Branch, Layout, Nvos21, Nvos54, Nvos55, Nvos64};
use tidegate_abi::uvm::UvmRegisterChannel;
use tidegate_core::rm::{Call, Graph, Record, decode, nested, uvm_register};

/// Largest parameters of an allocation; what is read of any fits.
const PARAMETERS: usize = 512;

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut graph = Graph::default();
    let mut agent = Agent::default();
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let mut records = Vec::new();
        match input.byte() % 8 {
            0 => {
                let (client, handle) = (small(&mut input), small(&mut input));
                let lifted = graph.lift(client, handle, &mut records);
                if input.byte() % 2 == 1 {
                    graph.put_back(lifted, &mut records);
                }
            }
            1 => {
                let argument = input.bytes(size_of::<UvmRegisterChannel>());
                if let Some(call) = uvm_register(argument) {
                    agent.told(call);
                    graph.apply(call, &mut records);
                }
            }
            way => {
                if let Some(call) = one_call(way, &mut input) {
                    agent.told(call);
                    graph.apply(call, &mut records);
                }
            }
        }
        agent.follow(&records);
        agent.compare(&graph);
    }
}

/// Handles from a few, so that they meet.
fn small(input: &mut Input<'_>) -> u32 {
    u32::from(input.byte() % 16)
}

fn one_call(way: u8, input: &mut Input<'_>) -> Option<Call> {
    let (escape, size) = match way {
        2 | 3 => (rm::NV_ESC_RM_ALLOC, size_of::<Nvos64>()),
        4 => (rm::NV_ESC_RM_ALLOC, size_of::<Nvos21>()),
        5 => (rm::NV_ESC_RM_CONTROL, size_of::<Nvos54>()),
        6 => (rm::NV_ESC_RM_DUP_OBJECT, size_of::<Nvos55>()),
        _ => (u32::from(input.byte()), usize::from(input.byte())),
    };
    let argument = input.bytes(size);
    let layout = match way {
        3 => Layout::ByAnswers,
        _ => Layout::Known(Branch::B610),
    };
    let about = nested(layout, escape, argument);
    let needed = about.map_or(0, |about| {
        assert_ne!(about.address, 0, "nothing is read at address 0");
        about.needed
    });
    assert!(needed <= PARAMETERS, "{needed} bytes of parameters");
    let mut parameters = input.bytes(needed).to_vec();
    parameters.resize(needed, 0);
    let call = decode(layout, escape, argument, &parameters);
    if let Some(about) = about {
        // What lies behind is another allocation of the process, or nothing.
        parameters.resize(PARAMETERS, 0xa5);
        assert_eq!(
            call,
            decode(layout, escape, argument, &parameters),
            "what is beyond the parameters matters"
        );
        assert!(
            about.succeeded || call.is_none(),
            "a call that failed is decoded"
        );
    }
    call
}

/// What an agent knows of the process.
#[derive(Default)]
struct Agent {
    /// Every (client, handle) that a call named.
    named: BTreeSet<(u32, u32)>,
    clients: BTreeSet<u32>,
    channels: BTreeSet<(u32, u32)>,
}

impl Agent {
    fn told(&mut self, call: Call) {
        let named = match call {
            Call::Alloc { client, handle, .. } | Call::Dup { client, handle, .. } => {
                self.named.insert((client, client));
                // A root class makes the client that it returns.
                self.named.insert((handle, handle));
                (client, handle)
            }
            Call::Bind {
                client, channel, ..
            }
            | Call::UvmRegister {
                client, channel, ..
            } => (client, channel),
        };
        self.named.insert(named);
    }

    fn follow(&mut self, records: &[Record]) {
        for record in records {
            match *record {
                Record::ClientUp(client) => {
                    assert!(self.named.contains(&(client, client)), "{client:#x}");
                    self.clients.insert(client);
                }
                Record::ClientDown(client) => {
                    self.clients.remove(&client);
                    self.channels.retain(|(of, _)| *of != client);
                }
                Record::ChannelUp(up) => {
                    let key = (up.client, up.channel);
                    assert!(self.named.contains(&key), "a channel of no handle: {up:?}");
                    assert!(self.clients.contains(&up.client), "of no client: {up:?}");
                    self.channels.insert(key);
                }
                Record::ChannelDown { client, channel } => {
                    self.channels.remove(&(client, channel));
                }
            }
        }
    }

    fn compare(&self, graph: &Graph) {
        let stands = |up: tidegate_core::rm::Channel| (up.client, up.channel);
        let standing: BTreeSet<_> = graph.channels().map(stands).collect();
        assert_eq!(standing, self.channels, "what was told is not what stands");
        let mut anew = Self {
            named: self.named.clone(),
            ..Self::default()
        };
        anew.follow(&graph.snapshot());
        assert_eq!(anew.channels, self.channels, "a snapshot says otherwise");
        assert_eq!(anew.clients, self.clients, "a snapshot says otherwise");
    }
}
