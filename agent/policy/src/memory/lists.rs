//! How much of the agent's memory lists of requests take ([`crate::holders`]), by user.
//!
//! A user's lists never take more than is then left. So a user who is alone has half of all, and every other user finds
//! room. A list for which there is no room is not kept: its request counts as one that loses nothing.

use crate::ids::UserId;
use std::collections::BTreeMap;

/// Bytes that the lists of all jobs may take: a sixteenth of what the agent's unit gives it.
pub const LISTS: usize = 32 << 20;

/// Bytes that lists take.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    users: BTreeMap<UserId, usize>,
    all: usize,
}

impl Lists {
    /// Bytes that a user's lists may take beside what they take.
    pub fn room(&self, user: UserId) -> usize {
        let own = self.users.get(&user).copied().unwrap_or(0);
        LISTS.saturating_sub(self.all + own) / 2
    }

    /// Lists of a user take so much more.
    pub fn take(&mut self, user: UserId, bytes: usize) {
        if bytes != 0 {
            *self.users.entry(user).or_default() += bytes;
            self.all += bytes;
        }
    }

    /// So much of a user's lists is gone.
    pub fn give_up(&mut self, user: UserId, bytes: usize) {
        self.all -= bytes;
        if let Some(own) = self.users.get_mut(&user) {
            *own -= bytes;
            if *own == 0 {
                self.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes whatever there is room for, `piece` by `piece`; what the user has then.
    fn fill(lists: &mut Lists, user: UserId, piece: usize) -> usize {
        while lists.room(user) >= piece {
            lists.take(user, piece);
        }
        lists.users.get(&user).copied().unwrap_or(0)
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn a_user_has_half_of_what_others_leave_and_what_it_gives_up_others_have() {
        let mut lists = Lists::default();
        let piece = 1 << 10;
        let users = [0, 1, 2, 3].map(UserId);
        let had = users.map(|user| fill(&mut lists, user, piece));
        let parts = had.map(|bytes| LISTS.div_ceil(bytes));
        assert_eq!(parts, [2, 4, 8, 16]);
        lists.give_up(users[0], had[0]);
        assert!(fill(&mut lists, users[3], piece) >= LISTS / 4);
        assert!(lists.all <= LISTS);
    }
}
