//! From channels to batches: which go together, in what order, and what follows which.

use super::{Batch, Kick, Object, Via};
use crate::file::File;
use crate::journal::Place;
use crate::kinds::Method;

/// A channel that goes into a batch.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its RM client.
    pub client: u32,
    /// The channel.
    pub channel: u32,
    /// Its group.
    pub group: u32,
    /// Whether the group computes or may: those are on the graphics runlist.
    pub computes: bool,
    /// The file on which its client was made, where it is known.
    pub file: Option<File>,
    /// Where the journal has it.
    pub place: Place,
}

impl Member {
    fn object(&self, handle: u32) -> Option<Object> {
        self.file.as_ref().map(|file| Object {
            file: file.clone(),
            client: self.client,
            handle,
        })
    }
}

/// Batches under way. Channels come process by process, groups that compute first, each group whole.
///
/// What follows a batch is put where it belongs while the batches are made:
/// * The graphics runlist is restarted once, after the last batch that has a channel on it: a restart
///   takes everything off that is disabled by then, costs a turn of the firmware each time, and gives
///   whoever is still enabled (a job half disabled) another turn first.
/// * Which runlist a copy engine's group is on is not known here, so each such group restarts its own,
///   by one of its channels, when all of it is disabled.
/// * A group is preempted when all of it is disabled, so that those that compute are off before the
///   copies are asked.
#[derive(Debug)]
pub struct Plan {
    method: Method,
    /// The processes carry the method out themselves.
    remote: bool,
    batches: Vec<Batch>,
    /// The batch with the last channel of the graphics runlist, and one of its channels.
    graphics: Option<(usize, Option<Object>)>,
    /// What follows when the group that came last is whole: its batch, client and group.
    open: Option<(usize, (u32, u32), Kick)>,
}

impl Plan {
    /// Without channels. `remote`: who is told to carry it out adds what follows himself.
    #[must_use]
    pub const fn new(method: Method, remote: bool) -> Self {
        Self {
            method,
            remote,
            batches: Vec::new(),
            graphics: None,
            open: None,
        }
    }

    /// Adds a channel of `session`, controlled through `via`.
    pub fn push(&mut self, session: u64, via: Via, member: &Member) {
        let fits = |batch: &Batch| {
            batch.session == session
                && match (&batch.via, &via) {
                    (Via::Agent, Via::Agent) => true,
                    (Via::Owner { client: a, .. }, Via::Owner { client: b, .. }) => a == b,
                    _ => false,
                }
        };
        let pushed = self
            .batches
            .last_mut()
            .filter(|batch| fits(batch))
            .is_some_and(|batch| batch.push(member.client, member.channel, member.place));
        if !pushed {
            let mut batch = Batch::by(via, self.method);
            batch.session = session;
            batch.push(member.client, member.channel, member.place);
            self.batches.push(batch);
        }
        if !self.remote {
            self.follow(member);
        }
    }

    fn follow(&mut self, member: &Member) {
        let at = self.batches.len() - 1;
        let group = (member.client, member.group);
        let kick = match self.method {
            Method::Disable => return,
            Method::Restart if member.computes => {
                let known = self.graphics.take().and_then(|(_, object)| object);
                let object = known.or_else(|| member.object(member.channel));
                self.graphics = Some((at, object));
                return;
            }
            Method::Restart => member.object(member.channel).map(Kick::Restart),
            Method::Preempt => member.object(member.group).map(Kick::Preempt),
        };
        match &mut self.open {
            Some((last, own, _)) if *own == group => *last = at,
            _ => {
                self.close();
                self.open = kick.map(|kick| (at, group, kick));
            }
        }
    }

    fn close(&mut self) {
        if let Some((at, _, kick)) = self.open.take() {
            self.batches[at].kicks.push(kick);
        }
    }

    /// The batches, in the order in which they go.
    #[must_use]
    pub fn finish(mut self) -> Vec<Batch> {
        self.close();
        if let Some((at, otherwise)) = self.graphics.take() {
            let kick = Kick::RestartGraphics { otherwise };
            self.batches[at].kicks.insert(0, kick);
        }
        self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(client: u32, group: u32, channel: u32, computes: bool) -> Member {
        Member {
            client,
            channel,
            group,
            computes,
            file: Some(File::new(())),
            place: Place::NONE,
        }
    }

    /// What follows each batch: `g` and `r` restarts, `p` and the group a preemption.
    fn followed(method: Method, remote: bool) -> Vec<String> {
        let mut plan = Plan::new(method, remote);
        for session in 1..=2_u32 {
            let mut push = |group, channel, computes| {
                let member = member(session, group, channel, computes);
                plan.push(u64::from(session), Via::Agent, &member);
            };
            for channel in 0..70 {
                push(7, channel, true);
            }
            for channel in 70..72 {
                push(8, channel, false);
            }
        }
        let text = |kick: &Kick| match kick {
            Kick::RestartGraphics { otherwise } => {
                assert!(otherwise.is_some());
                "g".to_owned()
            }
            Kick::Restart(by) => format!("r{}", by.handle),
            Kick::Preempt(group) => format!("p{}", group.handle),
        };
        let batches = plan.finish();
        assert!(batches.iter().all(|batch| batch.method == method));
        let pairs: Vec<_> = batches.iter().map(Batch::pairs).collect();
        assert_eq!(pairs, [64, 8, 64, 8]);
        let kicks = batches.iter().map(|batch| &batch.kicks);
        kicks
            .map(|kicks| kicks.iter().map(text).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn a_runlist_is_restarted_once_after_the_last_batch_that_concerns_it() {
        assert_eq!(followed(Method::Restart, false), ["", "r70", "", "g r70"]);
    }

    #[test]
    fn a_group_is_preempted_when_all_of_it_is_disabled() {
        assert_eq!(followed(Method::Preempt, false), ["", "p7 p8", "", "p7 p8"]);
    }

    #[test]
    fn nothing_follows_where_a_disable_is_enough_or_the_process_does_it_itself() {
        assert_eq!(followed(Method::Disable, false), ["", "", "", ""]);
        assert_eq!(followed(Method::Restart, true), ["", "", "", ""]);
    }
}
