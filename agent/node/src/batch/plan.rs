//! Builds batches from channels: which channels go together, in which order, and what follows which.

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

/// Batches under way. Each group comes whole, and a process' groups that compute before those that copy.
///
/// A call names channels of one process, or of several ([`Self::together`]): a call waits for the firmware once,
/// whomever it names.
///
/// What follows a batch is put where it belongs while the batches are made:
/// * The graphics runlist is restarted once, after the last batch that has a channel on it: a restart
///   takes everything off that is disabled by then, costs a turn of the firmware each time, and gives
///   whoever is still enabled (a job half disabled) another turn first.
/// * Which runlist a copy engine's group is on is not known here, so each such group restarts its own,
///   by one of its channels, when all of it is disabled.
/// * A group is preempted when all of it is disabled, so that those that compute are off before the
///   copies are asked.
///
/// Before the first batch come the preemptions of the groups that compute, where the method has them: they do not wait
/// for the other GPUs of the node, and every batch does.
#[derive(Debug)]
pub struct Plan {
    method: Method,
    /// The processes carry the method out themselves.
    remote: bool,
    /// A batch may have pairs of several processes.
    together: bool,
    batches: Vec<Batch>,
    /// Groups that are preempted before the first batch, once each.
    leads: Vec<Object>,
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
            together: false,
            batches: Vec::new(),
            leads: Vec::new(),
            graphics: None,
            open: None,
        }
    }

    /// Whether a batch through the agent's own client may have pairs of several processes.
    #[must_use]
    pub const fn together(mut self, together: bool) -> Self {
        self.together = together;
        self
    }

    /// Adds a channel of `session`, controlled through `via`.
    pub fn push(&mut self, session: u64, via: Via, member: &Member) {
        let together = self.together;
        let fits = |batch: &Batch| match (&batch.via, &via) {
            (Via::Agent, Via::Agent) => together || batch.session == session,
            (Via::Owner { client: a, .. }, Via::Owner { client: b, .. }) => {
                batch.session == session && a == b
            }
            _ => false,
        };
        let pair = (member.client, member.channel);
        let pushed = self
            .batches
            .last_mut()
            .filter(|batch| fits(batch))
            .is_some_and(|batch| batch.push_of(session, pair, member.place));
        if !pushed {
            let mut batch = Batch::by(via, self.method);
            batch.push_of(session, pair, member.place);
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
            Method::PreemptFirst => {
                let own = |lead: &Object| (lead.client, lead.handle) == group;
                if member.computes && !self.leads.iter().any(own) {
                    self.leads.extend(member.object(member.group));
                }
                return;
            }
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
        if let Some(first) = self.batches.first_mut() {
            first.leads = self.leads;
        }
        self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Call;
    use crate::kinds::Switch;

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
        let batches = planned(Plan::new(method, remote));
        let pairs: Vec<_> = batches.iter().map(Batch::pairs).collect();
        assert_eq!(pairs, [64, 8, 64, 8]);
        assert!(!batches.iter().any(Batch::is_joint));
        texts(&batches)
    }

    /// Two processes, each with a group of 70 channels that computes and one of 2 that copies.
    fn planned(mut plan: Plan) -> Vec<Batch> {
        let method = plan.method;
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
        let batches = plan.finish();
        assert!(batches.iter().all(|batch| batch.method == method));
        batches
    }

    fn texts(batches: &[Batch]) -> Vec<String> {
        let text = |kick: &Kick| match kick {
            Kick::RestartGraphics { otherwise } => {
                assert!(otherwise.is_some());
                "g".to_owned()
            }
            Kick::Restart(by) => format!("r{}", by.handle),
            Kick::Preempt(group) => format!("p{}", group.handle),
        };
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
    fn the_groups_that_compute_are_preempted_once_before_the_first_call_and_never_before_an_enable()
    {
        let named = |batch: &Batch, switch| -> Vec<String> {
            let text = |call| match call {
                Call::Lead(group) => format!("p{}.{}", group.client, group.handle),
                Call::Set => "set".to_owned(),
                Call::Kick(_) => "kick".to_owned(),
            };
            batch.calls(switch).map(text).collect()
        };
        for together in [false, true] {
            let batches = planned(Plan::new(Method::PreemptFirst, false).together(together));
            let first = ["p1.7", "p2.7", "set"];
            assert_eq!(named(&batches[0], Switch::Disable), first);
            for batch in &batches {
                assert_eq!(named(batch, Switch::Enable), ["set"]);
            }
            for later in &batches[1..] {
                assert_eq!(named(later, Switch::Disable), ["set"]);
            }
            // What is made again, or of which a part is left out, only disables.
            let again = batches[0]
                .apart()
                .into_iter()
                .chain([batches[0].without(|_| false)]);
            for batch in again {
                assert_eq!(named(&batch, Switch::Disable), ["set"]);
            }
        }
        let remote = planned(Plan::new(Method::PreemptFirst, true));
        assert!(remote.iter().all(|batch| batch.leads.is_empty()));
        let unknown = Member {
            file: None,
            ..member(1, 7, 1, true)
        };
        let mut plan = Plan::new(Method::PreemptFirst, false);
        plan.push(1, Via::Agent, &unknown);
        assert_eq!(named(&plan.finish()[0], Switch::Disable), ["set"]);
    }

    #[test]
    fn nothing_follows_where_a_disable_is_enough_or_the_process_does_it_itself() {
        assert_eq!(followed(Method::Disable, false), ["", "", "", ""]);
        assert_eq!(followed(Method::Restart, true), ["", "", "", ""]);
    }

    #[test]
    fn processes_share_calls_and_each_can_have_its_own() {
        for method in Method::ALL {
            let batches = planned(Plan::new(method, false).together(true));
            let pairs: Vec<_> = batches.iter().map(Batch::pairs).collect();
            assert_eq!(pairs, [64, 64, 16]);
            let joint: Vec<_> = batches.iter().map(Batch::is_joint).collect();
            assert_eq!(joint, [false, true, false]);
            let follows = match method {
                Method::Disable | Method::PreemptFirst => ["", "", ""],
                Method::Restart => ["", "r70", "g r70"],
                Method::Preempt => ["", "p7 p8", "p7 p8"],
            };
            assert_eq!(texts(&batches), follows);

            let apart: Vec<_> = batches[1].apart().into();
            let clients = |batch: &Batch| batch.entries().map(|(client, ..)| client).collect();
            let clients: Vec<Vec<u32>> = apart.iter().map(clients).collect();
            assert_eq!(clients, [vec![1; 8], vec![2; 56]]);
            assert!(
                apart
                    .iter()
                    .all(|own| own.method == method && !own.is_joint())
            );
            assert_eq!(texts(&apart), [follows[1], ""]);
            let whole: Vec<_> = batches[1]
                .entries()
                .map(|(_, channel, _)| channel)
                .collect();
            let parts = apart.iter().flat_map(Batch::entries);
            assert_eq!(
                parts.map(|(_, channel, _)| channel).collect::<Vec<_>>(),
                whole
            );
        }
    }

    #[test]
    fn what_follows_a_call_for_several_follows_that_of_each() {
        let follows = |method| {
            let mut plan = Plan::new(method, false).together(true);
            for session in 1..=2_u32 {
                for (group, channel, computes) in [(7, 1, true), (8, session + 1, false)] {
                    let place = Place(session);
                    let member = Member {
                        place,
                        ..member(session, group, channel, computes)
                    };
                    plan.push(u64::from(session), Via::Agent, &member);
                }
            }
            let joint = plan.finish();
            let rest = joint[0].without(|_| false);
            assert_eq!((joint.len(), rest.is_joint()), (1, true));
            let first = joint[0].without(|place| place == Place(2));
            assert_eq!((first.pairs(), first.is_joint()), (2, false));
            let apart: Vec<_> = rest.apart().into();
            [texts(&joint), texts(&apart)].concat()
        };
        assert_eq!(follows(Method::Restart), ["g r2 r3", "g r2", "g r3"]);
        assert_eq!(follows(Method::Preempt), ["p7 p8 p7 p8", "p7 p8", "p7 p8"]);
    }
}
