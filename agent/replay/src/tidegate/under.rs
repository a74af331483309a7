//! The agent's memory under somebody else's gate, which pauses and resumes the job as an operator does.

use super::{BEFORE, Command, NEVER, Rule, Tidegate, event};

impl Tidegate {
    /// That gate lets offline in, which takes so many ns.
    pub fn resume(&mut self, takes: u64, now: u64, out: &mut Vec<Command>) {
        self.steer(Some(takes), event::Event::Resume { job: None }, now, out);
    }

    /// That gate has offline stop. Says whether it runs, so that it has to be stopped.
    pub fn stops(&mut self, now: u64, out: &mut Vec<Command>) -> bool {
        let runs = self.enabled && matches!(self.rule, Rule::Foreign { off: false, .. });
        if let Rule::Foreign { runs, .. } = &mut self.rule {
            *runs = None;
        }
        if !runs {
            self.steer(None, event::Event::Pause { job: None }, now, out);
        }
        runs
    }

    /// It has stopped.
    pub fn stopped(&mut self, now: u64, out: &mut Vec<Command>) {
        let Rule::Foreign { runs, off } = &mut self.rule else {
            return;
        };
        *off = true;
        let paused = runs.is_none();
        if self.thread.ends() == Some(NEVER) {
            self.thread.ends_at(now + BEFORE);
        }
        if paused {
            self.steer(None, event::Event::Pause { job: None }, now, out);
        }
    }

    fn steer(
        &mut self,
        lets_in: Option<u64>,
        event: event::Event<'static>,
        now: u64,
        out: &mut Vec<Command>,
    ) {
        if let Rule::Foreign { runs, .. } = &mut self.rule {
            *runs = lets_in;
        }
        let now = now + BEFORE;
        self.time.set(now);
        self.shell.steer(Some(event));
        self.shell.rest();
        self.answer(now, out);
    }
}
