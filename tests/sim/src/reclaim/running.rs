//! The engine of an offline process: it schedules while its launches pass, and its steps run on the device.

use super::engine::Backing;
use super::engine::Step;
use super::play::{Cache, Happening, Own, Reclaim};
use crate::dice::{MS, US};
use crate::process::Process;
use crate::world::World;
use tidegate_device::Work;

/// An engine that has nothing to do still looks at the log this often, ns.
const IDLE_LOOK: u64 = 20 * MS;

fn cache_of(process: &mut Process<Own>) -> Option<&mut Cache> {
    process.own.cache()
}

impl World<Reclaim> {
    pub fn tick(&mut self, pid: usize) {
        self.schedules(pid);
        self.play_at(self.now + IDLE_LOOK, Happening::Tick(pid));
    }

    /// Schedules as many steps as may be under way.
    pub fn schedules(&mut self, pid: usize) {
        loop {
            let process = &mut self.processes[pid];
            if !process.passes() {
                return;
            }
            let channel = process.devices[0].channels[0].1;
            let Some(cache) = cache_of(process) else {
                return;
            };
            if cache.engine.under_way == 0 {
                self.play.figures.hit += cache.engine.poll(&cache.pages);
            }
            let Some(step) = cache.engine.schedule() else {
                break;
            };
            self.play.tags += 1;
            let (tag, ns) = (self.play.tags, self.dice.scale(100 * US, 6 * MS));
            self.play.steps.insert(tag, (pid, step));
            self.device(0).submit(channel, Work::Run { ns, tag });
        }
        self.changes(pid);
    }

    /// A step has run.
    pub fn step_ends(&mut self, tag: u64) {
        let Some((pid, mut step)) = self.play.steps.remove(&tag) else {
            return;
        };
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        let Some(cache) = cache_of(process) else {
            return;
        };
        let torn = cache.pages.backing.contains(&Backing::Nothing);
        cache.engine.execute(&mut step, &mut cache.pages);
        if torn {
            self.play.figures.faults += 1;
            self.violated("a kernel ran on an unmapped page");
        }
        let at = self.now + self.dice.between(10 * US, 400 * US);
        let Some(cache) = cache_of(&mut self.processes[pid]) else {
            return;
        };
        cache.out = cache.out.max(at) + 1;
        let at = cache.out;
        self.play_at(at, Happening::Output(pid, Box::new(step)));
    }

    /// The outputs of a step are on the host.
    pub fn output(&mut self, pid: usize, step: &Step) {
        let Some(cache) = cache_of(&mut self.processes[pid]) else {
            return;
        };
        let came = cache.engine.process(step, &cache.pages);
        let figures = &mut self.play.figures;
        figures.wrong_tokens += came.wrong;
        figures.hit += came.hit;
        figures.tokens += came.accepted;
        if came.wrong > 0 {
            self.violated(&format!("{} wrong tokens", came.wrong));
        }
        self.changes(pid);
        self.schedules(pid);
    }

    /// The scheduler of an engine starts over.
    pub fn scheduler_restarts(&mut self, pid: usize) {
        if let Some(cache) = cache_of(&mut self.processes[pid]) {
            cache.engine.restart();
            // One that starts reads the whole log before it allocates.
            cache.engine.poll(&cache.pages);
            self.changes(pid);
        }
    }
}
