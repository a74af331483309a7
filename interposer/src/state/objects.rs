//! The process' RM objects, and which of their changes the agent does not know yet.

use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
use std::collections::BTreeMap;
use tidegate_abi::page::DEVICES;
use tidegate_abi::rm::Layout;
use tidegate_core::rm::{Graph, Record};
use tidegate_core::suspect::Reason;

/// RM objects, and what the agent has not been told.
#[derive(Debug, Default)]
pub struct Rm {
    /// What stands.
    pub graph: Graph,
    /// To the agent, in order.
    pub outbox: Vec<Up>,
    /// The application's descriptor of the control file on which each client was last seen to be used.
    pub files: BTreeMap<u32, c_int>,
    /// The descriptor of the UVM file on which channels are registered.
    pub uvm: Option<c_int>,
    /// Version of the driver, as it told the driver's library; empty before.
    pub driver: String,
    /// Where the layouts of that version are known from; none before, and where it is no version.
    pub layout: Option<Layout>,
    /// Whether this library has asked for it where nobody had.
    pub asked: bool,
    /// Tickets the agent let go.
    pub granted: Vec<u64>,
    /// Numbers given to schedule calls.
    pub tickets: u64,
    /// The newest edge of each device that the agent has not been told of, from a process without a page.
    pub edges: [Option<Edge>; DEVICES],
}

/// An edge of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The activity word after it.
    pub activity: u64,
    /// When; on an idle edge when the work was proven done.
    pub at_ns: u64,
    /// Launches of the period that ended.
    pub launches: u64,
    /// Its last graph.
    pub graph: u64,
}

/// Something for the agent.
#[derive(Clone, Debug)]
pub enum Up {
    /// The object graph changed.
    Record(Record),
    /// A schedule call waits.
    Schedule {
        /// Its number.
        ticket: u64,
        /// RM client.
        client: u32,
        /// TSG or channel.
        object: u32,
    },
    /// A device is busy for an odd reason, or no longer.
    Suspect {
        /// Ordinal.
        device: usize,
        /// The reason.
        reason: Option<Reason>,
        /// Busy since.
        since_ns: u64,
    },
    /// Something for the node's events.
    Note {
        /// Stable name.
        kind: &'static str,
        /// For people.
        text: String,
    },
}

/// Futex: raised with every ticket the agent lets go.
pub static GRANTS: AtomicU32 = AtomicU32::new(0);

impl Rm {
    /// Takes in which version the driver says it has.
    pub fn hear(&mut self, version: String) {
        self.layout = Layout::of_version(&version);
        self.driver = version;
    }

    /// The clients that own channels, and where: the one with most of them first.
    pub fn owners(&self) -> Vec<(u32, c_int)> {
        let mut owners = self.graph.owners();
        owners.sort_by_key(|&(_, channels)| core::cmp::Reverse(channels));
        let file = |client: u32| self.files.get(&client).map(|fd| (client, *fd));
        owners
            .into_iter()
            .filter_map(|(client, _)| file(client))
            .collect()
    }
}
