//! Tokens lost by the policy's choice of stripes against first-in-first-out.
//!
//! Two engines of a kind serve the same trace; the same sizes are reclaimed from both at the same
//! times, each by its own rule, and given back when half the time to the next has passed, at most
//! 20 s. What is counted is what each reclaim makes the engine compute again.

use super::offline::{Offline, Outermost, Placement};
use std::time::Duration;
use tidegate_policy::ids::Bytes;
use tidegate_policy::select::{Count, Greedy, Order, Ordered, Select};
use tidegate_replay::trace::Trace;

/// KV memory of the offline engine.
pub const POOL: Bytes = Bytes::mib(24 << 10);
/// Reclaims of one point: the more often, the more, since they follow closely on one another.
#[must_use]
pub fn reclaims(rate: f64) -> u32 {
    if rate > 1.0 { 100 } else { 20 }
}

/// Longest time until a reclaimed stripe is given back.
const HELD: Duration = Duration::from_secs(20);

/// One point of the grid.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Who chooses among free blocks.
    pub placement: Placement,
    /// How the offline engine lays its cache out.
    pub outermost: Outermost,
    /// Bytes of a handle.
    pub handle: Bytes,
    /// Bytes of a reclaim.
    pub size: Bytes,
    /// Reclaims per minute.
    pub rate: f64,
}

/// Every point of the grid.
#[must_use]
pub fn grid() -> Vec<Point> {
    let mut points = Vec::new();
    for placement in [Placement::Together, Placement::Engine] {
        for outermost in [Outermost::Layer, Outermost::Block] {
            for handle in [2, 16].map(Bytes::mib) {
                for size in [64, 256, 1 << 10, 4 << 10, 8 << 10].map(Bytes::mib) {
                    points.extend([0.1, 1.0, 10.0].map(|rate| Point {
                        placement,
                        outermost,
                        handle,
                        size,
                        rate,
                    }));
                }
            }
        }
    }
    points
}

/// Tokens lost at one point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// By the policy's rule.
    pub greedy: u64,
    /// First in, first out.
    pub fifo: u64,
    /// By place.
    pub address: u64,
    /// Fewest requests, whatever their tokens.
    pub requests: u64,
}

impl Lost {
    /// Share of first-in-first-out's loss that is saved.
    #[must_use]
    pub fn saved(&self) -> f64 {
        1.0 - self.greedy as f64 / self.fifo.max(1) as f64
    }
}

/// Runs one point with each rule.
#[must_use]
pub fn run(trace: &Trace, point: Point) -> Lost {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let greedy = lost(trace, point, &mut Greedy::default());
            let requests = lost(trace, point, &mut Greedy::new(Count::Requests));
            (greedy, requests)
        });
        let fifo = lost(trace, point, &mut Ordered::new(Order::Fifo));
        let address = lost(trace, point, &mut Ordered::new(Order::Address));
        let (greedy, requests) = first
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Lost {
            greedy,
            fifo,
            address,
            requests,
        }
    })
}

/// Turnovers of the pool before the first reclaim.
const WARM_UP: usize = 10;

fn lost(trace: &Trace, point: Point, rule: &mut dyn Select) -> u64 {
    let layout = point.outermost.layout(POOL, point.handle);
    let mut engine = Offline::new(trace, layout, point.placement);
    while engine.turnover() < WARM_UP {
        engine.step();
    }
    let start = engine.now();
    let every = Duration::from_secs_f64(60.0 / point.rate);
    let mut tokens = 0;
    for nth in 1..=reclaims(point.rate) {
        while engine.now() < start + every * nth {
            engine.step();
        }
        let (selected, picked) = engine.reclaim(rule, point.size);
        tokens += selected.tokens.0;
        let until = engine.now() + HELD.min(every / 2);
        while engine.now() < until {
            engine.step();
        }
        engine.restore(&picked);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_replay::clock::Time;
    use tidegate_replay::trace::Request;
    use tidegate_text::rng::Rng;

    /// P-MEMORY-16: fewer tokens lost than first-in-first-out.
    #[test]
    fn requests_that_lie_together_lose_a_third_of_what_scattered_ones_do() {
        let mut rng = Rng::new(7);
        let mut length = |longest: f64| 16 + (rng.uniform() * longest) as u32;
        let requests = (0..4_096).map(|_| Request {
            arrival: Time::ZERO,
            input_tokens: length(2_000.0),
            output_tokens: length(500.0),
        });
        let trace = Trace::new(requests.collect());
        let [together, engine] = [Placement::Together, Placement::Engine].map(|placement| {
            let point = Point {
                placement,
                outermost: Outermost::Layer,
                handle: Bytes::mib(2),
                size: Bytes::mib(256),
                rate: 1.0,
            };
            run(&trace, point)
        });
        println!("together {together:?}, placed by the engine {engine:?}");
        assert!(3 * together.greedy < engine.greedy);
        assert!(together.greedy < together.fifo && engine.greedy < engine.fifo);
    }
}
