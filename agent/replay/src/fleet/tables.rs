//! What each kind of job gets on each kind of node, minute by minute, and what each rule is told of it.
//!
//! A node of several GPUs is made of one: its second GPU and those behind it show, in a given share of the minutes,
//! what the first does in the same minute, and in the others what it does in another one. No trace of several GPUs is
//! public.

use std::time::Duration;

use tidegate_policy::ids::{GpuId, GpuSet};
use tidegate_policy::placement::{
    GpuSlice, Node, OpenSets, Profile, Slice, Wrong, predict, predict_on,
};

use crate::placing::{Measured, Pair, SLICE};
use tidegate_text::rng::Rng;

/// Valve's threshold for a pair of GPUs, which the paper does not give.
const ALIGNED: f64 = 0.8;
/// Length of the history that nodes speak from, minutes: ten windows of an hour.
const HISTORY: usize = 600;

/// What a node of a kind has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeKind {
    /// GPUs.
    pub gpus: u8,
    /// Share of the minutes in which they all do the same.
    pub together: f64,
}

/// A job on exactly these GPUs.
#[derive(Clone, Debug)]
pub struct SetTable {
    /// Which.
    pub gpus: GpuSet,
    /// By minute, what a job gets.
    pub got: Vec<f64>,
    /// By minute, the share in which all of them are open.
    pub open: Vec<f64>,
    /// What the model says, without a correction.
    pub says: f64,
    /// What a job gets in its worst hour.
    pub truth: f64,
    /// By minute, what the model says of the window that begins there: of falls, and with what was lost here.
    windows: [Vec<f64>; 2],
}

/// A kind of job on a kind of node.
#[derive(Clone, Debug)]
pub struct Table {
    /// Idle share, in the mean over its GPUs.
    pub idle: f64,
    /// Valve's product.
    pub paper: f64,
    /// Every pair of GPUs is above Valve's threshold.
    pub aligned: bool,
    /// What the model says of the worst set, without a correction.
    pub says: f64,
    /// The same with what such a job lost here.
    pub says_known: f64,
    /// What a job gets on the worst set, in its worst hour.
    pub truth: f64,
    /// All sets it may get.
    pub sets: Vec<SetTable>,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Tables {
    nodes: Vec<NodeKind>,
    minutes: Vec<usize>,
    needs: Vec<u8>,
    rows: Vec<Vec<Option<Table>>>,
}

impl Tables {
    /// Of what was measured, for nodes of these kinds, jobs that need so many GPUs each, and windows of so many
    /// minutes.
    ///
    /// # Errors
    /// When what was measured makes no profile.
    pub fn of(
        measured: &Measured,
        nodes: &[NodeKind],
        needs: &[u8],
        window: usize,
    ) -> Result<Self, Wrong> {
        let mut minutes = vec![usize::MAX; nodes.len()];
        for pair in &measured.pairs {
            let own = pair
                .placement
                .by_slice
                .len()
                .min(whole_minutes(&pair.placement.history));
            minutes[pair.node] = minutes[pair.node].min(own);
        }
        let mut rows = vec![vec![None; needs.len()]; nodes.len()];
        for pair in measured.pairs.iter().filter(|pair| minutes[pair.node] > 0) {
            let built = Built {
                measured,
                pair,
                node: nodes[pair.node],
                minutes: minutes[pair.node],
                needs: needs[pair.kind],
                window,
            };
            rows[pair.node][pair.kind] = built.table()?;
        }
        for minutes in &mut minutes {
            *minutes = if *minutes == usize::MAX {
                1
            } else {
                (*minutes).max(1)
            };
        }
        Ok(Self {
            nodes: nodes.to_vec(),
            minutes,
            needs: needs.to_vec(),
            rows,
        })
    }

    /// Kinds of jobs.
    #[must_use]
    pub const fn jobs(&self) -> usize {
        self.needs.len()
    }

    /// GPUs of a node of this kind.
    #[must_use]
    pub fn gpus(&self, node: usize) -> u8 {
        self.nodes[node].gpus
    }

    /// Minutes that go round on a node of this kind.
    #[must_use]
    pub fn minutes(&self, node: usize) -> usize {
        self.minutes[node]
    }

    /// GPUs that a job of this kind needs.
    #[must_use]
    pub fn needs(&self, job: usize) -> u8 {
        self.needs[job]
    }

    /// What is known of a kind of job on a kind of node; none, if it does not run there.
    #[must_use]
    pub fn of_pair(&self, node: usize, job: usize) -> Option<&Table> {
        self.rows[node][job].as_ref()
    }

    /// The same on these GPUs.
    #[must_use]
    pub fn set(&self, node: usize, job: usize, gpus: GpuSet) -> Option<&SetTable> {
        let sets = &self.of_pair(node, job)?.sets;
        sets.iter().find(|set| set.gpus == gpus)
    }

    /// What the model says of the window that begins at minute `from`.
    #[must_use]
    pub fn window(&self, node: usize, job: usize, gpus: GpuSet, from: usize, known: bool) -> f64 {
        let set = self.set(node, job, gpus);
        let windows = set.map_or(&[][..], |set| &set.windows[usize::from(known)]);
        windows
            .get(from % windows.len().max(1))
            .copied()
            .unwrap_or(0.0)
    }

    /// What a node of this kind gives in the mean over the kinds of jobs that run there, GPUs.
    #[must_use]
    pub fn capacity(&self, node: usize) -> f64 {
        let known: Vec<f64> = self.rows[node]
            .iter()
            .flatten()
            .map(|table| table.truth)
            .collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        mean * f64::from(self.nodes[node].gpus)
    }
}

fn whole_minutes(history: &[Slice]) -> usize {
    history
        .iter()
        .filter(|slice| slice.length_ns == SLICE)
        .count()
}

struct Built<'a> {
    measured: &'a Measured,
    pair: &'a Pair,
    node: NodeKind,
    minutes: usize,
    needs: u8,
    window: usize,
}

impl Built<'_> {
    fn table(&self) -> Result<Option<Table>, Wrong> {
        let profile = self.measured.profile(self.pair)?;
        let maps = self.maps();
        let said = overlay(self.measured.other(self.pair), &maps);
        let truth = overlay(self.pair, &maps);
        let history: Vec<Slice> = round(&said, 0, HISTORY);
        let all = GpuSet::first(self.node.gpus);
        let node = Node::new(all, &history);
        let known = Node {
            lost_per_s: Some(self.pair.lost),
            ..node
        };
        let told = predict(&profile, self.needs, &node);
        if !told.refusals.is_empty() {
            return Ok(None);
        }
        let masks = (1..1_u64 << self.node.gpus).map(GpuSet::from_bits);
        let sets = masks.filter(|set| set.len() == u32::from(self.needs));
        let sets: Vec<SetTable> = sets
            .map(|gpus| self.set(gpus, &profile, &node, &said, &truth, &maps))
            .collect();
        let open = |gpus: GpuSet| -> f64 {
            let open: u64 = said.iter().map(|slice| slice.open.together(gpus)).sum();
            open as f64 / (said.len() as u64 * SLICE).max(1) as f64
        };
        let gpus: Vec<GpuSet> = all.iter().map(GpuSet::of).collect();
        let pairs = gpus.iter().enumerate();
        let mut pairs = pairs.flat_map(|(at, a)| gpus[at + 1..].iter().map(move |b| (*a, *b)));
        let aligned = self.needs < 2
            || pairs.all(|(a, b)| {
                let either = 1.0 - open(a.union(b));
                let both = 1.0 - open(a) - open(b) + open(a.union(b));
                both >= ALIGNED * either
            });
        let single = Node::new(GpuSet::of(GpuId(0)), &history);
        let model = predict(&profile, 1, &single);
        Ok(Some(Table {
            idle: gpus.iter().map(|gpu| open(*gpu)).sum::<f64>() / gpus.len().max(1) as f64,
            paper: self.measured.paper(self.pair, &model)?,
            aligned,
            says: told.ratio,
            says_known: predict(&profile, self.needs, &known).ratio,
            truth: sets.iter().map(|set| set.truth).fold(1.0, f64::min),
            sets,
        }))
    }

    /// For each GPU, which minute it shows in each.
    fn maps(&self) -> Vec<Vec<usize>> {
        let minutes = self.minutes;
        let mut draw = Rng::stream(self.pair.node as u64, 4);
        let same: Vec<bool> = (0..minutes)
            .map(|_| draw.uniform() < self.node.together)
            .collect();
        let gpu = |gpu: usize| {
            let by = 1 + (draw.uniform() * minutes.saturating_sub(1) as f64) as usize;
            let shown = |minute: usize| {
                if gpu == 0 || same[minute] {
                    minute
                } else {
                    (minute + by) % minutes
                }
            };
            (0..minutes).map(shown).collect()
        };
        (0..usize::from(self.node.gpus)).map(gpu).collect()
    }

    fn set(
        &self,
        gpus: GpuSet,
        profile: &Profile,
        node: &Node<'_>,
        said: &[Slice],
        truth: &[Slice],
        maps: &[Vec<usize>],
    ) -> SetTable {
        let alone = self.measured.alone[self.pair.node][self.pair.kind].rate();
        let minute_alone = alone * SLICE as f64 / 1e9;
        // What an open second of a minute was worth, memory, switches and all.
        let worth = |minute: usize| {
            let slice = &self.pair.placement.history[minute];
            let open = slice.open.together(GpuSet::of(GpuId(0))) as f64 / SLICE as f64;
            let got =
                self.pair.placement.by_slice[minute] as f64 / minute_alone.max(f64::MIN_POSITIVE);
            if open > 0.0 { got / open } else { 0.0 }
        };
        let open: Vec<f64> = truth
            .iter()
            .map(|slice| slice.open.together(gpus) as f64 / SLICE as f64)
            .collect();
        let got: Vec<f64> = (0..self.minutes)
            .map(|minute| {
                let each = gpus.iter().map(|gpu| worth(maps[gpu.index()][minute]));
                open[minute] * each.fold(f64::INFINITY, f64::min)
            })
            .collect();
        let windows = [None, Some(self.pair.lost)].map(|lost_per_s| {
            let window = |from: usize| {
                let slices = round(said, from, self.window);
                let mut own = Node {
                    slices: &slices,
                    lost_per_s,
                    ..*node
                };
                own.horizon.window = Duration::from_secs(60 * self.window as u64);
                own.horizon.least = Duration::from_nanos(1);
                predict_on(profile, gpus, &own).ratio
            };
            (0..self.minutes).map(window).collect()
        });
        let hour = |from: usize| {
            let all = (0..60).map(|minute| got[(from + minute) % got.len()]);
            all.sum::<f64>() / 60.0
        };
        let truth = (0..self.minutes).map(hour).fold(f64::INFINITY, f64::min);
        SetTable {
            gpus,
            says: predict_on(profile, gpus, node).ratio,
            truth,
            windows,
            open,
            got,
        }
    }
}

/// `count` slices from place `from` on, round and round, numbered anew.
fn round(slices: &[Slice], from: usize, count: usize) -> Vec<Slice> {
    let all = (0..count).map(|place| Slice {
        number: place as u64,
        ..slices[(from + place) % slices.len()].clone()
    });
    all.collect()
}

/// The history of a node whose GPU g shows in minute m what the GPU of `pair` does in minute `maps[g][m]`.
fn overlay(pair: &Pair, maps: &[Vec<usize>]) -> Vec<Slice> {
    let minutes = maps.first().map_or(0, Vec::len);
    let slice = |minute: usize| {
        let mut edges: Vec<(u64, u8, bool)> = Vec::new();
        let mut gpus = Vec::new();
        for (gpu, map) in (0_u8..).zip(maps) {
            let (from, to) = (map[minute] as u64 * SLICE, (map[minute] as u64 + 1) * SLICE);
            let first = pair.placement.gates.partition_point(|gate| gate.1 <= from);
            for gate in pair.placement.gates[first..]
                .iter()
                .take_while(|gate| gate.0 < to)
            {
                edges.push((gate.0.max(from) - from, gpu, true));
                edges.push((gate.1.min(to) - from, gpu, false));
            }
            let shown = pair
                .placement
                .history
                .get(map[minute])
                .and_then(|slice| slice.gpus.first());
            gpus.extend(shown.map(|shown| GpuSlice {
                gpu: GpuId(gpu),
                ..*shown
            }));
        }
        edges.sort_unstable();
        let (mut open, mut since, mut sets) = (GpuSet::EMPTY, 0, OpenSets::new());
        for (at, gpu, opens) in edges {
            sets.add(open, at - since);
            since = at;
            let own = GpuSet::of(GpuId(gpu));
            open = if opens {
                open.union(own)
            } else {
                open.minus(own)
            };
        }
        Slice {
            number: minute as u64,
            length_ns: SLICE,
            open: sets,
            gpus,
        }
    };
    (0..minutes).map(slice).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Nodes of one GPU that always give the same: what each says, and what it gives, of two kinds of jobs.
    pub fn steady(nodes: &[(f64, f64)]) -> Tables {
        let table = |&(says, gives): &(f64, f64)| {
            let set = SetTable {
                gpus: GpuSet::of(GpuId(0)),
                got: vec![gives],
                open: vec![gives],
                says,
                truth: gives,
                windows: [vec![says], vec![gives]],
            };
            Some(Table {
                idle: 1.0 - says,
                paper: says,
                aligned: true,
                says,
                says_known: gives,
                truth: gives,
                sets: vec![set],
            })
        };
        let node = NodeKind {
            gpus: 1,
            together: 1.0,
        };
        Tables {
            nodes: vec![node; nodes.len()],
            minutes: vec![1; nodes.len()],
            needs: vec![1, 1],
            rows: nodes
                .iter()
                .map(|node| vec![table(node), table(node)])
                .collect(),
        }
    }

    /// What a minute of a GPU of a node made of one says of every set, against every millisecond of it.
    #[test]
    fn nodes_of_several_gpus_are_open_when_all_of_them_are() {
        const MS: u64 = 1_000_000;
        let mut draw = Rng::new(7);
        let (mut at, mut gates) = (0, Vec::new());
        while at < 4 * SLICE {
            let from = at + (draw.uniform() * 9_000.0) as u64 * MS;
            at = from + (1.0 + draw.uniform() * 9_000.0) as u64 * MS;
            gates.push((from, at.min(4 * SLICE)));
        }
        gates.retain(|gate| gate.0 < gate.1);
        let pair = Pair {
            node: 0,
            kind: 0,
            rate: 0.0,
            lost: 0.0,
            fallen: 0.0,
            placement: crate::record::Placement {
                by_slice: vec![0; 4],
                history: Vec::new(),
                gates: gates.clone(),
            },
        };
        let maps = vec![vec![0, 1, 2, 3], vec![0, 3, 2, 1], vec![1, 2, 3, 0]];
        let slices = overlay(&pair, &maps);
        let open = |minute: usize, ms: u64| {
            let at = minute as u64 * SLICE + ms * MS;
            gates.iter().any(|gate| gate.0 <= at && at < gate.1)
        };
        for (minute, slice) in slices.iter().enumerate() {
            for set in 1..8_u64 {
                let all = |ms: &u64| {
                    (0..3).all(|gpu| set >> gpu & 1 == 0 || open(maps[gpu][minute], *ms))
                };
                let truth = (0..SLICE / MS).filter(all).count() as u64 * MS;
                assert_eq!(
                    slice.open.together(GpuSet::from_bits(set)),
                    truth,
                    "{minute} {set}"
                );
            }
        }
        let all: u64 = slices
            .iter()
            .map(|slice| slice.open.together(GpuSet::first(1)))
            .sum();
        assert!(
            all > 0
                && slices[0].open.together(GpuSet::first(3))
                    < slices[0].open.together(GpuSet::first(1))
        );
    }
}
