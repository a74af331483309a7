//! The control thread allocates nothing once it has met its processes, jobs and GPUs: a decision never
//! waits for the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::{Event, Reading, Standing};
use tidegate_policy::ids::{Channels, GpuId, GpuSet, GraphId, JobId, Launches, SessionId};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

struct Counting;

thread_local! {
    /// Calls of the allocator by this thread: the test runner's own thread allocates beside it.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GPUS: u8 = 4;
const ONLINE: u64 = 3;
const OFFLINE: u64 = 3;

/// A node whose every order is answered at once.
struct Rig {
    node: Node,
    now_ns: u64,
    effects: Vec<Effect>,
    answers: Vec<Event<'static>>,
    /// Edges so far of each online process on each GPU.
    edges: [[u64; GPUS as usize]; ONLINE as usize],
    idle_ns: [[u64; GPUS as usize]; ONLINE as usize],
    orders: u64,
}

impl Rig {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }

    fn send(&mut self, event: Event<'static>) {
        self.answers.push(event);
        while let Some(event) = self.answers.pop() {
            let now = self.now();
            self.effects.clear();
            self.node.step(event, now, &mut self.effects);
            for effect in &self.effects {
                let answer = match *effect {
                    Effect::Disable(order) => Event::Disabled {
                        order,
                        entered: now,
                        returned: now,
                    },
                    Effect::Enable { order, .. } => Event::Enabled { order },
                    _ => continue,
                };
                self.orders += 1;
                self.answers.push(answer);
            }
        }
    }

    fn attach(&mut self) {
        for session in 0..ONLINE {
            let session = SessionId(session);
            self.send(Event::OnlineAttached { session });
        }
        for session in 0..OFFLINE {
            let session = SessionId(ONLINE + session);
            self.send(Event::OfflineAttached {
                session,
                job: JobId(u32::from(session.0.is_multiple_of(2))),
                gpus: GpuSet::first(GPUS),
                standing: Standing::Enabled,
            });
            for gpu in 0..GPUS {
                self.send(Event::ChannelsChanged {
                    session,
                    gpu: GpuId(gpu),
                    channels: Channels(8),
                    grown: true,
                });
            }
        }
    }

    /// One busy period of `launches` of one process on one GPU, and its pause.
    fn period(&mut self, session: u64, gpu: u8, launches: u64, pause_ns: u64) {
        let (process, device) = (session as usize, usize::from(gpu));
        for busy in [true, false] {
            self.edges[process][device] += 1;
            if !busy {
                self.idle_ns[process][device] = self.now_ns;
            }
            let reading = Reading {
                generation: self.edges[process][device],
                busy,
                busy_since: self.now(),
                idle_since: Instant::from_nanos(self.idle_ns[process][device]),
                launches: Launches(launches),
                graph: GraphId(u64::from(launches > 5)),
            };
            self.send(Event::Activity {
                session: SessionId(session),
                gpu: GpuId(gpu),
                reading,
            });
            self.now_ns += 3_000_000;
        }
        for _ in 0..4 {
            self.now_ns += pause_ns / 4;
            let at = self.now();
            for session in 0..ONLINE {
                let session = SessionId(session);
                self.send(Event::Progress { session, at });
            }
            self.send(Event::Tick);
        }
    }

    /// A request's decode iterations on every GPU, then a pause in which the gates open.
    fn requests(&mut self, count: u64) {
        for number in 0..count {
            let session = number % ONLINE;
            for iteration in 0..12 {
                for gpu in 0..GPUS {
                    self.period(session, gpu, 10 + number % 2, 200_000 * (iteration % 3));
                }
            }
            self.now_ns += Duration::from_millis(400).as_nanos() as u64;
            self.send(Event::Tick);
        }
    }
}

#[test]
fn no_step_allocates_once_its_processes_jobs_and_gpus_are_known() {
    let begin = Instant::from_nanos(1_000_000_000);
    let mut rig = Rig {
        node: Node::new(Config::default(), GPUS, begin),
        now_ns: begin.as_nanos(),
        effects: Vec::with_capacity(256),
        answers: Vec::with_capacity(256),
        edges: Default::default(),
        idle_ns: Default::default(),
        orders: 0,
    };
    rig.attach();
    rig.requests(6);
    let (before, orders) = (ALLOCATIONS.get(), rig.orders);
    rig.requests(150);
    let allocated = ALLOCATIONS.get() - before;
    assert!(
        rig.orders - orders > 1_000,
        "an empty run: {} orders",
        rig.orders - orders
    );
    assert_eq!(allocated, 0);
}
