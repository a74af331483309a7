//! The soft landing over random lives of an agent.

use proptest::prelude::*;
use tidegate_core::landing::{
    AgentView, Effect, HANDOVER_NS, Landing, OnLoss, PATIENCE_NS, STALE_NS,
};

const MS: u64 = 1_000_000;
const TICK: u64 = 25 * MS;

/// One stretch of the agent's life.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    ticks: u64,
    beats: bool,
    stream: bool,
    hands_over: bool,
}

fn stretch() -> impl Strategy<Value = Stretch> {
    (
        1_u64..80,
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(ticks, beats, stream, hands_over)| Stretch {
            ticks,
            beats,
            stream,
            hands_over,
        })
}

proptest! {
    #[test]
    fn channels_are_enabled_in_time_and_never_while_an_agent_lives(
        life in prop::collection::vec(stretch(), 1..12),
        max_ns in prop::sample::select(vec![0, 300 * MS]),
        run in any::<bool>(),
        refused in prop::collection::vec(prop::bool::weighted(0.7), 0..6),
    ) {
        let on_loss = if run { OnLoss::Run } else { OnLoss::Hold { max_ns } };
        let mut landing = Landing::default();
        let (mut now, mut heartbeat, mut handing_over) = (1_000 * MS, 1_000 * MS, 0);
        let (mut tried, mut enabled, mut said, mut gate_open) = (false, false, false, true);
        let mut refused = refused.into_iter();
        for part in life {
            if part.hands_over && !part.beats {
                handing_over = now;
            }
            for _ in 0..part.ticks {
                now += TICK;
                if part.beats {
                    heartbeat = now;
                    handing_over = 0;
                }
                let look = AgentView { heartbeat_ns: heartbeat, handing_over_ns: handing_over, generation: 7, stream: part.stream };
                let (next, effects) = landing.step(look, on_loss, now);
                landing = next;
                let alive = part.stream && now - heartbeat <= STALE_NS;
                prop_assert!(!(enabled && effects.contains(&Effect::EnableChannels)), "nothing is enabled twice");
                let patience = if handing_over == 0 { heartbeat + PATIENCE_NS } else { handing_over + HANDOVER_NS };
                let again = tried && !enabled && !alive && now >= patience;
                prop_assert!(!again || effects.contains(&Effect::EnableChannels), "it tries again");
                for effect in effects {
                    match effect {
                        Effect::CloseGate => gate_open = false,
                        Effect::EnableChannels => {
                            prop_assert!(tried || !gate_open, "the gate is closed before channels are enabled");
                            prop_assert!(handing_over != 0 || now - heartbeat >= PATIENCE_NS);
                            prop_assert!(handing_over == 0 || now - handing_over >= HANDOVER_NS);
                            tried = true;
                            enabled = !refused.next().unwrap_or(false);
                            let (next, then) = landing.enabled(enabled);
                            landing = next;
                            prop_assert_eq!(then, enabled.then_some(7), "released is said of enabled channels");
                            said |= then.is_some();
                        }
                        Effect::OpenGate => {
                            prop_assert!(tried && (run || max_ns != 0));
                            gate_open = true;
                        }
                        Effect::ObeyAgent => {
                            prop_assert!(alive);
                            (tried, enabled, said, gate_open) = (false, false, false, true);
                        }
                    }
                }
                prop_assert_eq!(landing == Landing::Obeying, alive, "an agent is obeyed exactly while it lives");
                if !alive && now >= patience {
                    prop_assert!(tried, "nothing is left disabled past the deadline");
                }
                prop_assert_eq!(said, enabled, "released is said once every channel is enabled");
                if !alive && !tried {
                    prop_assert!(!gate_open, "no launch passes between the loss and the landing");
                }
            }
        }
    }
}
