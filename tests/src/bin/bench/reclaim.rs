//! What choosing stripes takes, over requests whose blocks lie anywhere.

use crate::row::{Row, median};
use tidegate_policy::holders::Holders;
use tidegate_policy::ids::{BlockId, Bytes, RequestId, Tokens};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::select::{Greedy, Select};
use tidegate_tests::monotonic_ns;
use tidegate_text::rng::Rng;

const ROUNDS: usize = 51;
const REQUESTS: u64 = 1_024;

pub fn measure() -> Vec<Row> {
    // Handles, blocks of a request, bytes to take, and how long that may last.
    let cases = [
        (4_096u32, 64, 64, 1.0),
        (4_096, 64, 1 << 10, 1.0),
        (40_960, 128, 1 << 10, 5.0),
    ];
    cases
        .map(|(handles, blocks, mib, limit)| {
            let holders = pool(handles, blocks);
            let mut greedy = Greedy::default();
            let mut picked = Vec::new();
            let mut took = Vec::new();
            for _ in 0..ROUNDS {
                picked.clear();
                let begin = monotonic_ns();
                greedy.select(&holders, Bytes::mib(mib), &mut picked);
                took.push((monotonic_ns() - begin) as f64 / 1e6);
            }
            let key = format!("reclaim.select.{handles}x{REQUESTS}.{mib}mib");
            Row::new(key, median(took), "ms").at_most(limit)
        })
        .into()
}

/// Handles of 2 MiB with one block each, and requests that hold any of them.
fn pool(handles: u32, blocks: u32) -> Holders {
    let stripes = (0..handles).map(|handle| Stripe {
        handles: vec![handle],
        blocks: vec![BlockId(handle)],
    });
    let mut holders = Holders::new(Layout::of_stripes(stripes.collect(), Bytes::mib(2)));
    let mut rng = Rng::new(1);
    for request in 0..REQUESTS {
        let draw = |_| BlockId((rng.uniform() * f64::from(handles)) as u32);
        let held: Vec<BlockId> = (0..blocks).map(draw).collect();
        holders.publish(RequestId(request), Tokens(16 * u64::from(blocks)), &held);
    }
    holders
}
