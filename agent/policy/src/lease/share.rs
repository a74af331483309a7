//! Which of several jobs on one GPU is next: deficit round robin by weight (Shreedhar and Varghese, SIGCOMM 1995).
//!
//! A job's turn is a quantum times its weight. A unit is not divided, so a turn can take too much; that is subtracted
//! from the job's next turn. A job without work earns no credit.

/// Jobs that share a GPU at most.
pub const JOBS: usize = 16;

/// Turns that a job may owe at most: what one unit took can be anything its process says.
const OWED: i64 = 1_000;

#[derive(Clone, Copy, Debug, Default)]
struct Job {
    id: u64,
    weight: u32,
    /// ns left of its turn; below zero what it took too much.
    left: i64,
    /// It is gone, and kept for what it had: one that comes back by that name has had it.
    gone: bool,
}

/// The jobs of one GPU.
#[derive(Clone, Debug)]
pub struct Shares {
    jobs: [Job; JOBS],
    count: usize,
    /// Whose turn it is.
    at: usize,
    quantum: i64,
}

impl Shares {
    /// Nobody; a turn of weight one takes `quantum_ns`.
    #[must_use]
    pub fn new(quantum_ns: u64) -> Self {
        Self {
            jobs: [Job::default(); JOBS],
            count: 0,
            at: 0,
            quantum: i64::try_from(quantum_ns).unwrap_or(i64::MAX).max(1),
        }
    }

    /// A job comes, or its weight changes; zero counts as one. Says whether there is room.
    pub fn set(&mut self, id: u64, weight: u32) -> bool {
        let weight = weight.max(1);
        let mut known = self.jobs[..self.count].iter_mut();
        if let Some(job) = known.find(|job| job.id == id) {
            (job.weight, job.gone) = (weight, false);
            return true;
        }
        if self.count == JOBS && !self.forget_one() {
            return false;
        }
        self.jobs[self.count] = Job {
            id,
            weight,
            left: 0,
            gone: false,
        };
        self.count += 1;
        true
    }

    /// A job is gone. What it had of its turn is kept, as far as there is room.
    pub fn remove(&mut self, id: u64) {
        let mut jobs = self.jobs[..self.count].iter_mut();
        if let Some(job) = jobs.find(|job| job.id == id) {
            job.gone = true;
        }
    }

    /// Makes room: says whether one was gone.
    fn forget_one(&mut self) -> bool {
        let place = self.jobs[..self.count].iter().position(|job| job.gone);
        place.inspect(|place| self.forget(*place)).is_some()
    }

    fn forget(&mut self, place: usize) {
        self.jobs.copy_within(place + 1..self.count, place);
        self.count -= 1;
        if self.at > place {
            self.at -= 1;
        }
        if self.at >= self.count {
            self.at = 0;
        }
    }

    /// Whose unit is next, of those that are `ready`. Asking again changes nothing.
    pub fn next(&mut self, ready: impl Fn(u64) -> bool) -> Option<u64> {
        let ready = |job: &Job| !job.gone && ready(job.id);
        if !self.jobs[..self.count].iter().any(ready) {
            return None;
        }
        loop {
            let job = &mut self.jobs[self.at];
            if ready(job) && job.left > 0 {
                return Some(job.id);
            }
            if !ready(job) {
                // No work is saved up; what was taken too much stays owed.
                job.left = job.left.min(0);
            }
            self.at = (self.at + 1) % self.count;
            let next = &mut self.jobs[self.at];
            let turn = self.quantum.saturating_mul(i64::from(next.weight));
            next.left = next.left.saturating_add(turn).min(turn);
        }
    }

    /// A unit of this job took `ns`.
    pub fn took(&mut self, id: u64, ns: u64) {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        let known = self.jobs[..self.count].iter_mut().find(|job| job.id == id);
        if let Some(job) = known {
            let turn = self.quantum.saturating_mul(i64::from(job.weight));
            job.left = job.left.saturating_sub(ns).max(turn.saturating_mul(-OWED));
        }
    }
}
