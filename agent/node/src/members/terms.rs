//! What a job has among others: its user's part by the settings in force, its own by the rules of its processes.

use super::Members;
use crate::kinds::Tenant;
use crate::session::Session;
use std::collections::BTreeMap;
use tidegate_policy::event::Event;
use tidegate_policy::fair::{Terms, UserShare};
use tidegate_policy::ids::{JobId, UserId};

/// Whose a process is. Whoever makes a namespace has thousands of user ids to give: all of them count as the user whose
/// session they are in.
const fn user_of(session: &Session) -> u32 {
    match session.peer.tenant {
        Tenant::User(uid) => uid,
        Tenant::Agent | Tenant::Container(_) => session.peer.uid,
    }
}

impl Members {
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
        let user = user_of(first);
        let share = users.get(&user).copied().unwrap_or_default();
        let given = self.of_job(job).map(|session| session.gives);
        let terms = Terms::of(UserId(user), share, given);
        let told = self.terms.insert(job, terms).unwrap_or_default();
        (told != terms).then_some(Event::Terms { job, terms })
    }
}
