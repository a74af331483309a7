//! The resource manager's locks: when a call gets those it needs, and so when it ends.
//!
//! A call takes the API lock (shared or exclusive), then its own client's lock, then the lock of
//! one GPU or of all GPUs, and holds them until it returns. `FIFO_DISABLE_CHANNELS` waits for the
//! GPU's firmware with all of them held; because it takes the lock of *all* GPUs, disables of eight
//! GPUs go one after the other however many threads issue them. The optional driver patch (either
//! form) narrows that to the one GPU, and eight disables take as long as one, provided that each
//! is issued on a client of its own.
//!
//! Locks are granted first come, first served: a reservation made at arrival is the whole model.

use std::collections::HashMap;

/// How a call takes the API lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiLock {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

/// Which GPUs a call locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLock {
    /// None.
    None,
    /// The one with this index.
    One(usize),
    /// All of the node.
    All,
}

/// The driver patch in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patch {
    /// The driver as shipped.
    #[default]
    None,
    /// The control is routed to the physical RM.
    A,
    /// The control locks its device only.
    B,
}

/// The locks one call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The API lock.
    pub api: ApiLock,
    /// The RM client whose lock it takes for writing, if it takes one.
    pub client: Option<u32>,
    /// GPU locks.
    pub gpus: GpuLock,
}

impl Needs {
    /// `FIFO_DISABLE_CHANNELS` issued by `client` on `gpu`.
    #[must_use]
    pub const fn disable_channels(client: u32, gpu: usize, patch: Patch) -> Self {
        let gpus = match patch {
            Patch::None => GpuLock::All,
            Patch::A | Patch::B => GpuLock::One(gpu),
        };
        Self {
            api: ApiLock::Read,
            client: Some(client),
            gpus,
        }
    }

    /// The TSG's `PREEMPT`: one GPU, whatever the patch.
    #[must_use]
    pub const fn preempt(client: u32, gpu: usize) -> Self {
        Self {
            api: ApiLock::Read,
            client: Some(client),
            gpus: GpuLock::One(gpu),
        }
    }

    /// Allocation, free, `SET_TIMESLICE`, `GPFIFO_SCHEDULE`: exclusive, all GPUs.
    #[must_use]
    pub const fn writer(client: u32) -> Self {
        Self {
            api: ApiLock::Write,
            client: Some(client),
            gpus: GpuLock::All,
        }
    }

    /// A control that only reads.
    #[must_use]
    pub const fn reader(client: u32) -> Self {
        Self {
            api: ApiLock::Read,
            client: Some(client),
            gpus: GpuLock::None,
        }
    }

    /// The stop of one channel at the teardown of a process' memory manager.
    #[must_use]
    pub const fn stop_channel() -> Self {
        Self {
            api: ApiLock::Read,
            client: None,
            gpus: GpuLock::All,
        }
    }
}

/// The locks of one node: until when each is taken.
#[derive(Clone, Debug)]
pub struct Locks {
    readers_until: u64,
    writer_until: u64,
    clients: HashMap<u32, u64>,
    gpus: Vec<u64>,
}

impl Locks {
    /// A node with `gpus` GPUs, all locks free.
    #[must_use]
    pub fn new(gpus: usize) -> Self {
        Self {
            readers_until: 0,
            writer_until: 0,
            clients: HashMap::new(),
            gpus: vec![0; gpus],
        }
    }

    /// When a call that arrives at `arrival` and holds its locks for `duration` starts and ends.
    /// Calls are granted in the order of these calls; arrivals must not go backwards.
    pub fn reserve(&mut self, arrival: u64, needs: Needs, duration: u64) -> (u64, u64) {
        let mut start = arrival.max(self.writer_until);
        if needs.api == ApiLock::Write {
            start = start.max(self.readers_until);
        }
        if let Some(client) = needs.client {
            start = start.max(self.clients.get(&client).copied().unwrap_or(0));
        }
        start = match needs.gpus {
            GpuLock::None => start,
            GpuLock::One(gpu) => start.max(self.gpus.get(gpu).copied().unwrap_or(0)),
            GpuLock::All => self.gpus.iter().copied().fold(start, u64::max),
        };
        let end = start.saturating_add(duration);
        match needs.api {
            ApiLock::Read => self.readers_until = self.readers_until.max(end),
            ApiLock::Write => self.writer_until = end,
        }
        if let Some(client) = needs.client {
            self.clients.insert(client, end);
        }
        match needs.gpus {
            GpuLock::None => {}
            GpuLock::One(gpu) => {
                if let Some(until) = self.gpus.get_mut(gpu) {
                    *until = end;
                }
            }
            GpuLock::All => self.gpus.fill(end),
        }
        (start, end)
    }

    /// Drops what is known of a client that is gone.
    pub fn forget_client(&mut self, client: u32) {
        self.clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISABLE: u64 = 300_000;

    fn last_end(patch: Patch, client_of: impl Fn(usize) -> u32) -> u64 {
        let mut locks = Locks::new(8);
        (0..8)
            .map(|gpu| {
                let needs = Needs::disable_channels(client_of(gpu), gpu, patch);
                locks.reserve(1_000, needs, DISABLE).1 - 1_000
            })
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn eight_disables_cost_eight_one_and_one_by_patch() {
        let own_client = |gpu: usize| gpu as u32;
        assert_eq!(last_end(Patch::None, own_client), 8 * DISABLE);
        assert_eq!(last_end(Patch::A, own_client), DISABLE);
        assert_eq!(last_end(Patch::B, own_client), DISABLE);
    }

    #[test]
    fn one_client_for_all_gpus_is_serial_even_with_the_patch() {
        assert_eq!(last_end(Patch::B, |_| 5), 8 * DISABLE);
    }

    #[test]
    fn a_writer_waits_for_readers_and_later_readers_wait_for_the_writer() {
        let mut locks = Locks::new(2);
        let (_, first) = locks.reserve(0, Needs::preempt(1, 0), 100);
        let (start, end) = locks.reserve(10, Needs::writer(2), 50);
        assert_eq!((start, end), (first, first + 50));
        assert_eq!(locks.reserve(20, Needs::reader(3), 1), (end, end + 1));
    }

    #[test]
    fn a_stop_of_a_channel_holds_up_the_disables_of_every_gpu() {
        let mut locks = Locks::new(2);
        locks.reserve(0, Needs::stop_channel(), 4_000_000_000);
        let (start, _) = locks.reserve(5, Needs::disable_channels(1, 1, Patch::B), DISABLE);
        assert_eq!(start, 4_000_000_000);
    }
}
