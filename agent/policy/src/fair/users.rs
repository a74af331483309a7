//! The most that a user may have: a part of the GPU time of the last hour that other users wanted too.

use crate::ids::UserId;
use crate::time::Instant;
use crate::words::terms::Terms;
use core::time::Duration;

/// An hour in pieces: one falls out of the window at a time.
const PIECES: usize = 60;
const PIECE: Duration = Duration::from_secs(60);

/// Users that are bounded. The others cost nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Users(Vec<User>);

#[derive(Clone, Debug)]
struct User {
    user: UserId,
    /// GPU time of its own, and of all in the components in which it had a rival.
    pieces: [(u64, u64); PIECES],
    sum: (u64, u64),
    /// The piece that is filled, by number since the clock's zero.
    piece: u64,
    /// Components in which it and another user want to run.
    rivalled: u64,
}

impl User {
    fn turn_to(&mut self, now: Instant) {
        let piece = now.as_nanos() / u64::try_from(PIECE.as_nanos()).unwrap_or(u64::MAX);
        let passed = piece.saturating_sub(self.piece).min(PIECES as u64);
        for back in 0..passed {
            let at = &mut self.pieces[((piece - back) % PIECES as u64) as usize];
            self.sum = (self.sum.0 - at.0, self.sum.1 - at.1);
            *at = (0, 0);
        }
        self.piece = self.piece.max(piece);
    }

    fn add(&mut self, own: u64, all: u64) {
        let at = &mut self.pieces[(self.piece % PIECES as u64) as usize];
        *at = (at.0 + own, at.1 + all);
        self.sum = (self.sum.0 + own, self.sum.1 + all);
    }
}

impl Users {
    /// Who wants to run where from here on.
    pub fn rival(&mut self, active: impl Iterator<Item = (Terms, u8)> + Clone) {
        let bounded = active.clone().filter(|(terms, _)| terms.most < 1000);
        for (terms, _) in bounded {
            if !self.0.iter().any(|known| known.user == terms.user) {
                self.0.push(User {
                    user: terms.user,
                    pieces: [(0, 0); PIECES],
                    sum: (0, 0),
                    piece: 0,
                    rivalled: 0,
                });
            }
        }
        for known in &mut self.0 {
            let (mut own, mut others) = (0u64, 0u64);
            for (terms, component) in active.clone() {
                let set = if terms.user == known.user {
                    &mut own
                } else {
                    &mut others
                };
                *set |= 1 << component;
            }
            known.rivalled = own & others;
        }
    }

    /// A job of `user` had so many GPUs of a component for `span` nanoseconds.
    pub fn charge(&mut self, user: UserId, component: u8, span: u64, gpus: u64, now: Instant) {
        for known in self
            .0
            .iter_mut()
            .filter(|known| known.rivalled >> component & 1 == 1)
        {
            known.turn_to(now);
            let time = span.saturating_mul(gpus);
            known.add(if known.user == user { time } else { 0 }, time);
        }
    }

    /// Whether the user of a job has had all it may.
    pub fn is_over(&mut self, terms: Terms, now: Instant) -> bool {
        if terms.most >= 1000 {
            return false;
        }
        self.0
            .iter_mut()
            .find(|known| known.user == terms.user)
            .is_some_and(|known| {
                known.turn_to(now);
                let (own, all) = known.sum;
                u128::from(own) * 1000 > u128::from(all) * u128::from(terms.most)
            })
    }
}
