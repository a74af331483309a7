//! Ownership checks (`proofs`) of RM clients, and when they are repeated.
//!
//! A proof says who owned a client at one moment. The process can then free the client without telling anyone and stay
//! connected. Sooner or later RM gives the number to another process, and an order that names the old pair would
//! disable that process' channel. So a proof is repeated in two cases. After each answered disable that named the
//! client: this bounds how long a channel of another process can be stopped. And periodically: this finds most freed
//! clients before their number has another owner.
//!
//! A proof covers a disable only if it began after that disable returned. If another disable is answered while a proof
//! is under way, a second proof follows.
//!
//! ```text
//!   stands --ask--> asked --ask--> asked, and once more
//!     ^               |                  |
//!     +---- own ------+ <----- own ------+        nobody's: forget it      another's: refuse it
//! ```

use crate::lanes::{Lanes, Proven};
use crate::members::Members;
use crate::message::{Again, Owner};
use crate::ports::Prover;
use crate::session::Client;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tidegate_policy::ids::{GpuId, JobId};

/// The questions under way.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    asked: HashMap<Proven, Asked>,
    next_seq: u64,
    /// When all of them are made again.
    period_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    seq: u64,
    once_more: bool,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: it stands, or is no longer asked about.
    Nothing,
    /// Ask once more.
    Ask,
    /// There is no such client: forget its channels.
    Forget,
    /// It is another process' client: nothing of it may stay in a list, or disabled.
    Refuse,
}

impl Proofs {
    /// Wants a proof that begins from here on. The number of the question, if it has to be put; else
    /// one under way will be followed by another.
    pub fn ask(&mut self, proven: Proven) -> Option<u64> {
        match self.asked.entry(proven) {
            Entry::Occupied(mut asked) => {
                asked.get_mut().once_more = true;
                None
            }
            Entry::Vacant(free) => {
                self.next_seq += 1;
                free.insert(Asked {
                    seq: self.next_seq,
                    once_more: false,
                });
                Some(self.next_seq)
            }
        }
    }

    /// The question could not be put, or its client is no longer of interest.
    pub fn drop(&mut self, proven: Proven) {
        self.asked.remove(&proven);
    }

    /// A session is gone.
    pub fn drop_all(&mut self, session: u64) {
        self.asked.retain(|(own, _), _| *own != session);
    }

    /// The answer to question `seq`; None: the driver did not say, and the next period asks again.
    pub fn answered(&mut self, proven: Proven, seq: u64, owner: Option<Owner>) -> Next {
        let Some(asked) = self.asked.get(&proven).copied().filter(|a| a.seq == seq) else {
            return Next::Nothing;
        };
        self.asked.remove(&proven);
        match owner {
            Some(Owner::Foreign) => Next::Refuse,
            Some(Owner::Nobody) => Next::Forget,
            Some(Owner::Own) | None if asked.once_more => Next::Ask,
            Some(Owner::Own) | None => Next::Nothing,
        }
    }
}

impl Proofs {
    /// Whether a period is over: every proof that a list rests on is to be made again.
    pub fn is_due(&mut self, now: u64, every_ns: u64) -> bool {
        let due = now >= self.period_at;
        if due {
            self.period_at = now + every_ns;
        }
        due
    }

    /// The period is over at once.
    pub fn hurry(&mut self, now: u64) {
        self.period_at = now;
    }

    /// Has the proofs of a job's clients on `gpu` made again.
    pub fn ask_all(
        &mut self,
        (job, gpu): (JobId, GpuId),
        lanes: &Lanes,
        members: &Members,
        prover: &dyn Prover,
        now: u64,
    ) {
        let proven = lanes.lane(job, gpu).map(|lane| &lane.proven);
        for &proven in proven.into_iter().flatten() {
            self.ask_again(proven, members, prover, now);
        }
    }

    /// Has one proof made again.
    pub fn ask_again(&mut self, proven: Proven, members: &Members, prover: &dyn Prover, now: u64) {
        let (session, client) = proven;
        let state = members.get(session);
        let Some(Client::Own(Some(file))) = state.and_then(|state| state.rm.clients.get(&client))
        else {
            return;
        };
        let Some(seq) = self.ask(proven) else {
            return;
        };
        let again = Again {
            session,
            client,
            seq,
            file: file.clone(),
        };
        if !prover.again(again) {
            self.drop(proven);
            self.hurry(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Switch;
    use crate::lanes::Lane;
    use crate::task::Outcome;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const PROVEN: Proven = (1, 0xc1d0_0001);

    #[test]
    fn an_answer_to_an_older_question_decides_nothing() {
        let mut proofs = Proofs::default();
        let first = proofs.ask(PROVEN).expect("put");
        proofs.drop(PROVEN);
        let second = proofs.ask(PROVEN).expect("put");
        let answer = |proofs: &mut Proofs, seq, owner| proofs.answered(PROVEN, seq, Some(owner));
        assert_eq!(answer(&mut proofs, first, Owner::Foreign), Next::Nothing);
        assert_eq!(answer(&mut proofs, second, Owner::Own), Next::Nothing);
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Busy,
        Idle,
        Free,
        Born,
        Leave,
        SayGone,
        Issue,
        Prove,
        Turn,
        Period,
    }

    #[derive(Clone, Copy, Debug)]
    enum Task {
        Order(bool),
        Release,
    }

    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Order(bool),
        Owner(u64, Owner),
    }

    /// One client number, the process that proved it, and one that has it afterwards.
    #[derive(Debug)]
    struct World {
        owner: Owner,
        disabled: bool,
        listed: bool,
        lane: Lane,
        proofs: Proofs,
        tasks: VecDeque<Task>,
        questions: VecDeque<u64>,
        inbox: VecDeque<Answer>,
    }

    impl World {
        fn new() -> Self {
            Self {
                owner: Owner::Own,
                disabled: false,
                listed: true,
                lane: Lane::default(),
                proofs: Proofs::default(),
                tasks: VecDeque::new(),
                questions: VecDeque::new(),
                inbox: VecDeque::new(),
            }
        }

        fn order(&mut self, disable: bool) {
            if self.listed {
                self.lane.outstanding += 1;
                self.tasks.push_back(Task::Order(disable));
            }
        }

        fn unlist(&mut self) {
            if std::mem::take(&mut self.listed) {
                self.proofs.drop(PROVEN);
                if self.lane.may_be_disabled() {
                    self.tasks.push_back(Task::Release);
                }
            }
        }

        fn ask(&mut self) {
            if self.listed
                && let Some(seq) = self.proofs.ask(PROVEN)
            {
                self.questions.push_back(seq);
            }
        }

        fn becomes(&mut self, from: Owner, to: Owner) {
            if self.owner == from {
                self.owner = to;
                self.disabled = false;
            }
        }

        fn step(&mut self, op: Op) {
            match op {
                Op::Busy => self.order(true),
                Op::Idle => self.order(false),
                Op::Free => self.becomes(Owner::Own, Owner::Nobody),
                Op::Born => self.becomes(Owner::Nobody, Owner::Foreign),
                Op::Leave => self.becomes(Owner::Foreign, Owner::Nobody),
                Op::SayGone => self.unlist(),
                Op::Period => self.ask(),
                Op::Issue => match self.tasks.pop_front() {
                    Some(Task::Order(disable)) => {
                        if self.owner != Owner::Nobody {
                            self.disabled = disable;
                        }
                        self.inbox.push_back(Answer::Order(disable));
                    }
                    Some(Task::Release) => self.disabled = false,
                    None => {}
                },
                Op::Prove => {
                    if let Some(seq) = self.questions.pop_front() {
                        self.inbox.push_back(Answer::Owner(seq, self.owner));
                    }
                }
                Op::Turn => match self.inbox.pop_front() {
                    Some(Answer::Order(disable)) => {
                        let switch = if disable {
                            Switch::Disable
                        } else {
                            Switch::Enable
                        };
                        self.lane.answered(switch, Outcome::Done);
                        if disable {
                            self.ask();
                        }
                    }
                    Some(Answer::Owner(seq, owner)) => {
                        match self.proofs.answered(PROVEN, seq, Some(owner)) {
                            Next::Nothing => {}
                            Next::Ask => self.ask(),
                            Next::Forget | Next::Refuse => self.unlist(),
                        }
                    }
                    None => {}
                },
            }
        }

        /// Lets everything under way come to its end.
        fn settle(&mut self) {
            while !(self.tasks.is_empty() && self.questions.is_empty() && self.inbox.is_empty()) {
                for op in [Op::Issue, Op::Prove, Op::Turn] {
                    self.step(op);
                }
            }
        }
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => Just(Op::Busy),
            3 => Just(Op::Idle),
            2 => Just(Op::Free),
            2 => Just(Op::Born),
            1 => Just(Op::Leave),
            1 => Just(Op::SayGone),
            6 => Just(Op::Issue),
            6 => Just(Op::Prove),
            6 => Just(Op::Turn),
            1 => Just(Op::Period),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// P-SECURITY-2: nothing of another process stays disabled or listed.
        /// Whatever the order of events: once everything under way has ended, nothing of another
        /// process is disabled; and a period later nothing of it is listed.
        #[test]
        fn nobody_elses_channel_stays_disabled_or_listed(ops in prop::collection::vec(op(), 0..60)) {
            let mut world = World::new();
            for op in ops {
                world.step(op);
            }
            world.settle();
            prop_assert!(!(world.owner == Owner::Foreign && world.disabled), "{world:?}");
            world.step(Op::Period);
            world.settle();
            prop_assert!(!world.listed || world.owner == Owner::Own, "{world:?}");
        }

        /// A process that frees nothing keeps its channels in the lists.
        #[test]
        fn an_owner_is_never_refused(ops in prop::collection::vec(op(), 0..60)) {
            let mut world = World::new();
            for op in ops {
                if !matches!(op, Op::Free | Op::SayGone) {
                    world.step(op);
                }
            }
            world.settle();
            prop_assert!(world.listed);
        }
    }
}
