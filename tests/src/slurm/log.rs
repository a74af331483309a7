//! What slurmctld wrote of what it did, in its own order. Who judges where jobs went asks it, and nothing of
//! Tidegate's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// One thing that it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// It began anew: what was published is gone.
    Began,
    /// A node's active features are these from now on.
    Features(String, Vec<String>),
    /// It gave a job a node.
    Placed(u32, String),
    /// It sent a job back into the queue, because somebody told it to.
    Requeued(u32),
    /// The same, because a node was lost.
    Lost(u32, String),
    /// It no longer gives a node jobs, but did not lose it.
    Drained(String),
}

/// The word behind `name` in `line`.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(name)?.1;
    let word = rest.split_whitespace().next()?;
    Some(word.trim_end_matches([',', '.', ';']))
}

fn job(line: &str) -> Option<u32> {
    after(line, "JobId=")?.parse().ok()
}

/// What a line says; None: nothing of this.
#[must_use]
pub fn did(line: &str) -> Option<Did> {
    let has = |words: &str| line.contains(words);
    let text = |name: &str| after(line, name).map(str::to_owned);
    if has(" started on cluster ") {
        return Some(Did::Began);
    }
    if let Some((_, list)) = line.split_once(" active features set to:") {
        let names = list.trim().split(',').filter(|name| !name.is_empty());
        return Some(Did::Features(
            text("nodes ")?,
            names.map(str::to_owned).collect(),
        ));
    }
    if has("Allocate JobId=") {
        return Some(Did::Placed(job(line)?, text("NodeList=")?));
    }
    if has("Started JobId=") {
        return Some(Did::Placed(job(line)?, text(" on ")?));
    }
    if has("_job_requeue_op: JobId=") {
        return Some(Did::Requeued(job(line)?));
    }
    if has("due to failure of node ") {
        return Some(Did::Lost(job(line)?, text("due to failure of node ")?));
    }
    let drains = has("draining the node") || has("state set to DRAIN");
    drains.then(|| Did::Drained(line.to_owned()))
}

/// What a log says of the jobs that are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// Sets of features that nodes were given.
    pub published: u64,
    /// Placements, of these jobs.
    pub placed: u64,
    /// Requests to move each of them.
    pub evicted: BTreeMap<u32, u32>,
    /// Jobs that lost a node.
    pub lost_nodes: u64,
    /// What was not right, in words.
    pub misplaced: Vec<String>,
    /// Lines that say so of nodes.
    pub drained: Vec<String>,
}

/// What was read of a log so far.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    at: u64,
    /// The most that each node says it gives at this point of the log.
    gives: BTreeMap<String, u8>,
}

impl Reader {
    /// What `file` holds since the last time: `asks` is the per cent of throughput that each job wants, of a feature
    /// `prefix` and per cent.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(
        &mut self,
        file: &Path,
        asks: &BTreeMap<u32, u8>,
        prefix: &str,
    ) -> io::Result<Story> {
        let mut file = File::open(file)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        let whole = new
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        self.at += u64::try_from(whole).unwrap_or(u64::MAX);
        Ok(self.hear(&String::from_utf8_lossy(&new[..whole]), asks, prefix))
    }

    fn hear(&mut self, text: &str, asks: &BTreeMap<u32, u8>, prefix: &str) -> Story {
        let mut story = Story::default();
        for line in text.lines() {
            match did(line) {
                Some(Did::Began) => self.gives.clear(),
                Some(Did::Features(node, names)) => {
                    let steps = names
                        .iter()
                        .filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
                    self.gives.insert(node, steps.max().unwrap_or(0));
                    story.published += 1;
                }
                Some(Did::Placed(job, node)) => {
                    let Some(&asks) = asks.get(&job) else {
                        continue;
                    };
                    story.placed += 1;
                    let gives = self.gives.get(&node).copied().unwrap_or(0);
                    if gives < asks {
                        story.misplaced.push(format!(
                            "job {job} asks for {asks} % and was given {node}, which said {gives} %: {line}"
                        ));
                    }
                }
                Some(Did::Requeued(job)) if asks.contains_key(&job) => {
                    *story.evicted.entry(job).or_default() += 1;
                }
                Some(Did::Lost(job, _)) if asks.contains_key(&job) => story.lost_nodes += 1,
                Some(Did::Drained(line)) => story.drained.push(line),
                _ => {}
            }
        }
        story
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-CLUSTER-14: the judge notices each of what it is there for, in the controller's own words.
    #[test]
    fn a_log_tells_where_jobs_went_and_what_was_said_there() {
        let log = "\
[2026-11-23T14:00:00.000] slurmctld version 22.05.8 started on cluster tg
[2026-11-23T14:00:01.000] debug2: _update_node_features_post: nodes n1 active features set to: a100,tg.s.1x10,tg.s.1x40
[2026-11-23T14:00:02.000] sched: Allocate JobId=2 NodeList=n1 #CPUs=1 Partition=harvest
[2026-11-23T14:00:03.000] debug:  _job_requeue_op: JobId=2 state 0x8000 reason 0 priority -65537
[2026-11-23T14:00:04.000] debug2: _update_node_features_post: nodes n2 active features set to: tg.s.1x30
[2026-11-23T14:00:05.000] sched/backfill: _start_job: Started JobId=2 in harvest on n2
[2026-11-23T14:00:06.000] requeue job JobId=2 due to failure of node n2
[2026-11-23T14:00:07.000] slurmctld version 22.05.8 started on cluster tg
[2026-11-23T14:00:08.000] sched: Allocate JobId=2 NodeList=n1 #CPUs=1 Partition=harvest
[2026-11-23T14:00:09.000] error: _slurm_rpc_complete_batch_script: Prolog or job env setup failure on node n1, draining the node
";
        let story = Reader::default().hear(log, &BTreeMap::from([(2, 40)]), "tg.s.1x");
        assert_eq!((story.published, story.placed, story.lost_nodes), (2, 3, 1));
        assert_eq!(story.evicted, BTreeMap::from([(2, 1)]));
        assert_eq!(story.misplaced.len(), 2, "{story:?}");
        assert!(story.misplaced[0].contains("n2, which said 30 %"));
        assert!(story.misplaced[1].contains("n1, which said 0 %"));
        assert_eq!(story.drained.len(), 1);
    }
}
