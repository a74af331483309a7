//! The shell as it ships, turned by hand, on a node of two GPUs whose issue threads are played here.
//!
//! Judged by what reaches the GPUs: each is given its orders in the order in which they were decided, and whatever
//! failed on the way, no channel stays disabled once online is idle.

mod rig;

use rig::Rig;
use tidegate_node::kinds::{Role, Switch};

/// P-GATE-11: an order that fails at once never lets an older one follow a newer.
#[test]
fn an_order_that_fails_at_once_never_lets_an_older_one_follow_a_newer() {
    let mut rig = Rig::new(2, Rig::without_waits());
    let online = rig.attach(Role::Online, "");
    rig.attach(Role::Offline, "job");
    rig.pass(1_000_000);
    rig.rest();
    rig.gpus[0].clog();
    // Disables of both GPUs are decided at once. The first fails before the second is handed on, again and again,
    // until policy gives up and enables.
    rig.edge(online, 0, true, 0);
    rig.rest();
    let told = rig.gpus[1].orders.clone();
    assert!(
        told.iter().any(|(_, switch)| *switch == Switch::Disable),
        "the edge is not heard: {told:?}"
    );
    for (index, gpu) in rig.gpus.iter().enumerate() {
        assert!(
            gpu.orders.is_sorted_by_key(|(generation, _)| *generation),
            "GPU {index} was given an order that a newer one had replaced: {:?}",
            gpu.orders
        );
    }
    rig.edge(online, 0, false, 10);
    for _ in 0..1_000 {
        rig.pass(1_000_000);
        rig.rest();
    }
    for gpu in &rig.gpus {
        assert!(
            gpu.disabled.is_empty(),
            "stays disabled: {:?}",
            gpu.disabled
        );
    }
}
