//! Weight and class of a job: its user's part comes from the settings in force, its own from the rules of its
//! processes.

use super::Members;
use crate::kinds::Tenant;
use crate::session::Session;
use std::collections::BTreeMap;
use tidegate_policy::event::Event;
use tidegate_policy::fair::{Terms, UserShare};
use tidegate_policy::ids::{JobId, UserId};

impl Members {
    /// Whose part of the time a process uses. A tenant has one, however many user ids its processes have.
    fn user_of(&self, session: &Session) -> u32 {
        match session.peer.tenant {
            Tenant::User(uid) => uid,
            Tenant::Agent => session.peer.uid,
            Tenant::Container(_) | Tenant::Group(_) => self
                .users
                .get(&session.peer.tenant)
                .map_or(session.peer.uid, |(uid, _)| *uid),
        }
    }

    /// What policy is to be told of a job, if it was told something else.
    pub(crate) fn terms(
        &mut self,
        job: JobId,
        users: &BTreeMap<u32, UserShare>,
    ) -> Option<Event<'static>> {
        let Some(first) = self.of_job(job).next() else {
            self.terms.remove(&job);
            return None;
        };
        let user = self.user_of(first);
        let share = users.get(&user).copied().unwrap_or_default();
        let given = self.of_job(job).map(|session| session.origin.gives);
        let terms = Terms::of(UserId(user), share, given);
        let told = self.terms.insert(job, terms).unwrap_or_default();
        (told != terms).then_some(Event::Terms { job, terms })
    }
}
