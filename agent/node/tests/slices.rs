//! The shell as it ships, turned by hand, when one process has a lot to say.

mod rig;

use rig::Rig;
use std::sync::atomic::Ordering;
use tidegate_abi::class::Engine;
use tidegate_node::kinds::Role;
use tidegate_node::message::{Channel, RmChange, Said};

/// P-SECURITY-9: preemption does not wait for what a stranger says.
#[test]
fn an_edge_is_heard_in_the_middle_of_a_long_message() {
    const CLIENTS: u32 = 500;
    for snapshot in [false, true] {
        let mut rig = Rig::new(1, Rig::without_waits());
        let online = rig.attach(Role::Online, "");
        rig.attach(Role::Offline, "honest");
        let stranger = rig.attach(Role::Offline, "stranger");
        rig.pass(1_000_000);
        rig.rest();
        rig.probe();
        let channel = |nth: u32| Channel {
            client: 0xc1e0_0000 + nth,
            channel: 1,
            tsg: 1,
            engine: Engine::Graphics,
            device_instance: Some(0),
            uuid: None,
            subdevice: 0,
        };
        let changes = (0..CLIENTS).map(|nth| RmChange::ChannelUp(channel(nth)));
        let changes = changes.collect();
        rig.edge_after(online, 100);
        let before = rig.meanwhile.claims();
        rig.say(stranger, Said::Rm { snapshot, changes });
        let after = rig.meanwhile.ordered_at.load(Ordering::Relaxed) - before;
        assert!(
            (100..=116).contains(&after),
            "ordered after {after} of {CLIENTS}"
        );
    }
}
