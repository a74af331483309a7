//! Scheduling calls of processes, which wait until their channels are in the state that policy wants.

use super::{Lane, Lanes};
use crate::kinds::{Level, Role};
use crate::members::Members;
use crate::message::{Tell, Ticket};
use crate::session::{Client, Session};
use tidegate_policy::ids::JobId;

impl Lanes {
    /// Lets every held scheduling call of a session pass whose channels stand as policy wants them.
    pub(crate) fn release_tickets(&self, id: u64, members: &mut Members, level: Level) {
        let Some(session) = members.get_mut(id) else {
            return;
        };
        if session.calls.tickets.is_empty() {
            return;
        }
        let (go, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut session.calls.tickets)
            .into_iter()
            .partition(|ticket| self.may_schedule(session, ticket, level));
        session.calls.tickets = stay;
        for ticket in go {
            session.tell(Tell::Go {
                ticket: ticket.ticket,
            });
        }
    }

    /// The same of all processes of a job.
    pub(crate) fn release_job_tickets(&self, job: JobId, members: &mut Members, level: Level) {
        let waits = |session: &&Session| !session.calls.tickets.is_empty();
        let waiting: Vec<u64> = members
            .of_job(job)
            .filter(waits)
            .map(|session| session.id)
            .collect();
        for id in waiting {
            self.release_tickets(id, members, level);
        }
    }

    fn may_schedule(&self, session: &Session, ticket: &Ticket, level: Level) -> bool {
        if session.role != Role::Offline || level == Level::L5 {
            return true;
        }
        match session.rm.clients.get(&ticket.client) {
            // It cannot be gated by its channels: its launches wait instead.
            Some(Client::Foreign) => return true,
            Some(Client::Own(_)) => {}
            Some(Client::Asked) | None => return false,
        }
        let mut channels = session
            .channels
            .iter()
            .filter(|held| {
                held.channel.client == ticket.client
                    && (held.channel.tsg == ticket.object || held.channel.channel == ticket.object)
            })
            .peekable();
        channels.peek().is_some()
            && channels.all(|held| {
                let Some(gpu) = held.gpu.filter(|_| held.place.is_some()) else {
                    return true;
                };
                let lane = session.job.and_then(|job| self.lane(job, gpu));
                lane.is_none_or(Lane::is_settled)
            })
    }
}
