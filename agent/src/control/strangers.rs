//! Which of the processes that use a GPU are not attached, and which of them the agent reports.

use crate::inbox::User;
use std::collections::BTreeSet;
use std::mem;

/// The agent reports at most this many after one look, and the others after the next.
const AT_ONCE: usize = 8;

/// Processes that use a GPU and are not attached: neither seen nor gated.
#[derive(Clone, Debug, Default)]
pub struct Strangers {
    here: Vec<User>,
    told: BTreeSet<i32>,
}

impl Strangers {
    /// Those that the last look found.
    #[must_use]
    pub fn all(&self) -> &[User] {
        &self.here
    }

    /// Takes what a look found, and who is attached. Returns those to report, each once for as long as it stays.
    pub fn see(&mut self, mut users: Vec<User>, attached: &BTreeSet<i32>) -> Vec<User> {
        users.retain(|user| !attached.contains(&user.pid));
        self.here = users;
        let known = mem::take(&mut self.told);
        let (old, new): (Vec<&User>, Vec<&User>) =
            self.here.iter().partition(|user| known.contains(&user.pid));
        let new: Vec<User> = new.into_iter().take(AT_ONCE).cloned().collect();
        self.told = old.into_iter().chain(&new).map(|user| user.pid).collect();
        new
    }
}

/// One of them, as people read it.
#[must_use]
pub fn text(user: &User) -> String {
    let User {
        pid,
        name,
        standing,
    } = user;
    let with = standing.text();
    format!("{name} (process {pid}) uses a GPU {with} and is not attached: no gate holds it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::Standing;

    fn user(pid: i32) -> User {
        User {
            pid,
            name: format!("p{pid}"),
            standing: match pid % 2 {
                0 => Standing::With,
                _ => Standing::Without,
            },
        }
    }

    fn pids(users: &[User]) -> Vec<i32> {
        users.iter().map(|user| user.pid).collect()
    }

    #[test]
    fn each_is_told_of_once_while_it_stays_and_no_longer_once_it_attaches() {
        let mut strangers = Strangers::default();
        let look = || vec![user(1), user(2), user(3)];
        let attached = |pids: &[i32]| pids.iter().copied().collect::<BTreeSet<i32>>();
        assert_eq!(pids(&strangers.see(look(), &attached(&[2]))), [1, 3]);
        assert_eq!(pids(strangers.all()), [1, 3]);
        assert_eq!(pids(&strangers.see(look(), &attached(&[2]))), [0; 0]);
        // The second is attached no more, the third is now.
        assert_eq!(pids(&strangers.see(look(), &attached(&[3]))), [2]);
        assert_eq!(pids(strangers.all()), [1, 2]);
        // A process that ended is reported again when it returns.
        assert_eq!(pids(&strangers.see(Vec::new(), &attached(&[]))), [0; 0]);
        assert_eq!(pids(&strangers.see(look(), &attached(&[]))), [1, 2, 3]);
    }

    #[test]
    fn of_a_crowd_each_is_told_of_in_the_end() {
        let mut strangers = Strangers::default();
        let mut told = BTreeSet::new();
        for _ in 0..3 {
            let new = strangers.see((1..=20).map(user).collect(), &BTreeSet::new());
            assert!(new.len() <= AT_ONCE);
            assert!(new.iter().all(|user| told.insert(user.pid)));
        }
        assert_eq!(told.len(), 20);
        assert_eq!(strangers.all().len(), 20);
    }

    #[test]
    fn the_text_says_whether_the_library_is_there() {
        assert!(text(&user(1)).starts_with("p1 (process 1) uses a GPU without the library and"));
        assert!(text(&user(2)).starts_with("p2 (process 2) uses a GPU with the library and"));
        assert!(text(&user(2)).ends_with("no gate holds it"));
    }
}
