//! What the library in a process reports of its memory, and when: on its stream, in order, and no more often than the
//! library that ships.

use super::engine::{Backing, PER_STRIPE, STRIPES};
use super::play::{Happening, Own, Reclaim, STRIPE};
use crate::dice::{MS, US};
use crate::world::{Ev, In, World};
use std::sync::LazyLock;
use std::sync::atomic::Ordering::{Relaxed, Release};
use tidegate_node::Input;
use tidegate_node::memory::{HeldBlocks, KvRegistered, MemoryOrder, MemorySaid, Usage};
use tidegate_node::message::Said;
use tidegate_node::text::Text;
use tidegate_policy::ids::{BlockId, Bytes, KvId, LogSeq, RequestId, Tokens};
use tidegate_policy::layout::Layout;

/// The one cache of a process.
pub(super) const KV: KvId = KvId(1);
/// Bytes that an online cache has at most, in handles and stripes of one byte.
const MOST: u32 = 90;
/// Requests are spoken of no more often than this, ns: `EVERY_NS` of the library's `talk.rs`.
const REQUESTS_EVERY: u64 = 25 * MS;
/// What is allocated is spoken of no more often than this, ns: `USAGE_EVERY_NS` there.
const USAGE_EVERY: u64 = 100 * MS;

static OFFLINE: LazyLock<Layout> = LazyLock::new(|| {
    let stripe = |nth: u32| (1, BlockId(nth * PER_STRIPE), PER_STRIPE);
    Layout::of_runs((0..STRIPES).map(stripe), Bytes(STRIPE))
});
static ONLINE: LazyLock<Layout> =
    LazyLock::new(|| Layout::of_runs((0..MOST).map(|nth| (1, BlockId(nth), 1)), Bytes(1)));

impl World<Reclaim> {
    /// A process says something, if there is somebody to hear it.
    pub fn says(&mut self, pid: usize, said: MemorySaid) {
        let delay = self.dice.scale(15 * US, 400 * US);
        let process = &mut self.processes[pid];
        if process.attached != Some(self.epoch) {
            return;
        }
        let session = process.session;
        let line = process.own.line();
        line.up = line.up.max(self.now + delay) + 1;
        let (at, said) = (line.up, Said::Memory(Box::new(said)));
        let message = In::Node(Input::Said(session, said));
        self.at(at, Ev::Agent(self.epoch, Box::new(message)));
    }

    /// A process is told something, and hears it some time later.
    pub fn hears(&mut self, pid: usize, order: MemoryOrder) {
        let delay = self.dice.scale(15 * US, 300 * US);
        let line = self.processes[pid].own.line();
        line.down = line.down.max(self.now + delay) + 1;
        let (at, era) = (line.down, line.era);
        self.play_at(at, Happening::Ordered(pid, era, order));
    }

    /// Its session ended: what it was ordered is void, and what it asked has no answer.
    pub fn void(&mut self, pid: usize) {
        let own = &mut self.processes[pid].own;
        own.line().era += 1;
        match own {
            Own::Online(online) => {
                online.open.clear();
                online.target = None;
            }
            Own::Offline(offline) => {
                self.play.figures.left += u64::from(!offline.service.open.is_empty());
                offline.service.orders.clear();
                offline.service.open.clear();
                offline.service.cancelled.clear();
            }
        }
    }

    /// A new session: it says what stands.
    pub fn describes(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        *process.own.line() = super::play::Line {
            era: process.own.line().era,
            ..super::play::Line::default()
        };
        let (layout, backed, elastic) = match &mut process.own {
            Own::Online(online) => {
                let backed = (0..u64::from(MOST)).map(|nth| nth < online.mapped);
                (ONLINE.clone(), backed.collect(), true)
            }
            Own::Offline(offline) => {
                let Some(cache) = &mut offline.cache else {
                    return;
                };
                cache.told = 0;
                let backing = cache.pages.backing.iter();
                let backed = backing.map(|backing| *backing == Backing::Own).collect();
                (OFFLINE.clone(), backed, false)
            }
        };
        self.says(
            pid,
            MemorySaid::KvRegistered(KvRegistered {
                kv: KV,
                slot: 0,
                elastic,
                stripes: Some((layout, backed)),
                fixed: Bytes::ZERO,
                refused: Text::default(),
            }),
        );
        if elastic {
            self.writes_use(pid);
            self.uses_more_or_less(pid);
        } else {
            self.says_requests(pid, true);
            self.changes(pid);
        }
    }

    // ------------------------------------------------------------ offline

    /// Something of its requests, or of what it withholds, has changed.
    pub fn changes(&mut self, pid: usize) {
        let Some(cache) = self.processes[pid].own.cache() else {
            return;
        };
        let changed = !cache.engine.changed.is_empty() || cache.engine.read > cache.told;
        if changed && !core::mem::replace(&mut cache.delivers, true) {
            let at = cache.delivered + REQUESTS_EVERY;
            self.play_at(at, Happening::Deliver(pid));
        }
    }

    pub fn deliver(&mut self, pid: usize) {
        let now = self.now;
        match &mut self.processes[pid].own {
            Own::Online(online) => {
                (online.delivers, online.delivered) = (false, now);
                let counted = Bytes(online.counted);
                self.says(
                    pid,
                    MemorySaid::Usage {
                        slot: 0,
                        usage: Usage {
                            counted,
                            unregistered: Bytes::ZERO,
                            held: counted,
                        },
                    },
                );
            }
            Own::Offline(_) => {
                if let Some(cache) = self.processes[pid].own.cache() {
                    (cache.delivers, cache.delivered) = (false, now);
                }
                self.says_requests(pid, false);
            }
        }
    }

    fn says_requests(&mut self, pid: usize, snapshot: bool) {
        let Some(cache) = self.processes[pid].own.cache() else {
            return;
        };
        let changed = core::mem::take(&mut cache.engine.changed);
        let ids = if snapshot {
            cache.engine.ids()
        } else {
            changed.into_iter().collect()
        };
        let (mut set, mut forgotten) = (Vec::new(), Vec::new());
        for id in ids {
            let request = RequestId(id);
            match cache.engine.held(id) {
                Some((tokens, blocks)) => set.push(HeldBlocks {
                    request,
                    tokens: Tokens(tokens),
                    blocks: blocks.iter().copied().map(BlockId).collect(),
                }),
                None if snapshot => {}
                None => forgotten.push(request),
            }
        }
        let read = cache.engine.read;
        let withholds = core::mem::replace(&mut cache.told, read) < read;
        if withholds {
            let log = LogSeq(read as u64);
            self.says(pid, MemorySaid::Withheld { log });
        }
        if snapshot || !(set.is_empty() && forgotten.is_empty()) {
            self.says(
                pid,
                MemorySaid::Requests {
                    snapshot,
                    set,
                    forgotten,
                },
            );
        }
    }

    // ------------------------------------------------------------ online

    /// What an online process has allocated has changed.
    pub fn uses_more_or_less(&mut self, pid: usize) {
        if let Some(online) = self.processes[pid].own.as_online()
            && !core::mem::replace(&mut online.delivers, true)
        {
            let at = online.delivered + USAGE_EVERY;
            self.play_at(at, Happening::Deliver(pid));
        }
    }

    /// Writes into its page what an online cache uses.
    pub fn writes_use(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let Some(online) = process.own.as_online() else {
            return;
        };
        let words = &process.page.memory[0];
        words.version.fetch_add(1, Release);
        words.used.store(online.used, Relaxed);
        words.mapped.store(online.mapped, Relaxed);
        words.version.fetch_add(1, Release);
    }
}
