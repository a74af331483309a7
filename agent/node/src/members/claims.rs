//! Which session owns which RM client.
//!
//! A client belongs to the session that proved it. Without ownership checks (in a sandbox that cannot pass files, and
//! only if the configuration allows it) it belongs to the first live session that reported it. If a second session
//! reports the same client, it belongs to nobody, because the agent cannot know which of the two lies. A proof always
//! wins.

use std::collections::HashMap;

/// Who owns each client.
#[derive(Debug, Default)]
pub struct Claims {
    clients: HashMap<u32, Claim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Proven(u64),
    Reported(u64),
    /// By two sessions, without proof.
    Contested(u64, u64),
}

/// What a claim changed for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The client is the session's.
    Granted,
    /// It is the session's, and was wrongly held by another.
    TakenFrom(u64),
    /// It belongs to another session, which proved it.
    Foreign,
    /// Both sessions lose it.
    Contested(u64),
}

impl Claims {
    /// `session` proved that `client` is its own.
    pub fn prove(&mut self, client: u32, session: u64) -> Verdict {
        match self.clients.insert(client, Claim::Proven(session)) {
            // The handle was reused on another file: the kernel says who has it now.
            Some(Claim::Proven(other) | Claim::Reported(other)) if other != session => {
                Verdict::TakenFrom(other)
            }
            Some(Claim::Contested(a, b)) => {
                let other = if a == session { b } else { a };
                Verdict::TakenFrom(other)
            }
            _ => Verdict::Granted,
        }
    }

    /// `session` says that `client` is its own.
    pub fn report(&mut self, client: u32, session: u64) -> Verdict {
        match self.clients.get(&client).copied() {
            None => {
                self.clients.insert(client, Claim::Reported(session));
                Verdict::Granted
            }
            Some(Claim::Proven(owner) | Claim::Reported(owner)) if owner == session => {
                Verdict::Granted
            }
            Some(Claim::Proven(_)) => Verdict::Foreign,
            Some(Claim::Reported(other)) => {
                self.clients
                    .insert(client, Claim::Contested(other, session));
                Verdict::Contested(other)
            }
            Some(Claim::Contested(other, _)) => Verdict::Contested(other),
        }
    }

    /// `session` says that `client` is gone.
    pub fn release(&mut self, client: u32, session: u64) {
        if matches!(self.clients.get(&client), Some(Claim::Proven(owner) | Claim::Reported(owner)) if *owner == session)
        {
            self.clients.remove(&client);
        }
    }

    /// `session` is gone.
    pub fn release_all(&mut self, session: u64) {
        self.clients.retain(|_, claim| match *claim {
            Claim::Proven(owner) | Claim::Reported(owner) => owner != session,
            // The one that is left does not become the owner: it may be the liar.
            Claim::Contested(a, b) => a != session && b != session,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reported_by_two_belongs_to_neither() {
        let mut claims = Claims::default();
        assert_eq!(claims.report(9, 1), Verdict::Granted);
        assert_eq!(claims.report(9, 1), Verdict::Granted);
        assert_eq!(claims.report(9, 2), Verdict::Contested(1));
        assert_eq!(claims.report(9, 1), Verdict::Contested(1));
        assert_eq!(claims.report(9, 3), Verdict::Contested(1));
    }

    #[test]
    fn a_proof_wins_whether_it_comes_before_or_after_a_claim() {
        let mut claims = Claims::default();
        assert_eq!(claims.prove(9, 1), Verdict::Granted);
        assert_eq!(claims.report(9, 2), Verdict::Foreign);
        assert_eq!(claims.report(8, 2), Verdict::Granted);
        assert_eq!(claims.prove(8, 1), Verdict::TakenFrom(2));
        assert_eq!(claims.report(8, 2), Verdict::Foreign);
    }

    #[test]
    fn a_client_of_a_session_that_is_gone_can_be_claimed_anew() {
        let mut claims = Claims::default();
        claims.prove(9, 1);
        claims.report(8, 1);
        claims.release_all(1);
        assert_eq!(claims.report(9, 2), Verdict::Granted);
        claims.release(9, 3);
        assert_eq!(
            claims.report(9, 4),
            Verdict::Contested(2),
            "not its to release"
        );
    }
}
