//! What Slurm says of running jobs and of other nodes, as its programs print it.

use super::claims::is_job;
use super::slurm::OURS;
use std::collections::BTreeSet;

/// How `squeue` is asked for the jobs of a node.
pub const JOBS: &str = "JobID:|,RestartCnt:|,Requeue:|,Comment:";
/// How it is asked for the nodes that a job does not go to: alone, as a job's name or comment may hold any text.
pub const EXCLUDED: &str = "%x";
/// How `sinfo` is asked for all nodes.
pub const NODES: &str = "NodeHost:|,StateLong:|,Gres:|,GresUsed:|,Features:";

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: String,
    /// Times it was started again, for whatever reason.
    pub restarts: u32,
    /// It may be.
    pub may_restart: bool,
    /// Its comment.
    pub comment: String,
}

/// The jobs in what squeue prints; what is no job is left out.
#[must_use]
pub fn jobs(text: &str) -> Vec<Job> {
    let job = |line: &str| {
        let fields: Vec<_> = line.splitn(4, '|').map(str::trim).collect();
        let [id, restarts, requeue, comment] = fields[..] else {
            return None;
        };
        is_job(id).then(|| Job {
            id: id.to_owned(),
            restarts: restarts.parse().unwrap_or(u32::MAX),
            may_restart: requeue == "1",
            comment: comment.to_owned(),
        })
    };
    text.lines().filter_map(job).collect()
}

/// The list in what squeue prints of the nodes that a job does not go to, as Slurm folds it: `n[1-2],x7`.
#[must_use]
pub fn excluded(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|list| !list.is_empty() && *list != "(null)")
}

/// Slots of `harvest` in a list of generic resources.
fn slots(text: &str) -> u32 {
    let harvest = text
        .split(',')
        .find_map(|gres| gres.trim().strip_prefix("harvest:"));
    let count = harvest.and_then(|rest| rest.split(['(', ':']).next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The most that a node other than `here`, with room, says it gives a job of `gpus` of `profile`, as a share. None: no
/// such node says anything.
#[must_use]
pub fn elsewhere(
    text: &str,
    here: &str,
    excluded: &BTreeSet<String>,
    profile: &str,
    gpus: u8,
) -> Option<f64> {
    let ours = format!("{OURS}{profile}.{gpus}x");
    let node = |line: &str| {
        let fields: Vec<_> = line.splitn(5, '|').map(str::trim).collect();
        let [name, state, all, used, features] = fields[..] else {
            return None;
        };
        let up = ["idle", "mixed", "allocated"].contains(&state);
        let room = slots(all) >= slots(used).saturating_add(u32::from(gpus));
        if name == here || excluded.contains(name) || !up || !room {
            return None;
        }
        let percent = features
            .split(',')
            .filter_map(|feature| feature.strip_prefix(&ours)?.parse::<u8>().ok())
            .filter(|percent| *percent <= 100);
        percent.max()
    };
    text.lines()
        .filter_map(node)
        .max()
        .map(|percent| f64::from(percent) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-CLUSTER-10: another node counts if it is up, has room, may be used and says enough.
    #[test]
    fn only_nodes_that_could_take_the_job_count() {
        let text = "n1|mixed|harvest:2|harvest:1|tg.a.1x10,tg.a.1x90\n\
                    n2|idle|harvest:1|harvest:0|ib,tg.a.1x10,tg.a.1x40,tg.a_b.1x90,tg.a.2x80\n\
                    n3|down*|harvest:1|harvest:0|tg.a.1x70\n\
                    n4|allocated|harvest:1|harvest:1|tg.a.1x60\n\
                    n5|mixed|gpu:8,harvest:2(S:0)|gpu:8,harvest:0|tg.a.1x50\n\
                    none-gives-enough-yet|drained|harvest:2|harvest:0|tg.a.1x100\n";
        let found = |excluded: &[&str]| {
            let excluded = excluded.iter().map(|name| (*name).to_owned()).collect();
            elsewhere(text, "n1", &excluded, "a", 1)
        };
        assert_eq!(found(&[]), Some(0.5));
        assert_eq!(found(&["n5"]), Some(0.4));
        assert_eq!(found(&["n5", "n2"]), None);
    }

    #[test]
    fn a_job_is_read_with_its_comment_whatever_stands_in_it() {
        let text = "12|1|1|tidegate: profile=a sla=0.4|x\n13|0|0|\nnonsense\n";
        let found = jobs(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].comment, "tidegate: profile=a sla=0.4|x");
        assert_eq!((found[0].restarts, found[0].may_restart), (1, true));
        assert!(!found[1].may_restart);
        assert_eq!(excluded("n[1-2],x7\n"), Some("n[1-2],x7"));
        assert_eq!((excluded("(null)\n"), excluded("\n")), (None, None));
    }
}
